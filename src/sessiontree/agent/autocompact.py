"""Room in the model's window: when a conversation is too long for it, and having it compacted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessiontree.agent.run_host import RunHost
from sessiontree.agent.run_writer import RunWriter
from sessiontree.config import CompactionSettings
from sessiontree.core.compaction import count_context_tokens, split_window
from sessiontree.core.context import build_shared_context, find_context_path
from sessiontree.core.entries import EntryId, JsonObject, Message
from sessiontree.core.messages import coerce_number, get_stop_reason, is_failed_turn, is_object, sum_usage
from sessiontree.core.token_estimate import CHARACTERS_PER_TOKEN, estimate_tokens
from sessiontree.core.tree import Tree
from sessiontree.errors import SessionTreeError
from sessiontree.hooks.events import CompactReason
from sessiontree.model.base import ModelError

if TYPE_CHECKING:
    from sessiontree.ops.compact import CompactOutcome

FULL_SHARE = 0.99
"""An answer of nothing to a request that took this share of the window: there was no room for one."""

NEAR_SHARE = 0.9
"""The share of the limit from which on the context is measured with care."""

SETTING_TYPES = frozenset({"model_change", "thinking_level_change", "custom", "branch_point"})
"""Entries that change nothing of what is sent, but for who is asked and how."""


class AutoCompactor:
    """The room that one run has."""

    def __init__(self, agent: RunHost, writer: RunWriter, system: str) -> None:
        self._agent = agent
        self._writer = writer
        self._system = system
        self._failed = False
        """Whether a compaction has failed: the run goes on without, rather than paying for one after each turn."""

    @property
    def _settings(self) -> CompactionSettings:
        return self._agent.settings.get_compaction_settings(self._agent.model.info.name)

    @property
    def enabled(self) -> bool:
        """Whether anything is compacted without being asked for."""
        return self._settings.enabled

    async def compact_if_needed(self) -> None:
        """Compact a conversation that has grown too long."""
        settings, window = self._settings, self._agent.model.info.context_window
        if self._failed or not self.enabled or self._agent.abort_controller.signal.aborted:
            return
        limit = split_window(window, settings.reserve_tokens, settings.keep_recent_tokens).limit
        tree, leaf = self._writer.branch.session.tree, self._writer.follow_head()
        if self._writer.moved_error is not None or _is_surely_below(tree, leaf, int(limit * NEAR_SHARE)):
            return
        if count_context_tokens(find_context_path(tree, leaf), self._estimate_overhead()) > limit:
            await self._try_compact("threshold")

    async def compact_after_overflow(self) -> bool:
        """Compact a conversation that the model refused as too long, and say whether asking again is worth it."""
        return await self._try_compact("overflow")

    async def _try_compact(self, reason: CompactReason) -> bool:
        try:
            outcome = await run_compaction(self._agent, self._writer, reason)
        except SessionTreeError:  # handlers and listeners have been told
            self._failed = True
            return False
        return outcome.entry is not None

    def _estimate_overhead(self) -> int:
        """Estimated tokens of what a request has beside its messages."""
        specs = sum(len(tool.description) + len(str(tool.parameters)) for tool in self._agent.tools.values())
        return (len(self._system) + specs) // CHARACTERS_PER_TOKEN

    def detect_overflow(self, message: JsonObject) -> ModelError | None:
        """The failure that an empty answer is when it had no room."""
        info, usage = self._agent.model.info, message.get("usage")
        if get_stop_reason(message) != "length" or not is_object(usage) or coerce_number(usage.get("output")):
            return None
        asked = sum(coerce_number(usage.get(key)) for key in ("input", "cacheRead", "cacheWrite"))
        if asked < FULL_SHARE * info.context_window:
            return None
        return ModelError(info.name, "overflow", "the conversation leaves no room for an answer")


def _is_surely_below(tree: Tree, leaf: EntryId | None, limit: int) -> bool:
    """Whether the last answer that was counted, and what came after it, make less than `limit` tokens.

    A look at the end of the path, where nearly always it is enough: the whole context need not be built for it.
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
    """Compact the branch that `record` writes on, by the one way there is."""
    from sessiontree.ops.compact import compact as compact_branch
    from sessiontree.ops.summarize import SummaryRequest

    outcome = await compact_branch(
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
        _release_bodies(writer)
    return outcome


def _release_bodies(writer: RunWriter) -> None:
    """Forget the decoded bodies of what has left the context, so that a long conversation takes no more memory."""
    tree = writer.branch.session.tree
    sent = set(build_shared_context(tree, writer.leaf).sources)
    for entry in tree.walk_up(writer.leaf):
        if entry.id not in sent:
            entry.cached_body = None
