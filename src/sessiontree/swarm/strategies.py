"""Built-in strategies: functions that divide a swarm's task among agents with a `Scheduler`.

A strategy may run again from the start when a swarm resumes. The scheduler then returns the results of finished agents
without repeating them, so a strategy has to request the same work in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from sessiontree.errors import InvalidOperation
from sessiontree.swarm.records import AgentSpec
from sessiontree.swarm.scheduler import AgentResult, Scheduler, SwarmFailed

Strategy: TypeAlias = Callable[[Scheduler], Awaitable[str | None]]
"""Returns the result of the swarm, or `None`. Raises `SwarmFailed` if it cannot continue."""

MAX_DEPTH = 3
"""How deep tasks can be split with `tree`."""

MAX_PARTS = 64
"""The most parts that a planner may list."""

REDUCER = "reducer"
"""The name of the agent that combines the results of parts."""

APPROACH_PROMPT = """\
{task}

The approach to take: {approach}"""

PLAN_PROMPT = """\
Split the following task into {count} parts that can be done independently of each other, by agents that see only \
their own part. Answer with one line for each part and nothing else; each line has to contain everything that its \
agent needs to know.

The task: {task}"""

PART_PROMPT = """\
This is a part of a larger task. Do this part and no more; another agent will put the parts together.

The part: {part}"""

REDUCE_PROMPT = """\
A task was done in parts, and the results are above. Put them together into one result.

The task: {task}"""

STAGE_PROMPT = """\
A task is done in {count} stages, one after the other. You are stage {number}{previous}. Do what this stage takes.

The task: {task}"""

TREE_PROMPT = """\
{task}

If parts of this can be done independently of each other, you may have them done by other agents with split_task. \
Otherwise do it yourself."""


def _get_spec(scheduler: Scheduler, number: int) -> AgentSpec:
    return scheduler.specs[number - 1] if number <= len(scheduler.specs) else AgentSpec()


async def parallel(scheduler: Scheduler) -> str:
    """Run every agent on the whole task at the same time. Branches from `Swarm.create_branch` are used first."""

    async def run_one(number: int) -> AgentResult:
        spec, branches = _get_spec(scheduler, number), scheduler.branches
        branch, approach = (
            branches[number - 1] if number <= len(branches) and spec.branch is None else (spec.branch, None)
        )
        task = spec.task or scheduler.task
        return await scheduler.run(
            task,
            prompt=None if approach is None else APPROACH_PROMPT.format(task=task, approach=approach),
            name=spec.name or f"worker-{number}",
            model=spec.model,
            budget=spec.budget,
            branch=branch,
        )

    results = [result for result in await scheduler.run_each(run_one) if result.ok]
    if not results:
        raise SwarmFailed("no agent completed the task")
    return _format_results(results)


async def map_reduce(scheduler: Scheduler) -> str:
    """Run mappers on the parts of the task at the same time, and a reducer that combines their results."""
    mappers = [spec for spec in scheduler.specs if spec.name != REDUCER]
    given = scheduler.parts or [spec.task for spec in mappers if spec.task]
    parts = list(given) or await _plan_parts(scheduler)
    await scheduler.expect(len(parts) + (1 if given else 2))

    async def run_mapper(number: int, part: str) -> AgentResult:
        spec = mappers[number - 1] if number <= len(mappers) else AgentSpec()
        return await scheduler.run(
            part,
            prompt=PART_PROMPT.format(part=part),
            role="mapper",
            name=spec.name or f"mapper-{number}",
            model=spec.model,
            budget=spec.budget,
        )

    results = await scheduler.gather(run_mapper(number, part) for number, part in enumerate(parts, 1))
    if not any(result.ok for result in results):
        raise SwarmFailed("no part of the task was completed")
    spec = next((spec for spec in scheduler.specs if spec.name == REDUCER), AgentSpec())
    task = spec.task or scheduler.task
    reduced = await scheduler.run(
        task,
        prompt=REDUCE_PROMPT.format(task=task),
        role=REDUCER,
        name=REDUCER,
        reads=results,
        model=spec.model,
        budget=spec.budget,
    )
    return _require_text(reduced)


async def _plan_parts(scheduler: Scheduler) -> list[str]:
    """Let a planner agent split the task. Each line of its answer is one part."""
    prompt = PLAN_PROMPT.format(count=scheduler.agents, task=scheduler.task)
    plan = await scheduler.run(scheduler.task, prompt=prompt, role="planner", name="planner", joins=False)
    lines = (re.sub(r"^\s*(?:[-*•]|\(?\d+[.):])\s*", "", line).strip() for line in _require_text(plan).splitlines())
    parts = [line for line in lines if line]
    if not parts:
        raise SwarmFailed("the planner listed no parts of the task")
    if len(parts) > MAX_PARTS:
        raise SwarmFailed(f"the planner listed {len(parts)} parts; the limit is {MAX_PARTS}")
    return parts


async def pipeline(scheduler: Scheduler) -> str:
    """Run one agent after the other. Each reads the result of the previous one."""
    before: AgentResult | None = None
    number = 1
    while number <= scheduler.agents:
        await scheduler.expect(scheduler.agents)
        spec = _get_spec(scheduler, number)
        previous = "" if before is None else "; the result of the one before is above"
        task = spec.task or scheduler.task
        before = await scheduler.run(
            task,
            prompt=STAGE_PROMPT.format(count=scheduler.agents, number=number, previous=previous, task=task),
            role="stage",
            name=spec.name or f"stage-{number}",
            reads=[] if before is None else [before],
            model=spec.model,
            budget=spec.budget,
        )
        _require_text(before)
        number += 1
    return "" if before is None else before.text


async def tree(scheduler: Scheduler) -> str:
    """Run one agent that may split its task. Other agents do the parts and may split them again."""

    async def run_node(id: str, task: str, depth: int, parent: str | None) -> AgentResult:
        async def run_parts(parts: Sequence[str], before: int) -> Sequence[AgentResult]:
            return await scheduler.gather(
                run_node(f"{id}.{number}", part, depth + 1, id) for number, part in enumerate(parts, before + 1)
            )

        spec = _get_spec(scheduler, 1) if parent is None else AgentSpec()
        splits = depth < MAX_DEPTH
        return await scheduler.run(
            task,
            prompt=TREE_PROMPT.format(task=task) if splits else None,
            role="agent",
            name=id,
            parent=parent,
            model=spec.model,
            budget=spec.budget,
            on_split=run_parts if splits else None,
        )

    return _require_text(await run_node("agent-1", scheduler.task, 1, None))


def _require_text(result: AgentResult) -> str:
    """Return the text of a result. Raises `SwarmFailed` if the agent failed."""
    if not result.ok:
        raise SwarmFailed(f"{result.agent} failed: {result.error}")
    return result.text


def _format_results(results: Sequence[AgentResult]) -> str:
    return "\n\n".join(f"{result.agent}:\n{result.text}" for result in results)


STRATEGIES: dict[str, Strategy] = {
    "parallel": parallel,
    "map-reduce": map_reduce,
    "pipeline": pipeline,
    "tree": tree,
}


def find_strategy(name: str) -> Strategy:
    """Return the built-in strategy with this name. Raises `InvalidOperation`."""
    if name not in STRATEGIES:
        raise InvalidOperation(f"unknown strategy {name!r}; strategies: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
