"""Swarms over HTTP, with scripted models."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.agent.tools import builtin_tools
from sessiontree.errors import StoreError
from sessiontree.model.base import Model, ModelError
from sessiontree.model.scripted import Delay, ScriptedModel, ToolCall
from sessiontree.model.selection import NoModel
from sessiontree.store.jsonl import JsonlStore
from sessiontree.swarm.journal import list_swarms
from sessiontree.swarm.records import PausedRecord, build_record_body
from sessiontree.swarm.strategies import STRATEGIES, parallel
from sessiontree.swarm.swarm import Swarm
from tests.server.conftest import Gate, ServerEnv, build_auth_headers, open_client, run_server
from tests.server.sse import ServerSentEvent, read_until
from tests.swarm.test_durable import WorkerProcesses, serve_model


async def wait_for_state(client: httpx.AsyncClient, id: str, *states: str) -> dict[str, Any]:
    """Wait until a swarm is in one of these states, and return it."""
    async with asyncio.timeout(60):
        while True:
            status = (await client.get(f"/api/swarms/{id}")).json()
            if status["status"] in states:
                return status
            await asyncio.sleep(0.02)


async def create_swarm(client: httpx.AsyncClient, **said: Any) -> dict[str, Any]:
    answer = await client.post("/api/swarms", json={"name": "crew", "task": "Make it fast", **said})
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.fixture
def env(tmp_path: Any) -> ServerEnv:
    return ServerEnv(tmp_path, *["With a cache."] * 20)


async def test_swarm_agents_work_on_branches_and_report_results(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()

    swarm = await create_swarm(client, session=session, agents=2)
    status = await wait_for_state(client, swarm["id"], "completed")

    assert swarm["sessionId"] == status["sessionId"] == session
    assert status["progress"] == 1
    assert [agent["status"] for agent in status["agents"]] == ["completed", "completed"]
    assert {agent["text"] for agent in status["agents"]} == {"With a cache."}
    branches = (await client.get(f"/api/sessions/{session}/branches")).json()
    assert {agent["branch"] for agent in status["agents"]} < {branch["name"] for branch in branches["branches"]}
    assert branches["current"] == "main"
    agents = (await client.get(f"/api/swarms/{swarm['id']}/agents")).json()
    assert agents == {"agents": status["agents"], "next": None}


async def test_a_swarm_without_a_session_creates_one(env: ServerEnv, client: httpx.AsyncClient) -> None:
    swarm = await create_swarm(client, cwd=str(env.other), start=False)

    session = (await client.get(f"/api/sessions/{swarm['sessionId']}")).json()
    assert (session["name"], session["cwd"]) == ("crew", str(env.other))
    assert (await client.get(f"/api/swarms/{swarm['id']}")).json()["status"] == "created"


async def test_a_swarm_has_subtasks_and_starts_at_a_place(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session, parts = env.create_session(), ["Look at the tests.", "Look at names.", "Look at errors."]

    swarm = await create_swarm(client, session=session, strategy="map-reduce", parts=parts, at="HEAD~1")
    status = await wait_for_state(client, swarm["id"], "completed")

    mappers = [agent for agent in status["agents"] if agent["role"] != "reducer"]
    assert [part for part, agent in zip(parts, mappers, strict=True) if part in agent["task"]] == parts
    sent = str(env.models.model.requests[0].messages)
    assert "How do I make this faster?" in sent
    assert "**cache**" not in sent


async def test_a_registered_strategy_is_accepted(
    env: ServerEnv, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STRATEGIES, "mine", parallel)

    swarm = await create_swarm(client, session=env.create_session(), strategy="mine")

    assert (await wait_for_state(client, swarm["id"], "completed"))["strategy"] == "mine"


@pytest.mark.parametrize("retries", [0, 2])
async def test_an_agent_retries_up_to_the_limit(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    monkeypatch.setattr("sessiontree.swarm.agent_runner.FIRST_DELAY", 0.001)
    passing = ModelError("scripted:scripted", "server", "come again")
    env = ServerEnv(tmp_path, *[passing] * 20)
    async with open_client(env.build_app(), env.owner) as client:
        swarm = await create_swarm(client, session=env.create_session(), agents=1, retries=retries)
        status = await wait_for_state(client, swarm["id"], "failed", "completed")

    assert [(agent["status"], agent["attempts"]) for agent in status["agents"]] == [("failed", retries + 1)]


async def test_a_swarm_at_an_unknown_place_creates_nothing(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    said = {"name": "crew", "task": "Make it fast", "at": "nowhere"}

    answers = [await client.post("/api/swarms", json={**said, **where}) for where in ({}, {"session": session})]

    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in answers] == [(404, "not_found")] * 2
    assert [row["id"] for row in (await client.get("/api/sessions")).json()["sessions"]] == [session]
    branches = (await client.get(f"/api/sessions/{session}/branches")).json()["branches"]
    assert [branch["name"] for branch in branches] == ["main"]


async def test_all_swarms_are_listed_newest_first(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    first = await create_swarm(client, session=session, start=False)
    second = await create_swarm(client, session=session, start=False)

    listed = (await client.get("/api/swarms")).json()["swarms"]

    assert [swarm["id"] for swarm in listed] == [second["id"], first["id"]]
    assert [swarm["name"] for swarm in listed] == ["crew-2", "crew"]


async def test_a_listing_has_the_beginning_of_a_long_task_and_no_results(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    task = "Make it fast. " + "Look at every line. " * 5_000
    id = (await create_swarm(client, session=env.create_session(), task=task))["id"]
    whole = await wait_for_state(client, id, "completed")

    (row,) = (await client.get("/api/swarms")).json()["swarms"]

    assert whole["task"] == task
    assert "With a cache." in whole["result"]
    assert (row["task"][:13], row["task"][-1], len(row["task"])) == ("Make it fast.", "…", 301)
    assert not {"result", "agents"} & set(row)


async def test_the_branches_of_a_finished_swarm_cannot_be_changed(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    id = await env.create_swarm(session)
    assert (await client.post(f"/api/swarms/{id}/stop", json={})).status_code == 200
    before = (await client.get(f"/api/swarms/{id}/branches")).json()

    made = await client.post(f"/api/swarms/{id}/branches", json={"name": "late"})
    switched = await client.post(f"/api/swarms/{id}/switch-branch", json={"branch": "main"})

    for answer in (made, switched):
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
        assert "swarm crew is cancelled" in answer.json()["error"]["message"]
    assert (await client.get(f"/api/swarms/{id}/branches")).json() == before


async def test_the_five_branch_routes_of_a_swarm_work(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    id = (await create_swarm(client, session=session, start=False))["id"]

    branch = await client.post(f"/api/swarms/{id}/branches", json={"name": "cache", "description": "in memory"})
    assert branch.status_code == 201
    other = await client.post(f"/api/swarms/{id}/branches", json={"name": "sort", "at": "main"})
    tree = (await client.get(f"/api/swarms/{id}/tree?filter=all")).json()
    branches = (await client.get(f"/api/swarms/{id}/branches")).json()
    switched = (await client.post(f"/api/swarms/{id}/switch-branch", json={"branch": "cache"})).json()
    compared = (await client.post(f"/api/swarms/{id}/compare", json={"branches": ["cache", "sort"]})).json()

    assert branch.json()["name"] == "cache"
    assert tree["sessionId"] == session
    assert {branch.json()["entryId"], other.json()["entryId"]} < {row["id"] for row in tree["entries"]}
    assert {"main", "crew", "cache", "sort"} == {row["name"] for row in branches["branches"]}
    assert branches["current"] == "crew"
    assert switched == {"current": "cache", "leaf": branch.json()["entryId"]}
    assert (await client.get(f"/api/swarms/{id}/branches")).json()["current"] == "cache"
    assert compared["metric"] == "cost"
    assert compared["winner"] is None
    assert compared["reason"].startswith("not enough data")


async def test_comparing_agents_needs_only_read_and_runs_no_extension(env: ServerEnv, home: Path) -> None:
    folder = home / ".sessiontree" / "extensions"
    folder.mkdir(parents=True)
    (folder / "mark.py").write_text(f"def setup(api):\n    open({str(home / 'ran')!r}, 'w').close()\n")
    id = await env.create_swarm(env.create_session(), start=True)
    reader = env.create_token("read")
    async with open_client(env.build_app(), reader) as client:
        said = {"branches": ["worker-1", "crew/worker-2"], "metric": "tokens"}
        compared = await client.post(f"/api/swarms/{id}/compare", json=said)

    assert compared.status_code == 200, compared.text
    assert [stats["name"] for stats in compared.json()["branches"]] == ["crew/worker-1", "crew/worker-2"]
    assert not (home / "ran").exists()


async def test_a_swarm_without_branching_has_no_branch_routes(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = (await create_swarm(client, session=env.create_session(), start=False, enableBranching=False))["id"]

    for method, path, body in (
        ("GET", "tree", None),
        ("GET", "branches", None),
        ("POST", "branches", {"name": "x"}),
        ("POST", "switch-branch", {"branch": "main"}),
        ("POST", "compare", {"branches": ["main", "crew"]}),
    ):
        answer = await client.request(method, f"/api/swarms/{id}/{path}", json=body)
        assert answer.status_code == 409, path
        assert answer.json()["error"]["message"] == "swarm crew does not have branching enabled"


async def test_a_swarm_is_paused_scaled_resumed_and_stopped(tmp_path: Any) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, *[gate.delay("One way.")] * 20)
    async with open_client(env.build_app(), env.owner) as client:
        session = env.create_session()
        id = (await create_swarm(client, session=session, agents=1))["id"]
        async with asyncio.timeout(60):
            while not (running := (await client.get(f"/api/sessions/{session}")).json()["running"]):
                await asyncio.sleep(0.01)

        paused = await client.post(f"/api/swarms/{id}/pause", json={})
        said = {"text": "And now?", "branch": running[0]}
        refused = await client.post(f"/api/sessions/{session}/prompt", json=said)
        meanwhile = (await client.get(f"/api/sessions/{session}")).json()
        again = await client.post(f"/api/swarms/{id}/pause", json={})
        scaled = await client.post(f"/api/swarms/{id}/scale", json={"agents": 3})
        resumed = await client.post(f"/api/swarms/{id}/resume", json={"budget": {"cost": 5}})
        stopped = await client.post(f"/api/swarms/{id}/stop", json={})
        late = await client.post(f"/api/swarms/{id}/resume", json={})

        assert running == [paused.json()["agents"][0]["branch"]]
        assert paused.json()["status"] == "paused"
        assert (refused.status_code, again.status_code) == (409, 409)
        assert refused.json()["error"]["message"].endswith("stop the swarm, or resume it")
        assert (meanwhile["running"], meanwhile["swarming"]) == ([], {running[0]: id})
        assert scaled.status_code == 200
        assert (resumed.json()["status"], resumed.json()["budget"]["cost"]) == ("running", 5)
        assert stopped.json()["status"] == "cancelled"
        assert late.status_code == 409


async def test_a_branch_of_a_swarm_agent_is_not_moved_and_can_be_steered(
    tmp_path: Any,
) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, gate.delay(ToolCall("c1", "ls", {"path": "."})), "Seen.")
    async with open_client(env.build_app(), env.owner) as client:
        session = env.create_session()
        id = (await create_swarm(client, session=session, agents=1))["id"]
        async with asyncio.timeout(60):
            while not (info := (await client.get(f"/api/sessions/{session}")).json())["running"]:
                await asyncio.sleep(0.01)
        (branch,) = info["running"]

        refused = [
            await client.post(f"/api/sessions/{session}/{path}", json=said)
            for path, said in (
                ("prompt", {"text": "And now?", "branch": branch}),
                ("entries", {"role": "user", "text": "And now?", "branch": branch}),
                ("navigate", {"to": "root", "branch": branch}),
                ("merge", {"from": "main", "into": branch, "summary": "It was slow."}),
                ("abort", {"branch": branch}),
            )
        ]
        steered = await client.post(f"/api/sessions/{session}/steer", json={"text": "Only here", "branch": branch})
        gate.open()
        status = await wait_for_state(client, id, "completed")
        after = (await client.get(f"/api/sessions/{session}")).json()
        path = (await client.get(f"/api/sessions/{session}/path", params={"at": branch})).json()["entries"]

    assert info["swarming"] == {branch: id}
    assert [answer.status_code for answer in refused] == [409] * 5
    assert refused[0].json()["error"]["message"] == (
        f"agent {status['agents'][0]['id']} of swarm 'crew' is running on branch {branch!r}: "
        "stop the swarm, or wait until it finishes"
    )
    assert steered.json() == {"branch": branch}
    assert [row["text"] for row in path if row["role"] in ("user", "assistant")][-2:] == ["Only here", "Seen."]
    assert (after["running"], after["swarming"]) == ([], {})


async def test_unchanged_limits_are_kept_on_resume(env: ServerEnv, client: httpx.AsyncClient) -> None:
    budget, each = {"cost": 1, "tokens": 100}, {"seconds": 60}
    id = (await create_swarm(client, session=env.create_session(), start=False, budget=budget, agentBudget=each))["id"]
    with st.open((await client.get(f"/api/swarms/{id}")).json()["sessionId"]) as opened:
        opened.append(build_record_body(PausedRecord(swarm=id)), branch="crew")

    said = {"budget": {"cost": 5, "tokens": None}, "agentBudget": {"tokens": 9}}
    await client.post(f"/api/swarms/{id}/resume", json=said)
    status = await wait_for_state(client, id, "paused", "completed")

    assert status["budget"] == {"cost": 5, "tokens": None, "seconds": None}
    assert status["agentBudget"] == {"cost": None, "tokens": 9, "seconds": 60}


async def test_a_resumed_swarm_uses_its_original_tools(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = await env.create_swarm(env.create_session(), agents=1, tools=builtin_tools("read"), system="Only read.")
    lacking = await env.create_swarm(env.create_session(), agents=1, tools=[look])

    await client.post(f"/api/swarms/{id}/resume", json={})
    await wait_for_state(client, id, "completed")
    refused = await client.post(f"/api/swarms/{lacking}/resume", json={})

    (request,) = env.models.model.requests
    assert ([tool.name for tool in request.tools], request.system) == (["read"], "Only read.")
    assert refused.status_code == 409
    assert (
        refused.json()["error"]["message"] == "swarm crew was started with the tool look, which is not available here"
    )


@st.tool
def look() -> str:
    """Look."""
    return "seen"


async def test_a_swarm_reports_the_number_of_wanted_agents(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = (await create_swarm(client, session=env.create_session(), start=False, agents=4, strategy="pipeline"))["id"]

    first = (await client.get(f"/api/swarms/{id}")).json()
    scaled = (await client.post(f"/api/swarms/{id}/scale", json={"agents": 6})).json()

    assert [(status["wanted"], status["agentCount"]) for status in (first, scaled)] == [(4, 0), (6, 0)]


async def test_a_budget_changes_only_while_a_swarm_is_paused(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = (await create_swarm(client, session=env.create_session(), start=False))["id"]

    answer = await client.post(f"/api/swarms/{id}/resume", json={"budget": {"cost": 5}})

    assert answer.status_code == 409
    assert answer.json()["error"]["message"] == "swarm crew is created; pause it to change its budget"
    assert (await client.get(f"/api/swarms/{id}")).json()["status"] == "created"


SENT_TO_WORKERS = """
import asyncio, os, sys

