"""Tools: what a model may call, how its arguments are checked, and what comes back.

A `Tool` is a small value; `tool` makes one from a typed Python function. Running them in their order,
asking hooks and writing results is the loop's work, not theirs.
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
    """A tool could not do what it was called for. Its sentence is what the model is told."""


class ToolOutput(Struct, frozen=True, kw_only=True):
    """What a tool answers."""

    content: str | list[JsonObject]
    """For the model: a text, or text and image blocks."""
    details: Any = None
    """For people and programs: stored with the result, never sent."""
    is_error: bool = False


@dataclass(frozen=True, kw_only=True)
class ToolContext:
    """One call, as the tool that runs it sees it."""

    call: ToolCall
    arguments: Any
    """Checked: an instance of the tool's `arguments`, or the object that its schema describes."""
    cwd: str
    """What paths are relative to."""
    signal: Signal
    """Set when the run is aborted; the task that runs the tool is cancelled as well."""
    update: Callable[[str], None] = lambda text: None
    """Shows output while the tool runs."""
    agent: Any = None

    @property
    def settings(self) -> Config | None:
        """The settings of the agent, where there is one."""
        return getattr(self.agent, "settings", None)

    @property
    def confinement(self) -> Confinement | None:
        """What tools can reach; `None` where nothing keeps them from anything."""
        return getattr(self.agent, "confinement", None)


ToolFunction: TypeAlias = Callable[[ToolContext], Awaitable[ToolOutput | str]]

ToolEffect: TypeAlias = Literal["reads", "edits", "runs"]
"""The most that a tool does: look at something, change files that its arguments name, or anything else."""

SessionChange: TypeAlias = Navigated | Forked | Switched
OnSession: TypeAlias = Callable[[SessionChange], Awaitable[None] | None]


@dataclass(frozen=True, kw_only=True)
class Tool:
    name: str
    description: str
    run: ToolFunction
    parameters: JsonObject = field(default_factory=lambda: {"type": "object", "properties": {}})
    """A JSON schema of an object; follows from `arguments` where that is given."""
    arguments: type[Struct] | None = None
    """What the arguments are converted to."""
    concurrent: bool = False
    """Whether it may run beside other calls of its turn: true for tools that only look."""
    does: ToolEffect = "runs"
    """What permissions are to expect of it."""
    paths: tuple[str, ...] = ()
    """The parameters that are paths: rules of permissions match them."""
    command: str | None = None
    """The parameter that is a shell command: rules of permissions match it."""
    on_session: OnSession | None = None
    """Told when the place in the tree changes under it: by navigation, a fork, or a switch of sessions."""

    def __post_init__(self) -> None:
        if self.arguments is not None:
            object.__setattr__(self, "parameters", build_schema(self.arguments))

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters)

    def parse(self, arguments: Any) -> Any:
        """The arguments as `run` gets them. Raises `ToolError` with a sentence that lets a model correct itself."""
        given: Any = {} if arguments is None else arguments
        if self.arguments is None:
            wrong = find_mismatch(given, self.parameters)
            if wrong is not None:
                raise ToolError(f"the arguments of {self.name} are wrong: {wrong}")
            return given
        try:
            return msgspec.convert(given, self.arguments, strict=False, dec_hook=_decode_path)
        except msgspec.ValidationError as error:
            raise ToolError(f"the arguments of {self.name} are wrong: {error}") from error


def build_schema(arguments: type[Struct]) -> JsonObject:
    """The JSON schema of a struct, with nothing that refers elsewhere: not every provider follows references.

    Raises `InvalidOperation` for what has none.
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
        raise TypeError(f"{kind.__name__} is no type that JSON has")
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
    """A `Tool` from a Python function: its name, docstring and signature say the rest.

    Parameters are typed; `Annotated[int, msgspec.Meta(description="…")]` explains one. A parameter of type
    `ToolContext` gets the call and is not shown to the model. A function that is not async runs in a thread of
    its own. What it returns is a `ToolOutput`, a text, or a value that becomes JSON. `does`, `paths` and `command` tell
    permissions what the tool does, and which parameters their rules match.
    """

    def build_tool(function: Callable[..., Any]) -> Tool:
        called = name or getattr(function, "__name__", None)
        if called is None:
            raise InvalidOperation(f"{function!r} cannot be a tool: it is no function")
        try:
            hints = get_type_hints(function, include_extras=True)
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise InvalidOperation(f"{called} cannot be a tool: {error}") from error
        context_name: str | None = None
        fields: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            kind = hints.get(parameter.name)
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise InvalidOperation(f"{called} cannot be a tool: {parameter} has no name that a model could give")
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

        said = description if description is not None else inspect.getdoc(function) or ""
        return Tool(
            name=called,
            description=said,
            run=run,
            arguments=arguments,
            concurrent=concurrent,
            does=does,
            paths=paths,
            command=command,
        )

    return build_tool if function is None else build_tool(function)


def _build_field(name: str, kind: Any, default: Any) -> tuple[str, Any, Any]:
    """A field of a struct. A default that could be changed in place is made anew for each call."""
    if isinstance(default, str | int | float | None | msgspec.UnsetType):
        return name, kind, default
    shown = msgspec.Meta(extra_json_schema={"default": make_jsonable(default)})
    return name, Annotated[kind, shown], msgspec.field(default_factory=partial(deepcopy, default))


def normalize_output(value: Any) -> ToolOutput:
    """Whatever a tool returned, as its answer: what is neither a text nor text and image blocks becomes JSON."""
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
    made = make_jsonable(value)
    return made if isinstance(made, str) else msgspec.json.encode(made).decode()
