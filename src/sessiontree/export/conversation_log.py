"""Reads the messages on the path to an entry, for exports that log a conversation. Pure.

A transcript is the whole history: also what a compaction replaced, and failed answers. A `context` is what the model
sees at the end.
"""

from __future__ import annotations

from msgspec import Struct

from sessiontree.core.entries import (
    BranchSummary,
    Compaction,
    CustomMessage,
    EntryId,
    JsonObject,
    Message,
)
from sessiontree.core.messages import coerce_number, convert_for_model, get_role, is_object, sum_usage
from sessiontree.core.tree import Tree
from sessiontree.format.codec import COPIED_FROM


class SpokenMessage(Struct, frozen=True, kw_only=True):
    """A message with its entry."""

    entry: EntryId
    timestamp: str
    kind: str
    """The type of the entry: `message`, `custom_message`, `compaction` or `branch_summary`."""
    message: JsonObject
    """With the role `user`, `assistant`, `toolResult` or `system`."""


def read_transcript(tree: Tree, leaf: EntryId | None) -> list[SpokenMessage]:
    """Return the messages on the path to an entry, oldest first, since the last reset of the context."""
    spoken: list[SpokenMessage] = []
    passed: set[EntryId] = set()
    for entry in tree.path(leaf):
        passed.add(entry.id)
        if entry.type == "reset_boundary":
            spoken.clear()
            continue
        match entry.decode():
            case Message(message):
                sent = convert_for_model(message)
            case CustomMessage(content=content):
                sent = convert_for_model({"role": "custom", "content": content})
            case Compaction(summary=summary):
                sent = convert_for_model({"role": "compactionSummary", "summary": summary})
            case BranchSummary(summary=summary) if summary:
                sent = convert_for_model({"role": "branchSummary", "summary": summary})
            case _:
                continue
        copied = entry.extra.get(COPIED_FROM)
        is_repeated = isinstance(copied, str) and copied in passed  # some programs repeat what they keep
        if sent is not None and not is_repeated:
            spoken.append(SpokenMessage(entry=entry.id, timestamp=entry.timestamp, kind=entry.type, message=sent))
    return spoken


def get_usage(message: JsonObject) -> JsonObject | None:
    """Return the usage of an answer, if it records any."""
    usage = message.get("usage") if get_role(message) == "assistant" else None
    return usage if is_object(usage) and sum_usage(usage) is not None else None


def count_tokens(usage: JsonObject, *kinds: str) -> int:
    """Return the sum of some kinds of tokens in a usage object."""
    return sum(max(0, int(coerce_number(usage.get(kind)))) for kind in kinds)
