"""What all converters share: reading input with positions, keeping fields of other SDKs, and listing omissions.

Fields of an SDK that have no place in a stored message are kept under the key `providerData` of the message or block,
by the name of the API, with their own names and values. Content of an unknown type is kept under `content` there, each
item with its index. A conversion to the same API puts them back. A conversion to another API lists them as omitted.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from enum import Enum
from typing import Any, NoReturn, cast

from sessiontree.convert.cleanup import clean_json
from sessiontree.core.context import Context
from sessiontree.core.conversion_result import ConvertedBodies, ConvertedMessages, Omission
from sessiontree.core.entries import EntryId, JsonObject, Message
from sessiontree.core.messages import (
    coerce_number,
    coerce_string,
    complete_usage,
    extract_text,
    get_role,
    get_tool_calls,
    is_list,
    is_object,
)
from sessiontree.errors import InvalidOperation


class ApiKind:
    """The protocols of providers, by the names that other programs write in messages."""

    OPENAI_COMPATIBLE = "openai-completions"
    """OpenAI chat completions, which most servers support."""
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic-messages"
    GOOGLE = "google-generative-ai"
    MISTRAL = "mistral-conversations"


PYDANTIC_AI = "pydantic-ai"
"""The name under which fields of pydantic-ai are kept. It is not a protocol, so it is never the `api` of a message."""

LABELS = {
    ApiKind.OPENAI_COMPATIBLE: "OpenAI Chat",
    ApiKind.OPENAI_RESPONSES: "OpenAI Responses",
    ApiKind.ANTHROPIC: "Anthropic Messages",
    ApiKind.GOOGLE: "Gemini",
    PYDANTIC_AI: "pydantic-ai",
}
"""Names of the formats for people."""

FAMILIES = {
    "azure-openai-responses": ApiKind.OPENAI_RESPONSES,
    "openai-codex-responses": ApiKind.OPENAI_RESPONSES,
    "bedrock-converse-stream": ApiKind.ANTHROPIC,
    "google-gemini-cli": ApiKind.GOOGLE,
    "google-vertex": ApiKind.GOOGLE,
}
"""Names that other programs write for protocols whose signatures have the same form."""

PROVIDER_DATA = "providerData"
THINKING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")
"""The fields of chat completions that hold the model's thinking."""

MAX_DEPTH = 200
"""How deep the input may be nested. Entries are limited to 254 levels, some of which the conversion adds."""

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.IGNORECASE)


def get_api(message: JsonObject) -> str:
    """Return the protocol that an assistant message came through, or an empty string if it is not known."""
    api = coerce_string(message.get("api"))
    return "" if api == "unknown" else FAMILIES.get(api, api)


def parse_object(text: str) -> JsonObject:
    """Return the JSON object in `text`, or an empty object if it is something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if is_object(value) else {}


def read_arguments(text: str) -> Any:
    """Return the arguments of a tool call as an object, or the text itself if it is not a JSON object."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if is_object(value) else text


