"""Exports for opencode: what it reads back is what our context says."""

import json
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.context import build_context
from sessiontree.export.snapshot import Snapshot, read_snapshot
from sessiontree.interop import opencode
from sessiontree.interop.base import MemoryFile
from sessiontree.interop.resume import ResumableSession, ResumeRequest
from tests.interop.conformance import FIXTURES, describe_context, list_fixtures, load_expected, read_one
from tests.interop.resuming import build_snapshot, strip

NOW = 1800000000000


def write(
    snapshot: Snapshot, *, id: str = "new", at: str | None = None, original: bytes | None = None
) -> ResumableSession:
    leaf = snapshot.leaf if at is None else at
    request = ResumeRequest(
        context=build_context(snapshot.tree, leaf),
        path=snapshot.tree.path(leaf),
        id=id,
        cwd="/project",
        now=NOW,
        original=original,
    )
    assert opencode.FORMAT.write is not None
    return opencode.FORMAT.write(request)


def read_back(written: ResumableSession) -> Snapshot:
    [conversation] = opencode.read(MemoryFile("export.json", written.files[0].content), [])
    assert conversation.id == written.id
    assert conversation.problems == []
    return read_snapshot(conversation.lines)


def load(written: ResumableSession) -> Any:
    return json.loads(written.files[0].content)


@pytest.mark.parametrize("program", ["claude", "codex", "opencode", "gemini"])
def test_a_session_of_any_program_reads_back_with_the_same_context(program: str) -> None:
    for folder in list_fixtures(program):
        name = next(iter(load_expected(folder)["sessions"]))
        snapshot = read_one(folder / name)
        context = describe_context(read_back(write(snapshot)))

        assert strip(context) == strip(describe_context(snapshot)), folder.name


@pytest.mark.parametrize("folder", list_fixtures("opencode"), ids=lambda folder: folder.name)
def test_an_unchanged_export_is_written_as_it_was(folder: Path) -> None:
    for name in load_expected(folder)["sessions"]:
        path = folder / name
        original = path.read_bytes()

        written = write(read_one(path), id=path.stem, original=original)

        assert written.files[0].content == original
        assert written.omitted == []


@pytest.mark.parametrize("folder", list_fixtures("opencode"), ids=lambda folder: folder.name)
def test_continuing_gives_every_message_and_part_a_new_id(folder: Path) -> None:
    path = folder / next(iter(load_expected(folder)["sessions"]))
    original = json.loads(path.read_bytes())

    written = write(read_one(path), original=path.read_bytes())

    old = {item["info"]["id"] for item in original["messages"]}
    new = [item["info"]["id"] for item in load(written)["messages"]]
    assert not old & set(new)
    assert new == sorted(new)
    assert describe_context(read_back(written)) == describe_context(read_one(path))
    assert "revert" not in load(written)["info"]


def test_what_was_added_here_follows_the_original_messages() -> None:
    path = FIXTURES / "opencode" / "tools" / "ses_e143d7cc4ffe85j8l3B7QisJxI.json"
    snapshot = build_snapshot(read_one(path), "Ours: a question", "Ours: an answer")

    document = load(write(snapshot, original=path.read_bytes()))

    assert len(document["messages"]) == len(json.loads(path.read_bytes())["messages"]) + 2
    assert [part["text"] for part in document["messages"][-2]["parts"]] == ["Ours: a question"]
    assert document["info"]["title"] == "Tools"


def test_a_place_before_the_result_of_a_call_is_written_from_the_context() -> None:
    path = FIXTURES / "opencode" / "tools" / "ses_e143d7cc4ffe85j8l3B7QisJxI.json"
    snapshot = read_one(path)
    caller = next(entry for entry in snapshot.get_path() if entry.tool_calls)

    document = load(write(snapshot, at=caller.id, original=path.read_bytes()))

    state = document["messages"][-1]["parts"][1]["state"]
    assert state["output" if state["status"] == "completed" else "error"] != "hello\n"


def test_the_command_imports_the_file_and_resumes_the_session() -> None:
    written = write(read_one(FIXTURES / "opencode" / "plain" / "ses_e143d9090ffeHo4lQgW9Uj9YJj.json"))

    assert written.import_command == ["opencode", "import"]
    assert written.command == ["opencode", "--session", written.id]
    assert written.id.startswith("ses_")
    assert [omission.block for omission in written.omitted] == ["model"]


def test_new_messages_of_opencode_sort_behind_what_is_written() -> None:
    written = write(read_one(FIXTURES / "opencode" / "tools" / "ses_e143d7cc4ffe85j8l3B7QisJxI.json"))

    next_id = f"msg_{NOW * 0x1000 & 0xFFFFFFFFFFFF:012x}"
    assert all(item["info"]["id"] < next_id for item in load(written)["messages"])


def test_a_kept_message_is_not_older_than_the_summary_above_it() -> None:
    session = st.memory(cwd="/project")
    session.append(st.user("An old question"))
    answer = st.assistant("A kept answer", model="m", provider="p")
    kept = session.append(st.Message({**answer.message, "timestamp": 1700000000000}))
    session.append(st.Compaction(summary="They talked.", first_kept=kept.id))
    session.append(st.user("A new question"))

    snapshot = read_snapshot(session.export("jsonl").content.splitlines())
    created = [item["info"]["time"]["created"] for item in load(write(snapshot))["messages"]]

    assert created == sorted(created)
    assert len(created) == 4
