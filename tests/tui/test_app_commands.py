"""The commands of the app are documented."""

from __future__ import annotations

from pathlib import Path

from .conftest import Running

PAGE = Path(__file__).parents[2] / "docs" / "command.md"


async def test_every_command_of_the_app_is_documented(running: Running) -> None:
    text = PAGE.read_text()

    async with running() as app:
        assert [command.name for command in app.app.controller.commands if f"`/{command.name}" not in text] == []
