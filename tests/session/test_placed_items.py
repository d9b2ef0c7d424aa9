"""Batches whose items have their own id, parent, time and branch."""

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as hs

import sessiontree as st
from sessiontree.core.entries import Body
from sessiontree.core.timestamps import format_timestamp
from sessiontree.format.json_line import read_object
from sessiontree.session.entry_builder import RECORD_INTERVAL

BRANCHES = ("main", "side", "other")


def build_session() -> st.Session:
    session = st.memory()
    session.append(st.user("first"))
    session.create_branch("side", current=False)
    session.create_branch("other", at="root", current=False)
    return session


def is_move(entry: st.Entry) -> bool:
    return not entry.is_annotation


def get_link(entry: st.Entry) -> tuple[str, str | None]:
    return entry.id, entry.parent


def get_heads(session: st.Session) -> dict[str, str | None]:
    return dict(session.heads.heads)


def test_an_item_has_its_own_id_parent_time_and_branch() -> None:
    session = build_session()
    first = session.tree.entries[0]
    main, side = session.branch("main").leaf, session.branch("side").leaf

    question, late, answer = session.extend(
        [
            st.Item(st.user("q"), id="q", branch="side", timestamp="2023-11-14T22:13:20.123Z"),
            st.Item(st.user("late"), id="late", parent=first, branch=None, timestamp="2020-09-13T12:26:40.000Z"),
            st.Item(st.assistant("a"), parent="q", branch="side"),
        ]
    )

    assert (question.id, question.parent, question.branch) == ("q", side, "side")
    assert question.timestamp == "2023-11-14T22:13:20.123Z"
    assert read_object(question.raw)["message"]["timestamp"] == 1_700_000_000_123
    assert (late.parent, late.branch) == (first.id, None)
    assert (answer.parent, answer.branch) == ("q", "side")
    assert get_heads(session) == {"main": main, "side": answer.id, "other": session.branch("other").leaf}
    assert session.heads.current == "main"


def test_items_without_a_place_follow_the_item_before() -> None:
    session = build_session()

    a, b, c = session.extend([st.Item(st.user("a"), branch="side"), st.user("b"), st.Item(st.user("c"))])

    assert (b.parent, b.branch, c.parent, c.branch) == (a.id, "side", b.id, "side")
    assert session.branch("side").leaf == c.id


def test_an_item_that_names_a_branch_goes_to_its_head_in_the_batch() -> None:
    session = build_session()
    main = session.head.leaf

    a, b, c = session.extend([st.Item(st.user("a"), branch=name) for name in ("side", "main", "side")])

    assert (b.parent, c.parent) == (main, a.id)


def test_an_item_without_a_branch_can_follow_another_one() -> None:
    session = build_session()
    main = session.head.leaf

    first, second = session.extend(
        [st.Item(st.user("a"), parent=main, branch=None), st.Item(st.user("b"), branch=None)]
    )

    assert (second.parent, second.branch, session.head.leaf) == (first.id, None, main)


def test_parent_and_branch_of_the_call_are_those_of_the_first_item() -> None:
    session = build_session()
    first = session.tree.entries[0]

    a, b = session.extend(
        [st.Item(st.user("a"), timestamp="1970-01-01T00:00:00.005Z"), st.user("b")], parent=first, branch="other"
    )

    assert (a.parent, a.branch, b.parent, b.branch) == (first.id, "other", a.id, "other")


def test_a_label_can_name_any_earlier_item() -> None:
    session = build_session()

    session.extend(
        [
            st.Item(st.user("a"), id="a", branch="side"),
            st.Item(st.Label(target="a", text="mine"), branch="main"),
        ]
    )

    assert session.resolve_place("mine") == "a"


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ([st.Item(st.user("x"), parent="later"), st.Item(st.user("y"), id="later")], "place 'later' not found"),
        ([st.Item(st.user("x"), branch="gone")], "branch 'gone' not found"),
        ([st.Item(st.user("x"), branch=None)], "an entry without a branch needs a parent"),
        ([st.Item(st.user("x"), timestamp=True)], "not True"),  # type: ignore[arg-type]
        ([st.Item(st.user("x"), timestamp=10**12)], "not 1000000000000"),  # type: ignore[arg-type]
        ([st.Item(st.user("x"), timestamp="yesterday")], "a timestamp is an ISO time such as"),
        ([st.Item(st.user("x"), id="same", branch="main"), st.Item(st.user("y"), id="same")], "'same' already exists"),
        ([st.Item(st.user("x"), branch="side"), st.Item(st.Label(target="gone", text="t"))], "entry 'gone' not found"),
    ],
)
def test_a_wrong_item_writes_nothing_of_its_batch(items: list[Body | st.Item], sentence: str) -> None:
    session = build_session()
    before = session.read_lines()

    with pytest.raises(st.SessionTreeError) as caught:
        session.extend([st.user("fine"), *items] if "needs a parent" not in sentence else items)

    assert sentence in str(caught.value)
    assert session.read_lines() == before


