"""Strategies: how agents share a task, with real agents on real branches."""

from __future__ import annotations

import asyncio

import pytest

from sessiontree.core.entries import BranchSummary
from sessiontree.core.messages import ToolCall
from sessiontree.core.operation_plans import get_merge_sources
from sessiontree.errors import InvalidOperation
from sessiontree.model.base import ModelError, Request
from sessiontree.session import Session
from sessiontree.swarm.records import AgentSpec
from sessiontree.swarm.scheduler import AgentResult, Scheduler, SwarmFailed
from sessiontree.swarm.strategies import STRATEGIES
from sessiontree.swarm.swarm import Swarm
from tests.swarm.conftest import build_model, list_actions, list_messages, read_all_messages, read_last_message

AUTH = ModelError("scripted:scripted", "auth", "no key")


# parallel


async def test_parallel_agents_run_concurrently_on_separate_branches(session: Session) -> None:
    both = asyncio.Barrier(2)

    async def meet(request: Request) -> str:
        async with asyncio.timeout(60):
            await both.wait()
        return "Met."

    status = await Swarm(session, "pair", "Meet", model=build_model(meet)).run()

    assert status.status == "completed"
    assert [(agent.id, agent.branch) for agent in status.agents] == [
        ("worker-1", "pair/worker-1"),
        ("worker-2", "pair/worker-2"),
    ]
    assert list_messages(session, "pair/worker-1") == [
        "user: Hello",
        "assistant: What is to be done?",
        "user: Meet",
        "assistant: Met.",
    ]
    assert session.heads.current == "main"
    assert len(session.head.path()) == 2
    assert not session.problems


async def test_results_join_on_the_swarms_branch_with_their_sources(session: Session) -> None:
    swarm = Swarm(session, "pair", "Count", model=build_model(lambda request: "One. Two."))

    status = await swarm.run()

    path = session.branch("pair").path()
    merges = [entry for entry in path if isinstance(entry.body, BranchSummary)]
    assert [get_merge_sources(entry) for entry in merges] == [
        [session.branch(agent.branch).leaf] for agent in status.agents
    ]
    assert "Result of worker-1:\n\nOne. Two." in merges[0].body.summary
    assert status.result == "worker-1:\nOne. Two.\n\nworker-2:\nOne. Two."


async def test_agents_may_differ_in_name_task_and_model(session: Session) -> None:
    large = build_model(lambda request: f"large: {read_last_message(request)}", name="large")
    small = build_model(lambda request: f"small: {read_last_message(request)}", name="small")
    models = {"scripted:large": large, "scripted:small": small}

    status = await Swarm(
        session,
        "two",
        "Think",
        agents=[AgentSpec(name="ann", model="scripted:small"), AgentSpec(task="Think hard")],
        model=large,
        model_of=models.__getitem__,
    ).run()

    assert [(agent.id, agent.text, agent.model) for agent in status.agents] == [
        ("ann", "small: Think", "scripted:small"),
        ("worker-2", "large: Think hard", "scripted:large"),
    ]


async def test_agents_use_the_branches_created_for_them(session: Session) -> None:
    swarm = await Swarm.create(session, "opt", "Make it fast", agents=3, model=build_model(read_last_message))
    await swarm.create_branch("indexing", "Use indexes")
    await swarm.create_branch("caching", "Use a cache")

    status = await swarm.run()

    assert [agent.branch for agent in status.agents] == ["indexing", "caching", "opt/worker-3"]
    assert list_messages(session, "caching")[-1] == "assistant: Make it fast\n\nThe approach to take: Use a cache"
    assert swarm.compare_branches(["indexing", "worker-3"]).branches[0].cost == 0.1


async def test_two_agents_cannot_use_the_same_branch(session: Session) -> None:
    specs = [AgentSpec(branch="way"), AgentSpec(branch="way")]
    swarm = await Swarm.create(session, "opt", "Go", agents=specs, model=build_model())
    await swarm.create_branch("way")

    status = await swarm.run()

    assert status.status == "failed"
    assert status.reason == "agent 'worker-1' already uses the branch 'way'"


