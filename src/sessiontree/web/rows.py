"""Rows: entries of a session as the REST interface tells them. Values in, shapes out; no request here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from sessiontree.comparison import usages
from sessiontree.core.entries import (
    Body,
    BranchSummary,
    Compaction,
    CustomMessage,
    Entry,
    JsonObject,
    Message,
)
from sessiontree.core.merge import is_merge
from sessiontree.core.messages import (
    answered_call,
    blocks,
    is_object,
    model_of,
    number,
    role,
    spent,
    string,
    text,
    tool_calls,
)
from sessiontree.core.outline import REACH, Outline
from sessiontree.format.codec import NotJson, read_object
from sessiontree.session import BranchInfo, Session
from sessiontree.web.paging import page_of
from sessiontree.web.wire import Branches, BranchRow, PathRow, ToolUse, TreeRow

if TYPE_CHECKING:
    from sessiontree.web.opened import Opened
    from sessiontree.web.rendering import Rendered

LONGEST_RESULT = 10_000
"""Characters of a tool's result beside its call; the row of the result has all of them."""


def branch_of(entry: Entry) -> str | None:
    return entry.branch if isinstance(entry.branch, str) else None


def line_of(entry: Entry) -> JsonObject:
    """The line of an entry; what of it cannot be read is told as text."""
    try:
        return read_object(entry.raw)
    except NotJson as error:
        raw = entry.raw.decode("utf-8", "replace")
        return {"type": entry.type, "id": entry.id, "unreadable": str(error), "raw": raw}


def tree_rows(opened: Opened, outline: Outline, rows: range) -> list[TreeRow]:
    """Rows of the tree in the order of the drawing."""
    shape, tree = outline.shape, opened.session.tree
    made: list[TreeRow] = []
    for row in rows:
        position = outline.rows[row]
        above = shape.above[position]
        shown = outline.shown_above[above] if above >= 0 else -1
        entry = tree[outline.id(row)]
        made.append(_tree_row(opened, entry, None if shown < 0 else outline.id(shown), entry.id in shape.path))
    return made


def tree_row(opened: Opened, entry: Entry) -> TreeRow:
    """One entry as a row of the whole tree, which is new and at the end of some branch."""
    return _tree_row(opened, entry, opened.session.tree.parent(entry.id), entry.id == opened.leaf)


def _tree_row(opened: Opened, entry: Entry, parent: str | None, active: bool) -> TreeRow:
    gist = opened.gist(entry)
    return TreeRow(
        id=entry.id,
        parent=parent,
        type=entry.type,
        role=gist.role,
        label=opened.session.tree.label(entry.id),
        branch=branch_of(entry),
        depth=opened.depth(entry.id),
        timestamp=gist.timestamp,
        text=gist.text,
        active=active,
    )


class Telling(NamedTuple):
    """An entry with all that it says, and what of that is prose, which is made HTML when no session is held."""

    row: PathRow
    prose: str | None

    def rendered(self, rendered: Rendered) -> PathRow:
        return self.row if self.prose is None else replace(self.row, html=rendered.html(self.prose))


def path_rows(opened: Opened, path: Sequence[Entry], rows: range) -> list[Telling]:
    """Entries of a path, with what tools answered to their calls."""
    following = [(entry, entry.decoded()) for entry in path[rows.start : rows.stop]]
    answers = {
        call: body.message
        for body in (*(body for _, body in following), *_results(path[rows.stop : rows.stop + REACH]))
        if isinstance(body, Message) and (call := answered_call(body.message)) is not None
    }
    return [path_row(opened, entry, body, answers) for entry, body in following]


def _results(entries: Iterable[Entry]) -> Iterator[Body]:
    """What tools answered right behind a page: until the user speaks again."""
    for entry in entries:
        body = entry.decoded()
        if isinstance(body, Message) and role(body.message) == "user":
            return
        yield body


def path_row(opened: Opened, entry: Entry, body: Body, answers: dict[str, JsonObject]) -> Telling:
    """An entry with all that it says, given what it holds."""
    message = body.message if isinstance(body, Message) else {}
    words = _words(body)
    spending = [found for usage in usages(body) if (found := spent(usage)) is not None]
    uses = [_use(call.name, call.arguments, answers.get(call.id)) for call in tool_calls(message)]
    model = model_of(message)
    usage = message.get("usage")
    thinking = "\n".join(string(block.get("thinking")) for block in blocks(message.get("content"))).strip()
    images = sum(block.get("type") == "image" for block in blocks(_content(body)))
    gist = opened.gist(entry)
    row = PathRow(
        id=entry.id,
        parent=opened.session.tree.parent(entry.id),
        type=entry.type,
        role=gist.role,
        label=opened.session.tree.label(entry.id),
        branch=branch_of(entry),
        timestamp=gist.timestamp,
        text=gist.text if words is None else words,
        thinking=thinking or UNSET,
        tools=uses or UNSET,
        error=string(message.get("errorMessage")) or UNSET,
        failed=_has_failed(message) or UNSET,
        images=images or UNSET,
        merge=is_merge(body) or UNSET,
        cost=sum(item.cost for item in spending) if spending else UNSET,
        tokens=sum(item.tokens for item in spending) if spending else UNSET,
        model=":".join(model) if model is not None else UNSET,
        usage=usage if is_object(usage) else UNSET,
    )
    return Telling(row, words if answered_call(message) is None else None)


def _content(body: Body) -> Any:
    match body:
        case Message(message):
            return message.get("content")
        case CustomMessage(content=content):
            return content
        case _:
            return None


def _has_failed(message: JsonObject) -> bool:
    """Whether a tool or a command told that it went wrong."""
    told = message.get("isError") is True or message.get("cancelled") is True
    return told or number(message.get("exitCode")) != 0


def _words(body: Body) -> str | None:
    """What an entry says in full; `None` for one that says nothing to a reader."""
    match body:
        case Message(message):
            if role(message) in ("bashExecution", "pythonExecution"):
                said = string(message.get("command")) or string(message.get("code"))
                return f"$ {said}\n{string(message.get('output'))}"
            return text(message.get("content")) or string(message.get("summary"))
        case CustomMessage(content=content):
            return text(content)
        case BranchSummary(summary=summary) | Compaction(summary=summary):
            return summary
        case _:
            return None


def _use(name: str, arguments: Any, answer: JsonObject | None) -> ToolUse:
    if answer is None:
        return ToolUse(name=name, arguments=arguments, result=None, ok=None)
    result = text(answer.get("content"))[:LONGEST_RESULT]
    return ToolUse(name=name, arguments=arguments, result=result, ok=answer.get("isError") is not True)


def branches_of(session: Session, limit: int, cursor: str | None) -> Branches:
    """A page of the branches. Raises `Refused`."""
    page, following = page_of(session.branches, limit, cursor)
    return Branches(branches=[_branch_row(info) for info in page], current=session.heads.current, next=following)


def _branch_row(info: BranchInfo) -> BranchRow:
    return BranchRow(
        name=info.name,
        head=info.head,
        entry_count=info.entry_count,
        created_at=info.created_at,
        description=info.description,
        archived=info.archived,
    )
