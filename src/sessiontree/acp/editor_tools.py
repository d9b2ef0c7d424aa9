"""Built-in tools that go through the editor: files with unsaved changes, and commands in its terminals.

Rules, arguments and output do not differ from the built-in tools. If the editor cannot read a file, such as an image,
the built-in tool reads it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO

from sessiontree.acp.editor_client import EditorClient, EditorError, EditorRefusal
from sessiontree.agent.sandbox import clean_environment
from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolFunction, ToolOutput
from sessiontree.agent.tools.bash_tool import BashArguments, CommandResult, build_bash_output
from sessiontree.agent.tools.file_access import (
    SNIFF_BYTES,
    detect_image_type,
    is_binary,
    resolve_mention,
    resolve_path,
    wait_despite_cancel,
)
from sessiontree.agent.tools.file_tools import MAX_EDIT_BYTES, describe_write, edit_text, read_text
from sessiontree.agent.tools.output_limits import OutputTail
from sessiontree.config import PROVIDER_KEY_VARIABLES, Config
from sessiontree.core.messages import ToolCall
from sessiontree.regular_file import open_regular_file

ShowTerminal = Callable[[ToolCall, str], None]
"""Shows a terminal, by its id, in a tool call."""
TERMINAL_BYTES = 1 << 20
"""How much output a terminal keeps."""
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH", re.IGNORECASE)
"""Matches names of variables that usually contain secrets."""
FOLDER_NAMES = frozenset({"PWD", "OLDPWD"})
"""Variables that shells set to folders; their names look like passwords."""
SECRET_VALUE = re.compile("://[^/]*@")
"""Matches addresses with a user name, which is usually followed by a password."""
ANSWER_SECONDS = 30.0
"""How long the editor may take to read or write a file, or to start or stop a command."""
_discarding: set[asyncio.Task[None]] = set()
"""Tasks that end abandoned commands. The event loop itself would not keep them."""


def route_tools(tools: Sequence[Tool], editor: EditorClient, show_terminal: ShowTerminal) -> list[Tool]:
    """Return the tools. Tools that the editor can serve are routed through it."""
    routes: dict[str, ToolFunction] = {}
    if editor.can_read_files:
        routes["read"] = partial(_read, editor)
    if editor.can_read_files and editor.can_write_files:
        routes |= {"edit": partial(_edit, editor), "write": partial(_write, editor)}
    if editor.has_terminals:
        routes["bash"] = partial(_run_in_terminal, editor, show_terminal)
    return [
        replace(tool, run=partial(_run_routed, routes[tool.name], tool.run)) if tool.name in routes else tool
        for tool in tools
    ]


async def _run_routed(route: ToolFunction, fallback: ToolFunction, context: ToolContext) -> ToolOutput | str:
    if context.confinement is not None:  # the editor runs outside of the sandbox
        return await fallback(context)
    try:
        return await route(context)
    except EditorError:
        return await fallback(context)


# Files


async def _read(editor: EditorClient, context: ToolContext) -> ToolOutput:
    path = os.path.realpath(resolve_mention(context.arguments.path, context.cwd))
    data = (await _fetch_text(editor, path)).encode("utf-8", "replace")
    return read_text(context.arguments, BytesIO(data), len(data))


async def _edit(editor: EditorClient, context: ToolContext) -> ToolOutput:
    path = os.path.realpath(resolve_path(context.arguments.path, context.cwd))
    text = await _fetch_text(editor, path)
    if len(text) > MAX_EDIT_BYTES:
        raise ToolError(f"{context.arguments.path} is larger than {MAX_EDIT_BYTES >> 20} MiB; it cannot be edited")
    changed, output = edit_text(text, context.arguments)
    await _store_text(editor, path, changed)
    return output


async def _write(editor: EditorClient, context: ToolContext) -> ToolOutput:
    path = os.path.realpath(resolve_path(context.arguments.path, context.cwd))
    before = None
    if os.path.lexists(path):
        with suppress(EditorError):
            before = await _fetch_text(editor, path)
        if before is None:
            raise EditorError("the file is not text that the editor can read")
    await _store_text(editor, path, context.arguments.content)
    return describe_write(context.arguments, before, existed=before is not None)


async def _fetch_text(editor: EditorClient, path: str) -> str:
    """Return the text of a file from the editor. Raises `EditorError` for files that are not text."""
    try:
        with open_regular_file(path) as file:
            start = file.read(SNIFF_BYTES)
        if detect_image_type(start) is not None or is_binary(start):
            raise EditorError("the file is not text")
    except FileNotFoundError:
        pass  # a new file in the editor that was never saved
    except OSError as error:
        raise EditorError(str(error)) from error
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await editor.read_text_file(path)
    except TimeoutError:
        raise EditorError("the editor did not answer") from None


async def _store_text(editor: EditorClient, path: str, text: str) -> None:
    """Write a file through the editor. A write that has started is not abandoned: the model must see its result."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ToolError("the text contains half of a surrogate pair, which cannot be encoded as UTF-8") from None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await wait_despite_cancel(asyncio.ensure_future(editor.write_text_file(path, text)))
    except TimeoutError:
        raise ToolError(f"the editor did not confirm the write within {ANSWER_SECONDS:g} seconds") from None
    except EditorError as error:  # writing behind the back of the editor could lose unsaved changes
        raise ToolError(str(error)) from error


