"""Addresses: `postgresql://user@host/database#session`, taken apart. No connection here.

What is shown of an address has no password and no parameters. Whoever has the shown form can open it all the same in
the process that has seen the whole, and where `SESSIONTREE_STORE` is the whole.
"""

from __future__ import annotations

import os
from typing import NamedTuple, TypeGuard

from sessiontree.errors import InvalidOperation

SCHEMES = ("postgresql://", "postgres://")
STORE_VARIABLE = "SESSIONTREE_STORE"
_SAFE_PARAMETERS = ("host", "port", "dbname", "user")
"""Parameters that tell which database it is."""
_full_urls: dict[str, str] = {}


class Address(NamedTuple):
    url: str
    """For the driver: it may hold a password."""
    safe_url: str
    """How messages name the database."""
    session: str | None
    """What stands behind `#`: a session's id, or what a person calls it by."""

    @property
    def session_name(self) -> str:
        """The same. Raises `InvalidOperation` where nothing stands there: a whole database is never one session."""
        if self.session is None:
            raise InvalidOperation(f"{self.safe_url} names no session: put #session behind it")
        return self.session

    def format_session_address(self, session: str) -> str:
        """The shown address of a session."""
        from urllib.parse import quote

        return f"{self.safe_url}#{quote(session, safe=' @:')}"


def is_database_address(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and text.startswith(SCHEMES)


def get_default_address() -> Address | None:
    """The database that `SESSIONTREE_STORE` names; `None` where sessions are files. Raises `InvalidOperation`."""
    text = os.environ.get(STORE_VARIABLE)
    if not text:
        return None
    if not is_database_address(text):
        raise InvalidOperation(f"{STORE_VARIABLE} is to be an address such as postgresql://host/database")
    return _parse_url(text)


def parse_address(text: str) -> Address:
    """An address taken apart. Raises `InvalidOperation`."""
    get_default_address()
    return _parse_url(text)


def find_address(where: str | None) -> Address | None:
    """Return the database at an address, or the default one; `None` for a path. Raises `InvalidOperation`."""
    if where is None:
        return get_default_address()
    return parse_address(where) if is_database_address(where) else None


def _parse_url(text: str) -> Address:
    from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

    try:
        parts = urlsplit(text)
        parameters = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError as error:
        raise InvalidOperation(f"this is no address of a database: {error}") from None
    login, at, hosts = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in parameters if name in _SAFE_PARAMETERS])
    netloc = f"{login.partition(':')[0]}{at}{hosts}"
    shown = f"postgresql://{netloc}{parts.path}{f'?{query}' if query else ''}"
    url = text.partition("#")[0]
    if url.partition("://")[2] != shown.partition("://")[2]:
        _full_urls[shown] = url
    return Address(_full_urls.get(shown, url), shown, unquote(parts.fragment) or None)
