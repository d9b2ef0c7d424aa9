"""The JSONL store beyond the protocol: locks, crashes, other programs and file modes."""

import copy
import errno
import fcntl
import gc
import os
import signal
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from sessiontree.errors import Conflict, InvalidOperation, NotFound, StoreError
from sessiontree.store import jsonl, jsonl_file
from sessiontree.store.base import Cursor
from sessiontree.store.batch_journal import write_note
from sessiontree.store.file_operations import CLOCK_TICK, NANOSECONDS, blank_lines, get_identity, make_private_directory
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.lock import FileLock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "s.jsonl"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_and_folders_are_private_with_any_umask(path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        store = JsonlStore(str(path))
        store.replace([b"{}"], after=store.append([b"{}"], after=store.create([b"{}"])))
    finally:
        os.umask(old)

    assert mode(path.parent) == 0o700
    assert {file.name: oct(mode(file)) for file in path.parent.iterdir()} == {
        "s.jsonl": "0o600",
        "s.jsonl.bak": "0o600",
        "s.jsonl.lock": "0o600",
    }


def test_a_durability_that_does_not_exist_is_refused(path: Path) -> None:
    with pytest.raises(InvalidOperation, match=r"'fsnyc'.*fsync, flush, none"):
        JsonlStore(str(path), durability="fsnyc")  # pyright: ignore[reportArgumentType]


def test_a_rewrite_keeps_every_old_version_as_a_backup(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"1"])
    for version in (b"2", b"3"):
        cursor = store.replace([version], after=cursor)

    assert path.read_bytes() == b"3\n"
    assert path.with_name("s.jsonl.bak").read_bytes() == b"1\n"
    assert path.with_name("s.jsonl.bak-1").read_bytes() == b"2\n"


def test_an_unfinished_last_line_is_reported_but_not_read(path: Path) -> None:
    JsonlStore(str(path)).create([b"{}"])
    with path.open("ab") as file:
        file.write(b'{"type":"mess')

    chunk = JsonlStore(str(path)).read()

    assert chunk.data == b"{}\n"
    assert chunk.unfinished == b'{"type":"mess'


def test_an_append_moves_an_unfinished_last_line_to_a_file_if_no_process_has_the_session_open(path: Path) -> None:
    JsonlStore(str(path)).create([b"{}"])
    with path.open("ab") as file:
        file.write(b'{"type":"mess')
    store = JsonlStore(str(path))

    store.append([b'{"a":1}'], after=store.read().cursor)

    assert path.read_bytes() == b'{}\n{"a":1}\n'
    assert path.with_name("s.jsonl.torn-3").read_bytes() == b'{"type":"mess'
    assert mode(path.with_name("s.jsonl.torn-3")) == 0o600


def test_an_append_ends_an_unfinished_last_line_that_another_process_may_be_writing(path: Path) -> None:
    JsonlStore(str(path)).create([b"{}"])
    store = JsonlStore(str(path))
    before = store.read().cursor

    with path.open("ab", buffering=0) as file:
        file.write(b'{"type":"mess')
        assert store.append([b'{"a":1}'], after=before) == before  # everything has to be read

    assert path.read_bytes() == b'{}\n{"type":"mess\n{"a":1}\n'
    assert store.read(before).data == b'{"type":"mess\n{"a":1}\n'
    assert list(path.parent.glob("*.torn-*")) == []


@pytest.mark.parametrize("count", [1, 3])
def test_a_failed_write_is_blanked_while_another_process_has_the_file_open(path: Path, monkeypatch, count: int) -> None:
    JsonlStore(str(path)).create([b"{}"])
    store, reader = JsonlStore(str(path)), JsonlStore(str(path))
    cursor = store.read().cursor
    reader.read()
    lines = [b'{"a":%d}' % number for number in range(count)]

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "")

    with monkeypatch.context() as patch:
        patch.setattr("sessiontree.store.jsonl.sync_data", fail)
        with pytest.raises(StoreError):
            store.append(lines, after=cursor)

    assert path.read_bytes() == b"{}\n" + b"       \n" * count
    again = JsonlStore(str(path))
    again.append(lines, after=again.read().cursor)
    assert path.read_bytes().split() == [b"{}", *lines]


