"""Checks of host names, origins, tokens and limits. They use no sockets, files or clocks.

A page on the web can make its own host name resolve to this machine. Therefore requests to unknown host names are
refused first, whatever else they carry, and origins are compared with the configuration, not with the request.
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
"""Pairs of names and values as in ASGI; names are in lower case."""

PAGE_HEADER = b"sessiontree-page"
"""Identifies the page of a request. Pages of other origins cannot send this header."""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
ALL_ADDRESSES = ("0.0.0.0", "::")
HOST_NAME = re.compile(r"([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.IGNORECASE)
"""A host as browsers write it, optionally with a port."""
DEFAULT_PORTS = (80, 443)
"""Ports that browsers omit."""


class ServerLimits(Struct, frozen=True, kw_only=True):
    """The limits of a server."""

    body: int = 16 << 20
    """Maximum bytes of a request body."""
    requests: int = 256
    """Maximum concurrent requests."""
    streams: int = 256
    """Maximum event streams of all tokens."""
    token_streams: int = 32
    """Maximum event streams of one token."""
    connections: int = 512
    rate: float = 200
    """Average requests per second of one token."""
    burst: int = 1000
    """Requests of one token that may exceed the average rate."""
    header_seconds: float = 10
    """Timeout for the headers of a request."""
    body_seconds: float = 30
    """Timeout for the body of a request."""
    sessions: int = 64
    """Maximum open sessions that are not in use."""
    idle_seconds: float = 600
    """Idle time after which a session is closed."""
    exports: int = 2
    """Maximum concurrent export processes."""
    export_queue: int = 8
    """Maximum queued exports."""
    export_seconds: float = 600
    """Timeout of an export."""
    export_memory: int = 4 << 30
    """Maximum bytes of memory of an export process."""
    export_size: int = 2 << 30
    """Maximum bytes of an exported file."""
    export_retention_seconds: float = 600
    """How long an exported file is kept."""
    event_buffer: int = 4 << 20
    """Bytes of live events that are buffered per session for clients that reconnect."""
    permission_seconds: float = 300
    """Time after which an unanswered permission question counts as denied."""


class AllowedHosts(Struct, frozen=True, kw_only=True):
    """The host names of this server."""

    names: frozenset[str]
    """Including the port, as browsers write them."""
    port: int
    any_address: bool = False
    """It listens on all addresses, so any IP address is allowed: a web page cannot redirect one to this machine."""

    def is_allowed(self, host: str) -> bool:
        return host in self.names or (self.any_address and _is_ip_address(host, self.port))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def build_allowed_hosts(host: str, port: int, extra: Iterable[str] = ()) -> AllowedHosts:
    """Return the host names of a server on `host`, and `extra` names that may have their own ports."""
    address = f"[{host}]" if ":" in host and not host.startswith("[") else host
    any_address = host.strip("[]") in ALL_ADDRESSES
    names = {*LOOPBACK} if any_address or is_loopback(host) else set[str]()
    if not any_address:
        names.add(address.lower())
    names_and_ports = [(name, port) for name in names]
    for match in map(HOST_NAME.fullmatch, extra):
        if match is not None:
            names_and_ports.append((match[1].lower(), int(match[2] or port)))
    known = {f"{name}:{at}" for name, at in names_and_ports} | {
        name for name, at in names_and_ports if at in DEFAULT_PORTS
    }
    return AllowedHosts(names=frozenset(known), port=port, any_address=any_address)


def check_host_name(name: str) -> None:
    """Raises `InvalidOperation` for an invalid host name."""
    if HOST_NAME.fullmatch(name) is None:
        raise InvalidOperation(f"invalid host name {name!r}; write it like tower.local or tower.local:443")


def check_listen_host(host: str, *, allow_remote: bool) -> None:
    """Raises `InvalidOperation` for an address that other machines can reach, unless `allow_remote` is set."""
    if not allow_remote and not is_loopback(host):
        raise InvalidOperation(
            f"other machines can reach {host}, and anyone with the token can read and write your sessions; "
            "add --allow-remote to allow this"
        )


def check_headers(headers: Headers, hosts: AllowedHosts) -> None:
    """Raises `ApiError` for a request to an unknown host name or from a page of another origin."""
    host_headers = [value for name, value in headers if name == b"host"]
    if len(host_headers) != 1:
        raise ApiError(400, "a request needs exactly one Host header")
    host = _decode_header(host_headers[0])
    if not hosts.is_allowed(host):
        raise ApiError(403, "unknown host name; use one that the server was started with", code="bad_host")
    for value in (value for name, value in headers if name == b"origin"):
        scheme, _, origin = _decode_header(value).partition("://")
        # If any address is allowed, only the one this request was sent to is an allowed origin.
        if scheme not in ("http", "https") or origin not in {*hosts.names, host}:
            raise ApiError(403, "requests from pages of other origins are refused", code="bad_origin")


def check_content_headers(headers: Headers, limit: int) -> None:
    """Raises `ApiError` if the content type is not JSON or the content length exceeds the limit."""
    content_types = [value for name, value in headers if name == b"content-type"]
    if len(content_types) != 1 or _decode_header(content_types[0]).partition(";")[0].strip() != "application/json":
        raise ApiError(415, "the content type must be application/json")
    length = next((value for name, value in headers if name == b"content-length"), b"0")
    if not length.isdigit():
        raise ApiError(400, "the content length must be a number")
    if int(length[:20]) > limit:
        raise make_too_large_error(limit)


def make_too_large_error(limit: int) -> ApiError:
    return ApiError(413, f"the request is too large; the limit is {limit:,} bytes")


def read_bearer_token(headers: Headers) -> str | None:
    """Return the bearer token of a request."""
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, token = values[0].decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def read_cookie(headers: Headers, name: str) -> str | None:
    """Return the value of a cookie."""
    for header, cookies in headers:
        if header == b"cookie":
            for part in cookies.decode("latin-1").split(";"):
                cookie_name, equals, content = part.strip().partition("=")
                if equals and cookie_name == name:
                    return content
    return None


def check_same_origin(headers: Headers, *, writes: bool) -> None:
    """Raises `ApiError` if another page may have made the browser send this request with its cookie.

    Browsers attach the cookie to every request, and pages on other ports of this machine count as the same site. So
    `Sec-Fetch-Site` must name our own page. A write without that header needs an `Origin` header, which was checked
    before, or the header that only our page can send.
    """
    sites = [_decode_header(value) for name, value in headers if name == b"sec-fetch-site"]
    if any(site not in ("same-origin", "none") for site in sites):
        raise ApiError(403, "requests from pages of other origins are refused", code="bad_origin")
    header_names = {name for name, _ in headers}
    if writes and "same-origin" not in sites and not header_names & {b"origin", PAGE_HEADER}:
        raise ApiError(403, "writes with a cookie must come from the page of this server", code="bad_origin")


class RateLimiter:
    """Allows `burst` requests at once and `rate` requests per second on average."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._updated = now

    def try_acquire(self, now: float) -> bool:
        """Return whether another request is allowed now, and count it."""
        self._tokens = min(self._burst, self._tokens + (now - self._updated) * self._rate)
        self._updated = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def _decode_header(value: bytes) -> str:
    return value.decode("latin-1").strip().lower()


def _is_ip_address(host: str, port: int) -> bool:
    name, colon, host_port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, host_port = host, "80"
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return host_port == str(port)
