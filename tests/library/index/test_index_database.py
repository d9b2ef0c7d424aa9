"""The index is a cache: listings and searches are the same if it is missing, damaged or shared."""

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
from tests.library.session_folders import read_only_summary, say, search_ids, write_session


def corrupt(index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[100:4000] = os.urandom(3900)
    data[len(data) // 2 :] = os.urandom(len(data) - len(data) // 2)
    index.write_bytes(data)


def set_other_version(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA user_version = 99")


def drop_table(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("DROP TABLE entries")


def write_invalid_summaries(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("UPDATE files SET summary = x'c1', tally = x'c1'")


def delete_entry_ids(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("UPDATE files SET size = size - 1")
        connection.execute("DELETE FROM entries")


def build_change(statement: str) -> Callable[[Path], None]:
    def damage(index: Path) -> None:
        with sqlite3.connect(index) as connection:
            connection.execute(statement)

    return damage


def write_invalid_text(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    index.write_bytes(index.read_bytes().replace(b"NOT NULL", b"NOT \xd2\xd2LL"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda index: index.unlink(),
        lambda index: index.write_bytes(b""),
        lambda index: index.write_bytes(b"this is no database" * 500),
        lambda index: os.truncate(index, 5000),
        corrupt,
        set_other_version,
        drop_table,
        write_invalid_summaries,
        delete_entry_ids,
        write_invalid_text,
        build_change("UPDATE files SET summary = CAST(replace(summary, 'apple', x'e5e5e5e5e5') AS BLOB)"),
        build_change("UPDATE files SET summary = 5"),
        build_change("UPDATE files SET kind = 99"),
        build_change("UPDATE files SET read_to = 'x'"),
        build_change("UPDATE files SET text_to = 1.5"),
        build_change("UPDATE files SET tally = 'x'"),
        build_change("UPDATE files SET generation = 'x', size = size - 1"),
        build_change("UPDATE entries SET entries = 5"),
        build_change("UPDATE chunks SET start = 'x'"),
        build_change("UPDATE chunks SET newest = 'x'"),
        build_change("UPDATE chunks SET newest = newest + 1"),
        build_change("DELETE FROM chunks"),
        build_change("UPDATE chunks SET file = file + 1"),
        build_change("UPDATE files SET summary = CAST(replace(summary, 'apple', 'apply') AS BLOB)"),
        build_change("UPDATE files SET tally = CAST(replace(tally, 'apple', 'apply') AS BLOB), size = size - 1"),
        build_change("UPDATE files SET kind = 2"),
        build_change("UPDATE entries SET entries = CAST(replace(entries, 'b', 'c') AS BLOB)"),
        build_change("UPDATE words_data SET block = CAST(replace(block, 'app', 'apq') AS BLOB)"),
        build_change("UPDATE words_data SET block = 5"),
        build_change("DELETE FROM words_idx"),
        build_change("DELETE FROM words_check"),
        build_change("PRAGMA application_id = 5"),
    ],
)
def test_a_missing_damaged_or_foreign_index_is_rebuilt(session_folder: Path, index: Path, damage) -> None:
    write_session(session_folder, "s", header(), say("a", None, "apple"), say("b", "a", "berry"))
    before = st.sessions(dir=session_folder), st.search("apple", dir=session_folder)

    damage(index)

    assert (st.sessions(dir=session_folder), st.search("apple", dir=session_folder)) == before
    with sqlite3.connect(index) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (index_database.INDEX_VERSION,)
        assert connection.execute("SELECT count(*) FROM files").fetchone() == (1,)


@pytest.mark.parametrize("obstacle", ["folder", "pipe", "link", "home is a file"])
def test_listing_and_search_work_without_an_index(session_folder: Path, index: Path, obstacle: str) -> None:
    write_session(session_folder, "s", header(), say("a", None, "apple"))
    if obstacle == "home is a file":
        index.parent.parent.mkdir(exist_ok=True)
        index.parent.write_text("")
    else:
        index.parent.mkdir(parents=True)
        {
            "folder": index.mkdir,
            "pipe": lambda: os.mkfifo(index),
            "link": lambda: index.symlink_to(session_folder / "x"),
        }[obstacle]()

    assert read_only_summary(session_folder).entry_count == 1
    assert search_ids("apple", session_folder) == ["a"]
    assert not (session_folder / "x").exists()


def test_listing_works_with_a_damaged_index_that_cannot_be_removed(
    session_folder: Path, index: Path, monkeypatch
) -> None:
    write_session(session_folder, "s", header(), say("a", None, "apple"))
    index.parent.mkdir(parents=True, exist_ok=True)
    index.write_bytes(b"this is no database" * 500)
    acquire, times = FileLock.acquire, count(1)

    def raise_refused(lock: FileLock) -> None:
        if next(times) > 1:
            raise OSError(37, "No locks available")
        acquire(lock)

    monkeypatch.setattr(FileLock, "acquire", raise_refused)

    assert read_only_summary(session_folder).message_count == 1


def test_listing_works_on_a_full_disk(session_folder: Path, monkeypatch) -> None:
    write_session(session_folder, "s", header(), say("a", None, "apple"))

    def raise_disk_full(connection: sqlite3.Connection, inode: int) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(index_database, "_prepare_connection", raise_disk_full)

    assert (read_only_summary(session_folder).entry_count, search_ids("apple", session_folder)) == (1, ["a"])


def test_the_index_is_private(session_folder: Path, index: Path) -> None:
    write_session(session_folder, "s", header(), say("a", None, "apple"))
    mask = os.umask(0)
    try:
        st.search("apple", dir=session_folder)
    finally:
        os.umask(mask)

    assert stat.S_IMODE(index.parent.stat().st_mode) == 0o700
    for path in index.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_index_holds_no_text(session_folder: Path, index: Path) -> None:
    write_session(session_folder, "s", header(), say("a", None, "first"), say("b", "a", "the password is swordfish"))
    assert search_ids("swordfish", session_folder) == ["b"]

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


def test_several_processes_use_one_index_while_others_write(session_folder: Path, index: Path) -> None:
    files = [st.create(file=session_folder / f"{name}.jsonl").file for name in "ab"]
    commands = [[WRITER, str(file), str(n)] for n, file in enumerate(files)] + [[READER, str(session_folder)]] * 3
    children = [subprocess.Popen([sys.executable, "-c", *command], stderr=subprocess.PIPE) for command in commands]

    for child in children:
        _, errors = child.communicate(timeout=120)
        assert (child.returncode, errors) == (0, b"")

    together = st.sessions(dir=session_folder), st.search("apple", dir=session_folder, limit=100)
    with sqlite3.connect(index) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    index.unlink()
    assert (st.sessions(dir=session_folder), st.search("apple", dir=session_folder, limit=100)) == together
    assert len(together[1]) == 50


def test_processes_that_find_a_damaged_index_rebuild_it_once(session_folder: Path, index: Path) -> None:
    for name in "abc":
        write_session(session_folder, name, header(id=name), say("x", None, "apple"))
    st.search("apple", dir=session_folder)
    index.write_bytes(b"nonsense" * 5000)

    children = [
        subprocess.Popen([sys.executable, "-c", READER, str(session_folder)], stderr=subprocess.PIPE) for _ in range(4)
    ]

    for child in children:
        _, errors = child.communicate(timeout=120)
        assert (child.returncode, errors) == (0, b"")
    assert len(search_ids("apple", session_folder)) == 3
    with sqlite3.connect(index) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_concurrent_updates_of_the_index_are_not_overwritten(session_folder: Path, index: Path, monkeypatch) -> None:
    path = write_session(session_folder, "s", header(), say("a", None, "apple"))
    real_listing, real_texts = listing._save_scans, word_index._save_chunks
    raced: list[str] = []

    def build_racing_call(real: Callable[..., Any], other: Callable[[], Any], name: str) -> Callable[..., Any]:
        def race_and_call(*arguments: Any, **named: Any) -> Any:
            if name not in raced:
                raced.append(name)
                with path.open("ab") as file:
                    file.write(build_file(say(f"b{len(raced)}", "a", "berry")))
                other()
            return real(*arguments, **named)

        return race_and_call

    monkeypatch.setattr(
        listing, "_save_scans", build_racing_call(real_listing, lambda: read_only_summary(session_folder), "listing")
    )
    monkeypatch.setattr(
        word_index, "_save_chunks", build_racing_call(real_texts, lambda: search_ids("apple", session_folder), "texts")
    )

    assert read_only_summary(session_folder).entry_count == 1
    assert search_ids("apple", session_folder) == ["a"]
    assert raced == ["listing", "texts"]
    assert (
        read_only_summary(session_folder).entry_count,
        len(search_ids("berry", session_folder)),
        search_ids("apple", session_folder),
    ) == (3, 2, ["a"])
    with sqlite3.connect(index) as connection:
        assert connection.execute("SELECT count(*) FROM chunks").fetchone() == (1,)
