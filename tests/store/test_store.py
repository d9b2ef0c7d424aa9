"""One suite for every store. A new back end joins by adding a line to `STORES`."""

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from sessiontree.errors import Conflict, NotFound, StoreError
from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.store.base import Store
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.memory import MemoryStore
from sessiontree.store.postgres.store import PostgresStore
from tests.store.encrypted_store import EncryptedStore

Open = Callable[[], Store]


def memory(folder: Path, request: pytest.FixtureRequest) -> Open:
    store = MemoryStore()
    return lambda: store


def jsonl(folder: Path, request: pytest.FixtureRequest) -> Open:
    return lambda: JsonlStore(str(folder / "deep" / "er" / "s.jsonl"))


def postgres(folder: Path, request: pytest.FixtureRequest) -> Open:
    address = f"{request.getfixturevalue('shared_database')}#{uuid.uuid4()}"
    return lambda: PostgresStore(address)


def encrypted(folder: Path, request: pytest.FixtureRequest) -> Open:
    return lambda: EncryptedStore(str(folder / "s.jsonl"))


STORES = {"memory": memory, "jsonl": jsonl, "postgres": postgres, "encrypted": encrypted}


@pytest.fixture(params=STORES)
def handle(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return a function that opens the same session again, as another writer does."""
    return STORES[request.param](tmp_path, request)


def test_appended_lines_are_read_back(handle: Open) -> None:
    store = handle()
    cursor = store.create([b"header", b"one"])
    cursor = store.append([b"two", b"three"], after=cursor)

    chunk = handle().read()

    assert chunk.data == b"header\none\ntwo\nthree\n"
    assert chunk.cursor == cursor
    assert chunk.unfinished == b""


def test_reading_continues_after_the_cursor(handle: Open) -> None:
    store = handle()
    first = store.create([b"header"])
    store.append([b"one"], after=first)

    chunk = store.read(first)

    assert chunk.data == b"one\n"
    assert store.read(chunk.cursor).data == b""


def test_a_session_that_does_not_exist_cannot_be_read(handle: Open) -> None:
    with pytest.raises(NotFound):
        handle().read()


def test_a_whole_session_is_streamed_line_by_line_and_as_bytes(handle: Open) -> None:
    lines = [b"header", *(b"x" * 1000 for _ in range(3000))]
    handle().create(lines)
    store = handle()

    assert list(store.stream_lines()) == lines
    with store.open_file() as file:
        assert file.read() == b"\n".join([*lines, b""])


def test_a_session_that_does_not_exist_cannot_be_streamed(handle: Open) -> None:
    with pytest.raises(NotFound):
        handle().stream_lines()
    with pytest.raises(NotFound):
        handle().open_file()


def test_creating_an_existing_session_is_refused(handle: Open) -> None:
    handle().create([b"header"])

    with pytest.raises(StoreError, match="exists already"):
        handle().create([b"other"])

    assert handle().read().data == b"header\n"


def test_a_stale_writer_is_refused_and_nothing_is_written(handle: Open) -> None:
    mine, theirs = handle(), handle()
    start = mine.create([b"header"])
    theirs.append([b"theirs"], after=start)

    with pytest.raises(Conflict):
        mine.append([b"mine"], after=start)

    assert mine.read().data == b"header\ntheirs\n"


def test_after_a_conflict_the_writer_can_read_and_retry(handle: Open) -> None:
    mine, theirs = handle(), handle()
    start = mine.create([b"header"])
    theirs.append([b"theirs"], after=start)

    chunk = mine.read(start)
    mine.append([b"mine"], after=chunk.cursor)

    assert chunk.data == b"theirs\n"
    assert theirs.read().data == b"header\ntheirs\nmine\n"


def test_a_rewrite_is_a_conflict_for_earlier_readers(handle: Open) -> None:
    mine, theirs = handle(), handle()
    start = mine.create([b"old"])
    theirs.replace([b"new", b"more"], after=start)

    with pytest.raises(Conflict):
        mine.append([b"mine"], after=start)
    with pytest.raises(Conflict):
        mine.read(start)

    assert mine.read().data == b"new\nmore\n"


def test_a_rewrite_by_a_stale_writer_is_refused(handle: Open) -> None:
    mine, theirs = handle(), handle()
    start = mine.create([b"old"])
    theirs.append([b"theirs"], after=start)

    with pytest.raises(Conflict):
        mine.replace([b"new"], after=start)

    assert mine.read().data == b"old\ntheirs\n"


def test_a_writer_can_append_after_its_rewrite(handle: Open) -> None:
    store = handle()
    cursor = store.replace([b"new"], after=store.create([b"old"]))

    store.append([b"more"], after=cursor)

    assert handle().read().data == b"new\nmore\n"


def test_a_store_can_be_closed_twice_and_opened_again(handle: Open) -> None:
    store = handle()
    cursor = store.create([b"header"])
    store.close()
    store.close()

    store.append([b"one"], after=cursor)

    assert store.read().data == b"header\none\n"


def test_a_batch_with_an_invalid_line_is_refused_as_a_whole(handle: Open) -> None:
    store = handle()
    cursor = store.create([b"header"])

    with pytest.raises(StoreError, match="newline"):
        store.append([b"one", b"two\nthree"], after=cursor)
    with pytest.raises(StoreError, match="exceeds the limit"):
        store.append([b"one", bytes(LINE_LIMIT + 1)], after=cursor)

    assert handle().read().data == b"header\n"
    assert store.append([], after=cursor) == cursor


def test_batches_of_several_writers_are_complete_and_not_interleaved(handle: Open) -> None:
    handle().create([b"header"])

    def write(name: str) -> None:
        store = handle()
        for number in range(20):
            cursor = store.read().cursor
            while True:
                try:
                    store.append([f"{name} {number} {part}".encode() for part in range(3)], after=cursor)
                    break
                except Conflict:
                    cursor = store.read(cursor).cursor

    writers = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)

    lines = handle().read().data.decode().splitlines()[1:]
    batches = [lines[at : at + 3] for at in range(0, len(lines), 3)]
    assert all(batch == [f"{batch[0][:-2]} {part}" for part in range(3)] for batch in batches)
    for name in "abc":
        assert [line for line in lines if line.startswith(name)] == [
            f"{name} {number} {part}" for number in range(20) for part in range(3)
        ]
