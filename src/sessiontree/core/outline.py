"""Outline: the tree as rows, the same in the terminal, the app and the exported page.

Which entries a filter shows, in which order, how far in, and what one line says of each.
No colours and no widths here; texts are raw, so whoever shows them makes them safe.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from msgspec import Struct

from sessiontree.core.entries import (
    AgentAction,
    BranchPoint,
    BranchSummary,
    Compaction,
    ContextEdit,
    Custom,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Label,
    Message,
    ModeChange,
    ModelChange,
    SessionInfo,
    ThinkingLevelChange,
)
from sessiontree.core.messages import (
    ToolCall,
    answered_call,
    is_object,
    number,
    role,
    stopped_abnormally,
    string,
    text,
    tool_calls,
)
from sessiontree.core.tree import Tree

FILTERS = ("default", "no-tools", "user-only", "labeled-only", "all")

BOOKKEEPING = frozenset(
    {
        "label",
        "custom",
        "model_change",
        "thinking_level_change",
        "session_info",
        "context_edit",
        "usage",
        "model_usage",
        "service_tier_change",
        "title_change",
        "credential_pin",
        "session_init",
        "ttsr_injection",
        "mode_change",
        "reset_boundary",
    }
)
TEXT_LENGTH = 200


class Row(Struct, frozen=True, kw_only=True):
    """One line of the drawing."""

    entry: Entry
    prefix: str
    """Connectors and indentation, three columns a level."""
    on_path: bool
    """On the way from the root to the active leaf."""
    active: bool
    """The active leaf itself, or the nearest row above it that the filter shows."""


def outline(tree: Tree, leaf: EntryId | None, filter: str = "default") -> list[Row]:
    """The rows that `filter` shows, depth first, the active branch first, indented only where branches part."""
    shown = _visibility(tree, leaf, filter)
    on_path = {entry.id for entry in tree.up(leaf)}
    kids: dict[EntryId | None, list[Entry]] = {None: []}
    nearest: dict[EntryId, EntryId | None] = {}
    for entry, _ in tree.walk(leaf):
        parent = tree.parent(entry.id)
        anchor = nearest[parent] if parent is not None else None
        if shown(entry):
            kids[anchor].append(entry)
            kids[entry.id] = []
            nearest[entry.id] = entry.id
        else:
            nearest[entry.id] = anchor
    active = None if leaf is None else nearest[leaf]
    return [
        Row(entry=entry, prefix=prefix, on_path=entry.id in on_path, active=entry.id == active)
        for entry, prefix in _indented(kids)
    ]


class _Open(Struct):
    entry: Entry
    rails: str
    """What stands left of this row's own column."""
    level: int
    fresh: bool
    """A branch point stands right above, so what follows is set in once more."""
    connector: str


def _indented(kids: dict[EntryId | None, list[Entry]]) -> list[tuple[Entry, str]]:
    """Each row with its prefix: chains stay flat, children of a branch point go one level in."""
    rows: list[tuple[Entry, str]] = []
    roots = kids[None]
    waiting = [_Open(root, "", 0, len(roots) > 1, "") for root in reversed(roots)]
    while waiting:
        at = waiting.pop()
        rows.append((at.entry, at.rails + at.connector))
        below = kids[at.entry.id]
        # Under a connector goes its rail: a bar while siblings follow, else blanks.
        rails = at.rails + {"├─ ": "│  ", "└─ ": "   "}.get(at.connector, "")
        if len(below) > 1:
            opened = [
                _Open(child, rails, at.level + 1, True, "└─ " if child is below[-1] else "├─ ") for child in below
            ]
        elif at.fresh and at.level > 0:
            opened = [_Open(child, rails + "   ", at.level + 1, False, "") for child in below]
        else:
            opened = [_Open(child, rails, at.level, False, "") for child in below]
        waiting.extend(reversed(opened))
    return rows


def _visibility(tree: Tree, leaf: EntryId | None, filter: str) -> Callable[[Entry], bool]:
    def wordless(entry: Entry) -> bool:
        """An assistant's message that only calls tools; the results have rows of their own."""
        if entry.type != "message" or entry.id == leaf or not isinstance(entry.body, Message):
            return False
        message = entry.body.message
        return (
            role(message) == "assistant"
            and not stopped_abnormally(message)
            and not text(message.get("content")).strip()
        )

    def default(entry: Entry) -> bool:
        return entry.type not in BOOKKEEPING and not wordless(entry)

    match filter:
        case "all":
            return lambda entry: True
        case "labeled-only":
            return lambda entry: tree.label(entry.id) is not None
        case "user-only":
            return lambda entry: role_of(entry) == "user"
        case "no-tools":
            return lambda entry: default(entry) and role_of(entry) != "toolResult"
        case _:
            return default


