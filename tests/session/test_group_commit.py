"""Group commit: writes of several threads share a sync, and each has its own outcome."""

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.session.group_commit import GroupCommit
from sessiontree.store import jsonl
from sessiontree.store.lock import limit_wait

THREADS = 6


class Disk:
    """Counts syncs. The first one waits for `go`, and the ones in `failing` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.failing: set[int] = set()
        self.is_syncing, self.go = threading.Event(), threading.Event()
        self._sync = jsonl.sync_data
        monkeypatch.setattr(jsonl, "sync_data", self.sync)

    def sync(self, fd: int) -> None:
        self.count += 1
        if self.count in self.failing:
            raise OSError(errno.EIO, "")
        if self.count == 1:
            self.is_syncing.set()
            assert self.go.wait(60)
        self._sync(fd)


class Threads:
    """Runs calls in separate threads, and detects when they wait in the queue of the session."""

    def __init__(self, session: st.Session) -> None:
        self._queue: GroupCommit = session._group_commit
        self._pool = ThreadPoolExecutor(2 * THREADS)
        self._waiting = 0

    def start(self, function: Callable[..., Any], *args: Any, **named: Any) -> "Future[Any]":
        return self._pool.submit(function, *args, **named)

    def start_queued(self, function: Callable[..., Any], *args: Any, **named: Any) -> "Future[Any]":
        """Start a call while another thread writes, and wait until it is queued."""
        future = self.start(function, *args, **named)
        self._waiting += 1
        deadline = time.monotonic() + 60
        while len(self._queue._waiting) < self._waiting:
            assert time.monotonic() < deadline, "the write was not queued"
            time.sleep(0.001)
        return future


@pytest.fixture
def session(tmp_path: Path) -> Iterator[st.Session]:
    with st.create(file=tmp_path / "s.jsonl") as session:
        session.append(st.user("first"))
        for number in range(THREADS):
            session.create_branch(f"b{number}", current=False)
        yield session


@pytest.fixture
def disk(session: st.Session, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def threads(session: st.Session) -> Threads:
    return Threads(session)


def start_writing(session: st.Session, disk: Disk, threads: Threads) -> "Future[Any]":
    """Start an append whose sync takes until `disk.go` is set."""
    alone = threads.start(session.append, st.user("alone"))
    assert disk.is_syncing.wait(60)
    return alone


def read_again(session: st.Session) -> st.Session:
    assert session.file is not None
    return st.open(session.file, read_only=True)


def test_threads_that_wait_share_one_sync(session: st.Session, disk: Disk, threads: Threads) -> None:
    alone = start_writing(session, disk, threads)
    waiting = [
        threads.start_queued(session.branch(f"b{number}").append, st.user(str(number))) for number in range(THREADS)
    ]
    disk.go.set()

    entries = [alone.result(60), *(future.result(60) for future in waiting)]

    assert disk.count == 2
    again = read_again(session)
    assert [entry.id for entry in again.tree][-len(entries) :] == [entry.id for entry in entries]
    assert [entry.raw for entry in again.tree] == [entry.raw for entry in session.tree]
    assert [again.branch(f"b{number}").leaf for number in range(THREADS)] == [entry.id for entry in entries[1:]]
    assert again.problems == []


def test_batches_and_single_entries_share_a_sync(session: st.Session, disk: Disk, threads: Threads) -> None:
    start_writing(session, disk, threads)
    one = threads.start_queued(session.append, st.user("one"), branch="b0")
    two = threads.start_queued(session.extend, [st.user("a"), st.assistant("b")], branch="b1")
    label = threads.start_queued(session.label, "b1", "here")
    disk.go.set()

    assert [entry.text for entry in (one.result(60), *two.result(60))] == ["one", "a", "b"]
    assert label.result(60).type == "label"
    assert disk.count == 2
    assert [entry.text for entry in read_again(session).branch("b1").path()][-2:] == ["a", "b"]


def test_writes_to_one_branch_follow_each_other(session: st.Session, disk: Disk, threads: Threads) -> None:
    start_writing(session, disk, threads)
    waiting = [threads.start_queued(session.append, st.user(str(number)), branch="b0") for number in range(4)]
    disk.go.set()

    ids = [future.result(60).id for future in waiting]

    assert [entry.id for entry in read_again(session).branch("b0").path()][-4:] == ids


def test_a_refused_write_fails_alone(session: st.Session, disk: Disk, threads: Threads) -> None:
    head = session.branch("b0").leaf
    start_writing(session, disk, threads)
    first = threads.start_queued(session.append, st.user("first"), branch="b0", expected=head)
    late = threads.start_queued(session.append, st.user("late"), branch="b0", expected=head)
    unknown = threads.start_queued(session.append, st.user("where?"), branch="nowhere")
    last = threads.start_queued(session.append, st.user("last"), branch="b1")
    disk.go.set()

    assert first.result(60).text == "first"
    with pytest.raises(st.BranchMoved):
        late.result(60)
    with pytest.raises(st.NotFound, match="nowhere"):
        unknown.result(60)
    assert last.result(60).text == "last"
    texts = [entry.text for entry in read_again(session).tree if entry.type == "message"]
    assert texts == ["first", "alone", "first", "last"]


def test_a_failed_sync_fails_the_writes_that_share_it_and_no_other(
    session: st.Session, disk: Disk, threads: Threads
) -> None:
    heads = dict(session.heads.heads)
    alone = start_writing(session, disk, threads)
    waiting = [
        threads.start_queued(session.branch(f"b{number}").append, st.user(str(number))) for number in range(THREADS)
    ]
    disk.failing = {2}
    disk.go.set()

    assert alone.result(60).text == "alone"
    errors = [future.exception(60) for future in waiting]
    assert {str(error) for error in errors} == {f"{session.location}: Input/output error"}
    assert len({id(error) for error in errors}) == THREADS
    for place in (session, read_again(session)):
        assert [entry.text for entry in place.tree if entry.type == "message"] == ["first", "alone"]
        assert place.heads.heads == {**heads, "main": alone.result().id}
    assert session.problems == []
    with pytest.raises(st.StoreError, match="a sync failed"):
        session.append(st.user("after"))


def test_a_failed_sync_is_rolled_back_although_another_process_reads_the_file(
    session: st.Session, disk: Disk, threads: Threads
) -> None:
    follower = read_again(session)
    assert len(follower.tree)
    start_writing(session, disk, threads)
    waiting = [threads.start_queued(session.append, st.user(text), branch="b0") for text in ("long " * 50, "more")]
    disk.failing = {2}
    disk.go.set()

    assert [type(future.exception(60)) for future in waiting] == [st.StoreError] * 2
    follower.refresh()
    for place in (session, follower, read_again(session)):
        assert [entry.text for entry in place.tree if entry.type == "message"] == ["first", "alone"]
        assert place.problems == []


def test_a_write_that_fails_in_a_group_leaves_the_others(
    session: st.Session, disk: Disk, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_unless_full(fd: int, data: bytes) -> int:
        if b"too much" in data:
            os.write(fd, data[:20])
            raise OSError(errno.ENOSPC, "")
        return os.write(fd, data)

    start_writing(session, disk, threads)
    before = threads.start_queued(session.append, st.user("before"), branch="b0")
    full = threads.start_queued(session.append, st.user("too much"), branch="b1")
    after = threads.start_queued(session.append, st.user("after"), branch="b2")
    monkeypatch.setattr(jsonl, "write", write_unless_full)
    disk.go.set()

    assert [before.result(60).text, after.result(60).text] == ["before", "after"]
    with pytest.raises(st.StoreError, match="No space left"):
        full.result(60)
    again = read_again(session)
    assert [entry.text for entry in again.tree if entry.type == "message"] == ["first", "alone", "before", "after"]
    assert again.problems == []


def test_the_lines_of_another_writer_are_taken_in_by_a_group(session: st.Session, disk: Disk, threads: Threads) -> None:
    start_writing(session, disk, threads)
    waiting = [threads.start_queued(session.append, st.user(text), branch="b0") for text in ("one", "two")]
    assert session.file is not None
    line = session.tree.get_entry_at(0).raw.replace(session.tree.get_entry_at(0).id.encode(), b"0123456789abcdef")
    with session.file.open("ab") as file:  # a program that takes no lock
        file.write(line + b"\n")
    disk.go.set()

    assert [future.result(60).text for future in waiting] == ["one", "two"]
    again = read_again(session)
    assert [entry.text for entry in again.tree if entry.type == "message"] == ["first", "alone", "first", "one", "two"]
    assert [entry.raw for entry in again.tree] == [entry.raw for entry in session.tree]


def test_a_thread_waits_for_the_lock_as_long_as_it_wants_itself(session: st.Session, threads: Threads) -> None:
    def append_at_once() -> st.Entry:
        with limit_wait(0.0):
            return session._group_commit.run(lambda: session.append(st.user("now"), branch="b0"), session.share_sync)

    with open(f"{session.file}.lock", "rb+") as lock:
        with session.hold_lock():
            flock(lock, LOCK_EX)  # as another process does
            impatient = threads.start_queued(append_at_once)
            patient = threads.start_queued(session.append, st.user("patient"), branch="b1")
        with pytest.raises(st.LockTimeout):
            impatient.result(60)
        assert not patient.done()
        flock(lock, LOCK_UN)
        assert patient.result(60).text == "patient"
    assert not session._group_commit.has_leader


def test_the_main_thread_writes_for_itself(session: st.Session, disk: Disk, threads: Threads) -> None:
    """An interrupt of the main thread must not touch the writes of other threads."""
    start_writing(session, disk, threads)
    waiting = threads.start_queued(session.append, st.user("waiting"), branch="b0")
    disk.go.set()

    own = session.append(st.user("own"), branch="b1")

    assert (own.text, waiting.result(60).text) == ("own", "waiting")
    assert disk.count == 3


INTERRUPTED_CODE = """
import random, signal, sys, threading
import sessiontree as st
from sessiontree.errors import BranchMoved

