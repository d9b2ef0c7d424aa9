import asyncio

import pytest

import sessiontree as st
from sessiontree.core.summary_prompts import BRANCH_PREAMBLE, BRANCH_PROMPT
from sessiontree.errors import BranchMoved, InvalidOperation, NotFound
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import BeforeNavigate, Navigated, Notice, Signal
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import Delay, ScriptedModel, ScriptedStop
from sessiontree.ops.navigate import NavigateOutcome, find_previous_prompt, navigate
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Session
from sessiontree.store.jsonl import JsonlStore
from tests.ops.conftest import SMALL, append_messages, get_prompt, get_text
from tests.waiting import wait_until


@pytest.fixture
def ids(session: Session) -> list[str]:
    """The ids of six messages; the odd ones are from the user."""
    return append_messages(session, "one", "two", "three", "four", "five", "six")


def build_model(*answers) -> ScriptedModel:
    return ScriptedModel(answers or ["What happened."])


# Without a summary


async def test_selecting_a_user_message_moves_before_it_and_returns_its_text(session, hooks, events, ids) -> None:
    outcome = await navigate(session, ids[2], hooks=hooks)

    assert outcome == NavigateOutcome(old_leaf=ids[5], new_leaf=ids[1], editor_text="three")
    assert session.head.leaf == ids[1]
    assert events[-1] == Navigated(new_leaf=ids[1], old_leaf=ids[5])


async def test_selecting_other_entries_moves_there_and_the_first_message_to_root(session, hooks, ids) -> None:
    assert (await navigate(session, ids[3], hooks=hooks)).new_leaf == ids[3]

    outcome = await navigate(session, ids[0], hooks=hooks)

    assert (outcome.new_leaf, outcome.editor_text) == (None, "one")


async def test_selecting_the_head_does_nothing_and_asks_no_handler(session, hooks, events, ids) -> None:
    before = session.read_lines()

    outcome = await navigate(session, "HEAD", hooks=hooks, label="x")

    assert outcome == NavigateOutcome(old_leaf=ids[5], new_leaf=ids[5])
    assert session.read_lines() == before
    assert events == []


async def test_selecting_a_user_message_right_below_the_head_only_returns_its_text(session, hooks, events, ids) -> None:
    session.switch(ids[1])

    outcome = await navigate(session, ids[2], hooks=hooks)

    assert outcome == NavigateOutcome(old_leaf=ids[1], new_leaf=ids[1], editor_text="three")
    assert events == []


async def test_an_unknown_place_is_an_error_before_hooks_are_asked(session, hooks, events, ids) -> None:
    with pytest.raises(NotFound):
        await navigate(session, "nowhere", hooks=hooks)

    assert events == []


async def test_handlers_are_always_asked_with_the_complete_plan(session, hooks, events, ids) -> None:
    signal = Signal()

    summary = SummaryRequest(text="mine", instructions="the API", replace_instructions=True)
    await navigate(session, ids[2], hooks=hooks, summary=summary, label="back", signal=signal)

    event = events[0]
    assert isinstance(event, BeforeNavigate)
    shown = event.preparation
    assert (shown.target, shown.old_leaf, shown.common_ancestor) == (ids[2], ids[5], ids[2])
    assert [entry.id for entry in shown.entries_to_summarize] == ids[3:]
    assert (shown.user_wants_summary, shown.custom_instructions, shown.replace_instructions) == (False, "the API", True)
    assert (shown.label, event.signal) == ("back", signal)


async def test_a_handler_may_cancel_before_the_model_is_asked(session, hooks, events, ids) -> None:
    before = session.read_lines()
    hooks.on("session_before_tree", lambda event, ctx: {"cancel": True})

    outcome = await navigate(session, ids[2], hooks=hooks, summary=SummaryRequest(model=build_model()))

    assert outcome == NavigateOutcome(old_leaf=ids[5], new_leaf=ids[5], cancelled=True, cancelled_by="<lambda>")
    assert session.read_lines() == before
    assert len(events) == 1


# With a summary


async def test_the_summary_of_the_abandoned_entries_is_at_the_new_place(session, hooks, events, ids) -> None:
    makes = build_model()

    outcome = await navigate(session, ids[2], hooks=hooks, summary=SummaryRequest(model=makes))

    entry = outcome.summary_entry
    assert entry is not None
    assert (outcome.new_leaf, session.head.leaf, entry.parent) == (entry.id, entry.id, ids[1])
    assert outcome.editor_text == "three"
    assert isinstance(entry.body, st.BranchSummary)
    assert entry.body.summary == f"{BRANCH_PREAMBLE}\n\nWhat happened."
    assert (entry.body.abandoned_leaf, entry.body.from_hook) == (ids[5], None)
    assert entry.body.details == {"readFiles": [], "modifiedFiles": []}
    assert entry.body.usage is not None
    assert events[-1] == Navigated(new_leaf=entry.id, old_leaf=ids[5], summary_entry=entry)
    prompt = get_prompt(makes.requests[0])
    assert "[Assistant]: four\n\n[User]: five\n\n[Assistant]: six" in prompt
    assert "three" not in prompt
    assert BRANCH_PROMPT in prompt


