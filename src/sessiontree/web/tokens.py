"""Tokens: who may ask, what, of which projects, and until when.

Those that are made to last stand in `tokens.json` in the home, by their hash alone, so that the file lets nobody in;
the server looks at it again when it changes, so one that is revoked is refused at once, and whoever changes it does so
alone. The token of a server is made when it starts and is gone when it ends; `serve-PORT.token` beside it has it for
programs of the same user. Both files are the user's alone.

There are three kinds. A program carries its token in a header. A code is part of a link: it can be exchanged once, for
the token of a browser, which is a cookie. Only a code is ever part of an address, and it is worth nothing once used.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterable
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from sessiontree.core.times import iso
from sessiontree.errors import InvalidOperation, NotFound, StoreError
from sessiontree.home import home
from sessiontree.regular_file import open_regular, read_regular
from sessiontree.store import waiting
from sessiontree.store.files import make_private_directory, write_private
from sessiontree.store.lock import Lock, lock_of

Scope: TypeAlias = Literal["read", "write", "run"]
SCOPES: tuple[Scope, ...] = ("read", "write", "run")
Kind: TypeAlias = Literal["program", "browser", "code"]

FILE = "tokens.json"
BROWSER_SECONDS = 30 * 24 * 3600.0
"""How long a browser stays signed in."""
BROWSERS = 50
"""Browsers that are signed in with one token, or with links: of more, the oldest is signed out."""


class Token(Struct, frozen=True, kw_only=True, rename="camel"):
    """What somebody may do."""

    id: str
    """How it is spoken of."""
    hash: str
    scopes: tuple[Scope, ...]
    projects: tuple[str, ...] | None = None
    """The folders whose sessions it may see, and those below them; `None` is all."""
    created: str = ""
    expires: str | None = None
    """The time from which it counts no more; `None` is never."""
    kind: Kind = "program"
    parent: str | None = None
    """The token that a browser was signed in with: it is worth nothing without that."""

    @property
    def root(self) -> str:
        """The id of the token that what is used up counts for."""
        return self.id if self.parent is None else self.parent

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


def make(
    scopes: Iterable[Scope],
    projects: Iterable[str] | None = None,
    *,
    created: str = "",
    expires: str | None = None,
    kind: Kind = "program",
    parent: str | None = None,
) -> Made:
    """A new token, of 256 random bits."""
    secret = f"st_{secrets.token_urlsafe(32)}"
    folders = None if projects is None else tuple(os.path.abspath(project) for project in projects)
    given = set(scopes)
    wanted: tuple[Scope, ...] = tuple(scope for scope in SCOPES if scope in given)
    if "run" in wanted and folders is not None:
        check_sandbox()
    if not wanted:
        raise InvalidOperation(f"a token needs a scope: {', '.join(SCOPES)}")
    token = Token(
        id=secrets.token_hex(4),
        hash=hash_of(secret),
        scopes=wanted,
        projects=folders,
        created=created,
        expires=expires,
        kind=kind,
        parent=parent,
    )
    return Made(secret=secret, token=token)


def time_now() -> str:
    return iso(time.time_ns() // 1_000_000)


def later(time: str, seconds: float) -> str:
    """A time so many seconds after another."""
    moment = datetime.fromisoformat(time) + timedelta(seconds=seconds)
    return iso(round(moment.astimezone(UTC).timestamp() * 1000))


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

    def __init__(self, own: Iterable[Token] = (), file: str | None = None, now: Callable[[], str] = time_now) -> None:
        self._own = tuple(own)
        self._now = now
        self._file = os.path.join(home(), FILE) if file is None else file
        self._seen: tuple[int, int, int] | None = None
        self._kept: tuple[Token, ...] = ()
        self._lock = threading.Lock()

    def find(self, secret: str, kind: Kind = "program") -> Token | None:
        """The token of that secret. Every one is compared, in the same time whatever matches."""
        found = _matching((*self._own, *self.kept()), secret, kind)
        return found if found is not None and self.has(found) else None

    def has(self, token: Token) -> bool:
        """Whether a token is still known, and counts."""
        known = (*self._own, *self.kept())
        if token not in known or _has_expired(token, self._now()):
            return False
        if token.parent is None:
            return True
        return any(one.id == token.parent and not _has_expired(one, self._now()) for one in known)

    def sign_in(self, secret: str, kind: Literal["program", "code"]) -> Made | None:
        """A token for a browser, with the rights of a code, which counts no more then, or of a program's token."""
        with self._alone():
            kept, now = self._read(), self._now()
            given = _matching((*self._own, *kept), secret, kind)
            if given is None or not self.has(given):
                return None
            lasting = kind == "program" and given not in self._own
            until = later(now, BROWSER_SECONDS)
            made = make(
                given.scopes,
                given.projects,
                created=now,
                expires=min(until, given.expires) if lasting and given.expires is not None else until,
                kind="browser",
                parent=given.id if lasting else None,
            )
            beside = [one for one in kept if one.kind == "browser" and one.parent == made.token.parent]
            gone = {one.id for one in beside[: max(0, len(beside) + 1 - BROWSERS)]}
            if kind == "code":
                gone.add(given.id)
            self._write((*(one for one in kept if one.id not in gone), made.token))
            return made

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
            self._write([token for token in kept if token is not found and token.parent != id])
            return found

    @contextlib.contextmanager
    def _alone(self) -> Generator[None]:
        """Nobody else changes the file meanwhile, so that what another has revoked does not come back."""
        make_private_directory(os.path.dirname(self._file))
        with Lock(lock_of(self._file)):
            yield

    def _write(self, tokens: Iterable[Token]) -> None:
        """Keep these tokens, without those that have expired."""
        now = self._now()
        kept = [token for token in tokens if not _has_expired(token, now)]
        write_private(self._file, msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def _matching(tokens: Iterable[Token], secret: str, kind: Kind) -> Token | None:
    wanted = hash_of(secret)
    found: Token | None = None
    for token in tokens:
        if hmac.compare_digest(token.hash, wanted) and token.kind == kind:
            found = token
    return found


def _has_expired(token: Token, now: str) -> bool:
    return token.expires is not None and token.expires <= now


def token_file(port: int) -> str:
    """Where the token of the server on a port is."""
    return os.path.join(home(), f"serve-{port}.token")


def address_file(port: int) -> str:
    """Where the address is that the server on a port is opened at."""
    return os.path.join(home(), f"serve-{port}.address")


@contextlib.contextmanager
def announce_server(port: int, address: str) -> Generator[None]:
    """Let other commands know the address of a server while this is entered.

    The file is locked, which ends with the process: one that a killed server left behind is nobody's.
    """
    path = address_file(port)
    write_private(path, address.encode() + b"\n")
    try:
        with open(path, "rb") as file:
            waiting.take(file.fileno(), path)
            yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def addresses() -> list[str]:
    """The addresses at which the running servers of this home are opened."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(home())):
            if name.startswith("serve-") and name.endswith(".address"):
                with contextlib.suppress(OSError, UnicodeDecodeError), open_regular(os.path.join(home(), name)) as file:
                    if waiting.is_locked(file.fileno()):
                        found.append(file.read().decode().strip())
    return found
