"""Signing in: how a browser comes by its cookie, and loses it.

A link carries a code in its fragment, which no browser sends to a server. The page exchanges it, once, for a cookie
that scripts cannot read and that is sent along only from our own page. New tabs have it too, and it outlives the
server: it is a token of the kind `browser` in `tokens.json`. A token of a program can be exchanged as well.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from sessiontree.server.auth import BROWSER_SECONDS, IssuedToken, TokenStore
from sessiontree.server.http_errors import ApiError
from sessiontree.server.request_checks import Headers, read_cookie

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
