"""Commands that move, summarize and combine branches: navigate, pop, compact, merge, promote, cherry-pick, rebase.

A command selects a model only if it needs a summary, and imports an operation only when it runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from sessiontree.cli.agent_setup import ExtensionSetup, extension_option, model_option, print_notice
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
from sessiontree.cli.edit import encode_plan, print_plan
from sessiontree.cli.file_options import (
    choose_files,
    diff_option,
    encode_restored,
    files_options,
    plan_files,
    print_merged_files,
    print_restored,
)
from sessiontree.cli.output import dim, echo, echo_json, escape_line
from sessiontree.core.number_text import pluralize
from sessiontree.core.operation_plans import NavigatePlan, plan_move
from sessiontree.core.tree import Tree
from sessiontree.session import Branch, Place, Session

if TYPE_CHECKING:
    from sessiontree.ops.merge import CopyOutcome, MergeOutcome
    from sessiontree.ops.move_files import FilesChoice
    from sessiontree.ops.navigate import NavigateOutcome
    from sessiontree.ops.summarize import SummaryRequest

T = TypeVar("T")

focus_option = click.option("--focus", metavar="TEXT", help="What the summary should focus on.")
summary_option = click.option(
    "--summary", metavar="TEXT", help="Use this text as the summary instead of asking a model."
)
label_option = click.option(
    "--label", metavar="TEXT", help="Label for the summary, or for the new place if there is none."
)
instructions_option = click.option("--instructions", metavar="TEXT", help="Replace the instructions for the summary.")


def summary_options(function: F) -> F:
    for option in (model_option, label_option, summary_option, instructions_option, focus_option):
        function = option(function)
    return function


def _check_exclusive(**values: str | bool | None) -> None:
    given = [f"--{name}" for name, value in values.items() if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are mutually exclusive")


class _Operation:
    """One operation: its settings, its hooks, and the model if it needs one."""

    def __init__(self, setup: ExtensionSetup, model: str | None) -> None:
        self.settings = setup.settings
        self.hooks = setup.hooks
        self._setup = setup
        self._model_name = model

    def request_summary(self, branch: Branch, options: Mapping[str, str | None]) -> SummaryRequest:
        """Return a request for a summary by the model, with the instructions in the options."""
        from sessiontree.model.selection import NoModel
        from sessiontree.ops.summarize import SummaryRequest

        try:
            model = self._setup.select_model(self._model_name, branch)
        except NoModel as error:
            raise NoModel(error.name, f"{error.reason}; or write the summary yourself with --summary") from error
        replacing = options.get("instructions")
        return SummaryRequest(
            model=model,
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
    """Run an operation with the extensions loaded and their handlers active."""
    setup = ExtensionSetup(extensions)
    setup.hooks.listen(print_notice)

    async def run() -> T:
        async with setup.attach(session):
            return await operation(_Operation(setup, model))

    outcome = run_async(run())
    warn_set_aside(session)
    return outcome


# Navigation


@app.command(
    epilog="\b\nExamples:\n  sessiontree navigate @ HEAD~2 --dry-run\n"
    '  sessiontree navigate @ two-ways --summarize --focus "what was measured"'
)
@session_argument
@place_argument("place", metavar="PLACE")
@click.option("--dry-run", is_flag=True, help="Show what would happen and change nothing.")
@place_option("--from", "start", help="With --dry-run: start from this place instead of the head.")
@files_options
@diff_option
@click.option("--summarize", is_flag=True, help="Write a summary of the branch you leave at the new place.")
@summary_options
@extension_option
@json_option
def navigate(
    session: str,
    place: str,
    dry_run: bool,
    start: str | None,
    files: bool,
    files_only: bool,
    take: tuple[str, ...],
    diff: bool,
    summarize: bool,
    extensions: tuple[str, ...],
    as_json: bool,
    **options: str | None,
) -> None:
    """Move the current branch to a place.

    If the place is a user message, the branch moves to its parent and the text is printed for you to edit
    and send again. Nothing is lost: the old leaf stays in the tree, and `undo` goes back. With --files, the
    changes that the agent made to files are reverted or applied too; add --dry-run to see them first.
    """
    choice = choose_files(files, files_only, take, dry_run=dry_run, diff=diff, shows_plan=True)
    if start is not None and not dry_run:
        raise click.UsageError("--from requires --dry-run")
    _check_exclusive(focus=options["focus"], instructions=options["instructions"], summary=options["summary"])
    for option in ("focus", "instructions", "model"):
        if options[option] is not None and not summarize:
            raise click.UsageError(f"--{option} requires --summarize")
    if dry_run:
        opened = open_session(session, read_only=True)
        _print_preview(opened, place, choice, take, start=start or "HEAD", diff=diff, as_json=as_json)
        return
    with open_session(session) as opened:
        _run_navigate(
            opened,
            place,
            summarize=summarize,
            options=options,
            extensions=extensions,
            as_json=as_json,
            files=choice,
            take=take,
        )


def _print_preview(
    session: Session,
    place: Place,
    choice: FilesChoice,
    take: Sequence[str],
    *,
    diff: bool,
    as_json: bool,
    start: Place = "HEAD",
) -> None:
    """Show where a move leads, and what it does to files."""
    plan = session.plan_navigate(place, start=start)
    files = None if choice == "conversation" else plan_files(session.head, plan.new_leaf, take)
    print_plan(session.tree, plan, as_json=as_json, files=files, with_diff=diff, dry_run=True)


@app.command(epilog='\b\nExample:\n  sessiontree pop @ --summary "A cache needs too much memory."')
@session_argument
@place_argument("place", metavar="[PLACE]", required=False)
@click.option("--no-summary", is_flag=True, help="Write no summary of the branch you leave.")
@click.option("--dry-run", is_flag=True, help="Show what would happen and change nothing.")
@files_options
@diff_option
@summary_options
@extension_option
@json_option
def pop(
    session: str,
    place: str | None,
    no_summary: bool,
    dry_run: bool,
    files: bool,
    files_only: bool,
    take: tuple[str, ...],
    diff: bool,
    extensions: tuple[str, ...],
    as_json: bool,
    **options: str | None,
) -> None:
    """Go back to before the last user message, or to a place, and summarize the branch you leave.

    The text of the message is printed for you to edit and send again.
    """
    from sessiontree.ops.navigate import find_previous_prompt

    given = {option: options[option] for option in ("focus", "instructions", "summary")}
    _check_exclusive(**given, **{"no-summary": no_summary})
    choice = choose_files(files, files_only, take, dry_run=dry_run, diff=diff, shows_plan=True)
    with open_session(session, read_only=dry_run) as opened:
        target = find_previous_prompt(opened.head) if place is None else place
        if dry_run:
            _print_preview(opened, target, choice, take, diff=diff, as_json=as_json)
            return
        _run_navigate(
            opened,
            target,
            summarize=not no_summary and not files_only,
            options=options,
            extensions=extensions,
            as_json=as_json,
            files=choice,
            take=take,
        )


def _run_navigate(
    session: Session,
    place: Place,
    *,
    summarize: bool,
    options: dict[str, str | None],
    extensions: tuple[str, ...],
    as_json: bool,
    files: FilesChoice = "conversation",
    take: Sequence[str] = (),
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
            files=files,
            take=take,
            file_settings=work.settings.files,
        )

    outcome = _run_operation(session, run, extensions, options["model"])
    _print_move(session.tree, plan, outcome, as_json=as_json)


def _print_move(tree: Tree, plan: NavigatePlan, outcome: NavigateOutcome, *, as_json: bool) -> None:
    moved = msgspec.structs.replace(plan, new_leaf=outcome.new_leaf)
    entry = None if outcome.summary_entry is None else outcome.summary_entry.id
    if as_json:
        restored = {} if outcome.files is None else {"files": encode_restored(outcome.files)}
        echo_json({**encode_plan(moved), "summaryEntry": entry, "cancelled": outcome.cancelled, **restored})
    elif outcome.cancelled:
        echo("cancelled")
    else:
        if entry is not None:
            echo(entry, dim("summary of the branch you left"))
        if outcome.files is None or plan.old_leaf != outcome.new_leaf:
            print_plan(tree, moved, as_json=False)
        if outcome.files is not None:
            print_restored(outcome.files)


# Compaction


@app.command(epilog='\b\nExample:\n  sessiontree compact @ --focus "the open questions"')
@session_argument
@branch_option("--branch", help="Branch to compact. Default: the current branch.")
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
    """Replace the older part of the context with a summary.

    No entry is changed: the tree keeps everything, and `uncompact` continues from before the summary.
    """
    from sessiontree.core.entries import Compaction
    from sessiontree.ops import compact as ops

    _check_exclusive(focus=focus, summary=summary)
    with open_session(session) as opened:
        on = opened.head if branch is None else opened.branch(branch)

        async def run(work: _Operation) -> ops.CompactOutcome:
            if summary is not None:
                return await ops.compact(on, work.hooks, summary=summary, settings=work.settings.compaction)
            request = work.request_summary(on, {"focus": focus})
            assert request.model is not None
            settings = work.settings.get_compaction_settings(request.model.info.name)
            return await ops.compact(on, work.hooks, summary=request, settings=settings)

        outcome = _run_operation(opened, run, extensions, model)
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
        keeps = "nothing" if kept is None else f"entries from {format_id(kept)}"
        before = pluralize(tokens or 0, "token", shown=f"{tokens or 0:,}")
        echo(entry, dim(f"on {escape_line(on.name)}, keeping {keeps}; {before} before"))


@app.command(epilog="\b\nExample:\n  sessiontree uncompact @ --branch cache")
@session_argument
@branch_option("--branch", help="Branch to change. Default: the current branch.")
@extension_option
@json_option
def uncompact(session: str, branch: str | None, extensions: tuple[str, ...], as_json: bool) -> None:
    """Continue from before the last compaction.

    Messages after the compaction stay in the tree, and `undo` goes back.
    """
    from sessiontree.ops.compact import uncompact as run_uncompact

    with open_session(session) as opened:
        on = opened.head if branch is None else opened.branch(branch)
        outcome = _run_operation(opened, lambda work: run_uncompact(on, work.hooks), extensions)
        plan = plan_move(opened.tree, outcome.old_leaf, outcome.new_leaf)
    _print_move(opened.tree, plan, outcome, as_json=as_json)


# Merge


@app.command(epilog='\b\nExample:\n  sessiontree merge @ dict --summary "Look up by key: 25 ms."')
@session_argument
@place_argument("place", metavar="BRANCH|PLACE")
@branch_option("--into", help="Branch that gets the summary. Default: the current branch.")
@focus_option
@summary_option
@model_option
@extension_option
@json_option
def merge(
    session: str,
    place: str,
    into: str | None,
    focus: str | None,
    summary: str | None,
    model: str | None,
    extensions: tuple[str, ...],
    as_json: bool,
) -> None:
    """Append a summary of another branch, or of the path to any place, to this branch."""
    from sessiontree.ops.merge import merge as run_merge

    _check_exclusive(focus=focus, summary=summary)
    with open_session(session) as opened:
        target = opened.head if into is None else opened.branch(into)
        opened.resolve_place(place)  # a wrong place is reported before a missing model

        async def run(work: _Operation) -> MergeOutcome:
            outcome = await run_merge(
                place,
                target,
                hooks=work.hooks,
                summary=work.request_summary(target, {"focus": focus}) if summary is None else summary,
                file_settings=work.settings.files,
            )
            print_merged_files(outcome)
            return outcome

        outcome = _run_operation(opened, run, extensions, model)
    _print_merge(outcome, target.name, f"a summary of {escape_line(place)}", as_json=as_json)


@app.command(epilog='\b\nExample:\n  sessiontree promote @ dict --summary "The cache grew without bound."')
@session_argument
@branch_argument("winner", metavar="WINNER")
@branch_option("--into", help="Branch that continues from the winner. Default: the current branch.")
@branch_option(
    "--over", multiple=True, help="Branch that lost; repeatable. Default: all branches that start at the same place."
)
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
    """Continue from the head of one branch, with a summary of the others.

    The winner and the others are archived: kept, but hidden from listings.
    """
    from sessiontree.ops.merge import find_other_branches
    from sessiontree.ops.merge import promote as run_promote
    from sessiontree.ops.summarize import SummaryRequest

    _check_exclusive(focus=focus, summary=summary)
    with open_session(session) as opened:
        best, target = opened.branch(winner), opened.head if into is None else opened.branch(into)
        rest = [opened.branch(name) for name in over] or find_other_branches(target, best)

        async def run(work: _Operation) -> MergeOutcome:
            request: SummaryRequest | str = SummaryRequest()
            if summary is not None:
                request = summary
            elif rest:
                request = work.request_summary(target, {"focus": focus})
            outcome = await run_promote(
                best, target, rest, hooks=work.hooks, summary=request, file_settings=work.settings.files
            )
            print_merged_files(outcome)
            return outcome

        outcome = _run_operation(opened, run, extensions, model)
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


# Copies


@app.command("cherry-pick", epilog="\b\nExample:\n  sessiontree cherry-pick @ dict~1 dict")
@session_argument
@place_argument("places", metavar="PLACE...", nargs=-1, required=True)
@branch_option("--onto", help="Branch that gets the copies. Default: the current branch.")
@extension_option
@json_option
def cherry_pick(
    session: str, places: tuple[str, ...], onto: str | None, extensions: tuple[str, ...], as_json: bool
) -> None:
    """Copy messages to the head of a branch. Tool calls are copied together with their results."""
    from sessiontree.ops.merge import cherry_pick as run_cherry_pick

    with open_session(session) as opened:
        on = opened.head if onto is None else opened.branch(onto)
        outcome = _run_operation(opened, lambda work: run_cherry_pick(on, places, hooks=work.hooks), extensions)
    _print_copied_entries(outcome, on.name, as_json=as_json)


@app.command(epilog="\b\nExample:\n  sessiontree rebase @ dict --branch cache")
@session_argument
@place_argument("place", metavar="PLACE")
@branch_option("--branch", help="Branch to move. Default: the current branch.")
@extension_option
@json_option
def rebase(session: str, place: str, branch: str | None, extensions: tuple[str, ...], as_json: bool) -> None:
    """Copy the entries of a branch to another place and move the branch there. The originals stay."""
    from sessiontree.ops.merge import rebase as run_rebase

    with open_session(session) as opened:
        on = opened.head if branch is None else opened.branch(branch)
        outcome = _run_operation(opened, lambda work: run_rebase(on, place, hooks=work.hooks), extensions)
    _print_copied_entries(outcome, on.name, as_json=as_json)


def _print_copied_entries(outcome: CopyOutcome, branch: str, *, as_json: bool) -> None:
    ids = [entry.id for entry in outcome.entries]
    if as_json:
        wire = {"branch": branch, "oldLeaf": outcome.old_leaf, "newLeaf": outcome.new_leaf}
        echo_json({**wire, "copies": ids, "cancelled": outcome.cancelled})
    elif outcome.cancelled:
        echo("cancelled")
    else:
        copies = f"{pluralize(len(ids), 'copy', 'copies')} on {escape_line(branch)},"
        echo(copies, dim(f"head moved from {format_id(outcome.old_leaf)} to {format_id(outcome.new_leaf)}"))