import sessiontree as st
from sessiontree.swarm.durable.executor import DurableExecutor, has_active_jobs

async def main():
    session = st.open(sys.argv[1])
    swarm = await st.Swarm.create(session, "crew", "Make it fast", agents=1, executor=DurableExecutor(session))
    await swarm.start()
    while not has_active_jobs(swarm.id):
        await asyncio.sleep(0.05)
    if sys.argv[2:] == ["paused"]:
        await swarm.pause()
    print(swarm.id, flush=True)
    os._exit(0)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["running", "paused"])
async def test_the_server_does_not_resume_a_swarm_of_workers(
    env: ServerEnv, client: httpx.AsyncClient, state: str
) -> None:
    command = [sys.executable, "-c", SENT_TO_WORKERS, env.create_session(), state]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

    answer = await client.post(f"/api/swarms/{done.stdout.strip()}/resume", json={})

    assert answer.status_code == 409
    assert "workers are running agents of swarm crew" in answer.json()["error"]["message"]


async def test_a_swarm_is_not_resumed_on_a_busy_branch(tmp_path: Any) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, gate.delay("Mine."))
    session = env.create_session()
    async with open_client(env.build_app(), env.owner) as client:
        with st.open(session) as opened:
            swarm = await Swarm.create(opened, "crew", "Make it fast", agents=1, model=ScriptedModel([Delay(60)]))
            await swarm.create_branch("cache")
            said = {"text": "And now?", "branch": "cache"}
            prompted = await client.post(f"/api/sessions/{session}/prompt", json=said)
            await gate.wait()
            await swarm.start()
            await wait_until_running(swarm)
            await swarm.detach()
        resumed = await client.post(f"/api/swarms/{swarm.id}/resume", json={})
        gate.open()

    assert (prompted.status_code, resumed.status_code) == (202, 409)
    assert "an agent is running on branch 'cache'" in resumed.json()["error"]["message"]


