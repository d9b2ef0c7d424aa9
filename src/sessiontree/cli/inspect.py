"""Commands that show parts of a session: log, show, context, branches, compare, diff."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import (
    app,
    format_id,
    json_option,
    open_session,
    place_argument,
    place_option,
    session_argument,
)
from sessiontree.cli.file_options import count_changed_files
from sessiontree.cli.output import (
    bold,
    colorize,
    dim,
    echo,
    echo_json,
    echo_raw,
    escape_line,
    escape_lines,
    print_table,
)
from sessiontree.core.call_lookup import CallLookup
from sessiontree.core.context_explanation import Explanation, encode_explanation, explain
from sessiontree.core.entries import EntryId, JsonObject
from sessiontree.core.entry_text import format_entry_row, format_whole_body, format_whole_message
from sessiontree.core.messages import estimate_tokens, get_entry_role, get_role
from sessiontree.core.number_text import format_dollars, pluralize
from sessiontree.core.place_names import find_recent_leaves
from sessiontree.format.codec import encode_body
from sessiontree.session import Session
from sessiontree.slash_commands.formatting import format_local_time

if TYPE_CHECKING:
    from sessiontree.ops.compare_files import FilesComparison

NO_ENTRIES = "(no entries)"
RECENT_ENTRIES = 1000
"""In a longer session, `branches` looks for leaves only among its last entries."""


def _group_branch_names(session: Session) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, head in session.heads.heads.items():
        if head is not None and name not in session.heads.archived:
            names.setdefault(head, []).append(name)
    return names


@app.command(epilog="\b\nExample:\n  sessiontree log @ --at HEAD~2")
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="Place whose path to list.")
@json_option
def log(session: str, at: str, as_json: bool) -> None:
    """List the entries from the root to a place."""
    opened = open_session(session, read_only=True)
    path = opened.tree.path(opened.resolve_place(at))
    names = _group_branch_names(opened)
    calls = CallLookup(opened.tree)
    for entry in path:
        if as_json:
            echo_raw(entry.raw)
            continue
        label = opened.tree.label(entry.id)
        echo(
            dim(f"{format_id(entry.id)}  {escape_line(format_local_time(entry.timestamp, seconds=True)):19}"),
            colorize(f"[{escape_line(label)}]", "yellow") if label else "",
            escape_line(format_entry_row(entry, calls)),
            "".join(colorize(f"({escape_line(name)})", "cyan") for name in names.get(entry.id, ())),
        )
    if not path and not as_json:
        echo(dim(NO_ENTRIES))


@app.command(epilog="\b\nExample:\n  sessiontree show @ HEAD~1")
@session_argument
@place_argument("entry", metavar="ENTRY")
@json_option
def show(session: str, entry: str, as_json: bool) -> None:
    """Show one entry in full."""
    opened = open_session(session, read_only=True)
    id = opened.resolve_place(entry)
    if id is None:
        raise click.UsageError("root is not an entry")
    shown = opened.tree[id]
    if as_json:
        echo_raw(shown.raw)
        return
    label = opened.tree.label(id)
    kind = shown.type + (f" ({get_entry_role(shown)})" if get_entry_role(shown) else "")
    for name, value in (
        ("entry", id),
        ("parent", opened.tree.parent(id) or "root"),
        ("kind", kind),
        ("time", shown.timestamp),
        ("branch", shown.branch if isinstance(shown.branch, str) else ""),
        ("label", label or ""),
    ):
        if value:
            echo(dim(f"{name:7}"), escape_line(value))
    click.echo()
    click.echo(escape_lines(format_whole_body(encode_body(shown.body))))


@app.command(epilog="\b\nExample:\n  sessiontree context @ --at HEAD~2 --explain")
@session_argument
@place_option("--at", "places", multiple=True, help="Place whose context to show; repeatable. Default: HEAD.")
@click.option("--llm", is_flag=True, help="Convert messages to the roles that models accept; keep failed turns.")
@click.option(
    "--request",
    is_flag=True,
    help="Show the messages of a request: without failed turns, with a result for each tool call.",
)
@click.option(
    "--explain", "explained", is_flag=True, help="Explain for every entry on the path whether the model sees it."
)
@json_option
def context(session: str, places: tuple[str, ...], llm: bool, request: bool, explained: bool, as_json: bool) -> None:
    """Show the context that the model sees at a place."""
    opened = open_session(session, read_only=True)
    for seen in [opened.context(place) for place in places or ("HEAD",)]:
        leaf = seen.leaf
        messages = seen.to_llm() if request else seen.convert_messages() if llm else list(seen.messages)
        explanation = explain(opened.tree, leaf) if explained else None
        if as_json:
            wire: JsonObject = {
                "leaf": leaf,
                "model": seen.model,
                "thinkingLevel": seen.thinking_level,
                "messages": messages,
            }
            if seen.state.mode is not None:
                wire["mode"] = seen.state.mode
            if seen.state.rules:
                wire["rules"] = list(seen.state.rules)
            if explanation is not None:
                wire["explain"] = encode_explanation(explanation)
                if changed := count_changed_files(opened):
                    wire["changedFiles"] = dict(changed)
                wire["tokens"] = explanation.tokens
            echo_json(wire)
            continue
        model = seen.model
        named = f"{model['provider']}/{model['modelId']}" if model else "no model"
        echo(
            bold(f"context at {format_id(leaf)}"),
            dim(f"{escape_line(named)}, thinking {escape_line(seen.thinking_level)}"),
        )
        if explanation is not None:
            _print_explanation(explanation, count_changed_files(opened))
            continue
        for message in messages:
            echo(
                colorize(escape_line(get_role(message)), "cyan"),
                dim(f"~{pluralize(estimate_tokens(message), 'token')}"),
            )
            click.echo(escape_lines(format_whole_message(message)))
            click.echo()


def _print_explanation(explanation: Explanation, changed: Mapping[EntryId, int]) -> None:
    width = max((len(format_id(item.entry.id)) for item in explanation.entries), default=0)
    for item in explanation.entries:
        reason = item.reason + (f" {format_id(item.represented_by)}" if item.represented_by else "")
        if count := changed.get(item.entry.id):
            reason += f", changed {pluralize(count, 'file')}"
        line = (
            f"{format_id(item.entry.id):{width}} {'✓' if item.reaches_model else '·'} {item.tokens or '':>7}  "
            f"{escape_line(format_entry_row(item.entry))[:60]:60}  {escape_line(reason)}"
        )
        echo(line if item.reaches_model else dim(line))
    echo(bold(f"{pluralize(explanation.tokens, 'token')}, estimated"))


@app.command(epilog="\b\nExample:\n  sessiontree branches @ --all")
@session_argument
@click.option("--all", "show_all", is_flag=True, help="Include archived branches, and all leaves of a long session.")
@json_option
def branches(session: str, show_all: bool, as_json: bool) -> None:
    """List the branches of a session, and the leaves that no branch is at.

    A leaf without a branch has in parentheses the name that a new branch there would get. In a session of more than
    1,000 entries, only its last entries are searched for leaves unless --all is given.
    """
    opened = open_session(session, read_only=True)
    echo_branches(opened, as_json=as_json, show_all=show_all, counted=show_all, show_unnamed=True)


def echo_branches(
    session: Session, *, as_json: bool, show_all: bool = True, counted: bool = False, show_unnamed: bool = False
) -> None:
    """Print the branches. In a long session, entries are counted only if `counted`, because it reads all of them."""
    if as_json:
        echo_json(
            {
                "current": session.heads.current,
                "branches": [
                    {
                        "name": info.name,
                        "head": info.leaf,
                        "entryCount": info.entry_count,
                        "createdAt": info.created_at,
                        "description": info.description,
                        "archived": info.archived,
                    }
                    for info in session.branches
                ],
                "unnamedLeaves": [
                    {"leaf": found.leaf, "suggestedName": found.suggested_name, "entryCount": found.entry_count}
                    for found in session.unnamed_leaves
                ],
            }
        )
        return
    if not counted and session.tree.has_more_than(RECENT_ENTRIES):
        _echo_branches_uncounted(session, show_all=show_all, show_unnamed=show_unnamed)
        return
    rows = [["", "branch", "head", "entries", "created", "description"]]
    for info in session.branches:
        if info.archived and not show_all:
            continue
        mark = "*" if info.current else "-" if info.archived else " "
        rows.append(
            [
                mark,
                escape_line(info.name),
                format_id(info.leaf),
                str(info.entry_count),
                escape_line(format_local_time(info.created_at)),
                escape_line(info.description or ""),
            ]
        )
    for found in session.unnamed_leaves if show_unnamed else ():
        created = escape_line(format_local_time(session.tree[found.leaf].timestamp))
        name = f"({found.suggested_name})"
        rows.append(["", name, format_id(found.leaf), str(found.entry_count), created, "no branch"])
    print_table(rows)


def _echo_branches_uncounted(session: Session, *, show_all: bool, show_unnamed: bool) -> None:
    """List the branches of a long session, and its last leaves, without reading all entries."""
    heads = session.heads
    rows = [["", "branch", "head", "created", "description"]]
    for name, head in heads.heads.items():
        if name in heads.archived and not show_all:
            continue
        info = heads.info.get(name)
        created = format_local_time(info.created if info else session.header.timestamp)
        description = escape_line(info.description or "") if info else ""
        mark = "*" if name == heads.current else "-" if name in heads.archived else " "
        rows.append([mark, escape_line(name), format_id(head), escape_line(created), description])
    for leaf in find_recent_leaves(session.tree, heads, RECENT_ENTRIES) if show_unnamed else ():
        created = escape_line(format_local_time(session.tree.peek(leaf).timestamp))
        rows.append(["", "(none)", format_id(leaf), created, "no branch"])
    print_table(rows)
    if show_unnamed:
        echo(dim(f"(leaves of the last {RECENT_ENTRIES:,} entries; --all lists every leaf, and counts entries)"))


@app.command(epilog="\b\nExample:\n  sessiontree compare @ cache dict --metric tokens")
@session_argument
@place_argument("places", nargs=-1, required=True, metavar="A B...")
@click.option("--metric", default="cost", show_default=True, help="Metric that decides: cost, tokens, entries or time.")
@json_option
def compare(session: str, places: tuple[str, ...], metric: str, as_json: bool) -> None:
    """Compare branches, or any other places, from their common ancestor."""
    from sessiontree.branch_comparison import comparison_to_wire
    from sessiontree.session import compare as compare_in

    result = compare_in(open_session(session, read_only=True), places, metric)
    if as_json:
        echo_json(comparison_to_wire(result))
        return
    echo(dim(f"since their common ancestor {format_id(result.common_ancestor)}"))
    rows = [["branch", "entries", "messages", "tools", "errors", "tokens", "cost", "time", "models"]]
    for stats in result.branches:
        tokens = f"{stats.tokens:,.0f}" if "tokens" in stats.measured else "-"
        cost = format_dollars(stats.cost) if "cost" in stats.measured else "-"
        counts = [stats.entries, stats.messages, stats.tool_calls, stats.errors]
        seconds = f"{stats.seconds:.1f}s"
        rows.append(
            [escape_line(stats.name), *map(str, counts), tokens, cost, seconds, escape_line(", ".join(stats.models))]
        )
    print_table(rows)
    for item in result.differences:
        if item.metric == metric:
            percent = "" if item.percent is None else f" ({item.percent:+.1f} %)"
            change = _format_change(metric, item.diff)
            echo(f"{escape_line(item.a)} → {escape_line(item.b)}: {item.metric} {change}{percent}")
    if result.winner is None:
        echo(bold("no winner:"), escape_line(result.reason))
    else:
        echo(bold(f"winner: {escape_line(result.winner)}"), dim(f"({result.reason})"))


def _format_change(metric: str, change: float) -> str:
    """Return a difference with its sign and unit."""
    if metric == "cost":
        return f"{'+' if change >= 0 else ''}{format_dollars(change)}"
    return f"{change:+.1f}s" if metric == "time" else f"{change:+,g}"


@app.command(epilog="\b\nExample:\n  sessiontree diff @ cache dict")
@session_argument
@place_argument("a", metavar="A")
@place_argument("b", metavar="B")
@json_option
def diff(session: str, a: str, b: str, as_json: bool) -> None:
    """Show how the paths of two places differ after their common ancestor."""
    from sessiontree.branch_comparison import diff_to_wire, format_usage
    from sessiontree.session import diff as diff_in

    opened = open_session(session, read_only=True)
    result = diff_in(opened, a, b)
    files = _compare_files(opened, *(stats.leaf for stats in result.stats))
    if as_json:
        from sessiontree.ops.compare_files import encode_files_comparison

        echo_json({**diff_to_wire(result), **({} if files is None else {"files": encode_files_comparison(files)})})
        return
    calls = CallLookup(opened.tree)
    echo(dim(f"since their common ancestor {format_id(result.common_ancestor)}"))
    for sign, color, entries, stats in zip("-+", ("red", "green"), result.entries, result.stats, strict=True):
        echo(bold(f"{sign * 3} {escape_line(stats.name)}"), dim(", ".join(format_usage(stats))))
        for entry in entries:
            echo(colorize(f"{sign} {format_id(entry.id)} {escape_line(format_entry_row(entry, calls))}", color))
        if stats.files:
            echo(dim(f"  files: {escape_line(', '.join(stats.files))}"))
    _print_file_changes(files)


def _compare_files(session: Session, a: EntryId | None, b: EntryId | None) -> FilesComparison | None:
    from sessiontree.config import load_config
    from sessiontree.ops.compare_files import compare_files

    return compare_files(session, a, b, load_config().files, os.getcwd())


def _print_file_changes(found: FilesComparison | None) -> None:
    """Print how the files of two places differ, if the session has snapshots of them."""
    if found is None:
        return
    echo(bold(found.summary) if found.stats else dim(found.summary))
    for path, counts in found.list_counts():
        echo(f"  {escape_line(path)}", dim(counts))
    for line in found.diff.splitlines():
        color = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        echo(escape_line(line) if color is None else colorize(escape_line(line), color))
