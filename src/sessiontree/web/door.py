"""The door: what every request passes before any route sees it, and every answer on its way out.

In this order: the name it was sent to, where it comes from, the token or the cookie, how fast and how much is asked,
what kind of body it brings and how long that is. Only then is it routed. A request that carries an idempotency key is
done once. Whatever goes wrong inside is told as an error without a trace, and logged. The page at `/` and its files
hold no data and take no token; signing in and out gives a browser its cookie and takes it away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import msgspec

from sessiontree.core.safe import safe
from sessiontree.errors import NotFound, SessionTreeError
from sessiontree.web.guard import (
    Bucket,
    Headers,
    bearer,
    check_content,
    check_headers,
    check_own_page,
    too_large,
)
from sessiontree.web.idempotency import Replied, Replies, fingerprint
from sessiontree.web.refusals import Refused, refusal
from sessiontree.web.serving import TOKEN, Serving
from sessiontree.web.signin import SIGN_IN, SIGN_OUT, secret_of, set_cookie, sign_in
from sessiontree.web.tokens import Token

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

log = logging.getLogger("sessiontree.web")

API = "/api"
STRANGER = "stranger"
"""Whose bucket requests without a known token come from."""
WRITING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"content-security-policy", POLICY.encode()),
)


class Door:
    def __init__(self, app: App, serving: Serving) -> None:
        self._app = app
        self._serving = serving
        self._replies = Replies()
        self._buckets: dict[str, Bucket] = {}
        self._under_way = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, _Out(send, is_api=_is_api(scope["path"])))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, out: _Out) -> None:
        self._under_way += 1
        try:
            check_headers(scope["headers"], self._serving.hosts)
            if _is_api(scope["path"]):
                scope[TOKEN] = await self._known(scope["headers"], writes=scope["method"] in WRITING)
            if self._under_way > self._serving.limits.requests:
                raise Refused(429, "too many requests are under way")
            if scope["path"] in (SIGN_IN, SIGN_OUT):
                await self._sign(scope, receive, out)
            elif scope["method"] in WRITING and _is_api(scope["path"]):
                await self._write(scope, receive, out)
            else:
                await self._app(scope, receive, out.send)
        except Refused as error:
            await self._refuse(error, out)
        except SessionTreeError as error:
            await self._refuse(refusal(error), out)
        except Exception:
            log.exception("%s %s failed", safe(scope["method"]), safe(scope["path"]))
            await self._refuse(Refused(500, "something went wrong here; the server's log tells what"), out)
        finally:
            self._under_way -= 1

    async def _known(self, headers: Headers, *, writes: bool) -> Token:
        """The token of a request, from its header or its cookie. Raises `Refused`."""
        secret, tokens = bearer(headers), self._serving.tokens
        browser = secret_of(headers, self._serving.hosts.port) if secret is None else None
        if browser is not None:
            check_own_page(headers, writes=writes)
        try:
            token = tokens.find(secret) if secret is not None else None
            if browser is not None:
                token = tokens.find(browser, "browser")
        except SessionTreeError as error:  # who has no token yet is not told of files
            log.error("no token can be looked up: %s", safe(str(error)))
            raise Refused(500, "no token can be looked up here; the server's log tells why") from error
        if not self._bucket(STRANGER if token is None else token.root).take(time.monotonic()):
            raise Refused(429, "too many requests in a short time")
        if token is None:
            raise Refused(401, "a token is needed: Authorization: Bearer TOKEN")
        return token

    async def _sign(self, scope: MutableMapping[str, Any], receive: Receive, out: _Out) -> None:
        """Give a browser its cookie, or take it away."""
        headers: Headers = scope["headers"]
        if scope["method"] != "POST":
            raise Refused(405, "this address does not take that method")
        if not self._bucket(STRANGER).take(time.monotonic()):
            raise Refused(429, "too many requests in a short time")
        check_content(headers, self._serving.limits.body)
        body = await self._body(receive)
        check_own_page(headers, writes=True)
        tokens, port = self._serving.tokens, self._serving.hosts.port
        if scope["path"] == SIGN_IN:
            made = await asyncio.to_thread(sign_in, tokens, body)
            told, given = {"id": made.token.id, "expires": made.token.expires}, made.secret
        else:
            token = tokens.find(secret_of(headers, port) or "", "browser")
            if token is not None:
                with contextlib.suppress(NotFound):  # another request was faster
                    await asyncio.to_thread(tokens.revoke, token.id)
            told, given = {}, ""
        answer = msgspec.json.encode(told)
        start = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer)).encode()),
            (b"cache-control", b"no-store"),
            set_cookie(port, given, headers),
        ]
        await out.send({"type": "http.response.start", "status": 200, "headers": start})
        await out.send({"type": "http.response.body", "body": answer})

    def _bucket(self, id: str) -> Bucket:
        if id not in self._buckets:
            limits = self._serving.limits
            self._buckets[id] = Bucket(limits.rate, limits.burst, time.monotonic())
        return self._buckets[id]

    async def _write(self, scope: MutableMapping[str, Any], receive: Receive, out: _Out) -> None:
        headers: Headers = scope["headers"]
        body = b""
        if scope["method"] in WITH_BODY:
            check_content(headers, self._serving.limits.body)
            body = await self._body(receive)
        keys = [value for name, value in headers if name == b"idempotency-key"]
        if not keys:
            await self._app(scope, _given(body, receive), out.send)
            return
        asked = scope["method"].encode(), scope["path"].encode("utf-8", "replace"), scope["query_string"], body

        async def do() -> Replied:
            caught = _Caught()
            try:
                await self._app(scope, _given(body, receive), caught.send)
            except SessionTreeError as error:
                await self._refuse(refusal(error), caught)
            except Refused as error:
                await self._refuse(error, caught)
            return caught.reply

        # It goes on when the client does not wait, so that the answer is there when it asks again.
        work = asyncio.ensure_future(self._replies.once(scope[TOKEN].id, keys[0], fingerprint(*asked), do))
        reply, replayed = await asyncio.shield(work)
        more = ((b"idempotency-replayed", b"true"),) if replayed else ()
        start = {"type": "http.response.start", "status": reply.status, "headers": [*reply.headers, *more]}
        await out.send(start)
        await out.send({"type": "http.response.body", "body": reply.body})

    async def _body(self, receive: Receive) -> bytes:
        """The whole body of a request. Raises `Refused` if it is too long, or takes too long to come."""
        limit, parts, size = self._serving.limits.body, list[bytes](), 0
        try:
            async with asyncio.timeout(self._serving.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the request was not finished")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise too_large(limit)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(408, "the request took too long to come") from None

    async def _refuse(self, error: Refused, out: _Out | _Caught) -> None:
        if out.started:
            return  # what was begun cannot be taken back: the connection ends without its end
        body = msgspec.json.encode(error.wire)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if error.status == 429:
            headers.append((b"retry-after", b"1"))
        if error.status in (408, 413):
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await out.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await out.send({"type": "http.response.body", "body": body})


def _is_api(path: str) -> bool:
    return path == API or path.startswith(f"{API}/")


def _given(body: bytes, receive: Receive) -> Receive:
    """Hands the body over at once; then the client may only go away."""
    parts = [body]

    async def handed() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return handed


class _Out:
    """The way out: what every answer carries."""

    def __init__(self, send: Send, *, is_api: bool) -> None:
        self._send = send
        self._more = (*ALWAYS, (b"cache-control", b"no-store" if is_api else b"no-cache"))
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            given = {name for name, _ in message.get("headers", ())}
            more = [header for header in self._more if header[0] not in given]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await self._send(message)


class _Caught:
    """Keeps an answer instead of sending it."""

    def __init__(self) -> None:
        self._status = 500
        self._headers: Headers = ()
        self._parts: list[bytes] = []
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self._status, self._headers = message["status"], tuple(message.get("headers", ()))
        else:
            self._parts.append(message.get("body", b""))

    @property
    def reply(self) -> Replied:
        return Replied(status=self._status, headers=self._headers, body=b"".join(self._parts))
