"""Every reader that applies the head rules finds the same heads."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from sessiontree.core.entries import UNREADABLE
from sessiontree.core.head_rules import BranchOrigin, LineEffect, choose_peer_branch, get_effect, parse_head_record
from sessiontree.core.heads import MAIN, Heads
from sessiontree.core.tree import Tree
from sessiontree.format.digest import EntryTotals, UnsoundSession, start_digest
from sessiontree.format.tail import read_tail_heads
from sessiontree.store.postgres.rows import build_rows
from tests.builders import TIME, build_file, header, read
from tests.strategies import damaged_sessions, reflowed_sessions, sessions

ANY_SESSION = st.one_of(sessions(), damaged_sessions(), reflowed_sessions())


@given(ANY_SESSION)
def test_replay_digest_tail_and_database_rows_agree_on_the_heads(data: bytes) -> None:
    reader, entries = read(data)
    tree, heads = Tree(entries), Heads()
    heads.replay(entries, tree)
    if any(entry.body is UNREADABLE for entry in tree):
        return  # an unreadable line moves no head, and the rows are not used
    expected = heads.heads, heads.current, heads.archived

    digest = start_digest(reader) if reader.header.version >= 3 and not reader.problems else None
    if digest is not None:
        try:
            digest.feed(data.partition(b"\n")[2])
        except UnsoundSession:
            pass
        else:
            totals = digest.totals
            assert (totals.heads, totals.current, set(totals.archived)) == expected
    tail = read_tail_heads([(data, True)])
    if tail is not None:
        assert (tail.heads, tail.current, tail.archived) == expected
    _, delta = build_rows([entry.raw for entry in tree.entries])
    if delta.told and entries and tree.is_sound:
        record = delta.hidden is not None  # it lists every branch, empty ones too
        # Rows cannot know whether a branch with annotations only exists.
        assert delta.current in (heads.current, None) or delta.current not in heads.heads
        assert set(delta.branches) == {name for name, head in heads.heads.items() if head is not None or record}


@given(sessions())
def test_a_digest_has_the_same_totals_as_the_decoded_entries(data: bytes) -> None:
    reader, entries = read(data)
    digest = start_digest(reader)
    digest.feed(data.partition(b"\n")[2])
    totals, counted_lines = EntryTotals(), EntryTotals()
    totals.extend(Tree(entries))
    for entry in Tree(entries):
        counted_lines.add_line(entry, entry.raw)

    assert vars(counted_lines) == vars(totals)
    counted = digest.totals
    assert (counted.entries, counted.messages) == (totals.entries, totals.messages)
    assert (counted.first_message, counted.named, counted.name) == (
        totals.first_message,
        totals.is_named,
        totals.name,
    )
    assert abs(counted.cost - totals.cost) < 1e-9


def test_a_line_whose_message_is_not_an_object_is_counted_like_its_entry() -> None:
    line = {"type": "message", "id": "a", "parentId": None, "timestamp": TIME}
    said = {**line, "message": {"role": "user", "content": "first"}}
    _, entries = read(build_file(header(), said, {**line, "id": "b", "message": 5}))
    totals, counted_lines = EntryTotals(), EntryTotals()
    totals.extend(entries)
    for entry in entries:
        counted_lines.add_line(entry, entry.raw)

    assert vars(counted_lines) == vars(totals)
    assert (totals.entries, totals.first_message) == (2, "first")


def test_a_line_moves_its_branch_and_makes_it_or_another_one_current() -> None:
    assert get_effect("side", None, False, MAIN) == LineEffect("side", True, "side")
    assert get_effect("side", "main", False, MAIN) == LineEffect("side", True, "main")
    assert get_effect("side", None, True, MAIN) == LineEffect("side", False, "side")
    assert get_effect(None, None, False, MAIN) == LineEffect(None, False, None)
    assert get_effect(UNSET, None, True, "side") == LineEffect("side", True, "side")


def test_a_peer_writes_on_the_branch_of_the_line_before() -> None:
    assert choose_peer_branch("side", {"side", "main"}, "main", None) == "side"
    assert choose_peer_branch("gone", {"main"}, "main", None) == "main"
    assert choose_peer_branch(None, {"main"}, "main", None) == "main"
    assert choose_peer_branch("main", {"main"}, "main", "new") == "new"


def test_a_record_is_full_if_it_lists_all_heads_and_the_current_branch() -> None:
    assert parse_head_record({"heads": {"main": "a"}, "current": "main"}).is_full
    assert not parse_head_record({"heads": {"main": "a"}, "current": "other"}).is_full
    assert not parse_head_record({"heads": {}, "current": "main"}).is_full
    assert not parse_head_record({"heads": "x", "current": 1, "archived": "x", "renamed": {"from": 1}}).is_full


def test_a_record_has_the_origins_of_branches_if_all_are_valid() -> None:
    origins = {"a": {"created": "t", "description": "d"}, "b": {"created": "t"}}

    read = parse_head_record({"origins": origins}).origins

    assert read == {"a": BranchOrigin(created="t", description="d"), "b": BranchOrigin(created="t")}
    assert parse_head_record({"origins": {}}).origins == {}
    for wrong in (None, [], {"a": 1}, {"a": {}}, {"a": {"created": 1}}, {"a": {"created": "t", "description": 1}}):
        assert parse_head_record({"origins": wrong}).origins is None
    assert parse_head_record({}).origins is None
