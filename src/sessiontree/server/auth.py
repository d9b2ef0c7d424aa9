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

from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import InvalidOperation, NotFound, StoreError
from sessiontree.home import get_home
from sessiontree.regular_file import open_regular_file, read_regular_file
from sessiontree.server.http_errors import ApiError
from sessiontree.server.request_checks import Headers, read_cookie
from sessiontree.store import lock_wait
from sessiontree.store.files import make_private_directory, write_private
from sessiontree.store.lock import FileLock, get_lock_path

Scope: TypeAlias = Literal["read", "write", "run"]
SCOPES: tuple[Scope, ...] = ("read", "write", "run")
TokenKind: TypeAlias = Literal["program", "browser", "code"]

TOKENS_FILE = "tokens.json"
BROWSER_SECONDS = 30 * 24 * 3600.0
"""How long a browser stays signed in."""
MAX_BROWSERS = 50
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
    kind: TokenKind = "program"
    parent: str | None = None
    """The token that a browser was signed in with: it is worth nothing without that."""

    @property
    def root(self) -> str:
        """The id of the token that what is used up counts for."""
        return self.id if self.parent is None else self.parent

    def can_see(self, cwd: str) -> bool:
        """Whether it may know of sessions of the folder `cwd`."""
        if self.projects is None:
            return True
        where = os.path.normpath(cwd) if cwd else ""
        return any(where == project or where.startswith(os.path.join(project, "")) for project in self.projects)


class IssuedToken(Struct, frozen=True, kw_only=True):
    """A new token, with the secret that is told once."""

    secret: str
    token: Token


def issue_token(
    scopes: Iterable[Scope],
    projects: Iterable[str] | None = None,
    *,
    created: str = "",
    expires: str | None = None,
    kind: TokenKind = "program",
    parent: str | None = None,
) -> IssuedToken:
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
        hash=hash_secret(secret),
        scopes=wanted,
        projects=folders,
        created=created,
        expires=expires,
        kind=kind,
        parent=parent,
    )
    return IssuedToken(secret=secret, token=token)


