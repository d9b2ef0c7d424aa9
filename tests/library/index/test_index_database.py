"""The index is a cache: without it, damaged or shared, listings and searches say the same."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.library.index import index_database, listing, word_index
from sessiontree.store.lock import FileLock
from tests.builders import build_file, header
from tests.library.session_folders import found, only, put, say


def corrupt(index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[100:4000] = os.urandom(3900)
    data[len(data) // 2 :] = os.urandom(len(data) - len(data) // 2)
    index.write_bytes(data)


def another_version(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA user_version = 99")


def without_a_table(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("DROP TABLE entries")


def nonsense_inside(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("UPDATE files SET summary = x'c1', tally = x'c1'")


def ids_that_do_not_fit(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("UPDATE files SET size = size - 1")
        connection.execute("DELETE FROM entries")


def changed(statement: str) -> Callable[[Path], None]:
    def harm(index: Path) -> None:
        with sqlite3.connect(index) as connection:
            connection.execute(statement)

    return harm


def letters_that_are_none(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    index.write_bytes(index.read_bytes().replace(b"NOT NULL", b"NOT \xd2\xd2LL"))


@pytest.mark.parametrize(
    "harm",
    [
        lambda index: index.unlink(),
        lambda index: index.write_bytes(b""),
        lambda index: index.write_bytes(b"this is no database" * 500),
        lambda index: os.truncate(index, 5000),
        corrupt,
        another_version,
        without_a_table,
        nonsense_inside,
        ids_that_do_not_fit,
        letters_that_are_none,
        changed("UPDATE files SET summary = CAST(replace(summary, 'apple', x'e5e5e5e5e5') AS BLOB)"),
        changed("UPDATE files SET summary = 5"),
        changed("UPDATE files SET kind = 99"),
        changed("UPDATE files SET read_to = 'x'"),
        changed("UPDATE files SET text_to = 1.5"),
        changed("UPDATE files SET tally = 'x'"),
        changed("UPDATE files SET generation = 'x', size = size - 1"),
        changed("UPDATE entries SET entries = 5"),
        changed("UPDATE chunks SET start = 'x'"),
        changed("UPDATE chunks SET newest = 'x'"),
        changed("UPDATE chunks SET newest = newest + 1"),
        changed("DELETE FROM chunks"),
        changed("UPDATE chunks SET file = file + 1"),
        changed("UPDATE files SET summary = CAST(replace(summary, 'apple', 'apply') AS BLOB)"),
        changed("UPDATE files SET tally = CAST(replace(tally, 'apple', 'apply') AS BLOB), size = size - 1"),
        changed("UPDATE files SET kind = 2"),
        changed("UPDATE entries SET entries = CAST(replace(entries, 'b', 'c') AS BLOB)"),
        changed("UPDATE words_data SET block = CAST(replace(block, 'app', 'apq') AS BLOB)"),
        changed("UPDATE words_data SET block = 5"),
        changed("DELETE FROM words_idx"),
        changed("DELETE FROM words_check"),
        changed("PRAGMA application_id = 5"),
    ],
)
def test_a_missing_damaged_or_foreign_index_is_rebuilt(shelf: Path, index: Path, harm) -> None:
    put(shelf, "s", header(), say("a", None, "apple"), say("b", "a", "berry"))
    before = st.sessions(dir=shelf), st.search("apple", dir=shelf)

    harm(index)

    assert (st.sessions(dir=shelf), st.search("apple", dir=shelf)) == before
    with sqlite3.connect(index) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (index_database.INDEX_VERSION,)
        assert connection.execute("SELECT count(*) FROM files").fetchone() == (1,)


@pytest.mark.parametrize("obstacle", ["folder", "pipe", "link", "home is a file"])
def test_listing_and_search_work_without_an_index(shelf: Path, index: Path, obstacle: str) -> None:
    put(shelf, "s", header(), say("a", None, "apple"))
    if obstacle == "home is a file":
        index.parent.parent.mkdir(exist_ok=True)
        index.parent.write_text("")
    else:
        index.parent.mkdir(parents=True)
        {"folder": index.mkdir, "pipe": lambda: os.mkfifo(index), "link": lambda: index.symlink_to(shelf / "x")}[
            obstacle
        ]()

    assert only(shelf).entry_count == 1
    assert found("apple", shelf) == ["a"]
    assert not (shelf / "x").exists()


def test_listing_works_with_a_damaged_index_that_cannot_be_removed(shelf: Path, index: Path, monkeypatch) -> None:
    put(shelf, "s", header(), say("a", None, "apple"))
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_bytes(b"this is no database" * 500)
    acquire, times = FileLock.acquire, count(1)

    def refused(lock: FileLock) -> None:
        if next(times) > 1:
            raise OSError(37, "No locks available")
        acquire(lock)

    monkeypatch.setattr(FileLock, "acquire", refused)

    assert only(shelf).message_count == 1


def test_listing_works_on_a_full_disk(shelf: Path, monkeypatch) -> None:
    put(shelf, "s", header(), say("a", None, "apple"))

    def full(connection: sqlite3.Connection, inode: int) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(index_database, "_prepare_connection", full)

    assert (only(shelf).entry_count, found("apple", shelf)) == (1, ["a"])


def test_the_index_is_private(shelf: Path, index: Path) -> None:
    put(shelf, "s", header(), say("a", None, "apple"))
    mask = os.umask(0)
    try:
        st.search("apple", dir=shelf)
    finally:
        os.umask(mask)

    assert stat.S_IMODE(index.parent.stat().st_mode) == 0o700
    for path in index.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_index_holds_no_text(shelf: Path, index: Path) -> None:
    put(shelf, "s", header(), say("a", None, "first"), say("b", "a", "the password is swordfish"))
    assert found("swordfish", shelf) == ["b"]

    for path in index.parent.iterdir():
        assert b"swordfish" not in path.read_bytes()
        assert b"password" not in path.read_bytes()


WRITER = """
import sys, sessiontree as st
session = st.open(sys.argv[1])
for number in range(25):
    session.append(st.user(f"apple {sys.argv[2]}-{number}"), parent="root", branch=None)
