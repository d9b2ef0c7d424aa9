"""Vi keys in the editor."""

from __future__ import annotations

import pytest

from sessiontree.config import AppSettings, Config, load_config
from sessiontree.model.scripted import Delay

from .conftest import Driver, Running

VI = Config(app=AppSettings(vi_keys=True))

EDITS = [
    # text, keys from its first character on, and the text and the cursor after them
    ("one two.three", "w", "one two.three", (0, 4)),
    ("one two.three", "2w", "one two.three", (0, 7)),
    ("one two.three four", "2W", "one two.three four", (0, 14)),
    ("one two.three", "ee", "one two.three", (0, 6)),
    ("one two.three", "$b", "one two.three", (0, 8)),
    ("one two.three", "$B0", "one two.three", (0, 0)),
    ("  one", "$^", "  one", (0, 2)),
    ("one\n\n  two", "ww", "one\n\n  two", (2, 2)),
    ("one\ntwo\nthree", "lj2lG", "one\ntwo\nthree", (2, 0)),
    ("one\ntwo\nthree", "G2ggl", "one\ntwo\nthree", (1, 1)),
    ("a(b, c)", "f,", "a(b, c)", (0, 3)),
    ("a(b, c)", "t)dF(", "ac)", (0, 1)),
    ("one two", "x", "ne two", (0, 0)),
    ("one two", "10x", "", (0, 0)),
    ("one two", "$X", "one to", (0, 5)),
    ("one two three", "dw", "two three", (0, 0)),
    ("one two three", "d2w", "three", (0, 0)),
    ("one two\nthree", "wdw", "one \nthree", (0, 3)),
    ("one two", "wD", "one ", (0, 3)),
    ("one\ntwo\nthree", "dd", "two\nthree", (0, 0)),
    ("one\ntwo\nthree", "jdj", "one", (0, 0)),
    ("one\ntwo\nthree", "2ddp", "three\none\ntwo", (1, 0)),
    ("one\ntwo", "jddP", "two\none", (0, 0)),
    ("one two", "cwsix-", "six- two", (0, 3)),
    ("one two", "wcctwo-", "two-", (0, 3)),
    ("\ntwo", "C1-", "1-\ntwo", (0, 1)),
    ("one two three", "wciw2-", "one 2- three", (0, 5)),
    ("one two three", "wdaw", "one three", (0, 4)),
    ("one two", "yiwwviwp", "one one", (0, 4)),
    ("one two", "yw$p", "one twoone ", (0, 10)),
    ("one", "yyp", "one\none", (1, 0)),
    ("one\n  two", "J", "one two", (0, 3)),
    ("one", "~~", "ONe", (0, 2)),
    ("one", "2ra", "aae", (0, 1)),
    ("one", "4ra", "one", (0, 0)),
    ("one", "A two-", "one two-", (0, 7)),
    ("  one", "$Itwo -", "  two -one", (0, 6)),
    ("one", "otwo-", "one\ntwo-", (1, 3)),
    ("one", "Otwo-", "two-\none", (0, 3)),
    ("one two three", "dw.", "three", (0, 0)),
    ("one two", "cwa-w.", "a- a-", (0, 4)),
    ("one two", "wdwu", "one two", (0, 4)),
    ("one two three", "wved", "one  three", (0, 4)),
    ("one two", "$vbd", "one ", (0, 3)),
    ("one\ntwo\nthree", "Vjd", "three", (0, 0)),
    ("one two", "vwsx-", "x-wo", (0, 1)),
    ("one two", "zZdzx", "ne two", (0, 0)),
    ("日本 語", "wx", "日本 ", (0, 2)),
]
"""`-` stands for a hyphen and Escape."""


async def press_keys(app: Driver, keys: str) -> None:
    for key in keys:
        await app.press(key)
        if key == "-":
            await app.press("escape")


async def test_keys_edit_as_in_vi(running: Running) -> None:
    async with running(settings=VI) as app:
        results = []
        for text, keys, _, _ in EDITS:
            app.editor.vi_keys.enter_insert_mode()
            app.editor.set_text(text)
            app.editor.move_cursor((0, 0))
            await app.press("escape")
            await press_keys(app, keys)
            results.append((text, keys, app.editor.text, app.editor.cursor_location))

    assert results == EDITS


async def test_the_editor_shows_its_mode_and_enter_submits_in_each(running: Running) -> None:
    async with running("One.", settings=VI) as app:
        await app.wait_for_text("INSERT")
        await app.press(*"Hello", "escape")
        await app.wait_for_text("NORMAL")
        await app.press("v")
        await app.wait_for_text("VISUAL")
        await app.press("escape", "A", "!", "escape", "enter")
        await app.wait_for_text("One.", "INSERT")
        assert "user: Hello!" in app.blocks


async def test_escape_in_an_empty_editor_still_aborts_and_opens_the_tree(running: Running) -> None:
    async with running(["Partly", Delay(30)], settings=VI) as app:
        await app.submit("Hello")
        await app.wait_for_text("Partly")
        await app.press("escape")
        await app.wait_until_idle()
        await app.press("escape", "escape")
        await app.wait_for_text("type to search")


async def test_k_in_the_first_line_shows_the_history(running: Running) -> None:
    async with running("One.", settings=VI) as app:
        await app.submit_and_wait("first")
        await app.press("x", "escape", "k")
        assert app.editor.text == "first"
        await app.press("j")
        assert app.editor.text == "x"


async def test_a_long_paste_is_deleted_as_one(running: Running) -> None:
    async with running(settings=VI) as app:
        await app.press("a", "space")
        app.editor.set_prompts([f"/{'long ' * 400}"])
        await app.press("escape", "0", "x")
        assert app.editor.text == ""


async def test_vi_keys_are_a_setting(running: Running) -> None:
    async with running() as app:
        await app.submit("/settings")
        await app.wait_for_text("Vi keys in the editor")
        await app.press(*"vi", "enter")
        await app.wait_for_text("off")
        await app.press("up", "enter")
        await app.wait_until(lambda: app.editor.vi_keys is not None)
        await app.press("escape")
        await app.wait_for_text("INSERT")
        assert load_config().app.vi_keys

        await app.press(*"x", "escape", "i", "ctrl+j")
        assert app.editor.text == "\nx"


@pytest.mark.parametrize("keys", [("d", "escape", "w"), ("2", "left", "x")])
async def test_other_keys_cancel_an_unfinished_command(running: Running, keys: tuple[str, ...]) -> None:
    async with running(settings=VI) as app:
        await app.press(*"ab", "space", "c", "escape", "0", *keys)
        assert app.editor.text in ("ab c", "b c")
