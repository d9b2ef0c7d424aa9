"""Start of the app from the shell."""

from __future__ import annotations

import pytest

from sessiontree.cli.app import _expand_short_forms


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["-c"], ["chat", "-c"]),
        (["--session", "auth"], ["chat", "--session", "auth"]),
        (["--no-color", "-r"], ["--no-color", "chat", "-r"]),
        (["-p", "-c", "hi"], ["prompt", "-c", "hi"]),
        (["tree", "@"], ["tree", "@"]),
        (["--help"], ["--help"]),
        (["-h"], ["-h"]),
        (["--version"], ["--version"]),
        ([], []),
    ],
)
def test_options_without_a_command_open_the_app(typed: list[str], meant: list[str]) -> None:
    assert _expand_short_forms(typed) == meant


def test_without_a_terminal_the_app_suggests_an_alternative(fails) -> None:
    assert "sessiontree -p" in fails("-c")


def test_two_session_options_are_wrong_usage(fails) -> None:
    assert "are mutually exclusive" in fails("chat", "-c", "-r", code=2)
