"""Prompts over HTTP: an agent answers on a branch, and clients get all events."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.core.messages import ToolCall
from sessiontree.errors import NotFound
from sessiontree.model.base import Model, ModelError
from sessiontree.model.scripted import Delay, Thinking
from tests.server.conftest import Gate, ServerEnv, build_auth_headers, open_client, run_server
from tests.server.sse import ServerSentEvent, read_until
from tests.store.test_file_operations import limit_file_size


def is_over(event: ServerSentEvent) -> bool:
    return event.kind == "run" and event.data["status"] == "ended"


@pytest.fixture
def env(tmp_path: Any) -> ServerEnv:
    return ServerEnv(tmp_path, [Thinking("Well."), "With a cache."], "And an index.")


async def wait_until_idle(client: httpx.AsyncClient, session: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (info := (await client.get(f"/api/sessions/{session}")).json())["running"]:
            await asyncio.sleep(0.02)
    return info


async def test_a_prompt_is_answered_and_its_answer_is_streamed(env: ServerEnv) -> None:
    session = env.create_session()
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            etag = (await client.get(f"/api/sessions/{session}/tree")).headers["etag"]
            started = await client.post(f"/api/sessions/{session}/prompt", json={"text": "How?"})
            heard = await read_until(client, f"/api/sessions/{session}/events", is_over, after=etag)
            path = (await client.get(f"/api/sessions/{session}/path")).json()["entries"]

    assert started.status_code == 202
    assert started.json()["branch"] == "main"
    deltas = [event.data for event in heard if event.kind == "delta"]
    assert "".join(delta["text"] for delta in deltas if delta["kind"] == "text") == "With a cache."
    assert "".join(delta["text"] for delta in deltas if delta["kind"] == "thinking") == "Well."
    offset = {"text": 0, "thinking": 0}
    for delta in deltas:
        assert delta["offset"] == offset[delta["kind"]]
        offset[delta["kind"]] += len(delta["text"])
    entries = [event.data["entry"] for event in heard if event.kind == "entry"]
    assert [entry["text"] for entry in entries if entry["role"]] == ["How?", "With a cache."]
    assert [row["text"] for row in path[-2:]] == ["How?", "With a cache."]
    assert path[-1]["thinking"] == "Well."
    runs = [event.data for event in heard if event.kind == "run"]
    assert [(run["status"], run["run"]) for run in runs] == [
        ("started", started.json()["run"]),
        ("ended", started.json()["run"]),
    ]
    order = [event.kind for event in heard if event.kind in ("run", "delta") or event.data.get("entry", {}).get("role")]
    assert order == ["run", "entry", *["delta"] * len(deltas), "entry", "run"]


async def test_clients_are_notified_if_the_session_model_is_missing(
    env: ServerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str | None = None) -> Model:
        if name is not None:
            raise NotFound("model", name)
        return env.models.model

    monkeypatch.setattr(env.models, "find", find)
    session = env.create_session()
    with st.open(session) as opened:
        opened.append(st.assistant("From another one.", provider="vanished", model="x"))
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            etag = (await client.get(f"/api/sessions/{session}/tree")).headers["etag"]
            assert (await client.post(f"/api/sessions/{session}/prompt", json={"text": "How?"})).status_code == 202
            heard = await read_until(client, f"/api/sessions/{session}/events", is_over, after=etag)

    (notice,) = [event.data for event in heard if event.kind == "notice"]
    assert notice["level"] == "warning"
    assert "vanished:x" in notice["text"]
    assert notice["text"].endswith("; using the default model")


async def test_clients_are_notified_of_a_retry(tmp_path: Any, home: Any) -> None:
    (home / ".sessiontree").mkdir(parents=True, exist_ok=True)
    (home / ".sessiontree" / "config.toml").write_text("[retry]\nbase_delay = 0.01\n")
    broken = ModelError("scripted:scripted", "network", "the stream was cut off")
    env = ServerEnv(tmp_path, ["Half", broken], "Whole.")
    session = env.create_session()
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            etag = (await client.get(f"/api/sessions/{session}/tree")).headers["etag"]
            await client.post(f"/api/sessions/{session}/prompt", json={"text": "How?"})
            heard = await read_until(client, f"/api/sessions/{session}/events", is_over, after=etag)

    told = [event.data["text"] for event in heard if event.kind == "notice"]
    assert told == ["scripted:scripted: the stream was cut off. Retrying (1 of 3) in 0 s…"]
    assert heard[-1].data["error"] is None


async def test_agents_work_on_two_branches_at_once_and_on_one_branch_one_at_a_time(tmp_path: Any) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, *[gate.delay("Done.")] * 2)
    async with open_client(env.build_app(), env.owner) as client:
        session = env.create_session()
        await client.post(f"/api/sessions/{session}/branches", json={"name": "cache", "switch": False})

        for branch in ("main", "cache"):
            answer = await client.post(f"/api/sessions/{session}/prompt", json={"text": "Go", "branch": branch})
            assert answer.status_code == 202
        running = (await client.get(f"/api/sessions/{session}")).json()["running"]
        second = await client.post(f"/api/sessions/{session}/prompt", json={"text": "Go", "branch": "main"})
        moved = await client.post(f"/api/sessions/{session}/navigate", json={"to": "root"})
        gate.open()
        await wait_until_idle(client, session)
        paths = [
            (await client.get(f"/api/sessions/{session}/path", params={"at": branch})).json()["entries"]
            for branch in ("main", "cache")
        ]

    assert sorted(running) == ["cache", "main"]
    assert (second.status_code, moved.status_code) == (409, 409)
    assert [path[-1]["text"] for path in paths] == ["Done.", "Done."]


async def test_a_running_agent_receives_steering_messages(tmp_path: Any) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, gate.delay(ToolCall("c1", "ls", {"path": "."})), "Seen.")
    async with open_client(env.build_app(), env.owner) as client:
        session = env.create_session()
        assert (await client.post(f"/api/sessions/{session}/steer", json={"text": "Stop"})).status_code == 409
        await client.post(f"/api/sessions/{session}/prompt", json={"text": "Look"})
        steered = await client.post(f"/api/sessions/{session}/steer", json={"text": "Only here"})
        gate.open()
        await wait_until_idle(client, session)
        path = (await client.get(f"/api/sessions/{session}/path")).json()["entries"]

    assert steered.json() == {"branch": "main"}
    said = [(row["role"], row["text"]) for row in path if row["role"] in ("user", "assistant")]
    assert said[-2:] == [("user", "Only here"), ("assistant", "Seen.")]
    (call,) = [use for row in path for use in row.get("tools", ())]
    assert (call["name"], call["ok"]) == ("ls", True)


async def test_an_aborted_run_keeps_its_partial_answer(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, ["First", Delay(30), "never"])
    async with open_client(env.build_app(), env.owner) as client:
        session = env.create_session()
        await client.post(f"/api/sessions/{session}/prompt", json={"text": "Go"})
        async with asyncio.timeout(60):
            while not (await client.get(f"/api/sessions/{session}")).json()["running"]:
                await asyncio.sleep(0.01)
        aborted = await client.post(f"/api/sessions/{session}/abort", json={})
        info = await wait_until_idle(client, session)
        path = (await client.get(f"/api/sessions/{session}/path")).json()["entries"]

    assert aborted.json() == {"branch": "main"}
    assert info["running"] == []
    assert path[-1]["role"] in ("user", "assistant")


async def test_a_model_that_fails_ends_the_run_with_an_error(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, ModelError("scripted", "unavailable", "it is out of order"))
    session = env.create_session()
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            etag = (await client.get(f"/api/sessions/{session}")).headers["etag"]
            await client.post(f"/api/sessions/{session}/prompt", json={"text": "Go"})
            heard = await read_until(client, f"/api/sessions/{session}/events", is_over, after=etag)

    assert "it is out of order" in heard[-1].data["error"]


async def test_a_server_without_runs_calls_no_model(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, "Never.", allow_run=False)
    async with open_client(env.build_app(), env.owner) as client:
        session = env.create_session()
        before = (await client.get(f"/api/sessions/{session}")).headers["etag"]
        asked = [
            await client.post(f"/api/sessions/{session}/{path}", json=body)
            for path, body in (
                ("prompt", {"text": "Go"}),
                ("steer", {"text": "Go"}),
                ("abort", {}),
                ("navigate", {"to": "root", "summarize": True}),
            )
        ]
        after = (await client.get(f"/api/sessions/{session}")).headers["etag"]

    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in asked] == [(403, "no_runs")] * 4
    assert after == before
    assert not env.models.model.requests


async def test_empty_prompts_and_invalid_images_are_refused(env: ServerEnv, client: httpx.AsyncClient) -> None:
    session = env.create_session()
    for said in ({"text": " "}, {"text": "x", "images": [{"type": "text"}]}, {"text": "x", "images": [{"data": 1}]}):
        assert (await client.post(f"/api/sessions/{session}/prompt", json=said)).status_code == 422


async def replace_file_during_run(client: httpx.AsyncClient, session: str) -> None:
    """Start an agent, and replace the session file with a copy, as an editor does."""
    assert (await client.post(f"/api/sessions/{session}/prompt", json={"text": "Go"})).status_code == 202
    with st.open(session, read_only=True) as opened:
        file = opened.file
    assert file is not None
    async with asyncio.timeout(60):
        while b'"Go"' not in file.read_bytes():
            await asyncio.sleep(0.01)
    new = file.with_suffix(".new")
    new.write_bytes(file.read_bytes())
    new.replace(file)


async def test_a_run_is_shown_and_aborted_even_if_its_file_was_replaced(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, Gate().delay("Never."))
    session = env.create_session()
    async with open_client(env.build_app(), env.owner) as client:
        await replace_file_during_run(client, session)

        running = (await client.get(f"/api/sessions/{session}")).json()["running"]
        aborted = await client.post(f"/api/sessions/{session}/abort", json={})
        info = (await client.get(f"/api/sessions/{session}")).json()

    assert running == ["main"]
    assert aborted.json() == {"branch": "main"}
    assert info["running"] == []


async def test_a_new_prompt_aborts_a_run_whose_file_was_replaced(tmp_path: Any) -> None:
    env = ServerEnv(tmp_path, Gate().delay("Never."), "Second.")
    session = env.create_session()
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            etag = (await client.get(f"/api/sessions/{session}")).headers["etag"]
            await replace_file_during_run(client, session)

            second = await client.post(f"/api/sessions/{session}/prompt", json={"text": "Again"})
            heard = await read_until(
                client,
                f"/api/sessions/{session}/events",
                lambda event: is_over(event) and event.data["run"] == second.json()["run"],
                after=etag,
            )
            path = (await client.get(f"/api/sessions/{session}/path")).json()["entries"]

    runs = [event.data for event in heard if event.kind == "run"]
    assert [run["status"] for run in runs] == ["started", "ended", "started", "ended"], "never two at once"
    assert "replaced the file" in runs[1]["error"]
    assert [row["text"] for row in path if row["role"]][-3:] == ["Go", "Again", "Second."]


@pytest.mark.parametrize("temporary", ["takes it", "is full too"])
async def test_the_end_of_a_run_names_the_file_of_an_unsaved_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: str
) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, gate.delay("Paid for."))
    session = env.create_session()
    with st.open(session) as opened:
        opened.append(st.user("long " * 10_000))
        file = Path(str(opened.file))
    with run_server(env) as base:
        async with httpx.AsyncClient(base_url=base, headers=build_auth_headers(env.owner), timeout=20) as client:
            etag = (await client.get(f"/api/sessions/{session}/tree")).headers["etag"]
            await client.post(f"/api/sessions/{session}/prompt", json={"text": "How?"})
            async with asyncio.timeout(60):
                while not env.models.model.requests:
                    await asyncio.sleep(0.01)
            folder = tmp_path if temporary == "takes it" else tmp_path / "none" / "none"
            monkeypatch.setattr(tempfile, "tempdir", str(folder))
            (tmp_path / "none").touch()
            with limit_file_size(file.stat().st_size):
                gate.open()
                heard = await read_until(client, f"/api/sessions/{session}/events", is_over, after=etag)

    error = heard[-1].data["error"]
    if temporary == "takes it":
        found = re.search(r"it is saved in (\S+)", error)
        assert found, error
        assert "Paid for." in Path(found[1]).read_text()
    else:
        assert "could not be saved" in error
        assert "/save-unsaved" not in error
