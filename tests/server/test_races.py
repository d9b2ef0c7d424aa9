"""Fifty concurrent clients on the branches of one session: nothing is lost, duplicated or invented.

Every client records its requests and responses. Some do not wait for a response and repeat the request with the same
key. Afterwards the file is compared with all histories.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, NamedTuple

import httpx
import pytest

import sessiontree as st
from sessiontree.core.entries import Message
from sessiontree.core.messages import extract_text
from tests.server.conftest import ServerEnv, build_auth_headers, run_server

CLIENTS, TURNS = 50, 8
BRANCHES = ("main", "left", "right")


class RecordedRequest(NamedTuple):
    what: str
    said: str
    status: int | None
    """`None` if the client did not wait for the response."""
    answer: Any = None


async def client(address: str, env: ServerEnv, id: str, seed: int) -> list[RecordedRequest]:
    dice = random.Random(seed)
    history: list[RecordedRequest] = []
    async with httpx.AsyncClient(base_url=address, headers=build_auth_headers(env.owner), timeout=60) as http:

        async def ask(what: str, path: str, said: str, body: Any, *, impatient: bool = False) -> None:
            headers = {"idempotency-key": f"{seed}-{len(history)}-{said}"}
            if impatient:
                try:
                    await http.post(path, json=body, headers=headers, timeout=dice.random() * 0.02)
                except httpx.TimeoutException:
                    if dice.random() < 0.5:
                        history.append(RecordedRequest(what, said, None))
                        return
            answer = await http.post(path, json=body, headers=headers)
            history.append(RecordedRequest(what, said, answer.status_code, answer.json()))

        session = f"/api/sessions/{id}"
        for turn in range(TURNS):
            said = f"{seed} {turn}"
            match dice.choice(("append", "append", "append", "branch", "switch", "label", "move")):
                case "append":
                    body = {"role": "user", "text": said, "branch": dice.choice(BRANCHES)}
                    await ask("append", f"{session}/entries", said, body, impatient=dice.random() < 0.3)
                case "branch":
                    name = f"new {dice.randrange(20)}"
                    await ask("branch", f"{session}/branches", name, {"name": name, "switch": dice.random() < 0.5})
                case "switch":
                    await ask("switch", f"{session}/switch-branch", said, {"branch": dice.choice(BRANCHES)})
                case "label":
                    await ask("label", f"{session}/label", said, {"entry": "HEAD", "label": said})
                case _:
                    body = {"to": "HEAD~1", "branch": dice.choice(BRANCHES)}
                    await ask("move", f"{session}/navigate", said, body)
    return history


@pytest.fixture
def id(env: ServerEnv) -> str:
    session = env.create_session()
    with st.open(session) as opened:
        for name in BRANCHES[1:]:
            opened.create_branch(name, current=False)
    return session


async def test_fifty_clients_lose_nothing(env: ServerEnv, id: str) -> None:
    with run_server(env) as address:
        async with asyncio.timeout(90):
            told = await asyncio.gather(*(client(address, env, id, seed) for seed in range(CLIENTS)))
    histories = [asked for history in told for asked in history]

    with st.open(id, read_only=True) as session:
        assert [problem for problem in session.problems if problem.severity == "fault"] == []
        entries = {entry.id: entry for entry in session.tree.entries}
        texts = Counter(
            extract_text(entry.body.message["content"]) for entry in entries.values() if isinstance(entry.body, Message)
        )
        branches = set(session.heads.heads)
        labels = {asked.answer["id"] for asked in histories if asked.what == "label" and asked.status == 200}
    assert len(entries) == len(session.tree.entries), "an id occurs twice"
    for asked in histories:
        if asked.what == "append":
            assert asked.status in (201, None), asked
            if asked.status is None:
                assert texts[asked.said] <= 1, asked
            else:
                assert texts[asked.said] == 1, asked
                assert asked.answer["id"] in entries
        elif asked.what == "move":
            assert asked.status in (200, 404, 409), asked  # another client may have moved it to root
        else:
            assert asked.status in (200, 201, 409), asked
    made = Counter(asked.said for asked in histories if asked.what == "branch" and asked.status == 201)
    assert set(made.values()) == {1}, "two clients created the same branch"
    assert branches == {*BRANCHES, *made}
    assert labels <= set(entries)
    assert sum(asked.status is None for asked in histories) > 0, "no client was impatient"


async def test_concurrent_conditional_writes_lose_no_update(env: ServerEnv, id: str) -> None:
    """Many clients increment a counter in the name of the session with `If-Match`."""
    session = f"/api/sessions/{id}"

    async def count(address: str, times: int) -> int:
        done = 0
        async with httpx.AsyncClient(base_url=address, headers=build_auth_headers(env.owner), timeout=60) as http:
            while done < times:
                seen = await http.get(session)
                number = int(seen.json()["name"].split()[-1])
                headers = {"if-match": seen.headers["etag"]}
                answer = await http.patch(session, json={"name": f"count {number + 1}"}, headers=headers)
                assert answer.status_code in (200, 412), answer.text
                done += answer.status_code == 200
        return done

    with run_server(env) as address:
        async with httpx.AsyncClient(base_url=address, headers=build_auth_headers(env.owner), timeout=60) as http:
            await http.patch(session, json={"name": "count 0"})
            async with asyncio.timeout(60):
                done = await asyncio.gather(*(count(address, 4) for _ in range(8)))
            name = (await http.get(session)).json()["name"]

    assert name == f"count {sum(done)}"
