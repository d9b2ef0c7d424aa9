"""The event bus: handlers, listeners, combined answers, and failing handlers."""

import asyncio
import contextvars
import functools
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiontree.core.message_views import Text
from sessiontree.core.messages import ToolCall, user
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.hooks.bus import HookContext, Hooks, call, combine_answers, find_event_type, run_in_thread
from sessiontree.hooks.events import (
    EVENT_ALIASES,
    EVENT_NAMES,
    EVENTS,
    Answer,
    BeforeFork,
    BeforeMerge,
    BeforeMessage,
    BeforeNavigate,
    BeforeRequest,
    BeforeToolCall,
    Forked,
    Input,
    NavigateAnswer,
    Navigated,
    Notice,
    RunEnd,
    RunStart,
    Signal,
    Summary,
    Switched,
    ToolCallAnswer,
    ToolReturned,
    TreePreparation,
    TurnEnd,
)
from sessiontree.hooks.ui_protocol import NoUi
from sessiontree.library.catalog import memory

PREPARATION = TreePreparation(
    target="t", old_leaf="o", common_ancestor=None, entries_to_summarize=(), user_wants_summary=True
)
WHO = contextvars.ContextVar("WHO", default="nobody")
CALL = BeforeToolCall(call=ToolCall("c", "bash", {"command": "ls"}))


def build_navigate_event() -> BeforeNavigate:
    return BeforeNavigate(preparation=PREPARATION, signal=Signal())


@pytest.fixture
def notices(hooks: Hooks) -> list[str]:
    seen: list[str] = []
    hooks.listen(lambda event: seen.append(event.text) if isinstance(event, Notice) else None)
    return seen


# Emitting


async def test_handlers_get_the_event_and_the_context_in_the_order_they_were_registered(hooks: Hooks) -> None:
    hooks.context = HookContext(session="S")
    seen = []
    hooks.on("run_start", lambda event, ctx: seen.append((1, event, ctx.session)))
    hooks.on(RunStart, lambda event, ctx: seen.append((2, event, ctx.session)))

    await hooks.emit(RunStart())

    assert seen == [(1, RunStart(), "S"), (2, RunStart(), "S")]


async def test_a_handler_can_be_removed_only_once(hooks: Hooks) -> None:
    seen = []

    def handler(event, ctx):
        seen.append(event)

    off = hooks.on(RunStart, handler)
    hooks.on(RunStart, handler)

    off()
    off()
    await hooks.emit(RunStart())

    assert len(seen) == 1


async def test_listeners_see_every_event_and_can_be_removed(hooks: Hooks) -> None:
    seen = []
    off = hooks.listen(seen.append)

    await hooks.emit(RunStart())
    await hooks.ask(Input(text="hi"))
    hooks.notify_listeners(RunEnd(aborted=False))
    off()
    hooks.notify_listeners(RunStart())

    assert seen == [RunStart(), Input(text="hi"), RunEnd(aborted=False)]


async def test_a_failing_listener_is_reported_to_the_others(hooks: Hooks, notices) -> None:
    def broken(event):
        raise ValueError("no screen")

    hooks.listen(broken)

    _, answer = await hooks.ask(Input(text="hi"))

    assert answer.cancel is False
    assert notices == ["broken failed with ValueError: no screen"]


async def test_answers_to_emitted_events_are_ignored(hooks: Hooks, notices) -> None:
    hooks.on(RunStart, lambda event, ctx: {"nonsense": 1})

    await hooks.emit(RunStart())

    assert notices == []


async def test_tools_get_session_events_after_all_handlers(hooks: Hooks) -> None:
    seen = []
    off = hooks.on_session(lambda event, ctx: seen.append(("tool", type(event))), source="todo")
    for kind in (Navigated, Forked, Switched, RunStart):
        hooks.on(kind, lambda event, ctx: seen.append(("handler", type(event))))

    await hooks.emit(Navigated(new_leaf="a", old_leaf="b"))
    await hooks.emit(Forked(entry="a"))
    await hooks.emit(Switched(reason="new"))
    await hooks.emit(RunStart())
    off()
    await hooks.emit(Switched(reason="new"))

    assert [who for who, _ in seen] == ["handler", "tool"] * 3 + ["handler"] * 2


# Asking


