"""Reader processes: scan a share of the files in parallel when there is a lot to read.

Decoding is CPU-bound, so threads would not help. A reader runs this same program on a list of files and returns the
scan of each; it does not use the index. Files that a slow or failed reader did not finish are scanned by the parent.
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
"""How many processes read, this one included."""
MIN_SHARE_SIZE = 48 << 20
"""Bytes per process below which starting one takes longer than it saves."""

_files_decoder = msgspec.msgpack.Decoder(list[SessionFile])
_scan_decoder = msgspec.msgpack.Decoder(FileScan)
_encode = msgspec.msgpack.Encoder().encode
_LENGTH_SIZE = 8


class ReaderProcess:
    """A process that scans a share of the files, from the first one on."""

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
        """Yield the scans of the share, in any order.

        The reader works from one end and the caller from the other: the caller never waits for a slow or dead reader.
        """
        left = len(self.share)
        while left > self._read_finished():
            left -= 1
            yield scan_file(self.share[left])
        yield from self._finished[:left]

    def _read_finished(self) -> int:
        """Return how many files it has finished."""
        fd = self._output.fileno()
        while head := os.pread(fd, _LENGTH_SIZE, self._position):
            size = int.from_bytes(head, "big")
            data = os.pread(fd, size, self._position + _LENGTH_SIZE)
            if len(head) < _LENGTH_SIZE or len(data) < size:
                break  # still being written
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
    """Start readers for all but one share of the files; none if it is not worth it."""
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
    with suppress(OSError):  # the caller scans what readers that did not start would have
        for share in shares[1:]:
            helpers.append(ReaderProcess(share))
    return helpers


def _count_processors() -> int:
    """Return how many CPUs this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if allowed is None else len(allowed(0))


def main() -> None:
    """Scan the files named on standard input and write the scans to standard output."""
    with pause_gc():
        for found in _files_decoder.decode(sys.stdin.buffer.read()):
            data = _encode(scan_file(found))
            sys.stdout.buffer.write(len(data).to_bytes(_LENGTH_SIZE, "big") + data)
            sys.stdout.buffer.flush()
