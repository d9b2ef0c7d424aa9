"""The session controller: typed lines, branches and sessions, and aborting."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from opentelemetry import trace as otel

import sessiontree as st
from sessiontree.agent.tool import tool
from sessiontree.core.entry_text import format_entry
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.events import (
    Event,
    Merged,
    MessageEnd,
    Navigated,
    Notice,
    SessionShutdown,
    SessionStart,
    Switched,
    ToolUpdate,
)
from sessiontree.model.scripted import Delay, ScriptedModel
from sessiontree.session import Branch, Session
from sessiontree.slash_commands.controller import SessionController
from tests.agent.test_tracing import Tracer
from tests.slash_commands.conftest import MakeController, ScriptedModels, make_scripted_model, record_events, run, talk


def list_messages(branch: Branch) -> list[str]:
    """Return the messages of a branch."""
    return [format_entry(entry) for entry in branch.path() if entry.type == "message"]


async def test_text_goes_to_the_model_and_shell_commands_are_run(
    make_controller: MakeController, session: Session
) -> None:
    at = make_controller("Hello.")

    assert (await at.submit("!echo seen")).text == "seen"
    assert (await at.submit("!!echo secret")).text == "secret"
    done = await at.submit("hi")

    assert done.outcome is not None
    assert done.outcome.text == "Hello."
    assert "seen" in str(at.model.requests[0].messages)
    assert "secret" not in str(at.model.requests[0].messages)


async def test_the_shell_needs_no_model(make_controller: MakeController, session: Session) -> None:
    at = make_controller(model=None, models=ScriptedModels(late=make_scripted_model("late", "I see.")))
    events = record_events(at)

    assert (await at.submit("!pwd; echo seen")).text == f"{session.cwd}\nseen"
    assert (await at.submit("!!echo secret")).text == "secret"

    written = [event.entry.body.message for event in events if isinstance(event, MessageEnd)]
    assert [message["command"] for message in written] == ["pwd; echo seen", "echo secret"]
    assert any(isinstance(event, ToolUpdate) for event in events)
    model = await at.set_model("scripted:late")
    await at.submit("What did I run?")
    assert "seen" in str(model.requests[0].messages)
    assert "secret" not in str(model.requests[0].messages)


@pytest.mark.parametrize("words", ["!echo run", "/name taken"])
async def test_a_prompt_may_start_like_a_command(make_controller: MakeController, session: Session, words: str) -> None:
    at = make_controller("Seen.")

    outcome = await at.send_prompt(words)

    assert outcome.text == "Seen."
    assert list_messages(session.head) == [words, "Seen."]
    assert session.name == "auth"


@pytest.mark.parametrize("line", ["!", "!!", "! \t"])
async def test_an_empty_shell_command_is_refused_and_not_stored(
    make_controller: MakeController, session: Session, line: str
) -> None:
    with pytest.raises(InvalidOperation, match="no command after"):
        await make_controller().submit(line)

    assert not session.tree.real_count


async def test_a_shell_command_without_a_model_can_be_aborted(
    make_controller: MakeController, session: Session
) -> None:
    at = make_controller(model=None)
    running = asyncio.create_task(at.submit("!echo begun; sleep 60"))
    await wait_for_output(at)

    at.abort()

    assert (await asyncio.wait_for(running, 20)).text == "begun"
    assert session.head.path()[-1].body.message["cancelled"] is True
    assert (await at.submit("!echo again")).text == "again"


@pytest.mark.parametrize("model", [None, make_scripted_model("usual")], ids=["no model", "a model"])
@pytest.mark.parametrize("leave", ["close", "create_session", "fork"])
async def test_leaving_a_session_stops_its_shell_command_and_stores_the_output(
    make_controller: MakeController, session: Session, leave: str, model: ScriptedModel | None
) -> None:
    talk(session, "one", "1")
    at = make_controller(model=model)
    running = asyncio.create_task(at.submit("!echo begun; sleep 60"))
    await wait_for_output(at)

    await getattr(at, leave)()

    assert running.done()
    assert running.result().text == "begun"
    with st.open(session.file) as again:
        message = again.head.path()[-1].body.message
        assert (message["output"], message["cancelled"]) == ("begun", True)


@pytest.mark.parametrize("model", [None, make_scripted_model("usual")], ids=["no model", "a model"])
async def test_shell_output_is_stored_on_the_branch_where_it_started(
    make_controller: MakeController, session: Session, model: ScriptedModel | None
) -> None:
    _, answer, last = talk(session, "one", "1", "two")
    at = make_controller(model=model)
    os.mkfifo("other"), os.mkfifo("above")

    async def over(end: str) -> None:
        await asyncio.to_thread(Path(end).write_text, "over")

    beside = asyncio.create_task(at.submit("!echo begun; cat other"))
    await wait_for_output(at)
    await at.branch_here("elsewhere")
    await over("other")
    await asyncio.wait_for(beside, 20)
    on_main = session.branch("main").path()[-1]
    assert (on_main.parent, on_main.body.message["output"]) == (last, "begun\nover")
    assert session.heads.current == "elsewhere"

    moved = asyncio.create_task(at.submit("!echo begun; cat above"))
    await wait_for_output(at)
    left = at.branch.leaf
    await at.move_to(session.tree[answer])
    await over("above")
    await asyncio.wait_for(moved, 20)
    late = session.tree.entries[-1]
    assert (late.parent, late.branch, late.body.message["output"]) == (left, None, "begun\nover")
    assert at.branch.leaf == answer


async def test_shell_output_is_stored_after_the_turn_of_a_new_model(
    make_controller: MakeController, session: Session
) -> None:
    gate = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return "done"

    at = make_controller(
        model=None,
        models=ScriptedModels(late=make_scripted_model("late", [ToolCall("a", "wait", {})], "Fine.")),
        tools=[wait],
    )
    os.mkfifo("end")
    shell = asyncio.create_task(at.submit("!echo begun; cat end"))
    await wait_for_output(at)
    await at.set_model("scripted:late")
    answer = asyncio.create_task(at.submit("hi"))
    async with asyncio.timeout(60):
        while not at.model.requests:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(Path("end").write_text, "over")
    assert (await asyncio.wait_for(shell, 20)).text == "begun\nover"
    gate.set()

    outcome = (await asyncio.wait_for(answer, 20)).outcome

    assert outcome is not None
    assert outcome.text == "Fine."
    assert [entry.body.message["role"] for entry in session.head.path() if entry.type == "message"] == [
        "user",
        "assistant",
        "toolResult",
        "bashExecution",
        "assistant",
    ]


async def wait_for_output(at: SessionController) -> None:
    """Wait until a shell command has printed something."""
    said = asyncio.Event()
    off = at.hooks.listen(lambda event: said.set() if isinstance(event, ToolUpdate) else None)
    await asyncio.wait_for(said.wait(), 20)
    off()


async def test_aborting_a_summary_does_not_move_the_branch(make_controller: MakeController, session: Session) -> None:
    *_, last = talk(session, "one", "1")
    at = make_controller([Delay(30), "never"])
    popping = asyncio.create_task(run(at, "/pop"))
    await wait_for_request(at)

    at.abort()

    assert "Cancelled" in await asyncio.wait_for(popping, 20)
    assert session.head.leaf == last


@pytest.mark.parametrize("move", ["/pop", "/merge side"])
async def test_prompts_and_moves_are_refused_during_a_summary(
    make_controller: MakeController, session: Session, move: str
) -> None:
    talk(session, "one", "1")
    session.create_branch("side", current=False).append(st.user("aside"))
    at = make_controller([Delay(30), "never"])
    moving = asyncio.create_task(run(at, move))
    await wait_for_request(at)

    assert at.is_running
    for line in ("hello", "/pop", "/merge side", "/new", "/clone", "/switch side", "/undo", "/compact", "/clear"):
        with pytest.raises(InvalidOperation, match="a move or a merge is in progress"):
            await at.submit(line)
    idle = asyncio.create_task(at.wait_until_idle())
    await asyncio.sleep(0)
    assert not idle.done()
    at.abort()

    await asyncio.wait_for(idle, 20)
    assert "Cancelled" in await moving
    assert not at.is_running
    assert len(at.model.requests) == 1


@pytest.mark.parametrize("told", [Navigated, Merged])
async def test_navigation_handlers_can_navigate(
    make_controller: MakeController, session: Session, told: type[Event]
) -> None:
    first, *_ = talk(session, "one", "1")
    session.create_branch("side", current=False).append(st.user("aside"))
    at = make_controller("A summary.", "Another.")
    told_of = record_events(at)

    async def navigate_elsewhere(event: Event, context: object) -> None:
        off()
        at.ensure_idle()
        await at.branch_here("kept")
        await at.navigate(first)
        await at.fork()

    off = at.hooks.on(told, navigate_elsewhere)
    await run(at, "/pop" if told is Navigated else "/merge side")

    assert [event.text for event in told_of if isinstance(event, Notice)] == []
    assert "kept" in session.heads.heads
    assert at.session is not session
    assert not at.is_running


async def test_abort_stops_waiting_for_navigation_handlers(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    at = make_controller("A summary.")
    called = asyncio.Event()

    async def wait_long(event: Event, context: object) -> None:
        called.set()
        await asyncio.Event().wait()

    at.hooks.on(Navigated, wait_long)
    popping = asyncio.create_task(run(at, "/pop"))
    await asyncio.wait_for(called.wait(), 20)
    at.abort()

    assert "with a summary" in await asyncio.wait_for(popping, 20)


async def test_closing_during_a_summary_changes_nothing(make_controller: MakeController, session: Session) -> None:
    *_, last = talk(session, "one", "1")
    at = make_controller([Delay(30), "never"])
    popping = asyncio.create_task(run(at, "/pop"))
    await wait_for_request(at)

    await asyncio.wait_for(at.close(), 20)

    assert "Cancelled" in await popping
    with st.open(session.file) as again:
        assert again.head.leaf == last


async def wait_for_request(at: SessionController) -> None:
    """Wait until the model gets a request."""
    async with asyncio.timeout(60):
        while not at.model.requests:
            await asyncio.sleep(0.01)


async def test_a_tool_is_added_and_removed(make_controller: MakeController) -> None:
    @tool
    def roll() -> str:
        """Roll a die."""
        return "six"

    at = make_controller([ToolCall("1", "roll", {})], "Six.", "No die.")
    off = at.add_tool(roll)
    with pytest.raises(InvalidOperation, match="already registered the tool 'roll'"):
        at.add_tool(roll)
    await at.submit("roll")

    off()
    await at.submit("roll")

    assert [spec.name for spec in at.model.requests[0].tools] == ["roll"]
    assert "six" in str(at.model.requests[1].messages)
    assert at.model.requests[2].tools == ()


async def test_handlers_are_notified_of_start_and_shutdown(make_controller: MakeController, session: Session) -> None:
    at = make_controller()
    events = record_events(at)

    await at.start()
    await at.close()

    assert events == [SessionStart(reason="startup"), SessionShutdown(reason="quit")]
    with pytest.raises(InvalidOperation, match="closed"):
        session.label("HEAD", "x") if session.head.leaf else session.rename("x")


async def test_an_empty_new_session_is_deleted_on_leaving(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    first = st.create(cwd=session.cwd)
    at = make_controller("Hello.", session=first, fresh=True)

    await at.open_session(first.id)  # the same session
    assert first.file.exists()
    await at.create_session()
    assert not first.file.exists()
    second = at.session
    await at.create_session()
    assert not second.file.exists()
    third = at.session
    await at.submit("hi")
    await at.open_session(session.id)
    await at.close()
    await at.drop_unused()

    assert third.file.exists()
    assert session.file.exists()


async def test_handlers_receive_the_previous_session_unless_it_was_deleted(
    make_controller: MakeController, session: Session
) -> None:
    at = make_controller(session=st.create(cwd=session.cwd), fresh=True)
    events = record_events(at)

    await at.open_session(session.id)
    await at.create_session()

    switches = [event for event in events if isinstance(event, SessionStart | Switched)]
    assert [event.previous_session_file for event in switches] == [None, None, str(session.file), str(session.file)]


async def test_a_fresh_session_is_deleted_unless_it_was_written_to(
    make_controller: MakeController, session: Session
) -> None:
    first, second = st.create(cwd=session.cwd), st.create(cwd=session.cwd)
    with st.open(second.file) as elsewhere:
        elsewhere.append(st.user("from elsewhere"))

    for made in (first, second):
        await make_controller(session=made, fresh=True).open_session(session.id)

    assert not first.file.exists()
    assert second.file.exists()


async def test_work_off_head_does_not_move_the_current_branch(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    side = session.create_branch("side", current=False)
    before = session.head.leaf
    at = make_controller("Aside.", "Again.", branch=side)

    await at.submit("two")
    assert list_messages(side) == ["one", "1", "two", "Aside."]
    await run(at, "/pop")
    assert list_messages(side)[:2] == ["one", "1"]
    assert side.path()[-1].type == "branch_summary"
    await run(at, "/clear")
    assert side.leaf is None

    assert at.branch == side
    assert (session.heads.current, session.head.leaf) == ("main", before)


async def test_head_means_the_controllers_branch(make_controller: MakeController, session: Session) -> None:
    talk(session, "one", "1")
    side = session.create_branch("side", current=False)
    aside = side.append(st.user("aside"))
    at = make_controller(branch=side)

    await run(at, "/label mine")
    await run(at, "/label above HEAD~1")
    assert session.tree.label(aside.id) == "mine"
    assert session.tree.label(session.tree.parent(aside.id) or "") == "above"
    assert "user: aside" in await run(at, "/diff main")
    assert "← active" in (await run(at, "/tree")).splitlines()[-1]
    await run(at, "/fork HEAD")
    assert list_messages(at.branch) == ["one", "1"]
    assert at.host.editor == "aside"


async def test_off_head_switching_does_not_change_the_current_branch(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    side = session.create_branch("side", current=False)
    at = make_controller("Third.", branch=side)

    assert "third" in await run(at, "/branch-here third")
    await at.submit("go on")
    assert "On branch side" in await run(at, "/switch side")
    with pytest.raises(InvalidOperation, match="cannot undo on 'side'"):
        await run(at, "/undo")

    assert session.heads.current == "main"
    assert list_messages(session.branch("third")) == ["one", "1", "go on", "Third."]
    await run(at, "/switch main")
    await run(at, "/switch third")
    assert session.heads.current == "third"  # from the current branch, a switch moves `HEAD`


async def test_the_controller_keeps_its_branch_when_another_program_switches(
    make_controller: MakeController, session: Session
) -> None:
    talk(session, "one", "1")
    session.create_branch("side", current=False)
    at = make_controller("Here.")

    session.switch("side")
    await at.submit("two")

    assert at.branch.name == "main"
    assert at.agent.branch == at.branch
    assert list_messages(session.branch("main")) == ["one", "1", "two", "Here."]


async def test_a_controller_is_traced_if_an_exporter_is_configured(
    make_controller: MakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = Tracer()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", otel)
    monkeypatch.setattr(otel, "get_tracer", lambda name: tracer)
    at = make_controller("Hello.", "Again.")
    await at.submit("before it is started")

    await at.start()
    await at.submit("hi")
    await at.close()

    assert tracer.find_span == ["invoke_agent main", "chat usual"]
