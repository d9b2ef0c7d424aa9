"""Anthropic Messages: the `messages` and the `system` prompt of `messages.create`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sessiontree.convert.base import (
    ApiKind,
    BodyReader,
    FieldReader,
    MessageWriter,
    build_system_text,
    count,
    describe,
    encode_base64,
    get_api,
    keep_fields,
    read_messages,
    refuse,
    split_call_id,
    to_plain,
)
from sessiontree.convert.cleanup import CallIds
from sessiontree.core.context import Context
from sessiontree.core.conversion_result import ConvertedBodies, ConvertedMessages
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, get_role, is_list, is_object, iter_blocks

API = ApiKind.ANTHROPIC

IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "toolUse",
    "refusal": "error",
}
THINKING_TYPES = ("thinking", "redacted_thinking")


# To the SDK


def to_anthropic(context: Context) -> ConvertedMessages:
    """Return the messages of a request for `messages.create`. The system prompt is in `system` of the result."""
    writer, ids = MessageWriter(API), CallIds()
    leading: list[str] = []
    for message in writer.read(context):
        match get_role(message):
            case "system":
                writer.restore_fields(message, (), "system")
                text = build_system_text(message)
                if not text.strip():
                    writer.omit("system", "Anthropic Messages accepts no empty text")
                elif writer.messages:
                    writer.messages.append({"role": "system", "content": text})
                else:
                    writer.omit_unless(not leading, "system", "the system prompts were joined")
                    leading.append(text)
            case "assistant":
                _add(writer, "assistant", _write_assistant(message, writer, ids))
            case "toolResult":
                _add(writer, "user", [_write_result(message, writer, ids)], joins=True)
            case _:
                content = message.get("content")
                is_text = isinstance(content, str) and bool(content.strip())
                _add(writer, "user", content if is_text else _write_content(message, writer), joins=True)
    writer.messages.system = "\n\n".join(leading)
    return writer.messages


def _add(writer: MessageWriter, role: str, content: Any, *, joins: bool = False) -> None:
    """Add a message. Content of the user joins the tool results before it, because they must be one message."""
    if not content:
        writer.omit(role, "Anthropic Messages accepts no empty message")
        return
    last: JsonObject = writer.messages[-1] if joins and writer.messages else {}
    if last.get("role") == "user" and is_list(last["content"]) and last["content"][-1]["type"] == "tool_result":
        last["content"] += [{"type": "text", "text": content}] if isinstance(content, str) else content
    else:
        writer.messages.append({"role": role, "content": content})


def _write_content(message: JsonObject, writer: MessageWriter) -> list[JsonObject]:
    """Return the blocks of a user message or of a tool result."""
    blocks: list[JsonObject] = []
    for block in iter_blocks(message.get("content")):
        match block.get("type"):
            case "text":
                blocks += _write_text(block, writer)
            case "image":
                if writer.check_image(block, IMAGE_TYPES) is not None:
                    fields = writer.restore_fields(block, ("cache_control", "transformations"), "image")
                    source = {"type": "base64", "media_type": block["mimeType"], "data": block["data"]}
                    blocks.append({"type": "image", "source": source, **fields})
            case _:
                writer.omit_unknown(block)
    writer.restore_content(message, blocks)
    return blocks


def _write_text(block: JsonObject, writer: MessageWriter) -> list[JsonObject]:
    text = coerce_string(block.get("text"))
    fields = writer.restore_fields(block, ("cache_control", "citations"), "text")
    if block.get("textSignature"):
        writer.omit("text.textSignature", "Anthropic Messages has no place for the identity of a text")
    if block.get("refusal") is True:
        writer.omit("text.refusal", "Anthropic Messages cannot mark a text as a refusal")
    if not text.strip():
        writer.omit("text", "Anthropic Messages accepts no empty text")
        return []
    return [{"type": "text", "text": text, **fields}]


def _write_assistant(message: JsonObject, writer: MessageWriter, ids: CallIds) -> list[JsonObject]:
    ids.start_turn()
    writer.restore_fields(message, (), "assistant")
    blocks: list[JsonObject] = []
    for block in iter_blocks(message.get("content")):
        match block.get("type"):
            case "text":
                blocks += _write_text(block, writer)
            case "thinking":
                blocks += _write_thinking(message, block, writer)
            case "toolCall":
                blocks.append(_write_call(message, block, writer, ids))
            case _:
                writer.omit_unknown(block)
    writer.restore_content(message, blocks)
    while blocks and blocks[-1]["type"] in THINKING_TYPES:
        blocks.pop()
        writer.omit("thinking", "Anthropic Messages accepts no message that ends with thinking")
    return blocks


def _write_thinking(message: JsonObject, block: JsonObject, writer: MessageWriter) -> list[JsonObject]:
    writer.restore_fields(block, (), "thinking")
    signature = coerce_string(block.get("thinkingSignature"))
    if not signature or get_api(message) not in (API, ""):
        writer.omit("thinking", "Anthropic Messages accepts only thinking with its own signature")
        return []
    if block.get("redacted") is True:
        return [{"type": "redacted_thinking", "data": signature}]
    return [{"type": "thinking", "thinking": coerce_string(block.get("thinking")), "signature": signature}]


def _write_call(message: JsonObject, block: JsonObject, writer: MessageWriter, ids: CallIds) -> JsonObject:
    stored, arguments = coerce_string(block.get("id")), block.get("arguments")
    wanted, item = split_call_id(message, stored)
    id = ids.assign_id(stored, wanted)
    if item or block.get("thoughtSignature"):
        writer.omit("toolCall", "Anthropic Messages has no place for the signature or the item of a tool call")
    if id != wanted:
        writer.omit("toolCall.id", f"the id {wanted[:80]!r} was replaced by {id!r}, because ids are short and unique")
    if not is_object(arguments):
        writer.omit("toolCall.arguments", "the arguments are not a JSON object, so they are sent inside one")
        arguments = {"unreadable": arguments}
    fields = writer.restore_fields(block, ("cache_control", "caller", "toolset_name"), "toolCall")
    return {"type": "tool_use", "id": id, "name": coerce_string(block.get("name")), "input": arguments, **fields}


def _write_result(message: JsonObject, writer: MessageWriter, ids: CallIds) -> JsonObject:
    fields = writer.restore_fields(message, ("cache_control", "toolset_name"), "toolResult")
    content = _write_content(message, writer)
    is_text = len(content) == 1 and content[0].keys() == {"type", "text"}
    result: JsonObject = {
        "type": "tool_result",
        "tool_use_id": ids.match_result(coerce_string(message.get("toolCallId"))),
        "content": content[0]["text"] if is_text else content,
        **fields,
    }
    if message.get("isError") is True:
        result["is_error"] = True
    return result


# From the SDK


def from_anthropic(messages: Iterable[Any], *, system: Any = None, provider: str = "anthropic") -> ConvertedBodies:
    """Return messages of Anthropic Messages as bodies to append.

    `system` is the system prompt, as text or text blocks. Items may be dicts, objects of the SDK, or whole `Message`
    responses, whose `provider` you name. Raises `InvalidOperation` if an item is malformed.
    """
    reader = BodyReader(API, provider)
    if system is not None:
        reader.add_system(reader.read_system_content(to_plain(system, "system"), "system"))
    for position, item in read_messages(messages, "messages"):
        fields = FieldReader(item, position, "a message")
        match fields.get("role"):
            case "user":
                _read_user(fields, reader)
            case "assistant":
                reader.add(_read_assistant(fields, reader))
            case "system":
                reader.add_system(reader.read_system_content(fields.get("content"), f"{position}.content"))
            case role:
                refuse(f"{position}.role", f"expected user, assistant or system, not {describe(role)}")
        if fields.get("type") != "message":
            reader.omit_rest(fields)
    return reader.bodies


def _read_user(fields: FieldReader, reader: BodyReader) -> None:
    """Add the tool results of a message, and the rest of its content as a user message."""
    content, position = fields.get("content"), f"{fields.position}.content"
    if isinstance(content, str):
        reader.add({"role": "user", "content": content})
        return
    if not is_list(content):
        refuse(position, f"expected text or a list of content blocks, not {describe(content)}")
    run: list[tuple[str, JsonObject]] = []
    for index, item in enumerate(content):
        block = FieldReader(item, f"{position}[{index}]", "a content block")
        if block.get("type") != "tool_result":
            run.append((block.position, item))
            continue
        _add_user(run, reader)
        reader.add(_read_result(block, reader))
    if run or not content:
        _add_user(run, reader, is_empty=not content)


def _add_user(run: list[tuple[str, JsonObject]], reader: BodyReader, *, is_empty: bool = False) -> None:
    if run or is_empty:
        message: JsonObject = {"role": "user", "content": []}
        _read_content(run, message, reader)
        reader.add(message)
        run.clear()


def _read_content(items: list[tuple[str, Any]], message: JsonObject, reader: BodyReader) -> None:
    """Add text and images to the content of a message. Other blocks are kept."""
    for index, (position, item) in enumerate(items):
        block = FieldReader(item, position, "a content block")
        match block.get("type"):
            case "text":
                message["content"].append(_read_text(block))
            case "image":
                source = block.get_object("source")
                data = encode_base64(source.get("data")) if source.get("type") == "base64" else None
                if data is None:
                    reader.keep_content(message, index, item, position)
                else:
                    image = {"type": "image", "data": data, "mimeType": coerce_string(source.get("media_type"))}
                    message["content"].append(keep_fields(image, API, block.rest))
            case str():
                reader.keep_content(message, index, item, position)
            case kind:
                refuse(f"{position}.type", f"expected the type of the block, not {describe(kind)}")


def _read_text(block: FieldReader) -> JsonObject:
    return keep_fields({"type": "text", "text": block.get_string("text")}, API, block.rest)


def _read_result(block: FieldReader, reader: BodyReader) -> JsonObject:
    content = block.get("content")
    message = reader.build_result(block.get_string("tool_use_id"), [], failed=block.get("is_error") is True)
    if isinstance(content, str):
        message["content"] += [{"type": "text", "text": content}] if content else []
    elif is_list(content):
        position = f"{block.position}.content"
        _read_content([(f"{position}[{index}]", item) for index, item in enumerate(content)], message, reader)
    elif content is not None:
        refuse(f"{block.position}.content", f"expected text or a list of content blocks, not {describe(content)}")
    return keep_fields(message, API, block.rest)


def _read_assistant(fields: FieldReader, reader: BodyReader) -> JsonObject:
    content, position = fields.get("content"), f"{fields.position}.content"
    blocks: list[JsonObject] = []
    message = reader.build_assistant(blocks)
    if isinstance(content, str):
        blocks += [{"type": "text", "text": content}] if content else []
    elif is_list(content):
        for index, item in enumerate(content):
            block = FieldReader(item, f"{position}[{index}]", "a content block")
            match block.get("type"):
                case "text":
                    blocks.append(_read_text(block))
                case "thinking":
                    thinking = {"type": "thinking", "thinking": block.get_string("thinking")}
                    blocks.append({**thinking, "thinkingSignature": block.get_string("signature")})
                case "redacted_thinking":
                    signature = block.get_string("data")
                    blocks.append(
                        {"type": "thinking", "thinking": "", "thinkingSignature": signature, "redacted": True}
                    )
                case "tool_use":
                    call: JsonObject = {
                        "type": "toolCall",
                        "id": block.get_string("id"),
                        "name": block.get_string("name"),
                        "arguments": block.get_object("input"),
                    }
                    blocks.append(keep_fields(call, API, block.rest))
                case str():
                    reader.keep_content(message, index, item, block.position)
                case kind:
                    refuse(f"{block.position}.type", f"expected the type of the block, not {describe(kind)}")
    else:
        refuse(position, f"expected text or a list of content blocks, not {describe(content)}")
    if fields.get("type") == "message" and "stop_reason" in fields.value:
        _describe_response(message, fields, reader)
    return message


def _describe_response(message: JsonObject, fields: FieldReader, reader: BodyReader) -> None:
    reason = coerce_string(fields.get("stop_reason"))
    reader.describe_answer(
        message,
        model=fields.get("model"),
        id=fields.get("id"),
        usage=_read_usage(fields.get("usage")),
        stop=STOP_REASONS.get(reason, "stop"),
        error=_describe_refusal(fields.get("stop_details")) if reason == "refusal" else None,
    )


def _describe_refusal(details: Any) -> str:
    explanation = coerce_string(details.get("explanation")) if is_object(details) else ""
    return f"the model refused to answer: {explanation}" if explanation else "the model refused to answer"


def _read_usage(usage: Any) -> JsonObject | None:
    if not is_object(usage):
        return None
    return {
        "input": count(usage.get("input_tokens")),
        "output": count(usage.get("output_tokens")),
        "cacheRead": count(usage.get("cache_read_input_tokens")),
        "cacheWrite": count(usage.get("cache_creation_input_tokens")),
    }
