"""Building entries before they are written."""

import itertools
import os

import pytest

import sessiontree as st
from sessiontree.core.entries import Body, Chain, Custom, Entry, Label, Message, SessionInfo, Usage
from sessiontree.format.codec import write_header
from sessiontree.format.json_line import read_object
from sessiontree.session.entry_builder import (
    RECORD_INTERVAL,
    EntryBatch,
    EntryBuilder,
    Item,
    find_write_parent,
    generate_id,
    has_branch_move,
)
from sessiontree.session.state import SessionState
from sessiontree.store.memory import MemoryStore

HELLO = st.user("Hello")


@pytest.fixture
def loaded() -> SessionState:
    store = MemoryStore()
    store.create([write_header(id="s", timestamp="", cwd="")])
    return SessionState(store, store.read_end())


@pytest.fixture
def draft() -> EntryBuilder:
    numbers = itertools.count(1)
    return EntryBuilder(lambda: f"id{next(numbers)}", lambda: 1_700_000_000_123)


def entries_of(drafted: EntryBatch) -> list[Entry]:
    return [*drafted.iter_backward()][::-1]


def test_every_entry_is_a_child_of_the_one_before(draft: EntryBuilder, loaded: SessionState) -> None:
    entries = entries_of(draft.build_chain(loaded, [HELLO, HELLO, HELLO], "above", "main"))

    assert [(entry.id, entry.parent) for entry in entries] == [("id1", "above"), ("id2", "id1"), ("id3", "id2")]


def test_building_entries_changes_nothing(draft: EntryBuilder, loaded: SessionState) -> None:
    draft.build_chain(loaded, [HELLO], None, "main")

    assert (len(loaded.tree), loaded.heads.leaf) == (0, None)


def test_an_entry_and_its_message_have_one_time(draft: EntryBuilder, loaded: SessionState) -> None:
    (entry,) = entries_of(draft.build_chain(loaded, [Message({"role": "user", "content": "now"})], None, "main"))

    assert entry.timestamp == "2023-11-14T22:13:20.123Z"
    assert read_object(entry.raw)["message"]["timestamp"] == 1_700_000_000_123


def test_an_entry_names_the_current_branch_if_it_is_on_another(draft: EntryBuilder, loaded: SessionState) -> None:
    said = [draft.build_chain(loaded, [HELLO], None, branch).items[0].current for branch in ("main", "other", None)]

    assert said == [None, "main", None]


def test_consecutive_messages_are_one_chain(draft: EntryBuilder, loaded: SessionState) -> None:
    drafted = draft.build_chain(loaded, [HELLO, HELLO, SessionInfo("A name"), HELLO], None, "main")

    assert [len(item) if isinstance(item, Chain) else item.type for item in drafted.items] == [2, "session_info", 1]
    written = loaded.add_written(drafted, loaded.cursor)
    assert [(entry.id, entry.parent, entry.line) for entry in written] == [
        ("id1", None, 2),
        ("id2", "id1", 3),
        ("id3", "id2", 4),
        ("id4", "id2", 5),
    ]
    assert [loaded.tree[entry.id] for entry in written] == list(written)


def test_all_entries_of_a_batch_have_one_timestamp(loaded: SessionState) -> None:
    times = itertools.count(1_700_000_000_000)
    drafted = EntryBuilder(generate_id, lambda: next(times)).build_chain(
        loaded, [HELLO, SessionInfo("A name"), HELLO], None, "main"
    )

    assert len({entry.timestamp for entry in entries_of(drafted)}) == 1


def test_an_answer_has_the_model_of_an_answer_in_the_same_batch(draft: EntryBuilder, loaded: SessionState) -> None:
    bodies = [HELLO, st.assistant("a", model="m", provider="p"), HELLO, Message({"role": "assistant", "content": "b"})]

    last = read_object(draft.build_chain(loaded, bodies, None, "main").lines[-1])["message"]

    assert (last["provider"], last["model"]) == ("p", "m")


def test_a_forked_process_generates_other_ids() -> None:
    generate_id()
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, generate_id().encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 16).decode() not in {generate_id() for _ in range(64)}
    os.close(read)
    os.close(write)


def test_a_new_entry_can_have_an_id_and_further_fields(draft: EntryBuilder, loaded: SessionState) -> None:
    (entry,) = entries_of(draft.build_chain(loaded, [Item(HELLO, {"copiedFrom": "x"}, "mine")], None, "main"))

    assert (entry.id, read_object(entry.raw)["copiedFrom"]) == ("mine", "x")


def test_a_long_batch_contains_head_records_with_the_heads_so_far(draft: EntryBuilder, loaded: SessionState) -> None:
    entries = entries_of(draft.build_chain(loaded, [HELLO] * RECORD_INTERVAL, None, "main"))
    records = [place for place, entry in enumerate(entries) if entry.is_head_record]

    assert records == [RECORD_INTERVAL - 1]
    assert read_object(entries[records[0]].raw)["data"]["heads"] == {"main": entries[records[0] - 1].id}
    assert entries[-1].parent == entries[records[0] - 1].id


def test_annotations_before_the_first_real_entry_form_its_chain(draft: EntryBuilder, loaded: SessionState) -> None:
    bodies = [SessionInfo("A name"), SessionInfo("Another"), HELLO, SessionInfo("Last")]
    entries = entries_of(draft.build_chain(loaded, bodies, None, "main"))

    assert [entry.parent for entry in entries] == [None, "id1", "id2", "id3"]
    loaded.add_written((entries[:2], [entry.raw for entry in entries[:2]]), loaded.cursor)
    assert find_write_parent(loaded.tree, None) == "id2"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([HELLO], True),
        ([SessionInfo("A name"), HELLO], True),
        ([Item(Custom(custom_type="mine"))], True),
        ([SessionInfo("A name"), Label(target="a"), Usage(kind="title")], False),
        ([Item(Custom(custom_type="session_exit"))], False),
        ([], False),
    ],
)
def test_annotations_move_no_branch(items: list[Body | Item], expected: bool) -> None:
    assert has_branch_move(items) is expected
