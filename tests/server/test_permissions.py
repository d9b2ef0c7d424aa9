"""Permissions of agents of the server: denied, allowed, or asked over the stream and answered by a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.agent.permission_rules import read_user_rules
from sessiontree.core.messages import ToolCall
from sessiontree.home import get_home
from sessiontree.server.request_checks import ServerLimits
from tests.server.conftest import ServerEnv, build_auth_headers, open_client, run_server
from tests.server.sse import ServerSentEvent, read_until
from tests.server.test_runs import is_over, wait_until_idle

TOUCH = [ToolCall("c1", "bash", {"command": "touch made"})]


@pytest.fixture
def env(tmp_path: Path) -> ServerEnv:
    return ServerEnv(tmp_path, TOUCH, "Done.", TOUCH, "Done.")


@contextlib.asynccontextmanager
async def client(env: ServerEnv, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    with run_server(env, **options) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as found:
            yield found


def is_question(event: ServerSentEvent) -> bool:
    return event.kind == "permission" and event.data["status"] == "asked"


async def ask(client: httpx.AsyncClient, session: str, **said: Any) -> tuple[dict[str, Any], str]:
    """Run an agent until it asks. Return the question and the position of the stream."""
    etag = (await client.get(f"/api/sessions/{session}/tree")).headers["etag"]
    prompted = await client.post(
        f"/api/sessions/{session}/prompt", json={"text": "go", "permissionMode": "ask", **said}
    )
    assert prompted.status_code == 202, prompted.text
    heard = await read_until(client, f"/api/sessions/{session}/events", is_question, after=etag)
    return heard[-1].data, etag


async def test_a_run_without_a_mode_reports_denied_calls(env: ServerEnv) -> None:
    session = env.create_session()
    async with client(env) as web:
        etag = (await web.get(f"/api/sessions/{session}/tree")).headers["etag"]
        await web.post(f"/api/sessions/{session}/prompt", json={"text": "go"})
        heard = await read_until(web, f"/api/sessions/{session}/events", is_over, after=etag)

    assert not (env.project / "made").exists()
    assert not [event for event in heard if event.kind == "permission"]
    (denied,) = [event.data for event in heard if event.kind == "tool" and event.data["status"] == "denied"]
    assert denied["title"] == "bash: touch made"
    assert heard[-1].data["denied"] == [
        {"call": "bash: touch made", "reason": "it can change anything, and no user is present to approve it"}
    ]
    assert "Permission denied" in str(env.models.model.requests[-1].messages[-1])


async def test_the_first_snapshot_of_a_large_folder_reports_its_progress(
    env: ServerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.agent.file_recorder.MIN_REPORTED", 1)
    (env.project / "first").write_text("1")
    session = env.create_session()
    async with client(env, permission_mode="allow-all") as web:
        etag = (await web.get(f"/api/sessions/{session}/tree")).headers["etag"]
        await web.post(f"/api/sessions/{session}/prompt", json={"text": "go"})
        heard = await read_until(web, f"/api/sessions/{session}/events", is_over, after=etag)

    found = [event.data for event in heard if event.kind == "snapshot"]
    assert found
    assert all(data["branch"] == "main" and data["done"] == data["total"] for data in found)


async def test_a_question_is_an_event_and_a_request_answers_it(env: ServerEnv) -> None:
    session = env.create_session()
    async with client(env) as web:
        question, etag = await ask(web, session)
        pending = (await web.get(f"/api/sessions/{session}/permissions")).json()["questions"]
        answered = await web.post(f"/api/sessions/{session}/permissions/{question['id']}", json={"answer": "once"})
        heard = await read_until(web, f"/api/sessions/{session}/events", is_over, after=etag)
        again = await web.post(f"/api/sessions/{session}/permissions/{question['id']}", json={"answer": "once"})

    assert (env.project / "made").exists()
    assert question["title"] == "bash: touch made"
    assert question["scopes"] == ["once", "session", "always", "no"]
    assert [{**one, "status": "asked"} for one in pending] == [question]
    assert answered.status_code == 200
    assert again.status_code == 404
    assert [event.data["status"] for event in heard if event.kind == "permission"] == ["asked", "answered"]


async def test_a_denial_and_its_reason_reach_the_model(env: ServerEnv) -> None:
    session = env.create_session()
    async with client(env) as web:
        question, _ = await ask(web, session)
        said = {"answer": "no", "reason": "use make"}
        await web.post(f"/api/sessions/{session}/permissions/{question['id']}", json=said)
        await wait_until_idle(web, session)

    assert not (env.project / "made").exists()
    assert "denied by the user: use make" in str(env.models.model.requests[-1].messages[-1])


async def test_an_answer_for_the_session_applies_to_the_next_run(env: ServerEnv) -> None:
    session = env.create_session()
    async with client(env) as web:
        question, _ = await ask(web, session)
        await web.post(f"/api/sessions/{session}/permissions/{question['id']}", json={"answer": "session"})
        await wait_until_idle(web, session)
        (env.project / "made").unlink()
        await web.post(f"/api/sessions/{session}/prompt", json={"text": "again"})
        await wait_until_idle(web, session)

    assert (env.project / "made").exists()


async def test_an_expired_question_is_denied_and_reported(tmp_path: Path) -> None:
    env = ServerEnv(tmp_path, TOUCH, "Done.", limits=ServerLimits(rate=1e6, burst=1_000_000, permission_seconds=0.05))
    session = env.create_session()
    async with client(env) as web:
        _, etag = await ask(web, session)
        heard = await read_until(web, f"/api/sessions/{session}/events", is_over, after=etag)

    assert [event.data["status"] for event in heard if event.kind == "permission"] == ["asked", "expired"]
    assert "the question was not answered" in str(env.models.model.requests[-1].messages[-1])
    assert not (env.project / "made").exists()


async def test_aborting_a_run_withdraws_its_question(env: ServerEnv) -> None:
    session = env.create_session()
    async with client(env) as web:
        _, etag = await ask(web, session)
        await web.post(f"/api/sessions/{session}/abort", json={})
        heard = await read_until(web, f"/api/sessions/{session}/events", is_over, after=etag)
        pending = (await web.get(f"/api/sessions/{session}/permissions")).json()

    assert [event.data["status"] for event in heard if event.kind == "permission"] == ["asked", "withdrawn"]
    assert pending == {"questions": []}


async def test_only_a_token_that_may_run_in_the_project_answers(env: ServerEnv) -> None:
    session = env.create_session()
    reader, other = env.create_token("read", "write"), env.create_token("read", "run", project=env.other)
    own = env.create_token("read", "run", project=env.project)
    async with client(env) as web:
        question, _ = await ask(web, session)
        address = f"/api/sessions/{session}/permissions/{question['id']}"
        refused = [
            (await web.post(address, json={"answer": answer}, headers=build_auth_headers(token))).status_code
            for token, answer in ((reader, "once"), (other, "once"), (own, "always"))
        ]
        wrong = await web.post(address, json={"answer": "maybe"})
        beyond = await web.post(address, json={"answer": "once"}, headers=build_auth_headers(own))
        assert not (env.project / "made").exists()
        taken = await web.post(address, json={"answer": "once"})
        await wait_until_idle(web, session)

    assert refused == [403, 404, 403]
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (403, "more_rights")
    assert wrong.status_code == 422
    assert taken.status_code == 200
    assert (env.project / "made").exists()


async def test_a_project_token_can_deny_a_call_of_an_agent_with_more_rights(env: ServerEnv) -> None:
    session, own = env.create_session(), env.create_token("read", "run", project=env.project)
    async with client(env) as web:
        question, _ = await ask(web, session)
        address = f"/api/sessions/{session}/permissions/{question['id']}"
        said = await web.post(address, json={"answer": "no"}, headers=build_auth_headers(own))
        await wait_until_idle(web, session)

    assert said.status_code == 200
    assert not (env.project / "made").exists()


async def test_grants_of_a_limited_token_do_not_apply_to_unlimited_agents(
    env: ServerEnv,
) -> None:
    session, own = env.create_session(), env.create_token("read", "write", "run", project=env.project)
    async with client(env) as web:
        web.headers.update(build_auth_headers(own))
        question, _ = await ask(web, session)
        address = f"/api/sessions/{session}/permissions/"
        allowed = await web.post(address + question["id"], json={"answer": "session"})
        await wait_until_idle(web, session)
        assert (env.project / "made").exists()
        web.headers.update(build_auth_headers(env.owner))
        again, _ = await ask(web, session)
        await web.post(address + again["id"], json={"answer": "no"})
        await wait_until_idle(web, session)

    assert allowed.status_code == 200
    assert again["title"] == question["title"]


async def test_a_question_of_another_session_is_not_found(env: ServerEnv) -> None:
    session, second = env.create_session(), env.create_session()
    async with client(env) as web:
        question, _ = await ask(web, session)
        answered = await web.post(f"/api/sessions/{second}/permissions/{question['id']}", json={"answer": "once"})
        await web.post(f"/api/sessions/{session}/abort", json={})

    assert answered.status_code == 404
    assert not (env.project / "made").exists()


async def test_always_is_written_to_the_users_rules(env: ServerEnv) -> None:
    session = env.create_session()
    async with client(env) as web:
        question, _ = await ask(web, session)
        await web.post(f"/api/sessions/{session}/permissions/{question['id']}", json={"answer": "always"})
        await wait_until_idle(web, session)

    assert read_user_rules(get_home()).folders[str(env.project)].allow == ("bash:touch made",)


@pytest.mark.parametrize(
    ("options", "said", "made"),
    [
        ({"permission_mode": "allow-all"}, {}, True),
        ({"allow": ("bash:touch *",)}, {}, True),
        ({"permission_mode": "allow-all"}, {"permissionMode": "allow-all"}, True),
        ({"permission_mode": "allow-all"}, {"permissionMode": "read-only"}, False),
    ],
)
async def test_a_flag_or_the_request_chooses_the_mode(
    env: ServerEnv, options: dict[str, Any], said: dict[str, Any], made: bool
) -> None:
    session = env.create_session()
    async with client(env, **options) as web:
        await web.post(f"/api/sessions/{session}/prompt", json={"text": "go", **said})
        await wait_until_idle(web, session)

    assert (env.project / "made").exists() is made


@pytest.mark.parametrize("options", [{}, {"permission_mode": "ask"}])
async def test_a_request_cannot_be_more_lenient_than_the_server(env: ServerEnv, options: dict[str, Any]) -> None:
    session = env.create_session()
    async with open_client(env.build_app(**options), env.owner) as web:
        answer = await web.post(f"/api/sessions/{session}/prompt", json={"text": "go", "permissionMode": "allow-edits"})
        me = (await web.get("/api/me")).json()

    assert answer.status_code == 403
    assert "modes up to ask" in answer.json()["error"]["message"]
    assert me["permissionMode"] == "ask"


async def test_denied_calls_of_swarm_agents_are_reported(env: ServerEnv) -> None:
    session = env.create_session()
    async with client(env) as web:
        made = await web.post(
            "/api/swarms", json={"name": "crew", "task": "Go.", "agents": 1, "session": session, "start": True}
        )
        assert made.status_code == 201, made.text
        async with asyncio.timeout(60):
            while (swarm := (await web.get(f"/api/swarms/{made.json()['id']}")).json())["status"] != "completed":
                await asyncio.sleep(0.02)

    assert not (env.project / "made").exists()
    assert swarm["agents"][0]["denied"] == ["bash: touch made"]
    with st.open(session, read_only=True) as opened:
        assert "Permission denied" in str([entry.body for entry in opened.tree])
