"""Commands that navigate within a session, label entries, and merge, copy or compact branches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.core.entries import EntryId
from sessiontree.core.entry_text import format_entry_row
from sessiontree.core.number_text import pluralize
from sessiontree.core.operation_plans import find_last_prompt
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.restore import RestoreOutcome
from sessiontree.files.restore_plan import RestorePlan
from sessiontree.hooks.ui_protocol import Ui
from sessiontree.ops.compact import uncompact
from sessiontree.ops.merge import CopyOutcome, cherry_pick, merge, rebase
from sessiontree.ops.move_files import UNDONE_RESTORE
from sessiontree.ops.navigate import NavigateOutcome, find_previous_prompt
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.formatting import draw_tree, format_id, format_table, make_excerpt
from sessiontree.slash_commands.host import FilesAnswer
from sessiontree.slash_commands.registry import (
    FOCUS,
    PLACE,
    Argument,
    Command,
    CommandOutcome,
    complete_labels,
    complete_places,
)

SUMMARY_CHOICE_QUESTION = "Summarize the branch you're leaving?"
SUMMARIZE = "Summarize"
SUMMARIZE_WITH_FOCUS = "Summarize with a focus"
WRITE_SUMMARY = "Write the summary myself"
SUMMARY_CHOICES = ("No summary", SUMMARIZE, SUMMARIZE_WITH_FOCUS, WRITE_SUMMARY)
FOCUS_QUESTION = "Focus of the summary"
SUMMARY_QUESTION = "Summary of the branch you're leaving"


class SummaryChoice(Struct, frozen=True, kw_only=True):
    """How to summarize the branch that is being left."""

    summarize: bool = False
    """Whether the model writes a summary."""
    instructions: str | None = None
    """The focus of the summary."""
    summary: str | None = None
    """A summary that the user wrote."""


async def ask_summary_choice(ui: Ui) -> SummaryChoice | None:
    """Ask the user how to summarize the abandoned branch. Return `None` if the dialog was cancelled."""
    answer = await ui.select(SUMMARY_CHOICE_QUESTION, SUMMARY_CHOICES)
    if answer == SUMMARIZE_WITH_FOCUS:
        return build_focused_choice(await ui.editor(FOCUS_QUESTION))
    if answer == WRITE_SUMMARY:
        return build_written_choice(await ui.editor(SUMMARY_QUESTION))
    return None if answer is None else SummaryChoice(summarize=answer == SUMMARIZE)


def build_focused_choice(focus: str | None) -> SummaryChoice | None:
    """Return the choice for a summary with a focus. An empty focus means none."""
    return None if focus is None else SummaryChoice(summarize=True, instructions=focus.strip() or None)


def build_written_choice(words: str | None) -> SummaryChoice | None:
    """Return the choice for a summary that the user wrote, or `None` if it is empty."""
    return SummaryChoice(summary=words.strip()) if words and words.strip() else None


CANCELLED = CommandOutcome(text="Cancelled. Nothing changed.")
MODEL_SUMMARY = "--summarize"
"""The argument of `/branch-here` that asks the model for a summary."""


def build_cancelled(by: str | None) -> CommandOutcome:
    """Return the outcome of a cancelled operation, with the handler or extension that cancelled it."""
    return CANCELLED if by is None else CommandOutcome(text=f"Cancelled by {by}. Nothing changed.")


def format_move(outcome: NavigateOutcome) -> CommandOutcome:
    if outcome.cancelled:
        return build_cancelled(outcome.cancelled_by)
    restored = format_files(outcome.files)
    if outcome.old_leaf == outcome.new_leaf:
        return CommandOutcome(text=restored or "Already there.")
    with_summary = ", with a summary" if outcome.summary_entry is not None else ""
    text = f"Moved from {format_id(outcome.old_leaf)} to {format_id(outcome.new_leaf)}{with_summary}"
    return CommandOutcome(text="\n".join(filter(None, [text, restored])))


def format_files(outcome: RestoreOutcome | None) -> str:
    """Return what happened to the files, with the conflicts that were kept; empty without a restore."""
    if outcome is None:
        return ""
    kept = [f"kept {escape_line(conflict.path)}: {conflict.reason}" for conflict in outcome.conflicts]
    return "\n".join([f"{outcome.summary[:1].upper()}{outcome.summary[1:]}.", *kept])


FILES_OPTIONS = ("--files", "--files-only")
FILES = Argument(name="--files|--files-only", complete=lambda controller, text: FILES_OPTIONS)


def split_files_choice(args: Sequence[str]) -> tuple[list[str], FilesAnswer | None]:
    """Return the other arguments, and the value of the option for files; `None` without it."""
    rest = [word for word in args if word not in FILES_OPTIONS]
    if "--files-only" in args:
        return rest, FilesAnswer(files="files")
    return rest, FilesAnswer(files="both") if "--files" in args else None


async def ask_files_choice(
    controller: SessionController, plan_files: Callable[[], Awaitable[RestorePlan]]
) -> FilesAnswer | None:
    """Ask what to move if files can be restored. Return `None` if the user cancels."""
    if not controller.ui.has_person:
        return FilesAnswer()
    try:
        plan = await plan_files()
    except SnapshotError as error:
        controller.ui.notify(f"files cannot be restored: {error}", "warning")
        return FilesAnswer()
    if plan.missing is not None:
        controller.ui.notify(plan.summary, "warning")
    return FilesAnswer() if plan.is_empty else await controller.host.choose_files(controller, plan)


async def _run_tree(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    args, files = split_files_choice(args)
    if args:
        place = args[0]
    elif controller.ui.has_person:
        place = await controller.host.choose_entry(controller)
        if place is None:
            return CommandOutcome()
    else:
        return CommandOutcome(text=draw_tree(controller.session, controller.branch.leaf))
    return await navigate_with_summary_choice(controller, place, files)


async def navigate_with_summary_choice(
    controller: SessionController, place: str, files: FilesAnswer | None = None
) -> CommandOutcome:
    """Navigate to a place. If that abandons entries, ask how to summarize them first.

    Without `files`, ask whether to restore files that the agent changed.
    """
    files = files or await ask_files_choice(controller, lambda: controller.plan_files(place))
    if files is None:
        return CommandOutcome()
    if files.files == "files":
        return format_move(await controller.navigate(place, files="files", take=files.take))
    plan = controller.plan_navigation(place)
    asks = plan.is_move and plan.abandoned and controller.ui.has_person and not controller.settings.summary.skip_prompt
    leaving = await ask_summary_choice(controller.ui) if asks else SummaryChoice()
    if leaving is None:
        return CommandOutcome()
    return format_move(
        await controller.navigate(
            place,
            summarize=leaving.summarize,
            custom_instructions=leaving.instructions,
            summary=leaving.summary,
            files=files.files,
            take=files.take,
        )
    )


async def _run_pop(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    args, files = split_files_choice(args)
    place = args[0] if args else find_previous_prompt(controller.branch)
    left = controller.plan_navigation(place).abandoned
    files = files or await ask_files_choice(controller, lambda: controller.plan_files(place))
    if files is None:
        return CommandOutcome()
    summarize = bool(left) and files.files != "files"
    return format_move(await controller.navigate(place, summarize=summarize, files=files.files, take=files.take))


async def _run_undo(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    _, files = split_files_choice(args)
    files = files or await ask_files_choice(controller, controller.plan_undo_files)
    if files is None:
        return CommandOutcome()
    outcome = await controller.undo(files=files.files, take=files.take)
    if outcome.cancelled or outcome.undo_description in (None, UNDONE_RESTORE):
        return format_move(outcome)
    text = f"Undid {outcome.undo_description}; {controller.branch.name} is at {format_id(outcome.new_leaf)}"
    return CommandOutcome(text="\n".join(filter(None, [text, format_files(outcome.files)])))


async def _run_retry(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    prompt = find_last_prompt(controller.branch.path())
    if prompt is None:
        raise InvalidOperation("no message to retry")
    controller.agent  # noqa: B018 - without a model one does not set out
    outcome = await controller.move_to(prompt)
    return replace(
        format_move(outcome),
        text="" if not outcome.cancelled else format_move(outcome).text,
        answer=not outcome.cancelled,
    )


async def _run_clear(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    outcome = await controller.move_to(None)
    if outcome.cancelled or outcome.old_leaf is None:
        return format_move(outcome)
    return CommandOutcome(text="Context cleared. /undo restores it.")


async def _run_switch(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    args, files = split_files_choice(args)
    place = args[0] if args else await _choose_branch(controller)
    if place is None:
        return CommandOutcome()
    files = files or await ask_files_choice(controller, lambda: controller.plan_switch_files(place))
    if files is None:
        return CommandOutcome()
    outcome = await controller.switch(place, files=files.files, take=files.take)
    if outcome.cancelled or files.files == "files":
        return format_move(outcome)
    text = f"On branch {controller.branch.name} at {format_id(controller.branch.leaf)}"
    return CommandOutcome(text="\n".join(filter(None, [text, format_files(outcome.files)])))


async def _choose_branch(controller: SessionController) -> str | None:
    others = [
        info.name for info in controller.session.branches if info.name != controller.branch.name and not info.archived
    ]
    if not others:
        raise InvalidOperation("no other branch: create one with /branch-here")
    if not controller.ui.has_person:
        raise InvalidOperation(f"name a branch: {', '.join(others)}")
    return await controller.ui.select("Switch to branch", others)


async def _run_branch_here(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    name, place, summary = [*args, None, None, None][:3]
    own = None if summary == MODEL_SUMMARY else summary
    outcome = await controller.branch_here(name, place, summarize=summary == MODEL_SUMMARY, summary=own)
    if outcome.cancelled:
        return format_move(outcome)
    tree, entry = controller.session.tree, outcome.summary_entry
    point = outcome.new_leaf if entry is None else tree.parent(entry.id)
    with_summary = "" if entry is None else ", with a summary"
    return CommandOutcome(
        text=f"On new branch {controller.branch.name}, from {format_id(tree.parent(point or ''))}{with_summary}"
    )


async def _run_branches(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    session = controller.session
    rows = [["", "branch", "head", "entries", "last"]]

    def add_row(mark: str, name: str, head: EntryId | None, count: int) -> None:
        known = None if head is None or head not in session.tree else session.tree[head]
        last = "" if known is None else make_excerpt(format_entry_row(known), 48)
        rows.append([mark, name, format_id(head), str(count), last])

    for info in session.branches:
        if not info.archived:
            add_row("*" if info.name == controller.branch.name else "", info.name, info.leaf, info.entry_count)
    for found in session.unnamed_leaves:
        add_row("", f"({found.suggested_name})", found.leaf, found.entry_count)
    text = format_table(rows)
    if session.unnamed_leaves:
        text += "\n(name): a leaf without a branch; /branch-here NAME ENTRY creates it"
    return CommandOutcome(text=text)


async def _run_label(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    tree = controller.session.tree
    if not args:
        rows = [
            [format_id(id), f"[{label}]", make_excerpt(format_entry_row(tree[id]), 48)]
            for id, label in tree.labels.items()
        ]
        return CommandOutcome(text=format_table(rows) if rows else "No labels. Use /label TEXT to label this entry.")
    text, named = [*args, "HEAD"][:2]
    cleared, place = text == "--clear" or not text.strip(), controller.qualify_place(named)
    controller.session.label(place, None if cleared else text)
    controller.host.refresh()
    where = format_id(controller.session.resolve_place(place))
    return CommandOutcome(text=f"Removed the label of {where}." if cleared else f"Labeled {where} [{text}].")


# Merging and copying


async def _run_merge(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    into, source, focus = controller.branch, args[0], args[1] if len(args) > 1 else None
    with controller.begin_move() as signal:
        outcome = await merge(
            controller.qualify_place(source),
            into,
            hooks=controller.hooks,
            summary=controller.request_summary(focus),
            signal=signal,
            file_settings=controller.settings.files,
        )
    controller.host.refresh()
    if outcome.cancelled:
        return build_cancelled(outcome.cancelled_by)
    shown = format_id(source) if source in controller.session.tree else source
    text = f"Merged {shown} into {controller.branch.name}"
    return CommandOutcome(text=text if outcome.files is None else f"{text}\n{outcome.files.summary}")


async def _run_cherry_pick(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    controller.ensure_idle()
    return _format_copy(
        controller, await cherry_pick(controller.branch, [*map(controller.qualify_place, args)], hooks=controller.hooks)
    )


async def _run_rebase(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    controller.ensure_idle()
    return _format_copy(
        controller, await rebase(controller.branch, controller.qualify_place(args[0]), hooks=controller.hooks)
    )


def _format_copy(controller: SessionController, outcome: CopyOutcome) -> CommandOutcome:
    controller.host.refresh()
    if outcome.cancelled:
        return build_cancelled(outcome.cancelled_by)
    return CommandOutcome(
        text=f"Copied {pluralize(len(outcome.entries), 'entry', 'entries')}; head: {format_id(outcome.new_leaf)}"
    )


# Compaction


async def _run_compact(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    controller.ensure_not_moving()
    outcome = await controller.agent.compact(args[0] if args else None)
    controller.host.refresh()
    if outcome.cancelled:
        return build_cancelled(outcome.cancelled_by)
    if outcome.entry is None:
        return CommandOutcome(text="Nothing to compact.")
    return CommandOutcome(text=f"Compacted {controller.branch.name}; head: {format_id(outcome.entry.id)}")


async def _run_uncompact(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    controller.ensure_idle()
    outcome = await uncompact(controller.branch, controller.hooks)
    controller.sync_position()
    return format_move(outcome)


COMMANDS = (
    Command(
        name="tree",
        help="Show the tree and navigate to an entry, optionally with a summary of the branch you leave",
        run=_run_tree,
        arguments=(PLACE, FILES),
    ),
    Command(
        name="switch",
        help="Switch to another branch, or move this one to an entry",
        run=_run_switch,
        arguments=(Argument(name="BRANCH|PLACE", complete=complete_places), FILES),
    ),
    Command(
        name="pop",
        help="Go back to your last message or to an entry, and summarize the branch you leave",
        run=_run_pop,
        arguments=(PLACE, FILES),
    ),
    Command(
        name="undo",
        help="Undo the last move, switch or merge; repeat to go further back",
        run=_run_undo,
        arguments=(FILES,),
    ),
    Command(name="retry", help="Answer your last message again; the first answer is kept", run=_run_retry),
    Command(name="clear", help="Start over with an empty context; nothing is deleted", run=_run_clear),
    Command(
        name="branch-here",
        help="Create a branch here or at a place and switch to it, optionally with a summary of what it leaves out",
        run=_run_branch_here,
        arguments=(
            Argument(name="NAME"),
            PLACE,
            Argument(name=f"SUMMARY|{MODEL_SUMMARY}", complete=lambda controller, prefix: [MODEL_SUMMARY], rest=True),
        ),
    ),
    Command(name="branches", help="List the branches of this session, and leaves without a branch", run=_run_branches),
    Command(
        name="label",
        help="Label an entry, by default the current one; --clear removes the label; without arguments, list labels",
        run=_run_label,
        arguments=(Argument(name="TEXT|--clear", complete=complete_labels), PLACE),
    ),
    Command(
        name="merge",
        help="Merge a summary of another branch or place into this one",
        run=_run_merge,
        arguments=(replace(PLACE, name="BRANCH|PLACE", required=True), FOCUS),
    ),
    Command(
        name="cherry-pick",
        help="Copy messages from other branches to this one; tool calls keep their results",
        run=_run_cherry_pick,
        arguments=(replace(PLACE, required=True, repeated=True),),
    ),
    Command(
        name="rebase",
        help="Copy the entries of this branch onto another place and continue there",
        run=_run_rebase,
        arguments=(replace(PLACE, name="ONTO", required=True),),
    ),
    Command(
        name="compact",
        help="Replace the older part of the conversation with a summary",
        run=_run_compact,
        arguments=(FOCUS,),
    ),
    Command(name="uncompact", help="Undo the last compaction", run=_run_uncompact),
)
