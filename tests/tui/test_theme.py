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
from textual.theme import Theme

from sessiontree.tui.theme import DARK, LIGHT, THEMES, get_theme, has_light_background


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


def measure_contrast(one: str, other: str) -> float:
    """Return the contrast of two colors as WCAG 2 defines it, from 1 to 21."""

    def measure_luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((measure_luminance(one), measure_luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_all_colors_of_a_theme_can_be_read_on_all_of_its_backgrounds(theme: Theme) -> None:
    muted = theme.variables["muted"]
    for ground in (theme.background, theme.surface, theme.panel):
        assert ground is not None
        assert measure_contrast(theme.foreground or "", ground) >= 7
        for color in (theme.primary, theme.secondary, theme.success, theme.warning, theme.error, muted):
            assert measure_contrast(color or "", ground) >= 4.5, f"{color} on {ground}"
    selection = (theme.variables[f"screen-selection-{part}"] for part in ("foreground", "background"))
    assert measure_contrast(*selection) >= 4.5


def test_a_configured_theme_takes_precedence_over_the_background_of_the_terminal() -> None:
    assert get_theme(terminal_is_light=True, name="night").name == "sessiontree-night"
    assert sum(theme.dark for theme in THEMES.values()) >= 2
    assert sum(not theme.dark for theme in THEMES.values()) >= 2