async def test_without_handlers_the_answer_is_empty(hooks: Hooks) -> None:
    event, answer = await hooks.ask(build_navigate_event())

    assert answer == NavigateAnswer()
    assert event.preparation == PREPARATION


@pytest.mark.parametrize("nothing", [None, {}, NavigateAnswer(), {"cancel": False}])
async def test_empty_answers_are_inert(hooks: Hooks, notices, nothing) -> None:
    hooks.on(BeforeNavigate, lambda event, ctx: {"label": "first"})
    hooks.on(BeforeNavigate, lambda event, ctx: nothing)

    _, answer = await hooks.ask(build_navigate_event())

    assert answer == NavigateAnswer(label="first")
    assert notices == []


async def test_answers_are_merged_field_by_field_and_the_last_value_wins(hooks: Hooks) -> None:
    hooks.on(BeforeNavigate, lambda event, ctx: {"label": "one", "custom_instructions": "briefly"})
    hooks.on(BeforeNavigate, lambda event, ctx: NavigateAnswer(label="two", summary=Summary(summary="S")))

    event, answer = await hooks.ask(build_navigate_event())

    assert answer == NavigateAnswer(label="two", custom_instructions="briefly", summary=Summary(summary="S"))
    assert (event.preparation.label, event.preparation.custom_instructions) == ("two", "briefly")


async def test_an_answer_may_be_a_struct_and_details_may_be_anything(hooks: Hooks, notices) -> None:
    details = object()
    given = NavigateAnswer(summary=Summary(summary="S", details=details), label="l")
    hooks.on(BeforeNavigate, lambda event, ctx: given)

    _, answer = await hooks.ask(build_navigate_event())

    assert answer == given
    assert notices == []


async def test_the_first_cancelling_handler_ends_the_event(hooks: Hooks) -> None:
    asked = []
    hooks.on(BeforeNavigate, lambda event, ctx: {"label": "one"})
    hooks.on(BeforeNavigate, lambda event, ctx: {"cancel": True})
    hooks.on(BeforeNavigate, lambda event, ctx: asked.append(1))

    _, answer = await hooks.ask(build_navigate_event())

    assert answer == NavigateAnswer(cancel=True, cancelled_by="<lambda>")
    assert asked == []


async def test_each_handler_sees_the_changes_of_earlier_handlers(hooks: Hooks) -> None:
    seen = []

    def label(event, ctx):
        seen.append(event.preparation.label)
        return {"label": "one", "summary": {"summary": "S"}}

    def arguments(event, ctx):
        seen.append(event.call.arguments["command"])
        return {"arguments": {"command": "pwd"}}

    def result(event, ctx):
        seen.append(event.content)
        return {"content": "other", "is_error": True}

    def instructions(event, ctx):
        seen.append(event.custom_instructions)
        return {"custom_instructions": "briefly", "summary": {"summary": "S"}}

    merge = BeforeMerge(
        kind="merge",
        branch="main",
        sources=(),
        entries=(),
        user_wants_summary=True,
        custom_instructions=None,
        signal=Signal(),
    )
    for kind, handler in ((BeforeNavigate, label), (BeforeToolCall, arguments), (BeforeMerge, instructions)):
        hooks.on(kind, handler)
        hooks.on(kind, handler)
    hooks.on(ToolReturned, result)

    await hooks.ask(build_navigate_event())
    event, _ = await hooks.ask(CALL)
    changed, _ = await hooks.ask(ToolReturned(call=CALL.call, content=[], is_error=False))
    await hooks.ask(merge)

    assert seen == [None, "one", "ls", "pwd", [], None, "briefly"]
    assert event.call == ToolCall("c", "bash", {"command": "pwd"})
    assert (changed.content, changed.is_error) == ([{"type": "text", "text": "other"}], True)


async def test_blocking_a_call_does_not_change_its_arguments(hooks: Hooks) -> None:
    hooks.on(BeforeToolCall, lambda event, ctx: {"reason": "just saying"})

    event, answer = await hooks.ask(CALL)

    assert event.call == CALL.call
    assert answer == ToolCallAnswer(reason="just saying")


