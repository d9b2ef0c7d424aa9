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

from sessiontree.library.index.session_summary import FileScan, scan_file
from sessiontree.library.session_files import SessionFile, is_text, pause_gc
from sessiontree.self_process import build_self_command

MAX_PROCESSES = 4
"""Processes at work, this one included."""
MIN_SHARE_SIZE = 48 << 20
"""So many bytes for each, or starting it takes longer than it saves."""

_files_decoder = msgspec.msgpack.Decoder(list[SessionFile])
_scan_decoder = msgspec.msgpack.Decoder(FileScan)
_encode = msgspec.msgpack.Encoder().encode
_LENGTH_SIZE = 8


class ReaderProcess:
    """A process at work on a share of the files, from the first one on."""

    def __init__(self, share: Sequence[SessionFile]) -> None:
        import subprocess
        import tempfile

        self.share = share
        self._finished: list[FileScan] = []
        self._position = 0
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with tempfile.TemporaryFile() as given:
            given.write(_encode(share))
            given.seek(0)
            self._process = subprocess.Popen(
                build_self_command(__name__), stdin=given, stdout=self._output, stderr=subprocess.DEVNULL
            )

    def iter_scans(self) -> Generator[FileScan]:
        """What is in the share, in any order.

        While the helper is at work from one end, whoever asks is at work from the other; so nobody waits for a
        helper that is slow, or gone.
        """
        left = len(self.share)
        while left > self._read_finished():
            left -= 1
            yield scan_file(self.share[left])
        yield from self._finished[:left]

    def _read_finished(self) -> int:
        """How many files it has done by now."""
        fd = self._output.fileno()
        while head := os.pread(fd, _LENGTH_SIZE, self._position):
            size = int.from_bytes(head, "big")
            data = os.pread(fd, size, self._position + _LENGTH_SIZE)
            if len(head) < _LENGTH_SIZE or len(data) < size:
                break  # it is being written
            try:
                self._finished.append(_scan_decoder.decode(data))
            except msgspec.MsgspecError:
                break
            self._position += _LENGTH_SIZE + size
        return len(self._finished)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()


def start_readers(files: Sequence[SessionFile]) -> list[ReaderProcess]:
    """Helpers at work on all but one share of the files; none when it is not worth it."""
    files = [file for file in files if is_text(file.path)]
    count = min(MAX_PROCESSES, _count_processors(), sum(file.size for file in files) // MIN_SHARE_SIZE)
    if count < 2 or not sys.executable:
        return []
    shares: list[list[SessionFile]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: file.size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(file)
        sizes[least] += file.size
    helpers: list[ReaderProcess] = []
    with suppress(OSError):  # those that did start are enough: the rest is read by whoever asked
        for share in shares[1:]:
            helpers.append(ReaderProcess(share))
    return helpers


def _count_processors() -> int:
    """How many this process may use, where the system tells."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


def main() -> None:
    """Read the files that standard input names, and write what each says to standard output."""
    with pause_gc():
        for found in _files_decoder.decode(sys.stdin.buffer.read()):
            data = _encode(scan_file(found))
            sys.stdout.buffer.write(len(data).to_bytes(_LENGTH_SIZE, "big") + data)
            sys.stdout.buffer.flush()