def get_time_now() -> str:
    return format_timestamp(time.time_ns() // 1_000_000)


def add_seconds(time: str, seconds: float) -> str:
    """A time so many seconds after another."""
    moment = datetime.fromisoformat(time) + timedelta(seconds=seconds)
    return format_timestamp(round(moment.astimezone(UTC).timestamp() * 1000))


def check_sandbox() -> None:
    """Raises `InvalidOperation` where nothing keeps agents of a token for single projects inside them."""
    from sessiontree import config
    from sessiontree.agent.sandbox import SandboxUnavailable, find_sandbox

    try:
        find_sandbox(config.load().tools.user)
    except SandboxUnavailable as error:
        raise InvalidOperation(f"a token for single projects cannot have the scope run here: {error}") from error


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


class TokenStore:
    """The tokens that a server knows: those in the file, and its own."""

    def __init__(
        self, own: Iterable[Token] = (), file: str | None = None, now: Callable[[], str] = get_time_now
    ) -> None:
        self._server_tokens = tuple(own)
        self._now = now
        self._file = os.path.join(get_home(), TOKENS_FILE) if file is None else file
        self._file_identity: tuple[int, int, int] | None = None
        self._stored: tuple[Token, ...] = ()
        self._lock = threading.Lock()

    def find(self, secret: str, kind: TokenKind = "program") -> Token | None:
        """The token of that secret. Every one is compared, in the same time whatever matches."""
        found = _find_matching((*self._server_tokens, *self.read_stored()), secret, kind)
        return found if found is not None and self.is_valid(found) else None

    def is_valid(self, token: Token) -> bool:
        """Whether a token is still known, and counts."""
        known = (*self._server_tokens, *self.read_stored())
        if token not in known or _has_expired(token, self._now()):
            return False
        if token.parent is None:
            return True
        return any(one.id == token.parent and not _has_expired(one, self._now()) for one in known)

    def sign_in(self, secret: str, kind: Literal["program", "code"]) -> IssuedToken | None:
        """A token for a browser, with the rights of a code, which counts no more then, or of a program's token."""
        with self._lock_file():
            kept, now = self._read(), self._now()
            given = _find_matching((*self._server_tokens, *kept), secret, kind)
            if given is None or not self.is_valid(given):
                return None
            lasting = kind == "program" and given not in self._server_tokens
            until = add_seconds(now, BROWSER_SECONDS)
            made = issue_token(
                given.scopes,
                given.projects,
                created=now,
                expires=min(until, given.expires) if lasting and given.expires is not None else until,
                kind="browser",
                parent=given.id if lasting else None,
            )
            beside = [one for one in kept if one.kind == "browser" and one.parent == made.token.parent]
            gone = {one.id for one in beside[: max(0, len(beside) + 1 - MAX_BROWSERS)]}
            if kind == "code":
                gone.add(given.id)
            self._write((*(one for one in kept if one.id not in gone), made.token))
            return made

    def read_stored(self) -> tuple[Token, ...]:
        """Those in the file, as it is now. Raises `StoreError` where it does not tell."""
        with self._lock:
            seen = self._read_file_identity()
            if seen != self._file_identity:
                self._stored, self._file_identity = self._read(), seen
            return self._stored

    def _read_file_identity(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._file)
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    def _read(self) -> tuple[Token, ...]:
        try:
            return msgspec.json.decode(read_regular_file(self._file), type=tuple[Token, ...])
        except FileNotFoundError:
            return ()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(self._file, f"it does not tell which tokens there are: {error}") from error

    def add(self, token: Token) -> None:
        """Keep a token for later."""
        with self._lock_file():
            self._write((*self._read(), token))

    def revoke(self, id: str) -> Token:
        """Forget a token: it is refused from now on. Raises `NotFound`."""
        with self._lock_file():
            kept = self._read()
            found = next((token for token in kept if token.id == id), None)
            if found is None:
                raise NotFound("token", id)
            self._write([token for token in kept if token is not found and token.parent != id])
            return found

    @contextlib.contextmanager
    def _lock_file(self) -> Generator[None]:
        """Nobody else changes the file meanwhile, so that what another has revoked does not come back."""
        make_private_directory(os.path.dirname(self._file))
        with FileLock(get_lock_path(self._file)):
            yield

    def _write(self, tokens: Iterable[Token]) -> None:
        """Keep these tokens, without those that have expired."""
        now = self._now()
        kept = [token for token in tokens if not _has_expired(token, now)]
        write_private(self._file, msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def _find_matching(tokens: Iterable[Token], secret: str, kind: TokenKind) -> Token | None:
    wanted = hash_secret(secret)
    found: Token | None = None
    for token in tokens:
        if hmac.compare_digest(token.hash, wanted) and token.kind == kind:
            found = token
    return found


def _has_expired(token: Token, now: str) -> bool:
    return token.expires is not None and token.expires <= now


def get_token_path(port: int) -> str:
    """Where the token of the server on a port is."""
    return os.path.join(get_home(), f"serve-{port}.token")


def get_address_path(port: int) -> str:
    """Where the address is that the server on a port is opened at."""
    return os.path.join(get_home(), f"serve-{port}.address")


@contextlib.contextmanager
def announce_server(port: int, address: str) -> Generator[None]:
    """Let other commands know the address of a server while this is entered.

    The file is locked, which ends with the process: one that a killed server left behind is nobody's.
    """
    path = get_address_path(port)
    write_private(path, address.encode() + b"\n")
    try:
        with open(path, "rb") as file:
            lock_wait.lock_file(file.fileno(), path)
            yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def list_server_addresses() -> list[str]:
    """The addresses at which the running servers of this home are opened."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(get_home())):
            if name.startswith("serve-") and name.endswith(".address"):
                with (
                    contextlib.suppress(OSError, UnicodeDecodeError),
                    open_regular_file(os.path.join(get_home(), name)) as file,
                ):
                    if lock_wait.is_locked(file.fileno()):
                        found.append(file.read().decode().strip())
    return found


SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
NEW_LINK_HINT = "get a new one with: sessiontree token link"


class Credential(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a page signs in with: one of both."""

    code: str | None = None
    token: str | None = None


def get_cookie_name(port: int) -> str:
    """Cookies do not tell ports apart, so the name does."""
    return f"sessiontree-{port}"


def sign_in(tokens: TokenStore, body: bytes) -> IssuedToken:
    """A new token for a browser. Raises `Refused`."""
    try:
        given = msgspec.json.decode(body, type=Credential)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(422, f"signing in takes a code or a token: {error}") from None
    if (given.code is None) == (given.token is None):
        raise ApiError(422, "signing in takes a code or a token")
    if given.code is not None:
        made = tokens.sign_in(given.code, "code")
        if made is None:
            raise ApiError(401, f"this link was used already, or has expired; {NEW_LINK_HINT}", code="used_link")
        return made
    made = tokens.sign_in(given.token or "", "program")
    if made is None:
        raise ApiError(401, "this token is not known here, has expired or was revoked")
    return made


def build_cookie_header(port: int, secret: str, headers: Headers) -> tuple[bytes, bytes]:
    """The header that gives a browser its cookie, or takes it away with an empty `secret`."""
    is_tls = any(name == b"origin" and value.lower().startswith(b"https:") for name, value in headers)
    seconds = int(BROWSER_SECONDS) if secret else 0
    parts = [f"{get_cookie_name(port)}={secret}", "Path=/", f"Max-Age={seconds}", "HttpOnly", "SameSite=Strict"]
    return b"set-cookie", "; ".join([*parts, *(["Secure"] if is_tls else [])]).encode()


def read_session_cookie(headers: Headers, port: int) -> str | None:
    """What the cookie of a request says."""
    return read_cookie(headers, get_cookie_name(port))
