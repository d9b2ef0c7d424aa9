"""Sessions continue in other programs, in new files; what a model gets there is our context."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.core.context import build_context
from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.library import foreign_continue
from sessiontree.library.foreign_continue import continue_session, list_targets, write_session
from sessiontree.library.foreign_import import import_sessions
from tests.interop.conformance import (
    FIXTURES,
    Plain,
    describe_context,
    list_fixtures,
    load_expected,
    merge,
    read_one,
    simplify,
)

REWIND = FIXTURES / "claude/rewind/projects/-project/b042d675-5f26-46b9-9b13-3b6ab6e9748c.jsonl"
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / "own"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "PI_CODING_AGENT_DIR", "PI_CODING_AGENT_SESSION_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def describe_request(session: st.Session) -> list[dict[str, object]]:
    """Return what our context sends, in the plain form of the recorded sessions."""
    return merge(simplify(build_context(session.tree, session.heads.leaf).to_llm()))


def build_session() -> st.Session:
    session = st.memory(cwd="/project")
    session.append(st.user("Look at this."))
    call = st.tool_call("call-1", "read", {"path": "app.py"})
    session.append(st.assistant([{"type": "text", "text": "I read it."}, call], model="gpt-5", provider="openai"))
    session.append(st.tool_result("call-1", "read", [{"type": "text", "text": "def slow(): ..."}, IMAGE], error=True))
    session.append(st.assistant("It is slow.", model="gpt-5", provider="openai"))
    session.append(st.user([{"type": "text", "text": "And this?"}, IMAGE]))
    session.append(st.assistant("A picture.", model="gpt-5", provider="openai"))
    return session


def test_an_unchanged_import_is_exported_byte_for_byte() -> None:
    for program in ("claude", "codex"):
        for folder in list_fixtures(program):
            for result in import_sessions(str(folder)):
                session = st.open(str(result.target))
                leaf = session.heads.leaf
                written = write_session(session, program, leaf, session.id, session.cwd)
                assert written.files[0].content == Path(result.source).read_bytes(), result.source


def test_a_session_continues_with_nothing_changed_but_its_id() -> None:
    for result in import_sessions(str(REWIND)):
        written = continue_session(st.open(str(result.target)), "claude")

        old, new = REWIND.read_text(), Path(written.file).read_text()
        assert new == old.replace(REWIND.stem, written.id)
        assert written.command == ["claude", "--resume", written.id]


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_codex_lines(path: Path, *lines: tuple[str, Plain]) -> Path:
    """Write a rollout as older versions do, without ordinals and ids of items."""
    facts: Plain = {
        "id": "01a1ebbf-0001-7226-8d8f-16ad91b7584a",
        "timestamp": "2026-01-02T00:00:00Z",
        "cwd": "/project",
    }
    stamp = "2026-01-02T00:00:01Z"
    found = [("session_meta", facts), *lines]
    records = [{"timestamp": stamp, "type": kind, "payload": payload} for kind, payload in found]
    return write_lines(path / f"rollout-2026-01-02T00-00-00-{facts['id']}.jsonl", *records)


def build_item(role: str, text: str, **fields: str) -> tuple[str, Plain]:
    kind = "input_text" if role == "user" else "output_text"
    return "response_item", {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **fields}


def list_texts(path: str) -> list[object]:
    return [message.get("text") for message in describe_context(read_one(Path(path)))]


def test_an_unchanged_import_that_ends_without_an_answer_is_exported_byte_for_byte(tmp_path: Path) -> None:
    summary = {"message": "So far.", "replacement_history": [build_item("user", "So far.")[1]]}
    talk = [build_item("user", "Q1"), build_item("assistant", "A1")]
    compacted = write_codex_lines(tmp_path, *talk, ("compacted", summary))
    header = {"sessionId": "0f1e2d3c-4b5a-4697-8877-665544332211", "projectHash": "h", "kind": "main"}
    question = {"id": "q1", "type": "user", "content": [{"text": "Q1"}]}
    (tmp_path / "gemini").mkdir()
    cancelled = write_lines(tmp_path / "gemini/session-1.jsonl", header, question, {"$set": {"messages": []}})

    for program, path in (("codex", compacted), ("gemini", cancelled)):
        [result] = import_sessions(str(path))
        for place in (str(path), str(result.target)):
            with st.open(place) as session:
                written = write_session(session, program, session.heads.leaf, session.id, session.cwd)
                assert written.files[0].content == path.read_bytes()
            with st.open(place) as session:
                moved = continue_session(session, program)
                assert Path(moved.file).read_text() == path.read_text().replace(session.id, moved.id)


def test_a_database_session_is_exported_as_its_program_exports_it(tmp_path: Path) -> None:
    database = tmp_path / "opencode.db"
    folder = FIXTURES / "opencode/revert"
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript((folder / "opencode.db.sql").read_text())
    [export] = folder.glob("ses_*.json")

    with st.open(f"{database}#{export.stem}") as session:
        written = write_session(session, "opencode", session.heads.leaf, session.id, session.cwd)

    assert json.loads(written.files[0].content) == json.loads(export.read_bytes())


def test_codex_continues_before_turns_that_were_rolled_back(tmp_path: Path) -> None:
    first = [build_item("user", "Q1", id="q1"), build_item("assistant", "A1", id="a1")]
    second = [build_item("user", "Q2", id="q2"), build_item("assistant", "A2", id="a2")]
    rollback = ("event_msg", {"type": "thread_rolled_back", "num_turns": 1})
    third = [build_item("user", "Q3", id="q3"), build_item("assistant", "A3", id="a3")]
    path = write_codex_lines(tmp_path, *first, *second, rollback, *third)

    with st.open(str(path)) as session:
        back, now = continue_session(session, "codex", at="revert-1"), continue_session(session, "codex")

    assert list_texts(back.file) == ["Q1", "A1", "Q2", "A2"]
    assert list_texts(now.file) == ["Q1", "A1", "Q3", "A3"]


def test_codex_continues_before_a_compaction(tmp_path: Path) -> None:
    talk = [build_item("user", "Q1", id="q1"), build_item("assistant", "A1", id="a1")]
    summary = {"message": "So far.", "replacement_history": [build_item("user", "So far.")[1]]}
    path = write_codex_lines(tmp_path, *talk, ("compacted", summary), build_item("user", "Q2", id="q2"))

    with st.open(str(path)) as session:
        answer = next(entry.id for entry in session.tree.entries if entry.text == "A1")
        before, after = continue_session(session, "codex", at=answer), continue_session(session, "codex", at="HEAD~1")

    assert list_texts(before.file) == ["Q1", "A1"]
    assert list_texts(after.file) == ["So far."]


def test_claude_continues_at_an_answer_of_several_lines(tmp_path: Path) -> None:
    def build_line(uuid: str, parent: str | None, kind: str, content: object, **message: str) -> Plain:
        line: Plain = {"type": kind, "uuid": uuid, "parentUuid": parent, "timestamp": "2026-01-02T00:00:01Z"}
        return {**line, "sessionId": "s1", "message": {"role": kind, "content": content, **message}}

    note = {"type": "progress", "uuid": "n1", "parentUuid": None, "timestamp": "2026-01-02T00:00:00Z"}
    think = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    path = write_lines(
        tmp_path / "s1.jsonl",
        note,
        build_line("q1", "n1", "user", "Q1"),
        build_line("a1", "q1", "assistant", [think], id="m1", model="opus"),
        build_line("a2", "a1", "assistant", [{"type": "text", "text": "A1"}], id="m1", model="opus"),
        {**note, "uuid": "n2", "parentUuid": "a2"},
        build_line("q2", "n2", "user", "Q2"),
        build_line("a3", "q2", "assistant", [{"type": "text", "text": "A2"}], id="m2", model="opus"),
    )

    with st.open(str(path)) as session:
        written = continue_session(session, "claude", at="a2")

    assert list_texts(written.file) == ["Q1", "A1"]
    assert read_one(Path(written.file)).problems == ()
    assert '"n1"' in Path(written.file).read_text()
    assert '"n2"' not in Path(written.file).read_text()


def test_the_file_is_where_the_program_looks_for_it(home: Path) -> None:
    session = build_session()

    claude = continue_session(session, "claude", cwd="/my project/x.y")
    codex = continue_session(session, "codex")

    assert claude.file == str(home / f".claude/projects/-my-project-x-y/{claude.id}.jsonl")
    assert Path(codex.file).match(f"{home}/.codex/sessions/*/*/*/rollout-*-{codex.id}.jsonl")
    assert os.stat(claude.file).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_the_written_session_has_the_same_context(program: str) -> None:
    session = build_session()

    written = continue_session(session, program)

    assert describe_context(read_one(Path(written.file))) == describe_request(session)


@pytest.mark.parametrize("program", ["claude", "codex"])
@pytest.mark.parametrize("folder", list_fixtures("claude", "codex"), ids=lambda path: "-".join(path.parts[-2:]))
def test_every_recorded_session_continues_in_each_program(folder: Path, program: str) -> None:
    list(import_sessions(str(folder)))
    with st.open(load_expected(folder)["resumed"]) as session:
        session.append(st.user("Ours"))
        session.append(st.assistant("Our answer", model="gpt-5", provider="openai"))
        expected = describe_request(session)
        if (folder.parts[-2], folder.name) != (program, "thinking"):
            expected = [{key: message[key] for key in message if key != "thinking"} for message in expected]

        written = continue_session(session, program)

    found = describe_context(read_one(Path(written.file)))
    assert drop_wrapping(found) == drop_wrapping([message for message in expected if len(message) > 1])


def drop_wrapping(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """Compare a summary by its text: each program puts its own words round it."""
    found: list[dict[str, object]] = []
    for message in messages:
        text = str(message.get("text", ""))
        is_summary = "Summary: the user asked" in text
        found.append({"role": "summary"} if is_summary else message)
    return found


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_a_place_inside_the_original_is_continued_without_what_follows(program: str) -> None:
    folder = FIXTURES / program / ("rewind" if program == "claude" else "revert")
    for result in import_sessions(str(folder)):
        session = st.open(str(result.target))
        other = next(name for name in session.heads.heads if name != "main")

        written = continue_session(session, program, at=f"{other}~1")

        questions = [message["text"] for message in describe_context(read_one(Path(written.file)))]
        assert questions[-1] == "Question three, first try"
        assert len(questions) == 5


def test_what_a_format_cannot_hold_is_listed() -> None:
    session = st.memory(cwd="/project")
    session.append(st.system("Be brief."))
    session.append(st.user("Hello"))
    thinking = {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "x"}
    call = st.tool_call("a|b:c", "read", {})
    session.append(st.assistant([thinking, call], api="google-generative-ai", model="g", provider="google"))
    session.append(st.tool_result("a|b:c", "read", "no", error=True))

    claude = [omission.block for omission in continue_session(session, "claude").omitted]
    codex = [omission.block for omission in continue_session(session, "codex").omitted]

    assert claude == ["system", "thinking", "toolCall.id"]
    assert codex == ["system", "thinking", "toolCall.id", "isError"]


def test_a_compaction_becomes_one_of_the_program() -> None:
    session = build_session()
    leaf = session.heads.leaf
    assert leaf is not None
    session.append(st.Compaction(summary="They looked at app.py.", first_kept=leaf))
    session.append(st.user("Go on"))

    for program in ("claude", "codex"):
        found = describe_context(read_one(Path(continue_session(session, program).file)))
        assert "They looked at app.py." in found[0]["text"]
        assert [message.get("text") for message in found[1:]] == ["A picture.", "Go on"]


def test_pi_continues_a_fork_in_its_own_folder(home: Path) -> None:
    session = build_session()

    written = continue_session(session, "pi")

    forked = st.open(written.file)
    assert Path(written.file).parent == home / ".pi/agent/sessions/--project--"
    assert describe_request(forked) == describe_request(session)


def test_an_unknown_program_is_an_error() -> None:
    with pytest.raises(InvalidOperation, match="programs: claude, codex"):
        continue_session(build_session(), "emacs")
    assert list_targets()[-1] == "pi"


def test_a_value_is_added_to_a_json_file_once(tmp_path: Path) -> None:
    from sessiontree.interop.resume import JsonEntry

    add = foreign_continue._add_json_entry  # pyright: ignore[reportPrivateUsage]
    path = tmp_path / "program/projects.json"
    entry = JsonEntry(path="projects.json", keys=("projects", "/a"), value="a")

    add(str(path), entry)
    add(str(path), JsonEntry(path="projects.json", keys=("projects", "/b"), value="b"))
    add(str(path), JsonEntry(path="projects.json", keys=("projects", "/a"), value="other"))

    assert json.loads(path.read_text()) == {"projects": {"/a": "a", "/b": "b"}}
    path.write_text("[]")
    with pytest.raises(StoreError, match="not a JSON object"):
        add(str(path), entry)
    assert path.read_text() == "[]"
