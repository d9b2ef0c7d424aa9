"""Admission control: check budgets and pauses before every model call, and count the usage of each call.

`AdmissionControl` reads the session before it decides, so a pause or spending counts whichever process it comes from.
A call is admitted only if the calls in progress leave something of the budget: so one call at most exceeds it, or more
if they use more than all before them.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from sessiontree.config import Prices
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import is_failed_turn, sum_usage
from sessiontree.model.base import Finished, Model, ModelError, ModelEvent, ModelInfo, Request
from sessiontree.swarm.budget import Budget, BudgetKind, LimitUsage, Spending, format_exhausted
from sessiontree.swarm.events import BaseSwarmEvent, BudgetEvent, SwarmEvent
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.records import BudgetLevelRecord, PausedRecord, UnreportedUsageRecord
from sessiontree.swarm.replay import TrackedAgent, TrackedSwarm

FREE_PRICES = Prices()
"""Prices of a model that is known to be free."""


class BudgetExhausted(ModelError):
    """The call was not made: a budget is used up or cannot be enforced."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(model, "rejected", reason)


def find_unreported(info: ModelInfo, message: JsonObject) -> list[BudgetKind]:
    """Return the kinds of usage that a model's answer does not report."""
    if is_failed_turn(message):
        return []
    used = sum_usage(message.get("usage"))
    kinds: list[BudgetKind] = [] if info.prices == FREE_PRICES or (used and used.cost) else ["cost"]
    return kinds if used and used.tokens else [*kinds, "tokens"]


class MeteredModel:
    """A model whose calls are checked before they are made and counted afterwards."""

    def __init__(
        self,
        model: Model,
        find_stop_reason: Callable[[], str | None],
        count: Callable[[Spending, Sequence[BudgetKind]], None],
    ) -> None:
        """`find_stop_reason` returns a reason to refuse the call. `count` gets its usage and the kinds not reported."""
        self._model = model
        self._find_stop_reason = find_stop_reason
        self._count = count

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        """Stream an answer. Raises `BudgetExhausted` instead of exceeding the budget."""
        reason = self._find_stop_reason()
        if reason is not None:
            raise BudgetExhausted(self.info.name, reason)
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    used = sum_usage(event.message.get("usage"))
                    spending = Spending() if used is None else Spending(used.cost, used.tokens)
                    self._count(spending, find_unreported(self.info, event.message))
                yield event


class BudgetMeter:
    """Counts spending against one budget. Time is counted from when the meter is created."""

    def __init__(self, budget: Budget | None, cost: float = 0.0, tokens: float = 0.0) -> None:
        """`cost` and `tokens` were spent earlier."""
        self._budget = budget
        self._spent = Spending(cost, tokens)
        self._start = time.monotonic()
        self._unreported: dict[BudgetKind, str] = {}

    def add(self, spending: Spending) -> None:
        self._spent = self._spent.add(spending)

    def add_unreported(self, model: str, kinds: Iterable[BudgetKind]) -> None:
        """Note that a model did not report some kinds of usage."""
        self._unreported.update(dict.fromkeys(kinds, model))

    @property
    def stop_reason(self) -> str | None:
        """Why no further call may be made, or `None`."""
        if self._budget is None:
            return None
        usage = self._budget.find_exhausted(self._spent.add(Spending(seconds=time.monotonic() - self._start)))
        return self._budget.explain_unenforceable(self._unreported) if usage is None else format_exhausted(usage)

    def wrap(self, model: Model) -> Model:
        """Return the model with its calls checked and counted by this meter."""

        def count(spending: Spending, unreported: Sequence[BudgetKind]) -> None:
            self.add(spending)
            self.add_unreported(model.info.name, unreported)

        return MeteredModel(model, lambda: self.stop_reason, count)


class BudgetedModel(MeteredModel):
    """An agent's model. It counts usage that is not in the session yet and stops when that exceeds a budget.

    An answer takes one call, which `AdmissionControl` has admitted. A compaction may take several calls and is
    interrupted when the budget runs out.
    """

    def __init__(
        self, model: Model, find_exhausted: Callable[[Spending], LimitUsage | None], unreported: dict[BudgetKind, str]
    ) -> None:
        """`unreported` receives the model's name for each kind of usage that its answers do not report."""
        super().__init__(model, self._check_call, self._count_call)
        self._find_exhausted = find_exhausted
        self._unreported = unreported
        self.is_admitted = False
        """Whether the next call was admitted."""
        self.unrecorded = Spending()
        """The usage of calls whose answers are not in the session."""

    def _check_call(self) -> str | None:
        usage = None if self.is_admitted else self._find_exhausted(self.unrecorded)
        if usage is None:
            self.is_admitted = False
        return None if usage is None else format_exhausted(usage)

    def _count_call(self, spending: Spending, unreported: Sequence[BudgetKind]) -> None:
        self.unrecorded = self.unrecorded.add(spending)
        self._unreported.update(dict.fromkeys(unreported, self.info.name))


class ChangeSignal:
    """Wakes all tasks that wait for a change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next call of `notify`."""
        await self._event.wait()


