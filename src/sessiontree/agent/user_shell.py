"""The shell: commands that a person runs in a session, beside its agent or where there is none.

What a command printed is written where it was begun, behind what has been said there meanwhile; if the branch has been
moved elsewhere, as a late result. A `Shell` knows what is under way, so that no session is closed before that is
written. How a process is run is in `tools.process`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from sessiontree.agent.run_writer import BackgroundWriter
from sessiontree.agent.tools.command_runner import CommandError, CommandResult, run_command
from sessiontree.agent.tools.environment import clean_environment
from sessiontree.config import Config
from sessiontree.core.entries import Message
from sessiontree.core.messages import ToolCall, build_bash_execution
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import ToolUpdate
from sessiontree.session import Branch

WriteMessage: TypeAlias = Callable[[BackgroundWriter, Message], Awaitable[None]]
"""Writes a message on a record, at a time that suits a run that goes on there."""


class UserShell:
    def __init__(self, hooks: Hooks, write: WriteMessage) -> None:
        self._hooks = hooks
        self._write = write
        self._running: set[asyncio.Task[CommandResult]] = set()
        """Commands that nobody has given up. Each is given up once: it needs some time to end what it has started."""
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
        """Run a command, and write down what it printed, for the model to see or not.

        It gets the same clean environment as commands of the model, since what it prints goes the same way.
        Cancelling it gives the command up, and waits until that is written down.
        """
        call = ToolCall("", "bash", {"command": command})

        def update(text: str) -> None:
            self._hooks.notify_listeners(ToolUpdate(call=call, text=text))

        record = BackgroundWriter(branch)
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
        writing = asyncio.create_task(self._write_result(running, record, command, in_context))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            if writing.cancelled():  # and not this
                raise CommandError(command, "it was given up first") from None
            self._cancel(running)
            await asyncio.wait([writing])
            raise

    async def _write_result(
        self, running: asyncio.Task[CommandResult], writer: BackgroundWriter, command: str, in_context: bool
    ) -> CommandResult:
        ran = await running
        message = build_bash_execution(
            command,
            ran.output,
            exit_code=ran.exit_code,
            truncated=ran.truncated,
            full_output=ran.full_output,
            in_context=in_context,
        )
        await self._write(writer, message)
        return ran

    def abort(self) -> None:
        """Give up all commands."""
        for running in tuple(self._running):
            self._cancel(running)

    def _cancel(self, running: asyncio.Task[CommandResult]) -> None:
        if running in self._running:
            self._running.remove(running)
            running.cancel()

    async def shutdown(self) -> None:
        """Give up all commands, and wait until what they printed is written."""
        while self._writing:
            self.abort()
            await asyncio.wait(self._writing)
