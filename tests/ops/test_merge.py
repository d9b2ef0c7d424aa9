import asyncio

import pytest

import sessiontree as st
from sessiontree.branch_comparison import compute_stats
from sessiontree.core.compaction import count_context_tokens
from sessiontree.core.summary_prompts import MERGE_PROMPT
from sessiontree.errors import BranchMoved, InvalidOperation, NotFound
from sessiontree.format.json_line import read_object
from sessiontree.hooks.events import BeforeCopy, BeforeMerge, Copied, Merged, Notice, Signal
from sessiontree.library.index.session_summary import build_tally
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import Delay, ScriptedModel
from sessiontree.ops.merge import CopyOutcome, MergeOutcome, cherry_pick, merge, promote, rebase
from sessiontree.ops.navigate import navigate
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Branch, Session
from tests.ops.conftest import append_messages, get_prompt
from tests.waiting import wait_until


@pytest.fixture
def main(session: Session) -> Branch:
    """A question on `main`, and two answers on separate branches; `main` is current."""
    append_messages(session, "question", "two ways")
    for name in ("cache", "dict"):
        branch = session.create_branch(name, at="main")
        branch.append(st.user(f"try a {name}"))
        branch.append(
            st.assistant([{"type": "text", "text": f"{name} done"}, st.tool_call(name, "edit", {"path": name})])
        )
        branch.append(st.tool_result(name, "edit", "ok"))
    session.switch("main")
    return session.branch("main")


def list_texts(branch: Branch) -> list[str]:
    return [st.core.messages.extract_text(m.get("content")) or m.get("summary", "") for m in branch.context().messages]


def list_notices(events) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def build_model(*answers) -> ScriptedModel:
    return ScriptedModel(answers or ["It works."])


# Merge


async def test_a_merge_is_a_summary_of_the_other_branch_at_this_head(session, main, hooks, events) -> None:
    cache, leaf = session.branch("cache"), main.leaf
    makes = build_model()

    outcome = await merge(cache, main, hooks=hooks, summary=SummaryRequest(model=makes))

    entry = outcome.summary_entry
    assert entry is not None
    assert (entry.parent, main.leaf, outcome.new_leaf) == (leaf, entry.id, entry.id)
    body = entry.body
    assert isinstance(body, st.BranchSummary)
    assert body.summary.startswith("Branch cache is merged here. Its results:\n\nIt works.")
    assert body.details == {"kind": "merge", "sources": [cache.leaf], "readFiles": [], "modifiedFiles": ["cache"]}
    assert body.abandoned_leaf == cache.leaf
    assert body.usage is not None
    prompt = get_prompt(makes.requests[0])
    assert "try a cache" in prompt
    assert "question" not in prompt
    assert MERGE_PROMPT in prompt
    assert events[-1] == Merged(kind="merge", branch="main", sources=("cache",), summary_entry=entry)


async def test_a_merge_may_be_the_users_own_text(main, session, hooks, events) -> None:
    outcome = await merge(session.branch("cache"), main, hooks=hooks, summary="The cache is better.")

    assert outcome.summary_entry is not None
    assert outcome.summary_entry.body.summary == "The cache is better."
    assert outcome.summary_entry.body.details["kind"] == "merge"
    assert events[0].user_wants_summary is False


async def test_entries_are_merged_only_once(main, session, hooks) -> None:
    cache = session.branch("cache")
    await merge(cache, main, hooks=hooks, summary="once")

    with pytest.raises(InvalidOperation, match="branch 'cache' has no entries to merge into 'main'"):
        await merge(cache, main, hooks=hooks, summary="twice")

    cache.append(st.user("one more thing"))
    makes = build_model()
    await merge(cache, main, hooks=hooks, summary=SummaryRequest(model=makes))
    assert "one more thing" in get_prompt(makes.requests[0])
    assert "try a cache" not in get_prompt(makes.requests[0])


