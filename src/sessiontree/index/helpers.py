"""Helpers: other processes that read a share of the files when there is very much to read.

Decoding keeps one processor busy, and threads would take turns. A helper is this same program, given
a list of files and asked for what `reading` makes of each; it touches no database. Whatever a helper
does not get done, slow or failed, is read by whoever asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import IO

import msgspec

from sessiontree.index.folder import Found, is_text, without_gc
from sessiontree.index.reading import Reading, read_anew
from sessiontree.twin import twin_command

MOST = 4
"""Processes at work, this one included."""
WORTH_IT = 48 << 20
"""So many bytes for each, or starting it takes longer than it saves."""

_found = msgspec.msgpack.Decoder(list[Found])
_reading = msgspec.msgpack.Decoder(Reading)
_encode = msgspec.msgpack.Encoder().encode
_LENGTH = 8


class Helper:
    """A process at work on a share of the files, from the first one on."""

    def __init__(self, share: Sequence[Found]) -> None:
        import subprocess
        import tempfile

        self.share = share
        self._done: list[Reading] = []
        self._at = 0
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with tempfile.TemporaryFile() as given:
            given.write(_encode(share))
            given.seek(0)
            self._process = subprocess.Popen(
                twin_command(__name__), stdin=given, stdout=self._out, stderr=subprocess.DEVNULL
            )

    def readings(self) -> Generator[Reading]:
        """What is in the share, in any order.

        While the helper is at work from one end, whoever asks is at work from the other; so nobody waits for a
        helper that is slow, or gone.
        """
        left = len(self.share)
        while left > self._count():
            left -= 1
            yield read_anew(self.share[left])
        yield from self._done[:left]

    def _count(self) -> int:
        """How many files it has done by now."""
        fd = self._out.fileno()
        while head := os.pread(fd, _LENGTH, self._at):
            size = int.from_bytes(head, "big")
            data = os.pread(fd, size, self._at + _LENGTH)
            if len(head) < _LENGTH or len(data) < size:
                break  # it is being written
            try:
                self._done.append(_reading.decode(data))
            except msgspec.MsgspecError:
                break
            self._at += _LENGTH + size
        return len(self._done)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()


def helpers_for(files: Sequence[Found]) -> list[Helper]:
    """Helpers at work on all but one share of the files; none when it is not worth it."""
    files = [file for file in files if is_text(file.path)]
    count = min(MOST, _processors(), sum(file.size for file in files) // WORTH_IT)
    if count < 2 or not sys.executable:
        return []
    shares: list[list[Found]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: file.size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(file)
        sizes[least] += file.size
    helpers: list[Helper] = []
    with suppress(OSError):  # those that did start are enough: the rest is read by whoever asked
        for share in shares[1:]:
            helpers.append(Helper(share))
    return helpers


def _processors() -> int:
    """How many this process may use, where the system tells."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


def main() -> None:
    """Read the files that standard input names, and write what each says to standard output."""
    with without_gc():
        for found in _found.decode(sys.stdin.buffer.read()):
            data = _encode(read_anew(found))
            sys.stdout.buffer.write(len(data).to_bytes(_LENGTH, "big") + data)
            sys.stdout.buffer.flush()
