import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.context import build_context
from sessiontree.core.entries import HEAD_RECORD, BranchPoint, Compaction, Custom, Label, SessionInfo, Usage
from sessiontree.core.plan import plan_fork
from sessiontree.core.tree import Tree
from sessiontree.format.fork import path_fork_lines
from tests.builders import file_of, grow, header, ids, read, replayed
from tests.strategies import damaged_entry_lists, object_texts, places

NOW = "2026-02-02T00:00:00.000Z"


def forked(tree, leaf, name=None):
    """The entries of a fork of the path to `leaf`; those that are new are called n1, n2, and so on."""
    numbers = itertools.count(1)
    lines = path_fork_lines(plan_fork(tree, leaf), name=name, now=NOW, new_id=lambda: f"n{next(numbers)}")
    return read(file_of(header(), *lines))[1]


def test_a_fork_holds_the_path_byte_for_byte_and_a_head_record():
    tree = grow("a>b>c b>d")

    *copied, record = forked(tree, "d")

    assert [line.raw for line in copied] == [tree[id].raw for id in "abd"]
    assert (record.parent, record.timestamp, record.is_head_record) == ("d", NOW, True)


def test_a_fork_is_main_with_its_head_at_the_leaf_and_no_past():
    tree = grow("a>b>c", b={"type": "custom", "branch": "side"}, c={"type": "custom", "branch": "side"})

    heads = replayed(*forked(tree, "c"))

    assert (heads.heads, heads.current, heads.moves) == ({"main": "c"}, "main", [])


def test_labels_that_live_are_set_again_at_the_end_with_their_times():
    tree = grow("a>l>b b>m", l=Label(target="a", text="x"), m=Label(target="b", text="y"))

    entries = forked(tree, "b")

    assert [(entry.id, entry.parent) for entry in entries] == [
        ("a", None),
        ("b", "a"),
        ("n1", "b"),
        ("n2", "n1"),
        ("n3", "b"),
    ]
    assert Tree(entries).labels == {"a": "x", "b": "y"}
    assert entries[2].timestamp == tree["l"].timestamp


def test_a_line_whose_parent_changes_differs_in_that_value_alone():
    tree = grow("a>l>b", l=Label(target="a", text="x"), b={"type": "custom", "odd": 1.5})

    copy = forked(tree, "b")[1]

    assert copy.raw == tree["b"].raw.replace(b'"parentId":"l"', b'"parentId":"a"')


def test_an_anchor_is_remapped_and_the_context_stays():
    tree = grow("z>a>l>b>K>c", l=Label(target="a", text="x"), K=Compaction(summary="S", first_kept="l"))

    fork = Tree(forked(tree, "c"))

    assert fork["K"].body.first_kept == "b"
    assert build_context(fork, "c").sources == build_context(tree, "c").sources == ("K", "b", "c")


def test_a_new_name_is_the_name_of_the_fork():
    tree = grow("a>b", a=SessionInfo("old"))

    assert Tree(forked(tree, "b", name="new")).name == "new"
    assert Tree(forked(tree, "b")).name == "old"


def test_a_fork_before_everything_has_only_its_name():
    assert forked(grow("a"), None) == []
    assert [entry.body for entry in forked(grow("a"), None, name="new")] == [SessionInfo("new")]


def test_a_fork_of_annotations_alone_has_its_head_before_everything():
    tree = grow("a>b", a=Usage(kind="warm"), b=Label(target="a", text="x"))

    entries = forked(tree, "b")

    assert ids(entries) == "an1n2"
    assert entries[-1].parent == "n1"
    assert replayed(*entries).heads == {"main": None}


def test_head_records_and_branch_points_stay_behind():
    tree = grow("a>h>p>b", h=Custom(custom_type=HEAD_RECORD), p=BranchPoint(name="side"))

    assert ids(forked(tree, "b")) == "abn1"


@given(object_texts)
def test_what_is_not_known_survives_a_fork_byte_for_byte(odd):
    label = {"type": "label", "id": "l", "parentId": "a", "targetId": "a", "label": "x"}
    raw = b'{"odd":' + odd + b',"type":"from_the_future","parentId" : %s,"id":"b"}\r'
    first = {"type": "custom", "id": "a", "parentId": None}
    tree = Tree(read(file_of(header(), first, label, raw % b'"l"'))[1])

    assert forked(tree, "b")[1].raw == raw % b'"a"'


@given(damaged_entry_lists(), st.data())
def test_the_context_of_a_fork_is_the_context_of_its_path(entries, data):
    tree, leaf = Tree(entries), data.draw(places(entries))

    fork = forked(tree, leaf)
    heads = replayed(*fork)

    before, after = build_context(tree, leaf), build_context(Tree(fork), heads.leaf)
    assert after.messages == before.messages
    assert after.state == before.state
    assert after.sources == before.sources


@given(damaged_entry_lists(), st.data())
def test_a_fork_is_one_sound_chain(entries, data):
    tree = Tree(entries)

    fork = forked(tree, data.draw(places(entries)))

    copies = [entry for entry in fork if not entry.id.startswith("n")]
    assert [entry.parent for entry in copies] == [None, *(entry.id for entry in copies)][: len(copies)]
    for copy in copies:
        original, own = json.loads(tree[copy.id].raw), json.loads(copy.raw)
        changed = {key for key in own if own.get(key) != original.get(key)}
        assert changed <= {"parentId", "firstKeptEntryId"}