@pytest.mark.parametrize("done", [1, 9, 12, 16])
def test_a_partly_blanked_batch_is_still_rolled_back(path: Path, done: int) -> None:
    """The process that rolls a batch back may crash half way."""
    JsonlStore(str(path)).create([b"{}"])
    lines = [b'{"a":1}', b'{"b":1}', b'{"c":1}']
    with path.open("ab") as file:
        file.write(b"\n".join(lines)[:20])
    store = JsonlStore(str(path))
    with store._lock:
        store._lock.write_note(3, lines)
    data = path.read_bytes()
    path.write_bytes(data[:3] + blank_lines(data[3 : 3 + done + 1])[:done] + data[3 + done :])

    assert store.read().data == b"{}\n"
    store.append([b'{"d":1}'], after=store.read().cursor)
    assert path.read_bytes().split() == [b"{}", b'{"d":1}']


def test_a_complete_last_line_without_newline_is_kept_and_ended(path: Path) -> None:
    JsonlStore(str(path)).create([b"{}"])
    with path.open("ab") as file:
        file.write(b'{"b":2}')
    store = JsonlStore(str(path))

    chunk = store.read()
    store.append([b'{"a":1}'], after=chunk.cursor)

    assert chunk.data == b'{}\n{"b":2}'
    assert path.read_bytes() == b'{}\n{"b":2}\n{"a":1}\n'


def test_a_file_that_was_deleted_replaced_or_cut_is_a_conflict(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}", b"{}"])

    path.rename(path.with_name("away"))
    with pytest.raises(Conflict, match="deleted"):
        store.append([b"{}"], after=cursor)

    path.write_bytes(b"{}\n{}\n")
    with pytest.raises(Conflict, match="replaced"):
        store.append([b"{}"], after=cursor)

    path.unlink()
    path.with_name("away").rename(path)
    os.truncate(path, 3)
    with pytest.raises(Conflict, match="truncated"):
        store.read(cursor)
    with pytest.raises(Conflict):
        store.append([b"{}"], after=cursor)
    store.close()
    assert path.read_bytes() == b"{}\n"


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for name in ("pipe", ".", "/dev/null"):
        with pytest.raises(StoreError):
            JsonlStore(str(tmp_path / name)).read()
    with pytest.raises(NotFound):
        JsonlStore(str(tmp_path / "no" / "such")).read()


def test_a_write_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    import resource

    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    try:
        with pytest.raises(StoreError, match="File too large"):
            store.append([b'{"a":"' + b"x" * 200 + b'"}'], after=cursor)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)

    assert path.read_bytes() == b"{}\n"
    store.append([b'{"b":1}'], after=cursor)
    assert path.read_bytes() == b'{}\n{"b":1}\n'


def test_a_file_that_was_rewritten_in_place_is_a_conflict_even_if_it_is_longer_now(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}", b'{"a":1}'])
    rewritten = b'{}\n{"somebody":"else"}\n{"was":"here"}\n'
    path.write_bytes(rewritten)

    with pytest.raises(Conflict, match="changed"):
        store.read(cursor)
    with pytest.raises(Conflict, match="changed"):
        store.append([b'{"b":1}'], after=cursor)

    assert path.read_bytes() == rewritten


@pytest.mark.parametrize("last", [b'{"b":2}\n', b'{"b":2}'])
@pytest.mark.parametrize("many", [1, 100])
def test_lines_are_fetched_again_from_any_position(
    path: Path, monkeypatch: pytest.MonkeyPatch, last: bytes, many: int
) -> None:
    monkeypatch.setattr(jsonl_file, "LARGE_READ", many)
    JsonlStore(str(path)).create([b"{}", b'{"a":1}'])
    with path.open("ab") as file:
        file.write(last)
    store = JsonlStore(str(path))

    assert [store.fetch(0, 2), store.fetch(3, 7), store.fetch(11, 7)] == [b"{}", b'{"a":1}', b'{"b":2}']
    assert store.fetch(0, 18) == b'{}\n{"a":1}\n{"b":2}'


