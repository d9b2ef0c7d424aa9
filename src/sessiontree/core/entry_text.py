"""Entry text: an entry as one line for a listing, as text for a reader, and as full text for a search.

All front ends and exports describe entries with these words: titles of summaries, tool calls, commands, images, and the
reasons why an answer stopped.

The full text includes thinking, tool arguments and results, summaries, names, labels, system messages and the strings
in all other data. Images have no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from sessiontree.core.context import Context
from sessiontree.core.entries import (
    TEXT_LENGTH,
    Body,
    BranchSummary,
    Compaction,
    ContextEdit,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
    shorten_to_line,
)
from sessiontree.core.message_views import MessagePreview, PreviewBlock, ToolCall
from sessiontree.core.messages import (
    coerce_number,
    coerce_string,
    extract_text,
    get_role,
    get_tool_calls,
    has_failed,
    is_failed_turn,
    is_list,
    is_object,
    iter_blocks,
    preview_message,
)
from sessiontree.core.number_text import format_count, format_tokens, pluralize
from sessiontree.core.operation_plans import is_merge
from sessiontree.core.place_names import shorten_id
from sessiontree.core.program_text import shorten_user_text
from sessiontree.core.tree import Tree

NOT_SENT = "not sent to the model"
CALL_SEARCH_LIMIT = 256
"""How many entries above a tool result are searched for its call."""


# One line per entry


def format_entry_row(entry: Entry, calls: CallFinder | None = None, raw: bytes | None = None) -> str:
    """Return one line for `entry` that starts with its role. A tool result shows the call that it answers.

    Pass `raw` if the line was already read.
    """
    preview = _preview_entry(entry, raw)
    if preview is not None:
        return format_message_row(
            preview, calls.get(entry.id) if preview.role == "toolResult" and calls is not None else None
        )
    match entry.decode():
        case CustomMessage(custom_type=kind):
            return f"[{kind}]: {format_entry(entry)}"
        case BranchSummary() as body:
            return f"[{describe_summary(body).title.lower()}]: {format_entry(entry)}"
        case Compaction(tokens_before=tokens):
            return f"[compaction: {format_tokens(tokens)}]"
        case _:
            return f"[{format_entry(entry)}]"


def _preview_entry(entry: Entry, raw: bytes | None = None) -> MessagePreview | None:
    """Return a preview of a message without decoding all of it; `None` for every other entry."""
    if entry.type != "message":
        return None
    if entry.cached_body is None:
        return entry.source.decode_preview(entry.raw if raw is None else raw)
    return preview_message(entry.cached_body.message) if isinstance(entry.cached_body, Message) else None


def format_message_row(message: MessagePreview, call: ToolCall | None = None) -> str:
    match message.role:
        case "assistant":
            text = shorten_to_line(message.text)
            if text:
                return f"assistant: {text}"
            if message.is_failed_turn:
                return f"assistant: ({message.stop_reason})"
            return f"assistant: {_format_calls(message.call_blocks) or '(no content)'}"
        case "toolResult":
            return format_call(call) if call else f"[{message.tool_name or 'tool result'}]"
        case "bashExecution" | "pythonExecution":
            return f"[run: {shorten_to_line(message.command or message.code)}]"
        case kind:
            return f"{kind or 'message'}: {_shorten_text(message) or '(no content)'}"


def format_message_text(message: MessagePreview) -> str:
    text = _shorten_text(message) or shorten_to_line(message.command or message.code)
    return text or _format_calls(message.call_blocks)


def _shorten_text(message: MessagePreview) -> str:
    return shorten_user_text(message.text) if message.role == "user" else shorten_to_line(message.text)


def _format_calls(calls: Sequence[PreviewBlock]) -> str:
    """Join tool calls, as many as fit in a row."""
    parts: list[str] = []
    length = 0
    for call in calls:
        if length > TEXT_LENGTH:
            return f"{', '.join(parts)} and {len(calls) - len(parts):,} more"
        parts.append(format_call(call))
        length += len(parts[-1]) + 2
    return ", ".join(parts)


def format_call(call: ToolCall | PreviewBlock) -> str:
    """Return a tool call with the argument that identifies it."""
    subject = find_call_subject(call.arguments)
    return f"[{call.name}: {shorten_to_line(subject)[:80]}]" if subject else f"[{call.name}]"


def format_entry(entry: Entry, raw: bytes | None = None) -> str:
    """Return `entry` on one line, without its role. Pass `raw` if the line was already read."""
    preview = _preview_entry(entry, raw)
    if preview is not None:
        return format_message_text(preview)
    match entry.decode():
        case CustomMessage(content=content, details=details):
            title = coerce_string(details.get("title")) if is_object(details) else ""
            return shorten_to_line(title) or shorten_user_text(extract_text(content))
        case BranchSummary(summary=summary) | Compaction(summary=summary):
            return shorten_to_line(summary)
        case body:
            return entry.type if isinstance(body, Message) else body.describe().line or entry.type


# Text for a reader


CALL_SUBJECTS = ("path", "file_path", "filePath", "command", "cmd", "pattern", "query", "url", "description")
"""Arguments that identify a tool call, the most specific first."""


def find_call_subject(arguments: Any) -> str:
    """Return the argument that identifies a tool call, such as a path or a command."""
    if is_object(arguments):
        for key in CALL_SUBJECTS:
            if key in arguments and (text := coerce_string(arguments[key])):
                return text
    return ""


def format_call_head(name: str, arguments: Any) -> str:
    """Return a tool call with its main arguments, as the title of its result."""
    values: JsonObject = arguments if is_object(arguments) else {}
    if name == "bash" and isinstance(values.get("command"), str):
        return f"$ {values['command']}"
    subject, content = find_call_subject(values), values.get("content")
    if name == "write" and isinstance(content, str):
        lines = content.removesuffix("\n").count("\n") + 1
        return f"{name} {subject}, {pluralize(lines, 'line') if content else 'empty'}"
    others = [f"{key}={value}" for key, value in values.items() if _is_short(value) and value != subject]
    return " ".join([name, *filter(None, [subject]), *(() if "old_text" in values else others)])


def _is_short(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and 0 < len(value) <= 40 and "\n" not in value)


class SummaryTitle(NamedTuple):
    title: str
    facts: tuple[str, ...]


def describe_summary(body: Compaction | BranchSummary) -> SummaryTitle:
    """Return the title of a summary and its facts, such as the tokens before a compaction."""
    if isinstance(body, Compaction):
        before = (f"{format_tokens(body.tokens_before)} before",) if body.tokens_before else ()
        return SummaryTitle("Compaction", before)
    left = body.abandoned_leaf
    facts = (f"of {shorten_id(left)}",) if left and left != "root" else ()
    return SummaryTitle("Merge" if is_merge(body) else "Branch summary", facts)


def describe_stop(message: JsonObject) -> str:
    """Return why an answer is incomplete; empty if it is complete."""
    reason = coerce_string(message.get("stopReason"))
    return "cut off at the token limit" if reason == "length" else reason if is_failed_turn(message) else ""


class ExecutionText(NamedTuple):
    """A command that the user ran, in words."""

    command: str
    output: str
    facts: tuple[str, ...]
    has_failed: bool


def describe_execution(message: JsonObject) -> ExecutionText:
    """Return the words for a message of a shell or Python command."""
    code = message.get("exitCode")
    path = coerce_string(message.get("fullOutputPath"))
    facts = (
        f"exit code {coerce_number(code):g}" if code is not None else "",
        "cancelled" if message.get("cancelled") is True else "",
        (f"truncated; full output in {path}" if path else "truncated") if message.get("truncated") is True else "",
        NOT_SENT if message.get("excludeFromContext") is True else "",
    )
    return ExecutionText(
        command=coerce_string(message.get("command")) or coerce_string(message.get("code")),
        output=coerce_string(message.get("output")),
        facts=tuple(filter(None, facts)),
        has_failed=has_failed(message),
    )


def get_error_text(body: Body) -> str:
    """Return the error that a model reported instead of an answer, or an empty text."""
    return coerce_string(body.message.get("errorMessage")) if isinstance(body, Message) else ""


EXECUTIONS = ("bashExecution", "pythonExecution")
"""Roles of messages of commands that the user ran."""


def get_message_text(message: JsonObject) -> str:
    """Return the text of a message without thinking and tool calls. A command has its output below it."""
    if get_role(message) in EXECUTIONS:
        ran = describe_execution(message)
        return "\n".join(filter(None, (f"$ {ran.command}", ran.output)))
    return next(filter(None, (extract_text(message.get("content")), *_get_other_texts(message))), "")


def _get_other_texts(message: JsonObject) -> tuple[str, ...]:
    """Return the fields in which messages of other programs have their text instead of the content."""
    return coerce_string(message.get("summary")), coerce_string(message.get("text"))


def get_body_text(body: Body) -> str | None:
    """Return the text of an entry; `None` if its type has no text for readers."""
    match body:
        case Message(message):
            return get_message_text(message)
        case CustomMessage(content=content):
            return extract_text(content)
        case BranchSummary(summary=summary) | Compaction(summary=summary):
            return summary
        case _:
            return None


def format_whole_message(message: JsonObject) -> str:
    """Return the full text of a message, with its tool calls."""
    parts = [get_message_text(message), *map(format_call_with_arguments, get_tool_calls(message))]
    if message.get("errorMessage"):
        parts.append(f"error: {coerce_string(message.get('errorMessage'))}")
    return "\n".join(part for part in parts if part)


def format_whole_body(wire: JsonObject) -> str:
    """Return the full text of an entry, given by its encoded body. Other data is shown as JSON."""
    message = wire.get("message")
    if is_object(message):
        return format_whole_message(message)
    text = coerce_string(wire.get("summary")) or extract_text(wire.get("content"))
    if not text:
        import json

        text = json.dumps(wire, ensure_ascii=False, indent=2)
    return text


def get_result_diff(message: JsonObject) -> str:
    """Return the diff that a tool result reports; empty if there is none."""
    details = message.get("details")
    return coerce_string(details.get("diff")) if is_object(details) else ""


def format_model(message: JsonObject) -> str:
    """Return the provider and model that wrote a message; empty if they are not known."""
    name = "/".join(filter(None, (coerce_string(message.get("provider")), coerce_string(message.get("model")))))
    return "" if name == "unknown/unknown" else name


def format_call_with_arguments(call: ToolCall) -> str:
    """Return a tool call with all its arguments."""
    import json

    return f"→ {call.name}({json.dumps(call.arguments, ensure_ascii=False)})"


def format_content(content: object) -> str:
    """Return the text of a message, with a placeholder for every image."""
    images = [format_image(block) for block in iter_blocks(content) if block.get("type") == "image"]
    return "\n".join(part for part in (extract_text(content), *images) if part)


def format_image(block: JsonObject) -> str:
    kind = coerce_string(block.get("mimeType")).removeprefix("image/") or "?"
    size = len(coerce_string(block.get("data")).rstrip("=")) * 3 // 4
    return f"[image: {kind}, {pluralize(size, 'byte', shown=format_count(size))}]"


def format_readable_text(entry: Entry) -> str:
    """Return all text of an entry for a reader, with thinking, tool calls and errors; the JSON if it has no text."""
    match entry.decode():
        case Message(message) if get_role(message) in EXECUTIONS:
            return get_message_text(message).rstrip()
        case Message(message) if get_role(message) in ("user", "assistant", "toolResult"):
            return "\n\n".join(filter(None, _iter_readable_parts(message)))
        case Compaction(summary=summary) | BranchSummary(summary=summary):
            return summary
        case CustomMessage():
            return build_full_text(entry)
        case _:
            return build_full_text(entry) or entry.raw.decode("utf-8", "replace")


def _iter_readable_parts(message: JsonObject) -> Iterator[str]:
    for block in iter_blocks(message.get("content")):
        match block.get("type"):
            case "text":
                yield coerce_string(block.get("text"))
            case "thinking":
                yield f"(thinking) {coerce_string(block.get('thinking'))}"
            case "toolCall":
                yield format_call_with_arguments(ToolCall.wrap(block))
            case "image":
                yield format_image(block)
            case kind:
                yield f"({coerce_string(kind) or 'unknown'})"
    if message.get("errorMessage"):
        yield f"error: {coerce_string(message.get('errorMessage'))}"


# Full text


def build_full_text(entry: Entry) -> str:
    """Return all text of `entry`, one part on each line."""
    return "\n".join(get_text_parts(entry))


def get_text_parts(entry: Entry) -> list[str]:
    """Return all text of `entry`, part by part. Head records have no text."""
    if entry.is_head_record:
        return []
    return [part for part in _list_body_texts(entry.decode()) if part]


def get_speaker(entry: Entry) -> str:
    """Return the role of a message, `custom` for an extension's message, and the entry type for all others."""
    if entry.type == "custom_message":
        return "custom"
    body = entry.decode() if entry.type == "message" else None
    return (get_role(body.message) if isinstance(body, Message) else "") or entry.type


