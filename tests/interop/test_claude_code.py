"""Compactions of Claude Code: what each menu of it and a fork write, and what the program then sends; old subagents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.context import build_context
from sessiontree.library.foreign_continue import continue_session
from sessiontree.library.foreign_import import import_sessions
from tests.interop.conformance import merge, simplify

FRAME = "This session is being continued from a previous conversation. "


def write_lines(path: Path, *lines: dict[str, Any]) -> st.Session:
    times = (f"2026-01-02T09:30:{number:02}.000Z" for number in range(60))
    shared = {"sessionId": "0f1e2d3c-4b5a-4697-8877-665544332211", "version": "2.1.326", "cwd": "/project"}
    path.write_text(
        "".join(json.dumps({**shared, "timestamp": time, **line}) + "\n" for time, line in zip(times, lines))  # noqa: B905
    )
    return st.open(str(path))


def say(id: str, parent: str | None, text: str, **fields: Any) -> dict[str, Any]:
    """Return a line; those of the user begin with `q`, answers with `a`, summaries with `s`."""
    role = "assistant" if id.startswith("a") else "user"
    content: Any = [{"type": "text", "text": text}] if role == "assistant" else text
    summary = {"isCompactSummary": True} if id.startswith("s") else {}
    return (
        {"type": role, "uuid": id, "parentUuid": parent, "message": {"role": role, "content": content}}
        | summary
        | fields
    )


def note(id: str, parent: str) -> dict[str, Any]:
    return {"type": "system", "subtype": "turn_duration", "uuid": id, "parentUuid": parent}


def bound(id: str, above: str, *kept: str) -> dict[str, Any]:
    facts = {"preTokens": 2937, "preservedMessages": {"uuids": list(kept)}}
    return {
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": id,
        "parentUuid": None,
        "logicalParentUuid": above,
        "compactMetadata": facts,
    }


def list_sent(session: st.Session) -> list[str]:
    context = build_context(session.tree, session.heads.leaf)
    sent = {id for id, _ in context.build_request()}
    messages = zip(context.sources, context.messages, strict=True)
    return [message["text"].removeprefix(FRAME) for message in merge(simplify(m for id, m in messages if id in sent))]


TALK = [say("q1", None, "one"), say("a1", "q1", "ONE"), note("n1", "a1")]
LATER = [say("q2", "n1", "two"), say("a2", "q2", "TWO"), note("n2", "a2")]


def test_a_compaction_keeps_the_last_messages(tmp_path: Path) -> None:
    summary = [bound("b", "n2", "a2", "n2"), say("s", "b", f"{FRAME}They counted.")]

    session = write_lines(tmp_path / "a.jsonl", *TALK, *LATER, *summary, say("q3", "s", "three"))

    assert list_sent(session) == ["They counted.", "TWO", "three"]
    assert session.tree.parent("s") == "a2"
    assert not session.problems


def test_a_summary_up_to_a_place_keeps_what_is_below_it(tmp_path: Path) -> None:
    summary = [bound("b", "n1", "q2", "a2", "n2"), say("s", "b", f"{FRAME}They counted.")]

    session = write_lines(tmp_path / "a.jsonl", *TALK, *LATER, *summary, say("q3", "s", "three"))

    assert list_sent(session) == ["They counted.", "two", "TWO", "three"]
    assert list(session.heads.heads) == ["main"]
    assert not session.problems


def test_a_fork_starts_with_the_compaction_and_the_messages_that_it_keeps(tmp_path: Path) -> None:
    kept = [say("a2", "s", "TWO"), note("n2", "a2")]
    summary = [bound("b", "n2", "a2", "n2"), say("s", "b", f"{FRAME}They counted.")]

    session = write_lines(tmp_path / "a.jsonl", *summary, *kept, say("q3", "n2", "three"))

    assert list_sent(session) == ["They counted.", "TWO", "three"]
    assert [entry.id for entry in session.tree.path("q3")] == ["s", "a2", "q3"]
    assert list(session.heads.heads) == ["main"]
    assert not session.problems


def test_a_fork_starts_with_the_messages_before_a_summary_from_a_place(tmp_path: Path) -> None:
    kept = [say("q1", "b", "one"), say("a1", "q1", "ONE"), note("n1", "a1")]
    summary = say("s", "n1", f"{FRAME}They counted.", summarizeMetadata={"direction": "from"})

    session = write_lines(
        tmp_path / "a.jsonl", bound("b", "n1", "q1", "a1", "n1"), *kept, summary, say("q3", "s", "three")
    )

    assert list_sent(session) == ["one", "ONE", "They counted.", "three"]
    assert session.tree["s"].type == "custom_message"
    assert list(session.heads.heads) == ["main"]
    assert not session.problems


def test_a_boundary_without_a_summary_changes_nothing(tmp_path: Path) -> None:
    session = write_lines(tmp_path / "a.jsonl", *TALK, bound("b", "n1", "gone"), say("q2", "b", "two"))

    assert list_sent(session) == ["one", "ONE", "two"]
    assert not session.problems


def test_a_place_is_continued_without_a_compaction_of_another_branch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    other = [say("q4", "n1", "four"), say("a4", "q4", "FOUR")]
    summary = [bound("b", "n2", "a2", "n2"), say("s", "b", f"{FRAME}They counted.")]
    session = write_lines(tmp_path / "a.jsonl", *TALK, *other, *LATER, *summary, say("q3", "s", "three"))

    place = continue_session(session, "claude", at="a4", cwd=str(tmp_path))

    assert list_sent(st.open(place.file)) == ["one", "ONE", "four", "FOUR"]
    assert "They counted" not in Path(place.file).read_text()


def test_subagents_inside_the_file_are_branches_under_their_calls(tmp_path: Path) -> None:
    def call(id: str, task: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": "Task", "input": {"description": task, "prompt": f"Do {task}"}}

    def answer(id: str, parent: str, call: str) -> dict[str, Any]:
        content: Any = [{"type": "tool_result", "tool_use_id": call, "content": "Done"}]
        return {"type": "user", "uuid": id, "parentUuid": parent, "message": {"role": "user", "content": content}}

    calls: Any = {"message": {"role": "assistant", "content": [call("c1", "tests"), call("c2", "docs")]}}
    session = write_lines(
        tmp_path / "s.jsonl",
        say("q1", None, "Check all"),
        say("a1", "q1", "", **calls),
        say("q2", None, "Do tests", isSidechain=True),
        say("q3", None, "Do docs", isSidechain=True),
        say("a3", "q3", "Docs are fine", isSidechain=True),
        say("a2", "q2", "Tests pass", isSidechain=True),
        answer("r1", "a1", "c1"),
        answer("r2", "a1", "c2"),
        say("a4", "r2", "All good"),
    )

    assert session.heads.heads == {"main": "a4", "agent-tests": "a2", "agent-docs": "a3"}
    assert session.heads.current == "main"
    texts = [message["content"] for message in build_context(session.tree, "a2").to_llm()]
    assert texts == ["Do tests", [{"type": "text", "text": "Tests pass"}]]
    assert [session.tree[id].branch for id in ("q2", "a2", "a4")] == ["agent-tests", "agent-tests", "main"]


def test_a_place_between_results_is_continued_without_the_other_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)

    def call(id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": "ls", "input": {}}

    def answer(id: str, parent: str, call: str) -> dict[str, Any]:
        content: Any = [{"type": "tool_result", "tool_use_id": call, "content": f"Result of {call}"}]
        return {"type": "user", "uuid": id, "parentUuid": parent, "message": {"role": "user", "content": content}}

    calls: Any = {"message": {"role": "assistant", "content": [call("c1"), call("c2")]}}
    path = tmp_path / "s.jsonl"
    with write_lines(
        path, say("q1", None, "Look"), say("a1", "q1", "", **calls), answer("r1", "a1", "c1"), answer("r2", "a1", "c2")
    ):
        [result] = import_sessions(str(path), into=str(tmp_path / "own"))
    with st.open(str(result.target)) as session:
        branch = session.create_branch("ours", at="r1")
        branch.append(st.user("Enough"))
        written = continue_session(session, "claude", at="ours")

    texts = Path(written.file).read_text()
    assert "Result of c1" in texts
    assert "Result of c2" not in texts
    assert "Enough" in texts
