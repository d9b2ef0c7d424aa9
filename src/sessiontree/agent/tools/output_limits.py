"""Limits for the output of tools.

A model gets at most `MAX_LINES` lines and `MAX_BYTES` bytes: an `OutputHead` of a complete text, or an `OutputTail` of
a stream. Longer output goes to a private file.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import tempfile
from collections import deque
from typing import NamedTuple

from sessiontree.store.file_operations import PRIVATE_MODE

MAX_LINES = 2000
MAX_BYTES = 50_000
MAX_LINE_BYTES = 2_000
"""The limit for a single line, as in the output of grep."""
FILE_PREFIX = "sessiontree-"
"""The prefix of the names of files with full output."""
CAN_KEEP_FILES = True
"""Whether files written here persist; false in a sandboxed process."""
MAX_FILE_BYTES = 256 << 20
"""The size limit of a file with full output."""

# Escape sequences and control characters, except tab and newline.
_CONTROLS = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def strip_controls(text: str) -> str:
    """Remove escape sequences and control characters. A carriage return ends a line."""
    if text.isprintable():
        return text
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def truncate_line(text: str, size: int = MAX_LINE_BYTES) -> str:
    """Cut a line off after `size` bytes."""
    if len(text) <= size // 4:
        return text
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= size else f"{raw[:size].decode('utf-8', 'ignore')}…"


class OutputHead(NamedTuple):
    """The first lines of a text that fit."""

    text: str
    lines: int
    """The number of lines."""
    whole: bool


def fit_lines(lines: list[str], *, limit: int = MAX_LINES, size: int = MAX_BYTES) -> OutputHead:
    """Return as many lines as fit. If the first line does not fit, it is cut off."""
    shown: list[str] = []
    for line in lines[:limit]:
        size -= len(line.encode("utf-8", "replace")) + 1
        if size < 0:
            break
        shown.append(line)
    if lines and not shown:
        return OutputHead(truncate_line(lines[0], MAX_BYTES), 1, False)
    return OutputHead("\n".join(shown), len(shown), len(shown) == len(lines))


_full_output_paths: set[str] = set()
"""Files with full output that this process has shown to a model."""


def is_full_output(path: str) -> bool:
    """Return whether a file has the full output of a tool of this process. The model may read it."""
    return path in _full_output_paths


def write_full_output(text: str) -> str | None:
    """Write `text` to a new private file and return its path; `None` if that fails."""
    if not CAN_KEEP_FILES:
        return None
    path = None
    try:
        fd, path = _create_file()
        with os.fdopen(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError:
        if path is not None:
            os.unlink(path)
        return None
    return path


def _create_file() -> tuple[int, str]:
    """Create a private file; return its descriptor and its path."""
    fd, path = tempfile.mkstemp(prefix=FILE_PREFIX, suffix=".txt")
    os.fchmod(fd, PRIVATE_MODE)
    _full_output_paths.add(os.path.realpath(path))
    return fd, path


class OutputTail:
    """The last lines of a stream. When it exceeds the limits, all of it goes to a file."""

    def __init__(self, *, lines: int = MAX_LINES, size: int = MAX_BYTES) -> None:
        self._max_lines, self._max_bytes = lines, size
        self._chunks: deque[bytes] = deque()
        self._chunk_bytes = 0
        self.total_bytes = 0
        """The total number of bytes."""
        self.total_lines = 0
        """The total number of lines; a single carriage return ends a line too."""
        self._line_ends = 0
        self.truncated = False
        """Whether the output exceeds the limits."""
        self.path: str | None = None
        """The file with the full output, if there is one."""
        self._file: int | None = None
        self._file_bytes = 0
        """Bytes in the file; fewer than the total if the file is too large or the disk is full."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def append(self, data: bytes) -> str:
        """Append data, and return it as clean text."""
        self._count_lines(data)
        self._spill(data)
        self._chunks.append(data)
        self._chunk_bytes += len(data)
        self.total_bytes += len(data)
        while self._chunk_bytes - len(self._chunks[0]) > 2 * self._max_bytes:
            self._chunk_bytes -= len(self._chunks.popleft())
        return strip_controls(self._decoder.decode(data))

    def _count_lines(self, data: bytes) -> None:
        split = data.startswith(b"\n") and bool(self._chunks) and self._chunks[-1].endswith(b"\r")
        self._line_ends += data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") - split
        self.total_lines = self._line_ends + (not data.endswith((b"\n", b"\r")))

    def _spill(self, data: bytes) -> None:
        if not self.truncated:
            if self.total_bytes + len(data) <= self._max_bytes and self.total_lines <= self._max_lines:
                return
            self.truncated = True
            data = b"".join(self._chunks) + data
        elif self._file_bytes < self.total_bytes:
            return  # the file is incomplete: write nothing after the gap
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file, self.path = _create_file()
            self._file_bytes += os.write(self._file, data[: MAX_FILE_BYTES - self._file_bytes])

    def format_text(self) -> str:
        """Return the last lines that fit, as clean text."""
        raw = b"".join(self._chunks)
        lines = strip_controls(raw[-self._max_bytes :].decode("utf-8", "replace")).rstrip("\n").split("\n")
        if len(raw) > self._max_bytes and len(lines) > 1:
            lines = lines[1:]  # the first line is cut off
        return "\n".join(lines[-self._max_lines :])

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def format_note(self) -> str:
        """Return a note about truncated output; empty if all is shown."""
        if not self.truncated:
            return ""
        shown = self.format_text().count("\n") + 1
        if self._file_bytes == self.total_bytes:
            rest = f"The full output is in {self.path}"
        elif self._file_bytes:
            rest = f"The first {self._file_bytes} bytes are in {self.path}"
        else:
            rest = "The rest could not be saved"
        return f"[Only the last {shown} of {self.total_lines} lines are shown ({self.total_bytes} bytes). {rest}]"