async def test_handlers_see_the_merged_entries_and_may_supply_the_summary(main, session, hooks, events) -> None:
    hooks.on(BeforeMerge, lambda event, ctx: {"summary": {"summary": "MINE", "details": {"x": 1, "kind": "odd"}}})

    outcome = await merge(
        session.branch("dict"), main, hooks=hooks, summary=SummaryRequest(model=build_model(), instructions="speed")
    )

    event = events[0]
    assert (event.kind, event.branch, event.sources, event.custom_instructions) == ("merge", "main", ("dict",), "speed")
    assert [entry.type for entry in event.entries] == ["branch_point", "message", "message", "message"]
    assert outcome.summary_entry is not None
    body = outcome.summary_entry.body
    assert (body.summary, body.from_hook) == ("MINE", True)
    assert body.details == {"x": 1, "kind": "merge", "sources": [session.branch("dict").leaf]}
    assert events[-1].from_hook


async def test_a_handler_may_change_the_instructions(main, session, hooks) -> None:
    hooks.on(BeforeMerge, lambda event, ctx: {"custom_instructions": "memory", "summary": {"summary": " "}})
    makes = build_model()

    await merge(session.branch("dict"), main, hooks=hooks, summary=SummaryRequest(model=makes, instructions="speed"))

    assert get_prompt(makes.requests[0]).endswith("Pay special attention to this: memory")


async def test_an_empty_summary_of_a_handler_is_reported_and_the_model_is_asked(main, session, hooks, events) -> None:
    hooks.on(BeforeMerge, lambda event, ctx: {"summary": {"summary": " "}})

    outcome = await merge(session.branch("dict"), main, hooks=hooks, summary=SummaryRequest(model=build_model()))

    assert "It works." in outcome.summary_entry.body.summary
    assert list_notices(events) == ["a handler supplied an empty summary"]


async def test_invalid_details_of_a_handler_are_reported(main, session, hooks, events) -> None:
    hooks.on(BeforeMerge, lambda event, ctx: {"summary": {"summary": "MINE", "details": ["x"]}})

    outcome = await merge(session.branch("dict"), main, hooks=hooks, summary=SummaryRequest(model=build_model()))

    assert outcome.summary_entry.body.summary == "MINE"
    assert list_notices(events) == ["a handler supplied details that are not an object"]


async def test_an_abort_after_the_write_does_not_wait_for_handlers(main, session, hooks) -> None:
    signal = Signal()

    async def hang(event, ctx):
        signal.abort()
        await asyncio.Event().wait()

    hooks.on(Merged, hang)

    outcome = await asyncio.wait_for(
        merge(session.branch("dict"), main, hooks=hooks, summary="MINE", signal=signal), 10
    )

    assert outcome.summary_entry is not None
    assert main.leaf == outcome.new_leaf


async def test_a_handler_may_cancel_a_merge(main, session, hooks, events) -> None:
    before = session.read_lines()
    hooks.on(BeforeMerge, lambda event, ctx: {"cancel": True})

    outcome = await merge(session.branch("dict"), main, hooks=hooks, summary=SummaryRequest(model=build_model()))

    assert outcome == MergeOutcome(new_leaf=main.leaf, cancelled=True, cancelled_by="<lambda>")
    assert session.read_lines() == before
    assert len(events) == 1


async def test_without_a_model_or_a_text_nothing_is_merged(main, session, hooks, events) -> None:
    with pytest.raises(InvalidOperation, match="a summary needs a model"):
        await merge(session.branch("dict"), main, hooks=hooks)

    assert events == []


async def test_a_failed_or_aborted_merge_changes_nothing(main, session, hooks) -> None:
    before = session.read_lines()
    signal = Signal()

    with pytest.raises(ModelError):
        await merge(
            session.branch("dict"),
            main,
            hooks=hooks,
            summary=SummaryRequest(model=build_model(ModelError("m", "auth", "no"))),
        )
    model = build_model([Delay(30), "s"])
    work = asyncio.ensure_future(
        merge(session.branch("dict"), main, hooks=hooks, summary=SummaryRequest(model=model), signal=signal)
    )
    await wait_until(lambda: model.requests)
    signal.abort()

    assert await asyncio.wait_for(work, 20) == MergeOutcome(new_leaf=main.leaf, cancelled=True, aborted=True)
    assert session.read_lines() == before


@pytest.mark.parametrize("to", ["root", "cache", "main~"])
async def test_no_summary_is_written_to_a_branch_that_moved_in_between(main, session, hooks, to) -> None:
    def move(event, ctx) -> None:
        session.move(to, branch="main")

    hooks.on(BeforeMerge, move)

    with pytest.raises(BranchMoved):
        await merge(session.branch("cache"), main, hooks=hooks, summary=SummaryRequest(model=build_model()))

    assert "branch_summary" not in [entry.type for entry in session.tree]


