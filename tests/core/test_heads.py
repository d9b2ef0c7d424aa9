import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import UNSET

from sessiontree.core.entries import (
    HEAD_RECORD,
    NO_ID,
    BranchPoint,
    BranchSummary,
    Chain,
    Custom,
    Entry,
    Label,
    iter_entries,
)
from sessiontree.core.heads import (
    MAX_ORIGINS,
    BranchOrigin,
    Heads,
    Move,
    build_first_record,
    describe_move,
    is_activity,
    is_full_record,
)
from sessiontree.core.tree import Tree
from sessiontree.format.codec import MemoryLine
from tests.builders import TIME, entry, replay
from tests.strategies import damaged_entry_lists, entry_lists


def make_record(id, parent, **data):
    return entry(id, parent, Custom(custom_type=HEAD_RECORD, data=data), branch=data.get("current"))


A, B = entry("a", branch="main"), entry("b", "a", branch="main")
START = (A, B)
"""A session of two lines on main."""


NAMES = ("main", "a", "b")


def make_label(id, parent, **keys):
    return entry(id, parent, Label(target="a", text="x"), **keys)


def test_the_first_record_of_a_file_sets_all_heads_and_clears_the_undo_history():
    first = build_first_record("main", {"main": "a", "b": "b"}, archived={"b"})

    assert first.data == {"current": "main", "heads": {"main": "a", "b": "b"}, "archived": ["b"], "reset": True}
    assert "archived" not in build_first_record("main", {"main": None}).data


# Lines of this program


def test_a_new_session_is_before_the_first_entry_of_main():
    heads = Heads()

    assert (heads.current, heads.leaf, heads.heads) == ("main", None, {"main": None})
    assert heads.undoable is None


def test_a_line_advances_its_branch_to_itself():
    heads = replay(*START)

    assert heads.heads == {"main": "b"}
    assert heads.moves == []


def test_an_annotation_advances_no_branch():
    assert replay(*START, make_label("c", "b", branch="main")).heads == {"main": "b"}


def test_a_line_without_a_branch_moves_no_head():
    late = entry("c", "a", branch=None)

    heads = replay(*START, late)

    assert (heads.heads, heads.current, heads.moves) == ({"main": "b"}, "main", [])


def test_a_line_on_another_branch_makes_that_one_current_and_is_a_move():
    heads = replay(*START, entry("c", "a", branch="side"))

    assert heads.heads == {"main": "b", "side": "c"}
    assert heads.current == "side"
    assert heads.moves == [Move("main", "b", True)]


def test_a_line_names_the_current_branch_if_it_differs():
    heads = replay(*START, entry("c", "b", branch="side", current="main"))

    assert (heads.heads["side"], heads.current, heads.moves) == ("c", "main", [])


def test_an_unknown_current_branch_is_ignored():
    heads = replay(*START, entry("c", "b", branch="main", current="nowhere"))

    assert heads.current == "main"
    assert heads.leaf == "c"


def test_a_line_that_does_not_continue_from_the_head_is_a_move():
    heads = replay(*START, entry("c", "a", branch="main"))

    assert heads.leaf == "c"
    assert heads.moves == [Move("main", "b", False)]
    assert heads.undoable == Move("main", "b", False)


def test_annotations_in_between_are_not_moves():
    heads = replay(*START, make_label("c", "b", branch="main"), entry("d", "c", branch="main"))

    assert (heads.leaf, heads.moves) == ("d", [])


def test_a_branch_point_starts_a_branch_and_leaves_the_old_one_alone():
    heads = replay(*START, entry("c", "a", BranchPoint(name="side", description="why"), branch="side"))

    assert heads.heads == {"main": "b", "side": "c"}
    assert heads.info == {"side": BranchOrigin(created=TIME, description="why")}


# Lines of peers


def test_without_a_branch_in_any_line_the_head_is_the_last_entry():
    heads = replay(entry("a"), entry("b", "a"), entry("c", "a"))

    assert heads.heads == {"main": "c"}
    assert heads.moves == [Move("main", "b", False)]


def test_a_file_that_ends_in_annotations_has_its_head_above_them():
    assert replay(entry("a"), entry("b", "a"), make_label("c", "b"), make_label("d", "c")).leaf == "b"


def test_a_peers_annotation_moves_the_head_to_its_parent():
    heads = replay(entry("a"), entry("b", "a"), make_label("c", "a"))

    assert heads.leaf == "a"
    assert heads.moves == [Move("main", "b", False)]


