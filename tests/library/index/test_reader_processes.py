"""Helpers read what one process would read, and nobody depends on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.library.index import reader_processes
from sessiontree.library.session_files import list_session_files
from tests.builders import file_of, header
from tests.library.session_folders import found, put, say


def test_reader_processes_return_the_same_scans_as_one_process(shelf: Path, index: Path, monkeypatch) -> None:
    for number in range(12):
        put(shelf, f"s{number}", header(id=f"s{number}"), say("a", None, f"apple {number}"), say("b", "a", "x"))
    put(shelf, "bad", "nonsense")
    put(shelf, "orphan", header(id="orphan"), say("a", "gone", "apple"))
    with open(os.path.join(os.fsencode(shelf), b"\xff.jsonl"), "wb") as file:
        file.write(file_of(header(id="odd")))
    alone = st.sessions(dir=shelf)
    index.unlink()
    monkeypatch.setattr(reader_processes, "MIN_SHARE_SIZE", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    started: list[reader_processes.ReaderProcess] = []
    real = reader_processes.ReaderProcess.iter_scans

    def readings(helper: reader_processes.ReaderProcess) -> Any:
        started.append(helper)
        return real(helper)

    monkeypatch.setattr(reader_processes.ReaderProcess, "iter_scans", readings)

    assert st.sessions(dir=shelf) == alone
    assert [len(helper.share) > 0 for helper in started] == [True, True]
    assert st.sessions(dir=shelf) == alone
    assert len(found("apple", shelf)) == 13


@pytest.mark.parametrize("program", ["/bin/false", "/bin/true", "/nowhere", ""])
def test_the_share_of_a_helper_that_fails_is_read_all_the_same(shelf: Path, monkeypatch, program: str) -> None:
    for number in range(5):
        put(shelf, f"s{number}", header(id=f"s{number}"), say("a", None, "apple"))
    monkeypatch.setattr(reader_processes, "MIN_SHARE_SIZE", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    monkeypatch.setattr(sys, "executable", program)

    assert {summary.id for summary in st.sessions(dir=shelf)} == {f"s{number}" for number in range(5)}


def test_no_helper_is_left_alone_when_another_cannot_start(shelf: Path, monkeypatch) -> None:
    for number in range(5):
        put(shelf, f"s{number}", header(id=f"s{number}"), say("a", None, "apple"))
    monkeypatch.setattr(reader_processes, "MIN_SHARE_SIZE", 100)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def only_one(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", only_one)

    assert {summary.id for summary in st.sessions(dir=shelf)} == {f"s{number}" for number in range(5)}
    assert [process.returncode is not None for process in started] == [True]


def test_a_helper_takes_nothing_from_the_current_folder(shelf: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    put(shelf, "s", header(), say("a", None, "apple"))
    helper = reader_processes.ReaderProcess(list_session_files(str(shelf)))

    helper._process.wait()
    assert helper._process.returncode == 0
    assert helper._read_finished() == 1
    assert [reading.summary for reading in helper.iter_scans()] == st.sessions(dir=shelf)
    helper.close()


def test_a_partially_written_scan_of_a_reader_process_is_ignored(shelf: Path) -> None:
    for name in "ab":
        put(shelf, name, header(id=name))
    helper = reader_processes.ReaderProcess(list_session_files(str(shelf)))
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
