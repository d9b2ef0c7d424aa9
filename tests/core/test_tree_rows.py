"""Windows of rows: the shape of the entries around a place agrees with the shape of the whole tree."""

from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.outline import FILTERS, lay_out, run_steps, survey_tree
from sessiontree.core.tree import Tree
from sessiontree.core.tree_rows import survey_window
from tests.shapes import build_tree
from tests.strategies import damaged_entry_lists, entry_lists


def describe(outline):
    return [(outline.get_id(row), outline.draw_guide(row), outline.is_on_path(row)) for row in range(len(outline))]


@given(st.one_of(entry_lists(), damaged_entry_lists()), st.integers(1, 8), st.data())
def test_a_window_is_a_part_of_the_whole_shape(entries, size, data):
    tree = Tree(entries)
    leaf = data.draw(st.sampled_from([None, *tree.iter_ids()]))
    around = data.draw(st.sampled_from([None, *tree.iter_ids()]))
    whole = run_steps(survey_tree(tree, leaf))

    window = survey_window(tree, leaf, around, size)

    place = 0 if around is None else whole.positions[around]
    first = max(0, place - size // 2)
    part = slice(first, first + size)
    assert window.ids == whole.ids[part]
    assert bytes(window.kinds) == bytes(whole.kinds[part])
    assert window.path == whole.path & set(window.ids)
    assert list(window.parent_positions) == [max(-1, above - first) for above in whole.parent_positions[part]]
    assert window.leaf == (leaf if leaf in window.ids else None)


@given(st.one_of(entry_lists(), damaged_entry_lists()), st.sampled_from(FILTERS), st.data())
def test_a_window_of_all_entries_has_the_rows_of_the_whole_outline(entries, filter, data):
    tree = Tree(entries)
    leaf = data.draw(st.sampled_from([None, *tree.iter_ids()]))
    whole = run_steps(lay_out(run_steps(survey_tree(tree, leaf)), filter))

    window = run_steps(lay_out(survey_window(tree, leaf, None, len(tree)), filter))

    assert describe(window) == describe(whole)
    assert (window.active, window.active_hidden) == (whole.active, whole.active_hidden)


def test_a_window_at_the_end_is_shorter():
    tree = build_tree("chain", 3000)

    assert survey_window(tree, "m2999", "m2999", 10).ids == [f"m{n}" for n in range(2994, 3000)]
    assert len(survey_window(tree, "m2999", "m1500", 10)) == 10
