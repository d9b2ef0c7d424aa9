"""Navigating: moving a branch's head, with the hooks asked and a summary of what is left.

`Session.navigate` is the bare move; this is the one that people and extensions use. The move and the summary are
written at once: a crash leaves both or neither.
"""

from __future__ import annotations

from msgspec import Struct

from sessiontree.config import RetrySettings, SummarySettings
from sessiontree.core.compaction import split_window
from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import BranchSummary, Entry, EntryId, Label
from sessiontree.core.plan import NavigatePlan, collect_summary_input, find_last_prompt
from sessiontree.core.summary_prompts import BRANCH_PREAMBLE
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, BeforeNavigate, Navigated, Signal, TreePreparation
from sessiontree.model.base import Model
from sessiontree.ops.hook_requests import (
    OperationStopped,
    ask_hooks,
    check_summary_text,
    emit_event,
    get_supplied_summary,
)
from sessiontree.ops.summarize import Summarizer
from sessiontree.session import Branch, NewEntry, Place, Session

DEFAULT = SummarySettings()
DEFAULT_RETRY = RetrySettings()


class NavigateOutcome(Struct, frozen=True, kw_only=True):
    old_leaf: EntryId | None
    new_leaf: EntryId | None
    """Where the head is now: the summary, if there is one."""
    editor_text: str | None = None
    """Text to put back in the editor, when a user's or a custom message was chosen."""
    cancelled: bool = False
    """By a handler, or by the signal. The head is where it was."""
    aborted: bool = False
    """By the signal."""
    summary_entry: Entry | None = None


async def navigate(
    session: Session,
    target: Place,
    *,
    hooks: Hooks,
    model: Model | None = None,
    summarize: bool = False,
    custom_instructions: str | None = None,
    replace_instructions: bool = False,
    label: str | None = None,
    summary: str | None = None,
    branch: Branch | None = None,
    settings: SummarySettings = DEFAULT,
    retry: RetrySettings = DEFAULT_RETRY,
    signal: Signal | None = None,
) -> NavigateOutcome:
    """Move a branch, the current one by default, by the rules of selection, and write down what is left if wanted.

    The summary is made by a handler or by `model`, or is the user's own text, `summary`. It stands at the new place.
    The label goes on it, or on the target where there is none. Choosing the place where the head is does nothing.
    Cancelled, aborted or failed, it leaves the session as it was. Raises `ModelError` or `SummaryFailed`, and
    `BranchMoved` if the branch was moved meanwhile.
    """
    plan = session.plan_navigate(target, start="HEAD" if branch is None else branch.name)
    check_summary_text(summary)
    if summarize and summary is None and model is None:
        raise InvalidOperation("a summary needs a model, and there is none")
    if not plan.is_move:
        return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=plan.new_leaf, editor_text=plan.editor_text)
    return await execute_navigation(
        session.head if branch is None else branch,
        plan,
        hooks,
        model=model,
        summarize=summarize,
        custom_instructions=custom_instructions,
        replace_instructions=replace_instructions,
        label=label,
        summary=summary,
        settings=settings,
        retry=retry,
        signal=signal,
    )


def find_previous_prompt(branch: Branch) -> Entry:
    """The user's message that a pop goes back to: the last one on a branch."""
    prompt = find_last_prompt(branch.path())
    if prompt is None:
        raise InvalidOperation("there is no message of the user to go back to")
    return prompt


async def execute_navigation(
    branch: Branch,
    plan: NavigatePlan,
    hooks: Hooks,
    *,
    model: Model | None = None,
    summarize: bool = False,
    custom_instructions: str | None = None,
    replace_instructions: bool = False,
    label: str | None = None,
    summary: str | None = None,
    settings: SummarySettings = DEFAULT,
    retry: RetrySettings = DEFAULT_RETRY,
    signal: Signal | None = None,
) -> NavigateOutcome:
    """Carry out the plan of a move: ask the hooks, summarize if that is wanted, move, tell the hooks."""
    session, signal = branch.session, signal or Signal()
    preparation = TreePreparation(
        target=plan.target,
        old_leaf=plan.old_leaf,
        common_ancestor=plan.common_ancestor,
        entries_to_summarize=plan.abandoned,
        user_wants_summary=summarize and summary is None,
        custom_instructions=custom_instructions,
        replace_instructions=replace_instructions,
        label=label,
    )
    try:
        asked, answer = await ask_hooks(hooks, BeforeNavigate(preparation=preparation, signal=signal), signal)
        body = await _build_summary(
            session, plan, asked.preparation, hooks, answer, summary, model, settings, retry, signal
        )
    except OperationStopped as stopped:
        return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=plan.old_leaf, cancelled=True, aborted=stopped.aborted)
    entry = _write_move(branch, plan, body, asked.preparation.label)
    from_hook = body is not None and body.from_hook is True
    new_leaf = branch.leaf
    moved = Navigated(new_leaf=new_leaf, old_leaf=plan.old_leaf, summary_entry=entry, from_hook=from_hook)
    await emit_event(hooks, moved, signal)
    return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=new_leaf, editor_text=plan.editor_text, summary_entry=entry)


async def _build_summary(
    session: Session,
    plan: NavigatePlan,
    preparation: TreePreparation,
    hooks: Hooks,
    answer: Answer,
    own: str | None,
    model: Model | None,
    settings: SummarySettings,
    retry: RetrySettings,
    signal: Signal,
) -> BranchSummary | None:
    """What is written of the branch that is left: the user's own text, a handler's summary, or the model's."""
    if not (preparation.user_wants_summary or own is not None):
        return None
    left = collect_summary_input(session.tree, plan.old_leaf, plan.abandoned)
    if not left.messages:
        return None
    if own is not None:
        return BranchSummary(summary=own, abandoned_leaf=plan.old_leaf, details=left.files.to_wire())
    given = get_supplied_summary(hooks, answer)
    if given is not None:
        return BranchSummary(
            summary=given.summary,
            abandoned_leaf=plan.old_leaf,
            details=given.details,
            usage=given.usage,
            from_hook=True,
        )
    assert model is not None, "asked for at the start"
    thinking = build_shared_context(session.tree, plan.old_leaf).thinking_level
    shares = split_window(model.info.context_window, settings.reserve_tokens)
    summarizer = Summarizer(model, signal, shares, hooks=hooks, retry=retry, thinking=thinking)
    words = await summarizer.summarize_branch(
        left.messages, instructions=preparation.custom_instructions, replace=preparation.replace_instructions
    )
    return BranchSummary(
        summary=left.files.append_to_summary(f"{BRANCH_PREAMBLE}\n\n{words}"),
        abandoned_leaf=plan.old_leaf,
        details=left.files.to_wire(),
        usage=summarizer.usage,
    )


def _write_move(branch: Branch, plan: NavigatePlan, summary: BranchSummary | None, label: str | None) -> Entry | None:
    """Move the head, with the summary and the label at the new place, in one batch."""
    session, text = branch.session, (label or "").strip()
    items: list[NewEntry] = []
    labeled = plan.target
    if summary is not None:
        labeled = session.generate_id()
        items.append(NewEntry(summary, id=labeled))
    if text:
        if labeled is None:
            raise InvalidOperation("the place before everything cannot have a label")
        items.append(NewEntry(Label(target=labeled, text=text)))
    to = None if plan.new_leaf is None else session.tree[plan.new_leaf]
    written = session.move(to, items, branch=branch.name, expected=plan.old_leaf)
    return None if summary is None else written[0]
