"""The gate: whether an agent may ask its model once more. It is asked before every call of a model.

It looks into the session, so that a pause, or what others have spent, counts whichever process it comes from. What is
spent beyond a budget is therefore no more than the calls that were under way.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from sessiontree.core.messages import spent
from sessiontree.model.base import Finished, Model, ModelEvent, ModelInfo, Request
from sessiontree.swarm.account import Account, AgentAccount
from sessiontree.swarm.budget import USED_UP, Budget, Kind, Spending, Use
from sessiontree.swarm.events import BudgetEvent, Event, SwarmEvent
from sessiontree.swarm.facts import Paused, Reached, Untold
from sessiontree.swarm.meter import BudgetExhausted, untold
from sessiontree.swarm.record import Record


class Bell:
    """Wakes all who wait for a change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait for the next ring."""
        await self._event.wait()


class CountedModel:
    """An agent's model. It counts what is not in the session yet, and does not go beyond a budget with that.

    An answer is one call, and the gate was asked before it. A summary that makes room may take several: it is given up
    where the budget ends.
    """

    def __init__(self, model: Model, used_up: Callable[[Spending], Use | None], untold: dict[Kind, str]) -> None:
        """`untold` is given the model's name for what its answers do not tell."""
        self._model = model
        self._used_up = used_up
        self._untold = untold
        self.admitted = False
        """Whether the gate has let the next call through."""
        self.loose = Spending()
        """What calls have cost whose answers are not in the session."""

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        use = None if self.admitted else self._used_up(self.loose)
        if use is not None:
            raise BudgetExhausted(self.info.name, f"the budget is {USED_UP}: {use}")
        self.admitted = False
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    used = spent(event.message.get("usage"))
                    if used is not None:
                        self.loose = self.loose.plus(Spending(used.cost, used.tokens))
                    self._untold.update(dict.fromkeys(untold(self.info, event.message), self.info.name))
                yield event


class Gate:
    def __init__(self, record: Record, bell: Bell, emit: Callable[[Event], None], now: Callable[[], int]) -> None:
        self._record = record
        self._bell = bell
        self._emit = emit
        self._now = now
        self._noting = asyncio.Lock()
        self.untold = defaultdict[str, dict[Kind, str]](dict)
        """Models that did not tell what they took, by agent and by what of it, until it is written down."""

    async def admits(self, agent: str) -> bool:
        """Whether the agent may go on; otherwise it has to wait, for what the session tells.

        When the swarm's budget is used up, or one cannot be kept, the swarm pauses.
        """
        await self.note(agent)
        account = await self.pause_if_used_up()
        return account.status == "running" and free(account, account.agents[agent])

    async def note(self, agent: str | None = None) -> None:
        """Write down which levels of budgets were reached, by those at work and by an agent that may have ended.

        And who did not tell what is limited.
        """
        account = await self._record.look()
        if not self._due(account, agent) and not self._lacking(account):
            return
        async with self._noting:
            for fact in self._lacking(self._record.account):
                await self._record.tell(fact)
                self.untold[fact.agent].pop(fact.kind, None)
            for fact in self._due(self._record.account, agent):
                await self._record.tell(fact)
                self._emit(
                    BudgetEvent(level=fact.level, used=fact.used, limit=fact.limit, kind=fact.kind, scope=fact.scope)
                )
        self._bell.ring()

    async def pause_if_used_up(self) -> Account:
        """Pause the swarm if its budget is used up or cannot be kept; gives what is known then."""
        if self._ended(self._record.account) is not None:
            async with self._noting:
                why = self._ended(self._record.account)
                if why is not None:
                    await self.pause(why)
        return self._record.account

    def _ended(self, account: Account) -> str | None:
        """Why a running swarm has to pause."""
        if account.status != "running":
            return None
        use = account.budget and account.budget.exhausted(account.spending(self._now()))
        if use is not None:
            return f"the budget is {USED_UP}: {use}"
        reasons = (
            budget.unkept(kinds) for id, kinds in account.untold.items() for budget in self._budgets(account, id)
        )
        return next((why for why in reasons if why is not None), None)

    def _lacking(self, account: Account) -> list[Untold]:
        """What models did not tell of what is limited."""
        return [
            Untold(swarm=self._record.id, agent=id, kind=kind, model=model)
            for id, kinds in self.untold.items()
            for kind, model in kinds.items()
            if any(getattr(budget, kind) is not None for budget in self._budgets(account, id))
        ]

    def _budgets(self, account: Account, agent: str) -> list[Budget]:
        """All that limit an agent."""
        own = account.agents.get(agent)
        limits = (account.budget, None if own is None else account.budget_of(own))
        return [budget for budget in limits if budget is not None]

    def used_up(self, agent: str, loose: Spending) -> Use | None:
        """A limit that is used up with what the agent has spent beside what the session tells."""
        account, now = self._record.account, self._now()
        own = account.agents[agent]
        limits = (
            (account.budget, account.spending(now)),
            (account.budget_of(own), own.spending(now)),
        )
        uses = (budget.exhausted(spending.plus(loose)) for budget, spending in limits if budget is not None)
        return next((use for use in uses if use is not None), None)

    async def pause(self, reason: str | None) -> None:
        await self._record.tell(Paused(swarm=self._record.id, reason=reason))
        self._emit(SwarmEvent(status="paused", reason=reason))
        self._bell.ring()

    def _due(self, account: Account, agent: str | None) -> list[Reached]:
        """Levels that were reached and are not written down yet."""
        now = self._now()
        scopes: list[tuple[str, Budget | None, Spending]] = [("swarm", account.budget, account.spending(now))]
        for one in account.agents.values():
            if one.ended is None or one.id == agent:
                scopes.append((one.id, account.budget_of(one), one.spending(now)))
        return [
            Reached(swarm=self._record.id, scope=scope, kind=use.kind, level=use.level, used=use.used, limit=use.limit)
            for scope, budget, spending in scopes
            if budget is not None
            for use in budget.uses(spending)
            if use.level is not None and (scope, use.kind, use.level) not in account.reached
        ]

    def time_left(self) -> float | None:
        """Seconds until time alone makes the next level of a budget; `None` where none is ahead."""
        account, now = self._record.account, self._now()
        passing = [(account.watch, account.budget, account.spending(now))]
        for agent in account.agents.values():
            passing.append((agent.watch, account.budget_of(agent), agent.spending(now)))
        left = [budget.time_left(spending) for watch, budget, spending in passing if budget and watch.since is not None]
        return min((seconds for seconds in left if seconds is not None), default=None)


def free(account: Account, agent: AgentAccount) -> bool:
    """Whether nothing of its own keeps an agent from going on."""
    return agent.ended is None and not agent.parts and not account.exhausted(agent)
