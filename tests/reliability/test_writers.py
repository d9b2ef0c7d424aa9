"""Many writers: processes killed at random, threads on one session, and a reader that follows."""

from __future__ import annotations

import json
import random
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.store.base import Cursor
from sessiontree.store.jsonl import JsonlStore
from tests.reliability.child import write_among_others, write_in_threads, write_large_lines
from tests.reliability.harness import Child, check_acks, check_texts, decode_lines, read_lines, start_child, times

MIB = 1 << 20


class Follower:
    """A reader that follows a file while others write, both with a store and with a session."""

    def __init__(self, file: Path, *, torn: bool = False) -> None:
        self._torn = torn
        self._store = JsonlStore(str(file))
        self._session = st.open(file, read_only=True)
        self._thread = threading.Thread(target=self._follow)
        self._stop = threading.Event()
        self.seen: list[bytes] = []
        self.wrong: list[str] = []

    def _follow(self) -> None:
        cursor: Cursor | None = None
        try:
            while True:
                last = self._stop.is_set()
                chunk = self._store.read(cursor)
                lines = chunk.data.removesuffix(b"\n").split(b"\n") if chunk.data else []
                wires = decode_lines(lines, torn=self._torn)
                check_texts([wire["message"]["content"] for wire in wires if wire["type"] == "message"])
                self.seen += lines
                cursor = chunk.cursor
                self._session.refresh()
                if last:
                    return
        except Exception as error:  # noqa: BLE001 - reported, and checked by the test
            self.wrong.append(repr(error))

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def check(self, file: Path) -> None:
        assert not self.wrong, f"the follower failed: {self.wrong}"
        assert self.seen == read_lines(file), "the follower saw wrong lines, or a wrong order"
        again = st.open(file, read_only=True)
        assert dict(self._session.heads.heads) == dict(again.heads.heads), "following and rereading differ"
        assert [entry.id for entry in self._session.tree] == [entry.id for entry in again.tree]


def write_and_kill(
    file: Path, writers: int, count: int, kills: int, *, largest: int = MIB, plants: tuple[str, ...] = ()
) -> list[str]:
    """Run several writers at once, kill and replace some, and return all they acknowledged."""
    choose = random.Random(writers * count + kills)
    acks: list[str] = []
    running: list[Child] = []
    with ExitStack() as stack:
        for number in range(writers + kills):
            if len(running) == writers:
                child = running.pop(choose.randrange(writers))
                child.wait_for(choose.randrange(2, count))
                acks += child.kill()
            work = start_child(write_among_others, str(file), f"w{number}", count, number, largest, plants)
            running.append(stack.enter_context(work))
        for child in running:
            told = child.rest()
            assert told[-1:] == ["done"], f"a writer gave up: {told[-1:]}"
            acks += told
    return [ack for ack in acks if ack != "done"]


def check_branches(session: st.Session, acks: list[str]) -> None:
    """Check that every acknowledged entry is on the path of its branch."""
    for name in session.heads.heads:
        path = {entry.id for entry in session.branch(name).path()}
        aside = [id for id in acks if session.tree[id].branch == name and id not in path]
        assert not aside, f"{len(aside)} entries of {name} are not on it"


@pytest.mark.parametrize("plants", [(), ("pieces",)], ids=["whole writes", "writes in pieces"])
def test_processes_killed_at_random_lose_nothing_and_block_no_other(tmp_path: Path, plants: tuple[str, ...]) -> None:
    for round in range(times(1, torture=10)):
        file = tmp_path / f"{round}.jsonl"
        st.create(file=file).close()
        largest = MIB // 16 if plants else times(MIB, torture=MIB // 8)  # the test has several copies in memory

        # The follower has the file open, so the partial line of a killed writer stays there. The kernel may cut short
        # even a single write.
        with Follower(file, torn=True) as follower:
            acks = write_and_kill(file, 4, times(40, torture=400), times(8, torture=60), largest=largest, plants=plants)

        check_branches(check_acks(file, acks, torn=True), acks)
        assert len(acks) > 100
        follower.check(file)


def test_threads_that_share_a_session_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    st.create(file=file).close()

    with Follower(file) as follower, start_child(write_in_threads, str(file), 8, times(60, torture=2000), ()) as child:
        *acks, last = child.rest()

    assert last == "done", last
    check_branches(check_acks(file, acks), acks)
    follower.check(file)


def test_sessions_of_several_threads_in_one_process_exclude_each_other(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    st.create(file=file).close()
    acks: list[str] = []

    def work(number: int) -> None:
        with st.open(file, durability="none") as session:
            own = session.create_branch(f"t{number}", at=None, current=False)
            acks.extend(own.append(st.user(f"{n}")).id for n in range(times(50, torture=1000)))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert len(acks) == 4 * times(50, torture=1000)
    check_branches(check_acks(file, acks), acks)


# Planted faults are found


def write_in_rounds(folder: Path, plants: tuple[str, ...]) -> None:
    for round in range(10):
        file = folder / f"{round}.jsonl"
        st.create(file=file).close()
        acks = write_and_kill(file, 4, 60, 0, largest=10_000, plants=plants)
        check_branches(check_acks(file, acks), acks)


def test_the_harness_finds_writers_that_do_not_lock(tmp_path: Path) -> None:
    with pytest.raises((AssertionError, ValueError)):
        write_in_rounds(tmp_path, plants=("pieces", "no_lock"))


def test_the_harness_finds_writers_that_write_text_and_newline_separately(tmp_path: Path) -> None:
    with pytest.raises((AssertionError, ValueError)):
        write_in_rounds(tmp_path, plants=("write_newline_separately",))


def test_the_harness_notices_a_reader_that_sees_part_of_a_batch(tmp_path: Path) -> None:
    def sees_part_of_a_batch(round: int) -> bool:
        file = tmp_path / f"{round}.jsonl"
        st.create(file=file).close()
        with Follower(file) as follower:
            write_and_kill(file, 2, 60, 0, largest=100_000, plants=("pieces", "no_notes"))
        try:
            follower.check(file)
        except AssertionError as error:
            return "incomplete batches" in str(error)
        return False

    assert any(sees_part_of_a_batch(round) for round in range(20)), "no round read the file at the wrong moment"


def test_the_harness_notices_a_reader_that_sees_a_changed_line(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    st.create(file=file).close()
    with Follower(file) as follower:
        with st.open(file) as session:
            for number in range(20):
                session.append(st.user(f"{number}"))
        while len(follower.seen) < 21:
            pass
        lines = read_lines(file)
        file.write_bytes(b"\n".join([*lines[:-2], lines[-1], lines[-2]]) + b"\n")

    with pytest.raises(AssertionError, match="the follower"):
        follower.check(file)


def test_no_line_of_a_program_that_does_not_lock_is_cut_off(tmp_path: Path) -> None:
    """Readers see part of a long line while its `write` runs. Truncating there would cut off the whole line."""
    for round in range(times(1, torture=40)):
        file = tmp_path / f"{round}.jsonl"
        session = st.create(file=file, durability="none")
        first = session.append(st.user("first"))
        ours: list[str] = []
        with start_child(write_large_lines, str(file), 12, 8 * MIB) as peer:
            while peer.is_alive:
                with suppress(st.Conflict):
                    ours.append(session.append(st.user("ours"), parent=first, branch=None).id)
            told = peer.rest()

        ids = {json.loads(line)["id"] for line in read_lines(file) if line.strip()}
        assert len(told) == 12
        assert ids.issuperset(told), f"{len(set(told) - ids)} of {len(told)} lines of the other program are lost"
        assert ids.issuperset(ours)
        assert not session.problems
        file.unlink()
