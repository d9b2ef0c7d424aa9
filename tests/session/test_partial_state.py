"""A session that loads only its end answers every question as one that loads all lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sessiontree.core.context import build_context
from sessiontree.core.entries import HEAD_RECORD, Custom, Label
from sessiontree.core.messages import user
from sessiontree.core.place_names import find_recent_leaves
from sessiontree.errors import FormatError, NotFound, SessionTreeError
from sessiontree.format import tail
from sessiontree.format.json_line import write_object
from sessiontree.format.session_reader import SessionReader
from sessiontree.session import Session, entry_builder, state, writer
from sessiontree.session.state import SessionState
from sessiontree.store.base import Cursor
from sessiontree.store.memory import MemoryStore
from tests.builders import entry, header
from tests.strategies import damaged_sessions, marred_sessions, sessions


class SmallBlocks(MemoryStore):
    """A store that is read backward in blocks of a few lines."""

    def read_backward(self, before: Cursor, end: int | None = None) -> Iterator[tuple[bytes, int]]:
        data = bytes(self._require_data()[: before.value[1] if end is None else end])
        stop = len(data)
        while stop > 0:
            start = data.rfind(b"\n", 0, max(0, stop - 300)) + 1
            yield data[start:stop], start
            stop = start


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make sessions of a few lines large enough to be loaded in part."""
    monkeypatch.setattr(tail, "WHOLE_SIZE", 0)
    monkeypatch.setattr(tail, "MAX_TAIL_SIZE", 1500)
    monkeypatch.setattr(state, "MAX_PARTIAL_SIZE", 4000)
    monkeypatch.setattr(state, "GROWTH", 1)
    monkeypatch.setattr(entry_builder, "RECORD_INTERVAL", 12)
    monkeypatch.setattr(writer, "MAX_LINES_BEFORE_RECORD", 9)


def store_of(lines: list[bytes]) -> SmallBlocks:
    store = SmallBlocks()
    store.create(lines)
    return store


def load_whole(store: MemoryStore) -> SessionState:
    return SessionState(store, store.read_end())


def answer(question: Callable[[], Any]) -> Any:
    """Return the answer, or the error."""
    try:
        return question()
    except SessionTreeError as error:
        return type(error), str(error)


def describe(session: Session) -> dict[str, Callable[..., Any]]:
    """Questions about a session, some about two entries."""
    tree = session.tree
    return {
        "heads": lambda a, b: list(session.heads.heads.items()),
        "current": lambda a, b: session.heads.current,
        "archived": lambda a, b: session.heads.archived,
        "moves": lambda a, b: (session.heads.moves, session.heads.undoable),
        "undoable": lambda a, b: session.heads.undoable,
        "branches": lambda a, b: session.branches,
        "origins": lambda a, b: session.heads.info,
        "recent leaves": lambda a, b: find_recent_leaves(tree, session.heads, len(a)),
        "more than": lambda a, b: tree.has_more_than(len(a)),
        "unnamed leaves": lambda a, b: session.unnamed_leaves,
        "contains": lambda a, b: a in tree,
        "entry": lambda a, b: (tree[a].parent, tree[a].line, tree[a].raw),
        "parent": lambda a, b: tree.parent(a),
        "path": lambda a, b: [(entry.id, entry.raw) for entry in tree.path(a)],
        "head path": lambda a, b: [entry.id for entry in tree.path(session.heads.leaf)],
        "context": lambda a, b: build_context(tree, session.heads.leaf).messages,
        "common": lambda a, b: tree.find_common_ancestor(a, b),
        "abandoned": lambda a, b: [entry.id for entry in tree.find_abandoned(a, b)],
        "real": lambda a, b: tree.skip_annotations(a),
        "up": lambda a, b: session.resolve_place("HEAD~2"),
        "last move": lambda a, b: session.resolve_place("HEAD@{1}"),
        "earlier move": lambda a, b: session.resolve_place(f"HEAD@{{{len(a)}}}"),
        "place": lambda a, b: session.resolve_place(a),
        "label": lambda a, b: tree.label(a),
        "labels": lambda a, b: tree.labels,
        "name": lambda a, b: session.name,
        "children": lambda a, b: [child.id for child in tree.children(a)],
        "roots": lambda a, b: [root.id for root in tree.roots()],
        "count": lambda a, b: (len(tree), tree.count, tree.real_count, tree.last_annotation),
        "entries": lambda a, b: [(entry.id, entry.line) for entry in tree.entries],
        "lengths": lambda a, b: tree.measure_paths([a]),
        "problems": lambda a, b: session.problems,
        "lines": lambda a, b: session.read_lines(),
    }


