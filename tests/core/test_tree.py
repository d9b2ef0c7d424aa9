import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.entries import Chain, Label, SessionInfo, Usage
from sessiontree.core.tree import Tree
from sessiontree.errors import NotFound
from tests.builders import count_calls, entry, grow, hang, ids, interrupt_after
from tests.shapes import build_tree
from tests.strategies import damaged_entry_lists, entry_lists, places


def draw_walk(tree, active=None):
    return " ".join(f"{entry.id}{depth}" for entry, depth in tree.walk(active))


# Lookup


def test_an_entry_is_found_by_its_id():
    tree = grow("a>b")

    assert tree["b"].parent == "a"
    assert "b" in tree
    assert "c" not in tree
    assert len(tree) == 2
    assert ids(tree) == "ab"


def test_an_unknown_entry_is_an_error():
    with pytest.raises(NotFound, match="'deadbeef'"):
        grow("a")["deadbeef"]


def test_an_unknown_leaf_is_an_error_not_an_empty_path():
    with pytest.raises(NotFound, match="deadbeef"):
        grow("a>b").path("deadbeef")


def test_ids_are_found_by_prefix_in_file_order():
    assert grow("b1>a1 b1>b2").find_by_prefix("b") == ["b1", "b2"]
    assert grow("b1").find_by_prefix("c") == []


def test_real_entries_are_counted_and_the_last_annotation_is_known():
    tree = grow("a>b>c", b=Usage(kind="warm"))

    assert tree.real_count == 2
    assert tree.last_annotation == "b"


# Shape


def test_a_path_goes_from_the_root_to_the_leaf():
    tree = grow("a>b>c b>d")

    assert ids(tree.path("d")) == "abd"
    assert ids(tree.walk_up("d")) == "dba"


def test_the_path_to_the_place_before_the_first_entry_is_empty():
    assert grow("a>b").path(None) == []


def test_children_come_oldest_first_then_in_file_order():
    tree = grow("a")
    for id, time in [("b", "2026-01-01T00:00:03Z"), ("c", "2026-01-01T00:00:01+00:00"), ("d", "2026-01-01T00:00:03Z")]:
        tree.add(entry(id, "a", line=len(tree) + 2, timestamp=time))

    assert ids(tree.children("a")) == "cbd"
    assert ids(tree.children("b")) == ""


def test_a_child_without_a_time_counts_as_the_oldest():
    tree = grow("a>b")
    tree.add(entry("c", "a", line=9, timestamp="soon"))

    assert ids(tree.children("a")) == "cb"


def test_roots_are_the_children_of_none():
    assert ids(grow("a>b c").roots()) == "ac"


def test_the_tree_can_grow_after_it_was_read():
    tree = grow("a>b")
    assert ids(tree.children("a")) == "b"

    tree.add(entry("c", "a", line=9))

    assert ids(tree.children("a")) == "bc"
    assert ids(tree.path("c")) == "ac"


def test_skipping_annotations_finds_the_real_entry():
    tree = grow("a>b>c", b=Usage(kind="warm"), c=Usage(kind="warm"))

    assert tree.skip_annotations("c") == "a"
    assert tree.skip_annotations("a") == "a"
    assert tree.skip_annotations(None) is None
    assert grow("a", a=Usage(kind="warm")).skip_annotations("a") is None


@given(damaged_entry_lists(), st.data())
def test_the_length_of_a_path_is_that_of_its_entries(entries, data):
    tree = Tree(entries)
    leaves = data.draw(st.lists(places(entries).filter(bool)))

    lengths = tree.measure_paths(leaves)

    assert {leaf: lengths[leaf] for leaf in leaves} == {leaf: len(tree.path(leaf)) for leaf in leaves}


def test_paths_that_leave_a_chain_at_different_entries_have_their_own_lengths():
    first = entry("a")
    chain = Chain(ids=["b", "c", "d"], parent="a", number=3, source=first.source)
    tree = Tree([first, chain, entry("e", "b"), entry("f", "d")])

    lengths = tree.measure_paths(["e", "f", "c", "a"])

    assert [lengths[leaf] for leaf in "efca"] == [3, 5, 3, 1]


