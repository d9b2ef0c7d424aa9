"""Middleware: limits, errors as JSON, and response headers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from sessiontree.home import get_home
from sessiontree.library import catalog
from sessiontree.server.request_checks import ServerLimits
from sessiontree.store.file_operations import make_private_directory, write_private
from tests.server.conftest import ServerEnv, build_auth_headers, open_client

JSON = {"content-type": "application/json"}


def build_limits(**limits: Any) -> ServerLimits:
    return ServerLimits(**{"rate": 1e6, "burst": 1_000_000, **limits})


def read_error(answer: httpx.Response) -> tuple[int, str]:
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"code", "message"}
    return answer.status_code, answer.json()["error"]["code"]


async def test_the_limit_of_a_body_is_exact(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=build_limits(body=1000))
    async with open_client(env.build_app(), env.owner) as client:
        path = f"/api/sessions/{env.create_session()}/entries"
        start, end = b'{"role":"user","text":"', b'"}'
        exact = start + b"x" * (1000 - len(start) - len(end)) + end

        fits = await client.post(path, content=exact, headers=JSON)
        over = await client.post(path, content=exact + b" ", headers=JSON)

        async def parts(body: bytes) -> AsyncIterator[bytes]:  # its length is unknown
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        fits_too = await client.post(path, content=parts(exact), headers=JSON)
        over_too = await client.post(path, content=parts(exact + b" "), headers=JSON)

    assert (fits.status_code, fits_too.status_code) == (201, 201)
    assert read_error(over) == (413, "too_large")
    assert read_error(over_too) == (413, "too_large")


async def test_a_missing_body_times_out(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=build_limits(body_seconds=0.05))
    async with open_client(env.build_app(), env.owner) as client:

        async def stalled() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(60)

        answer = await client.post(f"/api/sessions/{env.create_session()}/undo", content=stalled(), headers=JSON)

    assert read_error(answer) == (408, "too_slow")


async def test_the_rate_limit_applies_to_each_token_separately(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=ServerLimits(rate=0.001, burst=5))
    other = env.create_token("read")
    async with open_client(env.build_app(), env.owner) as client:
        answers = [await client.get("/api/health") for _ in range(7)]
        free = await client.get("/api/health", headers=build_auth_headers(other))
        strangers = [await client.get("/api/health", headers=build_auth_headers("wrong")) for _ in range(7)]

    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert read_error(answers[-1]) == (429, "too_many")
    assert answers[-1].headers["retry-after"] == "1"
    assert free.status_code == 200
    assert [answer.status_code for answer in strangers] == [401] * 5 + [429] * 2


async def test_the_number_of_concurrent_requests_is_limited(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=build_limits(requests=2, body_seconds=20))
    gate = asyncio.Event()

    async def late() -> AsyncIterator[bytes]:
        await gate.wait()
        yield b"{}"

    async with open_client(env.build_app(), env.owner) as client:
        path = f"/api/sessions/{env.create_session()}/undo"
        waiting = [asyncio.create_task(client.post(path, content=late(), headers=JSON)) for _ in range(2)]
        async with asyncio.timeout(60):
            while (third := await client.get("/api/nothing")).status_code == 404:
                await asyncio.sleep(0)
        assert [(await client.get(path)).status_code for path in ("/livez", "/readyz")] == [200, 200]
        gate.set()
        answers = await asyncio.gather(*waiting)
        after = await client.get("/api/health")

    assert read_error(third) == (429, "too_many")
    assert [answer.status_code for answer in answers] == [409, 409]
    assert after.status_code == 200


async def test_unknown_addresses_and_methods_get_json_errors(env: ServerEnv, client: httpx.AsyncClient) -> None:
    assert read_error(await client.get("/api/nothing")) == (404, "not_found")
    assert read_error(await client.get("/nothing")) == (404, "not_found")
    assert read_error(await client.delete("/api/health")) == (405, "method_not_allowed")
    assert read_error(await client.put("/api/health", json={})) == (405, "method_not_allowed")
    assert read_error(await client.get("/api/sessions/x/tree?limit=nonsense")) == (422, "invalid")


async def test_invalid_json_and_invalid_fields_have_different_errors(env: ServerEnv, client: httpx.AsyncClient) -> None:
    path = f"/api/sessions/{env.create_session()}/branches"

    assert read_error(await client.post(path, content=b"{", headers=JSON)) == (400, "bad_request")
    assert read_error(await client.post(path, content=b"", headers=JSON)) == (400, "bad_request")
    assert read_error(await client.post(path, content=b"\xff", headers=JSON)) == (400, "bad_request")
    deep = b'{"entry":{"type":' + b"[" * 100_000
    assert read_error(await client.post(path.replace("branches", "entries"), content=deep, headers=JSON))[0] in (
        400,
        422,
    )
    assert read_error(await client.post(path, json={})) == (422, "invalid")
    assert read_error(await client.post(path, json={"name": 1})) == (422, "invalid")
    assert read_error(await client.post(path, json={"name": "x", "more": 1})) == (422, "invalid")


async def test_internal_errors_are_logged_and_not_disclosed(
    env: ServerEnv, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr(catalog, "sessions", broken)
    with caplog.at_level(logging.ERROR):
        answer = await client.get("/api/sessions")

    assert read_error(answer) == (500, "internal")
    assert "secret reason" not in answer.text
    assert "Traceback" not in answer.text
    assert "the secret reason" in caplog.text
    assert env.owner.secret not in caplog.text


async def test_every_response_has_security_headers(client: httpx.AsyncClient) -> None:
    for path in ("/api/health", "/api/nothing", "/nothing"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")


async def test_a_websocket_is_closed(env: ServerEnv) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await env.build_app()({"type": "websocket", "path": "/api", "headers": []}, receive, send)

    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_unreadable_tokens_refuse_everyone_without_naming_files(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    make_private_directory(get_home())
    write_private(os.path.join(get_home(), "tokens.json"), b"{")

    for headers in (build_auth_headers(env.owner), build_auth_headers("wrong")):
        answer = await client.get("/api/health", headers=headers)
        assert read_error(answer) == (500, "internal")
        assert "tokens.json" not in answer.text
