"""Conversations that converters are tested with, and the form in which two of them are compared."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from pydantic import TypeAdapter

import sessiontree
from sessiontree.core.context import Context
from sessiontree.core.conversion_result import ConvertedBodies, ConvertedMessages
from sessiontree.core.entries import Message
from sessiontree.core.messages import build_text_blocks
from sessiontree.errors import InvalidOperation

Wire = dict[str, Any]

PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000a49444154789c6360000000020001e221bc330000000049454e44ae426082"
    )
).decode()
IMAGE: Wire = {"type": "image", "data": PIXEL, "mimeType": "image/png"}


def build_context(*messages: Wire | Message) -> Context:
    """Return the context of a session with these messages."""
    session = sessiontree.memory()
    session.head.extend([message if isinstance(message, Message) else Message(message) for message in messages])
    return session.head.context()


def check_with_types(adapter: TypeAdapter[Any], messages: ConvertedMessages) -> None:
    """Check messages with the types of an SDK: every field is known to them and has the right type.

    Unknown fields of a typed dict are removed by the validation, so the result must equal the input.
    """
    assert read_all(adapter.validate_python(list(messages))) == messages


def read_all(value: Any) -> Any:
    """Read the iterators inside a validated value, because their items are validated only when they are read."""
    if isinstance(value, dict):
        return {key: read_all(item) for key, item in value.items()}
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return value
    return [read_all(item) for item in value]


def build_body_context(bodies: Sequence[Message]) -> Context:
    return build_context(*bodies)


def compare_form(messages: Sequence[Wire | Message]) -> list[Wire]:
    """Return the content of a conversation, without times and usage. Text is one block; empty text is omitted."""
    compared: list[Wire] = []
    for item in messages:
        message = item.message if isinstance(item, Message) else item
        keys = ("role", "toolCallId", "toolName", "isError", "providerData")
        blocks = [
            block
            for block in build_text_blocks(message.get("content") or [])
            if block.get("type") != "text" or block["text"]
        ]
        content: Any = message["content"] if message["role"] == "system" else blocks
        compared.append({**{key: message[key] for key in keys if key in message}, "content": content})
    return compared


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12).filter(
    lambda text: bool(text.strip())
)
numbers = st.integers(-(10**6), 10**6)
argument_values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
arguments = st.dictionaries(words, argument_values, max_size=3)
names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
texts = words.map(lambda text: {"type": "text", "text": text})
images = st.binary(min_size=1, max_size=9).map(
    lambda data: {"type": "image", "data": base64.b64encode(data).decode(), "mimeType": "image/jpeg"}
)


@st.composite
def conversations(
    draw: st.DrawFn,
    *,
    api: str,
    answers: st.SearchStrategy[list[Wire]],
    result_blocks: st.SearchStrategy[Wire] = texts,
    can_fail: bool = True,
    late_system: bool = True,
    max_result_blocks: int = 3,
) -> list[Wire]:
    """A well-formed conversation. `answers` gives the blocks before the tool calls of an assistant message."""
    messages: list[Wire] = [{"role": "system", "content": draw(words)}] if draw(st.booleans()) else []
    ids = (f"call_{number}" for number in range(100))
    for _ in range(draw(st.integers(1, 4))):
        if late_system and len(messages) > 1 and draw(st.integers(0, 5)) == 0:
            messages.append({"role": "system", "content": draw(words)})
        content = draw(words | st.lists(texts | images, min_size=1, max_size=3))
        messages.append({"role": "user", "content": content})
        for _ in range(draw(st.integers(0, 2))):
            calls = [
                {"type": "toolCall", "id": next(ids), "name": draw(names), "arguments": draw(arguments)}
                for _ in range(draw(st.integers(1, 3)))
            ]
            messages.append({"role": "assistant", "api": api, "content": [*draw(answers), *calls]})
            messages += [
                {
                    "role": "toolResult",
                    "toolCallId": call["id"],
                    "toolName": call["name"],
                    "content": draw(st.lists(result_blocks, min_size=1, max_size=max_result_blocks)),
                    "isError": can_fail and draw(st.booleans()),
                }
                for call in calls
            ]
        content = [*draw(answers), draw(texts)]
        messages.append({"role": "assistant", "api": api, "content": content})
    return messages


def check_round_trip(
    conversation: list[Wire],
    to: Callable[[Context], ConvertedMessages],
    back: Callable[[ConvertedMessages], ConvertedBodies],
) -> ConvertedMessages:
    """Check that a round trip through a format loses nothing. Return the messages in that format."""
    there = to(build_context(*conversation))
    returned = back(there)

    assert there.omitted == []
    assert returned.omitted == []
    assert compare_form(returned) == compare_form(conversation)
    again = to(build_body_context(returned))
    assert again == there
    assert again.system == there.system
    return there


def check_any_input(
    messages: Any, back: Callable[[Any], ConvertedBodies], to: Callable[[Context], ConvertedMessages]
) -> None:
    """Check that any JSON gives a result that can be stored and sent, or a refusal that names a position."""
    try:
        bodies = back(messages)
    except InvalidOperation as error:
        sentence = str(error)
    else:
        to(build_body_context(bodies))
        return
    assert re.match(r"(messages|items|contents)[\[:]", sentence), sentence
