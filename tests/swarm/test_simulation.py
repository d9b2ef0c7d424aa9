"""Swarms under simulated faults: failing models, used up budgets, pauses, and processes that crash at any write.

Each seed is one simulation. After every process and at the end, the tree is valid, every answer is at its place, no
finished work was repeated, and the status from the session equals the status of the live swarm.
"""

from __future__ import annotations

import asyncio
import os
from random import Random

import pytest

import sessiontree as st
from sessiontree.core.context import build_context
from sessiontree.core.entries import AgentAction, BranchSummary, Entry, Message
from sessiontree.core.messages import extract_text, get_role, is_failed_turn
from sessiontree.core.operation_plans import get_merge_sources
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.session import Session
from sessiontree.swarm.budget import Budget
from sessiontree.swarm.journal import list_swarms
from sessiontree.swarm.records import END_STATES, SwarmStatus
from sessiontree.swarm.scheduler import Scheduler
from sessiontree.swarm.swarm import Swarm
from tests.swarm.simulated_world import (
    COST,
    START,
    TOKENS,
    CrashingStore,
    InstantLoop,
    RandomModel,
    build_id_generator,
    compute_digest,
    open_session,
)

SEEDS = 4_000 if os.environ.get("SESSIONTREE_TORTURE") else 200
GROUPS = 20
"""The number of tests over which the seeds are divided, for parallel test runs."""
LIVES = 4
LONG = 5_000.0
"""The limit of simulated seconds for one process."""


async def run_two_rounds(crew: Scheduler) -> str:
    """A custom strategy: several agents, and one that reads their results."""
    first = await crew.gather(crew.run(f"{crew.task} {number}", role="scout") for number in range(1, crew.agents + 1))
    last = await crew.run(crew.task, role="chief", reads=[result for result in first if result.ok])
    return last.text


REASONS = ("by chance", "a fault in a model", "another writer moved branch")
"""All reasons for which agents can fail in the simulation."""

DEFEATS = (" failed: ", "no agent completed the task", "no part of the task was completed")
"""All reasons for which swarms can fail."""

STRATEGIES = ["parallel", "map-reduce", "pipeline", "tree", run_two_rounds]


