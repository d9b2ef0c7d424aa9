"""Summaries by a model, for navigation, merges and compactions.

An answer that is cut off, fails, calls a tool or is empty is not a summary: it raises `SummaryFailed`. A stream that
breaks off is retried. This module writes nothing to the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec import Struct

from sessiontree.config import RetrySettings, SummarySettings
from sessiontree.core.compaction import CompactionPreparation, WindowBudget, split_window
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import (
    CHARACTERS_PER_TOKEN,
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
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.hooks.abort import run_unless_aborted
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, MergeAnswer, NavigateAnswer, Notice, RetryScheduled, Signal, Summary
from sessiontree.model.base import Model, ModelError, PartialMessage, Request, complete
from sessiontree.model.retry import compute_backoff

MIN_SHARE = 1 / 8
"""The smallest share of the estimated space that is used. The estimate of four characters per token may be too high."""
MAX_SUMMARY_BYTES = 4 << 20
"""A longer answer, with its thoughts, is no summary: its stream is ended."""


class SummaryFailed(SessionTreeError):
    """A model's answer cannot be used as a summary."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"{model} did not write a summary: {reason}")
        self.model = model
        self.reason = reason


class SummaryRequest(Struct, frozen=True, kw_only=True):
    """Who writes a summary, and how. Without a `text`, a handler or the `model` writes it."""

    text: str | None = None
    """A summary in the user's own words."""
    model: Model | None = None
    instructions: str | None = None
    """Added to the prompt of the summarizer."""
    replace_instructions: bool = False
    """Whether `instructions` replace the prompt of a branch summary."""
    settings: SummarySettings = SummarySettings()
    """For branch summaries only; compactions use `CompactionSettings`."""
    retry: RetrySettings = RetrySettings()

    @classmethod
    def from_value(cls, value: SummaryRequest | str) -> SummaryRequest:
        """Return `value`; a string is a summary in the user's own words. Raises `InvalidOperation` if it is empty."""
        request = cls(text=value) if isinstance(value, str) else value
        if request.text is not None and not request.text.strip():
            raise InvalidOperation("the summary is empty")
        return request

    def check_model(self) -> None:
        """Raise `InvalidOperation` if neither a text nor a model is given."""
        if self.text is None and self.model is None:
            raise InvalidOperation("a summary needs a model, and none is selected")

    def create_summarizer(
        self, hooks: Hooks, signal: Signal, *, thinking: str, budget: WindowBudget | None = None
    ) -> Summarizer:
        """Return a summarizer for the model; by default with the budget of branch summaries."""
        assert self.model is not None, "callers check the model first"
        budget = budget or split_window(self.model.info.context_window, self.settings.reserve_tokens)
        return Summarizer(self.model, signal, budget, hooks=hooks, retry=self.retry, thinking=thinking)


class Summarizer:
    """Writes the summaries of one operation."""

    def __init__(
        self,
        model: Model,
        signal: Signal,
        budget: WindowBudget,
        *,
        hooks: Hooks,
        retry: RetrySettings,
        thinking: str = "off",
    ) -> None:
        """The listeners of `hooks` see retries."""
        self._model = model
        self._hooks = hooks
        self._retry = retry
        self._signal = signal
        self._budget = budget
        self._thinking = thinking if model.info.thinking else "off"
        self._task = choose_prompts(budget.window)
        self._share = 1.0
        """The share of the window that is used; halved when the model refuses a request as too long."""
        self._usages: list[JsonObject] = []

    @property
    def usage(self) -> JsonObject | None:
        """The total usage of all requests, in wire form; `None` if there were none."""
        return _sum_usages(self._usages) if self._usages else None

    async def summarize_compaction(self, preparation: CompactionPreparation, focus: str | None = None) -> str:
        """Return the summary of the entries that a compaction replaces, without the lists of files."""
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
        """Return a summary of a branch, or of a branch that is merged, from as many of its newest messages as fit."""

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
        """Extend `summary` by `messages`, in as many requests as the window of the model needs."""
        texts = [text for message in messages if (text := format_message(message)) is not None]
        while texts:
            talk, used = join_within_budget(texts, self._count_available_tokens(prompt("", summary)))
            try:
                summary = await self._request_summary(prompt(talk, summary))
            except ModelError as error:
                self._use_less(error)
            else:
                texts = texts[used:]
        return summary

    def _use_less(self, error: ModelError) -> None:
        """Halve the size of requests after the model refused one as too long. Raise any other error."""
        if error.kind != "overflow" or self._share <= MIN_SHARE:
            raise error
        self._share /= 2

    def _count_available_tokens(self, rest: str) -> int:
        """Return how many tokens of conversation fit in a request that also contains `rest`."""
        overhead = (len(SYSTEM_PROMPT) + len(rest)) // CHARACTERS_PER_TOKEN
        return int(max(self._budget.limit - overhead, self._budget.window // 4) * self._share)

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
        """Return the complete answer. Retry broken streams; models themselves retry requests that fail earlier."""
        retry = self._retry
        for attempt in range(1, retry.attempts + 1):
            draft = PartialMessage(self._model.info)
            try:
                answer = complete(self._model, request, MAX_SUMMARY_BYTES, partial=draft)
                return await run_unless_aborted(self._signal, answer)
            except ModelError as error:
                delay = compute_backoff(error, attempt, retry.base_delay)
                if not (draft.has_started and error.is_retryable) or attempt == retry.attempts or delay is None:
                    raise
                scheduled = RetryScheduled(attempt=attempt, attempts=retry.attempts, delay=delay, error=str(error))
                self._hooks.notify_listeners(scheduled)
            await run_unless_aborted(self._signal, asyncio.sleep(delay))
        raise AssertionError

    def _extract_summary(self, message: JsonObject) -> str:
        text = extract_text(message.get("content")).strip()
        match coerce_string(message.get("stopReason")):
            case "length":
                raise SummaryFailed(self._model.info.name, "the answer reached its length limit")
            case "error" | "aborted" as stop:
                raise SummaryFailed(
                    self._model.info.name, coerce_string(message.get("errorMessage")) or f"the answer ended with {stop}"
                )
            case _ if any(get_tool_calls(message)):
                raise SummaryFailed(self._model.info.name, "the answer is a tool call")
            case _ if not text:
                raise SummaryFailed(self._model.info.name, "the answer is empty")
            case _:
                return text


def get_supplied_summary(hooks: Hooks, answer: Answer) -> Summary | None:
    """Return the summary supplied by a handler. Report an empty one and ignore it."""
    given = answer.summary if isinstance(answer, NavigateAnswer | MergeAnswer) else None
    if not isinstance(given, Summary):
        return None
    if not given.summary.strip():
        hooks.notify_listeners(Notice(level="error", text="a handler supplied an empty summary"))
        return None
    return given


def _sum_usages(usages: Sequence[JsonObject]) -> JsonObject:
    counts: JsonObject = {
        key: sum(coerce_number(usage[key]) for usage in usages) for key in (*TOKEN_KEYS, "totalTokens")
    }
    costs = {key: sum(coerce_number(usage["cost"][key]) for usage in usages) for key in COST_KEYS}
    return {**counts, "cost": costs}
