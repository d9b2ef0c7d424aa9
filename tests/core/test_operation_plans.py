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
    Message,
    ThinkingLevelChange,
    Usage,
)
from sessiontree.core.messages import assistant, tool_call, tool_result, user
from sessiontree.core.operation_plans import (
    build_merge_details,
    collect_summary_input,
    copy_body,
    find_last_prompt,
    find_prompt_text,
    get_merge_sources,
    is_merge,
    plan_cherry_pick,
    plan_fork,
    plan_merge,
    plan_move,
    plan_navigate,
    plan_rebase,
    rebase_bodies,
)
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation, NotFound
from tests.builders import build_file, entry, grow, hang, header, ids, read, say
from tests.strategies import damaged_entry_lists, entry_lists, places

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
    tree = Tree(read(build_file(header(), *lines))[1])

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
    assert find_prompt_text(tree, "c") == tree["b"].text
    assert find_prompt_text(tree, None) == ""


def make_calls(*calls):
    return assistant([tool_call(call, "read", {}) for call in calls])


def make_merge(*sources):
    return BranchSummary(summary="s", details={"kind": "merge", "sources": list(sources)})


# Merges


def test_a_merge_covers_the_other_branch_since_the_split():
    tree = grow("a>b>c>d b>x>y")

    assert ids(plan_merge(tree, "d", "y")) == "cd"
    assert ids(plan_merge(tree, "b", "y")) == ""
    assert ids(plan_merge(tree, "d", None)) == "abcd"


def test_merged_entries_are_not_merged_again():
    tree = grow("a>b>c>d>e a>x>m>y", m=make_merge("c"))

    assert ids(plan_merge(tree, "e", "y")) == "de"
    assert ids(plan_merge(tree, "c", "y")) == ""


def test_a_merge_of_known_entries_is_left_out():
    tree = grow("a>b>m>c a>x>y", m=make_merge("x"))

    assert ids(plan_merge(tree, "c", "y")) == "bc"
    assert ids(plan_merge(tree, "c", "a")) == "bmc"

    tree = grow("a>b>m a>x>n p", m=make_merge("p", "x"), n=make_merge("p"))

    assert ids(plan_merge(tree, "m", "n")) == "b"
    assert ids(plan_merge(tree, "m", "x")) == "bm"


def test_a_compaction_represents_the_entries_before_it():
    tree = grow("a>b>c>K>d a>x", K=Compaction(summary="s", first_kept="c"))

    assert ids(plan_merge(tree, "d", "x")) == "cKd"


@pytest.mark.parametrize(
    ("body", "sources"),
    [
        (make_merge("a", "b"), ["a", "b"]),
        (BranchSummary(summary="s"), []),
        (BranchSummary(summary="s", details={"kind": "merge"}), []),
        (BranchSummary(summary="s", details={"kind": "merge", "sources": ["a", 3]}), ["a"]),
        (BranchSummary(summary="s", details={"sources": ["a"]}), []),
        (user("x"), []),
    ],
)
def test_a_merge_names_its_sources(body, sources):
    assert get_merge_sources(entry("m", body=body)) == sources


def test_merge_details_are_read_back_and_keep_other_details():
    body = BranchSummary(summary="s", details=build_merge_details(["a", "b"], {"readFiles": ["x"], "kind": "mine"}))

    assert is_merge(body)
    assert get_merge_sources(entry("m", body=body)) == ["a", "b"]
    assert body.details["readFiles"] == ["x"]


@pytest.mark.parametrize("details", [None, "merge", ["merge"], {}, {"kind": "other"}, {"sources": ["a"]}])
def test_a_summary_without_merge_details_is_not_a_merge(details):
    assert not is_merge(BranchSummary(summary="s", details=details))


# Copies


def test_copies_have_the_same_content_without_usage():
    used = {"input": 10, "output": 5, "cost": 0.01}
    result = tool_result("1", "read", "x")

    assert copy_body(assistant("a", usage=used)) == assistant("a")
    assert copy_body(Message({**result.message, "usage": used})) == result
    assert copy_body(result) == result
    assert copy_body(Compaction(summary="s", usage=used)) == Compaction(summary="s")
    assert copy_body(BranchSummary(summary="s", usage=used)) == BranchSummary(summary="s")
    assert copy_body(ThinkingLevelChange("high")) == ThinkingLevelChange("high")


# Cherry-picks


def test_messages_are_picked_in_the_order_of_the_file_and_once():
    tree = grow("a>b>c a>x", x=CustomMessage(custom_type="n", content="note"))

    assert ids(plan_cherry_pick(tree, ["x", "b", "x"])) == "bx"
    assert plan_cherry_pick(tree, []) == ()


def test_a_turn_that_calls_tools_brings_their_results():
    tree = grow(
        "a>b>r>s>c",
        b=make_calls("1", "2"),
        r=tool_result("1", "read", "x"),
        s=tool_result("2", "read", "y"),
        c=assistant("z"),
    )

    assert ids(plan_cherry_pick(tree, ["b"])) == "brs"


def test_a_result_brings_its_call_and_the_other_results_of_the_turn():
    tree = grow("a>b>r>s", b=make_calls("1", "2"), r=tool_result("1", "read", "x"), s=tool_result("2", "read", "y"))

    assert ids(plan_cherry_pick(tree, ["s"])) == "brs"
    assert ids(plan_cherry_pick(tree, ["s", "r", "b", "a"])) == "abrs"


