"""Following a session gives the same state as loading it."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sessiontree.core.entries import HEAD_RECORD, Custom, Label
from sessiontree.errors import FormatError
from sessiontree.format.json_line import write_object
from sessiontree.format.session_reader import SessionReader
from sessiontree.session import Session
from sessiontree.session.state import SessionState
from sessiontree.store.memory import MemoryStore
from tests.builders import count_calls, entry, header
from tests.strategies import damaged_sessions, marred_sessions, sessions


def load(store: MemoryStore) -> SessionState:
    return SessionState(store, store.read_end())


def follow(load: SessionState) -> None:
    load.apply_chunk(load.read_appended())


@given(some.one_of(sessions(), damaged_sessions(), marred_sessions()), some.data())
def test_following_a_session_gives_the_same_heads_as_loading_it(data, draw) -> None:
    try:
        SessionReader().feed(data)
    except FormatError:
        return
    lines = data.split(b"\n")[:-1]
    cuts = draw.draw(some.lists(some.integers(1, len(lines)), min_size=1, max_size=4).map(sorted))
    store = MemoryStore()
    store.create(lines[: cuts[0]])
    follower = load(store)

    for start, end in zip(cuts, [*cuts[1:], len(lines)], strict=True):
        store.append(lines[start:end], after=store.read_end().cursor)
        follow(follower)
        anew = load(store)

        assert follower.heads.heads == anew.heads.heads
        assert (follower.heads.current, follower.heads.archived) == (anew.heads.current, anew.heads.archived)
        assert (follower.heads.moves, follower.heads.undoable) == (anew.heads.moves, anew.heads.undoable)


BROKEN = b'{"type":"message","id":"%s","parentId":"a","timestamp":"","branch":null,"message":{oops}}'


def stored(*lines: bytes) -> MemoryStore:
    store = MemoryStore()
    store.create([write_object(header()), entry("a", branch="main").raw, *lines])
    return store


def record(heads: dict[str, str]) -> bytes:
    body = Custom(custom_type=HEAD_RECORD, data={"current": "main", "heads": heads})
    return entry("r", "a", body, branch="main").raw


@pytest.mark.parametrize(
    "line",
    [record({"main": "b"}), entry("l", "b", Label(target="a", text="x")).raw, BROKEN % b"a"],
    ids=["a record that names it", "a peer's label below it", "another with the id of the head"],
)
def test_a_line_that_moves_the_head_to_an_unreadable_line_has_no_effect(line: bytes) -> None:
    store = stored(BROKEN % b"b")
    follower = load(store)

    store.append([line], after=store.read_end().cursor)
    follow(follower)

    anew = load(store)
    assert follower.heads.heads == anew.heads.heads
    assert anew.heads.leaf in (None, "a")


@pytest.mark.parametrize("lines", [[], [entry("m", "a", branch="main").raw]], ids=["nothing new", "a line elsewhere"])
def test_a_branch_with_an_unreadable_head_does_not_slow_down_appends(lines: list[bytes]) -> None:
    def calls(size: int) -> int:
        store = stored(
            BROKEN.replace(b'"branch":null', b'"branch":"side"') % b"x",
            record({"main": "a", "side": "x"}),
            *(entry(f"{number}", "a", branch="main").raw for number in range(size)),
        )
        follower = load(store)
        assert follower.heads.heads["side"] == "a"
        store.append(lines, after=store.read_end().cursor)
        return count_calls(lambda: follow(follower))

    assert calls(500) == calls(50)


def test_a_move_away_from_an_unreadable_line_is_the_same_for_all_readers() -> None:
    store = stored(BROKEN % b"b", record({"main": "b", "side": "a"}))
    follower = load(store)

    store.append([entry("c", "a", branch="side").raw], after=store.read_end().cursor)
    follow(follower)

    assert follower.heads.moves == load(store).heads.moves != []


def test_a_line_named_by_an_earlier_head_record_changes_no_move() -> None:
    store = stored(record({"main": "late"}), entry("b", branch="main").raw)
    follower = load(store)

    store.append([entry("late", "a", branch=None).raw], after=store.read_end().cursor)
    follow(follower)

    assert follower.heads.moves == load(store).heads.moves == []


def test_moving_to_an_unreadable_line_gives_the_same_head_as_reopening() -> None:
    store = stored(BROKEN % b"b")
    session = Session(store)

    session.navigate_sync("b")

    assert session.heads.heads == load(store).heads.heads == {"main": "a"}


def test_moves_are_recomputed_when_a_missing_parent_appears() -> None:
    store = stored(entry("c", "b", branch="main").raw)
    follower = load(store)
    assert len(follower.heads.moves) == 1

    store.append([entry("b", "a", Label(target="a", text="x"), branch=None).raw], after=store.read_end().cursor)
    follow(follower)

    assert follower.heads.moves == load(store).heads.moves == []