@st.tool
async def note(words: str) -> str:
    """Take a note."""
    await asyncio.sleep(0.1)
    return "noted"


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.strategy = self.random.choice(STRATEGIES)
        self.budget = self._choose_budget(6)
        self.agent_budget = self._choose_budget(2)
        self.data: bytes | None = None
        self.now = 0.0
        self.id = ""
        self.done: dict[str, SwarmStatus] = {}

    def _choose_budget(self, size: float) -> Budget | None:
        random = self.random
        if random.random() < 0.4:
            return None
        kind = random.choice(["cost", "tokens", "seconds"])
        scale = {"cost": 1.0, "tokens": 15, "seconds": 3.0}[kind]
        return Budget(**{kind: type(scale)(scale * random.randint(1, int(size * 2)))})

    def play(self) -> None:
        for life in range(LIVES):
            last = life == LIVES - 1
            loop = InstantLoop(self.now)
            try:
                over = loop.run_until_complete(asyncio.wait_for(self._run_life(loop, last), LONG))
            finally:
                self.now = loop.time() + 10
                for task in asyncio.all_tasks(loop):
                    task.cancel()
                loop.run_until_complete(asyncio.sleep(0))
                loop.close()
            if over:
                return
        raise AssertionError("it never came to its end")

    async def _run_life(self, loop: InstantLoop, last: bool) -> bool:
        """Run one process until the swarm ends or the process crashes. Return whether the swarm ended."""
        random = self.random
        disk = CrashingStore(self.data)
        if self.data is None:
            Session.create(disk, id="s", now=lambda: START, new_id=build_id_generator(random)).append(st.user("Hello"))
        session = open_session(disk, loop, random)
        model = RandomModel(random, faults=0.0 if last else random.choice([0, 0.1, 0.4]))
        swarm = await self._open_swarm(session, model, loop)
        if not last:
            disk.fatal = disk.writes + random.randint(1, 60)
        living = asyncio.create_task(self._run_swarm(swarm, session, model, last))
        dying = asyncio.create_task(disk.died.wait())
        await asyncio.wait([living, dying], return_when=asyncio.FIRST_COMPLETED)
        dead = disk.died.is_set()
        if not dead:
            living.result()
            self._check(session, disk, swarm)
        for task in (living, dying):
            task.cancel()
        await asyncio.wait([living, dying])
        await swarm.detach()
        self.data = disk.image if dead else disk.data
        assert self.data is not None
        self._check_tree(open_session(CrashingStore(self.data), loop, Random(0)))
        return not dead and swarm.status().status in END_STATES

    async def _open_swarm(self, session: Session, model: RandomModel, loop: InstantLoop) -> Swarm:
        outfit = {
            "model": model,
            "tools": [note],
            "system": "Be brief.",
            "now": lambda: START + int(loop.time() * 1000),
        }
        if self.id and any(status.id == self.id for status in list_swarms(session)):
            own = None if isinstance(self.strategy, str) else self.strategy
            return Swarm.open(session, self.id, strategy=own, **outfit)
        swarm = await Swarm.create(
            session,
            "crowd",
            "Do it",
            strategy=self.strategy,
            agents=self.random.randint(1, 3),
            max_agents=4,
            budget=self.budget,
            agent_budget=self.agent_budget,
            parts=["part a", "part b", "part c"] if self.random.random() < 0.5 else None,
            enable_event_streaming=False,
            **outfit,
        )
        self.id = swarm.id
        return swarm

    async def _run_swarm(self, swarm: Swarm, session: Session, model: RandomModel, last: bool) -> None:
        if swarm.status().status in END_STATES:
            return
        await swarm.start()
        meddling = asyncio.create_task(self._interfere(swarm, session, last))
        try:
            while (status := await swarm.wait()).status not in END_STATES:
                assert status.status == "paused"
                assert model.under_way == 0
                self._check_live(session, swarm)
                self._check_budget(swarm)
                larger = {"budget": _enlarge(status.budget), "agent_budget": _enlarge(swarm._state.agent_budget)}
                try:
                    await swarm.resume(**larger if last or self.random.random() < 0.7 else {})
                except InvalidOperation:  # the other actor was faster
                    continue
        finally:
            meddling.cancel()
            await asyncio.wait([meddling])
            if not meddling.cancelled():
                meddling.result()

    async def _interfere(self, swarm: Swarm, session: Session, last: bool) -> None:
        """Pause, resume, scale, steer and navigate while the swarm runs."""
        random = self.random
        for _ in range(random.randint(0, 6)):
            await asyncio.sleep(random.choice([0, 0.1, 1, 5]))
            agents = [agent.id for agent in swarm.status().agents]
            try:
                match random.randrange(9):
                    case 0:
                        await swarm.pause("somebody wanted it")
                    case 1:
                        await swarm.resume()
                    case 2:
                        await swarm.scale(random.randint(1, 4))
                    case 3 if agents:
                        await swarm.steer(random.choice(agents), "and quickly")
                    case 4:
                        session.append(st.user("By the way"), branch="main")
                    case 5:
                        session.switch(random.choice(list(session.heads.heads)))
                    case 6 if random.random() < 0.3 and not last:
                        await swarm.cancel("enough")
                    case 7:
                        await swarm.create_branch(f"way-{random.getrandbits(32):x}", "another way")
                    case 8 if agents and random.random() < 0.3:
                        branch = swarm._state.agents[random.choice(agents)].spawn.branch
                        session.move(session.tree[swarm._state.start_entry], branch=branch)
                    case _:
                        pass
            except SessionTreeError:
                continue

    # Checks

    def _check_budget(self, swarm: Swarm) -> None:
        """Check that no model call starts after a limit is used up. Only calls in progress may exceed it."""
        account = swarm._state
        spending = account.compute_spending(None)
        at_once = 4
        if account.budget is not None and account.budget.cost is not None:
            assert spending.cost <= account.budget.cost + at_once * COST
        if account.budget is not None and account.budget.tokens is not None:
            assert spending.tokens <= account.budget.tokens + at_once * TOKENS
        for agent in account.agents.values():
            own = account.get_agent_budget(agent)
            if own is not None and own.cost is not None:
                assert agent.cost <= own.cost + COST
            if own is not None and own.tokens is not None:
                assert agent.tokens <= own.tokens + TOKENS

    def _check_live(self, session: Session, swarm: Swarm) -> None:
        """The status read from the session equals the live status."""
        copy = Session(CrashingStore(_read_bytes(session)))
        assert list_swarms(copy) == [swarm._state.build_status(None, session.id)]
        assert copy.heads.heads == session.heads.heads
        assert copy.heads.current == session.heads.current

    def _check(self, session: Session, disk: CrashingStore, swarm: Swarm) -> None:
        self._check_live(session, swarm)
        status = swarm.status()
        assert all(agent.status in ("completed", "failed", "cancelled") for agent in status.agents)
        if status.status == "completed":
            assert status.progress == 1
            merged = {
                id for entry in session.tree.path(session.branch(status.branch).leaf) for id in get_merge_sources(entry)
            }
            for agent in swarm._state.unread_agents:
                done = next(e for e in reversed(session.tree.entries) if _is_action(e, agent.id, "complete"))
                assert done.id in merged, f"the result of {agent.id} is not on the swarm's branch"

    def _check_tree(self, session: Session) -> None:
        assert not [problem for problem in session.problems if problem.severity == "fault"]
        tree = session.tree
        for entry in tree.entries:
            if isinstance(entry.body, Message):
                self._check_place(session, entry)
        for name in session.heads.heads:
            merged = [id for entry in session.branch(name).path() for id in get_merge_sources(entry)]
            assert len(merged) == len(set(merged)), f"a result occurs twice on {name}"
        for status in list_swarms(session):
            assert status.status != "failed" or any(why in (status.reason or "") for why in DEFEATS), status.reason
            for agent in status.agents:
                self._check_agent(session, agent.id, agent.branch, agent.text)
                prompts = [e for e in tree.entries if e.branch == agent.branch and _is_prompt(e, agent.task)]
                assert len(prompts) <= 1, f"{agent.id} got its task twice"
                assert agent.status != "failed" or any(why in (agent.error or "") for why in REASONS), agent.error
                known = self.done.get(agent.id)
                if known is not None and agent.id in {a.id for a in known.agents if a.status == "completed"}:
                    before = next(a for a in known.agents if a.id == agent.id)
                    assert (before.text, before.cost, before.tokens) == (agent.text, agent.cost, agent.tokens)
            self.done = {agent.id: status for agent in status.agents}

    def _check_place(self, session: Session, entry: Entry) -> None:
        """Check that an answer is below the request that it answers."""
        message = entry.body.message
        if get_role(message) == "assistant" and not is_failed_turn(message):
            asked = build_context(session.tree, session.tree.parent(entry.id)).to_llm()
            assert f"asked {compute_digest(asked)}" in extract_text(message["content"]), (
                f"{entry.id} is at a wrong place"
            )

    def _check_agent(self, session: Session, id: str, branch: str, result: str | None) -> None:
        """A completed agent's branch has no later messages, and its result is the last message."""
        lines = [e for e in session.tree.entries if e.branch == branch]
        ended = [index for index, e in enumerate(lines) if _is_action(e, id, "complete")]
        assert len(ended) <= 1, f"{id} has completed twice"
        if ended:
            after = lines[ended[0] + 1 :]
            assert not [e for e in after if isinstance(e.body, Message | BranchSummary)], f"{id} was asked again"
            answers = [e.body.message for e in lines[: ended[0]] if isinstance(e.body, Message)]
            whole = [m for m in answers if get_role(m) == "assistant" and not is_failed_turn(m)]
            assert result == extract_text(whole[-1]["content"])


