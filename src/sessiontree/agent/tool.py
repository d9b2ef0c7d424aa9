"""Tools that a model can call: their definition, argument checks and output.

`tool` creates a `Tool` from a typed Python function. Running tools is in `tool_execution`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import Struct

from sessiontree.agent.json_schema import find_mismatch, inline_references
from sessiontree.agent.jsonable import make_jsonable
from sessiontree.agent.sandbox import Confinement
from sessiontree.config import Config
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import ToolCall, is_list
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.hooks.events import Forked, Navigated, Signal, Switched
from sessiontree.hooks.invoke import call
from sessiontree.model.base import ToolSpec


class ToolError(SessionTreeError):
    """A tool call failed. The model sees the message."""


class ToolOutput(Struct, frozen=True, kw_only=True):
    """The output of a tool."""

    content: str | list[JsonObject]
    """For the model: text, or text and image blocks."""
    details: Any = None
    """For users and programs: stored with the result, never sent to the model."""
    is_error: bool = False


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """One call, as passed to the tool."""

    call: ToolCall
    arguments: Any
    """The checked arguments: an instance of the tool's `arguments`, or an object that matches its schema."""
    cwd: str
    """The folder that paths are relative to."""
    signal: Signal
    """Aborted with the run; the task of the tool is cancelled as well."""
    update: Callable[[str], None] = lambda text: None
    """Shows output while the tool runs."""
    agent: Any = None

    @property
    def settings(self) -> Config | None:
        """The settings of the agent, if there is one."""
        return getattr(self.agent, "settings", None)

    @property
    def confinement(self) -> Confinement | None:
        """The sandbox of the agent; `None` without a sandbox."""
        return getattr(self.agent, "confinement", None)


ToolFunction: TypeAlias = Callable[[ToolContext], Awaitable[ToolOutput | str]]

ToolEffect: TypeAlias = Literal["reads", "edits", "runs"]
"""The strongest effect of a tool: it only reads, edits files named in its arguments, or runs anything else."""

SessionChange: TypeAlias = Navigated | Forked | Switched
OnSession: TypeAlias = Callable[[SessionChange], Awaitable[None] | None]


@dataclass(frozen=True, kw_only=True)
class Tool:
    name: str
    description: str
    run: ToolFunction
    parameters: JsonObject = field(default_factory=lambda: {"type": "object", "properties": {}})
    """A JSON schema of an object; derived from `arguments` if given."""
    arguments: type[Struct] | None = None
    """The type of the arguments."""
    concurrent: bool = False
    """Whether calls may run at the same time as other calls of the turn; set it for tools that only read."""
    does: ToolEffect = "runs"
    """The effect that permissions assume."""
    paths: tuple[str, ...] = ()
    """The parameters that are paths; permission rules match them."""
    command: str | None = None
    """The parameter that is a shell command; permission rules match it."""
    on_session: OnSession | None = None
    """Called when the position in the tree changes: by navigation, a fork, or a switch of sessions."""

    def __post_init__(self) -> None:
        if self.arguments is not None:
            object.__setattr__(self, "parameters", build_schema(self.arguments))

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters)

    def parse(self, arguments: Any) -> Any:
        """Return the arguments for `run`. Raises `ToolError` with a message that lets the model correct them."""
        given: Any = {} if arguments is None else arguments
        if self.arguments is None:
            problem = find_mismatch(given, self.parameters)
            if problem is not None:
                raise ToolError(f"invalid arguments for {self.name}: {problem}")
            return given
        try:
            return msgspec.convert(given, self.arguments, strict=False, dec_hook=_decode_path)
        except msgspec.ValidationError as error:
            raise ToolError(f"invalid arguments for {self.name}: {error}") from error


