"""`kill -9` at any moment loses no acknowledged entry, and leaves a usable file."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import sessiontree as st
from tests.reliability.child import append_once, append_until_killed, die_in_a_write
from tests.reliability.harness import check_acks, read_lines, start_child, times, torn_files


def kill_loop(folder: Path, durability: str, rounds: int, plants: tuple[str, ...] = (), seed: int = 1) -> int:
    """Kill a writer `count` times, and return how many unfinished lines that left."""
    choose = random.Random(seed)
    torn = 0
    for round in range(rounds):
        if round % 10 == 0:
            file = folder / f"{seed}-{round}.jsonl"
            st.create(file=file).close()
            acks: list[str] = []
        with start_child(append_until_killed, str(file), durability, seed * 100_000 + round, plants) as child:
            child.wait_for(choose.choice((0, 1, 1, 2, 5, 12)))
            time.sleep(choose.random() * 0.004)
            acks += child.kill()
        if round % 3 and round % 10 < 9:
            continue  # the next child finds the file as it is
        with st.open(file) as session:
            acks.append(session.append(st.user("after the kill")).id)
        check_acks(file, acks)
        if round % 10 == 9:
            torn += len(torn_files(file))
    return torn


@pytest.mark.parametrize("durability", ["fsync", "flush", "none"])
def test_every_acknowledged_entry_survives_a_kill(tmp_path: Path, durability: str) -> None:
    kill_loop(tmp_path, durability, times(60, torture=3000))


def test_a_kill_during_a_write_leaves_a_tail_that_is_moved_away(tmp_path: Path) -> None:
    torn = kill_loop(tmp_path, "flush", times(60, torture=3000), plants=("pieces",))

    assert torn > 0, "no kill landed in a write: the harness proves nothing"


def test_the_kill_loop_finds_entries_acknowledged_before_they_are_written(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="are lost"):
        kill_loop(tmp_path, "flush", 30, plants=("late_write",))


def test_the_kill_loop_finds_a_line_joined_with_an_unfinished_one(tmp_path: Path) -> None:
    with pytest.raises((AssertionError, ValueError)):
        kill_loop(tmp_path, "flush", 150, plants=("pieces", "no_mending"))


# At every byte


def die_at(file: Path, sizes: tuple[int, ...], at: int, plants: tuple[str, ...] = ()) -> tuple[list[str], int]:
    """Kill a writer after `at` bytes of a line. Return what it acknowledged, and the size of the file before."""
    st.create(file=file, durability="none").close()
    with start_child(die_in_a_write, str(file), sizes, at, plants) as child:
        acks = child.rest()
    return acks, sum(len(line) + 1 for line in file.read_bytes().split(b"\n")[:2])


def check_death(file: Path, sizes: tuple[int, ...], at: int, plants: tuple[str, ...] = ()) -> bool:
    """Check the file, and return whether the whole line or batch is present."""
    acks, start = die_at(file, sizes, at, plants)
    left = file.read_bytes()[start:]
    newline_missing = len(sizes) == 1 and left[-2:] == b"}}"
    there = left.count(b"\n") == len(sizes) or newline_missing

    said = [entry.body.message["content"] for entry in st.open(file, read_only=True).tree][1:]
    assert said == ["x" * size for size in sizes] * there, "part of a batch is present"

    with start_child(append_once, str(file), plants) as child:
        acks += child.rest()

    check_acks(file, acks)
    kept = b"".join(path.read_bytes() for path in torn_files(file))
    assert kept == (b"" if there else left), "the unfinished line was not saved"
    assert len(read_lines(file)) == 2 + len(sizes) * there + 1
    return there


def record_length(folder: Path, sizes: tuple[int, ...]) -> int:
    file = folder / "measured.jsonl"
    start = die_at(file, sizes, 1 << 30)[1]
    return file.stat().st_size - start


def sample_offsets(length: int, count: int) -> list[int]:
    """Return offsets in a line: both ends, and some in between."""
    edges = {*range(min(4, length)), *range(max(0, length - 4), length + 1)}
    return sorted(edges | set(range(0, length, max(1, length // count))))


@pytest.mark.parametrize("size", [5, 4096, 65_535, 65_537, 1 << 20])
def test_a_writer_can_crash_after_any_byte_of_a_line(tmp_path: Path, size: int) -> None:
    length = record_length(tmp_path, (size,))
    places = range(length + 1) if size == 5 else sample_offsets(length, times(15, torture=400))

    whole = [check_death(tmp_path / f"{at}.jsonl", (size,), at) for at in places]

    assert whole[-1]
    assert not any(whole[:-2]), "a record counts as complete before its last byte"


def test_a_batch_is_complete_or_absent_after_a_crash_at_any_byte(tmp_path: Path) -> None:
    sizes = (10, 200, 10)
    length = record_length(tmp_path, sizes)
    places = sample_offsets(length, times(60, torture=2000))

    there = [check_death(tmp_path / f"{at}.jsonl", sizes, at) for at in places]

    assert there == [at == length for at in places]


@pytest.mark.parametrize("plant", ["drop_tail", "no_mending"])
def test_the_harness_notices_a_dropped_or_joined_tail(tmp_path: Path, plant: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check_death(tmp_path / "s.jsonl", (100,), 40, plants=(plant,))


def test_the_harness_notices_part_of_a_batch(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="part of a batch is present"):
        check_death(tmp_path / "s.jsonl", (10, 10, 10), 400, plants=("no_notes",))
