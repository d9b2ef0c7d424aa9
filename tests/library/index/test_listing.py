"""A listing equals what opening each session gives, and one bad file does not affect the others."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

import sessiontree as st
from sessiontree.home import get_home
from sessiontree.library.index import index_database, listing
from sessiontree.library.session_files import get_file_stamp, list_session_files
from tests.builders import build_file, header
from tests.library.session_folders import (
    TIME,
    compute_expected_facts,
    extract_facts,
    read_only_summary,
    say,
    search_ids,
    write_session,
)
from tests.strategies import damaged_sessions, reflowed_sessions, sessions


@settings(max_examples=40)
@given(data=hs.one_of(sessions(), damaged_sessions(), reflowed_sessions()), cut=hs.integers(0, 40))
def test_a_listing_equals_a_summary_of_the_opened_session(data: bytes, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.jsonl"
        path.write_bytes(data[: len(data) - cut])

        assert extract_facts(read_only_summary(Path(folder))) == compute_expected_facts(path)


@settings(max_examples=40)
@given(
    data=hs.one_of(sessions(), damaged_sessions(), reflowed_sessions()), cuts=hs.lists(hs.integers(0, 5000), max_size=4)
)
def test_an_incrementally_updated_index_equals_a_rebuilt_one(data: bytes, cuts: list[int]) -> None:
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

        grown = read_only_summary(Path(folder)), [st.search(query, dir=folder) for query in queries]
        Path(get_home(), index_database.INDEX_NAME).unlink()
        built = read_only_summary(Path(folder)), [st.search(query, dir=folder) for query in queries]

        assert grown == built


def test_a_summary_has_the_fields_of_a_listing(session_folder: Path) -> None:
    path = write_session(
        session_folder,
        "2026_x",
        header(id="x", parentSession="/p/2025_y.jsonl"),
        say("a", None, "how do I\n make it faster?"),
        {"type": "message", "id": "b", "parentId": "a", "message": {"role": "assistant", "usage": {"cost": 0.5}}},
        {"type": "session_info", "id": "c", "parentId": "b", "name": "speed"},
    )
    os.utime(path, ns=(10**18, 10**18))

    assert read_only_summary(session_folder) == st.SessionSummary(
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


def test_invalid_utf8_is_listed_as_damage(session_folder: Path) -> None:
    for name, end in (("s", b"\n"), ("t", b"")):
        line = b'{"type":"message","id":"a","parentId":null,"message":{"role":"user","content":"apple \xff"}}'
        write_session(session_folder, name, header(id=name)).open("ab").write(line + end)

    for _ in range(2):
        assert [extract_facts(summary) for summary in st.sessions(dir=session_folder)] == [
            compute_expected_facts(Path(summary.file)) for summary in st.sessions(dir=session_folder)
        ]
        assert all("not UTF-8" in (summary.damage or "") for summary in st.sessions(dir=session_folder))
    assert search_ids("apple", session_folder) == ["a", "a"]


def test_a_second_listing_equals_the_first(session_folder: Path) -> None:
    write_session(session_folder, "s", header(), say("a", None, "apple"))

    first, again = ([repr(summary) for summary in st.sessions(dir=session_folder)] for _ in range(2))

    assert first == again


def test_older_dialects_are_listed_and_searched_as_if_migrated(session_folder: Path) -> None:
    old = {"type": "message", "timestamp": TIME, "message": {"role": "user", "content": "an old question"}}
    write_session(session_folder, "old", {"type": "session", "id": "old", "cwd": "/p"}, old, old)

    summary = read_only_summary(session_folder)
    hits = st.search("question", dir=session_folder)

    assert (summary.message_count, summary.first_message, summary.damage) == (2, "an old question", None)
    assert [st.open(hit.file).resolve_place(hit.entry) for hit in hits] == [hit.entry for hit in hits]
    assert len(hits) == 2


def test_one_bad_file_does_not_break_a_listing(session_folder: Path) -> None:
    write_session(session_folder, "good", header(id="good"), say("a", None, "x"))
    (session_folder / "empty.jsonl").write_bytes(b"")
    (session_folder / "garbage.jsonl").write_bytes(os.urandom(5000))
    (session_folder / "torn.jsonl").write_bytes(build_file(header(id="torn"), say("a", None, "x"))[:-9])
    (session_folder / "other.jsonl").write_bytes(b'{"type":"message"}\n')
    (session_folder / "folder.jsonl").mkdir()
    (session_folder / "nobody.jsonl").write_bytes(build_file(header()))
    os.mkfifo(session_folder / "pipe.jsonl")
    (session_folder / "loop.jsonl").symlink_to("loop.jsonl")
    (session_folder / "link.jsonl").symlink_to("good.jsonl")
    (session_folder / "device.jsonl").symlink_to("/dev/zero")
    (session_folder / "notes.txt").write_text("no session")

    listed = {Path(summary.file).stem: summary for summary in st.sessions(dir=session_folder)}

    assert {name for name, summary in listed.items() if not summary.is_damaged} == {"good", "nobody"}
    assert listed["torn"].entry_count == 0
    assert "unfinished" in (listed["torn"].damage or "")
    assert listed["loop"].damage == listed["link"].damage == "a link, which is not followed"
    assert listed["pipe"].damage == listed["folder"].damage == "not a regular file"
    assert "notes" not in listed
    assert search_ids("x", session_folder) == ["a"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_an_unreadable_file_is_listed_as_damaged(session_folder: Path) -> None:
    write_session(session_folder, "secret", header()).chmod(0)

    assert read_only_summary(session_folder).damage == "Permission denied"


def test_a_file_removed_during_a_listing_is_listed_with_the_error(session_folder: Path) -> None:
    path = write_session(session_folder, "s", header())
    files = list_session_files(str(session_folder))
    path.unlink()

    (summary,) = index_database.run_with_index(
        get_home(), lambda db: listing.list_summaries(db, files, [str(session_folder)], progress=None)
    )

    assert summary.damage == "No such file or directory"


def test_file_names_that_are_not_utf8_are_listed(session_folder: Path) -> None:
    path = os.path.join(os.fsencode(session_folder), b"\xff.jsonl")
    with open(path, "wb") as file:
        file.write(build_file(header(name="n\ud800"), say("a", None, "x")))

    for _ in range(2):
        summary = read_only_summary(session_folder)
        assert os.fsencode(summary.file) == path
        assert summary.name == "n?"
        assert st.open(summary.file).id == "s"
    assert search_ids("x", session_folder) == ["a"]


def test_inode_numbers_may_be_larger_than_63_bits(session_folder: Path, monkeypatch) -> None:
    path, fstat, lstat = write_session(session_folder, "s", header(), say("a", None, "apple")), os.fstat, os.lstat

    def numbered(which: int | str) -> os.stat_result:
        status = fstat(which) if isinstance(which, int) else lstat(which)
        times = {"st_mtime_ns": status.st_mtime_ns}
        return os.stat_result((status.st_mode, status.st_ino | 1 << 63, *status[2:10]), times)

    fd = os.open(path, os.O_RDONLY)
    few, many = get_file_stamp(fstat(fd)), get_file_stamp(numbered(fd))
    os.close(fd)
    monkeypatch.setattr(os, "fstat", numbered)
    monkeypatch.setattr(os, "lstat", numbered)

    assert (few[:2], few[2] + (1 << 63)) == (many[:2], many[2] + (1 << 64))
    assert (read_only_summary(session_folder).entry_count, search_ids("apple", session_folder)) == (1, ["a"])


def test_removed_files_are_removed_from_the_index(session_folder: Path, index: Path) -> None:
    path = write_session(session_folder, "s", header(), say("a", None, "apple"))
    write_session(session_folder, "t", header(id="t"), say("b", None, "berry"))
    assert search_ids("apple", session_folder) == ["a"]

    path.unlink()

    assert [summary.id for summary in st.sessions(dir=session_folder)] == ["t"]
    assert (search_ids("apple", session_folder), search_ids("berry", session_folder)) == ([], ["b"])
    with sqlite3.connect(index) as connection:
        assert connection.execute("SELECT count(*) FROM files").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM chunks").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (1,)


def test_listing_without_sessions_creates_no_files(home: Path) -> None:
    assert (st.sessions(), st.sessions(all=True), st.search("x", all=True)) == ([], [], [])
    assert not home.exists()


# Reading in several processes


def test_reader_processes_return_the_same_scans_as_one_process(session_folder: Path, index: Path, monkeypatch) -> None:
    for number in range(12):
        write_session(
            session_folder, f"s{number}", header(id=f"s{number}"), say("a", None, f"apple {number}"), say("b", "a", "x")
        )
    write_session(session_folder, "bad", "nonsense")
    write_session(session_folder, "orphan", header(id="orphan"), say("a", "gone", "apple"))
    with open(os.path.join(os.fsencode(session_folder), b"\xff.jsonl"), "wb") as file:
        file.write(build_file(header(id="odd")))
    alone = st.sessions(dir=session_folder)
    index.unlink()
    monkeypatch.setattr(listing, "MIN_SHARE_SIZE", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    started: list[listing.ReaderProcess] = []
    real = listing.ReaderProcess.iter_scans

    def readings(helper: listing.ReaderProcess) -> Any:
        started.append(helper)
        return real(helper)

    monkeypatch.setattr(listing.ReaderProcess, "iter_scans", readings)

    assert st.sessions(dir=session_folder) == alone
    assert [len(helper.share) > 0 for helper in started] == [True, True]
    assert st.sessions(dir=session_folder) == alone
    assert len(search_ids("apple", session_folder)) == 13


@pytest.mark.parametrize("program", ["/bin/false", "/bin/true", "/nowhere", ""])
def test_files_of_a_failed_reader_process_are_still_read(session_folder: Path, monkeypatch, program: str) -> None:
    for number in range(5):
        write_session(session_folder, f"s{number}", header(id=f"s{number}"), say("a", None, "apple"))
    monkeypatch.setattr(listing, "MIN_SHARE_SIZE", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    monkeypatch.setattr(sys, "executable", program)

    assert {summary.id for summary in st.sessions(dir=session_folder)} == {f"s{number}" for number in range(5)}


def test_reader_processes_end_if_another_cannot_start(session_folder: Path, monkeypatch) -> None:
    for number in range(5):
        write_session(session_folder, f"s{number}", header(id=f"s{number}"), say("a", None, "apple"))
    monkeypatch.setattr(listing, "MIN_SHARE_SIZE", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def only_one(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", only_one)

    assert {summary.id for summary in st.sessions(dir=session_folder)} == {f"s{number}" for number in range(5)}
    assert [process.returncode is not None for process in started] == [True]


def test_a_reader_process_imports_nothing_from_the_current_folder(
    session_folder: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    write_session(session_folder, "s", header(), say("a", None, "apple"))
    helper = listing.ReaderProcess(list_session_files(str(session_folder)))

    helper._process.wait()
    assert helper._process.returncode == 0
    assert helper._read_finished() == 1
    assert [reading.summary for reading in helper.iter_scans()] == st.sessions(dir=session_folder)
    helper.close()


def test_a_partially_written_scan_of_a_reader_process_is_ignored(session_folder: Path) -> None:
    for name in "ab":
        write_session(session_folder, name, header(id=name))
    helper = listing.ReaderProcess(list_session_files(str(session_folder)))
    helper._process.wait()
    size = os.fstat(helper._output.fileno()).st_size

    for cut in (size - 1, size // 2 + 3, 3):
        helper._output.truncate(cut)
        helper._finished, helper._position = [], 0
        assert helper._read_finished() == (cut > size // 2)
        assert {reading.summary.id for reading in helper.iter_scans()} == {"a", "b"}
    helper._output.write(b"\0" * 7 + b"\1\xc1")
    helper._output.flush()
    assert helper._read_finished() == 0
    helper.close()
