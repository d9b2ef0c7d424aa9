"""Words are indexed in parts, and words of removed entries are removed."""

import itertools
import json
import os
import sqlite3
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as hs

from sessiontree.core.query import parse_query
from sessiontree.core.search_text import fold
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import InvalidOperation
from sessiontree.library.index import session_search, word_index
from sessiontree.library.index.word_index import Prefilter, is_older
from tests.builders import build_file, header
from tests.library.session_folders import say, search_ids, write_session


def test_many_small_updates_do_not_bloat_the_index(session_folder: Path, index: Path, monkeypatch) -> None:
    monkeypatch.setattr(word_index, "COMMON_LIMIT", 3)
    path = write_session(session_folder, "s", header(), say("a0", None, "apple 0"))
    for number in range(1, 12):
        search_ids("apple", session_folder)
        with path.open("ab") as file:
            file.write(build_file(say(f"a{number}", f"a{number - 1}", f"apple {number}")))

    assert len(search_ids("apple", session_folder)) == 12
    assert search_ids('"apple 7"', session_folder) == ["a7"]
    with sqlite3.connect(index) as connection:
        (made,) = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'chunks'").fetchone()
        assert made <= 7
        assert connection.execute("SELECT count(*) FROM chunks").fetchone() == (1,)


def test_large_files_are_indexed_in_several_transactions(session_folder: Path, index: Path, monkeypatch) -> None:
    monkeypatch.setattr(word_index, "CHUNK_SIZE", 200)
    monkeypatch.setattr(word_index, "TRANSACTION_SIZE", 50)
    lines = [say(f"e{n}", f"e{n - 1}" if n else None, f"word{n} " * 20) for n in range(60)]
    path = write_session(session_folder, "s", header(), *lines)

    assert search_ids("word59", session_folder) == ["e59"]
    assert [search_ids(f"word{n}*", session_folder)[-1:] for n in (7, 33)] == [["e7"], ["e33"]]
    with sqlite3.connect(index) as connection:
        rows = connection.execute("SELECT start, stop FROM chunks ORDER BY start").fetchall()
    assert rows[0][0] == len(build_file(header()))
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(rows))
    assert rows[-1][1] == path.stat().st_size


def test_a_search_indexes_only_as_much_as_its_time_budget_allows(
    session_folder: Path, index: Path, monkeypatch
) -> None:
    monkeypatch.setattr(word_index, "CHUNK_SIZE", 200)
    monkeypatch.setattr(
        session_search, "index_texts", lambda db, files, seconds: word_index.index_texts(db, files, seconds=0)
    )
    for name in "st":
        lines = [say(f"{name}{n}", f"{name}{n - 1}" if n else None, f"word{n} " * 20) for n in range(5)]
        write_session(session_folder, name, header(id=name), *lines)

    taken: list[int] = []
    while not taken or taken[-1] < 12:
        assert sorted(search_ids("word3", session_folder)) == ["s3", "t3"]
        with sqlite3.connect(index) as connection:
            taken += connection.execute("SELECT count(*) FROM chunks").fetchone()
            (left,) = connection.execute("SELECT count(*) FROM files WHERE text_to < read_to").fetchone()
        if not left:
            break

    assert taken == sorted(taken)
    assert len(taken) >= 6
    assert [search_ids(f"word{n}", session_folder) for n in (0, 4)] == [["t0", "s0"], ["t4", "s4"]]


def test_an_empty_session_in_an_older_dialect_does_not_rebuild_the_index_each_time(
    session_folder: Path, index: Path
) -> None:
    old = header(version=1, id="old")
    (session_folder / "old.jsonl").write_bytes(build_file(old) + b"no entry\n\n")
    write_session(session_folder, "s", header(id="s"), say("a", None, "apple"))
    assert search_ids("apple", session_folder) == ["a"]

    with index.open("rb") as before:  # otherwise another file could get its inode number
        assert search_ids("apple", session_folder) == search_ids("apple", session_folder) == ["a"]
        assert index.stat().st_ino == os.fstat(before.fileno()).st_ino


# The prefilter


LETTERS = 'aKsStT \n\t"\\/.éÉe\u0301ßﬁẗ\u212aſ缓存\uf900がか\u3099각\u1100\u1161\u11a8Жж\u1c80'


@given(
    texts=hs.lists(hs.text(hs.sampled_from(LETTERS), max_size=10), min_size=1, max_size=4),
    start=hs.integers(0, 10),
    size=hs.integers(1, 5),
    escaped=hs.booleans(),
)
def test_matching_lines_pass_the_prefilter_alone_and_among_others(
    texts: list[str], start: int, size: int, escaped: bool
) -> None:
    for words in (texts[0][start : start + size], fold(texts[0])[start : start + size]):
        try:
            query = parse_query(f'"{words.replace(chr(34), "")}"', now=0)
        except InvalidOperation:
            continue
        made = Prefilter(query.terms)
        lines = [json.dumps({"content": text}, ensure_ascii=escaped).encode() for text in texts]

        for text, line in zip(texts, lines, strict=True):
            if query.matches(fold(text)):
                assert made.can_match(line)
                assert made.can_match(b"\n".join(lines))


@pytest.mark.parametrize("query", ["pear", "缓", "ü", '"two ways"', "é", "각"])
def test_unrelated_lines_do_not_pass_the_prefilter(query: str) -> None:
    lines = json.dumps({"content": "an apple, two of them, or 存 と ö e\u0300 \u1100\u1161\u11a9"}, ensure_ascii=False)

    assert not Prefilter(parse_query(query, now=0).terms).can_match(lines.encode())


def test_all_combining_marks_are_known() -> None:
    seconds = {
        unicodedata.normalize("NFD", chr(code))[-1]
        for code in range(0xC0, sys.maxunicode + 1)
        if len(unicodedata.normalize("NFD", chr(code))) > 1
    }

    assert {
        letter for letter in seconds if unicodedata.is_normalized("NFC", letter)
    } <= word_index.list_combining_marks()


@pytest.mark.parametrize(
    ("line", "older"),
    [
        (b'{"timestamp":"2026-01-01T00:00:00.000Z"}', True),
        (b'{"timestamp" : "2026-01-01T00:00:00.000Z"}\n{"timestamp":"2026-01-02T00:00:00.000Z"}', True),
        (b'{"timestamp":"2026-01-01T00:00:00.000Z"}\n{"timestamp":"2026-01-03T00:00:00.000Z"}', False),
        (b'{"timestamp":"2026-01-01"}', False),
        (b'{"timestamp":"2026-01-01T00:00:00.000-24"}', False),
        (b'{"timestamp":"2025-99-99T00:00:00.000Z"}', False),
        (b'{"timestamp":"2025-W01-1T00:00:00.000Z"}', False),
        (b'{"timestam\\u0070":"2027-01-01T00:00:00.000Z"}', False),
        (b"{}", True),
    ],
)
def test_a_line_counts_as_older_only_if_that_is_certain(line: bytes, older: bool) -> None:
    assert is_older(line, parse_timestamp("2026-01-03T00:00:00.000Z") or 0) is older


def test_the_prefilter_passes_all_letters_that_fold_to_ascii() -> None:
    alike = {
        chr(code)
        for code in range(128, 0x30000)
        if not 0xD800 <= code < 0xE000 and any(letter.isascii() for letter in fold(chr(code)))
    }

    assert alike <= word_index.FOLDED_LETTERS.keys()
