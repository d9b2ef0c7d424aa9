from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.ancestry import AncestryIndex
from sessiontree.core.tree import Tree
from tests.builders import count_calls, grow
from tests.shapes import build_tree
from tests.strategies import damaged_entry_lists


@given(damaged_entry_lists())
def test_an_entry_is_on_a_path_if_walking_up_from_the_leaf_meets_it(entries):
    tree = Tree(entries)
    spans = AncestryIndex(tree)

    for leaf in tree.iter_ids():
        way = set(tree.walk_up_ids(leaf))
        for id in tree.iter_ids():
            assert spans.is_on_path(id, leaf) is (id in way)
            assert spans.has_any_below(id, spans.sort_positions([leaf])) is (id in way)


def test_the_path_to_the_place_before_the_first_entry_is_empty_and_an_unknown_id_is_on_no_path():
    spans = AncestryIndex(grow("a>b"))

    assert not spans.is_on_path("a", None)
    assert not spans.is_on_path("gone", "b")


def test_one_match_below_is_enough():
    spans = AncestryIndex(grow("a>b>c a>d a>e>f"))

    assert spans.has_any_below("e", spans.sort_positions(["b", "f", "d"]))
    assert not spans.has_any_below("e", spans.sort_positions(["b", "c", "d", "a"]))
    assert not spans.has_any_below("e", [])


def test_the_distance_between_entries_does_not_matter():
    ids = [f"{number}" for number in range(2000)]
    spans = AncestryIndex(grow(">".join(ids)))

    assert count_calls(lambda: spans.is_on_path(ids[0], ids[-1])) == count_calls(
        lambda: spans.is_on_path(ids[0], ids[1])
    )


@given(damaged_entry_lists(), st.data())
def test_an_index_of_some_entries_answers_like_one_of_all(entries, data):
    tree = Tree(entries)
    chosen = data.draw(st.lists(st.sampled_from(list(tree.iter_ids())))) if len(tree) else []
    some, whole = AncestryIndex(tree, chosen), AncestryIndex(tree)

    for leaf in chosen:
        for id in chosen:
            assert some.is_on_path(id, leaf) is whole.is_on_path(id, leaf)


def test_an_index_of_some_entries_of_a_chain_finds_them():
    tree = build_tree("chain", 20)
    spans = AncestryIndex(tree, ["m3", "m9"])

    assert spans.is_on_path("m3", "m9")
    assert not spans.is_on_path("m9", "m3")
    assert not spans.is_on_path("m4", "m9")
    assert not AncestryIndex(tree, []).is_on_path("m3", None)
