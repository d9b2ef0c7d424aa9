"""The `bash` tool, and shell commands of users and extensions.

Each command has its own process group and a time limit. Cancelling a command ends the whole group: SIGTERM first, then
SIGKILL. A command that exits may leave background processes; their output is drained and discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from io import FileIO
from typing import Annotated, Any

from msgspec import Meta, Struct

from sessiontree.agent.sandbox import Confinement, ProcessSpec, clean_environment
from sessiontree.agent.tool import Tool, ToolContext, ToolOutput
from sessiontree.agent.tools.output_limits import MAX_BYTES, MAX_LINES, OutputTail
from sessiontree.errors import SessionTreeError

DEFAULT_TIMEOUT = 120.0
"""The default time limit of a command, in seconds."""
TERMINATION_GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""
LINGER_SECONDS = 0.3
"""Seconds to wait for more output after a command has exited. Background processes may keep its output open."""
UPDATE_INTERVAL = 0.1
"""The minimum time between two updates, in seconds."""


class BashArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="The command, for bash -c.")]
    timeout: Annotated[float, Meta(gt=0, description=f"Time limit in seconds; default {DEFAULT_TIMEOUT:g}.")] = (
        DEFAULT_TIMEOUT
    )


async def run_bash(context: ToolContext) -> ToolOutput:
    arguments: BashArguments = context.arguments
    ran = await run_command(
        arguments.command,
        cwd=context.cwd,
        environment=clean_environment(context.settings),
        confinement=context.confinement,
        timeout=arguments.timeout,
        update=context.update,
    )
    return build_bash_output(ran, arguments.timeout)


def build_bash_output(ran: CommandResult, timeout: float) -> ToolOutput:
    """Return the output of the tool for a command that had `timeout` seconds."""
    ended = _describe_exit(ran, timeout)
    details: dict[str, Any] = {"exitCode": ran.exit_code}
    if ran.full_output is not None:
        details["fullOutputPath"] = ran.full_output
    parts = (ran.output or ("" if ended else "(no output)"), ran.note, ended)
    return ToolOutput(content="\n\n".join(part for part in parts if part), details=details, is_error=bool(ended))


def _describe_exit(ran: CommandResult, timeout: float) -> str:
    """Describe how a command failed; empty if it succeeded."""
    if ran.aborted:
        return "The command was aborted."
    if ran.timed_out:
        return f"The command was stopped after {timeout:g} seconds."
    return f"The command exited with code {ran.exit_code}." if ran.exit_code else ""


bash = Tool(
    name="bash",
    description="Run a shell command in the working folder and return its output, including errors. "
    f"If the output is long, you get the last {MAX_LINES} lines or {MAX_BYTES} bytes, "
    "and the path of a file with the full output.",
    run=run_bash,
    arguments=BashArguments,
    does="runs",
    command="command",
)


# Running commands


class CommandError(SessionTreeError):
    """A command could not be started."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"cannot start the command: {reason}")
        self.command = command
        self.reason = reason


class CommandResult(Struct, frozen=True, kw_only=True):
    """The result of a command."""

    output: str
    """The last lines of its output."""
    exit_code: int | None
    """`None` if it was aborted or timed out; 128 plus the number of the signal if a signal ended it."""
    aborted: bool
    timed_out: bool
    truncated: bool
    """Whether `output` is incomplete."""
    full_output: str | None
    """The file with the full output, if it was truncated and the file could be written."""
    note: str
    """A note about truncated output; empty if it is complete."""


