"""Commands of operations: navigate, pop, compact, uncompact, merge, promote, cherry-pick, rebase.

A model is looked for only when a summary is to be made. What an operation needs is imported when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from sessiontree.cli.agent_setup import RunningController, StderrUi, extension_option, print_notice
from sessiontree.cli.app import (
    F,
    app,
    branch_argument,
    branch_option,
    format_id,
    json_option,
    open_session,
    place_argument,
    place_option,
    run_async,
    session_argument,
    warn_set_aside,
)
from sessiontree.cli.edit import plan_to_wire, print_plan
from sessiontree.cli.output import dim, echo, echo_json, escape_line
from sessiontree.core.number_text import pluralize
from sessiontree.core.plan import NavigatePlan, plan_move
from sessiontree.core.tree import Tree
from sessiontree.session import Branch, Place, Session

if TYPE_CHECKING:
    from sessiontree.config import Config
    from sessiontree.hooks.bus import Hooks
    from sessiontree.model.base import Model
    from sessiontree.ops.merge import CopyOutcome, MergeOutcome
    from sessiontree.ops.navigate import NavigateOutcome
    from sessiontree.ops.summarize import SummaryRequest

T = TypeVar("T")

model_option = click.option(
    "--model", metavar="NAME", help="The model, as provider:model; the session's or the usual one by default."
)
focus_option = click.option("--focus", metavar="TEXT", help="What the summary should pay attention to.")
summary_option = click.option("--summary", metavar="TEXT", help="The summary itself, in your own words.")
label_option = click.option("--label", metavar="TEXT", help="A label for the summary, or else for the place.")
instructions_option = click.option("--instructions", metavar="TEXT", help="Ask the model for this instead.")


def summary_options(function: F) -> F:
    for option in (model_option, label_option, summary_option, instructions_option, focus_option):
        function = option(function)
    return function


def _check_exclusive(**given: str | bool | None) -> None:
    named = [f"--{name}" for name, value in given.items() if value]
    if len(named) > 1:
        raise click.UsageError(f"give one of {' and '.join(named)}")


class _Operation:
    """One operation on one session: its hooks, and its model once that is needed."""

    def __init__(self, session: Session, model: str | None) -> None:
        from sessiontree import config
        from sessiontree.hooks.bus import Hooks

        self.session = session
        self.settings: Config = config.load()
        self.hooks: Hooks = Hooks()
        self.hooks.listen(print_notice)
        self._model_name = model

    def resolve_model(self, branch: Branch) -> Model:
        from sessiontree.cli.prompt import select_model

        return select_model(self._model_name, branch, self.settings, self.hooks)

    def request_summary(self, branch: Branch, options: Mapping[str, str | None]) -> SummaryRequest:
        """Return a request for a summary by the model, with the instructions in the options."""
        from sessiontree.ops.summarize import SummaryRequest

        replacing = options.get("instructions")
        return SummaryRequest(
            model=self.resolve_model(branch),
            instructions=options.get("focus") or replacing,
            replace_instructions=replacing is not None,
            settings=self.settings.summary,
            retry=self.settings.retry,
        )


def _run_operation(
    session: Session,
    operation: Callable[[_Operation], Coroutine[Any, Any, T]],
    extensions: tuple[str, ...],
    model: str | None = None,
) -> T:
    """Carry out an operation with the extensions loaded, so that their handlers are asked and told."""

    from sessiontree.agent.setup import AgentOptions
    from sessiontree.commands.controller import SessionController

    work = _Operation(session, model)
    desk = SessionController(session, options=AgentOptions(settings=work.settings), hooks=work.hooks, ui=StderrUi())

    async def run() -> T:
        async with RunningController(desk, extensions):
            return await operation(work)

    outcome = run_async(run())
    warn_set_aside(session)
    return outcome


# Moving


@app.command(
    epilog="\b\nExamples:\n  sessiontree navigate @ HEAD~2 --dry-run\n"
    '  sessiontree navigate @ two-ways --summarize --focus "what was measured"'
)
@session_argument
@place_argument("place", metavar="PLACE")
@click.option("--dry-run", is_flag=True, help="Only say what would happen.")
@place_option("--from", "start", help="With --dry-run: as if the head were here.")
@click.option("--summarize", is_flag=True, help="Write a summary of what is left at the new place.")
@summary_options
@extension_option
@json_option
def navigate(
    session: str,
    place: str,
    dry_run: bool,
    start: str | None,
    summarize: bool,
    extensions: tuple[str, ...],
    as_json: bool,
    **options: str | None,
) -> None:
    """Move the current branch to a place.

    Choosing a user's message goes to its parent and gives back its text, to be said anew. Nothing
    is lost: the old leaf stays in the tree, and `undo` goes back.
    """
    if start is not None and not dry_run:
        raise click.UsageError("--from goes with --dry-run")
    _check_exclusive(focus=options["focus"], instructions=options["instructions"], summary=options["summary"])
    for option in ("focus", "instructions", "model"):
        if options[option] is not None and not summarize:
            raise click.UsageError(f"--{option} goes with --summarize")
    if dry_run:
        read = open_session(session, read_only=True)
        print_plan(read.tree, read.plan_navigate(place, start=start or "HEAD"), as_json=as_json)
        return
    with open_session(session) as changed:
        _run_navigate(changed, place, summarize=summarize, options=options, extensions=extensions, as_json=as_json)


@app.command(epilog='\b\nExample:\n  sessiontree pop @ --summary "A cache needs too much memory."')
@session_argument
@place_argument("place", metavar="[PLACE]", required=False)
@click.option("--no-summary", is_flag=True, help="Write no summary of what is left.")
@summary_options
@extension_option
@json_option
def pop(
    session: str,
    place: str | None,
    no_summary: bool,
    extensions: tuple[str, ...],
    as_json: bool,
    **options: str | None,
) -> None:
    """Go back to before the user's last message, or to a place, with a summary of what is left.

    The text of the message is given back, to be said anew.
    """
    from sessiontree.ops.navigate import find_previous_prompt

    given = {option: options[option] for option in ("focus", "instructions", "summary")}
    _check_exclusive(**given, **{"no-summary": no_summary})
    with open_session(session) as changed:
        target = find_previous_prompt(changed.head) if place is None else place
        _run_navigate(
            changed, target, summarize=not no_summary, options=options, extensions=extensions, as_json=as_json
        )


def _run_navigate(
    session: Session,
    place: Place,
    *,
    summarize: bool,
    options: dict[str, str | None],
    extensions: tuple[str, ...],
    as_json: bool,
) -> None:
    from sessiontree.ops import navigate as ops

    plan = session.plan_navigate(place)
    own = options["summary"]

    async def run(work: _Operation) -> NavigateOutcome:
        wanted = summarize and bool(plan.abandoned)
        return await ops.navigate(
            session,
            place,
            hooks=work.hooks,
            summary=own if own is not None or not wanted else work.request_summary(session.head, options),
            label=options["label"],
        )

    outcome = _run_operation(session, run, extensions, options["model"])
    _print_move(session.tree, plan, outcome, as_json=as_json)


def _print_move(tree: Tree, plan: NavigatePlan, outcome: NavigateOutcome, *, as_json: bool) -> None:
    moved = msgspec.structs.replace(plan, new_leaf=outcome.new_leaf)
    entry = None if outcome.summary_entry is None else outcome.summary_entry.id
    if as_json:
        echo_json({**plan_to_wire(moved), "summaryEntry": entry, "cancelled": outcome.cancelled})
    elif outcome.cancelled:
        echo("cancelled")
    else:
        if entry is not None:
            echo(entry, dim("a summary of what is left"))
        print_plan(tree, moved, as_json=False)


# Compacting


@app.command(epilog='\b\nExample:\n  sessiontree compact @ --focus "the open questions"')
@session_argument
@branch_option("--branch", help="The branch to compact; the current one by default.")
@focus_option
@summary_option
@model_option
@extension_option
@json_option
def compact(
    session: str,
    branch: str | None,
    focus: str | None,
    summary: str | None,
    model: str | None,
    extensions: tuple[str, ...],
    as_json: bool,
) -> None:
    """Put a summary in the place of the older part of the context.

    No entry is changed: the tree keeps everything, and `uncompact` goes on from before the summary.
    """
    from sessiontree.core.entries import Compaction
    from sessiontree.ops import compact as ops

    _check_exclusive(focus=focus, summary=summary)
    with open_session(session) as changed:
        on = changed.head if branch is None else changed.branch(branch)

        async def run(work: _Operation) -> ops.CompactOutcome:
            if summary is not None:
                return await ops.compact(on, work.hooks, summary=summary, settings=work.settings.compaction)
            request = work.request_summary(on, {"focus": focus})
            assert request.model is not None
            settings = work.settings.get_compaction_settings(request.model.info.name)
            return await ops.compact(on, work.hooks, summary=request, settings=settings)

        outcome = _run_operation(changed, run, extensions, model)
    body = None if outcome.entry is None else outcome.entry.body
    entry = None if outcome.entry is None else outcome.entry.id
    kept = body.first_kept if isinstance(body, Compaction) and body.first_kept != entry else None
    tokens = body.tokens_before if isinstance(body, Compaction) else None
    if as_json:
        wire = {"compaction": entry, "firstKept": kept, "tokensBefore": tokens, "cancelled": outcome.cancelled}
        echo_json(wire)
    elif outcome.cancelled:
        echo("cancelled")
    elif entry is None:
        echo("nothing to compact")
    else:
        keeps = "keeping nothing" if kept is None else f"keeping {format_id(kept)} and what follows"
        echo(
            entry,
            dim(
                f"on {escape_line(on.name)}, {keeps}; there were "
                f"{pluralize(tokens or 0, 'token', shown=f'{tokens or 0:,}')}"
            ),
        )


@app.command(epilog="\b\nExample:\n  sessiontree uncompact @ --branch cache")
@session_argument
@branch_option("--branch", help="The branch; the current one by default.")
@extension_option
@json_option
def uncompact(session: str, branch: str | None, extensions: tuple[str, ...], as_json: bool) -> None:
    """Go on from before the last compaction.

    What was said after it stays in the tree, and `undo` goes back.
    """
    from sessiontree.ops.compact import uncompact as take_back

    with open_session(session) as changed:
        on = changed.head if branch is None else changed.branch(branch)
        outcome = _run_operation(changed, lambda work: take_back(on, work.hooks), extensions)
        plan = plan_move(changed.tree, outcome.old_leaf, outcome.new_leaf)
    _print_move(changed.tree, plan, outcome, as_json=as_json)


# Merging


@app.command(epilog='\b\nExample:\n  sessiontree merge @ dict --summary "Look up by key: 25 ms."')
@session_argument
@branch_argument("branch", metavar="BRANCH")
@branch_option("--into", help="The branch that gets the summary; the current one by default.")
@focus_option
@summary_option
@model_option
@extension_option
@json_option
def merge(
    session: str,
    branch: str,
    into: str | None,
    focus: str | None,
    summary: str | None,
    model: str | None,
    extensions: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write a summary of another branch at the head of this one."""
    from sessiontree.ops.merge import merge as bring_back

    _check_exclusive(focus=focus, summary=summary)
    with open_session(session) as changed:
        source, target = changed.branch(branch), changed.head if into is None else changed.branch(into)

        async def run(work: _Operation) -> MergeOutcome:
            return await bring_back(
                source,
                target,
                hooks=work.hooks,
                summary=work.request_summary(target, {"focus": focus}) if summary is None else summary,
            )

        outcome = _run_operation(changed, run, extensions, model)
    _print_merge(outcome, target.name, f"a summary of {escape_line(branch)}", as_json=as_json)