def test_entries_can_be_read_from_an_index_on():
    first, last = entry("a"), entry("d", "c")
    tree = Tree([first, Chain(ids=["b", "c"], parent="a", number=3, source=first.source), last])

    assert [[one.id for one in tree.get_entries_from(count)] for count in range(5)] == [
        ["a", "b", "c", "d"],
        ["b", "c", "d"],
        ["c", "d"],
        ["d"],
        [],
    ]
    assert tree.get_entries_from(1)[0] is tree["b"]
    assert repr(tree.get_entries_from(1)) == "<3 entries>"


def test_the_common_ancestor_is_the_deepest_shared_entry():
    tree = grow("a>b>c b>d e")

    assert tree.find_common_ancestor("c", "d") == "b"
    assert tree.find_common_ancestor("c", "b") == "b"
    assert tree.find_common_ancestor("c", "d", "a") == "a"
    assert tree.find_common_ancestor("c") == "c"
    assert tree.find_common_ancestor("c", "e") is None
    assert tree.find_common_ancestor("c", None) is None


def test_abandoned_stops_at_the_common_ancestor():
    tree = grow("a>b>c>d b>e")

    assert ids(tree.find_abandoned("d", "e")) == "cd"
    assert ids(tree.find_abandoned("d", "b")) == "cd"
    assert ids(tree.find_abandoned("b", "d")) == ""
    assert ids(tree.find_abandoned("d", None)) == "abcd"


def test_a_walk_visits_the_active_branch_first_and_then_by_age():
    tree = grow("a>b>c a>d>e f")

    assert draw_walk(tree) == "a0 b1 c2 d1 e2 f0"
    assert draw_walk(tree, "e") == "a0 d1 e2 b1 c2 f0"
    assert draw_walk(tree, "f") == "f0 a0 b1 c2 d1 e2"


def test_a_walk_towards_an_unknown_leaf_is_an_error():
    with pytest.raises(NotFound):
        list(grow("a").walk("gone"))


@pytest.mark.parametrize(
    "shape", [("a", "b<a", "c<b", "d<b"), ("b<a", "a", "d<c", "c<d", "e<gone")], ids=["sound", "damaged"]
)
def test_a_walk_is_complete_after_an_interrupted_one(shape):
    whole, calls = list(hang(*shape).walk_ids()), count_calls(lambda: list(hang(*shape).walk_ids()))
    assert calls > len(shape)
    for call in range(calls):
        tree = hang(*shape)
        interrupt_after(lambda tree=tree: list(tree.walk_ids()), call)

        assert list(tree.walk_ids()) == whole
        assert [tree.parent(id) for id, _ in whole] == [hang(*shape).parent(id) for id, _ in whole]


# Labels and the name


def test_labels_apply_in_file_order_until_they_are_cleared():
    tree = grow("a>b>c>d", c=Label(target="a", text="first"), d=Label(target="b", text="second"))
    assert tree.labels == {"a": "first", "b": "second"}

    tree.add(entry("e", "d", Label(target="a", text="again")))
    assert tree.labels == {"a": "again", "b": "second"}
    assert list(tree.labels) == ["a", "b"]
    assert tree.get_label_entry("a").id == "e"

    tree.add(entry("f", "e", Label(target="a")))
    assert tree.labels == {"b": "second"}
    assert tree.label("a") is None
    assert tree.get_label_entry("a") is None


def test_an_empty_label_clears_and_clearing_nothing_is_fine():
    tree = grow("a>b>c>d", b=Label(target="a", text=""), c=Label(target="a", text="x"), d=Label(target="a", text=""))

    assert tree.labels == {}


def test_the_name_is_the_last_one_in_the_file_on_any_branch():
    tree = grow("a>b a>c", b=SessionInfo("one"), c=SessionInfo("  two "))

    assert tree.name == "two"


def test_an_empty_name_removes_the_name_and_differs_from_no_name():
    assert (grow("a").name, grow("a").has_been_named) == (None, False)

    cleared = grow("a>b", a=SessionInfo("one"), b=SessionInfo(""))

    assert (cleared.name, cleared.has_been_named) == (None, True)


# Damage


def test_an_orphan_is_a_root():
    tree = hang("a", "b<gone", "c<b")

    assert tree.parent("b") is None
    assert ids(tree.roots()) == "ab"
    assert ids(tree.path("c")) == "bc"


