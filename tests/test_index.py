"""The index is a cache: with it, without it, stale, damaged or shared, listings and searches say the same."""

from __future__ import annotations

import itertools
import json
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

import sessiontree as st
from sessiontree import catalog
from sessiontree.core.fulltext import fold
from sessiontree.core.query import parse_query
from sessiontree.index import database, helpers, listing, reading, texts
from sessiontree.index.folder import files_in
from sessiontree.store.batch import note
from sessiontree.store.files import identity_of
from tests.builders import file_of, header
from tests.strategies import damaged_sessions, sessions

TIME = "2026-01-01T00:00:00.000Z"


def say(id: str, parent: str | None, text: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    return {"type": "message", "id": id, "parentId": parent, "timestamp": TIME, "message": message, **fields}


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder to put session files into."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    return folder


@pytest.fixture
def index(home: Path) -> Path:
    return home / ".sessiontree" / "index.db"


def put(folder: Path, name: str, *lines: Any) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_bytes(file_of(*lines))
    return path


def only(folder: Path) -> st.SessionSummary:
    (summary,) = st.sessions(dir=folder)
    return summary


def found(query: str, folder: Path) -> list[str]:
    return [hit.entry for hit in st.search(query, dir=folder)]


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where in files reading starts from now on, beside the few bytes that tell whether a file is the same."""
    starts: list[int] = []
    real = reading._take

    def take(fd: int, digest: Any, start: int, stop: int) -> Any:
        starts.append(start)
        return real(fd, digest, start, stop)

    monkeypatch.setattr(reading, "_take", take)
    return starts


# What is listed


def expected(path: Path) -> tuple[Any, ...]:
    """What a summary says of a session, from opening it."""
    try:
        session = st.open(path, read_only=True)
        faults = [problem for problem in session.problems if problem.severity == "fault"]
    except st.FormatError:
        return (True,)
    tree = session.tree
    return (
        bool(faults),
        session.id,
        session.name,
        len(tree),
        sum(isinstance(entry.body, st.Message) for entry in tree),
        sum(not info.archived for info in session.branches),
        session.heads.current,
    )


def told(summary: st.SessionSummary) -> tuple[Any, ...]:
    if summary.branch is None:
        return (summary.damaged,)
    return (
        summary.damaged,
        summary.id,
        summary.name,
        summary.entry_count,
        summary.message_count,
        summary.branch_count,
        summary.branch,
    )


@settings(max_examples=40)
@given(data=hs.one_of(sessions(), damaged_sessions()), cut=hs.integers(0, 40))
def test_a_listing_says_what_opening_the_session_says(data: bytes, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.jsonl"
        path.write_bytes(data[: len(data) - cut])

        assert told(only(Path(folder))) == expected(path)


@settings(max_examples=40)
@given(data=hs.one_of(sessions(), damaged_sessions()), cuts=hs.lists(hs.integers(0, 5000), max_size=4))
def test_an_index_that_grew_with_its_file_equals_one_built_anew(data: bytes, cuts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.jsonl"
        queries = ("role:user", "<<", '"0000"', "read", "x")
        for cut in sorted(cuts):
            path.write_bytes(b"") if not path.exists() else None
            with path.open("r+b") as file:
                file.seek(0, os.SEEK_END)
                file.write(data[file.tell() : max(cut, file.tell())])
            st.sessions(dir=folder)
            st.search("role:user", dir=folder)
        with path.open("ab") as file:
            file.write(data[file.tell() :])

        grown = only(Path(folder)), [st.search(query, dir=folder) for query in queries]
        Path(catalog.home(), database.FILE).unlink()
        built = only(Path(folder)), [st.search(query, dir=folder) for query in queries]

        assert grown == built


def test_a_summary_has_what_a_listing_shows(shelf: Path) -> None:
    path = put(
        shelf,
        "2026_x",
        header(id="x", parentSession="/p/2025_y.jsonl"),
        say("a", None, "how do I\n make it faster?"),
        {"type": "message", "id": "b", "parentId": "a", "message": {"role": "assistant", "usage": {"cost": 0.5}}},
        {"type": "session_info", "id": "c", "parentId": "b", "name": "speed"},
    )
    os.utime(path, ns=(10**18, 10**18))

    assert only(shelf) == st.SessionSummary(
        id="x",
        file=str(path),
        name="speed",
        first_message="how do I make it faster?",
        message_count=2,
        entry_count=3,
        branch_count=1,
        branch="main",
        cost=0.5,
        created=TIME,
        modified="2001-09-09T01:46:40.000Z",
        cwd="/project",
        parent_session="/p/2025_y.jsonl",
        archived=False,
        damage=None,
    )


def test_older_dialects_are_listed_and_searched_as_what_they_become(shelf: Path) -> None:
    old = {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": "an old question"}}
    put(shelf, "old", {"type": "session", "id": "old", "cwd": "/p"}, old, old)

    summary = only(shelf)
    hits = st.search("question", dir=shelf)

    assert (summary.message_count, summary.first_message, summary.damage) == (2, "an old question", None)
    assert [st.open(hit.file).place(hit.entry) for hit in hits] == [hit.entry for hit in hits]
    assert len(hits) == 2


def test_one_bad_file_never_spoils_a_listing(shelf: Path) -> None:
    put(shelf, "good", header(id="good"), say("a", None, "x"))
    (shelf / "empty.jsonl").write_bytes(b"")
    (shelf / "garbage.jsonl").write_bytes(os.urandom(5000))
    (shelf / "torn.jsonl").write_bytes(file_of(header(id="torn"), say("a", None, "x"))[:-9])
    (shelf / "other.jsonl").write_bytes(b'{"type":"message"}\n')
    (shelf / "folder.jsonl").mkdir()
    (shelf / "nobody.jsonl").write_bytes(file_of(header()))
    os.mkfifo(shelf / "pipe.jsonl")
    (shelf / "loop.jsonl").symlink_to("loop.jsonl")
    (shelf / "link.jsonl").symlink_to("good.jsonl")
    (shelf / "device.jsonl").symlink_to("/dev/zero")
    (shelf / "notes.txt").write_text("no session")

    listed = {Path(summary.file).stem: summary for summary in st.sessions(dir=shelf)}

    assert {name for name, summary in listed.items() if not summary.damaged} == {"good", "nobody"}
    assert listed["torn"].entry_count == 0
    assert "unfinished" in (listed["torn"].damage or "")
    assert listed["loop"].damage == listed["link"].damage == "a link, which is not followed"
    assert listed["pipe"].damage == listed["folder"].damage == "not a regular file"
    assert "notes" not in listed
    assert found("x", shelf) == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_that_may_not_be_read_is_listed_as_bad(shelf: Path) -> None:
    put(shelf, "secret", header()).chmod(0)

    assert only(shelf).damage == "Permission denied"


def test_a_file_that_goes_away_while_it_is_listed_is_told(shelf: Path) -> None:
    path = put(shelf, "s", header())
    files = files_in(str(shelf))
    path.unlink()

    (summary,) = catalog.summaries_of(files)

    assert summary.damage == "No such file or directory"


def test_names_that_are_no_utf8_are_listed(shelf: Path) -> None:
    path = os.path.join(os.fsencode(shelf), b"\xff.jsonl")
    with open(path, "wb") as file:
        file.write(file_of(header(name="n\ud800"), say("a", None, "x")))

    for _ in range(2):
        summary = only(shelf)
        assert os.fsencode(summary.file) == path
        assert summary.name == "n?"
        assert st.open(summary.file).id == "s"
    assert found("x", shelf) == ["a"]


def test_a_line_over_the_limit_is_damage_and_is_not_held_in_memory(shelf: Path, monkeypatch) -> None:
    monkeypatch.setattr(reading, "LINE_LIMIT", 1 << 17)
    monkeypatch.setattr("sessiontree.format.codec.LINE_LIMIT", 1 << 17)
    monkeypatch.setattr("sessiontree.format.jsonl.LINE_LIMIT", 1 << 17)
    put(
        shelf,
        "long",
        header(),
        say("a", None, "y" * (1 << 18)),
        say("b", None, "after it"),
        say("c", "b", "z" * 99_999),
    )
    put(shelf, "first", "x" * (1 << 18), header())

    long, first = sorted(st.sessions(dir=shelf), key=lambda summary: summary.file, reverse=True)

    assert "over the limit" in (long.damage or "")
    assert "over the limit" in (first.damage or "")
    assert found("after", shelf) == ["b"]
    assert found("zzz", shelf) == ["c"]


# Staying true


def test_a_file_as_it_was_is_not_read_again(shelf: Path, monkeypatch) -> None:
    put(shelf, "s", header(), say("a", None, "x"))
    before = only(shelf)
    starts = reads(monkeypatch)

    assert only(shelf) == before
    assert starts == []


def test_a_file_that_grew_is_read_from_where_its_last_whole_line_ended(shelf: Path, monkeypatch) -> None:
    path = put(shelf, "s", header(), say("a", None, "x"))
    only(shelf)
    size = path.stat().st_size
    starts = reads(monkeypatch)

    with path.open("ab") as file:
        file.write(file_of(say("b", "a", "y"), say("c", "b", "z"))[:-5])
    torn = only(shelf)
    with path.open("ab") as file:
        file.write(file_of(say("c", "b", "z"))[-5:])
    whole = only(shelf)

    assert (torn.entry_count, torn.damaged) == (2, True)
    assert (whole.entry_count, whole.damaged) == (3, False)
    assert starts == [size, size + len(file_of(say("b", "a", "y")))]


def test_a_last_line_without_newline_counts_and_may_still_grow(shelf: Path) -> None:
    path = put(shelf, "s", header(), say("a", None, "x"), say("b", "a", "y"))
    path.write_bytes(path.read_bytes()[:-1])
    assert (only(shelf).entry_count, found("y", shelf)) == (2, ["b"])

    with path.open("ab") as file:
        file.write(b"\n" + file_of(say("c", "b", "w")))

    assert (only(shelf).entry_count, only(shelf).damaged) == (3, False)
    assert (found("y", shelf), found("w", shelf)) == (["b"], ["c"])


def test_a_batch_that_is_not_all_there_does_not_count(shelf: Path) -> None:
    path = put(shelf, "s", header(), say("a", None, "apple"))
    start = path.stat().st_size
    rest = file_of(say("b", "a", "berry"), say("c", "b", "cherry"))
    with open(f"{path}.lock", "wb", buffering=0) as lock:
        note(lock.fileno(), identity_of(path.stat()), start, rest)
    with path.open("ab") as file:
        file.write(rest[:-20])

    cut = only(shelf)
    assert told(cut) == expected(path)
    assert (cut.entry_count, cut.damage) == (1, f"the last line is unfinished ({len(rest) - 20} bytes)")
    assert (found("berry", shelf), found("apple", shelf)) == ([], ["a"])

    with path.open("ab") as file:
        file.write(rest[-20:])

    assert (only(shelf).entry_count, only(shelf).damage) == (3, None)
    assert (found("berry", shelf), found("cherry", shelf)) == (["b"], ["c"])


def change_in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(data)
    os.utime(path, ns=(path.stat().st_mtime_ns + 10**9,) * 2)


@pytest.mark.parametrize("change", ["replaced", "truncated", "rewritten", "same size", "rewritten and longer"])
def test_a_file_that_is_another_one_is_read_anew(shelf: Path, change: str) -> None:
    path = put(shelf, "s", header(), say("a", None, "apple"), say("b", "a", "berry"))
    assert (only(shelf).entry_count, found("berry", shelf)) == (2, ["b"])

    new = {
        "replaced": file_of(header(name="other"), say("a", None, "apple"), say("c", "a", "cherry")),
        "truncated": file_of(header(), say("a", None, "apple")),
        "rewritten": file_of(header(), say("c", None, "cherry")),
        "same size": file_of(header(), say("a", None, "apple"), say("c", "a", "grape")),
        "rewritten and longer": file_of(header(), *(say(f"c{n}", None, "cherry") for n in range(9))),
    }[change]
    if change == "replaced":
        other = shelf / "other"
        other.write_bytes(new)
        other.rename(path)
    else:
        change_in_place(path, new)

    assert told(only(shelf)) == expected(path)
    assert found("berry", shelf) == []
    assert len(found("apple", shelf)) == new.count(b"apple")
    assert len(found("cherry", shelf)) == new.count(b"cherry")


def test_a_name_that_another_program_wrote_over_the_old_one_is_seen(shelf: Path) -> None:
    slot = '{"type":"title","v":1,"title":"%s","pad":"  "}'
    path = put(shelf, "s", slot % "one", header(), say("a", None, "x"))
    assert only(shelf).name == "one"

    with path.open("r+b") as file:
        file.write((slot % "two").encode())
        file.seek(0, os.SEEK_END)
        file.write(file_of(say("b", "a", "y")))

    assert (only(shelf).name, only(shelf).entry_count) == ("two", 2)


def test_what_is_gone_is_forgotten(shelf: Path, index: Path) -> None:
    path = put(shelf, "s", header(), say("a", None, "apple"))
    put(shelf, "t", header(id="t"), say("b", None, "berry"))
    assert found("apple", shelf) == ["a"]

    path.unlink()

    assert [summary.id for summary in st.sessions(dir=shelf)] == ["t"]
    assert (found("apple", shelf), found("berry", shelf)) == ([], ["b"])
    with sqlite3.connect(index) as connection:
        assert connection.execute("SELECT count(*) FROM files").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM chunks").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM ids").fetchone() == (1,)


def test_helpers_read_what_one_process_would_read(shelf: Path, index: Path, monkeypatch) -> None:
    for number in range(12):
        put(shelf, f"s{number}", header(id=f"s{number}"), say("a", None, f"apple {number}"), say("b", "a", "x"))
    put(shelf, "bad", "nonsense")
    put(shelf, "orphan", header(id="orphan"), say("a", "gone", "apple"))
    with open(os.path.join(os.fsencode(shelf), b"\xff.jsonl"), "wb") as file:
        file.write(file_of(header(id="odd")))
    alone = st.sessions(dir=shelf)
    index.unlink()
    monkeypatch.setattr(helpers, "WORTH_IT", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    started: list[helpers.Helper] = []
    real = helpers.Helper.readings

    def readings(helper: helpers.Helper) -> Any:
        started.append(helper)
        return real(helper)

    monkeypatch.setattr(helpers.Helper, "readings", readings)

    assert st.sessions(dir=shelf) == alone
    assert [len(helper.share) > 0 for helper in started] == [True, True]
    assert st.sessions(dir=shelf) == alone
    assert len(found("apple", shelf)) == 13


@pytest.mark.parametrize("program", ["/bin/false", "/bin/true", "/nowhere", ""])
def test_the_share_of_a_helper_that_fails_is_read_all_the_same(shelf: Path, monkeypatch, program: str) -> None:
    for number in range(5):
        put(shelf, f"s{number}", header(id=f"s{number}"), say("a", None, "apple"))
    monkeypatch.setattr(helpers, "WORTH_IT", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    monkeypatch.setattr(sys, "executable", program)

    assert {summary.id for summary in st.sessions(dir=shelf)} == {f"s{number}" for number in range(5)}


def test_a_helper_takes_nothing_from_the_current_folder(shelf: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    put(shelf, "s", header(), say("a", None, "apple"))
    helper = helpers.Helper(files_in(str(shelf)))

    helper._process.wait()
    assert helper._process.returncode == 0
    assert helper._count() == 1
    assert [reading.summary for reading in helper.readings()] == st.sessions(dir=shelf)
    helper.close()


def test_what_a_helper_has_half_written_is_not_taken(shelf: Path) -> None:
    for name in "ab":
        put(shelf, name, header(id=name))
    helper = helpers.Helper(files_in(str(shelf)))
    helper._process.wait()
    size = os.fstat(helper._out.fileno()).st_size

    for cut in (size - 1, size // 2 + 3, 3):
        helper._out.truncate(cut)
        helper._done, helper._at = [], 0
        assert helper._count() == (cut > size // 2)
        assert {reading.summary.id for reading in helper.readings()} == {"a", "b"}
    helper._out.write(b"\0" * 7 + b"\1\xc1")
    helper._out.flush()
    assert helper._count() == 0
    helper.close()


# Damage to the index itself


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
        connection.execute("DROP TABLE ids")


def nonsense_inside(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("UPDATE files SET summary = x'c1', tally = x'c1'")


def ids_that_do_not_fit(index: Path) -> None:
    with sqlite3.connect(index) as connection:
        connection.execute("UPDATE files SET size = size - 1")
        connection.execute("DELETE FROM ids")


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
    ],
)
def test_a_missing_damaged_or_foreign_index_is_made_anew(shelf: Path, index: Path, harm) -> None:
    put(shelf, "s", header(), say("a", None, "apple"), say("b", "a", "berry"))
    before = st.sessions(dir=shelf), st.search("apple", dir=shelf)

    harm(index)

    assert (st.sessions(dir=shelf), st.search("apple", dir=shelf)) == before
    with sqlite3.connect(index) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (database.VERSION,)
        assert connection.execute("SELECT count(*) FROM files").fetchone() == (1,)


@pytest.mark.parametrize("obstacle", ["folder", "pipe", "link", "home is a file"])
def test_where_there_can_be_no_index_everything_works_without(shelf: Path, index: Path, obstacle: str) -> None:
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


def test_a_full_disk_is_no_obstacle(shelf: Path, monkeypatch) -> None:
    put(shelf, "s", header(), say("a", None, "apple"))

    def full(connection: sqlite3.Connection, inode: int) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(database, "_prepare", full)

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


def test_nothing_is_made_where_there_is_nothing_to_list(home: Path) -> None:
    assert (st.sessions(), st.sessions(all=True), st.search("x", all=True)) == ([], [], [])
    assert not home.exists()


# Searching


def test_words_of_any_script_and_length_are_found(shelf: Path) -> None:
    said = {
        "a": "Ein Stück Käse",
        "b": "我们用缓存吧",
        "c": "кэш и словарь",
        "d": "a b c",
        "e": "x",
        "f": "カフェで😀",
        "g": "half \ud83d",
        "h": "ﬁnal K",
    }
    put(shelf, "s", header(), *(say(id, None, text) for id, text in said.items()))

    for id, query in [
        ("a", "KÄSE"),
        ("a", "ka\u0308se"),
        ("a", "ü"),
        ("a", '"ein stück"'),
        ("b", "缓存"),
        ("b", "吧"),
        ("b", "用缓存"),
        ("c", "Словарь"),
        ("c", "и"),
        ("d", '"b c"'),
        ("e", "x"),
        ("f", "😀"),
        ("f", "カフェ"),
        ("g", "half"),
        ("h", "final k"),
    ]:
        for _ in range(2):
            assert found(query, shelf) == [id], query
    assert found("缓 存吧 нет", shelf) == []


_texts = hs.text(hs.sampled_from('abB \n\u3000"/\\.ée\u0301ßsﬁ缓存'), max_size=12)


@settings(max_examples=60)
@given(said=hs.lists(_texts, min_size=1, max_size=4), query=hs.lists(_texts, max_size=1), data=hs.data())
def test_a_search_finds_what_comparing_every_entry_finds(
    said: list[str], query: list[str], data: hs.DataObject
) -> None:
    source = data.draw(hs.sampled_from(said))
    start = data.draw(hs.integers(0, len(source)))
    words = " ".join(f'"{part}"' for part in [*query, source[start : start + 4].replace('"', "")])
    try:
        wanted = parse_query(words, now=0)
    except st.InvalidOperation:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, escaped in (("plain", False), ("escaped", True)):
            lines = [json.dumps(say(f"{name}{n}", None, text), ensure_ascii=escaped) for n, text in enumerate(said)]
            put(Path(folder), name, header(id=name), *lines)

        hits = {hit.entry for hit in st.search(words, dir=folder)}

    assert hits == {
        f"{name}{number}"
        for number, text in enumerate(said)
        if wanted.matches(fold(text))
        for name in ("plain", "escaped")
    }


def test_the_letters_that_the_sieve_lets_pass_are_all_that_fold_to_ascii() -> None:
    alike = {
        chr(code)
        for code in range(128, 0x30000)
        if not 0xD800 <= code < 0xE000 and any(letter.isascii() for letter in fold(chr(code)))
    }

    assert {letter for letter in alike if not texts._ALIKE.fullmatch(letter.encode())} == set()


def test_punctuation_is_compared_too(shelf: Path) -> None:
    put(shelf, "s", header(), say("a", None, "x->y, a::b"), say("b", None, "x y a b"))

    assert found("->", shelf) == found("a::b", shelf) == found('"y, a"', shelf) == ["a"]
    assert sorted(found("x y", shelf)) == ["a", "b"]


def test_letters_that_are_escaped_in_the_file_are_found(shelf: Path) -> None:
    (shelf / "s.jsonl").write_bytes(
        file_of(
            header(), '{"type":"message","id":"a","message":{"role":"user","content":"\\u0063ache\\nd\\u00e9j\\u00e0"}}'
        )
    )

    assert found("cache", shelf) == found("déjà", shelf) == found('"cache déjà"', shelf) == ["a"]


def test_entries_of_all_branches_are_found_with_where_they_are() -> None:
    session = st.create(name="auth", cwd="/p")
    first = session.append(st.user("common apple"))
    left = session.append(st.user("left apple"))
    session.create_branch("b", at=first)
    here = session.append(st.user("here apple"))
    session.append(st.Compaction(summary="done", first_kept=here.id))
    session.switch(here)
    gone = session.append(st.user("gone apple"))
    session.switch(here)

    hits = {hit.entry: hit for hit in st.search("apple", all=True)}

    assert {id: (hit.branch, hit.in_context) for id, hit in hits.items()} == {
        first.id: ("b", True),
        left.id: ("main", False),
        here.id: ("b", True),
        gone.id: (None, False),
    }
    assert (hits[here.id].session, hits[here.id].name, hits[here.id].role) == (session.id, "auth", "user")
    assert hits[here.id].snippet == "here apple"
    for hit in hits.values():
        assert st.open(hit.session).place(hit.entry) == hit.entry


def test_what_a_compaction_stands_for_is_not_in_context() -> None:
    session = st.create(cwd="/p")
    first, kept = session.extend([st.user("apple one"), st.user("apple two")])
    session.append(st.Compaction(summary="apple three", first_kept=kept.id))

    hits = {hit.snippet: hit.in_context for hit in st.search("apple", all=True)}

    assert hits == {"apple one": False, "apple two": True, "apple three": True}
    assert first.id


def test_hits_are_limited_newest_first(shelf: Path, monkeypatch) -> None:
    monkeypatch.setattr(texts, "CHUNK", 20)
    for name, minutes in (("s", (1, 5, 3)), ("t", (4, 2))):
        lines = [say(f"{name}{m}", None, "apple pie", timestamp=f"2026-01-01T00:0{m}:00.000Z") for m in minutes]
        put(shelf, name, header(id=name), *lines)

    assert found("apple", shelf) == ["s5", "t4", "s3", "t2", "s1"]
    assert [hit.entry for hit in st.search("apple", dir=shelf, limit=2)] == ["s5", "t4"]
    assert [hit.entry for hit in st.search("since:2026-01-01T00:04", dir=shelf)] == ["s5", "t4"]


def test_roles_narrow_a_search(shelf: Path) -> None:
    put(
        shelf,
        "s",
        header(),
        say("a", None, "apple"),
        say("b", "a", "", message={"role": "toolResult", "content": [{"type": "text", "text": "apple"}]}),
        {"type": "label", "id": "c", "parentId": "b", "targetId": "a", "label": "apple"},
    )

    assert found("apple role:user", shelf) == ["a"]
    assert found("apple role:tool", shelf) == ["b"]
    assert found("role:label", shelf) == ["c"]


def test_of_entries_with_one_id_the_last_is_found(shelf: Path) -> None:
    put(shelf, "s", header(), say("a", None, "apple"), say("a", None, "berry"))

    assert (found("apple", shelf), found("berry", shelf)) == ([], ["a"])


def test_a_damaged_session_is_searched_all_the_same(shelf: Path) -> None:
    head = {"type": "custom", "customType": "sessiontree.head", "id": "h", "parentId": None}
    put(shelf, "s", header(), say("a", "gone", "apple"), "nonsense apple", {**head, "data": {"heads": {"main": "x"}}})

    (hit,) = st.search("apple", dir=shelf)

    assert (hit.entry, hit.branch, hit.in_context) == ("a", None, False)


def test_a_snippet_is_one_line_round_what_was_found() -> None:
    def cut(text: str, query: str) -> str:
        return texts.snippet(text, parse_query(query, now=0).terms)

    long = "word " * 100

    assert cut("a\nb  c", "b") == "a b c"
    assert cut(f"{long}needle {long}", "needle").startswith("…")
    assert "needle" in cut(f"{long}needle {long}", "NEEDLE")
    assert cut(f"{long}STRASSE", "straße").endswith("STRASSE")
    assert cut(long, "role:user").startswith("word word")


def test_many_small_updates_do_not_fill_the_index_with_what_is_gone(shelf: Path, index: Path, monkeypatch) -> None:
    monkeypatch.setattr(texts, "COMMON", 3)
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


def test_large_files_are_taken_in_piece_by_piece(shelf: Path, index: Path, monkeypatch) -> None:
    monkeypatch.setattr(texts, "CHUNK", 200)
    monkeypatch.setattr(texts, "AT_ONCE", 50)
    lines = [say(f"e{n}", f"e{n - 1}" if n else None, f"word{n} " * 20) for n in range(60)]
    path = put(shelf, "s", header(), *lines)
    steps: list[tuple[int, int]] = []

    hits = st.search("word59", dir=shelf, progress=lambda done, total: steps.append((done, total)))

    assert [hit.entry for hit in hits] == ["e59"]
    assert len(steps) > 3
    assert steps[-1][0] == steps[-1][1]
    assert [found(f"word{n}*", shelf)[-1:] for n in (7, 33)] == [["e7"], ["e33"]]
    with sqlite3.connect(index) as connection:
        rows = connection.execute("SELECT start, stop FROM chunks ORDER BY start").fetchall()
    assert rows[0][0] == len(file_of(header()))
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(rows))
    assert rows[-1][1] == path.stat().st_size


# Many processes

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


def test_processes_that_find_the_index_damaged_make_one_new_one(shelf: Path, index: Path) -> None:
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


def test_what_another_process_has_written_meanwhile_is_not_written_over(shelf: Path, index: Path, monkeypatch) -> None:
    path = put(shelf, "s", header(), say("a", None, "apple"))
    real_listing, real_texts = listing._keep, texts._keep
    raced: list[str] = []

    def between(real: Callable[..., Any], other: Callable[[], Any], name: str) -> Callable[..., Any]:
        def keep(*arguments: Any, **named: Any) -> Any:
            if name not in raced:
                raced.append(name)
                with path.open("ab") as file:
                    file.write(file_of(say(f"b{len(raced)}", "a", "berry")))
                other()
            return real(*arguments, **named)

        return keep

    monkeypatch.setattr(listing, "_keep", between(real_listing, lambda: only(shelf), "listing"))
    monkeypatch.setattr(texts, "_keep", between(real_texts, lambda: found("apple", shelf), "texts"))

    assert only(shelf).entry_count == 1
    assert found("apple", shelf) == ["a"]
    assert raced == ["listing", "texts"]
    assert (only(shelf).entry_count, len(found("berry", shelf)), found("apple", shelf)) == (3, 2, ["a"])
    with sqlite3.connect(index) as connection:
        assert connection.execute("SELECT count(*) FROM chunks").fetchone() == (1,)
