"""Shell commands: one process group each, bounded in time, ended as a whole.

Giving up a command ends its whole group, politely at first. A command that has ended by itself may leave something
running in the background, as shells do; what that prints then is read by nobody, and holds it up as little.
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

from msgspec import Struct

from sessiontree.agent.sandbox import Confinement, ProcessSpec
from sessiontree.agent.tools.environment import clean_environment
from sessiontree.agent.tools.output_limits import OutputTail
from sessiontree.errors import SessionTreeError

TERMINATION_GRACE = 1.0
"""Seconds between asking a group to end and ending it."""
LINGER_SECONDS = 0.3
"""Seconds to wait for more output once a command has ended; what it left running may hold its output open."""
UPDATE_INTERVAL = 0.1
"""Seconds between two updates."""


class CommandError(SessionTreeError):
    """A command could not be started."""

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(f"the command could not be started: {reason}")
        self.command = command
        self.reason = reason


class CommandResult(Struct, frozen=True, kw_only=True):
    """A command that has ended, or was ended."""

    output: str
    """The end of what it printed."""
    exit_code: int | None
    """`None` when it was ended from here; a signal is 128 more than its number, as in a shell."""
    aborted: bool
    timed_out: bool
    truncated: bool
    """Whether `output` is not all that it printed."""
    full_output: str | None
    """The file with more of it then, where one could be written."""
    note: str
    """Says so in a sentence; empty otherwise."""


async def run_command(
    command: str,
    *,
    cwd: str,
    environment: Mapping[str, str] | None = None,
    confinement: Confinement | None = None,
    timeout: float | None = None,
    update: Callable[[str], None] = lambda text: None,
) -> CommandResult:
    """Run a shell command to its end. Cancelling the caller ends the command, and what it printed is returned.

    It gets the variables in `environment` alone, by default those that `clean_environment` gives, and reaches what its
    `confinement` lets it.
    """
    shell = [shutil.which("bash") or "/bin/sh", "-c", command]
    started = ProcessSpec(shell, dict(clean_environment() if environment is None else environment), cwd, {})
    if confinement is not None:
        started = confinement.wrap_command(shell, started.environment, cwd)
    ours, theirs = os.pipe()  # and not asyncio's, which cannot be closed while something else holds the other end
    with os.fdopen(ours, "rb", buffering=0) as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *started.arguments,
                cwd=started.cwd,
                env=started.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
                **started.options,
            )
        except (OSError, ValueError) as error:
            raise CommandError(command, str(error)) from error
        finally:
            os.close(theirs)
        return await _follow_process(process, output, timeout, update)


async def _follow_process(
    process: asyncio.subprocess.Process, output: FileIO, timeout: float | None, update: Callable[[str], None]
) -> CommandResult:
    """Follow a command to its end."""
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
        with contextlib.suppress(asyncio.CancelledError):  # asked again and again, it does not wait
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
    """Read to the end."""
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
            await asyncio.sleep(0)  # so that one who prints without end is heard among others, and can be ended
    finally:
        loop.remove_reader(fd)
        if waiting:
            update(waiting)


def _drain(output: FileIO) -> None:
    """Leave the reading to a process of its own: whoever printed to a pipe that nobody reads would be ended by that.

    It ends with the last who can print, which may be after this program. The shell in between ends at once, so that
    there is nobody to wait for.
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
    """End the whole group: those who do not go when asked are killed, all at once if this is cancelled."""
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
    """Whether anybody in a group still runs. Those who have ended count no more, though nobody may have taken note."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # what became another user's
        return True
    try:
        return any(_is_running_in(group, pid) for pid in os.listdir("/proc") if pid.isdigit())
    except OSError:  # a system that does not tell
        return True


def _is_running_in(group: int, pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, its_group, *_ = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return False
    return int(its_group) == group and state not in (b"Z", b"X")
