"""Versions of messages: an edit and a retry move the branch, keep what was there, and can be undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.model.base import ModelError
from tests.server.conftest import ServerEnv, open_client
from tests.server.test_runs import wait_until_idle

Rows = list[dict[str, Any]]


@pytest.fixture
def env(tmp_path: Path) -> ServerEnv:
    return ServerEnv(tmp_path, "With an index.", "With a queue.")


async def read_messages(client: httpx.AsyncClient, id: str, at: str = "HEAD") -> Rows:
    rows = (await client.get(f"/api/sessions/{id}/path", params={"at": at})).json()["entries"]
    return [row for row in rows if row["role"]]


async def send_prompt(client: httpx.AsyncClient, id: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(f"/api/sessions/{id}/prompt", json=body)
    assert answer.status_code == 202, answer.text
    return await wait_until_idle(client, id)


async def test_a_retry_answers_the_prompt_again_and_keeps_the_old_answer(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    id = env.create_session()
    question, answer = await read_messages(client, id)
    assert "versions" not in answer

    session = await send_prompt(client, id, at=question["id"])

    asked, retried = await read_messages(client, id)
    assert asked["id"] == question["id"]
    assert (retried["text"], retried["versions"]) == ("With an index.", [answer["id"], retried["id"]])
    (_, old) = await read_messages(client, id, answer["id"])
    assert (old["text"], old["versions"]) == (answer["text"], retried["versions"])
    (unnamed,) = (await client.get(f"/api/sessions/{id}/branches")).json()["unnamed"]
    assert (unnamed["leaf"], unnamed["text"]) == (answer["id"], "With a **cache**.")
    assert session["undoable"] == "the move of main"


async def test_an_edit_asks_again_at_the_same_place(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    question, _ = await read_messages(client, id)

    await send_prompt(client, id, at=question["parent"], text="How do I make this safer?")

    asked, answered = await read_messages(client, id)
    assert [asked["text"], answered["text"]] == ["How do I make this safer?", "With an index."]
    assert asked["versions"] == [question["id"], asked["id"]]
    undone = await client.post(f"/api/sessions/{id}/undo", json={})
    assert undone.json()["undone"] == "the move of main"
    assert (await read_messages(client, id))[0]["id"] == question["id"]


async def test_versions_are_found_below_branch_points_and_settings(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        session.create_branch("a", at="main").append(st.user("Try a."))
        session.create_branch("b", at="main").append(st.user("Try b."))

    of_a, of_b = [(await read_messages(client, id, place))[-1] for place in ("a", "b")]

    assert of_a["versions"] == of_b["versions"] == [of_a["id"], of_b["id"]]


async def test_the_newest_leaf_below_an_entry_is_the_last_version_of_each(
    env: ServerEnv, client: httpx.AsyncClient
) -> None:
    id = env.create_session()
    question, answer = await read_messages(client, id)
    await send_prompt(client, id, at=question["id"])

    found = (await client.get(f"/api/sessions/{id}/entries/{question['id']}")).json()

    assert found["newestLeaf"] == (await read_messages(client, id))[-1]["id"]
    assert (await client.get(f"/api/sessions/{id}/entries/{answer['id']}")).json()["newestLeaf"] == answer["id"]


async def test_a_retry_after_an_answer_is_refused_and_moves_nothing(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        session.extend([st.user("And then?"), st.assistant("Then nothing.")])
    before = await read_messages(client, id)

    refused = await client.post(f"/api/sessions/{id}/prompt", json={"at": before[1]["id"]})
    empty = await client.post(f"/api/sessions/{id}/prompt", json={})

    assert (refused.status_code, empty.status_code) == (409, 422)
    assert "no message to answer" in refused.json()["error"]["message"]
    assert await read_messages(client, id) == before


async def test_failures_are_marked_in_the_tree_and_tool_results_name_their_tool(tmp_path: Path) -> None:
    env = ServerEnv(tmp_path, ModelError("scripted:scripted", "auth", "the provider is down"))
    id = env.create_session()
    with st.open(id) as session:
        session.extend(
            [
                st.assistant([st.tool_call("c1", "read", {"path": "a.py"})]),
                st.tool_result("c1", "read", "no such file", error=True),
            ]
        )
    async with open_client(env.build_app(), env.owner) as client:
        await send_prompt(client, id, text="How?")
        tree = (await client.get(f"/api/sessions/{id}/tree", params={"filter": "all"})).json()["entries"]
        path = await read_messages(client, id)

    assert [(row["role"], row["text"]) for row in tree if row["failed"]] == [
        ("toolResult", "no such file"),
        ("assistant", "the provider is down"),
    ]
    assert [row.get("tool") for row in path if row["role"] == "toolResult"] == ["read"]
