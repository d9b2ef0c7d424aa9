import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.compaction import count_context_tokens, find_compactions, plan_compaction, split_window
from sessiontree.core.context import build_context, build_path_context
from sessiontree.core.entries import (
    BranchSummary,
    Compaction,
    ContextEdit,
    CustomMessage,
    Label,
    ModelChange,
    ResetBoundary,
)
from sessiontree.core.messages import assistant, get_answered_call, get_tool_calls, tool_call, tool_result, user
from sessiontree.core.tree import Tree
from tests.builders import entry, grow, ids, say
from tests.strategies import entry_lists


def make_words(tokens):
    return "abc " * tokens


def make_answer(tokens=10, total=None, **fields):
    return assistant(make_words(tokens), usage=None if total is None else {"totalTokens": total}, **fields)


def make_calls(*calls, tokens=0):
    text = [{"type": "text", "text": make_words(tokens)}] if tokens else []
    return assistant([*text, *(tool_call(call, "read", {"path": f"{call}.py"}) for call in calls)])


def make_chain(**bodies):
    return bodies


def build_path(**bodies):
    """Return a chain of entries with the given bodies."""
    tree = grow(">".join(bodies), **bodies)
    return tree.path(list(bodies)[-1])


# Budgets


@pytest.mark.parametrize(
    ("window", "reserve", "kept", "limit"),
    [(4096, 1024, 1024, 3072), (32_768, 8192, 8192, 24_576), (128_000, 16_384, 20_000, 111_616)],
)
def test_the_shares_of_a_window_scale_with_it(window, reserve, kept, limit):
    shares = split_window(window)

    assert (shares.reserve, shares.keep_recent, shares.limit) == (reserve, kept, limit)


def test_explicit_shares_are_limited_to_what_lets_a_compaction_make_room():
    assert (split_window(100_000, 500, 900).reserve, split_window(100_000, 500, 900).keep_recent) == (500, 900)
    assert (split_window(4096, 16_384, 20_000).reserve, split_window(4096, 16_384, 20_000).keep_recent) == (2048, 1024)


# Counting


def test_context_tokens_are_the_providers_count_plus_an_estimate_of_later_messages():
    path = build_path(
        a=user(make_words(1)), b=make_answer(total=500), c=user(make_words(30)), d=Label(target="a", text="x")
    )

    assert count_context_tokens(path) == 530
    assert count_context_tokens([]) == 0


def test_without_a_count_everything_is_estimated_and_unseen_tokens_are_added():
    path = build_path(a=user(make_words(20)), b=make_answer(10))

    assert count_context_tokens(path) == 30
    assert count_context_tokens(path, unseen=100) == 130


def test_counts_of_failed_turns_and_zero_counts_are_ignored():
    path = build_path(
        a=user(make_words(1)),
        b=make_answer(total=500),
        c=user(make_words(3)),
        d=make_answer(7, total=9, stop_reason="error"),
        e=make_answer(2),
    )

    assert count_context_tokens(path) == 505


@pytest.mark.parametrize("change", [Compaction(summary=make_words(5), first_kept="b"), ContextEdit(target="a")])
def test_a_count_from_before_a_compaction_or_an_edit_is_not_trusted(change):
    path = build_path(a=user(make_words(1)), b=make_answer(10, total=5000), c=change, d=user(make_words(4)))

    assert 10 <= count_context_tokens(path) < 100
    assert count_context_tokens([*path, entry("e", "d", make_answer(1, total=700))]) == 700


def test_a_count_from_before_a_reset_is_not_trusted():
    path = build_path(a=user(make_words(1)), b=make_answer(10, total=5000), c=ResetBoundary(), d=user(make_words(4)))

    assert count_context_tokens(path) == 4


# Where to cut


def find_cut(keep, most=None, **bodies):
    plan = plan_compaction(build_path(**bodies), keep, most=most)
    assert plan is not None
    return ids(plan.entries), ids(plan.turn_prefix), plan.first_kept


def test_the_newest_messages_are_kept_and_the_rest_is_summarized():
    talk = make_chain(a=user(make_words(10)), b=make_answer(10), c=user(make_words(10)), d=make_answer(10))

    assert find_cut(20, **talk) == ("ab", "", "c")
    assert find_cut(11, **talk) == ("ab", "", "c")


def test_a_context_that_fits_is_not_compacted():
    talk = make_chain(a=user(make_words(10)), b=make_answer(10))

    assert plan_compaction(build_path(**talk), 21) is None
    assert plan_compaction(build_path(**talk), 20) is None
    assert plan_compaction([], 1) is None


