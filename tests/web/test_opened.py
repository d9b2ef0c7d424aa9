"""Sessions that the server holds open: one object for each file, few at once, and none that somebody needs closed."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.errors import SessionTreeError
from sessiontree.web import opened as opened_module
from sessiontree.web.guard import Limits
from sessiontree.web.opened import Opened, OpenSessions, Position, read_position
from sessiontree.web.refusals import Refused
from sessiontree.web.tokens import Token
from tests.web.conftest import House

OWNER = Token(id="x", hash="", scopes=("read",))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_all_who_ask_at_once_share_one_session(house: House) -> None:
    id, sessions = house.session(), OpenSessions(Limits())
    held: list[Any] = []

    threads = [threading.Thread(target=lambda: held.append(sessions.hold(id, OWNER))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({one.session for one in held}) == 1
    assert held[0].holders == 10


def test_a_session_is_as_it_is_now_whoever_wrote(house: House) -> None:
    id, sessions = house.session(), OpenSessions(Limits())
    with sessions.reading(id, OWNER) as opened:
        before = opened.position
    with st.open(id) as other:
        other.head.append(st.user("more"))

    with sessions.reading(id, OWNER) as opened:
        assert opened.position.count == before.count + 1
        opened.check(before)
        with pytest.raises(Refused):
            opened.check(Position(before.count, "00000000"))


def test_what_nobody_asks_for_is_closed_and_what_is_held_is_not(house: House) -> None:
    clock = Clock()
    sessions = OpenSessions(Limits(idle_seconds=10), clock)
    idle, held = house.session(), house.session()
    kept = sessions.hold(held, OWNER)
    with sessions.reading(idle, OWNER):
        pass

    clock.now = 5
    assert list(sessions.idle()) == []
    clock.now = 20
    assert [one.session.id for one in sessions.idle()] == [idle]
    assert [one.session.id for one in sessions.open_now()] == [held]
    sessions.let_go(kept)
    clock.now = 40
    assert [one.session.id for one in sessions.idle()] == [held]


def test_only_so_many_are_held_open_those_asked_for_last(house: House) -> None:
    clock = Clock()
    sessions = OpenSessions(Limits(sessions=2), clock)
    ids = [house.session() for _ in range(4)]
    for id in ids:
        clock.now += 1
        with sessions.reading(id, OWNER):
            pass

    assert [one.session.id for one in sessions.idle()] == ids[:2]
    assert [one.session.id for one in sessions.open_now()] == ids[2:]


def test_an_id_that_is_nobodys_is_looked_for_and_not_found(house: House) -> None:
    sessions = OpenSessions(Limits())
    for id in ("", "nothing", "../x"):
        with pytest.raises(Refused) as refused:
            sessions.hold(id, OWNER)
        assert refused.value.status == 404
    id = house.session()
    assert sessions.hold(id, OWNER).session.id == id


def test_a_token_of_another_project_holds_nothing(house: House) -> None:
    id, sessions = house.session(), OpenSessions(Limits())
    stranger = Token(id="y", hash="", scopes=("read",), projects=(str(house.other),))

    with pytest.raises(Refused):
        sessions.hold(id, stranger)

    assert [one.holders for one in sessions.open_now()] == [0]


def test_a_session_whose_file_is_called_otherwise_is_found_by_its_id(house: House) -> None:
    with st.create(cwd=house.project) as session:
        file = session.file
    assert file is not None
    file.rename(file.with_name("otherwise.jsonl"))

    assert OpenSessions(Limits()).hold(session.id, OWNER).session.id == session.id


def test_an_answer_is_kept_until_something_is_written(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_module, "ANSWERS", 10)
    id, sessions = house.session(), OpenSessions(Limits())
    made: list[str] = []

    def answer(asked: str) -> bytes:
        with sessions.reading(id, OWNER) as opened:
            known = opened.answered(asked)
            if known is None:
                made.append(asked)
                opened.keep_answer(asked, opened.position, b"12345")
            return known or b"12345"

    for asked in ("a", "a", "b", "a", "c", "a"):
        assert answer(asked) == b"12345"
    assert made == ["a", "b", "c", "a"], "only so many bytes are kept"
    with st.open(id) as other:
        other.head.append(st.user("more"))
    answer("a")

    assert made[4:] == ["a"]


def test_an_answer_that_was_made_before_something_was_written_is_not_kept(house: House) -> None:
    id, sessions = house.session(), OpenSessions(Limits())
    with sessions.reading(id, OWNER) as opened:
        before = opened.position
        opened.session.head.append(st.user("more"))

        opened.keep_answer("a", before, b"old")

        assert opened.answered("a") is None


def test_depths_are_counted_from_the_root(house: House) -> None:
    id, sessions = house.session(), OpenSessions(Limits())
    with sessions.reading(id, OWNER) as opened:
        assert [opened.depth(entry.id) for entry in opened.session.tree.entries] == [0, 1, 2]


@pytest.mark.parametrize(
    ("late", "parent", "depths"),
    [("b", "a", {"a": 0, "b": 1, "c": 2, "d": 3}), ("c", "a", {"a": 0, "c": 1, "d": 2})],
    ids=["a parent that was missing", "an id that was there"],
)
def test_depths_are_counted_anew_when_a_late_line_puts_others_elsewhere(
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
        opened = Opened(session, str(file), Limits())
        assert [opened.depth(id) for id in ("a", "c", "d")] == [0, 0, 1]
        with file.open("a") as other:
            other.write(line(late, parent))

        opened.refresh()

        assert {id: opened.depth(id) for id in depths} == depths


def test_who_asks_for_a_session_that_became_unreadable_does_not_hold_it(house: House) -> None:
    clock = Clock()
    id, sessions = house.session(), OpenSessions(Limits(idle_seconds=10), clock)
    with sessions.reading(id, OWNER) as opened:
        file = Path(opened.file)
    whole = file.read_bytes()

    file.write_bytes(b"")
    for _ in range(3):
        with pytest.raises(SessionTreeError):
            sessions.hold(id, OWNER)
    held = opened.holders
    file.write_bytes(whole)
    with sessions.reading(id, OWNER) as again:
        assert len(again.session.tree.entries) == 3
    clock.now = 20

    assert held == 0
    assert list(sessions.idle()) == [opened]


@pytest.mark.parametrize("text", ["", "x", "1", "-", "x-1", "-1-ab", "9" * 20 + "-ab", "²-ab"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        read_position(text)


def test_a_position_is_told_and_read() -> None:
    assert read_position(str(Position(12, "9a0b1c2d"))) == Position(12, "9a0b1c2d")


def test_an_entry_that_its_writer_takes_back_is_gone_for_all_who_ask(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, sessions = house.session(), OpenSessions(Limits())
    seen: list[tuple[int, str]] = []

    def look() -> tuple[int, str]:
        with sessions.reading(id, OWNER) as opened:
            last = opened.session.tree.entry_at(len(opened.session.tree.entries) - 1)
            return opened.totals().count, opened.gist(last).text

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
