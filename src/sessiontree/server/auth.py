"""Tokens and sign-in: who may use the server, for what, for which projects and until when.

`tokens.json` in the home folder stores tokens by their hashes. The server reads the file again when it changes, so a
revoked token is refused at once. Changes to the file are made under a lock. The token of a server lasts as long as its
process; `serve-PORT.token` makes it available to programs of the same user. Both files are readable only by the user.

There are four kinds of tokens. A program sends its token in a header. A code is part of a sign-in link, and can be
exchanged once for the token of a browser. A browser keeps its token in a cookie that scripts cannot read. The link
carries the code in its fragment, which browsers do not send to servers. A share is part of a link that shows one
session or branch, read-only; it opens no other route.
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
from msgspec import Struct, structs

from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import InvalidOperation, NotFound, StoreError
from sessiontree.home import get_home
from sessiontree.regular_file import open_regular_file, read_regular_file
from sessiontree.server.http_errors import ApiError
from sessiontree.server.request_checks import Headers, read_cookie
from sessiontree.store.file_operations import make_private_directory, write_private
from sessiontree.store.lock import FileLock, get_lock_path, is_locked, lock_file

Scope: TypeAlias = Literal["read", "write", "run"]
SCOPES: tuple[Scope, ...] = ("read", "write", "run")
TokenKind: TypeAlias = Literal["program", "browser", "code", "share"]

TOKENS_FILE = "tokens.json"
MAX_SHARES = 50
"""Maximum share links of one session."""
BROWSER_SECONDS = 30 * 24 * 3600.0
"""How long a browser stays signed in."""
MAX_BROWSERS = 50
"""Maximum browsers that are signed in with one token, or with links. One more signs the oldest out."""


class Token(Struct, frozen=True, kw_only=True, rename="camel"):
    """The rights of a client."""

    id: str
    """The public id."""
    hash: str
    scopes: tuple[Scope, ...]
    projects: tuple[str, ...] | None = None
    """The folders whose sessions the token may see, including subfolders; `None` means all."""
    created: str = ""
    expires: str | None = None
    """When the token expires; `None` means never."""
    kind: TokenKind = "program"
    parent: str | None = None
    """The token that a browser signed in with. If that is revoked, this token is invalid too."""
    name: str = ""
    """Who uses it, for entries and the audit log."""
    session: str | None = None
    """The session that a share shows."""
    branch: str | None = None
    """The branch that a share shows; `None` is the whole session."""
    redact: bool = False
    """Whether a share shows secrets redacted."""

    @property
    def root(self) -> str:
        """The id of the token whose limits apply."""
        return self.id if self.parent is None else self.parent

    def can_see(self, cwd: str) -> bool:
        """Return whether the token may see sessions in the folder `cwd`."""
        if self.projects is None:
            return True
        where = os.path.normpath(cwd) if cwd else ""
        return any(where == project or where.startswith(os.path.join(project, "")) for project in self.projects)


class IssuedToken(Struct, frozen=True, kw_only=True):
    """A new token and its secret, which is not stored."""

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
    name: str = "",
) -> IssuedToken:
    """Create a token with a secret of 256 random bits."""
    secret = f"st_{secrets.token_urlsafe(32)}"
    folders = None if projects is None else tuple(os.path.abspath(project) for project in projects)
    requested = set(scopes)
    granted: tuple[Scope, ...] = tuple(scope for scope in SCOPES if scope in requested)
    if "run" in granted and folders is not None:
        check_sandbox()
    if not granted:
        raise InvalidOperation(f"a token needs at least one scope: {', '.join(SCOPES)}")
    token = Token(
        id=secrets.token_hex(4),
        hash=hash_secret(secret),
        scopes=granted,
        projects=folders,
        created=created,
        expires=expires,
        kind=kind,
        parent=parent,
        name=name,
    )
    return IssuedToken(secret=secret, token=token)


def get_time_now() -> str:
    return format_timestamp(time.time_ns() // 1_000_000)


def add_seconds(time: str, seconds: float) -> str:
    """Return the timestamp that is some seconds after another."""
    moment = datetime.fromisoformat(time) + timedelta(seconds=seconds)
    return format_timestamp(round(moment.astimezone(UTC).timestamp() * 1000))


def check_sandbox() -> None:
    """Raises `InvalidOperation` if no sandbox can limit the agents of a token to its projects."""
    from sessiontree import config
    from sessiontree.agent.sandbox import SandboxUnavailable, find_sandbox

    try:
        find_sandbox(config.load_config().tools.user)
    except SandboxUnavailable as error:
        raise InvalidOperation(
            f"a token that is limited to projects cannot have the scope run here: {error}"
        ) from error


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


class TokenStore:
    """The tokens of a server: its own and those in the file."""

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
        """Return the valid token with that secret. The comparison takes the same time whichever token matches."""
        found = _find_matching((*self._server_tokens, *self.read_stored()), secret, kind)
        return found if found is not None and self.is_valid(found) else None

    def is_valid(self, token: Token) -> bool:
        """Return whether a token is known and has not expired."""
        known = (*self._server_tokens, *self.read_stored())
        if token not in known or _has_expired(token, self._now()):
            return False
        if token.parent is None:
            return True
        return any(other.id == token.parent and not _has_expired(other, self._now()) for other in known)

    def sign_in(self, secret: str, kind: Literal["program", "code"]) -> IssuedToken | None:
        """Create a token for a browser, with the rights of a code or of a program's token. The code is used up."""
        with self._lock_file():
            stored, now = self._read(), self._now()
            source = _find_matching((*self._server_tokens, *stored), secret, kind)
            if source is None or not self.is_valid(source):
                return None
            is_stored = kind == "program" and source not in self._server_tokens
            until = add_seconds(now, BROWSER_SECONDS)
            issued = issue_token(
                source.scopes,
                source.projects,
                created=now,
                expires=min(until, source.expires) if is_stored and source.expires is not None else until,
                kind="browser",
                parent=source.id if is_stored else None,
                name=source.name,
            )
            others = [other for other in stored if other.kind == "browser" and other.parent == issued.token.parent]
            removed = {other.id for other in others[: max(0, len(others) + 1 - MAX_BROWSERS)]}
            if kind == "code":
                removed.add(source.id)
            self._write((*(other for other in stored if other.id not in removed), issued.token))
            return issued

    def create_share(
        self, creator: Token, session: str, *, branch: str | None, redact: bool, seconds: float
    ) -> IssuedToken:
        """Create a link that shows a session or a branch. It ends with its creator's token, and never outlives it."""
        now = self._now()
        until = add_seconds(now, seconds)
        issued = issue_token(
            ("read",),
            creator.projects,
            created=now,
            expires=until if creator.expires is None else min(until, creator.expires),
            kind="share",
            parent=None if creator in self._server_tokens else creator.root,
            name=creator.name,
        )
        share = structs.replace(issued.token, session=session, branch=branch, redact=redact)
        with self._lock_file():
            stored = self._read()
            if sum(token.session == session for token in stored) >= MAX_SHARES:
                raise InvalidOperation(f"the session has {MAX_SHARES} share links; revoke one first")
            self._write((*stored, share))
        return IssuedToken(secret=issued.secret, token=share)

    def list_shares(self, session: str) -> list[Token]:
        """Return the valid share links of a session."""
        stored = self.read_stored()
        return [
            token for token in stored if token.kind == "share" and token.session == session and self.is_valid(token)
        ]

    def read_stored(self) -> tuple[Token, ...]:
        """Return the tokens in the file. Raises `StoreError` if it is unreadable."""
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
            raise StoreError(self._file, f"cannot read the tokens: {error}") from error

    def add(self, token: Token) -> None:
        """Store a token in the file."""
        with self._lock_file():
            self._write((*self._read(), token))

    def revoke(self, id: str) -> Token:
        """Delete a token and the browser tokens that depend on it. Raises `NotFound`."""
        with self._lock_file():
            stored = self._read()
            found = next((token for token in stored if token.id == id), None)
            if found is None:
                raise NotFound("token", id)
            self._write([token for token in stored if token is not found and token.parent != id])
            return found

    @contextlib.contextmanager
    def _lock_file(self) -> Generator[None]:
        """Lock the file while it is changed. Otherwise, a revoked token could be written back."""
        make_private_directory(os.path.dirname(self._file))
        with FileLock(get_lock_path(self._file)):
            yield

    def _write(self, tokens: Iterable[Token]) -> None:
        """Write these tokens to the file, except for expired ones."""
        now = self._now()
        stored = [token for token in tokens if not _has_expired(token, now)]
        write_private(self._file, msgspec.json.format(msgspec.json.encode(stored)) + b"\n")


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
    """Return the path of the file with the token of the server on a port."""
    return os.path.join(get_home(), f"serve-{port}.token")