def test_a_short_conversation_is_compacted_if_at_most_half_may_be_kept():
    path = build_path(a=user(make_words(10)), b=make_answer(10), c=user(make_words(10)), d=make_answer(10))

    plan = plan_compaction(path, 10_000, at_most_half=True)

    assert plan is not None
    assert plan.first_kept == "c"
    assert plan_compaction(path[:1], 10_000, at_most_half=True) is None


def test_a_context_that_ends_with_a_compaction_has_nothing_to_compact():
    path = build_path(
        a=user(make_words(10)), b=make_answer(10), K=Compaction(summary="s", first_kept="b"), l=Label(target="a")
    )

    assert plan_compaction(path, 1) is None


def test_a_split_turn_returns_its_first_part_separately():
    talk = make_chain(
        a=user(make_words(9)),
        b=make_answer(9),
        c=user(make_words(9)),
        d=make_calls("1", tokens=50),
        e=tool_result("1", "read", "x"),
    )

    assert find_cut(10, **talk, f=make_calls("2", tokens=9), g=tool_result("2", "read", "x"), h=make_answer(5)) == (
        "ab",
        "cde",
        "f",
    )


def test_without_a_turn_start_above_the_cut_nothing_is_split():
    talk = make_chain(a=make_answer(50), b=make_answer(9), c=make_answer(9))

    assert find_cut(10, **talk) == ("a", "", "b")


def test_a_cut_is_never_before_a_tool_result():
    talk = make_chain(
        a=user(make_words(9)), b=make_calls("1"), c=tool_result("1", "read", make_words(50)), d=make_answer(5)
    )

    assert find_cut(10, **talk) == ("", "abc", "d")
    assert find_cut(10, **{name: talk[name] for name in "abc"}) == ("", "a", "b")


def test_a_cut_is_never_between_a_call_and_its_result():
    note = CustomMessage(custom_type="x", content=make_words(10))
    talk = make_chain(
        a=user(make_words(9)),
        b=make_calls("1", "2"),
        c=tool_result("1", "r", "x"),
        n=note,
        d=tool_result("2", "r", "x"),
    )

    assert find_cut(8, **talk) == ("", "a", "b")
    assert find_cut(8, **talk, e=user(make_words(9))) == ("abcnd", "", "e")


def test_a_reused_call_id_belongs_to_the_last_call_before_the_result():
    talk = make_chain(
        a=user(make_words(9)), b=make_calls("1"), c=tool_result("1", "r", "x"), d=user(make_words(9)), e=make_calls("1")
    )

    assert find_cut(14, **talk, f=tool_result("1", "r", make_words(3))) == ("abc", "", "d")


def test_a_message_twice_as_long_as_the_kept_part_is_summarized_if_another_follows():
    talk = make_chain(a=user(make_words(9)), b=make_answer(9), c=user(make_words(100)), d=make_answer(5))

    assert find_cut(10, **talk) == ("ab", "c", "d")
    assert find_cut(10, **{name: talk[name] for name in "abc"}) == ("ab", "", "c")


def test_if_only_results_remain_nothing_is_kept():
    assert find_cut(1, a=tool_result("1", "r", make_words(9)), b=tool_result("2", "r", make_words(9))) == (
        "ab",
        "",
        None,
    )


def test_never_more_is_kept_than_fits():
    talk = make_chain(a=user(make_words(9)), b=make_calls("1"), c=tool_result("1", "read", make_words(50)))

    assert find_cut(10, **talk, most=60) == ("", "a", "b")
    assert find_cut(10, **talk, most=40) == ("abc", "", None)
    assert find_cut(10, a=user(make_words(50)), most=40) == ("a", "", None)
    assert plan_compaction(build_path(a=user(make_words(50))), 10, most=60) is None


def test_the_kept_part_leaves_room_for_the_summary():
    assert split_window(4_096).max_kept == 2_048
    assert split_window(200_000).max_kept == 167_232
    assert split_window(4_096, reserve=4_000, keep_recent=1_000).max_kept == 1_000


def test_if_the_kept_part_is_too_long_the_newest_messages_are_kept():
    talk = make_chain(a=user(make_words(9)), b=user(make_words(12)), c=make_answer(5))

    assert find_cut(10, **talk, most=20) == ("a", "", "b")
    assert find_cut(10, **talk, most=15) == ("a", "b", "c")


# What the summary covers


