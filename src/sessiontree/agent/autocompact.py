"""Automatic compaction: detect a context that is too long for the model, and compact it."""

from __future__ import annotations

from sessiontree.agent.message_queues import RunHost
from sessiontree.agent.run_writer import RunWriter
from sessiontree.config import CompactionSettings
from sessiontree.core.compaction import count_context_tokens, split_window
from sessiontree.core.context import build_shared_context, find_context_path
from sessiontree.core.entries import EntryId, JsonObject, Message
from sessiontree.core.message_views import TokenUsage
from sessiontree.core.messages import (
    CHARACTERS_PER_TOKEN,
    coerce_number,
    estimate_tokens,
    get_stop_reason,
    is_failed_turn,
    is_object,
    sum_usage,
)
from sessiontree.core.tree import Tree
from sessiontree.errors import SessionTreeError
from sessiontree.hooks.events import CompactReason
from sessiontree.model.base import ModelError
from sessiontree.ops.compact import CompactOutcome, compact
from sessiontree.ops.summarize import SummaryRequest

FULL_SHARE = 0.99
"""An empty answer to a request that fills this share of the window counts as an overflow."""

NEAR_SHARE = 0.9
"""Above this share of the limit, the context is measured exactly."""

SETTING_TYPES = frozenset({"model_change", "thinking_level_change", "custom", "branch_point"})
"""Entries that do not change the messages of a request."""


class AutoCompactor:
    """Compacts the context of one run."""

    def __init__(self, agent: RunHost, writer: RunWriter, system: str) -> None:
        self._agent = agent
        self._writer = writer
        self._system = system
        self.usage = TokenUsage()
        """The usage of all compactions of the run."""
        self._failed = False
        """Whether a compaction has failed. The run continues without further attempts, which cost money."""

    @property
    def _settings(self) -> CompactionSettings:
        return self._agent.settings.get_compaction_settings(self._agent.model.info.name)

    @property
    def enabled(self) -> bool:
        """Whether automatic compaction is on."""
        return self._settings.enabled

    async def compact_if_needed(self) -> None:
        """Compact the context if it is above the limit."""
        settings, window = self._settings, self._agent.model.info.context_window
        if self._failed or not settings.enabled or self._agent.abort_controller.signal.aborted:
            return
        limit = split_window(window, settings.reserve_tokens, settings.keep_recent_tokens).limit
        tree, leaf = self._writer.branch.session.tree, self._writer.follow_head()
        if self._writer.moved_error is not None or _is_surely_below(tree, leaf, int(limit * NEAR_SHARE)):
            return
        if count_context_tokens(find_context_path(tree, leaf), self._estimate_overhead()) > limit:
            await self._try_compact("threshold")

    async def compact_after_overflow(self) -> bool:
        """Compact a context that the model refused as too long. Return whether a retry makes sense."""
        return await self._try_compact("overflow")

    async def _try_compact(self, reason: CompactReason) -> bool:
        try:
            outcome = await run_compaction(self._agent, self._writer, reason)
        except SessionTreeError:  # reported by the CompactFailed event
            self._failed = True
            return False
        if outcome.entry is None:
            return False
        self.usage = self.usage.add(outcome.entry.usage)
        return True

    def _estimate_overhead(self) -> int:
        """Return the estimated tokens of the system prompt and the tools."""
        specs = sum(len(tool.description) + len(str(tool.parameters)) for tool in self._agent.tools.values())
        return (len(self._system) + specs) // CHARACTERS_PER_TOKEN

    def detect_overflow(self, message: JsonObject) -> ModelError | None:
        """Return an overflow error if the answer is empty because the window is full."""
        info, usage = self._agent.model.info, message.get("usage")
        if get_stop_reason(message) != "length" or not is_object(usage) or coerce_number(usage.get("output")):
            return None
        used = sum(coerce_number(usage.get(key)) for key in ("input", "cacheRead", "cacheWrite"))
        if used < FULL_SHARE * info.context_window:
            return None
        return ModelError(info.name, "overflow", "the conversation fills the context window")


def _is_surely_below(tree: Tree, leaf: EntryId | None, limit: int) -> bool:
    """Return whether the usage of the last answer plus later messages is below `limit` tokens.

    It reads only the end of the path, which is nearly always enough, and does not build the context.
    """
    later = 0
    for entry in tree.walk_up(leaf):
        message = entry.body.message if isinstance(entry.body, Message) else None
        if message is None and entry.type not in SETTING_TYPES:
            return False
        usage = sum_usage(message.get("usage")) if message is not None and not is_failed_turn(message) else None
        if usage is not None and usage.tokens:
            return usage.tokens + later < limit
        later += 0 if message is None else estimate_tokens(message)
    return False


async def run_compaction(
    agent: RunHost, writer: RunWriter, reason: CompactReason, instructions: str | None = None
) -> CompactOutcome:
    """Compact the branch of `writer` with the settings of the agent."""
    outcome = await compact(
        writer.branch,
        agent.hooks,
        summary=SummaryRequest(model=agent.model, instructions=instructions, retry=agent.settings.retry),
        settings=agent.settings.get_compaction_settings(agent.model.info.name),
        reason=reason,
        will_retry=reason == "overflow",
        signal=agent.abort_controller.signal,
    )
    if outcome.entry is not None:
        writer.leaf = outcome.entry.id
        agent.request_context.clear()
        _release_bodies(writer)
    return outcome


def _release_bodies(writer: RunWriter) -> None:
    """Drop the decoded bodies of entries that have left the context, to free memory."""
    tree = writer.branch.session.tree
    sent = set(build_shared_context(tree, writer.leaf).sources)
    for entry in tree.walk_up(writer.leaf):
        if entry.id not in sent:
            entry.cached_body = None