async def test_a_failure_is_recorded_and_other_agents_continue(session: Session) -> None:
    def fail_once(request: Request) -> object:
        return AUTH if read_last_message(request) == "bad" else "Good."

    status = await Swarm(
        session, "pair", "Try", agents=[AgentSpec(task="bad"), AgentSpec(task="good")], model=build_model(fail_once)
    ).run()

    assert status.status == "completed"
    assert status.reason == "worker-1 failed"
    assert [(agent.status, agent.error) for agent in status.agents] == [
        ("failed", "scripted:scripted: no key"),
        ("completed", None),
    ]
    assert ("worker-1", "fail") in list_actions(session)
    assert status.result == "worker-2:\nGood."


async def test_a_swarm_fails_if_all_agents_fail(session: Session) -> None:
    status = await Swarm(session, "pair", "Try", model=build_model(lambda request: AUTH)).run()

    assert (status.status, status.reason) == ("failed", "no agent completed the task")


# map-reduce


def map_and_reduce(request: Request) -> str:
    last = read_last_message(request)
    if last.startswith("Split"):
        return "1. count the cats\n- count the dogs\n\n(3) count the birds"
    if last.startswith("A task was done in parts"):
        return f"sum of {read_all_messages(request).count('Result of mapper')} results"
    return f"mapped {last.rsplit(': ', 1)[-1]}"


async def test_map_reduce_plans_parts_maps_each_and_reduces_the_results(session: Session) -> None:
    model = build_model(map_and_reduce)

    status = await Swarm(session, "zoo", "Count the animals", agents=3, strategy="map-reduce", model=model).run()

    assert [(agent.id, agent.role) for agent in status.agents] == [
        ("planner", "planner"),
        ("mapper-1", "mapper"),
        ("mapper-2", "mapper"),
        ("mapper-3", "mapper"),
        ("reducer", "reducer"),
    ]
    assert [agent.text for agent in status.agents[1:4]] == [
        "mapped count the cats",
        "mapped count the dogs",
        "mapped count the birds",
    ]
    assert status.result == "sum of 3 results"
    assert "dogs" not in "\n".join(list_messages(session, "zoo/mapper-1"))
    own = [entry for entry in session.branch("zoo").path() if get_merge_sources(entry)]
    assert [get_merge_sources(entry) for entry in own] == [[session.branch("zoo/reducer").leaf]]


async def test_parts_may_be_given_and_no_more_mappers_work_at_once_than_there_are_agents(session: Session) -> None:
    at_once, most, pair = 0, 0, asyncio.Barrier(2)

    async def answer_part(request: Request) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if "The part: " in read_last_message(request):
            await pair.wait()
        at_once -= 1
        return map_and_reduce(request)

    status = await Swarm(
        session, "zoo", "Count", agents=2, strategy="map-reduce", parts=list("abcdef"), model=build_model(answer_part)
    ).run()

    assert [agent.text for agent in status.agents if agent.role == "mapper"] == [f"mapped {name}" for name in "abcdef"]
    assert status.result == "sum of 6 results"
    assert most == 2


async def test_the_reducer_sees_failed_parts(session: Session) -> None:
    def answer(request: Request) -> object:
        return AUTH if read_last_message(request).endswith(": b") else map_and_reduce(request)

    model = build_model(answer)
    status = await Swarm(session, "zoo", "Count", strategy="map-reduce", parts=["a", "b"], model=model).run()

    assert status.status == "completed"
    assert "Result of mapper-2:\n\nFailed: scripted:scripted: no key" in read_all_messages(model.requests[-1])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda request: "  \n", "the planner listed no parts of the task"),
        (lambda request: AUTH, "planner failed: scripted:scripted: no key"),
        (lambda request: "x\n" * 65, "the planner listed 65 parts; the limit is 64"),
    ],
)
async def test_map_reduce_fails_without_parts(session: Session, answer: object, reason: str) -> None:
    status = await Swarm(session, "zoo", "Count", strategy="map-reduce", model=build_model(answer)).run()

    assert (status.status, status.reason) == ("failed", reason)


