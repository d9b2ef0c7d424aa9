"""Details of an entry in the tree: all of it, or what the model would see from there. How two differ is in `beside`.

Texts in, texts out: every line is safe for a terminal. What takes the whole path is asked for in another thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.text import Text

from sessiontree.commands.formatting import format_id, format_local_time
from sessiontree.core.context import explain
from sessiontree.core.entries import BranchSummary, Compaction, CustomMessage, Entry, EntryId, JsonObject, Message
from sessiontree.core.entry_text import CallLookup, build_full_text, format_entry_row, get_speaker
from sessiontree.core.messages import coerce_string, get_model, get_role, iter_blocks, list_usages, sum_usage
from sessiontree.core.number_text import format_dollars, format_tokens, pluralize
from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.core.tree import Tree
from sessiontree.session import Session

MAX_CHARACTERS = 100_000
"""So many characters of an entry are shown; `sessiontree show` has all."""
MAX_PATH_ENTRIES = 400
"""So many entries of a path are listed."""


def get_entry_text(entry: Entry) -> str:
    """What an entry says, as one would copy it."""
    match entry.decode():
        case Message(message) if get_role(message) in ("user", "assistant", "toolResult"):
            return "\n\n".join(filter(None, _iter_message_parts(message)))
        case Compaction(summary=summary) | BranchSummary(summary=summary):
            return summary
        case CustomMessage():
            return build_full_text(entry)
        case _:
            return build_full_text(entry) or entry.raw.decode("utf-8", "replace")


def _iter_message_parts(message: JsonObject) -> Iterator[str]:
    for block in iter_blocks(message.get("content")):
        match block.get("type"):
            case "text":
                yield coerce_string(block.get("text"))
            case "thinking":
                yield f"(thinking) {coerce_string(block.get('thinking'))}"
            case "toolCall":
                yield f"→ {coerce_string(block.get('name'))} {json.dumps(block.get('arguments'), ensure_ascii=False)}"
            case kind:
                yield f"({coerce_string(kind) or 'something'})"
    if message.get("errorMessage"):
        yield f"error: {coerce_string(message.get('errorMessage'))}"


def render_entry(session: Session, id: EntryId) -> Text:
    """The entry in full, with its time, and what it took."""
    entry = session.tree[id]
    label = session.tree.label(id)
    body = entry.decode()
    model = get_model(body.message) if isinstance(body, Message) else None
    sums = [sum_ for usage in list_usages(body) if (sum_ := sum_usage(usage)) is not None]
    facts = [
        format_id(id),
        get_speaker(entry),
        format_local_time(entry.timestamp, seconds=True),
        f"[{label}]" if label else "",
        f"on {entry.branch}" if isinstance(entry.branch, str) else "",
        "/".join(model) if model and model[1] != "unknown" else "",
        format_tokens(sum(item.tokens for item in sums)) if sums else "",
        format_dollars(sum(item.cost for item in sums)) if any(item.cost for item in sums) else "",
    ]
    words = get_entry_text(entry)
    text = Text(escape_line(" · ".join(fact for fact in facts if fact)), style="bold")
    text.append("\n\n")
    text.append(escape_lines(words[:MAX_CHARACTERS]) or "(no content)", style="not bold")
    if len(words) > MAX_CHARACTERS:
        text.append(
            f"\n\n… {pluralize(len(words) - MAX_CHARACTERS, 'more character')}: `sessiontree show` has the rest",
            style="dim not bold",
        )
    return text


def render_context(tree: Tree, id: EntryId) -> Text:
    """What the model would see from an entry, and why."""
    explanation = explain(tree, id)
    entries, calls = explanation.entries, CallLookup(tree)
    reach = sum(item.reaches_model for item in entries)
    text = Text(
        f"From here the model sees {reach} of {pluralize(len(entries), 'entry', 'entries')}, "
        f"about {format_tokens(explanation.tokens)}\n",
        style="bold",
    )
    if len(entries) > MAX_PATH_ENTRIES:
        text.append(f"\n… {len(entries) - MAX_PATH_ENTRIES} before", style="dim not bold")
    for item in entries[-MAX_PATH_ENTRIES:]:
        reason = item.reason + (f" {format_id(item.represented_by)}" if item.represented_by else "")
        row = escape_line(format_entry_row(item.entry, calls))[:100]
        line = f"\n{'✓' if item.reaches_model else '·'} {row} — {escape_line(reason)}"
        text.append(line, style="not bold" if item.reaches_model else "dim not bold")
    return text
