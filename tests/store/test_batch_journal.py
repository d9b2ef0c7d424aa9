"""A batch is complete or absent, even if its writer crashes in the middle of it."""

import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from sessiontree.errors import StoreError
from sessiontree.format.json_line import LINE_LIMIT
from sessiontree.store import batch_journal, jsonl
from sessiontree.store.batch_journal import find_end, write_note
from sessiontree.store.jsonl import JsonlStore

FIRST, SECOND, THIRD = b'{"n":1}\n', b'{"n":2}\n', b'{"n":3}\n'
THEIRS = b'{"theirs":1}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.jsonl"
    JsonlStore(str(path)).create([b"{}"])
    return path


def write_unfinished_batch(path: Path, written: bytes, data: bytes = FIRST + SECOND + THIRD) -> None:
    """Write part of a batch with its note, as a crashed writer leaves it."""
    start = path.stat().st_size
    with path.with_name("s.jsonl.lock").open("r+b", buffering=0) as lock:
        write_note(lock.fileno(), start, data.split(b"\n")[:-1])
    with path.open("ab") as file:
        file.write(written)


@pytest.mark.parametrize("written", [FIRST, FIRST + SECOND, FIRST + SECOND[:3], FIRST + SECOND + THIRD[:-1], FIRST[:1]])
def test_an_unfinished_batch_is_not_read_and_is_moved_away_by_the_next_writer(path: Path, written: bytes) -> None:
    write_unfinished_batch(path, written)
    store = JsonlStore(str(path))

    assert store.read_end().unfinished == store.read().unfinished == written
    assert store.read().data == b"{}\n"
    store.append([b'{"mine":1}'], after=store.read_end().cursor)

    assert path.read_bytes() == b'{}\n{"mine":1}\n'
    assert path.with_name("s.jsonl.torn-3").read_bytes() == written
    assert path.with_name("s.jsonl.lock").read_bytes() == b""


