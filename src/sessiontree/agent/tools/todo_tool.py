"""The todo tool: the model keeps a list of what is left to do, which the app shows above the editor."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from sessiontree.agent.tool import Tool, ToolContext, ToolOutput

MAX_ITEMS = 100
SIGNS = {"pending": "☐", "in_progress": "▶", "done": "☑"}


class TodoItem(Struct, frozen=True, kw_only=True):
    text: str
    status: Literal["pending", "in_progress", "done"] = "pending"


class TodoArguments(Struct, frozen=True, kw_only=True):
    items: list[TodoItem]
    """The whole list, in the order of the work."""


def format_item(item: TodoItem) -> str:
    return f"{SIGNS[item.status]} {' '.join(item.text.split())}"


def read_items(arguments: object) -> list[TodoItem]:
    """Return the items of a stored call; none if it is not valid."""
    try:
        return msgspec.convert(arguments, TodoArguments).items[:MAX_ITEMS]
    except msgspec.ValidationError:
        return []


async def _run_todo(context: ToolContext) -> ToolOutput:
    return ToolOutput(content="\n".join(map(format_item, context.arguments.items[:MAX_ITEMS])) or "The list is empty.")


todo = Tool(
    name="todo",
    description=(
        "Show the user a list of the steps of a task with more than two steps. Send the whole list each time a step "
        "starts or is done; one step at a time is in_progress. An empty list removes it."
    ),
    arguments=TodoArguments,
    run=_run_todo,
    does="reads",
)
