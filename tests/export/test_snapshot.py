"""A snapshot has the same heads as the session."""

import msgspec
import pytest
from hypothesis import given

from sessiontree.errors import FormatError
from sessiontree.export import export
from sessiontree.export.snapshot import read_snapshot
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore
from tests.builders import entry, file_of, header
from tests.strategies import marred_sessions

BROKEN = b'{"type":"message","id":"deadbeef","parentId":"b","timestamp":"","branch":"main","message":{oops}}'


def session_of(lines: list[bytes]) -> Session:
    store = MemoryStore()
    store.create(lines)
    return Session(store)


@given(marred_sessions())
def test_a_snapshot_has_the_heads_of_the_session(data: bytes) -> None:
    lines = data.split(b"\n")[:-1]
    try:
        session = session_of(lines)
    except FormatError:
        return

    heads = read_snapshot(lines).heads

    assert (heads.heads, heads.current) == (session.heads.heads, session.heads.current)


@pytest.mark.parametrize("form", ["json", "jsonl", "md", "text"])
def test_an_invalid_last_line_is_not_a_leaf(form: str) -> None:
    lines = file_of(header(), entry("a", branch="main").raw, entry("b", "a", branch="main").raw, BROKEN)
    session = session_of(lines.split(b"\n")[:-1])
    assert session.head.leaf == "b"

    whole, path = export(session.read_lines(), form), export(session.read_lines(), form, branch="HEAD")

    assert b"deadbeef" not in path.content
    if form == "json":
        assert msgspec.json.decode(whole.content)["leaf"] == "b"
