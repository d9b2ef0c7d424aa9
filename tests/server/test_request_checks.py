"""Request checks: host names, origins, bodies, tokens and rate limits."""

from __future__ import annotations

import pytest

from sessiontree.errors import InvalidOperation
from sessiontree.server.http_errors import ApiError
from sessiontree.server.request_checks import (
    RateLimiter,
    build_allowed_hosts,
    check_content_headers,
    check_headers,
    check_host_name,
    check_listen_host,
    is_loopback,
    read_bearer_token,
)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.2"])
def test_a_loopback_host_needs_no_permission(host: str) -> None:
    assert is_loopback(host)
    check_listen_host(host, allow_remote=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "10.0.0.1", "fe80::1", ""])
def test_a_public_host_must_be_allowed_explicitly(host: str) -> None:
    with pytest.raises(InvalidOperation, match="--allow-remote"):
        check_listen_host(host, allow_remote=False)

    check_listen_host(host, allow_remote=True)


def is_allowed(host: str, **options: str) -> bool:
    hosts = build_allowed_hosts(
        options.get("on", "127.0.0.1"), int(options.get("port", 7373)), [*options.get("more", "").split()]
    )
    try:
        check_headers([(b"host", host.encode())], hosts)
    except ApiError:
        return False
    return True


def test_a_server_on_loopback_accepts_loopback_names() -> None:
    assert all(is_allowed(f"{name}:7373") for name in ("127.0.0.1", "localhost", "[::1]", "Localhost"))
    assert not any(is_allowed(name) for name in ("127.0.0.1:7374", "127.0.0.1", "localhost", "evil.example:7373"))


def test_a_server_on_all_addresses_accepts_ip_addresses_and_given_names() -> None:
    for on in ("0.0.0.0", "::"):
        assert is_allowed("192.168.1.5:7373", on=on)
        assert is_allowed("[fe80::1]:7373", on=on)
        assert is_allowed("tower.local:7373", on=on, more="tower.local")
        assert not is_allowed("evil.example:7373", on=on)
        assert not is_allowed("192.168.1.5:80", on=on)
        assert not is_allowed("192.168.1.5.evil.example:7373", on=on)


def test_a_server_on_one_address_accepts_only_that_address() -> None:
    assert is_allowed("192.168.1.5:7373", on="192.168.1.5")
    assert not is_allowed("192.168.1.6:7373", on="192.168.1.5")
    assert not is_allowed("localhost:7373", on="192.168.1.5")


def test_a_name_may_have_another_port_behind_a_proxy() -> None:
    for more in ("tower.example:443", "Tower.example:80"):
        assert is_allowed("tower.example", more=more)
        assert is_allowed(f"tower.example:{more.rpartition(':')[2]}", more=more)
        assert not is_allowed("tower.example:7373", more=more)
    assert is_allowed("tower.example:8080", more="tower.example:8080")
    assert is_allowed("[fe80::1]:8443", more="[fe80::1]:8443")
    assert not is_allowed("tower.example", more="tower.example:8080")
    assert not is_allowed("tower.example", more="tower.example")
    check_headers(
        [(b"host", b"tower.example"), (b"origin", b"https://tower.example")],
        build_allowed_hosts("127.0.0.1", 7373, ["tower.example:443"]),
    )


@pytest.mark.parametrize("name", ["", "http://tower.local", "tower.local/", "two names", "tower:", "tower:port", "::1"])
def test_a_name_that_cannot_be_a_host_header_is_refused(name: str) -> None:
    with pytest.raises(InvalidOperation, match="invalid host name"):
        check_host_name(name)


def test_the_default_port_may_be_omitted() -> None:
    assert is_allowed("localhost", port="80")
    assert is_allowed("localhost:80", port="80")


@pytest.mark.parametrize(
    ("origin", "lets"),
    [
        ("http://127.0.0.1:7373", True),
        ("http://localhost:7373", True),
        ("null", False),
        ("http://evil.example", False),
        ("http://localhost:7373.evil.example", False),
        ("ftp://localhost:7373", False),
        ("localhost:7373", False),
    ],
)
def test_the_origin_of_a_request_must_be_one_of_our_names(origin: str, lets: bool) -> None:
    headers = [(b"host", b"localhost:7373"), (b"origin", origin.encode())]
    if lets:
        check_headers(headers, build_allowed_hosts("127.0.0.1", 7373))
    else:
        with pytest.raises(ApiError):
            check_headers(headers, build_allowed_hosts("127.0.0.1", 7373))


def test_on_all_addresses_a_page_of_another_machine_is_a_foreign_origin() -> None:
    everywhere = build_allowed_hosts("0.0.0.0", 7373)
    check_headers([(b"host", b"192.168.1.5:7373"), (b"origin", b"http://192.168.1.5:7373")], everywhere)
    with pytest.raises(ApiError):
        check_headers([(b"host", b"192.168.1.5:7373"), (b"origin", b"http://192.168.1.66:7373")], everywhere)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, None),
        ({"content-type": "application/json; charset=utf-8", "content-length": "10"}, None),
        ({"content-type": "APPLICATION/JSON"}, None),
        ({}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/jsonp"}, 415),
        ({"content-type": "application/json", "content-length": "11"}, 413),
        ({"content-type": "application/json", "content-length": "9" * 40}, 413),
        ({"content-type": "application/json", "content-length": "-1"}, 400),
    ],
)
def test_bodies_are_json_and_not_too_long(headers: dict[str, str], status: int | None) -> None:
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    if status is None:
        check_content_headers(given, 10)
    else:
        with pytest.raises(ApiError) as refused:
            check_content_headers(given, 10)
        assert refused.value.status == status


@pytest.mark.parametrize(
    ("values", "token"),
    [
        (["Bearer abc"], "abc"),
        (["bearer abc"], "abc"),
        (["Basic abc"], None),
        (["Bearer "], None),
        (["abc"], None),
        ([], None),
        (["Bearer abc", "Bearer def"], None),
    ],
)
def test_a_token_comes_in_exactly_one_header(values: list[str], token: str | None) -> None:
    assert read_bearer_token([(b"authorization", value.encode()) for value in values]) == token


def test_the_rate_limit_has_a_burst_and_a_rate() -> None:
    bucket = RateLimiter(rate=2, burst=3, now=0)

    assert [bucket.try_acquire(0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.try_acquire(1) for _ in range(3)] == [True, True, False]
    assert [bucket.try_acquire(100) for _ in range(4)] == [True, True, True, False]