any_session = some.one_of(sessions(), damaged_sessions(), marred_sessions())


@given(any_session, some.data())
def test_a_partial_session_answers_as_a_whole_one(data: bytes, draw: some.DataObject) -> None:
    try:
        SessionReader().feed(data)
    except FormatError:
        return
    lines = data.split(b"\n")[:-1]
    store = store_of(lines)
    whole, lazy = Session(store), Session(store)
    ids = [*whole.tree.iter_ids(), "nowhere"]
    whole.tree.load()
    asked = describe(whole)

    for name in draw.draw(some.lists(some.sampled_from(sorted(asked)), min_size=1, max_size=6)):
        a, b = draw.draw(some.sampled_from(ids)), draw.draw(some.sampled_from(ids))
        expected = answer(lambda: asked[name](a, b))  # noqa: B023 - called at once
        given_answer = answer(lambda: describe(lazy)[name](a, b))  # noqa: B023
        assert given_answer == expected, name


@given(any_session, some.data())
def test_a_partial_session_follows_other_writers_as_a_whole_one(data: bytes, draw: some.DataObject) -> None:
    try:
        SessionReader().feed(data)
    except FormatError:
        return
    lines = data.split(b"\n")[:-1]
    cuts = draw.draw(some.lists(some.integers(1, len(lines)), min_size=1, max_size=4).map(sorted))
    store = store_of(lines[: cuts[0]])
    try:
        follower = Session(store)
    except FormatError:
        return
    follower.tree  # noqa: B018 - loads the end

    for start, end in zip(cuts, [*cuts[1:], len(lines)], strict=True):
        store.append(lines[start:end], after=store.read_end().cursor)
        follower.refresh()
        anew = load_whole(store)

        assert follower.heads.heads == anew.heads.heads
        assert (follower.heads.current, follower.heads.archived) == (anew.heads.current, anew.heads.archived)
        assert follower.heads.undoable == anew.heads.undoable
    assert (follower.heads.moves, follower.heads.undoable) == (anew.heads.moves, anew.heads.undoable)
    assert [(one.id, one.line, one.raw) for one in follower.tree.entries] == [
        (one.id, one.line, one.raw) for one in anew.tree.entries
    ]


class Clock:
    """Ids and times that are the same in every run."""

    def __init__(self) -> None:
        self.count = 0

    def now(self) -> int:
        return 1_760_000_000_000 + self.count

    def new_id(self) -> str:
        self.count += 1
        return f"{self.count:016x}"


class Writers:
    """Several sessions on one store, in turn."""

    def __init__(self, lines: list[bytes], *, whole: bool) -> None:
        self.store, self.clock, self.whole = store_of(lines), Clock(), whole
        self.sessions = [self.open() for _ in range(2)]

    def open(self) -> Session:
        session = Session(self.store, now=self.clock.now, new_id=self.clock.new_id)
        if self.whole:
            session.tree.load()
            session.heads.moves  # noqa: B018 - loads the moves
        return session

    def act(self, action: str, number: int, text: str) -> Any:
        index = number % len(self.sessions)
        session = self.sessions[index]
        heads = list(session.heads.heads)
        branch = heads[number % len(heads)]
        match action:
            case "append":
                return session.append(user(text)).id
            case "append elsewhere":
                return session.append(user(text), branch=branch).id
            case "extend":
                return [one.id for one in session.extend([user(text), user("more"), Label(target="b", text=text)])]
            case "label":
                return session.label("HEAD", text).id
            case "rename":
                return session.rename(text).id
            case "branch":
                return session.create_branch(f"new-{text}", at="HEAD~1").name
            case "switch":
                return session.switch(branch).name
            case "navigate":
                return session.navigate_sync(f"HEAD~{number % 5}").new_leaf
            case "go back":
                return session.navigate_sync(f"HEAD@{{{number % 3}}}").new_leaf
            case "move":
                return [one.id for one in session.move(f"{branch}~", [user(text)])]
            case "undo":
                return session.undo().new_leaf
            case "archive":
                return session.archive_branch(branch)
            case "rename branch":
                return session.rename_branch(branch, f"named-{text}").name
            case "late":
                return session.append(user(text), parent=f"{branch}~{number % 3}", branch=None).id
            case "refresh":
                return [one.id for one in session.refresh()]
            case _:
                session.close()
                self.sessions[index] = self.open()
                return None


