import asyncio

import pytest

import sessiontree as st
from sessiontree.config import CompactionSettings
from sessiontree.errors import BranchMoved, InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import BeforeCompact, Compacted, CompactFailed, Navigated, Notice, Signal
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import Delay, ScriptedModel, ScriptedStop
from sessiontree.ops.compact import CompactOutcome, compact, compute_token_budget, uncompact
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Session
from tests.ops.conftest import SMALL, append_messages, get_prompt, get_text
from tests.waiting import wait_until


@pytest.fixture
def ids(session: Session) -> list[str]:
    return append_messages(session, *(get_text(550, f"m{number}x") for number in range(6)))


def list_event_names(events) -> list[str]:
    return [type(event).__name__ for event in events]


async def test_a_compaction_replaces_the_older_part_and_keeps_the_newer(session, hooks, events, ids) -> None:
    model = ScriptedModel(["What happened."], info=SMALL)

    outcome = await compact(session.head, hooks, summary=SummaryRequest(model=model))

    assert outcome.entry is not None
    assert session.head.leaf == outcome.entry.id
    body = outcome.entry.body
    assert isinstance(body, st.Compaction)
    assert (body.summary, body.first_kept, body.from_hook) == ("What happened.", ids[4], None)
    assert body.tokens_before > 2000
    assert body.details == {"readFiles": [], "modifiedFiles": []}
    assert body.usage is not None
    assert body.state is not None
    assert [m["role"] for m in session.context().messages] == ["compactionSummary", "user", "assistant"]
    assert list_event_names(events) == ["BeforeCompact", "Compacted"]
    assert events[1] == Compacted(compaction_entry=outcome.entry, from_hook=False, reason="manual", will_retry=False)


async def test_existing_entries_do_not_change(session, hooks, ids) -> None:
    before = session.read_lines()

    await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel(["s"], info=SMALL)))

    assert session.read_lines()[: len(before)] == before


async def test_the_next_compaction_extends_the_last_one_and_its_files(session, hooks, ids) -> None:
    call = st.assistant([st.tool_call("c", "read", {"path": "a.py"})])
    session.head.extend([call, st.tool_result("c", "read", get_text(900))])
    model = ScriptedModel(["FIRST", "SECOND"])
    settings = CompactionSettings(keep_recent_tokens=100)
    append_messages(session, get_text(120))
    await compact(session.head, hooks, summary=SummaryRequest(model=model), settings=settings)
    append_messages(session, get_text(120))

    outcome = await compact(session.head, hooks, summary=SummaryRequest(model=model), settings=settings)

    assert outcome.entry is not None
    assert outcome.entry.body.summary == "SECOND\n\n<read-files>\na.py\n</read-files>"
    assert "<earlier-summary>\nFIRST\n</earlier-summary>" in get_prompt(model.requests[-1])


async def test_handlers_see_the_planned_compaction(session, hooks, events, ids) -> None:
    signal = Signal()
    model = ScriptedModel(["s"], info=SMALL)

    await compact(
        session.head,
        hooks,
        summary=SummaryRequest(model=model, instructions="tests"),
        reason="overflow",
        will_retry=True,
        signal=signal,
    )

    event = events[0]
    assert isinstance(event, BeforeCompact)
    assert [entry.id for entry in event.preparation.entries] == ids[:4]
    assert event.preparation.turn_prefix == ()
    assert [entry.id for entry in event.path][-6:] == ids
    assert (event.reason, event.will_retry, event.model) == ("overflow", True, "scripted:small")
    assert (event.custom_instructions, event.signal) == ("tests", signal)
    assert event.previous_compactions == ()


async def test_earlier_compactions_are_shown_newest_first(session, hooks, events, ids) -> None:
    model = ScriptedModel(["s"] * 9, info=SMALL)
    made = []
    for _ in range(3):
        made.insert(0, (await compact(session.head, hooks, summary=SummaryRequest(model=model))).entry)
        append_messages(session, get_text(300), get_text(300))

    await compact(session.head, hooks, summary=SummaryRequest(model=model))

    last = [event for event in events if isinstance(event, BeforeCompact)][-1]
    assert list(last.previous_compactions) == made


async def test_a_handler_may_cancel_before_the_model_is_asked(session, hooks, events, ids) -> None:
    before = session.read_lines()
    hooks.on(BeforeCompact, lambda event, ctx: {"cancel": True})

    outcome = await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel([])))

    assert outcome == CompactOutcome(cancelled=True, cancelled_by="<lambda>")
    assert session.read_lines() == before
    assert list_event_names(events) == ["BeforeCompact"]