async def test_a_map_reduce_fails_if_no_part_completes(session: Session) -> None:
    model = build_model(lambda request: AUTH)

    status = await Swarm(session, "zoo", "Count", strategy="map-reduce", parts=["a"], model=model).run()

    assert (status.status, status.reason) == ("failed", "no part of the task was completed")


# pipeline


async def test_in_a_pipeline_each_stage_reads_the_one_before(session: Session) -> None:
    def stage(request: Request) -> str:
        results = [line for line in read_all_messages(request).splitlines() if line.startswith("step")]
        return f"step {len(results) + 1}"

    status = await Swarm(session, "line", "Build", agents=3, strategy="pipeline", model=build_model(stage)).run()

    assert [(agent.id, agent.text) for agent in status.agents] == [
        ("stage-1", "step 1"),
        ("stage-2", "step 2"),
        ("stage-3", "step 2"),
    ]
    assert status.result == "step 2"


async def test_stages_may_have_their_own_tasks(session: Session) -> None:
    specs = [AgentSpec(name="draft", task="Draft it"), AgentSpec(name="polish", task="Polish it")]
    model = build_model(lambda request: read_last_message(request).rsplit(": ", 1)[-1])

    status = await Swarm(session, "text", "Write", agents=specs, strategy="pipeline", model=model).run()

    assert [(agent.id, agent.text) for agent in status.agents] == [("draft", "Draft it"), ("polish", "Polish it")]


async def test_a_pipeline_ends_where_a_stage_fails(session: Session) -> None:
    def answer(request: Request) -> object:
        return AUTH if "stage 2" in read_last_message(request) else "Done."

    status = await Swarm(session, "line", "Build", agents=3, strategy="pipeline", model=build_model(answer)).run()

    assert (status.status, status.reason) == ("failed", "stage-2 failed: scripted:scripted: no key")
    assert [agent.status for agent in status.agents] == ["completed", "failed"]
    assert status.progress == pytest.approx(1 / 3)


# tree


def split_then_answer(request: Request) -> object:
    """Split a task with a comma in it, and answer any other."""
    results = read_all_messages(request).count("Result of")
    if results:
        return f"put together {results}"
    task = read_last_message(request).splitlines()[0]
    if "," in task and any(tool.name == "split_task" for tool in request.tools):
        return [ToolCall("c1", "split_task", {"parts": [f"do {part}" for part in task.split(",")]})]
    return f"did {task}"


async def test_a_tree_agent_splits_its_task_and_continues_with_the_results(session: Session) -> None:
    model = build_model(split_then_answer)

    status = await Swarm(session, "grove", "trees,bushes", agents=2, strategy="tree", model=model).run()

    assert [(agent.id, agent.text) for agent in status.agents] == [
        ("agent-1", "put together 2"),
        ("agent-1.1", "did do trees"),
        ("agent-1.2", "did do bushes"),
    ]
    assert [agent.task for agent in status.agents] == ["trees,bushes", "do trees", "do bushes"]
    assert status.result == "put together 2"
    assert ("agent-1", "branch") in list_actions(session)
    parent = session.branch("grove/agent-1").path()
    assert [get_merge_sources(entry) for entry in parent if get_merge_sources(entry)] == [
        [session.branch(f"grove/agent-1.{number}").leaf] for number in (1, 2)
    ]
    assert not session.problems


async def test_a_tree_agent_that_works_alone_splits_nothing(session: Session) -> None:
    status = await Swarm(session, "grove", "do it", strategy="tree", model=build_model(split_then_answer)).run()

    assert [agent.id for agent in status.agents] == ["agent-1"]