async def wait_until_running(swarm: Swarm) -> str:
    """Wait for the first agent, and return its branch."""
    async with asyncio.timeout(60):
        while not swarm.status().agents:
            await asyncio.sleep(0.01)
    return swarm.status().agents[0].branch


@pytest.mark.parametrize(
    ("state", "what", "then"),
    [
        ("running", "is running on branch 'crew/worker-1'; another process runs it", "wait until it finishes"),
        ("paused", "is paused on branch 'crew/worker-1'; another process runs it", "resume it"),
        ("left", "is interrupted on branch 'crew/worker-1'; no process runs it", "resume it"),
    ],
)
async def test_branches_of_agents_in_other_processes_are_protected_until_the_swarm_stops(
    env: ServerEnv, client: httpx.AsyncClient, state: str, what: str, then: str
) -> None:
    session = env.create_session()
    with st.open(session) as opened:
        swarm = Swarm(opened, "crew", "Make it fast", agents=1, model=ScriptedModel([Delay(60)]))
        await swarm.start()
        branch = await wait_until_running(swarm)
        async with asyncio.timeout(60):
            while swarm.status().agents[0].status == "pending":
                await asyncio.sleep(0.01)
        if state == "paused":
            await swarm.pause()
        elif state == "left":
            await swarm.detach()

        info = (await client.get(f"/api/sessions/{session}")).json()
        refused = [
            await client.post(f"/api/sessions/{session}/{path}", json=said)
            for path, said in (
                ("prompt", {"text": "And now?", "branch": branch}),
                ("entries", {"role": "user", "text": "And now?", "branch": branch}),
                ("navigate", {"to": "root", "branch": branch}),
                ("steer", {"text": "And now?", "branch": branch}),
                ("abort", {"branch": branch}),
            )
        ]
        stopped = await client.post(f"/api/swarms/{swarm.id}/stop", json={})
        await swarm.detach()
        free = await client.post(
            f"/api/sessions/{session}/entries", json={"role": "user", "text": "?", "branch": branch}
        )
        after = (await client.get(f"/api/sessions/{session}")).json()

    assert (info["running"], info["swarming"]) == ([], {branch: swarm.id})
    assert [answer.status_code for answer in refused] == [409] * 5
    assert refused[0].json()["error"]["message"] == (
        f"agent worker-1 of swarm 'crew' {what}: stop the swarm, or {then}"
    )
    who = "no" if state == "left" else "another"
    assert refused[3].json()["error"]["message"] == (
        f"cannot steer agent worker-1 of swarm 'crew' from this server: {who} process runs it"
    )
    assert (stopped.json()["status"], free.status_code, after["swarming"]) == ("cancelled", 201, {})