def test_a_writer_that_opened_the_session_earlier_can_append_too(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.read().cursor
    write_unfinished_batch(path, FIRST + SECOND)

    assert store.read(cursor).data == b""
    store.append([b'{"mine":1}'], after=cursor)

    assert path.read_bytes() == b'{}\n{"mine":1}\n'


def test_a_complete_batch_with_a_stale_note_is_kept(path: Path) -> None:
    write_unfinished_batch(path, FIRST + SECOND + THIRD)
    store = JsonlStore(str(path))

    assert store.read().data == b"{}\n" + FIRST + SECOND + THIRD
    store.append([b'{"mine":1}'], after=store.read_end().cursor)

    assert path.read_bytes() == b"{}\n" + FIRST + SECOND + THIRD + b'{"mine":1}\n'


def test_lines_of_another_program_after_an_unfinished_batch_are_kept(path: Path) -> None:
    write_unfinished_batch(path, FIRST + THEIRS)
    store = JsonlStore(str(path))

    assert store.read().data == b"{}\n" + FIRST + THEIRS
    store.append([b'{"mine":1}'], after=store.read_end().cursor)

    assert path.read_bytes() == b"{}\n" + FIRST + THEIRS + b'{"mine":1}\n'


def test_an_unfinished_batch_is_recognized_in_a_copy_of_the_folder(path: Path, tmp_path: Path) -> None:
    write_unfinished_batch(path, FIRST + SECOND)
    copy = tmp_path / "copy" / "s.jsonl"
    shutil.copytree(path.parent, copy.parent, ignore=shutil.ignore_patterns("copy"))
    store = JsonlStore(str(copy))

    assert store.read().data == b"{}\n"
    store.append([b'{"mine":1}'], after=store.read_end().cursor)

    assert copy.read_bytes() == b'{}\n{"mine":1}\n'
    assert copy.with_name("s.jsonl.torn-3").read_bytes() == FIRST + SECOND


@pytest.mark.parametrize("written", [b"", b'{"other":1}\n', b'{"other":1}\n{"more":1}\n', b'{"n":7}\n' + SECOND])
def test_a_note_of_another_file_is_ignored(path: Path, written: bytes) -> None:
    write_unfinished_batch(path, FIRST)
    path.unlink()
    path.write_bytes(b"{}\n" + written)

    assert JsonlStore(str(path)).read().data == b"{}\n" + written


def test_a_note_that_cannot_be_read_now_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_unfinished_batch(path, FIRST)
    store = JsonlStore(str(path))
    opened = os.open

    def raise_too_many_files(name: str, flags: int, *more: int) -> int:
        if name.endswith(".lock"):
            raise OSError(errno.EMFILE, "")
        return opened(name, flags, *more)

    with monkeypatch.context() as raise_disk_full:
        raise_disk_full.setattr(os, "open", raise_too_many_files)
        for read in (store.read, store.read_end):
            with pytest.raises(StoreError, match="Too many open files"):
                read()

    assert store.read().data == b"{}\n"


def test_a_note_without_read_permission_is_ignored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_unfinished_batch(path, FIRST)

    def raise_permission_error(*_: object) -> None:
        raise PermissionError(errno.EACCES, "")

    monkeypatch.setattr(batch_journal, "find_unfinished_batch", raise_permission_error)

    assert JsonlStore(str(path)).read().data == b"{}\n" + FIRST


@pytest.mark.parametrize("length", [250, 251, 255])
def test_a_session_whose_name_is_too_long_for_a_lock_file_is_readable(path: Path, length: int) -> None:
    long = path.rename(path.with_name("s".ljust(length - 6, "s") + ".jsonl"))

    assert JsonlStore(str(long)).read().data == b"{}\n"
    assert JsonlStore(str(long)).read_end().unfinished == b""


def test_a_truncated_note_is_ignored_and_cleared(path: Path) -> None:
    write_unfinished_batch(path, b"")
    lock = path.with_name("s.jsonl.lock")
    with path.open("ab") as file:
        file.write(FIRST)
    for size in (120, 60, 20, 0):
        lock.write_bytes(lock.read_bytes()[:size])
        assert JsonlStore(str(path)).read().data == b"{}\n" + FIRST
    lock.write_bytes(b"something else altogether, and long enough for a note")
    store = JsonlStore(str(path))

    store.append([b'{"mine":1}'], after=store.read_end().cursor)

    assert lock.read_bytes() == b""


def test_a_complete_last_line_without_newline_before_an_unfinished_batch_is_kept(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"last":1}')
    write_unfinished_batch(path, b"\n" + FIRST, b"\n" + FIRST + SECOND)
    store = JsonlStore(str(path))

    assert store.read().data == b'{}\n{"last":1}'
    store.append([b'{"mine":1}'], after=store.read().cursor)

    assert path.read_bytes() == b'{}\n{"last":1}\n{"mine":1}\n'


def test_a_batch_leaves_no_note(path: Path) -> None:
    store = JsonlStore(str(path))

    store.append([FIRST.strip(), SECOND.strip()], after=store.read_end().cursor)

    assert path.with_name("s.jsonl.lock").read_bytes() == b""
    assert JsonlStore(str(path)).read().data == b"{}\n" + FIRST + SECOND


def test_a_batch_finished_between_two_checks_is_read_completely(path: Path, monkeypatch) -> None:
    write_unfinished_batch(path, FIRST)
    begun_by = batch_journal._find_unfinished_batch_at

    def finish_batch(lock: str, fd: int, size: int) -> int | None:
        with path.open("ab") as file:
            file.write(SECOND + THIRD)
        os.truncate(lock, 0)
        monkeypatch.setattr(batch_journal, "_find_unfinished_batch_at", begun_by)
        return begun_by(lock, fd, size)

    monkeypatch.setattr(batch_journal, "_find_unfinished_batch_at", finish_batch)

    assert JsonlStore(str(path)).read().data == b"{}\n" + FIRST + SECOND + THIRD


def test_a_batch_that_fails_leaves_nothing_behind(path: Path, monkeypatch) -> None:
    store = JsonlStore(str(path))
    cursor = store.read_end().cursor

    def raise_disk_full(fd: int, data: bytes) -> None:
        os.write(fd, data[:9])
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(jsonl, "write", raise_disk_full)
    with pytest.raises(StoreError, match="No space left"):
        store.append([FIRST.strip(), SECOND.strip()], after=cursor)

    assert path.read_bytes() == b"{}\n"
    assert path.with_name("s.jsonl.lock").read_bytes() == b""


def test_a_note_that_does_not_fit_on_the_disk_leaves_nothing_behind(path: Path, monkeypatch) -> None:
    store = JsonlStore(str(path))
    cursor = store.read_end().cursor

    def raise_disk_full(lock: int, *_: object) -> None:
        os.pwrite(lock, b"half a note", 0)
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(batch_journal, "write_note", raise_disk_full)
    with pytest.raises(StoreError, match="No space left"):
        store.append([FIRST.strip(), SECOND.strip()], after=cursor)

    assert path.read_bytes() == b"{}\n"
    assert path.with_name("s.jsonl.lock").read_bytes() == b""


def test_a_huge_note_is_read_only_as_far_as_the_file_goes(path: Path) -> None:
    lock = path.with_name("s.jsonl.lock")
    count = 1 << 34
    lock.write_bytes(struct.pack("<8sQQ", b"stbatch3", 0, count))
    os.truncate(lock, lock.stat().st_size + count * 72)

    with path.open("rb") as file:
        assert find_end(file.fileno(), str(lock)) == (3, None)
    assert JsonlStore(str(path)).read().data == b"{}\n"


def test_a_note_with_an_oversized_line_is_ignored(path: Path) -> None:
    lock = path.with_name("s.jsonl.lock")
    head = struct.pack("<8sQQ", b"stbatch3", 0, 1)
    lock.write_bytes(head + struct.pack("<Q48s16s", LINE_LIMIT + 1, b"{}", b""))

    assert JsonlStore(str(path)).read().data == b"{}\n"


LONG, LONGER = b'{"id":"1","text":"' + b"a" * 90 + b'"}\n', b'{"id":"2","text":"' + b"b" * 110 + b'"}\n'


@pytest.mark.parametrize("size", [1, 40, 60, len(LONG), len(LONG) + 60, len(LONG) + len(LONGER) - 1])
def test_long_lines_are_recognized_by_their_first_and_last_bytes(path: Path, size: int) -> None:
    write_unfinished_batch(path, (LONG + LONGER)[:size], LONG + LONGER)

    assert JsonlStore(str(path)).read().data == b"{}\n"


@pytest.mark.parametrize(
    "written",
    [
        LONG.replace(b'"1"', b'"3"'),  # same length, but another line
        LONG[:60] + b"}\n",  # after half of our line
        LONG[:60] + b"c" * (len(LONG) - 61) + b"\n",  # with the length of our line
        LONG + THEIRS,
        LONG + LONGER[:60] + THEIRS,
        LONG[:-1] + b" " + LONGER[:60],
    ],
)
def test_lines_of_another_program_within_an_unfinished_batch_are_recognized(path: Path, written: bytes) -> None:
    write_unfinished_batch(path, written, LONG + LONGER)

    with path.open("rb") as file:
        assert find_end(file.fileno(), str(path.with_name("s.jsonl.lock"))) == (3 + len(written), None)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda lock: os.symlink("s.jsonl", lock)])
def test_a_lock_file_that_is_not_a_regular_file_is_ignored(path: Path, make: Callable[[Path], object]) -> None:
    lock = path.with_name("s.jsonl.lock")
    lock.unlink()
    make(lock)

    assert JsonlStore(str(path)).read().data == b"{}\n"


def test_locking_a_session_removes_its_unfinished_batch(path: Path) -> None:
    write_unfinished_batch(path, FIRST)
    store = JsonlStore(str(path))

    with store.hold_lock():
        assert path.read_bytes() == b"{}\n"
    assert [Path(name).read_bytes() for name in store.torn_files] == [FIRST]
