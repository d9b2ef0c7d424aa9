"""Only the new part of a file is read; a replaced file is read from the start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.search_text import get_text_parts
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.format.digest import Digest
from sessiontree.library.index import session_search, session_summary, word_index
from sessiontree.store.batch_journal import write_note
from sessiontree.store.range_reader import RangeReader
from tests.builders import build_file, header
from tests.library.session_folders import (
    compute_expected_facts,
    extract_facts,
    read_only_summary,
    say,
    search_ids,
    write_session,
)


def record_read_starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the offsets at which reading starts. The check whether a file is the same is not counted."""
    starts: list[int] = []
    real = session_summary._feed_lines

    def take(reader: RangeReader, digest: Any, start: int, passed: Any) -> Any:
        starts.append(start)
        return real(reader, digest, start, passed)

    monkeypatch.setattr(session_summary, "_feed_lines", take)
    return starts


def test_an_unchanged_file_is_not_read_again(session_folder: Path, monkeypatch) -> None:
    write_session(session_folder, "s", header(), say("a", None, "x"))
    before = read_only_summary(session_folder)
    starts = record_read_starts(monkeypatch)

    assert read_only_summary(session_folder) == before
    assert starts == []


@pytest.mark.parametrize("seconds", [-(1 << 40), -62_135_596_801, 10_000_000_000, 253_402_300_800, 1 << 40])
def test_an_impossible_timestamp_hides_no_file(session_folder: Path, seconds: int) -> None:
    far, near = (
        write_session(session_folder, "far", header(id="far"), say("a", None, "x")),
        write_session(session_folder, "near", header(id="near")),
    )
    broken = write_session(session_folder, "broken", "nonsense")
    for path in (far, broken):
        os.utime(path, (seconds, seconds))  # some file systems store the exact time, others the nearest possible one

    for _ in range(2):
        listed = {summary.file: summary for summary in st.sessions(dir=session_folder)}
        assert listed.keys() == {str(far), str(near), str(broken)}
        assert parse_timestamp(listed[str(far)].modified) is not None
    assert search_ids("x", session_folder) == ["a"]


def test_a_file_that_grew_is_read_from_where_its_last_whole_line_ended(session_folder: Path, monkeypatch) -> None:
    path = write_session(session_folder, "s", header(), say("a", None, "x"))
    read_only_summary(session_folder)
    size = path.stat().st_size
    starts = record_read_starts(monkeypatch)

    with path.open("ab") as file:
        file.write(build_file(say("b", "a", "y"), say("c", "b", "z"))[:-5])
    torn = read_only_summary(session_folder)
    with path.open("ab") as file:
        file.write(build_file(say("c", "b", "z"))[-5:])
    whole = read_only_summary(session_folder)

    assert (torn.entry_count, torn.is_damaged) == (2, True)
    assert (whole.entry_count, whole.is_damaged) == (3, False)
    assert starts == [size, size + len(build_file(say("b", "a", "y")))]


def test_a_last_line_without_newline_counts_and_may_still_grow(session_folder: Path) -> None:
    path = write_session(session_folder, "s", header(), say("a", None, "x"), say("b", "a", "y"))
    path.write_bytes(path.read_bytes()[:-1])
    assert (read_only_summary(session_folder).entry_count, search_ids("y", session_folder)) == (2, ["b"])

    with path.open("ab") as file:
        file.write(b"\n" + build_file(say("c", "b", "w")))

    assert (read_only_summary(session_folder).entry_count, read_only_summary(session_folder).is_damaged) == (3, False)
    assert (search_ids("y", session_folder), search_ids("w", session_folder)) == (["b"], ["c"])


