"""A lock file stays open between appends, and excludes other processes and threads."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sessiontree.errors import LockTimeout, StoreError
from sessiontree.store.lock import FileLock, LockWait


def test_a_forked_process_and_its_parent_exclude_each_other(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "lock"))
    with lock:
        pass
    reading, writing = os.pipe()
    with lock:
        child = os.fork()
        if child == 0:
            try:
                with lock:
                    os.write(writing, b"in")
            finally:
                os._exit(0)
        os.set_blocking(reading, False)
        time.sleep(0.1)
        try:
            said = os.read(reading, 2)
        except BlockingIOError:
            said = b""
    os.set_blocking(reading, True)
    assert said == b""
    assert os.read(reading, 2) == b"in"
    os.waitpid(child, 0)


def run_in_fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)  # instead of forever
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def is_free(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_a_forked_process_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    reading, writing = os.pipe()
    ends, stays = os.pipe()

    def parent() -> None:
        lock = FileLock(str(path))
        lock.acquire()

        def worker() -> None:
            os.close(stays)
            os.write(writing, b"here")
            os.read(ends, 1)  # until the test is over

        run_in_fork(worker)
        signal.pause()

    dead = run_in_fork(parent)
    assert os.read(reading, 4) == b"here"
    assert not is_free(path)
    os.kill(dead, signal.SIGKILL)
    os.waitpid(dead, 0)

    assert is_free(path)
    os.close(stays)


def test_a_forked_process_can_use_a_lock_its_parent_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held, lock = FileLock(str(path)), FileLock(str(path))
    held.acquire()
    waiter = threading.Thread(target=lock.acquire)
    waiter.start()
    while lock.fd is None:
        time.sleep(0.001)
    reading, writing = os.pipe()
    ends, stays = os.pipe()

    def worker() -> None:
        os.close(stays)
        os.write(writing, b"here")
        os.read(ends, 1)

    child = run_in_fork(worker)
    assert os.read(reading, 4) == b"here"
    held.release()
    waiter.join(60)
    lock.fd = os.close(lock.fd)  # as when this process dies

    assert is_free(path)
    os.close(stays)
    os.waitpid(child, 0)


def test_a_forked_process_drops_a_lock_held_by_a_thread_of_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(str(path))
    holds, done = threading.Event(), threading.Event()

    def work() -> None:
        with lock:
            holds.set()
            done.wait(60)

    holder = threading.Thread(target=work)
    holder.start()
    holds.wait(60)
    child = run_in_fork(lock.close)

    assert os.waitpid(child, 0)[1] == 0
    assert not is_free(path)
    done.set()
    holder.join(60)
    assert is_free(path)


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "lock"))
    inside: list[str] = []

    def work() -> None:
        with lock:
            inside.append("other")

    with lock:
        other = threading.Thread(target=work)
        other.start()
        time.sleep(0.05)
        assert inside == []
    other.join(10)
    assert inside == ["other"]


def test_a_deleted_lock_file_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FileLock(str(path))
    with lock:
        pass
    path.unlink()
    with lock:
        assert path.exists()
    lock.close()
    with lock:
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("how", ["deleted", "moved", "deleted, with another name elsewhere"])
def test_a_writer_whose_lock_file_was_replaced_waits_for_the_new_one(tmp_path: Path, how: str) -> None:
    path = tmp_path / "lock"
    old = FileLock(str(path))
    with old:
        pass
    if how == "moved":
        path.rename(tmp_path / "elsewhere")
    else:
        if how != "deleted":
            os.link(path, tmp_path / "elsewhere")
        path.unlink()

    with FileLock(str(path)):
        waiting = threading.Thread(target=old.acquire, daemon=True)
        waiting.start()
        waiting.join(0.2)
        waits = waiting.is_alive()
    waiting.join(60)

    assert waits
    assert not waiting.is_alive()


def test_a_lock_file_that_keeps_being_replaced_is_an_error(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "lock"
    real = os.lstat
    monkeypatch.setattr(os, "lstat", lambda _: real(tmp_path))

    with pytest.raises(StoreError, match="keeps being replaced"):
        FileLock(str(path)).acquire()
    assert is_free(path)


def test_threads_that_check_at_once_all_see_the_other_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "s.jsonl.lock")
    with open(path, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        lock = FileLock(path)
        with ThreadPoolExecutor(4) as pool:
            seen = list(pool.map(lambda _: lock.find_other_holder(), range(4000)))
        assert None not in seen
    assert lock.find_other_holder() is None
    lock.close()


# Waiting for a lock that another process holds


def test_a_lock_that_is_free_only_briefly_is_tried_often(tmp_path: Path) -> None:
    path = tmp_path / "s.lock"
    pauses: list[tuple[float, float]] = []

    def wait(fd: int) -> None:
        begun = time.monotonic()
        for pause in LockWait(fd, str(path), 0.5):
            pauses.append((time.monotonic() - begun, pause))
            time.sleep(pause)

    with path.open("w") as holder, path.open("w") as waiter:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(LockTimeout):
            wait(waiter.fileno())

    # A writer that appends all the time leaves the lock free for 1 % of the time or less.
    assert all(pause <= max(0.001, waited / 1000) for waited, pause in pauses)


def test_a_short_wait_reads_no_configuration(tmp_path: Path) -> None:
    asked: list[float] = []

    def look_up() -> float:
        asked.append(30.0)
        return 30.0

    with (tmp_path / "s.lock").open("w") as file:
        pauses = iter(LockWait(file.fileno(), file.name, get_limit=look_up))
        next(pauses)

        assert asked == []
        time.sleep(0.02)
        next(pauses)
        assert asked == [30.0]
