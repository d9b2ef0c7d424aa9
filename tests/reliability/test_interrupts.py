"""Interrupts during a write, such as Ctrl+C in a notebook, after which the program keeps using the session."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.tree import Tree
from sessiontree.store import jsonl, lock, torn_tail
from tests.reliability.harness import times

SIGNAL_CODE = """
import random, signal, sys, time

class Stop(Exception):
    pass

armed = False

def stop(*_):
    if armed:
        raise Stop

chance = random.Random(int(sys.argv[2]))
signal.signal(signal.SIGALRM, stop)
stopped = 0
"""
"""The start of the code of a child that is interrupted."""

APPEND_CODE = (
    SIGNAL_CODE
    + """
import sessiontree as st
from sessiontree.errors import BranchMoved

for number in range(int(sys.argv[3])):
    file = f"{sys.argv[1]}/{number}.jsonl"
    session = st.create(file=file, durability="none")
    if number % 2:
        time.sleep(0.03)  # the folder is settled: its writer trusts the names in it
    acknowledged = set()
    other = st.open(file, durability="none")
    for count in range(40):
        body = st.user(str(count))
        if count % 8 == 7:
            other.refresh()
            other.append(st.user("another writer"))
        elif count % 8 == 3:
            session.refresh()
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 3e-4 if count % 2 else 6e-5))
        try:
            armed = True
            entries = session.head.extend([body, body]) if count % 2 else [session.head.append(body)]
            armed = False
            acknowledged |= {entry.id for entry in entries}
        except (Stop, BranchMoved):  # BranchMoved: the interrupted append was written
            stopped += 1
        armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    session.refresh()
    acknowledged.add(session.append(st.user("last")).id)
    fresh = st.open(file)
    assert acknowledged <= {entry.id for entry in fresh.tree}, "acknowledged entries are present"
    assert [entry.raw for entry in session.tree] == [entry.raw for entry in fresh.tree]
    assert [entry.id for entry in session.head.path()] == [entry.id for entry in fresh.head.path()]
    assert not fresh.problems
print(stopped)
"""
)


REWRITE_CODE = (
    SIGNAL_CODE
    + """
import fcntl, os
from sessiontree.store.jsonl import JsonlStore

