"""Liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.postgres import Server
from tests.server.conftest import ServerEnv, build_auth_headers, open_client


@pytest.fixture
def killable_server() -> Iterator[Server]:
    """A separate server, to be killed."""
    server = Server()
    yield server
    server.stop()


async def test_a_server_is_ready_only_while_its_database_can_be_reached(
    env: ServerEnv, killable_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.server.app_state.READINESS_SECONDS", 0)
    monkeypatch.setattr("sessiontree.server.app_state.READINESS_TIMEOUT", 20)
    monkeypatch.setenv("SESSIONTREE_STORE", killable_server.new_database())
    async with open_client(env.build_app(), env.create_token("read")) as client:
        del client.headers["authorization"]
        owner = build_auth_headers(env.owner)
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ok"})
        assert (await client.get("/api/health", headers=owner)).json()["status"] == "ok"
        monkeypatch.setattr("sessiontree.server.app_state.READINESS_TIMEOUT", 1)
        killable_server.kill()

        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"status": "unavailable"})
        assert (await client.get("/livez")).json() == {"status": "ok"}
        assert (await client.get("/api/health", headers=owner)).json()["status"] == "unavailable"
        assert "sessiontree_ready 0" in (await client.get("/api/metrics", headers=owner)).text

        killable_server.start()
        async with asyncio.timeout(60):
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.05)


async def test_many_readiness_requests_share_one_check(env: ServerEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr("sessiontree.library.catalog.check_store_reachable", lambda: calls.append(None))
    async with open_client(env.build_app(), env.create_token("read")) as client:
        answers = await asyncio.gather(*(client.get("/readyz") for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(calls) == 1


async def test_metrics_are_in_the_format_of_prometheus_and_need_a_token_for_all_projects(env: ServerEnv) -> None:
    async with open_client(env.build_app(), env.create_token("read")) as client:
        await client.get("/api/nothing")
        answer = await client.get("/api/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'sessiontree_http_responses_total{status="404"} 1' in lines
    assert "sessiontree_ready 1" in lines
    assert all(line.startswith(("# HELP ", "# TYPE ", "sessiontree_")) for line in lines)

    async with open_client(env.build_app(), env.create_token("read", project=env.project)) as client:
        assert (await client.get("/api/metrics")).status_code == 403
        del client.headers["authorization"]
        assert (await client.get("/api/metrics")).status_code == 401