def test_a_peers_line_continues_the_branch_of_the_line_before():
    heads = replay(*START, entry("c", "b", branch="side", current="main"), entry("d", "c"))

    assert heads.heads == {"main": "b", "side": "d"}
    assert heads.current == "side"


def test_a_peers_line_after_a_late_result_belongs_to_the_current_branch():
    elsewhere = entry("c", "b", branch="side", current="main")

    heads = replay(*START, elsewhere, entry("d", "a", branch=None), entry("e", "d"))

    assert heads.heads == {"main": "e", "side": "c"}


def test_a_peers_line_after_an_unknown_branch_belongs_to_the_current_branch():
    heads = replay(*START, make_label("c", "b", branch="ghost"), entry("d", "b"))

    assert heads.heads == {"main": "d"}


def test_a_peers_branch_point_starts_a_branch():
    heads = replay(entry("a"), entry("b", "a", BranchPoint(name="side")), entry("c", "b"))

    assert heads.heads == {"main": "a", "side": "c"}
    assert heads.current == "side"


# Head records


def test_a_head_record_sets_all_heads():
    heads = replay(*START, make_record("c", "a", current="side", heads={"main": None, "side": "a"}))

    assert heads.heads == {"main": None, "side": "a"}
    assert (heads.current, heads.leaf) == ("side", "a")
    assert heads.lines_since_record == 0
    assert heads.moves == []


def test_a_head_record_with_a_from_is_a_move_that_can_be_undone():
    heads = replay(*START, make_record("c", "a", current="main", heads={"main": "a"}, **{"from": {}}))

    assert heads.moves == [Move("main", "b", False)]
    assert heads.undoable == Move("main", "b", False)


def test_a_second_undo_reverts_the_move_before():
    moves = [
        make_record("c", "a", current="main", heads={"main": "a"}, **{"from": {}}),
        make_record("d", "b", current="main", heads={"main": None}, **{"from": {}}),
    ]
    undo = make_record("e", "a", current="main", heads={"main": "a"}, undo=True, **{"from": {}})

    heads = replay(*START, *moves, undo)

    assert [move.leaf for move in heads.moves] == ["b", "a", None]
    assert heads.undoable == Move("main", "b", False)


def test_an_undo_with_nothing_to_undo_is_only_logged():
    heads = replay(A, make_record("b", "a", current="main", heads={"main": None}, undo=True, **{"from": {}}))

    assert (heads.moves, heads.undoable) == ([Move("main", "a", False)], None)


def test_a_move_records_the_branches_it_moved_and_archived():
    side = entry("c", "a", BranchPoint(name="side"), branch="side")
    heads = {"main": "c", "side": "a"}

    switched = replay(
        *START, side, make_record("d", "c", current="main", heads=heads, archived=["side"], **{"from": {}})
    )
    moved = replay(*START, make_record("c", "a", current="main", heads={"main": "a", "new": None}, **{"from": {}}))

    assert switched.undoable == Move("side", "c", True, other_heads=(("main", "b"),), newly_archived=("side",))
    assert moved.undoable == Move("main", "b", False)
    assert switched.undoable.moved_branches == ("main",)
    assert moved.undoable.moved_branches == ("main",)


def test_a_move_does_not_record_branches_archived_before_it():
    side = entry("c", "a", BranchPoint(name="side"), branch="side", current="main")
    hidden = {"current": "main", "archived": ["side"]}

    heads = replay(
        *START,
        side,
        make_record("d", "b", heads={"main": "b", "side": "c"}, **hidden),
        make_record("e", "a", heads={"main": "a", "side": "c"}, **hidden, **{"from": {}}),
    )

    assert heads.undoable == Move("main", "b", False)


def test_a_renamed_branch_has_its_new_name_in_the_moves_of_others():
    side = entry("c", "a", BranchPoint(name="side"), branch="side", current="main")
    moved = make_record("d", "a", current="main", heads={"main": "a", "side": "a"}, archived=["side"], **{"from": {}})
    renamed = make_record(
        "e", "a", current="main", heads={"main": "a", "new": "a"}, renamed={"from": "side", "to": "new"}
    )

    heads = replay(*START, side, moved, renamed)

    assert heads.undoable == Move("main", "b", False, other_heads=(("new", "c"),), newly_archived=("new",))


def test_a_reset_drops_the_moves_and_removed_branches():
    side = entry("c", "a", BranchPoint(name="side"), branch="side")

    heads = replay(*START, side, make_record("d", "c", current="main", heads={"main": "c"}, reset=True))

    assert (heads.moves, heads.undoable, heads.info) == ([], None, {})


