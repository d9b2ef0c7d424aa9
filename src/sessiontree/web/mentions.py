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

from sessiontree import catalog
from sessiontree.core.safe import safe
from sessiontree.errors import SessionTreeError
from sessiontree.store.postgres.address import is_address

if TYPE_CHECKING:
    from sessiontree.web.opened import Opened, OpenSessions
    from sessiontree.web.tokens import Token

log = logging.getLogger("sessiontree.web")

T = TypeVar("T")

BLOCK = 1 << 20


class _Looked(Struct):
    inode: int
    size: int = 0
    """How far it was looked through."""
    found: bool = False


class Mentions:
    def __init__(self, custom_type: str) -> None:
        self._word = f'"{custom_type}"'.encode()
        self._looked: dict[str, _Looked] = {}
        self._lock = threading.Lock()

    def files(self) -> list[str]:
        """The files of sessions that hold the word, those written to last first; one in a database may hold it."""
        return [file for file in catalog.session_files() if self.in_file(file)]

    def in_file(self, file: str) -> bool:
        """Whether a session holds the word; one in a database may."""
        if is_address(file):
            return True
        with self._lock:
            return self._holds(file)

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


class Homes:
    """The sessions that things of a kind are in, such as swarms."""

    def __init__(self, custom_type: str, sessions: OpenSessions) -> None:
        self._mentions = Mentions(custom_type)
        self._sessions = sessions
        self._files: dict[str, str] = {}
        """Where things were found, by id."""

    def held(self, token: Token) -> Generator[Opened]:
        """All that a token may see, each held until the next."""
        return self._held(self._mentions.files(), token)

    def _held(self, files: Iterable[str], token: Token) -> Generator[Opened]:
        for file in files:
            try:
                opened = self._sessions.hold_file(file, token)
            except SessionTreeError as error:
                log.warning("%s is passed over: %s", safe(file), safe(str(error)))
                continue
            if opened is not None:
                try:
                    yield opened
                finally:
                    self._sessions.let_go(opened)

    def _files_for(self, id: str) -> Generator[str]:
        """Where it was found last, and if it is there no more, all others."""
        known = self._files.get(id)
        if known is not None:
            yield known
        yield from (file for file in self._mentions.files() if file != known)

    def hold(self, id: str, token: Token, find: Callable[[Opened], Mapping[str, T]]) -> tuple[Opened, T] | None:
        """The session that has what `find` finds by that id, held until it is let go of; `None` where none has."""
        with closing(self._held(self._files_for(id), token)) as sessions:
            for opened in sessions:
                found = find(opened)
                self._files.update(dict.fromkeys(found, opened.file))
                if id in found:
                    self._sessions.hold_again(opened)
                    return opened, found[id]
        return None
