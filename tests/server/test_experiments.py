"""Experiments over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.library import catalog
from sessiontree.model.scripted import Delay
from sessiontree.session import Session
from sessiontree.swarm.experiment.experiment import Experiment
from sessiontree.swarm.lease import open_lease
from tests.server.conftest import Gate, ServerEnv, open_client

ARMS = [{"name": "short", "prompt": "In one word?"}, {"name": "long", "prompt": "In detail?"}]


@pytest.fixture
def env(tmp_path: Any) -> ServerEnv:
    return ServerEnv(tmp_path, *["With a cache."] * 50)


async def wait_until_ended(client: httpx.AsyncClient, id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (state := (await client.get(f"/api/experiments/{id}")).json())["status"] == "running":
            await asyncio.sleep(0.02)
    return state


async def test_an_experiment_runs_and_its_result_is_stored_in_the_session(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    session = env.create_session()
    scorers = [{"kind": "cost"}, {"kind": "matches", "pattern": "cache", "name": "cached"}]

    made = await client.post(
        f"/api/sessions/{session}/experiments", json={"arms": ARMS, "runs": 2, "metric": "cached", "scorers": scorers}
    )
    assert made.status_code == 202, made.text
    state = await wait_until_ended(client, made.json()["id"])

    assert (state["status"], state["done"], state["total"], state["error"]) == ("done", 4, 4, None)
    result = state["result"]
    assert [run["scores"] for run in result["runs"]] == [{"cached": 1.0}] * 4
    assert result["winner"] is None
    assert result["reason"].startswith("not enough data")
    listed = (await client.get(f"/api/sessions/{session}/experiments")).json()["experiments"]
    assert listed == [result]


async def test_a_stopped_experiment_keeps_finished_runs(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, *["Yes.", *[[Delay(30), "No."]] * 20])
    async with open_client(env.build_app(), env.owner) as client:
        session = env.create_session()
        made = (await client.post(f"/api/sessions/{session}/experiments", json={"arms": ARMS, "runs": 5})).json()
        async with asyncio.timeout(60):
            while not (await client.get(f"/api/experiments/{made['id']}")).json()["done"]:
                await asyncio.sleep(0.02)

        stopped = await client.post(f"/api/experiments/{made['id']}/stop", json={})
        again = await client.post(f"/api/experiments/{made['id']}/stop", json={})

    state = stopped.json()
    assert (state["status"], state["done"], state["error"]) == ("failed", 1, "stopped")
    assert again.status_code == 409


async def test_an_experiment_without_a_process_is_shown(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_experiment(env.create_session())

    state = (await client.get(f"/api/experiments/{id}")).json()

    assert (state["status"], state["done"], state["total"]) == ("failed", 0, 2)
    assert (await client.get("/api/experiments/nothing")).status_code == 404


def start_runs(opened: Session, experiment: str) -> None:
    """Start the first run of an experiment."""
    data = {"experiment": experiment, "arm": "a", "number": 1, "branch": "ab-1/a-1"}
    branch = opened.create_branch("ab-1/a-1", at="HEAD", current=False)
    branch.append(st.AgentAction(action="spawn", agent="ab-1/a-1", data=data))


async def test_an_experiment_belongs_to_its_original_session_and_not_to_a_fork(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    session = env.create_session()
    id = env.create_experiment(session)
    with st.open(session) as opened:
        start_runs(opened, id)
    forked = (await client.post(f"/api/sessions/{session}/fork", json={"tree": True})).json()["id"]
    with st.open(session) as original:
        hold = open_lease(original, id)
        assert hold.acquire()

        state = (await client.get(f"/api/experiments/{id}")).json()
        at_work = [(await client.get(f"/api/sessions/{each}")).json()["experimenting"] for each in (session, forked)]

        hold.release()
    assert (state["sessionId"], state["status"]) == (session, "running")
    assert at_work == [{"ab-1/a-1": id}, {}]
    (listed,) = (await client.get(f"/api/sessions/{forked}/experiments")).json()["experiments"]
    assert (listed["id"], listed["sessionId"]) == (id, session)


async def test_an_experiment_of_a_deleted_session_is_found_in_a_fork(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    id = env.create_experiment(session)
    forked = (await client.post(f"/api/sessions/{session}/fork", json={"tree": True})).json()["id"]
    assert (await client.get(f"/api/experiments/{id}")).json()["sessionId"] == session
    catalog.delete(session)

    state = (await client.get(f"/api/experiments/{id}")).json()
    stopped = await client.post(f"/api/experiments/{id}/stop", json={})

    assert (state["sessionId"], state["result"]["sessionId"], state["status"]) == (forked, session, "failed")
    assert stopped.status_code == 409


async def test_an_experiment_that_another_process_runs_has_not_failed(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    session = env.create_session()
    id = env.create_experiment(session)
    with st.open(session) as opened:
        hold = open_lease(opened, id)
        assert hold.acquire()

        state = (await client.get(f"/api/experiments/{id}")).json()

        hold.release()
    assert (state["status"], state["done"]) == ("running", 0)
    assert (await client.get(f"/api/experiments/{id}")).json()["status"] == "failed"


@pytest.mark.parametrize("here", [True, False])
async def test_the_branch_of_an_unfinished_run_is_protected(tmp_path: Any, here: bool) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, *[gate.delay("Yes.")] * 2)
    session = env.create_session()
    async with open_client(env.build_app(), env.owner) as client:
        base = f"/api/sessions/{session}"
        if here:
            id = (await client.post(f"{base}/experiments", json={"arms": ARMS, "runs": 1})).json()["id"]
            running = None
        else:
            id = env.create_experiment(session)
            elsewhere = Experiment.open(st.open(session), id, model=env.models.model)
            running = asyncio.create_task(elsewhere.run())
        async with asyncio.timeout(60):
            while len(held := (await client.get(base)).json()["experimenting"]) < 2:
                await asyncio.sleep(0.01)
        branch = next(iter(held))
        refused = [
            await client.post(f"{base}/{path}", json={**said, "branch": branch})
            for path, said in (
                ("prompt", {"text": "?"}),
                ("entries", {"role": "user", "text": "?"}),
                ("navigate", {"to": "root"}),
            )
        ]
        gate.open()
        if running is not None:
            await running
        state = await wait_until_ended(client, id)
        after = (await client.get(base)).json()
        free = await client.post(f"{base}/entries", json={"role": "user", "text": "?", "branch": branch})

    assert set(held.values()) == {id}
    assert [answer.status_code for answer in refused] == [409] * 3
    assert refused[0].json()["error"]["message"] == (
        f"an experiment is running on branch {branch!r}; stop it or wait until it finishes"
    )
    assert [run["error"] for run in state["result"]["runs"]] == [None, None]
    assert (after["experimenting"], free.status_code) == ({}, 201)


async def test_the_renamed_branch_of_an_unfinished_run_is_protected(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    id = env.create_experiment(session)
    path = f"/api/sessions/{session}"
    with st.open(session) as opened:
        start_runs(opened, id)
        hold = open_lease(opened, id)
        assert hold.acquire()
        before = (await client.get(path)).json()["experimenting"]
        opened.rename_branch("ab-1/a-1", "mine")

        after = (await client.get(path)).json()["experimenting"]
        refused = await client.post(f"{path}/entries", json={"role": "user", "text": "?", "branch": "mine"})

        hold.release()
    assert (before, after) == ({"ab-1/a-1": id}, {"mine": id})
    assert refused.status_code == 409


async def test_a_run_of_a_dead_process_does_not_block_its_branch(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    id = env.create_experiment(session)
    with st.open(session) as opened:
        start_runs(opened, id)
        opened.append(st.AgentAction(action="spawn", agent="main", data=["experiment"]))

    answer = await client.post(
        f"/api/sessions/{session}/entries", json={"role": "user", "text": "?", "branch": "ab-1/a-1"}
    )

    assert answer.status_code == 201
    assert (await client.get(f"/api/sessions/{session}")).json()["experimenting"] == {}


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"arms": ARMS[:1]}, 422),
        ({"arms": ARMS, "runs": 0}, 422),
        ({"arms": ARMS, "metric": "beauty"}, 422),
        ({"arms": [ARMS[0], ARMS[0]]}, 422),
        ({"arms": ARMS, "name": "HEAD"}, 422),
        ({"arms": ARMS, "name": "main"}, 409),
        ({"arms": [{"name": "a..~b", "prompt": "?"}, ARMS[0]]}, 422),
        ({"arms": [{"name": "as it is"}, ARMS[0]]}, 409),
        ({"arms": ARMS, "scorers": [{"kind": "exact"}]}, 422),
        ({"arms": ARMS, "scorers": [{"kind": "matches", "pattern": "("}]}, 422),
        ({"arms": ARMS, "scorers": [{"kind": "judge", "name": "cost"}]}, 422),
        ({"arms": ARMS, "at": "nowhere"}, 404),
    ],
)
async def test_an_invalid_experiment_writes_nothing(
    env: ServerEnv, client: httpx.AsyncClient, said: dict[str, Any], status: int
) -> None:
    session = env.create_session()

    answer = await client.post(f"/api/sessions/{session}/experiments", json=said)

    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == {404: "not_found", 409: "conflict", 422: "invalid"}[status]
    assert (await client.get(f"/api/sessions/{session}/experiments")).json() == {"experiments": [], "next": None}
