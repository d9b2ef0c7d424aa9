"""Details of an entry in the tree: all of it, or what the model would see from there. How two differ is in `beside`.

Texts in, texts out: every line is safe for a terminal. What takes the whole path is asked for in another thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.text import Text

from sessiontree.commands.text import local_time, short
from sessiontree.comparison import usages
from sessiontree.core.context import explain
from sessiontree.core.entries import BranchSummary, Compaction, CustomMessage, Entry, EntryId, JsonObject, Message
from sessiontree.core.figures import dollars, pluralize, tell_tokens
from sessiontree.core.fulltext import full_text, speaker
from sessiontree.core.messages import blocks, model_of, role, spent, string
from sessiontree.core.outline import Calls, row_text
from sessiontree.core.safe import safe, safe_lines
from sessiontree.core.tree import Tree
from sessiontree.session import Session

MOST = 100_000
"""So many characters of an entry are shown; `sessiontree show` has all."""
MOST_LINES = 400
"""So many entries of a path are listed."""


def words_of(entry: Entry) -> str:
    """What an entry says, as one would copy it."""
    match entry.decoded():
        case Message(message) if role(message) in ("user", "assistant", "toolResult"):
            return "\n\n".join(filter(None, _said(message)))
        case Compaction(summary=summary) | BranchSummary(summary=summary):
            return summary
        case CustomMessage():
            return full_text(entry)
        case _:
            return full_text(entry) or entry.raw.decode("utf-8", "replace")


def _said(message: JsonObject) -> Iterator[str]:
    for block in blocks(message.get("content")):
        match block.get("type"):
            case "text":
                yield string(block.get("text"))
            case "thinking":
                yield f"(thinking) {string(block.get('thinking'))}"
            case "toolCall":
                yield f"→ {string(block.get('name'))} {json.dumps(block.get('arguments'), ensure_ascii=False)}"
            case kind:
                yield f"({string(kind) or 'something'})"
    if message.get("errorMessage"):
        yield f"error: {string(message.get('errorMessage'))}"


def described(session: Session, id: EntryId) -> Text:
    """The entry in full, with its time, and what it took."""
    entry = session.tree[id]
    label = session.tree.label(id)
    body = entry.decoded()
    model = model_of(body.message) if isinstance(body, Message) else None
    sums = [sum_ for usage in usages(body) if (sum_ := spent(usage)) is not None]
    facts = [
        short(id),
        speaker(entry),
        local_time(entry.timestamp, seconds=True),
        f"[{label}]" if label else "",
        f"on {entry.branch}" if isinstance(entry.branch, str) else "",
        "/".join(model) if model and model[1] != "unknown" else "",
        tell_tokens(sum(item.tokens for item in sums)) if sums else "",
        dollars(sum(item.cost for item in sums)) if any(item.cost for item in sums) else "",
    ]
    words = words_of(entry)
    text = Text(safe(" · ".join(fact for fact in facts if fact)), style="bold")
    text.append("\n\n")
    text.append(safe_lines(words[:MOST]) or "(no content)", style="not bold")
    if len(words) > MOST:
        text.append(
            f"\n\n… {pluralize(len(words) - MOST, 'more character')}: `sessiontree show` has the rest",
            style="dim not bold",
        )
    return text


def seen_from(tree: Tree, id: EntryId) -> Text:
    """What the model would see from an entry, and why."""
    explanation = explain(tree, id)
    entries, calls = explanation.entries, Calls(tree)
    reach = sum(item.reaches for item in entries)
    text = Text(
        f"From here the model sees {reach} of {pluralize(len(entries), 'entry', 'entries')}, "
        f"about {tell_tokens(explanation.tokens)}\n",
        style="bold",
    )
    if len(entries) > MOST_LINES:
        text.append(f"\n… {len(entries) - MOST_LINES} before", style="dim not bold")
    for item in entries[-MOST_LINES:]:
        reason = item.reason + (f" {short(item.represented_by)}" if item.represented_by else "")
        line = f"\n{'✓' if item.reaches else '·'} {safe(row_text(item.entry, calls))[:100]} — {safe(reason)}"
        text.append(line, style="not bold" if item.reaches else "dim not bold")
    return text
