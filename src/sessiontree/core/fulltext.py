"""Full text: everything an entry says, whether a model sees it, and how it is compared with what somebody looks for.

`outline` has the one line that a listing shows of an entry; here is all of it: what was
said and thought, what tools were called with and what they answered, summaries, names and
labels, the text of system messages, and the strings inside whatever else there is. Images are not text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sessiontree.core.context import Context
from sessiontree.core.entries import (
    AgentAction,
    Body,
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
    Opaque,
    RuleInjection,
    SessionInfo,
    ThinkingLevelChange,
    Usage,
)
from sessiontree.core.messages import is_list, is_object, role, string, tool_calls


def full_text(entry: Entry) -> str:
    """Everything `entry` says, one part behind the other."""
    return "\n".join(parts_of(entry))


def parts_of(entry: Entry) -> list[str]:
    """Everything `entry` says, part by part. Head records say nothing."""
    if entry.is_head_record:
        return []
    body = entry.decoded()
    parts = _message(body.message) if isinstance(body, Message) else _parts(body)
    return [part for part in parts if part]


def speaker(entry: Entry) -> str:
    """The role of a message, `custom` for an extension's, and for all else the type of the entry."""
    if entry.type == "custom_message":
        return "custom"
    body = entry.decoded() if entry.type == "message" else None
    return (role(body.message) if isinstance(body, Message) else "") or entry.type


class Seen:
    """Which entries say what a model is sent in a context."""

    def __init__(self, context: Context) -> None:
        sent = {id for id, _ in context.request()}
        messages = zip(context.sources, context.messages, strict=True)
        self._sent: dict[EntryId, JsonObject] = {id: message for id, message in messages if id in sent}

    def has(self, entry: Entry) -> bool:
        """Whether it is sent as it stands. An edit stands for what it edits, which then does not."""
        match entry.decoded():
            case ContextEdit(target=target, replacement=replacement):
                sent = self._sent.get(target)
                return None not in (sent, replacement) and _said(sent) == _said(replacement)
            case Message(message):
                return entry.id in self._sent and _message(self._sent[entry.id]) == _message(message)
            case CustomMessage(content=content):
                return entry.id in self._sent and _said(self._sent[entry.id]) == _content(content)
            case _:
                return entry.id in self._sent


def _said(message: JsonObject | None) -> list[str]:
    return _content((message or {}).get("content"))


def compose(text: str) -> str:
    """`text` without regard to how accents are composed."""
    if text.isascii():
        return text
    import unicodedata

    return unicodedata.normalize("NFC", text)


def unify(text: str) -> str:
    """`text` without regard to that and to case."""
    return compose(text).casefold()


def fold(text: str) -> str:
    """`text` as it is compared: unified, and on one line with single blanks."""
    return " ".join(unify(text).split())


def fold_parts(parts: Iterable[str]) -> str:
    """Parts as they are compared, a line each: nothing that is looked for goes on from one to the next."""
    return "\n".join(map(fold, parts))


def _parts(body: Body) -> Iterator[str]:
    match body:
        case CustomMessage(content=content):
            yield from _content(content)
        case BranchSummary(summary=summary):
            yield summary
        case Compaction(summary=summary, system_message=system):
            yield from (summary, *_message(system or {}))
        case Label(text=text):
            yield text or ""
        case SessionInfo(name):
            yield name or ""
        case BranchPoint(name=name, description=description):
            yield from (name, description or "")
        case AgentAction(action=action, agent=agent, data=data):
            yield from (agent, action, *_strings(data))
        case Custom(custom_type=kind, data=data):
            yield from (kind, *_strings(data))
        case ContextEdit(replacement=replacement):
            yield from _said(replacement)
        case ModelChange(provider=provider, model=model):
            yield from (provider or "", model or "")
        case ThinkingLevelChange(level):
            yield level or ""
        case ModeChange(mode=mode, data=data):
            yield from (mode, *_strings(data))
        case RuleInjection(rules):
            yield from rules
        case Usage(kind=kind, note=note):
            yield from (kind, note or "")
        case Opaque(fields=fields):
            yield from _strings(fields)
        case _:
            pass


MESSAGE_TEXTS = ("command", "code", "output", "summary", "text", "errorMessage", "toolName")
MESSAGE_TREES = ("files", "sections")


def _message(message: JsonObject) -> list[str]:
    parts = _content(message.get("content"))
    for call in tool_calls(message):
        parts.append(call.name)
        parts += _strings(call.arguments, numbers=True)
    parts += [string(message[key]) for key in MESSAGE_TEXTS if key in message]
    for key in MESSAGE_TREES:
        if key in message:
            parts += _strings(message[key])
    return parts


def _content(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [
        string(block[key])
        for block in (content if is_list(content) else ())
        if is_object(block)
        for key in ("text", "thinking")
        if key in block
    ]


def _strings(value: Any, *, numbers: bool = False) -> Iterator[str]:
    """Every string inside a JSON value, in order, whatever its depth; with `numbers` whole ones too.

    Others may be spelled in many ways: what is found must not depend on that.
    """
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif numbers and isinstance(item, int) and not isinstance(item, bool):
            yield str(item)
        elif is_object(item):
            waiting.extend(reversed(item.values()))
        elif is_list(item):
            waiting.extend(reversed(item))
