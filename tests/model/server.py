"""A model server on loopback that answers from a script, in OpenAI's chat completions or Anthropic's messages.

    with Server(["Hello", calls(("c1", "read", {"path": "a.py"})), fail(429, retry_after=0.1)]) as server:
        server.url       # what a base_url is set to
        server.requests  # the body of every request, oldest first

An answer is a text, an `Answer`, or a function of the request's body that gives one. Each request takes the
next; when there is none left, the server says so with a 400.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, TypeAlias

Call: TypeAlias = tuple[str, str, Any]
"""Id, name, and arguments: an object, or a text that is sent as it is."""


@dataclass(frozen=True)
class Answer:
    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 12, "completion_tokens": 5})
    """As OpenAI names its fields; `None` sends none."""
    finish: str | None = None
    """By default `tool_calls` after calls, else `stop`; an empty one is not sent."""
    piece: int = 4
    """How many characters a fragment has."""
    pause: float = 0
    """Seconds before the first fragment and after each one."""
    cut: bool = False
    """Whether the connection is closed before the answer is whole."""
    signature: str = ""
    """Of the thinking, for Anthropic's messages."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    """With another status than 200: what is wrong."""


def calls(*made: Call, text: str = "", **options: Any) -> Answer:
    """An answer that calls tools, arguments in fragments."""
    return Answer(text=text, calls=made, **options)


def slow(text: str = "word " * 200, pause: float = 0.05, **options: Any) -> Answer:
    """An answer that takes long, word by word."""
    return Answer(text=text, pause=pause, piece=5, **options)


def cut(text: str = "This is not the whole", **options: Any) -> Answer:
    """An answer whose connection breaks before its end."""
    return Answer(text=text, cut=True, **options)


def fail(status: int, message: str = "", *, code: str | None = None, retry_after: float | str | None = None) -> Answer:
    """A refusal with this status."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    error = {"message": message or f"refused with {status}", "type": "error", "code": code}
    return Answer(status=status, headers=headers, error=error)


def overflow(window: int = 4096) -> Answer:
    """The refusal of a conversation that is too long, as OpenAI words it."""
    message = f"This model's maximum context length is {window} tokens. However, your messages resulted in more."
    return fail(400, message, code="context_length_exceeded")


Script: TypeAlias = str | Answer | Callable[[dict[str, Any]], str | Answer]


class Server:
    def __init__(
        self,
        answers: Iterable[Script] = (),
        *,
        models: Iterable[str] | None = ("scripted",),
        window: int | None = None,
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        """Of each request, names in lower case."""
        self.disconnects = 0
        """How many clients went away before their answer was whole."""
        self.models = None if models is None else list(models)
        """What it says it serves; `None` for a server of something else."""
        self.window = window
        """Its context, told as llama.cpp does."""
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

    def wait_for(self, condition: Callable[[Self], bool], seconds: float = 5) -> bool:
        """Wait until `condition` of this server is true, or time is up; says which."""
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

    def take(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        with self._changed:
            self.requests.append(body)
            self.headers.append(headers)
            given = self._answers.pop(0) if self._answers else fail(400, "the script has no answer left")
            self._changed.notify_all()
        answer = given if isinstance(given, str | Answer) else given(body)
        return Answer(text=answer) if isinstance(answer, str) else answer

    def disconnected(self) -> None:
        with self._changed:
            self.disconnects += 1
            self._changed.notify_all()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    live: set[socket.socket]
    """Connections that are open, for those who keep them."""

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
        """Clients go away in these tests; that is no news."""


class _Gone(Exception):
    """The client went away."""


class _Handler(BaseHTTPRequestHandler):
    script: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.script.models is not None:
            listed = [{"id": name, "object": "model"} for name in self.script.models]
            self._whole(200, {"object": "list", "data": listed})
        elif self.path == "/props" and self.script.window is not None:
            self._whole(200, {"default_generation_settings": {"n_ctx": self.script.window}})
        else:
            self._whole(404, {"error": {"message": "there is nothing here"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        answer = self.script.take(body, {name.lower(): value for name, value in self.headers.items()})
        try:
            self._pause(answer.pause)
            if answer.status != 200:
                self._whole(answer.status, {"error": answer.error}, answer.headers)
            elif body.get("stream"):
                self._streamed(answer, body)
            else:
                self._whole(200, _completion(answer, body))
        except (_Gone, ConnectionError):
            self.close_connection = True
            self.script.disconnected()

    def _whole(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
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

    def _streamed(self, answer: Answer, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        begin, end = (_anthropic_begin, _anthropic_end) if self.path.endswith("/messages") else (_begin, _end)
        for event in begin(answer, body):
            self._event(event)
            self._pause(answer.pause)
        if answer.cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        for event in end(answer, body):
            self._event(event)
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, value: Any) -> None:
        name = f"event: {value['type']}\n" if isinstance(value, dict) and "type" in value else ""
        raw = f"{name}data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))

    def _pause(self, seconds: float) -> None:
        """Wait, and notice a client that goes away meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            readable, _, _ = select.select([self.connection], [], [], min(left, 0.05))
            if self.script.closed or (readable and not self.connection.recv(1, socket.MSG_PEEK)):
                raise _Gone
            if readable:
                time.sleep(min(left, 0.05))  # it has sent its next request already


