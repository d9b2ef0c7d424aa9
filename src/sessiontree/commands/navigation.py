"""Commands that navigate within a session, label entries, and merge, copy or compact branches."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.commands.arguments import BRANCH, FOCUS, PLACE, complete_labels, complete_places
from sessiontree.commands.controller import SessionController
from sessiontree.commands.formatting import draw_tree, format_id, format_table, make_excerpt
from sessiontree.commands.registry import Argument, Command, CommandOutcome
from sessiontree.core.entry_text import format_entry_row
from sessiontree.core.number_text import pluralize
from sessiontree.core.plan import find_last_prompt
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.ui_protocol import Ui
from sessiontree.ops.compact import uncompact
from sessiontree.ops.merge import CopyOutcome, cherry_pick, merge, rebase
from sessiontree.ops.navigate import NavigateOutcome, find_previous_prompt

SUMMARY_CHOICE_QUESTION = "Summarize the branch you're leaving?"
NO_SUMMARY, SUMMARIZE, SUMMARIZE_WITH_FOCUS, WRITE_SUMMARY = SUMMARY_CHOICES = (
    "No summary",
    "Summarize",
    "Summarize with a focus",
    "Write the summary myself",
)
FOCUS_QUESTION = "What should the summary pay attention to?"
SUMMARY_QUESTION = "The summary of what you leave"


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


CANCELLED = CommandOutcome(text="cancelled: everything is as it was")


def format_move(outcome: NavigateOutcome) -> CommandOutcome:
    if outcome.cancelled:
        return CANCELLED
    if outcome.old_leaf == outcome.new_leaf:
        return CommandOutcome(text="you are there already")
    with_summary = " with a summary" if outcome.summary_entry is not None else ""
    return CommandOutcome(text=f"{format_id(outcome.old_leaf)} → {format_id(outcome.new_leaf)}{with_summary}")


async def _run_tree(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    if args:
        place = args[0]
    elif controller.ui.has_person:
        place = await controller.host.choose_entry(controller)
        if place is None:
            return CommandOutcome()
    else:
        return CommandOutcome(text=draw_tree(controller.session, controller.branch.leaf))
    return await navigate_with_summary_choice(controller, place)


async def navigate_with_summary_choice(controller: SessionController, place: str) -> CommandOutcome:
    """Navigate to a place. If that abandons entries, ask how to summarize them first."""
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
        )
    )


async def _run_pop(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    place = args[0] if args else find_previous_prompt(controller.branch)
    left = controller.plan_navigation(place).abandoned
    return format_move(await controller.navigate(place, summarize=bool(left)))


async def _run_undo(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    plan = await controller.undo()
    return CommandOutcome(
        text=f"undid {plan.undo_description}: {format_id(plan.old_leaf)} → {format_id(plan.new_leaf)}, "
        f"on {controller.branch.name}"
    )


async def _run_retry(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    prompt = find_last_prompt(controller.branch.path())
    if prompt is None:
        raise InvalidOperation("there is no message of the user to answer again")
    controller.agent  # noqa: B018 - without a model one does not set out
    outcome = await controller.move_to(prompt)
    return replace(
        format_move(outcome), text="" if not outcome.cancelled else CANCELLED.text, answer=not outcome.cancelled
    )


async def _run_clear(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    outcome = await controller.move_to(None)
    if outcome.cancelled or outcome.old_leaf is None:
        return format_move(outcome)
    return CommandOutcome(text="the model sees nothing of what was said; /undo goes back")


async def _run_switch(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    place = args[0] if args else await _choose_branch(controller)
    if place is None:
        return CommandOutcome()
    outcome = await controller.switch(place)
    if outcome.cancelled:
        return CANCELLED
    return CommandOutcome(text=f"on {controller.branch.name}, at {format_id(controller.branch.leaf)}")


async def _choose_branch(controller: SessionController) -> str | None:
    others = [
        info.name for info in controller.session.branches if info.name != controller.branch.name and not info.archived
    ]
    if not others:
        raise InvalidOperation("there is no other branch: /branch-here makes one")
    if not controller.ui.has_person:
        raise InvalidOperation(f"say where to go: there are {', '.join(others)}")
    return await controller.ui.select("Which branch?", others)


async def _run_branch_here(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    name, place = [*args, None, None][:2]
    branch = await controller.branch_here(name, place)
    return CommandOutcome(
        text=f"on the new branch {branch.name}, from {format_id(controller.session.tree.parent(branch.leaf or ''))}"
    )


async def _run_branches(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    session = controller.session
    rows = [["", "branch", "head", "entries", "last"]]
    for info in session.branches:
        if not info.archived:
            head = None if info.head is None or info.head not in session.tree else session.tree[info.head]
            last = "" if head is None else make_excerpt(format_entry_row(head), 48)
            rows.append(
                [
                    "*" if info.name == controller.branch.name else "",
                    info.name,
                    format_id(info.head),
                    str(info.entry_count),
                    last,
                ]
            )
    return CommandOutcome(text=format_table(rows))


async def _run_label(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    tree = controller.session.tree
    if not args:
        rows = [
            [format_id(id), f"[{label}]", make_excerpt(format_entry_row(tree[id]), 48)]
            for id, label in tree.labels.items()
        ]
        return CommandOutcome(text=format_table(rows) if rows else "there are no labels: /label TEXT puts one here")
    text, named = [*args, "HEAD"][:2]
    cleared, place = text == "--clear" or not text.strip(), controller.qualify_place(named)
    controller.session.label(place, None if cleared else text)
    controller.host.refresh()
    where = format_id(controller.session.resolve_place(place))
    return CommandOutcome(text=f"{where} has no label now" if cleared else f"{where} is labeled [{text}]")


# Merging and copying


async def _run_merge(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    source, focus = [*args, None][:2]
    with controller.begin_move() as signal:
        outcome = await merge(
            controller.session.branch(source or ""),
            controller.branch,
            hooks=controller.hooks,
            summary=controller.request_summary(focus),
            signal=signal,
        )
    controller.host.refresh()
    return (
        CANCELLED if outcome.cancelled else CommandOutcome(text=f"{source} is merged, as {format_id(outcome.new_leaf)}")
    )


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
        return CANCELLED
    return CommandOutcome(
        text=f"copied {pluralize(len(outcome.entries), 'entry', 'entries')}; the head is {format_id(outcome.new_leaf)}"
    )


# Compaction


async def _run_compact(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    controller.ensure_not_moving()
    outcome = await controller.agent.compact(args[0] if args else None)
    controller.host.refresh()
    if outcome.cancelled:
        return CANCELLED
    if outcome.entry is None:
        return CommandOutcome(text="there is nothing to compact")
    return CommandOutcome(text=f"compacted, as {format_id(outcome.entry.id)}")


async def _run_uncompact(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    controller.ensure_idle()
    outcome = await uncompact(controller.branch, controller.hooks)
    controller.sync_position()
    return format_move(outcome)


COMMANDS = (
    Command(
        name="tree",
        help="Show the tree, and go to an entry of it; what you leave can be summarized",
        run=_run_tree,
        arguments=(PLACE,),
    ),
    Command(
        name="switch",
        help="Make another branch current, or take this one to an entry",
        run=_run_switch,
        arguments=(Argument(name="BRANCH|PLACE", complete=complete_places),),
    ),
    Command(
        name="pop",
        help="Go back to your last message, or to an entry, with a summary of what you leave",
        run=_run_pop,
        arguments=(PLACE,),
    ),
    Command(name="undo", help="Undo the last move, switch or merge; again, the one before", run=_run_undo),
    Command(name="retry", help="Have your last message answered again, beside the first answer", run=_run_retry),
    Command(
        name="clear", help="Go before everything: the model sees nothing of it, and nothing is lost", run=_run_clear
    ),
    Command(
        name="branch-here",
        help="Make a branch in this session and go on there, from here or from a place",
        run=_run_branch_here,
        arguments=(Argument(name="NAME"), PLACE),
    ),
    Command(name="branches", help="List the branches of this session", run=_run_branches),
    Command(
        name="label",
        help="Put a label on a place, this one by default; --clear takes it away; list them",
        run=_run_label,
        arguments=(Argument(name="TEXT|--clear", complete=complete_labels), PLACE),
    ),
    Command(
        name="merge",
        help="Bring back a summary of what was done on another branch",
        run=_run_merge,
        arguments=(replace(BRANCH, required=True), FOCUS),
    ),
    Command(
        name="cherry-pick",
        help="Copy messages from anywhere in the tree to here, calls with their results",
        run=_run_cherry_pick,
        arguments=(replace(PLACE, required=True, repeated=True),),
    ),
    Command(
        name="rebase",
        help="Copy what this branch has of its own to another place, and go on there",
        run=_run_rebase,
        arguments=(replace(PLACE, name="ONTO", required=True),),
    ),
    Command(
        name="compact",
        help="Put a summary in the place of the older part of the conversation",
        run=_run_compact,
        arguments=(FOCUS,),
    ),
    Command(name="uncompact", help="Go on from before the last compaction", run=_run_uncompact),
)
