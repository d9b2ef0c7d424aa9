"""Text in dialogs is not lost."""

from __future__ import annotations

import asyncio
from typing import Any

from .conftest import Driver, Running


def open_dialog(app: Driver, *question: str) -> asyncio.Task[str | None]:
    return asyncio.create_task(app.app.ui.editor(*question))


async def test_ctrl_c_copies_the_selection_and_keeps_the_text(running: Running) -> None:
    async with running() as app:
        answer = open_dialog(app, "Summary?")
        await app.wait_for_text("Summary?")
        await app.press(*"begun", "ctrl+c")
        assert app.app.clipboard == ""
        await app.press("shift+left", "shift+left", "ctrl+c", "ctrl+s")

        assert await answer == "begun"
        assert app.app.clipboard == "un"


async def test_a_cancelled_text_is_restored_the_next_time(running: Running) -> None:
    async with running() as app:
        given_up: list[Any] = []
        for words in ("one", " two"):
            answer = open_dialog(app, "Summary?")
            await app.wait_for_text("Summary?")
            await app.press(*words, "escape")
            given_up.append(await answer)
        other = open_dialog(app, "Another?")
        await app.wait_for_text("Another?")
        await app.press("ctrl+s")
        again = open_dialog(app, "Summary?")
        await app.wait_for_text("one two")
        await app.press("ctrl+s")
        anew = open_dialog(app, "Summary?")
        await app.wait_for_text("Summary?")
        await app.press("ctrl+s")

        assert given_up == [None, None]
        assert (await other, await again, await anew) == ("", "one two", "")


async def test_a_given_text_is_not_replaced_by_a_cancelled_one(running: Running) -> None:
    async with running() as app:
        for _ in range(2):
            answer = open_dialog(app, "Text?", "given")
            await app.wait_for_text("Text?", "given")
            assert "changed" not in app.screen
            await app.press(*"changed", "escape")
            assert await answer is None
