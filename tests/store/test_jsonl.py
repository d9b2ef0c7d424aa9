"""What a file of JSON lines does beyond the protocol."""

import os
import stat
from pathlib import Path

import pytest

from sessiontree.errors import Conflict, NotFound, StoreError
from sessiontree.store.jsonl import JsonlStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sub" / "s.jsonl"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_and_folders_are_for_this_user_alone_whatever_the_umask(path: Path, umask: int) -> None:
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


def test_a_rewrite_keeps_every_old_version_as_a_backup(path: Path) -> None:
    store = JsonlStore(str(path))
    cursor = store.create([b"1"])
    for version in (b"2", b"3"):
        cursor = store.replace([version], after=cursor)

    assert path.read_bytes() == b"3\n"
    assert path.with_name("s.jsonl.bak").read_bytes() == b"1\n"
    assert path.with_name("s.jsonl.bak-1").read_bytes() == b"2\n"


def test_an_unfinished_last_line_is_told_not_read(path: Path) -> None:
    JsonlStore(str(path)).create([b"{}"])
    with path.open("ab") as file:
        file.write(b'{"type":"mess')

    chunk = JsonlStore(str(path)).read()

    assert chunk.data == b"{}\n"
    assert chunk.unfinished == b'{"type":"mess'


def test_an_unfinished_last_line_is_moved_aside_before_the_next_append(path: Path) -> None:
    JsonlStore(str(path)).create([b"{}"])
    with path.open("ab") as file:
        file.write(b'{"type":"mess')
    store = JsonlStore(str(path))

    store.append([b'{"a":1}'], after=store.read().cursor)

    assert path.read_bytes() == b'{}\n{"a":1}\n'
    assert path.with_name("s.jsonl.torn-3").read_bytes() == b'{"type":"mess'
    assert mode(path.with_name("s.jsonl.torn-3")) == 0o600


def test_a_whole_last_line_without_newline_is_kept_and_ended(path: Path) -> None:
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


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
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
