"""Run an MCP server as a child process and exchange JSON lines with it.

The server gets a clean environment. Messages have a size limit: a server cannot fill the memory. Its standard error
is kept for error messages and never reaches the terminal.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import mcp_types
from mcp.shared.message import SessionMessage

from sessiontree.core.sanitize import escape_line, replace_unencodable_texts

MAX_MESSAGE_BYTES = 128 << 20
"""The maximum size of one message of a server."""
STDERR_LINES = 3
"""The number of lines of standard error that an error message shows."""
EXIT_SECONDS = 2.0
"""How long a server has to exit after its standard input was closed, and again after SIGTERM."""
_READ_BYTES = 1 << 18
_PARSE_IN_THREAD_BYTES = 1 << 20
_ANSWER_ID = re.compile(rb'\A\{\s*(?:"jsonrpc":\s*"2\.0",\s*)?"id":\s*(\d{1,18})\s*,|"id":\s*(\d{1,18})\s*\}\s*\Z')
"""Finds the id of an answer that is not valid, at its start or end."""


class ServerProcess:
    """A server that runs as a child process."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """Set when the server closes its output."""
        self.fault: str | None = None
        """Why the connection was closed from this side."""
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)

    def describe_end(self) -> str:
        """Return why the server is gone, with the last lines of its standard error."""
        code = None if self._process is None else self._process.returncode
        if self.fault is not None:
            reason = self.fault
        elif code is None:
            reason = "it closed its output"
        else:
            reason = f"it was ended by {_name_signal(-code)}" if code < 0 else f"it exited with code {code}"
        said = " / ".join(escape_line(line)[:200] for line in self._stderr)
        return f"{reason}: {said}" if said else reason

    @asynccontextmanager
    async def open(
        self, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str
    ) -> AsyncGenerator[tuple[Any, Any]]:
        """Start the server and yield the streams for its messages. Stop it at the end. Raises `OSError`."""
        process = self._process = await asyncio.create_subprocess_exec(
            command,
            *args,
            env=dict(env),
            cwd=cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_send, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.create_task(self._read(process, incoming)),
            asyncio.create_task(self._write(process, outgoing)),
            asyncio.create_task(self._read_stderr(process)),
        ]
        try:
            yield received, to_send
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for stream in (incoming, received, to_send, outgoing):
                    stream.close()

    async def _read(self, process: asyncio.subprocess.Process, incoming: Any) -> None:
        assert process.stdout is not None
        parts: list[bytes] = []
        size = 0
        try:
            while data := await process.stdout.read(_READ_BYTES):
                first, *rest = data.split(b"\n")
                for line in (first, *rest)[:-1] if rest else ():
                    await incoming.send(await _parse(b"".join((*parts, line))))
                    parts, size = [], 0
                last = rest[-1] if rest else first
                parts.append(last)
                size += len(last)
                if size > MAX_MESSAGE_BYTES:
                    self.fault = f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB"
                    return
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the session is gone
        finally:
            if self.fault is None:
                with suppress(TimeoutError):  # the exit code explains the end of the output
                    await asyncio.wait_for(process.wait(), 0.5)
            self.ended.set()
            incoming.close()

    async def _write(self, process: asyncio.subprocess.Process, outgoing: Any) -> None:
        assert process.stdin is not None
        with suppress(OSError, anyio.ClosedResourceError):
            async for message in outgoing:
                process.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        rest = b""
        while data := await process.stderr.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-4096:]
            self._stderr.extend(text for line in lines if (text := line[-4096:].decode("utf-8", "replace").strip()))
        if rest.strip():
            self._stderr.append(rest.decode("utf-8", "replace").strip())


async def _parse(line: bytes) -> SessionMessage | Exception:
    """Return the message of a line, or the error that the session reports."""
    try:
        if len(line) > _PARSE_IN_THREAD_BYTES:
            return await asyncio.to_thread(_parse_message, line)
        return _parse_message(line)
    except ValueError as error:
        return error


def _parse_message(line: bytes) -> SessionMessage:
    """Return the message of a line. An invalid answer becomes an error, which ends the wait of its request.

    Raises `ValueError` for any other line that is not valid.
    """
    adapter = mcp_types.jsonrpc_message_adapter
    with suppress(ValueError):
        return SessionMessage(adapter.validate_json(line))
    try:
        # A text that JavaScript cuts off may end in half of a surrogate pair.
        return SessionMessage(adapter.validate_python(replace_unencodable_texts(json.loads(line))))
    except (ValueError, RecursionError) as error:
        found = _ANSWER_ID.search(line)
        if found is None:
            raise ValueError("not a message") from error
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        fault = mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message=f"invalid answer: {reason}")
        id = int(found[1] or found[2])
        return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=id, error=fault))


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close the input of a server, wait, and end it and its children if it does not exit."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        if await _has_exited(process):
            break
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # children that it left behind
    transport: Any = getattr(process, "_transport", None)
    if transport is not None:
        transport.close()  # a child that survives may hold the pipes open


async def _has_exited(process: asyncio.subprocess.Process) -> bool:
    """Wait for the exit. `Process.wait` also waits for the pipes, which a child may hold open."""
    deadline = asyncio.get_running_loop().time() + EXIT_SECONDS
    while process.returncode is None:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
