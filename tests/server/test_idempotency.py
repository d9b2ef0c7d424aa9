"""A request that is repeated with the same idempotency key runs once."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from sessiontree.server import middleware
from sessiontree.server.http_errors import ApiError
from sessiontree.server.middleware import IdempotencyCache, StoredResponse, compute_fingerprint
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
