"""Conversion to JSON: a part of every value can be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessiontree.agent.jsonable import MAX_MESSAGE_BYTES, find_write_problem, make_jsonable, make_message_jsonable
from sessiontree.core.messages import assistant, tool_call
from sessiontree.format.nesting import NESTING_LIMIT

DEEPEST = NESTING_LIMIT - 5
"""An argument is nested in the arguments, the block, the content, the message and the line."""


def build_nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def build_recursive() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


class Mute:
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (None, None),
        ({"path": Path("/x"), 1: 2}, {"path": "/x", "1": 2}),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (build_nested(100), build_nested(100)),
        (build_nested(300), "[" * 300 + "1" + "]" * 300),
        (build_recursive(), "{'self': {...}}"),
        (Mute(), "(cannot be converted to text)"),
    ],
    ids=["nothing", "odd", "odd keys", "deep", "too deep", "endless", "mute"],
)
def test_values_that_json_cannot_represent_become_text(value: Any, made: Any) -> None:
    assert make_jsonable(value) == made


def test_only_the_deeply_nested_parts_of_a_message_become_text() -> None:
    fine, deep = (
        tool_call("1", "read", {"x": build_nested(DEEPEST)}),
        tool_call("2", "read", {"x": build_nested(DEEPEST + 1)}),
    )
    message = assistant([{"type": "text", "text": "Hm."}, fine, deep]).message

    made = make_message_jsonable(
        {**message, "content": [*message["content"], build_nested(300)], "odd": build_nested(300)}
    )

    assert find_write_problem(made) is None
    assert made["content"][:2] == message["content"][:2]
    assert made["content"][2] == {**deep, "arguments": '{"x":' + "[" * (DEEPEST + 1) + "1" + "]" * (DEEPEST + 1) + "}"}
    assert isinstance(made["content"][3], str)
    assert isinstance(made["odd"], str)
    assert made["role"] == "assistant"
    assert make_message_jsonable(made) is made
    assert isinstance(make_message_jsonable({"role": "user", "content": {"x": build_nested(300)}})["content"], str)


@pytest.mark.parametrize("odd", [object(), build_nested(300), build_recursive()], ids=["object", "deep", "endless"])
def test_an_unwritable_message_has_a_reason(odd: Any) -> None:
    assert find_write_problem({"role": "user", "content": "x"}) is None
    assert find_write_problem({"role": "user", "content": "x", "odd": odd})


def test_a_message_that_fills_more_than_a_line_cannot_be_written() -> None:
    around = len('{"content":""}')

    assert find_write_problem({"content": "x" * (MAX_MESSAGE_BYTES - around)}) is None
    assert find_write_problem({"content": "x" * (MAX_MESSAGE_BYTES - around + 1)}) == (
        f"its {MAX_MESSAGE_BYTES + 1} bytes exceed the {MAX_MESSAGE_BYTES} bytes that an entry can hold"
    )
