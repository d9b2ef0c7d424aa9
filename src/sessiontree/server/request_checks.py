"""The guard: whether a request may come in at all. Decisions only: no sockets, no files, no clock of its own.

The name that a request was sent to is looked at before anything else. A page on the web can have its own name lead to
this machine, so a name that was not configured is refused whatever else the request carries. Where the request comes
from is compared with the same configuration, never with what the request says of itself.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from sessiontree.errors import InvalidOperation
from sessiontree.server.http_errors import ApiError

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
"""As a server hands them over, names in lower case."""

PAGE_HEADER = b"sessiontree-page"
"""Which page asks. Pages of other origins cannot send it."""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ALL_ADDRESSES = ("0.0.0.0", "::")
HOST_NAME = re.compile(r"([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.IGNORECASE)
"""A host as a browser names it, perhaps with a port."""
DEFAULT_PORTS = (80, 443)
"""Ports that browsers leave out."""


class ServerLimits(Struct, frozen=True, kw_only=True):
    """How much one server takes upon itself."""

    body: int = 16 << 20
    """Bytes of a request."""
    requests: int = 256
    """Under way at once."""
    streams: int = 256
    """Streams of events, of all tokens."""
    token_streams: int = 32
    """Streams of events of one token."""
    connections: int = 512
    rate: float = 200
    """Requests a second of one token, on average."""
    burst: int = 1000
    """Requests of one token at once, before the rate counts."""
    header_seconds: float = 10
    """Until the headers of a request must be there."""
    body_seconds: float = 30
    """Until its body must be there."""
    sessions: int = 64
    """Sessions that are held open."""
    idle_seconds: float = 600
    """Until a session that nobody asks for is closed."""
    exports: int = 2
    """Processes that make exports at once."""
    export_queue: int = 8
    """Exports that wait for one of them."""
    export_seconds: float = 600
    """Until an export is given up."""
    export_memory: int = 4 << 30
    """Bytes of memory that the process of an export may have."""
    export_size: int = 2 << 30
    """Bytes of an exported file."""
    export_retention_seconds: float = 600
    """Until an exported file that nobody fetches is thrown away."""
    event_buffer: int = 4 << 20
    """Bytes of events that are kept of a session for those who come late."""
    permission_seconds: float = 300
    """Until a question about a tool call that nobody answers is a no."""


class AllowedHosts(Struct, frozen=True, kw_only=True):
    """The names that this server goes by."""

    names: frozenset[str]
    """With the port, as a browser writes them."""
    port: int
    any_address: bool = False
    """It listens on all addresses, so any address in figures is one of its names: no page can have that lead here."""

    def is_allowed(self, host: str) -> bool:
        return host in self.names or (self.any_address and _is_ip_address(host, self.port))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def build_allowed_hosts(host: str, port: int, more: Iterable[str] = ()) -> AllowedHosts:
    """The names of a server that listens on `host`, and those that it is given, each for its own port or this one."""
    written = f"[{host}]" if ":" in host and not host.startswith("[") else host
    everywhere = host.strip("[]") in ALL_ADDRESSES
    names = {*LOOPBACK} if everywhere or is_loopback(host) else set[str]()
    if not everywhere:
        names.add(written.lower())
    named = [(name, port) for name in names]
    for given in map(HOST_NAME.fullmatch, more):
        if given is not None:
            named.append((given[1].lower(), int(given[2] or port)))
    known = {f"{name}:{at}" for name, at in named} | {name for name, at in named if at in DEFAULT_PORTS}
    return AllowedHosts(names=frozenset(known), port=port, any_address=everywhere)


def check_host_name(name: str) -> None:
    """Refuse a name that no request could carry. Raises `InvalidOperation`."""
    if HOST_NAME.fullmatch(name) is None:
        raise InvalidOperation(f"{name!r} is no name of a host: one is like tower.local, or tower.local:443")


def check_listen_host(host: str, *, allow_remote: bool) -> None:
    """Refuse to listen where others can reach it, unless that was said. Raises `InvalidOperation`."""
    if not allow_remote and not is_loopback(host):
        raise InvalidOperation(
            f"{host} can be reached from other machines: --allow-remote says that this is meant, "
            "and whoever has the token can then read and write your sessions"
        )


def check_headers(headers: Headers, hosts: AllowedHosts) -> None:
    """Raises `Refused` for a request to another name than ours, or from a page that is not ours."""
    named = [value for name, value in headers if name == b"host"]
    if len(named) != 1:
        raise ApiError(400, "a request names one host")
    host = _decode_header(named[0])
    if not hosts.is_allowed(host):
        raise ApiError(403, "this server does not go by that name", code="bad_host")
    for value in (value for name, value in headers if name == b"origin"):
        scheme, _, origin = _decode_header(value).partition("://")
        # Where any address is ours, another machine's is no origin of ours for that: only the one that was asked.
        if scheme not in ("http", "https") or origin not in {*hosts.names, host}:
            raise ApiError(403, "pages of other origins are not answered", code="bad_origin")


def check_content_headers(headers: Headers, limit: int) -> None:
    """Raises `Refused` for a body that is no JSON or says that it is too long."""
    kinds = [value for name, value in headers if name == b"content-type"]
    if len(kinds) != 1 or _decode_header(kinds[0]).partition(";")[0].strip() != "application/json":
        raise ApiError(415, "the content type is application/json")
    length = next((value for name, value in headers if name == b"content-length"), b"0")
    if not length.isdigit():
        raise ApiError(400, "the length of the content is a number")
    if int(length[:20]) > limit:
        raise make_too_large_error(limit)


def make_too_large_error(limit: int) -> ApiError:
    return ApiError(413, f"a request has {limit:,} bytes at most")


def read_bearer_token(headers: Headers) -> str | None:
    """The token that a request carries."""
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1:
        return None
    scheme, _, token = given[0].decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def read_cookie(headers: Headers, name: str) -> str | None:
    """The value of a cookie that a request carries."""
    for key, value in headers:
        if key == b"cookie":
            for part in value.decode("latin-1").split(";"):
                given, equals, said = part.strip().partition("=")
                if equals and given == name:
                    return said
    return None


def check_same_origin(headers: Headers, *, writes: bool) -> None:
    """Raises `Refused` for a request with a cookie that another page may have had the browser send.

    A cookie goes along with whatever asks, and pages on other ports of this machine count as the same site. So the
    browser must say that our page asks, or, for a change, the request carry an origin, which is ours if it came so
    far, or the header that our page adds and no other page can.
    """
    sites = [_decode_header(value) for name, value in headers if name == b"sec-fetch-site"]
    if any(site not in ("same-origin", "none") for site in sites):
        raise ApiError(403, "pages of other origins are not answered", code="bad_origin")
    named = {name for name, _ in headers}
    if writes and "same-origin" not in sites and not named & {b"origin", PAGE_HEADER}:
        raise ApiError(403, "a change by cookie must come from the page of this server", code="bad_origin")


class RateLimiter:
    """How fast somebody may ask: `burst` at once, and `rate` a second on average."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._updated = now

    def try_acquire(self, now: float) -> bool:
        """Whether one more may be asked now."""
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._rate)
        self._updated = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def _decode_header(value: bytes) -> str:
    return value.decode("latin-1").strip().lower()


def _is_ip_address(host: str, port: int) -> bool:
    name, colon, said = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, said = host, "80"
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return said == str(port)
