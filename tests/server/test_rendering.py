"""Rendering: texts as HTML, kept for who asks next, and made while nobody has to wait for the session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from msgspec import UNSET

import sessiontree as st
from sessiontree.server import rendering
from sessiontree.server.rendering import HtmlCache
from tests.server.conftest import ServerEnv, build_auth_headers, run_server
from tests.server.sse import read_until


class SlowRenderer:
    """Rendering of the text `slow`, which takes until it is let go on."""

    def __init__(self, render: Callable[[str], str]) -> None:
        self._render = render
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, words: str) -> str:
        if words == "slow":
            self.begun.set()
            assert self.go_on.wait(20)
        return self._render(words)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowRenderer:
    made = SlowRenderer(rendering._render_html)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(rendering, "_render_html", made)
    return made


@pytest.fixture
async def client(env: ServerEnv) -> AsyncIterator[httpx.AsyncClient]:
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=10) as client:
            yield client


def test_texts_are_rendered_once_and_only_so_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "MAX_CACHED_CHARACTERS", 25)
    made: list[str] = []

    def render(words: str) -> str:
        made.append(words)
        return words * 2

    monkeypatch.setattr(rendering, "_render_html", render)
    rendered = HtmlCache()

    for words in ("aaaa", "aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
        assert rendered.render(words) == words * 2

    assert made == ["aaaa", "bbbb", "cccc", "bbbb"], "the one that was asked for longest ago makes room"


def test_a_text_that_is_too_long_is_not_rendered() -> None:
    assert HtmlCache().render("x" * rendering.MAX_RENDERED_LENGTH) == f"<p>{'x' * rendering.MAX_RENDERED_LENGTH}</p>\n"
    assert HtmlCache().render("x" * (rendering.MAX_RENDERED_LENGTH + 1)) is UNSET


async def test_writers_do_not_wait_until_a_path_is_rendered(
    env: ServerEnv, client: httpx.AsyncClient, slow: SlowRenderer
) -> None:
    session = env.create_session()
    with st.open(session) as opened:
        opened.head.append(st.user("slow"))
    path = f"/api/sessions/{session}"

    reading = asyncio.create_task(client.get(f"{path}/path", params={"html": True}))
    try:
        assert await asyncio.to_thread(slow.begun.wait, 10)
        written = await client.post(f"{path}/entries", json={"role": "user", "text": "meanwhile"})
    finally:
        slow.go_on.set()
    page = await reading
    again = await client.get(f"{path}/path", params={"html": True})

    assert written.status_code == 201
    assert page.json()["entries"][-1]["html"] == "<p>slow</p>\n"
    assert page.headers["etag"] != written.headers["etag"], "it tells how far the session was then"
    assert [row["text"] for row in again.json()["entries"]][-2:] == ["slow", "meanwhile"]


async def test_writers_do_not_wait_until_an_event_is_rendered(
    env: ServerEnv, client: httpx.AsyncClient, slow: SlowRenderer
) -> None:
    session = env.create_session()
    path = f"/api/sessions/{session}"
    etag = (await client.get(path)).headers["etag"]

    def is_last(event: object) -> bool:
        return "meanwhile" in str(event)

    listening = asyncio.create_task(read_until(client, f"{path}/events", is_last, after=etag))
    try:
        await client.post(f"{path}/entries", json={"role": "user", "text": "slow"})
        assert await asyncio.to_thread(slow.begun.wait, 10)
        written = await client.post(f"{path}/entries", json={"role": "user", "text": "meanwhile"})
    finally:
        slow.go_on.set()
    heard = await listening

    assert written.status_code == 201
    told = [event.data["entry"] for event in heard if event.kind == "entry"]
    assert [(row["text"], row["html"]) for row in told] == [
        ("slow", "<p>slow</p>\n"),
        ("meanwhile", "<p>meanwhile</p>\n"),
    ]
