"""JSON-RPC messages as lines on standard input and output, for the connection of the protocol's SDK.

Whatever a client sends, the connection gets well-formed messages only: other lines are answered with an error here. Two
threads read and write, so pipes, sockets, files and terminals work alike.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from sessiontree.core.messages import is_object

MAX_MESSAGE_BYTES = 64 << 20
"""Longer messages are refused. Images in base64 are the largest that clients send."""
READ_BYTES = 1 << 16
MAX_UNREAD = 64
"""How many messages wait until the client has to wait."""
FLUSH_SECONDS = 2.0
"""How long the last messages may take to be written."""

TOO_LONG = b"(a message that is too long)"
"""Starts a line that was not kept. The first bytes of the message follow, which usually have its id."""
HEAD_BYTES = 1024
REQUEST_ID = re.compile(rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]*")')
PARSE_ERROR, INVALID_REQUEST = -32700, -32600

_log = logging.getLogger(__name__)


def claim_stdio() -> tuple[int, int]:
    """Take standard input and output for the protocol, and return their new file descriptors.

    From then on, everything else that writes to standard output writes to standard error, and nothing else can read
    from the client.
    """
    reader, writer = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return reader, writer


class StdioTransport:
    """Sends and receives messages. Create it in a running event loop."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_UNREAD)
        self._outbox: SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = SimpleQueue()
        self._ended = asyncio.Event()
        """Set when the client is gone, or when this side stops."""
        self._written_all = asyncio.Event()
        for work in (self._read_lines, self._write_lines):
            threading.Thread(target=work, name=f"acp{work.__name__}", daemon=True).start()

    def stop(self) -> None:
        """Stop receiving, as if the client had closed the connection."""
        self._ended.set()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; `None` when the client has closed the connection."""
        while (line := await self._wait_for_line()) is not None:
            message = self._parse(line) if line.strip() else None
            if message is not None:
                return message
        self.stop()
        return None

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message, as in `send_all`."""
        await self.send_all([message])

    async def send_all(self, messages: Iterable[dict[str, Any]]) -> None:
        """Write messages, and wait until the client has taken them. After the end of the input, do not wait.

        Messages are written in the order of the calls, even if the calls do not wait.
        """
        lines = [json.dumps(message, ensure_ascii=False, separators=(",", ":"), default=str) for message in messages]
        # Clients in some languages refuse half of a surrogate pair, even escaped.
        data = "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        written: asyncio.Future[None] = self._loop.create_future()
        self._outbox.put((data, written))
        ending = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((written, ending), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ending.cancel()

    async def close(self) -> None:
        """Write the remaining messages, unless the client does not read them."""
        self.stop()
        self._outbox.put(None)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._written_all.wait(), FLUSH_SECONDS)

    # Reading

    async def _wait_for_line(self) -> bytes | None:
        reading, ending = asyncio.ensure_future(self._lines.get()), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()
            ending.cancel()

    def _read_lines(self) -> None:
        """Read lines until the end of the input. Runs in a thread."""
        line, refused = bytearray(), b""
        try:
            while data := os.read(self._reader, READ_BYTES):
                *ended, rest = data.split(b"\n")
                for piece in ended:
                    line += piece
                    self._put_line(refused or bytes(line))
                    line.clear()
                    refused = b""
                line += rest
                if len(line) > MAX_MESSAGE_BYTES:
                    refused = refused or TOO_LONG + line[:HEAD_BYTES]
                    line.clear()
        except OSError as error:
            _log.warning("cannot read from the client: %s", error)
        if line:
            self._put_line(bytes(line))
        self._put_line(None)

    def _put_line(self, line: bytes | None) -> None:
        """Pass a line to the event loop, and wait if too many are unread."""
        with suppress(RuntimeError, CancelledError):  # the event loop is closed or ends
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        """Return a well-formed message. Answer or drop everything else."""
        if line.startswith(TOO_LONG):
            text = f"the message is longer than {MAX_MESSAGE_BYTES >> 20} MiB"
            return self._refuse(_find_request_id(line), INVALID_REQUEST, text)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return self._refuse(None, PARSE_ERROR, "the message is not valid JSON")
        if not is_object(message):
            return self._refuse(None, INVALID_REQUEST, "a message is a JSON object; batches are not supported")
        id = message.get("id")
        if not isinstance(id, str | int | None):
            return self._refuse(None, INVALID_REQUEST, "the id of a message is a string or a number")
        if "method" in message:
            if isinstance(message["method"], str):
                return message
            return self._refuse(id, INVALID_REQUEST, "the method of a request is a string")
        if isinstance(id, int) and is_object(message.get("error") or {}):
            return message
        _log.warning("dropped a message that is neither a request nor a response")
        return None

    def _refuse(self, id: str | int | None, code: int, text: str) -> None:
        answer = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}
        self._outbox.put(((json.dumps(answer) + "\n").encode(), self._loop.create_future()))

    # Writing

    def _write_lines(self) -> None:
        """Write messages until the transport closes. Runs in a thread."""
        is_broken = False
        while (item := self._outbox.get()) is not None:
            data, written = item
            view = memoryview(data)
            try:
                while view and not is_broken:
                    view = view[os.write(self._writer, view) :]
            except OSError:  # the client is gone
                is_broken = True
                self._call_in_loop(self.stop)
            self._call_in_loop(_set_done, written)
        self._call_in_loop(self._written_all.set)

    def _call_in_loop(self, function: Any, *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop is closed
            return


def _find_request_id(head: bytes) -> str | int | None:
    """Return the id of a request, of which only the first bytes are known; `None` if they do not show it."""
    envelope = head.partition(b'"params"')[0]
    found = REQUEST_ID.search(envelope) if b'"method"' in envelope else None
    with suppress(ValueError):  # not UTF-8
        return json.loads(found[1]) if found else None
    return None


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
