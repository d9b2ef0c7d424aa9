"""The meter: counts what models are paid for, and asks them nothing more once a budget is used up."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sessiontree.core.messages import spent
from sessiontree.model.base import Finished, Model, ModelError, ModelEvent, ModelInfo, Request
from sessiontree.swarm.budget import Budget, Spending, Use


class BudgetExhausted(ModelError):
    """Nothing was asked, since a budget is used up."""

    def __init__(self, model: str, use: Use) -> None:
        super().__init__(model, "rejected", f"the budget is used up: {use}")
        self.use = use


class Meter:
    """What was spent of one budget, from when it is made."""

    def __init__(self, budget: Budget | None, cost: float = 0.0, tokens: float = 0.0) -> None:
        """`cost` and `tokens` were spent before."""
        self._budget = budget
        self._cost = cost
        self._tokens = tokens
        self._start = time.monotonic()

    def add(self, cost: float, tokens: float) -> None:
        self._cost += cost
        self._tokens += tokens

    @property
    def exhausted(self) -> Use | None:
        """The limit that is used up."""
        if self._budget is None:
            return None
        seconds = time.monotonic() - self._start
        return self._budget.exhausted(Spending(cost=self._cost, tokens=self._tokens, seconds=seconds))

    def metered(self, model: Model) -> Model:
        """The model, counted. It raises `BudgetExhausted` where it would go beyond the budget."""
        return _Metered(model, self)


class _Metered:
    def __init__(self, model: Model, meter: Meter) -> None:
        self._model = model
        self._meter = meter

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def stream(self, request: Request) -> AsyncGenerator[ModelEvent]:
        use = self._meter.exhausted
        if use is not None:
            raise BudgetExhausted(self.info.name, use)
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                used = spent(event.message.get("usage")) if isinstance(event, Finished) else None
                if used is not None:
                    self._meter.add(used.cost, used.tokens)
                yield event
