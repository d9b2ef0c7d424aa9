"""Sessions that the server keeps open: one object per file, a limited number, and none that must be closed."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.library import folder_repository
from sessiontree.server import session_cache
from sessiontree.server.auth import Token
from sessiontree.server.http_errors import ApiError
from sessiontree.server.request_checks import ServerLimits
from sessiontree.server.session_cache import OpenSession, SessionCache, SessionLocator, SessionPosition, parse_position
from tests.server.conftest import ServerEnv

OWNER = Token(id="x", hash="", scopes=("read",))
KIND = "needle"
WORD = b'"needle"'


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_concurrent_requests_share_one_session(env: ServerEnv) -> None:
    id, sessions = env.create_session(), SessionCache(ServerLimits())
    held: list[Any] = []

    threads = [threading.Thread(target=lambda: held.append(sessions.acquire(id, OWNER))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({one.session for one in held}) == 1
    assert held[0].users == 10


def test_a_session_is_refreshed_for_each_request(env: ServerEnv) -> None:
    id, sessions = env.create_session(), SessionCache(ServerLimits())
    with sessions.read(id, OWNER) as opened:
        before = opened.position
    with st.open(id) as other:
        other.head.append(st.user("more"))

    with sessions.read(id, OWNER) as opened:
        assert opened.position.count == before.count + 1
        opened.check_position(before)
        with pytest.raises(ApiError):
            opened.check_position(SessionPosition(before.count, "00000000"))


def test_idle_sessions_are_closed_unless_in_use(env: ServerEnv) -> None:
    clock = Clock()
    sessions = SessionCache(ServerLimits(idle_seconds=10), clock)
    idle, held = env.create_session(), env.create_session()
    kept = sessions.acquire(held, OWNER)
    with sessions.read(idle, OWNER):
        pass

    clock.now = 5
    assert list(sessions.remove_idle()) == []
    clock.now = 20
    assert [one.session.id for one in sessions.remove_idle()] == [idle]
    assert [one.session.id for one in sessions.list_open()] == [held]
    sessions.release(kept)
    clock.now = 40
    assert [one.session.id for one in sessions.remove_idle()] == [held]


def test_only_the_most_recently_used_sessions_stay_open(env: ServerEnv) -> None:
    clock = Clock()
    sessions = SessionCache(ServerLimits(sessions=2), clock)
    ids = [env.create_session() for _ in range(4)]
    for id in ids:
        clock.now += 1
        with sessions.read(id, OWNER):
            pass

    assert [one.session.id for one in sessions.remove_idle()] == ids[:2]
    assert [one.session.id for one in sessions.list_open()] == ids[2:]


def test_an_unknown_id_is_not_found(env: ServerEnv) -> None:
    sessions = SessionCache(ServerLimits())
    for id in ("", "nothing", "../x"):
        with pytest.raises(ApiError) as refused:
            sessions.acquire(id, OWNER)
        assert refused.value.status == 404
    id = env.create_session()
    assert sessions.acquire(id, OWNER).session.id == id


def test_a_token_of_another_project_keeps_no_session_in_use(env: ServerEnv) -> None:
    id, sessions = env.create_session(), SessionCache(ServerLimits())
    stranger = Token(id="y", hash="", scopes=("read",), projects=(str(env.other),))

    with pytest.raises(ApiError):
        sessions.acquire(id, stranger)

    assert [one.users for one in sessions.list_open()] == [0]


def test_a_session_with_a_different_file_name_is_found_by_id(env: ServerEnv) -> None:
    with st.create(cwd=env.project) as session:
        file = session.file
    assert file is not None
    file.rename(file.with_name("otherwise.jsonl"))

    assert SessionCache(ServerLimits()).acquire(session.id, OWNER).session.id == session.id


def test_a_response_is_cached_until_the_next_write(env: ServerEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_cache, "MAX_CACHED_RESPONSE_BYTES", 10)
    id, sessions = env.create_session(), SessionCache(ServerLimits())
    made: list[str] = []

    def answer(asked: str) -> bytes:
        with sessions.read(id, OWNER) as opened:
            known = opened.get_response(asked)
            if known is None:
                made.append(asked)
                opened.cache_response(asked, opened.position, b"12345")
            return known or b"12345"

    for asked in ("a", "a", "b", "a", "c", "a"):
        assert answer(asked) == b"12345"
    assert made == ["a", "b", "c", "a"], "only so many bytes are kept"
    with st.open(id) as other:
        other.head.append(st.user("more"))
    answer("a")

    assert made[4:] == ["a"]


def test_a_response_from_before_a_write_is_not_cached(env: ServerEnv) -> None:
    id, sessions = env.create_session(), SessionCache(ServerLimits())
    with sessions.read(id, OWNER) as opened:
        before = opened.position
        opened.session.head.append(st.user("more"))

        opened.cache_response("a", before, b"old")

        assert opened.get_response("a") is None


def test_depths_are_counted_from_the_root(env: ServerEnv) -> None:
    id, sessions = env.create_session(), SessionCache(ServerLimits())
    with sessions.read(id, OWNER) as opened:
        assert [opened.get_depth(entry.id) for entry in opened.session.tree.entries] == [0, 1, 2]


@pytest.mark.parametrize(
    ("late", "parent", "depths"),
    [("b", "a", {"a": 0, "b": 1, "c": 2, "d": 3}), ("c", "a", {"a": 0, "c": 1, "d": 2})],
    ids=["a parent that was missing", "an id that was there"],
)
def test_depths_are_recomputed_when_a_missing_parent_appears(
    tmp_path: Path, late: str, parent: str, depths: dict[str, int]
) -> None:
    def line(id: str, parent: str | None) -> str:
        message = {"role": "user", "content": id}
        fields = {"type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:00.000Z"}
        return json.dumps({**fields, "message": message}) + "\n"

    header = {"type": "session", "version": 3, "id": "x", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/x"}
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps(header) + "\n" + line("a", None) + line("c", "b") + line("d", "c"))
    with st.open(file) as session:
        opened = OpenSession(session, str(file), ServerLimits())
        assert [opened.get_depth(id) for id in ("a", "c", "d")] == [0, 0, 1]
        with file.open("a") as other:
            other.write(line(late, parent))

        opened.refresh()

        assert {id: opened.get_depth(id) for id in depths} == depths


def test_an_unreadable_session_is_not_kept_in_use(env: ServerEnv) -> None:
    clock = Clock()
    id, sessions = env.create_session(), SessionCache(ServerLimits(idle_seconds=10), clock)
    with sessions.read(id, OWNER) as opened:
        file = Path(opened.file)
    whole = file.read_bytes()

    file.write_bytes(b"")
    for _ in range(3):
        with pytest.raises(SessionTreeError):
            sessions.acquire(id, OWNER)
    held = opened.users
    file.write_bytes(whole)
    with sessions.read(id, OWNER) as again:
        assert len(again.session.tree.entries) == 3
    clock.now = 20

    assert held == 0
    assert list(sessions.remove_idle()) == [opened]


@pytest.mark.parametrize("text", ["", "x", "1", "-", "x-1", "-1-ab", "9" * 20 + "-ab", "²-ab"])
def test_invalid_positions_are_refused(text: str) -> None:
    with pytest.raises(ApiError):
        parse_position(text)


def test_a_position_is_formatted_and_parsed() -> None:
    assert parse_position(str(SessionPosition(12, "9a0b1c2d"))) == SessionPosition(12, "9a0b1c2d")


def test_totals_and_problems_are_counted_in_steps_and_go_on_with_new_entries(
    env: ServerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_cache, "COUNTED_TOGETHER", 2)
    with st.open(env.create_session()) as writer:
        writer.extend([st.user("one"), *(st.assistant([st.ToolCall(f"c{at}", "read", {})]) for at in range(4))])
        with SessionCache(ServerLimits()).read(writer.id, OWNER) as opened:
            steps = 1
            while not opened.count_entries():
                steps += 1
            count = len(opened.session.tree.entries)
            assert steps == -(-count // 2)
            assert opened.list_problems() == writer.problems
            writer.append(st.tool_result("c3", "read", "text"))
            writer.append(st.tool_result("c1", "read", "text"))
            opened.refresh()

            assert opened.list_problems() == writer.problems
            assert opened.compute_totals().entries == len(opened.session.tree.entries) == count + 2


def test_a_rolled_back_entry_disappears_from_responses(env: ServerEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    id, sessions = env.create_session(), SessionCache(ServerLimits())
    seen: list[tuple[int, str]] = []

    def look() -> tuple[int, str]:
        with sessions.read(id, OWNER) as opened:
            last = opened.session.tree.get_entry_at(len(opened.session.tree.entries) - 1)
            return opened.compute_totals().entries, opened.get_preview(last).text

    def fail(fd: int) -> None:
        seen.append(look())
        raise OSError(errno.EIO, "")

    before = look()
    with st.open(id) as writer, monkeypatch.context() as patch:
        patch.setattr("sessiontree.store.jsonl.sync_data", fail)
        with pytest.raises(st.StoreError):
            writer.append(st.user("taken back"))

    assert seen == [(before[0] + 1, "taken back")]
    assert look() == before
    with st.open(id) as other:
        other.append(st.user("kept"))
    assert look() == (before[0] + 1, "kept")


# Sessions with swarms or experiments


def test_a_session_is_found_as_soon_as_it_contains_the_word(env: ServerEnv) -> None:
    env.create_session()
    id = env.create_session()
    found = SessionLocator(KIND, SessionCache(ServerLimits()))
    assert found.list_files() == []

    with st.open(id) as session:
        session.append(st.Custom(custom_type=KIND))

    assert [Path(file).name.endswith(f"{id}.jsonl") for file in found.list_files()] == [True]


@pytest.mark.parametrize("block", [3, 7, 64])
def test_a_word_is_found_across_blocks_and_scans(env: ServerEnv, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(folder_repository, "SCAN_BLOCK", block)
    with st.open(env.create_session()) as session:
        file = Path(str(session.file))
    found = SessionLocator(KIND, SessionCache(ServerLimits()))
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
    found = SessionLocator(KIND, SessionCache(ServerLimits()))
    assert len(found.list_files()) == 1

    other = file.with_suffix(".new")
    other.write_bytes(file.read_bytes().replace(WORD, b'"nothing"'))
    other.rename(file)

    assert found.list_files() == []


def find_needles(opened: OpenSession) -> dict[str, str]:
    return {str(opened.session.id): entry.id for entry in opened.session.tree.entries if entry.custom_type == KIND}


def test_only_the_session_with_the_id_is_in_use(env: ServerEnv) -> None:
    sessions = SessionCache(ServerLimits())
    ids = [env.create_session() for _ in range(3)]
    for id in ids:
        with st.open(id) as session:
            session.append(st.Custom(custom_type=KIND))
    homes = SessionLocator(KIND, sessions)

    for _ in range(2):  # searched and found
        found = homes.acquire(ids[1], OWNER, find_needles)
        assert found is not None
        assert found[0].session.id == ids[1]
        assert {opened.session.id: opened.users for opened in sessions.list_open() if opened.users} == {ids[1]: 1}
        sessions.release(found[0])
    assert homes.acquire("nothing", OWNER, find_needles) is None
    assert [opened.users for opened in sessions.list_open()] == [0, 0, 0]


def test_a_moved_session_is_found_at_its_new_place(env: ServerEnv) -> None:
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