def test_a_renamed_branch_keeps_its_origin_and_its_moves():
    side = entry("c", "a", BranchPoint(name="side", description="why"), branch="side")
    moved = entry("d", "b", branch="side")
    renamed = make_record(
        "e",
        "d",
        current="new",
        heads={"main": "b", "new": "d"},
        renamed={"from": "side", "to": "new"},
        archived=["main"],
    )

    heads = replay(*START, side, moved, renamed)

    assert heads.info == {"new": BranchOrigin(created=TIME, description="why")}
    assert heads.moves == [Move("main", "b", True), Move("new", "c", False)]
    assert heads.undoable == Move("new", "c", False)
    assert heads.archived == {"main"}


def test_a_branch_without_a_recorded_origin_can_be_renamed():
    renamed = make_record("c", "b", current="trunk", heads={"trunk": "b"}, renamed={"from": "main", "to": "trunk"})

    heads = replay(*START, renamed)

    assert (heads.heads, heads.info) == ({"trunk": "b"}, {})


@pytest.mark.parametrize("data", [None, "odd", {}, {"heads": {}, "current": 5}, {"heads": [], "renamed": {"from": 1}}])
def test_an_invalid_head_record_changes_nothing(data):
    heads = replay(*START, entry("c", "a", Custom(custom_type=HEAD_RECORD, data=data), branch="main"))

    assert (heads.heads, heads.current, heads.moves, heads.archived) == ({"main": "b"}, "main", [], set())


def test_a_record_that_drops_the_current_branch_makes_another_one_current():
    dropping = make_record("c", "a", current="gone", heads={"side": None, "other": "a"}, archived=["side", "gone"])

    heads = replay(*START, dropping)

    assert heads.heads == {"side": None, "other": "a"}
    assert heads.current == "side"
    assert heads.archived == {"side"}


def test_an_invalid_head_is_not_the_place_before_the_first_entry():
    heads = replay(*START, make_record("c", "a", current="main", heads={"main": 5, "side": None}))

    assert heads.heads == {"main": NO_ID, "side": None}


def test_leaving_a_missing_head_is_a_move():
    heads = replay(A, make_record("b", "a", current="main", heads={"main": "lost"}), entry("c", "a", branch="main"))

    assert heads.leaf == "c"
    assert heads.moves == [Move("main", "lost", False)]


# Where a peer would continue, and records to write


def test_a_peer_opens_the_file_at_the_head_only_if_it_is_the_last_line():
    moved_on = entry("c", "b", branch="side", current="main")
    for lines, here in [
        ((), True),
        (START, True),
        ((*START, make_label("c", "b", branch="main")), True),
        ((*START, moved_on), False),
        ((*START, moved_on, make_label("d", "b", branch="side", current="main")), False),
        ((*START, entry("c", "b", branch=None)), False),
    ]:
        assert replay(*lines).is_at_last_line(Tree(lines)) is here


def test_a_record_of_the_current_state_replays_to_the_same_state():
    lines = [*START, entry("c", "a", BranchPoint(name="side"), branch="side")]
    live = replay(*lines)

    again = replay(*lines, entry("d", "c", live.build_record(), branch="side"))

    assert (again.heads, again.current, again.moves) == (live.heads, live.current, live.moves)


def test_a_record_of_a_change_replays_to_the_change():
    live = replay(*START)

    body = live.build_record(moved=True, current="new", heads={"new": "a"}, archived=["new"], renamed=("main", "new"))
    after = replay(*START, entry("c", "a", body, branch="new"))

    assert (after.heads, after.current, after.archived) == ({"new": "a"}, "new", {"new"})
    assert len(after.moves) == 1


def test_a_record_has_the_origins_of_branches_under_their_new_names():
    point = entry("p", "b", BranchPoint(name="cache", description="try"), branch="cache")
    live = replay(*START, point)

    record = live.build_record(heads={"main": "b", "new": "p"}, current="new", renamed=("cache", "new"))
    end = Heads(lambda: pytest.fail("the record has the origins"))
    end.apply(entry("r", "p", record, branch="new"), Tree([*START, point]))

    assert record.data["origins"] == {"new": {"created": TIME, "description": "try"}}
    assert end.info == replay(*START, point, entry("r", "p", record, branch="new")).info


