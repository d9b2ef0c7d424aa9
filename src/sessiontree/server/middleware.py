"""The door: what every request passes before any route sees it, and every answer on its way out.

In this order: the name it was sent to, where it comes from, the token or the cookie, how fast and how much is asked,
what kind of body it brings and how long that is. Only then is it routed. A request that carries an idempotency key is
done once. Whatever goes wrong inside is told as an error without a trace, and logged. The page at `/` and its files
hold no data and take no token; signing in and out gives a browser its cookie and takes it away.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from sessiontree.core.sanitize import escape_line
from sessiontree.errors import NotFound, SessionTreeError
from sessiontree.server.app_state import TOKEN_KEY, AppState
from sessiontree.server.auth import SIGN_IN, SIGN_OUT, Token, build_cookie_header, read_session_cookie, sign_in
from sessiontree.server.http_errors import ApiError, convert_error
from sessiontree.server.request_checks import (
    Headers,
    RateLimiter,
    check_content_headers,
    check_headers,
    check_same_origin,
    make_too_large_error,
    read_bearer_token,
)

MAX_STORED_RESPONSES = 1000
"""Answers that are kept at most."""
MAX_STORED_BYTES = 32 << 20
MAX_KEY_LENGTH = 200
RETRYABLE_STATUSES = (408, 412, 429)
"""Refusals after which the same request may be sent again, once there is time or what it has seen is seen anew."""


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A whole answer."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class _CachedRequest(Struct):
    fingerprint: bytes
    response: asyncio.Future[StoredResponse]
    size: int = 0


def compute_fingerprint(*parts: bytes) -> bytes:
    """What tells one request from another."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


class IdempotencyCache:
    """The answers to requests that carried a key. For one event loop."""

    def __init__(self) -> None:
        self._requests: OrderedDict[tuple[str, bytes], _CachedRequest] = OrderedDict()
        self._size = 0

    async def run_once(
        self, owner: str, key: bytes, request: bytes, do: Callable[[], Awaitable[StoredResponse]]
    ) -> tuple[StoredResponse, bool]:
        """The answer, and whether it is one from before. Raises `Refused` for a key that was another request's."""
        if not key or len(key) > MAX_KEY_LENGTH:
            raise ApiError(400, f"an idempotency key has 1 to {MAX_KEY_LENGTH} characters")
        known = self._requests.get((owner, key))
        if known is not None:
            if known.fingerprint != request:
                raise ApiError(422, "this idempotency key was another request's", code="key_reused")
            return await asyncio.shield(known.response), True
        kept = _CachedRequest(request, asyncio.get_running_loop().create_future())
        self._requests[owner, key] = kept
        try:
            reply = await do()
        except BaseException as error:
            self._forget(owner, key)
            if not kept.response.done():
                kept.response.set_exception(error if isinstance(error, Exception) else ApiError(503, "it was given up"))
                kept.response.exception()  # nobody need be waiting for it
            raise
        kept.response.set_result(reply)
        if reply.status >= 500 or reply.status in RETRYABLE_STATUSES:
            self._forget(owner, key)
        else:
            kept.size = len(reply.body)
            self._size += kept.size
            self._evict()
        return reply, False

    def _forget(self, owner: str, key: bytes) -> None:
        kept = self._requests.pop((owner, key), None)
        if kept is not None:
            self._size -= kept.size

    def _evict(self) -> None:
        for owner, key in list(self._requests):
            if len(self._requests) <= MAX_STORED_RESPONSES and self._size <= MAX_STORED_BYTES:
                return
            if self._requests[owner, key].response.done():
                self._forget(owner, key)


Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

log = logging.getLogger("sessiontree.server")

API = "/api"
UNKNOWN_CLIENT = "stranger"
"""Whose bucket requests without a known token come from."""
WRITE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})

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
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"content-security-policy", POLICY.encode()),
)


