"""Key configuration, hints that show the bound keys, and the order in which keys are handled."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual import events

import sessiontree as st
from sessiontree.config import Config
from sessiontree.model.scripted import Delay
from sessiontree.session import Session
from sessiontree.tui.keys import AREAS, build_keymap, find_key_errors, list_keys
from sessiontree.tui.widgets import tree_view

from .conftest import Driver, Running
from .test_tree_view import create_two_branches

BOUND = Config(
    keys={
        "abort": "f2",
        "take_back": "f3",
        "external_editor": "f4",
        "unfold": ["f6", "ctrl+o"],
        "session_scope": "f7",
        "session_named": "f8",
        "session_archived": "f9",
        "hotkeys": "f10",
        "tree_escape": "f11",
    }
)


@pytest.fixture
def ways() -> Session:
    """A question, and two branches that answer it."""
    session = st.create("ways")
    here = session.append(st.user("How?"))
    session.append(st.assistant("With a cache."))
    session.create_branch("dict", at=here, current=False)
    session.append(st.assistant("With a dict."), branch="dict")
    return session


async def test_an_empty_session_shows_a_hint_for_the_key_list(running: Running) -> None:
    async with running(settings=BOUND) as app:
        assert "F10 for keys" in await app.wait_for_text("New session")


async def test_hints_to_abort_and_to_edit_the_queue_are_shown_during_a_run(running: Running) -> None:
    async with running(["One", Delay(30)], settings=BOUND) as app:
        await app.submit("First")
        assert "F2 to abort" in await app.wait_for_text("working")
        await app.submit("Second")
        assert "F3 to edit" in await app.wait_for_text("⋯ Second")
        await app.press("f3")
        assert await app.wait_until(lambda: app.editor.text == "Second")
        await app.press("f2")
        assert await app.wait_for_text("aborted")


async def test_an_unbound_key_has_no_hint(running: Running) -> None:
    async with running(["One", Delay(30)], settings=Config(keys={"abort": [], "hotkeys": ""})) as app:
        assert "for keys" not in await app.wait_for_text("/help for commands")
        await app.press("f1")
        await app.submit("First")
        assert "to abort" not in await app.wait_for_text("working")


def test_the_key_list_shows_disabled_keys() -> None:
    chat = dict(list_keys(build_keymap({"abort": []})))["chat"]

    assert next(key.keys for key in chat if key.name == "abort") == "none"


def test_keys_may_be_separated_by_spaces() -> None:
    assert build_keymap({"unfold": "f5, f6", "tree": ["f7 "], "abort": ""}) == {
        "unfold": "f5,f6",
        "tree": "f7",
        "abort": "none",
    }


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("ctrl+/", "ctrl+slash"),
        ("ctrl+@", "ctrl+@"),
        ("shift+ctrl+left", "ctrl+shift+left"),
        ("[", "left_square_bracket"),
        ("ctrl+left_square_bracket", "ctrl+left_square_bracket"),
        ("solidus", "slash"),
        ("comma", "comma"),
        ("+", "plus"),
        ("G", "G"),
        ("é", "é"),
        ("super+f30", "super+f30"),
        ("menu", "menu"),
        ("space", "space"),
        ("esc", "escape"),
        ("ctrl+esc", "ctrl+escape"),
        ("»", "right_pointing_double_angle_quotation_mark"),
    ],
)
def test_common_spellings_of_keys_are_accepted(said: str, key: str) -> None:
    assert build_keymap({"submit": said}) == {"submit": key}
    assert find_key_errors({"submit": said}) == []


@pytest.mark.parametrize(
    "said",
    [
        *("ctrl+nonsense", "contrl+x", "Ctrl+x", "ctrl+X", "ctrl+", "return", "f77", "\x07"),
        *("del", "ins", "cr", "lf", "bs", "nul", "bel", "ht", "nbsp", "ESC", "Full_Stop", "ctrl+del"),
    ],
)
def test_an_unknown_key_is_reported_and_the_default_is_used(said: str) -> None:
    assert build_keymap({"submit": said, "newline": ["f5", said]}) == {"newline": "f5"}
    assert find_key_errors({"submit": said, "newline": ["f5", said]}) == [
        f"unknown key {said!r} for 'submit' under [keys] in the configuration; using enter",
        f"unknown key {said!r} for 'newline' under [keys] in the configuration; using f5",
    ]


def test_every_key_of_the_table_is_valid() -> None:
    table = {key.name: key.keys for keys in AREAS.values() for key in keys}

    assert build_keymap(table) == table
    assert find_key_errors(table) == []


def test_none_disables_a_key() -> None:
    assert build_keymap({"abort": "none"}) == {"abort": "none"}
    assert find_key_errors({"abort": "none", "submit": []}) == []


async def test_an_unknown_key_keeps_the_default_binding(running: Running) -> None:
    async with running("Yes.", settings=Config(keys={"submit": "ctrl+nonsense"})) as app:
        assert await app.wait_for_text("'ctrl+nonsense'")
        await app.submit_and_wait("Is it?")
        await app.press("f1")
        assert await app.wait_for_text("enter                  submit")


async def test_esc_is_accepted_as_a_key_name(running: Running) -> None:
    async with running(["One", Delay(30)], settings=Config(keys={"abort": "esc"})) as app:
        await app.submit("First")
        assert "Esc to abort" in await app.wait_for_text("working")
        await app.press("escape")
        assert await app.wait_for_text("aborted")


async def test_the_tree_shows_the_key_that_closes_it(running: Running, ways: Session) -> None:
    async with running(session=ways, settings=BOUND) as app:
        await app.press("ctrl+t")
        assert "F11 close" in await app.wait_for_text("type to search")
        await app.press("f11")
        assert await app.wait_until(lambda: app.app.screen is app.chat)


async def test_the_comparison_shows_the_key_that_expands(running: Running, ways: Session) -> None:
    async with running(session=ways, settings=BOUND) as app:
        await app.submit("/compare dict")
        assert "F6 to expand" in await app.wait_for_text("Esc to close")


async def test_the_editor_dialog_shows_the_key_of_the_external_editor(
    running: Running, ways: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "/nowhere/ed")
    async with running(session=ways, settings=BOUND) as app:
        await app.submit("/tree root")
        await app.wait_for_text("Write the summary myself")
        await app.press("up", "enter")
        assert "F4 for $EDITOR" in await app.wait_for_text("Ctrl+S to save")
        await app.press("f4")
        assert await app.wait_for_text("cannot run /nowhere/ed")


async def test_session_picker_and_search_show_their_keys(running: Running, ways: Session) -> None:
    async with running(session=ways, settings=BOUND) as app:
        await app.press("ctrl+r")
        assert "F7 all folders · F8 named" in await app.wait_for_text("Enter to open")
        await app.press("f9")
        assert await app.wait_for_text("no archived sessions · F9 to go back")
        await app.press("escape")
        await app.submit("/search cache")
        assert "F7 for all folders" in await app.wait_for_text("Enter to show in the tree")


async def test_the_hint_for_all_folders_is_hidden_if_all_are_shown(running: Running) -> None:
    async with running(session=st.memory()) as app:
        await app.press("ctrl+r")
        await app.wait_for_text("no sessions · Tab to show all folders")
        await app.press("tab")
        assert "Tab to show" not in await app.wait_for_text("no sessions · all folders")


async def test_every_list_uses_the_same_keys(running: Running, ways: Session) -> None:
    for number in range(40):
        ways.append(st.user(f"zebra {number:02}"))
    async with running(session=ways) as app:
        await app.submit("/search zebra")
        await app.wait_for_text("40 matches", "zebra 39")
        assert "zebra 20" not in app.screen
        await app.press("pagedown", "pagedown", "down", "up")
        assert await app.wait_for_text("zebra 20")
        await app.press("enter")
        assert await app.wait_for_text("type to search")
        await app.press("escape")
        await app.submit("/branches")
        await app.wait_for_text("Switch to branch")
        await app.press("down", "enter")
        assert await app.wait_for_text("on dict")


def press_at_once(app: Driver, *keys: str) -> None:
    """Press keys all at once."""
    for key in keys:
        app.app.post_message(events.Key(key, key if len(key) == 1 else None))


async def test_a_list_is_filtered_before_enter_selects(running: Running) -> None:
    async with running() as app:
        asked = asyncio.create_task(app.app.ui.select("Which?", ["list", "trie", "dict"]))
        await app.wait_for_text("Which?")
        press_at_once(app, *"dict", "enter")
        assert await asyncio.wait_for(asked, 20) == "dict"


async def test_a_dialog_receives_all_text_typed_before_it_was_saved(running: Running) -> None:
    async with running() as app:
        asked = asyncio.create_task(app.app.ui.editor("What?"))
        await app.wait_for_text("What?")
        press_at_once(app, *"dict", "ctrl+s")
        assert await asyncio.wait_for(asked, 20) == "dict"


async def test_the_tree_is_searched_before_enter_selects(running: Running) -> None:
    session = create_two_branches()
    async with running(session=session) as app:
        asked = asyncio.create_task(app.app.choose_entry("which?"))
        await app.wait_for_text("type to search")
        press_at_once(app, *"dict done", "enter")
        chosen = await asyncio.wait_for(asked, 20)
        assert "The dict is done." in str(session.tree[chosen or ""].body)


async def test_selecting_in_a_large_tree_waits_for_the_layout(running: Running, monkeypatch) -> None:
    monkeypatch.setattr(tree_view, "FRAME_SECONDS", 0)  # force many slices
    session = st.memory()
    session.extend([st.user(f"message {number}") for number in range(3000)])
    async with running(session=session) as app:
        asked = asyncio.create_task(app.app.choose_entry("which?"))
        await app.wait_for_text("type to search", "message 2999")
        press_at_once(app, *"1234", "enter")
        chosen = await asyncio.wait_for(asked, 20)
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
            assert await asyncio.wait_for(asyncio.shield(asked), 20) is None
        finally:
            freed.set()


async def test_the_tree_asks_its_question_once(running: Running) -> None:
    session = create_two_branches()
    async with running(session=session) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("type to search", "The dict is done.")
        press_at_once(app, "end", "enter", "enter")  # the second comes before the question, so it is no answer
        await app.wait_for_text("Summarize the branch you're leaving?")
        await app.press("enter")
        await app.wait_until(lambda: len(app.app.screen_stack) == 1)
        assert session.head.leaf == next(entry.id for entry in session.tree if "The dict is done." in str(entry.body))


async def test_a_dialog_that_opens_while_the_terminal_is_not_focused_gets_the_keys_later(running: Running) -> None:
    async with running() as app:
        app.app.post_message(events.AppBlur())
        await app.wait_until(lambda: app.app.focused is None)
        answer = asyncio.create_task(app.app.ui.select("Which way?", ["cache", "dict"]))
        await app.wait_for_text("Which way?")
        app.app.post_message(events.AppFocus())
        await app.press("down", "enter")
        await app.wait_until(answer.done)

        assert answer.result() == "dict"