class VisibleEntries:
    """The entries whose text the model sees in a context."""

    def __init__(self, context: Context) -> None:
        sent = {id for id, _ in context.build_request()}
        messages = zip(context.sources, context.messages, strict=True)
        self._sent: dict[EntryId, JsonObject] = {id: message for id, message in messages if id in sent}

    def contains(self, entry: Entry) -> bool:
        """Return whether the model sees the entry unchanged. A context edit counts instead of the entry that it
        changes.
        """
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
    """Return `text` with composed accents."""
    if text.isascii():
        return text
    import unicodedata

    return unicodedata.normalize("NFC", text)


def normalize_case(text: str) -> str:
    """Return `text` with composed accents and folded case."""
    return normalize_accents(text).casefold()


def fold(text: str) -> str:
    """Return `text` in the form that searches compare: folded, on one line, with single spaces."""
    return " ".join(normalize_case(text).split())


def fold_parts(parts: Iterable[str]) -> str:
    """Fold each part on its own line, so a match cannot span two parts."""
    return "\n".join(map(fold, parts))


def _list_body_texts(body: Body) -> Iterable[str]:
    match body:
        case Message(message):
            return _get_message_texts(message)
        case CustomMessage(content=content):
            return _get_block_texts(content)
        case BranchSummary(summary=summary):
            return (summary,)
        case Compaction(summary=summary, system_message=system):
            return (summary, *_get_message_texts(system or {}))
        case ContextEdit(replacement=replacement):
            return _get_content_texts(replacement)
        case _:
            description = body.describe()
            return (*description.texts, *_iter_strings(description.data))


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
    """Yield every string inside a JSON value, in order and at any depth; with `numbers` also integers.

    Other numbers have several spellings, and a search must not depend on the spelling.
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


# Calls that tool results answer


class CallFinder(Protocol):
    def get(self, id: EntryId, /) -> ToolCall | None:
        """Return the call that the result `id` answers."""
        ...


class CallLookup:
    """Finds the calls that tool results answer, on demand.

    Branches may reuse a call id, so the nearest call above with the id counts. The search stops at a user message,
    because a result never answers a call from before it.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._calls: dict[EntryId, dict[str, ToolCall]] = {}
        """The calls of recently visited messages by call id. Several results may answer one message."""
        self._has_calls: dict[EntryId, bool | None] = {}
        """Whether recently visited entries call tools; `None` for user messages."""
        self._callers: dict[EntryId, tuple[EntryId | None, int]] = {}
        """The nearest entry above that calls tools, and the distance to it; `None` if it is too far up."""

    def get(self, id: EntryId, /) -> ToolCall | None:
        message = self._preview(id)
        if message is None or message.role != "toolResult":
            return None
        return self.find(id, message.tool_call_id)

    def add(self, id: EntryId, role: str, calls: Sequence[ToolCall]) -> None:
        """Remember the calls of a message that was decoded anyway, so that it is not read again."""
        if len(self._has_calls) > CALL_SEARCH_LIMIT * 16:
            self._has_calls.clear()
        self._has_calls[id] = None if role == "user" else bool(calls)
        if calls:
            if len(self._calls) >= CALL_SEARCH_LIMIT:
                self._calls.clear()
            self._calls[id] = {call.id: call for call in reversed(calls)}

    def find(self, id: EntryId, answered: str) -> ToolCall | None:
        """Return the call `answered` that the result `id` answers."""
        above, reached = self._find_caller(id)
        while above is not None and reached < CALL_SEARCH_LIMIT:
            found = self._get_calls(above).get(answered)
            if found is not None:
                return found
            above, steps = self._find_caller(above)
            reached += steps
        return None

    def _find_caller(self, id: EntryId) -> tuple[EntryId | None, int]:
        """Return the nearest entry above `id` that calls tools, and the distance to it."""
        if len(self._callers) > CALL_SEARCH_LIMIT * 16:
            self._callers.clear()
        walked: list[EntryId] = []
        at, caller, steps = id, None, 0
        while len(walked) < CALL_SEARCH_LIMIT * 2:
            if at in self._callers:
                caller, steps = self._callers[at]
                break
            walked.append(at)
            above = self._tree.parent(at)
            stops = None if above is None else self._check_for_calls(above)
            if above is None or stops is None:
                break
            if stops:
                caller = above
                break
            at = above
        else:
            del walked[CALL_SEARCH_LIMIT:]  # entries further up may have a call within the limit
        for step, entry in enumerate(reversed(walked), steps + 1):
            self._callers[entry] = caller, step
        return self._callers[id]

    def _check_for_calls(self, id: EntryId) -> bool | None:
        if id not in self._has_calls:
            if len(self._has_calls) > CALL_SEARCH_LIMIT * 16:
                self._has_calls.clear()
            message = self._preview(id)
            if message is None or message.role != "user":
                calls = self._get_calls(id, message) if message is not None else {}
                self._has_calls[id] = bool(calls)
            else:
                self._has_calls[id] = None
        return self._has_calls[id]

    def _get_calls(self, id: EntryId, message: MessagePreview | None = None) -> dict[str, ToolCall]:
        calls = self._calls.get(id)
        if calls is None:
            if len(self._calls) >= CALL_SEARCH_LIMIT:
                self._calls.clear()
            message = self._preview(id) if message is None else message
            calls = {} if message is None else {call.id: call for call in reversed(message.calls)}
            if calls:
                self._calls[id] = calls
        return calls

    def _preview(self, id: EntryId) -> MessagePreview | None:
        return _preview_entry(self._tree.peek(id))
