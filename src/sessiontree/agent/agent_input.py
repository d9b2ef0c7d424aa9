"""The arguments of an agent, in all the forms that a caller may use, and one clear error for each wrong one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from sessiontree.agent.permissions import Permissions
from sessiontree.agent.tool import Tool, tool
from sessiontree.config import CHOICES, Config
from sessiontree.core.entries import JsonObject, Message
from sessiontree.core.message_views import Image
from sessiontree.core.messages import is_object, user
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import RetryScheduled
from sessiontree.model.base import Model
from sessiontree.model.retry import RetryAttempt, RetryingModel
from sessiontree.session import Branch, Session

THINKING_LEVELS = CHOICES["thinking"]
MAX_SHOWN = 40
"""Characters of a wrong value that an error shows."""


def describe_value(value: object) -> str:
    """Return a wrong value and its type for an error."""
    shown = repr(value)
    return f"{shown if len(shown) <= MAX_SHOWN else f'{shown[:MAX_SHOWN]}…'} ({type(value).__name__})"


def resolve_branch(given: object) -> Branch:
    """Return the branch that an agent works on: a branch, the current one of a session, or one in memory."""
    if given is None:
        from sessiontree.library.catalog import memory

        return memory().head
    if isinstance(given, Branch):
        return given
    if isinstance(given, Session):
        return given.head
    expected = "an agent works on a session or a branch"
    if isinstance(given, str):
        raise InvalidOperation(f"{expected}, not on the text {given!r}; open a session with st.open({given!r}) first")
    if is_model(given):
        raise InvalidOperation(f"{expected}, not on a model; pass the model as model=…")
    raise InvalidOperation(f"{expected}, not on {describe_value(given)}")


def is_model(value: object) -> bool:
    return not isinstance(value, type) and hasattr(value, "info") and callable(getattr(value, "stream", None))


def resolve_model(given: object, settings: Config | None, hooks: Hooks) -> Model:
    """Return a model as it is, or find it by its name. `None` is the default model. Raises `NotFound` and `NoModel`."""
    if given is None or isinstance(given, str):
        return find_retrying_model(given, settings, hooks)
    if is_model(given):
        return given  # pyright: ignore[reportReturnType] - it has the methods of a model
    raise InvalidOperation(
        f'a model is a name such as "openai:gpt-5.5", or a model from st.find_model, not {describe_value(given)}'
    )


def find_retrying_model(name: str | None, settings: Config | None, hooks: Hooks) -> Model:
    """Find a model by name. It retries failed requests and reports each retry to the hooks."""
    from sessiontree.model.selection import find_model

    retry = (settings or Config()).retry
    report = partial(_report_retry, hooks)
    found = find_model(name, settings)
    return RetryingModel(found, attempts=retry.attempts, base_delay=retry.base_delay, on_retry=report)


def _report_retry(hooks: Hooks, retry: RetryAttempt) -> None:
    error = str(retry.error)
    hooks.notify_listeners(
        RetryScheduled(attempt=retry.attempt, attempts=retry.attempts, delay=retry.delay, error=error)
    )


def resolve_tools(given: object) -> dict[str, Tool]:
    """Return tools by name. Functions become tools."""
    if given is None:
        return {}
    if isinstance(given, Tool) or (callable(given) and not isinstance(given, type)):
        name = given.name if isinstance(given, Tool) else getattr(given, "__name__", "tool")
        raise InvalidOperation(f"tools is a list: write tools=[{name}]")
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidOperation(f"tools is a list of functions and tools, not {describe_value(given)}")
    tools: dict[str, Tool] = {}
    items: list[Any] = [*given]
    for item in items:
        found = resolve_tool(item)
        if found.name in tools:
            raise InvalidOperation(f"two tools have the name {found.name!r}; rename one with st.tool(name=…)")
        tools[found.name] = found
    return tools


def resolve_tool(given: Tool | Callable[..., Any]) -> Tool:
    """Return a tool as it is, or the tool of a function."""
    if isinstance(given, Tool):
        return given
    if callable(given) and not isinstance(given, type):
        return tool(given)
    hint = f"; a built-in tool is in st.builtin_tools({given!r})" if isinstance(given, str) else ""
    raise InvalidOperation(f"a tool is a function or an st.Tool, not {describe_value(given)}{hint}")


def check_agent_options(
    *, hooks: object, system: object, settings: object, thinking: object, cwd: object, permissions: object
) -> None:
    """Raise `InvalidOperation` for an option of the wrong type."""
    if hooks is not None and not isinstance(hooks, Hooks):
        raise InvalidOperation(f"hooks is an st.Hooks, not {describe_value(hooks)}")
    if settings is not None and not isinstance(settings, Config):
        raise InvalidOperation(f"settings is an st.Config, not {describe_value(settings)}")
    if thinking is not None:
        check_thinking_level(thinking)
    if cwd is not None and not isinstance(cwd, str | os.PathLike):
        raise InvalidOperation(f"cwd is the path of a folder, not {describe_value(cwd)}")
    if permissions is not None and not isinstance(permissions, Permissions):
        raise InvalidOperation(f"permissions is an st.Permissions, not {describe_value(permissions)}")
    if not (system is None or isinstance(system, str | Sequence) or callable(system)):
        raise InvalidOperation(f"system is text, not {describe_value(system)}")


def check_thinking_level(level: object) -> None:
    if level not in THINKING_LEVELS:
        raise InvalidOperation(f"thinking is one of {', '.join(THINKING_LEVELS)}, not {describe_value(level)}")


def build_prompt_message(text: str, images: Sequence[JsonObject | Image] = ()) -> Message:
    """Return the message of a prompt. Raises `InvalidOperation` if it is not text with images."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
        raise InvalidOperation(f"a prompt is text, not {describe_value(text)}")
    if isinstance(images, str | bytes | Image) or is_object(images):
        raise InvalidOperation(f"images is a list such as [st.Image(data, media_type)], not {type(images).__name__}")
    blocks: list[JsonObject] = [{"type": "text", "text": text}] if text else []
    blocks += [image.raw if isinstance(image, Image) else image for image in images]
    return user(blocks if images else text)
