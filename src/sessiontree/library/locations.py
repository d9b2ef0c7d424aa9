"""Locations: choose the repository for an address, a folder, or the default place.

This is the one place that knows which kinds of repositories exist.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

from sessiontree.errors import InvalidOperation
from sessiontree.library.folder_repository import FolderRepository
from sessiontree.library.repository import RECENT_ALIAS, Layout, Repository
from sessiontree.library.session_files import OpenStore, get_sessions_folder, is_file, is_path
from sessiontree.store.jsonl import JsonlStore

STORE_VARIABLE = "SESSIONTREE_STORE"
"""The environment variable that names the default repository."""

_schemes: dict[str, Callable[[str], Repository]] = {}
_file_store: OpenStore = JsonlStore


def register_scheme(scheme: str, open_address: Callable[[str], Repository]) -> None:
    """Let addresses that start with `scheme`, such as `postgresql://`, open this kind of repository.

    `open_address` gets the address; the part after `#` names a session.
    """
    _schemes[scheme] = open_address


def is_address(text: object) -> bool:
    """Return whether this is the address of a repository or of a session in one, and not a path or a name."""
    return isinstance(text, str) and text.startswith(tuple(_schemes))


def open_repository(place: str | os.PathLike[str] | None = None) -> Repository:
    """Return the repository at an address or in a folder; by default the one that `SESSIONTREE_STORE` names, or else
    the user's folder of sessions. Raises `InvalidOperation` for an invalid address.
    """
    if place is None:
        address = os.environ.get(STORE_VARIABLE)
        if not address:
            return get_folder_repository()
        if not is_address(address):
            raise InvalidOperation(f"{STORE_VARIABLE} must be an address such as postgresql://host/database")
        return _open_address(address)
    if isinstance(place, str) and is_address(place):
        return _open_address(place)
    return open_folder(os.fspath(place), "folder")


def get_folder_repository() -> Repository:
    """Return the user's folder of sessions. Raises `ConfigError` if the configuration cannot be read."""
    return open_folder(get_sessions_folder(), "projects")


def open_folder_of(file: str) -> Repository:
    """Return the repository in the folder of a session file. The configuration is not read."""
    return open_folder(os.path.dirname(file) or ".", "folder")


def open_folder(root: str, layout: Layout) -> Repository:
    """Return the repository in a folder, the same object for every call: it remembers what it has scanned."""
    return _open_folder(root, layout, _file_store)


@lru_cache(maxsize=1024)
def _open_folder(root: str, layout: Layout, open_store: OpenStore) -> Repository:
    return FolderRepository(root, layout=layout, open_store=open_store)


def set_file_store(open_store: OpenStore) -> None:
    """Open session files with another store from now on, such as one that encrypts them."""
    global _file_store
    _file_store = open_store


def find_repository(session: str | os.PathLike[str]) -> tuple[Repository, str]:
    """Return the repository that a session is in, given its location or name, and the name to look for there."""
    text = os.fspath(session)
    if is_address(text):
        _, found, name = text.partition("#")
        if not found or not name:
            raise InvalidOperation(f"{open_repository(text).location} has no session; append #session to the address")
        return _open_address(text), text
    if text == RECENT_ALIAS:
        return open_repository(), text
    if is_file(session):
        return open_folder_of(text), text
    return get_folder_repository() if is_path(session) else open_repository(), text


def _open_address(address: str) -> Repository:
    scheme = next(scheme for scheme in _schemes if address.startswith(scheme))
    return _schemes[scheme](address)


def _open_postgres(address: str) -> Repository:
    from sessiontree.library.postgres_repository import PostgresRepository
    from sessiontree.store.postgres.address import parse_address

    return PostgresRepository(parse_address(address))


register_scheme("postgresql://", _open_postgres)
register_scheme("postgres://", _open_postgres)