class Stop(Exception):
    pass

armed = False

def stop(*_):
    if armed:
        raise Stop

chance = random.Random(1)
signal.signal(signal.SIGALRM, stop)
session = st.open(sys.argv[1])
own = [[] for _ in range(4)]
over = threading.Event()

def work(number):
    branch = session.create_branch(f"t{number}", at=None, current=False)
    while not over.is_set():
        own[number].append(branch.append(st.user(f"{number} {len(own[number])}")).id)

workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for worker in workers:
    worker.start()
stopped, acknowledged = 0, []
while stopped < 40 or min(map(len, own)) < 5:
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3))
    try:
        armed = True
        entry = session.append(st.user("main"))
        armed = False
        acknowledged.append(entry.id)
    except (Stop, BranchMoved):
        stopped += 1
    armed = False
signal.setitimer(signal.ITIMER_REAL, 0)
over.set()
for worker in workers:
    worker.join()
fresh = st.open(sys.argv[1])
session.refresh()
assert [entry.raw for entry in session.tree] == [entry.raw for entry in fresh.tree]
for number in range(4):
    path = [entry for entry in fresh.branch(f"t{number}").path() if entry.type == "message"]
    assert [entry.id for entry in path] == own[number], "each write of a thread is there once, in order"
assert set(acknowledged) <= {entry.id for entry in fresh.head.path()}
assert not fresh.problems
print("sound")
"""


def test_interrupts_of_the_main_thread_leave_the_writes_of_others(session: st.Session) -> None:
    session.close()

    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_CODE, str(session.file)], capture_output=True, text=True, timeout=120
    )

    assert (done.stdout, done.stderr) == ("sound\n", "")


TWO_PROCESSES_CODE = """
import sys, threading
import sessiontree as st
from sessiontree.store import jsonl

count, sync = 0, jsonl.sync_data

def count_syncs(fd):
    global count
    count += 1
    sync(fd)

jsonl.sync_data = count_syncs
session = st.open(sys.argv[1])
ids = [[] for _ in range(4)]

def work(number):
    branch = session.create_branch(f"{sys.argv[2]}{number}", at=None, current=False)
    ids[number] += [branch.append(st.user(str(n))).id for n in range(25)]

workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert count < 104, "syncs are shared"
for number in range(4):
    print(f"{sys.argv[2]}{number}", *ids[number])
"""


def test_threads_of_two_processes_lose_nothing(session: st.Session) -> None:
    session.close()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_PROCESSES_CODE, str(session.file), name], stdout=subprocess.PIPE, text=True
        )
        for name in ("p", "q")
    ]

    written = [line.split() for process in processes for line in process.communicate(timeout=120)[0].splitlines()]

    assert [process.returncode for process in processes] == [0, 0]
    again = read_again(session)
    assert len(written) == 8
    for name, *ids in written:
        assert [entry.id for entry in again.branch(name).path() if entry.type == "message"] == ids
        assert len(ids) == 25
    assert again.problems == []