async def test_a_move_with_a_summary_can_be_undone(session, hooks, ids) -> None:
    await navigate(session, ids[2], hooks=hooks, summary=SummaryRequest(model=build_model()))

    session.undo()

    assert session.head.leaf == ids[5]


async def test_instructions_extend_or_replace_the_default_prompt(session, hooks, ids) -> None:
    makes = build_model("s", "s")
    await navigate(session, ids[3], hooks=hooks, summary=SummaryRequest(model=makes, instructions="the API"))
    session.undo()
    await navigate(
        session,
        ids[3],
        hooks=hooks,
        summary=SummaryRequest(model=makes, instructions="Briefly.", replace_instructions=True),
    )

    added, replaced = (get_prompt(request) for request in makes.requests)
    assert BRANCH_PROMPT in added
    assert added.endswith("the API")
    assert BRANCH_PROMPT not in replaced
    assert replaced.endswith("Briefly.")


async def test_files_that_were_touched_on_the_branch_are_listed(session, hooks, ids) -> None:
    calls = [st.tool_call("1", "read", {"path": "a.py"}), st.tool_call("2", "edit", {"path": "b.py"})]
    session.append(st.assistant(calls))

    outcome = await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=build_model()))

    assert outcome.summary_entry is not None
    body = outcome.summary_entry.body
    assert body.details == {"readFiles": ["a.py"], "modifiedFiles": ["b.py"]}
    assert body.summary.endswith("<read-files>\na.py\n</read-files>\n\n<modified-files>\nb.py\n</modified-files>")


async def test_a_compaction_replaces_the_earlier_entries_of_the_branch(session, hooks, ids) -> None:
    session.append(st.Compaction(summary="COMPACTED", first_kept=ids[5]))
    session.append(st.user("seven"))
    makes = build_model()

    await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=makes))

    prompt = get_prompt(makes.requests[0])
    assert "COMPACTED" in prompt
    assert "[Assistant]: six\n\n[User]: seven" in prompt
    assert "four" not in prompt


async def test_context_edits_apply_to_the_summary(session, hooks, ids) -> None:
    session.append(st.ContextEdit(target=ids[4], replacement={"content": "redacted"}))
    makes = build_model()

    await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=makes))

    assert "redacted" in get_prompt(makes.requests[0])
    assert "five" not in get_prompt(makes.requests[0])


async def test_only_the_newest_part_of_a_long_branch_is_shown_to_a_small_model(session, hooks, ids) -> None:
    append_messages(session, *(get_text(900, f"m{number}x") for number in range(6)))
    makes = ScriptedModel(["s"], info=SMALL)

    await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=makes))

    prompt = get_prompt(makes.requests[0])
    assert "m5x" in prompt
    assert "m0x" not in prompt
    assert len(prompt) < 4 * (4096 - 1024)


async def test_the_summary_may_be_the_users_own_text(session, hooks, events, ids) -> None:
    hooks.on(BeforeNavigate, lambda event, ctx: {"summary": {"summary": "a handler's"}})

    outcome = await navigate(session, ids[2], hooks=hooks, summary="I tried that.")

    assert outcome.summary_entry is not None
    body = outcome.summary_entry.body
    assert (body.summary, body.from_hook, body.usage) == ("I tried that.", None, None)
    assert events[0].preparation.user_wants_summary is False


async def test_a_handler_may_supply_the_summary_if_one_is_wanted(session, hooks, events, ids) -> None:
    supplied = {"summary": "MINE", "details": {"custom": True}, "usage": {"input": 1}}
    hooks.on(BeforeNavigate, lambda event, ctx: {"summary": supplied})
    makes = build_model()

    unwanted = await navigate(session, ids[4], hooks=hooks)
    wanted = await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=makes))

    assert unwanted.summary_entry is None
    assert wanted.summary_entry is not None
    body = wanted.summary_entry.body
    assert (body.summary, body.details, body.from_hook) == ("MINE", {"custom": True}, True)
    assert makes.requests == []
    assert events[-1].from_hook


async def test_an_empty_summary_of_a_handler_is_reported_and_the_model_is_asked(session, hooks, events, ids) -> None:
    hooks.on(BeforeNavigate, lambda event, ctx: {"summary": {"summary": " "}})

    outcome = await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=build_model()))

    assert outcome.summary_entry is not None
    assert outcome.summary_entry.body.summary.endswith("What happened.")
    assert any(isinstance(event, Notice) for event in events)


async def test_an_abort_after_the_move_does_not_wait_for_handlers(session, hooks, ids) -> None:
    signal = Signal()

    async def hang(event, ctx):
        signal.abort()
        await asyncio.Event().wait()

    hooks.on(Navigated, hang)

    outcome = await asyncio.wait_for(navigate(session, ids[1], hooks=hooks, signal=signal), 20)

    assert not outcome.cancelled
    assert session.head.leaf == outcome.new_leaf == ids[1]


