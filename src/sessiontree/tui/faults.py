"""Faults of a session: looked for while one goes on, and out of the way.

All of a session is read for that, which keeps a processor busy. For a large one another process does it, since threads
would take turns with the keyboard; and always in a session of its own, since the one on the desk grows meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec

from sessiontree.errors import SessionTreeError
from sessiontree.library import catalog
from sessiontree.self_process import build_self_command

SUBPROCESS_BYTES = 16 << 20
"""Bytes from which on another process looks."""


async def find_problems(file: str) -> list[str]:
    """What is wrong with the session in a file; nothing where it is gone, since whoever writes next is told."""
    try:
        large = os.stat(file).st_size >= SUBPROCESS_BYTES
        return await (_check_in_subprocess(file) if large else asyncio.to_thread(_check_session, file))
    except (SessionTreeError, OSError, msgspec.MsgspecError):
        return []


def _check_session(file: str) -> list[str]:
    with catalog.open(file, read_only=True) as session:
        return [problem.message for problem in session.problems if problem.severity == "fault"]


async def _check_in_subprocess(file: str) -> list[str]:
    looking = await asyncio.create_subprocess_exec(
        *build_self_command(__name__, os.path.abspath(file)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        said, _ = await looking.communicate()
    finally:
        if looking.returncode is None:
            looking.kill()
            await looking.wait()
    return msgspec.json.decode(said, type=list[str])


def main() -> None:
    """What the other process does."""
    sys.stdout.buffer.write(msgspec.json.encode(_check_session(sys.argv[1])))