async def test_a_handler_may_supply_the_compaction(session, hooks, events, ids) -> None:
    supplied = {"summary": "MINE", "first_kept": ids[5], "tokens_before": 7, "details": {"index": [1]}, "usage": {}}
    hooks.on("session_before_compact", lambda event, ctx: {"compaction": supplied})
    model = ScriptedModel([])

    outcome = await compact(session.head, hooks, summary=SummaryRequest(model=model))

    assert outcome.from_hook
    assert outcome.entry is not None
    body = outcome.entry.body
    assert (body.summary, body.first_kept, body.tokens_before, body.from_hook) == ("MINE", ids[5], 7, True)
    assert body.details == {"index": [1]}
    assert model.requests == []
    assert isinstance(events[-1], Compacted)
    assert events[-1].from_hook


async def test_a_supplied_compaction_keeps_the_planned_entries_by_default(session, hooks, ids) -> None:
    hooks.on(BeforeCompact, lambda event, ctx: {"compaction": {"summary": "MINE"}})

    outcome = await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel([], info=SMALL)))

    assert outcome.entry is not None
    assert (outcome.entry.body.first_kept, outcome.entry.body.tokens_before > 0) == (ids[4], True)


async def test_a_supplied_compaction_may_keep_nothing(session, hooks, ids) -> None:
    hooks.on(BeforeCompact, lambda event, ctx: {"compaction": {"summary": "MINE", "first_kept": None}})

    outcome = await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel([])))

    assert outcome.entry is not None
    assert [message["role"] for message in session.context().messages] == ["compactionSummary"]


async def test_the_summary_may_be_the_users_own_text_and_needs_no_model(session, hooks, events, ids) -> None:
    hooks.on(BeforeCompact, lambda event, ctx: {"compaction": {"summary": "a handler's"}})

    outcome = await compact(session.head, hooks, summary="My own words.")

    assert outcome.entry is not None
    body = outcome.entry.body
    assert (body.summary, body.from_hook, outcome.from_hook) == ("My own words.", None, False)
    assert events[0].model is None
    with pytest.raises(InvalidOperation, match="a summary needs a model"):
        await compact(session.head, hooks)


@pytest.mark.parametrize(
    ("supplied", "wrong"),
    [
        ({"summary": " "}, "its summary is empty"),
        ({"summary": "S", "first_kept": "gone"}, "its first kept entry 'gone' is not on the path"),
        ({"summary": "S", "first_kept": "RESULT"}, "a tool result without its call"),
    ],
)
async def test_an_invalid_supplied_compaction_is_reported_and_the_model_is_asked(
    session, hooks, events, ids, supplied, wrong
) -> None:
    call = st.assistant([st.tool_call("c", "read", {"path": "a.py"})])
    result = session.head.extend([call, st.tool_result("c", "read", "x"), st.user(get_text(300))])[1]
    given = {key: result.id if value == "RESULT" else value for key, value in supplied.items()}
    hooks.on(BeforeCompact, lambda event, ctx: {"compaction": given})

    outcome = await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel(["OURS"], info=SMALL)))

    assert outcome.entry is not None
    assert outcome.entry.body.summary.startswith("OURS")
    assert any(isinstance(event, Notice) and wrong in event.text for event in events)


@pytest.mark.parametrize("answer", [ModelError("m", "auth", "no key"), ["half", ScriptedStop("length")]])
async def test_a_failure_changes_nothing_and_is_reported(session, hooks, events, ids, answer) -> None:
    before = session.read_lines()

    with pytest.raises(st.SessionTreeError) as failed:
        await compact(
            session.head, hooks, summary=SummaryRequest(model=ScriptedModel([answer], info=SMALL)), reason="threshold"
        )

    assert session.read_lines() == before
    assert events[-1] == CompactFailed(reason="threshold", error=str(failed.value), aborted=False)


async def test_aborting_changes_nothing_and_is_reported(session, hooks, events, ids) -> None:
    before = session.read_lines()
    signal = Signal()
    model = ScriptedModel([[Delay(30), "s"]], info=SMALL)
    work = asyncio.ensure_future(compact(session.head, hooks, summary=SummaryRequest(model=model), signal=signal))
    await wait_until(lambda: model.requests)

    signal.abort()

    assert await asyncio.wait_for(work, 20) == CompactOutcome(cancelled=True, aborted=True)
    assert session.read_lines() == before
    assert events[-1] == CompactFailed(reason="manual", error="aborted", aborted=True)