def write_arguments(arguments: Any) -> str:
    """Return the arguments of a tool call as JSON text. Arguments that are stored as text are returned as they are."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def decode_base64(data: Any) -> bytes | None:
    """Return the bytes of base64 text, or `None` if it is not valid or empty."""
    try:
        return base64.b64decode(coerce_string(data), validate=True) or None
    except (binascii.Error, ValueError):
        return None


def encode_base64(data: Any) -> str | None:
    """Return bytes, or text in either alphabet of base64, as standard base64; `None` if it is something else."""
    if isinstance(data, bytes):
        return base64.b64encode(data).decode()
    if not isinstance(data, str):
        return None
    text = data.translate({ord("-"): "+", ord("_"): "/"})
    return text if decode_base64(text) is not None else None


def build_system_text(message: JsonObject) -> str:
    """Return the text of a system message: its content, then its sections."""
    sections = message.get("sections")
    texts = [
        extract_text(message.get("content")),
        *(map(coerce_string, sections.values()) if is_object(sections) else ()),
    ]
    return "\n\n".join(text for text in texts if text)


# To another SDK


class MessageWriter:
    """Builds the messages of one conversion of a context, and lists what the format cannot hold."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.label = LABELS[api]
        self.messages = ConvertedMessages()
        self.entry: EntryId | None = None
        """The entry of the message that is being converted."""

    def read(self, context: Context) -> Iterator[JsonObject]:
        """Yield the messages of the request one by one, and list the messages that are not sent."""
        request = context.build_request()
        for id, message, reason in context.list_withheld():
            self.entry = id
            self.omit(get_role(message), reason)
        for self.entry, message in request:
            yield self._clean(message)
        self.entry = None

    def omit(self, block: str, reason: str) -> None:
        self.messages.omitted.append(Omission(block=block, reason=reason, entry=self.entry))

    def omit_unless(self, is_held: bool, block: str, reason: str) -> None:
        if not is_held:
            self.omit(block, reason)

    def restore_fields(self, owner: JsonObject, allowed: Sequence[str], block: str) -> JsonObject:
        """Return the fields that are kept for this API. Lists fields that it does not accept and fields of other APIs.

        `owner` is a message or a block.
        """
        restored: JsonObject = {}
        kept = owner.get(PROVIDER_DATA)
        for api, fields in kept.items() if is_object(kept) else ():
            for name, value in fields.items() if is_object(fields) else ():
                if value is None or (name == "content" and block in ROLES):
                    continue
                if api == self.api and name in allowed:
                    restored[name] = value
                else:
                    source = LABELS.get(api, api)
                    self.omit(f"{block}.{name}", f"{self.label} has no place for the field {name} of {source}")
        return restored

    def restore_content(self, message: JsonObject, content: list[Any]) -> None:
        """Put content that is kept for this API back into `content`. Lists content that is kept for others."""
        kept = message.get(PROVIDER_DATA)
        for api, fields in kept.items() if is_object(kept) else ():
            items = fields.get("content") if is_object(fields) else None
            for item in items if is_list(items) else ():
                index, block = item if is_list(item) and len(item) == 2 else (None, None)
                if not is_object(block) or not isinstance(index, int):
                    continue
                if api == self.api:
                    content.insert(max(index, 0), block)
                else:
                    self.omit(name_block(block), f"only {LABELS.get(api, api)} has this kind of content")

    def check_image(self, block: JsonObject, types: Sequence[str] = ()) -> tuple[bytes, str] | None:
        """Return the bytes and the media type of an image. Lists an image that cannot be sent."""
        data, media_type = decode_base64(block.get("data")), coerce_string(block.get("mimeType"))
        if data is None:
            self.omit("image", "the image data is not base64")
        elif not media_type or (types and media_type not in types):
            self.omit("image", f"{self.label} does not accept images of type {media_type or 'unknown'}")
        else:
            return data, media_type
        return None

    def omit_unknown(self, block: JsonObject) -> None:
        """List a block that this kind of message cannot hold."""
        kind = coerce_string(block.get("type")) or "block"
        self.omit(kind, f"{self.label} cannot hold it in this message")

    def _clean(self, message: JsonObject) -> JsonObject:
        cleaned = clean_json(message)
        self.omit_unless(
            cleaned == message, get_role(message), "characters and numbers that JSON does not allow were replaced"
        )
        return cleaned


ROLES = frozenset({"user", "assistant", "toolResult", "system"})


def name_block(block: JsonObject) -> str:
    """Return the type of a block of another SDK, for a list of omissions."""
    return coerce_string(block.get("type")) or next(iter(block), "block")


def split_call_id(message: JsonObject, id: str) -> tuple[str, str]:
    """Return the id of a tool call and the id of its item. Only OpenAI Responses has items."""
    if get_api(message) != ApiKind.OPENAI_RESPONSES:
        return id, ""
    call, _, item = id.partition("|")
    return call, item


class SentCalls:
    """The ids under which the tool calls of the last turn were sent, for the results that follow."""

    def __init__(self) -> None:
        self._sent: dict[str, list[tuple[str, str]]] = {}

    def start_turn(self) -> None:
        self._sent = {}

    def add(self, stored: str, sent: str, name: str) -> None:
        self._sent.setdefault(stored, []).append((sent, name))

    def match(self, message: JsonObject) -> tuple[str, str]:
        """Return the sent id and the name of the tool for a result."""
        stored = coerce_string(message.get("toolCallId"))
        sent = self._sent.get(stored)
        return sent.pop(0) if sent else (stored.partition("|")[0], coerce_string(message.get("toolName")))


# From another SDK


def refuse(position: str, expected: str) -> NoReturn:
    """Raise the error for malformed input."""
    raise InvalidOperation(f"{position}: {expected}")


