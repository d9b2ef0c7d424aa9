"""A request that is repeated with the same idempotency key runs once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import psycopg
import pytest

from sessiontree.server import middleware, reply_store
from sessiontree.server.http_errors import ApiError
from sessiontree.server.middleware import IdempotencyCache, compute_fingerprint
from sessiontree.server.reply_store import ReplyStore, StoredResponse
from sessiontree.swarm.durable.database import WorkDatabase
from tests.postgres import Server
from tests.server.conftest import ServerEnv, build_auth_headers, open_client


def build_response(status: int = 200, body: bytes = b"{}") -> StoredResponse:
    return StoredResponse(status=status, headers=(), body=body)


class Work:
    """Counts how often it runs."""

    def __init__(self, status: int = 200) -> None:
        self.done = 0
        self._status = status
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> StoredResponse:
        await self.gate.wait()
        self.done += 1
        return build_response(self._status, str(self.done).encode())


async def test_a_repeated_request_gets_the_same_response() -> None:
    replies, work = IdempotencyCache(), Work()

    first = await replies.run_once("me", b"k", b"request", work)
    second = await replies.run_once("me", b"k", b"request", work)

    assert (first[0], second[0], work.done) == (second[0], first[0], 1)
    assert (first[1], second[1]) == (False, True)


async def test_two_simultaneous_requests_with_one_key_run_once() -> None:
    replies, work = IdempotencyCache(), Work()
    work.gate.clear()

    asked = [asyncio.create_task(replies.run_once("me", b"k", b"request", work)) for _ in range(5)]
    await asyncio.sleep(0)
    work.gate.set()
    answers = await asyncio.gather(*asked)

    assert work.done == 1
    assert {answer[0].body for answer in answers} == {b"1"}


async def test_a_key_belongs_to_one_request_and_one_token() -> None:
    replies, work = IdempotencyCache(), Work()
    await replies.run_once("me", b"k", b"request", work)

    with pytest.raises(ApiError) as refused:
        await replies.run_once("me", b"k", b"another", work)
    await replies.run_once("you", b"k", b"another", work)

    assert refused.value.status == 422
    assert work.done == 2


@pytest.mark.parametrize("status", [500, 502, 408, 412, 429])
async def test_temporary_errors_can_be_retried(status: int) -> None:
    replies, work = IdempotencyCache(), Work(status)
    await replies.run_once("me", b"k", b"request", work)
    await replies.run_once("me", b"k", b"request", work)

    assert work.done == 2


async def test_an_error_response_is_replayed() -> None:
    replies, work = IdempotencyCache(), Work(409)
    await replies.run_once("me", b"k", b"request", work)

    assert (await replies.run_once("me", b"k", b"request", work))[1]


async def test_internal_errors_can_be_retried() -> None:
    replies = IdempotencyCache()

    async def fail() -> StoredResponse:
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            await replies.run_once("me", b"k", b"request", fail)


async def test_the_number_of_kept_responses_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "MAX_STORED_RESPONSES", 3)
    replies, work = IdempotencyCache(), Work()
    for number in range(5):
        await replies.run_once("me", b"%d" % number, b"request", work)

    assert (await replies.run_once("me", b"4", b"request", work))[1]
    assert not (await replies.run_once("me", b"0", b"request", work))[1]


def test_parts_of_a_request_cannot_be_confused() -> None:
    assert compute_fingerprint(b"ab", b"c") != compute_fingerprint(b"a", b"bc")


# Shared by servers


@pytest.fixture(params=["file", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> WorkDatabase:
    if request.param == "file":
        return WorkDatabase(str(tmp_path / "work.db"))
    server: Server = request.getfixturevalue("server")
    return WorkDatabase(server.new_database())


async def test_a_response_is_replayed_by_another_server_and_after_a_restart(database: WorkDatabase) -> None:
    work = Work()
    first = await IdempotencyCache(ReplyStore(database)).run_once("me", b"k", b"request", work)
    other = IdempotencyCache(ReplyStore(database))

    again = await other.run_once("me", b"k", b"request", work)
    assert (again[0].body, again[0].status, again[1]) == (first[0].body, 200, True)
    assert work.done == 1
    with pytest.raises(ApiError) as refused:
        await IdempotencyCache(ReplyStore(database)).run_once("me", b"k", b"another", work)
    assert (refused.value.status, refused.value.code) == (422, "key_reused")
    assert not (await other.run_once("you", b"k", b"another", work))[1]


async def test_another_server_waits_for_the_response(database: WorkDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(middleware, "RENEW_SECONDS", 0.01)
    work, store = Work(), ReplyStore(database)
    work.gate.clear()
    first = asyncio.create_task(IdempotencyCache(store).run_once("me", b"k", b"request", work))
    while not database.has_tables() or not database.query("SELECT 1 FROM {t}reply"):
        await asyncio.sleep(0.01)
    second = asyncio.create_task(IdempotencyCache(ReplyStore(database)).run_once("me", b"k", b"request", work))
    await asyncio.sleep(0.05)
    work.gate.set()

    assert [reply.body for reply, _ in await asyncio.gather(first, second)] == [b"1", b"1"]
    assert (await second)[1]


async def test_a_request_whose_server_died_is_not_repeated(database: WorkDatabase) -> None:
    store, work = ReplyStore(database), Work()
    assert store.claim("me", b"k", b"request").state == "claimed"
    assert store.claim("me", b"k", b"request").state == "running"
    database.execute("UPDATE {t}reply SET seen = seen - 31")

    with pytest.raises(ApiError, match="check whether it was done") as refused:
        await IdempotencyCache(store).run_once("me", b"k", b"request", work)

    assert (refused.value.status, refused.value.code, work.done) == (409, "unknown_outcome", 0)


@pytest.mark.parametrize("status", [500, 429])
async def test_temporary_errors_can_be_retried_at_another_server(database: WorkDatabase, status: int) -> None:
    work = Work(status)
    for _ in range(2):
        await IdempotencyCache(ReplyStore(database)).run_once("me", b"k", b"request", work)

    assert work.done == 2


async def test_old_and_long_responses_are_not_kept(database: WorkDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    await IdempotencyCache(ReplyStore(database)).run_once("me", b"k", b"request", work)
    database.execute("UPDATE {t}reply SET seen = seen - 90000")
    await IdempotencyCache(ReplyStore(database)).run_once("me", b"l", b"request", work)
    assert database.query("SELECT count(*) FROM {t}reply")[0][0] == 1

    monkeypatch.setattr(reply_store, "MAX_REPLY_BYTES", 0)
    await IdempotencyCache(ReplyStore(database)).run_once("me", b"m", b"request", work)
    assert database.query("SELECT count(*) FROM {t}reply")[0][0] == 1


async def test_without_rights_keys_belong_to_one_server(server: Server) -> None:
    url = server.new_database()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE ROLE feeble LOGIN")
    store, work = ReplyStore(WorkDatabase(url.replace("postgres@", "feeble@"))), Work()
    replies = IdempotencyCache(store)

    assert [(await replies.run_once("me", b"k", b"request", work))[1] for _ in range(2)] == [False, True]
    assert not store.is_available


# Over HTTP


async def test_an_entry_sent_several_times_is_appended_once(env: ServerEnv, client: httpx.AsyncClient) -> None:
    path = f"/api/sessions/{env.create_session()}/entries"
    said = {"role": "user", "text": "Once"}

    answers = [await client.post(path, json=said, headers={"idempotency-key": "k"}) for _ in range(3)]
    other = await client.post(path, json={**said, "text": "Other"}, headers={"idempotency-key": "k"})
    entries = (await client.get(path)).json()["entries"]

    assert len({answer.text for answer in answers}) == 1
    assert [answer.headers.get("idempotency-replayed") for answer in answers] == [None, "true", "true"]
    assert len({answer.headers["etag"] for answer in answers}) == 1
    assert (other.status_code, other.json()["error"]["code"]) == (422, "key_reused")
    assert sum(entry.get("message", {}).get("content") == "Once" for entry in entries) == 1


async def test_the_same_key_of_two_tokens_is_two_requests(env: ServerEnv) -> None:
    id = env.create_session()
    made = env.create_token("write")
    async with open_client(env.build_app(), env.owner) as client:
        path, said = f"/api/sessions/{id}/entries", {"role": "user", "text": "Once"}
        first = await client.post(path, json=said, headers={"idempotency-key": "k"})
        second = await client.post(path, json=said, headers={"idempotency-key": "k", **build_auth_headers(made)})

    assert first.json()["id"] != second.json()["id"]


@pytest.mark.parametrize("key", ["", "x" * 201])
async def test_an_invalid_key_is_refused(env: ServerEnv, client: httpx.AsyncClient, key: str) -> None:
    path = f"/api/sessions/{env.create_session()}/undo"

    assert (await client.post(path, json={}, headers={"idempotency-key": key})).status_code == 400


async def test_an_entry_sent_again_after_a_restart_is_appended_once(env: ServerEnv) -> None:
    path, said = f"/api/sessions/{env.create_session()}/entries", {"role": "user", "text": "Once"}
    answers = []
    for _ in range(2):
        async with open_client(env.build_app(), env.owner) as client:
            answers.append(await client.post(path, json=said, headers={"idempotency-key": "k"}))

    assert answers[0].json() == answers[1].json()
    assert [answer.headers.get("idempotency-replayed") for answer in answers] == [None, "true"]
