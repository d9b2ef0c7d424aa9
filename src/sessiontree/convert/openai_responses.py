"""OpenAI Responses: the `input` items of `responses.create`.

Items of an answer are stored the way other programs store them: the id of a message in `textSignature`, a whole
reasoning item in `thinkingSignature`, and the id of a call's item behind the call id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from sessiontree.convert.base import (
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
    parse_object,
    read_arguments,
    read_messages,
    refuse,
    split_call_id,
    write_arguments,
)
from sessiontree.convert.openai_chat import CONTENT_FILTER
from sessiontree.core.context import Context
from sessiontree.core.conversion_result import ConvertedBodies, ConvertedMessages
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, get_role, is_list, is_object, iter_blocks
from sessiontree.errors import InvalidOperation

API = ApiKind.OPENAI_RESPONSES

CALL_FIELDS = ("type", "status", "namespace", "caller", "async", "arguments")
RESULT_FIELDS = ("id", "status", "caller", "name", "namespace")


# To the SDK


def to_openai_responses(context: Context) -> ConvertedMessages:
    """Return the items of a request for `responses.create`."""
    writer = _ItemWriter()
    previous = ""
    for message in writer.read(context):
        role = get_role(message)
        if role == previous == "assistant":
            writer.omit(role, "OpenAI Responses does not separate answers in a row")
        writer.add(message)
        previous = role
    return writer.messages


def restore_items(message: JsonObject) -> list[JsonObject]:
    """Return the items of one stored message. Nothing is repaired or left out for a request."""
    writer = _ItemWriter()
    writer.add(message)
    return list(writer.messages)


class _ItemWriter(MessageWriter):
    """Writes items, of which one answer may have several."""

    def __init__(self) -> None:
        super().__init__(API)
        self._calls = SentCalls()
        self._custom: set[str] = set()
        """The ids of calls of custom tools, whose results are items of another type."""

    def add(self, message: JsonObject) -> None:
        match get_role(message):
            case "system":
                kept = self.restore_fields(message, ("role", "status"), "system")
                self.messages.append({"role": "system", "content": build_system_text(message), **kept})
            case "assistant":
                self._add_answer(message)
            case "toolResult":
                self._add_result(message)
            case _:
                kept = self.restore_fields(message, ("status", "phase"), "user")
                content = message.get("content")
                sent = content if isinstance(content, str) else self.build_content(message) or ""
                self.messages.append({"role": "user", "content": sent, **kept})

    def build_content(self, message: JsonObject) -> list[JsonObject]:
        """Return the parts of a user message or of a tool result."""
        parts: list[JsonObject] = []
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text":
                    fields = self.restore_fields(block, ("prompt_cache_breakpoint",), "text")
                    parts.append({"type": "input_text", "text": coerce_string(block.get("text")), **fields})
                case "image":
                    if self.check_image(block) is not None:
                        fields = self.restore_fields(block, ("detail", "prompt_cache_breakpoint"), "image")
                        url = build_data_url(block)
                        parts.append({"type": "input_image", "image_url": url, "detail": "auto", **fields})
                case _:
                    self.omit_unknown(block)
        self.restore_content(message, parts)
        return parts

    def _add_answer(self, message: JsonObject) -> None:
        self._calls.start_turn()
        self.restore_fields(message, (), "assistant")
        items: list[JsonObject] = []
        is_own = get_api(message) in (API, "")
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text":
                    self._add_text(block, items, is_own=is_own)
                case "thinking":
                    self.restore_fields(block, (), "thinking")
                    item = parse_object(coerce_string(block.get("thinkingSignature"))) if is_own else {}
                    if item.get("type") == "reasoning" and isinstance(item.get("id"), str) and "summary" in item:
                        items.append(item)
                    else:
                        self.omit("thinking", "OpenAI Responses accepts only its own reasoning items")
                case "toolCall":
                    items.append(self._build_call(message, block))
                case _:
                    self.omit_unknown(block)
        self.restore_content(message, items)
        self.messages.extend(items)

    def _add_text(self, block: JsonObject, items: list[JsonObject], *, is_own: bool) -> None:
        text, signature = coerce_string(block.get("text")), coerce_string(block.get("textSignature"))
        identity = parse_object(signature)
        id = (coerce_string(identity.get("id")) if identity else signature) if is_own else ""
        self.omit_unless(is_own or not signature, "text.textSignature", "it identifies a text to another provider")
        fields = self.restore_fields(block, ("annotations", "logprobs", "status", "phase"), "text")
        phase = fields.pop("phase", identity.get("phase") if is_own else None)
        placed: JsonObject = {} if phase is None else {"phase": phase}
        if not id:
            if block.get("refusal") is True:
                self.omit("text.refusal", "OpenAI Responses marks a refusal only in an item that has an id")
            for name in fields:
                self.omit(f"text.{name}", f"OpenAI Responses has the field {name} only in an item that has an id")
            items.append({"role": "assistant", "content": text, **placed})
            return
        status = fields.pop("status", "completed")
        part: JsonObject = {"type": "output_text", "text": text, "annotations": [], **fields}
        if block.get("refusal") is True:
            part = {"type": "refusal", "refusal": text}
        if items and items[-1].get("type") == "message" and items[-1].get("id") == id:
            items[-1]["content"].append(part)
        else:
            item = {"type": "message", "id": id, "role": "assistant", "status": status, "content": [part], **placed}
            items.append(item)

    def _build_call(self, message: JsonObject, block: JsonObject) -> JsonObject:
        stored, name = coerce_string(block.get("id")), coerce_string(block.get("name"))
        id, item = split_call_id(message, stored)
        if block.get("thoughtSignature"):
            self.omit("toolCall.thoughtSignature", "OpenAI Responses has no place for the signature of a tool call")
        self._calls.add(stored, id, name)
        fields = self.restore_fields(block, CALL_FIELDS, "toolCall")
        call: JsonObject = {"call_id": id, "name": name, **({"id": item} if item else {})}
        arguments, text = write_arguments(block.get("arguments")), fields.pop("arguments", None)
        if isinstance(text, str) and read_arguments(text) == block.get("arguments"):
            arguments = text
        if fields.get("type") == "custom_tool_call":
            self._custom.add(id)
            return {**call, **fields, "input": arguments}
        done = {"status": "completed"} if item else {}
        return {"type": "function_call", **call, "arguments": arguments, **done, **fields}

    def _add_result(self, message: JsonObject) -> None:
        id, _ = self._calls.match(message)
        kept = self.restore_fields(message, RESULT_FIELDS, "toolResult")
        content = self.build_content(message)
        is_text = len(content) == 1 and content[0].keys() == {"type", "text"}
        if message.get("isError") is True:
            self.omit("toolResult.isError", "OpenAI Responses cannot mark a tool result as failed")
        self.messages.append(
            {
                "type": "custom_tool_call_output" if id in self._custom else "function_call_output",
                "call_id": id,
                "output": content[0]["text"] if is_text else content or "",
                **kept,
            }
        )


# From the SDK


def from_openai_responses(
    items: Iterable[Any], *, instructions: str | None = None, provider: str = "openai"
) -> ConvertedBodies:
    """Return items of OpenAI Responses as bodies to append.

    `instructions` is the system prompt. Items may be dicts, objects of the SDK, or whole `Response` objects, whose
    `provider` you name. Raises `InvalidOperation` if an item is malformed.
    """
    reader = _ItemReader(provider)
    if instructions is not None:
        reader.add_system(instructions)
    for position, item in read_messages(items, "items"):
        fields = FieldReader(item, position, "an item")
        if fields.value.get("object") == "response":
            reader.end_answer()
            reader.read_response(fields)
        else:
            reader.read_item(fields)
    reader.end_answer()
    return reader.bodies


def store_items(items: Iterable[Any], earlier: Iterable[JsonObject]) -> list[tuple[JsonObject, list[JsonObject]]]:
    """Return the stored messages of items, each with the items that it is made of.

    `earlier` are stored messages whose tool calls the results may answer, the last one first. An item that is
    malformed, but has a type or a role, is kept as it is. Raises `InvalidOperation` for any other.
    """
    reader = _ItemReader("openai")
    reader.add_earlier(earlier)
    groups: list[list[JsonObject]] = []
    waiting: list[JsonObject] = []
    for position, item in read_messages(items, "items"):
        fields = FieldReader(item, position, "an item")
        try:
            reader.read_item(fields)
        except InvalidOperation:
            if not isinstance(item.get("type", item.get("role")), str):
                raise
            reader.keep_item(fields)
        if waiting and len(reader.bodies) > len(groups):
            groups.append(waiting)
            waiting = []
        if len(reader.bodies) > len(groups):
            groups.append([item])
        else:
            waiting.append(item)
    reader.end_answer()
    groups += [waiting] if waiting else []
    return [(body.message, group) for body, group in zip(reader.bodies, groups, strict=True)]


class _ItemReader(BodyReader):
    """Reads items. The items of an answer become one message."""

    def __init__(self, provider: str) -> None:
        super().__init__(API, provider)
        self._answer: JsonObject | None = None
        self._size = 0
        """The number of items of the answer so far."""

    def end_answer(self) -> None:
        if self._answer is not None:
            self.add(self._answer)
        self._answer, self._size = None, 0

    def _start_answer(self) -> JsonObject:
        if self._answer is None:
            self._answer = self.build_assistant([])
        return self._answer

    def read_item(self, fields: FieldReader) -> None:
        kind, role = fields.get("type"), fields.value.get("role")
        match kind:
            case None | "message" if role == "assistant":
                self._read_answer_text(fields)
            case None | "message":
                self.end_answer()
                self._read_input(fields)
                return
            case "reasoning":
                self._start_answer()["content"].append(_read_reasoning(fields))
            case "function_call" | "custom_tool_call":
                self._start_answer()["content"].append(self._read_call(fields, str(kind)))
            case "function_call_output" | "custom_tool_call_output":
                self.end_answer()
                self._read_result(fields)
                return
            case str():
                self.keep_item(fields)
                return
            case _:
                refuse(f"{fields.position}.type", f"expected the type of the item, not {describe(kind)}")
        self._size += 1

    def keep_item(self, fields: FieldReader) -> None:
        """Keep an item that has no form in a stored message, as a part of the answer."""
        self.keep_content(self._start_answer(), self._size, fields.value, fields.position)
        self._size += 1

    def _read_answer_text(self, fields: FieldReader) -> None:
        fields.ignore("role")
        content, position = fields.get("content"), f"{fields.position}.content"
        id, phase, status = fields.find_string("id"), fields.find_string("phase"), fields.get("status")
        fields.ignore("id", "phase")
        kept: JsonObject = {**fields.rest, **({"status": status} if status not in (None, "completed") else {})}
        identity: JsonObject = {}
        if id and phase:
            identity = {"textSignature": json.dumps({"v": 1, "id": id, "phase": phase}, separators=(",", ":"))}
        elif id:
            identity = {"textSignature": id}
        elif phase:
            kept["phase"] = phase
        if isinstance(content, str):
            content = [{"type": "output_text", "text": content}]
        if not is_list(content):
            refuse(position, f"expected text or a list of content parts, not {describe(content)}")
        answer = self._start_answer()
        for index, item in enumerate(content):
            part = FieldReader(item, f"{position}[{index}]", "a content part")
            match part.get("type"):
                case "output_text" | "input_text" | "text":
                    block: JsonObject = {"type": "text", "text": part.get_string("text"), **identity}
                    rest = {name: value for name, value in part.rest.items() if (name, value) != ("annotations", [])}
                    answer["content"].append(keep_fields(block, API, {**rest, **kept}))
                case "refusal":
                    block = {"type": "text", "text": part.get_string("refusal"), "refusal": True, **identity}
                    answer["content"].append(keep_fields(block, API, kept))
                case kind:
                    refuse(f"{part.position}.type", f"expected output_text or refusal, not {describe(kind)}")
        if not content:
            self.keep_content(answer, self._size, fields.value, fields.position)

    def _read_call(self, fields: FieldReader, kind: str) -> JsonObject:
        is_custom = kind == "custom_tool_call"
        call, item = fields.get_string("call_id"), fields.find_string("id")
        fields.ignore("id")
        text = fields.get_string("input" if is_custom else "arguments")
        stored = f"{call}|{item}" if item else call
        block: JsonObject = {
            "type": "toolCall",
            "id": stored,
            "name": fields.get_string("name"),
            "arguments": text if is_custom else read_arguments(text),
        }
        if item and fields.value.get("status") == "completed":
            fields.ignore("status")
        if write_arguments(block["arguments"]) != text:
            keep_fields(block, API, {"arguments": text})  # providers cache prompts by their exact text
        return keep_fields(block, API, {**({"type": kind} if is_custom else {}), **fields.rest})

    def _read_result(self, fields: FieldReader) -> None:
        call = fields.get_string("call_id")
        output, position = fields.get("output"), f"{fields.position}.output"
        message = self.build_result(self.find_call(call), [])
        if isinstance(output, str):
            message["content"] += [{"type": "text", "text": output}] if output else []
        elif is_list(output):
            self._read_content(output, position, message)
        else:
            refuse(position, f"expected text or a list of content parts, not {describe(output)}")
        self.add(keep_fields(message, API, fields.rest))

    def _read_input(self, fields: FieldReader) -> None:
        role, content, position = fields.get("role"), fields.get("content"), f"{fields.position}.content"
        if role in ("system", "developer"):
            text = self.read_system_content(content, position)
            kept = {**({"role": role} if role == "developer" else {}), **fields.rest}
            self.add(keep_fields({"role": "system", "content": text}, API, kept))
        elif role != "user":
            expected = "expected user, assistant, system or developer"
            refuse(f"{fields.position}.role", f"{expected}, not {describe(role)}")
        elif isinstance(content, str):
            self.add(keep_fields({"role": "user", "content": content}, API, fields.rest))
        elif is_list(content):
            message: JsonObject = {"role": "user", "content": []}
            self._read_content(content, position, message)
            self.add(keep_fields(message, API, fields.rest))
        else:
            refuse(position, f"expected text or a list of content parts, not {describe(content)}")

    def _read_content(self, parts: list[Any], position: str, message: JsonObject) -> None:
        """Add text and images to the content of a message. Other parts are kept."""
        for index, item in enumerate(parts):
            part = FieldReader(item, f"{position}[{index}]", "a content part")
            match part.get("type"):
                case "input_text":
                    block: JsonObject = {"type": "text", "text": part.get_string("text")}
                    message["content"].append(keep_fields(block, API, part.rest))
                case "input_image" if parse_data_url(coerce_string(part.value.get("image_url"))) is not None:
                    block = parse_data_url(part.get_string("image_url")) or {}
                    if part.value.get("detail") == "auto":
                        part.ignore("detail")
                    message["content"].append(keep_fields(block, API, part.rest))
                case str():
                    self.keep_content(message, index, item, part.position)
                case kind:
                    refuse(f"{part.position}.type", f"expected the type of the part, not {describe(kind)}")

    def read_response(self, fields: FieldReader) -> None:
        for index, item in enumerate(fields.get_list("output")):
            self.read_item(FieldReader(item, f"{fields.position}.output[{index}]", "an item"))
        message = self._start_answer()
        stop, error = _read_status(fields)
        self.describe_answer(
            message,
            model=fields.get("model"),
            id=fields.get("id"),
            usage=_read_usage(fields.get("usage")),
            stop=stop,
            error=error,
        )
        created = fields.get("created_at")
        if isinstance(created, int | float) and 0 < created < 10**11:
            message["timestamp"] = int(created * 1000)
        self.end_answer()


def _read_reasoning(fields: FieldReader) -> JsonObject:
    fields.get_string("id")
    texts = [
        coerce_string(part.get("text"))
        for name in ("summary", "content")
        for part in fields.find_list(name)
        if is_object(part)
    ]
    item: JsonObject = {**fields.value, "summary": fields.find_list("summary")}
    signature = json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return {"type": "thinking", "thinking": "\n\n".join(texts), "thinkingSignature": signature}


def _read_status(fields: FieldReader) -> tuple[str, str | None]:
    """Return the stop reason and the error message of a response."""
    error, details = fields.get("error"), fields.get("incomplete_details")
    match fields.get("status"):
        case "incomplete" if is_object(details) and details.get("reason") == "content_filter":
            return "error", CONTENT_FILTER
        case "incomplete":
            return "length", None
        case "failed":
            return "error", (coerce_string(error.get("message")) if is_object(error) else "") or "the model failed"
        case "cancelled" | "in_progress" | "queued":
            return "aborted", None
        case _:
            return "stop", None


def _read_usage(usage: Any) -> JsonObject | None:
    if not is_object(usage):
        return None
    details = usage.get("input_tokens_details")
    details = details if is_object(details) else {}
    read, written = count(details.get("cached_tokens")), count(details.get("cache_write_tokens"))
    return {
        "input": max(0, count(usage.get("input_tokens")) - read - written),
        "output": count(usage.get("output_tokens")),
        "cacheRead": read,
        "cacheWrite": written,
    }
