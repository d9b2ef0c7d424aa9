"""Routes for the content of a session: tree, entries, paths, contexts, branches, comparisons, and appending."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from msgspec import UNSET
from msgspec.structs import replace

from sessiontree.comparison import comparison_to_wire, diff_to_wire
from sessiontree.core.context import encode_explanation, explain
from sessiontree.core.entries import Body, BranchPoint, JsonObject
from sessiontree.core.messages import assistant, user
from sessiontree.core.outline import Filter
from sessiontree.format.entry_input import IncompleteEntry, parse_entry
from sessiontree.server import schemas
from sessiontree.server.app_state import JsonResponse, ReadContext, RequestBody, WriteContext
from sessiontree.server.entry_rows import (
    UnrenderedPathRow,
    build_branch_list,
    build_path_rows,
    build_tree_rows,
    get_branch,
    read_line,
)
from sessiontree.server.http_errors import ApiError
from sessiontree.server.openapi import describe_route
from sessiontree.server.pagination import LAST_PAGE, Cursor, Limit, parse_offset, split_cursor
from sessiontree.server.session_cache import OpenSession
from sessiontree.session import NewEntry, compare, diff

router = APIRouter(prefix="/api/sessions/{id}")

At = Annotated[str, Query(min_length=1, max_length=300)]
DEFAULT_PLACE = "HEAD"


@router.get("/tree", **describe_route(schemas.TreePage))
def get_tree(
    call: ReadContext,
    id: str,
    filter: Filter = "default",
    limit: Limit = schemas.DEFAULT_PAGE_SIZE,
    cursor: Cursor = None,
) -> JsonResponse:
    """Return the tree as a flat list in drawing order: depth first, the active branch first."""
    return call.respond_cached(id, lambda opened: build_tree_page(opened, filter, limit, cursor))


def build_tree_page(opened: OpenSession, filter: str, limit: int, cursor: str | None) -> schemas.TreePage:
    at, start = (None, 0) if cursor is None else split_cursor(cursor)
    at, outline = opened.get_outline(filter, at)
    end = min(start + limit, len(outline))
    session = opened.session
    return schemas.TreePage(
        session_id=session.id,
        name=session.name,
        branch=session.heads.current,
        leaf=opened.leaf,
        total=len(outline),
        entries=build_tree_rows(opened, outline, range(start, end)),
        next=f"{at}.{end}" if end < len(outline) else None,
    )


@router.get("/entries", **describe_route(schemas.EntryPage))
def get_entries(
    call: ReadContext, id: str, limit: Limit = schemas.DEFAULT_PAGE_SIZE, cursor: Cursor = None
) -> JsonResponse:
    """Return all entries in file order, each as a JSON object."""
    start = parse_offset(cursor)

    def build_page(opened: OpenSession) -> schemas.EntryPage:
        entries = opened.session.tree.entries
        end = min(start + limit, len(entries))
        lines = [read_line(entry) for entry in entries[start:end]]
        return schemas.EntryPage(entries=lines, next=str(end) if end < len(entries) else None)

    return call.respond_cached(id, build_page)


@router.get("/entries/{entry:path}", **describe_route(schemas.EntryResponse))
def get_entry(call: ReadContext, id: str, entry: str) -> JsonResponse:
    """Return the entry at a place."""
    with call.read_session(id) as opened:
        tree = opened.session.tree
        place = opened.session.resolve_place(entry)
        if place is None:
            raise ApiError(404, "there is no entry before the root")
        found = tree[place]
        answer = schemas.EntryResponse(
            entry=read_line(found),
            parent=tree.parent(place),
            children=tree.get_child_ids(place),
            branch=get_branch(found),
            label=tree.label(place),
            depth=opened.get_depth(place),
        )
        return JsonResponse(answer, at=opened)


@router.get("/path", **describe_route(schemas.PathPage))
def get_path(
    call: ReadContext,
    id: str,
    at: At = DEFAULT_PLACE,
    limit: Limit = schemas.DEFAULT_PAGE_SIZE,
    cursor: Cursor = None,
    html: bool = False,
) -> JsonResponse:
    """Return the entries from the root to a place. `cursor=end` selects the last page; `previous` leads back."""

    def build_page(opened: OpenSession) -> tuple[schemas.PathPage, list[UnrenderedPathRow]]:
        session = opened.session
        start: int | None = 0
        if cursor is None or cursor == LAST_PAGE:
            leaf = session.resolve_place(at)
            start = 0 if cursor is None else None
        else:
            leaf, start = split_cursor(cursor)
            leaf = session.tree[leaf].id if leaf else None
        path = session.tree.path(leaf)
        first = max(0, len(path) - limit) if start is None else min(start, len(path))
        end = min(first + limit, len(path))
        rows = build_path_rows(opened, path, range(first, end))
        made = schemas.PathPage(
            at=leaf,
            total=len(path),
            entries=[telling.row for telling in rows],
            next=f"{leaf or ''}.{end}" if end < len(path) else None,
            previous=f"{leaf or ''}.{max(0, first - limit)}" if first else None,
        )
        return made, rows

    def render_page(opened: OpenSession, made: tuple[schemas.PathPage, list[UnrenderedPathRow]]) -> schemas.PathPage:
        page, rows = made
        return replace(page, entries=[telling.render(opened.html_cache) for telling in rows]) if html else page

    return call.respond_cached(id, build_page, render_page)


@router.get("/context", **describe_route(schemas.ContextResponse))
def get_context(
    call: ReadContext, id: str, at: At = DEFAULT_PLACE, why: Annotated[bool, Query(alias="explain")] = False
) -> JsonResponse:
    """Return what a model sees at a place. With `explain`, also whether it sees each entry of the path."""

    def build_context(opened: OpenSession) -> schemas.ContextResponse:
        session = opened.session
        seen = session.context(at)
        explanation = explain(session.tree, seen.leaf)
        return schemas.ContextResponse(
            leaf=seen.leaf,
            model=seen.model,
            thinking_level=seen.thinking_level,
            messages=list(seen.messages),
            tokens=explanation.tokens,
            mode=UNSET if seen.state.mode is None else seen.state.mode,
            rules=list(seen.state.rules) if seen.state.rules else UNSET,
            explanation=encode_explanation(explanation) if why else UNSET,
        )

    return call.respond_cached(id, build_context)


@router.get("/branches", **describe_route(schemas.BranchListResponse))
def get_branches(
    call: ReadContext, id: str, limit: Limit = schemas.DEFAULT_PAGE_SIZE, cursor: Cursor = None
) -> JsonResponse:
    """List all branches in the order they were created, including archived ones."""
    return call.respond_cached(id, lambda opened: build_branch_list(opened.session, limit, cursor))


@router.get("/diff", **describe_route(schemas.DiffResponse))
def get_diff(call: ReadContext, id: str, a: At, b: At) -> JsonResponse:
    """Compare two places from their common ancestor."""
    return call.respond_cached(id, lambda opened: diff_to_wire(diff(opened.session, a, b)))


@router.post("/compare", **describe_route(schemas.CompareResponse, request=schemas.CompareRequest))
def post_compare(
    call: ReadContext, id: str, request: Annotated[schemas.CompareRequest, Depends(RequestBody(schemas.CompareRequest))]
) -> JsonResponse:
    """Compare branches from their common ancestor by a metric. A winner is named only if the numbers decide it."""
    with call.read_session(id) as opened:
        return JsonResponse(comparison_to_wire(compare(opened.session, request.branches, request.metric)), at=opened)


# Appending


@router.post("/entries", **describe_route(schemas.AppendEntryResponse, status=201, request=schemas.AppendEntryRequest))
def append(
    call: WriteContext,
    id: str,
    request: Annotated[schemas.AppendEntryRequest, Depends(RequestBody(schemas.AppendEntryRequest))],
) -> JsonResponse:
    """Append an entry to a branch, by default the current one."""
    body, extra = _build_entry_body(request)
    with call.write_session(id) as opened:
        session = opened.session
        branch = session.heads.current if request.branch is None else session.branch(request.branch).name
        call.state.check_idle(opened, branch)
        entry_id = session.append_at_head(lambda: NewEntry(body, extra), branch=branch).id
        return JsonResponse(
            schemas.AppendEntryResponse(id=entry_id, branch=branch, leaf=session.heads.heads[branch]), 201, at=opened
        )


def _build_entry_body(request: schemas.AppendEntryRequest) -> tuple[Body, JsonObject]:
    if request.entry is not None:
        if request.role is not None or request.text is not None:
            raise ApiError(422, "send either a role and a text, or an entry")
        try:
            body, extra = parse_entry(request.entry)
        except IncompleteEntry as lacking:
            raise ApiError(422, f"the entry needs {lacking}") from None
        if isinstance(body, BranchPoint):
            raise ApiError(422, "use POST …/branches to create a branch")
        return body, extra
    if request.role is None or request.text is None:
        raise ApiError(422, "send either a role and a text, or an entry")
    return (user(request.text) if request.role == "user" else assistant(request.text)), {}