async def test_a_summary_is_appended_to_a_branch_that_grew_while_it_was_written(main, session, hooks) -> None:
    def grow(event, ctx) -> None:
        main.append(st.user("by the way"))

    hooks.on(BeforeMerge, grow)

    await merge(session.branch("cache"), main, hooks=hooks, summary="It works.")

    assert list_texts(main) == ["question", "two ways", "by the way", "It works."]


async def test_only_one_of_two_concurrent_merges_of_a_branch_is_written(main, session, hooks) -> None:
    slow = build_model([Delay(0), "It works."], [Delay(0), "It works."])

    outcomes = await asyncio.gather(
        *(merge(session.branch("cache"), main, hooks=hooks, summary=SummaryRequest(model=slow)) for _ in range(2)),
        return_exceptions=True,
    )

    assert {type(outcome) for outcome in outcomes} == {MergeOutcome, BranchMoved}
    assert [entry.type for entry in session.tree].count("branch_summary") == 1


async def test_entries_merged_from_a_branch_are_not_merged_back(main, session, hooks) -> None:
    cache = session.branch("cache")
    await merge(cache, main, hooks=hooks, summary="It works.")
    with pytest.raises(InvalidOperation, match="branch 'main' has no entries to merge into 'cache'"):
        await merge(main, cache, hooks=hooks, summary="It works.")
    main.append(st.user("Go on."))
    await merge(main, cache, hooks=hooks, summary="It continues.")

    with pytest.raises(InvalidOperation, match="branch 'cache' has no entries to merge into 'main'"):
        await merge(cache, main, hooks=hooks, summary="again")


async def test_branches_are_merged_within_one_session_and_not_into_themselves(main, hooks) -> None:
    with pytest.raises(InvalidOperation, match="cannot be merged into itself"):
        await merge(main, main, hooks=hooks, summary="x")
    with pytest.raises(InvalidOperation, match="belongs to another session"):
        await merge(st.memory().head, main, hooks=hooks, summary="x")


# Undo


async def test_undo_after_a_merge_reverts_and_names_the_merge(main, session, hooks) -> None:
    before = session.branches, session.heads.current
    await merge(session.branch("cache"), main, hooks=hooks, summary="It works.")

    plan = session.undo()

    assert (session.branches, session.heads.current) == before
    assert plan.undo_description == "the merge of cache into main"
    assert session.undo().undo_description == "the switch from dict to main"


async def test_undo_reverts_a_merge_into_a_branch_that_is_not_current(main, session, hooks) -> None:
    main.append(st.user("more"))
    before = session.branches
    await merge(main, session.branch("cache"), hooks=hooks, summary="Go on.")

    plan = session.undo()

    assert session.branches == before
    assert session.head == main
    assert plan.undo_description == "the merge of main into cache"


async def test_undo_of_a_merge_works_after_reopening_the_session(tmp_path, hooks) -> None:
    with st.create("auth", cwd=tmp_path) as session:
        session.head.extend([st.user("question"), st.assistant("two ways")])
        session.create_branch("cache").append(st.user("try a cache"))
        session.switch("main")
        leaf = session.head.leaf
        await merge(session.branch("cache"), session.head, hooks=hooks, summary="It works.")

    with st.open(session.file) as again:
        plan = again.undo()

        assert (again.head.name, again.head.leaf) == ("main", leaf)
        assert plan.undo_description == "the merge of cache into main"


async def test_undo_of_a_merge_uses_the_current_name_of_a_renamed_branch(main, session, hooks) -> None:
    await merge(session.branch("cache"), main, hooks=hooks, summary="It works.")
    session.rename_branch("cache", "store")

    assert session.undo().undo_description == "the merge of store into main"


async def test_a_merge_after_a_promotion_without_a_summary_is_undone_separately(main, session, hooks) -> None:
    session.archive_branch("cache")
    await promote(session.branch("dict"), main, hooks=hooks)
    session.rename_branch("cache", "store")
    promoted = main.leaf
    await merge(session.branch("store"), main, hooks=hooks, summary="It works.")

    assert session.undo().undo_description == "the merge of store into main"
    assert main.leaf == promoted
    assert session.undo().undo_description == "the move of main, which archived dict"


