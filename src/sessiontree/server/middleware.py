"""The middleware that every request passes: authentication, rate limits, body limits and idempotency keys.

It checks the host name, the origin, the token or cookie, the request rate, and the type and length of the body, in this
order, before the request is routed. The page at `/`, its files, `/livez` and `/readyz` need no token. Unexpected errors
are logged and answered without a traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from sessiontree.core.sanitize import escape_line
from sessiontree.errors import NotFound, SessionTreeError, StoreError
from sessiontree.server.app_state import TOKEN_KEY, AppState
from sessiontree.server.audit_log import build_event
from sessiontree.server.auth import (
    SHARE_PREFIX,
    SIGN_IN,
    SIGN_OUT,
    Token,
    build_cookie_header,
    read_session_cookie,
    sign_in,
)
from sessiontree.server.http_errors import (
    INTERNAL_ERROR,
    PAGE_TYPE,
    SHARE_GONE,
    ApiError,
    build_error_page,
    convert_error,
)
from sessiontree.server.reply_store import ReplyStore, StoredResponse
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
"""The number of responses cached for idempotency keys, in the memory of this process."""
RENEW_SECONDS = 10.0
"""Seconds between two renewals of the claim of a key."""
POLL_SECONDS = 0.2
"""Seconds between two looks for the reply of another server."""
MAX_STORED_BYTES = 32 << 20
MAX_KEY_LENGTH = 200
RETRYABLE_STATUSES = (408, 412, 429)
"""Errors after which a client may send the same request with the same key again."""


class _CachedRequest(Struct):
    fingerprint: bytes
    response: asyncio.Future[StoredResponse]
    size: int = 0


def compute_fingerprint(*parts: bytes) -> bytes:
    """Return a hash that identifies a request."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


