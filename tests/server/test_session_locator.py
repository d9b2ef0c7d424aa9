"""Which sessions hold a word, without opening them."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.errors import InvalidOperation
from sessiontree.library import folder_repository
from sessiontree.server.auth import Token
from sessiontree.server.request_checks import ServerLimits
from sessiontree.server.session_cache import OpenSession, SessionCache
from sessiontree.server.session_locator import SessionLocator, SessionScanner
from tests.server.conftest import ServerEnv

KIND = "needle"
WORD = b'"needle"'
OWNER = Token(id="x", hash="", scopes=("read",))


def test_a_session_is_found_as_soon_as_it_holds_the_word(env: ServerEnv) -> None:
    env.create_session()
    id = env.create_session()
    found = SessionScanner(KIND)
    assert found.list_files() == []

    with st.open(id) as session:
        session.append(st.Custom(custom_type=KIND))

    assert [Path(file).name.endswith(f"{id}.jsonl") for file in found.list_files()] == [True]


@pytest.mark.parametrize("block", [3, 7, 64])
def test_a_word_is_found_across_blocks_and_across_looks(
    env: ServerEnv, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(folder_repository, "SCAN_BLOCK", block)
    with st.open(env.create_session()) as session:
        file = Path(str(session.file))
    found = SessionScanner(KIND)
    start = file.read_bytes()
    for cut in range(len(WORD)):
        file.write_bytes(start + WORD[:cut])
        assert found.list_files() == []
    file.write_bytes(start + WORD)

    assert found.list_files() == [str(file)]


def test_a_replaced_file_is_scanned_again(env: ServerEnv) -> None:
    with st.open(env.create_session()) as session:
        session.append(st.Custom(custom_type=KIND))
        file = Path(str(session.file))
    found = SessionScanner(KIND)
    assert len(found.list_files()) == 1

    other = file.with_suffix(".new")
    other.write_bytes(file.read_bytes().replace(WORD, b'"nothing"'))
    other.rename(file)

    assert found.list_files() == []


def find_needles(opened: OpenSession) -> dict[str, str]:
    return {str(opened.session.id): entry.id for entry in opened.session.tree.entries if entry.custom_type == KIND}


def test_the_session_of_an_id_is_held_and_no_other(env: ServerEnv) -> None:
    sessions = SessionCache(ServerLimits())
    ids = [env.create_session() for _ in range(3)]
    for id in ids:
        with st.open(id) as session:
            session.append(st.Custom(custom_type=KIND))
    homes = SessionLocator(KIND, sessions)

    for _ in range(2):  # looked for, and known
        found = homes.acquire(ids[1], OWNER, find_needles)
        assert found is not None
        assert found[0].session.id == ids[1]
        assert {opened.session.id: opened.users for opened in sessions.list_open() if opened.users} == {ids[1]: 1}
        sessions.release(found[0])
    assert homes.acquire("nothing", OWNER, find_needles) is None
    assert [opened.users for opened in sessions.list_open()] == [0, 0, 0]


def test_a_session_that_was_moved_is_found_where_it_is_now(env: ServerEnv) -> None:
    sessions = SessionCache(ServerLimits())
    with st.open(env.create_session()) as session:
        session.append(st.Custom(custom_type=KIND))
    homes, file = SessionLocator(KIND, sessions), session.file
    first = homes.acquire(session.id, OWNER, find_needles)
    assert first is not None
    sessions.release(first[0])
    elsewhere = file.parent.with_name("elsewhere")
    elsewhere.mkdir()
    file.rename(elsewhere / file.name)

    found = homes.acquire(session.id, OWNER, find_needles)

    assert found is not None
    assert found[0].file == str(elsewhere / file.name)


def test_a_session_is_released_if_the_search_fails(env: ServerEnv) -> None:
    sessions = SessionCache(ServerLimits())
    with st.open(env.create_session()) as session:
        session.append(st.Custom(custom_type=KIND))

    def fail(opened: OpenSession) -> dict[str, str]:
        raise InvalidOperation("it is not to be read")

    with pytest.raises(InvalidOperation):
        SessionLocator(KIND, sessions).acquire("any", OWNER, fail)

    assert [opened.users for opened in sessions.list_open()] == [0]
