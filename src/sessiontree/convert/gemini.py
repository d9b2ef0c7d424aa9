"""Gemini: the `contents` and the system instruction of `models.generate_content`.

The SDK uses bytes for images and signatures, so the converted messages have bytes there. JSON of the REST API, with
names in camel case and base64 text, is accepted as input too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

from sessiontree.convert.base import (
    ApiKind,
    BodyReader,
    FieldReader,
    MessageWriter,
    SentCalls,
    build_system_text,
    count,
    decode_base64,
    describe,
    encode_base64,
    get_api,
    keep_fields,
    read_messages,
    refuse,
    split_call_id,
    to_json,
    to_plain,
)
from sessiontree.core.context import Context
from sessiontree.core.conversion_result import ConvertedBodies, ConvertedMessages
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import coerce_string, extract_text, get_role, is_list, is_object, iter_blocks

API = ApiKind.GOOGLE

STOP_REASONS = {"STOP": "stop", "FINISH_REASON_UNSPECIFIED": "stop", "MAX_TOKENS": "length", "CONTINUATION": "length"}
CANDIDATE_FIELDS = ("citation_metadata", "grounding_metadata", "url_context_metadata")
"""Metadata of the text in a candidate. A request has no place for it."""
BYTES_FIELDS = {"inline_data": "data", "thought_signature": ""}
"""Fields of a part that hold bytes, each with the name inside it if it is an object."""


# To the SDK


def to_gemini(context: Context) -> ConvertedMessages:
    """Return the contents of a request for `models.generate_content`. The system prompt is in `system` of the list."""
    writer, calls = _PartWriter(), SentCalls()
    system: list[str] = []
    for message in writer.read(context):
        match get_role(message):
            case "system":
                writer.restore_fields(message, (), "system")
                writer.omit_unless(
                    not writer.messages, "system", "Gemini has one system prompt, so this text joined it"
                )
                writer.omit_unless(not system or bool(writer.messages), "system", "the system prompts were joined")
                system.append(build_system_text(message))
            case "assistant":
                writer.add("model", writer.build_answer(message, calls))
            case "toolResult":
                writer.add("user", [writer.build_result(message, calls)], joins=True)
            case _:
                writer.restore_fields(message, (), "user")
                writer.add("user", writer.build_content(message))
    writer.messages.system = "\n\n".join(text for text in system if text)
    return writer.messages


class _PartWriter(MessageWriter):
    """Writes contents, which consist of parts."""

    def __init__(self) -> None:
        super().__init__(API)

    def add(self, role: str, parts: list[JsonObject], *, joins: bool = False) -> None:
        """Add a content. The results of one turn join in one content."""
        if not parts:
            self.omit(role, "Gemini accepts no empty content")
            return
        last: JsonObject = self.messages[-1] if joins and self.messages else {}
        if last.get("role") == "user" and "function_response" in last["parts"][-1]:
            last["parts"] += parts
        else:
            self.messages.append({"role": role, "parts": parts})

    def build_content(self, message: JsonObject) -> list[JsonObject]:
        parts: list[JsonObject] = []
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text":
                    parts += self._build_text(block, is_own=True)
                case "image":
                    parts += self._build_image(block)
                case _:
                    self.omit_unknown(block)
        self._restore_parts(message, parts)
        return parts

    def _restore_parts(self, message: JsonObject, parts: list[JsonObject]) -> None:
        kept: list[JsonObject | None] = [*parts]
        self.restore_content(message, kept)
        own = {id(part) for part in parts}
        parts[:] = [part if id(part) in own else _decode_bytes(part) for part in kept if part is not None]

    def _build_text(self, block: JsonObject, *, is_own: bool) -> list[JsonObject]:
        text = coerce_string(block.get("text"))
        fields = self._restore_part_fields(block, "text")
        fields |= self._decode_signature(block, "textSignature", is_own=is_own)
        if block.get("refusal") is True:
            self.omit("text.refusal", "Gemini cannot mark a text as a refusal")
        if not text and not fields:
            self.omit("text", "Gemini accepts no empty text")
            return []
        return [{"text": text, **fields}]

    def _restore_part_fields(self, block: JsonObject, kind: str) -> JsonObject:
        fields = self.restore_fields(block, PART_FIELDS, kind)
        return _decode_bytes(fields)

    def _decode_signature(self, block: JsonObject, name: str, *, is_own: bool) -> JsonObject:
        """Return the signature of a block as a field of a part. Lists a signature that is not one of Gemini."""
        signature = block.get(name)
        if not signature:
            return {}
        decoded = decode_base64(signature) if is_own else None
        if decoded is None:
            self.omit(f"{block.get('type')}.{name}", "Gemini accepts only its own signatures")
            return {}
        return {"thought_signature": decoded}

    def _build_image(self, block: JsonObject) -> list[JsonObject]:
        image = self.check_image(block)
        if image is None:
            return []
        data: JsonObject = {"data": image[0], "mime_type": image[1]}
        fields = self.restore_fields(block, (*PART_FIELDS, "display_name"), "image")
        data |= {name: fields.pop(name) for name in ("display_name",) if name in fields}
        return [{"inline_data": data, **_decode_bytes(fields)}]

    def build_answer(self, message: JsonObject, calls: SentCalls) -> list[JsonObject]:
        calls.start_turn()
        self.restore_fields(message, (), "assistant")
        is_own = get_api(message) in (API, "")
        parts: list[JsonObject] = []
        for block in iter_blocks(message.get("content")):
            match block.get("type"):
                case "text":
                    parts += self._build_text(block, is_own=is_own)
                case "thinking" if is_own and block.get("redacted") is not True:
                    fields = self._restore_part_fields(block, "thinking")
                    fields |= self._decode_signature(block, "thinkingSignature", is_own=is_own)
                    parts.append({"text": coerce_string(block.get("thinking")), "thought": True, **fields})
                case "thinking":
                    self.restore_fields(block, (), "thinking")
                    self.omit("thinking", "Gemini accepts only its own thinking")
                case "toolCall":
                    parts.append(self._build_call(message, block, calls, is_own=is_own))
                case "image":
                    parts += self._build_image(block)
                case _:
                    self.omit_unknown(block)
        self._restore_parts(message, parts)
        return parts

    def _build_call(self, message: JsonObject, block: JsonObject, calls: SentCalls, *, is_own: bool) -> JsonObject:
        stored, name, arguments = (
            coerce_string(block.get("id")),
            coerce_string(block.get("name")),
            block.get("arguments"),
        )
        id, item = split_call_id(message, stored)
        self.omit_unless(not item, "toolCall", "Gemini has no place for the item of a tool call")
        calls.add(stored, "" if _has_no_id(block) else id, name)
        if not is_object(arguments):
            self.omit("toolCall.arguments", "the arguments are not a JSON object, so they are sent inside one")
            arguments = {"unreadable": arguments}
        call: JsonObject = {"name": name, "args": arguments, **({} if _has_no_id(block) else {"id": id})}
        fields = self._restore_part_fields(block, "toolCall")
        return {
            "function_call": call,
            **fields,
            **self._decode_signature(block, "thoughtSignature", is_own=is_own),
        }

    def build_result(self, message: JsonObject, calls: SentCalls) -> JsonObject:
        id, name = calls.match(message)
        fields = self.restore_fields(message, ("response", "will_continue", "scheduling"), "toolResult")
        blocks = list(iter_blocks(message.get("content")))
        text = extract_text(blocks)
        texts = [block for block in blocks if block.get("type") == "text"]
        whole = fields.pop("response", None)
        if not is_object(whole) or _write_response(whole) != text:  # the result was edited since
            self.omit_unless(len(texts) < 2, "toolResult", "the texts of the result were joined")
            whole = {"error" if message.get("isError") is True else "output": text}
        kinds = [block.get("type") == "text" for block in blocks]
        self.omit_unless(kinds == sorted(kinds, reverse=True), "toolResult", "Gemini puts text before images")
        result: JsonObject = {"name": name, "response": whole, **({"id": id} if id else {}), **fields}
        parts: list[JsonObject] = []
        for block in blocks:
            match block.get("type"):
                case "text":
                    self.restore_fields(block, (), "text")
                case "image":
                    parts += [{"inline_data": part["inline_data"]} for part in self._build_image(block)]
                case _:
                    self.omit_unknown(block)
        self._restore_parts(message, parts)
        return {"function_response": {**result, **({"parts": parts} if parts else {})}}


def _has_no_id(block: JsonObject) -> bool:
    """Whether Gemini made the call without an id."""
    kept = block.get("providerData")
    fields = kept.get(API) if is_object(kept) else None
    return is_object(fields) and "id" in fields and fields["id"] is None


def _write_response(response: JsonObject) -> str:
    return json.dumps(response, ensure_ascii=False)


def _decode_bytes(part: JsonObject) -> JsonObject:
    """Return a part that was kept as JSON in the form of the SDK."""
    decoded = dict(part)
    for name, inner in BYTES_FIELDS.items():
        value = decoded.get(name)
        if inner and is_object(value):
            decoded[name] = {**value, inner: decode_base64(value.get(inner)) or b""}
        elif isinstance(value, str):
            decoded[name] = decode_base64(value) or b""
    return decoded


# From the SDK

PART_FIELDS = (
    "thought_signature",
    "video_metadata",
    "media_resolution",
    "part_metadata",
    "media_processing",
    "speech_metadata",
)
"""Fields of a part other than its content."""


def from_gemini(contents: Iterable[Any], *, system: Any = None, provider: str = "google") -> ConvertedBodies:
    """Return contents of Gemini as bodies to append.

    `system` is the system instruction, as text or a content. Items may be text, dicts, objects of the SDK, or whole
    `GenerateContentResponse` objects, whose `provider` you name. Raises `InvalidOperation` if an item is malformed.
    """
    reader = _ContentReader(provider)
    if system is not None:
        plain = to_plain(system, "system", keep_bytes=True)
        parts = plain.get("parts") if is_object(plain) else plain
        reader.add_system(reader.read_system_content(parts, "system"))
    for position, item in read_messages(contents, "contents", keep_bytes=True):
        if isinstance(item, str):
            reader.add({"role": "user", "content": item})
            continue
        fields = FieldReader(_use_python_names(item), position, "a content")
        if "candidates" in fields.value:
            reader.read_response(fields)
        else:
            reader.read_content(fields)
    return reader.bodies


def _use_python_names(value: Any) -> Any:
    """Return JSON of the REST API with the names of the SDK. Arguments and responses of tools stay as they are."""
    if is_list(value):
        return [_use_python_names(item) for item in value]
    if not is_object(value):
        return value
    named: JsonObject = {}
    for key, item in value.items():
        name = re.sub(r"(?<=[a-z])[A-Z]", lambda found: f"_{found[0].lower()}", key)
        named[name] = item if name in ("args", "response", "part_metadata") else _use_python_names(item)
    return named


class _ContentReader(BodyReader):
    """Reads contents. Calls without an id get one that depends only on the input."""

    def __init__(self, provider: str) -> None:
        super().__init__(API, provider)
        self._open_calls: list[tuple[str, str]] = []
        """The ids and names of calls without a result."""

    def read_content(self, fields: FieldReader) -> None:
        parts = fields.find_list("parts")
        match fields.get("role"):
            case "model":
                self.add(self._read_answer(parts, f"{fields.position}.parts"))
            case None | "user" | "function" | "tool":
                if fields.value.get("parts") is None:
                    refuse(f"{fields.position}.parts", "expected a list of parts, not nothing")
                self._read_input(parts, f"{fields.position}.parts")
            case role:
                refuse(f"{fields.position}.role", f"expected user or model, not {describe(role)}")
        self.omit_rest(fields)

    def _read_input(self, parts: list[Any], position: str) -> None:
        """Add the tool results of a content, and its other parts as a user message."""
        message: JsonObject = {"role": "user", "content": []}
        size = 0
        for index, item in enumerate(parts):
            part = FieldReader(item, f"{position}[{index}]", "a part")
            if part.value.get("function_response") is None:
                self._read_part(part, message, size)
                size += 1
                continue
            if size:
                self.add(message)
                message = {"role": "user", "content": []}
                size = 0
            self.add(self._read_result(part))
        if size or not parts:
            self.add(message)

    def _read_part(self, part: FieldReader, message: JsonObject, index: int) -> None:
        """Add text or an image to a message. Any other part is kept."""
        data = part.value.get("inline_data")
        text = part.value.get("text")
        if isinstance(text, str):
            part.ignore("text", "thought")
            message["content"].append(self._keep_part({"type": "text", "text": text}, part, "textSignature"))
        elif is_object(data) and coerce_string(data.get("mime_type")).startswith("image/"):
            image = FieldReader(part.get("inline_data"), f"{part.position}.inline_data")
            encoded = encode_base64(image.get("data"))
            if not encoded:
                refuse(f"{image.position}.data", "expected bytes or base64 text")
            block: JsonObject = {"type": "image", "data": encoded, "mimeType": image.get_string("mime_type")}
            message["content"].append(keep_fields(block, API, {**image.rest, **part.rest}))
        elif not any(value is not None for name, value in part.value.items() if name not in PART_FIELDS):
            refuse(part.position, "expected a part with text, inline_data, function_call or another kind of content")
        else:
            self.keep_content(message, index, {k: v for k, v in part.value.items() if v is not None}, part.position)

    def _keep_part(self, block: JsonObject, part: FieldReader, name: str) -> JsonObject:
        """Add the signature and the other fields of a part to its block."""
        signature = part.get("thought_signature")
        if signature is not None:
            encoded = encode_base64(signature)
            if encoded is None:
                refuse(f"{part.position}.thought_signature", "expected bytes or base64 text")
            block[name] = encoded
        return keep_fields(block, API, part.rest)

    def _read_answer(self, parts: list[Any], position: str) -> JsonObject:
        blocks: list[JsonObject] = []
        message = self.build_assistant(blocks)
        self._open_calls = []
        for index, item in enumerate(parts):
            part = FieldReader(item, f"{position}[{index}]", "a part")
            if part.value.get("function_call") is not None:
                blocks.append(self._read_call(part))
            elif part.value.get("thought") is True and isinstance(part.value.get("text"), str):
                part.ignore("thought")
                block: JsonObject = {"type": "thinking", "thinking": part.get_string("text")}
                blocks.append(self._keep_part(block, part, "thinkingSignature"))
            else:
                self._read_part(part, message, index)
        return message

    def _read_call(self, part: FieldReader) -> JsonObject:
        call = FieldReader(part.get("function_call"), f"{part.position}.function_call")
        name, id = call.get_string("name"), call.find_string("id")
        arguments = to_json({} if call.get("args") is None else call.get_object("args"))
        call.ignore("id")
        block: JsonObject = {"type": "toolCall", "id": id or self._make_id(call), "name": name, "arguments": arguments}
        if not id:
            keep_fields(block, API, {"id": None})
        self._open_calls.append((block["id"], name))
        return keep_fields(self._keep_part(block, part, "thoughtSignature"), API, call.rest)

    def _make_id(self, fields: FieldReader) -> str:
        """Return an id that depends on the position and the content of a call or a result."""
        text = json.dumps([fields.position, to_json(fields.value)], sort_keys=True)
        return f"gemini_{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"

    def _read_result(self, part: FieldReader) -> JsonObject:
        result = FieldReader(part.get("function_response"), f"{part.position}.function_response")
        name, id = result.get_string("name"), result.find_string("id")
        result.ignore("id")
        response = to_json({} if result.get("response") is None else result.get_object("response"))
        message = self.build_result(id or self._match_call(name, result), [], name=name)
        match list(response.items()):
            case [("output" | "error" as key, str(text))]:
                message["content"] += [{"type": "text", "text": text}] if text else []
                message["isError"] = key == "error"
            case _:
                message["content"].append({"type": "text", "text": _write_response(response)})
                keep_fields(message, API, {"response": response})
        for index, item in enumerate(result.find_list("parts")):
            inner = FieldReader(item, f"{result.position}.parts[{index}]", "a part")
            self._read_part(inner, message, index)
        self.omit_rest(part)
        return keep_fields(message, API, result.rest)

    def _match_call(self, name: str, result: FieldReader) -> str:
        """Return the id of the first call with this name that has no result."""
        for index, (id, called) in enumerate(self._open_calls):
            if called == name:
                del self._open_calls[index]
                return id
        return self._make_id(result)

    def read_response(self, fields: FieldReader) -> None:
        candidates = fields.find_list("candidates")
        for index in range(1, len(candidates)):
            self.omit(f"{fields.position}.candidates[{index}]", "candidate", "only the first candidate is stored")
        position = f"{fields.position}.candidates[0]"
        candidate = FieldReader(candidates[0] if candidates else {}, position, "a candidate")
        content = candidate.get("content")
        inner = FieldReader({} if content is None else content, f"{position}.content", "a content")
        message = self._read_answer(inner.find_list("parts"), f"{inner.position}.parts")
        reason = coerce_string(candidate.get("finish_reason")) or ("STOP" if candidates else "SAFETY")
        is_known = reason in STOP_REASONS
        self.describe_answer(
            message,
            model=fields.get("model_version"),
            id=fields.get("response_id"),
            usage=_read_usage(fields.get("usage_metadata")),
            stop=STOP_REASONS.get(reason, "error"),
            error=None
            if is_known
            else coerce_string(candidate.get("finish_message")) or f"Gemini stopped with {reason}",
        )
        said = {name: candidate.get(name) for name in CANDIDATE_FIELDS}
        self.add(keep_fields(message, API, {name: value for name, value in said.items() if value is not None}))


def _read_usage(usage: Any) -> JsonObject | None:
    if not is_object(usage):
        return None
    read = count(usage.get("cached_content_token_count"))
    prompt = count(usage.get("prompt_token_count")) + count(usage.get("tool_use_prompt_token_count"))
    return {
        "input": max(0, prompt - read),
        "output": count(usage.get("candidates_token_count")) + count(usage.get("thoughts_token_count")),
        "cacheRead": read,
        "cacheWrite": 0,
    }
