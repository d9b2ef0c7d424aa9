"""Writes of coroutines: in order, in a thread, and with one sync for those that wait together."""

import asyncio
import errno
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.session.write_queue import run_write
from sessiontree.store import jsonl
from tests.waiting import wait_until


@pytest.fixture
def session(tmp_path: Path) -> Iterator[st.Session]:
    with st.create(file=tmp_path / "s.jsonl") as session:
        session.append(st.user("first"))
        yield session


class BlockedDisk:
    """Counts syncs. The first one lasts until `go` is set, and the ones in `failing` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.failing, self.go = 0, set[int](), threading.Event()
        self._sync = jsonl.sync_data
        monkeypatch.setattr(jsonl, "sync_data", self.sync)

    def sync(self, fd: int) -> None:
        self.count += 1
        if self.count == 1:
            assert self.go.wait(60)
        if self.count in self.failing:
            raise OSError(errno.EIO, "")
        self._sync(fd)


def build_append(session: st.Session, text: str, **named: str) -> Callable[[], st.Entry]:
    return lambda: session.append(st.user(text), **named)


async def test_the_event_loop_runs_during_a_write(session: st.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = BlockedDisk(monkeypatch)
    writing = asyncio.ensure_future(run_write(session, build_append(session, "one")))
    await wait_until(lambda: disk.count)

    assert not writing.done()
    disk.go.set()
    assert (await writing).text == "one"


async def test_writes_that_wait_are_done_in_order_with_one_sync(
    session: st.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BlockedDisk(monkeypatch)
    first = asyncio.ensure_future(run_write(session, build_append(session, "0")))
    await wait_until(lambda: disk.count)
    waiting = [asyncio.ensure_future(run_write(session, build_append(session, str(n)))) for n in range(1, 9)]
    await asyncio.sleep(0)
    disk.go.set()

    entries = await asyncio.gather(first, *waiting)

    assert disk.count == 2
    assert [entry.text for entry in entries] == [str(n) for n in range(9)]
    with st.open(str(session.file), read_only=True) as again:
        assert [entry.id for entry in again.head.path()][1:] == [entry.id for entry in entries]


async def test_each_write_has_its_own_error(session: st.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = BlockedDisk(monkeypatch)
    first = asyncio.ensure_future(run_write(session, build_append(session, "0")))
    await wait_until(lambda: disk.count)
    good = asyncio.ensure_future(run_write(session, build_append(session, "good")))
    bad = asyncio.ensure_future(run_write(session, build_append(session, "bad", branch="nowhere")))
    await asyncio.sleep(0)
    disk.go.set()

    outcomes = await asyncio.gather(first, good, bad, return_exceptions=True)

    assert isinstance(outcomes[2], st.NotFound)
    assert [entry.text for entry in session.head.path()] == ["first", "0", "good"]


async def test_a_failed_sync_fails_all_writes_that_share_it(
    session: st.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BlockedDisk(monkeypatch)
    first = asyncio.ensure_future(run_write(session, build_append(session, "0")))
    await wait_until(lambda: disk.count)
    waiting = [asyncio.ensure_future(run_write(session, build_append(session, str(n)))) for n in range(1, 4)]
    await asyncio.sleep(0)
    disk.failing = {2}
    disk.go.set()

    outcomes = await asyncio.gather(first, *waiting, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [st.Entry, *[st.StoreError] * 3]
    assert [entry.text for entry in session.head.path()] == ["first", "0"]
    with st.open(str(session.file), read_only=True) as again:
        assert [entry.text for entry in again.head.path()] == ["first", "0"]


async def test_a_cancelled_write_is_dropped_if_it_has_not_started(
    session: st.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = BlockedDisk(monkeypatch)
    started = asyncio.ensure_future(run_write(session, build_append(session, "started")))
    await wait_until(lambda: disk.count)
    dropped = asyncio.ensure_future(run_write(session, build_append(session, "dropped")))
    last = asyncio.ensure_future(run_write(session, build_append(session, "last")))
    await asyncio.sleep(0)
    started.cancel()
    dropped.cancel()
    await asyncio.sleep(0)
    disk.go.set()

    await last

    assert [entry.text for entry in session.head.path()] == ["first", "started", "last"]


def test_a_closed_event_loop_disturbs_no_other(session: st.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = BlockedDisk(monkeypatch)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_write(session, build_append(session, "one")), 0.05)

    asyncio.run(give_up())
    disk.go.set()

    assert asyncio.run(run_write(session, build_append(session, "two"))).text == "two"
    assert [entry.text for entry in session.head.path()] == ["first", "one", "two"]


async def test_a_session_is_freed_after_its_writes(tmp_path: Path) -> None:
    session = st.create(file=tmp_path / "s.jsonl")
    await run_write(session, build_append(session, "one"))
    session.close()
    freed = weakref.ref(session)
    del session

    def is_freed() -> bool:
        gc.collect()
        return freed() is None

    await wait_until(is_freed)


async def test_appends_of_an_async_session_that_wait_share_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await st.AsyncSession.create(file=tmp_path / "s.jsonl") as session:
        disk = BlockedDisk(monkeypatch)
        first = asyncio.ensure_future(session.append(st.user("first")))
        await wait_until(lambda: disk.count)
        waiting = [asyncio.ensure_future(session.append(st.user(str(n)))) for n in range(3)]
        dropped = asyncio.ensure_future(session.append(st.user("dropped")))
        branch = asyncio.ensure_future(session.create_branch("other"))
        later = [asyncio.ensure_future(session.extend([st.user(text)])) for text in ("on", "other")]
        await asyncio.sleep(0)
        dropped.cancel()
        await asyncio.sleep(0)
        disk.go.set()
        await asyncio.gather(first, *waiting, branch, *later)

        assert disk.count == 4
        main, other = session.session.branch("main"), session.session.branch("other")
        assert [entry.text for entry in main.path()] == ["first", "0", "1", "2"]
        assert [entry.text for entry in other.path() if entry.type == "message"][-2:] == ["on", "other"]


async def test_a_failed_sync_of_an_async_session_fails_the_appends_that_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await st.AsyncSession.create(file=tmp_path / "s.jsonl")
    disk = BlockedDisk(monkeypatch)
    first = asyncio.ensure_future(session.append(st.user("first")))
    await wait_until(lambda: disk.count)
    waiting = [asyncio.ensure_future(session.append(st.user(str(n)))) for n in range(3)]
    await asyncio.sleep(0)
    disk.failing = {2}
    disk.go.set()

    outcomes = await asyncio.gather(first, *waiting, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [st.Entry, *[st.StoreError] * 3]
    assert [entry.text for entry in session.session.head.path()] == ["first"]
    await session.close()


async def test_a_session_in_memory_needs_no_thread() -> None:
    session = st.memory()

    assert await run_write(session, threading.get_ident) == threading.get_ident()


FORK_CODE = """
import asyncio, os, sys
import sessiontree as st
from sessiontree.session.write_queue import run_write

session = st.open(sys.argv[1])
asyncio.run(run_write(session, lambda: session.append(st.user("parent"))))
child = os.fork()
if child == 0:
    asyncio.run(run_write(session, lambda: session.append(st.user("child"))))
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_has_its_own_threads(session: st.Session) -> None:
    session.close()

    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK_CODE, str(session.file)],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.stdout, done.stderr) == ("0\n", "")
    with st.open(str(session.file), read_only=True) as again:
        assert [entry.text for entry in again.head.path()] == ["first", "parent", "child"]