def get_address_path(port: int) -> str:
    """Return the path of the file with the address of the server on a port."""
    return os.path.join(get_home(), f"serve-{port}.address")


@contextlib.contextmanager
def announce_server(port: int, address: str) -> Generator[None]:
    """Announce the address of a running server to other commands.

    The file is locked as long as the process lives, so the file of a killed server is recognized as stale.
    """
    path = get_address_path(port)
    write_private(path, address.encode() + b"\n")
    try:
        with open(path, "rb") as file:
            lock_file(file.fileno(), path)
            yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def list_server_addresses() -> list[str]:
    """Return the addresses of all running servers of this home folder."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(get_home())):
            if name.startswith("serve-") and name.endswith(".address"):
                with (
                    contextlib.suppress(OSError, UnicodeDecodeError),
                    open_regular_file(os.path.join(get_home(), name)) as file,
                ):
                    if is_locked(file.fileno()):
                        found.append(file.read().decode().strip())
    return found


SHARE_PREFIX = "/share/"
SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
NEW_LINK_HINT = "get a new one with: sessiontree token link"


class Credential(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The credential of a sign-in: either a code or a token."""

    code: str | None = None
    token: str | None = None


def get_cookie_name(port: int) -> str:
    """Return the cookie name for a port. Cookies are shared by all ports of a host, so the name contains the port."""
    return f"sessiontree-{port}"