@pytest.mark.parametrize(
    "rewritten", [b'{ }\n{"a":1}\n{"b":2}\n', b'{}\n{"a":11}\n{"b":2}\n', b'{}\n{"a":\n1}\n', b'{}\n{"a"']
)
@pytest.mark.parametrize("many", [1, 100])
def test_fetching_lines_that_moved_is_a_conflict(
    path: Path, monkeypatch: pytest.MonkeyPatch, rewritten: bytes, many: int
) -> None:
    monkeypatch.setattr(jsonl_file, "LARGE_READ", many)
    store = JsonlStore(str(path))
    store.create([b"{}", b'{"a":1}', b'{"b":2}'])
    store.read()
    path.write_bytes(rewritten)

    with pytest.raises(Conflict, match=r"changed|truncated"):
        store.fetch(3, 7)


def test_a_recreated_file_is_a_conflict_even_with_the_same_inode(path: Path) -> None:
    cursor = JsonlStore(str(path)).create([b'{"a":1}'])
    path.unlink()
    JsonlStore(str(path)).create([b'{"b":1}'])

    with pytest.raises(Conflict):
        JsonlStore(str(path)).read(cursor)


def test_a_newline_added_later_is_not_an_empty_line(path: Path) -> None:
    JsonlStore(str(path)).create([b"{}"])
    with path.open("ab", buffering=0) as file:
        file.write(b'{"b":2}')
        store = JsonlStore(str(path))
        chunk = store.read()
        file.write(b'\n{"c":3}\n')

    assert chunk.data == b'{}\n{"b":2}'
    assert store.read(chunk.cursor).data == b'{"c":3}\n'


def test_a_line_that_grows_after_it_was_read_is_a_conflict(path: Path) -> None:
    JsonlStore(str(path)).create([b"{}"])
    with path.open("ab", buffering=0) as file:
        file.write(b'{"b":2}')
        store = JsonlStore(str(path))
        cursor = store.read().cursor
        file.write(b"garbage\n")

    with pytest.raises(Conflict, match="changed"):
        store.read(cursor)


@pytest.mark.parametrize("ending", [b"\r\n", b" \n"])
def test_a_line_that_is_ended_by_more_than_a_newline_is_a_conflict(path: Path, ending: bytes) -> None:
    JsonlStore(str(path)).create([b"{}"])
    with path.open("ab", buffering=0) as file:
        file.write(b'{"b":2}')
        store = JsonlStore(str(path))
        cursor = store.read().cursor
        file.write(ending + b'{"c":3}\n')

    with pytest.raises(Conflict, match="changed"):
        store.read(cursor)


def test_an_append_after_an_unlocked_writer_returns_the_old_cursor(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])

    def late(fd: int, data: bytes) -> int:
        with path.open("ab") as file:
            file.write(b'{"theirs":1}\n')
        return os.write(fd, data)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(jsonl, "write", late)
        after = store.append([b'{"ours":1}'], after=cursor)

    assert after == cursor
    chunk = store.read(cursor)
    assert chunk.data == b'{"theirs":1}\n{"ours":1}\n'
    store.append([b'{"ours":2}'], after=chunk.cursor)


def test_a_rewrite_is_refused_if_another_program_writes_during_it(path: Path, monkeypatch) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    monkeypatch.setattr(jsonl, "sync_directory", lambda _: path.open("ab").write(b'{"theirs":1}\n'))

    with pytest.raises(Conflict, match="during the rewrite"):
        store.replace([b"{}", b'{"new":1}'], after=cursor)

    assert path.read_bytes() == b'{}\n{"theirs":1}\n'
    assert {file.name for file in path.parent.iterdir()} == {"s.jsonl", "s.jsonl.lock"}


