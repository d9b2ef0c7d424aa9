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
from tests.reliability.harness import TORTURE, everything_in, lines_of, started, times, torn_files

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


def ours(folder: Path) -> bytes:
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
    whole, unfinished = split(data + tail)
    file = folder / "s.jsonl"
    file.write_bytes(data + tail)
    if not whole:
        with pytest.raises(st.FormatError):
            st.open(file).append(st.user("no"))
        assert everything_in(folder) == {"s.jsonl": data + tail}, "a file that cannot be read was changed"
        file.unlink()
        return

    with st.open(file, read_only=True) as session:
        expected = entries_of(folder / "whole.jsonl", whole)
        assert [entry.raw for entry in session.tree] == expected, "a whole line is not there"
        torn = [problem for problem in session.problems if problem.kind == "torn_tail"]
        assert len(torn) == bool(unfinished)
        assert file.read_bytes() == data + tail, "reading changed the file"
        migrated, malformed_before = session.needs_migration, malformed(session)
    if plants:
        with started(append_once, str(file), plants) as child:
            child.rest()
    else:
        with st.open(file, durability="none") as session, file.open("rb") if shared else nullcontext():
            session.append(st.user("after"))

    stays = shared and not migrated
    kept = [path.read_bytes() for path in torn_files(file)]
    assert kept == [unfinished] * (bool(unfinished) and not stays), "the tail was not kept as it was"
    if not migrated:
        lines = lines_of(file)
        before = whole + unfinished if stays else whole
        assert b"\n".join(lines[:-1]) == before.removesuffix(b"\n"), "a line was changed"
        assert b'"after"' in lines[-1]
    left = everything_in(folder)
    with st.open(file) as session:
        assert [entry.raw for entry in session.tree][: len(expected)] == expected
        assert b'"after"' in session.tree[session.heads.leaf].raw, "a branch went on from elsewhere"
        assert not [problem for problem in session.problems if problem.kind == "torn_tail"]
        fresh = malformed(session) - malformed_before
        assert fresh == (bool(unfinished.strip()) and stays), "an unfinished line is read, or another is not"
    assert everything_in(folder) == left, "opening again changed something"
    for name in left:
        (folder / name).unlink()


def malformed(session: st.Session) -> int:
    return sum(problem.kind == "malformed_line" for problem in session.problems)


def split(data: bytes) -> tuple[bytes, bytes]:
    """Split bytes into whole lines and the rest, without the code under test."""
    import json

    end = data.rfind(b"\n") + 1
    try:
        if isinstance(json.loads(data[end:].decode()), dict):
            end = len(data)  # only the newline is missing
    except ValueError:
        pass
    return data[:end], data[end:]


def entries_of(file: Path, data: bytes) -> list[bytes]:
    file.write_bytes(data)
    with st.open(file, read_only=True) as session:
        entries = [entry.raw for entry in session.tree]
    file.unlink()
    return entries


def cuts(data: bytes, count: int) -> list[int]:
    """Return every offset in the last lines, and some others."""
    last = data.rfind(b"\n", 0, data.rfind(b"\n", 0, len(data) - 1))
    choose = random.Random(len(data))
    return sorted(
        {*range(max(0, len(data) - 40), len(data)), last, *choose.sample(range(len(data)), min(count, len(data)))}
    )


def test_our_file_can_be_cut_at_any_byte(folder: Path) -> None:
    data = ours(folder)

    for cut in range(len(data)):
        check_cut(folder, data[:cut], shared=bool(cut % 2))


@pytest.mark.parametrize("file", PEERS, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_file_of_a_peer_can_be_cut_anywhere(folder: Path, file: Path) -> None:
    data = file.read_bytes()
    large = len(data) > 200_000
    every = len(data) < 30_000  # every byte of several files, and as many of the others as fit into an hour
    many = cuts(data, 1000 if large else len(data) if every else 5000)
    places = many if TORTURE else cuts(data, 20)[:: 30 if large else 3]

    for cut in places:
        check_cut(folder, data[:cut])
        check_cut(folder, data[:cut], shared=True)


@pytest.mark.parametrize("tail", TAILS)
def test_a_tail_of_any_bytes_is_kept(folder: Path, tail: str) -> None:
    data = ours(folder)
    lines = data.split(b"\n")

    for count in range(1, len(lines)):
        check_cut(folder, b"\n".join(lines[:count]) + b"\n", TAILS[tail])
        check_cut(folder, b"\n".join(lines[:count]) + b"\n", TAILS[tail], shared=True)


def test_random_tails_are_kept(folder: Path) -> None:
    data, choose = ours(folder), random.Random(1)

    for number in range(times(100, torture=20_000)):
        tail = choose.randbytes(choose.randrange(1, 60)).replace(b"\n", b"")
        check_cut(folder, data, tail, shared=bool(number % 2))


@pytest.mark.parametrize("plant", ["tail_dropped", "no_mending"])
def test_the_harness_notices_a_truncated_or_joined_tail(folder: Path, plant: str) -> None:
    with pytest.raises((AssertionError, ValueError, st.SessionTreeError)):
        check_cut(folder, ours(folder)[:-20], plants=(plant,))
