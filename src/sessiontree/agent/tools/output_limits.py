"""Output of tools, kept within limits: what a model is shown, and where the rest is.

A model gets at most `LINES` lines and `BYTES` bytes. `Head` is the beginning of a text that is there; `Tail` the
end of one that is still coming. What is not shown goes to a file that only its owner can read.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import tempfile
from collections import deque
from typing import NamedTuple

from sessiontree.store.files import PRIVATE_MODE

MAX_LINES = 2000
MAX_BYTES = 50_000
MAX_LINE_BYTES = 2_000
"""How much of one line is shown where lines are told one by one, as by grep."""
FILE_PREFIX = "sessiontree-"
"""How the names of files of full output begin."""
CAN_KEEP_FILES = True
"""Whether a file that is written here is there for whoever reads it later."""
MAX_FILE_BYTES = 256 << 20
"""How large a file of full output may become."""

# Escape sequences and control characters but for tab and newline: a model has no use for them.
_CONTROLS = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def strip_controls(text: str) -> str:
    """`text` without escape sequences and control characters; a carriage return ends a line."""
    if text.isprintable():
        return text
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def truncate_line(text: str, size: int = MAX_LINE_BYTES) -> str:
    """The beginning of one line, at most `size` bytes of it."""
    if len(text) <= size // 4:
        return text
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= size else f"{raw[:size].decode('utf-8', 'ignore')}…"


class OutputHead(NamedTuple):
    """The beginning of a text, as many whole lines as fit."""

    text: str
    lines: int
    """How many lines are shown."""
    whole: bool


def fit_lines(lines: list[str], *, limit: int = MAX_LINES, size: int = MAX_BYTES) -> OutputHead:
    """As many of `lines` as fit. A first line that does not fit is cut."""
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
"""Files of full output that this process has told a model about."""


def is_full_output(path: str) -> bool:
    """Whether a file holds what a tool of this process printed: a model may read what it was shown a part of."""
    return path in _full_output_paths


def write_full_output(text: str) -> str | None:
    """A new private file with `text`; its path. `None` where none can be written."""
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
    """A new file that only its owner can read, open for writing, and its path."""
    fd, path = tempfile.mkstemp(prefix=FILE_PREFIX, suffix=".txt")
    os.fchmod(fd, PRIVATE_MODE)
    _full_output_paths.add(os.path.realpath(path))
    return fd, path


class OutputTail:
    """The end of output that comes in pieces. Once it is more than fits, all of it goes to a file."""

    def __init__(self, *, lines: int = MAX_LINES, size: int = MAX_BYTES) -> None:
        self._max_lines, self._max_bytes = lines, size
        self._chunks: deque[bytes] = deque()
        self._chunk_bytes = 0
        self.total_bytes = 0
        """Bytes in all."""
        self.total_lines = 0
        """Lines in all; a lone carriage return ends one too, as `clean` has it."""
        self._line_ends = 0
        self.truncated = False
        """Whether there is more than fits."""
        self.path: str | None = None
        """The file with more than fits, where there is one."""
        self._file: int | None = None
        self._file_bytes = 0
        """Bytes in the file: not all of them, where it would be too large or the disk is full."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def append(self, data: bytes) -> str:
        """Take what has come; what it says as text."""
        self._count_lines(data)
        self._spill(data)
        self._chunks.append(data)
        self._chunk_bytes += len(data)
        self.total_bytes += len(data)
        while self._chunk_bytes - len(self._chunks[0]) > 2 * self._max_bytes:
            self._chunk_bytes -= len(self._chunks.popleft())
        return strip_controls(self._decoder.decode(data))

    def _count_lines(self, data: bytes) -> None:
        in_two = data.startswith(b"\n") and bool(self._chunks) and self._chunks[-1].endswith(b"\r")
        self._line_ends += data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n") - in_two
        self.total_lines = self._line_ends + (not data.endswith((b"\n", b"\r")))

    def _spill(self, data: bytes) -> None:
        if not self.truncated:
            if self.total_bytes + len(data) <= self._max_bytes and self.total_lines <= self._max_lines:
                return
            self.truncated = True
            data = b"".join(self._chunks) + data
        elif self._file_bytes < self.total_bytes:
            return  # behind a gap, nothing more
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file, self.path = _create_file()
            self._file_bytes += os.write(self._file, data[: MAX_FILE_BYTES - self._file_bytes])

    def format_text(self) -> str:
        """The last lines that fit, cleaned."""
        raw = b"".join(self._chunks)
        lines = strip_controls(raw[-self._max_bytes :].decode("utf-8", "replace")).rstrip("\n").split("\n")
        if len(raw) > self._max_bytes and len(lines) > 1:
            lines = lines[1:]  # the first one has lost its beginning
        return "\n".join(lines[-self._max_lines :])

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def format_note(self) -> str:
        """What is said of output that is not all shown."""
        if not self.truncated:
            return ""
        shown = self.format_text().count("\n") + 1
        if self._file_bytes == self.total_bytes:
            rest = f"All of it is in {self.path}"
        elif self._file_bytes:
            rest = f"The first {self._file_bytes} bytes are in {self.path}"
        else:
            rest = "The rest could not be kept"
        return f"[Only the last {shown} of {self.total_lines} lines are shown ({self.total_bytes} bytes). {rest}]"
