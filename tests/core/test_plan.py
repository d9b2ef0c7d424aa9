import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.entries import (
    HEAD_RECORD,
    BranchPoint,
    BranchSummary,
    Compaction,
    ContextEdit,
    Custom,
    CustomMessage,
    Label,
    Usage,
)
from sessiontree.core.messages import assistant, tool_call, user
from sessiontree.core.plan import collect_summary_input, find_last_prompt, plan_fork, plan_move, plan_navigate
from sessiontree.core.tree import Tree
from sessiontree.errors import NotFound
from tests.builders import file_of, grow, hang, header, ids, read, say
from tests.strategies import damaged_entry_lists, places

REPLY = assistant("reply")


def make_compaction(first_kept):
    return Compaction(summary="S", first_kept=first_kept)


# Navigating


def test_selecting_a_user_message_moves_before_it_and_edits_its_text():
    tree = grow("a>b>c>d", a=user("one"), b=REPLY, c=user([{"type": "text", "text": "two"}]), d=REPLY)

    plan = plan_navigate(tree, "d", "c")

    assert (plan.new_leaf, plan.editor_text) == ("b", "two")
    assert (plan.target, plan.old_leaf, plan.common_ancestor) == ("c", "d", "c")
    assert ids(plan.abandoned) == "d"
    assert plan.is_move


def test_selecting_the_first_message_moves_before_the_first_entry():
    plan = plan_navigate(grow("a>b", a=user("one"), b=REPLY), "b", "a")

    assert (plan.new_leaf, plan.editor_text) == (None, "one")


def test_selecting_any_other_entry_moves_to_it():
    plan = plan_navigate(grow("a>b>c>d", b=REPLY, d=REPLY), "d", "b")

    assert (plan.new_leaf, plan.editor_text) == ("b", None)
    assert ids(plan.abandoned) == "cd"


def test_selecting_the_leaf_is_not_a_move_unless_it_is_a_user_message():
    assert not plan_navigate(grow("a>b", b=REPLY), "b", "b").is_move

    again = plan_navigate(grow("a>b", a=REPLY, b=user("again")), "b", "b")

    assert (again.new_leaf, again.editor_text) == ("a", "again")


def test_a_custom_message_is_edited_unless_it_is_the_leaf():
    tree = grow("a>b>c", a=REPLY, b=CustomMessage(custom_type="x", content="note"), c=REPLY)

    assert (plan_navigate(tree, "c", "b").new_leaf, plan_navigate(tree, "c", "b").editor_text) == ("a", "note")
    assert (plan_navigate(tree, "b", "b").new_leaf, plan_navigate(tree, "b", "b").editor_text) == ("b", None)


def test_selecting_an_annotation_moves_to_the_entry_above_it():
    tree = grow("a>n>b", a=REPLY, n=Usage(kind="warm"), b=REPLY)

    plan = plan_navigate(tree, "b", "n")

    assert (plan.new_leaf, plan.common_ancestor) == ("a", "n")
    assert ids(plan.abandoned) == "b"


def test_the_parent_of_an_edited_message_is_a_real_entry():
    assert plan_navigate(grow("a>n>b", a=REPLY, n=Usage(kind="warm")), "a", "b").new_leaf == "a"


def test_moving_before_the_first_entry_abandons_everything():
    plan = plan_navigate(grow("a>b"), "b", None)

    assert (plan.new_leaf, plan.editor_text, ids(plan.abandoned)) == (None, None, "ab")


def test_a_plain_move_goes_to_the_target_itself():
    tree = grow("a>b>n>c", n=Usage(kind="warm"))

    assert (plan_move(tree, "c", "a").new_leaf, plan_move(tree, "c", "a").editor_text) == ("a", None)
    assert plan_move(tree, "c", "n").new_leaf == "b"
    assert ids(plan_move(tree, "c", "a").abandoned) == "bnc"


def test_abandoned_entries_are_not_decoded_to_find_a_compaction():
    chain = {"a": None, "b": "a", "c": "b"}
    lines = [{"type": "message", "id": id, "parentId": above, "message": REPLY.message} for id, above in chain.items()]
    tree = Tree(read(file_of(header(), *lines))[1])

    assert ids(plan_navigate(tree, "c", None).abandoned) == "abc"
    assert [entry for entry in tree if entry.cached_body is not None] == []


def test_an_unknown_target_is_an_error():
    with pytest.raises(NotFound, match="gone"):
        plan_navigate(grow("a"), "a", "gone")


