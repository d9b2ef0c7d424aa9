"""The content of a session over HTTP: tree, entries, paths, context, branches and appends."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.core.entries import BranchSummary, CustomMessage
from sessiontree.core.messages import build_bash_execution, build_image_block
from sessiontree.core.outline import build_outline
from tests.builders import MESSAGES_AND_FAILURES
from tests.server.conftest import ServerEnv


def create_session(env: ServerEnv, count: int = 30) -> str:
    """Create a session with two branches that diverge half-way, and a label."""
    id = env.create_session()
    with st.open(id) as session:
        session.head.extend([st.user(f"step {number}") for number in range(count)])
        session.label("HEAD~3", "here")
        other = session.create_branch("other", at=f"HEAD~{count // 2}", current=False)
        other.extend([st.user(f"other {number}") for number in range(count // 2)])
    return id


async def read_all_pages(client: httpx.AsyncClient, path: str, **params: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = (await client.get(path, params={**params, **({} if cursor is None else {"cursor": cursor})})).json()
        entries += page["entries"]
        cursor = page["next"]
        if cursor is None:
            return entries


@pytest.mark.parametrize("filter", ["default", "no-tools", "user-only", "labeled-only", "all"])
async def test_the_tree_has_the_rows_and_the_order_of_its_drawing(
    env: ServerEnv, client: httpx.AsyncClient, filter: str
) -> None:
    id = create_session(env)
    path = f"/api/sessions/{id}/tree"

    whole = (await client.get(path, params={"filter": filter, "limit": 2000})).json()
    pages = await read_all_pages(client, path, filter=filter, limit=7)

    with st.open(id, read_only=True) as session:
        rows = build_outline(session.tree, session.heads.leaf, filter)
    assert [row["id"] for row in whole["entries"]] == [row.entry.id for row in rows]
    assert [row["active"] for row in whole["entries"]] == [row.on_path for row in rows]
    assert pages == whole["entries"]
    assert (whole["total"], whole["next"], whole["branch"]) == (len(rows), None, "main")
    shown = {row["id"] for row in whole["entries"]}
    assert all(row["parent"] is None or row["parent"] in shown for row in whole["entries"])


@pytest.mark.parametrize("filter", ["default", "labeled-only", "all"])
async def test_the_rows_around_a_place_are_those_of_the_whole_tree(
    env: ServerEnv, client: httpx.AsyncClient, filter: str
) -> None:
    id = create_session(env)
    path = f"/api/sessions/{id}/tree"
    whole = (await client.get(path, params={"filter": filter, "limit": 2000})).json()

    window = (await client.get(path, params={"filter": filter, "limit": 8, "around": "HEAD~5"})).json()

    start = whole["entries"].index(window["entries"][0])
    assert window["entries"] == whole["entries"][start : start + 8]
    assert (window["hasEarlier"], window["hasLater"]) == (start > 0, start + 8 < whole["total"])
    assert (window["total"], window["next"], window["leaf"]) == (None, None, whole["leaf"])
    assert (whole["hasEarlier"], whole["hasLater"]) == (False, False)


async def test_the_rows_around_a_place_need_a_place_and_no_cursor(env: ServerEnv, client: httpx.AsyncClient) -> None:
    path = f"/api/sessions/{create_session(env)}/tree"

    assert (await client.get(path, params={"around": "nowhere"})).status_code == 404
    assert (await client.get(path, params={"around": "HEAD", "cursor": "1.2"})).status_code == 400


async def test_a_tree_row_has_all_fields(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = create_session(env)

    rows = (await client.get(f"/api/sessions/{id}/tree", params={"filter": "labeled-only"})).json()["entries"]

    (row,) = rows
    assert {**row, "id": "", "timestamp": ""} == {
        "id": "",
        "parent": None,
        "type": "message",
        "role": "user",
        "label": "here",
        "branch": "main",
        "depth": 29,
        "timestamp": "",
        "text": "step 26",
        "active": True,
        "failed": False,
        "files": 0,
    }


async def test_pages_of_a_growing_tree_are_consistent_or_refused(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = create_session(env)
    path = f"/api/sessions/{id}/tree"
    before = (await client.get(path, params={"limit": 2000})).json()["entries"]
    first = (await client.get(path, params={"limit": 10})).json()
    await client.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": "more"})

    second = (await client.get(path, params={"limit": 2000, "cursor": first["next"]})).json()
    strange = await client.get(path, params={"limit": 10, "cursor": "3-00000000.10"})
    nonsense = await client.get(path, params={"cursor": "nonsense"})

    assert [row["id"] for row in (*first["entries"], *second["entries"])] == [row["id"] for row in before]
    assert (strange.status_code, strange.json()["error"]["code"]) == (410, "resync")
    assert nonsense.status_code == 400


async def test_entries_are_the_lines_of_the_file(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = create_session(env)

    lines = await read_all_pages(client, f"/api/sessions/{id}/entries", limit=9)

    with st.open(id, read_only=True) as session:
        assert [line["id"] for line in lines] == [entry.id for entry in session.tree.entries]
    assert lines[1]["message"]["content"] == "How do I make this faster?"


async def test_an_entry_is_found_by_any_name_of_its_place(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = create_session(env)
    found = [(await client.get(f"/api/sessions/{id}/entries/{place}")).json() for place in ("here", "HEAD~3", "main~3")]

    assert found[0] == found[1] == found[2]
    assert (found[0]["label"], found[0]["branch"], len(found[0]["children"])) == ("here", "main", 1)
    assert (await client.get(f"/api/sessions/{id}/entries/nowhere")).status_code == 404
    assert (await client.get(f"/api/sessions/{id}/entries/root")).status_code == 404


async def test_a_path_is_read_from_both_ends(env: ServerEnv, client: httpx.AsyncClient) -> None:
    path = f"/api/sessions/{create_session(env)}/path"

    whole = (await client.get(path, params={"at": "other", "limit": 2000})).json()
    forth = await read_all_pages(client, path, at="other", limit=7)
    back: list[dict[str, Any]] = []
    cursor: str | None = "end"
    while cursor is not None:
        page = (await client.get(path, params={"at": "other", "limit": 7, "cursor": cursor})).json()
        back = [row for row in page["entries"] if row not in back] + back
        cursor = page["previous"]

    assert forth == back == whole["entries"]
    assert whole["total"] == len(forth)
    assert whole["entries"][-1]["text"] == "other 14"


async def test_a_path_can_be_read_from_any_of_its_entries(env: ServerEnv, client: httpx.AsyncClient) -> None:
    path = f"/api/sessions/{create_session(env)}/path"
    whole = (await client.get(path, params={"at": "other", "limit": 2000})).json()
    end = whole["entries"][-1]["id"]

    part = (await client.get(path, params={"limit": 2, "cursor": f"{end}.3"})).json()
    behind = (await client.get(path, params={"cursor": f"{end}.{whole['total'] + 5}"})).json()

    assert part["entries"] == whole["entries"][3:5]
    assert (behind["entries"], behind["total"]) == ([], whole["total"])


async def test_a_path_row_of_an_answer_has_all_fields(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        call = st.tool_call("c1", "read", {"path": "a.py"})
        usage = {"input": 10, "output": 5, "cost": 0.01}
        said = [{"type": "thinking", "thinking": "Well."}, {"type": "text", "text": "I *look*."}, call]
        session.head.append(st.assistant(said, provider="openai", model="gpt", usage=usage))
        session.head.append(st.tool_result("c1", "read", "<b>text</b>", error=True))

    rows = (await client.get(f"/api/sessions/{id}/path", params={"html": "1"})).json()["entries"]

    row, result = rows[-2:]
    assert (row["text"], row["html"], row["thinking"]) == ("I *look*.", "<p>I <em>look</em>.</p>\n", "Well.")
    assert row["tools"] == [{"name": "read", "arguments": {"path": "a.py"}, "result": "<b>text</b>", "ok": False}]
    assert (row["model"], row["cost"], row["tokens"]) == ("openai:gpt", 0.01, 15)
    assert (result["role"], result["text"]) == ("toolResult", "<b>text</b>")
    assert "html" not in result


async def test_the_html_of_a_note_has_no_marks_of_the_program(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    marked = "<command-name>/compact</command-name><command-args></command-args>"
    with st.open(id) as session:
        session.head.append(st.CustomMessage(custom_type="claude.note", content=marked))

    row = (await client.get(f"/api/sessions/{id}/path", params={"html": "1"})).json()["entries"][-1]

    assert (row["text"], row["html"]) == (marked, "<p>/compact</p>\n")


async def test_a_path_marks_merges_and_images(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        pictures = [build_image_block(b"a", "image/png"), build_image_block(b"b", "image/png")]
        session.append(st.user(pictures))
        session.append(CustomMessage(custom_type="note", content=pictures[:1]))
        session.append(BranchSummary(summary="left"))
        session.append(BranchSummary(summary="joined", details={"kind": "merge", "sources": []}))

    rows = (await client.get(f"/api/sessions/{id}/path")).json()["entries"][-4:]

    assert [row.get("images") for row in rows] == [2, 1, None, None]
    assert [row.get("merge") for row in rows] == [None, None, None, True]


async def test_a_path_marks_failed_tools_and_commands(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        session.append(st.tool_result("c1", "read", "there is no such file", error=True))
        session.append(st.tool_result("c2", "read", "all of it"))
        for code in (1, 0, None):
            session.append(build_bash_execution("make", "…", exit_code=code))

    rows = (await client.get(f"/api/sessions/{id}/path")).json()["entries"]

    assert [row.get("failed") for row in rows[-5:]] == [True, None, True, None, True]


async def test_trees_and_paths_mark_the_same_messages_as_failed(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    with st.open(id) as session:
        start = len(session.head.path())
        session.head.extend([body for body, _ in MESSAGES_AND_FAILURES])

    tree = (await client.get(f"/api/sessions/{id}/tree", params={"filter": "all"})).json()["entries"]
    path = (await client.get(f"/api/sessions/{id}/path")).json()["entries"]

    failures = [failed for _, failed in MESSAGES_AND_FAILURES]
    assert [row["failed"] for row in tree][start:] == failures
    assert [row.get("failed", False) for row in path][start:] == failures


async def test_the_html_of_a_session_has_no_active_content(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    said = '<script>alert(1)</script> <img src=x onerror=alert(1)> [x](javascript:alert(1)) <b onclick="x">b</b>'
    await client.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": said})

    html = (await client.get(f"/api/sessions/{id}/path", params={"html": "1"})).json()["entries"][-1]["html"]

    for tag in ("<script", "<img", "<b ", "href"):
        assert tag not in html


async def test_a_very_long_text_has_no_html(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()
    await client.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": "*x* " * 100_000})

    row = (await client.get(f"/api/sessions/{id}/path", params={"html": "1"})).json()["entries"][-1]

    assert len(row["text"]) == 400_000
    assert "html" not in row


async def test_the_context_is_returned_with_an_explanation(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()

    seen = (await client.get(f"/api/sessions/{id}/context")).json()
    why = (await client.get(f"/api/sessions/{id}/context", params={"explain": "1", "at": "HEAD~1"})).json()

    assert [message["role"] for message in seen["messages"]] == ["user", "assistant"]
    assert seen["tokens"] > 0
    assert "explanation" not in seen
    assert [item["reaches"] for item in why["explanation"]] == [False, True]


async def test_branches_diffs_and_comparisons_match_the_commands(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = create_session(env)

    branches = (await client.get(f"/api/sessions/{id}/branches")).json()
    diff = (await client.get(f"/api/sessions/{id}/diff", params={"a": "main", "b": "other"})).json()
    compared = (
        await client.post(f"/api/sessions/{id}/compare", json={"branches": ["main", "other"], "metric": "entries"})
    ).json()

    assert [(row["name"], row["archived"]) for row in branches["branches"]] == [("main", False), ("other", False)]
    assert branches["current"] == "main"
    assert (len(diff["a"]["entries"]), len(diff["b"]["entries"])) == (15, 16)
    assert (compared["winner"], compared["reason"]) == ("main", "lowest entries")


# Appending


async def test_an_entry_is_written_at_the_head_of_a_branch(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = create_session(env)
    path = f"/api/sessions/{id}/entries"

    user = (await client.post(path, json={"role": "user", "text": "one"})).json()
    answer = (await client.post(path, json={"role": "assistant", "text": "two", "branch": "other"})).json()
    whole = (await client.post(path, json={"entry": {"type": "custom", "customType": "x", "data": {"a": 1}}})).json()
    lines = {line["id"]: line for line in await read_all_pages(client, path)}

    assert (user["branch"], user["leaf"], answer["branch"]) == ("main", user["id"], "other")
    assert lines[user["id"]]["message"]["content"] == "one"
    assert lines[answer["id"]]["message"]["role"] == "assistant"
    assert lines[whole["id"]]["data"] == {"a": 1}
    assert lines[whole["id"]]["parentId"] == user["id"]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({}, 422),
        ({"role": "user"}, 422),
        ({"text": "x"}, 422),
        ({"role": "system", "text": "x"}, 422),
        ({"entry": {}}, 422),
        ({"entry": {"type": "session"}}, 422),
        ({"entry": {"type": "custom"}, "text": "x"}, 422),
        ({"entry": {"type": "message", "message": {"role": "user"}}}, 422),
        ({"entry": {"type": "compaction"}}, 422),
        ({"entry": {"type": "custom_message", "customType": "a", "content": [{"type": "b"}], "display": True}}, 422),
        ({"entry": {"type": "branch_point", "branchName": "b"}}, 422),
        ({"role": "user", "text": "x", "branch": "nothing"}, 404),
    ],
)
async def test_an_invalid_entry_is_not_written(
    env: ServerEnv, client: httpx.AsyncClient, said: dict[str, Any], status: int
) -> None:
    id = env.create_session()
    before = (await client.get(f"/api/sessions/{id}")).headers["etag"]

    answer = await client.post(f"/api/sessions/{id}/entries", json=said)

    assert answer.status_code == status
    assert (await client.get(f"/api/sessions/{id}")).headers["etag"] == before


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ({"role": "tool", "content": "x"}, 'needs the "tool_call_id" that it answers'),
        ({"role": "user", "content": [{"type": "image_url", "image_url": "https://x"}]}, "not by address"),
        ({"role": "assistant", "content": "x", "usage": {"tokens": 5}}, 'an ambiguous key "tokens"'),
    ],
)
async def test_a_message_is_checked_like_every_other(
    env: ServerEnv, client: httpx.AsyncClient, message: dict[str, Any], sentence: str
) -> None:
    id = env.create_session()

    answer = await client.post(f"/api/sessions/{id}/entries", json={"entry": {"type": "message", "message": message}})

    assert answer.status_code == 422
    assert sentence in answer.json()["error"]["message"]


async def test_a_write_returns_the_new_position(env: ServerEnv, client: httpx.AsyncClient) -> None:
    id = env.create_session()

    written = await client.post(f"/api/sessions/{id}/entries", json={"role": "user", "text": "x"})

    assert written.headers["etag"] == (await client.get(f"/api/sessions/{id}")).headers["etag"]


@pytest.mark.parametrize(
    ("tag", "status"), [("{now}", 201), ('"1-x", {now}', 201), ("*", 201), ('"1-x"', 412), ("W/{now}", 412)]
)
async def test_a_conditional_write_is_refused_after_a_change(
    env: ServerEnv, client: httpx.AsyncClient, tag: str, status: int
) -> None:
    id = env.create_session()
    now = (await client.get(f"/api/sessions/{id}")).headers["etag"]

    answer = await client.post(
        f"/api/sessions/{id}/entries",
        json={"role": "user", "text": "x"},
        headers={"if-match": tag.replace("{now}", now)},
    )

    assert answer.status_code == status
