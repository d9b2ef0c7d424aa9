"""Navigate: move the head of a branch, with hooks and an optional summary of the entries it leaves.

`Session.navigate` moves without hooks. The move and the summary are one batch: after a crash, both are in the session
or neither is.
"""

from __future__ import annotations

from msgspec import Struct

from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import BranchSummary, Entry, EntryId, Label
from sessiontree.core.plan import NavigatePlan, collect_summary_input, find_last_prompt
from sessiontree.core.summary_prompts import BRANCH_PREAMBLE
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, BeforeNavigate, Navigated, Signal, TreePreparation
from sessiontree.ops.hook_requests import OperationStopped, ask_hooks, emit_event, get_supplied_summary
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Branch, NewEntry, Place, Session


class NavigateOutcome(Struct, frozen=True, kw_only=True):
    old_leaf: EntryId | None
    new_leaf: EntryId | None
    """The new head: the summary, if there is one."""
    editor_text: str | None = None
    """If a user message or a custom message was selected: its text, for the editor."""
    cancelled: bool = False
    """Whether a handler or the signal cancelled it. The head has not moved."""
    aborted: bool = False
    """Whether the signal cancelled it."""
    summary_entry: Entry | None = None


async def navigate(
    session: Session,
    target: Place,
    *,
    hooks: Hooks,
    summary: SummaryRequest | str | None = None,
    label: str | None = None,
    branch: Branch | None = None,
    signal: Signal | None = None,
) -> NavigateOutcome:
    """Move a branch to the place that selecting `target` leads to; by default the current branch.

    `summary` asks for a summary of the entries that the branch leaves; a string is your own text. The summary becomes
    the new head. The label goes on the summary, or on the target without one. Selecting the current head does nothing.
    If it is cancelled, aborted or fails, the session does not change. Raises `ModelError`, `SummaryFailed`, or
    `BranchMoved` if another writer moved the branch.
    """
    plan = session.plan_navigate(target, start="HEAD" if branch is None else branch.name)
    request = None if summary is None else SummaryRequest.from_value(summary)
    if request is not None:
        request.check_model()
    if not plan.is_move:
        return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=plan.new_leaf, editor_text=plan.editor_text)
    on = session.head if branch is None else branch
    return await execute_navigation(on, plan, hooks, summary=request, label=label, signal=signal)


def find_previous_prompt(branch: Branch) -> Entry:
    """Return the last user message on a branch: the place that `pop` goes back to."""
    prompt = find_last_prompt(branch.path())
    if prompt is None:
        raise InvalidOperation(f"branch {branch.name!r} has no user message to go back to")
    return prompt


async def execute_navigation(
    branch: Branch,
    plan: NavigatePlan,
    hooks: Hooks,
    *,
    summary: SummaryRequest | None = None,
    label: str | None = None,
    signal: Signal | None = None,
) -> NavigateOutcome:
    """Carry out a planned move: ask the hooks, summarize on request, move the head, notify the hooks."""
    signal = signal or Signal()
    preparation = TreePreparation(
        target=plan.target,
        old_leaf=plan.old_leaf,
        common_ancestor=plan.common_ancestor,
        entries_to_summarize=plan.abandoned,
        user_wants_summary=summary is not None and summary.text is None,
        custom_instructions=None if summary is None else summary.instructions,
        replace_instructions=summary is not None and summary.replace_instructions,
        label=label,
    )
    try:
        event, answer = await ask_hooks(hooks, BeforeNavigate(preparation=preparation, signal=signal), signal)
        body = None
        if summary is not None:
            body = await _build_summary(branch, plan, summary, event.preparation, answer, hooks, signal)
    except OperationStopped as stopped:
        return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=plan.old_leaf, cancelled=True, aborted=stopped.aborted)
    entry = _write_move(branch, plan, body, event.preparation.label)
    from_hook = body is not None and body.from_hook is True
    new_leaf = branch.leaf
    moved = Navigated(new_leaf=new_leaf, old_leaf=plan.old_leaf, summary_entry=entry, from_hook=from_hook)
    await emit_event(hooks, moved, signal)
    return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=new_leaf, editor_text=plan.editor_text, summary_entry=entry)


async def _build_summary(
    branch: Branch,
    plan: NavigatePlan,
    request: SummaryRequest,
    preparation: TreePreparation,
    answer: Answer,
    hooks: Hooks,
    signal: Signal,
) -> BranchSummary | None:
    """Return the summary of the entries left behind: the user's text, a handler's summary, or the model's."""
    tree = branch.session.tree
    left = collect_summary_input(tree, plan.old_leaf, plan.abandoned)
    if not left.messages:
        return None
    if request.text is not None:
        return BranchSummary(summary=request.text, abandoned_leaf=plan.old_leaf, details=left.files.to_wire())
    given = get_supplied_summary(hooks, answer)
    if given is not None:
        return BranchSummary(
            summary=given.summary,
            abandoned_leaf=plan.old_leaf,
            details=given.details,
            usage=given.usage,
            from_hook=True,
        )
    thinking = build_shared_context(tree, plan.old_leaf).thinking_level
    summarizer = request.create_summarizer(hooks, signal, thinking=thinking)
    text = await summarizer.summarize_branch(
        left.messages, instructions=preparation.custom_instructions, replace=preparation.replace_instructions
    )
    return BranchSummary(
        summary=left.files.append_to_summary(f"{BRANCH_PREAMBLE}\n\n{text}"),
        abandoned_leaf=plan.old_leaf,
        details=left.files.to_wire(),
        usage=summarizer.usage,
    )


def _write_move(branch: Branch, plan: NavigatePlan, summary: BranchSummary | None, label: str | None) -> Entry | None:
    """Move the head and write the summary and the label, in one batch."""
    session, text = branch.session, (label or "").strip()
    items: list[NewEntry] = []
    labeled = plan.target
    if summary is not None:
        labeled = session.generate_id()
        items.append(NewEntry(summary, id=labeled))
    if text:
        if labeled is None:
            raise InvalidOperation("cannot label root: it is not an entry")
        items.append(NewEntry(Label(target=labeled, text=text)))
    to = None if plan.new_leaf is None else session.tree[plan.new_leaf]
    written = session.move(to, items, branch=branch.name, expected=plan.old_leaf)
    return None if summary is None else written[0]
