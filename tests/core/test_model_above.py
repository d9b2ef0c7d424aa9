from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.context import find_model_above, read_state
from sessiontree.core.tree import Tree
from tests.strategies import damaged_entry_lists, places


@given(damaged_entry_lists(), st.data())
def test_the_model_above_an_entry_is_the_one_in_effect(entries, data):
    tree = Tree(entries)
    place = data.draw(places(entries))
    state = read_state(tree.path(place))
    assert find_model_above(tree.walk_up(place)) == (state.provider, state.model)
