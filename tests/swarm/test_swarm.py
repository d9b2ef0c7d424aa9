"""Swarms: creating, running, pausing, scaling, cancelling, and branches."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.system_prompt import SystemPart
from sessiontree.agent.tool import Tool, ToolContext
from sessiontree.core.entries import Custom
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.hooks.bus import Hooks
from sessiontree.model.base import ModelError, Request
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session
from sessiontree.swarm.agent_runner import LocalExecutor, RunJob, SwarmJob
from sessiontree.swarm.budget import Budget
from sessiontree.swarm.journal import list_swarms
from sessiontree.swarm.records import AgentSpec, SwarmStatus
from sessiontree.swarm.scheduler import Scheduler
from sessiontree.swarm.swarm import Swarm
from tests.swarm.conftest import (
    CallGate,
    build_model,
    list_actions,
    list_messages,
    list_records,
    read_all_messages,
    read_last_message,
)


def list_states(status: SwarmStatus) -> dict[str, str]:
    return {agent.id: agent.status for agent in status.agents}


# Creating


async def test_a_created_swarm_is_in_the_session_and_has_not_started(session: Session) -> None:
    leaf = session.head.leaf

    swarm = await Swarm.create(session, "crowd", "Do it", agents=3, max_agents=5, model=build_model())

    (status,) = list_swarms(session)
    assert (status.id, status.name, status.task, status.strategy) == (swarm.id, "crowd", "Do it", "parallel")
    assert (status.status, status.agents, status.progress) == ("created", (), 0)
    assert (status.branch, status.current_branch, status.branch_count) == ("crowd", "crowd", 1)
    assert status.session_id == session.id
    assert (session.heads.current, session.head.leaf) == ("main", leaf)


async def test_two_swarms_with_the_same_name_have_separate_branches(session: Session) -> None:
    first = await Swarm.create(session, "crowd", "Do it", model=build_model())
    second = await Swarm.create(session, "crowd", "Do it", model=build_model())

    one, two = await asyncio.gather(first.run(), second.run())

    assert (first.name, second.name) == ("crowd", "crowd-2")
    assert [agent.branch for agent in one.agents] == ["crowd/worker-1", "crowd/worker-2"]
    assert [agent.branch for agent in two.agents] == ["crowd-2/worker-1", "crowd-2/worker-2"]
    assert list_swarms(session) == [one, two]


async def test_agents_start_at_the_place_of_the_swarm(session: Session) -> None:
    model = build_model()

    await Swarm(session, "crowd", "Do it", agents=1, at="root", model=model).run()

    assert [read_last_message(request) for request in model.requests] == ["Do it"]
    assert len(model.requests[0].messages) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"agents": 0}, "at least 1 agent"),
        ({"agents": []}, "at least 1 agent"),
        ({"agents": 3, "max_agents": 2}, "at most 2 agents are allowed"),
        ({"budget": Budget(cost=-1)}, "a budget of -1 dollars is invalid"),
        ({"agent_budget": Budget(tokens=0)}, "a budget of 0 tokens is invalid"),
        ({"agents": [AgentSpec(budget=Budget(seconds=math.inf))]}, "a budget of inf seconds is invalid"),
        ({"strategy": "map-reduce", "parts": ["Count the cats", " "]}, "a part of the task is empty"),
        ({"retries": -1}, "not -1"),
        ({"name": "a~b"}, "invalid branch name"),
        ({"task": " \n"}, "the task is empty"),
        ({"agents": [AgentSpec(name="a~b")]}, "invalid branch name"),
        ({"agents": [AgentSpec(name="a"), AgentSpec(), AgentSpec(name="a")]}, "two agents have the name 'a'"),
    ],
)
def test_an_invalid_swarm_is_refused_before_anything_is_written(
    session: Session, options: dict[str, object], why: str
) -> None:
    before = len(session.tree)

    with pytest.raises(InvalidOperation, match=why):
        Swarm(session, **{"name": "crowd", "task": "Do it", "model": build_model(), **options})

    assert len(session.tree) == before


async def test_a_swarm_is_opened_by_its_id_or_its_branch(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", model=build_model())

    assert Swarm.open(session, swarm.id).status() == swarm.status()
    assert Swarm.open(session, "crowd").id == swarm.id
    with pytest.raises(NotFound, match="swarm 'other' not found"):
        Swarm.open(session, "other")


async def test_a_swarm_that_is_not_created_has_no_status(session: Session) -> None:
    with pytest.raises(InvalidOperation, match="not in the session yet"):
        Swarm(session, "crowd", "Do it", model=build_model()).status()


# Running


async def test_a_swarm_runs_once(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
    await swarm.start()

    with pytest.raises(InvalidOperation, match="already running"):
        await swarm.start()
    doors.open()
    await swarm.wait()
    with pytest.raises(InvalidOperation, match="swarm crowd is completed; create a new swarm to try again"):
        await swarm.start()


async def test_agents_have_the_tools_hooks_and_system_prompt_that_the_swarm_was_given(session: Session) -> None:
    @st.tool
    def look(context: ToolContext) -> str:
        """Look."""
        return context.agent.branch.name

    hooks, seen = Hooks(), []

    async def before(event: object, context: object) -> None:
        seen.append(context.branch.name)

    hooks.on("tool_call", before)

    def answer(request: Request) -> object:
        return "Seen." if read_all_messages(request).endswith("worker-1") else [ToolCall("c1", "look", {})]

    model = build_model(answer)
    status = await Swarm(
        session, "crowd", "Look", agents=1, model=model, tools=[look], hooks=hooks, system="Be brief."
    ).run()

    assert status.agents[0].text == "Seen."
    assert seen == ["crowd/worker-1"]
    assert model.requests[0].system == "Be brief."
    assert hooks.context.agent is None


async def test_handlers_are_removed_when_the_swarm_ends(session: Session) -> None:
    hooks = Hooks()

    await Swarm(session, "crowd", "Do it", model=build_model(), hooks=hooks).run()

    assert not any(hooks._handlers.values())


async def test_a_custom_executor_gets_plain_values(session: Session) -> None:
    works: list[SwarmJob] = []

    class Listing:
        async def run(self, work: SwarmJob, carry_out: RunJob) -> None:
            works.append(work)
            await carry_out(work)

    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(), executor=Listing())
    await swarm.run()

    assert works == [
        SwarmJob(
            session=session.id,
            swarm=swarm.id,
            agent="worker-1",
            prompt="Do it",
            model="scripted:scripted",
            may_split=False,
        )
    ]


async def test_a_job_may_run_on_another_handle_of_the_same_file(tmp_path: Path) -> None:
    """Works like another process: it gets only the value and the session."""
    file = tmp_path / "s.jsonl"
    session = st.create(file=file)

    class Elsewhere:
        async def run(self, work: SwarmJob, carry_out: RunJob) -> None:
            with st.open(file) as other:
                await Swarm.open(other, work.swarm, model=build_model(lambda request: "Elsewhere.")).run_job(work)

    status = await Swarm(session, "crowd", "Do it", model=build_model(), executor=Elsewhere()).run()

    assert [agent.text for agent in status.agents] == ["Elsewhere.", "Elsewhere."]
    assert status.status == "completed"


# Pausing


async def test_a_pause_lets_calls_in_progress_finish_and_starts_no_more(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "line", "Build", agents=2, strategy="pipeline", model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)

    await swarm.pause("lunch")
    doors.open()
    status = await swarm.wait()

    assert (status.status, status.reason) == ("paused", "lunch")
    assert list_states(status) == {"stage-1": "completed", "stage-2": "pending"}
    assert doors.calls == 1
    doors.open()
    await swarm.resume()
    assert (await swarm.wait()).status == "completed"
    assert doors.calls == 2
    assert list_records(session) == ["created", "started", "expected", "paused", "resumed", "completed"]


async def test_an_agent_paused_during_a_turn_continues_after_resume(session: Session) -> None:
    doors = CallGate()

    @st.tool
    def look() -> str:
        """Look."""
        return "seen"

    async def answer(request: Request) -> object:
        await doors(request)
        return "Done." if "seen" in read_all_messages(request) else [ToolCall("c1", "look", {})]

    swarm = Swarm(session, "crowd", "Look", agents=1, model=build_model(answer), tools=[look])
    await swarm.start()
    await doors.wait_for_calls(1)
    await swarm.pause()
    doors.open(2)
    paused = await swarm.wait()
    await swarm.resume()
    done = await swarm.wait()

    assert list_states(paused) == {"worker-1": "paused"}
    assert list_states(done) == {"worker-1": "completed"}
    assert doors.calls == 2
    assert list_messages(session, "crowd/worker-1")[2:] == [
        "user: Look",
        "assistant: ",
        "toolResult: seen",
        "assistant: Done.",
    ]


async def test_only_running_swarms_pause_and_only_paused_swarms_resume(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", model=build_model())

    with pytest.raises(InvalidOperation, match="crowd is created, not running"):
        await swarm.pause()
    with pytest.raises(InvalidOperation, match="crowd is created, not paused"):
        await swarm.resume()


async def test_a_pause_from_another_process_counts(tmp_path: Path) -> None:
    doors = CallGate()
    session = st.create(file=tmp_path / "s.jsonl")
    swarm = Swarm(session, "line", "Build", agents=2, strategy="pipeline", model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)

    with st.open(tmp_path / "s.jsonl") as other:
        await Swarm.open(other, swarm.id).pause("from afar")
        doors.open()
        status = await swarm.wait()
        assert (status.status, status.reason) == ("paused", "from afar")
        assert doors.calls == 1

        control = Swarm.open(other, swarm.id)
        await control.resume()
        assert not control.is_running
    doors.open()
    while (status := await swarm.wait()).status != "completed":
        await asyncio.sleep(0.01)
    assert doors.calls == 2


async def test_one_process_at_a_time_runs_a_swarm(tmp_path: Path) -> None:
    doors = CallGate()
    session = st.create(file=tmp_path / "s.jsonl")
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
    await swarm.start()

    with st.open(tmp_path / "s.jsonl") as other:
        second = Swarm.open(other, swarm.id, model=build_model())
        assert second.is_held
        with pytest.raises(InvalidOperation, match="another process is running swarm crowd"):
            await second.start()
    doors.open()
    await swarm.wait()
    assert not swarm.is_held


@st.tool
def look() -> str:
    """Look."""
    return "seen"


@st.tool
def touch() -> str:
    """Touch."""
    return "felt"


def list_requests(model: ScriptedModel) -> list[tuple[list[str], str, str]]:
    """Return the tools, the system prompt and the thinking level of each request."""
    return [([tool.name for tool in r.tools], r.system, r.thinking) for r in model.requests]


async def test_a_resumed_swarm_uses_its_original_tools_prompt_and_thinking(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", agents=1, tools=[look], system="Be brief.", thinking="high")
    parts = [SystemPart(name="house", text="Be"), SystemPart(name="style", text="brief.")]
    other = await Swarm.create(session, "others", "Do it", agents=1, system=parts)
    model = build_model()

    for id in (swarm.id, other.id):
        await Swarm.open(session, id, model=model, tools=[touch, look]).run()

    assert list_requests(model) == [(["look"], "Be brief.", "high"), ([], "Be\n\nbrief.", "off")]


async def test_override_saved_uses_the_given_options(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", agents=1, tools=[look], system="Be brief.", thinking="high")
    model = build_model()

    await Swarm.open(session, swarm.id, model=model, tools=[touch], system="Be long.", override_saved=True).run()

    assert list_requests(model) == [(["touch"], "Be long.", "off")]


async def test_a_resume_without_the_original_tools_is_refused(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", tools=[look, touch])
    lacking = Swarm.open(session, swarm.id, model=build_model(), tools=[touch])

    with pytest.raises(
        InvalidOperation, match=r"^swarm crowd was started with the tool look, which is not available here$"
    ):
        await lacking.start()

    assert not lacking.is_held
    await lacking.cancel()


@pytest.mark.parametrize(("begun", "there"), [([], [look]), ([look], [])])
async def test_a_process_that_runs_jobs_chooses_the_tools(
    session: Session, begun: list[Tool], there: list[Tool]
) -> None:
    model = build_model()

    class Elsewhere(LocalExecutor):
        async def run(self, work: SwarmJob, carry_out: RunJob) -> None:
            await Swarm.open(session, work.swarm, model=model, tools=there).run_job(work)

    status = await Swarm(session, "crowd", "Do it", agents=1, tools=begun, executor=Elsewhere()).run()

    assert status.status == "completed"
    assert [tools for tools, *_ in list_requests(model)] == [[tool.name for tool in there]]


async def test_a_swarm_of_an_older_file_resumes_with_the_given_tools(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", agents=1, tools=None)
    model = build_model()

    await Swarm.open(session, swarm.id, model=model, tools=[look]).run()

    assert "tools" not in next(body.data for e in session.tree.entries if isinstance(body := e.body, Custom))
    assert [tools for tools, *_ in list_requests(model)] == [["look"]]


# Steering


async def test_a_steering_message_reaches_its_agent(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(2)

    await swarm.steer("worker-2", "Use blue")
    doors.open(3)
    await swarm.wait()

    assert list_messages(session, "crowd/worker-2")[-2:] == ["user: Use blue", "assistant: Done with 'Use blue'."]
    assert "Use blue" not in "".join(list_messages(session, "crowd/worker-1"))
    with pytest.raises(InvalidOperation, match="agent worker-2 is completed"):
        await swarm.steer("worker-2", "Or red")
    with pytest.raises(NotFound, match="worker-1, worker-2"):
        await swarm.steer("worker-3", "Hello?")


async def test_an_agent_in_another_process_cannot_be_steered(tmp_path: Path) -> None:
    with st.create(file=tmp_path / "s.jsonl") as session, st.open(tmp_path / "s.jsonl") as other:
        doors = CallGate()
        swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
        await swarm.start()
        await doors.wait_for_calls(1)
        other.refresh()
        beside = Swarm.open(other, swarm.id)
        with pytest.raises(
            InvalidOperation, match="does not run in this process; another process is running swarm crowd"
        ):
            await beside.steer("worker-1", "Use blue")
        await swarm.detach()
        with pytest.raises(InvalidOperation, match="does not run in this process; no process is running swarm crowd"):
            await beside.steer("worker-1", "Use blue")


async def test_leaving_the_block_of_a_swarm_stops_it_here_and_leaves_no_task(session: Session) -> None:
    gate = CallGate()
    async with Swarm(session, "crowd", "Do it", agents=1, model=build_model(gate)) as swarm:
        await swarm.start()
        await gate.wait_for_calls(1)

    assert not swarm.is_running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert swarm.status().status == "running"  # another process can resume it


async def test_functions_are_tools_of_a_swarm(session: Session) -> None:
    def look(path: str) -> str:
        """Look at a file."""
        return path

    model = ScriptedModel(["Done."])
    status = await Swarm(session, "crowd", "Do it", agents=1, model=model, tools=[look]).run()

    assert status.status == "completed"
    assert [tool.name for tool in model.requests[0].tools] == ["look"]


async def test_a_steering_message_to_a_waiting_agent_arrives_on_resume(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)
    await swarm.steer("worker-1", "Use blue")
    await swarm.pause()
    doors.open()
    assert list_states(await swarm.wait()) == {"worker-1": "paused"}
    await swarm.steer("worker-1", "And green")
    doors.open(2)
    await swarm.resume()
    await swarm.wait()

    words = "\n".join(list_messages(session, "crowd/worker-1"))
    assert "Use blue" in words
    assert "And green" in words


# Scaling


async def test_scaling_up_makes_more_agents_and_scaling_down_cancels_the_last(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=2, max_agents=4, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(2)

    await swarm.scale(4)
    await doors.wait_for_calls(4)
    assert list_states(swarm.status()) == {f"worker-{number}": "running" for number in range(1, 5)}
    await swarm.scale(1)
    while "running" in [list_states(swarm.status())[f"worker-{number}"] for number in (2, 3, 4)]:
        await asyncio.sleep(0)
    doors.open()
    status = await swarm.wait()

    assert status.status == "completed"
    assert list_states(status) == {
        "worker-1": "completed",
        "worker-2": "cancelled",
        "worker-3": "cancelled",
        "worker-4": "cancelled",
    }
    assert ("worker-4", "cancel") in list_actions(session)


async def test_an_agent_cancelled_by_scaling_resumes_when_scaled_up(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=2, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(2)
    await swarm.scale(1)
    while list_states(swarm.status())["worker-2"] != "cancelled":
        await asyncio.sleep(0)
    await swarm.scale(2)
    await doors.wait_for_calls(3)
    doors.open(3)
    status = await swarm.wait()

    assert list_states(status) == {"worker-1": "completed", "worker-2": "completed"}
    assert [words for words in list_messages(session, "crowd/worker-2") if words.startswith("user")] == [
        "user: Hello",
        "user: Do it",
    ]


async def test_scaling_a_map_reduce_changes_how_many_work_at_once(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(
        session, "zoo", "Count", agents=1, strategy="map-reduce", parts=["a", "b", "c"], model=build_model(doors)
    )
    await swarm.start()
    await doors.wait_for_calls(1)
    assert doors.waiting == 1

    await swarm.scale(3)
    await doors.wait_for_calls(3)
    doors.open(4)

    assert (await swarm.wait()).status == "completed"


async def test_scaling_from_another_process_counts(tmp_path: Path) -> None:
    doors = CallGate()
    session = st.create(file=tmp_path / "s.jsonl")
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)

    with st.open(tmp_path / "s.jsonl") as other:
        await Swarm.open(other, swarm.id).scale(2)
    await doors.wait_for_calls(2)
    doors.open(2)

    assert list_states(await swarm.wait()) == {"worker-1": "completed", "worker-2": "completed"}


async def test_scaling_is_limited_by_max_agents(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", agents=2, max_agents=3, model=build_model())

    with pytest.raises(InvalidOperation, match="at most 3 agents are allowed, not 4"):
        await swarm.scale(4)
    with pytest.raises(InvalidOperation, match="at least 1 agent"):
        await swarm.scale(0)
    await swarm.run()
    with pytest.raises(InvalidOperation, match="completed and cannot be scaled"):
        await swarm.scale(1)


# Cancelling


async def test_cancelling_aborts_the_agents_and_keeps_their_entries(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(2)

    await swarm.cancel("enough")

    status = swarm.status()
    assert (status.status, status.reason) == ("cancelled", "enough")
    assert list_states(status) == {"worker-1": "cancelled", "worker-2": "cancelled"}
    assert doors.waiting == 0
    assert list_messages(session, "crowd/worker-1")[2] == "user: Do it"
    assert (await swarm.wait()).status == "cancelled"
    with pytest.raises(InvalidOperation, match="already cancelled"):
        await swarm.cancel()


async def test_cancelling_from_another_process_ends_the_agents_here(tmp_path: Path) -> None:
    doors = CallGate()
    session = st.create(file=tmp_path / "s.jsonl")
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)

    with st.open(tmp_path / "s.jsonl") as other:
        await Swarm.open(other, swarm.id).cancel()
    async with asyncio.timeout(60):
        status = await swarm.wait()

    assert status.status == "cancelled"
    assert doors.waiting == 0


async def test_destroy_archives_branches_and_deletes_events_but_no_entries(
    session: Session,
) -> None:
    swarm = Swarm(session, "crowd", "Do it", model=build_model())
    await swarm.run()
    spool, entries = swarm.events.path, len(session.tree)

    await swarm.destroy()
    await swarm.destroy()

    assert swarm.status().status == "destroyed"
    assert [branch.name for branch in session.branches if not branch.archived] == ["main"]
    assert not Path(spool).exists()
    assert len(session.tree) > entries
    assert session.heads.current == "main"


async def test_destroy_cancels_a_running_swarm_and_keeps_the_current_branch(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(2)
    session.switch("crowd/worker-1")

    await swarm.destroy()

    assert list_records(session)[-2:] == ["cancelled", "destroyed"]
    assert session.heads.current == "crowd/worker-1"
    assert [branch.name for branch in session.branches if not branch.archived] == ["main", "crowd/worker-1"]


async def test_cancelling_run_stops_the_agents_and_the_swarm_can_resume(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
    running = asyncio.create_task(swarm.run())
    await doors.wait_for_calls(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert doors.waiting == 0
    assert swarm.status().status == "running"
    doors.open()
    assert (await swarm.run()).status == "completed"


# Failures


async def test_temporary_failures_are_retried(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessiontree.swarm.agent_runner.FIRST_DELAY", 0.001)
    answers = iter([ModelError("m", "server", "down"), ZeroDivisionError("a fault"), "Up again."])

    def answer(request: Request) -> object:
        given = next(answers)
        if isinstance(given, ZeroDivisionError):
            raise given
        return given

    status = await Swarm(session, "crowd", "Do it", agents=1, model=build_model(answer)).run()

    (agent,) = status.agents
    assert (agent.status, agent.text, agent.attempts, agent.error) == ("completed", "Up again.", 3, None)
    assert [action for _, action in list_actions(session)] == ["spawn", "begin", "fail", "fail", "complete"]


async def test_each_retry_waits_longer_and_after_the_last_the_failure_is_recorded(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds > 1:
            waits.append(seconds)
        await real(0)

    monkeypatch.setattr("sessiontree.swarm.scheduler.asyncio.sleep", sleep)
    down = build_model(lambda request: ModelError("m", "server", "down"))

    status = await Swarm(session, "crowd", "Do it", agents=1, retries=3, model=down).run()

    (agent,) = status.agents
    assert (agent.status, agent.attempts, agent.error) == ("failed", 4, "m: down")
    assert len(waits) == 3
    assert all(1.5 * before < after for before, after in pairwise(waits))


async def test_a_handler_that_cancels_requests_makes_the_agent_fail(session: Session) -> None:
    hooks = Hooks()

    async def never(event: object, context: object) -> dict[str, bool]:
        return {"cancel": True}

    hooks.on("before_request", never)

    async with asyncio.timeout(60):
        status = await Swarm(session, "crowd", "Do it", agents=1, model=build_model(), hooks=hooks).run()

    assert status.agents[0].error == "a handler cancelled the agent's request"


async def test_an_agent_fails_if_its_branch_is_moved(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)
    session.move(None, branch="crowd/worker-1")
    doors.open()

    status = await swarm.wait()

    assert status.agents[0].status == "failed"
    assert "another writer moved branch" in (status.agents[0].error or "")
    assert not [problem for problem in session.problems if problem.severity == "fault"]


async def test_a_swarm_continues_after_its_branch_is_renamed(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)
    session.rename_branch("crowd", "gathering")
    doors.open()

    status = await swarm.wait()

    assert status.status == "completed"
    assert status.branch == "gathering"
    assert len([entry for entry in session.branch("gathering").path() if entry.type == "branch_summary"]) == 1


# Branches


async def test_branches_are_created_where_agents_start_and_no_branch_moves(session: Session) -> None:
    swarm = await Swarm.create(session, "crowd", "Do it", agents=1, model=build_model())
    leaf = session.head.leaf

    entry = await swarm.create_branch("other", "Another way")

    assert session.tree[entry].body.name == "other"
    assert session.branch("other").info.description == "Another way"
    assert (session.heads.current, session.head.leaf) == ("main", leaf)
    assert (swarm.id, "branch") in list_actions(session)
    assert swarm.status().branch_count == 2
    assert swarm.status().current_branch == "crowd"


async def test_agents_start_at_the_branch_that_the_swarm_switched_to(session: Session) -> None:
    session.create_branch("aside", current=False)
    session.append(st.user("By the way"), branch="aside")
    swarm = await Swarm.create(session, "line", "Do it", agents=1, strategy="pipeline", model=build_model())

    await swarm.switch_branch("line")
    assert swarm.status().current_branch == "line"
    with pytest.raises(NotFound):
        await swarm.switch_branch("nowhere")
    await swarm.switch_branch("aside")
    status = await swarm.run()

    assert status.current_branch == "aside"
    assert "user: By the way" in list_messages(session, "line/stage-1")


async def test_the_branches_of_a_finished_swarm_cannot_be_changed(session: Session) -> None:
    swarm = await Swarm.create(session, "line", "Do it", agents=1, strategy="pipeline", model=build_model())
    status = await swarm.run()
    branches = session.branches

    for refused in (swarm.create_branch("late"), swarm.switch_branch("main")):
        with pytest.raises(InvalidOperation, match="swarm line is completed: no agent would start"):
            await refused

    assert swarm.status() == status
    assert session.branches == branches


async def test_a_fork_of_the_session_is_recorded(session: Session) -> None:
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(lambda request: "Done."))
    await swarm.run()

    fork = await swarm.fork_session("crowd/worker-1", "the best")

    assert fork.name == "the best"
    assert list_messages(fork, "main")[-1] == "assistant: Done."
    assert (swarm.id, "fork") in list_actions(session)


async def test_without_branching_only_agents_have_branches(session: Session) -> None:
    swarm = Swarm(session, "crowd", "Do it", agents=2, model=build_model(), enable_branching=False)
    status = await swarm.run()

    assert [agent.branch for agent in status.agents] == ["crowd/worker-1", "crowd/worker-2"]
    for refused in (swarm.create_branch("a"), swarm.switch_branch("main"), swarm.fork_session()):
        with pytest.raises(InvalidOperation, match="swarm crowd does not have branching enabled"):
            await refused
    with pytest.raises(InvalidOperation, match="does not have branching enabled"):
        swarm.compare_branches(["crowd/worker-1", "crowd/worker-2"])


async def test_a_strategy_cannot_have_two_agents_of_one_name_at_the_same_time(session: Session) -> None:
    async def twins(crew: Scheduler) -> str:
        return str(await crew.gather([crew.run("Do it", name="twin"), crew.run("Do it", name="twin")]))

    status = await Swarm(session, "crowd", "Do it", strategy=twins, model=build_model()).run()

    assert (status.status, status.reason) == ("failed", "two agents have the name 'twin'")


async def test_a_custom_strategy_must_be_passed_again(session: Session) -> None:
    async def mine(crew: Scheduler) -> str:
        return (await crew.run("Do it")).text

    swarm = await Swarm.create(session, "crowd", "Do it", strategy=mine, model=build_model())

    with pytest.raises(InvalidOperation, match="swarm crowd uses the custom strategy 'mine'"):
        await Swarm.open(session, swarm.id, model=build_model()).start()
    assert (await Swarm.open(session, swarm.id, strategy=mine, model=build_model()).run()).result == "Done."