def role_of(entry: Entry) -> str | None:
    """The role of a message entry; `None` for every other kind."""
    return role(entry.body.message) if entry.type == "message" and isinstance(entry.body, Message) else None


def calls_of_results(tree: Tree) -> dict[EntryId, ToolCall]:
    """The call that each tool result answers, by the result's id: branches may use one call id for different calls."""
    makers: dict[str, dict[EntryId, ToolCall]] = {}
    results: list[tuple[EntryId, str]] = []
    for entry in tree:
        if entry.type == "message" and isinstance(entry.body, Message):
            for call in tool_calls(entry.body.message):
                makers.setdefault(call.id, {})[entry.id] = call
            answered = answered_call(entry.body.message)
            if answered is not None:
                results.append((entry.id, answered))
    found: dict[EntryId, ToolCall] = {}
    for result, id in results:
        calls = makers.get(id, {})
        above = (calls[entry.id] for entry in tree.up(result) if entry.id in calls)
        found.update((result, call) for call in islice(above if len(calls) > 1 else calls.values(), 1))
    return found


def row_text(entry: Entry, calls: dict[EntryId, ToolCall] | None = None) -> str:
    """What one line says of `entry`, its role in front; a tool result says what was called."""
    body = entry.body
    match body:
        case Message(message):
            return _message_row(message, (calls or {}).get(entry.id))
        case CustomMessage(custom_type=kind):
            return f"[{kind}]: {plain_text(entry)}"
        case BranchSummary(details=details):
            merged = is_object(details) and details.get("kind") == "merge"
            return f"[{'merge' if merged else 'branch summary'}]: {plain_text(entry)}"
        case Compaction(tokens_before=tokens):
            return f"[compaction: {short_count(tokens)} tokens]"
        case _:
            return f"[{plain_text(entry)}]"


def _message_row(message: JsonObject, call: ToolCall | None) -> str:
    words = one_line(text(message.get("content")))
    match role(message):
        case "assistant":
            if words:
                return f"assistant: {words}"
            if stopped_abnormally(message):
                return f"assistant: ({string(message.get('stopReason'))})"
            made = ", ".join(_call_row(call) for call in tool_calls(message))
            return f"assistant: {made or '(no content)'}"
        case "toolResult":
            return _call_row(call) if call else f"[{string(message.get('toolName')) or 'tool result'}]"
        case "bashExecution" | "pythonExecution":
            return f"[run: {one_line(string(message.get('command')) or string(message.get('code')))}]"
        case kind:
            return f"{kind or 'message'}: {words or '(no content)'}"


def _call_row(call: ToolCall) -> str:
    """A call with the argument that says most."""
    arguments: Any = call.arguments if is_object(call.arguments) else {}
    told: str = next(
        (string(arguments[key]) for key in ("path", "file_path", "command", "pattern", "query") if arguments.get(key)),
        "",
    )
    return f"[{call.name}: {one_line(told)[:80]}]" if told else f"[{call.name}]"


def plain_text(entry: Entry) -> str:
    """What `entry` says, on one line, without its role."""
    match entry.body:
        case Message(message):
            return one_line(
                text(message.get("content")) or string(message.get("command")) or string(message.get("code"))
            ) or ", ".join(_call_row(call) for call in tool_calls(message))
        case CustomMessage(content=content):
            return one_line(text(content))
        case BranchSummary(summary=summary) | Compaction(summary=summary):
            return one_line(summary)
        case ModelChange(model=model):
            return f"model: {model or '?'}"
        case ThinkingLevelChange(level):
            return f"thinking: {level or 'off'}"
        case Label(text=words):
            return f"label: {words or '(cleared)'}"
        case SessionInfo(name):
            return f"name: {name or '(cleared)'}"
        case Custom() if entry.is_head_record:
            return "heads"
        case Custom(custom_type=kind):
            return f"custom: {kind}"
        case ContextEdit(target=target):
            return f"edit of {target}"
        case BranchPoint(name=name, description=description):
            return f"branch {name}" + (f": {one_line(description)}" if description else "")
        case AgentAction(action=action, agent=agent):
            return f"agent {agent}: {action}"
        case ModeChange(mode=mode):
            return f"mode: {mode}"
        case _:
            return entry.type


def one_line(words: str) -> str:
    """`words` with all white space as single blanks, cut to what a row can hold."""
    return " ".join(words[: TEXT_LENGTH * 4].split())[:TEXT_LENGTH]


def short_count(count: object) -> str:
    """12345 as `12k`."""
    value = number(count)
    if value < 1000:
        return f"{value:g}"
    return f"{value / 1000:.0f}k" if value < 999_500 else f"{value / 1_000_000:.1f}M"
