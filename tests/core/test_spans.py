from hypothesis import given

from sessiontree.core.spans import Spans
from sessiontree.core.tree import Tree
from tests.builders import grow, work
from tests.strategies import damaged_entry_lists


@given(damaged_entry_lists())
def test_an_entry_is_on_a_path_when_it_is_met_on_the_way_up(entries):
    tree = Tree(entries)
    spans = Spans(tree)

    for leaf in tree.ids():
        way = set(tree.up_ids(leaf))
        for id in tree.ids():
            assert spans.is_on_path(id, leaf) is (id in way)
            assert spans.any_below(id, spans.order([leaf])) is (id in way)


def test_nothing_is_on_the_path_to_the_place_before_everything_and_what_is_nowhere_is_on_none():
    spans = Spans(grow("a>b"))

    assert not spans.is_on_path("a", None)
    assert not spans.is_on_path("gone", "b")


def test_one_of_many_below_is_enough():
    spans = Spans(grow("a>b>c a>d a>e>f"))

    assert spans.any_below("e", spans.order(["b", "f", "d"]))
    assert not spans.any_below("e", spans.order(["b", "c", "d", "a"]))
    assert not spans.any_below("e", [])


def test_how_far_apart_entries_are_does_not_matter():
    ids = [f"{number}" for number in range(2000)]
    spans = Spans(grow(">".join(ids)))

    assert work(lambda: spans.is_on_path(ids[0], ids[-1])) == work(lambda: spans.is_on_path(ids[0], ids[1]))
