"""Commands that write: new, append, branch, switch, undo, label, fork, rename, migrate."""

from __future__ import annotations

import math
import sys
from typing import Any

import click
from msgspec import UNSET

from sessiontree.cli.app import (
    app,
    branch_argument,
    branch_option,
    edit_session,
    format_id,
    json_option,
    open_session,
    place_argument,
    place_option,
    session_argument,
)
from sessiontree.cli.inspect import echo_branches
from sessiontree.cli.output import dim, echo, echo_json, escape_line, escape_lines
from sessiontree.core.context import build_path_context
from sessiontree.core.entries import Body, BranchPoint, CustomMessage, Entry, JsonObject, Message
from sessiontree.core.messages import (
    COST_KEYS,
    USAGE_KEYS,
    assistant,
    get_answered_call,
    get_tool_calls,
    is_object,
    tool_result,
    user,
)
from sessiontree.core.plan import NavigatePlan
from sessiontree.core.problems import encode_problem
from sessiontree.core.tree import Tree
from sessiontree.format.codec import NotJson, read_object
from sessiontree.format.entry_input import IncompleteEntry, check_message, parse_entry
from sessiontree.library import catalog
from sessiontree.session import NewEntry, Session

file_option = click.option(
    "-o", "--output", "file", type=click.Path(dir_okay=False), help="The file to make; by default one in the catalog."
)
dir_option = click.option(
    "--dir", "folder", type=click.Path(file_okay=False), help="The folder to make the file in, instead of the catalog."
)
ROLES = ("user", "assistant", "toolResult", "custom")


@app.command(epilog="\b\nExample:\n  sessiontree new --name auth --cwd ~/project")
@click.option("--name", help="A name to find it by.")
@click.option("--cwd", default=".", type=click.Path(), help="The folder that it is about; this one by default.")
@file_option
@dir_option
@json_option
def new(name: str | None, cwd: str, file: str | None, folder: str | None, as_json: bool) -> None:
    """Make a new session."""
    _check_target(file, folder)
    with catalog.create(name, cwd=cwd, dir=folder, file=file) as session:
        if as_json:
            echo_json({"session": session.id, "file": str(session.file or session.location)})
        else:
            echo(session.id, dim(escape_line(str(session.file or session.location))))


def _check_target(file: str | None, folder: str | None) -> None:
    if file is not None and folder is not None:
        raise click.UsageError("give --output or --dir")


