"""Commands about whole sessions: making, finding, forking, naming and exporting them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.util import find_spec

from msgspec.structs import replace

from sessiontree import catalog
from sessiontree.commands.arguments import FILE, PLACE, PROMPT, sessions
from sessiontree.commands.command import Argument, Command, Done
from sessiontree.commands.desk import Desk
from sessiontree.commands.moving import CANCELLED
from sessiontree.commands.text import excerpt, local_time, short, table
from sessiontree.comparison import stats_of, took
from sessiontree.core.entries import Entry, EntryId, Message
from sessiontree.core.figures import pluralize
from sessiontree.core.messages import role
from sessiontree.core.outline import plain_text
from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.ops.fork import ForkOutcome
from sessiontree.session import Session
from sessiontree.store.files import read_pieces, write_private

PAGE_NEEDS = ("jinja2", "markdown_it", "nh3", "pygments")
"""What the extra `export` installs."""
NAME_LENGTH = 60
"""So much of the name of a branch is in the name of a file."""
HITS = 20
"""How many hits a search shows."""


async def _fork(desk: Desk, args: Sequence[str]) -> Done:
    desk.at_rest()
    place = args[0] if args else await _chosen_prompt(desk)
    if place is None:
        return Done()
    id = desk.session.place(desk.place(place))
    chosen = None if id is None else desk.session.tree[id]
    return _forked(desk, await desk.fork(place, position="at" if chosen and not _is_prompt(chosen) else "before"))


def _is_prompt(entry: Entry) -> bool:
    return isinstance(entry.body, Message) and role(entry.body.message) == "user"


async def _chosen_prompt(desk: Desk) -> EntryId | None:
    """One of the user's messages on the path."""
    shown = {
        f"{short(entry.id)}  {excerpt(plain_text(entry))}": entry.id
        for entry in desk.branch.path()
        if _is_prompt(entry)
    }
    if not shown:
        raise InvalidOperation("there is no message of yours to fork before")
    if not desk.ui.has_person:
        raise InvalidOperation(f"say before which message of yours to fork: {', '.join(map(short, shown.values()))}")
    chosen = await desk.ui.select("Fork before which message?", list(shown))
    return None if chosen is None else shown[chosen]


async def _clone(desk: Desk, args: Sequence[str]) -> Done:
    leaf = desk.branch.leaf
    return _forked(desk, await desk.fork(None if leaf is None else desk.session.tree[leaf]))


def _forked(desk: Desk, outcome: ForkOutcome) -> Done:
    return CANCELLED if outcome.cancelled else Done(text=f"in the new session {_named(desk.session)}")


def _named(session: Session) -> str:
    return " ".join(filter(None, [session.id, session.name and f"({session.name})"]))


async def _new(desk: Desk, args: Sequence[str]) -> Done:
    begun = await desk.new(args[0] if args else None)
    return Done(text=f"in the new session {_named(desk.session)}") if begun else CANCELLED


async def _resume(desk: Desk, args: Sequence[str]) -> Done:
    desk.at_rest()
    wanted = args[0] if args else await _chosen_session(desk)
    if wanted is None:
        return Done()
    return Done(text=f"in session {_named(desk.session)}") if await desk.open(wanted) else CANCELLED


async def _chosen_session(desk: Desk) -> str | None:
    own = desk.session.kept_at
    known = [summary for summary in catalog.sessions(desk.cwd) if summary.file != own]
    if not known:
        raise InvalidOperation("there is no other session of this folder")
    shown = {
        f"{summary.id[-8:]}  {local_time(summary.modified)}  "
        f"{excerpt(summary.name or summary.first_message or '(empty)', 48)}": summary.file
        for summary in known
    }
    if not desk.ui.has_person:
        raise InvalidOperation(f"say which session: {', '.join(summary.id for summary in known[:5])}")
    chosen = await desk.ui.select("Which session?", list(shown))
    return None if chosen is None else shown[chosen]


async def _session(desk: Desk, args: Sequence[str]) -> Done:
    session, tree = desk.session, desk.session.tree
    stats = stats_of("", session.heads.leaf, list(tree))
    shown = sum(not info.archived for info in session.branches)
    rows = [
        ["session", session.id],
        ["name", session.name or "(none)"],
        ["file", session.kept_at or "(in memory)"],
        ["folder", session.cwd],
        *([] if desk.cwd == session.cwd else [["tools work in", desk.cwd]]),
        ["parent", session.header.parent_session or ""],
        ["branch", f"{desk.branch.name}, one of {shown}, at {short(desk.branch.leaf)}"],
        ["entries", f"{len(tree)}, {pluralize(stats.messages, 'message')}, {pluralize(stats.tool_calls, 'tool call')}"],
        ["took", f"{', '.join(took(stats))}, all branches together"],
        ["model", "(none)" if desk.model is None else f"{desk.model.info.name}, thinking {desk.agent.thinking}"],
        ["problems", "; ".join(item.message for item in session.problems if item.severity == "fault")],
    ]
    return Done(text=table([row for row in rows if row[1]]))


async def _name(desk: Desk, args: Sequence[str]) -> Done:
    if args:
        desk.session.rename(None if args[0] == "--clear" else args[0])
        desk.host.changed()
    return Done(text=desk.session.name or "this session has no name: /name TEXT gives it one")