# OpenAI's chat completions


def _begin(answer: Answer, body: dict[str, Any]) -> Iterator[Any]:
    for delta in _deltas(answer):
        yield _chunk(body, [{"index": 0, "delta": delta, "finish_reason": None}])


def _end(answer: Answer, body: dict[str, Any]) -> Iterator[Any]:
    if answer.finish != "":
        yield _chunk(body, [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}])
    if answer.usage is not None:
        yield {**_chunk(body, []), "usage": _usage(answer)}
    yield "[DONE]"


def _deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(answer.thinking, answer.piece):
        yield {"reasoning_content": piece}
    for piece in _pieces(answer.text, answer.piece):
        yield {"content": piece}
    for index, (id, name, arguments) in enumerate(answer.calls):
        start = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        yield {"tool_calls": [start]}
        for piece in _pieces(_arguments(arguments), answer.piece):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def _arguments(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _finish(answer: Answer) -> str:
    return answer.finish or ("tool_calls" if answer.calls else "stop")


def _usage(answer: Answer) -> dict[str, Any]:
    usage = dict(answer.usage or {})
    usage.setdefault("total_tokens", usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0))
    return usage


def _chunk(body: dict[str, Any], choices: list[Any]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_767_346_200,
        "model": body.get("model", "scripted"),
        "choices": choices,
    }


def _completion(answer: Answer, body: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.thinking:
        message["reasoning_content"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": _arguments(arguments)}}
            for id, name, arguments in answer.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    return {**_chunk(body, [choice]), "object": "chat.completion", "usage": _usage(answer)}


# Anthropic's messages


def _anthropic_begin(answer: Answer, body: dict[str, Any]) -> Iterator[Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": body["model"]}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {**(answer.usage or {}), "output_tokens": 1}}
    yield {"type": "message_start", "message": message}
    for index, (block, deltas) in enumerate(_anthropic_blocks(answer)):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}


def _anthropic_blocks(answer: Answer) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    if answer.thinking:
        thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(answer.thinking, answer.piece)]
        signed = {"type": "signature_delta", "signature": answer.signature}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signed]
    if answer.text:
        words = [{"type": "text_delta", "text": piece} for piece in _pieces(answer.text, answer.piece)]
        yield {"type": "text", "text": ""}, words
    for id, name, arguments in answer.calls:
        pieces = _pieces(_arguments(arguments), answer.piece)
        block = {"type": "tool_use", "id": id, "name": name, "input": {}}
        yield block, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]


def _anthropic_end(answer: Answer, body: dict[str, Any]) -> Iterator[Any]:
    if answer.finish == "":
        return
    reason = answer.finish or ("tool_use" if answer.calls else "end_turn")
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": answer.usage or {"output_tokens": 1}}
    yield {"type": "message_stop"}
