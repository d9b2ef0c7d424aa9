"""Problems: faults and notes about the entries of a session.

`format.session_reader` reports lines that cannot be read at all. Nothing here repairs anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from sessiontree.core.ancestry import AncestryIndex
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
    LinePreview,
    Message,
    Opaque,
    Problem,
    iter_entries,
    read_raws,
)
from sessiontree.core.heads import Heads, is_full_record
from sessiontree.core.message_input import describe_unsent, is_sent_whole
from sessiontree.core.message_views import MessagePreview
from sessiontree.core.messages import preview_message
from sessiontree.core.sanitize import is_utf8 as is_utf8
from sessiontree.core.tree import Tree
from sessiontree.errors import format_names


class UnansweredCall(Struct, frozen=True):
    entry: Entry
    call: str
    tool: str
    position: int
    """The position of the call in its message."""


class ProblemScan:
    """Collects facts from the bodies of entries in one pass, without keeping the bodies.

    Entries can be added in any order, so a reader that visits them anyway need not read them twice.
    """

    def __init__(self, tree: Tree) -> None:
        self.faults: list[Problem] = []
        self.notes: list[Problem] = []
        self.anchors: list[tuple[Entry, EntryId]] = []
        self.unanswered: list[UnansweredCall] = []
        """Tool calls without a result directly below them. Other entries below may have the results."""
        self.results: list[tuple[str, EntryId]] = []
        """The call that each result answers, and the result."""
        self._tree = tree
        self._count = tree.count
        self._has_duplicates = len(tree) != tree.count
        self._is_sound = tree.is_sound
        self._waiting: dict[str, UnansweredCall] = {}
        """Calls on the path to the last entry that have no result yet."""
        self._last: EntryId | None = None
        self._added = 0
        self._misses_target = False
        """Whether an entry names a target that is not in the tree, and that may be appended later."""

    @property
    def is_complete(self) -> bool:
        """Whether all entries of the tree were added."""
        return self._added == self._tree.count

    @property
    def added(self) -> int:
        """The number of entries that were added."""
        return self._added

    @property
    def is_current(self) -> bool:
        """Whether the findings still hold if the tree grows. Then only the new entries are added."""
        tree = self._tree
        if tree.count == self._count:
            return True
        same = (len(tree) != tree.count, tree.is_sound) == (self._has_duplicates, self._is_sound)
        return same and not self._misses_target

    def add(self, entry: Entry, raw: bytes, line: LinePreview | None = None) -> None:
        """Add an entry. `line` is its line if it is a message that was decoded before."""
        if line is None and entry.type == "message":
            line = entry.source.decode_line(raw)
        self._added += 1
        if entry.parent != self._last or not self._is_sound:
            self.finish()
        self._last = entry.id
        if line is None or not line.is_sound:
            self._check_bytes(entry, raw)
        if self._has_duplicates and self._tree.peek(entry.id).line != entry.line:
            return  # a later line with the same id counts
        if line is not None and is_sent_whole(line.message):
            self._add_calls(entry, line.message)
            return
        body = entry.source.decode_body(raw) if entry.cached_body is None else entry.cached_body
        if isinstance(body, Message):
            if body is not NO_MESSAGE and (reason := describe_unsent(body.message)) is not None:
                self.notes.append(_build_note("unsent", entry, reason))
            self._add_calls(entry, preview_message(body.message))
        else:
            self._add_other(entry, body)

    def _check_bytes(self, entry: Entry, raw: bytes) -> None:
        body = entry.source.decode_body(raw) if entry.cached_body is None else entry.cached_body
        reason = describe_defect(entry, body)
        if reason is not None:
            self.faults.append(_build_fault("malformed_line", entry, reason))
        elif not is_utf8(raw):
            self.faults.append(_build_fault("not_utf8", entry, "not UTF-8: invalid bytes are replaced"))
        if keys := entry.source.find_hidden_keys(raw):
            reason = f"{format_names(keys)} after the message is ignored"
            self.faults.append(_build_fault("hidden_key", entry, reason))

    def finish(self) -> None:
        """End a path: calls that wait for a result have none directly below them."""
        self.unanswered.extend(self._waiting.values())
        self._waiting.clear()

    def _add_calls(self, entry: Entry, message: MessagePreview) -> None:
        if message.role == "toolResult":
            self.results.append((message.tool_call_id, entry.id))
            self._waiting.pop(message.tool_call_id, None)
        elif message.role == "assistant" and not (message.is_failed_turn or isinstance(message.content, str)):
            for position, block in enumerate(message.content):
                if block.type == "toolCall":
                    if block.id in self._waiting:  # providers reuse call ids
                        self.unanswered.append(self._waiting.pop(block.id))
                    self._waiting[block.id] = UnansweredCall(entry, block.id, block.name, position)

    def _add_other(self, entry: Entry, body: Body) -> None:
        match body:
            case Compaction(first_kept=str(anchor)):
                self.anchors.append((entry, anchor))
            case Label(target=target) if target not in self._tree:
                self._add_missing_target(entry, f"label on {target!r}, which is not in the file")
            case ContextEdit(target=target) if target not in self._tree:
                self._add_missing_target(entry, f"context edit of {target!r}, which is not in the file")
            case Opaque(type="session"):
                self.notes.append(
                    _build_note("second_header", entry, "second session header: two files were concatenated")
                )
            case _:
                pass

    def _add_missing_target(self, entry: Entry, message: str) -> None:
        self._misses_target = True
        self.notes.append(_build_note("unknown_target", entry, message))


def find_problems(tree: Tree, heads: Heads, scan: ProblemScan | None = None) -> list[Problem]:
    """Return all problems of the entries, in file order within each kind.

    With `scan`, only problems of the entries that were added to it, and problems that need no bodies. If entries are
    missing, unanswered calls are left out, because their results may be missing.
    """
    if scan is None:
        scan = ProblemScan(tree)
        for item in tree.items:
            entries = list(iter_entries((item,)))
            for entry, raw in zip(entries, read_raws(entries), strict=True):
                scan.add(entry, raw)
    scan.finish()
    if not scan.is_complete:
        scan.unanswered.clear()
    answers = _group_results(scan)
    ancestry = AncestryIndex(
        tree,
        {
            *(id for entry, anchor in scan.anchors for id in (entry.id, anchor)),
            *(found.entry.id for found in scan.unanswered),
            *(id for ids in answers.values() for id in ids),
        },
    )
    return [
        *sorted(scan.faults, key=_get_line),
        *_find_duplicates(tree),
        *_find_misplaced(tree),
        *_find_missing_anchors(scan, ancestry),
        *sorted(scan.notes, key=_get_line),
        *_find_unanswered_calls(scan, answers, ancestry),
        *_find_missing_heads(tree, heads),
    ]


def _get_line(problem: Problem) -> int:
    return problem.line or 0


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
    for entry in () if tree.is_sound else tree:
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


def _find_missing_anchors(scan: ProblemScan, ancestry: AncestryIndex) -> Iterator[Problem]:
    for entry, anchor in sorted(scan.anchors, key=lambda found: found[0].line):
        if not ancestry.is_on_path(anchor, entry.id):
            yield _build_fault(
                "missing_anchor",
                entry,
                f"compaction {entry.id!r} keeps entries from {anchor!r}, which is not on its path; no entries are kept",
            )


def _group_results(scan: ProblemScan) -> dict[str, list[EntryId]]:
    """Return the results of calls that have none directly below them, by call id."""
    answers: dict[str, list[EntryId]] = {found.call: [] for found in scan.unanswered}
    for call, id in scan.results if answers else ():
        if call in answers:
            answers[call].append(id)
    return answers


def _find_unanswered_calls(
    scan: ProblemScan, answers: dict[str, list[EntryId]], ancestry: AncestryIndex
) -> Iterator[Problem]:
    results = {call: ancestry.sort_positions(ids) for call, ids in answers.items()}
    for found in sorted(scan.unanswered, key=lambda found: (found.entry.line, found.position)):
        if not ancestry.has_any_below(found.entry.id, results[found.call]):
            yield _build_note("unanswered_call", found.entry, f"tool call {found.call!r} ({found.tool}) has no result")


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