def to_plain(value: Any, position: str, depth: int = 0, *, keep_bytes: bool = False) -> Any:
    """Return `value` as plain Python data. Objects of SDKs are dumped, wherever they are.

    Bytes become base64 text, unless they are kept for the one SDK that uses them. That SDK also uses Python names.
    """
    if isinstance(value, bytes):
        return value if keep_bytes else base64.b64encode(value).decode()
    if value is None or isinstance(value, bool | int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, str):
        return str(value.value) if isinstance(value, Enum) else value
    if depth > MAX_DEPTH:
        refuse(position, f"the input is nested more than {MAX_DEPTH} deep")
    if is_object(value):
        items: dict[Any, Any] = value
        for key in items:
            if not isinstance(key, str):
                refuse(position, f"the keys of an object must be strings, not {type(key).__name__}")
        return {
            key: to_plain(item, f"{position}.{key}", depth + 1, keep_bytes=keep_bytes) for key, item in items.items()
        }
    if isinstance(value, list | tuple):
        sequence = cast("Sequence[Any]", value)
        return [
            to_plain(item, f"{position}[{index}]", depth + 1, keep_bytes=keep_bytes)
            for index, item in enumerate(sequence)
        ]
    if isinstance(value, Enum):
        return to_plain(value.value, position, depth + 1)
    if isinstance(value, date):
        return value.isoformat()
    dump = getattr(value, "model_dump", None)
    if not callable(dump):
        refuse(position, f"expected JSON data or an object of the SDK, not {type(value).__name__}")
    try:
        dumped = dump(exclude_unset=True, by_alias=not keep_bytes, warnings=False)
    except (TypeError, ValueError) as error:
        refuse(position, f"the object cannot be dumped: {error}")
    return to_plain(dumped, position, depth + 1, keep_bytes=keep_bytes)


def to_json(value: Any) -> Any:
    """Return plain data as JSON data: bytes become base64 text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if is_object(value):
        return {key: to_json(item) for key, item in value.items()}
    if is_list(value):
        return [to_json(item) for item in value]
    return value


def keep_fields(owner: JsonObject, api: str, fields: JsonObject) -> JsonObject:
    """Keep fields of another SDK in a message or a block. Returns `owner`."""
    fields = {name: to_json(value) for name, value in fields.items()}
    if fields:
        owner.setdefault(PROVIDER_DATA, {}).setdefault(api, {}).update(fields)
    return owner


class FieldReader:
    """Reads the fields of one message or block of another SDK. Unread fields are kept."""

    def __init__(self, value: Any, position: str, expected: str = "an object") -> None:
        if not is_object(value):
            refuse(position, f"expected {expected}, not {describe(value)}")
        self.value = value
        self.position = position
        self._read: set[str] = set()

    def get(self, name: str) -> Any:
        self._read.add(name)
        return self.value.get(name)

    def get_string(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            refuse(f"{self.position}.{name}", f"expected a string, not {describe(value)}")
        return value

    def find_string(self, name: str) -> str | None:
        return None if self.value.get(name) is None else self.get_string(name)

    def get_list(self, name: str) -> list[Any]:
        value = self.get(name)
        if not is_list(value):
            refuse(f"{self.position}.{name}", f"expected a list, not {describe(value)}")
        return value

    def find_list(self, name: str) -> list[Any]:
        return [] if self.get(name) is None else self.get_list(name)

    def get_object(self, name: str) -> JsonObject:
        value = self.get(name)
        if not is_object(value):
            refuse(f"{self.position}.{name}", f"expected an object, not {describe(value)}")
        return value

    def ignore(self, *names: str) -> None:
        self._read.update(names)

    @property
    def rest(self) -> JsonObject:
        """The fields that were not read and are set."""
        return {name: value for name, value in self.value.items() if name not in self._read and value is not None}


def describe(value: Any) -> str:
    """Return what a value of the input is, for an error message."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    kinds = ((bool, "a boolean"), (int | float, "a number"), (dict, "an object"), (list, "a list"), (bytes, "bytes"))
    return next((name for kind, name in kinds if isinstance(value, kind)), type(value).__name__)


