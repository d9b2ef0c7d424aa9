"""Finds the sessions that contain entries of a type, such as swarms, by scanning their bytes.

Opening every session would take too long. A match only means that the session may contain such entries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from sessiontree.core.sanitize import escape_line
from sessiontree.errors import SessionTreeError
from sessiontree.library import catalog

if TYPE_CHECKING:
    from sessiontree.server.auth import Token
    from sessiontree.server.session_cache import OpenSession, SessionCache

log = logging.getLogger("sessiontree.server")

T = TypeVar("T")


class SessionScanner:
    """Finds the sessions that may contain entries of a custom type, without opening them."""

    def __init__(self, custom_type: str) -> None:
        self._word = f'"{custom_type}"'.encode()

    def list_files(self) -> list[str]:
        """Return the locations of sessions that may contain such entries, most recently written first."""
        return [location for location in catalog.list_locations() if self.may_contain(location)]

    def may_contain(self, location: str) -> bool:
        return catalog.may_contain(location, self._word)


class SessionLocator:
    """Finds the session of a swarm or experiment by id."""

    def __init__(self, custom_type: str, sessions: SessionCache) -> None:
        self._scanner = SessionScanner(custom_type)
        self._sessions = sessions
        self._files: dict[str, str] = {}
        """The files of known ids."""

    def iter_sessions(self, token: Token) -> Generator[OpenSession]:
        """Yield the matching sessions that a token may see. Each stays open until the next."""
        return self._iter_sessions(self._scanner.list_files(), token)

    def _iter_sessions(self, files: Iterable[str], token: Token) -> Generator[OpenSession]:
        for file in files:
            try:
                opened = self._sessions.acquire_file(file, token)
            except SessionTreeError as error:
                log.warning("skipping %s: %s", escape_line(file), escape_line(str(error)))
                continue
            if opened is not None:
                try:
                    yield opened
                finally:
                    self._sessions.release(opened)

    def _iter_candidates(self, id: str) -> Generator[str]:
        """Yield the file where the id was found last, then all other files."""
        known = self._files.get(id)
        if known is not None:
            yield known
        yield from (file for file in self._scanner.list_files() if file != known)

    def acquire(
        self, id: str, token: Token, find: Callable[[OpenSession], Mapping[str, T]]
    ) -> tuple[OpenSession, T] | None:
        """Return the open session in which `find` finds the id, and what it found; the caller releases the session."""
        with closing(self._iter_sessions(self._iter_candidates(id), token)) as sessions:
            for opened in sessions:
                found = find(opened)
                self._files.update(dict.fromkeys(found, opened.file))
                if id in found:
                    self._sessions.add_user(opened)
                    return opened, found[id]
        return None
