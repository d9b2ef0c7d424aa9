"""OpenAI Chat: the `messages` of chat completions, which many servers accept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sessiontree.convert.base import (
    THINKING_FIELDS,
    ApiKind,
    BodyReader,
    FieldReader,
    MessageWriter,
    SentCalls,
    build_data_url,
    build_system_text,
    count,
    describe,
    get_api,
    keep_fields,
    parse_data_url,
    read_arguments,
    read_messages,
    refuse,
    split_call_id,
    write_arguments,
)
from sessiontree.core.context import Context
from sessiontree.core.conversion_result import ConvertedBodies, ConvertedMessages
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, get_role, is_list, is_object, iter_blocks

API = ApiKind.OPENAI_COMPATIBLE

STOP_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "toolUse",
    "function_call": "toolUse",
    "content_filter": "error",
}
CONTENT_FILTER = "the provider's content filter stopped the answer"


# To the SDK


def to_openai(context: Context) -> ConvertedMessages:
    """Return the messages of a request for `chat.completions.create`."""
    writer, calls = MessageWriter(API), SentCalls()
    for message in writer.read(context):
        match get_role(message):
            case "system":
                writer.messages.append(_write_system(message, writer))
            case "assistant":
                writer.messages.append(_write_assistant(message, writer, calls))
            case "toolResult":
                writer.messages.append(_write_result(message, writer, calls))
            case _:
                writer.messages.append(_write_user(message, writer))
    return writer.messages


def _write_system(message: JsonObject, writer: MessageWriter) -> JsonObject:
    kept = writer.restore_fields(message, ("role", "name"), "system")
    return {"role": "system", "content": build_system_text(message), **kept}


def _write_user(message: JsonObject, writer: MessageWriter) -> JsonObject:
    kept = writer.restore_fields(message, ("name",), "user")
    content = message.get("content")
    if isinstance(content, str):
        return {"role": "user", "content": content, **kept}
    parts: list[JsonObject] = []
    for block in iter_blocks(content):
        match block.get("type"):
            case "text":
                fields = writer.restore_fields(block, ("prompt_cache_breakpoint",), "text")
                parts.append({"type": "text", "text": coerce_string(block.get("text")), **fields})
            case "image" if writer.check_image(block) is not None:
                fields = writer.restore_fields(block, ("detail", "prompt_cache_breakpoint"), "image")
                url = {"url": build_data_url(block), **{k: fields.pop(k) for k in ("detail",) if k in fields}}
                parts.append({"type": "image_url", "image_url": url, **fields})
            case "image":
                pass
            case _:
                writer.omit_unknown(block)
    writer.restore_content(message, parts)
    return {"role": "user", "content": parts or "", **kept}


def _write_assistant(message: JsonObject, writer: MessageWriter, calls: SentCalls) -> JsonObject:
    calls.start_turn()
    sent: JsonObject = {"role": "assistant", **writer.restore_fields(message, ("name", "audio"), "assistant")}
    texts: list[JsonObject] = []
    tools: list[JsonObject] = []
    thinking: dict[str, list[str]] = {}
    order: list[int] = []
    for block in iter_blocks(message.get("content")):
        match block.get("type"):
            case "text":
                order.append(1)
                texts.append(_write_text(block, writer))
            case "thinking" if _find_thinking_field(message, block):
                order.append(0)
                thinking.setdefault(_find_thinking_field(message, block), []).append(
                    coerce_string(block.get("thinking"))
                )
            case "thinking":
                writer.omit("thinking", "OpenAI Chat accepts no thinking of this provider")
            case "toolCall":
                order.append(2)
                tools.append(_write_call(message, block, writer, calls))
            case _:
                writer.omit_unknown(block)
    writer.restore_content(message, texts)
    writer.omit_unless(order == sorted(order), "assistant", "OpenAI Chat puts thinking first and tool calls last")
    for field, words in thinking.items():
        writer.omit_unless(len(words) == 1, "thinking", "the parts of the thinking were joined")
        sent[field] = "\n\n".join(words)
    if len(texts) == 1 and texts[0].keys() == {"type", "text"}:
        sent["content"] = texts[0]["text"]
    elif texts or not tools:
        sent["content"] = texts or ""
    if tools:
        sent["tool_calls"] = tools
    return sent


def _find_thinking_field(message: JsonObject, block: JsonObject) -> str:
    """Return the field that holds this thinking, or an empty string if it came another way."""
    signature = coerce_string(block.get("thinkingSignature"))
    return signature if get_api(message) in (API, "") and signature in THINKING_FIELDS else ""


def _write_text(block: JsonObject, writer: MessageWriter) -> JsonObject:
    text = coerce_string(block.get("text"))
    fields = writer.restore_fields(block, ("prompt_cache_breakpoint",), "text")
    if block.get("textSignature"):
        writer.omit("text.textSignature", "OpenAI Chat has no place for the identity of a text")
    if block.get("refusal") is True:
        return {"type": "refusal", "refusal": text}
    return {"type": "text", "text": text, **fields}


def _write_call(message: JsonObject, block: JsonObject, writer: MessageWriter, calls: SentCalls) -> JsonObject:
    stored, name = coerce_string(block.get("id")), coerce_string(block.get("name"))
    id, item = split_call_id(message, stored)
    if item or block.get("thoughtSignature"):
        writer.omit("toolCall", "OpenAI Chat has no place for the signature or the item of a tool call")
    calls.add(stored, id, name)
    arguments = write_arguments(block.get("arguments"))
    if writer.restore_fields(block, ("type",), "toolCall").get("type") == "custom":
        return {"id": id, "type": "custom", "custom": {"name": name, "input": arguments}}
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _write_result(message: JsonObject, writer: MessageWriter, calls: SentCalls) -> JsonObject:
    id, _ = calls.match(message)
    writer.restore_fields(message, (), "toolResult")
    texts: list[JsonObject] = []
    for block in iter_blocks(message.get("content")):
        if block.get("type") == "text":
            fields = writer.restore_fields(block, ("prompt_cache_breakpoint",), "text")
            texts.append({"type": "text", "text": coerce_string(block.get("text")), **fields})
        else:
            writer.omit_unknown(block)
    writer.restore_content(message, texts)
    if message.get("isError") is True:
        writer.omit("toolResult.isError", "OpenAI Chat cannot mark a tool result as failed")
    content = texts[0]["text"] if len(texts) == 1 and texts[0].keys() == {"type", "text"} else texts or ""
    return {"role": "tool", "tool_call_id": id, "content": content}


# From the SDK


def from_openai(messages: Iterable[Any], *, provider: str = "openai") -> ConvertedBodies:
    """Return messages of OpenAI Chat as bodies to append.

    Items may be dicts, objects of the SDK, or whole `ChatCompletion` responses, whose `provider` you name. Raises
    `InvalidOperation` if an item is malformed.
    """
    reader = BodyReader(API, provider)
    for position, item in read_messages(messages, "messages"):
        fields = FieldReader(item, position, "a message")
        if "choices" in item:
            _read_completion(fields, reader)
            continue
        match fields.get("role"):
            case "user":
                reader.add(_read_user(fields, reader))
            case "assistant":
                reader.add(_read_assistant(fields, reader))
            case "tool":
                reader.add(_read_result(fields, reader))
            case "system" | "developer" as role:
                text = reader.read_system_content(fields.get("content"), f"{position}.content")
                kept = {**({"role": role} if role == "developer" else {}), **fields.rest}
                reader.add(keep_fields({"role": "system", "content": text}, API, kept))
            case "function":
                refuse(position, "messages of the role function are deprecated; use tool_calls and the role tool")
            case role:
                expected = "expected user, assistant, tool, system or developer"
                refuse(f"{position}.role", f"{expected}, not {describe(role)}")
    return reader.bodies


def _read_completion(fields: FieldReader, reader: BodyReader) -> None:
    choices = fields.get_list("choices")
    if not choices:
        refuse(f"{fields.position}.choices", "expected at least one choice")
    for index in range(1, len(choices)):
        reader.omit(f"{fields.position}.choices[{index}]", "choice", "only the first choice is stored")
    choice = FieldReader(choices[0], f"{fields.position}.choices[0]", "a choice")
    answer = FieldReader(choice.get("message"), f"{choice.position}.message", "a message")
    answer.ignore("role")
    message = _read_assistant(answer, reader)
    reason = coerce_string(choice.get("finish_reason"))
    reader.describe_answer(
        message,
        model=fields.get("model"),
        id=fields.get("id"),
        usage=_read_usage(fields.get("usage")),
        stop=STOP_REASONS.get(reason, "stop"),
        error=CONTENT_FILTER if reason == "content_filter" else None,
    )
    if choice.get("logprobs") is not None:
        reader.omit(f"{choice.position}.logprobs", "logprobs", "stored messages have no place for them")
    created = fields.get("created")
    if isinstance(created, int) and 0 < created < 10**11:
        message["timestamp"] = created * 1000
    reader.add(message)


def _read_usage(usage: Any) -> JsonObject | None:
    if not is_object(usage):
        return None
    details = usage.get("prompt_tokens_details")
    details = details if is_object(details) else {}
    read, written = count(details.get("cached_tokens")), count(details.get("cache_write_tokens"))
    return {
        "input": max(0, count(usage.get("prompt_tokens")) - read - written),
        "output": count(usage.get("completion_tokens")),
        "cacheRead": read,
        "cacheWrite": written,
    }


def _read_user(fields: FieldReader, reader: BodyReader) -> JsonObject:
    content = fields.get("content")
    if isinstance(content, str):
        return keep_fields({"role": "user", "content": content}, API, fields.rest)
    position = f"{fields.position}.content"
    if not is_list(content):
        refuse(position, f"expected text or a list of content parts, not {describe(content)}")
    blocks: list[JsonObject] = []
    message: JsonObject = {"role": "user", "content": blocks}
    for index, item in enumerate(content):
        part = FieldReader(item, f"{position}[{index}]", "a content part")
        match part.get("type"):
            case "text":
                blocks.append(_read_text(part))
            case "image_url":
                url = FieldReader(part.get("image_url"), f"{part.position}.image_url")
                block = parse_data_url(url.get_string("url"))
                if block is None:
                    reader.keep_content(message, index, item, part.position)
                else:
                    blocks.append(keep_fields(block, API, {**url.rest, **part.rest}))
            case str():
                reader.keep_content(message, index, item, part.position)
            case kind:
                refuse(f"{part.position}.type", f"expected the type of the part, not {describe(kind)}")
    return keep_fields(message, API, fields.rest)


def _read_text(part: FieldReader) -> JsonObject:
    return keep_fields({"type": "text", "text": part.get_string("text")}, API, part.rest)


def _read_assistant(fields: FieldReader, reader: BodyReader) -> JsonObject:
    blocks: list[JsonObject] = []
    message = reader.build_assistant(blocks)
    for field in THINKING_FIELDS:
        if isinstance(fields.value.get(field), str) and fields.get(field):
            blocks.append({"type": "thinking", "thinking": fields.get(field), "thinkingSignature": field})
    content, position = fields.get("content"), f"{fields.position}.content"
    if is_list(content):
        for index, item in enumerate(content):
            part = FieldReader(item, f"{position}[{index}]", "a content part")
            match part.get("type"):
                case "text":
                    blocks.append(_read_text(part))
                case "refusal":
                    blocks.append({"type": "text", "text": part.get_string("refusal"), "refusal": True})
                case kind:
                    refuse(f"{part.position}.type", f"expected text or refusal, not {describe(kind)}")
    elif content:
        blocks.append({"type": "text", "text": fields.get_string("content")})
    refusal = fields.find_string("refusal")
    fields.ignore("refusal", "parsed")
    if refusal:
        blocks.append({"type": "text", "text": refusal, "refusal": True})
    for index, call in enumerate(fields.find_list("tool_calls")):
        blocks.append(_read_call(FieldReader(call, f"{fields.position}.tool_calls[{index}]", "a tool call")))
    if fields.get("function_call") is not None:
        refuse(f"{fields.position}.function_call", "function_call is deprecated; use tool_calls")
    rest = fields.rest
    if rest.get("annotations") == []:
        del rest["annotations"]
    return keep_fields(message, API, rest)


def _read_call(call: FieldReader) -> JsonObject:
    is_custom = call.get("type") == "custom"
    name = "custom" if is_custom else "function"
    function = FieldReader(call.get(name), f"{call.position}.{name}")
    text = function.get_string("input" if is_custom else "arguments")
    block: JsonObject = {
        "type": "toolCall",
        "id": call.get_string("id"),
        "name": function.get_string("name"),
        "arguments": text if is_custom else read_arguments(text),
    }
    call.ignore("index")
    return keep_fields(block, API, {**({"type": "custom"} if is_custom else {}), **call.rest})


def _read_result(fields: FieldReader, reader: BodyReader) -> JsonObject:
    content, position = fields.get("content"), f"{fields.position}.content"
    blocks: list[JsonObject] = []
    if isinstance(content, str):
        blocks += [{"type": "text", "text": content}] if content else []
    elif is_list(content):
        for index, item in enumerate(content):
            part = FieldReader(item, f"{position}[{index}]", "a content part")
            if part.get("type") != "text":
                refuse(f"{part.position}.type", f"expected text, not {describe(part.get('type'))}")
            blocks.append(_read_text(part))
    else:
        refuse(position, f"expected text or a list of text parts, not {describe(content)}")
    message = reader.build_result(fields.get_string("tool_call_id"), blocks, name=fields.find_string("name"))
    return keep_fields(message, API, fields.rest)