def test_a_record_without_the_origins_of_branches_leaves_them_unknown():
    asked = []
    end = Heads(lambda: asked.append("log"))
    end.apply(make_record("r", "b", current="main", heads={"main": "b"}), Tree(START))
    copy = Heads()
    copy.copy_origins(end)

    assert "origins" not in end.build_record().data
    assert "origins" not in copy.build_record().data
    assert (end.info, asked) == ({}, ["log"])


def test_a_record_does_not_have_the_origins_of_very_many_branches():
    points = [entry(f"p{n}", "b", BranchPoint(name=f"b{n}"), branch=f"b{n}") for n in range(MAX_ORIGINS + 1)]

    assert len(replay(*START, *points[:-1]).build_record().data["origins"]) == MAX_ORIGINS
    assert "origins" not in replay(*START, *points).build_record().data


def test_a_record_of_an_undo_reverts_a_move():
    lines = [*START, entry("c", "a", branch="main")]
    undo = replay(*lines).build_record(undo=True, heads={"main": "b"})

    after = replay(*lines, entry("d", "b", undo))

    assert (after.leaf, after.undoable) == ("b", None)
    assert len(after.moves) == 2


@given(damaged_entry_lists(), some.data())
def test_a_move_by_a_record_holds_everything_an_undo_restores(entries, data):
    before = replay(*entries)
    leaves, names = some.sampled_from([None, *(line.id for line in entries)]), list(before.heads)
    heads = {name: data.draw(leaves) for name in names}
    hidden = data.draw(some.sets(some.sampled_from(names)))
    current = data.draw(some.sampled_from(names))
    body = before.build_record(moved=True, current=current, heads=heads, archived=before.archived | hidden)

    after = replay(*entries, entry("moved", None, body))
    move = after.undoable

    assert {**after.heads, **dict(move.other_heads), move.branch: move.leaf} == before.heads
    assert (move.branch, after.archived - set(move.newly_archived)) == (before.current, before.archived)


@given(entry_lists())
def test_following_a_session_line_by_line_equals_replaying_its_file(entries):
    live, tree = Heads(), Tree()
    for line in entries:
        tree.add(line)
        live.apply(line, tree)

    whole = replay(*entries)

    assert (live.heads, live.current, live.moves) == (whole.heads, whole.current, whole.moves)


@given(damaged_entry_lists())
def test_replaying_many_lines_at_once_is_applying_each(entries):
    tree, one_by_one, at_once = Tree(entries), Heads(), Heads()
    for line in entries:
        one_by_one.apply(line, tree)

    at_once.replay(entries, tree)

    assert (at_once.heads, at_once.current, at_once.moves) == (one_by_one.heads, one_by_one.current, one_by_one.moves)
    assert at_once.lines_since_record == one_by_one.lines_since_record


@given(damaged_entry_lists())
def test_the_current_branch_always_has_a_head(entries):
    heads = replay(*entries)

    assert heads.current in heads.heads
    assert len(heads.moves) <= 2 * len(entries)


@pytest.mark.parametrize("doubled", [False, True])
@pytest.mark.parametrize("parent", [None, "a", "b"])
@pytest.mark.parametrize(
    ("branch", "current"), [(UNSET, None), ("main", None), ("other", None), ("other", "main"), (None, None)]
)
def test_a_chain_moves_the_same_branches_as_its_entries(branch, current, parent, doubled):
    first, second = entry("a", line=2), entry("b", "a", line=3)
    chain = Chain(
        ids=["c", "a" if doubled else "d"], parent=parent, number=4, source=first.source, branch=branch, current=current
    )
    items = [first, second, chain]
    tree = Tree(items)
    whole, one_by_one = Heads(), Heads()
    whole.replay(items, tree)
    for each in iter_entries(items):
        one_by_one.apply(each, tree)

    assert tree.is_sound is not doubled
    assert vars(whole) == vars(one_by_one)


@given(
    some.lists(
        some.one_of(
            some.sampled_from(NAMES).map(lambda name: {"current": name, "heads": dict.fromkeys(NAMES), "from": {}}),
            some.tuples(some.sampled_from(NAMES), some.sampled_from(NAMES)).map(
                lambda names: {"renamed": {"from": names[0], "to": names[1]}}
            ),
            some.just({"from": {}, "undo": True}),
        ),
        max_size=12,
    )
)
def test_many_renames_at_once_equal_single_renames(records):
    lines = [make_record(f"{number}", None, **data) for number, data in enumerate(records)]
    tree, one_by_one = Tree(lines), Heads()
    for line in lines:
        one_by_one.apply(line, tree)

    at_once = replay(*lines)

    assert at_once.moves == one_by_one.moves
    assert at_once.undoable == one_by_one.undoable


