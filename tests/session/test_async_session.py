"""Sessions for asynchronous programs: the event loop keeps running, and a cancelled call leaves a known state."""

import asyncio
import threading
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.session.branch import Branch


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "s.jsonl"


class HeldLock:
    """The lock of a session file, held as another process would."""

    def __init__(self, file: Path) -> None:
        self._lock = open(f"{file}.lock", "w")  # noqa: SIM115
        flock(self._lock, LOCK_EX)

    def release(self) -> None:
        flock(self._lock, LOCK_UN)
        self._lock.close()


def hold_worker(session: st.AsyncSession) -> tuple[threading.Event, "asyncio.Task[bool]"]:
    """Keep the worker thread busy until the event is set."""
    event = threading.Event()
    return event, asyncio.ensure_future(session.run(event.wait))


def count_workers() -> int:
    return sum(thread.name.startswith("sessiontree-session") for thread in threading.enumerate())


async def test_an_async_session_does_what_a_session_does(file: Path) -> None:
    async with await st.AsyncSession.create("auth", file=file) as session:
        first = await session.append(st.user("How?"))
        answer, more = await session.extend(item for item in (st.assistant("So."), st.user("And?")))
        await session.create_branch("other", at=first, current=False)
        plan = await session.navigate(answer)
        assert (plan.new_leaf, more.parent) == (answer.id, answer.id)
        assert len((await session.context()).messages) == 2
        assert [info.name for info in await session.branches()] == ["main", "other"]
        assert await session.switch("other") == "other"
        with st.open(file) as other:
            other.append(st.user("theirs"), branch="main")
        assert "theirs" in [entry.text for entry in await session.refresh()]
        id = session.id

    async with await st.AsyncSession.open(file) as again:
        assert again.id == id
        assert repr(again) == f"<AsyncSession {id}>"
        assert isinstance(await again.run(lambda: again.session.head), Branch)


async def test_the_event_loop_runs_while_a_call_waits_for_the_disk(file: Path) -> None:
    async with await st.AsyncSession.create(file=file) as session:
        held = HeldLock(file)
        task = asyncio.ensure_future(session.append(st.user("hello")))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        held.release()

        assert (await task).type == "message"


async def test_a_call_that_is_cancelled_before_it_starts_writes_nothing(file: Path) -> None:
    async with await st.AsyncSession.create(file=file) as session:
        event, busy = hold_worker(session)
        task = asyncio.ensure_future(session.append(st.user("never")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        event.set()
        await busy

        await session.append(st.user("next"))
        assert [message["content"] for message in (await session.context()).messages] == ["next"]


async def test_a_write_that_is_cancelled_while_it_runs_ends_before_the_next_call(file: Path) -> None:
    async with await st.AsyncSession.create(file=file) as session:
        started = threading.Event()
        held = HeldLock(file)

        def append_slowly() -> st.Entry:
            started.set()
            return session.session.append(st.user("first"))

        task = asyncio.ensure_future(session.run(append_slowly))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        following = asyncio.ensure_future(session.append(st.user("second")))
        held.release()

        await following
        assert [message["content"] for message in (await session.context()).messages] == ["first", "second"]


async def test_every_cancelled_append_is_written_as_a_whole_or_not_at_all(file: Path) -> None:
    async with await st.AsyncSession.create(file=file, durability="none") as session:
        returned: list[str] = []

        async def write(number: int) -> None:
            returned.extend(entry.id for entry in await session.extend([st.user(f"{number}")] * 3))

        tasks = [asyncio.ensure_future(write(number)) for number in range(60)]
        for number, task in enumerate(tasks):
            await asyncio.sleep(0)
            if number % 2:
                task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        texts = [message["content"] for message in (await session.context()).messages]
        ids = await session.run(lambda: {entry.id for entry in session.session.tree})

    assert all(texts.count(text) == 3 for text in texts)
    assert {str(number) for number in range(0, 60, 2)} <= set(texts)
    assert set(returned) <= ids
    with st.open(file) as again:
        assert not again.problems
        assert [message["content"] for message in again.context().messages] == texts


async def test_an_open_that_is_cancelled_leaves_no_session_and_no_thread_behind(file: Path) -> None:
    st.create(file=file).close()
    before = count_workers()

    task = asyncio.ensure_future(st.AsyncSession.open(file))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while count_workers() > before:
        await asyncio.sleep(0.001)

    async with await st.AsyncSession.open(file) as session:
        await session.append(st.user("hello"))


async def test_closing_waits_for_the_calls_before_it_and_refuses_those_after_it(file: Path) -> None:
    session = await st.AsyncSession.create(file=file)
    event, busy = hold_worker(session)
    write = asyncio.ensure_future(session.append(st.user("last")))
    await asyncio.sleep(0)
    closing = [asyncio.ensure_future(session.close()) for _ in range(2)]
    await asyncio.sleep(0)
    closing[0].cancel()
    event.set()
    await busy

    assert (await write).type == "message"
    await closing[1]
    with pytest.raises(st.InvalidOperation, match="is closed"):
        await session.append(st.user("too late"))
    with pytest.raises(st.InvalidOperation, match="is closed"):
        session.session.append(st.user("too late"))


async def test_an_error_reaches_the_caller_and_the_next_call_works(file: Path) -> None:
    with pytest.raises(st.NotFound):
        await st.AsyncSession.open("nowhere")
    with pytest.raises(st.InvalidOperation, match=r"use await AsyncSession.open"):
        st.AsyncSession("auth")  # type: ignore[arg-type]
    async with st.AsyncSession(st.memory()) as session:
        with pytest.raises(st.NotFound):
            await session.navigate("nowhere")
        assert await session.append(st.user("hello"))


async def test_a_plain_session_closes_at_the_end_of_async_with() -> None:
    async with st.memory() as session:
        session.append(st.user("hello"))

    with pytest.raises(st.InvalidOperation, match="is closed"):
        session.append(st.user("too late"))
