"""Strategies: how the agents of a swarm share its task. Each is one function of the crew, as one of the user's own is.

A strategy may be run again from its beginning: what agents have done is then found, not repeated, so it has to give out
the same work in the same order.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from sessiontree.errors import InvalidOperation
from sessiontree.swarm.crew import AgentResult, Crew, SwarmFailed
from sessiontree.swarm.status import AgentSpec

Strategy: TypeAlias = Callable[[Crew], Awaitable[str | None]]
"""Gives the result of the swarm, or nothing. Raises `SwarmFailed` when it cannot go on."""

DEPTH = 3
"""How often a task can be split into parts of parts."""

MOST_PARTS = 64
"""How many parts a planner may name."""

REDUCER = "reducer"
"""The name of the agent that puts parts together."""

APPROACH = """\
{task}

The approach to take: {approach}"""

PLAN = """\
Split the following task into {count} parts that can be done independently of each other, by agents that see only \
their own part. Answer with one line for each part and nothing else; each line has to say all that its agent needs to \
know.

The task: {task}"""

PART = """\
This is a part of a larger task. Do this part and no more; another agent will put the parts together.

The part: {part}"""

REDUCE = """\
A task was done in parts, and the results are above. Put them together into one result.

The task: {task}"""

STAGE = """\
A task is done in {count} stages, one after the other. You are stage {number}{previous}. Do what this stage takes.

The task: {task}"""

TREE = """\
{task}

If parts of this can be done independently of each other, you may have them done by other agents with split_task. \
Otherwise do it yourself."""


def _spec(crew: Crew, number: int) -> AgentSpec:
    return crew.specs[number - 1] if number <= len(crew.specs) else AgentSpec()


async def parallel(crew: Crew) -> str:
    """Every agent does the whole task, all at the same time. Branches that were made by hand are taken first."""

    async def one(number: int) -> AgentResult:
        spec, made = _spec(crew, number), crew.branches
        branch, approach = made[number - 1] if number <= len(made) and spec.branch is None else (spec.branch, None)
        task = spec.task or crew.task
        return await crew.run(
            task,
            prompt=None if approach is None else APPROACH.format(task=task, approach=approach),
            name=spec.name or f"worker-{number}",
            model=spec.model,
            budget=spec.budget,
            branch=branch,
        )

    results = [result for result in await crew.each(one) if result.ok]
    if not results:
        raise SwarmFailed("no agent has come to a result")
    return _joined(results)


async def map_reduce(crew: Crew) -> str:
    """Mappers do the parts of the task at the same time; a reducer reads their results and puts them together."""
    mappers = [spec for spec in crew.specs if spec.name != REDUCER]
    given = crew.parts or [spec.task for spec in mappers if spec.task]
    parts = list(given) or await _planned(crew)
    await crew.expect(len(parts) + (1 if given else 2))

    async def mapped(number: int, part: str) -> AgentResult:
        spec = mappers[number - 1] if number <= len(mappers) else AgentSpec()
        return await crew.run(
            part,
            prompt=PART.format(part=part),
            role="mapper",
            name=spec.name or f"mapper-{number}",
            model=spec.model,
            budget=spec.budget,
        )

    results = await crew.all(mapped(number, part) for number, part in enumerate(parts, 1))
    if not any(result.ok for result in results):
        raise SwarmFailed("no part of the task was done")
    spec = next((spec for spec in crew.specs if spec.name == REDUCER), AgentSpec())
    task = spec.task or crew.task
    reduced = await crew.run(
        task,
        prompt=REDUCE.format(task=task),
        role=REDUCER,
        name=REDUCER,
        reads=results,
        model=spec.model,
        budget=spec.budget,
    )
    return _text(reduced)


async def _planned(crew: Crew) -> list[str]:
    """The parts that a first agent finds, one on each line of its answer."""
    prompt = PLAN.format(count=crew.agents, task=crew.task)
    plan = await crew.run(crew.task, prompt=prompt, role="planner", name="planner", joins=False)
    lines = (re.sub(r"^\s*(?:[-*•]|\(?\d+[.):])\s*", "", line).strip() for line in _text(plan).splitlines())
    parts = [line for line in lines if line]
    if not parts:
        raise SwarmFailed("the planner named no part of the task")
    if len(parts) > MOST_PARTS:
        raise SwarmFailed(f"the planner named {len(parts)} parts, and {MOST_PARTS} are the most")
    return parts


async def pipeline(crew: Crew) -> str:
    """One agent after the other; each reads the result of the one before."""
    before: AgentResult | None = None
    number = 1
    while number <= crew.agents:
        await crew.expect(crew.agents)
        spec = _spec(crew, number)
        previous = "" if before is None else "; the result of the one before is above"
        task = spec.task or crew.task
        before = await crew.run(
            task,
            prompt=STAGE.format(count=crew.agents, number=number, previous=previous, task=task),
            role="stage",
            name=spec.name or f"stage-{number}",
            reads=[] if before is None else [before],
            model=spec.model,
            budget=spec.budget,
        )
        _text(before)
        number += 1
    return "" if before is None else before.text


async def tree(crew: Crew) -> str:
    """One agent does the task, and may split it: parts are done by further agents, who may split theirs."""

    async def grow(id: str, task: str, depth: int, parent: str | None) -> AgentResult:
        async def split(parts: Sequence[str], before: int) -> Sequence[AgentResult]:
            return await crew.all(
                grow(f"{id}.{number}", part, depth + 1, id) for number, part in enumerate(parts, before + 1)
            )

        spec = _spec(crew, 1) if parent is None else AgentSpec()
        splits = depth < DEPTH
        return await crew.run(
            task,
            prompt=TREE.format(task=task) if splits else None,
            role="agent",
            name=id,
            parent=parent,
            model=spec.model,
            budget=spec.budget,
            on_split=split if splits else None,
        )

    return _text(await grow("agent-1", crew.task, 1, None))


def _text(result: AgentResult) -> str:
    """What an agent came to, where nothing goes on without it."""
    if not result.ok:
        raise SwarmFailed(f"{result.agent} has failed: {result.error}")
    return result.text


def _joined(results: Sequence[AgentResult]) -> str:
    return "\n\n".join(f"{result.agent}:\n{result.text}" for result in results)


STRATEGIES: dict[str, Strategy] = {
    "parallel": parallel,
    "map-reduce": map_reduce,
    "pipeline": pipeline,
    "tree": tree,
}


def strategy_of(name: str) -> Strategy:
    """The built-in strategy of that name. Raises `InvalidOperation`."""
    if name not in STRATEGIES:
        raise InvalidOperation(f"no strategy {name!r}: there are {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