async def test_the_branch_of_a_pending_agent_is_protected(tmp_path: Any) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, *[gate.delay("Seen.")] * 4)
    async with open_client(env.build_app(), env.owner) as client:
        session = env.create_session()
        said = {"strategy": "map-reduce", "parts": ["names", "errors"], "agents": 1}
        id = (await create_swarm(client, session=session, **said))["id"]
        async with asyncio.timeout(60):
            while len(info := (await client.get(f"/api/sessions/{session}")).json()["swarming"]) < 2:
                await asyncio.sleep(0.01)
        waiting = {"text": "How far are you?", "branch": "crew/mapper-2"}
        refused = await client.post(f"/api/sessions/{session}/prompt", json=waiting)
        gate.open()
        status = await wait_for_state(client, id, "completed")

    assert info == {"crew/mapper-1": id, "crew/mapper-2": id}
    assert refused.json()["error"]["message"] == (
        "agent mapper-2 of swarm 'crew' is waiting to start on branch 'crew/mapper-2': "
        "stop the swarm, or wait until it finishes"
    )
    assert [agent["status"] for agent in status["agents"]] == ["completed"] * 3


async def test_a_swarm_of_a_dead_process_is_resumed(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    with st.open(session) as opened:
        swarm = Swarm(opened, "crew", "Make it fast", model=ScriptedModel([Delay(60)] * 2))
        await swarm.start()
        held = (await client.get(f"/api/swarms/{swarm.id}")).json()
        await swarm.detach()
    id = swarm.id
    left = (await client.get(f"/api/swarms/{id}")).json()
    assert [(row["status"], row["here"], row["left"]) for row in (held, left)] == [
        ("running", False, False),
        ("running", False, True),
    ]

    await client.post(f"/api/swarms/{id}/resume", json={})

    assert (await wait_for_state(client, id, "completed"))["progress"] == 1


async def test_a_swarm_is_destroyed_and_its_session_keeps_everything(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    id = (await create_swarm(client, session=session))["id"]
    await wait_for_state(client, id, "completed")
    before = (await client.get(f"/api/sessions/{session}")).json()["entries"]

    answer = await client.delete(f"/api/swarms/{id}")

    assert answer.json()["status"] == "destroyed"
    assert (await client.get(f"/api/sessions/{session}")).json()["entries"] >= before


async def test_a_swarm_is_listed_once_even_if_its_session_was_forked(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    id = (await create_swarm(client, session=session))["id"]
    await wait_for_state(client, id, "completed")
    told = (await client.get(f"/api/swarms/{id}/events")).json()["last"]

    forked = (await client.post(f"/api/sessions/{session}/fork", json={"tree": True})).json()["id"]

    assert forked != session
    listed = (await client.get("/api/swarms")).json()["swarms"]
    assert [(row["id"], row["sessionId"]) for row in listed] == [(id, session)]
    assert (await client.get(f"/api/swarms/{id}")).json()["sessionId"] == session
    await client.delete(f"/api/sessions/{forked}")
    assert (await client.get(f"/api/swarms/{id}/events")).json()["last"] == told


async def test_events_are_read_from_any_number_and_by_type(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = (await create_swarm(client, session=env.create_session(), agents=2))["id"]
    await wait_for_state(client, id, "completed")

    everything = (await client.get(f"/api/swarms/{id}/events")).json()
    half = everything["last"] // 2
    rest = (await client.get(f"/api/swarms/{id}/events?after={half}")).json()["events"]
    ends = (await client.get(f"/api/swarms/{id}/events?types=agent_complete,agent_start")).json()["events"]
    agent = ends[0]["agent"]
    own = (await client.get(f"/api/swarms/{id}/events", params={"agent": agent})).json()["events"]

    assert [event["seq"] for event in everything["events"]] == list(range(1, everything["last"] + 1))
    assert rest == everything["events"][half:]
    assert {event["type"] for event in ends} == {"agent_complete", "agent_start"}
    assert {event["agent"] for event in own} == {agent}
    assert (await client.get(f"/api/swarms/{id}/events?types=nonsense")).status_code == 422
    assert (await client.get(f"/api/swarms/{id}/events?after={everything['last'] + 1}")).status_code == 410


async def test_without_event_streaming_there_are_no_events(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = (await create_swarm(client, session=env.create_session(), start=False, enableEventStreaming=False))["id"]

    assert (await client.get(f"/api/swarms/{id}/events")).status_code == 409


async def test_the_event_stream_of_a_swarm_can_be_resumed(env: ServerEnv) -> None:
    session = env.create_session()
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            id = (await create_swarm(client, session=session, start=False))["id"]
            first = await read_until(client, f"/api/swarms/{id}/events", lambda event: event.kind == "swarm")
            await client.post(f"/api/swarms/{id}/resume", json={})
            rest = await read_until(
                client,
                f"/api/swarms/{id}/events",
                lambda event: event.data.get("status") == "completed",
                last=first[-1].id,
            )
            told = (await client.get(f"/api/swarms/{id}/events")).json()

    assert [int(event.id) for event in (*first, *rest)] == list(range(1, told["last"] + 1))
    assert [event.data for event in (*first, *rest)] == told["events"]


async def test_clients_are_notified_when_a_swarm_fails(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, gate.delay("One way."))
    session = env.create_session()

    def full(store: JsonlStore, *_: Any, **__: Any) -> Any:
        raise StoreError(store.location, "no space left")

    def after_the_disk_is_full(event: ServerSentEvent) -> bool:
        if event.kind == "head":  # the stream has started
            monkeypatch.setattr(JsonlStore, "append", full)
            gate.open()
        return event.kind == "notice"

    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            id = (await create_swarm(client, session=session, agents=1))["id"]
            heard = await read_until(client, f"/api/sessions/{session}/events", after_the_disk_is_full)
            async with asyncio.timeout(60):
                while (row := (await client.get(f"/api/swarms/{id}")).json())["here"]:
                    await asyncio.sleep(0.01)

    assert heard[-1].data == {"level": "error", "text": "swarm crew stopped; see the server log"}
    assert (row["status"], row["left"]) == ("running", True)


async def test_a_swarm_of_another_process_is_shown(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    id = await env.create_swarm(session, start=True)

    status = (await client.get(f"/api/swarms/{id}")).json()

    with st.open(session, read_only=True) as opened:
        (known,) = list_swarms(opened)
    assert (status["status"], status["result"]) == (known.status, known.result)


async def test_a_server_without_runs_starts_no_swarm(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, allow_run=False)
    async with open_client(env.build_app(), env.owner) as client:
        answer = await client.post("/api/swarms", json={"name": "crew", "task": "Make it fast"})

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "no_runs")


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"budget": {"cost": 0}}, "budget.cost: expected float > 0.0"),
        ({"agents": [{"name": "a"}, {"nmae": "b"}]}, "agents[1].nmae: unknown field"),
        ({"agents": 100_000}, "agents: expected int <= 1000"),
        ({"task": None}, "task: expected str, got null"),
        ({"retries": -1}, "retries: expected int >= 0"),
        ({"parts": ["Look", 1]}, "parts[1]: expected str, got int"),
        ({"at": ""}, "at: expected str of length >= 1"),
    ],
)
async def test_an_invalid_body_names_the_field(client: httpx.AsyncClient, said: dict[str, Any], sentence: str) -> None:
    answer = await client.post("/api/swarms", json={"name": "crew", "task": "Make it fast", **said})
    lacking = await client.post("/api/swarms", json={"name": "crew"})

    assert answer.json() == {"error": {"code": "invalid", "message": sentence}}
    assert lacking.json()["error"]["message"] == "task: required, but missing"


class NoModels:
    """Knows one model and has no default model."""

    def find(self, name: str | None = None) -> Model:
        if name != "scripted:scripted":
            raise NoModel(name, "there is none")
        return ScriptedModel([])

    def list_names(self) -> list[str]:
        return ["scripted:scripted"]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"model": "nobody:nothing"},
        {"model": "scripted:scripted", "agents": [{"name": "a"}, {"name": "b", "model": "nobody:nothing"}]},
    ],
)
async def test_a_swarm_with_an_unknown_model_creates_nothing(env: ServerEnv, said: dict[str, Any]) -> None:
    async with open_client(env.build_app(models=NoModels()), env.owner) as client:
        answer = await client.post("/api/swarms", json={"name": "crew", "task": "Make it fast", **said})
        listed = (await client.get("/api/sessions")).json()["sessions"]
        session = env.create_session()
        again = await client.post("/api/swarms", json={"name": "crew", "task": "Go", "session": session, **said})
        branches = (await client.get(f"/api/sessions/{session}/branches")).json()["branches"]

    assert [(a.status_code, a.json()["error"]["code"]) for a in (answer, again)] == [(409, "no_model")] * 2
    assert listed == []
    assert [branch["name"] for branch in branches] == ["main"]