class RequestMiddleware:
    def __init__(self, app: App, state: AppState) -> None:
        self._app = app
        self._state = state
        self._idempotency_cache = IdempotencyCache()
        self._rate_limiters: dict[str, RateLimiter] = {}
        self._active_requests = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._handle(scope, receive, _ResponseSender(send, is_api=_is_api(scope["path"])))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _handle(self, scope: MutableMapping[str, Any], receive: Receive, out: _ResponseSender) -> None:
        self._active_requests += 1
        try:
            check_headers(scope["headers"], self._state.hosts)
            if _is_api(scope["path"]):
                scope[TOKEN_KEY] = await self._authenticate(scope["headers"], writes=scope["method"] in WRITE_METHODS)
            if self._active_requests > self._state.limits.requests:
                raise ApiError(429, "too many requests are under way")
            if scope["path"] in (SIGN_IN, SIGN_OUT):
                await self._handle_sign_in(scope, receive, out)
            elif scope["method"] in WRITE_METHODS and _is_api(scope["path"]):
                await self._handle_write(scope, receive, out)
            else:
                await self._app(scope, receive, out.send)
        except ApiError as error:
            await self._send_error(error, out)
        except SessionTreeError as error:
            await self._send_error(convert_error(error), out)
        except Exception:
            log.exception("%s %s failed", escape_line(scope["method"]), escape_line(scope["path"]))
            await self._send_error(ApiError(500, "something went wrong here; the server's log tells what"), out)
        finally:
            self._active_requests -= 1

    async def _authenticate(self, headers: Headers, *, writes: bool) -> Token:
        """The token of a request, from its header or its cookie. Raises `Refused`."""
        secret, tokens = read_bearer_token(headers), self._state.tokens
        browser = read_session_cookie(headers, self._state.hosts.port) if secret is None else None
        if browser is not None:
            check_same_origin(headers, writes=writes)
        try:
            token = tokens.find(secret) if secret is not None else None
            if browser is not None:
                token = tokens.find(browser, "browser")
        except SessionTreeError as error:  # who has no token yet is not told of files
            log.error("no token can be looked up: %s", escape_line(str(error)))
            raise ApiError(500, "no token can be looked up here; the server's log tells why") from error
        if not self._get_rate_limiter(UNKNOWN_CLIENT if token is None else token.root).try_acquire(time.monotonic()):
            raise ApiError(429, "too many requests in a short time")
        if token is None:
            raise ApiError(401, "a token is needed: Authorization: Bearer TOKEN")
        return token

    async def _handle_sign_in(self, scope: MutableMapping[str, Any], receive: Receive, out: _ResponseSender) -> None:
        """Give a browser its cookie, or take it away."""
        headers: Headers = scope["headers"]
        if scope["method"] != "POST":
            raise ApiError(405, "this address does not take that method")
        if not self._get_rate_limiter(UNKNOWN_CLIENT).try_acquire(time.monotonic()):
            raise ApiError(429, "too many requests in a short time")
        check_content_headers(headers, self._state.limits.body)
        body = await self._read_body(receive)
        check_same_origin(headers, writes=True)
        tokens, port = self._state.tokens, self._state.hosts.port
        if scope["path"] == SIGN_IN:
            made = await asyncio.to_thread(sign_in, tokens, body)
            told, given = {"id": made.token.id, "expires": made.token.expires}, made.secret
        else:
            token = tokens.find(read_session_cookie(headers, port) or "", "browser")
            if token is not None:
                with contextlib.suppress(NotFound):  # another request was faster
                    await asyncio.to_thread(tokens.revoke, token.id)
            told, given = {}, ""
        answer = msgspec.json.encode(told)
        start = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer)).encode()),
            (b"cache-control", b"no-store"),
            build_cookie_header(port, given, headers),
        ]
        await out.send({"type": "http.response.start", "status": 200, "headers": start})
        await out.send({"type": "http.response.body", "body": answer})

    def _get_rate_limiter(self, id: str) -> RateLimiter:
        if id not in self._rate_limiters:
            limits = self._state.limits
            self._rate_limiters[id] = RateLimiter(limits.rate, limits.burst, time.monotonic())
        return self._rate_limiters[id]

    async def _handle_write(self, scope: MutableMapping[str, Any], receive: Receive, out: _ResponseSender) -> None:
        headers: Headers = scope["headers"]
        body = b""
        if scope["method"] in BODY_METHODS:
            check_content_headers(headers, self._state.limits.body)
            body = await self._read_body(receive)
        keys = [value for name, value in headers if name == b"idempotency-key"]
        if not keys:
            await self._app(scope, _replay_body(body, receive), out.send)
            return
        asked = scope["method"].encode(), scope["path"].encode("utf-8", "replace"), scope["query_string"], body

        async def run_request() -> StoredResponse:
            caught = _ResponseRecorder()
            try:
                await self._app(scope, _replay_body(body, receive), caught.send)
            except SessionTreeError as error:
                await self._send_error(convert_error(error), caught)
            except ApiError as error:
                await self._send_error(error, caught)
            return caught.response

        # It goes on when the client does not wait, so that the answer is there when it asks again.
        work = asyncio.ensure_future(
            self._idempotency_cache.run_once(scope[TOKEN_KEY].id, keys[0], compute_fingerprint(*asked), run_request)
        )
        reply, replayed = await asyncio.shield(work)
        more = ((b"idempotency-replayed", b"true"),) if replayed else ()
        start = {"type": "http.response.start", "status": reply.status, "headers": [*reply.headers, *more]}
        await out.send(start)
        await out.send({"type": "http.response.body", "body": reply.body})

    async def _read_body(self, receive: Receive) -> bytes:
        """The whole body of a request. Raises `Refused` if it is too long, or takes too long to come."""
        limit, parts, size = self._state.limits.body, list[bytes](), 0
        try:
            async with asyncio.timeout(self._state.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "the request was not finished")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise make_too_large_error(limit)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, "the request took too long to come") from None

    async def _send_error(self, error: ApiError, out: _ResponseSender | _ResponseRecorder) -> None:
        if out.started:
            return  # what was begun cannot be taken back: the connection ends without its end
        body = msgspec.json.encode(error.payload)
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


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Hands the body over at once; then the client may only go away."""
    parts = [body]

    async def receive_once() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return receive_once


class _ResponseSender:
    """The way out: what every answer carries."""

    def __init__(self, send: Send, *, is_api: bool) -> None:
        self._send = send
        self._default_headers = (*SECURITY_HEADERS, (b"cache-control", b"no-store" if is_api else b"no-cache"))
        self.started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            given = {name for name, _ in message.get("headers", ())}
            more = [header for header in self._default_headers if header[0] not in given]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await self._send(message)


class _ResponseRecorder:
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
    def response(self) -> StoredResponse:
        return StoredResponse(status=self._status, headers=self._headers, body=b"".join(self._parts))
