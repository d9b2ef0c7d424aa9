"""Tool calls: which may run together, and how one is carried out from the question to handlers to its output."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from math import inf
from typing import Any

from msgspec import UNSET

from sessiontree.agent.jsonable import find_write_problem, make_jsonable
from sessiontree.agent.permissions import Denial, Permissions
from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput, normalize_output
from sessiontree.core.entries import JsonObject, Message
from sessiontree.core.messages import ToolCall, build_text_blocks, tool_result
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import (
    BeforeToolCall,
    Notice,
    Signal,
    ToolCallAnswer,
    ToolDenied,
    ToolResult,
    ToolStart,
    ToolUpdate,
)

ABORTED_OUTPUT = ToolOutput(content="The call was aborted.", is_error=True)
NOT_RUN_OUTPUT = ToolOutput(content="The call was not made: the run was aborted before.", is_error=True)
CUT_OFF_OUTPUT = ToolOutput(
    content="The call was not made: your answer was cut off at its limit, so the arguments may not be whole.",
    is_error=True,
)


def group_calls(calls: Iterable[ToolCall], tools: Mapping[str, Tool]) -> Iterator[list[ToolCall]]:
    """Calls in their order, those together that may run at the same time."""
    group: list[ToolCall] = []
    for call in calls:
        tool = tools.get(call.name)
        if tool is not None and tool.concurrent:
            group.append(call)
            continue
        if group:
            yield group
        yield [call]
        group = []
    if group:
        yield group


async def run_tool_call(
    call: ToolCall,
    tools: Mapping[str, Tool],
    hooks: Hooks,
    *,
    cwd: str,
    signal: Signal,
    agent: Any,
    permissions: Permissions | None = None,
) -> ToolOutput:
    """What a call brings. Whatever goes wrong is an output too, so that the model can go on.

    `permissions` decide whether it is made, after handlers had their say and with the arguments that they left;
    `None` allows everything.
    """
    asked, answer = await hooks.ask(BeforeToolCall(call=call))
    if answer.cancel:
        reason = answer.reason if isinstance(answer, ToolCallAnswer) and answer.reason is not UNSET else ""
        output = ToolOutput(content=f"The call was blocked{f': {reason}' if reason else '.'}", is_error=True)
    else:
        call = asked.call
        denied = None
        if permissions is not None:
            denied = await _check_permission(permissions, call, tools, hooks, cwd)
        if denied is None:
            await hooks.emit(ToolStart(call=call))
            output = await _run_tool(call, tools, hooks, cwd, signal, agent)
        else:
            output = denied
    content, details = build_text_blocks(make_jsonable(output.content)), make_jsonable(output.details)
    result, _ = await hooks.ask(ToolResult(call=call, content=content, is_error=output.is_error, details=details))
    given = ToolOutput(
        content=make_jsonable(result.content), is_error=result.is_error, details=make_jsonable(result.details)
    )
    return normalize_output(given)


async def _check_permission(
    permissions: Permissions, call: ToolCall, tools: Mapping[str, Tool], hooks: Hooks, cwd: str
) -> ToolOutput | None:
    """What the model is told of a call that is not allowed; `None` for one that may be made."""
    tool = tools.get(call.name)
    if tool is None:
        return None  # and nothing runs

    def warn(text: str) -> None:
        hooks.notify_listeners(Notice(level="warning", text=text))

    try:
        denial = await permissions.check(tool, call, tool.parse(call.arguments), cwd, warn)
    except ToolError:
        return None  # nothing runs with these arguments
    except Exception as error:  # noqa: BLE001 - a check that fails allows nothing
        why = f"permissions could not be checked: {type(error).__name__}: {error}"
        denial = Denial(call=call, title=call.name, reason=why, rule=None)
    if denial is None:
        return None
    await hooks.emit(ToolDenied(call=call, title=denial.title, reason=denial.reason, rule=denial.rule))
    details = {"denied": denial.reason, "title": denial.title, "rule": denial.rule}
    return ToolOutput(content=denial.message, is_error=True, details=details)


async def _run_tool(
    call: ToolCall, tools: Mapping[str, Tool], hooks: Hooks, cwd: str, signal: Signal, agent: Any
) -> ToolOutput:
    tool = tools.get(call.name)
    if tool is None:
        known = f"there are {', '.join(tools)}" if tools else "there are none"
        return ToolOutput(content=f"There is no tool {call.name!r}; {known}.", is_error=True)
    try:
        context = ToolContext(
            call=call,
            arguments=tool.parse(call.arguments),
            cwd=cwd,
            signal=signal,
            update=_build_update_callback(call, hooks),
            agent=agent,
        )
        return normalize_output(await tool.run(context))
    except ToolError as error:
        return ToolOutput(content=str(error), is_error=True)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may raise anything, and the model is to know
        return ToolOutput(content=f"{call.name} failed with {type(error).__name__}: {error}", is_error=True)


def _build_update_callback(call: ToolCall, hooks: Hooks) -> Callable[[str], None]:
    """What shows output while a tool runs: in the loop from whichever thread, in order, and before the call ends."""
    loop, home = asyncio.get_running_loop(), threading.get_ident()

    def update(text: str) -> None:
        event = ToolUpdate(call=call, text=text)
        if threading.get_ident() == home:
            hooks.notify_listeners(event)
        else:
            with suppress(RuntimeError):  # the loop has ended: nobody looks on any more
                loop.call_soon_threadsafe(hooks.notify_listeners, event)

    return update


def get_denied_title(message: JsonObject) -> str | None:
    """What a result that was written says permissions did not allow; `None` for another message."""
    match message:
        case {"role": "toolResult", "isError": True, "details": {"denied": str(), "title": str(title)}}:
            return title
        case _:
            return None


def build_result_message(call: ToolCall, output: ToolOutput) -> Message:
    """What is written of a call. An output that cannot be is an error that says so: the call has been made.

    One that is too long for an entry is as it is: the rest of it will be in a file.
    """
    made = tool_result(call.id, call.name, output.content, error=output.is_error, details=output.details)
    fault = find_write_problem(made.message, inf)
    if fault is None:
        return made
    return tool_result(call.id, call.name, f"The call was made, but its result is not kept: {fault}.", error=True)
