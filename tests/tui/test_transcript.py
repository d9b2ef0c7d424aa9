"""The transcript: mouse selection, focus and clipboard."""

from __future__ import annotations

from typing import Any

import pytest
from rich.color import Color
from textual.theme import Theme

from sessiontree.tui.theme import DARK, LIGHT

from .conftest import Driver, Running


def find_on_screen(app: Driver, words: str) -> tuple[int, int]:
    """Return column and line of a text on the screen."""
    for y, line in enumerate(app.screen.split("\n")):
        if words in line:
            return line.index(words), y
    raise AssertionError(f"{words!r} is not on the screen:\n{app.screen}")


async def select_text(app: Driver, words: str) -> None:
    """Select a text on the screen with the mouse."""
    x, y = find_on_screen(app, words)
    await app.pilot.mouse_down(offset=(x, y))
    await app.pilot.hover(offset=(x + len(words), y))
    await app.pilot.mouse_up(offset=(x + len(words), y))
    await app.wait_until(app.app.screen.get_selected_text)


def find_colors(app: Driver, words: str) -> list[tuple[Color | None, Color | None]]:
    """Return the foreground and background color of every character of a text on the screen."""
    x, y = find_on_screen(app, words)
    strip = app.app.screen._compositor.render_strips(app.app.size)[y].crop(x, x + len(words))
    return [(segment.style.color, segment.style.bgcolor) for segment in strip if segment.style and segment.text]


def compute_luminance(color: Color | None) -> float:
    assert color is not None
    parts = [part / 255 for part in color.get_truecolor()]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def compute_contrast(one: Color | None, other: Color | None) -> float:
    light, dark = sorted((compute_luminance(one), compute_luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
async def test_selected_text_has_enough_contrast(running: Running, theme: Theme) -> None:
    async with running("An **answer** with `code` in it.") as app:
        app.app.theme = theme.name
        await app.submit_and_wait("A question")
        for words in ("A question", "An answer with code in it."):
            before = find_colors(app, words)
            await select_text(app, words)
            selected = find_colors(app, words)

            assert min(compute_contrast(*colors) for colors in selected) >= 4.5
            assert {background for _, background in selected}.isdisjoint(background for _, background in before)


async def test_selected_text_is_visible_without_colors(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with running("An answer.") as app:
        await app.submit_and_wait("A question")
        x, y = find_on_screen(app, "An answer.")
        await select_text(app, "An answer.")
        strip = app.app.screen._compositor.render_strips(app.app.size)[y].crop(x, x + len("An answer."))

        assert all(segment.style is not None and segment.style.reverse for segment in strip)


async def test_typing_after_a_click_on_the_conversation_goes_to_the_editor(running: Running) -> None:
    async with running("An answer.") as app:
        await app.submit_and_wait("A question")
        await app.type("typed ")
        await app.pilot.click(offset=find_on_screen(app, "An answer."))
        await app.press(*"yes")

        assert app.editor.text == "typed yes"


async def test_typing_after_selecting_text_goes_to_the_editor(running: Running) -> None:
    async with running("An answer.") as app:
        await app.submit_and_wait("A question")
        await select_text(app, "An answer.")
        await app.press(*"go")

        assert app.editor.text == "go"


async def test_ctrl_c_sends_selected_text_to_the_clipboard_and_notifies(running: Running) -> None:
    async with running("An answer.") as app:
        await app.submit_and_wait("A question")
        await app.type("typed")
        await select_text(app, "An answer.")
        await app.press("ctrl+c")
        await app.wait_for_text("Sent 10 characters to the terminal's clipboard")

        assert app.app.clipboard == "An answer."
        assert app.editor.text == "typed"


async def test_copying_a_block_only_claims_that_it_was_sent(running: Running) -> None:
    async with running("An answer.") as app:
        await app.submit_and_wait("A question")
        await app.press("ctrl+up", "y")
        await app.wait_for_text("Sent 10 characters to the terminal's clipboard")

        assert "copied" not in app.screen
        assert app.app.clipboard == "An answer."


async def test_a_block_without_text_is_not_sent_to_the_clipboard(running: Running) -> None:
    async with running(" \n ") as app:
        await app.submit_and_wait("A question")
        block: Any = app.chat.transcript.blocks[-1]
        block.text = block.head = ""
        app.app.copy_to_clipboard("before")
        await app.press("ctrl+up", "y")
        await app.wait_for_text("Nothing to copy")

        assert app.app.clipboard == "before"


async def test_half_a_surrogate_pair_is_copied_as_a_question_mark(running: Running) -> None:
    async with running() as app:
        app.app.controller.host.copy("a\ud800b")

        assert app.app.clipboard == "a?b"