class BodyReader:
    """Collects the stored messages of one conversion, and lists what they cannot hold."""

    def __init__(self, api: str, provider: str) -> None:
        self.api = api
        self.label = LABELS[api]
        self.provider = provider
        self.bodies = ConvertedBodies()
        self._names: dict[str, str] = {}
        """The names of tools by stored call id."""
        self._stored_ids: dict[str, str] = {}
        """Stored call ids, which may have the id of an item behind them, by call id."""
        self._earlier: Iterator[JsonObject] = iter(())

    def add(self, message: JsonObject) -> None:
        for call in get_tool_calls(message):
            self._names[call.id] = call.name
            self._stored_ids[call.id.partition("|")[0]] = call.id
        self.bodies.append(Message(message))

    def add_earlier(self, messages: Iterable[JsonObject]) -> None:
        """Take stored messages, the last one first, whose tool calls the results may answer.

        They are not read before a result needs them, since that may take a walk up a long branch.
        """
        self._earlier = iter(messages)

    def omit(self, position: str, block: str, reason: str) -> None:
        self.bodies.omitted.append(Omission(block=block, reason=reason, position=position))

    def omit_rest(self, fields: FieldReader) -> None:
        """List the fields that were not read."""
        for name in fields.rest:
            self.omit(f"{fields.position}.{name}", name, f"{self.label} has no such field")

    def keep_content(self, message: JsonObject, index: int, block: JsonObject, position: str) -> None:
        """Keep content that has no form in a stored message."""
        kept = message.setdefault(PROVIDER_DATA, {}).setdefault(self.api, {}).setdefault("content", [])
        kept.append([index, to_json(block)])
        self.omit(position, name_block(block), f"it is kept for {self.label} only, no other model sees it")

    def build_assistant(self, content: list[JsonObject]) -> JsonObject:
        return {"role": "assistant", "content": content, "api": self.api}

    def build_result(
        self, call: str, content: list[JsonObject], *, name: str | None = None, failed: bool = False
    ) -> JsonObject:
        """Return the result of a tool call. Without a `name`, it gets the one of a call that came before."""
        return {
            "role": "toolResult",
            "toolCallId": call,
            "toolName": self._names.get(call, "unknown") if name is None else name,
            "content": content,
            "isError": failed,
        }

    def find_call(self, id: str) -> str:
        """Return the stored id of a call that came before, or `id` itself."""
        while id not in self._stored_ids:
            message = next(self._earlier, None)
            if message is None:
                return id
            for call in get_tool_calls(message):
                self._names.setdefault(call.id, call.name)
                self._stored_ids.setdefault(call.id.partition("|")[0], call.id)
        return self._stored_ids[id]

    def add_system(self, text: str, position: str = "system") -> None:
        if text:
            self.add({"role": "system", "content": text})

    def read_system_content(self, content: Any, position: str) -> str:
        """Return the text of a system prompt that is text or a list of text parts."""
        if isinstance(content, str):
            return content
        if not is_list(content):
            refuse(position, f"expected text or a list of text parts, not {describe(content)}")
        texts: list[str] = []
        for index, part in enumerate(content):
            fields = FieldReader(part, f"{position}[{index}]")
            fields.ignore("type")
            texts.append(fields.get_string("text"))
            for name in fields.rest:
                self.omit(f"{fields.position}.{name}", name, "a stored system prompt is plain text")
        if len(texts) > 1:
            self.omit(position, "system", "the parts of the system prompt were joined")
        return "\n\n".join(texts)

    def describe_answer(
        self, message: JsonObject, *, model: Any, id: Any, usage: JsonObject | None, stop: str, error: str | None = None
    ) -> None:
        """Add the fields of the whole response to an assistant message."""
        if isinstance(model, str):
            message["provider"] = self.provider
            message["model"] = model
        if usage is not None:
            message["usage"] = complete_usage(usage)
        if stop == "stop" and any(block.get("type") == "toolCall" for block in message["content"]):
            stop = "toolUse"
        message["stopReason"] = stop
        if isinstance(id, str):
            message["responseId"] = id
        if error is not None:
            message["errorMessage"] = error


def read_messages(messages: Any, name: str, *, keep_bytes: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the items of the input as plain data, each with its position."""
    if isinstance(messages, str | bytes | dict) or not hasattr(messages, "__iter__"):
        refuse(name, f"expected a list, not {describe(messages)}")
    for index, item in enumerate(messages):
        position = f"{name}[{index}]"
        yield position, to_plain(item, position, keep_bytes=keep_bytes)


def count(value: Any) -> int:
    """Return a number of tokens from a usage object, 0 if it is missing."""
    return max(0, int(coerce_number(value)))


def parse_data_url(url: str) -> JsonObject | None:
    """Return the image block for a data URL, or `None` for any other URL."""
    found = _DATA_URL.match(url)
    data = url[found.end() :] if found else ""
    return {"type": "image", "data": data, "mimeType": found[1]} if found and decode_base64(data) is not None else None


def build_data_url(block: JsonObject) -> str:
    return f"data:{block['mimeType']};base64,{block['data']}"