@pytest.mark.parametrize(
    ("data", "all_told"),
    [
        ({"current": "main", "heads": {"main": None, "other": None}}, True),
        ({"heads": {"main": None, "other": None}}, False),
        ({"current": "side", "heads": {"main": None, "other": None}}, False),
        ({"current": ["main"], "heads": {"main": None, "other": None}}, False),
        ({"current": "main", "heads": {}}, False),
        ({"current": "main"}, False),
        (None, False),
    ],
)
def test_a_record_is_full_if_it_determines_the_heads_alone(data, all_told):
    line = entry("c", None, Custom(custom_type=HEAD_RECORD, data=data), branch="main")
    before = [entry("a", branch="main"), entry("b", branch="other")]

    alone, behind = replay(line), replay(*before, line)

    assert is_full_record(line) is all_told
    assert ((alone.heads, alone.current) == (behind.heads, behind.current)) is all_told
    assert not is_full_record(entry("a", branch="main"))


# Large files


class CountedName(str):
    """A name that counts comparisons."""

    comparisons = 0

    def __eq__(self, other):
        CountedName.comparisons += 1
        return super().__eq__(other)

    def __ne__(self, other):
        CountedName.comparisons += 1
        return super().__ne__(other)

    def __hash__(self):
        CountedName.comparisons += 1
        return super().__hash__()


def make_line(number, body, type="custom", branch="main"):
    """Return a line whose cached body keeps the given name objects."""
    custom_type = HEAD_RECORD if type == "custom" else None
    return Entry(
        id=f"e{number}", parent=None, type=type, number=number + 2, source=MemoryLine(b"{}"), branch=branch,
        custom_type=custom_type, cached_body=body,
    )  # fmt: skip


def make_record_body(**data):
    return Custom(custom_type=HEAD_RECORD, data=data)


def make_names(count):
    return [CountedName(f"b{number}") for number in range(count)]


def make_full_record(count):
    return make_record_body(current="main", heads={"main": None, **dict.fromkeys(make_names(count))})


LARGE = {
    "all are hidden": lambda count: [
        make_record_body(current="main", heads=dict.fromkeys(make_names(count)), archived=make_names(count)),
    ],
    "short moves": lambda count: [make_full_record(count), *[make_record_body(**{"from": {}})] * count],
    "short records that drop branches": lambda count: [
        make_full_record(count),
        *[make_record_body(archived=[CountedName("gone")])] * count,
    ],
    "short resets": lambda count: [
        *(BranchPoint(name=name) for name in make_names(count)),
        *[make_record_body(reset=True)] * count,
    ],
    "moves and renames": lambda count: [
        *[make_record_body(current=CountedName("a"), heads={CountedName("a"): None}, **{"from": {}})] * count,
        *[make_record_body(renamed={"from": CountedName("b"), "to": CountedName("c")})] * count,
    ],
}


@pytest.mark.parametrize("bodies", LARGE.values(), ids=LARGE)
def test_the_work_of_replaying_records_grows_with_the_file_and_no_faster(bodies):
    def count_comparisons(count):
        types = {BranchPoint: "branch_point", Custom: "custom"}
        lines = [
            make_line(number, body, types[type(body)], body.name if isinstance(body, BranchPoint) else "main")
            for number, body in enumerate(bodies(count))
        ]
        tree, heads = Tree(lines), Heads()
        CountedName.comparisons = 0
        heads.replay(lines, tree)
        return CountedName.comparisons

    assert 0 < count_comparisons(400) < 3 * count_comparisons(200)


def test_the_work_of_replaying_a_chain_of_annotations_grows_with_the_file_and_no_faster(monkeypatch):
    lines = [entry("e0"), *(make_label(f"e{number}", f"e{number - 1}") for number in range(1, 500))]
    tree, heads, steps = Tree(lines), Heads(), []
    parent = tree.parent
    monkeypatch.setattr(tree, "parent", lambda id: steps.append(id) or parent(id))

    heads.replay(lines, tree)

    assert heads.leaf == "e0"
    assert len(steps) < 3 * len(lines)


# Merges and moves of other branches


def make_merge(id, parent, *sources, **keys):
    details = {"kind": "merge", "sources": list(sources)}
    return entry(id, parent, BranchSummary(summary="It works.", details=details), **keys)


def test_a_merge_is_a_move_that_can_be_undone():
    heads = replay(*START, make_merge("c", "b", "a", branch="main"))

    assert heads.moves == [Move("main", "b", False, merge="c")]
    assert heads.undoable == heads.moves[0]


