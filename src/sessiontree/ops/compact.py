"""Compacting: a summary takes the place of the older part of a branch's context. And taking that back.

The one way for all reasons: asked for, grown over the threshold, refused by a provider as too long. No entry is ever
changed: a compaction is one more entry, and the branch can go on from before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from sessiontree.config import CompactionSettings, RetrySettings
from sessiontree.core.compaction import (
    CompactionPreparation,
    WindowBudget,
    count_context_tokens,
    find_compactions,
    plan_compaction,
    split_window,
)
from sessiontree.core.context import build_path_context
from sessiontree.core.entries import Compaction, Entry, EntryId, Message
from sessiontree.core.messages import get_answered_call
from sessiontree.core.plan import plan_move
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import (
    BeforeCompact,
    CompactAnswer,
    Compacted,
    CompactFailed,
    CompactionResult,
    CompactReason,
    Notice,
    Signal,
)
from sessiontree.model.base import DEFAULT_WINDOW, Model
from sessiontree.ops.hook_requests import OperationStopped, ask_hooks, check_summary_text, emit_event, find_grown_head
from sessiontree.ops.navigate import NavigateOutcome, execute_navigation
from sessiontree.ops.summarize import Summarizer
from sessiontree.session import Branch

DEFAULT = CompactionSettings()
DEFAULT_RETRY = RetrySettings()


class CompactOutcome(Struct, frozen=True, kw_only=True):
    entry: Entry | None = None
    """The compaction; `None` if there was nothing to compact, or it was cancelled."""
    from_hook: bool = False
    cancelled: bool = False
    """By a handler, or by the signal."""
    aborted: bool = False
    """By the signal."""


def compute_token_budget(model: Model | None, settings: CompactionSettings) -> WindowBudget:
    """How the window of `model` is shared: `limit` is how long a context may grow."""
    window = DEFAULT_WINDOW if model is None else model.info.context_window
    return split_window(window, settings.reserve_tokens, settings.keep_recent_tokens)


async def compact(
    branch: Branch,
    model: Model | None,
    hooks: Hooks,
    *,
    settings: CompactionSettings = DEFAULT,
    retry: RetrySettings = DEFAULT_RETRY,
    instructions: str | None = None,
    summary: str | None = None,
    reason: CompactReason = "manual",
    will_retry: bool = False,
    signal: Signal | None = None,
) -> CompactOutcome:
    """Put a summary in the place of the older part of the branch's context.

    The summary is made by a handler or by `model`, or is the user's own text, `summary`.
    About `keep_recent` tokens are kept; asked for by a person or forced by an overflow, at most half of what is there.
    Cancelled, aborted or failed, it leaves the session as it was. Raises `ModelError` or `SummaryFailed`, and
    `BranchMoved` if the branch was moved elsewhere meanwhile; that it grew is no harm.
    """
    check_summary_text(summary)
    if model is None and summary is None:
        raise InvalidOperation("a summary needs a model, and there is none")
    signal = signal or Signal()
    path, space = branch.path(), compute_token_budget(model, settings)
    most = space.max_kept
    if reason == "overflow":  # the window may be smaller than is thought
        most = min(most, count_context_tokens(path) * 3 // 4)
    preparation = plan_compaction(path, space.keep_recent, most=most, at_most_half=reason != "threshold")
    if preparation is None:
        return CompactOutcome()
    event = BeforeCompact(
        preparation=preparation,
        previous_compactions=find_compactions(path),
        path=tuple(path),
        custom_instructions=instructions,
        model=None if model is None else model.info.name,
        reason=reason,
        will_retry=will_retry,
        signal=signal,
    )
    try:
        _, answer = await ask_hooks(hooks, event, signal)
        body = _build_user_compaction(preparation, summary) or _read_supplied_compaction(
            answer, preparation, path, hooks
        )
        if body is None:
            assert model is not None, "asked for at the start"
            thinking = build_path_context(path).thinking_level
            summarizer = Summarizer(model, signal, space, hooks=hooks, retry=retry, thinking=thinking)
            body = await _generate_compaction(preparation, summarizer, instructions)
        entry = branch.session.append(body, branch=branch.name, expected=find_grown_head(branch, path[-1].id))
    except OperationStopped as stopped:
        if stopped.aborted:
            await emit_event(hooks, CompactFailed(reason=reason, error="aborted", aborted=True), signal)
        return CompactOutcome(cancelled=True, aborted=stopped.aborted)
    except SessionTreeError as error:
        await emit_event(hooks, CompactFailed(reason=reason, error=str(error), aborted=False), signal)
        raise
    from_hook = body.from_hook is True
    compacted = Compacted(compaction_entry=entry, from_hook=from_hook, reason=reason, will_retry=will_retry)
    await emit_event(hooks, compacted, signal)
    return CompactOutcome(entry=entry, from_hook=from_hook)


def _build_user_compaction(preparation: CompactionPreparation, summary: str | None) -> Compaction | None:
    """The compaction whose summary the user has written."""
    if summary is None:
        return None
    return Compaction(
        summary=summary,
        first_kept=preparation.first_kept,
        tokens_before=preparation.tokens_before,
        details=preparation.files.to_wire(),
    )


async def _generate_compaction(
    preparation: CompactionPreparation, summarizer: Summarizer, instructions: str | None
) -> Compaction:
    summary = await summarizer.summarize_compaction(preparation, instructions)
    return Compaction(
        summary=preparation.files.append_to_summary(summary),
        first_kept=preparation.first_kept,
        tokens_before=preparation.tokens_before,
        details=preparation.files.to_wire(),
        usage=summarizer.usage,
    )


def _read_supplied_compaction(
    answer: object, preparation: CompactionPreparation, path: Sequence[Entry], hooks: Hooks
) -> Compaction | None:
    """The compaction that a handler supplied. One that makes no sense is told, and counts as if it were not there."""
    if not isinstance(answer, CompactAnswer) or not isinstance(answer.compaction, CompactionResult):
        return None
    given, tokens = answer.compaction, answer.compaction.tokens_before
    kept = preparation.first_kept if given.first_kept is UNSET else given.first_kept
    wrong = _find_problem(given, kept, path)
    if wrong is not None:
        hooks.notify_listeners(
            Notice(level="error", text=f"a handler supplied a compaction that cannot be used: {wrong}")
        )
        return None
    return Compaction(
        summary=given.summary,
        first_kept=kept,
        tokens_before=preparation.tokens_before if isinstance(tokens, UnsetType) else tokens,
        details=given.details,
        usage=given.usage,
        from_hook=True,
    )


def _find_problem(given: CompactionResult, kept: EntryId | None, path: Sequence[Entry]) -> str | None:
    if not given.summary.strip():
        return "its summary is empty"
    first = next((entry for entry in path if entry.id == kept), None)
    if kept is not None and first is None:
        return f"it keeps from {kept!r}, which is not on the path"
    if first is not None and isinstance(first.body, Message) and get_answered_call(first.body.message) is not None:
        return f"it keeps from {kept!r}, a tool result without its call"
    return None


async def uncompact(branch: Branch, hooks: Hooks) -> NavigateOutcome:
    """Go on from before the last compaction of the branch: a move of its head, which can be taken back.

    What was said after the compaction stays in the tree.
    """
    tree, old = branch.session.tree, branch.leaf
    compaction = next(iter(find_compactions(branch.path())), None)
    if compaction is None:
        raise InvalidOperation(f"there is no compaction on branch {branch.name!r}")
    plan = plan_move(tree, old, tree.parent(compaction.id))
    return await execute_navigation(branch, plan, hooks)