def test_of_two_results_of_one_call_the_chosen_one_is_copied_or_else_the_first():
    tree = grow("b>r b>q", b=make_calls("1"), r=tool_result("1", "read", "x"), q=tool_result("1", "read", "y"))

    assert ids(plan_cherry_pick(tree, ["q"])) == "bq"
    assert ids(plan_cherry_pick(tree, ["b"])) == "br"
    assert ids(plan_cherry_pick(tree, ["r", "q"])) == "br"


def test_results_are_searched_up_to_the_next_turn():
    tree = grow("b>c>d>r", b=make_calls("1"), d=make_calls("1"), r=tool_result("1", "read", "x"))

    assert ids(plan_cherry_pick(tree, ["b"])) == "b"
    assert ids(plan_cherry_pick(tree, ["r"])) == "dr"


def test_calls_and_results_stay_together_when_others_are_picked_too():
    tree = grow("a>b>r a>x", b=make_calls("1"), r=tool_result("1", "read", "x"))
    late = Tree([*(tree[id] for id in "ab"), entry("x", "a"), entry("r", "b", tool_result("1", "read", "x"))])

    assert ids(plan_cherry_pick(late, ["x", "b"])) == "brx"


def test_a_result_without_its_call_cannot_be_picked():
    with pytest.raises(InvalidOperation, match="'r' is the result of a tool call that is not on its path"):
        plan_cherry_pick(grow("a>r", r=tool_result("1", "read", "x")), ["r"])


@pytest.mark.parametrize("body", [ThinkingLevelChange("high"), Label(target="a", text="x"), Compaction(summary="s")])
def test_only_messages_can_be_picked(body):
    with pytest.raises(InvalidOperation, match="only messages can be cherry-picked"):
        plan_cherry_pick(grow("a>b", b=body), ["b"])


# Rebases


def test_a_rebase_copies_the_branch_after_the_common_path():
    tree = grow("a>b>c>d a>x", c=Label(target="a", text="x"))

    assert ids(plan_rebase(tree, "d", "x")) == "bd"
    assert ids(plan_rebase(grow("a>b x"), "b", "x")) == "ab"


def test_branch_points_are_not_copied():
    assert ids(plan_rebase(grow("a>p>b a>x", p=BranchPoint(name="side")), "b", "x")) == "b"


def test_a_rebase_without_entries_to_copy_is_refused():
    tree = grow("a>b>c")

    for onto in ("a", "b", "c", None):
        with pytest.raises(InvalidOperation, match=r"the branch already continues from \w+"):
            plan_rebase(tree, "c", onto)
    with pytest.raises(
        InvalidOperation, match="nothing to rebase: the path to entry 'c' already has every entry of the branch"
    ):
        plan_rebase(tree, "a", "c")


COPIES = {"b": "B", "c": "C", "K": "k", "e": "E"}


@pytest.mark.parametrize(
    ("anchor", "kept"), [("c", "C"), ("K", None), (None, None), ("a", "a"), ("l", "C"), ("m", None)]
)
def test_the_anchor_of_a_copied_compaction_points_to_a_copy(anchor, kept):
    note = Label(target="a", text="x")
    keeps = Compaction(summary="s", first_kept=anchor, state={"old": 1}, system_message={"role": "system"})
    tree = grow("a>b>l>c>m>K a>x", l=note, m=note, K=keeps)
    entries = plan_rebase(tree, "K", "x")

    body = rebase_bodies(tree, entries, "x", COPIES)[-1]

    assert isinstance(body, Compaction)
    assert (body.first_kept, body.state, body.system_message) == (kept, None, None)


def test_a_compaction_with_a_missing_first_kept_entry_cannot_be_copied():
    tree = grow("a>b>K a>x", K=Compaction(summary="s", first_kept="gone"))

    with pytest.raises(InvalidOperation, match="'K' keeps entries from 'gone', which would not be on its path"):
        plan_rebase(tree, "K", "x")


@pytest.mark.parametrize(("target", "turned"), [("b", "B"), ("a", "a")])
def test_a_copied_edit_points_to_the_copy_of_its_target(target, turned):
    tree = grow("a>b>e a>x", e=ContextEdit(target=target))
    entries = plan_rebase(tree, "e", "x")

    assert rebase_bodies(tree, entries, "x", COPIES)[-1] == ContextEdit(target=turned)


def test_an_edit_of_an_entry_that_is_not_copied_cannot_be_copied():
    tree = grow("a>b>e a>x>y", e=ContextEdit(target="y"))

    with pytest.raises(InvalidOperation, match="'e' edits 'y', which would not be on its path"):
        plan_rebase(tree, "e", "x")


@given(entry_lists(), st.data())
def test_a_rebase_copies_only_entries_of_the_path_with_one_body_each(entries, data):
    tree = Tree(entries)
    leaf, onto = data.draw(places(entries)), data.draw(places(entries))
    try:
        planned = plan_rebase(tree, leaf, onto)
    except InvalidOperation:
        return

    path = {one.id for one in tree.walk_up(leaf)}
    assert all(one.id in path and not one.is_annotation for one in planned)
    assert len(rebase_bodies(tree, planned, onto, {one.id: one.id.upper() for one in planned})) == len(planned)


@given(damaged_entry_lists(), st.data())
def test_any_session_gives_a_plan_or_a_refusal(entries, data):
    tree = Tree(entries)
    a, b = data.draw(places(entries)), data.draw(places(entries))

    plan_merge(tree, a, b)
    for plan in (lambda: plan_rebase(tree, a, b), lambda: plan_cherry_pick(tree, [id for id in (a, b) if id])):
        try:
            plan()
        except InvalidOperation:
            continue
