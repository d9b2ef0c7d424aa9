"""No file, however broken or hostile, crashes, hangs or exhausts the program."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.entries import UNREADABLE
from sessiontree.export import export
from sessiontree.format.nesting import NESTING_LIMIT
from tests.builders import build_file, entry, header
from tests.reliability.harness import ROOT, run_child, times

MILLION = 10**6
SECONDS = 30
"""The time limit for a bomb on a busy machine, in seconds."""


def message(content: bytes) -> bytes:
    """Return a line with any bytes as the content of a message."""
    raw = entry("a", None, {"type": "message", "message": {"role": "user", "content": "CONTENT"}}).raw
    return raw.replace(b'"CONTENT"', content)


BOMBS: dict[str, bytes] = {
    "a million brackets": b"[" * MILLION,
    "a value nested a million deep": message(b"[" * MILLION + b"]" * MILLION),
    "a value nested one deeper than may be": message(b"[" * (NESTING_LIMIT - 1) + b"]" * (NESTING_LIMIT - 1)),
    "a value nested nearly as deep as the stack": message(b"[" * 983 + b"]" * 983),
    "objects nested a million deep": message(b'{"a":' * MILLION + b"1" + b"}" * MILLION),
    "a million digits": message(b"9" * MILLION),
    "a million digits as an exponent": message(b"1e" + b"9" * MILLION),
    "a hundred thousand keys": message(b"{" + b",".join(b'"%d":1' % n for n in range(10**5)) + b"}"),
    "one key a hundred thousand times": message(b"{" + b",".join([b'"a":1'] * 10**5) + b"}"),
    "ten million empty lines": b"\n" * (10 * MILLION),
    "a hundred thousand lines that are not entries": b"{}\n" * 10**5,
    "a million lone surrogates": message(b'"' + b"\\ud800" * MILLION + b'"'),
    "a line over the limit": message(b'"' + b"x" * (64 << 20) + b'"'),
    "a cycle of twenty thousand": b"\n".join(entry(f"{n:08x}", f"{(n - 1) % 20000:08x}").raw for n in range(20000)),
    "everything in one line": build_file(header()).strip() * 1000,
    "bytes that are not UTF-8": b"\xff\xfe" * MILLION,
}


def open_in_child(file: Path, *plants: str, seconds: float = SECONDS) -> dict[str, Any]:
    done = run_child("hostile", str(file), *plants, seconds=seconds)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert "untyped" not in told, told
    return told


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_hides_only_itself(tmp_path: Path, bomb: str) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(build_file(header(), BOMBS[bomb], entry("last", "a").raw))

    told = open_in_child(file)

    assert "error" not in told, told
    assert told["entries"] >= 1
    assert file.read_bytes().startswith(build_file(header(), BOMBS[bomb]))


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_instead_of_a_header_is_refused_and_not_changed(tmp_path: Path, bomb: str) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(BOMBS[bomb][: 2 * MILLION] + b"\n")
    before = file.stat()

    told = open_in_child(file)

    assert "error" in told, told
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def call_at_depth(calls: int, act: Callable[[], Any]) -> Any:
    """Call `work` at a given recursion depth."""
    return act() if calls == 0 else call_at_depth(calls - 1, act)


LINE = {"id": "deep", "parentId": "a", "timestamp": "t", "branch": "main"}
DEEP: dict[str, dict[str, Any]] = {
    "a message": {"type": "message", **LINE, "message": {"role": "user", "x": "DEEP"}},
    "a message spelled otherwise": {**LINE, "type": "message", "message": {"role": "user", "x": "DEEP"}},
    "a head record": {"type": "custom", **LINE, "customType": "sessiontree.head", "data": {"x": "DEEP"}},
    "a type of the future": {"type": "future", **LINE, "y": {"x": "DEEP"}},
}


@pytest.mark.parametrize("depth", [NESTING_LIMIT + 1, 400, 700, 985, 5000])
@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("repeated", [b"", b',"x":1'], ids=["", "key repeated"])
def test_a_line_nested_too_deeply_is_unreadable_everywhere(
    tmp_path: Path, kind: str, depth: int, repeated: bytes
) -> None:
    file, other = tmp_path / "s.jsonl", tmp_path / "other.jsonl"
    first = entry("a", None, st.user("apple"), branch="main").raw
    deep = b"[" * (depth - 2) + b'"plum"' + b"]" * (depth - 2) + repeated
    file.write_bytes(build_file(header(), first, DEEP[kind], spaced=False).replace(b'"DEEP"', deep))
    other.write_bytes(build_file(header(id="other"), first))

    for calls in (0, 100, 300, 500):
        assert call_at_depth(calls, lambda: st.open(file).context().leaf) == "a"
        assert call_at_depth(calls, lambda: st.open(file).heads.leaf) == "a"
    session = st.open(file)
    assert [(problem.kind, problem.line) for problem in session.problems] == [("malformed_line", 3)]
    assert [entry.body for entry in session.tree if entry.id == "deep"] in ([], [UNREADABLE])
    damaged = {summary.file: summary.is_damaged for summary in st.sessions(dir=tmp_path)}
    assert damaged == {str(file): True, str(other): False}
    assert {hit.session for hit in st.search("apple", dir=tmp_path)} == {"other", "s"}
    assert st.search("plum", dir=tmp_path) == []
    for form in ("html", "md", "json", "jsonl"):
        assert b"apple" in export(session.read_lines(), form=form).content
    session.append(st.user("cherry"))
    assert [message["content"] for message in st.open(file).context().messages] == ["apple", "cherry"]


@pytest.mark.parametrize("start", [b"", build_file(header())], ids=["no header", "a header"])
def test_a_gigabyte_without_a_newline_is_refused_without_enough_memory(tmp_path: Path, start: bytes) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(start)
    os.truncate(file, 1 << 30)

    assert "memory" in open_in_child(file)["error"]
    assert file.stat().st_size == 1 << 30


def make_special_files(folder: Path) -> dict[str, Path]:
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "folder.jsonl").mkdir()
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "dangling.jsonl").symlink_to("nowhere.jsonl")
    (folder / "zero.jsonl").symlink_to("/dev/zero")
    (folder / "empty.jsonl").touch()
    (folder / "file").touch()
    files = {path.name: path for path in folder.glob("*.jsonl")}
    return {
        **files,
        "below a file": folder / "file" / "s.jsonl",
        "/dev/zero": Path("/dev/zero"),
        "long": folder / ("n" * 300),
    }


def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    for name, path in make_special_files(tmp_path).items():
        told = open_in_child(path, seconds=10)

        assert "error" in told, f"{name}: {told}"


@pytest.mark.parametrize("odd", ["pipe", "folder", "link"])
def test_a_lock_that_is_not_a_file_is_refused_at_once(tmp_path: Path, odd: str) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(build_file(header()))
    lock = tmp_path / "s.jsonl.lock"
    match odd:
        case "pipe":
            os.mkfifo(lock)
        case "folder":
            lock.mkdir()
        case _:
            lock.symlink_to("/etc/passwd")

    told = open_in_child(file, seconds=10)

    assert odd == "pipe" or "error" in told  # a pipe can be locked like a file


def test_blocks_of_blank_lines_are_skipped(tmp_path: Path) -> None:
    """The same in this process, where coverage is measured."""
    file = tmp_path / "s.jsonl"
    first = build_file(header(), entry("a").raw)
    for blank in (b"\n" * (1 << 19), b"\n\n" + b" " * (1 << 17) + b"\n\n"):
        file.write_bytes(first + blank + entry("b", "a").raw + b"\n" + blank)

        assert len(st.open(file).context().messages) == 2
        assert [entry.id for entry in st.open(file).tree] == ["a", "b"]


# Fuzzing


def fuzz(*args: str, seconds: float) -> subprocess.CompletedProcess[str]:
    # The shell starts the fuzzer as its child: a program that replaces a child of this process inherits the peak memory
    # of this process, and libFuzzer takes that for its own.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "tests.reliability.fuzz", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)


def test_hostile_files_raise_nothing_but_our_errors() -> None:
    done = fuzz(str(times(600, torture=30_000)), seconds=times(120, torture=7200))

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_fuzzing_finds_a_planted_fault() -> None:
    done = fuzz("5000", "break_on_odd_labels", seconds=120)

    assert done.returncode == 1
    assert "an odd label" in done.stderr


@pytest.mark.torture
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_fuzzing_by_coverage_raises_nothing_but_our_errors(tmp_path: Path) -> None:
    seconds = int(os.environ.get("SESSIONTREE_FUZZ_SECONDS", "300"))
    options = [f"-max_total_time={seconds}", "-rss_limit_mb=1024", "-timeout=10", f"-artifact_prefix={tmp_path}/"]

    done = fuzz("--atheris", *options, seconds=seconds + 120)

    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize(
    ("plant", "error"), [("hang_on_empty_file", subprocess.TimeoutExpired), ("exhaust_memory", AssertionError)]
)
def test_fuzzing_finds_a_loader_that_hangs_or_uses_all_memory(
    tmp_path: Path, plant: str, error: type[Exception]
) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(build_file(header()))

    with pytest.raises(error):
        open_in_child(file, plant, seconds=5)