ACTIONS = [
    "append", "append", "append", "append elsewhere", "extend", "label", "rename", "branch", "switch", "navigate",
    "go back", "move", "undo", "archive", "rename branch", "late", "refresh", "reopen",
]  # fmt: skip


def build_start(damage: int | None) -> list[bytes]:
    """Return a session with two branches and head records, and perhaps a damaged line."""
    lines = [write_object(header()), entry("a", branch="main").raw, entry("b", "a", branch="main").raw]
    above = "b"
    for number in range(20):
        id = f"{number:08x}"
        lines.append(
            entry(
                id, above, branch="side" if number == 3 else "main", **({"current": "main"} if number == 3 else {})
            ).raw
        )
        above = "b" if number == 3 else id
        if number in (8, 15):
            heads = {"main": above, "side": "00000003"}
            record = Custom(custom_type=HEAD_RECORD, data={"current": "main", "heads": heads, "origins": {}})
            lines.append(entry(f"r{number}", above, record, branch="main").raw)
    if damage is not None:
        at = damage % (len(lines) - 1) + 1
        lines[at] = lines[at][: len(lines[at]) // 2]
    return lines


@given(
    some.none() | some.integers(0, 60),
    some.lists(some.tuples(some.sampled_from(ACTIONS), some.integers(0, 9), some.sampled_from("xyz")), max_size=25),
)
def test_partial_sessions_write_the_same_lines_as_whole_ones(
    damage: int | None, actions: list[tuple[str, int, str]]
) -> None:
    start = build_start(damage)
    lazy, whole = Writers(start, whole=False), Writers(start, whole=True)

    for action, number, text in actions:
        expected = answer(lambda: whole.act(action, number, text))  # noqa: B023 - called at once
        assert answer(lambda: lazy.act(action, number, text)) == expected  # noqa: B023
        assert list(lazy.store.stream_lines()) == list(whole.store.stream_lines())
        before, after = lazy.sessions[0].heads, whole.sessions[0].heads
        assert (before.heads, before.current, before.archived) == (after.heads, after.current, after.archived)
        assert before.info == after.info


def test_an_append_to_a_long_session_reads_only_its_end() -> None:
    session = Session(store_of(build_start(None)))

    written = session.append(user("hello"))

    assert session.tree.is_partial
    assert session.tree[written.id] is written
    assert written.line == 26
    assert not session.tree.is_partial
    assert session.tree[written.id] is written


def test_as_many_entries_are_loaded_as_it_takes_to_know_that_there_are_more() -> None:
    session = Session(store_of(build_start(None)))
    session.append(user("hello"))

    assert session.tree.has_more_than(1)
    assert session.tree.is_partial
    assert session.tree.has_more_than(20)
    assert not session.tree.has_more_than(1000)
    assert not session.tree.is_partial


def test_the_last_move_is_found_without_loading_the_session() -> None:
    session = Session(store_of(build_start(None)))
    left = session.heads.leaf
    session.navigate_sync("HEAD~3")
    session.append(user("elsewhere"))

    assert session.resolve_place("HEAD@{1}") == left
    assert session.tree.is_partial
    assert answer(lambda: session.resolve_place("HEAD@{9}")) == (
        NotFound,
        "place 'HEAD@{9}' not found; 2 moves so far",
    )
    assert not session.tree.is_partial


def test_creating_and_renaming_a_branch_does_not_load_the_session() -> None:
    session = Session(store_of(build_start(None)))

    session.create_branch("idea")
    session.rename_branch("idea", "plan")

    assert session.tree.is_partial
    assert "plan" in session.heads.heads


def test_a_session_of_a_peer_is_loaded_as_a_whole_until_the_first_append() -> None:
    lines = [write_object(header()), *(entry(f"{n:08x}", f"{n - 1:08x}" if n else None).raw for n in range(40))]
    store = store_of(lines)
    with Session(store) as session:
        session.append(user("one"))
        assert not session.tree.is_partial

    with Session(store) as session:
        session.append(user("two"))
        assert session.tree.is_partial
    assert load_whole(store).heads.leaf == session.heads.leaf


def test_a_leaf_before_the_loaded_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "MAX_TAIL_SIZE", 4000)
    store = SmallBlocks()
    with Session.create(store, id="s") as session:
        session.append(user("one"))
        left = session.append(user("two")).id
        session.navigate_sync("root")
        for number in range(40):
            session.append(user(f"message {number}"))

    lazy = Session(store)

    assert lazy.tree.is_partial
    assert [found.leaf for found in lazy.unnamed_leaves] == [left]
