"""Measure the time from the start of a terminal program to its first paint.

It runs in a pseudo-terminal that answers what terminals are asked, as real ones do at once.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
from collections.abc import Mapping, Sequence
from time import perf_counter

SIZE = (24, 80)
SECONDS = 30.0
ANSWERS = {b"\x1b]11;?": b"\x1b]11;rgb:1010/1010/1010\x1b\\", b"\x1b[c": b"\x1b[?62;c"}
"""The background, and the kind of terminal."""

BARE = """
from textual.app import App
from textual.widgets import Static

class Bare(App):
    def compose(self):
        yield Static("painted")

Bare().run()
"""


class NotPainted(Exception):
    """The expected text did not appear."""


def bare_app() -> list[str]:
    """Return the command of a Textual app that shows a word."""
    return [sys.executable, "-c", BARE]


def first_paint(command: Sequence[str], shows: str, environment: Mapping[str, str]) -> float:
    """Return the seconds until a command shows these letters, and stop it."""
    wanted, seen = shows.encode(), b""
    start = perf_counter()
    process, fd = pty.fork()
    if process == 0:
        try:
            os.execvpe(command[0], list(command), {**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"})
        finally:
            os._exit(127)
    try:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        while wanted not in seen:
            left = start + SECONDS - perf_counter()
            come = os.read(fd, 1 << 16) if left > 0 and select.select([fd], [], [], left)[0] else b""
            if not come:
                raise NotPainted(f"{command[0]} did not show {shows!r}")
            for asked, answer in ANSWERS.items():
                if asked in come:
                    os.write(fd, answer)
            seen += come
        return perf_counter() - start
    except OSError as error:  # it has ended
        raise NotPainted(f"{command[0]} ended before it showed {shows!r}") from error
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(fd)