def test_a_merge_into_another_branch_moves_that_branch():
    heads = replay(*START, make_merge("c", "a", "b", branch="side", current="main"))

    assert heads.undoable == Move("main", "b", False, other_heads=(("side", "a"),), merge="c", is_other_branch=True)
    assert heads.undoable.moved_branches == ("side",)


SIDE = (entry("c", "b", branch="side", current="main"),)
OF_SIDE = {"from": {"branch": "side", "leaf": "c"}}


def test_a_record_can_move_another_branch_than_the_current_one():
    heads = replay(*START, *SIDE, make_record("d", "b", current="main", heads={"main": "b", "side": "a"}, **OF_SIDE))

    assert heads.undoable == Move("main", "b", False, other_heads=(("side", "c"),), is_other_branch=True)
    assert heads.undoable.moved_branches == ("side",)
    assert heads.undoable.rename_branches({"side": "way"}).moved_head == ("way", "c")


@pytest.mark.parametrize("origin", [None, {}, {"branch": 1}, {"branch": "lost"}, {"branch": "main"}])
def test_a_record_without_another_branch_moves_the_current_one(origin):
    heads = replay(
        *START, *SIDE, make_record("d", "b", current="main", heads={"main": "a", "side": "c"}, **{"from": origin})
    )

    assert heads.undoable == Move("main", "b", False)


def test_a_record_that_moves_the_current_branch_is_not_a_move_of_another():
    heads = replay(*START, *SIDE, make_record("d", "b", current="main", heads={"main": "a", "side": "a"}, **OF_SIDE))

    assert heads.undoable == Move("main", "b", False, other_heads=(("side", "c"),))


def test_a_summary_that_is_not_a_merge_is_not_a_move():
    left = entry("c", "b", BranchSummary(summary="Left."), branch="main")

    assert replay(*START, left).moves == []


def test_the_summary_after_the_record_of_a_promotion_belongs_to_it():
    side = entry("c", "b", branch="side")
    promotion = make_record(
        "d", "c", current="main", heads={"main": "c", "side": "c"}, archived=["side"], **{"from": {}}
    )
    heads = replay(*START, side, promotion, make_merge("e", "c", "c", branch="main"))

    assert [move.merge for move in heads.moves] == [None, None]
    assert heads.undoable.newly_archived == ("side",)


@pytest.mark.parametrize(
    ("lines", "description"),
    [
        ((make_record("c", "b", current="main", heads={"main": "a"}, **{"from": {}}),), "the move of main"),
        ((entry("c", "b", branch="side"),), "the switch from main to side"),
        ((entry("c", "b", branch="side"), make_merge("d", "c", "b", branch="side")), "the merge of main into side"),
        ((make_merge("c", "b", "lost", branch="main"),), "the merge into main"),
        ((make_merge("c", "b", "a", branch="main"),), "the merge into main"),
        ((make_merge("c", "a", "b", branch="side", current="main"),), "the merge of main into side"),
        (
            (make_record("c", "b", current="two", heads={"main": "b", "two": "a"}, archived=["main"], **{"from": {}}),),
            "the switch from main to two, which archived main",
        ),
        ((make_record("c", "b", current="main", heads={"main": "b"}, **{"from": {}}),), "the copies on main"),
        (
            (*SIDE, make_record("d", "b", current="main", heads={"main": "b", "side": "a"}, **OF_SIDE)),
            "the move of side",
        ),
        (
            (*SIDE, make_record("d", "b", current="main", heads={"main": "b", "side": "c"}, **OF_SIDE)),
            "the copies on side",
        ),
    ],
)
def test_a_move_is_described_by_what_an_undo_reverts(lines, description):
    tree = Tree()
    tree.extend((*START, *lines))
    heads = replay(*START, *lines)

    assert describe_move(heads.undoable, heads, tree) == description


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (A, True),
        (entry("p", "a", BranchPoint(name="side"), branch="side"), True),
        (entry("l", "a", Label(target="a", text="x"), branch="main"), False),
        (make_record("r", "a", current="main", heads={"main": "a"}), False),
        (make_record("r", "a", current="main", heads={"main": "a"}, **{"from": {"branch": "main", "leaf": "b"}}), True),
        (entry("r", "a", Custom(custom_type=HEAD_RECORD, data=5)), False),
    ],
)
def test_messages_and_moves_are_activity_and_notes_are_not(line, expected):
    assert is_activity(line) is expected
