"""Drawings and flat rows are streams that show what an outline shows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.call_lookup import CallLookup
from sessiontree.core.entries import read_raws
from sessiontree.core.entry_text import format_entry_row
from sessiontree.core.heads import Heads
from sessiontree.core.messages import assistant
from sessiontree.core.outline import FILTERS, build_outline, lay_out, run_steps, survey_tree
from sessiontree.core.problems import ProblemScan, find_problems
from sessiontree.core.tree import Tree
from sessiontree.core.tree_drawing import TreeDrawing
from sessiontree.core.tree_rows import WindowRow, build_window, find_window, stream_rows
from tests.builders import entry, grow
from tests.shapes import build_tree
from tests.strategies import damaged_entry_lists, entry_lists

FIELDS = ("prefix", "on_path", "active", "branches", "active_hidden", "branches_hidden")


def replay_heads(tree):
    heads = Heads()
    heads.replay(tree.entries, tree)
    return heads


def draw(tree, leaf, filter="default", heads=None, start=None):
    return list(TreeDrawing(tree, leaf, filter, heads).iter_rows(start))


def outline(tree, leaf, filter, heads):
    calls = CallLookup(tree)
    return [
        (row.entry.id, format_entry_row(row.entry, calls), *(_plain(getattr(row, name)) for name in FIELDS))
        for row in build_outline(tree, leaf, filter, heads)
    ]


def _plain(value):
    return list(value) if isinstance(value, (list, tuple)) else value


def simplify(rows):
    return [(row.id, row.text, *(getattr(row, name) for name in FIELDS)) for row in rows]


@given(st.one_of(entry_lists(), damaged_entry_lists()), st.sampled_from(FILTERS), st.data())
def test_a_drawing_has_the_rows_of_the_outline(entries, filter, data):
    tree = Tree(entries)
    heads = replay_heads(tree)
    leaf = data.draw(st.sampled_from([None, *tree.iter_ids()]))

    assert simplify(draw(tree, leaf, filter, heads)) == outline(tree, leaf, filter, heads)


@given(st.one_of(entry_lists(), damaged_entry_lists()), st.sampled_from(FILTERS), st.data())
def test_a_drawing_can_start_at_any_row(entries, filter, data):
    tree = Tree(entries)
    leaf = data.draw(st.sampled_from([None, *tree.iter_ids()]))
    whole = draw(tree, leaf, filter)
    if not whole:
        return
    at = data.draw(st.integers(0, len(whole) - 1))

    assert simplify(draw(tree, leaf, filter, start=whole[at].id)) == simplify(whole[at:])


@pytest.mark.parametrize("shape", ["chain", "comb", "wide", "calls", "labels"])
@pytest.mark.parametrize("filter", ["default", "all"])
def test_large_shapes_are_drawn_like_their_outline(shape, filter):
    tree = build_tree(shape, 700)
    leaf = list(tree.iter_ids())[-1]

    assert simplify(draw(tree, leaf, filter)) == outline(tree, leaf, filter, None)


@given(st.one_of(entry_lists(), damaged_entry_lists()), st.sampled_from(FILTERS), st.data())
def test_flat_rows_are_in_the_order_of_the_drawing(entries, filter, data):
    tree = Tree(entries)
    leaf = data.draw(st.sampled_from([None, *tree.iter_ids()]))
    rows = list(stream_rows(tree, leaf, filter))

    assert [row.id for row in rows] == [row.id for row in draw(tree, leaf, filter)]
    assert all(row.parent == tree.parent(row.id) for row in rows)
    assert [(row.id, row.depth) for row in stream_rows(tree, leaf, "all")] == list(tree.walk_ids(leaf))
    if rows:
        at = data.draw(st.integers(0, len(rows) - 1))
        assert list(stream_rows(tree, leaf, filter, start=rows[at].id)) == rows[at:]


@given(st.one_of(entry_lists(), damaged_entry_lists()), st.sampled_from(FILTERS), st.integers(1, 6), st.data())
def test_a_window_has_half_of_its_rows_before_the_place(entries, filter, size, data):
    tree = Tree(entries)
    leaf = data.draw(st.sampled_from([None, *tree.iter_ids()]))
    around = data.draw(st.sampled_from([None, *tree.iter_ids()]))
    order = [id for id, _ in tree.walk_ids(leaf)]
    rows = [row.id for row in stream_rows(tree, leaf, filter)]
    place = 0 if around is None else order.index(around)
    before = [id for id in rows if order.index(id) < place]
    after = [id for id in rows if order.index(id) >= place]

    expected = [*before[len(before) - min(size // 2, len(before)) :], *after]
    assert find_window(tree, leaf, filter, around, size) == (expected[0] if expected else None)


@given(st.one_of(entry_lists(), damaged_entry_lists()), st.sampled_from(FILTERS), st.integers(1, 6), st.data())
def test_a_window_has_the_rows_of_the_whole_outline(entries, filter, size, data):
    tree = Tree(entries)
    leaf = data.draw(st.sampled_from([None, *tree.iter_ids()]))
    around = data.draw(st.sampled_from([None, *tree.iter_ids()]))
    whole = run_steps(lay_out(run_steps(survey_tree(tree, leaf)), filter))
    depths = dict(tree.walk_ids(leaf))

    def describe(row):
        id, above = whole.get_id(row), whole.shape.parent_positions[whole.rows[row]]
        shown = whole.nearest_rows[above] if above >= 0 else -1
        return WindowRow(id, None if shown < 0 else whole.get_id(shown), depths[id], whole.is_on_path(row))

    window = build_window(tree, leaf, filter, around, size)

    if not window.rows:
        assert (window.has_earlier, window.has_later) == (len(whole) > 0, False)
        assert find_window(tree, leaf, filter, around, size) is None
        return
    start = whole.find_row(window.rows[0].id)
    assert window.rows == [describe(row) for row in range(start, min(start + size, len(whole)))]
    assert (window.has_earlier, window.has_later) == (start > 0, start + size < len(whole))


def test_a_window_is_found_far_from_the_last_row_that_a_filter_shows():
    tree = build_tree("chain", 5000)
    [first, *_] = tree.iter_ids()

    assert find_window(tree, "m4999", "labeled-only", "m4999", 10) is None
    assert find_window(tree, "m4999", "all", "m4999", 10) == "m4994"
    assert find_window(tree, "m4999", "all", None, 10) == first


@given(st.one_of(entry_lists(), damaged_entry_lists()), st.sampled_from(FILTERS))
def test_problems_found_while_drawing_are_those_of_a_separate_scan(entries, filter):
    tree = Tree(entries)
    heads = replay_heads(tree)
    if len(tree) != tree.count:
        return  # shadowed entries have no rows
    flat, drawn = ProblemScan(tree), ProblemScan(tree)
    list(stream_rows(tree, None, filter, flat))
    list(TreeDrawing(tree, None, filter, heads, drawn).iter_rows())

    assert find_problems(tree, heads, flat) == find_problems(tree, heads)
    assert find_problems(tree, heads, drawn) == find_problems(tree, heads)


def test_the_first_rows_need_only_the_first_entries():
    tree = build_tree("chain", 3000)
    source, read = tree["m0"].source, []
    decode = source.decode_line

    def note_and_decode(raw):
        read.append(raw)
        return decode(raw)

    source.decode_line = note_and_decode
    next(TreeDrawing(tree, "m2999", "default").iter_rows())
    next(stream_rows(tree, "m2999", "default"))

    assert len(read) < 50


def test_a_scan_of_some_entries_reports_no_unanswered_calls():
    tree = grow("a>b>c")
    scan = ProblemScan(tree)
    [raw] = read_raws([tree["a"]])
    scan.add(tree["a"], raw)

    assert not scan.is_complete
    assert find_problems(tree, Heads(), scan) == []


def test_a_drawing_can_start_inside_and_below_a_chain():
    tree = build_tree("chain", 40)
    tree.add(entry("x", "m30", line=50))
    tree.add(entry("y", "x", line=51))
    whole = simplify(draw(tree, "m39"))

    for at, row in enumerate(whole):
        assert simplify(draw(tree, "m39", start=row[0])) == whole[at:]


def test_a_leaf_that_the_filter_hides_is_noted_on_the_row_above_it():
    tree = grow("a>b", b=assistant("hidden"))

    (row,) = draw(tree, "b", "user-only", replay_heads(tree))

    assert (row.id, row.active, row.active_hidden, row.branches_hidden) == ("a", False, True, ["main"])