def build_schema(arguments: type[Struct]) -> JsonObject:
    """Return the JSON schema of a struct without references: not every provider supports them.

    Raises `InvalidOperation` if the struct has no JSON schema.
    """
    try:
        (schema,), components = msgspec.json.schema_components([arguments], schema_hook=_build_path_schema)
        found = inline_references(schema, components)
    except (TypeError, ValueError) as error:
        raise InvalidOperation(f"{arguments.__name__} cannot be a tool: {error}") from error
    found.pop("title", None)
    found.pop("description", None)
    return found


def _build_path_schema(kind: type) -> JsonObject:
    if not issubclass(kind, PurePath):
        raise TypeError(f"{kind.__name__} has no JSON schema")
    return {"type": "string"}


def _decode_path(kind: type, given: Any) -> PurePath:
    _build_path_schema(kind)
    return kind(given)


def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    concurrent: bool = False,
    does: ToolEffect = "runs",
    paths: tuple[str, ...] = (),
    command: str | None = None,
) -> Any:
    """Create a `Tool` from a Python function, with its name, docstring and signature.

    Parameters need types; `Annotated[int, msgspec.Meta(description="…")]` describes one to the model. A parameter of
    type `ToolContext` receives the call and is hidden from the model. A function that is not async runs in its own
    thread. It returns a `ToolOutput`, a string, or a value that is converted to JSON. `does`, `paths` and `command`
    declare the effect of the tool and the parameters that permission rules match.
    """

    def build_tool(function: Callable[..., Any]) -> Tool:
        called = name or getattr(function, "__name__", None)
        if called is None:
            raise InvalidOperation(f"{function!r} cannot be a tool: it is not a function")
        try:
            hints = get_type_hints(function, include_extras=True)
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise InvalidOperation(f"{called} cannot be a tool: {error}") from error
        context_name: str | None = None
        fields: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            kind = hints.get(parameter.name)
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise InvalidOperation(f"{called} cannot be a tool: parameter {parameter} cannot be passed by name")
            if kind is None:
                raise InvalidOperation(f"{called} cannot be a tool: its parameter {parameter.name!r} has no type")
            if kind is ToolContext:
                context_name = parameter.name
            elif parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                fields.append(_build_field(parameter.name, kind, parameter.default))
        arguments = msgspec.defstruct(called, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)

        async def run(context: ToolContext) -> ToolOutput | str:
            given = {field: getattr(context.arguments, field) for field in arguments.__struct_fields__}
            if context_name is not None:
                given[context_name] = context
            return normalize_output(await call(function, **given))

        text = description if description is not None else inspect.getdoc(function) or ""
        return Tool(
            name=called,
            description=text,
            run=run,
            arguments=arguments,
            concurrent=concurrent,
            does=does,
            paths=paths,
            command=command,
        )

    return build_tool if function is None else build_tool(function)


def _build_field(name: str, kind: Any, default: Any) -> tuple[str, Any, Any]:
    """Return a struct field. A mutable default is copied for each call."""
    if isinstance(default, str | int | float | None | msgspec.UnsetType):
        return name, kind, default
    shown = msgspec.Meta(extra_json_schema={"default": make_jsonable(default)})
    return name, Annotated[kind, shown], msgspec.field(default_factory=partial(deepcopy, default))


def normalize_output(value: Any) -> ToolOutput:
    """Convert the return value of a tool to an output. Values other than text and content blocks become JSON."""
    if value is None:
        return ToolOutput(content="Done.")
    if not isinstance(value, ToolOutput):
        return ToolOutput(
            content=value if isinstance(value, str) or (_is_block_list(value) and value) else _encode_json(value)
        )
    if isinstance(value.content, str) or _is_block_list(value.content):
        return value
    return msgspec.structs.replace(value, content=_encode_json(value.content))


def _is_block_list(value: Any) -> bool:
    return is_list(value) and all(map(_is_block, value))


def _is_block(value: Any) -> bool:
    match value:
        case {"type": "text", "text": str()} | {"type": "image", "data": str()}:
            return True
        case _:
            return False


def _encode_json(value: Any) -> str:
    converted = make_jsonable(value)
    return converted if isinstance(converted, str) else msgspec.json.encode(converted).decode()
