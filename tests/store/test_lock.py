"""The lock of a file stays open between appends, and is still one for each process and each thread."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from sessiontree.store.lock import Lock


def test_a_forked_process_takes_turns_with_its_parent(tmp_path: Path) -> None:
    lock = Lock(str(tmp_path / "lock"))
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


def test_threads_take_turns(tmp_path: Path) -> None:
    lock = Lock(str(tmp_path / "lock"))
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


def test_a_lock_file_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = Lock(str(path))
    with lock:
        pass
    path.unlink()
    with lock:
        assert path.exists()
    lock.close()
    with lock:
        assert path.stat().st_mode & 0o777 == 0o600