def test_a_last_line_without_newline_that_grew_into_an_invalid_line_is_damage(session_folder: Path) -> None:
    path = write_session(session_folder, "s", header(), say("a", None, "apple"))
    path.write_bytes(path.read_bytes()[:-1])
    assert (
        read_only_summary(session_folder).entry_count,
        read_only_summary(session_folder).is_damaged,
        search_ids("apple", session_folder),
    ) == (1, False, ["a"])

    with path.open("ab") as file:
        file.write(build_file(say("b", "a", "berry")))

    for _ in range(2):
        assert extract_facts(read_only_summary(session_folder)) == compute_expected_facts(path)
        assert (read_only_summary(session_folder).entry_count, read_only_summary(session_folder).is_damaged) == (
            0,
            True,
        )
        assert search_ids("apple", session_folder) == search_ids("berry", session_folder) == []

    with path.open("ab") as file:
        file.write(build_file(say("c", None, "cherry")))

    assert extract_facts(read_only_summary(session_folder)) == compute_expected_facts(path)
    assert (
        read_only_summary(session_folder).entry_count,
        read_only_summary(session_folder).is_damaged,
        search_ids("cherry", session_folder),
    ) == (1, True, ["c"])


@pytest.mark.parametrize("sound", [True, False])
def test_blanks_after_the_last_newline_are_an_unfinished_line(session_folder: Path, sound: bool) -> None:
    path = write_session(session_folder, "s", header(), say("a", None if sound else "gone", "apple"))
    before = read_only_summary(session_folder).damage
    with path.open("ab") as file:
        file.write(b" \t ")

    assert extract_facts(read_only_summary(session_folder)) == compute_expected_facts(path)
    assert read_only_summary(session_folder).damage == ("the last line is unfinished (3 bytes)" if sound else before)

    with path.open("ab") as file:
        file.write(b"\n")

    assert extract_facts(read_only_summary(session_folder)) == compute_expected_facts(path)
    assert read_only_summary(session_folder).damage == before


def test_an_incomplete_batch_does_not_count(session_folder: Path) -> None:
    path = write_session(session_folder, "s", header(), say("a", None, "apple"))
    start = path.stat().st_size
    rest = build_file(say("b", "a", "berry"), say("c", "b", "cherry"))
    with open(f"{path}.lock", "wb", buffering=0) as lock:
        write_note(lock.fileno(), start, rest.splitlines())
    with path.open("ab") as file:
        file.write(rest[:-20])

    cut = read_only_summary(session_folder)
    assert extract_facts(cut) == compute_expected_facts(path)
    assert (cut.entry_count, cut.damage) == (1, f"the last line is unfinished ({len(rest) - 20} bytes)")
    assert (search_ids("berry", session_folder), search_ids("apple", session_folder)) == ([], ["a"])

    with path.open("ab") as file:
        file.write(rest[-20:])

    assert (read_only_summary(session_folder).entry_count, read_only_summary(session_folder).damage) == (3, None)
    assert (search_ids("berry", session_folder), search_ids("cherry", session_folder)) == (["b"], ["c"])


