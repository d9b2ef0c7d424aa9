"""The command that draws the tree of a session, or prints it as JSON."""

from __future__ import annotations

from itertools import islice

import click

from sessiontree.cli.app import app, is_terminal, json_option, open_session, place_option, session_argument
from sessiontree.cli.file_options import count_changed_files
from sessiontree.cli.output import (
    bold,
    colorize,
    count_cells,
    cut_to_cells,
    dim,
    echo,
    echo_json_parts,
    echo_lines,
    escape_line,
    get_terminal_width,
    join_parts,
    shorten,
    warn,
)
from sessiontree.core.entries import EntryId, Problem
from sessiontree.core.number_text import pluralize
from sessiontree.core.outline import DEEP_NOTE, FILTERS, format_hidden
from sessiontree.core.problems import ProblemScan, encode_problem
from sessiontree.core.tree import Tree
from sessiontree.core.tree_drawing import DrawnRow, TreeDrawing
from sessiontree.core.tree_rows import find_window, stream_rows
from sessiontree.errors import InvalidOperation
from sessiontree.session import Session

NO_ENTRIES = "(no entries)"
MIN_TEXT_CELLS = 20
"""Columns that the text of a row takes at least, in a terminal that is too narrow for the row."""
WINDOW_ROWS = 40
"""Rows that `tree --around` shows by default."""


@app.command(
    epilog="\b\nExamples:\n  sessiontree tree @\n  sessiontree tree @ --around HEAD --limit 20"
    "\n  sessiontree tree @ --filter labeled-only --json"
)
@session_argument
@click.option("--filter", type=click.Choice(FILTERS), help="Entries to show. Default: default, or all with --json.")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help=f"Show at most N rows. Default with --around: {WINDOW_ROWS}."
)
@place_option("--around", help="Show the rows around a place. Half of them are before it.")
@click.option("--interactive", is_flag=True, help="Choose a place in the tree and navigate to it.")
@json_option
@click.pass_context
def tree(
    context: click.Context,
    session: str,
    filter: str | None,
    limit: int | None,
    around: str | None,
    interactive: bool,
    as_json: bool,
) -> None:
    """Draw the tree of a session.

    Entries are indented only where branches fork. Bullets mark the active path.
    """
    if interactive:
        _choose_and_navigate(context, session)
        return
    opened = open_session(session, read_only=True)
    opened.tree.load()  # the drawing starts at the roots
    filter = filter or ("all" if as_json else "default")
    start = None
    if around is not None:
        limit = limit or WINDOW_ROWS
        start = find_window(opened.tree, _find_leaf(opened), filter, opened.resolve_place(around), limit)
    if as_json:
        _echo_tree_json(opened, filter, limit, start)
    else:
        _print_tree(opened, filter, limit, start)


def _choose_and_navigate(context: click.Context, name: str) -> None:
    """Let the user choose a place in the terminal, then run `navigate`."""
    if not is_terminal():
        raise click.UsageError("--interactive needs a terminal")
    try:
        from sessiontree.tui.screens.tree_screen import choose_entry
    except ModuleNotFoundError as error:
        raise InvalidOperation("--interactive needs an extra: pip install 'sessiontree[tui]'") from error
    from sessiontree.cli.branch_ops import navigate  # cycle: `tree --interactive` runs the navigate command
    from sessiontree.config import load_config

    with open_session(name) as session:
        choice = choose_entry(session, load_config())
    if choice is not None:
        context.invoke(
            navigate,
            session=name,
            place=choice.entry,
            summarize=choice.summarize,
            focus=choice.instructions,
            summary=choice.summary,
        )


def _echo_tree_json(session: Session, filter: str, limit: int | None, start: EntryId | None) -> None:
    tree = session.tree
    scan = ProblemScan(tree)
    rows = stream_rows(tree, _find_leaf(session), filter, scan, start)
    echo_json_parts(
        {"session": session.id, "name": session.name, "branch": session.heads.current, "leaf": session.heads.leaf},
        "entries",
        islice(rows, limit),
        lambda: {"problems": [encode_problem(problem) for problem in _list_problems(session, scan, limit)]},
    )


def _list_problems(session: Session, scan: ProblemScan, limit: int | None) -> list[Problem]:
    """Return the problems of a session; with a limit, the ones that are known without reading more entries."""
    # Entries that are shadowed by another one have no rows, so the scan does not have them.
    return session.problems if limit is None and not scan.is_complete else session.list_problems(scan)


def _find_leaf(session: Session) -> str | None:
    """Return the current leaf, or `None` if it is missing from a damaged session."""
    return session.heads.leaf if session.heads.leaf in session.tree else None


def _print_tree(session: Session, filter: str, limit: int | None, start: EntryId | None) -> None:
    leaf, scan = _find_leaf(session), ProblemScan(session.tree)
    drawing = TreeDrawing(session.tree, leaf, filter, session.heads, scan)
    rows = drawing.iter_rows(start)
    origin = f", from {escape_line(session.header.origin_name)}" if session.header.origin_name else ""
    echo(
        bold(escape_line(session.name or "unnamed")),
        dim(f"{escape_line(session.id)}, on branch {escape_line(session.heads.current)}{origin}"),
    )
    changed, width = count_changed_files(session), get_terminal_width()
    count = echo_lines(_format_row(row, session.tree, changed.get(row.id, 0), width) for row in islice(rows, limit))
    if limit is not None and next(rows, None) is not None:
        echo(dim(f"(more rows follow; {pluralize(count, 'row')} shown)"))
    if drawing.is_deep:
        echo(dim(DEEP_NOTE))
    if not count:
        hidden = session.tree.real_count
        echo(dim(f"(the filter {filter!r} hides {pluralize(hidden, 'entry', 'entries')})" if hidden else NO_ENTRIES))
    elif session.heads.leaf is None:
        echo(dim("(the head is at the root)"))
    _warn_problems(session, _list_problems(session, scan, limit))


def _format_row(row: DrawnRow, tree: Tree, changed: int, width: int | None) -> str:
    """Return a row of the tree as a line. `changed` is the number of files that the tool call changed.

    If a `width` is given, the text is cut so that the row fits on one line of the terminal.
    """
    label = tree.label(row.id)
    mark = "• " if row.on_path else ""
    label_mark = f"[{escape_line(label)}] " if label else ""
    names = "".join(f"({escape_line(name)})" for name in row.branches)
    files = f"· {pluralize(changed, 'file')}" if changed else ""
    active = "← active" if row.active else ""
    hidden = format_hidden([escape_line(name) for name in row.branches_hidden], row.active_hidden)
    text = escape_line(row.text)
    if width is not None:
        others = join_parts(f"{row.prefix}{mark}{label_mark} ", names, files, active, hidden)
        text = cut_to_cells(text, max(MIN_TEXT_CELLS, width - count_cells(others)))
    return join_parts(
        dim(row.prefix) + colorize(mark, "green") + colorize(label_mark, "yellow") + text,
        colorize(names, "cyan"),
        dim(files),
        colorize(active, "green"),
        dim(hidden),
    )


def _warn_problems(session: Session, problems: list[Problem]) -> None:
    faults = [problem for problem in problems if problem.severity == "fault"]
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        first = f"line {faults[0].line}: {faults[0].message}" if faults[0].line else faults[0].message
        warn(f"damaged: {shorten(first)}{more} (see `sessiontree doctor {session.location}`)")
