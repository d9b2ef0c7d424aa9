import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.context import build_context
from sessiontree.core.entries import HEAD_RECORD, BranchPoint, Compaction, Custom, Label, SessionInfo, Usage
from sessiontree.core.heads import SkippedEntries, skip_unreadable
from sessiontree.core.operation_plans import plan_fork
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation
from sessiontree.format import fork_lines as fork_module
from sessiontree.format.fork_lines import build_fork_lines
from sessiontree.format.json_line import write_object
from tests.builders import build_file, grow, header, ids, read, replay
from tests.strategies import damaged_entry_lists, object_texts, places

NOW = "2026-02-02T00:00:00.000Z"


def fork_path(tree, leaf, name=None):
    """Return the entries of a fork of the path to `leaf`; new entries are named n1, n2, and so on."""
    numbers = itertools.count(1)
    lines = build_fork_lines(plan_fork(tree, leaf), name=name, now=NOW, new_id=lambda: f"n{next(numbers)}")
    return read(build_file(header(), *lines))[1]


def test_a_fork_holds_the_path_byte_for_byte_and_a_head_record():
    tree = grow("a>b>c b>d")

    *copied, record = fork_path(tree, "d")

    assert [line.raw for line in copied] == [tree[id].raw for id in "abd"]
    assert (record.parent, record.timestamp, record.is_head_record) == ("d", NOW, True)


def test_a_fork_is_main_with_its_head_at_the_leaf_and_no_undo_history():
    tree = grow("a>b>c", b={"type": "custom", "branch": "side"}, c={"type": "custom", "branch": "side"})

    heads = replay(*fork_path(tree, "c"))

    assert (heads.heads, heads.current, heads.moves) == ({"main": "c"}, "main", [])


def test_current_labels_are_set_again_at_the_end_with_their_timestamps():
    tree = grow("a>l>b b>m", l=Label(target="a", text="x"), m=Label(target="b", text="y"))

    entries = fork_path(tree, "b")

    assert [(entry.id, entry.parent) for entry in entries] == [
        ("a", None),
        ("b", "a"),
        ("n1", "b"),
        ("n2", "n1"),
        ("n3", "b"),
    ]
    assert Tree(entries).labels == {"a": "x", "b": "y"}
    assert entries[2].timestamp == tree["l"].timestamp


def test_a_line_with_a_new_parent_differs_only_in_that_value():
    tree = grow("a>l>b", l=Label(target="a", text="x"), b={"type": "custom", "odd": 1.5})

    copy = fork_path(tree, "b")[1]

    assert copy.raw == tree["b"].raw.replace(b'"parentId":"l"', b'"parentId":"a"')


def test_an_anchor_is_remapped_and_the_context_stays():
    tree = grow("z>a>l>b>K>c", l=Label(target="a", text="x"), K=Compaction(summary="S", first_kept="l"))

    fork = Tree(fork_path(tree, "c"))

    assert fork["K"].body.first_kept == "b"
    assert build_context(fork, "c").sources == build_context(tree, "c").sources == ("K", "b", "c")


def test_a_new_name_is_the_name_of_the_fork():
    tree = grow("a>b", a=SessionInfo("old"))

    assert Tree(fork_path(tree, "b", name="new")).name == "new"
    assert Tree(fork_path(tree, "b")).name == "old"


def test_a_fork_before_the_first_entry_has_only_its_name():
    assert fork_path(grow("a"), None) == []
    assert [entry.body for entry in fork_path(grow("a"), None, name="new")] == [SessionInfo("new")]


def test_a_fork_of_annotations_has_its_head_before_the_first_entry():
    tree = grow("a>b", a=Usage(kind="warm"), b=Label(target="a", text="x"))

    entries = fork_path(tree, "b")

    assert ids(entries) == "an1n2"
    assert entries[-1].parent == "n1"
    assert replay(*entries).heads == {"main": None}


def test_head_records_and_branch_points_are_not_copied():
    tree = grow("a>h>p>b", h=Custom(custom_type=HEAD_RECORD), p=BranchPoint(name="side"))

    assert ids(fork_path(tree, "b")) == "abn1"


@given(object_texts)
def test_unknown_fields_survive_a_fork_byte_for_byte(odd):
    label = {"type": "label", "id": "l", "parentId": "a", "targetId": "a", "label": "x"}
    raw = b'{"odd":' + odd + b',"type":"from_the_future","parentId" : %s,"id":"b"}\r'
    first = {"type": "custom", "id": "a", "parentId": None}
    tree = Tree(read(build_file(header(), first, label, raw % b'"l"'))[1])

    assert fork_path(tree, "b")[1].raw == raw % b'"a"'