@app.command(epilog='\b\nExample:\n  sessiontree promote @ dict --summary "The cache grew without bound."')
@session_argument
@branch_argument("winner", metavar="WINNER")
@branch_option("--into", help="The branch that goes on from the winner; the current one by default.")
@branch_option("--over", multiple=True, help="A branch it was chosen over; all that go on from there by default.")
@focus_option
@summary_option
@model_option
@extension_option
@json_option
def promote(
    session: str,
    winner: str,
    into: str | None,
    over: tuple[str, ...],
    focus: str | None,
    summary: str | None,
    model: str | None,
    extensions: tuple[str, ...],
    as_json: bool,
) -> None:
    """Go on from the head of one branch, with a summary of the others.

    The winner and the others are archived: hidden from listings, and kept.
    """
    from sessiontree.ops.merge import find_other_branches
    from sessiontree.ops.merge import promote as choose
    from sessiontree.ops.summarize import SummaryRequest

    _check_exclusive(focus=focus, summary=summary)
    with open_session(session) as changed:
        best, target = changed.branch(winner), changed.head if into is None else changed.branch(into)
        rest = [changed.branch(name) for name in over] or find_other_branches(target, best)

        async def run(work: _Operation) -> MergeOutcome:
            request: SummaryRequest | str = SummaryRequest()
            if summary is not None:
                request = summary
            elif rest:
                request = work.request_summary(target, {"focus": focus})
            return await choose(best, target, rest, hooks=work.hooks, summary=request)

        outcome = _run_operation(changed, run, extensions, model)
    what = f"a summary of {escape_line(', '.join(branch.name for branch in rest))}" if rest else "nothing to summarize"
    _print_merge(outcome, target.name, what, as_json=as_json)