class AdmissionControl:
    """Decides whether agents may call their models, and records budget levels and pauses of one swarm."""

    def __init__(
        self,
        journal: SwarmJournal,
        changes: ChangeSignal,
        emit: Callable[[BaseSwarmEvent], None],
        now: Callable[[], int],
    ) -> None:
        self._journal = journal
        self.changes = changes
        self._emit = emit
        self._now = now
        self._lock = asyncio.Lock()
        self.unreported = defaultdict[str, dict[BudgetKind, str]](dict)
        """Models that did not report usage and are not recorded yet, by agent id and kind of usage."""

    async def admit(self, agent: str) -> bool:
        """Return whether the agent may make another model call. If not, the session contains the reason.

        Pauses the swarm if its budget is used up or a budget cannot be enforced.
        """
        await self.record_levels(agent)
        state = await self.pause_if_exhausted()
        tracked = state.agents[agent]
        return state.status == "running" and can_continue(state, tracked) and self.has_budget_for_call(tracked)

    def has_budget_for_call(self, agent: TrackedAgent) -> bool:
        """Whether the calls that other agents may be making leave budget for one of this agent."""
        return self._journal.state.has_budget_for_call(agent, self._now())

    async def record_levels(self, agent: str | None = None) -> None:
        """Record budget levels that running agents, and `agent` even if it has ended, have reached.

        Also records models that did not report usage that a budget limits.
        """
        state = await self._journal.refresh()
        if not self._list_new_levels(state, agent) and not self._list_unreported(state):
            return
        async with self._lock:
            for record in self._list_unreported(self._journal.state):
                await self._journal.append_record(record)
                self.unreported[record.agent].pop(record.kind, None)
            for record in self._list_new_levels(self._journal.state, agent):
                await self._journal.append_record(record)
                self._emit(
                    BudgetEvent(
                        level=record.level, used=record.used, limit=record.limit, kind=record.kind, scope=record.scope
                    )
                )
        self.changes.notify()

    async def pause_if_exhausted(self) -> TrackedSwarm:
        """Pause the swarm if its budget is used up or a budget cannot be enforced. Return the swarm's state."""
        if self._find_pause_reason(self._journal.state) is not None:
            async with self._lock:
                why = self._find_pause_reason(self._journal.state)
                if why is not None:
                    await self.pause(why)
        return self._journal.state

    def _find_pause_reason(self, state: TrackedSwarm) -> str | None:
        """Return why a running swarm has to pause, or `None`."""
        if state.status != "running":
            return None
        use = state.budget and state.budget.find_exhausted(state.compute_spending(self._now()))
        if use is not None:
            return format_exhausted(use)
        reasons = (
            budget.explain_unenforceable(kinds)
            for id, kinds in state.unreported.items()
            for budget in self._list_budgets(state, id)
        )
        return next((why for why in reasons if why is not None), None)

    def _list_unreported(self, state: TrackedSwarm) -> list[UnreportedUsageRecord]:
        """Build records for models that did not report usage that a budget limits."""
        return [
            UnreportedUsageRecord(swarm=self._journal.id, agent=id, kind=kind, model=model)
            for id, kinds in self.unreported.items()
            if kinds and (budgets := self._list_budgets(state, id))
            for kind, model in kinds.items()
            if any(getattr(budget, kind) is not None for budget in budgets)
        ]

    def _list_budgets(self, state: TrackedSwarm, agent: str) -> list[Budget]:
        """Return the budgets that limit an agent: the swarm's and the agent's."""
        own = state.agents.get(agent)
        limits = (state.budget, None if own is None else state.get_agent_budget(own))
        return [budget for budget in limits if budget is not None]

    def find_exhausted_limit(self, agent: str, unrecorded: Spending) -> LimitUsage | None:
        """Return a limit that is used up if `unrecorded` spending of the agent is added, or `None`."""
        state, now = self._journal.state, self._now()
        own = state.agents[agent]
        limits = (
            (state.budget, state.compute_spending(now)),
            (state.get_agent_budget(own), own.compute_spending(now)),
        )
        uses = (budget.find_exhausted(spending.add(unrecorded)) for budget, spending in limits if budget is not None)
        return next((use for use in uses if use is not None), None)

    async def pause(self, reason: str | None) -> None:
        await self._journal.append_record(PausedRecord(swarm=self._journal.id, reason=reason))
        self._emit(SwarmEvent(status="paused", reason=reason))
        self.changes.notify()

    def _list_new_levels(self, state: TrackedSwarm, agent: str | None) -> list[BudgetLevelRecord]:
        """Build records for budget levels that were reached and are not recorded yet."""
        now = self._now()
        scopes: list[tuple[str, Budget, Spending]] = []
        if state.budget is not None:
            scopes.append(("swarm", state.budget, state.compute_spending(now)))
        for one in state.agents.values():
            budget = state.get_agent_budget(one)
            if budget is not None and (one.end_state is None or one.id == agent):
                scopes.append((one.id, budget, one.compute_spending(now)))
        return [
            BudgetLevelRecord(
                swarm=self._journal.id, scope=scope, kind=use.kind, level=level, used=use.used, limit=use.limit
            )
            for scope, budget, spending in scopes
            for use in budget.list_usage(spending)
            for level in use.reached_levels
            if (scope, use.kind, level) not in state.reached_levels
        ]

    def compute_time_left(self) -> float | None:
        """Return the seconds until running time reaches the next level of a budget, or `None`."""
        state, now = self._journal.state, self._now()
        passing = [(state.stopwatch, state.budget, state.compute_spending(now))]
        for agent in state.agents.values():
            passing.append((agent.stopwatch, state.get_agent_budget(agent), agent.compute_spending(now)))
        left = [
            budget.compute_time_left(spending)
            for watch, budget, spending in passing
            if budget and watch.started_at is not None
        ]
        return min((seconds for seconds in left if seconds is not None), default=None)


def can_continue(state: TrackedSwarm, agent: TrackedAgent) -> bool:
    """Whether an agent has work to do: it has not ended, waits for no parts, and its budget is not used up."""
    return agent.end_state is None and not agent.parts and not state.is_exhausted(agent)