def test_an_orphan_is_adopted_when_its_parent_comes_later():
    tree = hang("b<a")
    assert ids(tree.roots()) == "b"

    tree.add(entry("a", line=9))

    assert ids(tree.roots()) == "a"
    assert ids(tree.path("b")) == "ab"


def test_an_entry_that_is_its_own_parent_is_a_root():
    tree = hang("a<a", "b<a")

    assert ids(tree.path("b")) == "ab"
    assert draw_walk(tree) == "a0 b1"


@pytest.mark.parametrize(("lines", "path"), [("a<c b<a c<b", "a"), ("c<b a<c b<a", "ca"), ("b<a c<b a<c", "bca")])
def test_a_cycle_is_cut_at_the_member_that_is_first_in_the_file(lines, path):
    tree = hang(*lines.split())

    assert ids(tree.path("a")) == path
    assert ids(tree.roots()) == lines[0]


def test_entries_below_a_cycle_stay_below_it():
    tree = hang("x<b", "a<b", "b<a")

    assert ids(tree.path("x")) == "abx"


def test_of_entries_with_one_id_the_last_counts():
    tree = hang("a", "b<a", "c", "b<c")

    assert ids(tree.path("b")) == "cb"
    assert len(tree) == 3
    assert len(tree.entries) == 4
    assert ids(tree) == "acb"
    assert ids(tree.children("a")) == ""


@pytest.mark.parametrize("lines", ["a b<gone", "a b<b", "a<b b<a", "a b<a b<a"])
def test_a_damaged_tree_is_not_sound_before_and_after_the_first_read(lines):
    tree = hang(*lines.split())
    assert not tree.is_sound

    list(tree.walk())

    assert not tree.is_sound
    assert grow("a>b b>c").is_sound


# Properties


@given(entry_lists(), st.data())
def test_moving_the_leaf_splits_the_old_path_in_two(entries, data):
    tree = Tree(entries)
    old, new = data.draw(places(entries)), data.draw(places(entries))

    kept = tree.path(tree.find_common_ancestor(old, new))

    assert kept + tree.find_abandoned(old, new) == tree.path(old)
    assert tree.path(new)[: len(kept)] == kept


@given(damaged_entry_lists())
def test_for_any_input_every_entry_has_one_place_and_every_walk_ends(entries):
    tree = Tree(entries)

    walked = [(entry.id, depth) for entry, depth in tree.walk()]

    assert sorted(id for id, _ in walked) == sorted({entry.id for entry in entries})
    assert all(len(tree.path(id)) == depth + 1 for id, depth in walked)
    assert all(id in [child.id for child in tree.children(tree.parent(id))] for id, _ in walked)


@given(damaged_entry_lists(), st.data())
def test_moving_the_leaf_splits_the_old_path_in_damaged_sessions_too(entries, data):
    tree = Tree(entries)
    old, new = data.draw(places(entries)), data.draw(places(entries))

    assert tree.path(tree.find_common_ancestor(old, new)) + tree.find_abandoned(old, new) == tree.path(old)


@given(damaged_entry_lists())
def test_reading_a_tree_while_it_grows_does_not_change_it(entries):
    watched = Tree()
    for line in entries:
        watched.add(line)
        list(watched.walk())

    whole = Tree(entries)

    assert list(watched.walk()) == list(whole.walk())
    assert watched.labels == whole.labels


@given(damaged_entry_lists())
def test_appending_single_messages_gives_the_same_tree(entries):
    grown, whole = Tree(), Tree()
    for number, new in enumerate(entries):
        if new.type != "message" or not grown.try_append_message(new):
            grown.add(new)
        whole.add(new)
        if number % 3 == 0:
            assert list(grown.walk()) == list(whole.walk())

    assert (grown.is_sound, grown.real_count, grown.history_changes) == (
        whole.is_sound,
        whole.real_count,
        whole.history_changes,
    )
    assert list(grown.walk()) == list(whole.walk())
    assert list(grown.entries) == list(whole.entries)


def test_a_message_without_a_known_parent_or_with_a_used_id_needs_add():
    tree = grow("a>b")
    before = list(tree.entries)

    assert not tree.try_append_message(entry("c", "missing"))
    assert not tree.try_append_message(entry("b", "a"))

    assert (list(tree.entries), tree.is_sound) == (before, True)
    assert tree.try_append_message(entry("c", "b"))
    assert ids(tree.path("c")) == "abc"


