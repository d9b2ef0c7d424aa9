"""Several servers on one database: any of them can serve any request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.server.conftest import ServerEnv, build_auth_headers, run_server
from tests.server.sse import ServerSentEvent, read_events

WRITES = 30


@pytest.fixture
async def clients(
    env: ServerEnv, shared_database: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """Clients of several servers that share a database."""
    monkeypatch.setenv("SESSIONTREE_STORE", shared_database)
    with run_server(env) as first, run_server(env) as second:
        async with (
            httpx.AsyncClient(base_url=first, headers=build_auth_headers(env.owner), timeout=20) as one,
            httpx.AsyncClient(base_url=second, headers=build_auth_headers(env.owner), timeout=20) as other,
        ):
            yield one, other


async def create_swarm(client: httpx.AsyncClient, env: ServerEnv) -> str:
    answer = await client.post("/api/sessions", json={"cwd": str(env.project), "name": "shared"})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def test_one_server_reads_entries_written_by_the_other(
    env: ServerEnv, clients: tuple[httpx.AsyncClient, httpx.AsyncClient]
) -> None:
    one, other = clients
    id = await create_swarm(one, env)
    await other.get(f"/api/sessions/{id}/tree")  # which now has it open

    await one.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": "by the first"})
    await other.post(f"/api/sessions/{id}/branches", json={"name": "side", "switch": True})
    await one.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": "on the side"})

    for client in clients:
        branches = (await client.get(f"/api/sessions/{id}/branches")).json()
        path = (await client.get(f"/api/sessions/{id}/path", params={"at": "side"})).json()
        assert branches["current"] == "side"
        assert [row["text"] for row in path["entries"] if row["role"] == "user"] == ["by the first", "on the side"]


async def test_idempotency_keys_and_etags_are_shared(
    env: ServerEnv, clients: tuple[httpx.AsyncClient, httpx.AsyncClient]
) -> None:
    one, other = clients
    path = f"/api/sessions/{await create_swarm(one, env)}"
    seen = (await one.get(f"{path}/tree")).headers["etag"]
    said = {"role": "user", "text": "Once."}

    first = await one.post(f"{path}/entries", json=said, headers={"idempotency-key": "k"})
    again = await one.post(f"{path}/entries", json=said, headers={"idempotency-key": "k"})
    elsewhere = await other.post(f"{path}/entries", json=said, headers={"idempotency-key": "k"})
    guarded = await other.post(f"{path}/entries", json=said, headers={"idempotency-key": "m", "if-match": seen})

    assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
    assert (elsewhere.json(), elsewhere.headers["idempotency-replayed"]) == (first.json(), "true")
    assert elsewhere.headers["etag"] == first.headers["etag"]
    assert guarded.status_code == 412


async def test_live_events_include_writes_through_the_other_server(
    env: ServerEnv, clients: tuple[httpx.AsyncClient, httpx.AsyncClient]
) -> None:
    one, other = clients
    id = await create_swarm(one, env)
    written: list[str] = []

    async def write() -> None:
        for number in range(WRITES):
            client = clients[number % 2]
            answer = await client.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": f"{number}"})
            written.append(answer.json()["id"])

    heard: list[ServerSentEvent] = []
    async with asyncio.timeout(60), other.stream("GET", f"/api/sessions/{id}/events") as answer:
        writing = asyncio.create_task(write())
        async for event in read_events(answer.aiter_lines()):
            heard.append(event)
            if event.kind == "entry" and event.data["entry"]["text"] == f"{WRITES - 1}":
                break
        await writing

    said = [event.data["entry"]["id"] for event in heard if event.kind == "entry"]
    assert [id for id in said if id in written] == written, "each once, and in order"


async def test_an_event_stream_resumes_at_the_other_server(
    env: ServerEnv, clients: tuple[httpx.AsyncClient, httpx.AsyncClient]
) -> None:
    one, other = clients
    id = await create_swarm(one, env)
    start = (await one.get(f"/api/sessions/{id}")).headers["etag"]
    for text in ("a", "b", "c"):
        await one.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": text})

    last, said = "", list[str]()
    async with asyncio.timeout(60), one.stream("GET", f"/api/sessions/{id}/events", params={"after": start}) as answer:
        async for event in read_events(answer.aiter_lines()):
            if event.kind == "entry":
                last, _ = event.id, said.append(event.data["entry"]["text"])
            if said[-1:] == ["b"]:
                break
    headers = {"last-event-id": last}
    async with asyncio.timeout(60), other.stream("GET", f"/api/sessions/{id}/events", headers=headers) as answer:
        async for event in read_events(answer.aiter_lines()):
            if event.kind == "entry":
                said.append(event.data["entry"]["text"])
                break

    assert said[-2:] == ["b", "c"]
