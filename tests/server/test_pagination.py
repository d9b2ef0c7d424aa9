"""Lists over HTTP come in pages, all of them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import sessiontree as st
from tests.server.conftest import ServerEnv


async def read_all_pages(client: httpx.AsyncClient, path: str, name: str, limit: int) -> list[Any]:
    """All items of a list, page by page."""
    found: list[Any] = []
    cursor: str | None = None
    while True:
        params = {"limit": limit} if cursor is None else {"limit": limit, "cursor": cursor}
        answer = (await client.get(path, params=params)).raise_for_status().json()
        assert len(answer[name]) <= limit
        found += answer[name]
        cursor = answer["next"]
        if cursor is None:
            return found


async def test_branches_come_in_pages(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        for name in ("one", "two", "three"):
            session.create_branch(name)

    branches = await read_all_pages(client, f"/api/sessions/{id}/branches", "branches", 2)

    assert [branch["name"] for branch in branches] == ["main", "one", "two", "three"]


async def test_swarms_their_agents_and_branches_come_in_pages(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    ids = [await env.create_swarm(session) for _ in range(3)]

    swarms = await read_all_pages(client, "/api/swarms", "swarms", 2)
    branches = await read_all_pages(client, f"/api/swarms/{ids[0]}/branches", "branches", 1)
    agents = await read_all_pages(client, f"/api/swarms/{ids[0]}/agents", "agents", 1)

    assert sorted(swarm["id"] for swarm in swarms) == sorted(ids)
    assert swarms == (await client.get("/api/swarms")).json()["swarms"]
    assert "main" in [branch["name"] for branch in branches]
    assert agents == (await client.get(f"/api/swarms/{ids[0]}")).json()["agents"]


async def test_experiments_come_in_pages(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    made = [env.create_experiment(id) for _ in range(3)]

    experiments = await read_all_pages(client, f"/api/sessions/{id}/experiments", "experiments", 2)

    assert [experiment["id"] for experiment in experiments] == made


@pytest.mark.parametrize("path", ["branches", "experiments"])
async def test_a_cursor_that_is_none_is_refused(env: ServerEnv, client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(f"/api/sessions/{env.create_session()}/{path}", params={"cursor": "x"})

    assert answer.status_code == 400