def _is_prompt(entry: Entry, task: str) -> bool:
    body = entry.body
    said = body.message if isinstance(body, Message) else {}
    return get_role(said) == "user" and task in extract_text(said["content"])


def _is_action(entry: Entry, agent: str, action: str) -> bool:
    return isinstance(entry.body, AgentAction) and (entry.body.agent, entry.body.action) == (agent, action)


def _read_bytes(session: Session) -> bytes:
    return b"".join(line + b"\n" for line in session.read_lines())


def _enlarge(budget: Budget | None) -> Budget | None:
    if budget is None:
        return None
    limits = {kind: getattr(budget, kind) for kind in ("cost", "tokens", "seconds")}
    return Budget(**{kind: None if limit is None else limit * 3 for kind, limit in limits.items()})


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_swarm_survives_random_faults(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        try:
            World(seed).play()
        except BaseException as error:
            raise AssertionError(f"seed {seed} of the simulation") from error


def test_a_time_budget_below_the_clock_resolution_does_not_cause_a_busy_loop() -> None:
    World(1699).play()


def test_a_branch_that_is_moved_while_a_result_is_merged_into_it_does_not_end_the_swarm() -> None:
    World(3191).play()


@pytest.mark.parametrize("seed", [917, 3891])
def test_an_agent_that_its_strategy_runs_later_holds_no_budget_back(seed: int) -> None:
    World(seed).play()


def test_a_swarm_pauses_if_an_agent_uses_up_its_time_while_it_waits_for_others() -> None:
    World(1629).play()
