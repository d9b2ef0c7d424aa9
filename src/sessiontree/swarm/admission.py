"""The gate: whether an agent may ask its model once more. It is asked before every call of a model.

It looks into the session, so that a pause, or what others have spent, counts whichever process it comes from. What is
spent beyond a budget is therefore no more than the calls that were under way.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing

from sessiontree.config import Prices
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import is_failed_turn, sum_usage
from sessiontree.model.base import Finished, Model, ModelError, ModelEvent, ModelInfo, Request
from sessiontree.swarm.budget import EXHAUSTED_TEXT, Budget, BudgetKind, LimitUsage, Spending
from sessiontree.swarm.events import BaseSwarmEvent, BudgetEvent, SwarmEvent
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.records import BudgetLevelRecord, PausedRecord, UnreportedUsageRecord
from sessiontree.swarm.replay import TrackedAgent, TrackedSwarm

FREE_PRICES = Prices()
"""Of a model of which it is known that it costs nothing."""


class BudgetExhausted(ModelError):
    """Nothing was asked, since a budget is used up or cannot be kept."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(model, "rejected", reason)


def find_unreported(info: ModelInfo, message: JsonObject) -> list[BudgetKind]:
    """What a model's answer does not tell of what it took."""
    if is_failed_turn(message):
        return []
    used = sum_usage(message.get("usage"))
    kinds: list[BudgetKind] = [] if info.prices == FREE_PRICES or (used and used.cost) else ["cost"]
    return kinds if used and used.tokens else [*kinds, "tokens"]


class BudgetMeter:
    """What was spent of one budget, from when it is made."""

    def __init__(self, budget: Budget | None, cost: float = 0.0, tokens: float = 0.0) -> None:
        """`cost` and `tokens` were spent before."""
        self._budget = budget
        self._cost = cost
        self._tokens = tokens
        self._start = time.monotonic()
        self._unreported: dict[BudgetKind, str] = {}

    def add(self, cost: float, tokens: float) -> None:
        self._cost += cost
        self._tokens += tokens

    def add_unreported(self, model: str, kinds: Iterable[BudgetKind]) -> None:
        """A model did not tell what it took."""
        self._unreported.update(dict.fromkeys(kinds, model))

    @property
    def stop_reason(self) -> str | None:
        """Why no model is asked any more."""
        if self._budget is None:
            return None
        seconds = time.monotonic() - self._start
        use = self._budget.find_exhausted(Spending(cost=self._cost, tokens=self._tokens, seconds=seconds))
        return (
            self._budget.explain_unenforceable(self._unreported)
            if use is None
            else f"the budget is {EXHAUSTED_TEXT}: {use}"
        )

    def wrap(self, model: Model) -> Model:
        """The model, counted. It raises `BudgetExhausted` where it would go beyond the budget."""
        return _MeteredModel(model, self)


class _MeteredModel:
    def __init__(self, model: Model, meter: BudgetMeter) -> None:
        self._model = model
        self._meter = meter

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        ended = self._meter.stop_reason
        if ended is not None:
            raise BudgetExhausted(self.info.name, ended)
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    used = sum_usage(event.message.get("usage"))
                    if used is not None:
                        self._meter.add(used.cost, used.tokens)
                    self._meter.add_unreported(self.info.name, find_unreported(self.info, event.message))
                yield event


class ChangeSignal:
    """Wakes all who wait for a change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next ring."""
        await self._event.wait()


class BudgetedModel:
    """An agent's model. It counts what is not in the session yet, and does not go beyond a budget with that.

    An answer is one call, and the gate was asked before it. A summary that makes room may take several: it is given up
    where the budget ends.
    """

    def __init__(
        self, model: Model, find_exhausted: Callable[[Spending], LimitUsage | None], unreported: dict[BudgetKind, str]
    ) -> None:
        """`untold` is given the model's name for what its answers do not tell."""
        self._model = model
        self._find_exhausted = find_exhausted
        self._unreported = unreported
        self.is_admitted = False
        """Whether the gate has let the next call through."""
        self.unrecorded = Spending()
        """What calls have cost whose answers are not in the session."""

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        use = None if self.is_admitted else self._find_exhausted(self.unrecorded)
        if use is not None:
            raise BudgetExhausted(self.info.name, f"the budget is {EXHAUSTED_TEXT}: {use}")
        self.is_admitted = False
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    used = sum_usage(event.message.get("usage"))
                    if used is not None:
                        self.unrecorded = self.unrecorded.add(Spending(used.cost, used.tokens))
                    self._unreported.update(dict.fromkeys(find_unreported(self.info, event.message), self.info.name))
                yield event