async def test_undo_after_a_cherry_pick_reverts_the_copies(main, session, hooks) -> None:
    before = session.branches, session.heads.current
    picked = session.branch("cache").path()[-3].id
    await cherry_pick(main, [picked], hooks=hooks)
    main.append(st.user("on"))

    plan = session.undo()

    assert (session.branches, session.heads.current) == before
    assert plan.undo_description == "the copies on main"


@pytest.mark.parametrize("operation", ["cherry-pick", "rebase", "promote", "navigate"])
async def test_undo_reverts_operations_on_a_branch_that_is_not_current(main, session, hooks, operation) -> None:
    cache, by_key = session.branch("cache"), session.branch("dict")
    ways = session.create_branch("cache 2", at="cache", current=False)
    ways.append(st.user("on"))
    before = session.branches
    match operation:
        case "cherry-pick":
            await cherry_pick(cache, [by_key.path()[-3].id], hooks=hooks)
            undone = "the copies on cache"
        case "rebase":
            await rebase(cache, "dict", hooks=hooks)
            undone = "the move of cache"
        case "promote":
            await promote(ways, cache, hooks=hooks)
            undone = "the move of cache, which archived cache 2"
        case _:
            await navigate(session, "dict", branch=cache, hooks=hooks)
            undone = "the move of cache"
    assert session.branches != before
    mine = main.append(st.user("said on the current branch since"))

    with Session(session._store) as again:
        assert again.heads.undoable == session.heads.undoable
    plan = session.undo()

    assert plan.undo_description == undone
    assert (session.head, main.leaf) == (main, mine.id)
    assert [info for info in session.branches if info.name != "main"] == [one for one in before if one.name != "main"]
    assert session.undo().undo_description == "the switch from dict to main"


# Promote


async def test_promoting_continues_from_the_winner_with_a_summary_of_the_others(main, session, hooks, events) -> None:
    cache, by_key = session.branch("cache"), session.branch("dict")
    makes = build_model("The cache grew.")

    outcome = await promote(by_key, main, hooks=hooks, summary=SummaryRequest(model=makes))

    entry = outcome.summary_entry
    assert entry is not None
    assert (entry.parent, main.leaf, outcome.new_leaf) == (by_key.leaf, entry.id, entry.id)
    assert entry.body.summary.startswith("The user chose branch dict. Results of the other branches:")
    assert "# Branch cache\n\nThe cache grew." in entry.body.summary
    assert entry.body.details["sources"] == [cache.leaf]
    assert session.head == main
    assert {info.name for info in session.branches if info.archived} == {"cache", "dict"}
    assert events[-1] == Merged(kind="promote", branch="main", sources=("cache",), summary_entry=entry)


async def test_undoing_a_promotion_unarchives_its_branches(main, session, hooks) -> None:
    before = session.branches
    await promote(session.branch("dict"), main, hooks=hooks, summary="The cache grew.")
    main.append(st.user("on"))

    plan = session.undo()

    assert session.branches == before
    assert plan.undo_description == "the move of main, which archived cache, dict"


async def test_undoing_a_promotion_keeps_branches_archived_that_were_archived_before(main, session, hooks) -> None:
    session.create_branch("old", at=main.path()[-1], current=False)
    session.archive_branch("old")
    before = session.branches
    await promote(session.branch("dict"), main, hooks=hooks, summary="The cache grew.")

    session.undo()

    assert session.branches == before


async def test_the_winner_of_a_promotion_may_be_the_current_branch(main, session, hooks) -> None:
    session.switch("dict")
    before = session.branches

    await promote(session.branch("dict"), main, hooks=hooks, summary="The cache grew.")

    assert session.head == main
    session.undo()
    assert session.branches == before


async def test_without_others_a_promotion_is_only_a_move(main, session, hooks, events) -> None:
    session.archive_branch("cache")

    outcome = await promote(session.branch("dict"), main, hooks=hooks)

    assert outcome == MergeOutcome(new_leaf=session.branch("dict").leaf)
    assert main.leaf == session.branch("dict").leaf
    assert isinstance(events[-1], Merged)


