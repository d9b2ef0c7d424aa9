"""A desk for one command: its extensions loaded, and nobody at it who could be asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sessiontree.cli.output import escape_lines, warn
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.ui_protocol import Level, NoUi

if TYPE_CHECKING:
    from sessiontree.commands.controller import SessionController
    from sessiontree.extensions.source_files import ExtensionFiles
    from sessiontree.hooks.events import Event

extension_option = click.option(
    "-e",
    "--extension",
    "extensions",
    metavar="FILE",
    multiple=True,
    help="Load this extension too; may be given again.",
)


cwd_option = click.option(
    "--cwd",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False),
    help="The folder that tools work in; the current one by default, whatever folder the session names.",
)


project_option = click.option(
    "--project",
    "projects",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Agents of sessions in this folder work there, the others in the current one; may be given again.",
)


class StderrUi(NoUi):
    """Nobody is there, but what is told is printed beside the answer."""

    def notify(self, text: str, level: Level = "info") -> None:
        click.echo(escape_lines(text), err=True)


def print_notice(event: Event) -> None:
    """Print what handlers and models tell beside the answer. For `Hooks.listen`."""
    from sessiontree.hooks.events import Notice, RetryScheduled

    if isinstance(event, Notice):
        warn(event.text)
    elif isinstance(event, RetryScheduled):
        warn(f"{event.text} in {event.delay:.0f} s…")


class RunningController:
    """A desk with its extensions, from beginning to end."""

    def __init__(self, desk: SessionController, files: Sequence[str], content: ExtensionFiles | None = None) -> None:
        """Raises `NotFound` for an extension that is not there; entering it, `InvalidOperation` for one that fails."""
        from sessiontree.extensions.loader import ExtensionLoader

        self.controller = desk
        self._extensions = ExtensionLoader(desk, files, content=content)

    async def __aenter__(self) -> SessionController:
        await self._extensions.load()
        lacking = self._extensions.failed_files
        if lacking:
            # It may be what guards the rest.
            self._extensions.unload()
            raise InvalidOperation(f"nothing was done, since {', '.join(lacking)} could not be set up")
        await self.controller.start()
        return self.controller

    async def __aexit__(self, *_: Any) -> None:
        await self.controller.close()
        self._extensions.unload()
