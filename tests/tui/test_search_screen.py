"""The search screen: hits while typing, progress, cancelling and navigation to a hit."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.session import Session

from .conftest import Running


@pytest.fixture
def talk(project: Path) -> Session:
    """A session with an abandoned branch, and a second session."""
    with st.create("other work") as other:
        other.append(st.user("where do zebras live?"))
        other.append(st.assistant("In Africa."))
    session = st.create("talk")
    session.append(st.user("tell me of horses"))
    here = session.append(st.assistant("A zebra is a horse with stripes."))
    session.append(st.user("and donkeys?"))
    session.append(st.assistant("They are horses too."))
    session.create_branch("stripes", at=here, current=False)
    session.append(st.user("how many stripes does a zebra have?"), branch="stripes")
    return session


async def test_hits_are_shown_with_their_text(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        await app.submit("/search zebra")
        assert await app.wait_for_text(
            "Search · 3 matches", "how many stripes does a zebra have?", "● talk · user · on stripes"
        )
        assert await app.wait_for_text("other work · user · on main", "where do zebras live?")


async def test_a_hit_of_this_session_is_shown_in_the_tree_and_enter_navigates(running: Running, talk: Session) -> None:
    async with running(session=talk, size=(100, 40)) as app:
        await app.submit("/search how many stripes")
        await app.wait_for_text("1 match")
        await app.press("enter")
        await app.wait_for_text("type to search", "›       user: how many stripes", "(stripes)")
        assert app.app.controller.session.head.name == "main", "looking moves nothing"
        await app.press("enter", "enter")
        await app.wait_until(lambda: app.editor.text == "how many stripes does a zebra have?")


async def test_a_hit_of_another_session_opens_that_one_in_its_tree(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        await app.submit("/search Africa")
        assert await app.wait_for_text("1 match")
        await app.press("enter")
        assert await app.wait_for_text("other work", "› • assistant: In Africa. (main) ← active")
        await app.press("escape")
        assert await app.wait_for_text("▌ where do zebras live?", "other work · on main")


async def test_the_query_is_typed_in_the_search_screen(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        await app.submit("/search")
        assert await app.wait_for_text("type to search")
        await app.press(*"donkeys")
        assert await app.wait_for_text("1 match", "and donkeys?")
        await app.press("x")
        assert await app.wait_for_text('no matches for "donkeysx"')
        await app.press("enter")
        await app.press("escape")
        assert await app.wait_until(lambda: app.app.screen is app.chat)


async def test_an_invalid_query_is_explained(running: Running, talk: Session) -> None:
    async with running(session=talk) as app:
        await app.submit("/search since:yesterday")
        assert await app.wait_for_text("Search · invalid since: 'yesterday'")


async def test_unreadable_files_are_counted(running: Running, talk: Session) -> None:
    assert talk.file is not None
    (talk.file.parent / "broken.jsonl").write_text("no session\n")
    async with running(session=talk) as app:
        await app.submit("/search elephant")
        assert await app.wait_for_text('no matches for "elephant", 1 file could not be read')


async def test_tab_searches_all_folders(running: Running, talk: Session, tmp_path: Path) -> None:
    with st.create("far", cwd=tmp_path) as far:
        far.append(st.user("okapi"))
    async with running(session=talk) as app:
        await app.submit("/search okapi")
        assert await app.wait_for_text("no matches")
        await app.press("tab")
        assert await app.wait_for_text("1 match", "all folders", "far · user")


async def test_hostile_text_in_a_hit_is_shown_as_text(running: Running, talk: Session) -> None:
    talk.append(st.user("zebra \x1b[2J [bold]loud[/bold]"))
    async with running(session=talk) as app:
        await app.submit("/search loud")
        await app.wait_for_text("1 match", "[bold]loud[/bold]")
        assert "\x1b" not in app.screen
