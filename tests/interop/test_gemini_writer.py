"""Chats for Gemini CLI: what it reads back is what our context says."""

import json
from pathlib import Path
from typing import Any

import pytest

from sessiontree.core.context import build_context
from sessiontree.export.snapshot import Snapshot, read_snapshot
from sessiontree.interop import gemini_cli
from sessiontree.interop.base import MemoryFile
from sessiontree.interop.resume import ResumableSession, ResumeRequest
from tests.interop.conformance import FIXTURES, describe_context, list_fixtures, load_expected, read_one
from tests.interop.resuming import build_snapshot, strip

NOW = 1800000000000
CHATS = [
    pytest.param(folder / name, id=f"{folder.name}-{name[-13:-6]}")
    for folder in list_fixtures("gemini")
    for name in load_expected(folder)["sessions"]
]
REWIND = FIXTURES / "gemini/rewind/tmp/project/chats/session-2026-11-17T23-10-9c6103e9.jsonl"


def write(
    snapshot: Snapshot,
    *,
    id: str = "new",
    at: str | None = None,
    original: bytes | None = None,
    cwd: str = "/project",
    settings: Any = None,
) -> ResumableSession:
    leaf = snapshot.leaf if at is None else at
    request = ResumeRequest(
        context=build_context(snapshot.tree, leaf),
        path=snapshot.tree.path(leaf),
        id=id,
        cwd=cwd,
        now=NOW,
        original=original,
        settings=settings,
    )
    assert gemini_cli.FORMAT.write is not None
    return gemini_cli.FORMAT.write(request)


def read_back(written: ResumableSession) -> Snapshot:
    [conversation] = gemini_cli.read(MemoryFile("chat.jsonl", written.files[0].content), [])
    assert conversation.id == written.id
    assert conversation.problems == []
    return read_snapshot(conversation.lines)


@pytest.mark.parametrize("program", ["claude", "codex", "opencode", "gemini"])
def test_a_session_of_any_program_reads_back_with_the_same_context(program: str) -> None:
    for folder in list_fixtures(program):
        snapshot = read_one(folder / next(iter(load_expected(folder)["sessions"])))

        context = describe_context(read_back(write(snapshot)))

        assert strip(context) == strip(describe_context(snapshot)), folder.name


@pytest.mark.parametrize("path", CHATS)
def test_an_unchanged_chat_is_written_as_it_was(path: Path) -> None:
    original, snapshot = path.read_bytes(), read_one(path)

    written = write(snapshot, id=snapshot.header.id, original=original)

    assert written.files[0].content == original


@pytest.mark.parametrize("path", CHATS)
def test_continuing_changes_only_the_id(path: Path) -> None:
    original, snapshot = path.read_bytes(), read_one(path)

    written = write(snapshot, original=original)

    assert written.id != snapshot.header.id
    assert written.files[0].content == original.replace(
        f'"sessionId":"{snapshot.header.id}"'.encode(), f'"sessionId":"{written.id}"'.encode()
    )


def test_a_branch_that_was_dropped_can_be_continued() -> None:
    snapshot = read_one(REWIND)
    dropped = snapshot.heads.heads["dropped"]
    assert dropped is not None

    written = write(snapshot, at=dropped, original=REWIND.read_bytes())

    texts = [message["text"] for message in describe_context(read_back(written))]
    assert texts[2:] == [
        "Question two, first try",
        "Answer to: Question two, first try",
        "Question three, first try",
        "Answer to: Question three, first try",
    ]


def test_what_was_added_here_follows_the_log() -> None:
    snapshot = build_snapshot(read_one(REWIND), "Ours: a question", "Ours: an answer")

    written = write(snapshot, original=REWIND.read_bytes())

    assert written.files[0].content.count(b"\n") == REWIND.read_bytes().count(b"\n") + 2
    assert [message["text"] for message in describe_context(read_back(written))][-2:] == [
        "Ours: a question",
        "Ours: an answer",
    ]


def test_the_project_gets_an_entry_unless_gemini_knows_it() -> None:
    snapshot = read_one(REWIND)

    new = write(snapshot, cwd="/home/me/My App", settings={"projects": {"/else": "my-app"}})
    known = write(snapshot, cwd="/project", settings={"projects": {"/project": "proj-3"}})

    assert new.files[0].path.startswith("tmp/my-app-1/chats/session-2027-01-15T08-00-")
    assert [(entry.path, entry.keys, entry.value) for entry in new.json_entries] == [
        ("projects.json", ("projects", "/home/me/My App"), "my-app-1")
    ]
    assert (new.files[1].path, new.files[1].content) == ("tmp/my-app-1/.project_root", b"/home/me/My App")
    assert known.files[0].path.startswith("tmp/proj-3/chats/")
    assert (len(known.files), list(known.json_entries)) == (1, [])


def test_a_slug_never_leaves_the_folder_of_gemini() -> None:
    written = write(read_one(REWIND), cwd="/project", settings={"projects": {"/project": "../../etc"}})

    assert written.files[0].path.startswith("tmp/project/chats/")


def test_results_are_written_once() -> None:
    path = FIXTURES / "gemini/tools/tmp/project/chats/session-2026-11-17T23-08-2bdacbc3.jsonl"

    lines = [json.loads(line) for line in write(read_one(path)).files[0].content.splitlines()]

    assert not any("functionResponse" in str(line.get("content")) for line in lines)
    assert sum(len(line.get("toolCalls", ())) for line in lines) == 7
