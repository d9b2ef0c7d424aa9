"""Commands that only read: tree, log, show, context, branches, compare, diff, doctor."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import click

from sessiontree import catalog
from sessiontree.cli.app import (
    app,
    branch_argument,
    is_terminal,
    json_option,
    opened,
    place_argument,
    place_option,
    session_argument,
    short,
)
from sessiontree.cli.output import (
    brief,
    colored,
    dim,
    echo,
    echo_json,
    echo_json_parts,
    echo_lines,
    echo_raw,
    line_of,
    safe,
    safe_lines,
    strong,
    table,
    warn,
)
from sessiontree.commands.text import local_time
from sessiontree.core.context import Explanation, explain, explanation_to_wire
from sessiontree.core.entries import Entry, JsonObject, Problem, raws
from sessiontree.core.figures import dollars, pluralize
from sessiontree.core.messages import role, role_of, string, text, tool_calls
from sessiontree.core.outline import (
    DEEP,
    FILTERS,
    Calls,
    Outline,
    draw,
    finish,
    lay_out,
    plain_text,
    row_text,
    survey,
    tell_hidden,
)
from sessiontree.core.problems import problem_to_wire
from sessiontree.core.tokens import estimate
from sessiontree.errors import FormatError, InvalidOperation, NotFound, SessionTreeError, StoreError, isolate_errors
from sessiontree.index.folder import absolute_folder, folders_in
from sessiontree.session import Session
from sessiontree.store.postgres.address import is_address

if TYPE_CHECKING:
    from sessiontree.repairing import RepairReport

NO_ENTRIES = "(no entries)"
TOGETHER = 512
"""Rows whose lines are read together."""


@app.command(epilog="\b\nExamples:\n  sessiontree tree @\n  sessiontree tree @ --filter labeled-only --json")
@session_argument
@click.option("--filter", type=click.Choice(FILTERS), help="Which entries to show; --json shows all by default.")
@click.option("--interactive", is_flag=True, help="Choose a place in the tree, and go there.")
@json_option
@click.pass_context
def tree(context: click.Context, session: str, filter: str | None, interactive: bool, as_json: bool) -> None:
    """Draw the tree of a session.

    Chains stay flat; what is indented is where branches part. The active path has bullets.
    """
    if interactive:
        _choose_and_go(context, session)
        return
    opened_session = opened(session, read_only=True)
    if as_json:
        _echo_tree_json(opened_session, filter or "all")
    else:
        _draw(opened_session, filter or "default")


def _choose_and_go(context: click.Context, name: str) -> None:
    """Have a place chosen in the terminal, and carry out `navigate` with it."""
    if not is_terminal():
        raise click.UsageError("--interactive needs a terminal")
    try:
        from sessiontree.tui.tree import choose
    except ModuleNotFoundError as error:
        raise InvalidOperation("--interactive needs the extra: pip install 'sessiontree[tui]'") from error
    from sessiontree import config
    from sessiontree.cli.ops import navigate

    with opened(name) as session:
        choice = choose(session, config.load())
    if choice is not None:
        context.invoke(
            navigate,
            session=name,
            place=choice.entry,
            summarize=choice.summarize,
            focus=choice.instructions,
            summary=choice.summary,
        )


def _echo_tree_json(session: Session, filter: str) -> None:
    tree = session.tree
    shape = finish(survey(tree, _leaf(session)))
    shown = shape.shown(filter)
    depths = array("l")

    def entries() -> Iterator[JsonObject]:
        for above in shape.above:
            depths.append(depths[above] + 1 if above >= 0 else 0)
        positions = (position for position in range(len(shape)) if shown[position])
        while several := list(islice(positions, TOGETHER)):
            known = [tree.peek(shape.ids[position]) for position in several]
            for position, entry, raw in zip(several, known, raws(known), strict=True):
                above = shape.above[position]
                said = entry.source.glance(raw) if entry.type == "message" else None
                yield {
                    "id": entry.id,
                    "parent": shape.ids[above] if above >= 0 else None,
                    "type": entry.type,
                    "role": None if said is None else said.role,
                    "label": tree.label(entry.id),
                    "timestamp": entry.source.timestamp(raw),
                    "depth": depths[position],
                    "text": plain_text(entry, raw),
                }

    echo_json_parts(
        {"session": session.id, "name": session.name, "branch": session.heads.current, "leaf": session.heads.leaf},
        "entries",
        entries(),
        {"problems": [problem_to_wire(problem) for problem in session.problems]},
    )


def _leaf(session: Session) -> str | None:
    """The current leaf, unless damage took it away."""
    return session.heads.leaf if session.heads.leaf in session.tree else None


def _draw(session: Session, filter: str) -> None:
    rows = finish(lay_out(finish(survey(session.tree, _leaf(session))), filter))
    echo(strong(safe(session.name or "unnamed")), dim(f"{safe(session.id)}, on branch {safe(session.heads.current)}"))
    echo_lines(_drawn(rows, session))
    if rows.is_deep:
        echo(dim(DEEP))
    if not len(rows):
        hidden = session.tree.real_count
        echo(dim(f"(the filter {filter!r} hides {pluralize(hidden, 'entry', 'entries')})" if hidden else NO_ENTRIES))
    elif session.heads.leaf is None:
        echo(dim("(the head is before everything)"))
    _tell_problems(session)


def _drawn(rows: Outline, session: Session) -> Iterator[str]:
    """The rows of a drawing as lines."""
    tree, calls = session.tree, Calls(session.tree)
    drawn = draw(rows, session.heads)
    while several := list(islice(drawn, TOGETHER)):
        for row, raw in zip(several, raws(row.entry for row in several), strict=True):
            label = tree.label(row.entry.id)
            hidden = tell_hidden([safe(name) for name in row.branches_hidden], row.active_hidden)
            yield line_of(
                (dim(row.prefix) if row.prefix else "")
                + (colored("• ", "green") if row.on_path else "")
                + (colored(f"[{safe(label)}] ", "yellow") if label else "")
                + safe(row_text(row.entry, calls, raw)),
                "".join(colored(f"({safe(name)})", "cyan") for name in row.branches),
                colored("← active", "green") if row.active else "",
                dim(hidden) if hidden else "",
            )


def _branch_names(session: Session) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, head in session.heads.heads.items():
        if head is not None and name not in session.heads.archived:
            names.setdefault(head, []).append(name)
    return names


def _tell_problems(session: Session) -> None:
    faults = [problem for problem in session.problems if problem.severity == "fault"]
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        first = f"line {faults[0].line}: {faults[0].message}" if faults[0].line else faults[0].message
        warn(f"damaged: {brief(first)}{more} (see `sessiontree doctor {session.where}`)")


@app.command(epilog="\b\nExample:\n  sessiontree log @ --at HEAD~2")
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="The place whose path to list.")
@json_option
def log(session: str, at: str, as_json: bool) -> None:
    """List the entries from the root to a place."""
    opened_session = opened(session, read_only=True)
    path = opened_session.tree.path(opened_session.place(at))
    names = _branch_names(opened_session)
    calls = Calls(opened_session.tree)
    for entry in path:
        if as_json:
            echo_raw(entry.raw)
            continue
        label = opened_session.tree.label(entry.id)
        echo(
            dim(f"{short(entry.id)}  {safe(local_time(entry.timestamp, seconds=True)):19}"),
            colored(f"[{safe(label)}]", "yellow") if label else "",
            safe(row_text(entry, calls)),
            "".join(colored(f"({safe(name)})", "cyan") for name in names.get(entry.id, ())),
        )
    if not path and not as_json:
        echo(dim(NO_ENTRIES))


@app.command(epilog="\b\nExample:\n  sessiontree show @ HEAD~1")
@session_argument
@place_argument("entry", metavar="ENTRY")
@json_option
def show(session: str, entry: str, as_json: bool) -> None:
    """Show one entry in full."""
    opened_session = opened(session, read_only=True)
    id = opened_session.place(entry)
    if id is None:
        raise click.UsageError("there is no entry at the place before everything")
    shown = opened_session.tree[id]
    if as_json:
        echo_raw(shown.raw)
        return
    label = opened_session.tree.label(id)
    kind = shown.type + (f" ({role_of(shown)})" if role_of(shown) else "")
    for name, value in (
        ("entry", id),
        ("parent", opened_session.tree.parent(id) or "root"),
        ("kind", kind),
        ("time", shown.timestamp),
        ("branch", shown.branch if isinstance(shown.branch, str) else ""),
        ("label", label or ""),
    ):
        if value:
            echo(dim(f"{name:7}"), safe(value))
    click.echo()
    click.echo(safe_lines(_full_text(shown)))


def _full_text(entry: Entry) -> str:
    from sessiontree.format.codec import body_to_wire

    wire = body_to_wire(entry.body)
    message = wire.get("message")
    if isinstance(message, dict):
        return message_text(message)  # pyright: ignore[reportUnknownArgumentType]
    import json

    return string(wire.get("summary")) or text(wire.get("content")) or json.dumps(wire, ensure_ascii=False, indent=2)


def message_text(message: JsonObject) -> str:
    """A message in full, tool calls included."""
    import json

    parts = [text(message.get("content")) or string(message.get("summary"))]
    if role(message) in ("bashExecution", "pythonExecution"):
        parts = [f"$ {string(message.get('command')) or string(message.get('code'))}", string(message.get("output"))]
    parts += [f"→ {call.name}({json.dumps(call.arguments, ensure_ascii=False)})" for call in tool_calls(message)]
    if message.get("errorMessage"):
        parts.append(f"error: {string(message.get('errorMessage'))}")
    return "\n".join(part for part in parts if part)


@app.command(epilog="\b\nExample:\n  sessiontree context @ --at HEAD~2 --explain")
@session_argument
@place_option("--at", "places", multiple=True, help="The place to look from, HEAD by default; may be given again.")
@click.option("--llm", is_flag=True, help="Messages in the roles that a model takes, failed turns still among them.")
@click.option("--request", is_flag=True, help="Exactly what a request carries: failed turns left out, calls answered.")
@click.option("--explain", "explained", is_flag=True, help="For every entry of the path: does it reach the model?")
@json_option
def context(session: str, places: tuple[str, ...], llm: bool, request: bool, explained: bool, as_json: bool) -> None:
    """Show what the model sees from a place."""
    opened_session = opened(session, read_only=True)
    for seen in [opened_session.context(place) for place in places or ("HEAD",)]:
        leaf = seen.leaf
        messages = seen.to_llm() if request else seen.converted() if llm else list(seen.messages)
        explanation = explain(opened_session.tree, leaf) if explained else None
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
                wire["explain"] = explanation_to_wire(explanation)
                wire["tokens"] = explanation.tokens
            echo_json(wire)
            continue
        model = seen.model
        named = f"{model['provider']}/{model['modelId']}" if model else "no model"
        echo(strong(f"context at {short(leaf)}"), dim(f"{safe(named)}, thinking {safe(seen.thinking_level)}"))
        if explanation is not None:
            _tell_explanation(explanation)
            continue
        for message in messages:
            echo(colored(safe(role(message)), "cyan"), dim(f"~{pluralize(estimate(message), 'token')}"))
            click.echo(safe_lines(message_text(message)))
            click.echo()


def _tell_explanation(explanation: Explanation) -> None:
    width = max((len(short(item.entry.id)) for item in explanation.entries), default=0)
    for item in explanation.entries:
        reason = item.reason + (f" {short(item.represented_by)}" if item.represented_by else "")
        line = (
            f"{short(item.entry.id):{width}} {'✓' if item.reaches else '·'} {item.tokens or '':>7}  "
            f"{safe(row_text(item.entry))[:60]:60}  {safe(reason)}"
        )
        echo(line if item.reaches else dim(line))
    echo(strong(f"{pluralize(explanation.tokens, 'token')}, estimated"))


@app.command(epilog="\b\nExample:\n  sessiontree branches @ --all")
@session_argument
@click.option("--all", "show_all", is_flag=True, help="Archived branches too.")
@json_option
def branches(session: str, show_all: bool, as_json: bool) -> None:
    """List the branches of a session."""
    echo_branches(opened(session, read_only=True), as_json=as_json, show_all=show_all)


def echo_branches(session: Session, *, as_json: bool, show_all: bool = True) -> None:
    if as_json:
        echo_json(
            {
                "current": session.heads.current,
                "branches": [
                    {
                        "name": info.name,
                        "head": info.head,
                        "entryCount": info.entry_count,
                        "createdAt": info.created_at,
                        "description": info.description,
                        "archived": info.archived,
                    }
                    for info in session.branches
                ],
            }
        )
        return
    rows = [["", "branch", "head", "entries", "made", "description"]]
    for info in session.branches:
        if info.archived and not show_all:
            continue
        mark = "*" if info.current else "-" if info.archived else " "
        rows.append(
            [
                mark,
                safe(info.name),
                short(info.head),
                str(info.entry_count),
                safe(local_time(info.created_at)),
                safe(info.description or ""),
            ]
        )
    table(rows)


@app.command(epilog="\b\nExample:\n  sessiontree compare @ cache dict --metric tokens")
@session_argument
@branch_argument("branches", nargs=-1, required=True, metavar="A B...")
@click.option("--metric", default="cost", show_default=True, help="What decides: cost, tokens, entries or time.")
@json_option
def compare(session: str, branches: tuple[str, ...], metric: str, as_json: bool) -> None:
    """Compare branches from where they part."""
    from sessiontree.comparison import comparison_to_wire
    from sessiontree.session import compare as compare_in

    result = compare_in(opened(session, read_only=True), branches, metric)
    if as_json:
        echo_json(comparison_to_wire(result))
        return
    echo(dim(f"from where they part, {short(result.common_ancestor)}"))
    rows = [["branch", "entries", "messages", "tools", "errors", "tokens", "cost", "time", "models"]]
    for stats in result.branches:
        tokens = f"{stats.tokens:,.0f}" if "tokens" in stats.measured else "-"
        cost = dollars(stats.cost) if "cost" in stats.measured else "-"
        counts = [stats.entries, stats.messages, stats.tool_calls, stats.errors]
        seconds = f"{stats.time / 1000:.1f}s"
        rows.append([safe(stats.name), *map(str, counts), tokens, cost, seconds, safe(", ".join(stats.models))])
    table(rows)
    for item in result.differences:
        if item.metric == metric:
            percent = "" if item.percent is None else f" ({item.percent:+.1f} %)"
            echo(f"{safe(item.a)} → {safe(item.b)}: {item.metric} {item.diff:+g}{percent}")
    if result.winner is None:
        echo(strong("no winner:"), safe(result.reason))
    else:
        echo(strong(f"winner: {safe(result.winner)}"), dim(f"({result.reason})"))


@app.command(epilog="\b\nExample:\n  sessiontree diff @ cache dict")
@session_argument
@place_argument("a", metavar="A")
@place_argument("b", metavar="B")
@json_option
def diff(session: str, a: str, b: str, as_json: bool) -> None:
    """Show how two places differ, from where their paths part."""
    from sessiontree.comparison import diff_to_wire, took
    from sessiontree.session import diff as diff_in

    opened_session = opened(session, read_only=True)
    result = diff_in(opened_session, a, b)
    if as_json:
        echo_json(diff_to_wire(result))
        return
    calls = Calls(opened_session.tree)
    echo(dim(f"from where they part, {short(result.common_ancestor)}"))
    for sign, color, entries, stats in zip("-+", ("red", "green"), result.entries, result.stats, strict=True):
        echo(strong(f"{sign * 3} {safe(stats.name)}"), dim(", ".join(took(stats))))
        for entry in entries:
            echo(colored(f"{sign} {short(entry.id)} {safe(row_text(entry, calls))}", color))
        if stats.files:
            echo(dim(f"  files: {safe(', '.join(stats.files))}"))


@app.command(epilog="\b\nExamples:\n  sessiontree doctor @\n  sessiontree doctor ~/.sessiontree/sessions --repair")
@click.argument("session", metavar="SESSION|DIR|DATABASE")
@click.option("--repair", "mend", is_flag=True, help="Write a sound copy beside each damaged file; the file stays.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, session: str, mend: bool, as_json: bool) -> None:
    """List what is wrong with a session, or with all in a folder or database; exit with 1 when there is a fault."""
    count, faulty = 0, False
    for examined in _examine_all(session, mend):
        count, faulty = count + 1, faulty or examined.is_faulty
        if as_json:
            echo_json(_examined_to_wire(examined))
        else:
            _tell_examined(examined)
    if not count and not as_json:
        echo("no sessions there")
    ctx.exit(1 if faulty else 0)


class _Examined(NamedTuple):
    """What is wrong with a session, and what was done about it."""

    name: str
    """Of one among many; the only one needs none."""
    problems: list[Problem]
    report: RepairReport | None = None
    refused: str | None = None
    """Why it was not repaired."""

    @property
    def is_faulty(self) -> bool:
        return any(problem.severity == "fault" for problem in self.problems)


def _examine_all(place: str, mend: bool) -> Iterator[_Examined]:
    """The one session, or every session of a database, or in a folder and below it."""
    place = catalog.locate(place)
    if not catalog.is_many(place):
        yield _examine(place, mend)
    elif os.path.isdir(place):
        yield from _examine_folder(place, mend)
    else:
        for address in catalog.addresses(place):
            with suppress(NotFound):  # it was taken away meanwhile
                yield _examine(address, mend)._replace(name=address)


def _examine_folder(folder: str, mend: bool) -> Iterator[_Examined]:
    """What cannot be opened is a fault of its own, and stops nothing."""
    closed: list[OSError] = []
    for file in _files_below(folder, closed):
        if os.path.islink(file):
            yield _Examined(file, [_no_session("a link, which is not followed")])
        else:
            with suppress(NotFound):  # it was taken away meanwhile
                yield _examine(file, mend)._replace(name=file)
    for error in closed:
        yield _Examined(str(error.filename), [_no_session(error.strerror or str(error))])


def _files_below(folder: str, closed: list[OSError]) -> Iterator[str]:
    """What is called like a session in a folder and below it, and in those that links right in it lead to."""
    absolute_folder(folder)  # which says so where the current folder was deleted
    inside = os.path.join(os.path.realpath(folder), "")
    links = [below for below in folders_in(folder) if os.path.islink(below)]
    linked = [link for link in links if not os.path.join(os.path.realpath(link), "").startswith(inside)]
    for top in (folder, *linked):
        for at, folders, names in os.walk(top, onerror=closed.append):
            for name in sorted([*names, *folders]):
                if name.endswith(catalog.SUFFIX) and not name.startswith("."):
                    yield os.path.join(at, name)
            if top in linked:
                folders.clear()  # it may lead to where everything is
            folders.sort()


def _examine(session: str, mend: bool) -> _Examined:
    """Raises `NotFound`, and `StoreError` when a database cannot be reached any more: then no other can be read."""
    from sessiontree.index.reading import check_size

    try:
        if not is_address(session):
            check_size(session)
        with isolate_errors(session), opened(session, read_only=not mend) as examined:
            found = _Examined("", examined.problems)
            return _mended(found, examined) if mend and found.is_faulty else found
    except FormatError as error:
        found = _Examined("", [_no_session(error.reason)])
        return _mended(found, session) if mend and not is_address(session) else found
    except StoreError as error:
        catalog.reach(session)
        return _Examined("", [_no_session(error.reason)])


def _mended(found: _Examined, damaged: Session | str) -> _Examined:
    """What is left of a session, or of a file whose header is gone, repaired."""
    from sessiontree.repairing import repair, rescue

    try:
        return found._replace(report=rescue(damaged) if isinstance(damaged, str) else repair(damaged))
    except SessionTreeError as error:
        return found._replace(refused=str(error))


def _no_session(reason: str) -> Problem:
    return Problem(kind="no_session", severity="fault", message=reason)


def _examined_to_wire(examined: _Examined) -> JsonObject:
    wire: JsonObject = {"file": examined.name} if examined.name else {}
    wire["problems"] = [problem_to_wire(problem) for problem in examined.problems]
    if examined.report is not None:
        from sessiontree.format.repair import repair_to_wire

        wire["repairs"] = [repair_to_wire(item) for item in examined.report.repairs]
        wire["repaired"] = examined.report.file
    if examined.refused is not None:
        wire["refused"] = examined.refused
    return wire


def _tell_examined(examined: _Examined) -> None:
    if examined.name:
        echo(strong(safe(examined.name)))
    for problem in examined.problems:
        color = "red" if problem.severity == "fault" else "yellow"
        place = f"line {problem.line}" if problem.line else ""
        echo(colored(problem.severity, color), dim(f"{problem.kind} {place}"), brief(problem.message))
    if not examined.problems:
        echo("nothing is wrong")
    if examined.refused is not None:
        echo(colored("not repaired", "red"), safe(examined.refused))
    report = examined.report
    for item in report.repairs if report is not None else ():
        place = f"line {item.line}" if item.line else ""
        echo(colored("repaired", "green"), dim(f"{item.kind} {place}"), safe(item.message))
    if report is not None:
        where = f"the sound copy is {report.file}" if report.file else "a line was appended"
        echo(strong(safe(where)))
