"""Explain for every entry of a path whether it reaches the model and, if not, which entry represents it."""

from __future__ import annotations

from msgspec import Struct

from sessiontree.core.context import (
    EDITABLE,
    Context,
    ContextProjection,
    State,
    build_path_context,
    check_tree,
    copy_messages,
    explain_withheld,
)
from sessiontree.core.entries import ENTRY_TYPES, Entry, EntryId, JsonObject
from sessiontree.core.message_input import find_unsent_blocks
from sessiontree.core.messages import (
    estimate_tokens,
    get_answered_call,
    get_entry_role,
    get_model,
    get_role,
    get_tool_calls,
    iter_blocks,
)
from sessiontree.core.tree import Tree
from sessiontree.errors import format_names

UNCHANGED = "as it is"
"""The reason of an entry that the model sees without a change."""


class ExplainedEntry(Struct, frozen=True, kw_only=True):
    """One entry of a path, and whether and how it reaches the model."""

    entry: Entry
    reaches_model: bool
    reason: str
    """How it reaches the model, or why it does not."""
    omitted: tuple[str, ...] = ()
    """The types of its content blocks that the model is not sent."""
    represented_by: EntryId | None = None
    """The entry that represents this one in the context, if any."""
    tokens: int = 0
    """Estimated tokens in the request."""


class Explanation(Struct, frozen=True, kw_only=True):
    context: Context
    entries: tuple[ExplainedEntry, ...]

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.entries)


def explain(tree: Tree, leaf: EntryId | None) -> Explanation:
    """Explain for every entry on the path to `leaf` whether it reaches the model, in which form, and how many tokens it
    takes.
    """
    check_tree(tree, "explain")
    path = tree.path(leaf)
    context = build_path_context(path)
    projection = ContextProjection(path)
    selected = {entry.id for entry in projection.select_entries()}
    built = dict(zip(context.sources, context.messages, strict=True))
    sent: dict[EntryId, list[JsonObject]] = {}
    for id, message in context.build_request():
        sent.setdefault(id, []).append(message)
    calls = {call.id for message in context.messages for call in get_tool_calls(message)}
    failed = context.find_failed_calls()
    explained: list[ExplainedEntry] = []
    for index, entry in enumerate(path):
        if entry.id in sent:
            edited = entry.id in projection.edits
            explained.append(_explain_sent(entry, built[entry.id], sent[entry.id], context.state, edited=edited))
        elif entry.id in built:
            reason = explain_withheld(built[entry.id], calls, failed)
            explained.append(ExplainedEntry(entry=entry, reaches_model=False, reason=reason))
        elif entry.id in selected:
            reason = "left out by a context edit" if entry.id in projection.edits else _explain_type(entry)
            explained.append(ExplainedEntry(entry=entry, reaches_model=False, reason=reason))
        else:
            explained.append(_explain_unselected(projection, index))
    return Explanation(context=copy_messages(context), entries=tuple(explained))


def _explain_unselected(projection: ContextProjection, index: int) -> ExplainedEntry:
    entry = projection.path[index]
    if index <= projection.boundary:
        boundary = projection.path[projection.boundary].id
        return ExplainedEntry(entry=entry, reaches_model=False, reason=f"before the reset at {boundary}")
    compaction = projection.path[projection.compaction].id
    if entry.type == "compaction":
        reason = "an older compaction"
    elif index >= projection.first_kept:
        reason = "an older system message"
    else:
        reason = "summarized by a compaction"
    return ExplainedEntry(entry=entry, reaches_model=False, reason=reason, represented_by=compaction)


def _explain_type(entry: Entry) -> str:
    if entry.is_annotation:
        return "an annotation"
    facts = ENTRY_TYPES.get(entry.type)
    reason = "" if facts is None else facts.unsent_reason
    return reason or f"entries of type {entry.type!r} are not sent"


def _find_omitted(message: JsonObject, state: State) -> tuple[str, ...]:
    """Return the types of the blocks of a message that the model of `state` is not sent.

    Only the model that wrote a thought can read it again, and only with its signature.
    """
    omitted = find_unsent_blocks(message)
    is_same = get_model(message) == (state.provider, state.model)
    thoughts = (block for block in iter_blocks(message.get("content")) if block.get("type") == "thinking")
    unsigned = [block for block in thoughts if not is_same or not block.get("thinkingSignature")]
    return (*omitted, *("thinking" for _ in unsigned))


def _explain_sent(
    entry: Entry, message: JsonObject, sent: list[JsonObject], state: State, *, edited: bool
) -> ExplainedEntry:
    own = [item for item in sent if get_answered_call(item) is None] or sent
    reason = UNCHANGED if get_role(own[-1]) == get_role(message) else f"as {get_role(own[-1])}"
    if edited and get_role(message) in EDITABLE:
        reason = "as edited"
    if len(own) < len(sent):
        reason += ", with a placeholder for a missing tool result"
    omitted = _find_omitted(message, state) if get_role(message) in ("user", "assistant", "toolResult") else ()
    if omitted:
        reason += f", without {format_names(omitted)}"
    tokens = sum(map(estimate_tokens, sent))
    return ExplainedEntry(entry=entry, reaches_model=True, reason=reason, omitted=omitted, tokens=tokens)


def encode_explanation(explanation: Explanation) -> list[JsonObject]:
    """Return an explanation in the form that commands and the REST API use."""
    return [
        {
            "id": item.entry.id,
            "type": item.entry.type,
            "role": get_entry_role(item.entry),
            "reaches": item.reaches_model,
            "reason": item.reason,
            "omitted": list(item.omitted),
            "representedBy": item.represented_by,
            "tokens": item.tokens,
        }
        for item in explanation.entries
    ]