def test_bytes_written_at_the_moment_of_a_rewrite_are_saved_to_a_file(path: Path, monkeypatch) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    replace = os.replace

    def late(source: str, target: str) -> None:
        with path.open("ab") as file:
            file.write(b'{"theirs":1}\n')
        replace(source, target)

    monkeypatch.setattr(os, "replace", late)
    store.replace([b"{}", b'{"new":1}'], after=cursor)

    assert path.read_bytes() == b'{}\n{"new":1}\n'
    assert [Path(name).read_bytes() for name in store.torn_files] == [b'{"theirs":1}\n']


def interrupt_call(monkeypatch: pytest.MonkeyPatch, module: object, name: str, *, done: bool) -> None:
    """Interrupt a call before or after it is done."""
    real = getattr(module, name)

    def broken(*args: object, **more: object) -> None:
        if done:
            real(*args, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, broken)


def list_other_files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.parent.iterdir()}


@pytest.mark.parametrize(("module", "name"), [(os, "open"), (os, "chmod"), (jsonl, "sync_directory"), (os, "replace")])
def test_an_interrupted_rewrite_leaves_no_files(
    path: Path, monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    store = JsonlStore(str(path))
    cursor = store.append([b'{"a":1}'], after=store.create([b"{}"]))
    with monkeypatch.context() as broken:
        interrupt_call(broken, module, name, done=name != "replace")
        with pytest.raises(KeyboardInterrupt):
            store.replace([b"{}", b'{"new":1}'], after=cursor)

    assert list_other_files(path) == {"s.jsonl": b'{}\n{"a":1}\n', "s.jsonl.lock": b""}
    JsonlStore(str(path)).append([b'{"b":1}'], after=cursor)


@pytest.mark.parametrize("name", ["replace", "unlink"])
def test_a_rewrite_interrupted_after_the_replacement_is_recognized_as_ours(
    path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    store = JsonlStore(str(path))
    cursor = store.append([b'{"a":1}'], after=store.create([b"{}"]))
    with monkeypatch.context() as broken:
        interrupt_call(broken, os, name, done=name == "replace")
        with pytest.raises(KeyboardInterrupt):
            store.replace([b"{}", b'{"new":1}'], after=cursor)

    store.append([b'{"b":1}'], after=store.read_end().cursor)
    assert list_other_files(path) == {
        "s.jsonl": b'{}\n{"new":1}\n{"b":1}\n',
        "s.jsonl.bak": b'{}\n{"a":1}\n',
        "s.jsonl.lock": b"",
    }


@pytest.mark.parametrize("moment", ["acquire", "release"])
@pytest.mark.parametrize("work", ["create", "replace", "leave", "held"])
def test_the_lock_is_released_after_an_interrupt_at_any_point(
    path: Path, monkeypatch: pytest.MonkeyPatch, work: str, moment: str
) -> None:
    store = JsonlStore(str(path))
    cursor = store.append([b"{}"], after=store.create([b"{}"]))
    other = JsonlStore(str(path.with_name("other.jsonl")))
    works = {
        "create": lambda: other.create([b"{}"]),
        "replace": lambda: store.replace([b"{}"], after=cursor),
        "leave": lambda: store.write_tail(b"{", after=cursor),
        "held": lambda: _held(store),
    }
    with monkeypatch.context() as broken:
        interrupt_call(broken, FileLock, moment, done=moment == "acquire")
        with pytest.raises(KeyboardInterrupt):
            works[work]()

    for name in ("s.jsonl.lock", "other.jsonl.lock"):
        fd = os.open(path.with_name(name), os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)


def _held(store: JsonlStore) -> None:
    with store.hold_lock():
        pass


def test_lines_longer_than_a_block_are_read_backward_as_they_are(path: Path) -> None:
    lines = [b"a" * size for size in (10, 1 << 18, 3, 1 << 20, 5)]
    store = JsonlStore(str(path))
    cursor = store.create(lines)

    blocks = list(store.read_backward(cursor))

    assert b"".join(block for block, _ in reversed(blocks)) == b"".join(line + b"\n" for line in lines)
    starts = [start for _, start in blocks]
    assert [start + len(block) for block, start in blocks] == [path.stat().st_size, *starts[:-1]]
    assert starts[-1] == 0
    assert list(store.read_backward(cursor, starts[0]))[-1][1] == 0
    assert all(block.endswith(b"\n") for block, _ in blocks)


def test_a_file_truncated_during_a_read_is_a_conflict(path: Path) -> None:
    store = JsonlStore(str(path))
    store.create([b"{}", b'{"a":1}'])
    end = store.read_end().cursor
    os.truncate(path, 0)

    with pytest.raises(Conflict, match="truncated"):
        store.read(before=end, limit=100)
    with pytest.raises(Conflict, match="truncated"):
        list(store.read_backward(end))


def test_processes_that_reach_a_file_through_links_share_its_lock(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    link = path.with_name("link.jsonl")
    link.symlink_to(path.name)
    linked = JsonlStore(str(link))

    cursor = linked.append([b'{"a":1}'], after=cursor)
    linked.replace([b"{}", b'{"b":1}'], after=cursor)

    assert link.is_symlink()
    assert path.read_bytes() == b'{}\n{"b":1}\n'
    assert {file.name for file in path.parent.iterdir()} == {
        "link.jsonl",
        "s.jsonl",
        "s.jsonl.bak",
        "s.jsonl.lock",
    }


def is_blocked_by(store: JsonlStore, after: Cursor, holder: JsonlStore) -> bool:
    """Return whether `store` can write only after `holder` has released the session."""
    done = threading.Event()

    def write() -> None:
        store.append([b'{"late":1}'], after=after)
        done.set()

    writer = threading.Thread(target=write)
    with holder.hold_lock():
        writer.start()
        waited = not done.wait(0.3)
    writer.join(60)
    assert done.is_set()
    return waited


def test_two_hard_links_to_a_session_share_its_lock(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    link = path.with_name("link.jsonl")
    os.link(path, link)

    assert is_blocked_by(JsonlStore(str(link)), cursor, store)
    assert is_blocked_by(store, store.read().cursor, JsonlStore(str(link)))


def test_the_lock_is_that_of_the_new_file_after_a_rewrite(path: Path) -> None:
    store, other = JsonlStore(str(path)), JsonlStore(str(path))
    cursor = store.append([b'{"a":1}'], after=store.create([b"{}"]))
    cursor = other.replace([b"{}", b'{"b":1}'], after=cursor)
    link = path.with_name("link.jsonl")
    os.link(path, link)

    assert is_blocked_by(store, cursor, JsonlStore(str(link)))
    assert path.read_bytes() == b'{}\n{"b":1}\n{"late":1}\n'


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_store_that_moved_an_unfinished_line_keeps_no_lock_on_a_file_that_was_replaced(path: Path) -> None:
    store = JsonlStore(str(path))
    store.create([b"{}"])
    with path.open("ab") as file:
        file.write(b'{"torn')
    cursor = store.append([b'{"a":1}'], after=store.read().cursor)
    link = path.with_name("link.jsonl")
    os.link(path, link)
    copied = path.with_name("copy.jsonl")
    copied.write_bytes(path.read_bytes())
    copied.rename(path)

    with pytest.raises(Conflict, match="replaced"):
        store.append([b'{"b":1}'], after=cursor)

    assert not is_locked(link)


def test_a_session_with_the_note_of_a_batch_is_locked_under_all_its_names(path: Path) -> None:
    store = JsonlStore(str(path))
    store.append([b'{"a":1}'], after=store.create([b"{}"]))
    link = path.with_name("link.jsonl")
    os.link(path, link)
    with path.with_name("s.jsonl.lock").open("r+b") as lock:
        write_note(lock.fileno(), path.stat().st_size, [b'{"b":1}', b'{"b":2}'])

    with store.hold_lock():
        assert is_locked(link)
    assert not is_locked(link)


def test_a_writer_also_locks_the_lock_file_of_version_0_1(path: Path) -> None:
    store = JsonlStore(str(path))
    store.create([b"{}"])
    fd = os.open(f"{path}.lock", os.O_RDWR)
    with store.hold_lock(), pytest.raises(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)


def test_a_read_only_session_can_be_locked(path: Path) -> None:
    store = JsonlStore(str(path))
    store.create([b"{}"])
    path.chmod(0o400)

    with store.hold_lock(), path.open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_forked_process_does_not_keep_the_lock_of_the_file_for_a_parent_that_died(path: Path) -> None:
    """The parent is killed during an append. Its child never writes and lives on."""
    JsonlStore(str(path)).create([b"{}"])
    reading, writing = os.pipe()
    ends, stays = os.pipe()
    parent = os.fork()
    if parent == 0:
        store = JsonlStore(str(path))
        store.append([b'{"a":1}'], after=store.read().cursor)
        store.fetch(0, 2)
        store._share_file()
        fcntl.flock(store._fd, fcntl.LOCK_EX)
        if os.fork() == 0:
            os.close(stays)
            os.write(writing, b"here")
            os.read(ends, 1)  # until the test is over
            os._exit(0)
        signal.pause()
    assert os.read(reading, 4) == b"here"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)

    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(stays)


def test_a_refused_write_does_not_touch_an_unfinished_line(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])

    store.write_tail(b'{"a', after=cursor)

    assert (store.read_end().cursor, store.read_end().unfinished) == (cursor, b'{"a')
    with pytest.raises(Conflict, match="another writer appended first"):
        JsonlStore(str(path)).write_tail(b'{"b', after=cursor)
    assert path.read_bytes() == b'{}\n{"a'


def test_a_deleted_lock_file_is_replaced(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    held = os.open(f"{path}.lock", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    done: list[object] = []
    writer = threading.Thread(target=lambda: done.append(store.append([b'{"a":1}'], after=cursor)))
    writer.start()
    time.sleep(0.05)

    os.unlink(f"{path}.lock")
    assert not done
    other = JsonlStore(str(path))
    with other._lock:
        os.close(held)
        time.sleep(0.05)
        assert not done

    writer.join(10)
    assert done


def build_trusting_store(path: Path) -> tuple[JsonlStore, Cursor]:
    """Return a store that trusts the names in its folder, and its end."""
    store = JsonlStore(str(path), durability="none")
    cursor = store.create([b"{}"])
    time.sleep(2 * CLOCK_TICK / NANOSECONDS)
    for line in (b'{"a":1}', b'{"a":2}'):
        cursor = store.append([line], after=cursor)
    assert store._folder_monitor.is_unchanged()
    return store, cursor


def test_a_lock_file_deleted_after_a_long_pause_is_replaced(path: Path) -> None:
    store, cursor = build_trusting_store(path)

    os.unlink(f"{path}.lock")
    other = JsonlStore(str(path))
    done: list[object] = []
    writer = threading.Thread(target=lambda: done.append(store.append([b'{"a":3}'], after=cursor)))
    with other._lock:
        writer.start()
        time.sleep(0.05)
        assert not done

    writer.join(10)
    assert done


def test_an_unfinished_batch_is_moved_away_after_a_long_pause(path: Path) -> None:
    store, cursor = build_trusting_store(path)
    before = path.read_bytes()

    with open(f"{path}.lock", "r+b") as lock, path.open("ab") as file:
        write_note(lock.fileno(), len(before), [b'{"b":1}', b'{"b":2}'])
        file.write(b'{"b":1}\n')
    store.append([b'{"a":3}'], after=cursor)

    assert path.read_bytes() == before + b'{"a":3}\n'
    [torn] = path.parent.glob("*.torn-*")
    assert torn.read_bytes() == b'{"b":1}\n'


def test_a_process_forked_during_a_write_does_not_keep_the_lock(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])

    with store._lock:
        sleeper = subprocess.Popen(["sleep", "60"], pass_fds=[_find_fd(f"{path}.lock")])
    try:
        JsonlStore(str(path)).append([b'{"a":1}'], after=cursor)
    finally:
        sleeper.kill()
        sleeper.wait()


def _find_fd(name: str) -> int:
    return next(int(fd) for fd in os.listdir("/proc/self/fd") if _link(fd) == name)


def _link(fd: str) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


@pytest.mark.parametrize("umask", [0o277, 0o377])
def test_a_strict_umask_does_not_prevent_writing(path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        store = JsonlStore(str(path))
        store.append([b"{}"], after=store.create([b"{}"]))
    finally:
        os.umask(old)

    assert {oct(mode(file)) for file in path.parent.iterdir()} == {"0o600"}


def test_an_invalid_file_name_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        JsonlStore(f"{tmp_path}/a\0b.jsonl")


def test_rolling_back_a_failed_write_keeps_what_another_program_wrote_after_it(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    with path.open("ab", buffering=0) as file:
        file.write(b'{"a":1}\n{"theirs":1}\n')
    fd = os.open(path, os.O_RDWR | os.O_APPEND)

    store._roll_back(fd, b'{"a":1}\n', 3)

    os.close(fd)
    assert path.read_bytes() == b'{}\n{"a":1}\n{"theirs":1}\n'
    with pytest.raises(StoreError, match="open the session again"):
        store.append([b"{}"], after=cursor)


def test_an_endless_line_is_an_error_and_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (jsonl, jsonl_file):
        monkeypatch.setattr(module, "MAX_LINE_SCAN", 1 << 16)
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    os.truncate(path, 1 << 40)  # a hole: the whole file would not fit into memory
    opened = JsonlStore(str(path))
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"}\n")

    for attempt in (
        lambda: opened.read(limit=10),
        lambda: list(opened.read_backward(Cursor((get_identity(path.stat()), 1 << 40, b"}\n")))),
        lambda: store.read(cursor, limit=1),
    ):
        with pytest.raises(StoreError, match="a line is longer than"):
            attempt()


def test_nothing_is_appended_after_an_endless_last_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (jsonl, jsonl_file):
        monkeypatch.setattr(module, "MAX_LINE_SCAN", 1 << 16)
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    os.truncate(path, 1 << 40)

    for attempt in (lambda: store.append([b"{}"], after=cursor), JsonlStore(str(path)).read_end):
        with pytest.raises(StoreError, match="a line is longer than"):
            attempt()
    assert path.stat().st_size == 1 << 40


def test_a_relative_path_in_a_deleted_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with pytest.raises(StoreError, match="the current folder was deleted"):
        JsonlStore("s.jsonl")


def test_a_session_can_have_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    make_private_directory("one/two")

    assert mode(tmp_path / "one" / "two") == 0o700


def test_a_half_constructed_store_is_finalized_silently(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", complaints.append)

    with pytest.raises(TypeError, match="RLock"):
        copy.deepcopy(JsonlStore(str(path)))
    gc.collect()

    assert complaints == []


# Shared syncs


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files that were synced."""
    synced: list[int] = []
    sync = jsonl.sync_data

    def note(fd: int) -> None:
        synced.append(fd)
        sync(fd)

    monkeypatch.setattr(jsonl, "sync_data", note)
    return synced


def is_locked_for_others(path: Path) -> bool:
    with open(path, "rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_appends_of_a_group_share_a_sync_and_keep_the_locks_until_it(path: Path, syncs: list[int]) -> None:
    store = JsonlStore(str(path))
    start = cursor = store.create([b"{}"])
    files = [path, Path(f"{path}.lock")]
    with store.share_sync() as group:
        for number in range(3):
            cursor = store.append([b'{"a":%d}' % number] * (number + 1), after=cursor)
        assert group.start == start
        assert syncs == []
        assert [is_locked_for_others(file) for file in files] == [True, True]

    assert len(syncs) == 1
    assert [is_locked_for_others(file) for file in files] == [False, False]
    store.append([b'{"last":1}'], after=cursor)
    assert len(syncs) == 2
    assert len(path.read_bytes().splitlines()) == 8


def test_an_empty_group_does_nothing(path: Path, syncs: list[int]) -> None:
    store = JsonlStore(str(path))
    store.create([b"{}"])

    with store.share_sync() as group:
        assert group.start is None

    assert syncs == []


def test_a_group_within_a_group_is_synced_with_it(path: Path, syncs: list[int]) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])

    with store.share_sync():
        with store.share_sync():
            cursor = store.append([b"1"], after=cursor)
        store.append([b"2"], after=cursor)

    assert len(syncs) == 1
    assert not is_locked_for_others(path)


def test_a_group_is_not_synced_where_appends_are_not(path: Path, syncs: list[int]) -> None:
    store = JsonlStore(str(path), durability="flush")
    cursor = store.create([b"{}"])

    with store.share_sync():
        store.append([b"1"], after=cursor)
        assert not is_locked_for_others(path)

    assert syncs == []


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_failed_sync_takes_all_lines_of_a_group_back(path: Path, monkeypatch, has_reader: bool) -> None:
    JsonlStore(str(path)).create([b"{}"])
    store, reader = JsonlStore(str(path)), JsonlStore(str(path))
    cursor = store.read().cursor
    if has_reader:
        reader.read()

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "")

    monkeypatch.setattr(jsonl, "sync_data", fail)
    group = store.share_sync()
    group.__enter__()
    for number in range(3):
        cursor = store.append([b'{"a":%d}' % number], after=cursor)
    with pytest.raises(StoreError, match="Input/output error"):
        group.__exit__(None, None, None)

    assert path.read_bytes().split() == [b"{}"]
    assert not is_locked_for_others(path)
    with pytest.raises(StoreError, match="a sync failed"):
        store.append([b"1"], after=store.read().cursor)


def test_a_refused_append_leaves_its_group(path: Path, syncs: list[int]) -> None:
    store = JsonlStore(str(path))
    start = store.create([b"{}"])
    with store.share_sync():
        with pytest.raises(Conflict):
            store.append([b"0"], after=Cursor((start.value[0], 1, b"{")))
        assert not is_locked_for_others(path)
        cursor = store.append([b"1"], after=start)
        with pytest.raises(Conflict):
            store.append([b"2"], after=start)
        assert is_locked_for_others(path)
        store.append([b"3"], after=cursor)

    assert len(syncs) == 1
    assert path.read_bytes() == b"{}\n1\n3\n"
    assert not is_locked_for_others(path)


def test_another_thread_waits_for_the_end_of_a_group(path: Path, syncs: list[int]) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    outcome: list[object] = []

    def append() -> None:
        try:
            outcome.append(store.append([b"theirs"], after=cursor))
        except Conflict as error:
            outcome.append(error)

    other = threading.Thread(target=append)
    with store.share_sync():
        store.append([b"ours"], after=cursor)
        other.start()
        other.join(0.05)
        assert outcome == []
    other.join(60)

    assert isinstance(outcome[0], Conflict)
    assert path.read_bytes() == b"{}\nours\n"


def test_lines_of_a_group_are_synced_before_a_file_that_was_replaced_is_left(path: Path, syncs: list[int]) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"{}"])
    with store.share_sync():
        cursor = store.append([b"1"], after=cursor)
        path.rename(f"{path}.old")
        path.write_bytes(b"{}\n")
        with pytest.raises(Conflict, match="replaced"):
            store.append([b"2"], after=cursor)
        assert len(syncs) == 1

    assert len(syncs) == 1
    assert not is_locked_for_others(path)
    store.append([b"3"], after=store.read().cursor)
    assert path.read_bytes() == b"{}\n3\n"