class IdempotencyCache:
    """Responses to requests with an idempotency key, by token. For one event loop.

    A repeated request gets the same response and is not run again, also while the first one is still running, after a
    restart, or at another server with the same `ReplyStore`.
    """

    def __init__(self, replies: ReplyStore | None = None) -> None:
        self._replies = replies
        self._requests: OrderedDict[tuple[str, bytes], _CachedRequest] = OrderedDict()
        self._size = 0

    async def run_once(
        self, owner: str, key: bytes, request: bytes, run_request: Callable[[], Awaitable[StoredResponse]]
    ) -> tuple[StoredResponse, bool]:
        """Return the response and whether it is a replay. Raises `ApiError` if another request used the key."""
        if not key or len(key) > MAX_KEY_LENGTH:
            raise ApiError(400, f"an idempotency key has 1 to {MAX_KEY_LENGTH} characters")
        known = self._requests.get((owner, key))
        if known is not None:
            if known.fingerprint != request:
                raise ApiError(422, "another request used this idempotency key", code="key_reused")
            return await asyncio.shield(known.response), True
        cached = _CachedRequest(request, asyncio.get_running_loop().create_future())
        self._requests[owner, key] = cached
        try:
            reply, is_replay = await self._run_shared(owner, key, request, run_request)
        except BaseException as error:
            self._forget(owner, key)
            if not cached.response.done():
                cached.response.set_exception(
                    error if isinstance(error, Exception) else ApiError(503, "the request was cancelled")
                )
                cached.response.exception()  # mark it as retrieved: no repeated request may be waiting
            raise
        cached.response.set_result(reply)
        if reply.status >= 500 or reply.status in RETRYABLE_STATUSES:
            self._forget(owner, key)
        else:
            cached.size = len(reply.body)
            self._size += cached.size
            self._evict()
        return reply, is_replay

    async def _run_shared(
        self, owner: str, key: bytes, request: bytes, run_request: Callable[[], Awaitable[StoredResponse]]
    ) -> tuple[StoredResponse, bool]:
        """Run a request unless another server did, and store its reply. Return whether the reply was stored before."""
        replies = self._replies
        if replies is None:
            return await run_request(), False
        while (claim := await asyncio.to_thread(replies.claim, owner, key, request)).state == "running":
            await asyncio.sleep(POLL_SECONDS)
        if claim.state == "reused":
            raise ApiError(422, "another request used this idempotency key", code="key_reused")
        if claim.state == "lost":
            raise ApiError(
                409,
                "the server stopped while it handled the first request with this key: check whether it was done, then "
                "use another key",
                code="unknown_outcome",
            )
        if claim.reply is not None:
            return claim.reply, True
        renewal = asyncio.create_task(self._renew(replies, owner, key))
        try:
            reply = await run_request()
        except Exception:
            await self._try_to(replies.drop, owner, key)
            raise
        finally:
            renewal.cancel()
        if reply.status >= 500 or reply.status in RETRYABLE_STATUSES:
            await self._try_to(replies.drop, owner, key)
        else:
            await self._try_to(replies.store, owner, key, reply)
        return reply, False

    async def _renew(self, replies: ReplyStore, owner: str, key: bytes) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._try_to(replies.renew, owner, key)

    async def _try_to(self, function: Callable[..., None], *values: Any) -> None:
        """Call a function of the store. If it fails, the request was done all the same, and this server knows it."""
        try:
            await asyncio.to_thread(function, *values)
        except StoreError as error:
            log.warning("the answer to an idempotency key is not shared: %s", escape_line(str(error)))

    def _forget(self, owner: str, key: bytes) -> None:
        cached = self._requests.pop((owner, key), None)
        if cached is not None:
            self._size -= cached.size

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
PROBES = ("/livez", "/readyz")
"""Answered however busy the server is: a supervisor would restart it."""
UNKNOWN_CLIENT = "stranger"
"""The rate limiter of requests without a valid token."""
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
        self._idempotency_cache = IdempotencyCache(state.replies)
        self._rate_limiters: dict[str, RateLimiter] = {}
        self._active_requests = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            sender = _ResponseSender(send, self._state.response_counts, is_api=_is_api(scope["path"]))
            await self._handle(scope, receive, sender)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _handle(self, scope: MutableMapping[str, Any], receive: Receive, out: _ResponseSender) -> None:
        self._active_requests += 1
        try:
            check_headers(scope["headers"], self._state.hosts)
            if _is_api(scope["path"]):
                scope[TOKEN_KEY] = await self._authenticate(scope["headers"], writes=scope["method"] in WRITE_METHODS)
            elif scope["path"].startswith(SHARE_PREFIX):
                scope[TOKEN_KEY] = self._find_share(scope["path"].removeprefix(SHARE_PREFIX))
            if self._active_requests > self._state.limits.requests and scope["path"] not in PROBES:
                raise ApiError(429, "too many concurrent requests")
            if scope["path"] in (SIGN_IN, SIGN_OUT):
                await self._handle_sign_in(scope, receive, out)
            elif scope["method"] in WRITE_METHODS and _is_api(scope["path"]):
                await self._handle_write(scope, receive, out)
            else:
                await self._app(scope, receive, out.send)
        except ApiError as error:
            await self._send_error(error, out, is_page=scope["path"].startswith(SHARE_PREFIX))
        except SessionTreeError as error:
            await self._send_error(convert_error(error), out)
        except Exception:
            log.exception("%s %s failed", escape_line(scope["method"]), escape_line(scope["path"]))
            await self._send_error(ApiError(500, INTERNAL_ERROR), out)
        finally:
            self._active_requests -= 1
            self._record(scope, out.status)

    def _record(self, scope: MutableMapping[str, Any], status: int) -> None:
        """Write a request to the audit log, if it changed, exported or showed something."""
        token: Token | None = scope.get(TOKEN_KEY)
        event = None if token is None else build_event(token, scope["method"], scope["path"], status)
        if event is not None:
            self._state.audit.record(event)

    async def _authenticate(self, headers: Headers, *, writes: bool) -> Token:
        """Return the token of a request, from its header or cookie. Raises `ApiError`."""
        secret, tokens = read_bearer_token(headers), self._state.tokens
        browser = read_session_cookie(headers, self._state.hosts.port) if secret is None else None
        if browser is not None:
            check_same_origin(headers, writes=writes)
        try:
            token = tokens.find(secret) if secret is not None else None
            if browser is not None:
                token = tokens.find(browser, "browser")
        except SessionTreeError as error:  # a client without a token must not see file names
            log.error("cannot read the tokens: %s", escape_line(str(error)))
            raise ApiError(500, "cannot check tokens; see the server log") from error
        if not self._get_rate_limiter(UNKNOWN_CLIENT if token is None else token.root).try_acquire(time.monotonic()):
            raise ApiError(429, "too many requests; try again later")
        if token is None:
            raise ApiError(401, "token required; send Authorization: Bearer TOKEN")
        return token

    def _find_share(self, secret: str) -> Token:
        """Return the token of a share link. Raises `ApiError`."""
        share = self._state.tokens.find(secret, "share")
        if not self._get_rate_limiter(UNKNOWN_CLIENT if share is None else share.id).try_acquire(time.monotonic()):
            raise ApiError(429, "too many requests; try again later")
        if share is None:
            raise ApiError(404, SHARE_GONE)
        return share

    async def _handle_sign_in(self, scope: MutableMapping[str, Any], receive: Receive, out: _ResponseSender) -> None:
        """Set or delete the cookie of a browser."""
        headers: Headers = scope["headers"]
        if scope["method"] != "POST":
            raise ApiError(405, "method not allowed at this address")
        if not self._get_rate_limiter(UNKNOWN_CLIENT).try_acquire(time.monotonic()):
            raise ApiError(429, "too many requests; try again later")
        check_content_headers(headers, self._state.limits.body)
        body = await self._read_body(receive)
        check_same_origin(headers, writes=True)
        tokens, port = self._state.tokens, self._state.hosts.port
        if scope["path"] == SIGN_IN:
            issued = await asyncio.to_thread(sign_in, tokens, body)
            content, given = {"id": issued.token.id, "expires": issued.token.expires}, issued.secret
            scope[TOKEN_KEY] = issued.token
        else:
            token = tokens.find(read_session_cookie(headers, port) or "", "browser")
            if token is not None:
                with contextlib.suppress(NotFound):  # another request has revoked it
                    await asyncio.to_thread(tokens.revoke, token.id)
            content, given = {}, ""
        body_bytes = msgspec.json.encode(content)
        start = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body_bytes)).encode()),
            (b"cache-control", b"no-store"),
            build_cookie_header(port, given, headers),
        ]
        await out.send({"type": "http.response.start", "status": 200, "headers": start})
        await out.send({"type": "http.response.body", "body": body_bytes})

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
        parts = scope["method"].encode(), scope["path"].encode("utf-8", "replace"), scope["query_string"], body

        async def run_request() -> StoredResponse:
            recorder = _ResponseRecorder()
            try:
                await self._app(scope, _replay_body(body, receive), recorder.send)
            except SessionTreeError as error:
                await self._send_error(convert_error(error), recorder)
            except ApiError as error:
                await self._send_error(error, recorder)
            return recorder.response

        # The request continues if the client disconnects: a retry then finds the response.
        work = asyncio.ensure_future(
            self._idempotency_cache.run_once(scope[TOKEN_KEY].id, keys[0], compute_fingerprint(*parts), run_request)
        )
        reply, replayed = await asyncio.shield(work)
        more = ((b"idempotency-replayed", b"true"),) if replayed else ()
        start = {"type": "http.response.start", "status": reply.status, "headers": [*reply.headers, *more]}
        await out.send(start)
        await out.send({"type": "http.response.body", "body": reply.body})

    async def _read_body(self, receive: Receive) -> bytes:
        """Return the body of a request. Raises `ApiError` if it is too long or too slow."""
        limit, parts, size = self._state.limits.body, list[bytes](), 0
        try:
            async with asyncio.timeout(self._state.limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "the request is incomplete")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise make_too_large_error(limit)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, "the request took too long to arrive") from None

    async def _send_error(
        self, error: ApiError, out: _ResponseSender | _ResponseRecorder, *, is_page: bool = False
    ) -> None:
        """Send an error as JSON, or as a page to a person who opened a share link."""
        if out.started:
            return  # the response has started: the connection ends in the middle of it
        body = build_error_page(str(error)) if is_page else msgspec.json.encode(error.payload)
        kind = PAGE_TYPE.encode() if is_page else b"application/json"
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
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
    """Return a `receive` that gives the whole body first, then waits for the client to disconnect."""
    parts = [body]

    async def receive_once() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return receive_once


class _ResponseSender:
    """Sends a response with the default security headers."""

    def __init__(self, send: Send, counts: Counter[int], *, is_api: bool) -> None:
        self._send = send
        self._counts = counts
        self._default_headers = (*SECURITY_HEADERS, (b"cache-control", b"no-store" if is_api else b"no-cache"))
        self.started = False
        self.status = 500

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            self._counts[message["status"]] += 1
            given = {name for name, _ in message.get("headers", ())}
            more = [header for header in self._default_headers if header[0] not in given]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await self._send(message)


class _ResponseRecorder:
    """Records a response instead of sending it."""

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
