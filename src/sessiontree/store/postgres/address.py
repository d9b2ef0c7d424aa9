"""Database addresses such as `postgresql://user@host/database#session`: parsing and formatting, no connections.

The safe form of an address has no password and no parameters. It can be opened in a process that has seen the full
address, or where `SESSIONTREE_STORE` is the full address.
"""

from __future__ import annotations

import os
from typing import NamedTuple, TypeGuard

from sessiontree.errors import InvalidOperation

SCHEMES = ("postgresql://", "postgres://")
STORE_VARIABLE = "SESSIONTREE_STORE"
DIRECT_VARIABLE = "SESSIONTREE_DIRECT_STORE"
"""The variable with the address of the database itself, if `SESSIONTREE_STORE` is that of a pooler."""
READ_VARIABLE = "SESSIONTREE_READ_STORE"
"""The variable with the address of a read replica of `SESSIONTREE_STORE`, for listings and searches."""
_SAFE_PARAMETERS = ("host", "port", "dbname", "user")
"""Parameters that identify the database."""
_full_urls: dict[str, str] = {}


class Address(NamedTuple):
    """A database, and maybe a session in it."""

    url: str
    """For the driver. May contain a password."""
    safe_url: str
    """For messages: without password and parameters."""
    session: str | None
    """The part after `#`: a session id, or another name of a session."""

    @property
    def session_name(self) -> str:
        """The session. Raises `InvalidOperation` if the address is only of a database."""
        if self.session is None:
            raise InvalidOperation(f"{self.safe_url} has no session; add #session")
        return self.session

    def format_session_address(self, session: str) -> str:
        """Return the safe address of a session in this database."""
        from urllib.parse import quote

        return f"{self.safe_url}#{quote(session, safe=' @:')}"


def is_database_address(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and text.startswith(SCHEMES)


def has_several_hosts(url: str) -> bool:
    """Return whether an address names several servers, of which one is the primary."""
    from urllib.parse import parse_qs, urlsplit

    parts = urlsplit(url)
    return any("," in hosts for hosts in (parts.netloc.rpartition("@")[2], *parse_qs(parts.query).get("host", ())))


def get_default_address() -> Address | None:
    """Return the database in `SESSIONTREE_STORE`; `None` if sessions are files. Raises `InvalidOperation`."""
    text = os.environ.get(STORE_VARIABLE)
    if not text:
        return None
    if not is_database_address(text):
        raise InvalidOperation(f"{STORE_VARIABLE} must be an address such as postgresql://host/database")
    return _parse_url(text)


def find_direct_address(address: Address) -> Address | None:
    """Return the address without the pooler; `None` if there is no pooler in front of this database."""
    return _find_other_address(address, DIRECT_VARIABLE)


def find_read_address(address: Address) -> Address | None:
    """Return the address of the read replica of a database; `None` if it has none. Raises `InvalidOperation`."""
    return _find_other_address(address, READ_VARIABLE)


def _find_other_address(address: Address, variable: str) -> Address | None:
    """Return the address in a variable that describes the default database, if `address` is that database."""
    text, default = os.environ.get(variable), get_default_address()
    if not text or default is None or default.url != address.url:
        return None
    if not is_database_address(text):
        raise InvalidOperation(f"{variable} must be an address such as postgresql://host/database")
    return _parse_url(text)


def parse_address(text: str) -> Address:
    """Parse an address. Raises `InvalidOperation`."""
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
        raise InvalidOperation(f"invalid database address: {error}") from None
    login, at, hosts = parts.netloc.rpartition("@")
    query = urlencode([(name, value) for name, value in parameters if name in _SAFE_PARAMETERS])
    netloc = f"{login.partition(':')[0]}{at}{hosts}"
    shown = f"postgresql://{netloc}{parts.path}{f'?{query}' if query else ''}"
    url = text.partition("#")[0]
    if url.partition("://")[2] != shown.partition("://")[2]:
        _full_urls[shown] = url
    return Address(_full_urls.get(shown, url), shown, unquote(parts.fragment) or None)
