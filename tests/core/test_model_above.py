from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.context import model_above, state_of
from sessiontree.core.tree import Tree
from tests.strategies import damaged_entry_lists, places


@given(damaged_entry_lists(), st.data())
def test_the_model_above_a_place_is_the_one_that_holds_there(entries, data):
    tree = Tree(entries)
    place = data.draw(places(entries))
    state = state_of(tree.path(place))
    assert model_above(tree.up(place)) == (state.provider, state.model)