longest = 1e-3
old, new, last = b'{"old":1}', b'{"new":1}', b'{"last":1}'
for number in range(int(sys.argv[3])):
    file = f"{sys.argv[1]}/{number}.jsonl"
    store = JsonlStore(file, durability="none")
    cursor = store.append([old], after=store.create([b"{}"]))
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, longest))
    try:
        armed = True
        store.replace([b"{}", new], after=cursor)
        armed = False
        longest *= 0.8  # adapts to the time a rewrite takes here
    except Stop:
        stopped += 1
        longest *= 1.1
    armed = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    lock = os.open(f"{file}.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)
    store.append([last], after=store.read_end().cursor)
    lines = open(file, "rb").read().split()
    assert lines in ([b"{}", old, last], [b"{}", new, last]), lines
    assert old in lines or open(f"{file}.bak", "rb").read().split() == [b"{}", old], "the backup is missing"
print(stopped)
"""
)


def test_an_interrupted_rewrite_is_done_completely_or_not_at_all(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REWRITE_CODE, str(tmp_path), "1", str(times(300, torture=20_000))]

    done = subprocess.run(command, capture_output=True, text=True, timeout=times(120, torture=3000))

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40, "too few interrupts hit a write"


def test_a_session_continues_after_a_write_was_interrupted_at_any_moment(tmp_path: Path) -> None:
    command = [sys.executable, "-c", APPEND_CODE, str(tmp_path), "1", str(times(40, torture=2000))]

    done = subprocess.run(command, capture_output=True, text=True, timeout=times(120, torture=3000))

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40, "too few interrupts hit a write"


@pytest.fixture
def session(tmp_path: Path) -> st.Session:
    session = st.create(file=tmp_path / "s.jsonl", durability="none")
    session.append(st.user("one"))
    return session


@pytest.mark.parametrize("alone", [True, False])
def test_entries_written_before_an_interrupt_are_read(
    session: st.Session, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Tree, "try_append_message" if alone else "extend", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.append(st.user("two")) if alone else session.extend([st.user("two")])

    assert [message["content"] for message in session.context().messages] == ["one", "two"]
    session.append(st.user("three"))
    assert [message["content"] for message in st.open(session.file).context().messages] == ["one", "two", "three"]


def test_lines_being_applied_during_an_interrupt_are_applied_later(
    session: st.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with st.open(session.file) as other:
        other.append(st.user("two"))

    def raise_interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(Tree, "extend", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.refresh()

    assert [message["content"] for message in session.context().messages] == ["one"]
    assert len(session.refresh()) == 1
    assert [message["content"] for message in session.context().messages] == ["one", "two"]


@pytest.mark.parametrize("late", [False, True])
def test_a_timeout_of_a_signal_handler_is_not_reported_as_a_disk_error(
    session: st.Session, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    def raise_timeout(*_: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as broken:
        broken.setattr(*((lock.FileLock, "release") if late else (jsonl, "write")), raise_timeout)
        with pytest.raises(TimeoutError):
            session.append(st.user("two"))
    session.append(st.user("three"))

    texts = ["one", "two", "three"] if late else ["one", "three"]
    assert [message["content"] for message in session.context().messages] == texts
    assert [message["content"] for message in st.open(session.file).context().messages] == texts


def test_a_timeout_while_waiting_for_the_disk_does_not_end_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = st.create(file=tmp_path / "s.jsonl")

    def raise_timeout(*_: object) -> None:
        raise TimeoutError

    works: list[Callable[[st.Message], object]] = [session.append, lambda body: session.extend([body, body])]
    for work in works:
        with monkeypatch.context() as broken:
            broken.setattr(jsonl, "sync_data", raise_timeout)
            with pytest.raises(TimeoutError):
                work(st.user("said"))
        work(st.user("again"))

    fresh = st.open(session.file)
    assert len(fresh.tree) == 6
    assert [entry.raw for entry in session.tree] == [entry.raw for entry in fresh.tree]
    assert not fresh.problems


def test_entries_are_read_after_a_signal_handler_raises_its_refusal(
    session: st.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = lock.FileLock.release

    def append_in_handler(held: lock.FileLock) -> None:
        real(held)
        session.append(st.user("in between"))

    with monkeypatch.context() as signals:
        signals.setattr(lock.FileLock, "release", append_in_handler)
        with pytest.raises(st.InvalidOperation, match="during a write"):
            session.append(st.user("two"))
    session.append(st.user("three"))

    assert [message["content"] for message in session.context().messages] == ["one", "two", "three"]
    assert [entry.raw for entry in session.tree] == [entry.raw for entry in st.open(session.file).tree]


@pytest.mark.parametrize("moment", ["open", "flock", "ftruncate", "lseek"])
def test_a_timeout_during_any_call_is_raised_unchanged(
    session: st.Session, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    session.store._lock.close()

    def raise_timeout(*_: object) -> None:
        raise TimeoutError

    with monkeypatch.context() as broken:
        broken.setattr(lock if moment == "flock" else os, moment, raise_timeout)
        with pytest.raises(TimeoutError):
            session.extend([st.user("two"), st.user("three")])
    session.append(st.user("four"))

    assert [entry.raw for entry in session.tree] == [entry.raw for entry in st.open(session.file).tree]
    assert not st.open(session.file).problems


@pytest.mark.parametrize("work", ["append", "extend", "refresh", "close"])
def test_a_signal_handler_cannot_write_in_the_middle_of_a_write(
    session: st.Session, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    session.create_branch("side", current=False)  # closing the session then writes a head record
    works: dict[str, Callable[[], object]] = {
        "append": lambda: session.append(st.user("in between")),
        "extend": lambda: session.extend([st.user("in between")]),
        "refresh": session.refresh,
        "close": session.close,
    }
    refused = 0

    def make_interrupted(real: Any) -> Any:
        def append_in_handler(*given: Any) -> Any:
            nonlocal refused
            for _ in range(2):
                with pytest.raises(st.InvalidOperation, match="during a write"):
                    works[work]()
            refused += 1
            return real(*given)

        return append_in_handler

    moments: list[tuple[Any, str]] = [(jsonl, "write"), (Tree, "try_append_message"), (Tree, "extend")]
    for owner, moment in moments:
        with st.open(session.file) as other:
            other.append(st.user("elsewhere"), branch="side")
        with monkeypatch.context() as signals:
            signals.setattr(owner, moment, make_interrupted(getattr(owner, moment)))
            session.append(st.user("two"))
            session.extend([st.user("three"), st.user("four")])

    assert refused == 5
    session.refresh()
    fresh = st.open(session.file)
    assert [entry.raw for entry in session.tree] == [entry.raw for entry in fresh.tree]
    assert not fresh.problems
    session.close()


@pytest.mark.parametrize("taking", [True, False])
def test_the_lock_is_free_after_an_interrupt_while_acquiring_or_releasing_it(
    session: st.Session, monkeypatch: pytest.MonkeyPatch, taking: bool
) -> None:
    def raise_interrupt(*taken: int) -> None:
        if taking:
            fcntl.flock(*taken)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(*((jsonl, "flock") if taking else (lock.FileLock, "release")), raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.append(st.user("two"))
    other = threading.Thread(target=session.append, args=(st.user("three"),), daemon=True)
    other.start()
    other.join(60)

    assert not other.is_alive()
    with st.open(session.file) as fresh_writer:
        fresh_writer.append(st.user("four"))


@pytest.mark.parametrize("moment", ["release", "is_owned", "_roll_back"])
def test_the_lock_is_free_after_an_interrupt_in_a_failed_write(
    session: st.Session, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    interrupts = 0

    def raise_interrupt(*_: object) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            raise KeyboardInterrupt
        return real(*_)

    owner = torn_tail.RepairableFile if moment == "_roll_back" else lock.FileLock
    found: Any = vars(owner)[moment]
    real = found.fget if isinstance(found, property) else found
    with monkeypatch.context() as broken:
        broken.setattr(jsonl, "write", full)
        broken.setattr(owner, moment, property(raise_interrupt) if isinstance(found, property) else raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.append(st.user("two"))
    other = threading.Thread(target=lambda: session.store.read_end(), daemon=True)
    other.start()
    other.join(60)

    assert interrupts
    with st.open(session.file) as fresh_writer:
        fresh_writer.append(st.user("three"))
    assert not session.store._lock.thread_lock._is_owned()


def test_a_batch_whose_rollback_was_interrupted_is_not_part_of_the_session(
    session: st.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(fd: int, data: bytes) -> int:
        os.write(fd, data[: data.index(b"\n") + 1])
        raise OSError(errno.ENOSPC, "")

    def raise_interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(jsonl, "write", some)
        broken.setattr(torn_tail, "read_all", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.extend([st.user("two"), st.user("three")])

    with st.open(session.file) as again:
        assert [message["content"] for message in again.context().messages] == ["one"]
        again.append(st.user("four"))
        assert [message["content"] for message in again.context().messages] == ["one", "four"]
    assert len(list(session.file.parent.glob("*.torn-*"))) == 1


def test_a_file_whose_close_was_interrupted_is_opened_again(
    session: st.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor number may soon belong to another file, which must not be read, locked or closed."""
    store = session.store
    known = store.read()
    real = os.close

    def raise_interrupt(fd: int) -> None:
        real(fd)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(os, "close", raise_interrupt)
        for stop in (store.read_end, store.close):
            with pytest.raises(KeyboardInterrupt):
                stop()
    taken = [os.dup(0) for _ in range(8)]

    assert store.fetch(0, known.data.index(b"\n")) == known.data.split(b"\n")[0]
    assert session.append(st.user("two")).line == 3
    store.close()
    for fd in taken:
        os.close(fd)
