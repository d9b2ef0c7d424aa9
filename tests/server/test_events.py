"""Live events of a session: each exactly once and in order, from any writer and after any number of reconnects."""

from __future__ import annotations

import asyncio
import random
import socket
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.server.auth import TokenStore
from sessiontree.server.request_checks import ServerLimits
from sessiontree.server.routes import events
from sessiontree.server.session_cache import SessionPosition
from tests.server.conftest import ServerEnv, build_auth_headers, run_server
from tests.server.sse import ServerSentEvent, read_events, read_until

CLIENTS, ENTRIES = 12, 120


@pytest.fixture
async def real_client(env: ServerEnv) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a real server."""
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            yield client


def match_text(text: str) -> Any:
    return lambda event: event.kind == "entry" and event.data["entry"]["text"] == text


def list_ids(heard: list[ServerSentEvent]) -> list[str]:
    return [event.data["entry"]["id"] for event in heard if event.kind == "entry"]


def read_lines(session: str) -> list[str]:
    with st.open(session, read_only=True) as opened:
        return [entry.id for entry in opened.tree.entries]


async def test_entries_of_another_process_are_streamed(env: ServerEnv, real_client: httpx.AsyncClient) -> None:
    id = env.create_session()
    path = f"/api/sessions/{id}/events"
    heard: list[ServerSentEvent] = []
    written: list[str] = []

    def append_elsewhere() -> None:
        with st.open(id) as other:
            written.append(other.head.append(st.user("from elsewhere")).id)

    # Well before the next poll of the stream.
    async with asyncio.timeout(60), real_client.stream("GET", path) as answer:
        async for event in read_events(answer.aiter_lines()):
            heard.append(event)
            if event.kind == "entry":
                break
            if not written:  # the stream is open and has sent the heads
                await asyncio.to_thread(append_elsewhere)

    assert list_ids(heard) == written
    row = heard[-1].data["entry"]
    assert (row["role"], row["branch"], row["html"], row["active"]) == ("user", "main", "<p>from elsewhere</p>\n", True)


async def test_heads_are_sent_at_the_start_and_when_they_move(env: ServerEnv, real_client: httpx.AsyncClient) -> None:
    id = env.create_session()
    path = f"/api/sessions/{id}/events"

    first = await read_until(real_client, path, lambda event: event.kind == "head")
    await real_client.post(f"/api/sessions/{id}/branches", json={"name": "cache"})
    second = await read_until(real_client, path, lambda event: event.kind == "head", last=first[-1].id)

    assert first[0].data["current"] == "main"
    assert second[-1].data["current"] == "cache"
    assert set(second[-1].data["heads"]) == {"main", "cache"}


async def test_a_stream_from_the_start_sends_all_entries(env: ServerEnv, real_client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        session.head.extend([st.user(f"entry {number}") for number in range(450)])  # more than one read returns
    beginning = SessionPosition(0, f"{zlib.crc32(id.encode()):08x}")

    heard = await read_until(real_client, f"/api/sessions/{id}/events", match_text("entry 449"), after=str(beginning))

    assert list_ids(heard) == read_lines(id)[: len(list_ids(heard))]
    assert len(list_ids(heard)) >= 450


async def test_clients_that_disconnect_and_reconnect_miss_nothing(
    env: ServerEnv, real_client: httpx.AsyncClient
) -> None:
    id = env.create_session()
    path = f"/api/sessions/{id}/events"
    etag = (await real_client.get(f"/api/sessions/{id}")).headers["etag"].strip('"')
    before = len(read_lines(id))

    async def client(seed: int) -> list[ServerSentEvent]:
        dice, heard, last = random.Random(seed), list[ServerSentEvent](), etag
        while not (heard and match_text("the end")(heard[-1])):
            patience = dice.randint(1, 12)
            headers = {"last-event-id": last}
            async with real_client.stream("GET", path, headers=headers) as answer:
                assert answer.status_code == 200, await answer.aread()
                async for event in read_events(answer.aiter_lines()):
                    last = event.id
                    if event.kind == "entry":
                        heard.append(event)
                        patience -= 1
                        if match_text("the end")(event) or not patience:
                            break
            await asyncio.sleep(dice.random() * 0.02)
        return heard

    async def post(path: str, body: dict[str, Any]) -> None:
        while (answer := await real_client.post(f"/api/sessions/{id}/{path}", json=body)).status_code == 503:
            await asyncio.sleep(0.01)  # too many requests wait for the lock
        assert answer.status_code == 201, answer.text

    async def writer(number: int) -> None:
        branch = f"writer-{number}"
        await post("branches", {"name": branch, "switch": False})
        for turn in range(ENTRIES // 4):
            await post("entries", {"role": "user", "text": f"{branch} {turn}", "branch": branch})

    def write_outside() -> None:
        with st.open(id) as other:
            branch = other.create_branch("outside", current=False)
            for turn in range(ENTRIES // 4):
                branch.append(st.user(f"outside {turn}"))

    async with asyncio.timeout(60):
        clients = [asyncio.create_task(client(seed)) for seed in range(CLIENTS)]
        await asyncio.gather(*(writer(number) for number in range(3)), asyncio.to_thread(write_outside))
        await post("entries", {"role": "user", "text": "the end", "branch": "main"})
        heard = await asyncio.gather(*clients)

    everything = read_lines(id)[before:]
    for told in heard:
        assert list_ids(told) == everything[: len(list_ids(told))]
        assert match_text("the end")(told[-1])


async def test_a_restarted_server_continues_at_the_clients_position(env: ServerEnv) -> None:
    id = env.create_session()
    path = f"/api/sessions/{id}/events"
    last, heard = None, list[ServerSentEvent]()
    for round in range(3):
        with run_server(env) as base:
            async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
                if last is None:
                    last = (await client.get(f"/api/sessions/{id}")).headers["etag"]
                for number in range(3):
                    said = {"role": "user", "text": f"{round} {number}"}
                    await client.post(f"/api/sessions/{id}/entries", json=said)
                heard += await read_until(client, path, match_text(f"{round} 1"), last=last)
                last = heard[-1].id
    assert [event.data["entry"]["text"] for event in heard if event.kind == "entry"] == [
        *("0 0", "0 1", "0 2", "1 0", "1 1", "1 2", "2 0", "2 1"),
    ]


@pytest.mark.parametrize(
    ("place", "status"),
    [("99-00000000", 410), ("1-00000000", 410), ("nonsense", 400), ("-1-00000000", 400), ("1-00000000.x.y", 400)],
)
async def test_a_stream_cannot_resume_from_an_unknown_position(
    env: ServerEnv, client: httpx.AsyncClient, place: str, status: int
) -> None:
    path = f"/api/sessions/{env.create_session()}/events"

    async with asyncio.timeout(60):
        asked = [
            await client.get(path, headers={"last-event-id": place}),
            await client.get(path, params={"after": place}),
        ]

    assert [answer.status_code for answer in asked] == [status, status]
    if status == 410:
        assert asked[0].json()["error"]["code"] == "resync"


async def test_a_client_that_was_away_too_long_must_reload(tmp_path: Any) -> None:
    limits = ServerLimits(rate=1e6, burst=1_000_000, event_buffer=200)
    env = ServerEnv(tmp_path, "word " * 200, limits=limits)
    id = env.create_session()
    path = f"/api/sessions/{id}/events"
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            (first, *_) = await read_until(client, path, lambda event: event.kind == "head")
            await client.post(f"/api/sessions/{id}/prompt", json={"text": "Go"})
            async with asyncio.timeout(60):
                while (await client.get(f"/api/sessions/{id}")).json()["running"]:
                    await asyncio.sleep(0.02)
            async with asyncio.timeout(60):
                late = await client.get(path, headers={"last-event-id": first.id})
            etag = (await client.get(f"/api/sessions/{id}")).headers["etag"]
            anew = await read_until(client, path, lambda event: event.kind == "head", after=etag)

    assert (late.status_code, late.json()["error"]["code"]) == (410, "resync")
    assert anew[-1].kind == "head"


async def test_a_client_that_does_not_read_blocks_no_one_and_must_reload(tmp_path: Any) -> None:
    words = [f"{number:05} {'x' * 20_000} " for number in range(300)]
    env = ServerEnv(tmp_path, words, limits=ServerLimits(rate=1e6, burst=1_000_000, event_buffer=100_000))
    id = env.create_session()
    with run_server(env) as base:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", int(base.rpartition(":")[2])))
        head = [f"GET /api/sessions/{id}/events HTTP/1.1", f"Host: {base.removeprefix('http://')}"]
        slow.sendall("\r\n".join([*head, f"Authorization: Bearer {env.owner.secret}", "", ""]).encode())
        assert b"200 OK" in await asyncio.to_thread(slow.recv, 15)
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            await client.post(f"/api/sessions/{id}/prompt", json={"text": "Go"})
            async with asyncio.timeout(60):
                while (await client.get(f"/api/sessions/{id}")).json()["running"]:
                    await asyncio.sleep(0.05)
        with slow.makefile("rb") as answer:
            read_late = await asyncio.to_thread(answer.read)
        slow.close()

    assert b"event: resync" in read_late
    assert b"00299" not in read_late.partition(b"event: resync")[0]


async def test_a_stream_ends_when_its_token_is_revoked(env: ServerEnv, real_client: httpx.AsyncClient) -> None:
    id = env.create_session()
    made = env.create_token("read")
    heard: list[str] = []

    async with (
        asyncio.timeout(60),
        real_client.stream("GET", f"/api/sessions/{id}/events", headers=build_auth_headers(made)) as answer,
    ):
        async for event in read_events(answer.aiter_lines()):
            heard.append(event.kind)
            if len(heard) == 1:
                TokenStore().revoke(made.token.id)
                await real_client.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": "secret"})

    assert heard == ["head"]


async def test_the_number_of_streams_is_limited_and_closed_ones_are_freed(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=ServerLimits(rate=1e6, burst=1_000_000, streams=2))
    path = f"/api/sessions/{env.create_session()}/events"
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            async with client.stream("GET", path) as one, client.stream("GET", path) as two:
                assert (one.status_code, two.status_code) == (200, 200)
                third = await client.get(path)
            async with asyncio.timeout(60):
                while (await _status(client, path)) != 200:
                    await asyncio.sleep(0.02)

    assert (third.status_code, third.json()["error"]["code"]) == (429, "too_many_streams")


async def test_many_streams_of_one_token_do_not_block_other_tokens(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=ServerLimits(rate=1e6, burst=1_000_000, streams=4, token_streams=2))
    reader = env.create_token("read")
    path = f"/api/sessions/{env.create_session()}/events"
    with run_server(env) as base:
        async with (
            httpx.AsyncClient(base_url=base, headers=build_auth_headers(reader), timeout=20) as client,
            client.stream("GET", path) as one,
            client.stream("GET", path) as two,
        ):
            third = await client.get(path)
            async with client.stream("GET", path, headers=build_auth_headers(env.owner)) as owner:
                assert (one.status_code, two.status_code, owner.status_code) == (200, 200, 200)

    assert third.status_code == 429
    assert "event stream limit of 2 per token reached" in third.json()["error"]["message"]


async def test_a_reopened_stream_replaces_the_old_one(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, limits=ServerLimits(rate=1e6, burst=1_000_000, token_streams=1))
    path = f"/api/sessions/{env.create_session()}/events"
    page = {"sessiontree-page": "tab-1"}
    with run_server(env) as base:
        async with (
            httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client,
            client.stream("GET", path, headers=page) as old,
        ):
            lines = old.aiter_lines()
            assert await anext(lines) == ": listening"
            async with client.stream("GET", path, headers=page) as new:
                assert new.status_code == 200
                async with asyncio.timeout(60):
                    async for _ in lines:  # until it ends
                        pass
                other = await client.get(path, headers={"sessiontree-page": "tab-2"})

    assert other.status_code == 429


async def _status(client: httpx.AsyncClient, path: str) -> int:
    async with client.stream("GET", path) as answer:
        return answer.status_code


async def test_an_idle_stream_sends_keepalive_comments(
    env: ServerEnv, real_client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "KEEPALIVE_SECONDS", 0.05)
    path = f"/api/sessions/{env.create_session()}/events"

    async with asyncio.timeout(60), real_client.stream("GET", path) as answer:
        async for line in answer.aiter_lines():
            if line == ": quiet":
                break


@pytest.mark.parametrize("content", [b"", b"no session\n"], ids=["empty", "no header"])
async def test_a_stream_reports_a_session_that_becomes_unreadable(
    env: ServerEnv, real_client: httpx.AsyncClient, content: bytes
) -> None:
    id = env.create_session()
    with st.open(id, read_only=True) as session:
        file = session.file
    assert file is not None
    heard: list[ServerSentEvent] = []

    async with asyncio.timeout(60), real_client.stream("GET", f"/api/sessions/{id}/events") as answer:
        async for event in read_events(answer.aiter_lines()):
            heard.append(event)
            if event.kind == "head":
                file.write_bytes(content)

    assert [event.kind for event in heard] == ["head", "resync"]
    assert heard[-1].data["error"]["code"] == "resync"
    assert "cannot read the session" in heard[-1].data["error"]["message"]