async def _search(desk: Desk, args: Sequence[str]) -> Done:
    import asyncio

    hits = await asyncio.to_thread(catalog.search, args[0], cwd=desk.cwd, limit=HITS)
    rows = [
        [hit.session[-8:], short(hit.entry), hit.branch or "", "seen" if hit.in_context else "", excerpt(hit.snippet)]
        for hit in hits
    ]
    return Done(text=table(rows) if rows else f"nothing matches {args[0]!r}")


async def _export(desk: Desk, args: Sequence[str]) -> Done:
    return tell_exported(*await export_session(desk, args[0] if args else None))


def tell_exported(path: str, form: str) -> Done:
    return Done(text=f"{path} is {'a copy of this session' if form == 'jsonl' else f'this session as {form}'}")


async def export_session(desk: Desk, name: str | None) -> tuple[str, str]:
    """Write the session to a file, under a name of its own by default. Returns its path and its form."""
    path, form = _free_target(desk) if name is None else _target(desk, name)
    await _write(desk, path, form)
    return path, form


async def _export_branch(desk: Desk, args: Sequence[str]) -> Done:
    heads = desk.session.heads.heads
    place, name = [*args, None, None][:2]
    if place is not None and name is None and place not in heads and _form_of(place) is not None:
        place, name = None, place
    branch = desk.branch.name if place in (None, "HEAD") else place if place in heads else None
    if branch is None:
        assert place is not None
        path, form = _free_target(desk, place) if name is None else _target(desk, name)
        await _write(desk, path, form, subtree=str(desk.place(place)))
        return Done(text=f"{path} has {place} and all below it, as {form}")
    path, form = _free_target(desk, branch) if name is None else _target(desk, name)
    await _write(desk, path, form, branch=branch)
    return Done(text=f"{path} has the path of {branch}, as {form}")


async def _write(desk: Desk, path: str, form: str, *, branch: str | None = None, subtree: str | None = None) -> None:
    """Write the session, or a part of it, as it is made."""
    import asyncio

    from sessiontree.export import stream

    if os.path.lexists(path):
        raise StoreError(path, "the file exists already")
    file = desk.session.file
    is_whole = form == "jsonl" and branch is None and subtree is None
    # A copy byte for byte; what another program deleted is still known here.
    copied = file.open("rb") if is_whole and file is not None and file.exists() else None
    lines = desk.session.stream_lines() if copied is None else iter(())

    def write() -> None:
        pieces = stream(lines, form, branch=branch, subtree=subtree) if copied is None else read_pieces(copied)
        write_private(path, pieces, over=False)

    await asyncio.to_thread(write)


def _form_of(file: str) -> str | None:
    from sessiontree.export import form_of

    return form_of(file)


def _target(desk: Desk, file: str) -> tuple[str, str]:
    """Where to write, and in which form."""
    from sessiontree.export import ENDINGS

    form = _form_of(file)
    if form is None:
        raise InvalidOperation(f"{file!r} does not end in one of {', '.join(ENDINGS)}")
    return os.path.abspath(os.path.join(desk.cwd, os.path.expanduser(file))), form


def _free_target(desk: Desk, part: str = "") -> tuple[str, str]:
    """A file that does not exist, named after the session and a part of it: a page, or text where none can be made."""
    from sessiontree.export import default_name

    form = "html" if all(map(_is_installed, PAGE_NEEDS)) else "md"
    stem, ending = os.path.splitext(os.path.join(desk.cwd, default_name(desk.session.id, form)))
    words = "-".join(re.findall(r"[\w.]+", part))[:NAME_LENGTH]
    stem = os.path.abspath(f"{stem}-{words}" if words else stem)
    path, number = f"{stem}{ending}", 2
    while os.path.lexists(path):
        path, number = f"{stem}-{number}{ending}", number + 1
    return path, form


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ValueError, ModuleNotFoundError):
        return False


async def _quit(desk: Desk, args: Sequence[str]) -> Done:
    desk.host.quit()
    return Done()


COMMANDS = (
    Command(
        name="fork",
        help="Go on in a new session, from before a message of yours, which you can edit, or from another entry",
        run=_fork,
        arguments=(PROMPT,),
    ),
    Command(name="branch", help="The same as /fork; /branch-here stays in here", run=_fork, arguments=(PROMPT,)),
    Command(name="clone", help="Go on in a new session that is a copy of this path", run=_clone),
    Command(
        name="new",
        help="Begin a new session; this one stays",
        run=_new,
        arguments=(Argument(name="NAME", rest=True),),
    ),
    Command(
        name="resume",
        help="Go on in another session: a path, an id or its beginning, or a name",
        run=_resume,
        arguments=(Argument(name="SESSION", complete=sessions, rest=True),),
    ),
    Command(name="session", help="Tell about this session: where it is, what is in it, what it took", run=_session),
    Command(
        name="name",
        help="Show the name of this session, or give it one; --clear takes it away",
        run=_name,
        arguments=(Argument(name="TEXT|--clear", rest=True),),
    ),
    Command(
        name="search",
        help="Look through all branches of the sessions of this folder",
        run=_search,
        arguments=(Argument(name="QUERY", required=True, rest=True),),
    ),
    Command(
        name="export",
        help="Write this session to a file: .html, .md, .txt, .json, or .jsonl for a copy byte for byte",
        run=_export,
        arguments=(FILE,),
    ),
    Command(
        name="export-branch",
        help="Write the path of a branch to a file, or an entry and all below it; .jsonl is a session of its own",
        run=_export_branch,
        arguments=(replace(PLACE, name="BRANCH|PLACE"), FILE),
    ),
    Command(name="quit", help="End the program; everything is kept", run=_quit),
)