async def test_handlers_modify_a_copy_of_entries(hooks: Hooks) -> None:
    session, seen = memory(), []
    entry = session.append(user("hi"))

    def change(event, _: object) -> None:
        (shown,) = event.preparation.entries_to_summarize if isinstance(event, BeforeNavigate) else event.tool_results
        shown.body.message["content"] += "!"
        seen.append((shown.id, shown.body.message["content"]))

    hooks.on(BeforeNavigate, change)
    hooks.on(TurnEnd, change)

    assert entry.body.message["content"] == "hi"
    preparation = msgspec.structs.replace(PREPARATION, entries_to_summarize=(entry,))
    await hooks.ask(BeforeNavigate(preparation=preparation, signal=Signal()))
    await hooks.emit(TurnEnd(number=1, message=None, tool_results=(entry,)))

    assert seen == [(entry.id, "hi!")] * 2
    assert session.head.context().messages[0]["content"] == "hi"


async def test_handlers_modify_a_copy_of_the_event(hooks: Hooks) -> None:
    said = {"role": "user", "content": [{"type": "text", "text": "hi"}, 1, None]}
    request = BeforeRequest(messages=[{**said, "content": [*said["content"]]}], system="")

    def change(event: BeforeRequest, _: object) -> None:
        event.messages[0]["content"][0]["text"] = "something else"
        event.messages[0]["content"].pop()
        event.messages.append({"role": "user"})

    hooks.on(BeforeRequest, change)

    event, _ = await hooks.ask(request)

    assert event.messages == request.messages == [said]
    assert said["content"] == [{"type": "text", "text": "hi"}, 1, None]


answers = st.lists(
    st.builds(
        NavigateAnswer, cancel=st.booleans(), label=st.sampled_from("ab"), custom_instructions=st.sampled_from("xy")
    )
    | st.builds(NavigateAnswer, label=st.sampled_from("ab"))
    | st.just(NavigateAnswer()),
    max_size=5,
)


@given(answers, answers)
def test_combining_step_by_step_equals_combining_at_once(first, second) -> None:
    at_once = combine_answers(NavigateAnswer, [*first, *second])

    stepwise = combine_answers(NavigateAnswer, [combine_answers(NavigateAnswer, first), *second])

    assert at_once == stepwise
    assert at_once.cancel == any(answer.cancel for answer in [*first, *second])


# Failures


@pytest.mark.parametrize(
    "junk",
    [
        5,
        "cancel",
        True,
        b"x",
        {1, 2},
        [("cancel", True)],
        object(),
        float("nan"),
        print,
        {"cancel": "yes"},
        {"cancle": True},
        {1: 2},
        {"label": None},
        {"summary": "text"},
        {"summary": {"summary": "S", "detials": 1}},
        Summary(summary="S"),
        ToolCallAnswer(reason="x"),
        NavigateAnswer(label=5),
        NavigateAnswer(summary=Summary(summary=5)),
        NavigateAnswer(summary="text"),
    ],
    ids=lambda junk: type(junk).__name__,
)
async def test_an_invalid_answer_of_a_handler_is_reported_and_ignored(hooks: Hooks, notices, junk) -> None:
    def odd(event, ctx):
        return junk

    hooks.on(BeforeNavigate, odd)
    hooks.on(BeforeNavigate, lambda event, ctx: {"label": "good"})

    _, answer = await hooks.ask(build_navigate_event())

    assert answer == NavigateAnswer(label="good")
    (notice,) = notices
    assert notice.startswith("odd returned an invalid NavigateAnswer: ")
    assert notice.endswith(" (at before_navigate)")


async def raise_error(event, ctx):
    raise ValueError("broken")


def raise_error_in_thread(event, ctx):
    raise KeyError("broken")


async def exit_program(event, ctx):
    raise SystemExit(3)


def exit_program_in_thread(event, ctx):
    raise SystemExit(3)


def raise_stop_iteration(event, ctx):
    raise StopIteration


async def cancel_itself(event, ctx):
    raise asyncio.CancelledError


def raise_timeout(event, ctx):
    raise TimeoutError("a timeout inside")