class AdmissionControl:
    def __init__(
        self,
        journal: SwarmJournal,
        changes: ChangeSignal,
        emit: Callable[[BaseSwarmEvent], None],
        now: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._changes = changes
        self._emit = emit
        self._now = now
        self._lock = asyncio.Lock()
        self.unreported = defaultdict[str, dict[BudgetKind, str]](dict)
        """Models that did not tell what they took, by agent and by what of it, until it is written down."""

    async def admit(self, agent: str) -> bool:
        """Whether the agent may go on; otherwise it has to wait, for what the session tells.

        When the swarm's budget is used up, or one cannot be kept, the swarm pauses.
        """
        await self.record_levels(agent)
        account = await self.pause_if_exhausted()
        return account.status == "running" and can_continue(account, account.agents[agent])

    async def record_levels(self, agent: str | None = None) -> None:
        """Write down which levels of budgets were reached, by those at work and by an agent that may have ended.

        And who did not tell what is limited.
        """
        account = await self._journal.refresh()
        if not self._list_new_levels(account, agent) and not self._list_unreported(account):
            return
        async with self._lock:
            for fact in self._list_unreported(self._journal.state):
                await self._journal.append_record(fact)
                self.unreported[fact.agent].pop(fact.kind, None)
            for fact in self._list_new_levels(self._journal.state, agent):
                await self._journal.append_record(fact)
                self._emit(
                    BudgetEvent(level=fact.level, used=fact.used, limit=fact.limit, kind=fact.kind, scope=fact.scope)
                )
        self._changes.notify()

    async def pause_if_exhausted(self) -> TrackedSwarm:
        """Pause the swarm if its budget is used up or cannot be kept; gives what is known then."""
        if self._find_pause_reason(self._journal.state) is not None:
            async with self._lock:
                why = self._find_pause_reason(self._journal.state)
                if why is not None:
                    await self.pause(why)
        return self._journal.state

    def _find_pause_reason(self, account: TrackedSwarm) -> str | None:
        """Why a running swarm has to pause."""
        if account.status != "running":
            return None
        use = account.budget and account.budget.find_exhausted(account.compute_spending(self._now()))
        if use is not None:
            return f"the budget is {EXHAUSTED_TEXT}: {use}"
        reasons = (
            budget.explain_unenforceable(kinds)
            for id, kinds in account.unreported.items()
            for budget in self._list_budgets(account, id)
        )
        return next((why for why in reasons if why is not None), None)

    def _list_unreported(self, account: TrackedSwarm) -> list[UnreportedUsageRecord]:
        """What models did not tell of what is limited."""
        return [
            UnreportedUsageRecord(swarm=self._journal.id, agent=id, kind=kind, model=model)
            for id, kinds in self.unreported.items()
            for kind, model in kinds.items()
            if any(getattr(budget, kind) is not None for budget in self._list_budgets(account, id))
        ]

    def _list_budgets(self, account: TrackedSwarm, agent: str) -> list[Budget]:
        """All that limit an agent."""
        own = account.agents.get(agent)
        limits = (account.budget, None if own is None else account.get_agent_budget(own))
        return [budget for budget in limits if budget is not None]

    def find_exhausted_limit(self, agent: str, unrecorded: Spending) -> LimitUsage | None:
        """A limit that is used up with what the agent has spent beside what the session tells."""
        account, now = self._journal.state, self._now()
        own = account.agents[agent]
        limits = (
            (account.budget, account.compute_spending(now)),
            (account.get_agent_budget(own), own.compute_spending(now)),
        )
        uses = (budget.find_exhausted(spending.add(unrecorded)) for budget, spending in limits if budget is not None)
        return next((use for use in uses if use is not None), None)

    async def pause(self, reason: str | None) -> None:
        await self._journal.append_record(PausedRecord(swarm=self._journal.id, reason=reason))
        self._emit(SwarmEvent(status="paused", reason=reason))
        self._changes.notify()

    def _list_new_levels(self, account: TrackedSwarm, agent: str | None) -> list[BudgetLevelRecord]:
        """Levels that were reached and are not written down yet."""
        now = self._now()
        scopes: list[tuple[str, Budget | None, Spending]] = [("swarm", account.budget, account.compute_spending(now))]
        for one in account.agents.values():
            if one.end_state is None or one.id == agent:
                scopes.append((one.id, account.get_agent_budget(one), one.compute_spending(now)))
        return [
            BudgetLevelRecord(
                swarm=self._journal.id, scope=scope, kind=use.kind, level=use.level, used=use.used, limit=use.limit
            )
            for scope, budget, spending in scopes
            if budget is not None
            for use in budget.list_usage(spending)
            if use.level is not None and (scope, use.kind, use.level) not in account.reached_levels
        ]

    def compute_time_left(self) -> float | None:
        """Seconds until time alone makes the next level of a budget; `None` where none is ahead."""
        account, now = self._journal.state, self._now()
        passing = [(account.stopwatch, account.budget, account.compute_spending(now))]
        for agent in account.agents.values():
            passing.append((agent.stopwatch, account.get_agent_budget(agent), agent.compute_spending(now)))
        left = [
            budget.compute_time_left(spending)
            for watch, budget, spending in passing
            if budget and watch.started_at is not None
        ]
        return min((seconds for seconds in left if seconds is not None), default=None)


def can_continue(account: TrackedSwarm, agent: TrackedAgent) -> bool:
    """Whether nothing of its own keeps an agent from going on."""
    return agent.end_state is None and not agent.parts and not account.is_exhausted(agent)