async def run_command(
    command: str,
    *,
    cwd: str,
    environment: Mapping[str, str] | None = None,
    confinement: Confinement | None = None,
    timeout: float | None = None,
    update: Callable[[str], None] = lambda text: None,
) -> CommandResult:
    """Run a shell command. Cancelling the call ends the command and returns its output so far.

    The command gets only the variables in `environment`, by default from `clean_environment`. `confinement` runs it
    in a sandbox.
    """
    shell = [shutil.which("bash") or "/bin/sh", "-c", command]
    started = ProcessSpec(shell, dict(clean_environment() if environment is None else environment), cwd, {})
    if confinement is not None:
        started = confinement.wrap_command(shell, started.environment, cwd)
    # A pipe of asyncio cannot be closed while a background process holds the other end.
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb", buffering=0) as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *started.arguments,
                cwd=started.cwd,
                env=started.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
                **started.options,
            )
        except (OSError, ValueError) as error:
            raise CommandError(command, str(error)) from error
        finally:
            os.close(writer)
        return await _follow_process(process, output, timeout, update)


async def _follow_process(
    process: asyncio.subprocess.Process, output: FileIO, timeout: float | None, update: Callable[[str], None]
) -> CommandResult:
    """Wait for a command and collect its output."""
    tail = OutputTail()
    aborted = timed_out = False
    reading = asyncio.create_task(_read_output(output, tail, update))
    try:
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            timed_out = True
        except asyncio.CancelledError:
            aborted = True
        with contextlib.suppress(asyncio.CancelledError):  # a second cancellation skips the waiting
            if aborted or timed_out:
                await _end_group(process)
            await asyncio.wait([reading], timeout=LINGER_SECONDS)
    finally:
        held_open = not reading.done()
        reading.cancel()
        await asyncio.wait([reading])
        tail.close()
        if held_open:
            _drain(output)
    code = process.returncode
    return CommandResult(
        output=tail.format_text(),
        exit_code=None if aborted or timed_out or code is None else code if code >= 0 else 128 - code,
        aborted=aborted,
        timed_out=timed_out,
        truncated=tail.truncated,
        full_output=tail.path,
        note=tail.format_note(),
    )


async def _read_output(output: FileIO, tail: OutputTail, update: Callable[[str], None]) -> None:
    """Read the output to its end."""
    loop, readable, fd = asyncio.get_running_loop(), asyncio.Event(), output.fileno()
    os.set_blocking(fd, False)
    loop.add_reader(fd, readable.set)
    waiting, last = "", 0.0
    try:
        while (data := output.read(1 << 16)) != b"":
            if data is None:
                readable.clear()
                await readable.wait()
                continue
            waiting += tail.append(data)
            if time.monotonic() - last >= UPDATE_INTERVAL:
                update(waiting)
                waiting, last = "", time.monotonic()
            await asyncio.sleep(0)  # let other tasks run, and allow cancellation
    finally:
        loop.remove_reader(fd)
        if waiting:
            update(waiting)


def _drain(output: FileIO) -> None:
    """Start a process that reads and discards the rest: without a reader, background processes would get SIGPIPE.

    It ends with the last background process, possibly after this program. The shell in between exits at once, so
    nothing has to wait for a child.
    """
    os.set_blocking(output.fileno(), True)
    with contextlib.suppress(OSError):
        subprocess.run(
            ["/bin/sh", "-c", "exec 3<&0; cat <&3 3<&- >/dev/null &"],
            cwd="/",
            stdin=output,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=clean_environment(),
            start_new_session=True,
            check=False,
        )


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """End the process group: SIGTERM, then SIGKILL after a grace period or on cancellation."""
    try:
        _send_signal(process.pid, signal.SIGTERM)
        end = time.monotonic() + TERMINATION_GRACE
        with contextlib.suppress(asyncio.CancelledError):
            while _is_alive(process.pid) and time.monotonic() < end:
                await asyncio.sleep(0.03)
    finally:
        _send_signal(process.pid, signal.SIGKILL)
    await process.wait()


def _send_signal(group: int, sent: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, sent)


def _is_alive(group: int) -> bool:
    """Return whether any process of a group is running. Zombies do not count."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process that switched to another user
        return True
    try:
        return any(_is_running_in(group, pid) for pid in os.listdir("/proc") if pid.isdigit())
    except OSError:  # no /proc on this system
        return True


def _is_running_in(group: int, pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, its_group, *_ = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return False
    return int(its_group) == group and state not in (b"Z", b"X")