async def test_a_handler_may_change_instructions_and_label(session, hooks, ids) -> None:
    hooks.on(
        BeforeNavigate,
        lambda event, ctx: {"custom_instructions": "In a word.", "replace_instructions": True, "label": "l"},
    )
    makes = build_model()

    outcome = await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=makes))

    assert get_prompt(makes.requests[0]).endswith("In a word.")
    assert outcome.summary_entry is not None
    assert session.tree.label(outcome.summary_entry.id) == "l"


async def test_without_a_model_a_summary_fails_at_once(session, hooks, events, ids) -> None:
    with pytest.raises(InvalidOperation, match="a summary needs a model"):
        await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest())

    assert events == []


async def test_without_abandoned_entries_there_is_no_summary(session, hooks, ids) -> None:
    session.switch(ids[1])
    makes = build_model()

    outcome = await navigate(session, ids[3], hooks=hooks, summary=SummaryRequest(model=makes))

    assert (outcome.new_leaf, outcome.summary_entry) == (ids[3], None)
    assert makes.requests == []


async def test_without_abandoned_messages_there_is_no_summary(session, hooks, ids) -> None:
    session.append(st.ThinkingLevelChange("high"))

    outcome = await navigate(session, ids[5], hooks=hooks, summary="nothing")

    assert (outcome.new_leaf, outcome.summary_entry) == (ids[5], None)


# Labels


async def test_the_label_is_on_the_summary_or_else_on_the_target(session, hooks, ids) -> None:
    first = await navigate(session, ids[3], hooks=hooks, summary="left", label=" tried ")
    assert first.summary_entry is not None
    assert session.tree.label(first.summary_entry.id) == "tried"
    assert session.head.leaf == first.summary_entry.id

    await navigate(session, ids[0], hooks=hooks, label="start")
    assert session.tree.label(ids[0]) == "start"
    assert session.head.leaf is None


async def test_root_cannot_have_a_label(session, hooks, ids) -> None:
    before = session.read_lines()

    with pytest.raises(InvalidOperation, match="cannot label root"):
        await navigate(session, "root", hooks=hooks, label="x")

    assert session.read_lines() == before


# Failures


@pytest.mark.parametrize("answer", [ModelError("m", "auth", "no key"), ["half", ScriptedStop("length")]])
async def test_a_failure_does_not_move_the_head(session, hooks, events, ids, answer) -> None:
    before = session.read_lines()

    with pytest.raises(st.SessionTreeError):
        await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=build_model(answer)), label="x")

    assert session.read_lines() == before
    assert len(events) == 1


async def test_aborting_does_not_move_the_head(session, hooks, ids) -> None:
    before = session.read_lines()
    signal = Signal()
    model = build_model([Delay(30), "s"])
    work = asyncio.ensure_future(
        navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=model), signal=signal)
    )
    await wait_until(lambda: model.requests)

    signal.abort()

    outcome = await asyncio.wait_for(work, 20)
    assert (outcome.cancelled, outcome.aborted, outcome.new_leaf) == (True, True, ids[5])
    assert session.read_lines() == before


async def test_a_branch_extended_by_another_writer_does_not_change(session, hooks, ids) -> None:
    def grow(request):
        session.append(st.user("seven"))
        return "s"

    with pytest.raises(BranchMoved):
        await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=build_model(grow)))

    assert session.context().messages[-1]["content"] == "seven"


async def test_navigation_moves_the_branch_that_was_current_at_its_start(session, hooks, ids) -> None:
    def switch(request):
        session.create_branch("side")
        return "s"

    outcome = await navigate(session, ids[1], hooks=hooks, summary=SummaryRequest(model=build_model(switch)))

    assert session.branch("main").leaf == outcome.new_leaf
    assert session.head.name == "side"


def test_the_move_and_its_summary_are_one_line(tmp_path) -> None:
    with st.create(file=tmp_path / "s.jsonl") as session:
        ids = append_messages(session, "one", "two", "three", "four")
        before = len(session.read_lines())
        asyncio.run(navigate(session, ids[1], hooks=Hooks(), summary="left", label="x"))
        lines = session.read_lines()

    for end in range(before, len(lines) + 1):
        cut = tmp_path / f"{end}.jsonl"
        cut.write_bytes(b"".join(line + b"\n" for line in lines[:end]))
        leaf = Session(JsonlStore(str(cut))).head.leaf
        assert leaf == (ids[3] if end == before else session.head.leaf)


# Pop


def test_the_previous_prompt_is_the_last_message_of_the_user(session, ids) -> None:
    assert find_previous_prompt(session.head).id == ids[4]

    session.switch("root")
    with pytest.raises(InvalidOperation, match="no user message to go back to"):
        find_previous_prompt(session.head)


async def test_another_branch_than_the_current_one_is_moved(session, ids) -> None:
    side = session.create_branch("side", current=False)
    before = session.heads.leaf

    outcome = await navigate(session, session.tree[ids[1]], hooks=Hooks(), branch=side)

    assert side.leaf == outcome.new_leaf == ids[1]
    assert (session.heads.current, session.heads.leaf) == ("main", before)
