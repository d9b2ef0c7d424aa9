"""Routes over what is in a session: tree, entries, paths, contexts and branches, how places differ, and appending."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from msgspec import UNSET
from msgspec.structs import replace

from sessiontree.comparison import comparison_to_wire, diff_to_wire
from sessiontree.core.context import explain, explanation_to_wire
from sessiontree.core.entries import Body, BranchPoint, JsonObject
from sessiontree.core.messages import assistant, user
from sessiontree.core.outline import Filter
from sessiontree.errors import BranchMoved
from sessiontree.format.given import Lacking, given_entry
from sessiontree.session import Session, compare, diff
from sessiontree.web import wire
from sessiontree.web.opened import Opened
from sessiontree.web.paging import END, Cursor, Limit, number, split
from sessiontree.web.refusals import Refused
from sessiontree.web.rows import Telling, branch_of, branches_of, line_of, path_rows, tree_rows
from sessiontree.web.schema import told
from sessiontree.web.serving import Json, Reads, Said, Writes

router = APIRouter(prefix="/api/sessions/{id}")

At = Annotated[str, Query(min_length=1, max_length=300)]
PLACE = "HEAD"


@router.get("/tree", **told(wire.TreePage))
def get_tree(call: Reads, id: str, filter: Filter = "default", limit: Limit = wire.PAGE, cursor: Cursor = None) -> Json:
    """The tree as a flat list in the order of its drawing: depth first, the active branch first."""
    return call.told(id, lambda opened: tree_page(opened, filter, limit, cursor))


def tree_page(opened: Opened, filter: str, limit: int, cursor: str | None) -> wire.TreePage:
    at, start = (None, 0) if cursor is None else split(cursor)
    at, outline = opened.outline(filter, at)
    end = min(start + limit, len(outline))
    session = opened.session
    return wire.TreePage(
        session_id=session.id,
        name=session.name,
        branch=session.heads.current,
        leaf=opened.leaf,
        total=len(outline),
        entries=tree_rows(opened, outline, range(start, end)),
        next=f"{at}.{end}" if end < len(outline) else None,
    )


@router.get("/entries", **told(wire.LinePage))
def get_entries(call: Reads, id: str, limit: Limit = wire.PAGE, cursor: Cursor = None) -> Json:
    """All entries in the order of the file, each as its line."""
    start = number(cursor)

    def page(opened: Opened) -> wire.LinePage:
        entries = opened.session.tree.entries
        end = min(start + limit, len(entries))
        lines = [line_of(entry) for entry in entries[start:end]]
        return wire.LinePage(entries=lines, next=str(end) if end < len(entries) else None)

    return call.told(id, page)


@router.get("/entries/{entry:path}", **told(wire.OneEntry))
def get_entry(call: Reads, id: str, entry: str) -> Json:
    """One entry, by any name of its place."""
    with call.reading(id) as opened:
        tree = opened.session.tree
        place = opened.session.place(entry)
        if place is None:
            raise Refused(404, "there is no entry at the place before everything")
        found = tree[place]
        answer = wire.OneEntry(
            entry=line_of(found),
            parent=tree.parent(place),
            children=tree.child_ids(place),
            branch=branch_of(found),
            label=tree.label(place),
            depth=opened.depth(place),
        )
        return Json(answer, at=opened)


@router.get("/path", **told(wire.PathPage))
def get_path(
    call: Reads, id: str, at: At = PLACE, limit: Limit = wire.PAGE, cursor: Cursor = None, html: bool = False
) -> Json:
    """The entries from the root to a place; `cursor=end` gives the last page, and `previous` the one before."""

    def page(opened: Opened) -> tuple[wire.PathPage, list[Telling]]:
        session = opened.session
        start: int | None = 0
        if cursor is None or cursor == END:
            leaf = session.place(at)
            start = 0 if cursor is None else None
        else:
            leaf, start = split(cursor)
            leaf = session.tree[leaf].id if leaf else None
        path = session.tree.path(leaf)
        first = max(0, len(path) - limit) if start is None else min(start, len(path))
        end = min(first + limit, len(path))
        rows = path_rows(opened, path, range(first, end))
        made = wire.PathPage(
            at=leaf,
            total=len(path),
            entries=[telling.row for telling in rows],
            next=f"{leaf or ''}.{end}" if end < len(path) else None,
            previous=f"{leaf or ''}.{max(0, first - limit)}" if first else None,
        )
        return made, rows

    def rendered(opened: Opened, made: tuple[wire.PathPage, list[Telling]]) -> wire.PathPage:
        page, rows = made
        return replace(page, entries=[telling.rendered(opened.rendered) for telling in rows]) if html else page

    return call.told(id, page, rendered)


@router.get("/context", **told(wire.Seen))
def get_context(call: Reads, id: str, at: At = PLACE, why: Annotated[bool, Query(alias="explain")] = False) -> Json:
    """What the model sees from a place, and with `explain`, of every entry of the path, whether it does."""

    def seen_from(opened: Opened) -> wire.Seen:
        session = opened.session
        seen = session.context(at)
        explanation = explain(session.tree, seen.leaf)
        return wire.Seen(
            leaf=seen.leaf,
            model=seen.model,
            thinking_level=seen.thinking_level,
            messages=list(seen.messages),
            tokens=explanation.tokens,
            mode=UNSET if seen.state.mode is None else seen.state.mode,
            rules=list(seen.state.rules) if seen.state.rules else UNSET,
            explanation=explanation_to_wire(explanation) if why else UNSET,
        )

    return call.told(id, seen_from)


@router.get("/branches", **told(wire.Branches))
def get_branches(call: Reads, id: str, limit: Limit = wire.PAGE, cursor: Cursor = None) -> Json:
    """All branches, archived ones too, in the order they were made."""
    return call.told(id, lambda opened: branches_of(opened.session, limit, cursor))


@router.get("/diff", **told(wire.Diffed))
def get_diff(call: Reads, id: str, a: At, b: At) -> Json:
    """How two places differ, from where their paths part."""
    return call.told(id, lambda opened: diff_to_wire(diff(opened.session, a, b)))


@router.post("/compare", **told(wire.Compared, takes=wire.Comparing))
def post_compare(call: Reads, id: str, said: Annotated[wire.Comparing, Depends(Said(wire.Comparing))]) -> Json:
    """What branches cost and did after they parted, and which one is ahead, if the figures tell."""
    with call.reading(id) as opened:
        return Json(comparison_to_wire(compare(opened.session, said.branches, said.metric)), at=opened)


# Appending


@router.post("/entries", **told(wire.Written, status=201, takes=wire.NewEntry))
def append(call: Writes, id: str, said: Annotated[wire.NewEntry, Depends(Said(wire.NewEntry))]) -> Json:
    """Write one entry at the head of a branch, the current one by default."""
    body, extra = _body(said)
    with call.writing(id) as opened:
        session = opened.session
        branch = session.heads.current if said.branch is None else session.branch(said.branch).name
        call.serving.at_rest(opened, branch)
        written = _appended(session, body, extra, branch)
        return Json(wire.Written(id=written, branch=branch, leaf=session.heads.heads[branch]), 201, at=opened)


def _body(said: wire.NewEntry) -> tuple[Body, JsonObject]:
    if said.entry is not None:
        if said.role is not None or said.text is not None:
            raise Refused(422, "either a role and a text are given, or an entry")
        try:
            body, extra = given_entry(said.entry)
        except Lacking as lacking:
            raise Refused(422, f"the entry needs {lacking}") from None
        if isinstance(body, BranchPoint):
            raise Refused(422, "POST …/branches makes branches")
        return body, extra
    if said.role is None or said.text is None:
        raise Refused(422, "either a role and a text are given, or an entry")
    return (user(said.text) if said.role == "user" else assistant(said.text)), {}


def _appended(session: Session, body: Body, extra: JsonObject, branch: str) -> str:
    """Append at the head, wherever others have moved it meanwhile: who names no place expects none."""
    for _ in range(100):
        try:
            return session.append(body, branch=branch, extra=extra).id
        except BranchMoved:
            continue
    return session.append(body, branch=branch, extra=extra).id