def test_the_next_compaction_continues_from_the_last_one():
    details = {"readFiles": ["old.py"], "modifiedFiles": []}
    first = Compaction(summary="EARLIER\n\n<read-files>\nold.py\n</read-files>", first_kept="b", details=details)
    path = build_path(
        a=user("one"),
        b=make_calls("1", tokens=9),
        K=first,
        c=tool_result("1", "r", "x"),
        d=user(make_words(9)),
        e=make_answer(20),
    )

    plan = plan_compaction(path, 25)

    assert plan is not None
    assert plan.previous_summary == "EARLIER"
    assert (ids(plan.entries), plan.first_kept) == ("bc", "d")
    assert plan.files.to_wire() == {"readFiles": ["1.py", "old.py"], "modifiedFiles": []}
    assert find_compactions(path) == (path[2],)


def test_context_edits_apply_to_the_messages_of_a_plan():
    path = build_path(
        a=user("secret"),
        b=make_answer(9),
        e=ContextEdit(target="a", replacement={"content": "public"}),
        c=user(make_words(30)),
    )

    plan = plan_compaction(path, 20)

    assert plan is not None
    assert plan.messages[0]["content"] == "public"
    assert not plan.turn_prefix


def test_summaries_of_branches_are_summarized_like_messages_and_settings_are_not():
    path = build_path(
        a=user("one"), m=ModelChange(provider="p", model="m"), s=BranchSummary(summary="tried"), b=user(make_words(30))
    )

    plan = plan_compaction(path, 20)

    assert plan is not None
    assert ids(plan.entries) == "as"
    assert plan.tokens_before == count_context_tokens(path)


def test_messages_that_are_not_sent_have_no_estimate():
    hidden = say("bashExecution", command="ls", output=make_words(100), excludeFromContext=True)

    assert find_cut(20, a=user(make_words(5)), b=make_answer(9), x=hidden, c=user(make_words(20))) == ("abx", "", "c")


# For any tree


def assert_paired(messages):
    """Assert that every call is answered directly after its turn and every result has a call."""
    waiting = []
    for message in messages:
        call = get_answered_call(message)
        if call is None:
            assert not waiting
            waiting = [call.id for call in get_tool_calls(message)]
        else:
            assert call in waiting
            waiting.remove(call)
    assert not waiting


@given(
    entry_lists(30), st.lists(st.integers(0, 12), min_size=1, max_size=3), st.booleans(), st.none() | st.integers(0, 40)
)
def test_after_any_chain_of_compactions_every_result_has_its_call_and_every_call_a_result(entries, keeps, half, most):
    tree = Tree(entries)
    leaf = entries[-1].id if entries else None
    for number, keep in enumerate(keeps):
        path = tree.path(leaf)
        plan = plan_compaction(path, keep, most=most, at_most_half=half)
        if plan is None:
            break
        before = {id for id, _ in build_context(tree, leaf).build_request()}
        kept = Compaction(summary=f"S{number}", first_kept=plan.first_kept or f"K{number}")
        tree.add(entry(f"K{number}", leaf, kept, line=len(tree) + 2))
        request = build_context(tree, f"K{number}").build_request()
        after, summarized = {id for id, _ in request}, {one.id for one in (*plan.entries, *plan.turn_prefix)}
        assert_paired([message for _, message in request])
        assert not summarized & after
        assert before - after <= summarized | {one.id for one in path if is_absorbed(one)}
        leaf = f"u{number}"
        tree.add(entry(leaf, f"K{number}", user(make_words(40)), line=len(tree) + 2))


def is_absorbed(one):
    """Return whether a compaction absorbs an entry: an older compaction or a system message."""
    return one.type == "compaction" or (one.type == "message" and one.body.message.get("role") == "system")


@given(entry_lists(30), st.integers(0, 12), st.none() | st.integers(0, 40))
def test_a_plan_covers_everything_that_the_model_saw(entries, keep, most):
    path = Tree(entries).path(entries[-1].id if entries else None)
    plan = plan_compaction(path, keep, most=most)
    if plan is None:
        return

    context = build_path_context(path)
    spoke = [
        id
        for id, message in zip(context.sources, context.messages, strict=True)
        if message["role"] not in ("compactionSummary", "system")
    ]
    covered = [one.id for one in (*plan.entries, *plan.turn_prefix)]

    assert spoke[: len(covered)] == covered
    assert plan.first_kept == (spoke[len(covered)] if len(covered) < len(spoke) else None)
