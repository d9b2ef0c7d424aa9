"""pydantic-ai: `ModelMessage` objects, as `message_history` of an agent takes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from sessiontree.convert.base import (
    PROVIDER_DATA,
    PYDANTIC_AI,
    THINKING_FIELDS,
    ApiKind,
    BodyReader,
    MessageWriter,
    SentCalls,
    build_system_text,
    count,
    decode_base64,
    describe,
    encode_base64,
    get_api,
    keep_fields,
    refuse,
    split_call_id,
)
from sessiontree.convert.pydantic_ai_parts import STOP_REASONS, build_blocks, build_identity, build_thinking, is_signed
from sessiontree.core.context import Context
from sessiontree.core.conversion_result import ConvertedBodies, ConvertedMessages
from sessiontree.core.entries import JsonObject, Message
from sessiontree.core.messages import (
    coerce_number,
    coerce_string,
    extract_text,
    get_role,
    is_list,
    is_object,
    iter_blocks,
)

FINISH_REASONS = {"stop": "stop", "length": "length", "toolUse": "tool_call", "error": "error"}
NO_TIME = datetime.fromtimestamp(0, UTC)
"""The time of a message that has none."""


# To the SDK


def to_pydantic_ai(context: Context) -> ConvertedMessages:
    """Return the messages of a request as `ModelMessage` objects, for `message_history`."""
    writer = _HistoryWriter()
    for message in writer.read(context):
        writer.add(message)
    writer.messages.extend(writer.build())
    return writer.messages


def restore_pydantic_ai(messages: Sequence[JsonObject]) -> list[tuple[int, ModelMessage]]:
    """Return stored messages as `ModelMessage` objects, each with the index of the last message that it comes from.

    Nothing is repaired or left out for a request: failed turns and calls without a result are in the list.
    """
    writer = _HistoryWriter()
    ends: list[int] = []
    for index, message in enumerate(messages):
        if writer.add(message) > len(ends):
            ends.append(index)
        elif get_role(message) != "assistant":
            ends[-1] = index
    return list(zip(ends, writer.build(), strict=True))


class _HistoryWriter(MessageWriter):
    """Builds messages as objects, then puts kept fields into their JSON form and validates that."""

    def __init__(self) -> None:
        super().__init__(PYDANTIC_AI)
        self._history: list[ModelMessage] = []
        self._kept: list[tuple[JsonObject, list[tuple[JsonObject, list[JsonObject]]]]] = []
        """For each message its kept fields, and for each part its kept fields and the content to put back."""
        self._calls = SentCalls()

    def add(self, message: JsonObject) -> int:
        """Add a stored message, and return how many messages there are now. It may join the one before."""
        own = _get_own(message)
        if get_role(message) == "assistant":
            response = self._build_response(message)
            if response.parts:
                self._history.append(response)
            else:
                self.omit("assistant", "pydantic-ai has no place for an empty answer")
            return len(self._history)
        self.restore_fields(message, tuple(own), get_role(message))
        extra: list[JsonObject] = []
        self.restore_content(message, extra)
        indexes = [index for index, _ in _list_content(own)]
        fields = {name: value for name, value in own.items() if name not in ("request", "content", "tool_content")}
        part = build_request_part(message, self)
        if isinstance(part, ToolReturnPart):
            part.tool_call_id, _ = self._calls.match(message)
        last = self._history[-1] if self._history else None
        if isinstance(last, ModelRequest) and not starts_message(message):
            last.parts = [*last.parts, part]
        else:
            self._history.append(ModelRequest(parts=[part]))
            request = own.get("request")
            self._kept.append((request if is_object(request) else {}, []))
        self._kept[-1][1].append((fields, [{"index": i, "item": b} for i, b in zip(indexes, extra, strict=True)]))
        return len(self._history)

    def _build_response(self, message: JsonObject) -> ModelResponse:
        self._calls.start_turn()
        own = _get_own(message)
        self.restore_fields(message, tuple(own), "assistant")
        blocks: list[JsonObject] = []
        parts: list[tuple[JsonObject, list[JsonObject]]] = []
        for block in iter_blocks(message.get("content")):
            kind = coerce_string(block.get("type"))
            fields = _get_own(block)
            self.restore_fields(block, tuple(fields), kind or "block")
            if block.get("refusal") is True:
                self.omit("text.refusal", "pydantic-ai cannot mark a text as a refusal")
            if kind not in ("text", "thinking", "toolCall", "image"):
                self.omit_unknown(block)
            elif kind != "image" or self.check_image(block) is not None:
                blocks.append(block)
                parts.append((fields, []))
            if kind == "toolCall":
                stored, name = coerce_string(block.get("id")), coerce_string(block.get("name"))
                self._calls.add(stored, split_call_id(message, stored)[0], name)
        response = build_response({**message, "content": blocks})
        extra: list[JsonObject] = []
        self.restore_content(message, extra)
        fields = {name: value for name, value in own.items() if name != "content"}
        if response.parts or extra:
            self._kept.append((fields, parts))
        for (index, _), item in zip(_list_content(own), extra, strict=True):
            self._kept[-1][1].insert(index, (item, []))
            response.parts = [*response.parts[:index], TextPart(""), *response.parts[index:]]
        return response

    def build(self) -> list[Any]:
        """Return the messages with all kept fields."""
        dumped: list[JsonObject] = ModelMessagesTypeAdapter.dump_python(self._history, mode="json")
        for message, (fields, parts) in zip(dumped, self._kept, strict=True):
            message.update(fields)
            for index, (kept, extra) in enumerate(parts):
                part = message["parts"][index]
                if "part_kind" in kept and kept["part_kind"] != part["part_kind"]:
                    part.clear()  # a whole part takes the place that was held for it
                part.update(kept)
                for item in extra:
                    if isinstance(part["content"], str):
                        part["content"] = [part["content"]] if part["content"] else []
                    if is_list(part["content"]):
                        part["content"].insert(item["index"], item["item"])
        try:
            return ModelMessagesTypeAdapter.validate_json(json.dumps(dumped))
        except (ValidationError, ValueError):
            self.omit(PROVIDER_DATA, "the fields that were kept for pydantic-ai are not valid")
            return self._history


def starts_message(message: JsonObject) -> bool:
    """Return whether a stored message never joins the request before it."""
    return get_role(message) == "assistant" or "request" in _get_own(message)


def _get_own(owner: JsonObject) -> JsonObject:
    kept = owner.get(PROVIDER_DATA)
    own = kept.get(PYDANTIC_AI) if is_object(kept) else None
    return own if is_object(own) else {}


def _list_content(own: JsonObject) -> list[tuple[int, JsonObject]]:
    items = own.get("content")
    return [
        (item[0], item[1])
        for item in (items if is_list(items) else ())
        if is_list(item) and len(item) == 2 and isinstance(item[0], int) and is_object(item[1])
    ]


def build_request_part(message: JsonObject, writer: MessageWriter) -> ModelRequestPart:
    """Return the part of a message that is not an answer."""
    time = _read_time(message)
    match get_role(message):
        case "system":
            return SystemPromptPart(build_system_text(message), timestamp=time)
        case "toolResult":
            own = _get_own(message)
            content: Any = _build_content(message, writer)
            if "tool_content" in own and _write_value(own["tool_content"]) == extract_text(message.get("content")):
                content = own["tool_content"]
            elif is_list(content) and len(content) < 2 and all(isinstance(item, str) for item in content):
                content = content[0] if content else ""
            return ToolReturnPart(
                coerce_string(message.get("toolName")),
                content,
                coerce_string(message.get("toolCallId")).partition("|")[0],
                timestamp=time,
                outcome="failed" if message.get("isError") is True else "success",
            )
        case _:
            text = message.get("content")
            return UserPromptPart(text if isinstance(text, str) else _build_content(message, writer), timestamp=time)


def _write_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _build_content(message: JsonObject, writer: MessageWriter) -> list[UserContent]:
    content: list[UserContent] = []
    for block in iter_blocks(message.get("content")):
        kind = block.get("type")
        writer.restore_fields(block, (), coerce_string(kind) or "block")
        image = writer.check_image(block) if kind == "image" else None
        if image is not None:
            content.append(BinaryContent(image[0], media_type=image[1]))
        elif kind == "text":
            content.append(coerce_string(block.get("text")))
        elif kind != "image":
            writer.omit_unknown(block)
    return content


def _read_time(message: JsonObject) -> datetime:
    try:
        return datetime.fromtimestamp(coerce_number(message.get("timestamp")) / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return NO_TIME


def build_response(message: JsonObject) -> ModelResponse:
    """Return an assistant message as a response, with one part for each valid block."""
    api, provider = get_api(message), coerce_string(message.get("provider"))
    provider = "" if provider == "unknown" else provider
    model = coerce_string(message.get("model"))
    parts: list[ModelResponsePart] = []
    for block in iter_blocks(message.get("content")):
        match block.get("type"):
            case "text":
                signature = coerce_string(block.get("textSignature"))
                text = coerce_string(block.get("text"))
                parts.append(TextPart(text, **build_identity(signature, api, provider)))
            case "thinking" if is_signed(block, api):
                parts.append(build_thinking(block, api, provider))
            case "thinking":
                parts.append(ThinkingPart(coerce_string(block.get("thinking"))))
            case "toolCall":
                call, item = split_call_id(message, coerce_string(block.get("id")))
                signature = item or coerce_string(block.get("thoughtSignature"))
                arguments = block.get("arguments")
                text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                identity = build_identity(signature, api, provider)
                name = coerce_string(block.get("name"))
                parts.append(ToolCallPart(name, arguments if is_object(arguments) else text, call, **identity))
            case "image" if (data := decode_base64(block.get("data"))) is not None:
                media_type = coerce_string(block.get("mimeType"))
                parts.append(FilePart(BinaryContent(data, media_type=media_type)))
            case _:
                pass
    usage = message.get("usage")
    used: JsonObject = usage if is_object(usage) else {}
    read, written = count(used.get("cacheRead")), count(used.get("cacheWrite"))
    finish: Any = FINISH_REASONS.get(coerce_string(message.get("stopReason")))
    return ModelResponse(
        parts=parts,
        usage=RequestUsage(
            input_tokens=count(used.get("input")) + read + written,
            output_tokens=count(used.get("output")),
            cache_read_tokens=read,
            cache_write_tokens=written,
        ),
        model_name=None if model in ("", "unknown") else model,
        timestamp=_read_time(message),
        provider_name=provider or None,
        provider_response_id=coerce_string(message.get("responseId")) or None,
        finish_reason=finish,
    )


# From the SDK


def from_pydantic_ai(messages: Iterable[Any]) -> ConvertedBodies:
    """Return `ModelMessage` objects, or their JSON form, as bodies to append.

    Raises `InvalidOperation` if an item is malformed.
    """
    reader = _HistoryReader()
    was_request = False
    for index, item in enumerate(_validate(messages)):
        position = f"messages[{index}]"
        if isinstance(item, ModelRequest):
            reader.read_request(item, position, follows_request=was_request)
        else:
            reader.read_response(item, position)
        was_request = isinstance(item, ModelRequest)
    return reader.bodies


def store_pydantic_ai(messages: Sequence[ModelMessage], earlier: Iterable[JsonObject]) -> list[list[Message]]:
    """Return the bodies of each message, in a form that `restore_pydantic_ai` can distinguish.

    `earlier` are stored messages whose tool calls the results may answer, the last one first.
    """
    reader = _HistoryReader()
    reader.add_earlier(earlier)
    ends: list[int] = []
    for index, message in enumerate(messages):
        if isinstance(message, ModelRequest):
            reader.read_request(message, f"messages[{index}]", follows_request=True)
        else:
            reader.read_response(message, f"messages[{index}]")
        ends.append(len(reader.bodies))
    for body in reader.bodies:  # missing fields would be completed from the messages before
        body.message.setdefault("timestamp", 0)
        if get_role(body.message) == "assistant":
            body.message.setdefault("provider", "unknown")
            body.message.setdefault("model", "unknown")
    return [list(reader.bodies[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _validate(messages: Any) -> Iterator[ModelRequest | ModelResponse]:
    if isinstance(messages, str | bytes | dict) or not isinstance(messages, Iterable):
        refuse("messages", f"expected a list, not {describe(messages)}")
    items = cast("Iterable[Any]", messages)
    for index, item in enumerate(items):
        if isinstance(item, ModelRequest | ModelResponse):
            yield item
            continue
        try:
            text = json.dumps([item])
            yield from ModelMessagesTypeAdapter.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"][1:])
            refuse(f"messages[{index}]{place}", first["msg"][:1].lower() + first["msg"][1:])
        except (TypeError, ValueError, RecursionError):
            refuse(f"messages[{index}]", f"expected a ModelMessage or its JSON form, not {describe(item)}")


def _dump(message: ModelMessage) -> JsonObject:
    return ModelMessagesTypeAdapter.dump_python([message], mode="json")[0]


def _find_difference(original: JsonObject, rebuilt: JsonObject) -> JsonObject:
    """Return the fields that a message or part has and its stored form does not give, such as a time that is not
    in whole milliseconds.
    """
    return {
        name: value
        for name, value in original.items()
        if name != "parts" and (name not in rebuilt or rebuilt[name] != value)
    }


def _find_api(response: ModelResponse) -> str:
    """Return the protocol of a response, judged by its provider and by how its parts are identified."""
    provider = response.provider_name or ""
    for start, api in (
        ("anthropic", ApiKind.ANTHROPIC),
        ("bedrock", "bedrock-converse-stream"),
        ("google", ApiKind.GOOGLE),
        ("mistral", ApiKind.MISTRAL),
    ):
        if provider.startswith(start):
            return api
    ids = [id for part in response.parts if (id := getattr(part, "id", None))]
    if any(id not in THINKING_FIELDS for id in ids):
        return ApiKind.OPENAI_RESPONSES
    return ApiKind.OPENAI_COMPATIBLE if provider or ids else "unknown"


class _HistoryReader(BodyReader):
    def __init__(self) -> None:
        super().__init__(PYDANTIC_AI, "")

    def read_response(self, response: ModelResponse, position: str) -> None:
        api = _find_api(response)
        message: JsonObject = {"role": "assistant", "content": [], "api": api}
        original = _dump(response)
        kept: list[JsonObject] = []
        for index, part in enumerate(response.parts):
            blocks = list(build_blocks(part, api))
            if blocks:
                message["content"] += blocks
                kept.append(original["parts"][index])
            else:
                dumped = original["parts"][index]
                self.keep_content(message, index, dumped, f"{position}.parts[{index}]")
        self._describe(message, response)
        rebuilt = _dump(build_response(message))
        for block, before, after in zip(message["content"], kept, rebuilt["parts"], strict=True):
            keep_fields(block, PYDANTIC_AI, _find_difference(before, after))
        self.add(keep_fields(message, PYDANTIC_AI, _find_difference(original, rebuilt)))

    def _describe(self, message: JsonObject, response: ModelResponse) -> None:
        used = response.usage
        read, written = used.cache_read_tokens, used.cache_write_tokens
        reason = STOP_REASONS.get(response.finish_reason or "", "stop")
        if response.state in ("incomplete", "interrupted"):
            reason = "aborted"
        self.provider = response.provider_name or "unknown"
        self.describe_answer(
            message,
            model=response.model_name,
            id=response.provider_response_id,
            usage={
                "input": max(0, used.input_tokens - read - written),
                "output": used.output_tokens,
                "cacheRead": read,
                "cacheWrite": written,
            },
            stop=reason,
            error={
                "content_filter": "the provider's content filter stopped the answer",
                "error": "the model failed",
            }.get(response.finish_reason or ""),
        )
        _add_time(message, response.timestamp)

    def read_request(self, request: ModelRequest, position: str, *, follows_request: bool) -> None:
        original = _dump(request)
        built: list[tuple[JsonObject, JsonObject]] = []
        for index, part in enumerate(request.parts):
            message = self._read_part(part, f"{position}.parts[{index}]")
            if message is not None:
                built.append((message, original["parts"][index]))
        fields = _find_difference(original, _dump(ModelRequest(parts=[])))
        if not built:
            self.omit(position, "request", "it has nothing that stored messages have a form for")
        writer = MessageWriter(PYDANTIC_AI)
        for index, (message, before) in enumerate(built):
            after = _dump(ModelRequest(parts=[build_request_part(message, writer)]))["parts"][0]
            difference = _find_difference(before, after)
            difference.pop("content", None)  # what it has beyond the stored content is kept by `_read_part`
            keep_fields(message, PYDANTIC_AI, difference)
            if index == 0 and (fields or follows_request):
                keep_fields(message, PYDANTIC_AI, {"request": fields})
            self.add(message)

    def _read_part(self, part: ModelRequestPart, position: str) -> JsonObject | None:
        match part:
            case SystemPromptPart():
                message: JsonObject = {"role": "system", "content": part.content}
            case UserPromptPart(content=str(text)):
                message = {"role": "user", "content": text}
            case UserPromptPart():
                message = {"role": "user", "content": []}
                self._read_content(list(part.content), message, f"{position}.content")
            case ToolReturnPart():
                message = self._read_result(part, position)
            case _:
                self.omit(position, part.part_kind, "stored messages have no form for it")
                return None
        _add_time(message, part.timestamp)
        return message

    def _read_result(self, part: ToolReturnPart, position: str) -> JsonObject:
        stored = self.find_call(part.tool_call_id)
        failed = part.outcome in ("failed", "retried")
        message = self.build_result(stored, [], name=part.tool_name, failed=failed)
        content: Any = part.content
        if isinstance(content, str):
            message["content"] += [{"type": "text", "text": content}] if content else []
        elif _is_plain_content(content):
            self._read_content(content, message, f"{position}.content")
        else:
            value = _dump(ModelRequest(parts=[part]))["parts"][0]["content"]
            message["content"].append({"type": "text", "text": _write_value(value)})
            keep_fields(message, PYDANTIC_AI, {"tool_content": value})
        return message

    def _read_content(self, items: Sequence[Any], message: JsonObject, position: str) -> None:
        for index, item in enumerate(items):
            match item:
                case str():
                    message["content"].append({"type": "text", "text": item})
                case TextContent(metadata=None):
                    message["content"].append({"type": "text", "text": item.content})
                case BinaryContent(vendor_metadata=None) if item.is_image and item.data:
                    image = {"type": "image", "data": encode_base64(item.data), "mimeType": item.media_type}
                    message["content"].append(image)
                case _:
                    dumped = _dump(ModelRequest(parts=[UserPromptPart([item])]))["parts"][0]["content"][0]
                    self.keep_content(message, index, dumped, f"{position}[{index}]")


def _is_plain_content(content: Any) -> bool:
    """Return whether the content of a tool return is a list that becomes the same list again."""
    if not is_list(content) or not all(isinstance(item, str | BinaryContent) for item in content):
        return False
    return len(content) > 1 or any(isinstance(item, BinaryContent) for item in content)


def _add_time(message: JsonObject, time: datetime) -> None:
    if time != NO_TIME:
        message["timestamp"] = round(time.timestamp() * 1000)
