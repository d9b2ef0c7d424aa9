"""Keys take effect in the order they were typed, however fast."""

from __future__ import annotations

import asyncio
from pathlib import Path

from textual import events

import sessiontree as st
from sessiontree.tui.widgets import tree_view

from .conftest import Driver, Running
from .test_tree_view import create_two_branches


def press_at_once(app: Driver, *keys: str) -> None:
    """Press keys all at once."""
    for key in keys:
        app.app.post_message(events.Key(key, key if len(key) == 1 else None))


async def test_a_list_is_filtered_before_enter_selects(running: Running) -> None:
    async with running() as app:
        asked = asyncio.create_task(app.app.ui.select("Which?", ["list", "trie", "dict"]))
        await app.wait_for_text("Which?")
        press_at_once(app, *"dict", "enter")
        assert await asyncio.wait_for(asked, 10) == "dict"


async def test_a_dialog_receives_all_text_typed_before_it_was_saved(running: Running) -> None:
    async with running() as app:
        asked = asyncio.create_task(app.app.ui.editor("What?"))
        await app.wait_for_text("What?")
        press_at_once(app, *"dict", "ctrl+s")
        assert await asyncio.wait_for(asked, 10) == "dict"


async def test_the_tree_is_searched_before_enter_selects(running: Running) -> None:
    session = create_two_branches()
    async with running(session=session) as app:
        asked = asyncio.create_task(app.app.choose_entry("which?"))
        await app.wait_for_text("type to search")
        press_at_once(app, *"dict done", "enter")
        chosen = await asyncio.wait_for(asked, 10)
        assert "The dict is done." in str(session.tree[chosen or ""].body)


async def test_selecting_in_a_large_tree_waits_for_the_layout(running: Running, monkeypatch) -> None:
    monkeypatch.setattr(tree_view, "FRAME_SECONDS", 0)  # force many slices
    session = st.memory()
    session.extend([st.user(f"message {number}") for number in range(3000)])
    async with running(session=session) as app:
        asked = asyncio.create_task(app.app.choose_entry("which?"))
        await app.wait_for_text("type to search", "message 2999")
        press_at_once(app, *"1234", "enter")
        chosen = await asyncio.wait_for(asked, 10)
        assert "message 1234" in str(session.tree[chosen or ""].body)


async def test_the_typed_session_is_opened(running: Running, project: Path) -> None:
    for name in ("zebra", "horse"):
        with st.create(name) as session:
            session.append(st.user(name))
    async with running() as app:
        await app.press("ctrl+r")
        await app.wait_for_text("zebra", "horse")
        press_at_once(app, *"zebra", "enter")
        await app.wait_until(lambda: app.app.controller.session.name)
        assert app.app.controller.session.name == "zebra"


async def test_typed_text_is_sent_in_full(running: Running) -> None:
    async with running("Yes.") as app:
        press_at_once(app, *"hello", "enter")
        await app.wait_until(lambda: app.model.requests)
        assert "hello" in str(app.model.requests[0].messages)


async def test_a_hanging_widget_does_not_block_the_keyboard(running: Running) -> None:
    async with running() as app:
        asked = asyncio.create_task(app.app.ui.select("Which?", ["list", "trie", "dict"]))
        await app.wait_for_text("Which?")
        freed = asyncio.Event()
        app.app.focused.call_later(freed.wait)
        try:
            press_at_once(app, "escape")
            assert await asyncio.wait_for(asyncio.shield(asked), 10) is None
        finally:
            freed.set()


async def test_the_tree_asks_its_question_once(running: Running) -> None:
    session = create_two_branches()
    async with running(session=session) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("type to search", "The dict is done.")
        press_at_once(app, "end", "enter", "enter")
        await app.wait_until(lambda: len(app.app.screen_stack) == 1)
        assert session.head.leaf == next(entry.id for entry in session.tree if "The dict is done." in str(entry.body))
