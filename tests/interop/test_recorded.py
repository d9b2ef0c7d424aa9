"""Every recorded session of a real program reads as its `expected.json` says."""

from pathlib import Path
from typing import Any

import pytest

from sessiontree.core.entries import Message
from sessiontree.core.message_input import check_message
from sessiontree.export.snapshot import Snapshot, read_snapshot
from sessiontree.interop.formats import detect_format
from tests.interop.conformance import (
    build_head,
    describe_branch,
    describe_context,
    expect_messages,
    list_fixtures,
    load_expected,
    read_file,
    read_one,
)
from tests.interop.test_mutated import FILES

PROGRAMS = ("claude", "codex")
"""The programs that have a module in `interop`."""
SESSION_FILES = [path for path in FILES if detect_format(build_head(path)) is not None]


def name_fixture(folder: Path) -> str:
    return "-".join(folder.parts[-2:])


def list_sessions() -> list[Any]:
    return [
        pytest.param(folder / name, expected, id=f"{name_fixture(folder)}-{Path(name).stem[-8:]}")
        for folder in list_fixtures(*PROGRAMS)
        for name, expected in load_expected(folder)["sessions"].items()
    ]


def list_expected_branches(expected: Any) -> list[Any]:
    branches = expected.get("branches") or [expected]
    return [expect_messages(branch["messages"]) for branch in branches]


def list_branches(snapshot: Snapshot) -> list[Any]:
    names = [name for name in snapshot.heads.heads if not name.startswith("agent-")]
    return [describe_branch(snapshot, name) for name in names]


@pytest.mark.parametrize(("path", "expected"), list_sessions())
def test_every_branch_of_a_recorded_session_is_there(path: Path, expected: Any) -> None:
    snapshot = read_one(path)

    branches = list_branches(snapshot)
    for branch in list_expected_branches(expected):
        assert branch in branches
    if "branches" in expected:
        assert len(branches) == len(expected["branches"])


@pytest.mark.parametrize(("path", "expected"), list_sessions())
def test_the_current_branch_ends_where_the_program_is(path: Path, expected: Any) -> None:
    snapshot = read_one(path)

    if isinstance(expected.get("current"), str):
        assert snapshot.leaf == expected["current"]
    if "title" in expected:
        assert snapshot.name == expected["title"]


@pytest.mark.parametrize("folder", list_fixtures(*PROGRAMS), ids=name_fixture)
def test_the_context_is_what_the_program_sends_when_it_resumes(folder: Path) -> None:
    expected = load_expected(folder)
    [path] = [
        folder / name
        for name, session in expected["sessions"].items()
        if expected["resumed"] in name and session.get("current") is not False and not session.get("subagent_of")
    ]

    assert describe_context(read_one(path)) == expect_messages(expected["sent_on_resume"][:-1])


@pytest.mark.parametrize(("path", "expected"), list_sessions())
def test_a_recorded_session_has_no_faults(path: Path, expected: Any) -> None:
    snapshot = read_one(path)

    assert [problem for problem in snapshot.problems if problem.severity == "fault"] == []


@pytest.mark.parametrize("path", SESSION_FILES, ids=lambda path: f"{path.parts[-3]}-{path.stem[-12:]}")
def test_every_message_of_a_recorded_session_passes_the_check_of_new_messages(path: Path) -> None:
    messages = [
        entry.body.message
        for conversation in read_file(path)
        for entry in read_snapshot(conversation.lines).tree
        if isinstance(entry.body, Message)
    ]

    assert messages
    assert list(map(check_message, messages)) == messages