@app.command(
    epilog='\b\nExamples:\n  sessiontree append @ --role user "Try a cache"\n'
    "  git diff | sessiontree append @ --role user -\n"
    '  sessiontree append @ --entry \'{"type":"thinking_level_change","thinkingLevel":"high"}\''
)
@session_argument
@click.argument("text", required=False)
@click.option("--role", type=click.Choice(ROLES), help="Who speaks; the text is TEXT, or standard input for -.")
@click.option("--message", metavar="JSON", help="A whole message, with its role and content.")
@click.option("--entry", metavar="JSON", help="Any entry, with its type and fields.")
@branch_option("--branch", help="The branch to write on; the current one by default.")
@place_option("--at", help="Write under this place instead of the branch's head; the branch moves there.")
@click.option("--provider", help="The provider of an assistant's message.")
@click.option("--model", help="The model of an assistant's message.")
@click.option("--usage", metavar="JSON", help='What an assistant\'s message took: {"input":10,"output":5,"cost":0.01}.')
@click.option("--call", metavar="ID", help="The tool call that a result answers; the last unanswered one by default.")
@click.option("--error", is_flag=True, default=None, help="The tool failed.")
@click.option("--custom-type", help="The kind of a custom message; note by default.")
@json_option
def append(
    session: str,
    text: str | None,
    role: str | None,
    message: str | None,
    entry: str | None,
    branch: str | None,
    at: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Append one entry to a branch."""
    if sum(value is not None for value in (role, message, entry)) != 1:
        raise click.UsageError("give one of --role, --message and --entry")
    if (role is None) != (text is None):
        raise click.UsageError("TEXT goes with --role")
    for option, value in given.items():
        if value is not None and option not in ROLE_OPTIONS.get(role or "", ()):
            fitting = next(name for name, options in ROLE_OPTIONS.items() if option in options)
            raise click.UsageError(f"--{option.replace('_', '-')} goes with --role {fitting}")
    words = _read_stdin() if text == "-" else text or ""
    with edit_session(session) as to:
        target = UNSET if branch is None else to.branch(branch).name

        def build() -> NewEntry:
            return NewEntry(*_build_body(to, role, words, message, entry, at or branch or "HEAD", given))

        if at is None:
            written = to.append_at_head(build, branch=target)
        else:
            body, extra, _ = build()
            written = to.append(body, parent=at, branch=target, extra=extra)
        on = written.branch if isinstance(written.branch, str) else None
        if as_json:
            echo_json({"id": written.id, "parent": written.parent, "branch": on})
        else:
            echo(written.id, dim(f"under {format_id(written.parent)} on {escape_line(on or 'no branch')}"))


ROLE_OPTIONS = {
    "assistant": ("provider", "model", "usage"),
    "toolResult": ("call", "error"),
    "custom": ("custom_type",),
}


def _build_body(
    to: Session,
    role: str | None,
    words: str,
    message: str | None,
    entry: str | None,
    place: str,
    given: dict[str, Any],
) -> tuple[Body, JsonObject]:
    """What is to be appended, and further fields of its line."""
    if role is not None:
        return _build_role_body(to, role, words, place, given), {}
    option, text = ("--entry", entry) if message is None else ("--message", message)
    wire = _parse_object(text or "", option)
    try:
        if message is not None:
            check_message(wire)
            return Message(wire), {}
        body, extra = parse_entry(wire)
    except IncompleteEntry as lacking:
        raise click.UsageError(f"{option} needs {lacking}") from None
    if isinstance(body, BranchPoint):
        raise click.UsageError("`sessiontree branch` makes branches")
    return body, extra


def _read_stdin() -> str:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - it is, where the shell closed it
        raise click.UsageError("there is no standard input")
    return sys.stdin.read()


def _parse_object(text: str, option: str) -> JsonObject:
    try:
        return read_object((_read_stdin() if text == "-" else text).encode("utf-8", "surrogatepass"))
    except NotJson as error:
        raise click.UsageError(f"{option} is no JSON object: {error}") from None


def _build_role_body(session: Session, role: str, text: str, place: str, given: dict[str, Any]) -> Body:
    path = session.tree.path(session.resolve_place(place))
    match role:
        case "assistant":
            state = build_path_context(path).state
            return assistant(
                text,
                provider=given["provider"] or state.provider or "unknown",
                model=given["model"] or state.model or "unknown",
                usage=None if given["usage"] is None else _parse_usage(given["usage"]),
            )
        case "toolResult":
            call, name = _find_tool_call(path, given["call"])
            return tool_result(call, name, text, error=given["error"] is True)
        case "custom":
            return CustomMessage(custom_type=given["custom_type"] or "note", content=text)
        case _:
            return user(text)


def _parse_usage(text: str) -> JsonObject:
    usage = _parse_object(text, "--usage")
    cost = usage.get("cost")
    by_kind = cost if is_object(cost) else {}
    _check_numbers({**usage, "cost": 0} if is_object(cost) else usage, USAGE_KEYS)
    _check_numbers(by_kind, COST_KEYS)
    return usage


def _check_numbers(given: JsonObject, known: tuple[str, ...]) -> None:
    for name, value in given.items():
        if name not in known:
            raise click.UsageError(f"--usage has no {name!r}: there are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise click.UsageError(f"--usage: {name} {value!r} is not a number from 0 on")


def _find_tool_call(path: list[Entry], wanted: str | None) -> tuple[str, str]:
    """The call with the id `wanted`, or the last one on the path that has no result."""
    messages = [entry.body.message for entry in path if isinstance(entry.body, Message)]
    answered = {get_answered_call(message) for message in messages}
    calls = [call for message in messages for call in get_tool_calls(message)]
    fitting = [call for call in calls if (call.id not in answered if wanted is None else call.id == wanted)]
    if not fitting:
        raise click.UsageError(
            "no tool call waits for a result here" if wanted is None else f"no tool call {wanted!r} on this path"
        )
    return fitting[-1].id, fitting[-1].name


@app.command(
    epilog="\b\nExamples:\n  sessiontree branch @ cache --at HEAD~2\n  sessiontree branch @ cache --rename memo"
)
@session_argument
@branch_argument("name")
@place_option("--at", default="HEAD", show_default=True, help="Where the branch begins.")
@click.option("--description", help="What the branch is for.")
@click.option("--rename", metavar="NEW", help="Give an existing branch another name.")
@click.option("--archive/--unarchive", default=None, help="Hide an existing branch from listings, or show it again.")
@json_option
def branch(
    session: str, name: str, at: str, description: str | None, rename: str | None, archive: bool | None, as_json: bool
) -> None:
    """Make a branch and go on there; or rename or archive one."""
    if rename is not None and archive is not None:
        raise click.UsageError("give --rename or --archive")
    with edit_session(session) as changed:
        if rename is not None:
            changed.rename_branch(name, rename)
        elif archive is not None:
            changed.archive_branch(name, archived=archive)
        else:
            changed.create_branch(name, at=at, description=description)
        echo_branches(changed, as_json=as_json)


@app.command(epilog="\b\nExample:\n  sessiontree switch @ cache")
@session_argument
@place_argument("place", metavar="NAME|PLACE")
@json_option
def switch(session: str, place: str, as_json: bool) -> None:
    """Make another branch current.

    A place that is no branch's head: the current branch moves there, without the rules of selection.
    """
    with edit_session(session) as changed:
        changed.switch(place)
        echo_branches(changed, as_json=as_json)


@app.command(epilog="\b\nExample:\n  sessiontree undo @")
@session_argument
@json_option
def undo(session: str, as_json: bool) -> None:
    """Undo the last move, switch, merge or promotion; again, the one before it."""
    with edit_session(session) as changed:
        before = changed.heads.current
        plan = changed.undo()
        on = changed.heads.current
        if not as_json:
            echo("undid", escape_line(plan.undo_description or ""))
        print_plan(changed.tree, plan, as_json=as_json, on=None if on == before else on)


def plan_to_wire(plan: NavigatePlan) -> JsonObject:
    return {
        "oldLeaf": plan.old_leaf,
        "newLeaf": plan.new_leaf,
        "commonAncestor": plan.common_ancestor,
        "abandoned": [entry.id for entry in plan.abandoned],
        "editorText": plan.editor_text,
        **({} if plan.undo_description is None else {"undone": plan.undo_description}),
    }


def print_plan(tree: Tree, plan: NavigatePlan, *, as_json: bool, on: str | None = None) -> None:
    """What a move did: what is no more on the path, and `on` which branch one is, if on another."""
    if as_json:
        echo_json(plan_to_wire(plan))
        return
    left = sum(not entry.is_annotation for entry in tree.find_abandoned(plan.old_leaf, plan.new_leaf))
    behind = f"leaving {left} {'entry' if left == 1 else 'entries'} behind"
    if on is not None:
        behind += f", on branch {escape_line(on)}"
    echo(f"{format_id(plan.old_leaf)} → {format_id(plan.new_leaf)}", dim(behind))
    if plan.editor_text is not None:
        click.echo(escape_lines(plan.editor_text))


@app.command(
    epilog="\b\nExamples:\n  sessiontree label @ HEAD~2 checkpoint-1\n  sessiontree label @ checkpoint-1 --clear"
)
@session_argument
@place_argument("place", metavar="PLACE")
@click.argument("text", required=False)
@click.option("--clear", is_flag=True, help="Take the label away.")
@json_option
def label(session: str, place: str, text: str | None, clear: bool, as_json: bool) -> None:
    """Put a label on a place, or show the one it has."""
    if clear and text is not None:
        raise click.UsageError("give a text or --clear")
    with edit_session(session, read_only=text is None and not clear) as changed:
        target = changed.resolve_place(place)
        if text is not None or clear:
            changed.label(target, text)
        shown = None if target is None else changed.tree.label(target)
    _print_value("label", shown, as_json=as_json)


@app.command(epilog='\b\nExample:\n  sessiontree rename @ "make it fast"')
@session_argument
@click.argument("name", required=False)
@click.option("--clear", is_flag=True, help="Take the name away.")
@json_option
def rename(session: str, name: str | None, clear: bool, as_json: bool) -> None:
    """Give a session another name, or show the one it has."""
    if clear and name is not None:
        raise click.UsageError("give a name or --clear")
    with edit_session(session, read_only=name is None and not clear) as changed:
        if name is not None or clear:
            changed.rename(name)
        shown = changed.name
    _print_value("name", shown, as_json=as_json)


def _print_value(key: str, value: str | None, *, as_json: bool) -> None:
    if as_json:
        echo_json({key: value})
    else:
        echo(dim(f"(no {key})") if value is None else escape_line(value))


@app.command(epilog="\b\nExample:\n  sessiontree fork @ --at checkpoint-1 -o other.jsonl")
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="The new session ends here.")
@click.option("--whole", is_flag=True, help="Copy the whole tree instead of one path.")
@click.option("--name", help="A name for the new session.")
@file_option
@dir_option
@json_option
def fork(
    session: str, at: str, whole: bool, name: str | None, file: str | None, folder: str | None, as_json: bool
) -> None:
    """Make a new session from a path of another. The source is not touched."""
    _check_target(file, folder)
    source = open_session(session, read_only=True)
    with catalog.fork(source, at=at, whole=whole, name=name, dir=folder, file=file) as made:
        if as_json:
            echo_json({"session": made.id, "file": str(made.file or made.location), "forkedFrom": made.forked_from})
        else:
            echo(made.id, dim(escape_line(str(made.file or made.location))))


@app.command(epilog="\b\nExample:\n  sessiontree migrate old.jsonl")
@session_argument
@json_option
def migrate(session: str, as_json: bool) -> None:
    """Rewrite a file of an older version, keeping a backup beside it."""
    with edit_session(session) as changed:
        dialect, version = changed.dialect, changed.header.version
        migrated = changed.migrate()
        if as_json:
            problems = [encode_problem(problem) for problem in changed.problems]
            file = str(changed.file or changed.location)
            echo_json({"migrated": migrated, "from": version, "file": file, "problems": problems})
        elif migrated:
            echo(f"migrated from version {version}", dim(f"({dialect or 'no entries'}); a backup is beside the file"))
        else:
            echo("nothing to migrate")
