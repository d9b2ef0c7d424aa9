"""Navigate: move the head of a branch, with hooks and an optional summary of the entries it leaves.

`Session.navigate_sync` moves without hooks. The move and the summary are one batch: after a crash, both are in the
session or neither is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Generator
from typing import TypeAlias

from msgspec import Struct, structs

from sessiontree.config import FileSettings
from sessiontree.core.context import build_shared_context
from sessiontree.core.entries import BranchSummary, Entry, EntryId, Label
from sessiontree.core.operation_plans import NavigatePlan, collect_summary_input, find_last_prompt
from sessiontree.core.summary_prompts import BRANCH_PREAMBLE
from sessiontree.errors import BranchMoved, InvalidOperation
from sessiontree.files.restore import RestoreOutcome
from sessiontree.hooks.abort import OperationStopped, ask_hooks, emit_event
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Answer, BeforeNavigate, Merged, Navigated, Signal, TreePreparation
from sessiontree.ops.move_files import FileMover, FilesChoice, restore_after_move
from sessiontree.ops.summarize import SummaryRequest, get_supplied_summary
from sessiontree.session import Branch, Item, Place, Session


class NavigateOutcome(Struct, frozen=True, kw_only=True):
    """The result of a move."""

    old_leaf: EntryId | None
    new_leaf: EntryId | None
    """The new head: the summary, if there is one."""
    editor_text: str | None = None
    """If a user message or a custom message was selected: its text, for the editor."""
    cancelled: bool = False
    """Whether a handler or the signal cancelled it. The head has not moved."""
    cancelled_by: str | None = None
    """The handler or extension that cancelled it."""
    aborted: bool = False
    """Whether the signal cancelled it."""
    summary_entry: Entry | None = None
    undo_description: str | None = None
    """What an undo reverted, in words: `the merge of cache into main`."""
    files: RestoreOutcome | None = None
    """What happened to the files, if the move included them."""


WriteMove: TypeAlias = Callable[[BranchSummary | None, str | None], tuple[Branch, Entry | None]]
"""Writes a move with its summary and its label. Returns the branch to continue on, and the entry of the summary."""


async def navigate(
    session: Session,
    target: Place,
    *,
    hooks: Hooks,
    summary: SummaryRequest | str | None = None,
    label: str | None = None,
    branch: Branch | None = None,
    signal: Signal | None = None,
    files: FilesChoice = "conversation",
    take: Collection[str] = (),
    file_settings: FileSettings | None = None,
    cwd: str | None = None,
) -> NavigateOutcome:
    """Move a branch to the place that selecting `target` leads to; by default the current branch.

    `summary` asks for a summary of the entries that the branch leaves; a string is your own text. The summary becomes
    the new head. The label goes on the summary, or on the target if there is no summary. Selecting the current head
    does nothing. If it is cancelled, aborted or fails, the session does not change.

    `files` also restores the files of the place, or only them. Conflicts are kept, except those named in `take`. `cwd`
    is the folder of the files, by default the one that the agent of the branch worked in last.

    Raises `ModelError`, `SummaryFailed`, `SnapshotError`, or `BranchMoved` if another writer moved the branch.
    """
    plan = session.plan_navigate(target, start="HEAD" if branch is None else branch.name)
    request = None if summary is None else SummaryRequest.from_value(summary)
    if request is not None:
        request.check_model()
    on = session.head if branch is None else branch
    if files == "conversation":
        return await _move_conversation(on, plan, hooks, request, label, signal)
    mover = await asyncio.to_thread(FileMover.find, on, file_settings or FileSettings(), cwd)
    file_plan = (await asyncio.to_thread(mover.plan, plan.new_leaf)).take(take)
    if files == "files":
        restored = await asyncio.to_thread(mover.restore, file_plan)
        return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=plan.old_leaf, files=restored)
    outcome = await _move_conversation(on, plan, hooks, request, label, signal)
    if outcome.cancelled:
        return outcome
    return structs.replace(outcome, files=await restore_after_move(mover, file_plan))


async def _move_conversation(
    branch: Branch,
    plan: NavigatePlan,
    hooks: Hooks,
    summary: SummaryRequest | None,
    label: str | None,
    signal: Signal | None,
) -> NavigateOutcome:
    if not plan.is_move:
        return NavigateOutcome(old_leaf=plan.old_leaf, new_leaf=plan.new_leaf, editor_text=plan.editor_text)
    return await execute_navigation(branch, plan, hooks, summary=summary, label=label, signal=signal)


def find_previous_prompt(branch: Branch) -> Entry:
    """Return the last user message on a branch: the place that `pop` goes back to."""
    prompt = find_last_prompt(branch.path())
    if prompt is None:
        raise InvalidOperation(f"branch {branch.name!r} has no user message to go back to")
    return prompt


def find_grown_head(branch: Branch, planned: EntryId | None) -> EntryId | None:
    """Return the head of a branch that may have grown since it was at `planned`. Raises `BranchMoved` if it moved."""
    head = branch.leaf
    if planned is not None and planned not in branch.session.tree.walk_up_ids(head):
        raise BranchMoved(branch.name, planned, head)
    return head


async def execute_navigation(
    branch: Branch,
    plan: NavigatePlan,
    hooks: Hooks,
    *,
    summary: SummaryRequest | None = None,
    label: str | None = None,
    signal: Signal | None = None,
    write: WriteMove | None = None,
) -> NavigateOutcome:
    """Carry out a planned move: ask the hooks, summarize on request, move the head, notify the hooks.

    `write` makes another change than moving the head of `branch`, such as a switch to another branch.
    """
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
        return NavigateOutcome(
            old_leaf=plan.old_leaf,
            new_leaf=plan.old_leaf,
            cancelled=True,
            aborted=stopped.aborted,
            cancelled_by=stopped.by or None,
        )
    chosen = (event.preparation.label or "").strip() or None
    on, entry = (branch, _write_move(branch, plan, body, chosen)) if write is None else write(body, chosen)
    from_hook = body is not None and body.from_hook is True
    new_leaf = on.leaf
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
    session = branch.session
    items = build_move_items(session, plan, summary, label)
    to = None if plan.new_leaf is None else session.tree[plan.new_leaf]
    written = session.move(to, items, branch=branch.name, expected=plan.old_leaf)
    return None if summary is None else written[0]


def build_move_items(
    session: Session, plan: NavigatePlan, summary: BranchSummary | None, label: str | None
) -> list[Item]:
    """Return the entries that a move writes: the summary, and the label for it or for the target."""
    items: list[Item] = []
    labeled = plan.target
    if summary is not None:
        labeled = session.generate_id()
        items.append(Item(summary, id=labeled))
    if label is not None:
        if labeled is None:
            raise InvalidOperation("cannot label root: it is not an entry")
        items.append(Item(Label(target=labeled, text=label)))
    return items


class MoveGuard:
    """Tracks the move or merge in progress. There is at most one that is not written yet.

    Until it is written, it can be aborted, and no other activity may start.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._signal: Signal | None = None
        """Aborts the move in progress. `None` once it is written."""
        self._written = asyncio.Event()
        """Set while no move is in progress."""
        self._written.set()
        self._notifying: list[Signal] = []
        """The signals of written moves whose handlers still run."""

    @property
    def is_active(self) -> bool:
        """Whether a move is in progress and not written yet."""
        return self._signal is not None

    def ensure_inactive(self) -> None:
        """Raise `InvalidOperation` while a move is in progress."""
        if self.is_active:
            raise InvalidOperation("a move or a merge is in progress: abort it, or wait until it is done")

    async def wait(self) -> None:
        """Wait until no move is in progress."""
        await self._written.wait()

    @contextlib.contextmanager
    def begin(self) -> Generator[Signal]:
        """Start a move and yield the signal that aborts it.

        The move counts as written as soon as `Navigated` or `Merged` is emitted. The handlers of these events may
        already start the next move.
        """
        signal = self._signal = Signal()
        self._written.clear()

        def finish() -> None:
            if self._signal is signal:
                self._signal = None
                self._written.set()
                self._notifying.append(signal)

        stop_listening = self._hooks.listen(lambda event: finish() if isinstance(event, Navigated | Merged) else None)
        try:
            yield signal
        finally:
            stop_listening()
            finish()
            self._notifying.remove(signal)

    def abort(self) -> None:
        """Abort the move in progress, and stop waiting for the handlers of written moves."""
        for signal in self._notifying:
            signal.abort()
        self.abort_unwritten()

    def abort_unwritten(self) -> None:
        """Abort the move in progress."""
        if self._signal is not None:
            self._signal.abort()
