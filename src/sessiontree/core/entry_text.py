"""Entry text: an entry as one line for a listing, and as text for a reader.

All front ends and exports describe entries with these words: titles of summaries, tool calls, commands, images, and the
reasons why an answer stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from sessiontree.core.entries import (
    TEXT_LENGTH,
    Body,
    BranchSummary,
    Compaction,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
    shorten_to_line,
)
from sessiontree.core.foreign_markup import shorten_user_text
from sessiontree.core.message_views import MessagePreview, PreviewBlock, ToolCall
from sessiontree.core.messages import (
    coerce_number,
    coerce_string,
    extract_text,
    get_role,
    get_tool_calls,
    has_failed,
    is_failed_turn,
    is_object,
    iter_blocks,
    preview_message,
)
from sessiontree.core.number_text import format_count, format_tokens, pluralize
from sessiontree.core.operation_plans import is_merge
from sessiontree.core.place_names import shorten_id
from sessiontree.core.search_text import build_full_text

NOT_SENT = "not sent to the model"


class CallFinder(Protocol):
    def get(self, id: EntryId, /) -> ToolCall | None:
        """Return the call that the result `id` answers."""
        ...


# One line per entry


def format_entry_row(entry: Entry, calls: CallFinder | None = None, raw: bytes | None = None) -> str:
    """Return one line for `entry` that starts with its role. A tool result shows the call that it answers.

    Pass `raw` if the line was already read.
    """
    preview = preview_entry(entry, raw)
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


def preview_entry(entry: Entry, raw: bytes | None = None) -> MessagePreview | None:
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
    text = _shorten_text(message)
    return text or shorten_to_line(message.command or message.code) or _format_calls(message.call_blocks)


def _shorten_text(message: MessagePreview) -> str:
    text = message.text
    return text and (shorten_user_text(text) if message.role == "user" else shorten_to_line(text))


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
    preview = preview_entry(entry, raw)
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


def get_speaker(entry: Entry) -> str:
    """Return the role of a message, `custom` for an extension's message, and the entry type for all others."""
    if entry.type == "custom_message":
        return "custom"
    body = entry.decode() if entry.type == "message" else None
    return (get_role(body.message) if isinstance(body, Message) else "") or entry.type