async def test_one_agent_at_a_time_is_enough_for_a_tree(session: Session) -> None:
    """An agent that waits for its parts uses no slot."""
    async with asyncio.timeout(60):
        status = await Swarm(
            session, "grove", "a,b,c", agents=1, strategy="tree", model=build_model(split_then_answer)
        ).run()

    assert status.status == "completed"
    assert len(status.agents) == 4


async def test_an_invalid_split_is_reported_to_the_model(session: Session) -> None:
    answers = iter([[ToolCall("c1", "split_task", {"parts": ["all of it"]})], "Then alone."])
    model = build_model(lambda request: next(answers))

    status = await Swarm(session, "grove", "do it", strategy="tree", model=model).run()

    assert status.result == "Then alone."
    assert "at least two parts" in read_last_message(model.requests[1])


async def test_tasks_are_split_to_a_maximum_depth(session: Session) -> None:
    def always(request: Request) -> object:
        can = any(tool.name == "split_task" for tool in request.tools)
        if can and "Result of" not in read_all_messages(request):
            return [ToolCall("c1", "split_task", {"parts": ["x, y", "z, w"]})]
        return "Done."

    status = await Swarm(session, "grove", "a, b", agents=4, strategy="tree", model=build_model(always)).run()

    assert status.status == "completed"
    assert max(agent.id.count(".") for agent in status.agents) == 2
    assert len(status.agents) == 1 + 2 + 4


# Custom strategies


async def test_a_custom_strategy_is_a_function(session: Session) -> None:
    async def debate(crew: Scheduler) -> str:
        first = await crew.run("Argue for it", role="speaker")
        second = await crew.run("Argue against it", role="speaker", reads=[first])
        judge = await crew.run("Who is right?", role="judge", reads=[first, second])
        return judge.text

    model = build_model(lambda request: f"{read_all_messages(request).count('Result of')} read")
    status = await Swarm(session, "talk", "Cats or dogs?", strategy=debate, model=model).run()

    assert status.strategy == "debate"
    assert [(agent.id, agent.text) for agent in status.agents] == [
        ("speaker-1", "0 read"),
        ("speaker-2", "1 read"),
        ("judge-1", "2 read"),
    ]
    assert status.result == "2 read"


async def test_a_failed_strategy_reports_its_reason(session: Session) -> None:
    async def fail_with_reason(crew: Scheduler) -> str:
        raise SwarmFailed("there is no hope")

    async def raise_fault(crew: Scheduler) -> str:
        return str(1 / 0)

    told = await Swarm(session, "a", "Try", strategy=fail_with_reason, model=build_model()).run()
    fault = await Swarm(session, "b", "Try", strategy=raise_fault, model=build_model()).run()

    assert (told.status, told.reason) == ("failed", "there is no hope")
    assert (fault.status, fault.reason) == ("failed", "ZeroDivisionError: division by zero")


async def test_an_exception_in_one_run_cancels_the_others(session: Session) -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def endless(request: Request) -> str:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            gone.set()
        return ""

    async def run_broken(crew: Scheduler) -> str:
        async def raise_fault() -> AgentResult:
            await begun.wait()
            raise SwarmFailed("no more")

        await crew.gather([crew.run("Wait"), raise_fault()])
        return ""

    async with asyncio.timeout(60):
        status = await Swarm(session, "a", "Try", strategy=run_broken, model=build_model(endless)).run()

    assert status.reason == "no more"
    assert gone.is_set()
    assert [agent.status for agent in status.agents] == ["cancelled"]


def test_an_unknown_strategy_is_refused_with_a_list_of_strategies(session: Session) -> None:
    with pytest.raises(InvalidOperation, match="parallel, map-reduce, pipeline, tree"):
        Swarm(session, "a", "Try", strategy="sideways", model=build_model())
    assert list(STRATEGIES) == ["parallel", "map-reduce", "pipeline", "tree"]