async def test_aborting_does_not_wait_for_a_handler_that_hangs(session, hooks, ids) -> None:
    at_work = asyncio.Event()

    async def hang(event, ctx):
        at_work.set()
        await asyncio.sleep(30)

    hooks.on(BeforeCompact, hang)
    signal = Signal()
    work = asyncio.ensure_future(
        compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel([])), signal=signal)
    )
    await at_work.wait()

    signal.abort()

    assert (await asyncio.wait_for(work, 20)).aborted


async def test_nothing_to_compact_is_an_outcome_without_asking_hooks(session, hooks, events) -> None:
    assert await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel([]))) == CompactOutcome()

    append_messages(session, "hi", "hello")
    assert (
        await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel([])), reason="threshold")
        == CompactOutcome()
    )
    assert events == []


async def test_a_user_may_compact_a_short_conversation(session, hooks) -> None:
    ids = append_messages(session, "hi", "hello", "how are you?", "fine")

    outcome = await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel(["Greetings."])))

    assert outcome.entry is not None
    assert outcome.entry.body.first_kept == ids[2]
    again = await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel([])))
    assert again == CompactOutcome()


async def test_a_branch_that_grew_is_compacted_at_its_new_head(session, hooks, ids) -> None:
    def grow(request):
        session.append(st.user("one more"))
        return "s"

    outcome = await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel([grow], info=SMALL)))

    assert outcome.entry is not None
    assert session.head.leaf == outcome.entry.id
    assert session.context().messages[-1]["content"] == "one more"


async def test_a_branch_moved_by_another_writer_does_not_change(session, hooks, events, ids) -> None:
    def move(request):
        session.move(session.tree[ids[1]])
        return "s"

    with pytest.raises(BranchMoved):
        await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel([move, "s"], info=SMALL)))

    assert session.head.leaf == ids[1]
    assert isinstance(events[-1], CompactFailed)


async def test_another_branch_than_the_current_one_can_be_compacted(session, hooks, ids) -> None:
    session.create_branch("side", at=session.tree[ids[0]])

    outcome = await compact(
        session.branch("main"), hooks, summary=SummaryRequest(model=ScriptedModel(["s"] * 2, info=SMALL))
    )

    assert outcome.entry is not None
    assert session.branch("main").leaf == outcome.entry.id
    assert session.head.name == "side"


def test_the_window_is_split_by_the_settings() -> None:
    space = compute_token_budget(
        ScriptedModel(info=SMALL), CompactionSettings(reserve_tokens=96, keep_recent_tokens=50)
    )

    assert (space.limit, space.keep_recent) == (4000, 50)


# Uncompact


async def test_uncompact_is_a_move_that_can_be_undone(session, hooks, events, ids) -> None:
    compaction = (
        await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel(["s"] * 2, info=SMALL)))
    ).entry
    assert compaction is not None
    (later,) = append_messages(session, "later")

    outcome = await uncompact(session.head, hooks)

    assert (outcome.old_leaf, outcome.new_leaf) == (later, ids[5])
    assert len(session.context().messages) == 6
    assert events[-1] == Navigated(new_leaf=ids[5], old_leaf=later)
    session.undo()
    assert session.head.leaf == later


async def test_uncompact_reverts_the_last_compaction(session, hooks, ids) -> None:
    model = ScriptedModel(["s"] * 9, info=SMALL)
    first = (await compact(session.head, hooks, summary=SummaryRequest(model=model))).entry
    assert first is not None
    append_messages(session, get_text(300), get_text(300))
    await compact(session.head, hooks, summary=SummaryRequest(model=model))

    await uncompact(session.head, hooks)

    assert first in session.head.path()
    await uncompact(session.head, hooks)
    assert session.head.leaf == ids[5]
    with pytest.raises(InvalidOperation, match="branch 'main' has no compaction"):
        await uncompact(session.head, hooks)


async def test_a_handler_may_keep_a_compaction(session, hooks, ids) -> None:
    await compact(session.head, hooks, summary=SummaryRequest(model=ScriptedModel(["s"] * 2, info=SMALL)))
    leaf = session.head.leaf
    hooks.on("before_navigate", lambda event, ctx: {"cancel": True})

    outcome = await uncompact(session.head, hooks)

    assert outcome.cancelled
    assert session.head.leaf == leaf


async def test_a_compaction_on_another_branch_is_reverted_there(session, ids) -> None:
    await compact(session.head, Hooks(), summary=SummaryRequest(model=ScriptedModel(["s"] * 2, info=SMALL)))
    session.create_branch("side", at=session.tree[ids[0]])

    await uncompact(session.branch("main"), Hooks())

    assert session.branch("main").leaf == ids[5]
    assert session.head.name == "side"
