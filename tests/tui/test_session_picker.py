"""The session picker: listing, search, preview, renaming, archiving and deleting."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.library.index.session_summary import SessionSummary
from sessiontree.tui.screens.session_picker import build_rows

from .conftest import Running


@pytest.fixture
def three(project: Path) -> list[str]:
    """Files of three sessions: one with a name, one forked from it, one without a name."""
    with st.create("Named work") as named:
        named.append(st.user("how do caches work"))
        named.append(st.assistant("by remembering zebras"))
        with named.fork() as forked:
            forked.append(st.user("and tables?"))
    with st.create() as plain:
        plain.append(st.user("something else entirely"))
    return [str(session.file) for session in (named, forked, plain)]


async def test_forks_are_listed_below_their_parent(running: Running, three: list[str]) -> None:
    async with running() as app:
        await app.press("ctrl+r")
        await app.wait_for_text("Named work", "something else entirely", "└")
        lines = [line for line in app.screen.split("\n") if " message" in line]
        at = next(index for index, line in enumerate(lines) if "Named work" in line and "└" not in line)
        assert "└" in lines[at + 1]


async def test_enter_opens_the_selected_session(running: Running, three: list[str]) -> None:
    async with running() as app:
        await app.press("ctrl+r")
        assert await app.wait_for_text("something else entirely")
        await app.press(*"entirely")
        await app.wait_until(lambda: "Named" not in app.screen)
        await app.press("enter")
        await app.wait_until(lambda: str(app.app.controller.session.file) == three[2])
        assert await app.wait_for_text("▌ something else entirely")


async def test_messages_are_searched_too(running: Running, three: list[str]) -> None:
    async with running() as app:
        await app.press("ctrl+r")
        assert await app.wait_for_text("something else")
        await app.press(*"zebras")
        await app.wait_until(lambda: "2 of" in app.screen and "something else" not in app.screen)
        assert await app.wait_for_text("Named work")


async def test_a_session_with_many_matches_does_not_hide_others(running: Running, three: list[str]) -> None:
    with st.create("Busy") as busy:
        busy.head.extend([st.assistant(f"zebras {number}") for number in range(250)])
    async with running() as app:
        await app.press("ctrl+r")
        assert await app.wait_for_text("something else")
        await app.press(*"zebras")
        await app.wait_until(lambda: "3 of" in app.screen and "something else" not in app.screen)
        assert await app.wait_for_text("Named work", "Busy")


async def test_a_session_is_previewed(running: Running, three: list[str]) -> None:
    async with running(size=(140, 30)) as app:
        await app.press("ctrl+r")
        assert await app.wait_for_text("Named work")
        await app.press(*"Named")
        assert await app.wait_for_text("by remembering zebras")


async def test_a_small_preview_shows_the_newest_messages(running: Running, project: Path) -> None:
    with st.create("long") as session:
        for number in range(10):
            session.append(st.user(f"question {number}"))
            session.append(st.assistant(f"answer {number} " + "and so on " * 100))
    async with running(size=(80, 24)) as app:
        await app.press("ctrl+r")
        await app.wait_for_text("20 messages")
        await app.press("down")
        shown = await app.wait_for_text("› question 9", "answer 9")
        assert "question 8" not in shown


async def test_a_preview_with_wide_characters_shows_the_newest_messages(running: Running, project: Path) -> None:
    with st.create("wide") as session:
        for number in range(10):
            session.append(st.user(f"question {number} " + "問" * 200))
            session.append(st.assistant(f"answer {number} " + "答" * 200))
    async with running(size=(140, 30)) as app:
        await app.press("ctrl+r")
        await app.wait_for_text("20 messages")
        await app.press("down")
        assert await app.wait_for_text("› question 9", "answer 9")


async def test_an_invalid_search_is_reported(running: Running, three: list[str]) -> None:
    async with running() as app:
        await app.press("ctrl+r")
        assert await app.wait_for_text("Named work")
        await app.press(*"since:soon")
        assert await app.wait_for_text("invalid since: 'soon'")


async def test_only_named_sessions_can_be_listed(running: Running, three: list[str]) -> None:
    async with running() as app:
        await app.press("ctrl+r")
        assert await app.wait_for_text("something else")
        await app.press("ctrl+n")
        await app.wait_until(lambda: "something else" not in app.screen)
        assert await app.wait_for_text("Named work", "named")


async def test_a_key_lists_the_sessions_of_all_folders(running: Running, three: list[str], tmp_path: Path) -> None:
    with st.create("Elsewhere", cwd=tmp_path) as other:
        other.append(st.user("hi"))
    async with running() as app:
        await app.press("ctrl+r")
        await app.wait_for_text("Named work")
        assert "Elsewhere" not in app.screen
        await app.press("tab")
        await app.wait_for_text("Elsewhere", "all folders")


async def test_a_session_is_renamed_in_the_picker(running: Running, three: list[str]) -> None:
    async with running() as app:
        await app.press("ctrl+r")
        assert await app.wait_for_text("something else")
        await app.press(*"entirely")
        await app.wait_until(lambda: "Named" not in app.screen)
        await app.press("ctrl+r")
        assert await app.wait_for_text("Session name")
        await app.press(*"Fresh", "enter")
        assert await app.wait_until(lambda: st.open(three[2]).name == "Fresh")


async def test_renaming_the_open_session_uses_the_open_session(running: Running) -> None:
    async with running("Yes.") as app:
        await app.submit_and_wait("hello")
        await app.press("ctrl+r")
        await app.wait_for_text("● ")
        await app.press("ctrl+r")
        await app.wait_for_text("Session name")
        await app.press(*"Fresh", "enter")
        assert await app.wait_for_text("Sessions", "Fresh")
        await app.app._refresh_session()
        assert not app.app._is_following
        await app.press("escape")
        assert await app.wait_for_text("Fresh · on main")


async def test_a_session_is_archived_and_unarchived_in_the_picker(running: Running, three: list[str]) -> None:
    async with running() as app:
        await app.press("ctrl+r")
        assert await app.wait_for_text("something else")
        await app.press(*"entirely")
        await app.wait_until(lambda: "Named" not in app.screen)
        await app.press("ctrl+s")
        await app.wait_until(lambda: Path(f"{three[2]}.archived").exists() and "else entirely" not in app.screen)
        await app.press("ctrl+a")
        assert await app.wait_for_text("something else entirely")
        await app.press("ctrl+s")
        assert await app.wait_until(lambda: not Path(f"{three[2]}.archived").exists())


async def test_deleting_asks_for_confirmation(running: Running, three: list[str]) -> None:
    async with running() as app:
        await app.press("ctrl+r")
        await app.wait_for_text("something else")
        await app.press(*"entirely")
        await app.wait_until(lambda: "Named" not in app.screen)
        await app.press("ctrl+x")
        await app.wait_for_text("Delete this session?")
        await app.press("enter")
        assert Path(three[2]).exists()
        await app.press("ctrl+x")
        await app.wait_for_text("Delete this session?")
        await app.press("y")
        await app.wait_until(lambda: not Path(three[2]).exists())


async def test_the_open_session_is_not_deleted(running: Running, three: list[str]) -> None:
    async with running(session=st.open(three[0])) as app:
        await app.press("ctrl+r")
        await app.wait_for_text("● ")
        await app.press("ctrl+x")
        await app.wait_for_text("Cannot delete the open session")
        assert Path(three[0]).exists()


async def test_escape_clears_the_search_and_then_closes(running: Running, three: list[str]) -> None:
    async with running() as app:
        await app.press("ctrl+r")
        assert await app.wait_for_text("Named work")
        await app.press(*"xyzzy")
        assert await app.wait_for_text("no matches")
        await app.press("escape")
        assert await app.wait_for_text("Named work")
        await app.press("escape")
        assert await app.wait_until(lambda: len(app.app.screen_stack) == 1)


def test_forks_in_a_circle_are_all_listed() -> None:
    a = SessionSummary(id="a", file="/a", parent_session="/b")
    b = SessionSummary(id="b", file="/b", parent_session="/a")
    own = SessionSummary(id="c", file="/c", parent_session="/c")

    assert {row.summary.id for row in build_rows([a, b, own])} == {"a", "b", "c"}
