"""Tools that a model can call: their definition, argument checks and output.

`tool` creates a `Tool` from a typed Python function. Running tools is in `tool_execution`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, Protocol, TypeAlias, get_type_hints, overload

import msgspec
from msgspec import Struct

from sessiontree.agent.sandbox import Confinement
from sessiontree.agent.typed_values import (
    InvalidValue,
    ValueCheck,
    build_check,
    build_pydantic_arguments,
    is_pydantic_object,
    uses_pydantic,
)
from sessiontree.config import Config
from sessiontree.core.entries import JsonObject
from sessiontree.core.message_views import Image, Text
from sessiontree.core.messages import Content, ToolCall, is_list, is_object
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.format.nesting import is_deep
from sessiontree.hooks.bus import call
from sessiontree.hooks.events import Forked, Navigated, Signal, Switched
from sessiontree.model.base import ToolSpec


class ToolError(SessionTreeError):
    """A tool call failed. The model sees the message."""


class ToolOutput(Struct, frozen=True, kw_only=True):
    """The output of a tool."""

    content: Content
    """For the model: text, or a list of texts and images."""
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


class ToolProvider(Protocol):
    """Provides tools that may change while the agent runs, such as tools of MCP servers."""

    async def list_tools(self, warn: Callable[[str], None]) -> Sequence[Tool]:
        """Return the tools for the next request. `warn` gets problems for the user."""
        ...


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
    arguments: type[Any] | None = None
    """The type of the arguments: a struct, a dataclass or a pydantic model."""
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
    _check: ValueCheck | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.arguments is not None:
            check = build_check(self.arguments, f"{self.name} cannot be a tool")
            schema = {key: value for key, value in check.schema.items() if key not in ("title", "description")}
            object.__setattr__(self, "parameters", schema)
            object.__setattr__(self, "_check", check)

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
            return given if self._check is None else self._check.parse(given)
        except InvalidValue as error:
            raise ToolError(f"invalid arguments for {self.name}: {error}") from error


@overload
def tool(
    function: Callable[..., Any],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    concurrent: bool = False,
    does: ToolEffect = "runs",
    paths: tuple[str, ...] = (),
    command: str | None = None,
) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    concurrent: bool = False,
    does: ToolEffect = "runs",
    paths: tuple[str, ...] = (),
    command: str | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    concurrent: bool = False,
    does: ToolEffect = "runs",
    paths: tuple[str, ...] = (),
    command: str | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Create a `Tool` from a Python function, with its name, docstring and signature.

    Parameters need types; `Annotated[int, msgspec.Meta(description="…")]` and `Annotated[int, pydantic.Field(ge=1)]`
    describe one to the model. Types may be structs, dataclasses and pydantic models. A parameter of type `ToolContext`
    receives the call and is hidden from the model. A function that is not async runs in its own thread. It returns a
    `ToolOutput`, a string, or a value that is converted to JSON. `does`, `paths` and `command` declare the effect of
    the tool and the parameters that permission rules match.
    """

    def build_tool(function: Callable[..., Any]) -> Tool:
        called = name or getattr(function, "__name__", None)
        if called is None or not callable(function):
            raise InvalidOperation(f"{function!r} cannot be a tool: it is not a function")
        if called == "<lambda>":
            raise InvalidOperation("a lambda cannot be a tool: define a function with a name and types")
        try:
            hints = get_type_hints(function, include_extras=True)
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise InvalidOperation(f"{called} cannot be a tool: {error}") from error
        context_name: str | None = None
        fields: list[tuple[str, Any, Any]] = []
        for parameter in inspect.signature(function).parameters.values():
            kind = hints.get(parameter.name)
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise InvalidOperation(f"{called} cannot be a tool: parameter {parameter} cannot be passed by name")
            if kind is None:
                raise InvalidOperation(f"{called} cannot be a tool: its parameter {parameter.name!r} has no type")
            if kind is ToolContext:
                context_name = parameter.name
            else:
                fields.append((parameter.name, kind, parameter.default))
        arguments = _build_arguments(called, fields)
        names = [field for field, _, _ in fields]

        async def run(context: ToolContext) -> ToolOutput | str:
            given = {field: getattr(context.arguments, field) for field in names}
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


def _build_arguments(name: str, parameters: Sequence[tuple[str, Any, Any]]) -> type[Any]:
    """Return a type with a field for each parameter: its name, type and default."""
    if any(uses_pydantic(kind) or is_pydantic_object(default) for _, kind, default in parameters):
        fields = [_build_pydantic_field(*parameter) for parameter in parameters]
        return build_pydantic_arguments(name, fields)
    fields = [_build_field(*parameter) for parameter in parameters]
    return msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)


def _build_field(name: str, kind: Any, default: Any) -> tuple[Any, ...]:
    """Return a struct field. A mutable default is copied for each call."""
    if default is inspect.Parameter.empty:
        return name, kind
    if isinstance(default, str | int | float | None | msgspec.UnsetType):
        return name, kind, default
    shown = msgspec.Meta(extra_json_schema={"default": make_jsonable(default)})
    return name, Annotated[kind, shown], msgspec.field(default_factory=partial(deepcopy, default))