@given(damaged_entry_lists(), st.data())
def test_the_context_of_a_fork_is_the_context_of_its_path(entries, data):
    tree, leaf = Tree(entries), data.draw(places(entries))

    fork = fork_path(tree, leaf)
    heads = replay(*fork)

    before, after = build_context(tree, leaf), build_context(Tree(fork), heads.leaf)
    assert after.messages == before.messages
    assert after.state == before.state
    assert after.sources == before.sources


@given(damaged_entry_lists(), st.data())
def test_a_fork_is_one_sound_chain(entries, data):
    tree = Tree(entries)

    fork = fork_path(tree, data.draw(places(entries)))

    copies = [entry for entry in fork if not entry.id.startswith("n")]
    assert [entry.parent for entry in copies] == [None, *(entry.id for entry in copies)][: len(copies)]
    for copy in copies:
        original, own = json.loads(tree[copy.id].raw), json.loads(copy.raw)
        changed = {key for key in own if own.get(key) != original.get(key)}
        assert changed <= {"parentId", "firstKeptEntryId"}


def make_line(id: str, parent: str | None, **fields: object) -> bytes:
    message = {"role": "user", "content": id}
    return write_object(
        {"type": "message", "id": id, "parentId": parent, "timestamp": NOW, "message": message, **fields}
    )


LABEL = {"type": "label", "id": "l", "parentId": "a", "targetId": "a", "label": "x"}
JOINED = make_line("b", "l") + make_line("c", "b")
TORN = make_line("b", "l")[:-20] + make_line("c", "b")
HIDDEN = make_line("b", "l")[:-1] + b',"parentId":"l","odd":{}}'


@pytest.mark.parametrize("line", [JOINED, TORN, HIDDEN])
def test_a_fork_across_a_damaged_line_keeps_the_history_above_it(line):
    tree = Tree(read(build_file(header(), make_line("a", None), LABEL, line, make_line("d", "b")))[1])

    fork = Tree(fork_path(tree, "d"))

    assert ids(fork.path("d")) == "abd"
    assert build_context(fork, "d").messages == build_context(tree, "d").messages
    assert fork["b"].raw == line.replace(b'"parentId":"l"', b'"parentId":"a"', 1)


@pytest.mark.parametrize("line", [JOINED, TORN])
def test_a_fork_is_refused_if_a_damaged_line_cannot_change_its_parent(line):
    odd = 'an id with "quotes"'
    label = {**LABEL, "parentId": odd}
    tree = Tree(read(build_file(header(), make_line(odd, None), label, line, make_line("d", "b")))[1])

    with pytest.raises(InvalidOperation, match=r"line 4 is damaged.*doctor --repair"):
        fork_path(tree, "d")


@st.composite
def draw_joined_files(draw):
    """Messages below a label or another message, some of them with the next on the same line."""
    lines, known = [make_line("m0", None)], ["m0"]
    for number in range(1, draw(st.integers(2, 8))):
        id, parent = f"m{number}", draw(st.sampled_from(known))
        if draw(st.booleans()):
            lines.append(write_object({**LABEL, "id": f"l{number}", "parentId": parent}))
            parent = f"l{number}"
        behind = draw(st.sampled_from([b"}", b"}", b',"parentId":"m0","odd":{}}']))
        lines.append(make_line(id, parent)[:-1] + behind)
        known.append(id)
    ends = draw(st.lists(st.sampled_from([b"\n", b"\n", b""]), min_size=len(lines), max_size=len(lines)))
    return build_file(header()) + b"".join(line + end for line, end in zip(lines, ends, strict=True))


@given(draw_joined_files())
def test_the_context_of_a_fork_is_that_of_its_path_with_lost_newlines(file):
    tree = Tree(read(file)[1])

    for leaf in (entry.id for entry in tree):
        fork = fork_path(tree, leaf)
        heads = skip_unreadable(replay(*fork), Tree(fork), SkippedEntries())
        assert build_context(Tree(fork), heads.leaf).messages == build_context(tree, leaf).messages


def test_a_fork_is_refused_if_a_line_would_become_too_long(monkeypatch):
    tree = Tree(
        read(build_file(header(), make_line("a" * 60, None), {**LABEL, "parentId": "a" * 60}, make_line("b", "l")))[1]
    )
    monkeypatch.setattr(fork_module, "LINE_LIMIT", len(tree["b"].raw))

    with pytest.raises(InvalidOperation, match="cannot be copied"):
        fork_path(tree, "b")