@pytest.mark.parametrize(
    ("first_kept", "summarized"), [("c", "cKd"), ("K", "Kd"), ("gone", "Kd"), (None, "Kd"), ("d", "Kd"), ("b", "bcKd")]
)
def test_a_compaction_and_its_kept_entries_represent_everything_before(first_kept, summarized):
    tree = grow("a>b>c>K>d a>z", K=make_compaction(first_kept))

    assert ids(plan_navigate(tree, "d", "z").abandoned) == summarized


def test_the_kept_entries_may_start_above_the_abandoned_part():
    tree = grow("a>b>c>K>d b>z", K=make_compaction("a"))

    assert ids(plan_navigate(tree, "d", "z").abandoned) == "cKd"


def test_an_older_compaction_in_the_kept_part_is_not_summarized_again():
    tree = grow("a>J>b>K>c z", J=make_compaction("a"), K=make_compaction("a"))

    assert ids(plan_navigate(tree, "c", "z").abandoned) == "abKc"


# Forking


def test_a_fork_of_a_plain_path_changes_nothing():
    plan = plan_fork(grow("a>b>c b>d"), "d")

    assert ids(plan.entries) == "abd"
    assert (plan.parents, plan.anchors, plan.labels, plan.leaf) == ({}, {}, (), "d")


def test_a_fork_omits_labels_head_records_and_branch_points():
    tree = grow(
        "a>l>b>h>p>c>u",
        l=Label(target="a", text="x"),
        h=Custom(custom_type=HEAD_RECORD),
        p=BranchPoint(name="side"),
        u=Usage(kind="warm"),
    )

    plan = plan_fork(tree, "u")

    assert ids(plan.entries) == "abcu"
    assert plan.parents == {"b": "a", "c": "b"}
    assert plan.leaf == "c"


def test_an_anchor_that_is_not_copied_moves_to_the_next_entry():
    tree = grow("a>l>b>K>d", l=Label(target="a", text="x"), K=make_compaction("l"))

    assert plan_fork(tree, "d").anchors == {"K": "b"}


def test_an_anchor_directly_before_its_compaction_keeps_nothing():
    tree = grow("a>l>K", l=Label(target="a", text="x"), K=make_compaction("l"))

    assert plan_fork(tree, "K").anchors == {"K": "K"}


def test_a_copied_anchor_is_not_changed():
    assert plan_fork(grow("a>b>K", K=make_compaction("b")), "K").anchors == {}


def test_omitted_entries_at_the_end_leave_no_trace():
    plan = plan_fork(grow("a>l", l=Label(target="z", text="x")), "l")

    assert (ids(plan.entries), plan.parents, plan.anchors) == ("a", {}, {})


def test_current_labels_of_copied_entries_are_set_again():
    labels = {id: Label(target=target, text="x") for id, target in ("la", "mb", "kc")}
    tree = grow("a>b>l a>m c>k", **labels)

    assert ids(plan_fork(tree, "b").labels) == "lm"


def test_a_fork_before_the_first_entry_is_empty():
    plan = plan_fork(grow("a"), None)

    assert (plan.entries, plan.leaf) == ((), None)


def test_a_fork_of_a_damaged_path_is_complete():
    assert plan_fork(hang("b<gone", "c<b"), "c").parents == {"b": None}


@given(damaged_entry_lists(), st.data())
def test_every_plan_stays_inside_the_tree(entries, data):
    tree = Tree(entries)
    old, target = data.draw(places(entries)), data.draw(places(entries))

    plan = plan_navigate(tree, old, target)

    assert plan.new_leaf is None or not tree[plan.new_leaf].is_annotation
    assert {entry.id for entry in plan.abandoned} <= {entry.id for entry in tree.find_abandoned(old, target)}
    assert plan_move(tree, old, target).abandoned == plan.abandoned


# Summary input


def test_summary_input_holds_the_messages_in_the_context_at_the_leaf():
    edit = ContextEdit(target="b", replacement={"content": "edited"})
    call = assistant([tool_call("1", "write", {"path": "x.py"})])
    earlier = BranchSummary(summary="before", details={"readFiles": ["r.py"]})
    tree = grow("a>s>b>c>d>e", s=earlier, b=user("first"), c=call, d=edit, e=say("system", "be brief"))

    found = collect_summary_input(tree, "e", [tree[id] for id in "sbcde"])

    assert [message["role"] for message in found.messages] == ["branchSummary", "user", "assistant"]
    assert found.messages[1]["content"] == "edited"
    assert found.files.to_wire() == {"readFiles": ["r.py"], "modifiedFiles": ["x.py"]}


def test_the_last_prompt_is_the_last_user_message():
    tree = grow("a>b>c", b=user("again"), c=REPLY)

    assert find_last_prompt(tree.path("c")) is tree["b"]
    assert find_last_prompt([]) is None