def sign_in(tokens: TokenStore, body: bytes) -> IssuedToken:
    """Create a token for a browser. Raises `ApiError`."""
    try:
        credential = msgspec.json.decode(body, type=Credential)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(422, f"sign-in needs a code or a token: {error}") from None
    if (credential.code is None) == (credential.token is None):
        raise ApiError(422, "sign-in needs a code or a token")
    if credential.code is not None:
        issued = tokens.sign_in(credential.code, "code")
        if issued is None:
            raise ApiError(401, f"this link has expired or was already used; {NEW_LINK_HINT}", code="used_link")
        return issued
    issued = tokens.sign_in(credential.token or "", "program")
    if issued is None:
        raise ApiError(401, "unknown, expired or revoked token")
    return issued


def build_cookie_header(port: int, secret: str, headers: Headers) -> tuple[bytes, bytes]:
    """Return the header that sets the cookie of a browser. An empty `secret` deletes the cookie."""
    is_tls = any(name == b"origin" and value.lower().startswith(b"https:") for name, value in headers)
    seconds = int(BROWSER_SECONDS) if secret else 0
    parts = [f"{get_cookie_name(port)}={secret}", "Path=/", f"Max-Age={seconds}", "HttpOnly", "SameSite=Strict"]
    return b"set-cookie", "; ".join([*parts, *(["Secure"] if is_tls else [])]).encode()


def read_session_cookie(headers: Headers, port: int) -> str | None:
    """Return the secret in the cookie of a request."""
    return read_cookie(headers, get_cookie_name(port))
