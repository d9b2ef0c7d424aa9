"""Budgets: their levels, and swarms and agents that stop when one is used up."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest

import sessiontree as st
from sessiontree.config import Prices
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation
from sessiontree.model.base import ModelInfo, Request
from sessiontree.model.scripted import ScriptedModel, ScriptedUsage
from sessiontree.session import Session
from sessiontree.swarm.agent_runner import LocalExecutor, RunJob, SwarmJob
from sessiontree.swarm.budget import Budget, LimitUsage, Spending
from sessiontree.swarm.events import BudgetEvent
from sessiontree.swarm.records import AgentSpec
from sessiontree.swarm.swarm import Swarm
from tests.swarm.conftest import CallGate, build_model, list_records
from tests.swarm.simulated_world import START, CrashingStore, InstantLoop, build_id_generator, open_session


@st.tool
async def again() -> str:
    """Continue."""
    return "again"


def answer_in_turns(count: int):
    """Return a model that calls a tool for `count` requests and then answers."""

    def answer(request: Request) -> object:
        made = sum(message["role"] == "toolResult" for message in request.messages)
        return "Done." if made + 1 >= count else [ToolCall(f"c{made}", "again", {})]

    return build_model(answer)


@pytest.mark.parametrize(
    ("used", "level"),
    [(0, None), (74, None), (75, "warning"), (89, "warning"), (90, "critical"), (100, "exhausted"), (250, "exhausted")],
)
def test_levels_are_at_75_90_and_100_percent(used: float, level: str | None) -> None:
    (use,) = Budget(tokens=100).list_usage(Spending(tokens=used))

    assert use.level == level


def test_the_most_used_limit_counts() -> None:
    budget = Budget(cost=10, tokens=100, seconds=1000)
    spending = Spending(cost=5, tokens=80, seconds=1)

    assert budget.compute_fraction_used(spending) == 0.8
    assert budget.find_exhausted(spending) is None
    assert budget.find_exhausted(Spending(cost=10)) == LimitUsage("cost", 10, 10)
    assert Budget().compute_fraction_used(spending) is None
    assert (
        Budget(cost=1).compute_fraction_used(Spending()),
        Budget(cost=1).compute_fraction_used(Spending(), ["cost"]),
    ) == (0, None)


def test_the_time_to_the_next_level_is_computed() -> None:
    budget = Budget(seconds=100)

    assert [budget.compute_time_left(Spending(seconds=s)) for s in (0, 75, 89, 95, 100)] == [75, 15, 1, 5, None]
    assert Budget(cost=1).compute_time_left(Spending()) is None


@pytest.mark.parametrize("limit", [0, -1, math.inf, math.nan])
def test_a_limit_must_be_a_positive_number(limit: float) -> None:
    with pytest.raises(InvalidOperation, match="is invalid"):
        Budget(cost=limit).check()


def test_a_limit_of_zero_in_a_file_counts_as_used_up() -> None:
    assert Budget(cost=0).find_exhausted(Spending()) is not None


async def test_each_budget_level_is_reported_once_and_the_last_pauses_the_swarm(session: Session) -> None:
    swarm = Swarm(session, "crowd", "Do it", agents=1, budget=Budget(cost=1), model=answer_in_turns(50), tools=[again])

    status = await swarm.run()

    assert (status.status, status.reason) == ("paused", "the budget is used up: $1.0000 of $1.0000")
    assert (status.cost, status.budget_used) == (1.0, 1.0)
    levels = [event for event in swarm.events.read(types=["budget"]) if isinstance(event, BudgetEvent)]
    assert [(event.level, event.used, event.scope) for event in levels] == [
        ("warning", 0.8, "swarm"),
        ("critical", 0.9, "swarm"),
        ("exhausted", 1.0, "swarm"),
    ]
    assert list_records(session).count("budget") == 3


async def test_a_larger_budget_resumes_where_the_swarm_stopped(session: Session) -> None:
    model = answer_in_turns(15)
    swarm = Swarm(session, "crowd", "Do it", agents=1, budget=Budget(cost=1), model=model, tools=[again])
    await swarm.run()

    await swarm.resume(budget=Budget(cost=5))
    status = await swarm.wait()

    assert status.status == "completed"
    assert (status.cost, status.budget) == (1.5, Budget(cost=5))
    assert len(model.requests) == 15


async def test_a_resume_without_a_larger_budget_makes_no_calls(session: Session) -> None:
    model = answer_in_turns(15)
    swarm = Swarm(session, "crowd", "Do it", agents=1, budget=Budget(cost=1), model=model, tools=[again])
    await swarm.run()

    await swarm.resume()
    status = await swarm.wait()

    assert status.status == "paused"
    assert len(model.requests) == 10


async def test_a_reopened_swarm_makes_no_calls_without_budget(session: Session) -> None:
    model = answer_in_turns(15)
    swarm = Swarm(session, "crowd", "Do it", agents=1, budget=Budget(cost=1), model=model, tools=[again])
    await swarm.run()
    await swarm.detach()

    status = await Swarm.open(session, swarm.id, model=model, tools=[again]).run()

    assert status.status == "paused"
    assert len(model.requests) == 10


def build_unpriced_model(**info: Any) -> ScriptedModel:
    """Return a model that does not report its cost."""
    return ScriptedModel([["Done.", ScriptedUsage({"input": 10})]] * 9, info=ModelInfo(provider="p", model="m", **info))


@pytest.mark.parametrize("limits", [{"budget": Budget(cost=1)}, {"agent_budget": Budget(cost=1)}])
async def test_an_unenforceable_limit_pauses_a_swarm_until_the_limit_is_removed(
    session: Session, limits: dict[str, Budget]
) -> None:
    model = build_unpriced_model()
    swarm = Swarm(session, "crowd", "Do it", strategy="pipeline", agents=3, model=model, **limits)

    first = await swarm.run()
    asked = len(model.requests)
    await swarm.resume()
    again = await swarm.wait()
    asked_again = len(model.requests)
    for name in limits:
        limits[name] = Budget(tokens=1000)
    await swarm.resume(**limits)
    last = await swarm.wait()

    why = "the cost limit cannot be enforced: the cost of p:m is unknown"
    assert (first.status, first.reason, asked) == ("paused", why, 1)
    assert first.budget_used is None
    assert (again.status, again.reason, asked_again) == ("paused", why, 2)
    assert last.status == "completed"
    assert len(model.requests) == 3


async def test_a_resumed_swarm_continues_while_models_report_their_cost(session: Session) -> None:
    told = {"input": 10, "output": 1, "totalTokens": 11, "cost": {"total": 0.01}}
    answers = [["Done.", ScriptedUsage(usage)] for usage in ({"input": 10}, told, told)]
    model = ScriptedModel(answers, info=ModelInfo(provider="p", model="m"))
    swarm = Swarm(session, "crowd", "Do it", strategy="pipeline", agents=3, model=model, budget=Budget(cost=1))

    first = await swarm.run()
    await swarm.resume()
    last = await swarm.wait()

    assert (first.status, last.status) == ("paused", "completed")


async def test_unreported_usage_of_another_process_counts(session: Session) -> None:
    model = build_unpriced_model()

    class Elsewhere(LocalExecutor):
        """Runs each agent with its own open swarm."""

        async def run(self, work: SwarmJob, carry_out: RunJob) -> None:
            there = Swarm.open(session, work.swarm, model=model)
            await there.run_job(work)

    swarm = Swarm(
        session,
        "crowd",
        "Do it",
        strategy="pipeline",
        agents=3,
        model=model,
        budget=Budget(cost=1),
        executor=Elsewhere(),
    )

    status = await swarm.run()

    assert status.status == "paused"
    assert len(model.requests) == 1


async def test_a_cost_limit_works_for_a_free_model(session: Session) -> None:
    model = build_unpriced_model(prices=Prices())

    status = await Swarm(session, "crowd", "Do it", agents=3, model=model, budget=Budget(cost=1)).run()

    assert (status.status, status.budget_used) == ("completed", 0)


async def test_agents_that_call_at_the_same_time_do_not_exceed_the_budget(session: Session) -> None:
    """Each answer costs 15 tokens. The first agent calls alone, and then as many as the budget is enough for."""
    doors, most = CallGate(), 0

    async def answer(request: Request) -> object:
        nonlocal most
        await asyncio.sleep(0)
        most = max(most, doors.waiting + 1)
        await doors(request)
        return [ToolCall(f"c{doors.calls}", "again", {})]

    model = build_model(answer)
    swarm = Swarm(session, "crowd", "Do it", agents=20, budget=Budget(tokens=60), model=model, tools=[again])
    await swarm.start()
    await doors.wait_for_calls(1)
    doors.open()
    await doors.wait_for_calls(4)
    doors.open(100)
    status = await swarm.wait()

    assert (status.status, status.tokens, doors.calls) == ("paused", 60, 4)
    assert 1 < most <= 3
    scopes = [event.level for event in swarm.events.read(types=["budget"]) if isinstance(event, BudgetEvent)]
    assert scopes == ["warning", "critical", "exhausted"]


async def test_agents_that_wait_for_the_budget_are_cancelled_with_the_swarm(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=4, budget=Budget(tokens=60), model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)

    async with asyncio.timeout(60):
        await swarm.cancel()

    assert swarm.status().status == "cancelled"
    assert doors.calls == 1


async def test_an_agent_that_ends_leaves_its_share_of_the_budget_to_others(session: Session) -> None:
    model = answer_in_turns(1)

    status = await Swarm(session, "crowd", "Do it", agents=8, budget=Budget(tokens=8 * 15 + 1), model=model).run()

    assert (status.status, status.tokens) == ("completed", 120)


async def test_an_agent_with_a_used_up_budget_waits_and_the_others_continue(session: Session) -> None:
    specs = [AgentSpec(name="poor", budget=Budget(cost=0.2)), AgentSpec(name="rich")]
    swarm = Swarm(session, "crowd", "Do it", agents=specs, model=answer_in_turns(6), tools=[again])

    status = await swarm.run()

    assert (status.status, status.reason) == ("paused", "the budget of poor is used up")
    assert [(agent.id, agent.status, agent.cost) for agent in status.agents] == [
        ("poor", "paused", 0.2),
        ("rich", "completed", 0.6),
    ]
    await swarm.resume(agent_budget=Budget(cost=1))
    done = await swarm.wait()
    assert [(agent.status, agent.cost) for agent in done.agents] == [("completed", 0.6), ("completed", 0.6)]


async def test_an_agent_that_waits_for_its_budget_uses_no_slot(session: Session) -> None:
    """With one agent at a time, the parts after a waiting one are still done."""
    specs = [AgentSpec(name="poor", task="a", budget=Budget(cost=0.1)), AgentSpec(task="b"), AgentSpec(task="c")]
    swarm = Swarm(
        session,
        "zoo",
        "Count",
        agents=specs,
        max_agents=3,
        strategy="map-reduce",
        model=answer_in_turns(3),
        tools=[again],
    )
    await swarm.start()
    await swarm.scale(1)
    async with asyncio.timeout(60):
        status = await swarm.wait()

    assert status.status == "paused"
    assert [agent.status for agent in status.agents] == ["paused", "completed", "completed"]


def fill_context(session: Session) -> ScriptedModel:
    """Build a conversation that is too long for its model. Compacting it takes several calls."""
    for _ in range(20):
        session.append(st.user("word " * 800))
        session.append(st.assistant("word " * 800))
    return build_model(lambda request: "A summary, or an answer.", window=18_000)


async def test_a_compaction_stops_when_the_budget_runs_out(session: Session) -> None:
    model = fill_context(session)
    swarm = Swarm(session, "crowd", "Do it", agents=1, budget=Budget(cost=0.05), model=model)

    status = await swarm.run()

    assert status.status == "paused"
    assert len(model.requests) == 1, "a second call would have gone beyond the budget"
    assert status.cost == 0.1, "and what it cost is in the record, though no summary came of it"
    assert not [entry for entry in session.tree if entry.type == "compaction"]


async def test_compactions_count_against_the_budget(session: Session) -> None:
    model = fill_context(session)

    status = await Swarm(session, "crowd", "Do it", agents=1, model=model).run()

    assert status.status == "completed"
    assert [entry.type for entry in session.branch("crowd/worker-1").path()].count("compaction") == 1
    assert status.cost == pytest.approx(0.1 * len(model.requests))


def test_running_time_is_limited_without_waiting_for_a_call() -> None:
    """In virtual time: the levels are reached at 75, 90 and 100 of 100 seconds."""
    loop = InstantLoop()
    times: list[tuple[str, int]] = []

    async def play() -> None:
        session = open_session(_build_store(), loop, random.Random(1))
        hour = build_model(lambda request: asyncio.sleep(3600, "Done."))
        swarm = Swarm(
            session,
            "line",
            "Do it",
            strategy="pipeline",
            budget=Budget(seconds=100),
            model=hour,
            system="Be brief.",
            now=lambda: START + int(loop.time() * 1000),
        )
        await swarm.start()
        for level in ("warning", "critical", "exhausted"):
            while ("swarm", "seconds", level) not in swarm._state.reached_levels:
                await asyncio.sleep(0.25)
            times.append((level, round(loop.time())))
        assert swarm.status().status == "paused"
        status = await swarm.wait()
        assert (status.status, status.seconds) == ("paused", pytest.approx(100, abs=1))
        assert [agent.status for agent in status.agents] == ["completed", "pending"]
        await swarm.detach()

    loop.run_until_complete(play())
    loop.close()

    assert [(level, pytest.approx(second, abs=2)) for level, second in times] == [
        ("warning", 75),
        ("critical", 90),
        ("exhausted", 100),
    ]


def _build_store() -> CrashingStore:
    disk = CrashingStore()
    Session.create(disk, id="s", now=lambda: START, new_id=build_id_generator(random.Random(0)))
    return disk


async def test_no_time_limit_is_pending_during_a_pause(session: Session) -> None:
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=1, budget=Budget(seconds=1000), model=build_model(doors))
    await swarm.start()
    await doors.wait_for_calls(1)
    running = swarm._admission.compute_time_left()
    await swarm.pause()

    assert running == pytest.approx(750, abs=50)
    assert swarm._admission.compute_time_left() is None
    await swarm.cancel()


async def test_time_during_a_pause_does_not_count() -> None:
    moment = START
    session = Session.create(CrashingStore(), id="s", now=lambda: moment)
    doors = CallGate()
    swarm = Swarm(session, "crowd", "Do it", agents=1, model=build_model(doors), now=lambda: moment)
    await swarm.start()
    await doors.wait_for_calls(1)
    moment += 5_000
    await swarm.pause()
    moment += 3_600_000
    await swarm.resume()
    moment += 2_000
    doors.open()
    status = await swarm.wait()

    assert status.seconds == 7
    assert status.agents[0].seconds == 7


async def test_a_budget_used_up_by_the_last_call_does_not_pause_the_swarm(session: Session) -> None:
    swarm = Swarm(session, "crowd", "Do it", agents=1, budget=Budget(cost=0.1), model=answer_in_turns(1))

    status = await swarm.run()

    assert status.status == "completed"
    assert status.budget_used == 1
    assert [event.level for event in swarm.events.read(types=["budget"])] == ["warning", "critical", "exhausted"]
    assert "paused" not in list_records(session)


async def test_no_agent_starts_once_the_budget_is_used_up(session: Session) -> None:
    swarm = Swarm(session, "line", "Do it", strategy="pipeline", budget=Budget(cost=0.1), model=answer_in_turns(1))

    status = await swarm.run()

    assert [agent.status for agent in status.agents] == ["completed", "pending"]
    assert [entry.type for entry in session.branch("line/stage-2").path()][-2:] == [
        "agent_action",
        "branch_summary",
    ]
