"""Compact: replace the older part of a branch's context with a summary; uncompact: go back to before that.

All compactions run here: on request, above the threshold, and after a provider refused the context as too long. A
compaction is a new entry. No entry changes, and the branch can continue from before the compaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from sessiontree.config import CompactionSettings
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
from sessiontree.core.operation_plans import plan_move
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.hooks.abort import OperationStopped, ask_hooks, emit_event
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
from sessiontree.ops.navigate import NavigateOutcome, execute_navigation, find_grown_head
from sessiontree.ops.summarize import Summarizer, SummaryRequest
from sessiontree.session import Branch

DEFAULT_SETTINGS = CompactionSettings()
DEFAULT_REQUEST = SummaryRequest()


class CompactOutcome(Struct, frozen=True, kw_only=True):
    """The result of a compaction."""

    entry: Entry | None = None
    """The compaction; `None` if it was cancelled or there was nothing to compact."""
    from_hook: bool = False
    cancelled: bool = False
    """Whether a handler or the signal cancelled it."""
    cancelled_by: str | None = None
    """The handler or extension that cancelled it."""
    aborted: bool = False
    """Whether the signal cancelled it."""


def compute_token_budget(model: Model | None, settings: CompactionSettings) -> WindowBudget:
    """Split the context window of `model`; `limit` is the largest context before a compaction."""
    window = DEFAULT_WINDOW if model is None else model.info.context_window
    return split_window(window, settings.reserve_tokens, settings.keep_recent_tokens)


async def compact(
    branch: Branch,
    hooks: Hooks,
    *,
    summary: SummaryRequest | str = DEFAULT_REQUEST,
    settings: CompactionSettings = DEFAULT_SETTINGS,
    reason: CompactReason = "manual",
    will_retry: bool = False,
    signal: Signal | None = None,
) -> CompactOutcome:
    """Replace the older part of the branch's context with a summary.

    A handler or the model writes the summary; a string is your own text. The newest `keep_recent` tokens stay; a manual
    compaction, and one after an overflow, keep at most half of the context. If it is cancelled, aborted or fails, the
    session does not change. Raises `ModelError`, `SummaryFailed`, or `BranchMoved` if another writer moved the branch;
    appending to it is fine.
    """
    request = SummaryRequest.from_value(summary)
    request.check_model()
    model, signal = request.model, signal or Signal()
    path, budget = branch.path(), compute_token_budget(model, settings)
    most = budget.max_kept
    if reason == "overflow":  # the real window may be smaller than the configured one
        most = min(most, count_context_tokens(path) * 3 // 4)
    preparation = plan_compaction(path, budget.keep_recent, most=most, at_most_half=reason != "threshold")
    if preparation is None:
        return CompactOutcome()
    event = BeforeCompact(
        preparation=preparation,
        previous_compactions=find_compactions(path),
        path=tuple(path),
        custom_instructions=request.instructions,
        model=None if model is None else model.info.name,
        reason=reason,
        will_retry=will_retry,
        signal=signal,
    )
    try:
        _, answer = await ask_hooks(hooks, event, signal)
        body = _build_user_compaction(preparation, request.text) or _read_supplied_compaction(
            answer, preparation, path, hooks
        )
        if body is None:
            thinking = build_path_context(path).thinking_level
            summarizer = request.create_summarizer(hooks, signal, thinking=thinking, budget=budget)
            body = await _generate_compaction(preparation, summarizer, request.instructions)
        entry = branch.session.append(body, branch=branch.name, expected=find_grown_head(branch, path[-1].id))
    except OperationStopped as stopped:
        if stopped.aborted:
            await emit_event(hooks, CompactFailed(reason=reason, error="aborted", aborted=True), signal)
        return CompactOutcome(cancelled=True, aborted=stopped.aborted, cancelled_by=stopped.by or None)
    except SessionTreeError as error:
        await emit_event(hooks, CompactFailed(reason=reason, error=str(error), aborted=False), signal)
        raise
    from_hook = body.from_hook is True
    compacted = Compacted(compaction_entry=entry, from_hook=from_hook, reason=reason, will_retry=will_retry)
    await emit_event(hooks, compacted, signal)
    return CompactOutcome(entry=entry, from_hook=from_hook)


def _build_user_compaction(preparation: CompactionPreparation, summary: str | None) -> Compaction | None:
    """Return the compaction with the user's own summary, if there is one."""
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
    """Return the compaction supplied by a handler. Report an invalid one and ignore it."""
    if not isinstance(answer, CompactAnswer) or not isinstance(answer.compaction, CompactionResult):
        return None
    given, tokens = answer.compaction, answer.compaction.tokens_before
    kept = preparation.first_kept if given.first_kept is UNSET else given.first_kept
    problem = _find_problem(given, kept, path)
    if problem is not None:
        hooks.notify_listeners(Notice(level="error", text=f"a handler supplied an invalid compaction: {problem}"))
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
        return f"its first kept entry {kept!r} is not on the path"
    if first is not None and isinstance(first.body, Message) and get_answered_call(first.body.message) is not None:
        return f"its first kept entry {kept!r} is a tool result without its call"
    return None


async def uncompact(branch: Branch, hooks: Hooks) -> NavigateOutcome:
    """Move the branch head to before its last compaction. `undo` reverts the move.

    Entries after the compaction stay in the tree.
    """
    tree, old = branch.session.tree, branch.leaf
    compaction = next(iter(find_compactions(branch.path())), None)
    if compaction is None:
        raise InvalidOperation(f"branch {branch.name!r} has no compaction")
    plan = plan_move(tree, old, tree.parent(compaction.id))
    return await execute_navigation(branch, plan, hooks)
