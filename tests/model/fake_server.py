"""A model server on the loopback address that answers from a script, in the protocol of each request.

    with FakeServer(["Hello", calls(("c1", "read", {"path": "a.py"})), fail(429, retry_after=0.1)]) as server:
        server.url       # for a base_url
        server.requests  # the body of every request, oldest first

An answer is a text, an `Answer`, or a function that returns one for the body of a request. Each request takes
the next answer. If there is none left, the server responds with status 400.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, TypeAlias

from tests.model.dialects import Answer as Answer
from tests.model.dialects import Call, find_dialect


def calls(*made: Call, text: str = "", **options: Any) -> Answer:
    """Return an answer that calls tools, with the arguments in fragments."""
    return Answer(text=text, calls=made, **options)


def slow(text: str = "word " * 200, pause: float = 0.05, **options: Any) -> Answer:
    """Return an answer that is streamed slowly, word by word."""
    return Answer(text=text, pause=pause, piece=5, **options)


def cut(text: str = "This is not the whole", **options: Any) -> Answer:
    """Return an answer whose connection breaks before its end."""
    return Answer(text=text, cut=True, **options)


def fail(status: int, message: str = "", *, code: str | None = None, retry_after: float | str | None = None) -> Answer:
    """Return an error response with this status."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    error = {"message": message or f"refused with {status}", "type": "error", "code": code}
    return Answer(status=status, headers=headers, error=error)


def overflow(window: int = 4096) -> Answer:
    """Return the error for a conversation that is too long, in the words of OpenAI."""
    message = f"This model's maximum context length is {window} tokens. However, your messages resulted in more."
    return fail(400, message, code="context_length_exceeded")


Script: TypeAlias = str | Answer | Callable[[dict[str, Any]], str | Answer]


class FakeServer:
    def __init__(
        self,
        answers: Iterable[Script] = (),
        *,
        models: Iterable[str] | None = ("scripted",),
        window: int | None = None,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        """The headers of each request, with names in lower case."""
        self.disconnects = 0
        """How many clients disconnected before their answer was complete."""
        self.models = None if models is None else list(models)
        """The models that it lists; `None` for a server without models."""
        self.window = window
        """The context window, reported like llama.cpp."""
        self._answers = list(answers)
        self._changed = threading.Condition()
        self._closed = threading.Event()
        handler = type("Handler", (_Handler,), {"script": self})
        self._http = _Http(("127.0.0.1", 0), handler)
        self.port: int = self._http.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def add(self, *answers: Script) -> None:
        with self._changed:
            self._answers.extend(answers)

    def wait_for(self, condition: Callable[[Self], bool], seconds: float = 60) -> bool:
        """Wait until `condition` is true for this server. Return whether it became true in time."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), seconds)

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._http.shutdown()
        self._http.server_close()
        for connection in list(self._http.live):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # For the handler

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def answer_request(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        with self._changed:
            self.requests.append(body)
            self.headers.append(headers)
            given = self._answers.pop(0) if self._answers else fail(400, "the script has no answers left")
            self._changed.notify_all()
        answer = given if isinstance(given, str | Answer) else given(body)
        return Answer(text=answer) if isinstance(answer, str) else answer

    def record_disconnect(self) -> None:
        with self._changed:
            self.disconnects += 1
            self._changed.notify_all()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    live: set[socket.socket]
    """The open connections."""

    def server_activate(self) -> None:
        self.live = set()
        super().server_activate()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.live.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.live.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Gone(Exception):
    """The client disconnected."""


class _Handler(BaseHTTPRequestHandler):
    script: FakeServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.script.models is not None:
            listed = [{"id": name, "object": "model"} for name in self.script.models]
            self._send_whole(200, {"object": "list", "data": listed})
        elif self.path == "/props" and self.script.window is not None:
            self._send_whole(200, {"default_generation_settings": {"n_ctx": self.script.window}})
        else:
            self._send_whole(404, {"error": {"message": "there is nothing here"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        if "//" in self.path:
            self._send_whole(404, {"error": {"message": f"there is nothing at {self.path}"}})
            return
        answer = self.script.answer_request(body, {name.lower(): value for name, value in self.headers.items()})
        try:
            self._pause(answer.pause)
            if answer.status != 200:
                self._send_whole(answer.status, {"error": answer.error}, answer.headers)
            elif self.path.endswith("/responses") and not body.get("stream"):
                *_, last = find_dialect(self.path).end(answer, body)
                self._send_whole(200, last["response"])
            else:
                self._stream_events(answer, body)
        except (_Gone, ConnectionError):
            self.close_connection = True
            self.script.record_disconnect()

    def _send_whole(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        for name, said in {
            **(headers or {}),
            "Content-Type": "application/json",
            "Content-Length": str(len(raw)),
        }.items():
            self.send_header(name, said)
        self.end_headers()
        self.wfile.write(raw)

    def _stream_events(self, answer: Answer, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        dialect = find_dialect(self.path.partition("?")[0])
        for event in dialect.begin(answer, body):
            self._send_event(event)
            self._pause(answer.pause)
        if answer.cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        for event in dialect.end(answer, body):
            self._send_event(event)
        self.wfile.write(b"0\r\n\r\n")

    def _send_event(self, value: Any) -> None:
        name = f"event: {value['type']}\n" if isinstance(value, dict) and "type" in value else ""
        raw = f"{name}data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))

    def _pause(self, seconds: float) -> None:
        """Wait. Raises an error if the client disconnects."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            readable, _, _ = select.select([self.connection], [], [], min(left, 0.05))
            if self.script.closed or (readable and not self.connection.recv(1, socket.MSG_PEEK)):
                raise _Gone
            if readable:
                time.sleep(min(left, 0.05))  # it already sent its next request
