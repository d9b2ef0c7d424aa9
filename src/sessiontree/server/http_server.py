"""The HTTP server: its socket, connection limits and shutdown.

Connections that do not send their headers in time are closed. Invalid HTTP gets a JSON error.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

import h11
import msgspec
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from sessiontree.errors import InvalidOperation
from sessiontree.server.app_state import AppState
from sessiontree.server.http_errors import ApiError
from sessiontree.server.request_checks import ServerLimits

SHUTDOWN_SECONDS = 5
"""How long active requests may take when the server shuts down."""


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises `InvalidOperation`."""
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it, responses are delayed by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((name, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} on {host} is in use by another server; choose another port with --port"
        else:
            message = f"cannot listen on {host}, port {port}: {error.strerror or error}"
        raise InvalidOperation(message) from error
    return listener


class HttpServer(uvicorn.Server):
    """A server that calls `ready` when it accepts connections, and shuts down the application state first."""

    def __init__(
        self,
        app: FastAPI,
        limits: ServerLimits,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        options = {"header_seconds": limits.header_seconds, "max_connections": limits.connections}
        protocol = type("Protocol", (_HttpProtocol,), options)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                loop="asyncio",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                lifespan="on",
                timeout_keep_alive=15,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._on_ready = ready
        self._state: AppState = app.state.app_state

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.begin_shutdown()
        await super().shutdown(sockets=sockets)


async def refuse_connection(scope: Any, receive: Any, send: Any) -> None:
    """Answer every request on a connection above the limit with an error."""
    error = ApiError(503, "too many open connections; try again later", code="too_many")
    body = msgspec.json.encode(error.payload)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        (b"retry-after", b"1"),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _HttpProtocol(H11Protocol):
    """HTTP/1.1 with a timeout for headers.

    At the connection limit, the longest idle connection is closed for a new connection, so idle connections cannot keep
    clients out. If all are busy, the new connection is refused.
    """

    header_seconds = 10.0
    max_connections = 512

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._start_header_timer()
        if len(self.connections) > self.max_connections and not self._close_idle_connection():
            self.app = refuse_connection

    def _close_idle_connection(self) -> bool:
        """Close the other connection that has been idle longest. Return whether there was one."""
        idle = [
            other
            for other in self.connections
            if isinstance(other, _HttpProtocol) and other is not self and other.is_idle
        ]
        if not idle:
            return False
        min(idle, key=lambda other: other._idle_since).transport.close()
        return True

    @property
    def is_idle(self) -> bool:
        """Whether this connection has no active request."""
        states = self.conn.our_state, self.conn.their_state
        return states == (h11.IDLE, h11.IDLE) and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._start_header_timer()
        else:
            self._stop_header_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = self.loop.time()
        if self.conn.trailing_data[0]:  # the next request has started to arrive
            self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    _header_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_seconds, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(ApiError(400, "invalid HTTP request").payload)
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