async def test_the_others_can_be_named_and_the_winner_may_be_the_branch_itself(main, session, hooks) -> None:
    by_key = session.branch("dict")

    outcome = await promote(by_key, by_key, [session.branch("cache"), by_key], hooks=hooks, summary="no cache")

    assert outcome.summary_entry is not None
    assert by_key.leaf == outcome.summary_entry.id
    assert {info.name for info in session.branches if info.archived} == {"cache"}


async def test_promoting_a_branch_to_its_own_place_changes_nothing(main, session, hooks) -> None:
    by_key, before = session.branch("dict"), session.branches

    outcome = await promote(by_key, by_key, [], hooks=hooks)

    assert outcome == MergeOutcome(new_leaf=by_key.leaf)
    assert session.branches == before


async def test_a_branch_that_grew_is_not_moved(main, session, hooks, events) -> None:
    main.append(st.user("meanwhile"))

    with pytest.raises(InvalidOperation, match="'dict' does not continue from the head of 'main'; merge it instead"):
        await promote(session.branch("dict"), main, hooks=hooks, summary="x")

    assert events == []


async def test_a_branch_at_root_may_be_promoted_into(session, hooks) -> None:
    branch = session.create_branch("first", at=None)
    branch.append(st.user("hello"))

    outcome = await promote(branch, session.branch("main"), hooks=hooks)

    assert outcome.new_leaf == session.branch("main").leaf == branch.leaf


async def test_a_cancelled_or_aborted_promotion_changes_nothing(main, session, hooks) -> None:
    before, signal = session.read_lines(), Signal()
    signal.abort()

    aborted = await promote(
        session.branch("dict"), main, hooks=hooks, summary=SummaryRequest(model=build_model()), signal=signal
    )
    hooks.on("before_merge", lambda event, ctx: {"cancel": True})
    cancelled = await promote(session.branch("dict"), main, hooks=hooks, summary=SummaryRequest(model=build_model()))

    assert (aborted.aborted, cancelled.cancelled, cancelled.aborted) == (True, True, False)
    assert session.read_lines() == before


# Cherry-pick


async def test_a_call_is_copied_with_its_result_to_the_head(main, session, hooks, events) -> None:
    turn = session.branch("cache").path()[-2]

    outcome = await cherry_pick(main, [turn], hooks=hooks)

    assert list_texts(main) == ["question", "two ways", "cache done", "ok"]
    assert [read_object(copy.raw)["copiedFrom"] for copy in outcome.entries] == [turn.id, session.branch("cache").leaf]
    assert outcome.new_leaf == main.leaf
    assert events == [
        BeforeCopy(kind="cherry_pick", branch="main", onto=outcome.old_leaf, entries=events[0].entries),
        Copied(kind="cherry_pick", branch="main", entries=outcome.entries),
    ]


async def test_copies_keep_every_field_of_the_original(main, session, hooks) -> None:
    odd = session.append(st.user("odd"), parent="cache", branch=None, extra={"from_the_future": [1]})

    outcome = await cherry_pick(main, [odd], hooks=hooks)

    assert read_object(outcome.entries[0].raw)["from_the_future"] == [1]
    assert outcome.entries[0].body == odd.body


async def test_a_copy_of_a_copy_records_its_direct_source(main, session, hooks) -> None:
    cache = session.branch("cache")
    cache.append(st.Opaque(type="of_tomorrow", fields={"x": 1}))
    for _ in range(2):
        before = cache.leaf
        session.branch("dict").append(st.user("more"))

        outcome = await rebase(cache, "dict", hooks=hooks)

        assert read_object(outcome.entries[-1].raw)["copiedFrom"] == before
        assert outcome.entries[-1].body.fields["x"] == 1


async def test_a_copy_does_not_count_usage_again(main, session, hooks) -> None:
    def cost() -> float:
        return compute_stats("all", None, list(session.tree)).cost

    cache = session.branch("cache")
    picked = cache.append(st.assistant("paid for", usage={"input": 900, "output": 60, "cost": 0.5}))
    assert cost() == 0.5

    await cherry_pick(main, [picked], hooks=hooks)
    await rebase(cache, "dict", hooks=hooks)

    assert cost() == 0.5
    assert build_tally(session).cost == 0.5
    assert picked.body.message["usage"]["totalTokens"] == 960