async def test_an_answer_may_hold_messages_and_blocks(hooks: Hooks, notices) -> None:
    hooks.on("tool_result", lambda *_: {"content": [Text("hidden"), {"type": "text", "text": "!"}]})
    hooks.on("before_message", lambda *_: {"message": user("hello")})

    result, _ = await hooks.ask(ToolReturned(call=ToolCall("c", "f", {}), content=[], is_error=False))
    message, _ = await hooks.ask(BeforeMessage(message={"role": "user", "content": "hi"}))

    assert result.content == [{"type": "text", "text": "hidden"}, {"type": "text", "text": "!"}]
    assert message.message == user("hello").message
    assert notices == []


async def test_a_failure_that_no_listener_gets_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()
    hooks.on("before_navigate", lambda *_: {"cancel": "yes"}, source="mine")

    await hooks.ask(build_navigate_event())

    (line,) = caplog.messages
    assert line.startswith("mine returned an invalid ")


@pytest.mark.parametrize(
    ("handler", "what"),
    [
        (raise_error, "failed with ValueError: broken"),
        (raise_error_in_thread, "failed with KeyError: 'broken'"),
        (exit_program, "failed with RuntimeError: it called sys.exit"),
        (exit_program_in_thread, "failed with RuntimeError: it called sys.exit"),
        (raise_stop_iteration, "failed with RuntimeError: it raised StopIteration"),
        (cancel_itself, "cancelled itself"),
        (raise_timeout, "failed with TimeoutError: a timeout inside"),
    ],
)
async def test_a_handler_that_raises_is_reported_and_the_others_run(hooks: Hooks, notices, handler, what) -> None:
    seen = []
    hooks.on(BeforeFork, handler)
    hooks.on(BeforeFork, lambda event, ctx: seen.append(1))

    _, answer = await hooks.ask(BeforeFork(entry=None, position="at"))

    assert (answer, seen) == (Answer(), [1])
    assert notices == [f"{handler.__name__} {what} (at before_fork)"]


async def hang_for_long(event, ctx):
    await asyncio.sleep(30)


@pytest.mark.parametrize("ignores_cancellation", [False, True])
async def test_a_handler_that_exceeds_its_deadline_is_reported_and_abandoned(
    hooks: Hooks, notices, ignores_cancellation
) -> None:
    release, ended = asyncio.Event(), asyncio.Event()

    async def hang(event, ctx):
        try:
            await release.wait()
        except asyncio.CancelledError:
            if ignores_cancellation:
                await release.wait()
            raise ValueError("too late") from None
        finally:
            ended.set()

    hooks.on(RunStart, hang, deadline=0.05, source="slow.py")

    await asyncio.wait_for(hooks.emit(RunStart()), 30)

    assert notices == ["slow.py took longer than 0.05 s (at run_start)"]
    release.set()
    await asyncio.wait_for(ended.wait(), 30)


async def test_a_thread_that_hangs_is_abandoned(hooks: Hooks, notices) -> None:
    release, ended = threading.Event(), threading.Event()

    def hang(event, ctx):
        release.wait(30)
        ended.set()

    hooks.on(RunStart, hang, deadline=0.05)

    await hooks.emit(RunStart())

    assert len(notices) == 1
    assert not ended.is_set()
    release.set()
    assert await asyncio.to_thread(ended.wait, 30)


async def test_cancelling_the_operation_cancels_the_handler(hooks: Hooks, notices) -> None:
    started, ended = asyncio.Event(), []

    async def handler(event, ctx):
        started.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(1)

    hooks.on(RunStart, handler)
    task = asyncio.ensure_future(hooks.emit(RunStart()))
    await started.wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)

    assert ended == [1]
    assert notices == []


@pytest.mark.parametrize("junk", [raise_error, hang_for_long, lambda event, ctx: "junk"])
async def test_a_failing_handler_blocks_the_tool_call(hooks: Hooks, junk) -> None:
    hooks.on(BeforeToolCall, junk, source="gate.py", deadline=0.05)

    _, answer = await hooks.ask(CALL)

    assert answer == ToolCallAnswer(
        cancel=True, cancelled_by="gate.py", reason="gate.py failed, and it must approve this call"
    )


async def test_sync_handlers_run_in_a_thread_and_do_not_block_the_loop(hooks: Hooks) -> None:
    threads = []
    hooks.on(RunStart, lambda event, ctx: threads.append(threading.current_thread()))

    await hooks.emit(RunStart())

    assert threads[0] is not threading.main_thread()


