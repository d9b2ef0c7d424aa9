"""A snapshot has the same heads as the session. A path or subtree of it is a separate session."""

import msgspec
import pytest
from hypothesis import given

import sessiontree as st
from sessiontree.core.context import build_context
from sessiontree.errors import FormatError
from sessiontree.export import export
from sessiontree.export.snapshot import Snapshot, read_snapshot
from sessiontree.format.json_line import read_object
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore
from tests.builders import build_file, entry, header
from tests.export.sessions import make_story
from tests.strategies import marred_sessions, sessions

BROKEN = b'{"type":"message","id":"deadbeef","parentId":"b","timestamp":"","branch":"main","message":{oops}}'


def build_session(lines: list[bytes]) -> Session:
    store = MemoryStore()
    store.create(lines)
    return Session(store)


@given(marred_sessions())
def test_a_snapshot_has_the_heads_of_the_session(data: bytes) -> None:
    lines = data.split(b"\n")[:-1]
    try:
        session = build_session(lines)
    except FormatError:
        return

    heads = read_snapshot(lines).heads

    assert (heads.heads, heads.current) == (session.heads.heads, session.heads.current)


@pytest.mark.parametrize("form", ["json", "jsonl", "md", "text"])
def test_an_invalid_last_line_is_not_a_leaf(form: str) -> None:
    lines = build_file(header(), entry("a", branch="main").raw, entry("b", "a", branch="main").raw, BROKEN)
    session = build_session(lines.split(b"\n")[:-1])
    assert session.head.leaf == "b"

    whole, path = export(session.read_lines(), form), export(session.read_lines(), form, branch="HEAD")

    assert b"deadbeef" not in path.content
    if form == "json":
        assert msgspec.json.decode(whole.content)["leaf"] == "b"


# Parts of a session


def export_part(session: st.Session, **choice: str) -> Snapshot:
    return read_snapshot(export(session.read_lines(), "jsonl", **choice).content.split(b"\n")[:-1])


def test_a_path_is_a_session_with_the_same_context_at_its_end() -> None:
    session = make_story()

    path = export_part(session, branch="cache")

    assert path.leaf == session.resolve_place("cache")
    assert build_context(path.tree, path.leaf).messages == session.context("cache").messages
    assert path.name == session.name
    assert list(path.tree.labels.values()) == ["two ways"]
    assert not path.problems


def test_a_subtree_is_a_session_whose_root_is_the_entry() -> None:
    session = make_story()
    root = session.resolve_place("two ways")

    below = export_part(session, subtree="two ways")

    assert [entry.id for entry in below.tree.roots()] == [root]
    assert below.tree.labels == {root: "two ways"}
    assert below.heads.heads == {
        "main": root,
        "cache": session.resolve_place("cache"),
        "dict": session.resolve_place("dict"),
    }
    assert below.heads.current == "dict"
    assert not below.problems


def test_lines_of_a_subset_keep_their_bytes_except_changed_values() -> None:
    session = make_story()
    raws = {entry.id: entry.raw for entry in session.tree}

    below = export_part(session, subtree="two ways")

    changed = [entry.id for entry in below.tree if entry.id in raws and raws[entry.id] != entry.raw]
    assert changed == [session.resolve_place("two ways")]


def test_a_compaction_keeps_entries_from_the_new_root_on_if_its_anchor_is_above_it() -> None:
    session = make_story()
    first = next(entry for entry in session.tree if entry.type == "message")
    session.append(st.Compaction(summary="all of it", first_kept=first.id))

    below = export_part(session, subtree="two ways")

    assert not below.problems
    assert below.tree.path(below.leaf)[-1].body.first_kept == session.resolve_place("two ways")  # type: ignore[union-attr]


def test_a_subtree_where_no_branch_ends_has_a_main_branch_at_its_newest_entry() -> None:
    session = st.memory()
    first = session.append(st.user("one"))
    left = session.append(st.assistant("left behind"))
    session.navigate_sync(first)
    session.append(st.assistant("another"))

    below = export_part(session, subtree=left.id)

    assert below.heads.heads == {"main": left.id}


def test_archived_branches_stay_archived_in_a_subset() -> None:
    session = make_story()
    session.archive_branch("cache")

    assert export_part(session, subtree="two ways").heads.archived == {"cache"}


def test_a_subset_has_a_new_id_and_records_its_origin() -> None:
    session = make_story()

    header = read_object(export_part(session, subtree="two ways").header_line)

    assert header["id"] != session.id
    assert header["forkedFrom"] == session.resolve_place("two ways")
    assert "parentSession" not in header


def test_exporting_the_same_subset_twice_gives_the_same_file() -> None:
    session = make_story()

    assert export(session.read_lines(), "jsonl", subtree="two ways") == export(
        session.read_lines(), "jsonl", subtree="two ways"
    )


@given(sessions())
def test_every_subtree_of_every_session_is_sound(data: bytes) -> None:
    lines = data.split(b"\n")[:-1]
    whole = read_snapshot(lines)
    for root in list(whole.tree)[:4]:
        exported = export(lines, "jsonl", subtree=root.id).content.split(b"\n")[:-1]
        below = read_snapshot(exported)
        faults = [problem for problem in below.problems if problem.severity == "fault"]

        assert not faults
        assert root.id in below.tree
        assert len(below.tree.roots()) == 1