def test_a_batch_is_refused_after_another_writer_moved_one_of_its_branches(tmp_path: Path) -> None:
    with st.create(file=tmp_path / "s.jsonl") as session, st.open(session.file or "") as other:
        session.append(st.user("first"))
        session.create_branch("side", current=False)
        other.refresh()
        other.append(st.user("theirs"), branch="side")
        before = session.file.read_bytes() if session.file else b""

        with pytest.raises(st.BranchMoved):
            session.extend([st.Item(st.user("a"), branch="main"), st.Item(st.user("b"), branch="side")])
        assert session.file is not None
        assert session.file.read_bytes() == before

        other.append(st.user("theirs again"), branch="side")
        (mine,) = session.extend([st.Item(st.user("a"), branch="main", timestamp="1970-01-01T00:00:00.005Z")])
        assert mine.timestamp == "1970-01-01T00:00:00.005Z"


def test_writers_that_share_a_file_keep_every_batch(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    with st.create(file=file) as session:
        session.append(st.user("first"))
        for name in ("a", "b"):
            session.create_branch(name, current=False)

    def write(name: str) -> None:
        with st.open(file) as mine:
            for number in range(20):
                mine.extend(
                    [
                        st.Item(st.user(f"{name} {number}"), branch=name, timestamp=format_timestamp(number)),
                        st.user("more"),
                    ]
                )

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with st.open(file) as session:
        assert [info.entry_count for info in session.branches if info.name in ("a", "b")] == [42, 42]
        assert not session.problems


def test_move_refuses_items_with_a_place() -> None:
    session = build_session()

    with pytest.raises(st.InvalidOperation, match="need extend"):
        session.move("root", [st.Item(st.user("x"), branch="side")])


# Any batch

texts = hs.sampled_from(["a", "b"])
bodies: hs.SearchStrategy[Body] = hs.one_of(
    texts.map(st.user),
    texts.map(st.assistant),
    texts.map(st.SessionInfo),
    hs.just(st.ThinkingLevelChange("high")),
    hs.just(st.Custom(custom_type="x", data={})),
    hs.just(st.Compaction(summary="so far", tokens_before=1)),
)


@hs.composite
def batches(draw: hs.DrawFn) -> list[Body | st.Item]:
    """Items with any mix of fields; a parent is a place or an earlier item."""
    items: list[Body | st.Item] = []
    ids: list[str] = []
    for number in range(draw(hs.integers(1, 12))):
        body = draw(bodies)
        if draw(hs.booleans()):
            items.append(body)
            continue
        fields: dict[str, Any] = {}
        if draw(hs.booleans()):
            fields["id"] = f"item {number}"
        if draw(hs.booleans()):
            fields["parent"] = draw(hs.sampled_from([None, "HEAD", "root", *BRANCHES, *ids, *ids]))
        if draw(hs.booleans()):
            fields["timestamp"] = format_timestamp(draw(hs.integers(0, 2_000_000_000_000)))
        if draw(hs.booleans()):
            needs_name = not items and "parent" not in fields
            fields["branch"] = draw(hs.sampled_from(BRANCHES if needs_name else (*BRANCHES, None)))
        items.append(st.Item(body, **fields))
        ids += [fields["id"]] if "id" in fields else []
    repeat = draw(hs.sampled_from([0, 0, 0, RECORD_INTERVAL - 8, RECORD_INTERVAL + 3]))
    at = draw(hs.integers(0, len(items)))
    return [*items[:at], *[st.user("filler")] * repeat, *items[at:]]


@given(batches(), batches(), hs.booleans())
def test_a_reopened_session_equals_the_one_that_wrote(
    first: list[Body | st.Item], second: list[Body | st.Item], is_empty: bool
) -> None:
    session = st.memory() if is_empty else build_session()
    if is_empty:
        for name in BRANCHES[1:]:
            session.create_branch(name, current=False)
    expected = get_heads(session)
    second = [item._replace(id=None, parent="main") if isinstance(item, st.Item) else item for item in second]
    written = [*session.extend(first), *session.extend(second)]
    expected |= {entry.branch: entry.id for entry in written if isinstance(entry.branch, str) and is_move(entry)}

    assert get_heads(session) == expected
    assert len(written) == len(first) + len(second)
    for item, entry in zip(first, written, strict=False):
        if isinstance(item, st.Item):
            assert item.id in (None, entry.id)
            assert item.timestamp in (None, entry.timestamp)
            assert not isinstance(item.branch, str) or entry.branch == item.branch
    for _ in ("open", "closed"):
        again = st.Session(session.store)
        assert again.context() == session.context()
        for name in BRANCHES:
            assert st.Session(session.store).context(f"branch:{name}") == session.context(f"branch:{name}")
        assert get_heads(again) == get_heads(session)
        assert (again.heads.current, again.heads.moves) == (session.heads.current, session.heads.moves)
        assert [*map(get_link, again.tree)] == [*map(get_link, session.tree)]
        assert not [problem for problem in again.problems if problem.severity == "fault"]
        session.close()


def test_annotations_before_the_first_real_entry_form_its_chain() -> None:
    session = st.memory(name="named")
    (name,) = session.tree.entries

    info, usage, hello = session.extend(
        [
            st.Item(st.SessionInfo("new"), timestamp="1970-01-01T00:00:00.001Z"),
            st.Usage(kind="title"),
            st.Item(st.user("hello"), timestamp="1970-01-01T00:00:00.002Z"),
        ]
    )

    assert (info.parent, usage.parent, hello.parent) == (name.id, info.id, usage.id)
    assert not session.problems


# A new branch with entries


def test_a_new_branch_and_its_first_entries_are_written_together(tmp_path: Path) -> None:
    with st.create(file=tmp_path / "s.jsonl") as session:
        first = session.append(st.user("one"))
        session.append(st.assistant("1"))
        before = len(session.read_lines())

        side = session.create_branch(
            "side", at=first, bodies=[st.Item(st.user("a"), id="a"), st.Label(target="a", text="here"), st.user("b")]
        )

        assert len(session.read_lines()) == before + 4
        assert [entry.type for entry in side.path()] == ["message", "branch_point", "message", "message"]
        assert (session.head, session.tree.label("a")) == (side, "here")
        heads = get_heads(session)
    with st.open(tmp_path / "s.jsonl") as again:
        assert (get_heads(again), again.heads.current) == (heads, "side")


@pytest.mark.parametrize("current", [True, False])
def test_a_due_head_record_knows_the_new_branch(current: bool) -> None:
    session = build_session()
    bodies = [st.user(str(number)) for number in range(RECORD_INTERVAL + 10)]

    branch = session.create_branch("more", current=current, bodies=bodies)

    assert len(branch.path()) == 2 + len(bodies)
    assert session.heads.current == ("more" if current else "main")
    records = [entry for entry in session.tree if entry.is_head_record]
    assert {record.body.data["current"] for record in records} == {session.heads.current}
    assert all("more" in record.body.data["heads"] for record in records)


@pytest.mark.parametrize(
    ("bodies", "why"),
    [
        ([st.user("a"), st.Item(st.user("b"), branch="main")], "need extend"),
        ([st.Item(st.user("a"), id="a"), st.Item(st.user("b"), id="a")], "already exists"),
        ([st.BranchPoint(name="other")], "cannot append a branch point"),
        (st.user("a"), "extend needs a list"),
    ],
)
def test_a_branch_with_wrong_entries_is_not_created(bodies: Any, why: str) -> None:
    session = build_session()
    lines = session.read_lines()

    with pytest.raises(st.InvalidOperation, match=why):
        session.create_branch("more", bodies=bodies)

    assert session.read_lines() == lines
    assert "more" not in session.heads.heads
