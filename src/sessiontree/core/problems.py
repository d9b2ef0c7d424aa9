"""Problems: faults and notes about the entries of a session.

`format.session_reader` reports lines that cannot be read at all. Nothing here repairs anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from sessiontree.core.entries import (
    NO_MESSAGE,
    UNREADABLE,
    Body,
    Compaction,
    ContextEdit,
    Entry,
    EntryId,
    JsonObject,
    Label,
    Message,
    Opaque,
    Problem,
    read_raws,
)
from sessiontree.core.heads import Heads, is_full_record
from sessiontree.core.message_input import describe_unsent
from sessiontree.core.message_views import ToolCall
from sessiontree.core.messages import get_answered_call, get_tool_calls, is_failed_turn
from sessiontree.core.tree import AncestryIndex, Tree
from sessiontree.errors import format_names


class _BodyScan:
    """Collects facts from all bodies in one pass, without keeping the bodies."""

    def __init__(self, tree: Tree) -> None:
        self.unreadable: list[Problem] = []
        self.notes: list[Problem] = []
        self.anchors: list[tuple[Entry, EntryId]] = []
        self.calls: list[tuple[Entry, list[ToolCall]]] = []
        self.results: dict[str, list[EntryId]] = {}
        for entry, raw in zip(tree.entries, read_raws(tree.entries), strict=True):
            body = entry.source.decode_body(raw) if entry.cached_body is None else entry.cached_body
            reason = describe_defect(entry, body)
            if reason is not None:
                self.unreadable.append(_build_fault("malformed_line", entry, reason))
            elif not is_utf8(raw):
                self.unreadable.append(_build_fault("not_utf8", entry, "not UTF-8: invalid bytes are replaced"))
            if keys := entry.source.find_hidden_keys(raw):
                reason = f"{format_names(keys)} after the message is ignored"
                self.unreadable.append(_build_fault("hidden_key", entry, reason))
            if tree[entry.id] is entry:
                self._gather(tree, entry, body)

    def _gather(self, tree: Tree, entry: Entry, body: Body) -> None:
        match body:
            case Message(message):
                if body is not NO_MESSAGE and (reason := describe_unsent(message)) is not None:
                    self.notes.append(_build_note("unsent", entry, reason))
                call = get_answered_call(message)
                if call is not None:
                    self.results.setdefault(call, []).append(entry.id)
                elif not is_failed_turn(message) and (calls := list(get_tool_calls(message))):
                    self.calls.append((entry, calls))
            case Compaction(first_kept=str(anchor)):
                self.anchors.append((entry, anchor))
            case Label(target=target) if target not in tree:
                self.notes.append(
                    _build_note("unknown_target", entry, f"label on {target!r}, which is not in the file")
                )
            case ContextEdit(target=target) if target not in tree:
                self.notes.append(
                    _build_note("unknown_target", entry, f"context edit of {target!r}, which is not in the file")
                )
            case Opaque(type="session"):
                self.notes.append(
                    _build_note("second_header", entry, "second session header: two files were concatenated")
                )
            case _:
                pass


def find_problems(tree: Tree, heads: Heads) -> list[Problem]:
    """Return all problems of the entries, in file order within each kind."""
    scan = _BodyScan(tree)
    ancestry = AncestryIndex(tree if scan.anchors or scan.calls else Tree())
    return [
        *scan.unreadable,
        *_find_duplicates(tree),
        *_find_misplaced(tree),
        *_find_missing_anchors(scan, ancestry),
        *scan.notes,
        *_find_unanswered_calls(scan, ancestry),
        *_find_missing_heads(tree, heads),
    ]


def _build_fault(kind: str, entry: Entry, message: str) -> Problem:
    return Problem(kind=kind, severity="fault", message=message, entry=entry.id, line=entry.line)


def _build_note(kind: str, entry: Entry, message: str) -> Problem:
    return Problem(kind=kind, severity="note", message=message, entry=entry.id, line=entry.line)


def describe_defect(entry: Entry, body: Body) -> str | None:
    """Return why an entry is not valid for its type, or `None` if it is valid."""
    if body is UNREADABLE:
        return "not valid JSON, or nested too deeply; only its position in the tree could be read"
    if body is NO_MESSAGE:
        return "the message is missing"
    if entry.is_head_record and not is_full_record(entry):
        return "the head record does not list every head and the current branch"
    return None


def is_utf8(raw: bytes) -> bool:
    """Return whether the bytes are valid UTF-8, so every reader gets the same text."""
    try:
        return raw.isascii() or bool(raw.decode())
    except UnicodeDecodeError:
        return False


def _find_duplicates(tree: Tree) -> Iterator[Problem]:
    if len(tree) == len(tree.entries):
        return
    for entry in tree.entries:
        winner = tree[entry.id]
        if winner is not entry:
            yield _build_fault(
                "duplicate_id", entry, f"line {winner.line} has the same id {entry.id!r} and is used instead"
            )


def _find_misplaced(tree: Tree) -> Iterator[Problem]:
    for entry in tree:
        if entry.parent is None or tree.parent(entry.id) is not None:
            continue
        if entry.parent == entry.id:
            yield _build_fault("self_parent", entry, f"entry {entry.id!r} names itself as its parent")
        elif entry.parent not in tree:
            yield _build_fault(
                "orphan", entry, f"entry {entry.id!r} names a parent {entry.parent!r} that is not in the file"
            )
        else:
            yield _build_fault("cycle", entry, f"entry {entry.id!r} is its own ancestor, through {entry.parent!r}")


def _find_missing_anchors(scan: _BodyScan, ancestry: AncestryIndex) -> Iterator[Problem]:
    for entry, anchor in scan.anchors:
        if not ancestry.is_on_path(anchor, entry.id):
            yield _build_fault(
                "missing_anchor",
                entry,
                f"compaction {entry.id!r} keeps entries from {anchor!r}, which is not on its path; no entries are kept",
            )


def _find_unanswered_calls(scan: _BodyScan, ancestry: AncestryIndex) -> Iterator[Problem]:
    results: dict[str, list[int]] = {}
    for entry, calls in scan.calls:
        for call in calls:
            if call.id not in results:  # providers reuse call ids
                results[call.id] = ancestry.sort_positions(scan.results.get(call.id, ()))
            if not ancestry.has_any_below(entry.id, results[call.id]):
                yield _build_note("unanswered_call", entry, f"tool call {call.id!r} ({call.name}) has no result")


def _find_missing_heads(tree: Tree, heads: Heads) -> Iterator[Problem]:
    for name, head in heads.heads.items():
        if head is not None and head not in tree:
            yield Problem(
                kind="missing_head",
                severity="fault",
                message=f"head {head!r} of branch {name!r} is not in the file",
                entry=head,
            )


def encode_problem(problem: Problem) -> JsonObject:
    """Return a problem in the form that commands and the REST API use."""
    return {
        "kind": problem.kind,
        "severity": problem.severity,
        "message": problem.message,
        "entry": problem.entry,
        "line": problem.line,
        "offset": problem.offset,
    }
