"""Commands that move within the session, mark places in it, and bring branches together."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from sessiontree.commands.arguments import BRANCH, FOCUS, PLACE, labels, places
from sessiontree.commands.command import Argument, Command, Done
from sessiontree.commands.desk import Desk
from sessiontree.commands.leaving import Leaving, asked
from sessiontree.commands.text import drawn, excerpt, short, table
from sessiontree.core.figures import pluralize
from sessiontree.core.outline import row_text
from sessiontree.core.plan import last_prompt
from sessiontree.errors import InvalidOperation
from sessiontree.ops.compact import uncompact
from sessiontree.ops.merge import CopyOutcome, cherry_pick, merge, rebase
from sessiontree.ops.navigate import NavigateOutcome, previous_prompt

CANCELLED = Done(text="cancelled: everything is as it was")


def moved(outcome: NavigateOutcome) -> Done:
    if outcome.cancelled:
        return CANCELLED
    if outcome.old_leaf == outcome.new_leaf:
        return Done(text="you are there already")
    with_summary = " with a summary" if outcome.summary_entry is not None else ""
    return Done(text=f"{short(outcome.old_leaf)} → {short(outcome.new_leaf)}{with_summary}")


async def _tree(desk: Desk, args: Sequence[str]) -> Done:
    if args:
        place = args[0]
    elif desk.ui.has_person:
        place = await desk.host.choose_entry(desk)
        if place is None:
            return Done()
    else:
        return Done(text=drawn(desk.session, desk.branch.leaf))
    return await go_with_choice(desk, place)


async def go_with_choice(desk: Desk, place: str) -> Done:
    """Go to a place, after asking what becomes of what is left."""
    plan = desk.plan(place)
    asks = plan.moves and plan.abandoned and desk.ui.has_person and not desk.settings.summary.skip_prompt
    leaving = await asked(desk.ui) if asks else Leaving()
    if leaving is None:
        return Done()
    return moved(
        await desk.navigate(
            place,
            summarize=leaving.summarize,
            custom_instructions=leaving.instructions,
            summary=leaving.summary,
        )
    )


async def _pop(desk: Desk, args: Sequence[str]) -> Done:
    place = args[0] if args else previous_prompt(desk.branch)
    left = desk.plan(place).abandoned
    return moved(await desk.navigate(place, summarize=bool(left)))


async def _undo(desk: Desk, args: Sequence[str]) -> Done:
    plan = await desk.undo()
    return Done(text=f"undid {plan.undone}: {short(plan.old_leaf)} → {short(plan.new_leaf)}, on {desk.branch.name}")


async def _retry(desk: Desk, args: Sequence[str]) -> Done:
    prompt = last_prompt(desk.branch.path())
    if prompt is None:
        raise InvalidOperation("there is no message of the user to answer again")
    desk.agent  # noqa: B018 - without a model one does not set out
    outcome = await desk.go(prompt)
    return replace(moved(outcome), text="" if not outcome.cancelled else CANCELLED.text, answer=not outcome.cancelled)


async def _clear(desk: Desk, args: Sequence[str]) -> Done:
    outcome = await desk.go(None)
    if outcome.cancelled or outcome.old_leaf is None:
        return moved(outcome)
    return Done(text="the model sees nothing of what was said; /undo goes back")


async def _switch(desk: Desk, args: Sequence[str]) -> Done:
    place = args[0] if args else await _chosen_branch(desk)
    if place is None:
        return Done()
    outcome = await desk.switch(place)
    if outcome.cancelled:
        return CANCELLED
    return Done(text=f"on {desk.branch.name}, at {short(desk.branch.leaf)}")


async def _chosen_branch(desk: Desk) -> str | None:
    others = [info.name for info in desk.session.branches if info.name != desk.branch.name and not info.archived]
    if not others:
        raise InvalidOperation("there is no other branch: /branch-here makes one")
    if not desk.ui.has_person:
        raise InvalidOperation(f"say where to go: there are {', '.join(others)}")
    return await desk.ui.select("Which branch?", others)


async def _branch_here(desk: Desk, args: Sequence[str]) -> Done:
    name, place = [*args, None, None][:2]
    branch = await desk.branch_here(name, place)
    return Done(text=f"on the new branch {branch.name}, from {short(desk.session.tree.parent(branch.leaf or ''))}")


async def _branches(desk: Desk, args: Sequence[str]) -> Done:
    session = desk.session
    rows = [["", "branch", "head", "entries", "last"]]
    for info in session.branches:
        if not info.archived:
            head = None if info.head is None or info.head not in session.tree else session.tree[info.head]
            last = "" if head is None else excerpt(row_text(head), 48)
            rows.append(
                ["*" if info.name == desk.branch.name else "", info.name, short(info.head), str(info.entry_count), last]
            )
    return Done(text=table(rows))


async def _label(desk: Desk, args: Sequence[str]) -> Done:
    tree = desk.session.tree
    if not args:
        rows = [[short(id), f"[{label}]", excerpt(row_text(tree[id]), 48)] for id, label in tree.labels.items()]
        return Done(text=table(rows) if rows else "there are no labels: /label TEXT puts one here")
    text, named = [*args, "HEAD"][:2]
    cleared, place = text == "--clear" or not text.strip(), desk.place(named)
    desk.session.label(place, None if cleared else text)
    desk.host.changed()
    where = short(desk.session.place(place))
    return Done(text=f"{where} has no label now" if cleared else f"{where} is labeled [{text}]")


# Bringing branches together


async def _merge(desk: Desk, args: Sequence[str]) -> Done:
    source, focus = [*args, None][:2]
    with desk.moving() as signal:
        outcome = await merge(
            desk.session.branch(source or ""),
            desk.branch,
            hooks=desk.hooks,
            model=desk.model,
            custom_instructions=focus,
            settings=desk.settings.summary,
            retry=desk.settings.retry,
            signal=signal,
        )
    desk.host.changed()
    return CANCELLED if outcome.cancelled else Done(text=f"{source} is merged, as {short(outcome.new_leaf)}")


async def _cherry_pick(desk: Desk, args: Sequence[str]) -> Done:
    desk.at_rest()
    return _copied(desk, await cherry_pick(desk.branch, [*map(desk.place, args)], hooks=desk.hooks))


async def _rebase(desk: Desk, args: Sequence[str]) -> Done:
    desk.at_rest()
    return _copied(desk, await rebase(desk.branch, desk.place(args[0]), hooks=desk.hooks))


def _copied(desk: Desk, outcome: CopyOutcome) -> Done:
    desk.host.changed()
    if outcome.cancelled:
        return CANCELLED
    return Done(
        text=f"copied {pluralize(len(outcome.entries), 'entry', 'entries')}; the head is {short(outcome.new_leaf)}"
    )


# Compactions


async def _compact(desk: Desk, args: Sequence[str]) -> Done:
    desk.staying()
    outcome = await desk.agent.compact(args[0] if args else None)
    desk.host.changed()
    if outcome.cancelled:
        return CANCELLED
    if outcome.entry is None:
        return Done(text="there is nothing to compact")
    return Done(text=f"compacted, as {short(outcome.entry.id)}")


async def _uncompact(desk: Desk, args: Sequence[str]) -> Done:
    desk.at_rest()
    outcome = await uncompact(desk.branch, desk.hooks)
    desk.arrived()
    return moved(outcome)


COMMANDS = (
    Command(
        name="tree",
        help="Show the tree, and go to an entry of it; what you leave can be summarized",
        run=_tree,
        arguments=(PLACE,),
    ),
    Command(
        name="switch",
        help="Make another branch current, or take this one to an entry",
        run=_switch,
        arguments=(Argument(name="BRANCH|PLACE", complete=places),),
    ),
    Command(
        name="pop",
        help="Go back to your last message, or to an entry, with a summary of what you leave",
        run=_pop,
        arguments=(PLACE,),
    ),
    Command(name="undo", help="Undo the last move, switch or merge; again, the one before", run=_undo),
    Command(name="retry", help="Have your last message answered again, beside the first answer", run=_retry),
    Command(name="clear", help="Go before everything: the model sees nothing of it, and nothing is lost", run=_clear),
    Command(
        name="branch-here",
        help="Make a branch in this session and go on there, from here or from a place",
        run=_branch_here,
        arguments=(Argument(name="NAME"), PLACE),
    ),
    Command(name="branches", help="List the branches of this session", run=_branches),
    Command(
        name="label",
        help="Put a label on a place, this one by default; --clear takes it away; list them",
        run=_label,
        arguments=(Argument(name="TEXT|--clear", complete=labels), PLACE),
    ),
    Command(
        name="merge",
        help="Bring back a summary of what was done on another branch",
        run=_merge,
        arguments=(replace(BRANCH, required=True), FOCUS),
    ),
    Command(
        name="cherry-pick",
        help="Copy messages from anywhere in the tree to here, calls with their results",
        run=_cherry_pick,
        arguments=(replace(PLACE, required=True, several=True),),
    ),
    Command(
        name="rebase",
        help="Copy what this branch has of its own to another place, and go on there",
        run=_rebase,
        arguments=(replace(PLACE, name="ONTO", required=True),),
    ),
    Command(
        name="compact",
        help="Put a summary in the place of the older part of the conversation",
        run=_compact,
        arguments=(FOCUS,),
    ),
    Command(name="uncompact", help="Go on from before the last compaction", run=_uncompact),
)
