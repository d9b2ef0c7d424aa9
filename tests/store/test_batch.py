"""A batch is there as a whole or not at all, also when its writer died in the middle of it."""

from pathlib import Path

import pytest

from sessiontree.store.batch import Batch, note, noted
from sessiontree.store.jsonl import JsonlStore, identity_of

FIRST, SECOND, THIRD = b'{"n":1}\n', b'{"n":2}\n', b'{"n":3}\n'
THEIRS = b'{"theirs":1}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.jsonl"
    JsonlStore(str(path)).create([b"{}"])
    return path


def left_by_a_dead_writer(path: Path, written: bytes, data: bytes = FIRST + SECOND + THIRD) -> None:
    """So much of a batch was written when its writer died."""
    start = path.stat().st_size
    with path.with_name("s.jsonl.lock").open("r+b", buffering=0) as lock:
        note(lock.fileno(), Batch(identity_of(path.stat()), start, data))
    with path.open("ab") as file:
        file.write(written)


@pytest.mark.parametrize("written", [FIRST, FIRST + SECOND, FIRST + SECOND[:3], FIRST + SECOND + THIRD[:-1], FIRST[:1]])
def test_a_batch_cut_short_is_not_read_and_is_set_aside_by_whoever_writes_next(path: Path, written: bytes) -> None:
    left_by_a_dead_writer(path, written)
    store = JsonlStore(str(path))

    assert store.end().unfinished == store.read().unfinished == written
    assert store.read().data == b"{}\n"
    store.append([b'{"mine":1}'], after=store.end().cursor)

    assert path.read_bytes() == b'{}\n{"mine":1}\n'
    assert path.with_name("s.jsonl.torn-3").read_bytes() == written
    assert path.with_name("s.jsonl.lock").read_bytes() == b""


def test_a_writer_who_was_there_before_goes_on_too(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.read().cursor
    left_by_a_dead_writer(path, FIRST + SECOND)

    assert store.read(cursor).data == b""
    store.append([b'{"mine":1}'], after=cursor)

    assert path.read_bytes() == b'{}\n{"mine":1}\n'


def test_a_batch_that_was_written_is_kept_though_its_note_is_left(path: Path) -> None:
    left_by_a_dead_writer(path, FIRST + SECOND + THIRD)
    store = JsonlStore(str(path))

    assert store.read().data == b"{}\n" + FIRST + SECOND + THIRD
    store.append([b'{"mine":1}'], after=store.end().cursor)

    assert path.read_bytes() == b"{}\n" + FIRST + SECOND + THIRD + b'{"mine":1}\n'


def test_what_another_program_wrote_behind_a_batch_cut_short_is_never_set_aside(path: Path) -> None:
    left_by_a_dead_writer(path, FIRST + THEIRS)
    store = JsonlStore(str(path))

    assert store.read().data == b"{}\n" + FIRST + THEIRS
    store.append([b'{"mine":1}'], after=store.end().cursor)

    assert path.read_bytes() == b"{}\n" + FIRST + THEIRS + b'{"mine":1}\n'


def test_a_note_of_another_file_says_nothing(path: Path) -> None:
    left_by_a_dead_writer(path, FIRST)
    data = path.read_bytes()
    path.rename(path.with_name("away"))
    path.write_bytes(data)

    assert JsonlStore(str(path)).read().data == data


def test_a_note_that_was_cut_short_says_nothing_and_is_taken_away(path: Path) -> None:
    left_by_a_dead_writer(path, b"")
    lock = path.with_name("s.jsonl.lock")
    for size in (60, 20, 0):
        lock.write_bytes(lock.read_bytes()[:size])
        with lock.open("rb") as file:
            assert noted(file.fileno()) is None
    lock.write_bytes(b"something else altogether, and long enough for a note")
    store = JsonlStore(str(path))

    store.append([b'{"mine":1}'], after=store.end().cursor)

    assert lock.read_bytes() == b""


def test_a_whole_last_line_without_newline_before_a_batch_cut_short_is_kept(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"last":1}')
    left_by_a_dead_writer(path, b"\n" + FIRST, b"\n" + FIRST + SECOND)
    store = JsonlStore(str(path))

    assert store.read().data == b'{}\n{"last":1}'
    store.append([b'{"mine":1}'], after=store.read().cursor)

    assert path.read_bytes() == b'{}\n{"last":1}\n{"mine":1}\n'


def test_a_batch_leaves_no_note(path: Path) -> None:
    store = JsonlStore(str(path))

    store.append([FIRST.strip(), SECOND.strip()], after=store.end().cursor)

    assert path.with_name("s.jsonl.lock").read_bytes() == b""
    assert JsonlStore(str(path)).read().data == b"{}\n" + FIRST + SECOND