def _build_pydantic_field(name: str, kind: Any, default: Any) -> tuple[Any, ...]:
    if default is inspect.Parameter.empty:
        return name, kind
    if is_pydantic_object(default) or isinstance(default, str | int | float | None):
        return name, kind, default
    return name, kind, field(default_factory=partial(deepcopy, default))


def normalize_output(value: Any) -> ToolOutput:
    """Convert the return value of a tool to an output. Values other than text and images become JSON."""
    if value is None:
        return ToolOutput(content="Done.")
    if not isinstance(value, ToolOutput):
        return ToolOutput(content=_encode_json(value) if is_list(value) and not value else _build_content(value))
    content = _build_content(value.content)
    return value if content is value.content else msgspec.structs.replace(value, content=content)


def _build_content(value: Any) -> str | list[JsonObject]:
    if isinstance(value, str):
        return value
    if isinstance(value, Text | Image):
        return [value.raw]
    if is_list(value) and all(map(_is_block, value)):
        return value
    parts: list[Any] = [*value] if isinstance(value, list | tuple) else []
    # A list that holds texts alone is a value.
    if any(isinstance(part, Text | Image) for part in parts):
        blocks = [Text(part).raw if isinstance(part, str) else getattr(part, "raw", part) for part in parts]
        if all(map(_is_block, blocks)):
            return blocks
    return _encode_json(value)


def _is_block(value: Any) -> bool:
    match value:
        case {"type": "text", "text": str()} | {"type": "image", "data": str()}:
            return True
        case _:
            return False


def _encode_json(value: Any) -> str:
    converted = make_jsonable(value)
    return converted if isinstance(converted, str) else msgspec.json.encode(converted).decode()


# JSON schemas: only the keywords that tools use are checked, because a tool checks its arguments too


JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def find_mismatch(value: Any, schema: JsonObject, where: str = "") -> str | None:
    """Return the first problem of `value` with its location; `None` if it matches the schema."""
    at = f"{where}: " if where else ""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if is_list(choices):
        problems = [find_mismatch(value, choice, where) for choice in choices if is_object(choice)]
        if problems and None not in problems:
            return problems[0]
    kinds = schema.get("type")
    wanted = [kinds] if isinstance(kinds, str) else [kind for kind in kinds or () if isinstance(kind, str)]
    if wanted and not any(_is_kind(value, kind) for kind in wanted):
        return f"{at}expected {' or '.join(wanted)}, got {_get_kind(value)}"
    allowed = schema.get("enum")
    if is_list(allowed) and value not in allowed:
        return f"{at}expected one of {', '.join(map(repr, allowed))}, got {value!r}"
    if is_object(value):
        return _find_object_mismatch(value, schema, where)
    if is_list(value) and is_object(schema.get("items")):
        found = (find_mismatch(item, schema["items"], f"{where}[{index}]") for index, item in enumerate(value))
        return next((problem for problem in found if problem is not None), None)
    return None


def _find_object_mismatch(value: JsonObject, schema: JsonObject, where: str) -> str | None:
    properties = schema.get("properties")
    known: JsonObject = properties if is_object(properties) else {}
    at = f"{where}: " if where else ""
    required = schema.get("required")
    for name in required if is_list(required) else ():
        if name not in value:
            return f"{at}{name!r} is missing"
    for name, item in value.items():
        if is_object(known.get(name)):
            problem = find_mismatch(item, known[name], f"{where}.{name}" if where else name)
            if problem is not None:
                return problem
        elif name not in known and schema.get("additionalProperties") is False:
            return f"{at}unknown field {name!r}; fields: {', '.join(known)}"
    return None


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, JSON_TYPES.get(kind, (object,)))


def _get_kind(value: Any) -> str:
    return next((kind for kind in JSON_TYPES if _is_kind(value, kind)), type(value).__name__)


# Values as JSON: a part that cannot be encoded becomes text, and no result is lost


def make_jsonable(value: Any) -> Any:
    """Return `value` as JSON types. Unknown objects become strings, and so does a value that is nested too deeply."""
    if value is None:
        return None
    try:
        converted = msgspec.to_builtins(value, enc_hook=_encode_unknown, str_keys=True)
    except Exception:  # noqa: BLE001 - the value may be of any type, or contain itself
        return _stringify(value)
    return limit_depth(converted)


def _encode_unknown(value: Any) -> Any:
    """Return a pydantic model as JSON types, and any other object as text."""
    return value.model_dump(mode="json") if hasattr(value, "__pydantic_core_schema__") else str(value)


def limit_depth(value: Any) -> Any:
    # Four levels around a block: entry, message, content, block.
    return _stringify(value) if is_deep([[[[value]]]]) else value


def _stringify(value: Any) -> str:
    for convert in (lambda: msgspec.json.encode(value).decode(), lambda: str(value)):
        with suppress(Exception):
            return convert()
    return "(cannot be converted to text)"
