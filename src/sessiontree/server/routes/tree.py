"""Routes for the content of a session: tree, entries, paths, contexts, branches, comparisons, and appending.

The functions that build rows of the tree and of paths from entries are also used by the live events.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from msgspec import UNSET
from msgspec.structs import replace

from sessiontree.branch_comparison import comparison_to_wire, diff_to_wire
from sessiontree.core.call_lookup import CALL_SEARCH_LIMIT
from sessiontree.core.context_explanation import encode_explanation, explain
from sessiontree.core.entries import (
    BOOKKEEPING_TYPES,
    Body,
    BranchPoint,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
)
from sessiontree.core.entry_text import get_body_text
from sessiontree.core.foreign_markup import format_program_text
from sessiontree.core.messages import (
    assistant,
    coerce_string,
    extract_text,
    get_answered_call,
    get_entry_role,
    get_model,
    get_role,
    get_tool_calls,
    has_failed,
    is_object,
    iter_blocks,
    list_usages,
    name_author,
    sum_usage,
    user,
)
from sessiontree.core.operation_plans import is_merge
from sessiontree.core.outline import Filter, Outline
from sessiontree.core.tree import Tree
from sessiontree.core.tree_rows import build_window
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.export.entry_view import read_picture
from sessiontree.format.entry_input import IncompleteEntry, parse_entry
from sessiontree.format.json_line import NotJson, read_object
from sessiontree.server import schemas
from sessiontree.server.app_state import Cursor, JsonResponse, Limit, ReadContext, RequestBody, WriteContext
from sessiontree.server.http_errors import ApiError
from sessiontree.server.openapi import describe_route
from sessiontree.server.response_content import (
    LAST_PAGE,
    HtmlCache,
    get_page,
    parse_offset,
    replace_invalid_text,
    split_cursor,
)
from sessiontree.server.session_cache import OpenSession
from sessiontree.session import BranchInfo, Item, Session, compare, diff

router = APIRouter(prefix="/api/sessions/{id}")

At = Annotated[str, Query(min_length=1, max_length=300)]
DEFAULT_PLACE = "HEAD"
TRANSPARENT_TYPES = BOOKKEEPING_TYPES | {"branch_point"}
"""Types of entries that may be between a message and its versions."""
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_UNNAMED = 100
"""Unnamed leaves that are listed with the branches."""
INVALID = "\ufffd"
"""The character that responses have in place of invalid Unicode."""
MAX_RESULT_LENGTH = 10_000
"""Characters of a tool result in the row of its call. The row of the result contains all of it."""


@router.get("/tree", **describe_route(schemas.TreePage))
def get_tree(
    call: ReadContext,
    id: str,
    filter: Filter = "default",
    limit: Limit = schemas.DEFAULT_PAGE_SIZE,
    cursor: Cursor = None,
    around: Annotated[str | None, Query(min_length=1, max_length=300)] = None,
) -> JsonResponse:
    """Return the tree as a flat list in drawing order: depth first, the active branch first.

    With `around`, return only the rows around a place, half of them before it.
    """
    if around is None:
        return call.respond_cached(id, lambda opened: build_tree_page(opened, filter, limit, cursor))
    if cursor is not None:
        raise ApiError(400, "give either cursor or around")
    return call.respond_cached(id, lambda opened: _build_tree_window(opened, filter, limit, around))


def _build_tree_window(opened: OpenSession, filter: str, limit: int, around: str) -> schemas.TreePage:
    """Build the rows around a place without laying out the whole tree."""
    session = opened.session
    tree = session.tree
    window = build_window(tree, opened.leaf, filter, resolve_place(session, around), limit)
    return schemas.TreePage(
        session_id=session.id,
        name=session.name,
        branch=session.heads.current,
        leaf=opened.leaf,
        total=None,
        entries=[_build_tree_row(opened, tree.peek(row.id), row.parent, row.on_path, row.depth) for row in window.rows],
        has_earlier=window.has_earlier,
        has_later=window.has_later,
        next=None,
    )


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
        has_earlier=start > 0,
        has_later=end < len(outline),
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
        place = resolve_place(opened.session, entry)
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
            newest_leaf=_find_newest_leaf(tree, place, set(opened.session.heads.heads.values())),
        )
        return JsonResponse(answer, at=opened)


def _find_newest_leaf(tree: Tree, id: EntryId, heads: Collection[EntryId | None]) -> EntryId:
    """Return the leaf that is newest at every fork. It is no annotation, unless it is a head."""

    def leads_on(child: EntryId) -> bool:
        return child in heads or not tree.peek(child).is_annotation or bool(tree.get_child_ids(child))

    leaf, seen = id, set[EntryId]()
    while leaf not in seen:
        seen.add(leaf)
        leaf = next(filter(leads_on, reversed(tree.get_child_ids(leaf))), leaf)
    return leaf


def resolve_place(session: Session, place: str) -> EntryId | None:
    """Return the entry that a request names."""
    try:
        return session.resolve_place(place)
    except NotFound:
        if (found := _find_respelled(session, place)) is None:
            raise
        return found


def _find_respelled(session: Session, id: str) -> EntryId | None:
    """Return the entry whose id has invalid Unicode and is given as responses spell it."""
    if INVALID not in id:
        return None
    return next((entry.id for entry in session.tree.entries if replace_invalid_text(entry.id) == id), None)


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
            leaf = resolve_place(session, at)
            start = 0 if cursor is None else None
        else:
            leaf, start = split_cursor(cursor)
            leaf = session.tree[_find_respelled(session, leaf) or leaf].id if leaf else None
        path = session.tree.path(leaf)
        first = max(0, len(path) - limit) if start is None else min(start, len(path))
        end = min(first + limit, len(path))
        rows = build_path_rows(opened, path, range(first, end))
        made = schemas.PathPage(
            at=leaf,
            total=len(path),
            entries=[unrendered.row for unrendered in rows],
            next=f"{leaf or ''}.{end}" if end < len(path) else None,
            previous=f"{leaf or ''}.{max(0, first - limit)}" if first else None,
        )
        return made, rows

    def render_page(opened: OpenSession, made: tuple[schemas.PathPage, list[UnrenderedPathRow]]) -> schemas.PathPage:
        page, rows = made
        return replace(page, entries=[unrendered.render(opened.html_cache) for unrendered in rows]) if html else page

    return call.respond_cached(id, build_page, render_page)


@router.get("/images/{number}", **describe_route(*IMAGE_TYPES))
def get_image(call: ReadContext, id: str, number: int, entry: At) -> Response:
    """Return an image of an entry, counted from 0: a PNG, JPEG, GIF or WebP file."""
    with call.read_session(id) as opened:
        place = resolve_place(opened.session, entry)
        body = None if place is None else opened.session.tree[place].decode()
    blocks = (
        [] if body is None else [block for block in iter_blocks(_get_content(body)) if block.get("type") == "image"]
    )
    if not 0 <= number < len(blocks):
        raise ApiError(404, "the entry has no such image")
    picture = read_picture(blocks[number])
    if not picture.kind:
        raise ApiError(409, f"the image cannot be shown: {picture.fault}", code="unreadable")
    return Response(base64.b64decode(picture.data), media_type=picture.kind)


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

    def build_list(opened: OpenSession) -> schemas.BranchListResponse:
        made = build_branch_list(opened.session, limit, cursor)
        return made if made.next is not None else replace(made, unnamed=_list_unnamed_leaves(opened))

    return call.respond_cached(id, build_list)


def _list_unnamed_leaves(opened: OpenSession) -> list[schemas.UnnamedLeafResponse]:
    leaves = reversed(opened.session.unnamed_leaves[-MAX_UNNAMED:])
    return [
        schemas.UnnamedLeafResponse(
            leaf=unnamed.leaf,
            suggested_name=unnamed.suggested_name,
            entry_count=unnamed.entry_count,
            text=opened.get_preview(opened.session.tree[unnamed.leaf]).text,
        )
        for unnamed in leaves
    ]


def build_branch_list(session: Session, limit: int, cursor: str | None) -> schemas.BranchListResponse:
    """Build a page of the branches. Raises `ApiError`."""
    page, following = get_page(session.branches, limit, cursor)
    return schemas.BranchListResponse(
        branches=[_build_branch(info) for info in page], current=session.heads.current, next=following
    )


def _build_branch(info: BranchInfo) -> schemas.BranchResponse:
    return schemas.BranchResponse(
        name=info.name,
        head=info.leaf,
        entry_count=info.entry_count,
        created_at=info.created_at,
        description=info.description,
        archived=info.archived,
    )


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
    if request.entry is None and isinstance(body, Message):
        body = name_author(body, call.token.name)
    with call.write_session(id) as opened:
        session = opened.session
        branch = session.heads.current if request.branch is None else session.branch(request.branch).name
        call.state.check_idle(opened, branch)
        entry_id = session.append_at_head(lambda: Item(body, extra), branch=branch).id
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
        except InvalidOperation as error:
            raise ApiError(422, str(error)) from None
        if isinstance(body, BranchPoint):
            raise ApiError(422, "use POST …/branches to create a branch")
        return body, extra
    if request.role is None or request.text is None:
        raise ApiError(422, "send either a role and a text, or an entry")
    return (user(request.text) if request.role == "user" else assistant(request.text)), {}


# Rows


def get_branch(entry: Entry) -> str | None:
    return entry.branch if isinstance(entry.branch, str) else None


def read_line(entry: Entry) -> JsonObject:
    """Return the JSON object of an entry, or its raw text if it is unreadable."""
    try:
        return read_object(entry.raw)
    except NotJson as error:
        raw = entry.raw.decode("utf-8", "replace")
        return {"type": entry.type, "id": entry.id, "unreadable": str(error), "raw": raw}


def build_tree_rows(opened: OpenSession, outline: Outline, rows: range) -> list[schemas.TreeRow]:
    """Build rows of the tree in drawing order."""
    shape, tree = outline.shape, opened.session.tree
    built: list[schemas.TreeRow] = []
    for row in rows:
        position = outline.rows[row]
        above = shape.parent_positions[position]
        shown = outline.nearest_rows[above] if above >= 0 else -1
        entry = tree[outline.get_id(row)]
        built.append(
            _build_tree_row(opened, entry, None if shown < 0 else outline.get_id(shown), entry.id in shape.path)
        )
    return built


def build_tree_row(opened: OpenSession, entry: Entry) -> schemas.TreeRow:
    """Build the row of a new entry at the end of a branch."""
    return _build_tree_row(opened, entry, opened.session.tree.parent(entry.id), entry.id == opened.leaf)


def _build_tree_row(
    opened: OpenSession, entry: Entry, parent: str | None, active: bool, depth: int | None = None
) -> schemas.TreeRow:
    preview = opened.get_preview(entry)
    return schemas.TreeRow(
        id=entry.id,
        parent=parent,
        type=entry.type,
        role=preview.role,
        label=opened.session.tree.label(entry.id),
        branch=get_branch(entry),
        depth=opened.get_depth(entry.id) if depth is None else depth,
        timestamp=preview.timestamp,
        text=preview.text,
        active=active,
        failed=preview.failed,
        files=opened.count_changed_files(entry),
    )


class UnrenderedPathRow(NamedTuple):
    """A path row and its Markdown text, which is rendered later, while the session is not locked."""

    row: schemas.PathRow
    prose: str | None

    def render(self, html_cache: HtmlCache) -> schemas.PathRow:
        return self.row if self.prose is None else replace(self.row, html=html_cache.render(self.prose))


def build_path_rows(opened: OpenSession, path: Sequence[Entry], rows: range) -> list[UnrenderedPathRow]:
    """Build rows of a path, with the results of tool calls."""
    following = [(entry, entry.decode()) for entry in path[rows.start : rows.stop]]
    answers = {
        call: body.message
        for body in (
            *(body for _, body in following),
            *_iter_tool_results(path[rows.stop : rows.stop + CALL_SEARCH_LIMIT]),
        )
        if isinstance(body, Message) and (call := get_answered_call(body.message)) is not None
    }
    return [build_path_row(opened, entry, body, answers) for entry, body in following]


def _iter_tool_results(entries: Iterable[Entry]) -> Iterator[Body]:
    """Yield the bodies after a page, up to the next user message; they may contain tool results."""
    for entry in entries:
        body = entry.decode()
        if isinstance(body, Message) and get_role(body.message) == "user":
            return
        yield body


def build_path_row(opened: OpenSession, entry: Entry, body: Body, answers: dict[str, JsonObject]) -> UnrenderedPathRow:
    """Build the row of an entry. `answers` contains the results of tool calls by call id."""
    message = body.message if isinstance(body, Message) else {}
    text_content = get_body_text(body)
    costs = [found for usage in list_usages(body) if (found := sum_usage(usage)) is not None]
    uses = [_build_tool_use(call.name, call.arguments, answers.get(call.id)) for call in get_tool_calls(message)]
    model = get_model(message)
    usage = message.get("usage")
    thinking = "\n".join(coerce_string(block.get("thinking")) for block in iter_blocks(message.get("content"))).strip()
    images = sum(block.get("type") == "image" for block in iter_blocks(_get_content(body)))
    preview = opened.get_preview(entry)
    row = schemas.PathRow(
        id=entry.id,
        parent=opened.session.tree.parent(entry.id),
        type=entry.type,
        role=preview.role,
        label=opened.session.tree.label(entry.id),
        branch=get_branch(entry),
        timestamp=preview.timestamp,
        text=preview.text if text_content is None else text_content,
        thinking=thinking or UNSET,
        tools=uses or UNSET,
        error=coerce_string(message.get("errorMessage")) or UNSET,
        failed=has_failed(message) or UNSET,
        tool=coerce_string(message.get("toolName")) or UNSET,
        author=coerce_string(message.get("author")) or UNSET,
        versions=_find_versions(opened, entry, preview.role) or UNSET,
        images=images or UNSET,
        merge=is_merge(body) or UNSET,
        cost=sum(item.cost for item in costs) if costs else UNSET,
        tokens=sum(item.tokens for item in costs) if costs else UNSET,
        model=":".join(model) if model is not None else UNSET,
        usage=usage if is_object(usage) else UNSET,
    )
    prose = text_content if get_answered_call(message) is None else None
    if prose is not None and get_role(message) != "assistant":
        prose = format_program_text(prose, with_results=True)
    return UnrenderedPathRow(row, prose)


def _get_content(body: Body) -> Any:
    match body:
        case Message(message):
            return message.get("content")
        case CustomMessage(content=content):
            return content
        case _:
            return None


MAX_VERSIONS = 200
"""Versions of a message that are listed."""


def _find_versions(opened: OpenSession, entry: Entry, role: str | None) -> list[EntryId]:
    """Return the messages of a role at the same place: its siblings, below settings and branch points too."""
    if role not in ("user", "assistant"):
        return []
    tree = opened.session.tree
    above = tree.parent(entry.id)
    while above is not None and tree.peek(above).type in TRANSPARENT_TYPES:
        above = tree.parent(above)
    found: list[EntryId] = []
    waiting = list(reversed(tree.get_child_ids(above)))
    while waiting and len(found) < MAX_VERSIONS:
        id = waiting.pop()
        if tree.peek(id).type in TRANSPARENT_TYPES:
            waiting.extend(reversed(tree.get_child_ids(id)))
        elif id == entry.id or get_entry_role(tree[id]) == role:
            found.append(id)
    return found if len(found) > 1 and entry.id in found else []


def _build_tool_use(name: str, arguments: Any, answer: JsonObject | None) -> schemas.ToolUse:
    if answer is None:
        return schemas.ToolUse(name=name, arguments=arguments, result=None, ok=None)
    result = extract_text(answer.get("content"))[:MAX_RESULT_LENGTH]
    return schemas.ToolUse(name=name, arguments=arguments, result=result, ok=answer.get("isError") is not True)
