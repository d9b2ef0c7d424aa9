"""Routes over sessions as a whole: the server itself, listing, searching, making, naming, archiving."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from sessiontree import catalog, shelf
from sessiontree._version import __version__
from sessiontree.core.problems import problem_to_wire
from sessiontree.core.query import parse_query
from sessiontree.core.times import iso
from sessiontree.errors import SessionTreeError
from sessiontree.index.folder import ARCHIVED, id_of
from sessiontree.index.reading import SessionSummary
from sessiontree.index.search import Hit
from sessiontree.web import wire
from sessiontree.web.opened import Opened
from sessiontree.web.paging import Cursor, Limit, number
from sessiontree.web.refusals import Refused, no_session
from sessiontree.web.schema import told
from sessiontree.web.serving import Call, Json, Reads, Said, Writes

router = APIRouter(prefix="/api")

MOST_HITS = 5000


@router.get("/health", **told(wire.Health))
async def health(call: Reads) -> Json:
    """Whether the server is well."""
    uptime = round(time.monotonic() - call.serving.began, 3)
    return Json(wire.Health(status="ok", version=__version__, uptime=uptime))


@router.get("/me", **told(wire.Me))
def me(call: Reads) -> Json:
    """What the token may do."""
    projects = None if call.token.projects is None else list(call.token.projects)
    scopes = list(call.token.scopes)
    kind = "browser" if call.token.kind == "browser" else "program"
    return Json(
        wire.Me(
            kind=kind,
            scopes=scopes,
            projects=projects,
            allow_run=call.serving.allow_run,
            permission_mode=call.serving.permissions.usual_mode,
            version=__version__,
        )
    )


@router.get("/models", **told(wire.OfferedModels))
def models(call: Reads) -> Json:
    """The models that there are, and which can be used."""
    offered = call.serving.offers()
    return Json(
        wire.OfferedModels(
            models=[
                wire.OfferedModel(
                    name=offer.name, provider=offer.name.partition(":")[0], ready=offer.usable, reason=offer.reason
                )
                for offer in offered
            ],
            default=next((offer.name for offer in offered if offer.default), None),
        )
    )


# Many sessions


@router.get("/sessions", **told(wire.Listing))
def list_sessions(
    call: Reads,
    q: Annotated[str, Query(max_length=500)] = "",
    project: Annotated[str | None, Query(max_length=4096)] = None,
    archived: bool = False,
    limit: Limit = wire.PAGE,
    cursor: Cursor = None,
) -> Json:
    """Sessions, those written to last first; `q` is looked for in names, first messages, folders and ids."""
    words = q.casefold().split()
    listed = [
        summary
        for summary in catalog.sessions(all=True, archived=archived)
        if call.token.sees(summary.cwd) and _is_of(summary.cwd, project) and _says(summary, words)
    ]
    if cursor is not None:
        listed = _behind(listed, cursor)
    page = listed[:limit]
    following = f"{page[-1].modified}~{page[-1].id}" if len(listed) > limit else None
    return Json(wire.Listing(sessions=[_listed(summary) for summary in page], next=following))


def _is_of(cwd: str, project: str | None) -> bool:
    if project is None:
        return True
    folder = os.path.normpath(project) if project else ""
    return cwd == folder or cwd.startswith(os.path.join(folder, ""))


def _says(summary: SessionSummary, words: list[str]) -> bool:
    said = " ".join((summary.name or "", summary.first_message or "", summary.cwd, summary.id)).casefold()
    return all(word in said for word in words)


def _behind(listed: list[SessionSummary], cursor: str) -> list[SessionSummary]:
    """What follows the session that a page ended with, also if that was written to since."""
    modified, _, id = cursor.partition("~")
    rest = [summary for summary in listed if summary.modified <= modified]
    same = [number for number, summary in enumerate(rest) if summary.modified == modified and summary.id == id]
    return rest[same[0] + 1 :] if same else rest


def _listed(summary: SessionSummary) -> wire.Listed:
    return wire.Listed(
        id=summary.id,
        name=summary.name,
        cwd=summary.cwd,
        first_message=summary.first_message,
        entries=summary.entry_count,
        branches=summary.branch_count,
        cost=summary.cost,
        created=summary.created,
        modified=summary.modified,
        parent_session=_parent(summary.parent_session),
        damaged=summary.damaged,
        damage=summary.damage,
        archived=summary.archived,
    )


def _parent(file: str | None) -> str | None:
    return None if file is None else id_of(file)


@router.get("/search", **told(wire.Hits))
def search(
    call: Reads,
    q: Annotated[str, Query(min_length=1, max_length=500)],
    session: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Json:
    """Entries that say all of `q`, in all branches, the newest first."""

    def only(summary: SessionSummary) -> bool:
        return call.token.sees(summary.cwd) and session in (None, summary.id)

    start = number(cursor)
    try:
        parse_query(q, now=0)
    except SessionTreeError as error:
        raise Refused(422, str(error)) from None
    end = min(start + limit, MOST_HITS)
    unread: set[str] = set()
    hits = catalog.search(q, all=True, limit=end + 1, only=only, unread=unread.add)
    following = str(end) if len(hits) > end < MOST_HITS else None
    return Json(wire.Hits(hits=[_found(hit) for hit in hits[start:end]], next=following, unread=len(unread)))


def _found(hit: Hit) -> wire.Found:
    return wire.Found(
        session=hit.session,
        session_name=hit.name,
        entry=hit.entry,
        branch=hit.branch,
        role=hit.role,
        timestamp=hit.timestamp,
        snippet=hit.snippet,
        in_context=hit.in_context,
    )


@router.post("/sessions", **told(wire.MadeSession, status=201, takes=wire.NewSession, empty=True))
def create(call: Writes, said: Annotated[wire.NewSession, Depends(Said(wire.NewSession, empty=True))]) -> Json:
    """A new session."""
    with catalog.create(said.name, cwd=folder_for(call, said.cwd)) as made:
        return Json(wire.MadeSession(id=made.id, name=made.name, cwd=made.cwd), 201)


def folder_for(call: Call, cwd: str | None) -> str:
    """The folder that a new session is about. Raises `Refused`."""
    projects = call.token.projects
    folder = cwd if cwd is not None else projects[0] if projects else call.serving.cwd
    if not os.path.isabs(folder) or "\0" in folder:
        raise Refused(422, "the folder of a session is an absolute path")
    if not call.token.sees(folder):
        raise Refused(403, "the token is for other projects")
    if not os.path.isdir(folder):
        raise Refused(422, "there is no such folder")
    if cwd is not None and projects is None and "run" in call.token.scopes:
        call.serving.workplaces.confirm(folder)
    return os.path.normpath(folder)


# One session


@router.get("/sessions/{id}", **told(wire.SessionInfo))
def get_session(call: Reads, id: str) -> Json:
    """What a session is, and what it has cost."""
    with call.reading(id) as opened, _there(id):
        return Json(_info(call, opened), at=opened)


@contextmanager
def _there(id: str) -> Generator[None]:
    """What goes away while it is looked at is not there. Raises `Refused`."""
    try:
        yield
    except FileNotFoundError:
        raise no_session(id) from None


def _info(call: Call, opened: Opened) -> wire.SessionInfo:
    session, totals = opened.session, opened.totals()
    hands = call.serving.swarms.hands(opened)
    return wire.SessionInfo(
        id=session.id,
        name=session.name,
        cwd=session.cwd,
        branch=session.heads.current,
        leaf=opened.leaf,
        entries=len(session.tree),
        branches=len(session.heads.heads) - len(session.heads.archived),
        cost=round(totals.cost, 10),
        tokens=totals.tokens,
        models=list(totals.models),
        created=session.header.timestamp,
        modified=_modified(opened),
        parent_session=_parent(session.header.parent_session),
        archived=os.path.lexists(opened.file + ARCHIVED),
        read_only=session.read_only,
        problems=[problem_to_wire(problem) for problem in opened.problems()],
        running=[*call.serving.runs.running(opened), *(branch for branch, hand in hands.items() if hand.at_work)],
        swarming={branch: hand.swarm for branch, hand in hands.items()},
        experimenting=call.serving.trials.under_way(opened),
    )


def _modified(opened: Opened) -> str:
    """When it was last written to: as its file says, or its last entry where it is in no file."""
    session = opened.session
    if session.file is not None:
        return iso(os.stat(opened.file).st_mtime_ns // 1_000_000)
    count = len(session.tree.entries)
    return session.tree.entry_at(count - 1).timestamp if count else session.header.timestamp


@router.patch("/sessions/{id}", **told(wire.Named, takes=wire.Renaming))
def rename(call: Writes, id: str, said: Annotated[wire.Renaming, Depends(Said(wire.Renaming))]) -> Json:
    """Name a session; `null` takes the name away."""
    with call.writing(id) as opened:
        opened.session.rename(said.name)
        return Json(wire.Named(id=opened.session.id, name=opened.session.name), at=opened)


@router.post("/sessions/{id}/archive", **told(wire.Archived, takes=wire.Archiving, empty=True))
def archive(call: Writes, id: str, said: Annotated[wire.Archiving, Depends(Said(wire.Archiving, empty=True))]) -> Json:
    """Take a session out of listings, or put it back. Nothing of it changes."""
    with call.writing(id) as opened:
        shelf.archive(opened.file if opened.session.file is None else Path(opened.file), archived=said.archived)
        return Json(wire.Archived(id=opened.session.id, archived=said.archived), at=opened)