"""
READER = """
import sys, sessiontree as st
for _ in range(12):
    st.sessions(dir=sys.argv[1])
    st.search("apple", dir=sys.argv[1], limit=5)
"""


def test_several_processes_use_one_index_while_others_write(shelf: Path, index: Path) -> None:
    files = [st.create(file=shelf / f"{name}.jsonl").file for name in "ab"]
    commands = [[WRITER, str(file), str(n)] for n, file in enumerate(files)] + [[READER, str(shelf)]] * 3
    children = [subprocess.Popen([sys.executable, "-c", *command], stderr=subprocess.PIPE) for command in commands]

    for child in children:
        _, errors = child.communicate(timeout=120)
        assert (child.returncode, errors) == (0, b"")

    together = st.sessions(dir=shelf), st.search("apple", dir=shelf, limit=100)
    with sqlite3.connect(index) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    index.unlink()
    assert (st.sessions(dir=shelf), st.search("apple", dir=shelf, limit=100)) == together
    assert len(together[1]) == 50


def test_processes_that_find_a_damaged_index_rebuild_it_once(shelf: Path, index: Path) -> None:
    for name in "abc":
        put(shelf, name, header(id=name), say("x", None, "apple"))
    st.search("apple", dir=shelf)
    index.write_bytes(b"nonsense" * 5000)

    children = [subprocess.Popen([sys.executable, "-c", READER, str(shelf)], stderr=subprocess.PIPE) for _ in range(4)]

    for child in children:
        _, errors = child.communicate(timeout=120)
        assert (child.returncode, errors) == (0, b"")
    assert len(found("apple", shelf)) == 3
    with sqlite3.connect(index) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_concurrent_updates_of_the_index_are_not_overwritten(shelf: Path, index: Path, monkeypatch) -> None:
    path = put(shelf, "s", header(), say("a", None, "apple"))
    real_listing, real_texts = listing._save_scans, word_index._save_chunks
    raced: list[str] = []

    def between(real: Callable[..., Any], other: Callable[[], Any], name: str) -> Callable[..., Any]:
        def keep(*arguments: Any, **named: Any) -> Any:
            if name not in raced:
                raced.append(name)
                with path.open("ab") as file:
                    file.write(build_file(say(f"b{len(raced)}", "a", "berry")))
                other()
            return real(*arguments, **named)

        return keep

    monkeypatch.setattr(listing, "_save_scans", between(real_listing, lambda: only(shelf), "listing"))
    monkeypatch.setattr(word_index, "_save_chunks", between(real_texts, lambda: found("apple", shelf), "texts"))

    assert only(shelf).entry_count == 1
    assert found("apple", shelf) == ["a"]
    assert raced == ["listing", "texts"]
    assert (only(shelf).entry_count, len(found("berry", shelf)), found("apple", shelf)) == (3, 2, ["a"])
    with sqlite3.connect(index) as connection:
        assert connection.execute("SELECT count(*) FROM chunks").fetchone() == (1,)
