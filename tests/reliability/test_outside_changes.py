"""Another program changes the file between two appends: accepted or refused, nothing lost, and close always works."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.errors import Conflict
from sessiontree.store.file_operations import CLOCK_TICK, NANOSECONDS
from tests.builders import TIME, build_file
from tests.reliability.child import append_after_a_change
from tests.reliability.harness import read_files, start_child

THEIRS = build_file(
    {"type": "message", "id": "theirs00", "parentId": None, "timestamp": TIME, "message": {"role": "user"}}
)[:-1]


def append_line(file: Path) -> None:
    with file.open("ab") as end:
        end.write(THEIRS + b"\n")


def append_line_without_newline(file: Path) -> None:
    with file.open("ab") as end:
        end.write(THEIRS)


def append_half_a_line(file: Path) -> None:
    with file.open("ab") as end:
        end.write(THEIRS[:50])


def append_garbage(file: Path) -> None:
    with file.open("ab") as end:
        end.write(b"\0\xff garbage\n")


def replace_file(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes().split(b"\n")[0] + b"\n" + THEIRS + b"\n")
    other.rename(file)


def replace_with_longer_file(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes() + THEIRS + b"\n")
    other.rename(file)


def rewrite_in_place(file: Path) -> None:
    file.write_bytes(file.read_bytes().split(b"\n")[0] + b"\n" + THEIRS * 9 + b"\n")


def truncate(file: Path) -> None:
    os.truncate(file, len(file.read_bytes().split(b"\n")[0]) + 1)


def truncate_in_a_line(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 20)


def truncate_to_nothing(file: Path) -> None:
    os.truncate(file, 0)


def delete(file: Path) -> None:
    file.unlink()


def replace_with_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def move_folder_away(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


ACCEPTED = [append_line, append_line_without_newline, append_half_a_line, append_garbage]
REFUSED = [
    replace_file,
    replace_with_longer_file,
    rewrite_in_place,
    truncate,
    truncate_in_a_line,
    truncate_to_nothing,
    delete,
    replace_with_folder,
    move_folder_away,
]
Change = Callable[[Path], None]


def create_session(folder: Path, *, settled: bool = False) -> tuple[Path, st.Session]:
    """Return a session that was written to; `settled` if its writer trusts the names in the folder."""
    file = folder / "here" / "s.jsonl"
    session = st.create(file=file, durability="none")
    session.append(st.user("one"))
    session.create_branch("side").append(st.user("two"))
    if settled:
        time.sleep(2 * CLOCK_TICK / NANOSECONDS)
        for text in ("three", "four"):
            session.append(st.user(text))
    return file, session


settled = pytest.mark.parametrize("settled", [False, True], ids=["new", "settled"])


@settled
@pytest.mark.parametrize("change", ACCEPTED)
def test_lines_that_others_append_are_read(tmp_path: Path, change: Change, settled: bool) -> None:
    file, session = create_session(tmp_path, settled=settled)
    before = file.read_bytes()
    change(file)
    changed = file.read_bytes()

    mine = session.append(st.user("mine"), branch="main")
    session.close()

    now = file.read_bytes()
    kept = b"".join(path.read_bytes() for path in file.parent.glob("*.torn-*"))
    assert now.startswith(before)
    assert changed.removeprefix(before).strip() in now + kept, "lines of the other program are lost"
    assert [entry.id for entry in st.open(file).branch("main").path()][-1] == mine.id


@settled
@pytest.mark.parametrize("change", REFUSED)
@pytest.mark.parametrize("wrote", [False, True], ids=["opened", "written to"])
def test_any_other_outside_change_is_refused_and_nothing_is_lost(
    tmp_path: Path, change: Change, wrote: bool, settled: bool
) -> None:
    file, session = create_session(tmp_path, settled=settled)
    if not wrote:
        session.close()
        session = st.open(file)
    known = [entry.raw for entry in session.tree]
    change(file)
    theirs = read_files(tmp_path)

    for _ in range(2):
        with pytest.raises(st.StoreError):
            session.append(st.user("mine"))

    assert read_files(tmp_path) == theirs, "the file was changed again"
    assert [entry.id for entry in session.tree] == [json.loads(raw)["id"] for raw in known], (
        "memory is ahead of the disk"
    )
    session.close()
    session.close()
    assert read_files(tmp_path) == theirs, "closing changed the file"


@pytest.mark.parametrize("change", [replace_file, replace_with_longer_file, delete, move_folder_away])
def test_a_session_whose_file_is_gone_can_be_saved_elsewhere(tmp_path: Path, change: Change) -> None:
    file, session = create_session(tmp_path)
    known = [entry.id for entry in session.tree]
    change(file)
    with pytest.raises(st.StoreError):
        session.append(st.user("mine"))

    with session.fork(whole=True, file=tmp_path / "kept.jsonl") as kept:
        kept.append(st.user("mine"))

    assert [entry.id for entry in st.open(tmp_path / "kept.jsonl").tree][: len(known)] == known


@pytest.mark.parametrize("change", REFUSED)
def test_an_unloaded_session_reports_outside_changes_too(tmp_path: Path, change: Change) -> None:
    file, session = create_session(tmp_path)
    session.close()
    session = st.open(file)
    change(file)

    with suppress(st.SessionTreeError):
        assert len(session.tree) >= 3  # it still has the old file

    session.close()


@pytest.mark.parametrize("text", [b"one, corrected", b"1"], ids=["longer", "shorter"])
def test_after_an_edit_in_place_nothing_is_read_from_a_wrong_position(tmp_path: Path, text: bytes) -> None:
    file, session = create_session(tmp_path)
    session.close()
    looks: list[Callable[[st.Session], object]] = [
        lambda session: session.context(),
        lambda session: session.read_lines(),
        lambda session: [entry.body for entry in session.head.path()],
        lambda session: session.fork(whole=True, file=tmp_path / "fork.jsonl"),
    ]
    opened = [st.open(file) for _ in looks]
    for session in opened:
        assert len(session.tree) > 2
    file.write_bytes(file.read_bytes().replace(b'"one"', b'"' + text + b'"'))

    for look, session in zip(looks, opened, strict=True):
        with pytest.raises(Conflict):
            look(session)
        session.close()
    assert not (tmp_path / "fork.jsonl").exists()


@settled
def test_many_outside_changes_lose_nothing_of_either_side(tmp_path: Path, settled: bool) -> None:
    file, session = create_session(tmp_path, settled=settled)
    mine = []
    for number, change in enumerate(itertools.islice(itertools.cycle(ACCEPTED), 40)):
        change(file)
        session.refresh()
        mine.append(session.append(st.user(f"mine {number}"), branch="main").id)

    again = st.open(file)
    assert [id for id in mine if id not in again.tree] == []
    whole = sum(line.strip() == THEIRS for line in file.read_bytes().split(b"\n"))
    assert whole == 20
    assert len(list(file.parent.glob("*.torn-*"))) == 10


@pytest.mark.parametrize("change", [replace_file, truncate_in_a_line, rewrite_in_place])
def test_the_harness_finds_a_writer_that_does_not_check(tmp_path: Path, change: Change) -> None:
    file, session = create_session(tmp_path)
    session.close()

    with start_child(append_after_a_change, str(file), ("skip_checks",)) as child:
        child.wait_for(1)
        change(file)
        theirs = read_files(file.parent)
        (tmp_path / "go").touch()
        told = child.rest()

    assert told == ["ready", "written"]
    assert read_files(file.parent) != theirs, "the planted fault had no effect"


@pytest.mark.parametrize("change", [replace_file, truncate_in_a_line, rewrite_in_place])
def test_a_writer_in_another_process_checks_for_changes(tmp_path: Path, change: Change) -> None:
    file, session = create_session(tmp_path)
    session.close()

    with start_child(append_after_a_change, str(file), ()) as child:
        child.wait_for(1)
        change(file)
        theirs = read_files(file.parent)
        (tmp_path / "go").touch()
        told = child.rest()

    assert told[:1] == ["ready"]
    assert told[1:] == ["refused", "closed"]
    assert read_files(file.parent) == theirs
