"""Hints name the keys that are bound, and lists are gone through by the same keys everywhere."""

from __future__ import annotations

import pytest

import sessiontree as st
from sessiontree.config import Config
from sessiontree.model.scripted import Delay
from sessiontree.session import Session
from sessiontree.tui.keys import AREAS, build_keymap, find_key_errors, list_keys

from .conftest import Running

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


async def test_an_empty_session_names_the_key_that_lists_the_keys(running: Running) -> None:
    async with running(settings=BOUND) as app:
        assert "f10 the keys" in await app.wait_for_text("a new session")


async def test_while_the_agent_works_the_keys_are_named_that_abort_and_take_back(running: Running) -> None:
    async with running(["One", Delay(30)], settings=BOUND) as app:
        await app.submit("First")
        assert "f2 aborts" in await app.wait_for_text("working")
        await app.submit("Second")
        assert "f3 takes back" in await app.wait_for_text("⋯ Second")
        await app.press("f3")
        assert await app.wait_until(lambda: app.editor.text == "Second")
        await app.press("f2")
        assert await app.wait_for_text("aborted")


async def test_a_key_that_is_bound_to_nothing_is_not_named(running: Running) -> None:
    async with running(["One", Delay(30)], settings=Config(keys={"abort": [], "hotkeys": ""})) as app:
        assert "the keys" not in await app.wait_for_text("/help lists the commands")
        await app.press("f1")
        await app.submit("First")
        assert "aborts" not in await app.wait_for_text("working")


def test_the_list_of_keys_says_of_which_there_is_none() -> None:
    chat = dict(list_keys(build_keymap({"abort": []})))["chat"]

    assert next(key.keys for key in chat if key.name == "abort") == "none"


def test_keys_with_blanks_between_are_keys() -> None:
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
def test_a_key_is_understood_as_people_spell_it(said: str, key: str) -> None:
    assert build_keymap({"submit": said}) == {"submit": key}
    assert find_key_errors({"submit": said}) == []


@pytest.mark.parametrize(
    "said",
    [
        *("ctrl+nonsense", "contrl+x", "Ctrl+x", "ctrl+X", "ctrl+", "return", "f77", "\x07"),
        *("del", "ins", "cr", "lf", "bs", "nul", "bel", "ht", "nbsp", "ESC", "Full_Stop", "ctrl+del"),
    ],
)
def test_what_is_no_key_is_told_and_the_usual_one_holds(said: str) -> None:
    assert build_keymap({"submit": said, "newline": ["f5", said]}) == {"newline": "f5"}
    assert find_key_errors({"submit": said, "newline": ["f5", said]}) == [
        f"[keys] in the configuration has {said!r} for 'submit', which is no key: it is on enter",
        f"[keys] in the configuration has {said!r} for 'newline', which is no key: it is on f5",
    ]


def test_every_key_of_the_table_is_one() -> None:
    table = {key.name: key.keys for keys in AREAS.values() for key in keys}

    assert build_keymap(table) == table
    assert find_key_errors(table) == []


def test_none_is_the_word_for_no_key() -> None:
    assert build_keymap({"abort": "none"}) == {"abort": "none"}
    assert find_key_errors({"abort": "none", "submit": []}) == []


async def test_a_key_that_does_not_exist_leaves_the_usual_one_at_work(running: Running) -> None:
    async with running("Yes.", settings=Config(keys={"submit": "ctrl+nonsense"})) as app:
        assert await app.wait_for_text("'ctrl+nonsense'")
        await app.submit_and_wait("Is it?")
        await app.press("f1")
        assert await app.wait_for_text("enter                  submit")


async def test_the_key_that_hints_call_esc_is_bound_by_that_name(running: Running) -> None:
    async with running(["One", Delay(30)], settings=Config(keys={"abort": "esc"})) as app:
        await app.submit("First")
        assert "esc aborts" in await app.wait_for_text("working")
        await app.press("escape")
        assert await app.wait_for_text("aborted")


async def test_the_tree_names_the_key_that_leaves_it(running: Running, ways: Session) -> None:
    async with running(session=ways, settings=BOUND) as app:
        await app.press("ctrl+t")
        assert "f11 leave" in await app.wait_for_text("type to search")
        await app.press("f11")
        assert await app.wait_until(lambda: app.app.screen is app.chat)


async def test_sides_name_the_key_that_unfolds(running: Running, ways: Session) -> None:
    async with running(session=ways, settings=BOUND) as app:
        await app.submit("/compare dict")
        assert "f6 unfold" in await app.wait_for_text("esc closes")


async def test_the_dialog_for_a_text_names_the_key_of_the_external_editor_which_works_there(
    running: Running, ways: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VISUAL", "/nowhere/ed")
    async with running(session=ways, settings=BOUND) as app:
        await app.submit("/tree root")
        await app.wait_for_text("Write the summary myself")
        await app.press("up", "enter")
        assert "f4 writes in $EDITOR" in await app.wait_for_text("ctrl+s is done")
        await app.press("f4")
        assert await app.wait_for_text("/nowhere/ed cannot be run here")


async def test_sessions_and_searches_name_their_keys(running: Running, ways: Session) -> None:
    async with running(session=ways, settings=BOUND) as app:
        await app.press("ctrl+r")
        assert "f7 this folder/all · f8 named" in await app.wait_for_text("enter opens")
        await app.press("f9")
        assert await app.wait_for_text("none is archived; f9 goes back")
        await app.press("escape")
        await app.submit("/search cache")
        assert "f7 this folder/all" in await app.wait_for_text("enter shows it in its tree")


async def test_nothing_is_said_of_all_folders_where_all_are_shown(running: Running) -> None:
    async with running(session=st.memory()) as app:
        await app.press("ctrl+r")
        await app.wait_for_text("there are none; tab shows all folders")
        await app.press("tab")
        assert "tab shows" not in await app.wait_for_text("there are none · all folders")


async def test_by_the_same_keys_one_goes_through_every_list(running: Running, ways: Session) -> None:
    for number in range(40):
        ways.append(st.user(f"zebra {number:02}"))
    async with running(session=ways) as app:
        await app.submit("/search zebra")
        await app.wait_for_text("40 hits", "zebra 39")
        assert "zebra 20" not in app.screen
        await app.press("pagedown", "pagedown", "down", "up")
        assert await app.wait_for_text("zebra 20")
        await app.press("enter")
        assert await app.wait_for_text("type to search")
        await app.press("escape")
        await app.submit("/branches")
        await app.wait_for_text("Which branch?")
        await app.press("down", "enter")
        assert await app.wait_for_text("on dict")