def test_a_chain_is_a_sequence_of_children():
    first = entry("a", line=2)
    tree = Tree([first, Chain(ids=["b", "c"], parent="a", number=3, source=first.source)])

    assert (ids(tree.path("c")), len(tree), tree.is_sound) == ("abc", 3, True)
    assert [found.line for found in tree] == [2, 3, 4]


def test_of_a_chain_that_repeats_an_id_the_last_counts():
    first = entry("a", line=2)
    tree = Tree([first, Chain(ids=["b", "a"], parent=None, number=3, source=first.source)])

    assert (ids(tree.path("a")), len(tree), len(tree.entries), tree.is_sound) == ("ba", 2, 3, False)


def test_a_chain_without_a_parent_is_a_root():
    tree = Tree([Chain(ids=["b", "c"], parent="a", number=2, source=entry("x").source)])

    assert (ids(tree.roots()), tree.is_sound) == ("b", False)


@given(damaged_entry_lists())
def test_the_nearest_real_entry_does_not_depend_on_earlier_queries(entries):
    tree = Tree()
    for line in entries:
        tree.add(line)
        for id in tree.iter_ids():
            assert tree.skip_annotations(id) == next(
                (entry.id for entry in tree.walk_up(id) if not entry.is_annotation), None
            )


def test_the_nearest_real_entry_changes_when_a_missing_parent_arrives():
    orphan = entry("b", "a", Usage(kind="warm"), line=2)
    tree = Tree([orphan])
    assert tree.skip_annotations("b") is None

    tree.add(entry("a", line=3))

    assert tree.skip_annotations("b") == "a"


def test_a_duplicate_id_or_a_missing_parent_counts_as_a_history_change():
    tree = grow("a>b")
    tree.add(entry("d", "c", line=4))
    assert (tree.history_changes, tree.parent("d")) == (0, None)

    tree.add(entry("c", "b", line=5))
    assert (tree.history_changes, tree.parent("d")) == (1, "c")

    tree.extend([Chain(ids=["e", "a"], parent="d", number=6, source=tree["d"].source)])
    assert tree.history_changes == 2


def test_peeking_at_an_entry_does_not_cache_it_but_returns_a_cached_one():
    tree = build_tree("chain", 5)

    peeked = tree.peek("m3")
    assert (peeked.id, peeked.parent, peeked.raw) == ("m3", "m2", tree["m3"].raw)
    assert peeked is not tree["m3"]
    assert tree.peek("m3") is tree["m3"]


# Leaves


@given(damaged_entry_lists())
def test_a_leaf_is_an_entry_without_children_that_are_not_annotations(entries):
    tree = Tree(entries)
    real = {entry.id for entry in tree if not entry.is_annotation}
    continued = {tree.skip_annotations(tree.parent(id)) for id in real}

    assert tree.find_leaves() == [entry.id for entry in tree if entry.id in real - continued]


@given(damaged_entry_lists(), st.integers(0, 20))
def test_a_leaf_among_the_last_entries_is_continued_by_none_of_them(entries, last):
    tree = Tree(entries)
    start = max(0, len(entries) - last)
    recent = [one.id for at, one in enumerate(entries) if at >= start and tree.get_index(one.id) == at]
    real = [id for id in recent if not tree[id].is_annotation]
    continued = {tree.skip_annotations(tree.parent(id)) for id in real}

    assert tree.find_leaves(last) == [id for id in tree.iter_ids() if id in real and id not in continued]
    assert tree.has_more_than(last) == (len(entries) > last)


def test_the_end_of_a_chain_is_a_leaf_and_a_label_on_it_is_not():
    assert build_tree("chain", 6).find_leaves() == ["m5"]
    tree = grow("a>b>c b>d")
    tree.add(entry("l", "d", Label(target="d", text="here")))

    assert tree.find_leaves() == ["c", "d"]


def test_a_parent_that_comes_later_is_not_a_leaf():
    assert hang("b<a", "a").find_leaves() == ["b"]


def test_a_whole_tree_has_nothing_more_to_load():
    tree = grow("a>b")

    tree.load()
    tree.load_more()

    assert ids(tree) == "ab"
    assert not tree.is_partial
