"""Commands for whole sessions: create, resume, fork, name, search and export."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from sessiontree.branch_comparison import compute_stats, format_usage
from sessiontree.core.entries import Entry, EntryId, Message
from sessiontree.core.entry_text import format_entry
from sessiontree.core.messages import get_role
from sessiontree.core.number_text import pluralize
from sessiontree.errors import InvalidOperation, NotFound, StoreError
from sessiontree.library import catalog
from sessiontree.ops.fork import ForkOutcome
from sessiontree.session import Session
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.formatting import format_id, format_local_time, format_table, make_excerpt
from sessiontree.slash_commands.navigation import CANCELLED
from sessiontree.slash_commands.registry import (
    FILE,
    PLACE,
    PROMPT,
    Argument,
    Command,
    CommandOutcome,
    complete_sessions,
)
from sessiontree.store.file_operations import write_private

MAX_NAME_LENGTH = 60
"""The maximum length of a branch name in a file name."""
MAX_HITS = 20
"""The maximum number of search results."""


async def _run_fork(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    controller.ensure_idle()
    place = args[0] if args else await _choose_prompt(controller)
    if place is None:
        return CommandOutcome()
    id = controller.session.resolve_place(controller.qualify_place(place))
    chosen = None if id is None else controller.session.tree[id]
    return _format_fork(
        controller, await controller.fork(place, position="at" if chosen and not _is_prompt(chosen) else "before")
    )


def _is_prompt(entry: Entry) -> bool:
    return isinstance(entry.body, Message) and get_role(entry.body.message) == "user"


async def _choose_prompt(controller: SessionController) -> EntryId | None:
    """Ask the user to choose one of their messages on the path."""
    shown = {
        f"{format_id(entry.id)}  {make_excerpt(format_entry(entry))}": entry.id
        for entry in controller.branch.path()
        if _is_prompt(entry)
    }
    if not shown:
        raise InvalidOperation("no user message to fork before")
    if not controller.ui.has_person:
        raise InvalidOperation(f"name a message to fork before: {', '.join(map(format_id, shown.values()))}")
    chosen = await controller.ui.select("Fork before message", list(shown))
    return None if chosen is None else shown[chosen]


async def _run_clone(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    leaf = controller.branch.leaf
    return _format_fork(controller, await controller.fork(None if leaf is None else controller.session.tree[leaf]))


def _format_fork(controller: SessionController, outcome: ForkOutcome) -> CommandOutcome:
    return (
        CANCELLED
        if outcome.cancelled
        else CommandOutcome(text=f"Forked to session {_format_session_name(controller.session)}")
    )


def _format_session_name(session: Session) -> str:
    return " ".join(filter(None, [session.id, session.name and f"({session.name})"]))


async def _run_new(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    created = await controller.create_session(args[0] if args else None)
    return CommandOutcome(text=f"Started session {_format_session_name(controller.session)}") if created else CANCELLED


async def _run_resume(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    controller.ensure_idle()
    wanted = args[0] if args else await _choose_session(controller)
    if wanted is None:
        return CommandOutcome()
    return (
        CommandOutcome(text=f"Opened session {_format_session_name(controller.session)}")
        if await controller.open_session(wanted)
        else CANCELLED
    )


async def _choose_session(controller: SessionController) -> str | None:
    own = controller.session.address
    known = [summary for summary in catalog.sessions(controller.cwd) if summary.file != own]
    if not known:
        raise InvalidOperation("no other session in this folder")
    shown = {
        f"{summary.id[-8:]}  {format_local_time(summary.modified)}  "
        f"{make_excerpt(summary.name or summary.first_message or '(empty)', 48)}": summary.file
        for summary in known
    }
    if not controller.ui.has_person:
        raise InvalidOperation(f"name a session: {', '.join(summary.id for summary in known[:5])}")
    chosen = await controller.ui.select("Resume session", list(shown))
    return None if chosen is None else shown[chosen]


async def _run_session(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    session, tree = controller.session, controller.session.tree
    stats = compute_stats("", session.heads.leaf, list(tree))
    shown = sum(not info.archived for info in session.branches)
    rows = [
        ["session", session.id],
        ["name", session.name or "(none)"],
        ["file", session.address or "(in memory)"],
        ["folder", session.cwd],
        *([] if controller.cwd == session.cwd else [["tools run in", controller.cwd]]),
        ["parent", session.header.parent_session or ""],
        ["branch", f"{controller.branch.name}, one of {shown}, at {format_id(controller.branch.leaf)}"],
        ["entries", f"{len(tree)}, {pluralize(stats.messages, 'message')}, {pluralize(stats.tool_calls, 'tool call')}"],
        ["usage", f"{', '.join(format_usage(stats))}, all branches"],
        [
            "model",
            "(none)"
            if controller.model is None
            else f"{controller.model.info.name}, thinking {controller.agent.thinking}",
        ],
        ["problems", "; ".join(item.message for item in session.problems if item.severity == "fault")],
    ]
    return CommandOutcome(text=format_table([row for row in rows if row[1]]))


async def _run_name(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    if args:
        controller.session.rename(None if args[0] == "--clear" else args[0])
        controller.host.refresh()
    return CommandOutcome(text=controller.session.name or "This session has no name. Use /name TEXT to set one.")


async def _run_search(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    import asyncio

    hits = await asyncio.to_thread(catalog.search, args[0], cwd=controller.cwd, limit=MAX_HITS)
    rows = [
        [
            hit.session[-8:],
            format_id(hit.entry),
            hit.branch or "",
            "in context" if hit.in_context else "",
            make_excerpt(hit.snippet),
        ]
        for hit in hits
    ]
    return CommandOutcome(text=format_table(rows) if rows else f'No matches for "{args[0]}".')


async def _run_export(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    return format_export(*await export_session(controller, args[0] if args else None))


def format_export(path: str, form: str) -> CommandOutcome:
    return CommandOutcome(
        text=f"Exported {'a copy of the session' if form == 'jsonl' else f'the session as {form}'} to {path}"
    )


async def export_session(controller: SessionController, name: str | None) -> tuple[str, str]:
    """Export the session to a file, with a default name if none is given. Return the path and the format."""
    path, form = _find_free_target(controller) if name is None else _resolve_target(controller, name)
    await _write_export(controller, path, form)
    return path, form


async def _run_export_branch(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    heads = controller.session.heads.heads
    place, name = [*args, None, None][:2]
    if place is not None and name is None and place not in heads and _detect_format(place) is not None:
        place, name = None, place
    branch = controller.branch.name if place in (None, "HEAD") else place if place in heads else None
    if branch is None:
        assert place is not None
        path, form = _find_free_target(controller, place) if name is None else _resolve_target(controller, name)
        await _write_export(controller, path, form, subtree=str(controller.qualify_place(place)))
        return CommandOutcome(text=f"Exported {place} and everything below it as {form} to {path}")
    path, form = _find_free_target(controller, branch) if name is None else _resolve_target(controller, name)
    await _write_export(controller, path, form, branch=branch)
    return CommandOutcome(text=f"Exported the path of {branch} as {form} to {path}")


async def _write_export(
    controller: SessionController, path: str, form: str, *, branch: str | None = None, subtree: str | None = None
) -> None:
    """Write the session or a part of it to a new file."""
    import asyncio

    from sessiontree.export import stream_export

    if os.path.lexists(path):
        raise StoreError(path, "the file already exists")
    session = controller.session
    copied: Iterator[bytes] | None = None
    if form == "jsonl" and branch is None and subtree is None and session.address is not None:
        with suppress(NotFound):  # another program deleted it, but the session in memory is complete
            copied = session.store.stream_bytes()
    lines = session.stream_lines() if copied is None else iter(())

    def write() -> None:
        pieces = stream_export(lines, form, branch=branch, subtree=subtree) if copied is None else copied
        write_private(path, pieces, overwrite=False)

    await asyncio.to_thread(write)


def _detect_format(file: str) -> str | None:
    from sessiontree.export import detect_format

    return detect_format(file)


def _resolve_target(controller: SessionController, file: str) -> tuple[str, str]:
    """Return the path and the format of a file name."""
    from sessiontree.export import FORMAT_BY_SUFFIX

    form = _detect_format(file)
    if form is None:
        raise InvalidOperation(f"unknown format of {file!r}; use one of {', '.join(FORMAT_BY_SUFFIX)}")
    return os.path.abspath(os.path.join(controller.cwd, os.path.expanduser(file))), form


def _find_free_target(controller: SessionController, part: str = "") -> tuple[str, str]:
    """Return a path that does not exist, named after the session and the part, and its format.

    The format is HTML, or Markdown if the HTML export is not installed.
    """
    from sessiontree.export import build_file_name, can_export_html

    form = "html" if can_export_html() else "md"
    stem, ending = os.path.splitext(os.path.join(controller.cwd, build_file_name(controller.session.id, form)))
    words = "-".join(re.findall(r"[\w.]+", part))[:MAX_NAME_LENGTH]
    stem = os.path.abspath(f"{stem}-{words}" if words else stem)
    path, number = f"{stem}{ending}", 2
    while os.path.lexists(path):
        path, number = f"{stem}-{number}{ending}", number + 1
    return path, form


async def _run_quit(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
    controller.host.quit()
    return CommandOutcome()


COMMANDS = (
    Command(
        name="fork",
        help="Fork into a new session at an entry, or before one of your messages to edit it",
        run=_run_fork,
        arguments=(PROMPT,),
    ),
    Command(
        name="branch", help="Same as /fork; /branch-here stays in this session", run=_run_fork, arguments=(PROMPT,)
    ),
    Command(name="clone", help="Copy this path to a new session and continue there", run=_run_clone),
    Command(
        name="new",
        help="Start a new session",
        run=_run_new,
        arguments=(Argument(name="NAME", rest=True),),
    ),
    Command(
        name="resume",
        help="Open another session by its path, id, id prefix or name",
        run=_run_resume,
        arguments=(Argument(name="SESSION", complete=complete_sessions, rest=True),),
    ),
    Command(name="session", help="Show information about this session: location, entries, usage", run=_run_session),
    Command(
        name="name",
        help="Show or set the name of this session; --clear removes it",
        run=_run_name,
        arguments=(Argument(name="TEXT|--clear", rest=True),),
    ),
    Command(
        name="search",
        help="Search all branches of the sessions of this folder",
        run=_run_search,
        arguments=(Argument(name="QUERY", required=True, rest=True),),
    ),
    Command(
        name="export",
        help="Export this session to a file: .html, .md, .txt, .json, or .jsonl for an exact copy",
        run=_run_export,
        arguments=(FILE,),
    ),
    Command(
        name="export-branch",
        help="Export the path of a branch, or an entry and everything below it; .jsonl makes a new session",
        run=_run_export_branch,
        arguments=(replace(PLACE, name="BRANCH|PLACE"), FILE),
    ),
    Command(name="quit", help="Quit; the session is saved", run=_run_quit),
)
