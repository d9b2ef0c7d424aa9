"""Commands that create and change sessions: new, append, branch, switch, undo, label, rename, fork, migrate."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

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
from sessiontree.cli.file_options import (
    choose_files,
    diff_option,
    dry_run_option,
    encode_restore_plan,
    encode_restored,
    files_options,
    find_files,
    find_folder,
    print_folder,
    print_restore_plan,
    print_restored,
    remove_folders,
)
from sessiontree.cli.output import dim, echo, echo_json, escape_line, escape_lines
from sessiontree.core.context import find_context_path, read_state
from sessiontree.core.entries import Body, BranchPoint, CustomMessage, Entry, JsonObject, Message
from sessiontree.core.message_input import check_new_message
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
from sessiontree.core.number_text import pluralize
from sessiontree.core.operation_plans import NavigatePlan
from sessiontree.core.problems import encode_problem
from sessiontree.core.tree import Tree
from sessiontree.errors import InvalidOperation
from sessiontree.format.entry_input import IncompleteEntry, parse_entry
from sessiontree.format.json_line import NOT_AN_OBJECT, NotJson, read_object
from sessiontree.library import catalog
from sessiontree.session import Item, Session

if TYPE_CHECKING:
    from sessiontree.files.restore import RestoreOutcome
    from sessiontree.files.restore_plan import RestorePlan

file_option = click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(dir_okay=False),
    help="File to create. Default: a new file in the catalog.",
)
dir_option = click.option(
    "--dir", "folder", type=click.Path(file_okay=False), help="Folder to create the file in, instead of the catalog."
)
ROLES = ("user", "assistant", "toolResult", "custom")


@app.command(epilog="\b\nExample:\n  sessiontree new --name auth --cwd ~/project")
@click.option("--name", help="Name of the session.")
@click.option(
    "--cwd", default=".", type=click.Path(), help="Working folder of the session. Default: the current folder."
)
@file_option
@dir_option
@json_option
def new(name: str | None, cwd: str, file: str | None, folder: str | None, as_json: bool) -> None:
    """Create a session."""
    _check_target(file, folder)
    with catalog.create_session(name, cwd=cwd, dir=folder, file=file) as session:
        if as_json:
            echo_json({"session": session.id, "file": session.location})
        else:
            echo(session.id, dim(escape_line(session.location)))


def _check_target(file: str | None, folder: str | None) -> None:
    if file is not None and folder is not None:
        raise click.UsageError("--output and --dir are mutually exclusive")


@app.command(
    epilog='\b\nExamples:\n  sessiontree append @ --role user "Try a cache"\n'
    "  git diff | sessiontree append @ --role user -\n"
    '  sessiontree append @ --entry \'{"type":"thinking_level_change","thinkingLevel":"high"}\''
)
@session_argument
@click.argument("text", required=False)
@click.option(
    "--role", type=click.Choice(ROLES), help="Role of the message. TEXT is its content; - reads standard input."
)
@click.option("--message", metavar="JSON", help="Complete message, with role and content.")
@click.option("--entry", metavar="JSON", help="Entry of any type, with its fields.")
@branch_option("--branch", help="Branch to append to. Default: the current branch.")
@place_option("--at", help="Parent of the entry. The branch moves there. Default: the head of the branch.")
@click.option("--provider", help="Provider of an assistant message.")
@click.option("--model", help="Model of an assistant message.")
@click.option("--usage", metavar="JSON", help='Usage of an assistant message: {"input":10,"output":5,"cost":0.01}.')
@click.option("--call", metavar="ID", help="Tool call of a result. Default: the last call without a result.")
@click.option("--error", is_flag=True, default=None, help="Mark the tool result as an error.")
@click.option("--custom-type", help="Type of a custom message. Default: note.")
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
    **options: Any,
) -> None:
    """Append one entry to a branch."""
    if sum(value is not None for value in (role, message, entry)) != 1:
        raise click.UsageError("exactly one of --role, --message and --entry is required")
    if (role is None) != (text is None):
        raise click.UsageError("TEXT needs --role, and --role needs TEXT")
    for option, value in options.items():
        if value is not None and option not in ROLE_OPTIONS.get(role or "", ()):
            role_name = next(name for name, allowed in ROLE_OPTIONS.items() if option in allowed)
            raise click.UsageError(f"--{option.replace('_', '-')} requires --role {role_name}")
    words = _read_stdin() if text == "-" else text or ""
    with edit_session(session) as to:
        target = UNSET if branch is None else to.branch(branch).name

        def build() -> Item:
            return Item(*_build_body(to, role, words, message, entry, at or branch or "HEAD", options))

        if at is None:
            written = to.append_at_head(build, branch=target)
        else:
            new = build()
            written = to.append(new.body, parent=at, branch=target, extra=new.extra)
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
    options: dict[str, Any],
) -> tuple[Body, JsonObject]:
    """Return the body to append and the other fields of its line."""
    if role is not None:
        return _build_role_body(to, role, words, place, options), {}
    option, text = ("--entry", entry) if message is None else ("--message", message)
    wire = _parse_object(text or "", option)
    try:
        if message is not None:
            return Message(check_new_message(wire)), {}
        body, extra = parse_entry(wire)
    except IncompleteEntry as missing:
        raise click.UsageError(f"{option} needs {missing}") from None
    except InvalidOperation as error:
        raise click.UsageError(f"{option}: {error}") from None
    if isinstance(body, BranchPoint):
        raise click.UsageError("--entry cannot create a branch; use `sessiontree branch`")
    return body, extra


def _read_stdin() -> str:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - `None` if the shell closed it
        raise click.UsageError("standard input is closed")
    return sys.stdin.read()


def _parse_object(text: str, option: str) -> JsonObject:
    try:
        return read_object((_read_stdin() if text == "-" else text).encode("utf-8", "surrogatepass"))
    except NotJson as error:
        reason = str(error)
        if reason == NOT_AN_OBJECT:
            raise click.UsageError(f"{option}: {reason}") from None
        raise click.UsageError(f"{option}: {NOT_AN_OBJECT}: {reason}") from None


def _build_role_body(session: Session, role: str, text: str, place: str, options: dict[str, Any]) -> Body:
    match role:
        case "assistant":
            state = read_state(find_context_path(session.tree, session.resolve_place(place)))
            return assistant(
                text,
                provider=options["provider"] or state.provider or "unknown",
                model=options["model"] or state.model or "unknown",
                usage=None if options["usage"] is None else _parse_usage(options["usage"]),
            )
        case "toolResult":
            call, name = _find_tool_call(session.tree.path(session.resolve_place(place)), options["call"])
            return tool_result(call, name, text, error=options["error"] is True)
        case "custom":
            return CustomMessage(custom_type=options["custom_type"] or "note", content=text)
        case _:
            return user(text)


def _parse_usage(text: str) -> JsonObject:
    usage = _parse_object(text, "--usage")
    cost = usage.get("cost")
    by_kind = cost if is_object(cost) else {}
    _check_numbers({**usage, "cost": 0} if is_object(cost) else usage, USAGE_KEYS)
    _check_numbers(by_kind, COST_KEYS)
    return usage


def _check_numbers(fields: JsonObject, known: tuple[str, ...]) -> None:
    for name, value in fields.items():
        if name not in known:
            raise click.UsageError(f"--usage: unknown field {name!r}; fields: {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise click.UsageError(f"--usage: {name} must be a number of at least 0, not {value!r}")


def _find_tool_call(path: list[Entry], wanted: str | None) -> tuple[str, str]:
    """Return the id and name of the call `wanted`, or of the last call on the path without a result."""
    messages = [entry.body.message for entry in path if isinstance(entry.body, Message)]
    answered = {get_answered_call(message) for message in messages}
    calls = [call for message in messages for call in get_tool_calls(message)]
    matching = [call for call in calls if (call.id not in answered if wanted is None else call.id == wanted)]
    if not matching:
        raise click.UsageError(
            "no tool call without a result on this path"
            if wanted is None
            else f"tool call {wanted!r} not found on this path"
        )
    return matching[-1].id, matching[-1].name


@app.command(
    epilog="\b\nExamples:\n  sessiontree branch @ cache --at HEAD~2\n  sessiontree branch @ cache --rename memo"
)
@session_argument
@branch_argument("name")
@place_option("--at", default="HEAD", show_default=True, help="Place that the branch starts from.")
@click.option("--description", help="Description of the branch.")
@click.option("--rename", metavar="NEW", help="Rename an existing branch.")
@click.option("--archive/--unarchive", default=None, help="Hide an existing branch from listings, or show it again.")
@click.option("--private", is_flag=True, help="Give the branch its own copy of the files in this folder.")
@json_option
def branch(
    session: str,
    name: str,
    at: str,
    description: str | None,
    rename: str | None,
    archive: bool | None,
    private: bool,
    as_json: bool,
) -> None:
    """Create a branch and switch to it, or rename or archive a branch.

    Agents on a branch with a private folder work there. `merge` and `promote` bring its files back, and `--archive`
    removes the folder; its last files stay in a snapshot.
    """
    from sessiontree.cli.inspect import echo_branches

    if rename is not None and archive is not None:
        raise click.UsageError("--rename and --archive are mutually exclusive")
    if private and (rename is not None or archive is not None):
        raise click.UsageError("--private creates a branch; it cannot be combined with --rename or --archive")
    with edit_session(session) as opened:
        if rename is not None:
            if find_folder(opened, name) is not None:
                raise InvalidOperation(f"branch {name!r} has a private folder; merge or archive it before renaming")
            opened.rename_branch(name, rename)
        elif archive is not None:
            opened.archive_branch(name, archived=archive)
            if archive:
                remove_folders(opened, [name])
        else:
            folder = "private" if private else "shared"
            opened.create_branch(name, at=at, description=description, folder=folder)
            if private:
                print_folder(opened, name)
        echo_branches(opened, as_json=as_json)


@app.command(epilog="\b\nExample:\n  sessiontree switch @ cache")
@session_argument
@place_argument("place", metavar="NAME|PLACE")
@files_options
@dry_run_option
@diff_option
@json_option
def switch(
    session: str,
    place: str,
    files: bool,
    files_only: bool,
    take: tuple[str, ...],
    dry_run: bool,
    diff: bool,
    as_json: bool,
) -> None:
    """Switch to another branch.

    If the place is not a branch, the current branch moves exactly there, even to a user message. With --files, the
    changes that the agent made to files are reverted or applied too; add --dry-run to see them first.
    """
    from sessiontree.cli.inspect import echo_branches

    choice = choose_files(files, files_only, take, dry_run=dry_run, diff=diff)
    with edit_session(session) as opened:
        mover = None if choice == "conversation" else find_files(opened.head)
        plan = None if mover is None else mover.plan_switch(place).take(take)
        if dry_run and plan is not None:
            if as_json:
                echo_json({"files": encode_restore_plan(plan, with_diff=diff)})
            else:
                print_restore_plan(plan, with_diff=diff)
            return
        if choice != "files":
            opened.switch(place)
        echo_branches(opened, as_json=as_json)
        if mover is not None and plan is not None:
            mover.branch = opened.head
            print_restored(mover.restore(plan), err=as_json)


@app.command(epilog="\b\nExample:\n  sessiontree undo @")
@session_argument
@files_options
@dry_run_option
@diff_option
@json_option
def undo(
    session: str, files: bool, files_only: bool, take: tuple[str, ...], dry_run: bool, diff: bool, as_json: bool
) -> None:
    """Undo the last navigation, switch, merge or promotion. Repeat to go further back.

    With --files, the files from before the move come back too; add --dry-run to see them first. If the last move
    restored only files, --files and --files-only undo that, and the conversation stays.
    """
    choice = choose_files(files, files_only, take, dry_run=dry_run, diff=diff)
    with edit_session(session) as opened:
        mover = None if choice == "conversation" else find_files(opened.head)
        file_plan = None if mover is None else mover.plan_undo(opened.plan_undo).take(take)
        restored = None
        if mover is not None and file_plan is not None and file_plan.is_files_only:
            print_undone_restore(file_plan, None if dry_run else mover.restore(file_plan), as_json, with_diff=diff)
            return
        before, plan = opened.heads.current, opened.plan_undo()
        if not dry_run:
            if choice != "files":
                opened.undo(expected=plan)
            if mover is not None and file_plan is not None:
                mover.branch = opened.head
                restored = mover.restore(file_plan)
        if choice == "files" and restored is not None:
            echo_json({"files": encode_restored(restored)}) if as_json else print_restored(restored)
            return
        if not as_json and not dry_run:
            echo("undid", escape_line(plan.undo_description or ""))
        on = None if opened.heads.current == before else opened.heads.current
        shown = file_plan if dry_run else None
        print_plan(
            opened.tree, plan, as_json=as_json, on=on, files=shown, restored=restored, with_diff=diff, dry_run=dry_run
        )


def print_undone_restore(plan: RestorePlan, restored: RestoreOutcome | None, as_json: bool, *, with_diff: bool) -> None:
    """Print what undoing a restore of files alone did, or would do."""
    from sessiontree.ops.move_files import UNDONE_RESTORE

    if as_json:
        done = encode_restore_plan(plan, with_diff=with_diff) if restored is None else encode_restored(restored)
        echo_json({"undone": UNDONE_RESTORE, "files": done})
    elif restored is None:
        echo("would undo", UNDONE_RESTORE)
        print_restore_plan(plan, with_diff=with_diff)
    else:
        echo("undid", UNDONE_RESTORE)
        print_restored(restored)


def encode_plan(plan: NavigatePlan) -> JsonObject:
    return {
        "oldLeaf": plan.old_leaf,
        "newLeaf": plan.new_leaf,
        "commonAncestor": plan.common_ancestor,
        "abandoned": [entry.id for entry in plan.abandoned],
        "editorText": plan.editor_text,
        **({} if plan.undo_description is None else {"undone": plan.undo_description}),
    }


def print_plan(
    tree: Tree,
    plan: NavigatePlan,
    *,
    as_json: bool,
    on: str | None = None,
    files: RestorePlan | None = None,
    restored: RestoreOutcome | None = None,
    with_diff: bool = False,
    dry_run: bool = False,
) -> None:
    """Print the result of a move or dry run, and what it does to files. `on` is the new current branch, if any."""
    if as_json:
        shown = {} if files is None else {"files": encode_restore_plan(files, with_diff=with_diff)}
        shown |= {} if restored is None else {"files": encode_restored(restored)}
        echo_json({**encode_plan(plan), **shown})
        return
    left = sum(not entry.is_annotation for entry in tree.find_abandoned(plan.old_leaf, plan.new_leaf))
    behind = f"leaving {pluralize(left, 'entry', 'entries')} behind"
    if on is not None:
        behind += f", on branch {escape_line(on)}"
    verb = "would move" if dry_run else "moved"
    echo(f"{verb} from {format_id(plan.old_leaf)} to {format_id(plan.new_leaf)},", dim(behind))
    if plan.editor_text is not None:
        click.echo(escape_lines(plan.editor_text))
    if files is not None:
        print_restore_plan(files, with_diff=with_diff)
    if restored is not None:
        print_restored(restored)


@app.command(
    epilog="\b\nExamples:\n  sessiontree label @ HEAD~2 checkpoint-1\n  sessiontree label @ checkpoint-1 --clear"
)
@session_argument
@place_argument("place", metavar="PLACE")
@click.argument("text", required=False)
@click.option("--clear", is_flag=True, help="Remove the label.")
@json_option
def label(session: str, place: str, text: str | None, clear: bool, as_json: bool) -> None:
    """Set or show the label of a place."""
    if clear and text is not None:
        raise click.UsageError("TEXT and --clear are mutually exclusive")
    with edit_session(session, read_only=text is None and not clear) as opened:
        target = opened.resolve_place(place)
        if text is not None or clear:
            opened.label(target, text)
        shown = None if target is None else opened.tree.label(target)
    _print_value("label", shown, as_json=as_json)


@app.command(epilog='\b\nExample:\n  sessiontree rename @ "make it fast"')
@session_argument
@click.argument("name", required=False)
@click.option("--clear", is_flag=True, help="Remove the name.")
@json_option
def rename(session: str, name: str | None, clear: bool, as_json: bool) -> None:
    """Set or show the name of a session."""
    if clear and name is not None:
        raise click.UsageError("NAME and --clear are mutually exclusive")
    with edit_session(session, read_only=name is None and not clear) as opened:
        if name is not None or clear:
            opened.rename(name)
        shown = opened.name
    _print_value("name", shown, as_json=as_json)


def _print_value(key: str, value: str | None, *, as_json: bool) -> None:
    if as_json:
        echo_json({key: value})
    else:
        echo(dim(f"(no {key})") if value is None else escape_line(value))


@app.command(epilog="\b\nExample:\n  sessiontree fork @ --at checkpoint-1 -o other.jsonl")
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="Place where the new session ends.")
@click.option("--whole", is_flag=True, help="Copy the whole tree instead of one path.")
@click.option("--name", help="Name of the new session.")
@file_option
@dir_option
@json_option
def fork(
    session: str, at: str, whole: bool, name: str | None, file: str | None, folder: str | None, as_json: bool
) -> None:
    """Copy a path of a session to a new session. The source does not change."""
    _check_target(file, folder)
    source = open_session(session, read_only=True)
    with catalog.fork(source, at=at, whole=whole, name=name, dir=folder, file=file) as forked:
        if as_json:
            echo_json({"session": forked.id, "file": forked.location, "forkedFrom": forked.forked_from})
        else:
            echo(forked.id, dim(escape_line(forked.location)))


@app.command(epilog="\b\nExample:\n  sessiontree migrate old.jsonl")
@session_argument
@json_option
def migrate(session: str, as_json: bool) -> None:
    """Rewrite a file of an older version and keep a backup next to it."""
    with edit_session(session) as opened:
        dialect, version = opened.dialect, opened.header.version
        migrated = opened.migrate()
        if as_json:
            problems = [encode_problem(problem) for problem in opened.problems]
            file = opened.location
            echo_json({"migrated": migrated, "from": version, "file": file, "problems": problems})
        elif migrated:
            echo(f"migrated from version {version}", dim(f"({dialect or 'no entries'}); a backup is next to the file"))
        else:
            echo("nothing to migrate")