@pytest.mark.parametrize(
    "said",
    [
        {"name": "HEAD"},
        {"task": "  "},
        {"parts": ["Look at the tests.", " "]},
        {"retries": -1},
        {"agents": 0},
        {"agents": []},
        {"agents": [{"name": "a"}, {"name": "a"}]},
        {"agents": 3, "maxAgents": 2},
        {"strategy": "nonsense"},
        {"budget": {"cost": -1}},
        {"unknown": 1},
        {"cwd": "relative"},
        {"cwd": "/there/is/no/such/folder"},
    ],
)
async def test_an_invalid_swarm_is_refused(client: httpx.AsyncClient, said: dict[str, Any]) -> None:
    answer = await client.post("/api/swarms", json={"name": "crew", "task": "Make it fast", **said})

    assert answer.status_code == 422
    assert (await client.get("/api/swarms")).json() == {"swarms": [], "next": None}
    assert (await client.get("/api/sessions")).json()["sessions"] == []


async def test_an_invalid_cursor_of_the_list_of_swarms_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.get("/api/swarms?cursor=x")

    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "invalid cursor 'x'")


# Tools and workers


async def test_a_swarm_has_only_the_tools_of_the_request(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()

    swarm = await create_swarm(client, session=session, agents=1, tools=["read", "ls"])
    await wait_for_state(client, swarm["id"], "completed")

    assert [tool.name for tool in env.models.model.requests[0].tools] == ["read", "ls"]
    refused = await client.post(
        "/api/swarms", json={"name": "other", "task": "Make it fast", "session": session, "tools": ["fly"]}
    )
    assert (refused.status_code, "fly" in refused.text) == (409, True)


async def test_workers_run_the_agents_of_a_durable_swarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / ".sessiontree"))
    env = ServerEnv(tmp_path)
    workers = WorkerProcesses(tmp_path)
    try:
        with serve_model(tmp_path, lambda body: "With a cache.") as model:
            async with open_client(env.build_app(models=None), env.owner) as client:
                swarm = await create_swarm(
                    client, session=env.create_session(), model="test:scripted", durable=True, tools=["read"]
                )
                await client.post(f"/api/swarms/{swarm['id']}/pause", json={})
                workers.start()
                await client.post(f"/api/swarms/{swarm['id']}/resume", json={"durable": True})
                status = await wait_for_state(client, swarm["id"], "completed")
                limited = env.create_token("read", "run", project=env.project)
                asked = {"name": "other", "task": "Make it fast", "session": swarm["sessionId"], "durable": True}
                refused = await client.post("/api/swarms", json=asked, headers=build_auth_headers(limited))
    finally:
        workers.end()

    assert {agent["text"] for agent in status["agents"]} == {"With a cache."}
    assert len(model.requests) == 2
    assert {tool["function"]["name"] for tool in model.requests[0]["tools"]} == {"read"}
    assert refused.status_code == 403
