"""The trash: archive, delete, restore and purge sessions, wherever they live."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sessiontree.core.tree import Tree
from sessiontree.library.locations import find_repository, is_address, open_repository
from sessiontree.library.repository import Repository
from sessiontree.library.session_files import is_path
from sessiontree.session import Session
from sessiontree.store.base import Cursor

if TYPE_CHECKING:
    from sessiontree.library.index.session_summary import SessionSummary


def archive(session: str | os.PathLike[str], *, archived: bool = True) -> str:
    """Hide a session from listings, or show it again. Nothing in it changes. Returns its location."""
    repository, name = _find_repository(session)
    return repository.archive(name, archived=archived)


def delete(session: str | os.PathLike[str]) -> str:
    """Move a session to the trash. Returns its location there."""
    repository, name = _find_repository(session)
    return repository.delete(name)


def restore(session: str | os.PathLike[str]) -> str:
    """Move a session from the trash back to where it was. Returns its location."""
    repository, name = _find_repository(session)
    return repository.restore(name)


def resolve_session(session: str | os.PathLike[str], *, in_trash: bool = False) -> str:
    """Return the location that the other functions here would act on. Prefers the trash with `in_trash`."""
    repository, name = _find_repository(session)
    return repository.resolve(name, in_trash=in_trash)


def purge(session: str | os.PathLike[str], *, at: Cursor | None = None) -> str:
    """Remove a session for good, from the trash or from where it lives. Returns its former location.

    Raises `Conflict` if the session does not end at `at`: another process has written to it since.
    """
    repository, name = _find_repository(session)
    return repository.purge(name, at=at)


def purge_unused(session: Session, is_unused: Callable[[Tree], bool]) -> bool:
    """Remove a session for good if nothing useful was written to it. A damaged one stays.

    Returns whether it is gone.
    """
    end = session.store.read_end().cursor
    session.refresh()
    if not is_unused(session.tree) or session.problems:
        return False
    purge(session.location, at=end)
    return True


def list_trash() -> list[SessionSummary]:
    """Summarize the deleted sessions, newest first."""
    return open_repository().list_trash()


def _find_repository(session: str | os.PathLike[str]) -> tuple[Repository, str]:
    """Like `find_repository`, but a bare word is never taken for a file of the current folder."""
    if is_path(session) or is_address(os.fspath(session)):
        return find_repository(session)
    return open_repository(), os.fspath(session)
