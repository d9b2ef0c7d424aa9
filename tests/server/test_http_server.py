"""The HTTP server: addresses, slow clients and shutdown."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import httpx
import pytest

from sessiontree.errors import InvalidOperation
from sessiontree.server.http_server import bind_socket
from sessiontree.server.request_checks import ServerLimits
from tests.server.conftest import ServerEnv, build_auth_headers, run_server
from tests.server.sse import read_events


def build_limits(**limits: Any) -> ServerLimits:
    return ServerLimits(**{"rate": 1e6, "burst": 1_000_000, **limits})


def connect(base: str) -> socket.socket:
    host, port = base.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "[::1]", "localhost"])
def test_the_server_listens_only_on_the_given_address(host: str) -> None:
    listening = bind_socket(host, 0)
    try:
        address = listening.getsockname()[0]
        assert address in ("127.0.0.1", "::1")
        assert listening.proto == socket.IPPROTO_TCP, "asyncio would not send small answers at once"
    finally:
        listening.close()


def test_a_port_in_use_is_reported() -> None:
    first = bind_socket("127.0.0.1", 0)
    port = first.getsockname()[1]
    try:
        with pytest.raises(InvalidOperation, match=f"port {port} on 127.0.0.1 is in use"):
            bind_socket("127.0.0.1", port)
    finally:
        first.close()


def test_a_foreign_address_is_reported() -> None:
    with pytest.raises(InvalidOperation, match=r"cannot listen on 192\.0\.2\.1"):
        bind_socket("192.0.2.1", 0)


def test_unfinished_headers_time_out(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=build_limits(header_seconds=0.2))
    with run_server(env) as base:
        silent, slow, second = connect(base), connect(base), connect(base)
        slow.sendall(b"GET /api/health HTTP/1.1\r\nHost: x")
        second.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        while b"unknown host name" not in (answer := second.recv(1 << 16)):
            assert answer
        second.sendall(b"GET /api/health HTTP/1.1\r\nHost")
        for one in (silent, slow, second):
            assert one.recv(1 << 16) == b"", "the connection is not closed"
            one.close()


def test_a_slow_response_does_not_count_as_unfinished_headers(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=build_limits(header_seconds=1))
    id = env.create_session()
    with (
        run_server(env) as base,
        httpx.Client(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client,
        client.stream("GET", f"/api/sessions/{id}/events") as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == ": listening"
        time.sleep(1.2)  # longer than the limit for headers
        client.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": "late"})
        assert any("late" in line for line in lines)


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nx: \0\r\n\r\n", b"x" * 66_000]
)
def test_invalid_http_gets_a_json_error(env: ServerEnv, data: bytes) -> None:
    with run_server(env) as base:
        one = connect(base)
        one.sendall(data)
        answer = b""
        while part := one.recv(1 << 16):
            answer += part
        one.close()

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["code"] == "bad_request"


def test_the_server_responds_despite_many_idle_connections(env: ServerEnv) -> None:
    with run_server(env) as base:
        idle = [connect(base) for _ in range(100)]
        assert httpx.get(f"{base}/api/health", headers=build_auth_headers(env.owner)).status_code == 200
        for one in idle:
            one.close()


def test_idle_connections_do_not_block_new_ones(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=build_limits(connections=3))
    with run_server(env) as base:
        idle = [connect(base) for _ in range(5)]
        status = httpx.get(f"{base}/api/health", headers=build_auth_headers(env.owner)).status_code
        for one in idle:
            one.close()

    assert status == 200


def test_connections_above_the_limit_get_a_json_error(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=build_limits(connections=2))
    id = env.create_session()
    with (
        run_server(env) as base,
        httpx.Client(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client,
        client.stream("GET", f"/api/sessions/{id}/events") as one,
        client.stream("GET", f"/api/sessions/{id}/events") as two,
    ):
        lines = [one.iter_lines(), two.iter_lines()]  # a stream ends when its reader is closed
        assert [next(line) for line in lines] == [": listening"] * 2
        answer = client.get("/api/health")

    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "too_many"
    assert answer.headers["content-type"] == "application/json"


async def test_the_server_stops_while_clients_listen_and_agents_run(tmp_path: Any) -> None:
    from sessiontree.model.scripted import Delay

    env = ServerEnv(tmp_path, ["Begun", Delay(600)])
    id = env.create_session()
    heard: list[str] = []
    began = 0.0
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            await client.post(f"/api/sessions/{id}/prompt", json={"text": "Go"})
            etag = (await client.get(f"/api/sessions/{id}")).headers["etag"]
            async with asyncio.timeout(60), client.stream("GET", f"/api/sessions/{id}/events?after={etag}") as answer:
                async for event in read_events(answer.aiter_lines()):
                    heard.append(event.kind)
                    if event.kind == "head":
                        break
                began = time.monotonic()
    assert time.monotonic() - began < 120
    assert "head" in heard
