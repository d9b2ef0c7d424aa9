"""Sessions of other programs are read where they are, and never written to."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sqlite3
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.core.entry_text import format_entry_row
from sessiontree.errors import Ambiguous, FormatError, NotFound, ReadOnly, StoreError
from sessiontree.format.digest import EntryTotals
from sessiontree.library import catalog
from sessiontree.library.foreign_files import DiskFile, ForeignStore, detect_file, find_related_files, open_foreign
from tests.interop.conformance import FIXTURES

REWIND = FIXTURES / "claude/rewind/projects/-project/b042d675-5f26-46b9-9b13-3b6ab6e9748c.jsonl"
TOOLS = FIXTURES / "claude/tools/projects/-project/49ff6b33-a26e-4e71-bee0-ef05c51de0a6.jsonl"
REVERTED = next((FIXTURES / "codex/revert/sessions").rglob("*_*.jsonl"))


def test_a_session_of_another_program_opens_as_a_tree() -> None:
    session = st.open(REWIND)

    assert session.id == "b042d675-5f26-46b9-9b13-3b6ab6e9748c"
    assert session.header.origin == {"program": "claude", "version": "2.1.326"}
    assert list(session.heads.heads) == ["main", "rewind-1"]
    assert session.cwd == "/project"
    assert session.name is None
    assert [problem for problem in session.problems if problem.severity == "fault"] == []


def test_appending_to_it_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    shutil.copy(REWIND, file)
    session = st.open(file)

    with pytest.raises(ReadOnly, match=r"Claude Code.*sessiontree import.*sessiontree continue"):
        session.append(st.user("More"))

    assert file.read_bytes() == REWIND.read_bytes()
    assert os.listdir(tmp_path) == ["session.jsonl"]


def test_a_fork_of_it_goes_to_our_own_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path))

    forked = catalog.fork(st.open(REWIND), at="rewind-1")

    assert forked.file is not None
    assert tmp_path in forked.file.parents
    forked.append(st.user("More"))


def test_every_line_of_an_answer_names_its_entry() -> None:
    session = st.open(TOOLS)

    # The two lines of an answer with parallel calls; the last one gives the entry its id.
    first, last = "c620efeb-179e-4037-87a2-48a8c3855a81", "af23c1bf-49b2-4ffb-ab26-eb73f4f53a4c"
    assert session.resolve_place(first) == last
    assert session.resolve_place(first[:13]) == last
    assert len(session.tree[last].tool_calls) == 2
    # An attachment names the message above it.
    assert session.resolve_place(_find_uuid(TOOLS, "d0b4d8")) == _find_uuid(TOOLS, "baa425")


def _find_uuid(path: Path, start: str) -> str:
    position = path.read_text().index(f'"uuid":"{start}') + 8
    return path.read_text()[position : position + 36]


def test_a_session_of_codex_is_read_with_the_file_that_it_continues() -> None:
    session = st.open(REVERTED)

    assert [entry.text for entry in session.tree.path(session.heads.leaf) if entry.role == "user"] == [
        "Question one",
        "Question two, second try",
    ]
    assert "revert-1" in session.heads.heads


def test_a_fork_of_codex_without_its_base_says_so(tmp_path: Path) -> None:
    fork = next((FIXTURES / "codex/fork/sessions").rglob("*32ff5b628f25.jsonl"))
    shutil.copy(fork, tmp_path)

    session = st.open(tmp_path / fork.name)

    assert [entry.text for entry in session.tree.path(session.heads.leaf) if entry.role == "user"] == [
        "Only in the fork"
    ]
    assert any("which is missing" in problem.message for problem in session.problems)


def test_a_folder_of_another_program_is_listed_and_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path))
    folder = FIXTURES / "claude/fork/projects/-project"

    listed = st.sessions(dir=folder)
    found = st.search('"in the fork"', dir=folder)

    assert {summary.first_message for summary in listed} == {"Common question"}
    assert not any(summary.is_damaged for summary in listed)
    assert [hit.entry for hit in found] == [
        "3ee10f6c-7384-482d-b43a-1005f417b892",
        "6d863212-6588-49f1-b5d3-987e79218ebf",
    ]


def test_our_own_files_and_unknown_files_are_not_foreign(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    st.create(file=own).append(st.user("Hello"))
    (tmp_path / "noise.jsonl").write_text('{"a":1}\n')
    (tmp_path / "empty.jsonl").touch()

    for name in ("own.jsonl", "noise.jsonl", "empty.jsonl", "missing.jsonl"):
        assert detect_file(str(tmp_path / name)) is None
        assert open_foreign(str(tmp_path / name)) is None
    with pytest.raises(FormatError):
        st.open(tmp_path / "noise.jsonl")


def test_a_line_over_the_limit_is_skipped_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiontree.library.foreign_files.LINE_LIMIT", 100)
    monkeypatch.setattr("sessiontree.library.foreign_files.BLOCK_SIZE", 50)
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b"one\n" + b"x" * 1000 + b"\ntwo\n\nlast" + b"y" * 500)

    assert list(DiskFile(str(file)).iter_lines()) == [b"one", b"\0", b"two", b"", b"\0"]


def test_rows_of_a_live_database_are_read(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    database = sqlite3.connect(path)
    database.execute("pragma journal_mode = wal")
    database.execute("create table message (id text, body blob)")
    database.execute("insert into message values ('a', x'00'), ('b', x'01')")
    database.commit()

    file = DiskFile(str(path))
    assert list(file.iter_rows("message", id="b")) == [{"id": "b", "body": b"\x01"}]
    assert len(list(file.iter_rows("message"))) == 2
    assert list(file.iter_rows("missing")) == list(file.iter_rows("message", other=1)) == []
    database.close()


def test_subagents_belong_to_the_session_that_started_them() -> None:
    path = next((FIXTURES / "claude/subagent/projects/-project").glob("*.jsonl"))
    format = detect_file(str(path))
    assert format is not None

    related = find_related_files(str(path), format)
    session = st.open(path)

    assert [Path(name).name for name in related] == [
        "agent-a2f44f3bc7dfe3cf3.jsonl",
        "agent-a2f44f3bc7dfe3cf3.meta.json",
    ]
    branch = session.branch("agent-a-small-task")
    assert [message["content"] for message in branch.context().messages][:1] == ["Count the files and report."]
    point = next(entry for entry in session.tree if entry.type == "branch_point")
    assert point.parent is not None
    assert [call.name for call in session.tree[point.parent].tool_calls] == ["Agent"]


def test_branches_of_subagents_are_named_after_their_tasks(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "claude/subagent/projects/-project", tmp_path, dirs_exist_ok=True)
    path = next(tmp_path.glob("*.jsonl"))
    [first] = tmp_path.rglob("agent-*.jsonl")
    later = re.sub(r'"timestamp":\s*"20\d\d', '"timestamp":"2099', first.read_text().replace("a2f44f3bc7dfe3cf3", "a1"))
    later = re.sub(r'(uuid"|Uuid"):\s*"(\w{4})\w{4}-', r'\1:"\g<2>ffff-', later)
    (first.parent / "agent-a1.jsonl").write_text(later)
    (first.parent / "agent-a1.meta.json").write_text(first.with_suffix(".meta.json").read_text())

    session = st.open(path)

    assert sorted(session.heads.heads) == ["agent-a-small-task", "agent-a-small-task-2", "main"]
    points = {entry.body.name: entry.id for entry in session.tree if isinstance(entry.body, st.BranchPoint)}
    assert points["agent-a-small-task-2"] == "agent-a1-branch"  # the later one


def test_a_notification_about_a_subagent_is_one_readable_row(tmp_path: Path) -> None:
    text = next((FIXTURES / "claude/subagent/projects/-project").glob("*.jsonl")).read_text()
    said = '<task-id>a1</task-id> <summary>Agent \\"a &lt;small&gt; task\\" finished</summary> <result>…</result>'
    (tmp_path / "session.jsonl").write_text(text.replace("<task-notification>…", f"<task-notification> {said}"))
    session = st.open(tmp_path / "session.jsonl")

    [note] = [entry for entry in session.head.path() if "<task-notification>" in entry.text]

    assert format_entry_row(note) == '[claude.note]: Agent "a <small> task" finished'
    assert "<task-notification>" in str(session.context().messages)  # the model gets all of it


def test_a_question_after_a_reminder_is_the_title_of_its_session(tmp_path: Path) -> None:
    base = {"timestamp": "2026-01-02T09:30:00.000Z", "sessionId": "s", "isSidechain": False, "type": "user"}
    command = "<command-name>/model</command-name>\n<command-message>model</command-message>"
    blocks = [
        {"type": "text", "text": "<system-reminder>Be short.</system-reminder>"},
        {"type": "text", "text": "Why?"},
    ]
    lines = [
        {**base, "uuid": "a", "parentUuid": None, "message": {"role": "user", "content": command}},
        {**base, "uuid": "b", "parentUuid": "a", "message": {"role": "user", "content": blocks}},
    ]
    file = tmp_path / "s.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    session = st.open(file)

    assert str(session.tree).splitlines() == ["• [claude.note]: /model", "• user: Why?"]
    totals = EntryTotals()
    totals.extend(session.tree)
    assert totals.first_message == "Why?"
    assert session.context().messages[-1]["content"] == blocks


def test_a_missing_conversation_of_a_file_is_an_error() -> None:
    with pytest.raises(NotFound, match="holds: b042d675"):
        open_foreign(f"{REWIND}#other")
    assert open_foreign(f"{REWIND}#b042d675-5f26-46b9-9b13-3b6ab6e9748c") is not None


def test_many_lines_are_kept_in_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = st.open(REWIND).read_lines()
    monkeypatch.setattr("sessiontree.library.foreign_files.MEMORY_SIZE", 100)
    monkeypatch.setattr("sessiontree.library.foreign_files.BACKWARD_SIZE", 100)

    session = st.open(REWIND)

    assert session.read_lines() == expected
    assert list(session.store.stream_lines()) == expected
    blocks = list(session.store.read_backward(session.store.read_end().cursor))
    assert b"".join(block for block, _ in reversed(blocks)).split(b"\n")[:-1] == expected
    assert session.store.get_modified_time() == os.stat(REWIND).st_mtime_ns


def write_long_claude_session(path: Path) -> None:
    base = {"timestamp": "2026-01-02T09:30:00.000Z", "sessionId": "s", "isSidechain": False}
    with path.open("w") as file:
        for number in range(800):
            parent = f"id-{number - 1}" if number else None
            message = {"role": ("user", "assistant")[number % 2], "content": [{"type": "text", "text": "word " * 2000}]}
            line = {**base, "type": message["role"], "uuid": f"id-{number}", "parentUuid": parent, "message": message}
            file.write(json.dumps(line) + "\n")


def write_long_codex_session(path: Path) -> None:
    with path.open("w") as file:
        file.write(json.dumps({"type": "session_meta", "payload": {"id": "t", "cwd": "/project"}}) + "\n")
        for number in range(800):
            role, kind = (("user", "input_text"), ("assistant", "output_text"))[number % 2]
            payload = {"type": "message", "role": role, "content": [{"type": kind, "text": "word " * 2000}]}
            file.write(json.dumps({"type": "response_item", "payload": payload}) + "\n")


def write_long_gemini_session(path: Path) -> None:
    with path.open("w") as file:
        file.write(json.dumps({"sessionId": "s", "projectHash": "x", "kind": "main"}) + "\n")
        for number in range(800):
            kind = ("user", "gemini")[number % 2]
            message = {"id": f"id-{number}", "timestamp": "2026-01-02T09:30:00.000Z", "type": kind}
            file.write(json.dumps({**message, "content": "word " * 2000}) + "\n")


@pytest.mark.parametrize("write", [write_long_claude_session, write_long_codex_session, write_long_gemini_session])
def test_memory_does_not_grow_with_the_size_of_a_file(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessiontree.library.foreign_files.MEMORY_SIZE", 1 << 16)
    path = tmp_path / "long.jsonl"
    write(path)
    st.open(REWIND)  # imports are not counted
    tracemalloc.start()

    session = st.open(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(session.tree) >= 800
    assert peak < path.stat().st_size / 2


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / "own"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    shutil.copytree(FIXTURES / "claude/rewind/projects", tmp_path / ".claude/projects")
    shutil.copytree(FIXTURES / "codex/plain/sessions", tmp_path / ".codex/sessions")
    return tmp_path


@pytest.mark.parametrize(("source", "first"), [("claude", "Question one"), ("codex", "How do I make this faster?")])
def test_the_sessions_of_a_program_are_listed_as_a_source(source: str, first: str, programs: Path) -> None:
    listed = st.sessions(all=True, source=source)

    assert [summary.first_message for summary in listed] == [first]
    assert st.sessions("/elsewhere", source=source) == []
    assert len(st.sessions("/project", source=source)) == 1


def test_the_configuration_shows_other_programs_with_our_own_sessions(programs: Path) -> None:
    st.create("ours", cwd=programs).append(st.user("Question one, of ours"))
    assert [summary.source for summary in st.sessions(all=True, others=True)] == [None]
    (programs / "own/config.toml").write_text('[sources]\nshow = ["claude", "codex"]\n')

    listed = st.sessions(all=True, others=True)
    found = st.search('"question one"', all=True, others=True)

    assert {summary.source for summary in listed} == {None, "claude", "codex"}
    assert [summary.modified for summary in listed] == sorted((one.modified for one in listed), reverse=True)
    assert {hit.file for hit in found} == {summary.file for summary in listed if summary.source != "codex"}
    assert [summary.source for summary in st.sessions(all=True)] == [None]
    assert len(st.search('"question one"', all=True, others=True, limit=1)) == 1


def test_segments_and_subagents_of_codex_are_listed_with_their_session(programs: Path) -> None:
    for name in ("revert", "subagent"):
        shutil.copytree(FIXTURES / f"codex/{name}/sessions", programs / ".codex/sessions", dirs_exist_ok=True)

    listed = st.sessions(all=True, source="codex")

    assert len(listed) == 3
    assert len({summary.id for summary in listed}) == 3
    assert sorted(summary.branch_count for summary in listed) == [1, 2, 2]
    hits = st.search("Count the files", all=True, source="codex")
    assert {hit.session for hit in hits} == {next(one.id for one in listed if "helper" in (one.first_message or ""))}


@pytest.mark.parametrize("form", ["html", "md", "text"])
def test_an_export_names_the_program_and_its_version(form: str) -> None:
    assert b"claude 2.1.326" in st.open(REWIND).export(form).content


@pytest.fixture
def opencode_database(programs: Path) -> Path:
    """opencode's database, with two sessions, one of them a fork of the other, and one with a subagent."""
    path = programs / ".local/share/opencode/opencode.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as database:
        for name in ("fork", "subagent"):
            script = (FIXTURES / f"opencode/{name}/opencode.db.sql").read_text()
            script = script.replace("CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ")
            database.executescript(script.replace("INSERT INTO", "INSERT OR IGNORE INTO"))
    return path


