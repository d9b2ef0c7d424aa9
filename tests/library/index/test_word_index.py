"""Words are taken in piece by piece, and those that are gone do not stay for ever."""

from __future__ import annotations

import itertools
import os
import sqlite3
from pathlib import Path

from sessiontree.library.index import session_search, word_index
from tests.builders import file_of, header
from tests.library.session_folders import found, put, say


def test_many_small_updates_do_not_bloat_the_index(shelf: Path, index: Path, monkeypatch) -> None:
    monkeypatch.setattr(word_index, "COMMON_LIMIT", 3)
    path = put(shelf, "s", header(), say("a0", None, "apple 0"))
    for number in range(1, 12):
        found("apple", shelf)
        with path.open("ab") as file:
            file.write(file_of(say(f"a{number}", f"a{number - 1}", f"apple {number}")))

    assert len(found("apple", shelf)) == 12
    assert found('"apple 7"', shelf) == ["a7"]
    with sqlite3.connect(index) as connection:
        (made,) = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'chunks'").fetchone()
        assert made <= 7
        assert connection.execute("SELECT count(*) FROM chunks").fetchone() == (1,)


def test_large_files_are_indexed_in_several_transactions(shelf: Path, index: Path, monkeypatch) -> None:
    monkeypatch.setattr(word_index, "CHUNK_SIZE", 200)
    monkeypatch.setattr(word_index, "TRANSACTION_SIZE", 50)
    lines = [say(f"e{n}", f"e{n - 1}" if n else None, f"word{n} " * 20) for n in range(60)]
    path = put(shelf, "s", header(), *lines)

    assert found("word59", shelf) == ["e59"]
    assert [found(f"word{n}*", shelf)[-1:] for n in (7, 33)] == [["e7"], ["e33"]]
    with sqlite3.connect(index) as connection:
        rows = connection.execute("SELECT start, stop FROM chunks ORDER BY start").fetchall()
    assert rows[0][0] == len(file_of(header()))
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(rows))
    assert rows[-1][1] == path.stat().st_size


def test_a_search_indexes_only_as_much_as_its_time_budget_allows(shelf: Path, index: Path, monkeypatch) -> None:
    monkeypatch.setattr(word_index, "CHUNK_SIZE", 200)
    monkeypatch.setattr(
        session_search, "index_texts", lambda db, files, seconds: word_index.index_texts(db, files, seconds=0)
    )
    for name in "st":
        lines = [say(f"{name}{n}", f"{name}{n - 1}" if n else None, f"word{n} " * 20) for n in range(5)]
        put(shelf, name, header(id=name), *lines)

    taken: list[int] = []
    while not taken or taken[-1] < 12:
        assert sorted(found("word3", shelf)) == ["s3", "t3"]
        with sqlite3.connect(index) as connection:
            taken += connection.execute("SELECT count(*) FROM chunks").fetchone()
            (left,) = connection.execute("SELECT count(*) FROM files WHERE text_to < read_to").fetchone()
        if not left:
            break

    assert taken == sorted(taken)
    assert len(taken) >= 6
    assert [found(f"word{n}", shelf) for n in (0, 4)] == [["t0", "s0"], ["t4", "s4"]]


def test_an_empty_session_in_an_older_dialect_does_not_rebuild_the_index_each_time(shelf: Path, index: Path) -> None:
    old = header(version=1, id="old")
    (shelf / "old.jsonl").write_bytes(file_of(old) + b"no entry\n\n")
    put(shelf, "s", header(id="s"), say("a", None, "apple"))
    assert found("apple", shelf) == ["a"]

    with index.open("rb") as before:  # so that no other file gets its number
        assert found("apple", shelf) == found("apple", shelf) == ["a"]
        assert index.stat().st_ino == os.fstat(before.fileno()).st_ino
