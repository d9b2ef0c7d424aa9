"""Answers of models over all sessions: how many, what they cost, how long they took, and how many failed.

What a session contributes is kept until the session changes. An answer that forks copied counts once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from statistics import median
from typing import NamedTuple, TypedDict

from sessiontree.core.entries import Message
from sessiontree.core.messages import get_model, get_role, has_failed, list_usages, sum_usage
from sessiontree.core.tree import Tree
from sessiontree.library.index.session_summary import SessionSummary

MAX_SESSIONS = 5000
"""Sessions whose answers are kept."""
MAX_SECONDS = 3600.0
"""A longer time before an answer is a pause, not the latency of a model."""


class AnswerUsage(NamedTuple):
    """An answer of a model."""

    entry: str
    timestamp: str
    model: str
    tokens: float
    cost: float
    seconds: float | None
    """The time since the entry before it."""
    failed: bool


class AnswerTotals(TypedDict):
    """The sums of some answers."""

    answers: int
    failures: int
    tokens: float
    cost: float
    median_seconds: float | None


def list_answers(tree: Tree) -> Iterator[AnswerUsage]:
    """Yield the answers of models in a session."""
    for entry in tree.entries:
        body = entry.decode()
        if not isinstance(body, Message) or get_role(body.message) != "assistant":
            continue
        sums = [found for usage in list_usages(body) if (found := sum_usage(usage)) is not None]
        parent = tree.parent(entry.id)
        before = "" if parent is None else tree[parent].timestamp
        yield AnswerUsage(
            entry=entry.id,
            timestamp=entry.timestamp,
            model=":".join(get_model(body.message) or ("unknown",)),
            tokens=sum(one.tokens for one in sums),
            cost=sum(one.cost for one in sums),
            seconds=_measure_seconds(before, entry.timestamp),
            failed=has_failed(body.message),
        )


def _measure_seconds(before: str, after: str) -> float | None:
    try:
        seconds = (datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds()
    except (TypeError, ValueError):
        return None
    return seconds if 0 <= seconds <= MAX_SECONDS else None


def sum_answers(answers: Iterable[AnswerUsage]) -> AnswerTotals:
    counted = list(answers)
    seconds = [answer.seconds for answer in counted if answer.seconds is not None and not answer.failed]
    return AnswerTotals(
        answers=len(counted),
        failures=sum(answer.failed for answer in counted),
        tokens=sum(answer.tokens for answer in counted),
        cost=round(sum(answer.cost for answer in counted), 10),
        median_seconds=round(median(seconds), 3) if seconds else None,
    )


class AnswerCache:
    """The answers of sessions, by file. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, tuple[tuple[str, int], tuple[AnswerUsage, ...]]] = OrderedDict()

    def get(self, summary: SessionSummary, read: Callable[[], Iterable[AnswerUsage]]) -> tuple[AnswerUsage, ...]:
        """Return the answers of a session; `read` loads them if the session has changed."""
        version = summary.modified, summary.entry_count
        with self._lock:
            known = self._answers.get(summary.file)
        if known is not None and known[0] == version:
            return known[1]
        answers = tuple(read())
        with self._lock:
            self._answers[summary.file] = version, answers
            while len(self._answers) > MAX_SESSIONS:
                self._answers.popitem(last=False)
        return answers
