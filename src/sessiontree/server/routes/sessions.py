"""Routes for the server itself and for sessions: list, search, create, rename, archive."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from sessiontree._version import __version__
from sessiontree.core.problems import encode_problem
from sessiontree.core.query import parse_query
from sessiontree.core.timestamps import format_timestamp
from sessiontree.errors import SessionTreeError
from sessiontree.library import catalog
from sessiontree.library.index.session_search import Hit
from sessiontree.library.index.session_summary import SessionSummary, encode_summary
from sessiontree.library.session_files import ARCHIVED_SUFFIX, parse_session_id
from sessiontree.server import schemas
from sessiontree.server.app_state import (
    Cursor,
    JsonResponse,
    Limit,
    ReadContext,
    RequestBody,
    RequestContext,
    WriteContext,
)
from sessiontree.server.http_errors import ApiError, make_session_not_found
from sessiontree.server.openapi import describe_route
from sessiontree.server.response_content import parse_offset, render_html
from sessiontree.server.session_cache import OpenSession
from sessiontree.session import Session

router = APIRouter(prefix="/api")

MAX_HITS = 5000
COUNT_PAUSE = 0.001
"""Seconds between two steps of counting, in which other requests get the lock of the session."""


@router.get("/me", **describe_route(schemas.MeResponse))
def me(call: ReadContext) -> JsonResponse:
    """Return the rights of the token."""
    projects = None if call.token.projects is None else list(call.token.projects)
    scopes = list(call.token.scopes)
    kind = "browser" if call.token.kind == "browser" else "program"
    return JsonResponse(
        schemas.MeResponse(
            kind=kind,
            scopes=scopes,
            projects=projects,
            allow_run=call.state.allow_run,
            permission_mode=call.state.permissions.default_mode,
            version=__version__,
        )
    )


@router.get("/models", **describe_route(schemas.ModelListResponse))
def models(call: ReadContext) -> JsonResponse:
    """List all models and whether they are usable."""
    candidates = call.state.list_models()
    return JsonResponse(
        schemas.ModelListResponse(
            models=[
                schemas.ModelResponse(
                    name=candidate.name,
                    provider=candidate.name.partition(":")[0],
                    ready=candidate.usable,
                    reason=candidate.reason,
                )
                for candidate in candidates
            ],
            default=next((candidate.name for candidate in candidates if candidate.default), None),
        )
    )


@router.post("/markdown", **describe_route(schemas.MarkdownResponse, request=schemas.MarkdownRequest))
def render_markdown(
    call: ReadContext,
    request: Annotated[schemas.MarkdownRequest, Depends(RequestBody(schemas.MarkdownRequest))],
) -> JsonResponse:
    """Render Markdown as sanitized HTML, such as an answer that is still streaming."""
    return JsonResponse(schemas.MarkdownResponse(html=render_html(request.text)))


# Many sessions


@router.get("/sessions", **describe_route(schemas.SessionListResponse))
def list_sessions(
    call: ReadContext,
    q: Annotated[str, Query(max_length=500)] = "",
    project: Annotated[str | None, Query(max_length=4096)] = None,
    archived: bool = False,
    limit: Limit = schemas.DEFAULT_PAGE_SIZE,
    cursor: Cursor = None,
) -> JsonResponse:
    """List sessions, most recently modified first. `q` searches names, first messages, folders and ids."""
    words = q.casefold().split()
    listed = catalog.sessions(all=True, archived=archived, others=True)
    own = {summary.id for summary in listed if summary.source is None}
    summaries = [
        summary
        for summary in listed
        if (summary.source is None or summary.id not in own)  # an import stands for its original
        and call.token.can_see(summary.cwd)
        and _is_in_project(summary.cwd, project)
        and _matches_words(summary, words)
    ]
    if cursor is not None:
        summaries = _skip_to_cursor(summaries, cursor)
    page = summaries[:limit]
    next_cursor = f"{page[-1].modified}~{page[-1].id}" if len(summaries) > limit else None
    items = [{**encode_summary(summary), "source": summary.source} for summary in page]
    return call.respond_hashed({"sessions": items, "next": next_cursor})


def _is_in_project(cwd: str, project: str | None) -> bool:
    if project is None:
        return True
    folder = os.path.normpath(project) if project else ""
    return cwd == folder or cwd.startswith(os.path.join(folder, ""))


def _matches_words(summary: SessionSummary, words: list[str]) -> bool:
    text = " ".join((summary.name or "", summary.first_message or "", summary.cwd, summary.id)).casefold()
    return all(word in text for word in words)


def _skip_to_cursor(summaries: list[SessionSummary], cursor: str) -> list[SessionSummary]:
    """Return the sessions after the last one of the previous page, even if that was modified since."""
    modified, _, id = cursor.partition("~")
    rest = [summary for summary in summaries if summary.modified <= modified]
    same = [number for number, summary in enumerate(rest) if summary.modified == modified and summary.id == id]
    return rest[same[0] + 1 :] if same else rest


def _get_parent_id(file: str | None) -> str | None:
    return None if file is None else parse_session_id(file)


@router.get("/search", **describe_route(schemas.SearchResponse))
def search(
    call: ReadContext,
    q: Annotated[str, Query(min_length=1, max_length=500)],
    session: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JsonResponse:
    """Search entries of all branches that contain every word of `q`, newest first."""
    own: set[str] = set()

    def is_visible(summary: SessionSummary) -> bool:
        if summary.source is None:
            own.add(summary.id)
        elif summary.id in own:  # an import stands for its original; your own sessions come first
            return False
        return call.token.can_see(summary.cwd) and session in (None, summary.id)

    start = parse_offset(cursor)
    try:
        parse_query(q, now=0)
    except SessionTreeError as error:
        raise ApiError(422, str(error)) from None
    end = min(start + limit, MAX_HITS)
    unread: set[str] = set()
    hits = catalog.search(q, all=True, others=True, limit=end + 1, only=is_visible, on_unreadable=unread.add)
    next_cursor = str(end) if len(hits) > end < MAX_HITS else None
    return JsonResponse(
        schemas.SearchResponse(hits=[_build_hit(hit) for hit in hits[start:end]], next=next_cursor, unread=len(unread))
    )


def _build_hit(hit: Hit) -> schemas.SearchHitResponse:
    return schemas.SearchHitResponse(
        session=hit.session,
        session_name=hit.name,
        entry=hit.entry,
        branch=hit.branch,
        role=hit.role,
        timestamp=hit.timestamp,
        snippet=hit.snippet,
        in_context=hit.in_context,
    )


@router.post(
    "/sessions",
    **describe_route(schemas.CreateSessionResponse, status=201, request=schemas.CreateSessionRequest, allow_empty=True),
)
def create(
    call: WriteContext,
    request: Annotated[
        schemas.CreateSessionRequest, Depends(RequestBody(schemas.CreateSessionRequest, allow_empty=True))
    ],
) -> JsonResponse:
    """Create a session."""
    with catalog.create_session(request.name, cwd=resolve_session_folder(call, request.cwd)) as made:
        return JsonResponse(schemas.CreateSessionResponse(id=made.id, name=made.name, cwd=made.cwd), 201)


def resolve_session_folder(call: RequestContext, cwd: str | None) -> str:
    """Return the folder of a new session. Raises `ApiError`."""
    projects = call.token.projects
    folder = cwd if cwd is not None else projects[0] if projects else call.state.cwd
    if not os.path.isabs(folder) or "\0" in folder:
        raise ApiError(422, "the folder must be an absolute path")
    if not call.token.can_see(folder):
        raise ApiError(403, "the folder is outside the projects of the token")
    if not os.path.isdir(folder):
        raise ApiError(422, "the folder does not exist")
    if cwd is not None and projects is None and "run" in call.token.scopes:
        call.state.workspaces.allow_folder(folder)
    return os.path.normpath(folder)


# One session


@router.get("/sessions/{id}", **describe_route(schemas.SessionResponse))
def get_session(call: ReadContext, id: str, wait: bool = True) -> JsonResponse:
    """Return a session with its totals. With `wait=false`, those of a large session are null until they are known."""
    with call.state.sessions.use(id, call.token) as opened, _translate_missing_file(id):
        while True:
            with opened.session.hold_lock():
                is_counted = opened.count_entries()
                if is_counted or not wait:
                    return JsonResponse(_build_session(call, opened, is_counted), at=opened)
            time.sleep(COUNT_PAUSE)  # otherwise other requests hardly ever get the lock


@contextmanager
def _translate_missing_file(id: str) -> Generator[None]:
    """Report a session as missing if its file disappears inside this context. Raises `ApiError`."""
    try:
        yield
    except FileNotFoundError:
        raise make_session_not_found(id) from None


def _build_session(call: RequestContext, opened: OpenSession, is_counted: bool) -> schemas.SessionResponse:
    session, totals = opened.session, opened.compute_totals() if is_counted else None
    agent_branches = call.state.swarms.find_agent_branches(opened)
    return schemas.SessionResponse(
        id=session.id,
        name=session.name,
        cwd=session.cwd,
        branch=session.heads.current,
        leaf=opened.leaf,
        entries=len(session.tree),
        branches=len(session.heads.heads) - len(session.heads.archived),
        cost=None if totals is None else round(totals.cost, 10),
        tokens=None if totals is None else totals.tokens,
        models=None if totals is None else list(totals.models),
        created=session.header.timestamp,
        modified=_get_modified(opened),
        parent_session=_get_parent_id(session.header.parent_session),
        origin=session.header.origin_name or None,
        archived=os.path.lexists(opened.file + ARCHIVED_SUFFIX),
        read_only=session.read_only,
        problems=None if totals is None else [encode_problem(problem) for problem in opened.list_problems()],
        running=[
            *call.state.runs.list_running(opened),
            *(branch for branch, agent_branch in agent_branches.items() if agent_branch.is_running),
        ],
        swarming={branch: agent_branch.swarm for branch, agent_branch in agent_branches.items()},
        experimenting=call.state.experiments.find_running_branches(opened),
        undoable=_describe_undo(session),
    )


def _describe_undo(session: Session) -> str | None:
    try:
        return session.plan_undo().undo_description
    except SessionTreeError:
        return None


def _get_modified(opened: OpenSession) -> str:
    """Return when the session was last modified, by its file or its last entry."""
    session = opened.session
    if session.file is not None:
        return format_timestamp(os.stat(opened.file).st_mtime_ns // 1_000_000)
    count = len(session.tree.entries)
    return session.tree.get_entry_at(count - 1).timestamp if count else session.header.timestamp


@router.patch("/sessions/{id}", **describe_route(schemas.RenameSessionResponse, request=schemas.RenameSessionRequest))
def rename(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.RenameSessionRequest, Depends(RequestBody(schemas.RenameSessionRequest))],
) -> JsonResponse:
    """Rename a session; `null` removes the name."""
    with call.write_session(id) as opened:
        opened.session.rename(request.name)
        return JsonResponse(schemas.RenameSessionResponse(id=opened.session.id, name=opened.session.name), at=opened)


@router.post(
    "/sessions/{id}/archive",
    **describe_route(schemas.ArchiveSessionResponse, request=schemas.ArchiveSessionRequest, allow_empty=True),
)
def archive(
    call: WriteContext,
    id: str,
    request: Annotated[
        schemas.ArchiveSessionRequest, Depends(RequestBody(schemas.ArchiveSessionRequest, allow_empty=True))
    ],
) -> JsonResponse:
    """Hide a session from listings, or show it again. The session itself does not change."""
    with call.write_session(id) as opened:
        catalog.archive(opened.file if opened.session.file is None else Path(opened.file), archived=request.archived)
        return JsonResponse(schemas.ArchiveSessionResponse(id=opened.session.id, archived=request.archived), at=opened)
