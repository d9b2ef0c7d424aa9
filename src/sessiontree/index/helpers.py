"""Helpers: other processes that read a share of the files when there is very much to read.

Decoding keeps one processor busy, and threads would take turns. A helper is this same program, given
a list of files and asked for what `reading` makes of each; it touches no database. Whatever goes wrong
with a helper, its share is read by whoever asked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import IO

import msgspec

from sessiontree.index.folder import Found, without_gc
from sessiontree.index.reading import Reading, read_anew

MOST = 4
"""Processes at work, this one included."""
WORTH_IT = 48 << 20
"""So many bytes for each, or starting it takes longer than it saves."""

_found = msgspec.msgpack.Decoder(list[Found])
_readings = msgspec.msgpack.Decoder(list[Reading])
_encode = msgspec.msgpack.Encoder().encode


class Helper:
    def __init__(self, share: Sequence[Found]) -> None:
        import subprocess
        import tempfile

        self.share = share
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # The same modules as here, and nothing from the current folder or the environment.
        paths = [path for path in sys.path if os.path.isabs(path)]
        code = f"import sys; sys.path[:] = {paths!r}; from sessiontree.index.helpers import main; main()"
        with tempfile.TemporaryFile() as given:
            given.write(_encode(share))
            given.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", code], stdin=given, stdout=self._out, stderr=subprocess.DEVNULL
            )

    def readings(self) -> list[Reading]:
        """What it has read, once it is done; nothing when it failed."""
        if self._process.wait() != 0:
            return []
        self._out.seek(0)
        try:
            return _readings.decode(self._out.read())
        except msgspec.MsgspecError:
            return []

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()


def helpers_for(files: Sequence[Found]) -> list[Helper]:
    """Helpers at work on all but one share of the files; none when it is not worth it."""
    files = [file for file in files if _is_utf8(file.path)]
    count = min(MOST, len(os.sched_getaffinity(0)), sum(file.size for file in files) // WORTH_IT)
    if count < 2 or not sys.executable:
        return []
    shares: list[list[Found]] = [[] for _ in range(count)]
    sizes = [0] * count
    for file in sorted(files, key=lambda file: file.size, reverse=True):
        least = sizes.index(min(sizes))
        shares[least].append(file)
        sizes[least] += file.size
    try:
        return [Helper(share) for share in shares[1:]]
    except OSError:
        return []


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def main() -> None:
    """Read the files that standard input names, and write what they say to standard output."""
    with without_gc():
        readings = [read_anew(found) for found in _found.decode(sys.stdin.buffer.read())]
        sys.stdout.buffer.write(_encode(readings))