async def test_a_sync_function_may_return_an_awaitable(hooks: Hooks) -> None:
    async def later():
        return {"label": "later"}

    hooks.on(BeforeNavigate, lambda event, ctx: later())

    assert (await hooks.ask(build_navigate_event()))[1] == NavigateAnswer(label="later")


class SlowUi(NoUi):
    async def confirm(self, title, text="", *, default=False):
        await asyncio.sleep(1.5)
        return True


async def test_the_time_of_the_user_does_not_count_for_the_deadline(notices, hooks: Hooks) -> None:
    hooks.context = HookContext(ui=SlowUi())

    async def ask(event, ctx):
        ctx.ui.notify("about to ask")
        assert ctx.ui.has_person is False
        return {"label": "yes"} if await ctx.ui.confirm("Really?") else None

    hooks.on(BeforeNavigate, ask, deadline=1)

    assert (await hooks.ask(build_navigate_event()))[1] == NavigateAnswer(label="yes")
    assert notices == []
    assert hooks.context.ui.notices == [("info", "about to ask")]


async def test_the_clock_continues_after_the_answer_of_the_user(notices, hooks: Hooks) -> None:
    hooks.context = HookContext(ui=NoUi())

    async def ask(event, ctx):
        for question in (ctx.ui.select("?", []), ctx.ui.input("?"), ctx.ui.editor("?"), ctx.ui.custom(None)):
            assert await question is None
        await asyncio.sleep(30)

    hooks.on(BeforeNavigate, ask, deadline=0.05)

    await hooks.ask(build_navigate_event())

    assert notices == ["ask took longer than 0.05 s (at before_navigate)"]


# Names


def test_every_event_has_a_name_and_every_alias_leads_to_one() -> None:
    assert {EVENT_NAMES[kind] for kind in EVENTS.values()} == set(EVENTS)
    for alias, name in EVENT_ALIASES.items():
        assert find_event_type(alias) is EVENTS[name]
        assert alias not in EVENTS


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("session_before_tree", "before_navigate"),
        ("session_tree", "navigated"),
        ("session_before_branch", "before_fork"),
        ("session_branch", "forked"),
        ("session_before_fork", "before_fork"),
        ("session_fork", "forked"),
        ("session_before_compact", "before_compact"),
        ("session.compacting", "before_compact"),
        ("session_compact", "compacted"),
        ("session_before_switch", "before_switch"),
        ("session_switch", "switched"),
    ],
)
async def test_aliases_of_other_programs_mean_the_same_events(hooks: Hooks, alias: str, name: str) -> None:
    assert find_event_type(alias) is find_event_type(name)


def test_an_unknown_event_is_an_error_that_lists_the_events(hooks: Hooks) -> None:
    with pytest.raises(NotFound, match=r"event 'nonsense' not found; .*before_navigate"):
        hooks.on("nonsense", lambda event, ctx: None)


# Signals


async def test_a_signal_wakes_waiters_from_any_thread() -> None:
    signal = Signal()
    waiting = asyncio.ensure_future(signal.wait())
    await asyncio.sleep(0)
    assert not signal.aborted

    threading.Thread(target=signal.abort).start()

    await asyncio.wait_for(waiting, 20)
    await asyncio.wait_for(signal.wait(), 20)
    assert signal.aborted


async def test_derived_hooks_share_handlers_but_not_context_tools_and_listeners(hooks: Hooks) -> None:
    other = hooks.derive(HookContext(session="other"))
    seen, shown = [], []
    hooks.on(Navigated, lambda event, ctx: seen.append(ctx.session))
    hooks.on_session(lambda event, ctx: seen.append("tool"))
    hooks.listen(shown.append)

    await other.emit(Navigated(new_leaf="a", old_leaf="b"))

    assert (seen, shown) == (["other"], [])


# Calling functions of users and extensions


async def test_a_function_in_a_thread_sees_the_context_variables_of_its_caller() -> None:
    WHO.set("ada")

    def function(function: str, *, named: int) -> tuple[object, ...]:
        return function, named, WHO.get(), threading.current_thread() is threading.main_thread()

    assert await call(function, function="a", named=1) == ("a", 1, "ada", False)


