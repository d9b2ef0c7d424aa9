"""Tools: creation from functions, argument checks, output."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from sessiontree.agent.tool import (
    Tool,
    ToolContext,
    ToolError,
    ToolOutput,
    find_mismatch,
    make_jsonable,
    normalize_output,
    tool,
)
from sessiontree.agent.tools import BUILTIN_TOOLS, builtin_tools
from sessiontree.core.message_views import Image, Text
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.hooks.events import Signal


def build_context(made: Tool, **arguments: object) -> ToolContext:
    return ToolContext(
        call=ToolCall("c", made.name, arguments), arguments=made.parse(arguments), cwd="/", signal=Signal()
    )


class Point(msgspec.Struct):
    x: int
    kind: Literal["a", "b"] = "a"


@tool
async def weather(city: str, days: Annotated[int, msgspec.Meta(description="How far ahead.", ge=1)] = 1) -> str:
    """What the weather will be."""
    return f"{city}: sun for {days} days"


def test_a_tool_takes_its_name_description_and_schema_from_the_function() -> None:
    assert weather.spec.name == "weather"
    assert weather.spec.description == "What the weather will be."
    assert weather.spec.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "description": "How far ahead.", "default": 1},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


async def test_a_function_is_called_with_its_arguments_in_their_types() -> None:
    assert await weather.run(build_context(weather, city="Rome", days="3")) == ToolOutput(
        content="Rome: sun for 3 days"
    )


async def test_a_function_that_is_not_async_may_take_its_context_and_return_a_value() -> None:
    @tool(name="sum", concurrent=True)
    def add(values: list[int], context: ToolContext) -> dict[str, object]:
        """Add."""
        return {"sum": sum(values), "call": context.call.id}

    assert "context" not in add.parameters["properties"]
    assert add.concurrent
    assert await add.run(build_context(add, values=[1, 2])) == ToolOutput(content='{"sum":3,"call":"c"}')


async def test_a_tool_may_raise_stop_iteration_and_may_be_async_behind_a_decorator() -> None:
    @tool
    def find_user(name: str) -> dict[str, str]:
        """Find a user."""
        return next(user for user in ({"name": "ada"},) if user["name"] == name)

    async def later(city: str) -> str:
        """Later."""
        return f"sun in {city}"

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def within(*arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

        return within

    with pytest.raises(RuntimeError, match="it raised StopIteration"):
        await asyncio.wait_for(find_user.run(build_context(find_user, name="bob")), 20)
    made = tool(timed(later))
    assert await made.run(build_context(made, city="Rome")) == ToolOutput(content="sun in Rome")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "missing required field `city`"),
        ({"city": 3}, r"Expected `str`, got `int` - at `\$.city`"),
        ({"city": "Rome", "days": 0}, "days"),
        ({"city": "Rome", "town": "Rome"}, "unknown field `town`"),
        ("Rome", "Expected `object`"),
    ],
)
def test_wrong_arguments_are_reported_to_the_model(arguments: object, reason: str) -> None:
    with pytest.raises(ToolError, match=f"invalid arguments for weather: .*{reason}"):
        weather.parse(arguments)


def test_a_nested_type_is_inlined_in_the_schema() -> None:
    @tool
    def draw(points: list[Point]) -> None:
        """Draw."""

    items = draw.parameters["properties"]["points"]["items"]
    assert items["properties"]["x"] == {"type": "integer"}
    assert "$ref" not in str(draw.parameters)


def test_a_function_that_a_model_cannot_call_is_refused() -> None:
    def untyped(x): ...  # type: ignore[no-untyped-def]
    def starred(*x: int) -> None: ...
    def unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidOperation, match="'Nowhere' is not defined"):
        tool(unknown)
    with pytest.raises(InvalidOperation, match="'x' has no type"):
        tool(untyped)
    with pytest.raises(InvalidOperation, match="cannot be passed by name"):
        tool(starred)


@dataclass
class Node:
    children: list[Node]


class Odd:
    pass


def test_a_type_without_a_schema_is_refused() -> None:
    def recursive(node: Node) -> None: ...
    def odd(x: Odd) -> None: ...
    def missing(x: msgspec.Nowhere) -> None: ...  # type: ignore[name-defined]

    with pytest.raises(InvalidOperation, match="recursive cannot be a tool: Node refers to itself"):
        tool(recursive)
    with pytest.raises(InvalidOperation, match="odd cannot be a tool: Odd has no JSON schema"):
        tool(odd)
    with pytest.raises(InvalidOperation, match=r"missing cannot be a tool: .* has no attribute 'Nowhere'"):
        tool(missing)
    with pytest.raises(InvalidOperation, match=r"functools.partial.* cannot be a tool: it is not a function"):
        tool(functools.partial(recursive))
    with pytest.raises(InvalidOperation, match=r"part cannot be a tool: .*functools"):
        tool(functools.partial(recursive), name="part")


async def test_paths_and_mutable_defaults_are_supported_as_parameters() -> None:
    @tool
    def gather(
        folder: Path,
        beside: list[Path] = [Path("b")],  # noqa: B006
        last: Path | None = None,
        to: Path = Path("out"),
        empty: dict[str, int] = {},  # noqa: B006
    ) -> list[str]:
        """Gather."""
        beside.append(folder)
        return [type(folder).__name__, *map(str, (*beside, last, to, empty))]

    assert gather.parameters["properties"] == {
        "folder": {"type": "string"},
        "beside": {"type": "array", "items": {"type": "string"}, "default": ["b"]},
        "last": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "to": {"type": "string", "default": "out"},
        "empty": {"type": "object", "additionalProperties": {"type": "integer"}, "default": {}},
    }
    for _ in range(2):
        assert (
            normalize_output(await gather.run(build_context(gather, folder="a"))).content
            == '["PosixPath","b","a","None","out","{}"]'
        )
    with pytest.raises(ToolError, match=r"invalid arguments for gather: .*folder"):
        gather.parse({"folder": 1})


SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "mode": {"enum": ["r", "w"]},
        "lines": {"type": "array", "items": {"type": "integer"}},
        "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "more": {"type": "object", "properties": {"deep": {"type": "boolean"}}, "additionalProperties": False},
    },
    "required": ["path"],
}


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"path": "a"}, None),
        ({"path": "a", "other": 1, "lines": [1, 2.0], "size": None, "mode": "r", "more": {"deep": True}}, None),
        ({}, "'path' is missing"),
        ([], "expected object, got array"),
        ({"path": None}, "path: expected string, got null"),
        ({"path": "a", "mode": "x"}, "mode: expected one of 'r', 'w', got 'x'"),
        ({"path": "a", "lines": [1, "2"]}, "lines[1]: expected integer, got string"),
        ({"path": "a", "lines": [True]}, "lines[0]: expected integer, got boolean"),
        ({"path": "a", "size": "1"}, "size: expected integer, got string"),
        ({"path": "a", "more": {"deep": 1}}, "more.deep: expected boolean, got integer"),
        ({"path": "a", "more": {"wide": 1}}, "more: unknown field 'wide'; fields: deep"),
    ],
)
def test_a_handwritten_schema_is_checked(value: object, wrong: str | None) -> None:
    assert find_mismatch(value, SCHEMA) == wrong


def test_a_tool_with_a_schema_gets_its_arguments_as_they_are() -> None:
    async def run(context: ToolContext) -> str:
        return ""

    made = Tool(name="t", description="", run=run, parameters=SCHEMA)

    assert made.parse({"path": "a"}) == {"path": "a"}
    with pytest.raises(ToolError, match="invalid arguments for t: 'path' is missing"):
        made.parse(None)


def test_every_return_value_of_a_tool_becomes_its_output() -> None:
    image = [{"type": "image", "data": "", "mimeType": "image/png"}]

    assert normalize_output(image).content is image
    assert normalize_output(None).content == "Done."
    assert normalize_output([1, 2]).content == "[1,2]"
    assert normalize_output([]).content == "[]"
    assert normalize_output({"at": Path("/x")}).content == '{"at":"/x"}'
    assert normalize_output(["a", "b"]).content == '["a","b"]'


def test_a_tool_may_return_the_blocks_of_a_message() -> None:
    image = Image(b"png", "image/png")

    assert normalize_output(image).content == [image.raw]
    assert normalize_output(ToolOutput(content=["a", image])).content == [{"type": "text", "text": "a"}, image.raw]
    assert normalize_output(["a", image]).content == [{"type": "text", "text": "a"}, image.raw]
    assert normalize_output((Text("a"), image.raw)).content == [{"type": "text", "text": "a"}, image.raw]
    assert normalize_output(ToolOutput(content=[Text("a")])).content == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    "value",
    [
        [{"type": "file", "name": "a.py"}],
        [{"type": "text", "text": "a"}, {"type": "dir"}],
        [{"type": "text", "text": 1}],
        [{"type": "image", "url": "x"}],
        [{"type": ["text"], "text": "a"}],
        ["a"],
        {"a": 1},
    ],
)
def test_values_that_only_resemble_blocks_become_json(value: Any) -> None:
    reported = msgspec.json.encode(value).decode()

    assert normalize_output(value) == ToolOutput(content=reported)
    assert normalize_output(ToolOutput(content=value, details=1, is_error=True)) == ToolOutput(
        content=reported, details=1, is_error=True
    )


def test_built_in_tools_are_chosen_by_name() -> None:
    assert [made.name for made in builtin_tools()] == ["read", "write", "edit", "bash", "grep", "find", "ls"]
    assert builtin_tools("ls") == (BUILTIN_TOOLS["ls"],)
    with pytest.raises(NotFound, match="tool 'nonsense' not found"):
        builtin_tools("ls", "nonsense")


@pytest.mark.parametrize("made", BUILTIN_TOOLS.values(), ids=lambda made: made.name)
def test_every_built_in_tool_has_a_description_and_a_schema_without_references(made: Tool) -> None:
    assert made.description.endswith(".")
    assert made.parameters["type"] == "object"
    assert "$ref" not in str(made.parameters)


# Values as JSON


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