def test_the_sessions_of_a_database_are_listed_searched_and_opened_one_by_one(opencode_database: Path) -> None:
    listed = st.sessions(all=True, source="opencode")

    forked, helped = "ses_e143d4d6dffeWZkkDzxIurc9Dy", "ses_e143c645cffewUKDlQzyw0sm5Y"
    assert {one.id: (one.name, one.branch_count) for one in listed} == {
        "ses_e143d5051ffenTdEV5z6p72Gyw": ("Fork source", 1),
        forked: ("Fork source (fork #1)", 1),
        helped: ("With a helper", 2),
    }
    assert [one.modified for one in listed] == sorted((one.modified for one in listed), reverse=True)
    assert st.sessions("/elsewhere", source="opencode") == []
    for _ in range(2):  # by reading, then by the index
        assert {hit.session for hit in st.search('"only in the fork"', all=True, source="opencode")} == {forked}
    hits = st.search('"only in the fork"', all=True, source="opencode")
    assert catalog.has_session(hits[0].file)
    assert st.open(hits[0].file).id == catalog.get_session_id(hits[0].file) == forked
    assert sorted(os.listdir(opencode_database.parent)) == ["opencode.db"]


def test_a_session_of_a_database_is_read_again_only_if_it_changed(
    opencode_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    st.sessions(all=True, source="opencode")
    with closing(sqlite3.connect(opencode_database)) as database:
        changed = "where id = 'ses_e143d4d6dffeWZkkDzxIurc9Dy'"
        database.execute(f"update session set title = 'Renamed', time_updated = time_updated + 1 {changed}")
        database.execute("delete from session where title = 'Fork source'")
        database.commit()
    opened: list[str] = []

    def open_and_note(path: str) -> ForeignStore | None:
        opened.append(path)
        return open_foreign(path)

    monkeypatch.setattr("sessiontree.library.foreign_files.open_foreign", open_and_note)

    listed = st.sessions(all=True, source="opencode")

    assert sorted(one.name or "" for one in listed) == ["Renamed", "With a helper"]
    assert opened == [f"{opencode_database}#ses_e143d4d6dffeWZkkDzxIurc9Dy"]


def test_a_damaged_database_is_listed_with_the_reason(opencode_database: Path) -> None:
    opencode_database.write_bytes(opencode_database.read_bytes()[:5000])

    [summary] = st.sessions(all=True, source="opencode")

    assert summary.is_damaged
    assert summary.file == str(opencode_database)


def test_a_session_of_a_shown_program_is_opened_by_its_id(opencode_database: Path, programs: Path) -> None:
    with pytest.raises(NotFound):
        st.open("b042d675")
    (programs / "own").mkdir(exist_ok=True)
    (programs / "own/config.toml").write_text('[sources]\nshow = ["claude", "opencode"]\n')

    assert st.open("b042d675").header.origin == {"program": "claude", "version": "2.1.326"}
    assert st.open("ses_e143c645cffewUKDlQzyw0sm5Y").name == "With a helper"
    assert st.open("Fork source", create=True).header.origin is None  # a name never opens what cannot be continued
    with pytest.raises(Ambiguous):
        st.open("ses_e143d")
    with pytest.raises(NotFound):
        catalog.delete("b042d675")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A data export of ChatGPT, as it is delivered."""
    path = tmp_path / "export.zip"
    conversations = next((FIXTURES / "chatgpt").rglob("conversations.json"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as written:
        written.writestr("user.json", '{"id":"user-1"}')
        written.write(conversations, "conversations-000.json")
        written.writestr("file-1.png", b"not looked at")
    return path


def test_the_archive_of_a_data_export_opens_without_unpacking(archive: Path, tmp_path: Path) -> None:
    conversations = next((FIXTURES / "chatgpt").rglob("conversations.json"))
    ids = [one.get("conversation_id", one.get("id")) for one in json.loads(conversations.read_text())]

    for id in ids:
        opened, expected = st.open(f"{archive}#{id}"), st.open(f"{conversations}#{id}")
        assert opened.read_lines() == expected.read_lines()
    assert os.listdir(tmp_path) == ["export.zip"]


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_archive_is_refused(seed: int, archive: Path) -> None:
    chance, data = random.Random(seed), bytearray(archive.read_bytes())
    for _ in range(chance.randint(1, 30)):
        data[chance.randrange(4, len(data))] = chance.randrange(256)
    archive.write_bytes(data[: chance.choice([len(data), chance.randrange(4, len(data))])])

    with suppress(FormatError, NotFound, StoreError):
        st.open(archive)


def test_a_file_of_an_archive_is_not_read_beyond_the_limit(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiontree.library.foreign_files.MAX_DOCUMENT", 1 << 10)

    with pytest.raises(FormatError, match=r"conversations-000\.json is longer than"):
        st.open(archive)


def test_a_compaction_of_codex_says_how_many_tokens_it_replaced() -> None:
    session = st.open(next((FIXTURES / "codex/compact/sessions").rglob("*.jsonl")))

    [compaction] = [entry.body for entry in session.tree if isinstance(entry.body, st.Compaction)]

    assert compaction.tokens_before == 5627  # the request for the summary
