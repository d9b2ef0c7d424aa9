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
from sessiontree.core.messages import coerce_string, get_role, get_tool_calls, is_list, is_object


def build_full_text(entry: Entry) -> str:
    """Everything `entry` says, one part behind the other."""
    return "\n".join(get_text_parts(entry))


def get_text_parts(entry: Entry) -> list[str]:
    """Everything `entry` says, part by part. Head records say nothing."""
    if entry.is_head_record:
        return []
    body = entry.decode()
    parts = _get_message_texts(body.message) if isinstance(body, Message) else _iter_body_texts(body)
    return [part for part in parts if part]


def get_speaker(entry: Entry) -> str:
    """The role of a message, `custom` for an extension's, and for all else the type of the entry."""
    if entry.type == "custom_message":
        return "custom"
    body = entry.decode() if entry.type == "message" else None
    return (get_role(body.message) if isinstance(body, Message) else "") or entry.type


class VisibleEntries:
    """Which entries say what a model is sent in a context."""

    def __init__(self, context: Context) -> None:
        sent = {id for id, _ in context.build_request()}
        messages = zip(context.sources, context.messages, strict=True)
        self._sent: dict[EntryId, JsonObject] = {id: message for id, message in messages if id in sent}

    def contains(self, entry: Entry) -> bool:
        """Whether it is sent as it stands. An edit stands for what it edits, which then does not."""
        match entry.decode():
            case ContextEdit(target=target, replacement=replacement):
                sent = self._sent.get(target)
                return None not in (sent, replacement) and _get_content_texts(sent) == _get_content_texts(replacement)
            case Message(message):
                return entry.id in self._sent and _get_message_texts(self._sent[entry.id]) == _get_message_texts(
                    message
                )
            case CustomMessage(content=content):
                return entry.id in self._sent and _get_content_texts(self._sent[entry.id]) == _get_block_texts(content)
            case _:
                return entry.id in self._sent


def _get_content_texts(message: JsonObject | None) -> list[str]:
    return _get_block_texts((message or {}).get("content"))


def normalize_accents(text: str) -> str:
    """`text` without regard to how accents are composed."""
    if text.isascii():
        return text
    import unicodedata

    return unicodedata.normalize("NFC", text)


def normalize_case(text: str) -> str:
    """`text` without regard to that and to case."""
    return normalize_accents(text).casefold()


def fold(text: str) -> str:
    """`text` as it is compared: unified, and on one line with single blanks."""
    return " ".join(normalize_case(text).split())


def fold_parts(parts: Iterable[str]) -> str:
    """Parts as they are compared, a line each: nothing that is looked for goes on from one to the next."""
    return "\n".join(map(fold, parts))


def _iter_body_texts(body: Body) -> Iterator[str]:
    match body:
        case CustomMessage(content=content):
            yield from _get_block_texts(content)
        case BranchSummary(summary=summary):
            yield summary
        case Compaction(summary=summary, system_message=system):
            yield from (summary, *_get_message_texts(system or {}))
        case Label(text=text):
            yield text or ""
        case SessionInfo(name):
            yield name or ""
        case BranchPoint(name=name, description=description):
            yield from (name, description or "")
        case AgentAction(action=action, agent=agent, data=data):
            yield from (agent, action, *_iter_strings(data))
        case Custom(custom_type=kind, data=data):
            yield from (kind, *_iter_strings(data))
        case ContextEdit(replacement=replacement):
            yield from _get_content_texts(replacement)
        case ModelChange(provider=provider, model=model):
            yield from (provider or "", model or "")
        case ThinkingLevelChange(level):
            yield level or ""
        case ModeChange(mode=mode, data=data):
            yield from (mode, *_iter_strings(data))
        case RuleInjection(rules):
            yield from rules
        case Usage(kind=kind, note=note):
            yield from (kind, note or "")
        case Opaque(fields=fields):
            yield from _iter_strings(fields)
        case _:
            pass


MESSAGE_TEXT_KEYS = ("command", "code", "output", "summary", "text", "errorMessage", "toolName")
MESSAGE_TREE_KEYS = ("files", "sections")


def _get_message_texts(message: JsonObject) -> list[str]:
    parts = _get_block_texts(message.get("content"))
    for call in get_tool_calls(message):
        parts.append(call.name)
        parts += _iter_strings(call.arguments, numbers=True)
    parts += [coerce_string(message[key]) for key in MESSAGE_TEXT_KEYS if key in message]
    for key in MESSAGE_TREE_KEYS:
        if key in message:
            parts += _iter_strings(message[key])
    return parts


def _get_block_texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [
        coerce_string(block[key])
        for block in (content if is_list(content) else ())
        if is_object(block)
        for key in ("text", "thinking")
        if key in block
    ]


def _iter_strings(value: Any, *, numbers: bool = False) -> Iterator[str]:
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
