"""Tokens: who may ask, what, and of which projects.

Those that are made to last stand in `tokens.json` in the home, by their hash alone, so that the file lets nobody in;
the server looks at it again when it changes, so one that is revoked is refused at once, and whoever changes it does so
alone. The token of a server is made when it starts and is gone when it ends; `serve-PORT.token` beside it has it for
programs of the same user. Both files are the user's alone. A token is never part of an address, an answer or a log.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Generator, Iterable
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from sessiontree.errors import InvalidOperation, NotFound, StoreError
from sessiontree.home import home
from sessiontree.regular_file import read_regular
from sessiontree.store.files import make_private_directory, write_private
from sessiontree.store.lock import Lock, lock_of

Scope: TypeAlias = Literal["read", "write", "run"]
SCOPES: tuple[Scope, ...] = ("read", "write", "run")

FILE = "tokens.json"


class Token(Struct, frozen=True, kw_only=True, rename="camel"):
    """What somebody may do."""

    id: str
    """How it is spoken of."""
    hash: str
    scopes: tuple[Scope, ...]
    projects: tuple[str, ...] | None = None
    """The folders whose sessions it may see, and those below them; `None` is all."""
    created: str = ""

    def sees(self, cwd: str) -> bool:
        """Whether it may know of sessions of the folder `cwd`."""
        if self.projects is None:
            return True
        where = os.path.normpath(cwd) if cwd else ""
        return any(where == project or where.startswith(os.path.join(project, "")) for project in self.projects)


class Made(Struct, frozen=True, kw_only=True):
    """A new token, with the secret that is told once."""

    secret: str
    token: Token


def make(scopes: Iterable[Scope], projects: Iterable[str] | None = None, *, created: str = "") -> Made:
    """A new token, of 256 random bits."""
    secret = f"st_{secrets.token_urlsafe(32)}"
    folders = None if projects is None else tuple(os.path.abspath(project) for project in projects)
    given = set(scopes)
    wanted: tuple[Scope, ...] = tuple(scope for scope in SCOPES if scope in given)
    if "run" in wanted and folders is not None:
        check_sandbox()
    if not wanted:
        raise InvalidOperation(f"a token needs a scope: {', '.join(SCOPES)}")
    token = Token(id=secrets.token_hex(4), hash=hash_of(secret), scopes=wanted, projects=folders, created=created)
    return Made(secret=secret, token=token)


def check_sandbox() -> None:
    """Raises `InvalidOperation` where nothing keeps agents of a token for single projects inside them."""
    from sessiontree import config
    from sessiontree.agent.sandbox import NoSandbox, find_sandbox

    try:
        find_sandbox(config.load().tools.user)
    except NoSandbox as error:
        raise InvalidOperation(f"a token for single projects cannot have the scope run here: {error}") from error


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


class Tokens:
    """The tokens that a server knows: those in the file, and its own."""

    def __init__(self, own: Iterable[Token] = (), file: str | None = None) -> None:
        self._own = tuple(own)
        self._file = os.path.join(home(), FILE) if file is None else file
        self._seen: tuple[int, int, int] | None = None
        self._kept: tuple[Token, ...] = ()
        self._lock = threading.Lock()

    def find(self, secret: str) -> Token | None:
        """The token of that secret. Every one is compared, in the same time whatever matches."""
        wanted = hash_of(secret)
        found: Token | None = None
        for token in (*self._own, *self.kept()):
            if hmac.compare_digest(token.hash, wanted):
                found = token
        return found

    def has(self, token: Token) -> bool:
        """Whether a token is still known."""
        return token in self._own or token in self.kept()

    def kept(self) -> tuple[Token, ...]:
        """Those in the file, as it is now. Raises `StoreError` where it does not tell."""
        with self._lock:
            seen = self._identity()
            if seen != self._seen:
                self._kept, self._seen = self._read(), seen
            return self._kept

    def _identity(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> tuple[Token, ...]:
        try:
            return msgspec.json.decode(read_regular(self._file), type=tuple[Token, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(self._file, f"it does not tell which tokens there are: {error}") from error

    def add(self, token: Token) -> None:
        """Keep a token for later."""
        with self._alone():
            self._write((*self._read(), token))

    def revoke(self, id: str) -> Token:
        """Forget a token: it is refused from now on. Raises `NotFound`."""
        with self._alone():
            kept = self._read()
            found = next((token for token in kept if token.id == id), None)
            if found is None:
                raise NotFound("token", id)
            self._write([token for token in kept if token is not found])
            return found

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """Nobody else changes the file meanwhile, so that what another has revoked does not come back."""
        make_private_directory(os.path.dirname(self._file))
        with Lock(lock_of(self._file)):
            yield

    def _write(self, tokens: Iterable[Token]) -> None:
        write_private(self._file, msgspec.json.format(msgspec.json.encode(list(tokens))) + b"\n")


def token_file(port: int) -> str:
    """Where the token of the server on a port is."""
    return os.path.join(home(), f"serve-{port}.token")
