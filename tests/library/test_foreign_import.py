"""Sessions of other programs are imported once, and later only what is new."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.core.messages import sum_usage
from sessiontree.errors import NotFound
from sessiontree.interop.originals import read_originals
from sessiontree.library.foreign_import import ImportResult, import_sessions, list_importable
from tests.interop.conformance import FIXTURES, describe_context, expect_messages, list_fixtures, load_expected

REWIND = FIXTURES / "claude/rewind/projects/-project/b042d675-5f26-46b9-9b13-3b6ab6e9748c.jsonl"
RESUMED = "be8ce0e0-39a7-42fb-b106-bde3411e5ba9"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / "own"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def bring_in(place: Path | str, **options: bool) -> list[ImportResult]:
    return list(import_sessions(str(place), join=options.get("join", False)))


def add_turn(file: Path, parent: str, question: str) -> None:
    """Append a question to a session of Claude Code, as the program does."""
    uuid = f"00000000-0000-4000-8000-{abs(hash(question)) % 10**12:012d}"
    line = {
        "parentUuid": parent,
        "isSidechain": False,
        "type": "user",
        "message": {"role": "user", "content": question},
        "uuid": uuid,
        "timestamp": "2026-11-18T09:00:00.000Z",
        "sessionId": REWIND.stem,
    }
    with file.open("a") as opened:
        opened.write(json.dumps(line) + "\n")
        opened.write(json.dumps({"type": "last-prompt", "leafUuid": uuid, "sessionId": REWIND.stem}) + "\n")


def list_questions(session: st.Session, branch: str) -> list[str]:
    return [entry.text for entry in session.tree.path(session.heads.heads[branch]) if entry.role == "user"]


def test_an_import_keeps_the_tree_and_the_original(home: Path) -> None:
    [result] = bring_in(REWIND)

    session = st.open(REWIND.stem)
    assert result.state == "imported"
    assert result.target == session.location
    assert session.read_only is None
    assert session.branch("rewind-1").leaf == st.open(REWIND).branch("rewind-1").leaf
    assert read_originals(entry.body for entry in session.tree)[str(REWIND)] == REWIND.read_bytes()
    assert session.problems == []


def test_importing_again_brings_nothing_if_nothing_is_new() -> None:
    bring_in(REWIND)
    before = st.open(REWIND.stem).read_lines()

    [result] = bring_in(REWIND)

    assert result.state == "same"
    assert st.open(REWIND.stem).read_lines() == before


def test_importing_again_brings_what_is_new_and_moves_the_branch(tmp_path: Path) -> None:
    file = tmp_path / REWIND.name
    shutil.copy(REWIND, file)
    bring_in(file)
    add_turn(file, RESUMED, "Question three")

    [result] = bring_in(file)

    session = st.open(REWIND.stem)
    assert (result.state, result.entries) == ("updated", 1)
    assert list_questions(session, "main")[-1] == "Question three"
    assert read_originals(entry.body for entry in session.tree)[str(file)] == file.read_bytes()
    assert [one.state for one in bring_in(file)] == ["same"]


def test_a_branch_that_was_continued_here_stays(tmp_path: Path) -> None:
    file = tmp_path / REWIND.name
    shutil.copy(REWIND, file)
    bring_in(file)
    with st.open(REWIND.stem) as session:
        session.append(st.user("Ours"))
    add_turn(file, RESUMED, "Theirs")

    bring_in(file)

    session = st.open(REWIND.stem)
    assert list_questions(session, "main")[-1] == "Ours"
    assert list_questions(session, "main-claude")[-1] == "Theirs"
    assert session.heads.current == "main"
    add_turn(file, session.heads.heads["main-claude"] or "", "Theirs again")
    bring_in(file)
    assert [name for name in st.open(REWIND.stem).heads.heads if name.startswith("main")] == ["main", "main-claude"]


def test_a_file_that_the_program_rewrote_is_kept_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / REWIND.name
    shutil.copy(REWIND, file)
    bring_in(file)
    file.write_bytes(REWIND.read_bytes().replace(b"first try", b"other try"))
    add_turn(file, RESUMED, "Question three")

    bring_in(file)

    bodies = (entry.body for entry in st.open(REWIND.stem).tree)
    assert read_originals(bodies)[str(file)] == file.read_bytes()


def write_chat(path: Path, *records: object) -> None:
    header = {"sessionId": "0f1e2d3c-4b5a-4697-8877-665544332211", "projectHash": "h", "kind": "main"}
    path.write_text("".join(json.dumps(record) + "\n" for record in (header, *records)))


def build_message(id: str, kind: str, text: str, **fields: object) -> dict[str, object]:
    stamp = "2026-01-02T09:30:00.000Z"
    return {"id": id, "timestamp": stamp, "type": kind, "content": text, "model": "g", **fields}


def test_an_answer_that_was_imported_while_it_was_written_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "session-1.jsonl"
    response = {"functionResponse": {"id": "c1", "name": "ls", "response": {"output": "a.txt"}}}
    call: dict[str, object] = {"id": "c1", "name": "ls", "args": {}, "status": "success", "result": [response]}
    begun = [build_message("q1", "user", "What is here?"), build_message("a1", "gemini", "I look.")]
    done = [build_message("a1", "gemini", "I look.", toolCalls=[call]), build_message("a2", "gemini", "One file.")]
    write_chat(path, *begun)
    [first] = bring_in(path)
    write_chat(path, *begun, *done)

    states = [result.state for _ in range(2) for result in bring_in(path)]

    assert states == ["updated", "same"]
    imported, original = st.open(str(first.target)), st.open(str(path))
    assert [entry.role for entry in imported.tree.path(imported.heads.leaf)] == [
        "user",
        "assistant",
        "toolResult",
        "assistant",
    ]
    assert imported.context().to_llm() == original.context().to_llm()
    assert original.id == imported.id


def test_what_was_continued_here_stays_below_the_answer_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "session-1.jsonl"
    question = build_message("q1", "user", "Why?")
    write_chat(path, question, build_message("a1", "gemini", "Beca"))
    [result] = bring_in(path)
    with st.open(str(result.target)) as session:
        session.append(st.user("Ours"))
    write_chat(path, question, build_message("a1", "gemini", "Because."), build_message("q2", "user", "Theirs"))

    bring_in(path)

    session = st.open(str(result.target))
    texts = {
        name: [entry.text for entry in session.tree.path(leaf) if entry.role]
        for name, leaf in session.heads.heads.items()
    }
    assert texts == {"main": ["Why?", "Beca", "Ours"], "main-gemini": ["Why?", "Because.", "Theirs"]}


def test_what_refers_to_a_changed_entry_refers_to_its_new_version(tmp_path: Path) -> None:
    path = tmp_path / "ses_1.json"

    def write_export(status: str, **state: object) -> None:
        tool = {"type": "tool", "id": "prt_1", "callID": "c1", "tool": "ls", "state": {"status": status, **state}}
        listed = [("msg_1", "user", {"type": "text", "text": "Look"}), ("msg_2", "assistant", tool)]
        messages = [{"info": {"id": id, "role": role}, "parts": [part]} for id, role, part in listed]
        path.write_text(json.dumps({"info": {"id": "ses_1", "version": "1.0", "title": "T"}, "messages": messages}))

    write_export("completed", input={}, output="Half")
    [result] = bring_in(path)
    write_export("completed", input={}, output="Whole", time={"compacted": 5})

    states = [result.state for _ in range(2) for result in bring_in(path)]

    assert states == ["updated", "same"]
    imported, original = st.open(str(result.target)), st.open(str(path))
    assert imported.context().to_llm() == original.context().to_llm()
    assert [entry.type for entry in imported.tree].count("session_info") == 1


def test_bookkeeping_that_was_added_is_kept_too(tmp_path: Path) -> None:
    path = tmp_path / REWIND.name
    shutil.copy(REWIND, path)
    bring_in(path)
    with path.open("a") as opened:
        opened.write(json.dumps({"type": "mode", "mode": "normal", "sessionId": REWIND.stem}) + "\n")

    states = [result.state for _ in range(2) for result in bring_in(path)]

    assert states == ["same", "same"]
    session = st.open(REWIND.stem)
    pieces = [entry for entry in session.tree if entry.type == "original"]
    assert len(pieces) == 2
    assert read_originals(entry.decode() for entry in pieces)[str(path)] == path.read_bytes()


def test_the_cost_that_a_program_notes_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / REWIND.name
    for cost in (1.5, 2.0, 2.0):
        noted = json.dumps({"type": "cost-state", "totalCostUSD": cost, "sessionId": REWIND.stem})
        path.write_text(f"{REWIND.read_text()}{noted}\n")
        bring_in(path)

    session = st.open(REWIND.stem)
    bodies = [entry.body for entry in session.tree if entry.type == "usage"]
    sums = [sum_usage(body.usage) for body in bodies if isinstance(body, st.Usage)]
    assert [used.cost for used in sums if used is not None] == [1.5, 0.5]


def test_all_sessions_of_a_program_are_imported(home: Path) -> None:
    shutil.copytree(FIXTURES / "claude/fork/projects", home / ".claude/projects")
    shutil.copytree(FIXTURES / "claude/subagent/projects", home / ".claude/projects", dirs_exist_ok=True)

    results = bring_in("claude")

    assert sorted(result.session for result in results) == [
        "1e45a55b-d1d9-484e-a20f-9a9edf1d2c84",
        "246d1717-19f8-443c-8f07-e8ebdcf7c793",
        "a735151e-5a69-43f1-94d7-477b22a0d6f6",
    ]
    assert {hit.session for hit in st.search('"in the fork"', all=True)} == {"a735151e-5a69-43f1-94d7-477b22a0d6f6"}


def test_forks_join_into_one_tree_on_request(home: Path) -> None:
    shutil.copytree(FIXTURES / "claude/fork/projects", home / ".claude/projects")

    [result] = bring_in("claude", join=True)

    session = st.open(result.session)
    branches = {name: list_questions(session, name) for name in session.heads.heads}
    common = ["Common question", "Second common question"]
    assert sorted(branches.values()) == [[*common, "Only in the fork"], [*common, "Only in the original"]]


def test_a_session_is_joined_with_its_forks_by_its_path(home: Path) -> None:
    files = sorted((FIXTURES / "claude/fork/projects/-project").glob("*.jsonl"))
    for file in (*files, REWIND):
        shutil.copy(file, home / file.name)

    [result] = bring_in(home / files[0].name, join=True)

    session = st.open(files[0].stem)
    assert result.session == session.id
    assert list(session.heads.heads) == ["main", f"fork-{files[1].stem[:8]}"]


def test_a_thread_of_codex_over_several_files_is_one_session(home: Path) -> None:
    shutil.copytree(FIXTURES / "codex/revert/sessions", home / ".codex/sessions")
    shutil.copytree(FIXTURES / "codex/subagent/sessions", home / ".codex/sessions", dirs_exist_ok=True)
    shutil.copy(FIXTURES / "codex/revert/session_index.jsonl", home / ".codex")

    results = bring_in("codex")

    assert len(results) == 2
    session = st.open("Better name")
    assert list_questions(session, "main")[-1] == "Question two, second try"
    assert list_questions(session, "revert-1")[-1] == "Question three, first try"
    helper = next(st.open(result.session) for result in results if result.session != session.id)
    assert "agent-Lorentz" in helper.heads.heads


@pytest.mark.parametrize("folder", list_fixtures("claude", "codex"), ids=lambda path: "-".join(path.parts[-2:]))
def test_an_imported_session_has_the_context_of_the_original(folder: Path) -> None:
    from sessiontree.export.snapshot import read_snapshot

    bring_in(folder)

    expected = load_expected(folder)
    session = st.open(expected["resumed"])
    assert describe_context(read_snapshot(session.read_lines())) == expect_messages(expected["sent_on_resume"][:-1])


def test_one_session_of_a_program_is_imported_by_its_location_or_its_id(home: Path) -> None:
    shutil.copytree(FIXTURES / "claude/rewind/projects", home / ".claude/projects")
    database = home / ".local/share/opencode/opencode.db"
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript((FIXTURES / "opencode/fork/opencode.db.sql").read_text())

    [of_database] = bring_in(f"{database}#ses_e143d4d6dffeWZkkDzxIurc9Dy")
    with pytest.raises(NotFound, match="b042d675"):
        bring_in("b042d675")
    (home / "own/config.toml").write_text('[sources]\nshow = ["claude", "opencode"]\n')
    [shown] = bring_in("b042d675")
    [same] = bring_in("ses_e143d4d6dffeWZkkDzxIurc9Dy")

    assert (of_database.state, of_database.session) == ("imported", "ses_e143d4d6dffeWZkkDzxIurc9Dy")
    assert (shown.state, shown.session) == ("imported", REWIND.stem)
    assert same.state == "same"


def test_a_place_without_sessions_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"\.claude/projects.*Claude Code has no sessions there"):
        bring_in("claude")
    with pytest.raises(NotFound, match="programs: claude, codex"):
        bring_in(tmp_path / "missing")
    (tmp_path / "noise").write_text("noise")
    with pytest.raises(NotFound, match="unknown format"):
        bring_in(tmp_path / "noise")
    assert {"claude", "codex"} <= set(list_importable())


def test_one_unreadable_session_does_not_stop_the_others(home: Path) -> None:
    folder = home / ".claude/projects"
    shutil.copytree(FIXTURES / "claude/fork/projects", folder)
    (folder / "-project/bad.jsonl").write_text(
        '{"type":"user","uuid":"u","parentUuid":null}\n{"type":"queue-operation"}\n'
    )

    states = {result.session: result.state for result in bring_in("claude")}

    assert len(states) == 3
    assert list(states.values()).count("imported") >= 2