async def test_the_usage_of_a_copied_answer_does_not_count_for_the_target_conversation(main, session, hooks) -> None:
    long = session.branch("cache").append(st.assistant("counted", usage={"input": 110_000, "output": 1_800}))

    await cherry_pick(main, [long], hooks=hooks)

    assert count_context_tokens(main.path()) == main.context().tokens() < 100


async def test_entries_that_cannot_be_picked_are_refused(main, hooks, events) -> None:
    with pytest.raises(InvalidOperation, match="cannot copy root"):
        await cherry_pick(main, ["root"], hooks=hooks)
    with pytest.raises(InvalidOperation, match="no messages to copy"):
        await cherry_pick(main, [], hooks=hooks)
    with pytest.raises(NotFound):
        await cherry_pick(main, ["nowhere"], hooks=hooks)
    assert events == []


async def test_a_handler_may_cancel_copies(main, session, hooks) -> None:
    before = session.read_lines()
    hooks.on(BeforeCopy, lambda event, ctx: {"cancel": True})

    picked = await cherry_pick(main, ["cache"], hooks=hooks)
    moved = await rebase(session.branch("cache"), "dict", hooks=hooks)

    assert picked == CopyOutcome(old_leaf=main.leaf, new_leaf=main.leaf, cancelled=True, cancelled_by="<lambda>")
    assert moved.cancelled
    assert session.read_lines() == before


async def test_no_copies_are_written_to_a_branch_that_moved_while_a_handler_ran(main, session, hooks) -> None:
    def move(event, ctx) -> None:
        session.move(None, branch="main")

    hooks.on(BeforeCopy, move)

    with pytest.raises(BranchMoved):
        await cherry_pick(main, ["cache"], hooks=hooks)

    assert main.path() == []


async def test_copies_are_appended_to_a_branch_that_grew_while_a_handler_ran(main, session, hooks) -> None:
    def grow(event, ctx) -> None:
        main.append(st.user("by the way"))

    hooks.on(BeforeCopy, grow)

    await cherry_pick(main, ["cache"], hooks=hooks)

    assert list_texts(main)[-3:] == ["by the way", "cache done", "ok"]


# Rebase


async def test_a_rebase_copies_the_entries_and_keeps_the_originals(main, session, hooks, events) -> None:
    cache = session.branch("cache")
    old, before = cache.leaf, session.read_lines()

    outcome = await rebase(cache, "dict", hooks=hooks)

    assert list_texts(cache) == [
        "question",
        "two ways",
        "try a dict",
        "dict done",
        "ok",
        "try a cache",
        "cache done",
        "ok",
    ]
    assert (outcome.old_leaf, outcome.new_leaf) == (old, cache.leaf)
    assert [read_object(copy.raw)["copiedFrom"] for copy in outcome.entries][-1] == old
    assert session.read_lines()[: len(before)] == before
    assert session.head == main
    assert events[-1] == Copied(kind="rebase", branch="cache", entries=outcome.entries)


async def test_compactions_and_edits_refer_to_the_copies(main, session, hooks) -> None:
    session.switch("cache")
    cache = session.head
    prompt = next(entry for entry in cache.path() if entry.type == "branch_point").id
    first = next(entry for entry in cache.path() if entry.parent == prompt)
    cache.append(st.ContextEdit(target=first.id, replacement={"content": "edited"}))
    cache.append(st.Compaction(summary="SHORT", first_kept=first.id))
    cache.append(st.user("after"))

    await rebase(cache, "dict", hooks=hooks)

    assert list_texts(cache) == ["SHORT", "edited", "cache done", "ok", "after"]
    session.undo()
    assert list_texts(cache) == ["SHORT", "edited", "cache done", "ok", "after"]


async def test_an_invalid_rebase_is_refused_before_hooks_are_asked(main, session, hooks, events) -> None:
    with pytest.raises(InvalidOperation, match="already"):
        await rebase(session.branch("cache"), "main", hooks=hooks)

    assert events == []


async def test_a_branch_that_moved_while_a_handler_ran_does_not_change(main, session, hooks) -> None:
    cache = session.branch("cache")

    async def grow(event, ctx):
        cache.append(st.user("more"))

    hooks.on(BeforeCopy, grow)

    with pytest.raises(BranchMoved):
        await rebase(cache, "dict", hooks=hooks)

    assert list_texts(cache)[-1] == "more"