# Commands


async def _run_in_terminal(editor: EditorClient, show: ShowTerminal, context: ToolContext) -> ToolOutput:
    arguments: BashArguments = context.arguments
    terminal = await _create_terminal(editor, context)
    try:
        show(context.call, terminal)
        return build_bash_output(await _follow_terminal(editor, terminal, arguments.timeout), arguments.timeout)
    except EditorError as error:  # the built-in tool would run the command again
        raise ToolError(f"the command was started in the editor; its result is unknown: {error}") from error
    finally:
        with suppress(EditorError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await editor.release_terminal(terminal)


async def _create_terminal(editor: EditorClient, context: ToolContext) -> str:
    """Start a command. Raises `EditorRefusal` if it did not start, and `ToolError` if that is unknown."""
    creating = asyncio.create_task(
        editor.create_terminal(
            [shutil.which("bash") or "/bin/sh", "-c", context.arguments.command],
            cwd=context.cwd,
            environment=_hide_secrets(context.settings or Config()),
            limit=TERMINAL_BYTES,
        )
    )
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await asyncio.shield(creating)
    except EditorRefusal:
        raise
    except EditorError as error:
        raise ToolError(f"the editor may have started the command; its result is unknown: {error}") from error
    except TimeoutError:
        _discard_terminal(editor, creating)
        raise ToolError("the editor may have started the command; its result is unknown: no answer") from None
    except asyncio.CancelledError:
        await asyncio.wait([_discard_terminal(editor, creating)], timeout=ANSWER_SECONDS)
        raise


def _discard_terminal(editor: EditorClient, creating: asyncio.Task[str]) -> asyncio.Task[None]:
    """End a command as soon as the editor has started it."""

    async def discard() -> None:
        with suppress(EditorError, TimeoutError):
            terminal = await creating
            async with asyncio.timeout(ANSWER_SECONDS):
                with suppress(EditorError):  # it may have ended
                    await editor.kill_terminal(terminal)
                await editor.release_terminal(terminal)

    task = asyncio.create_task(discard())
    _discarding.add(task)
    task.add_done_callback(_discarding.discard)
    return task


def _hide_secrets(settings: Config) -> dict[str, str]:
    """Return empty values for the variables with secrets that commands must not get.

    The terminal has the environment of the editor, which a request cannot remove. It may contain API keys that the
    agent does not have.
    """
    passed = clean_environment(settings)
    found = {name for name, value in os.environ.items() if name not in passed and _is_secret(name, value, settings)}
    named = (*settings.models.values(), *settings.servers.values())
    models = {model.key_variable for model in named if model.key_variable is not None}
    return dict.fromkeys(sorted(found | models | PROVIDER_KEY_VARIABLES), "")


def _is_secret(name: str, value: str, settings: Config) -> bool:
    if name in FOLDER_NAMES:
        return False
    found = SECRET_NAME.search(name) or SECRET_VALUE.search(value)
    return found is not None or settings.find_secret_reason(name) is not None


async def _follow_terminal(editor: EditorClient, terminal: str, timeout: float) -> CommandResult:
    """Wait for a command in a terminal. Cancelling the call ends the command and returns its output so far."""
    aborted = timed_out = False
    code: int | None = None
    try:
        async with asyncio.timeout(timeout):
            exit = await editor.wait_for_exit(terminal)
        code = 1 if exit.exit_code is None else exit.exit_code
    except TimeoutError:
        timed_out = True
    except asyncio.CancelledError:
        aborted = True
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            if aborted or timed_out:
                await editor.kill_terminal(terminal)
            shown = await editor.read_terminal(terminal)
    except (EditorError, TimeoutError) as error:
        reason = str(error) or "the editor did not answer"
        raise ToolError(f"the output of the command is not available: {reason}") from error
    tail = OutputTail()
    tail.append(shown.output.encode("utf-8", "replace"))
    tail.close()
    cut = f"[The terminal kept only the last {TERMINAL_BYTES >> 10} KiB of the output.]" if shown.truncated else ""
    return CommandResult(
        output=tail.format_text(),
        exit_code=code,
        aborted=aborted,
        timed_out=timed_out,
        truncated=tail.truncated or shown.truncated,
        full_output=tail.path,
        note=" ".join(filter(None, [tail.format_note(), cut])),
    )
