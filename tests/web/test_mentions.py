"""Which sessions hold a word, without opening them."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.errors import InvalidOperation
from sessiontree.web import mentions
from sessiontree.web.guard import Limits
from sessiontree.web.mentions import Homes, Mentions
from sessiontree.web.opened import Opened, OpenSessions
from sessiontree.web.tokens import Token
from tests.web.conftest import House

KIND = "needle"
WORD = b'"needle"'
OWNER = Token(id="x", hash="", scopes=("read",))


def test_a_session_is_found_as_soon_as_it_holds_the_word(house: House) -> None:
    house.session()
    id = house.session()
    found = Mentions(KIND)
    assert found.files() == []

    with st.open(id) as session:
        session.append(st.Custom(custom_type=KIND))

    assert [Path(file).name.endswith(f"{id}.jsonl") for file in found.files()] == [True]


@pytest.mark.parametrize("block", [3, 7, 64])
def test_a_word_is_found_across_blocks_and_across_looks(
    house: House, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(mentions, "BLOCK", block)
    with st.open(house.session()) as session:
        file = Path(str(session.file))
    found = Mentions(KIND)
    start = file.read_bytes()
    for cut in range(len(WORD)):
        file.write_bytes(start + WORD[:cut])
        assert found.files() == []
    file.write_bytes(start + WORD)

    assert found.files() == [str(file)]


def test_a_file_that_was_put_in_the_place_of_another_is_looked_through_anew(house: House) -> None:
    with st.open(house.session()) as session:
        session.append(st.Custom(custom_type=KIND))
        file = Path(str(session.file))
    found = Mentions(KIND)
    assert len(found.files()) == 1

    other = file.with_suffix(".new")
    other.write_bytes(file.read_bytes().replace(WORD, b'"nothing"'))
    other.rename(file)

    assert found.files() == []


def needles(opened: Opened) -> dict[str, str]:
    return {str(opened.session.id): entry.id for entry in opened.session.tree.entries if entry.custom_type == KIND}


def test_the_session_of_an_id_is_held_and_no_other(house: House) -> None:
    sessions = OpenSessions(Limits())
    ids = [house.session() for _ in range(3)]
    for id in ids:
        with st.open(id) as session:
            session.append(st.Custom(custom_type=KIND))
    homes = Homes(KIND, sessions)

    for _ in range(2):  # looked for, and known
        found = homes.hold(ids[1], OWNER, needles)
        assert found is not None
        assert found[0].session.id == ids[1]
        assert {opened.session.id: opened.holders for opened in sessions.open_now() if opened.holders} == {ids[1]: 1}
        sessions.let_go(found[0])
    assert homes.hold("nothing", OWNER, needles) is None
    assert [opened.holders for opened in sessions.open_now()] == [0, 0, 0]


def test_a_session_that_was_moved_is_found_where_it_is_now(house: House) -> None:
    sessions = OpenSessions(Limits())
    with st.open(house.session()) as session:
        session.append(st.Custom(custom_type=KIND))
    homes, file = Homes(KIND, sessions), session.file
    first = homes.hold(session.id, OWNER, needles)
    assert first is not None
    sessions.let_go(first[0])
    elsewhere = file.parent.with_name("elsewhere")
    elsewhere.mkdir()
    file.rename(elsewhere / file.name)

    found = homes.hold(session.id, OWNER, needles)

    assert found is not None
    assert found[0].file == str(elsewhere / file.name)


def test_a_session_in_which_nothing_can_be_looked_for_is_let_go_of(house: House) -> None:
    sessions = OpenSessions(Limits())
    with st.open(house.session()) as session:
        session.append(st.Custom(custom_type=KIND))

    def fail(opened: Opened) -> dict[str, str]:
        raise InvalidOperation("it is not to be read")

    with pytest.raises(InvalidOperation):
        Homes(KIND, sessions).hold("any", OWNER, fail)

    assert [opened.holders for opened in sessions.open_now()] == [0]