async def test_an_async_function_behind_a_plain_one_is_awaited_in_the_loop() -> None:
    async def where(city: str) -> tuple[str, bool]:
        return city, threading.current_thread() is threading.main_thread()

    @functools.wraps(where)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return where(*arguments, **named)

    assert await call(where, "Rome") == await call(wrapped, city="Rome") == ("Rome", True)


async def test_exceptions_of_a_function_are_raised() -> None:
    nothing: Iterator[int] = iter(())

    with pytest.raises(RuntimeError, match="it raised StopIteration"):
        await asyncio.wait_for(call(next, nothing), 20)
    with pytest.raises(SystemExit):
        await call(sys.exit, 2)


async def test_a_hanging_thread_is_abandoned_and_blocks_no_other_thread() -> None:
    let_go = threading.Event()
    hanging = [run_in_thread(let_go.wait, 30) for _ in range(50)]

    assert await asyncio.wait_for(call(abs, -1), 20) == 1
    assert not any(future.done() for future in hanging)
    for future in hanging:
        future.cancel()
    let_go.set()


def test_a_hanging_thread_does_not_block_the_exit_of_the_program() -> None:
    code = """
import asyncio, threading
from sessiontree.hooks.bus import run_in_thread

async def main():
    began = threading.Event()
    future = run_in_thread(lambda: (began.set(), threading.Event().wait()))
    await run_in_thread(began.wait)
    future.cancel()

asyncio.run(main())
print("over")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("over\n", "", 0)


def test_a_thread_that_returns_after_the_loop_closed_is_ignored() -> None:
    let_go = threading.Event()
    threads: list[threading.Thread] = []

    async def main() -> None:
        began = threading.Event()

        def late() -> None:
            threads.append(threading.current_thread())
            began.set()
            let_go.wait(30)

        run_in_thread(late).cancel()
        await run_in_thread(began.wait, 30)

    asyncio.run(main())
    let_go.set()
    threads[0].join(30)

    assert not threads[0].is_alive()


async def test_a_handler_without_a_copy_gets_the_event_itself(hooks: Hooks) -> None:
    seen: list[BeforeRequest] = []
    event = BeforeRequest(messages=[{"role": "user"}], system="")

    async def look(event: BeforeRequest, context: HookContext) -> None:
        seen.append(event)

    hooks.on(BeforeRequest, look, copies=False)
    hooks.on(BeforeRequest, look)
    await hooks.ask(event)

    assert seen[0] is event
    assert seen[1] is not event
    assert seen[1] == event


async def test_an_event_without_handlers_is_emitted_at_once(hooks: Hooks) -> None:
    heard: list[Any] = []
    hooks.listen(heard.append)
    remove = hooks.on(RunStart, lambda event, context: None)
    hooks.on_session(lambda event, context: None)
    moved = Switched(reason="new")

    assert hooks.try_emit(RunEnd(aborted=False))
    assert not hooks.try_emit(RunStart())
    assert not hooks.try_emit(moved)
    assert [type(event) for event in heard] == [RunEnd]
    remove()
    assert hooks.try_emit(RunStart())


async def test_a_signal_wakes_who_waits_for_a_task() -> None:
    signal, loop = Signal(), asyncio.get_running_loop()
    done, running, cancelled = loop.create_future(), loop.create_future(), loop.create_future()
    done.set_result(None)
    await signal.wait_while_running(done)
    waiting = [asyncio.ensure_future(signal.wait_while_running(task)) for task in (running, cancelled)]
    await asyncio.sleep(0)

    cancelled.cancel()
    await waiting[1]
    assert not waiting[0].done()
    threading.Thread(target=signal.abort).start()
    await waiting[0]
    assert not running.done()
    await signal.wait_while_running(running)


def test_on_without_a_handler_is_a_decorator():
    hooks = Hooks()

    @hooks.on("input")
    def refuse(event, ctx):
        return {"cancel": event.text == "hello"}

    _, answer = asyncio.run(hooks.ask(Input(text="hello")))

    assert answer.cancel
    assert refuse(Input(text="bye"), HookContext()) == {"cancel": False}, "the function itself is unchanged"


def test_on_says_what_it_takes():
    hooks = Hooks()
    with pytest.raises(InvalidOperation, match="takes the name of an event first"):
        hooks.on(print)
    with pytest.raises(InvalidOperation, match="a handler is a function of an event and its context, not 3"):
        hooks.on("input", 3)
