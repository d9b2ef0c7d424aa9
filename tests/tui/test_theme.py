"""Detection of the terminal background."""

from __future__ import annotations

import os
import pty
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

import pytest

from sessiontree.tui.theme import DARK, LIGHT, get_theme, has_light_background


@contextmanager
def open_terminal() -> Iterator[int]:
    """Replace stdin and stdout with a pseudo-terminal and yield its other end.

    Not a fixture, because pytest replaces stdout between fixtures and the test.
    """
    master, slave = pty.openpty()
    before = sys.stdin, sys.stdout
    with open(slave, "rb", buffering=0) as end:
        sys.stdin = sys.stdout = cast(TextIO, end)
        try:
            yield master
        finally:
            sys.stdin, sys.stdout = before
    os.close(master)


@pytest.fixture(autouse=True)
def _untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLORFGBG", raising=False)


@pytest.mark.parametrize(
    ("answer", "light"),
    [
        (b"\x1b]11;rgb:ffff/fafa/f0f0\x07\x1b[?62c", True),
        (b"\x1b]11;rgb:1e1e/1e1e/2e2e\x1b\\\x1b[?62c", False),
        (b"\x1b]11;rgb:ff/ff/ff\x07\x1b[?1;2c", True),
        (b"\x1b[?1;2c", False),
    ],
)
def test_the_terminal_background_is_queried(answer: bytes, light: bool) -> None:
    with open_terminal() as other_end:

        def reply() -> None:
            if b"\x1b[c" in os.read(other_end, 100):
                os.write(other_end, answer)

        thread = threading.Thread(target=reply, daemon=True)
        thread.start()
        found = has_light_background()
        thread.join(5)

    assert found is light


def test_a_terminal_without_a_reply_counts_as_dark() -> None:
    with open_terminal():
        found = has_light_background()

    assert not found


@pytest.mark.parametrize(("said", "light"), [("0;15", True), ("15;0", False), ("0;default;7", True), ("", False)])
def test_colorfgbg_selects_the_theme(monkeypatch: pytest.MonkeyPatch, said: str, light: bool) -> None:
    monkeypatch.setenv("COLORFGBG", said)

    assert has_light_background() is light
    assert get_theme(light) is (LIGHT if light else DARK)
