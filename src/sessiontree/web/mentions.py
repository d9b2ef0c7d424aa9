"""Mentions: which sessions hold a word, found by looking through their bytes, what was looked at before aside.

Opening every session to see whether there is a swarm in it would take long; this does not. That a session holds the
word does not say more: who wants to know opens it.
"""

from __future__ import annotations

import os
import threading

from msgspec import Struct

from sessiontree import catalog
from sessiontree.store.postgres.address import is_address

BLOCK = 1 << 20


class _Looked(Struct):
    inode: int
    size: int = 0
    """How far it was looked through."""
    found: bool = False


class Mentions:
    def __init__(self, word: bytes) -> None:
        self._word = word
        self._looked: dict[str, _Looked] = {}
        self._lock = threading.Lock()

    def files(self) -> list[str]:
        """The files of sessions that hold the word, those written to last first; one in a database may hold it."""
        with self._lock:
            return [file for file in catalog.session_files() if is_address(file) or self._holds(file)]

    def _holds(self, file: str) -> bool:
        try:
            status = os.stat(file)
            looked = self._looked.get(file)
            if looked is None or looked.inode != status.st_ino or looked.size > status.st_size:
                looked = self._looked[file] = _Looked(status.st_ino)
            if not looked.found and looked.size < status.st_size:
                self._look(file, looked)
        except OSError:
            return False
        return looked.found

    def _look(self, file: str, looked: _Looked) -> None:
        rest = len(self._word) - 1
        with open(file, "rb") as opened:
            opened.seek(max(0, looked.size - rest))
            before = b""
            while block := opened.read(BLOCK):
                looked.found = self._word in before + block
                looked.size = opened.tell()
                if looked.found:
                    return
                before = (before + block)[-rest:]
