"""Summarizing: the one way in which a model makes a summary.

An answer that is cut off, fails, calls a tool or says nothing is no summary. When a stream breaks off in the middle,
the model is asked again, as for other answers. Nothing is written here: a summary that was not made leaves everything
as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sessiontree.config import RetrySettings
from sessiontree.core.compaction import CompactionPreparation, WindowBudget
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import (
    COST_KEYS,
    TOKEN_KEYS,
    coerce_number,
    coerce_string,
    complete_usage,
    extract_text,
    get_tool_calls,
    is_object,
    user,
)
from sessiontree.core.summary_prompts import (
    NO_HISTORY,
    SYSTEM_PROMPT,
    build_branch_prompt,
    build_history_prompt,
    build_prefix_prompt,
    choose_prompts,
    format_message,
    format_newest,
    join_split_turn,
    join_within_budget,
)
from sessiontree.core.token_estimate import CHARACTERS_PER_TOKEN
from sessiontree.errors import SessionTreeError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import RetryScheduled, Signal
from sessiontree.model.base import Model, ModelError, PartialMessage, Request, complete
from sessiontree.model.retry import compute_backoff
from sessiontree.ops.hook_requests import run_unless_aborted

MIN_SHARE = 1 / 8
"""Of the estimated room. A token may be a single character, where four were thought to be one."""


class SummaryFailed(SessionTreeError):
    """A model gave an answer that is no summary."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"{model} made no summary: {reason}")
        self.model = model
        self.reason = reason


class Summarizer:
    """Makes the summaries of one operation."""

    def __init__(
        self,
        model: Model,
        signal: Signal,
        shares: WindowBudget,
        *,
        hooks: Hooks,
        retry: RetrySettings,
        thinking: str = "off",
    ) -> None:
        """`hooks` are shown when a request is made again."""
        self._model = model
        self._hooks = hooks
        self._retry = retry
        self._signal = signal
        self._budget = shares
        self._thinking = thinking if model.info.thinking else "off"
        self._task = choose_prompts(shares.window)
        self._share = 1.0
        """How much of the room is used: less for texts with more tokens than was estimated."""
        self._usages: list[JsonObject] = []

    @property
    def usage(self) -> JsonObject | None:
        """What all requests took together, in wire form; `None` where none was counted."""
        return _sum_usages(self._usages) if self._usages else None

    async def summarize_compaction(self, preparation: CompactionPreparation, focus: str | None = None) -> str:
        """What is to stand for the entries of a compaction, lists of files left out."""
        history = await self._fold(
            preparation.messages,
            preparation.previous_summary,
            lambda talk, previous: build_history_prompt(talk, task=self._task, previous=previous, focus=focus),
        )
        prefix = await self._fold(
            preparation.prefix_messages,
            None,
            lambda talk, previous: build_prefix_prompt(talk, task=self._task, previous=previous),
        )
        return join_split_turn(history, prefix) if prefix is not None else history or NO_HISTORY

    async def summarize_branch(
        self,
        messages: Sequence[JsonObject],
        *,
        merged: bool = False,
        instructions: str | None = None,
        replace: bool = False,
    ) -> str:
        """What happened on a branch, or came out of one that is merged, from as many of its newest messages as fit."""

        def build_prompt(conversation: str) -> str:
            task = self._task.merge if merged else self._task.branch
            return build_branch_prompt(conversation, task, instructions=instructions, replace=replace)

        while True:
            try:
                return await self._request_summary(
                    build_prompt(format_newest(messages, self._count_available_tokens(build_prompt(""))))
                )
            except ModelError as error:
                self._use_less(error)

    async def _fold(
        self, messages: Sequence[JsonObject], summary: str | None, prompt: Callable[[str, str | None], str]
    ) -> str | None:
        """The summary of `messages` after `summary`, in as many requests as the model's window asks for."""
        texts = [words for message in messages if (words := format_message(message)) is not None]
        while texts:
            talk, taken = join_within_budget(texts, self._count_available_tokens(prompt("", summary)))
            try:
                summary = await self._request_summary(prompt(talk, summary))
            except ModelError as error:
                self._use_less(error)
            else:
                texts = texts[taken:]
        return summary

    def _use_less(self, error: ModelError) -> None:
        """Halve what is shown at once to a model that refused it as too long; other errors are raised."""
        if error.kind != "overflow" or self._share <= MIN_SHARE:
            raise error
        self._share /= 2

    def _count_available_tokens(self, rest: str) -> int:
        """Tokens that a conversation may have in a request that also has `rest`."""
        beside = (len(SYSTEM_PROMPT) + len(rest)) // CHARACTERS_PER_TOKEN
        return int(max(self._budget.limit - beside, self._budget.window // 4) * self._share)

    async def _request_summary(self, prompt: str) -> str:
        limit = self._model.info.output_limit
        request = Request(
            messages=[user(prompt).message],
            system=SYSTEM_PROMPT,
            thinking=self._thinking,
            max_tokens=None if limit is None else min(limit, self._budget.reserve),
        )
        message = await self._request_answer(request)
        usage = message.get("usage")
        self._usages.append(complete_usage(usage if is_object(usage) else None))
        return self._extract_summary(message)

    async def _request_answer(self, request: Request) -> JsonObject:
        """The whole answer. Models see to failures before anything has arrived themselves."""
        retry = self._retry
        for attempt in range(1, retry.attempts + 1):
            draft = PartialMessage(self._model.info)
            try:
                return await run_unless_aborted(self._signal, complete(self._model, request, partial=draft))
            except ModelError as error:
                delay = compute_backoff(error, attempt, retry.base_delay)
                if not (draft.has_started and error.is_retryable) or attempt == retry.attempts or delay is None:
                    raise
                scheduled = RetryScheduled(attempt=attempt, attempts=retry.attempts, delay=delay, error=str(error))
                self._hooks.notify_listeners(scheduled)
            await run_unless_aborted(self._signal, asyncio.sleep(delay))
        raise AssertionError

    def _extract_summary(self, message: JsonObject) -> str:
        words = extract_text(message.get("content")).strip()
        match coerce_string(message.get("stopReason")):
            case "length":
                raise SummaryFailed(self._model.info.name, "the answer was cut off because it grew too long")
            case "error" | "aborted" as stop:
                raise SummaryFailed(
                    self._model.info.name, coerce_string(message.get("errorMessage")) or f"it ended with {stop}"
                )
            case _ if any(get_tool_calls(message)):
                raise SummaryFailed(self._model.info.name, "it called a tool instead")
            case _ if not words:
                raise SummaryFailed(self._model.info.name, "it said nothing")
            case _:
                return words


def _sum_usages(usages: Sequence[JsonObject]) -> JsonObject:
    counts: JsonObject = {
        key: sum(coerce_number(usage[key]) for usage in usages) for key in (*TOKEN_KEYS, "totalTokens")
    }
    costs = {key: sum(coerce_number(usage["cost"][key]) for usage in usages) for key in COST_KEYS}
    return {**counts, "cost": costs}
