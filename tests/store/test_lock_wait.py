"""Waiting for a lock that another process holds."""

import fcntl
import time
from pathlib import Path

import pytest

from sessiontree.errors import LockTimeout
from sessiontree.store.lock_wait import LockWait


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
