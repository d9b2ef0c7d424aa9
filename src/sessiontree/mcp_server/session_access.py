"""What an MCP client may see of the sessions of a folder: bounded, in pages, and without secrets.

Every result is a JSON object in which all texts are redacted. Sessions of other folders do not exist for a client
unless the user allows all folders.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from sessiontree.branch_comparison import comparison_to_wire
from sessiontree.core.context_explanation import explain
from sessiontree.core.entries import TEXT_LENGTH, CustomMessage, Entry, JsonObject
from sessiontree.core.entry_text import format_whole_body, get_speaker
from sessiontree.core.messages import is_list, is_object
from sessiontree.core.query import Query, parse_query
from sessiontree.core.search_text import fold_parts, get_text_parts
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound, ReadOnly
from sessiontree.export.redact import Redactor
from sessiontree.format.codec import encode_body
from sessiontree.format.json_line import read_object, write_object
from sessiontree.home import list_user_homes
from sessiontree.library import catalog
from sessiontree.library.index.session_search import Hit, build_snippet
from sessiontree.library.index.session_summary import SessionSummary
from sessiontree.library.locations import open_repository
from sessiontree.library.repository import RECENT_ALIAS
from sessiontree.library.session_files import resolve_folder
from sessiontree.session import Session, compare

MAX_LIMIT = 50
"""The maximum number of items on one page."""
MAX_OFFSET = 10_000
ENTRY_CHARS = 2_000
"""Characters of an entry in a path. `read_entry` returns more of it."""
PAGE_CHARS = 20_000
"""Characters of all entries on one page together, and of one page of an entry."""
SECRET_CHARS = 1 << 16
"""The longest secret that is recognized when only the start of a long text is redacted."""
REMOVED_CHARS = 1 << 18
"""How much shorter the start of a long text may become. If it becomes shorter, the whole text is redacted."""
NOTE_TYPE = "note"
MAX_NOTE_CHARS = 20_000
MAX_LABEL_CHARS = 200


class SessionAccess:
    """The sessions of one folder, or of all, as an MCP client sees them."""

    def __init__(self, cwd: str, *, everywhere: bool = False, can_write: bool = False) -> None:
        self._cwd = cwd
        self._everywhere = everywhere
        self._can_write = can_write

    # Reading

    def search(self, query: str, limit: int = 10, offset: int = 0) -> JsonObject:
        """Return the newest entries that match a query, in all branches."""
        limit, offset = _check_page(limit, offset)
        parsed = parse_query(query, now=time.time_ns() // 1_000_000)
        redactor = _create_redactor()
        visible = self._find_visible(query, parsed, redactor, offset + limit + 1)
        # The snippet is cut from the redacted text: half a secret is not recognized as one.
        items = [
            _encode_hit(hit, build_snippet(_read_text(entry, redactor), parsed.terms))
            for hit, entry in visible[offset : offset + limit]
        ]
        return redactor.redact_value(_build_page("matches", items, offset, has_more=len(visible) > offset + limit))

    def _find_visible(self, query: str, parsed: Query, redactor: Redactor, count: int) -> list[tuple[Hit, Entry]]:
        """Return the first matches outside of secrets. The others would let a client guess a secret piece by piece."""
        opened: dict[str, Session] = {}
        visible: list[tuple[Hit, Entry]] = []
        seen: set[tuple[str, str]] = set()
        checked, limit = 0, count
        while True:
            found = catalog.search(query, cwd=self._cwd, all=self._everywhere, others=True, limit=limit)
            for hit in found[checked:]:
                if (hit.session, hit.entry) in seen:  # a session of another program that was imported
                    continue
                seen.add((hit.session, hit.entry))
                if hit.file not in opened:
                    opened[hit.file] = catalog.open(hit.file, read_only=True)
                entry = opened[hit.file].tree[hit.entry]
                if _matches_redacted(entry, parsed, redactor):
                    visible.append((hit, entry))
            if len(visible) >= count or len(found) < limit:
                return visible[:count]
            checked, limit = len(found), limit * 2

    def list_sessions(self, limit: int = 20, offset: int = 0, archived: bool = False) -> JsonObject:
        """Return the sessions, the most recently written first."""
        limit, offset = _check_page(limit, offset)
        listed = self._list(archived=archived)
        items = [_encode_session(summary) for summary in listed[offset : offset + limit]]
        page = _build_page("sessions", items, offset, has_more=len(listed) > offset + limit)
        return _create_redactor().redact_value({**page, "total": len(listed)})

    def list_branches(self, session: str) -> JsonObject:
        """Return the branches of a session and the leaves that no branch is at."""
        opened = self._open(session)
        branches = [
            {
                "name": info.name,
                "head": info.leaf,
                "entries": info.entry_count,
                "current": info.current,
                "archived": info.archived,
                "created": info.created_at,
                "description": info.description,
            }
            for info in opened.branches[:MAX_LIMIT]
        ]
        leaves = [
            {"leaf": found.leaf, "entries": found.entry_count} for found in opened.unnamed_leaves[: MAX_LIMIT // 2]
        ]
        labels = [{"label": text, "entry": id} for id, text in list(opened.tree.labels.items())[:MAX_LIMIT]]
        return _create_redactor().redact_value(
            {
                "session": opened.id,
                "name": opened.name,
                "branches": branches,
                "branchCount": len(opened.branches),
                "unnamedLeaves": leaves,
                "labels": labels,
            }
        )

    def read_path(self, session: str, place: str = "HEAD", limit: int = 20) -> JsonObject:
        """Return the last entries on the path to a place. `earlier` is the place of the page before it.

        State of extensions and adapters is left out and counted, since it tells a reader nothing.
        """
        limit, _ = _check_page(limit, 0)
        opened = self._open(session)
        leaf = opened.resolve_place(place)
        whole_path = opened.tree.path(leaf)
        path = [entry for entry in whole_path if entry.type != "custom"]
        seen = {item.entry.id for item in explain(opened.tree, leaf).entries if item.reaches_model}
        redactor = _create_redactor()
        items: list[JsonObject] = []
        left = PAGE_CHARS
        for entry in reversed(path[-limit:]):
            item = _encode_entry(opened, entry, redactor, min(ENTRY_CHARS, left))
            if items and left <= 0:
                break
            left -= len(item["text"])
            items.append({**item, "inContext": entry.id in seen})
        items.reverse()
        before = len(path) - len(items)
        page: JsonObject = {
            "session": opened.id,
            "name": opened.name,
            "place": leaf or "root",
            "entries": items,
            "leftOut": len(whole_path) - len(path),
            "earlierEntries": before,
            "earlier": path[before - 1].id if before else None,
        }
        return redactor.redact_value(page)

    def read_entry(self, session: str, entry: str, offset: int = 0) -> JsonObject:
        """Return one entry. A long text comes in pages; `nextOffset` continues it."""
        opened = self._open(session)
        id = opened.resolve_place(entry)
        if id is None:
            raise InvalidOperation("root is not an entry")
        if offset < 0:
            raise InvalidOperation("offset must not be negative")
        redactor = _create_redactor()
        found = opened.tree[id]
        end = offset + PAGE_CHARS
        text, length = _read_start(found, redactor, end)
        item = _encode_entry(opened, found, redactor, 0)
        return redactor.redact_value(
            {
                "session": opened.id,
                **item,
                "parent": opened.tree.parent(id),
                "text": text[offset:end],
                "length": length,
                "nextOffset": end if end < length else None,
            }
        )

    def compare(self, session: str, places: list[str], metric: str = "cost") -> JsonObject:
        """Compare what branches cost and did since they diverged."""
        if not 2 <= len(places) <= 10:
            raise InvalidOperation("compare takes 2 to 10 places")
        opened = self._open(session)
        return _create_redactor().redact_value(
            {"session": opened.id, **comparison_to_wire(compare(opened, places, metric))}
        )

    # Writing

    def label(self, session: str, place: str, label: str) -> JsonObject:
        """Set the label of an entry; an empty one removes it."""
        with self._open_to_write(session) as opened:
            _check_length("label", label, MAX_LABEL_CHARS)
            target = opened.resolve_place(place)
            opened.label(place, label)
            return _create_redactor().redact_value(
                {"session": opened.id, "entry": target, "label": opened.tree.labels.get(target or "")}
            )

    def fork(self, session: str, place: str = "HEAD", name: str | None = None) -> JsonObject:
        """Create a session with the path to a place. The source is not changed."""
        self._check_writable()
        with catalog.fork(self._open(session), at=place, name=name) as forked:
            return _create_redactor().redact_value(
                {"session": forked.id, "name": forked.name, "forkedFrom": forked.forked_from}
            )

    def append_note(self, session: str, text: str, branch: str | None = None) -> JsonObject:
        """Append a note to a branch, by default the current one. The model sees it when the session goes on."""
        if not text.strip():
            raise InvalidOperation("the note is empty")
        _check_length("note", text, MAX_NOTE_CHARS)
        with self._open_to_write(session) as opened:
            target = opened.head if branch is None else opened.branch(branch)
            entry = target.append(CustomMessage(custom_type=NOTE_TYPE, content=text, details={"from": "mcp"}))
            return _create_redactor().redact_value({"session": opened.id, "branch": target.name, "entry": entry.id})

    # Finding

    def _list(self, *, archived: bool = False) -> list[SessionSummary]:
        return catalog.sessions(self._cwd, all=self._everywhere, archived=archived, others=True)

    def _find(self, name: str) -> SessionSummary:
        """Return a session that the client may see, by id, part of an id, or name. Raises `NotFound`."""
        listed = [*self._list(), *self._list(archived=True)]
        if name == RECENT_ALIAS:
            recent = open_repository().find_recent(resolve_folder(self._cwd))
            found = [summary for summary in listed if summary.file == recent]
        else:
            found = [summary for summary in listed if name in (summary.id, summary.name)]
        if not found and len(name) >= 6:
            found = [summary for summary in listed if summary.id.startswith(name) or summary.id.endswith(name)]
        # An import has the id of its original, and replaces it.
        found = [summary for summary in found if summary.source is None] or found
        if not found:
            where = "in any folder" if self._everywhere else "in this folder"
            raise NotFound("session", name, f"list_sessions shows the sessions {where}")
        if len(found) > 1:
            raise Ambiguous("session", name, [summary.id for summary in found])
        return found[0]

    def _open(self, name: str) -> Session:
        return catalog.open(self._find(name).file, read_only=True)

    def _open_to_write(self, name: str) -> Session:
        self._check_writable()
        summary = self._find(name)
        if summary.source is not None:
            raise ReadOnly(summary.id, f"it is a session of {summary.source}; fork it first")
        return catalog.open(summary.file)

    def _check_writable(self) -> None:
        if not self._can_write:
            raise ReadOnly("the MCP server", "start it with --allow-write to change sessions")


def _create_redactor() -> Redactor:
    return Redactor(homes=list_user_homes())


def redact_error(error: Exception) -> str:
    """Return the message of an error without secrets: it may name sessions, labels and paths."""
    return _create_redactor().redact_text(str(error))


def _check_page(limit: int, offset: int) -> tuple[int, int]:
    if not 0 <= offset <= MAX_OFFSET:
        raise InvalidOperation(f"offset must be between 0 and {MAX_OFFSET}")
    return max(1, min(limit, MAX_LIMIT)), offset


def _check_length(kind: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise InvalidOperation(f"the {kind} has {len(text)} characters; the limit is {limit}")


def _build_page(kind: str, items: list[JsonObject], offset: int, *, has_more: bool) -> JsonObject:
    return {kind: items, "nextOffset": offset + len(items) if has_more else None}


def _read_text(entry: Entry, redactor: Redactor) -> str:
    """Return the full text of an entry. Secrets are redacted in its fields, whose names show more than the text."""
    wire: Any = redactor.redact_value(encode_body(entry.body))
    return format_whole_body(wire)


def _read_start(entry: Entry, redactor: Redactor, size: int) -> tuple[str, int]:
    """Return a text whose first `size` characters are those of `_read_text`, and the length of all.

    Of a text of many megabytes, only the start is redacted. Its length is then that of the text with its secrets.
    """
    wire: Any = encode_body(entry.body)
    cut = _cut_texts(wire, size + SECRET_CHARS + REMOVED_CHARS)
    if cut is wire:
        text = format_whole_body(redactor.redact_value(wire))
        return text, len(text)
    redacted: Any = redactor.redact_value(cut)
    # The last characters of a text that was cut may be half of a secret.
    if any(len(text) < size + SECRET_CHARS for text in _list_cut_texts(wire, cut, redacted)):
        text = _read_text(entry, redactor)
        return text, len(text)
    return format_whole_body(redacted)[:size], len(format_whole_body(wire))


def _cut_texts(value: Any, size: int) -> Any:
    """Return a JSON value in which no text is longer than `size`: the same value if nothing was cut."""
    if isinstance(value, str):
        return value if len(value) <= size else value[:size]
    if is_object(value):
        if value.get("type") == "image":  # its size is shown
            return value
        items = {key: _cut_texts(inner, size) for key, inner in value.items()}
        return items if any(items[key] is not value[key] for key in value) else value
    if is_list(value):
        texts = [_cut_texts(inner, size) for inner in value]
        return texts if any(new is not old for new, old in zip(texts, value, strict=True)) else value
    return value


def _list_cut_texts(whole: Any, cut: Any, redacted: Any) -> Iterator[str]:
    """Yield what the texts that were cut became when they were redacted."""
    if cut is whole:
        return
    if isinstance(whole, str):
        yield redacted if isinstance(redacted, str) else ""
    elif is_object(whole):
        for key, new in zip(whole, redacted.values(), strict=True):
            yield from _list_cut_texts(whole[key], cut[key], new)
    else:
        for old, shorter, new in zip(whole, cut, redacted, strict=True):
            yield from _list_cut_texts(old, shorter, new)


def _matches_redacted(entry: Entry, query: Query, redactor: Redactor) -> bool:
    line = write_object(redactor.redact_value(read_object(entry.raw)))
    redacted = structs.replace(entry, cached_body=entry.source.decode_body(line))
    return query.matches(fold_parts(get_text_parts(redacted)))


def _encode_entry(session: Session, entry: Entry, redactor: Redactor, limit: int) -> JsonObject:
    text, length = _read_start(entry, redactor, limit) if limit > 0 else ("", 0)
    item: JsonObject = {"entry": entry.id, "role": get_speaker(entry), "time": entry.timestamp, "text": text[:limit]}
    if length > limit > 0:
        item["cutOffAt"] = limit
        item["length"] = length
    label = session.tree.label(entry.id)
    if label:
        item["label"] = label
    return item


def _encode_hit(hit: Hit, snippet: str) -> JsonObject:
    return {
        "session": hit.session,
        "name": hit.name,
        "entry": hit.entry,
        "branch": hit.branch,
        "inContext": hit.in_context,
        "role": hit.role,
        "time": hit.timestamp,
        "snippet": snippet,
    }


def _encode_session(summary: SessionSummary) -> JsonObject:
    first = summary.first_message
    if first is not None and len(first) >= TEXT_LENGTH:
        # The index cut it off, and the start of a secret is not recognized as one.
        first = first[:TEXT_LENGTH].rpartition(" ")[0] + "…"
    return {
        "session": summary.id,
        "name": summary.name,
        "firstMessage": first,
        "folder": summary.cwd,
        "messages": summary.message_count,
        "branches": summary.branch_count,
        "branch": summary.branch,
        "cost": summary.cost,
        "created": summary.created,
        "modified": summary.modified,
        "program": summary.source,
        "damage": summary.damage,
    }
