"""Running one agent of a swarm: resuming, retries and failures."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import tempfile
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.tool import ToolContext
from sessiontree.core.entries import AgentAction
from sessiontree.core.messages import ToolCall
from sessiontree.errors import BranchMoved, NotFound, StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.model.base import ModelError, Request
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore
from sessiontree.swarm.agent_runner import MAX_DELAY, SwarmJob, compute_retry_delay, has_final_answer, is_retryable
from sessiontree.swarm.records import CompleteAction, build_action_body
from sessiontree.swarm.swarm import Swarm
from tests.store.test_file_operations import limit_file_size
from tests.swarm.conftest import (
    CallGate,
    build_model,
    list_actions,
    list_messages,
    read_all_messages,
    read_last_message,
)

DOWN = ModelError("m", "server", "down")


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (DOWN, True),
        (ModelError("m", "rate", "slow down"), True),
        (ModelError("m", "rate", "slow down", retry_after=300), True),
        (ModelError("m", "rate", "tomorrow", retry_after=86_400), False),
        (ModelError("m", "auth", "no key"), False),
        (ModelError("m", "rejected", "no"), False),
        (BranchMoved("b", None, "x"), False),
        (ZeroDivisionError(), True),
    ],
)
def test_only_temporary_errors_are_retryable(error: Exception, again: bool) -> None:
    assert is_retryable(error) is again


def test_retry_delays_double_up_to_a_minute_with_jitter() -> None:
    waits = [compute_retry_delay("worker-1", attempt, DOWN) for attempt in range(1, 9)]

    assert all(1.5 * 2 ** (n - 1) <= wait <= 2.0 * 2 ** (n - 1) for n, wait in enumerate(waits[:5], 1))
    assert all(0.75 * MAX_DELAY <= wait <= MAX_DELAY for wait in waits[5:])
    assert len({compute_retry_delay(f"worker-{number}", 1, DOWN) for number in range(20)}) > 10


def test_a_retry_waits_as_long_as_the_provider_asks() -> None:
    assert compute_retry_delay("worker-1", 1, ModelError("m", "rate", "slow down", retry_after=42)) == 42


async def test_an_existing_answer_is_not_requested_again(session: Session) -> None:
    """The process crashed after the last answer and before the record that the agent completed."""
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model())
    await swarm.run()
    died = MemoryStore()
    lines = session.read_lines()
    done = next(n for n, line in enumerate(lines) if b'"complete"' in line)
    died.create(lines[:done])
    model = build_model()

    status = await Swarm.open(Session(died), swarm.id, model=model).run()

    assert status.status == "completed"
    assert status.agents[0].text == "Done."
    assert model.requests == []


async def test_an_agent_that_died_during_tool_calls_continues_after_them(session: Session) -> None:
    @st.tool
    def look() -> str:
        """Look."""
        return "seen"

    def answer(request: Request) -> object:
        return "Done." if request.messages[-1]["role"] == "toolResult" else [ToolCall("c1", "look", {})]

    swarm = Swarm(session, "crowd", "Look", agents=1, model=build_model(answer), tools=[look])
    await swarm.run()
    lines = session.read_lines()
    died = MemoryStore()
    died.create(lines[: next(n for n, line in enumerate(lines) if b'"toolResult"' in line)])
    model = build_model(answer)

    status = await Swarm.open(Session(died), swarm.id, model=model, tools=[look]).run()

    assert status.status == "completed"
    assert len(model.requests) == 1
    assert "interrupted" in read_last_message(model.requests[0]).lower()


async def test_an_agent_gets_its_prompt_on_a_branch_with_earlier_messages(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(
        session, "crowd", "Sum up", agents=1, strategy="map-reduce", parts=["one", "two"], model=build_model(doors)
    )
    await swarm.start()
    await doors.wait_for_calls(1)
    session.extend(
        [st.user("How far are you?"), st.assistant("Here I am.", usage={"cost": 1})], branch="crowd/mapper-2"
    )
    before = {agent.id: (agent.status, agent.attempts) for agent in swarm.status().agents}
    doors.open(3)
    status = await swarm.wait()

    assert before["mapper-2"] == ("pending", 0)
    mapper = next(agent for agent in status.agents if agent.id == "mapper-2")
    assert mapper.text is not None
    assert "two" in mapper.text
    assert "two" in list_messages(session, "crowd/mapper-2")[-2]


async def test_an_agent_of_an_older_file_started_with_its_first_message(session: Session) -> None:
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model())
    await swarm.run()
    lines = [line.replace(b'"begins":true', b'"joins":true') for line in session.read_lines()]
    old = [line for line in lines if b'"begin"' not in line and b'"complete' not in line]
    assert len(old) == len(lines) - 3
    died = MemoryStore()
    died.create(old)
    model = build_model()

    status = await Swarm.open(Session(died), swarm.id, model=model).run()

    assert (status.status, status.agents[0].text) == ("completed", "Done.")
    assert model.requests == []


@pytest.mark.parametrize(
    ("bodies", "whole"),
    [
        ([st.user("?")], False),
        ([st.user("?"), st.assistant("!")], True),
        ([st.user("?"), st.assistant("!"), build_action_body("a", CompleteAction(swarm="s"))], True),
        ([st.user("?"), st.assistant("", stop_reason="aborted")], False),
        ([st.user("?"), st.assistant([st.tool_call("c", "look", {})])], False),
        ([st.user("?"), st.assistant("!"), st.BranchSummary(summary="more")], False),
        ([st.user("?"), st.assistant("!"), st.CustomMessage(custom_type="x", content="more")], False),
        ([AgentAction(action="spawn", agent="a")], False),
    ],
)
def test_has_final_answer_checks_the_last_message_of_a_branch(bodies: list[st.Body], whole: bool) -> None:
    session = st.memory()
    session.extend(bodies)

    assert has_final_answer(session.head) is whole


async def test_a_tool_that_aborts_its_agent_makes_it_fail(session: Session) -> None:
    @st.tool
    async def give_up(context: ToolContext) -> str:
        """Abort this agent."""
        context.agent.abort()
        await asyncio.sleep(10)
        return "never"

    model = build_model(lambda request: [ToolCall("c1", "give_up", {})])

    async with asyncio.timeout(60):
        status = await Swarm(session, "crowd", "Do it", agents=1, model=model, tools=[give_up]).run()

    assert status.agents[0].error == "the agent was aborted"
    assert not session.problems


async def test_an_unknown_model_makes_its_agent_fail(session: Session) -> None:
    def find(name: str) -> object:
        raise NotFound("model", name)

    status = await Swarm(session, "crowd", "Do it", agents=1, model="nobody:none", model_of=find).run()

    assert status.status == "failed"
    assert status.agents[0].error == "model 'nobody:none' not found"


async def test_failing_handlers_emit_error_events(session: Session) -> None:
    hooks = Hooks()

    async def raise_fault(event: object, context: object) -> None:
        raise ZeroDivisionError

    hooks.on("turn_end", raise_fault)
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(), hooks=hooks)

    assert (await swarm.run()).status == "completed"
    (event,) = swarm.events.read(types=["error"])
    assert event.message.startswith("raise_fault failed with ZeroDivisionError")


async def test_a_swarm_that_splits_has_a_maximum_of_agents(session: Session) -> None:
    many = [f"part {number}" for number in range(80)]
    model = build_model(
        lambda r: (
            "Alone, then."
            if "the swarm can have" in read_all_messages(r)
            else [ToolCall("c1", "split_task", {"parts": many})]
        )
    )

    status = await Swarm(session, "grove", "Do it", strategy="tree", model=model).run()

    assert status.result == "Alone, then."
    assert len(status.agents) == 1


async def test_a_job_for_an_unknown_agent_is_refused(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", model=build_model())

    with pytest.raises(NotFound, match="agent 'nobody' not found"):
        await swarm.run_job(SwarmJob(session=session.id, swarm=swarm.id, agent="nobody", prompt="Do it"))


async def test_a_finished_job_is_not_repeated(session: Session) -> None:
    model = build_model()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=model)
    await swarm.run()

    await swarm.run_job(SwarmJob(session=session.id, swarm=swarm.id, agent="worker-1", prompt="Do it"))

    assert len(model.requests) == 1
    assert [action for _, action in list_actions(session)] == ["spawn", "begin", "complete"]


async def test_a_full_disk_raises_in_wait(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "s.jsonl")
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)

    def raise_full(lines: object, *, after: object) -> None:
        raise StoreError("s.jsonl", "no space left")

    append, session.store.append = session.store.append, raise_full
    doors.open()
    with pytest.raises(StoreError, match="no space left"):
        await swarm.wait()

    session.store.append = append
    doors.open()
    assert (await swarm.run()).status == "completed"
    assert list_messages(session, "crowd/worker-1")[-1] == "assistant: Done with 'Do it'."


async def test_a_store_failure_under_several_agents_raises_only_in_wait(tmp_path: Path) -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, told: unheard.append(told))
    session = st.create(file=tmp_path / "s.jsonl")
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=3, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(3)

    def raise_gone(*_: object, **__: object) -> None:
        raise StoreError("s.jsonl", "the server is gone")

    session.store.append = session.refresh = raise_gone
    with pytest.raises(StoreError, match="the server is gone"):
        await swarm.wait()
    del swarm
    gc.collect()
    await asyncio.sleep(0)

    assert unheard == []


async def test_a_swarm_reports_where_an_unsaved_answer_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session = st.create(file=tmp_path / "s.jsonl")
    session.append(st.user("long " * 10_000))
    full = contextlib.ExitStack()

    def answer(request: Request) -> str:
        full.enter_context(limit_file_size((tmp_path / "s.jsonl").stat().st_size))
        return "Paid for."

    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(answer), retries=0)
    with full:
        try:
            await swarm.run()
            reason = ""
        except StoreError as error:
            reason = str(error)

    for words in (reason, "\n".join(map(str, swarm.events.read()))):
        found = re.search(r"it is saved in ([^\s'\"]+jsonl)", words)
        assert found, words
        assert "Paid for." in Path(found[1]).read_text()
