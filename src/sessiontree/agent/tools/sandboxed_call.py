"""Run file tools in the sandbox of a confined agent: each call is a process in the sandbox.

Checking a path is not enough: a command of the same agent could replace it by a link between the check and the use.
`main` is the entry point of the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import msgspec
from msgspec import Struct

import sessiontree.agent.tools.output_limits as output_limits
from sessiontree.agent.sandbox import Confinement, clean_environment, switch_user
from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput, normalize_output
from sessiontree.agent.tools.file_access import resolve_mention, wait_despite_cancel
from sessiontree.core.messages import ToolCall
from sessiontree.home import build_self_command, is_below
from sessiontree.hooks.events import Signal

CALL_TIMEOUT = 60.0
"""The time limit of a call, in seconds."""

FileToolFunction = Callable[[ToolContext], Awaitable[ToolOutput]]


class ConfinedCall(Struct, frozen=True, kw_only=True):
    """The input of the process."""

    tool: str
    arguments: Any
    cwd: str
    user: str | None = None
    """The process switches to this user first."""


class ConfinedAnswer(Struct, frozen=True, kw_only=True):
    """The output of the process: the parts of a `ToolOutput` as JSON, or an error."""

    content: Any = None
    details: Any = None
    is_error: bool = False
    error: str | None = None


def confinable(run: FileToolFunction) -> FileToolFunction:
    """Decorate a file tool: it runs in the sandbox of its agent, if there is one."""

    @wraps(run)
    async def run_confined(context: ToolContext) -> ToolOutput:
        confinement = context.confinement
        path: str = context.arguments.path
        if confinement is None or (context.call.name in ("read", "grep") and _is_out_of_reach(path, confinement)):
            return await run(context)
        _check_inside(path, context.cwd, confinement)
        return await _run_in_sandbox(context, confinement)

    return run_confined


def _is_out_of_reach(path: str, confinement: Confinement) -> bool:
    """Return whether commands of the agent cannot replace a file with full output.

    If they can, they could put a link there, so the file is read inside the sandbox.
    """
    return output_limits.is_full_output(path) and (confinement.is_limited or confinement.user is not None)


def _check_inside(path: str, cwd: str, confinement: Confinement) -> None:
    """Raise `ToolError` if the agent is limited to its project and the path is outside."""
    real = os.path.realpath(resolve_mention(path, cwd))
    if confinement.is_limited and not is_below(real, confinement.folder):
        raise ToolError(f"{path} is outside of {confinement.folder}; tools are limited to the project")


async def _run_in_sandbox(context: ToolContext, confinement: Confinement) -> ToolOutput:
    user = confinement.user
    call = ConfinedCall(
        tool=context.call.name, arguments=msgspec.to_builtins(context.arguments), cwd=context.cwd, user=user
    )
    started = confinement.wrap_command(build_self_command(__name__), clean_environment(context.settings), context.cwd)
    if user is not None:  # this user may not be able to read this program, so the process switches after loading it
        started = started._replace(options={}, cwd="/")
    try:
        process = await asyncio.create_subprocess_exec(
            *started.arguments,
            cwd=started.cwd,
            env=started.environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            **started.options,
        )
    except OSError as error:
        raise ToolError(f"cannot start the sandbox: {error.strerror or error}") from error
    working = asyncio.ensure_future(process.communicate(msgspec.json.encode(call)))
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            raw, errors = await wait_despite_cancel(working)
    except TimeoutError:
        raise ToolError(f"{context.call.name} took longer than {CALL_TIMEOUT:g} seconds") from None
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.wait([working])
    try:
        answer = msgspec.json.decode(raw, type=ConfinedAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        reason = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ToolError(f"the sandbox ended with code {process.returncode}{reason and f': {reason}'}") from None
    if answer.content is None:
        raise ToolError(answer.error or "the sandbox returned no result")
    return ToolOutput(content=answer.content, details=answer.details, is_error=answer.is_error)


# Inside the process


def main() -> None:
    call = msgspec.json.decode(sys.stdin.buffer.read(), type=ConfinedCall)
    output_limits.CAN_KEEP_FILES = False  # the temporary folder disappears with the sandbox
    from sessiontree.agent import tools  # cycle: load all tools while their files can be read

    if call.user is not None:
        asyncio.run(asyncio.to_thread(int))  # load what threads need
        switch_user(call.user)
    try:
        output = asyncio.run(_run_call(call, tools.BUILTIN_TOOLS[call.tool]))
        answer = ConfinedAnswer(content=output.content, details=output.details, is_error=output.is_error)
    except ToolError as error:
        answer = ConfinedAnswer(error=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(answer))


async def _run_call(call: ConfinedCall, tool: Tool) -> ToolOutput:
    given = ToolCall("", call.tool, call.arguments)
    return normalize_output(
        await tool.run(ToolContext(call=given, arguments=tool.parse(call.arguments), cwd=call.cwd, signal=Signal()))
    )
