"""The built-in commands and their documentation page."""

from __future__ import annotations

from pathlib import Path

from sessiontree.commands.builtin import get_builtin_commands

PAGE = Path(__file__).parents[2] / "docs" / "command.md"


def test_every_command_is_on_its_page_as_it_is_used() -> None:
    text = PAGE.read_text().replace("\\|", "|")

    for command in get_builtin_commands():
        assert f"`{command.usage}`" in text


def test_help_lists_every_command_once() -> None:
    names = [command.name for command in get_builtin_commands()]

    assert len(names) == len(set(names)) == 35