def _print_merge(outcome: MergeOutcome, into: str, what: str, *, as_json: bool) -> None:
    entry = None if outcome.summary_entry is None else outcome.summary_entry.id
    if as_json:
        echo_json({"branch": into, "newLeaf": outcome.new_leaf, "summaryEntry": entry, "cancelled": outcome.cancelled})
    elif outcome.cancelled:
        echo("cancelled")
    else:
        echo(outcome.new_leaf or "root", dim(f"on {escape_line(into)}, {what}"))


# Copying


@app.command("cherry-pick", epilog="\b\nExample:\n  sessiontree cherry-pick @ dict~1 dict")
@session_argument
@place_argument("places", metavar="PLACE...", nargs=-1, required=True)
@branch_option("--onto", help="The branch that gets the copies; the current one by default.")
@extension_option
@json_option
def cherry_pick(
    session: str, places: tuple[str, ...], onto: str | None, extensions: tuple[str, ...], as_json: bool
) -> None:
    """Copy messages to the head of a branch, tool calls and their results together."""
    from sessiontree.ops.merge import cherry_pick as pick

    with open_session(session) as changed:
        on = changed.head if onto is None else changed.branch(onto)
        outcome = _run_operation(changed, lambda work: pick(on, places, hooks=work.hooks), extensions)
    _print_copied_entries(outcome, on.name, as_json=as_json)


