"""Run tool calls: group concurrent calls, ask handlers and permissions, and build the results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from math import inf

from msgspec import UNSET

from sessiontree.agent.message_queues import RunHost
from sessiontree.agent.permissions import Denial
from sessiontree.agent.run_writer import find_write_problem
from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput, make_jsonable, normalize_output
from sessiontree.core.entries import JsonObject, Message
from sessiontree.core.messages import ToolCall, build_text_blocks, tool_result
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import (
    BeforeToolCall,
    Notice,
    Signal,
    ToolCallAnswer,
    ToolDenied,
    ToolReturned,
    ToolStart,
    ToolUpdate,
)

ABORTED_OUTPUT = ToolOutput(content="The call was aborted.", is_error=True)
NOT_RUN_OUTPUT = ToolOutput(content="The call was not run: the run was aborted before it.", is_error=True)
CUT_OFF_OUTPUT = ToolOutput(
    content="The call was not run: your answer reached its length limit, so the arguments may be incomplete.",
    is_error=True,
)


def group_calls(calls: Iterable[ToolCall], tools: Mapping[str, Tool]) -> Iterator[list[ToolCall]]:
    """Yield the calls in order; calls of concurrent tools are grouped."""
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


async def run_tool_call(agent: RunHost, call: ToolCall, signal: Signal, tools: Mapping[str, Tool]) -> ToolOutput:
    """Run a call and return its output. Failures are outputs too: the model sees them and continues.

    Handlers may change the arguments; after that, the permissions of the agent decide whether the call runs.
    """
    hooks = agent.hooks
    event, answer = await hooks.ask(BeforeToolCall(call=call))
    if answer.cancel:
        reason = answer.reason if isinstance(answer, ToolCallAnswer) and answer.reason is not UNSET else ""
        output = ToolOutput(content=f"The call was blocked{f': {reason}' if reason else '.'}", is_error=True)
    else:
        call = event.call
        output = await _check_permission(agent, call, tools.get(call.name))
        if output is None:
            await hooks.emit(ToolStart(call=call))
            async with watch_files(agent, tools.get(call.name)):
                output = await _run_tool(agent, call, signal, tools)
    content, details = build_text_blocks(make_jsonable(output.content)), make_jsonable(output.details)
    result, _ = await hooks.ask(ToolReturned(call=call, content=content, is_error=output.is_error, details=details))
    given = ToolOutput(
        content=make_jsonable(result.content), is_error=result.is_error, details=make_jsonable(result.details)
    )
    return normalize_output(given)


def watch_files(agent: RunHost, tool: Tool | None) -> AbstractAsyncContextManager[None]:
    """Take snapshots of the files around a call, if the agent has them on."""
    return nullcontext() if agent.file_recorder is None else agent.file_recorder.watch(tool, agent.cwd)


async def _check_permission(agent: RunHost, call: ToolCall, tool: Tool | None) -> ToolOutput | None:
    """Return the output for a call that is denied; `None` if the call is allowed."""
    if agent.permissions is None or tool is None:
        return None  # an unknown tool fails later

    def warn(text: str) -> None:
        agent.hooks.notify_listeners(Notice(level="warning", text=text))

    try:
        denial = await agent.permissions.check(tool, call, tool.parse(call.arguments), agent.cwd, warn)
    except ToolError:
        return None  # the call fails later: its arguments are invalid
    except Exception as error:  # noqa: BLE001 - a check that fails denies the call
        why = f"the permission check failed: {type(error).__name__}: {error}"
        denial = Denial(call=call, title=call.name, reason=why, rule=None)
    if denial is None:
        return None
    await agent.hooks.emit(ToolDenied(call=call, title=denial.title, reason=denial.reason, rule=denial.rule))
    details = {"denied": denial.reason, "title": denial.title, "rule": denial.rule}
    return ToolOutput(content=denial.message, is_error=True, details=details)


async def _run_tool(agent: RunHost, call: ToolCall, signal: Signal, tools: Mapping[str, Tool]) -> ToolOutput:
    tool = tools.get(call.name)
    if tool is None:
        known = f"tools: {', '.join(tools)}" if tools else "no tools are available"
        return ToolOutput(content=f"Tool {call.name!r} not found; {known}.", is_error=True)
    try:
        context = ToolContext(
            call=call,
            arguments=tool.parse(call.arguments),
            cwd=agent.cwd,
            signal=signal,
            update=_build_update_callback(call, agent.hooks),
            agent=agent,
        )
        return normalize_output(await tool.run(context))
    except ToolError as error:
        return ToolOutput(content=str(error), is_error=True)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may raise anything, and the model sees the error
        return ToolOutput(content=f"{call.name} failed with {type(error).__name__}: {error}", is_error=True)


def _build_update_callback(call: ToolCall, hooks: Hooks) -> Callable[[str], None]:
    """Return a callback that shows output while a tool runs. Any thread may call it."""
    loop, home = asyncio.get_running_loop(), threading.get_ident()

    def update(text: str) -> None:
        event = ToolUpdate(call=call, text=text)
        if threading.get_ident() == home:
            hooks.notify_listeners(event)
        else:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(hooks.notify_listeners, event)

    return update


def get_denied_title(message: JsonObject) -> str | None:
    """Return the title of the call that a tool result reports as denied; `None` for other messages."""
    match message:
        case {"role": "toolResult", "isError": True, "details": {"denied": str(), "title": str(title)}}:
            return title
        case _:
            return None


def build_result_message(call: ToolCall, output: ToolOutput) -> Message:
    """Return the result message of a call. An output that cannot be encoded is replaced by an error.

    An output that is too long stays as it is; the writer moves the rest to a file.
    """
    message = tool_result(call.id, call.name, output.content, error=output.is_error, details=output.details)
    problem = find_write_problem(message.message, inf)
    if problem is None:
        return message
    return tool_result(call.id, call.name, f"The call ran, but its result cannot be written: {problem}.", error=True)
