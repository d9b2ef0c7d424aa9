"""Room in the model's window: when a conversation is too long for it, and having it compacted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiontree.agent.record import Record
from sessiontree.agent.worker import Worker
from sessiontree.config import CompactionSettings
from sessiontree.core.compaction import budget, context_tokens
from sessiontree.core.context import context_at, reach
from sessiontree.core.entries import EntryId, JsonObject, Message
from sessiontree.core.messages import is_object, number, spent, stop_reason, stopped_abnormally
from sessiontree.core.tokens import CHARACTERS_PER_TOKEN, estimate
from sessiontree.core.tree import Tree
from sessiontree.errors import SessionTreeError
from sessiontree.hooks.events import CompactReason
from sessiontree.model.base import ModelError

if TYPE_CHECKING:
    from sessiontree.ops.compact import CompactOutcome

FULL = 0.99
"""An answer of nothing to a request that took this share of the window: there was no room for one."""

NEAR = 0.9
"""The share of the limit from which on the context is measured with care."""

SETTINGS = frozenset({"model_change", "thinking_level_change", "custom", "branch_point"})
"""Entries that change nothing of what is sent, but for who is asked and how."""


class Room:
    """The room that one run has."""

    def __init__(self, agent: Worker, record: Record, system: str) -> None:
        self._agent = agent
        self._record = record
        self._system = system
        self._failed = False
        """Whether a compaction has failed: the run goes on without, rather than paying for one after each turn."""

    @property
    def _settings(self) -> CompactionSettings:
        return self._agent.settings.compaction_of(self._agent.model.info.name)

    @property
    def enabled(self) -> bool:
        """Whether anything is compacted without being asked for."""
        return self._settings.enabled

    async def make(self) -> None:
        """Compact a conversation that has grown too long."""
        settings, window = self._settings, self._agent.model.info.context_window
        if self._failed or not self.enabled or self._agent.stop.signal.aborted:
            return
        limit = budget(window, settings.reserve_tokens, settings.keep_recent_tokens).limit
        tree, leaf = self._record.branch.session.tree, self._record.follow()
        if self._record.moved is not None or _surely_below(tree, leaf, int(limit * NEAR)):
            return
        if context_tokens(reach(tree, leaf), self._unseen()) > limit:
            await self._try("threshold")

    async def make_after_overflow(self) -> bool:
        """Compact a conversation that the model refused as too long, and say whether asking again is worth it."""
        return await self._try("overflow")

    async def _try(self, reason: CompactReason) -> bool:
        try:
            outcome = await compact(self._agent, self._record, reason)
        except SessionTreeError:  # handlers and listeners have been told
            self._failed = True
            return False
        return outcome.entry is not None

    def _unseen(self) -> int:
        """Estimated tokens of what a request has beside its messages."""
        specs = sum(len(tool.description) + len(str(tool.parameters)) for tool in self._agent.tools.values())
        return (len(self._system) + specs) // CHARACTERS_PER_TOKEN

    def overflow(self, message: JsonObject) -> ModelError | None:
        """The failure that an empty answer is when it had no room."""
        info, usage = self._agent.model.info, message.get("usage")
        if stop_reason(message) != "length" or not is_object(usage) or number(usage.get("output")):
            return None
        asked = sum(number(usage.get(key)) for key in ("input", "cacheRead", "cacheWrite"))
        if asked < FULL * info.context_window:
            return None
        return ModelError(info.name, "overflow", "the conversation leaves no room for an answer")


def _surely_below(tree: Tree, leaf: EntryId | None, limit: int) -> bool:
    """Whether the last answer that was counted, and what came after it, make less than `limit` tokens.

    A look at the end of the path, where nearly always it is enough: the whole context need not be built for it.
    """
    later = 0
    for entry in tree.up(leaf):
        message = entry.body.message if isinstance(entry.body, Message) else None
        if message is None and entry.type not in SETTINGS:
            return False
        usage = spent(message.get("usage")) if message is not None and not stopped_abnormally(message) else None
        if usage is not None and usage.tokens:
            return usage.tokens + later < limit
        later += 0 if message is None else estimate(message)
    return False


async def compact(
    agent: Worker, record: Record, reason: CompactReason, instructions: str | None = None
) -> CompactOutcome:
    """Compact the branch that `record` writes on, by the one way there is."""
    from sessiontree.ops.compact import compact as compact_branch

    outcome = await compact_branch(
        record.branch,
        agent.model,
        agent.hooks,
        settings=agent.settings.compaction_of(agent.model.info.name),
        retry=agent.settings.retry,
        instructions=instructions,
        reason=reason,
        will_retry=reason == "overflow",
        signal=agent.stop.signal,
    )
    if outcome.entry is not None:
        record.at = outcome.entry.id
        _let_go(record)
    return outcome


def _let_go(record: Record) -> None:
    """Forget the decoded bodies of what has left the context, so that a long conversation takes no more memory."""
    tree = record.branch.session.tree
    sent = set(context_at(tree, record.at).sources)
    for entry in tree.up(record.at):
        if entry.id not in sent:
            entry.kept = None
