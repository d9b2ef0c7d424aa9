"""Rows of the tree, paths and branches, built from entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from sessiontree.core.entries import (
    Body,
    BranchSummary,
    Compaction,
    CustomMessage,
    Entry,
    JsonObject,
    Message,
)
from sessiontree.core.entry_text import CALL_SEARCH_LIMIT
from sessiontree.core.merge_plan import is_merge
from sessiontree.core.messages import (
    coerce_number,
    coerce_string,
    extract_text,
    get_answered_call,
    get_model,
    get_role,
    get_tool_calls,
    is_object,
    iter_blocks,
    list_usages,
    sum_usage,
)
from sessiontree.core.outline import Outline
from sessiontree.format.codec import NotJson, read_object
from sessiontree.server.pagination import get_page
from sessiontree.server.schemas import BranchListResponse, BranchResponse, PathRow, ToolUse, TreeRow
from sessiontree.session import BranchInfo, Session

if TYPE_CHECKING:
    from sessiontree.server.rendering import HtmlCache
    from sessiontree.server.session_cache import OpenSession

MAX_RESULT_LENGTH = 10_000
"""Characters of a tool result in the row of its call. The row of the result contains all of it."""


def get_branch(entry: Entry) -> str | None:
    return entry.branch if isinstance(entry.branch, str) else None


def read_line(entry: Entry) -> JsonObject:
    """Return the JSON object of an entry, or its raw text if it is unreadable."""
    try:
        return read_object(entry.raw)
    except NotJson as error:
        raw = entry.raw.decode("utf-8", "replace")
        return {"type": entry.type, "id": entry.id, "unreadable": str(error), "raw": raw}


def build_tree_rows(opened: OpenSession, outline: Outline, rows: range) -> list[TreeRow]:
    """Build rows of the tree in drawing order."""
    shape, tree = outline.shape, opened.session.tree
    built: list[TreeRow] = []
    for row in rows:
        position = outline.rows[row]
        above = shape.parent_positions[position]
        shown = outline.nearest_rows[above] if above >= 0 else -1
        entry = tree[outline.get_id(row)]
        built.append(
            _build_tree_row(opened, entry, None if shown < 0 else outline.get_id(shown), entry.id in shape.path)
        )
    return built


def build_tree_row(opened: OpenSession, entry: Entry) -> TreeRow:
    """Build the row of a new entry at the end of a branch."""
    return _build_tree_row(opened, entry, opened.session.tree.parent(entry.id), entry.id == opened.leaf)


def _build_tree_row(opened: OpenSession, entry: Entry, parent: str | None, active: bool) -> TreeRow:
    preview = opened.get_preview(entry)
    return TreeRow(
        id=entry.id,
        parent=parent,
        type=entry.type,
        role=preview.role,
        label=opened.session.tree.label(entry.id),
        branch=get_branch(entry),
        depth=opened.get_depth(entry.id),
        timestamp=preview.timestamp,
        text=preview.text,
        active=active,
    )


class UnrenderedPathRow(NamedTuple):
    """A path row and its Markdown text, which is rendered later, while the session is not locked."""

    row: PathRow
    prose: str | None

    def render(self, html_cache: HtmlCache) -> PathRow:
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
    text_content = _get_text(body)
    costs = [found for usage in list_usages(body) if (found := sum_usage(usage)) is not None]
    uses = [_build_tool_use(call.name, call.arguments, answers.get(call.id)) for call in get_tool_calls(message)]
    model = get_model(message)
    usage = message.get("usage")
    thinking = "\n".join(coerce_string(block.get("thinking")) for block in iter_blocks(message.get("content"))).strip()
    images = sum(block.get("type") == "image" for block in iter_blocks(_get_content(body)))
    preview = opened.get_preview(entry)
    row = PathRow(
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
        failed=_has_failed(message) or UNSET,
        images=images or UNSET,
        merge=is_merge(body) or UNSET,
        cost=sum(item.cost for item in costs) if costs else UNSET,
        tokens=sum(item.tokens for item in costs) if costs else UNSET,
        model=":".join(model) if model is not None else UNSET,
        usage=usage if is_object(usage) else UNSET,
    )
    return UnrenderedPathRow(row, text_content if get_answered_call(message) is None else None)


def _get_content(body: Body) -> Any:
    match body:
        case Message(message):
            return message.get("content")
        case CustomMessage(content=content):
            return content
        case _:
            return None


def _has_failed(message: JsonObject) -> bool:
    """Return whether a tool or a command reported an error."""
    has_error = message.get("isError") is True or message.get("cancelled") is True
    return has_error or coerce_number(message.get("exitCode")) != 0


def _get_text(body: Body) -> str | None:
    """Return the full text of an entry, or `None` if it has no text for readers."""
    match body:
        case Message(message):
            if get_role(message) in ("bashExecution", "pythonExecution"):
                said = coerce_string(message.get("command")) or coerce_string(message.get("code"))
                return f"$ {said}\n{coerce_string(message.get('output'))}"
            return extract_text(message.get("content")) or coerce_string(message.get("summary"))
        case CustomMessage(content=content):
            return extract_text(content)
        case BranchSummary(summary=summary) | Compaction(summary=summary):
            return summary
        case _:
            return None


def _build_tool_use(name: str, arguments: Any, answer: JsonObject | None) -> ToolUse:
    if answer is None:
        return ToolUse(name=name, arguments=arguments, result=None, ok=None)
    result = extract_text(answer.get("content"))[:MAX_RESULT_LENGTH]
    return ToolUse(name=name, arguments=arguments, result=result, ok=answer.get("isError") is not True)


def build_branch_list(session: Session, limit: int, cursor: str | None) -> BranchListResponse:
    """Build a page of the branches. Raises `ApiError`."""
    page, following = get_page(session.branches, limit, cursor)
    return BranchListResponse(
        branches=[_build_branch(info) for info in page], current=session.heads.current, next=following
    )


def _build_branch(info: BranchInfo) -> BranchResponse:
    return BranchResponse(
        name=info.name,
        head=info.head,
        entry_count=info.entry_count,
        created_at=info.created_at,
        description=info.description,
        archived=info.archived,
    )
