"""A file cut at any byte: whole lines load, the rest is moved to a file, and reading changes nothing.

While another program has the file open and may finish the line, the rest stays as a separate line.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import sessiontree as st
from tests.reliability.child import append_once
from tests.reliability.harness import TORTURE, read_files, read_lines, start_child, times, torn_files

DATA = Path(__file__).parents[1] / "conformance" / "data"
PEERS = sorted(DATA.glob("*/*.jsonl"))
TAILS = {
    "zeros": bytes(4096),
    "garbage": bytes(random.Random(5).choices([*range(10), *range(11, 256)], k=300)),
    "half a letter": '{"type":"message","id":"x","message":{"content":"é'.encode()[:-1],
    "two records joined": b'{"type":"message","id":"x"{"type":"message","id":"y"}',
    "a bracket": b"{",
    "a list": b"[1]",
    "a word": b"null",
    "a blank": b"   ",
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory if possible: the tests sync thousands of files."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


def write_our_session(folder: Path) -> bytes:
    file = folder / "made" / "ours.jsonl"
    with st.create(name="née", file=file, durability="none") as session:
        first = session.append(st.user("what is this? 🌳"))
        session.append(st.assistant("a\nlong\tanswer" * 5))
        session.label(first, "here")
        session.create_branch("side", at=first, current=False).append(st.user("elsewhere"))
    data = file.read_bytes()
    shutil.rmtree(file.parent)
    return data


def check_cut(
    folder: Path, data: bytes, tail: bytes = b"", plants: tuple[str, ...] = (), *, shared: bool = False
) -> None:
    """Check `data` and `tail` as a file after a crash, or with a program that has it open and is writing."""
    whole, unfinished = split_lines(data + tail)
    file = folder / "s.jsonl"
    file.write_bytes(data + tail)
    if not whole:
        with pytest.raises(st.FormatError):
            st.open(file).append(st.user("no"))
        assert read_files(folder) == {"s.jsonl": data + tail}, "a file that cannot be read was changed"
        file.unlink()
        return

    with st.open(file, read_only=True) as session:
        expected = read_entries(folder / "whole.jsonl", whole)
        assert [entry.raw for entry in session.tree] == expected, "a complete line is missing"
        torn = [problem for problem in session.problems if problem.kind == "torn_tail"]
        assert len(torn) == bool(unfinished)
        assert file.read_bytes() == data + tail, "reading changed the file"
        migrated, malformed_before = session.needs_migration, count_malformed(session)
    if plants:
        with start_child(append_once, str(file), plants) as child:
            child.rest()
    else:
        with st.open(file, durability="none") as session, file.open("rb") if shared else nullcontext():
            session.append(st.user("after"))

    stays = shared and not migrated
    kept = [path.read_bytes() for path in torn_files(file)]
    assert kept == [unfinished] * (bool(unfinished) and not stays), "the saved tail differs"
    if not migrated:
        lines = read_lines(file)
        before = whole + unfinished if stays else whole
        assert b"\n".join(lines[:-1]) == before.removesuffix(b"\n"), "a line was changed"
        assert b'"after"' in lines[-1]
    left = read_files(folder)
    with st.open(file) as session:
        assert [entry.raw for entry in session.tree][: len(expected)] == expected
        assert b'"after"' in session.tree[session.heads.leaf].raw, "a branch continued from the wrong entry"
        assert not [problem for problem in session.problems if problem.kind == "torn_tail"]
        fresh = count_malformed(session) - malformed_before
        assert fresh == (bool(unfinished.strip()) and stays), "an unfinished line was read, or a complete one was not"
    assert read_files(folder) == left, "opening again changed something"
    for name in left:
        (folder / name).unlink()


def count_malformed(session: st.Session) -> int:
    return sum(problem.kind == "malformed_line" for problem in session.problems)


def split_lines(data: bytes) -> tuple[bytes, bytes]:
    """Split bytes into whole lines and the rest, without the code under test."""
    import json

    end = data.rfind(b"\n") + 1
    try:
        if isinstance(json.loads(data[end:].decode()), dict):
            end = len(data)  # only the newline is missing
    except ValueError:
        pass
    return data[:end], data[end:]


def read_entries(file: Path, data: bytes) -> list[bytes]:
    file.write_bytes(data)
    with st.open(file, read_only=True) as session:
        entries = [entry.raw for entry in session.tree]
    file.unlink()
    return entries


def choose_cuts(data: bytes, count: int) -> list[int]:
    """Return every offset in the last lines, and some others."""
    last = data.rfind(b"\n", 0, data.rfind(b"\n", 0, len(data) - 1))
    choose = random.Random(len(data))
    return sorted(
        {*range(max(0, len(data) - 40), len(data)), last, *choose.sample(range(len(data)), min(count, len(data)))}
    )


def test_our_file_can_be_cut_at_any_byte(folder: Path) -> None:
    data = write_our_session(folder)

    for cut in range(len(data)):
        check_cut(folder, data[:cut], shared=bool(cut % 2))


@pytest.mark.parametrize("file", PEERS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_file_of_a_peer_can_be_cut_anywhere(folder: Path, file: Path) -> None:
    data = file.read_bytes()
    large = len(data) > 200_000
    every = len(data) < 30_000  # every byte of several files, and as many of the others as fit into an hour
    many = choose_cuts(data, 1000 if large else len(data) if every else 5000)
    places = many if TORTURE else choose_cuts(data, 20)[:: 30 if large else 3]

    for cut in places:
        check_cut(folder, data[:cut])
        check_cut(folder, data[:cut], shared=True)


@pytest.mark.parametrize("tail", TAILS)
def test_a_tail_of_any_bytes_is_kept(folder: Path, tail: str) -> None:
    data = write_our_session(folder)
    lines = data.split(b"\n")

    for count in range(1, len(lines)):
        check_cut(folder, b"\n".join(lines[:count]) + b"\n", TAILS[tail])
        check_cut(folder, b"\n".join(lines[:count]) + b"\n", TAILS[tail], shared=True)


def test_random_tails_are_kept(folder: Path) -> None:
    data, choose = write_our_session(folder), random.Random(1)

    for number in range(times(100, torture=20_000)):
        tail = choose.randbytes(choose.randrange(1, 60)).replace(b"\n", b"")
        check_cut(folder, data, tail, shared=bool(number % 2))


@pytest.mark.parametrize("plant", ["drop_tail", "no_mending"])
def test_the_harness_notices_a_truncated_or_joined_tail(folder: Path, plant: str) -> None:
    with pytest.raises((AssertionError, ValueError, st.SessionTreeError)):
        check_cut(folder, write_our_session(folder)[:-20], plants=(plant,))
