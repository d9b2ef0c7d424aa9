"""The meter: counts what models are paid for, and asks them nothing more once a budget is used up, or cannot be kept.

It cannot where answers do not tell what they took: then it would be no limit.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from sessiontree.config import Prices
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import is_failed_turn, sum_usage
from sessiontree.model.base import Finished, Model, ModelError, ModelEvent, ModelInfo, Request
from sessiontree.swarm.budget import EXHAUSTED_TEXT, Budget, BudgetKind, Spending

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