def test_a_line_over_the_limit_is_damage_and_is_not_held_in_memory(session_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(session_summary, "LINE_LIMIT", 1 << 17)
    monkeypatch.setattr("sessiontree.store.range_reader.LINE_LIMIT", 1 << 17)
    monkeypatch.setattr("sessiontree.format.codec.LINE_LIMIT", 1 << 17)
    monkeypatch.setattr("sessiontree.format.session_reader.LINE_LIMIT", 1 << 17)
    write_session(
        session_folder,
        "long",
        header(),
        say("a", None, "y" * (1 << 18)),
        say("b", None, "after it"),
        say("c", "b", "z" * 99_999),
    )
    write_session(session_folder, "first", "x" * (1 << 18), header())

    long, first = sorted(st.sessions(dir=session_folder), key=lambda summary: summary.file, reverse=True)

    assert "over the limit" in (long.damage or "")
    assert "over the limit" in (first.damage or "")
    assert search_ids("after", session_folder) == ["b"]
    assert search_ids("zzz", session_folder) == ["c"]


def record_read_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the size of every read."""
    sizes: list[int] = []
    real = os.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        sizes.append(size)
        return real(fd, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    return sizes


def test_a_large_file_that_is_not_a_session_is_not_read_completely(session_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(session_summary, "PREAMBLE_LIMIT", 1 << 14)
    write_session(session_folder, "log", *(f"line {n} of a log" for n in range(50_000)))
    write_session(
        session_folder, "late", *(f"line {n} of a log" for n in range(100)), header(id="late"), say("a", None, "x")
    )
    sizes = record_read_sizes(monkeypatch)

    listed = {Path(summary.file).stem: summary for summary in st.sessions(dir=session_folder)}

    assert "no session header in its first" in (listed["log"].damage or "")
    assert listed["late"].entry_count == 1
    assert sum(sizes) < 1 << 17


def test_holes_of_any_length_are_not_read(session_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(session_summary, "LINE_LIMIT", 1 << 17)
    monkeypatch.setattr("sessiontree.store.range_reader.LINE_LIMIT", 1 << 17)
    write_session(session_folder, "tail", header(id="tail"), say("a", None, "apple"))
    write_session(session_folder, "middle", header(id="middle"), say("b", None, "apple"))
    write_session(session_folder, "all")
    for path in session_folder.iterdir():
        os.truncate(path, 1 << 32)
        if path.stat().st_blocks > 1 << 10:
            pytest.skip("this file system has no holes")
    with (session_folder / "middle.jsonl").open("ab") as file:
        file.write(b"\n")
    sizes = record_read_sizes(monkeypatch)

    assert [summary.is_damaged for summary in st.sessions(dir=session_folder)] == [True] * 3
    assert sum(sizes) < 1 << 22


def test_a_session_with_an_endless_line_is_never_opened(session_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(session_summary, "LINE_LIMIT", 1 << 17)
    monkeypatch.setattr("sessiontree.store.range_reader.LINE_LIMIT", 1 << 17)
    path = write_session(
        session_folder, "s", header(), say("a", "gone", "apple"), "x" * (1 << 20), say("b", "a", "apple")
    )

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("it was opened")

    monkeypatch.setattr(session_summary, "Session", opened)

    summary = read_only_summary(session_folder)

    assert (summary.id, summary.is_damaged) == ("s", True)
    assert sorted(search_ids("apple", session_folder)) == ["a", "b"]
    with pytest.raises(session_summary.OversizedLine, match="over the limit"):
        session_summary.check_size(str(path))


def test_lines_that_fit_into_memory_are_not_treated_as_endless(session_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(session_summary, "LINE_LIMIT", 1 << 10)
    monkeypatch.setattr("sessiontree.store.range_reader.LINE_LIMIT", 1 << 10)
    for size in (1, 100, 1024, 2000, 4095):
        lines = b"".join(b"x" * size + b"\n" for _ in range(50))
        path = session_folder / f"{size}.jsonl"
        path.write_bytes(build_file(header()) + lines)
        session_summary.check_size(str(path))


def test_progress_is_reported_within_a_file(session_folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(session_summary, "BLOCK_SIZE", 1 << 10)
    for name in ("s", "t"):
        write_session(session_folder, name, header(id=name), *(say(f"e{n}", None, "apple pie") for n in range(60)))
    steps: list[tuple[int, int]] = []

    st.sessions(dir=session_folder, progress=lambda done, total: steps.append((done, total)))

    assert len(steps) > 10
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1] == sum(path.stat().st_size for path in session_folder.glob("*.jsonl"))


def change_in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(data)
    os.utime(path, ns=(path.stat().st_mtime_ns + 10**9,) * 2)


@pytest.mark.parametrize("change", ["replaced", "truncated", "rewritten", "same size", "rewritten and longer"])
def test_a_replaced_file_is_read_again(session_folder: Path, change: str) -> None:
    path = write_session(session_folder, "s", header(), say("a", None, "apple"), say("b", "a", "berry"))
    assert (read_only_summary(session_folder).entry_count, search_ids("berry", session_folder)) == (2, ["b"])

    new = {
        "replaced": build_file(header(name="other"), say("a", None, "apple"), say("c", "a", "cherry")),
        "truncated": build_file(header(), say("a", None, "apple")),
        "rewritten": build_file(header(), say("c", None, "cherry")),
        "same size": build_file(header(), say("a", None, "apple"), say("c", "a", "grape")),
        "rewritten and longer": build_file(header(), *(say(f"c{n}", None, "cherry") for n in range(9))),
    }[change]
    if change == "replaced":
        other = session_folder / "other"
        other.write_bytes(new)
        other.rename(path)
    else:
        change_in_place(path, new)

    assert extract_facts(read_only_summary(session_folder)) == compute_expected_facts(path)
    assert search_ids("berry", session_folder) == []
    assert len(search_ids("apple", session_folder)) == new.count(b"apple")
    assert len(search_ids("cherry", session_folder)) == new.count(b"cherry")


def test_a_name_overwritten_by_another_program_is_noticed(session_folder: Path) -> None:
    slot = '{"type":"title","v":1,"title":"%s","pad":"  "}'
    path = write_session(session_folder, "s", slot % "one", header(), say("a", None, "x"))
    assert read_only_summary(session_folder).name == "one"

    with path.open("r+b") as file:
        file.write((slot % "two").encode())
        file.seek(0, os.SEEK_END)
        file.write(build_file(say("b", "a", "y")))

    assert (read_only_summary(session_folder).name, read_only_summary(session_folder).entry_count) == ("two", 2)


@pytest.mark.parametrize("heads", [{"main": "\ud800"}, {"main": "a", "\udfff": "a"}])
def test_a_head_record_with_a_lone_surrogate_hides_no_other_session(
    session_folder: Path, heads: dict[str, str]
) -> None:
    record = {"type": "custom", "customType": "sessiontree.head", "data": {"current": "main", "heads": heads}}
    hostile = write_session(
        session_folder, "hostile", header(id="h"), say("a", None, "x"), {**record, "id": "b", "parentId": "a"}
    )
    write_session(session_folder, "sound", header(id="s"), say("a", None, "x"))

    for _ in range(2):
        listed = {summary.id: summary for summary in st.sessions(dir=session_folder)}
        assert listed["s"].damage is None
        assert extract_facts(listed["h"]) == compute_expected_facts(hostile)
        assert sorted(search_ids("x", session_folder)) == ["a", "a"]


def test_a_session_that_causes_an_internal_error_is_damaged_and_hides_no_other(
    session_folder: Path, monkeypatch
) -> None:
    write_session(session_folder, "bad", header(id="bad"), say("a", None, "x"))
    write_session(session_folder, "sound", header(id="sound"), say("b", None, "x"))
    real = Digest.feed

    def fails_on_one(digest: Digest, data: bytes) -> None:
        if digest.totals.id == "bad":
            raise ZeroDivisionError("a bug")
        real(digest, data)

    with monkeypatch.context() as planted:
        planted.setattr(Digest, "feed", fails_on_one)
        listed = {summary.id: summary.damage for summary in st.sessions(dir=session_folder)}

    assert listed == {"bad": "cannot be read: internal error, ZeroDivisionError: a bug", "sound": None}
    assert [summary.damage for summary in st.sessions(dir=session_folder)] == [None, None]  # it is retried


def test_a_session_on_which_a_search_fails_hides_no_other(session_folder: Path, monkeypatch) -> None:
    write_session(session_folder, "bad", header(id="bad"), say("a", None, "x"))
    write_session(session_folder, "sound", header(id="sound"), say("b", None, "x"))

    def fails_on_one(entry: st.Entry) -> list[str]:
        return get_text_parts(entry) if entry.id == "b" else [str(1 / 0)]

    monkeypatch.setattr(session_search, "get_text_parts", fails_on_one)
    monkeypatch.setattr(word_index, "build_full_text", lambda entry: "".join(fails_on_one(entry)))

    assert search_ids("x", session_folder) == search_ids("x", session_folder) == ["b"]
