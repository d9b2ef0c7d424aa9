"""Mentions: which sessions hold entries of a kind, found by looking through their bytes, each byte once.

Opening every session to see whether there is a swarm in it would take long; this does not. That a session holds the
word does not say more: who wants to know opens it, as `Homes` does for the server. No entry is read here.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from sessiontree.core.sanitize import escape_line
from sessiontree.errors import SessionTreeError
from sessiontree.library import catalog
from sessiontree.store.postgres.address import is_database_address

if TYPE_CHECKING:
    from sessiontree.server.auth import Token
    from sessiontree.server.session_cache import OpenSession, SessionCache

log = logging.getLogger("sessiontree.server")

T = TypeVar("T")

SCAN_BLOCK = 1 << 20


class _ScanState(Struct):
    inode: int
    size: int = 0
    """How far it was looked through."""
    found: bool = False


class SessionScanner:
    def __init__(self, custom_type: str) -> None:
        self._word = f'"{custom_type}"'.encode()
        self._scanned: dict[str, _ScanState] = {}
        self._lock = threading.Lock()

    def list_files(self) -> list[str]:
        """The files of sessions that hold the word, those written to last first; one in a database may hold it."""
        return [file for file in catalog.iter_session_paths() if self.may_contain(file)]

    def may_contain(self, file: str) -> bool:
        """Whether a session holds the word; one in a database may."""
        if is_database_address(file):
            return True
        with self._lock:
            return self._scan_file(file)

    def _scan_file(self, file: str) -> bool:
        try:
            status = os.stat(file)
            looked = self._scanned.get(file)
            if looked is None or looked.inode != status.st_ino or looked.size > status.st_size:
                looked = self._scanned[file] = _ScanState(status.st_ino)
            if not looked.found and looked.size < status.st_size:
                self._scan_new_bytes(file, looked)
        except OSError:
            return False
        return looked.found

    def _scan_new_bytes(self, file: str, looked: _ScanState) -> None:
        rest = len(self._word) - 1
        with open(file, "rb") as opened:
            opened.seek(max(0, looked.size - rest))
            before = b""
            while block := opened.read(SCAN_BLOCK):
                looked.found = self._word in before + block
                looked.size = opened.tell()
                if looked.found:
                    return
                before = (before + block)[-rest:]


class SessionLocator:
    """The sessions that things of a kind are in, such as swarms."""

    def __init__(self, custom_type: str, sessions: SessionCache) -> None:
        self._scanner = SessionScanner(custom_type)
        self._sessions = sessions
        self._files: dict[str, str] = {}
        """Where things were found, by id."""

    def iter_sessions(self, token: Token) -> Generator[OpenSession]:
        """All that a token may see, each held until the next."""
        return self._iter_sessions(self._scanner.list_files(), token)

    def _iter_sessions(self, files: Iterable[str], token: Token) -> Generator[OpenSession]:
        for file in files:
            try:
                opened = self._sessions.acquire_file(file, token)
            except SessionTreeError as error:
                log.warning("%s is passed over: %s", escape_line(file), escape_line(str(error)))
                continue
            if opened is not None:
                try:
                    yield opened
                finally:
                    self._sessions.release(opened)

    def _iter_candidates(self, id: str) -> Generator[str]:
        """Where it was found last, and if it is there no more, all others."""
        known = self._files.get(id)
        if known is not None:
            yield known
        yield from (file for file in self._scanner.list_files() if file != known)

    def acquire(
        self, id: str, token: Token, find: Callable[[OpenSession], Mapping[str, T]]
    ) -> tuple[OpenSession, T] | None:
        """The session that has what `find` finds by that id, held until it is let go of; `None` where none has."""
        with closing(self._iter_sessions(self._iter_candidates(id), token)) as sessions:
            for opened in sessions:
                found = find(opened)
                self._files.update(dict.fromkeys(found, opened.file))
                if id in found:
                    self._sessions.add_user(opened)
                    return opened, found[id]
        return None
