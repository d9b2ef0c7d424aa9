"""Operations with failing handlers and failing stores: each one completes or changes nothing."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import sessiontree as st
from sessiontree.errors import StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import EVENTS, Notice
from sessiontree.model.scripted import ScriptedModel
from sessiontree.ops.compact import compact, uncompact
from sessiontree.ops.fork import fork_session
from sessiontree.ops.merge import cherry_pick, merge, promote, rebase
from sessiontree.ops.navigate import navigate
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore

Operation = Callable[[Session, Hooks], Awaitable[Any]]

OPERATIONS: dict[str, Operation] = {
    "compact": lambda session, hooks: compact(
        session.head, hooks, summary=SummaryRequest(model=ScriptedModel(["S"] * 3))
    ),
    "uncompact": lambda session, hooks: uncompact(session.branch("short"), hooks),
    "navigate": lambda session, hooks: navigate(session, "start", hooks=hooks, label="here"),
    "navigate_summary": lambda session, hooks: navigate(
        session, "start", hooks=hooks, summary=SummaryRequest(model=ScriptedModel(["S"])), label="here"
    ),
    "fork": lambda session, hooks: fork_session(session, "start", hooks=hooks),
    "merge": lambda session, hooks: merge(
        session.branch("a"), session.head, hooks=hooks, summary=SummaryRequest(model=ScriptedModel(["S"]))
    ),
    "promote": lambda session, hooks: promote(
        session.branch("a"), session.branch("base"), hooks=hooks, summary=SummaryRequest(model=ScriptedModel(["S"] * 3))
    ),
    "cherry_pick": lambda session, hooks: cherry_pick(session.head, ["a"], hooks=hooks),
    "rebase": lambda session, hooks: rebase(session.branch("a"), "b", hooks=hooks),
}


class FailingStore(MemoryStore):
    """A store that fails after a number of batches."""

    left = 1_000

    def append(self, *arguments: Any, **options: Any) -> Any:
        if self.left == 0:
            raise StoreError("memory", "no space left")
        self.left -= 1
        return super().append(*arguments, **options)


def build_session() -> tuple[Session, FailingStore]:
    """Build a session with the same ids and times each time, with entries for every operation."""
    store, ids, clock = FailingStore(), itertools.count(1), itertools.count(1_700_000_000_000)
    session = Session.create(store, id="s", now=lambda: next(clock), new_id=lambda: f"{next(ids):016x}")
    start = session.extend([st.user("question"), st.assistant("two ways")])[-1]
    session.label(start, "start")
    session.create_branch("base", at="start")
    for name in ("a", "b"):
        session.create_branch(name, at="base").extend([st.user(f"try {name}"), st.assistant(f"{name} is done")])
    short = session.create_branch("short", at="start")
    short.extend([st.user("long"), st.Compaction(summary="short"), st.user("on")])
    session.switch("main")
    session.head.extend([st.user("go on"), st.assistant("gladly"), st.user("and on"), st.assistant("sure")])
    return session, store


async def raise_error(event: Any, ctx: Any) -> None:
    raise ValueError("broken")


def raise_error_in_thread(event: Any, ctx: Any) -> None:
    raise KeyError("broken")


async def hang(event: Any, ctx: Any) -> None:
    await asyncio.sleep(30)


def return_junk(event: Any, ctx: Any) -> Any:
    return {"summary": 5, "compaction": [], "cancel": "perhaps"}


def return_nonsense(event: Any, ctx: Any) -> Any:
    return object()


FAULTS = [raise_error, raise_error_in_thread, hang, return_junk, return_nonsense]


async def run_undisturbed(operation: Operation) -> tuple[list[bytes], list[bytes]]:
    """Return the session before and after an undisturbed operation."""
    session, _ = build_session()
    before = session.read_lines()
    await operation(session, Hooks())
    return before, session.read_lines()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_handler_that_fails_at_any_event_is_reported_and_the_operation_completes(operation, fault) -> None:
    work = OPERATIONS[operation]
    _, after = await run_undisturbed(work)
    asked = []
    for event in EVENTS:
        session, _ = build_session()
        hooks = Hooks()
        seen = []
        hooks.listen(seen.append)
        hooks.on(event, fault, deadline=0.01 if fault is hang else 30)

        await work(session, hooks)

        assert session.read_lines() == after, event
        happened = any(type(one) is EVENTS[event] and not isinstance(one, Notice) for one in seen)
        answers = fault in (return_junk, return_nonsense)
        reported = [one for one in seen if isinstance(one, Notice)]
        assert bool(reported) == (happened and (not answers or EVENTS[event].answer is not None)), event
        asked += [event] * happened
    assert len(asked) == 2


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_handler_that_cancels_prevents_only_its_own_operation(operation) -> None:
    work = OPERATIONS[operation]
    before, after = await run_undisturbed(work)
    undone = []
    for event in EVENTS:
        session, _ = build_session()
        hooks = Hooks()
        hooks.on(event, lambda event, ctx: {"cancel": True})

        outcome = await work(session, hooks)

        assert session.read_lines() == (before if outcome.cancelled else after), event
        undone += [event] * outcome.cancelled
    assert len(undone) == 1
    assert undone[0].startswith("before_")


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_failing_listener_does_not_affect_the_run(operation) -> None:
    session, _ = build_session()
    hooks = Hooks()

    def broken(event: Any) -> None:
        raise ValueError("no screen")

    hooks.listen(broken)
    await OPERATIONS[operation](session, hooks)

    assert session.read_lines() == (await run_undisturbed(OPERATIONS[operation]))[1]


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "fork"])
async def test_every_operation_is_one_batch_so_a_store_that_fails_undoes_it(operation) -> None:
    work = OPERATIONS[operation]
    session, store = build_session()
    before, heads = session.read_lines(), (dict(session.heads.heads), session.heads.current)
    store.left = 0

    with pytest.raises(StoreError):
        await work(session, Hooks())

    assert session.read_lines() == before
    assert (dict(session.heads.heads), session.heads.current) == heads

    session, store = build_session()
    store.left = 1
    await work(session, Hooks())
    assert session.read_lines() == (await run_undisturbed(work))[1]
