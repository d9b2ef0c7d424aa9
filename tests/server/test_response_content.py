"""Lists are paginated. Texts are rendered as HTML once, without blocking the session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from msgspec import UNSET

import sessiontree as st
from sessiontree.server import response_content
from sessiontree.server.response_content import HtmlCache
from tests.server.conftest import ServerEnv, build_auth_headers, run_server
from tests.server.sse import read_until


async def read_all_pages(client: httpx.AsyncClient, path: str, name: str, limit: int) -> list[Any]:
    """Return all items of a list, read page by page."""
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


async def test_branches_are_paginated(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        for name in ("one", "two", "three"):
            session.create_branch(name)

    branches = await read_all_pages(client, f"/api/sessions/{id}/branches", "branches", 2)

    assert [branch["name"] for branch in branches] == ["main", "one", "two", "three"]


async def test_swarms_agents_and_their_branches_are_paginated(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    ids = [await env.create_swarm(session) for _ in range(3)]

    swarms = await read_all_pages(client, "/api/swarms", "swarms", 2)
    branches = await read_all_pages(client, f"/api/swarms/{ids[0]}/branches", "branches", 1)
    agents = await read_all_pages(client, f"/api/swarms/{ids[0]}/agents", "agents", 1)

    assert sorted(swarm["id"] for swarm in swarms) == sorted(ids)
    assert swarms == (await client.get("/api/swarms")).json()["swarms"]
    assert "main" in [branch["name"] for branch in branches]
    assert agents == (await client.get(f"/api/swarms/{ids[0]}")).json()["agents"]


async def test_experiments_are_paginated(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    made = [env.create_experiment(id) for _ in range(3)]

    experiments = await read_all_pages(client, f"/api/sessions/{id}/experiments", "experiments", 2)

    assert [experiment["id"] for experiment in experiments] == made


@pytest.mark.parametrize("path", ["branches", "experiments"])
async def test_an_invalid_cursor_is_refused(env: ServerEnv, client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(f"/api/sessions/{env.create_session()}/{path}", params={"cursor": "x"})

    assert answer.status_code == 400


# HTML


class SlowRenderer:
    """Renders texts. The text `slow` waits until the test releases it."""

    def __init__(self, render: Callable[[str], str]) -> None:
        self._render = render
        self.started, self.resume = threading.Event(), threading.Event()

    def __call__(self, words: str) -> str:
        if words == "slow":
            self.started.set()
            assert self.resume.wait(20)
        return self._render(words)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowRenderer:
    made = SlowRenderer(response_content.render_html)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(response_content, "render_html", made)
    return made


@pytest.fixture
async def live_client(env: ServerEnv) -> AsyncIterator[httpx.AsyncClient]:
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=10) as client:
            yield client


def test_rendered_texts_are_cached_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_content, "MAX_CACHED_CHARACTERS", 25)
    made: list[str] = []

    def render(words: str) -> str:
        made.append(words)
        return words * 2

    monkeypatch.setattr(response_content, "render_html", render)
    rendered = HtmlCache()

    for words in ("aaaa", "aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
        assert rendered.render(words) == words * 2

    assert made == ["aaaa", "bbbb", "cccc", "bbbb"], "the one that was asked for longest ago makes room"


def test_a_text_that_is_too_long_is_not_rendered() -> None:
    longest = "x" * response_content.MAX_RENDERED_LENGTH

    assert HtmlCache().render(longest) == f"<p>{longest}</p>\n"
    assert HtmlCache().render(f"{longest}x") is UNSET


async def test_writers_do_not_wait_until_a_path_is_rendered(
    env: ServerEnv, live_client: httpx.AsyncClient, slow: SlowRenderer
) -> None:
    session = env.create_session()
    with st.open(session) as opened:
        opened.head.append(st.user("slow"))
    path = f"/api/sessions/{session}"

    reading = asyncio.create_task(live_client.get(f"{path}/path", params={"html": True}))
    try:
        assert await asyncio.to_thread(slow.started.wait, 10)
        written = await live_client.post(f"{path}/entries", json={"role": "user", "text": "meanwhile"})
    finally:
        slow.resume.set()
    page = await reading
    again = await live_client.get(f"{path}/path", params={"html": True})

    assert written.status_code == 201
    assert page.json()["entries"][-1]["html"] == "<p>slow</p>\n"
    assert page.headers["etag"] != written.headers["etag"], "the response has the position of the session at that time"
    assert [row["text"] for row in again.json()["entries"]][-2:] == ["slow", "meanwhile"]


async def test_writers_do_not_wait_until_an_event_is_rendered(
    env: ServerEnv, live_client: httpx.AsyncClient, slow: SlowRenderer
) -> None:
    session = env.create_session()
    path = f"/api/sessions/{session}"
    etag = (await live_client.get(path)).headers["etag"]

    def is_last(event: object) -> bool:
        return "meanwhile" in str(event)

    listening = asyncio.create_task(read_until(live_client, f"{path}/events", is_last, after=etag))
    try:
        await live_client.post(f"{path}/entries", json={"role": "user", "text": "slow"})
        assert await asyncio.to_thread(slow.started.wait, 10)
        written = await live_client.post(f"{path}/entries", json={"role": "user", "text": "meanwhile"})
    finally:
        slow.resume.set()
    heard = await listening

    assert written.status_code == 201
    told = [event.data["entry"] for event in heard if event.kind == "entry"]
    assert [(row["text"], row["html"]) for row in told] == [
        ("slow", "<p>slow</p>\n"),
        ("meanwhile", "<p>meanwhile</p>\n"),
    ]
