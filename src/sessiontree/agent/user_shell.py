"""Shell commands of the user in a session, with or without an agent.

The output of a command is written after the messages that came since it started, or as a late entry if the branch was
moved. `UserShell` tracks running commands: `shutdown` waits until their output is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from sessiontree.agent.run_writer import BackgroundWriter
from sessiontree.agent.sandbox import clean_environment
from sessiontree.agent.tools.bash_tool import CommandError, CommandResult, run_command
from sessiontree.config import Config
from sessiontree.core.entries import Message
from sessiontree.core.messages import ToolCall, build_bash_execution
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import ToolUpdate
from sessiontree.session import Branch

WriteMessage: TypeAlias = Callable[[BackgroundWriter, Message], Awaitable[None]]
"""Writes a message with a writer, between the turns of a run."""


class UserShell:
    def __init__(self, hooks: Hooks, write: WriteMessage) -> None:
        self._hooks = hooks
        self._write = write
        self._running: set[asyncio.Task[CommandResult]] = set()
        """Commands that were not cancelled. Each is cancelled once; ending its processes takes some time."""
        self._writing: set[asyncio.Task[CommandResult]] = set()

    async def run(
        self,
        command: str,
        branch: Branch,
        *,
        cwd: str,
        settings: Config | None = None,
        in_context: bool = True,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command and write its output; `in_context` decides whether the model sees it.

        It gets the same clean environment as commands of the model, because its output goes to the model too.
        Cancelling the call ends the command and waits until its output is written.
        """
        call = ToolCall("", "bash", {"command": command})

        def update(text: str) -> None:
            self._hooks.notify_listeners(ToolUpdate(call=call, text=text))

        writer = BackgroundWriter(branch)
        running = asyncio.create_task(
            run_command(
                command,
                cwd=cwd,
                environment=clean_environment(settings),
                confinement=self._hooks.context.confinement,
                timeout=timeout,
                update=update,
            )
        )
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        writing = asyncio.create_task(self._write_result(running, writer, command, in_context))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            if writing.cancelled():  # the writing task was cancelled, not this call
                raise CommandError(command, "it was cancelled before it started") from None
            self._cancel(running)
            await asyncio.wait([writing])
            raise

    async def _write_result(
        self, running: asyncio.Task[CommandResult], writer: BackgroundWriter, command: str, in_context: bool
    ) -> CommandResult:
        result = await running
        message = build_bash_execution(
            command,
            result.output,
            exit_code=result.exit_code,
            truncated=result.truncated,
            full_output=result.full_output,
            in_context=in_context,
        )
        await self._write(writer, message)
        return result

    def abort(self) -> None:
        """Cancel all commands."""
        for running in tuple(self._running):
            self._cancel(running)

    def _cancel(self, running: asyncio.Task[CommandResult]) -> None:
        if running in self._running:
            self._running.remove(running)
            running.cancel()

    async def shutdown(self) -> None:
        """Cancel all commands, and wait until their output is written."""
        while self._writing:
            self.abort()
            await asyncio.wait(self._writing)