@app.command(epilog="\b\nExample:\n  sessiontree rebase @ dict --branch cache")
@session_argument
@place_argument("place", metavar="PLACE")
@branch_option("--branch", help="The branch to move; the current one by default.")
@extension_option
@json_option
def rebase(session: str, place: str, branch: str | None, extensions: tuple[str, ...], as_json: bool) -> None:
    """Have a branch go on from another place, with copies of its entries. The originals stay."""
    from sessiontree.ops.merge import rebase as move

    with open_session(session) as changed:
        on = changed.head if branch is None else changed.branch(branch)
        outcome = _run_operation(changed, lambda work: move(on, place, hooks=work.hooks), extensions)
    _print_copied_entries(outcome, on.name, as_json=as_json)


def _print_copied_entries(outcome: CopyOutcome, branch: str, *, as_json: bool) -> None:
    ids = [entry.id for entry in outcome.entries]
    if as_json:
        wire = {"branch": branch, "oldLeaf": outcome.old_leaf, "newLeaf": outcome.new_leaf}
        echo_json({**wire, "copies": ids, "cancelled": outcome.cancelled})
    elif outcome.cancelled:
        echo("cancelled")
    else:
        moved = f"{format_id(outcome.old_leaf)} → {format_id(outcome.new_leaf)}"
        echo(moved, dim(f"on {escape_line(branch)}, {pluralize(len(ids), 'copy', 'copies')}"))
