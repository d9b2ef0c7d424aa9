"""Problems: what is wrong, or worth knowing, about the entries of a session.

Damage of lines that could not be read at all is reported by `format.jsonl`. Nothing here
repairs anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from sessiontree.core.entries import Compaction, Entry, EntryId, Label, Message, Problem
from sessiontree.core.heads import Heads
from sessiontree.core.messages import answered_call, stopped_abnormally, tool_calls
from sessiontree.core.tree import Tree


def find_problems(tree: Tree, heads: Heads) -> list[Problem]:
    """Everything wrong with the entries, in file order within each kind."""
    return [*_shadowed(tree), *_places(tree), *_anchors(tree), *_labels(tree), *_calls(tree), *_heads(tree, heads)]


def _fault(kind: str, entry: Entry, message: str) -> Problem:
    return Problem(kind=kind, severity="fault", message=message, entry=entry.id, line=entry.line)


def _note(kind: str, entry: Entry, message: str) -> Problem:
    return Problem(kind=kind, severity="note", message=message, entry=entry.id, line=entry.line)


def _shadowed(tree: Tree) -> Iterator[Problem]:
    if len(tree) == len(tree.entries):
        return
    for entry in tree.entries:
        winner = tree[entry.id]
        if winner is not entry:
            yield _fault("duplicate_id", entry, f"line {winner.line} has the same id {entry.id!r} and is used instead")


def _places(tree: Tree) -> Iterator[Problem]:
    for entry in tree:
        if entry.parent is None or tree.parent(entry.id) is not None:
            continue
        if entry.parent == entry.id:
            yield _fault("self_parent", entry, f"entry {entry.id!r} names itself as its parent")
        elif entry.parent not in tree:
            yield _fault("orphan", entry, f"entry {entry.id!r} names a parent {entry.parent!r} that is not in the file")
        else:
            yield _fault("cycle", entry, f"entry {entry.id!r} is its own ancestor, by way of {entry.parent!r}")


def _spans(tree: Tree) -> dict[EntryId, tuple[int, int]]:
    """For each entry the numbers of its first and last descendant in a walk, itself included."""
    order = [(entry.id, depth) for entry, depth in tree.walk()]
    spans: dict[EntryId, tuple[int, int]] = {}
    open_: list[tuple[EntryId, int, int]] = []
    for number, (id, depth) in enumerate(order):
        while open_ and open_[-1][1] >= depth:
            done, _, start = open_.pop()
            spans[done] = (start, number - 1)
        open_.append((id, depth, number))
    for done, _, start in open_:
        spans[done] = (start, len(order) - 1)
    return spans


def _anchors(tree: Tree) -> Iterator[Problem]:
    compactions = [entry for entry in tree if entry.type == "compaction"]
    spans = _spans(tree) if compactions else {}
    for entry in compactions:
        anchor = entry.body.first_kept if isinstance(entry.body, Compaction) else None
        if anchor is None:
            continue
        first, last = spans.get(anchor, (1, 0))
        if not first <= spans[entry.id][0] <= last:
            yield _fault(
                "missing_anchor",
                entry,
                f"compaction {entry.id!r} keeps entries from {anchor!r} on, which is not on its path: it keeps none",
            )


def _labels(tree: Tree) -> Iterator[Problem]:
    for entry in tree:
        if entry.type == "label" and isinstance(entry.body, Label) and entry.body.target not in tree:
            yield _note("unknown_target", entry, f"label on {entry.body.target!r}, which is not in the file")


def _calls(tree: Tree) -> Iterator[Problem]:
    results: dict[str, list[EntryId]] = {}
    callers: list[Entry] = []
    for entry in tree:
        if entry.type != "message" or not isinstance(entry.body, Message):
            continue
        call = answered_call(entry.body.message)
        if call is not None:
            results.setdefault(call, []).append(entry.id)
        elif not stopped_abnormally(entry.body.message) and any(tool_calls(entry.body.message)):
            callers.append(entry)
    spans = _spans(tree) if callers else {}
    for entry in callers:
        assert isinstance(entry.body, Message)
        first, last = spans[entry.id]
        for call in tool_calls(entry.body.message):
            if not any(first <= spans[result][0] <= last for result in results.get(call.id, ())):
                yield _note("unanswered_call", entry, f"tool call {call.id!r} ({call.name}) has no result")


def _heads(tree: Tree, heads: Heads) -> Iterator[Problem]:
    for name, head in heads.heads.items():
        if head is not None and head not in tree:
            yield Problem(
                kind="missing_head",
                severity="fault",
                message=f"the head of branch {name!r} is {head!r}, which is not in the file",
                entry=head,
            )
