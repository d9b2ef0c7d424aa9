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
from sessiontree.store.files import CLOCK_TICK, NANOSECONDS
from tests.builders import TIME, file_of
from tests.reliability.child import append_after_a_change
from tests.reliability.harness import everything_in, started

THEIRS = file_of(
    {"type": "message", "id": "theirs00", "parentId": None, "timestamp": TIME, "message": {"role": "user"}}
)[:-1]


def grown(file: Path) -> None:
    with file.open("ab") as end:
        end.write(THEIRS + b"\n")


def grown_by_a_line_without_its_newline(file: Path) -> None:
    with file.open("ab") as end:
        end.write(THEIRS)


def grown_by_half_a_line(file: Path) -> None:
    with file.open("ab") as end:
        end.write(THEIRS[:50])


def grown_by_garbage(file: Path) -> None:
    with file.open("ab") as end:
        end.write(b"\0\xff garbage\n")


def replaced(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes().split(b"\n")[0] + b"\n" + THEIRS + b"\n")
    other.rename(file)


def replaced_by_a_longer_one(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(file.read_bytes() + THEIRS + b"\n")
    other.rename(file)


def rewritten_in_place(file: Path) -> None:
    file.write_bytes(file.read_bytes().split(b"\n")[0] + b"\n" + THEIRS * 9 + b"\n")


def truncated(file: Path) -> None:
    os.truncate(file, len(file.read_bytes().split(b"\n")[0]) + 1)


def truncated_in_a_line(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 20)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def deleted(file: Path) -> None:
    file.unlink()


def made_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def folder_moved_away(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


TAKEN_IN = [grown, grown_by_a_line_without_its_newline, grown_by_half_a_line, grown_by_garbage]
REFUSED = [
    replaced,
    replaced_by_a_longer_one,
    rewritten_in_place,
    truncated,
    truncated_in_a_line,
    emptied,
    deleted,
    made_a_folder,
    folder_moved_away,
]
Change = Callable[[Path], None]


def made(folder: Path, *, settled: bool = False) -> tuple[Path, st.Session]:
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
@pytest.mark.parametrize("change", TAKEN_IN)
def test_lines_that_others_append_are_read(tmp_path: Path, change: Change, settled: bool) -> None:
    file, session = made(tmp_path, settled=settled)
    before = file.read_bytes()
    change(file)
    changed = file.read_bytes()

    mine = session.append(st.user("mine"), branch="main")
    session.close()

    now = file.read_bytes()
    kept = b"".join(path.read_bytes() for path in file.parent.glob("*.torn-*"))
    assert now.startswith(before)
    assert changed.removeprefix(before).strip() in now + kept, "what they wrote is lost"
    assert [entry.id for entry in st.open(file).branch("main").path()][-1] == mine.id


@settled
@pytest.mark.parametrize("change", REFUSED)
@pytest.mark.parametrize("wrote", [False, True], ids=["opened", "written to"])
def test_any_other_outside_change_is_refused_and_nothing_is_lost(
    tmp_path: Path, change: Change, wrote: bool, settled: bool
) -> None:
    file, session = made(tmp_path, settled=settled)
    if not wrote:
        session.close()
        session = st.open(file)
    known = [entry.raw for entry in session.tree]
    change(file)
    theirs = everything_in(tmp_path)

    for _ in range(2):
        with pytest.raises(st.StoreError):
            session.append(st.user("mine"))

    assert everything_in(tmp_path) == theirs, "what they made of it was changed"
    assert [entry.id for entry in session.tree] == [json.loads(raw)["id"] for raw in known], "memory ran ahead"
    session.close()
    session.close()
    assert everything_in(tmp_path) == theirs, "closing changed what they made of it"


@pytest.mark.parametrize("change", [replaced, replaced_by_a_longer_one, deleted, folder_moved_away])
def test_a_session_whose_file_is_gone_can_be_saved_elsewhere(tmp_path: Path, change: Change) -> None:
    file, session = made(tmp_path)
    known = [entry.id for entry in session.tree]
    change(file)
    with pytest.raises(st.StoreError):
        session.append(st.user("mine"))

    with st.fork(session, whole=True, file=tmp_path / "kept.jsonl") as kept:
        kept.append(st.user("mine"))

    assert [entry.id for entry in st.open(tmp_path / "kept.jsonl").tree][: len(known)] == known


@pytest.mark.parametrize("change", REFUSED)
def test_an_unloaded_session_reports_outside_changes_too(tmp_path: Path, change: Change) -> None:
    file, session = made(tmp_path)
    session.close()
    session = st.open(file)
    change(file)

    with suppress(st.SessionTreeError):
        assert len(session.tree) >= 3  # it still has the old file

    session.close()


@pytest.mark.parametrize("text", [b"one, corrected", b"1"], ids=["longer", "shorter"])
def test_after_an_edit_in_place_nothing_is_read_from_a_wrong_position(tmp_path: Path, text: bytes) -> None:
    file, session = made(tmp_path)
    session.close()
    looks: list[Callable[[st.Session], object]] = [
        lambda session: session.context(),
        lambda session: session.read_lines(),
        lambda session: [entry.body for entry in session.head.path()],
        lambda session: st.fork(session, whole=True, file=tmp_path / "fork.jsonl"),
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
    file, session = made(tmp_path, settled=settled)
    mine = []
    for number, change in enumerate(itertools.islice(itertools.cycle(TAKEN_IN), 40)):
        change(file)
        session.refresh()
        mine.append(session.append(st.user(f"mine {number}"), branch="main").id)

    again = st.open(file)
    assert [id for id in mine if id not in again.tree] == []
    whole = sum(line.strip() == THEIRS for line in file.read_bytes().split(b"\n"))
    assert whole == 20
    assert len(list(file.parent.glob("*.torn-*"))) == 10


@pytest.mark.parametrize("change", [replaced, truncated_in_a_line, rewritten_in_place])
def test_the_harness_finds_a_writer_that_does_not_check(tmp_path: Path, change: Change) -> None:
    file, session = made(tmp_path)
    session.close()

    with started(append_after_a_change, str(file), ("blind",)) as child:
        child.wait_for(1)
        change(file)
        theirs = everything_in(file.parent)
        (tmp_path / "go").touch()
        told = child.rest()

    assert told == ["ready", "written"]
    assert everything_in(file.parent) != theirs, "the change was noticed after all"


@pytest.mark.parametrize("change", [replaced, truncated_in_a_line, rewritten_in_place])
def test_a_writer_in_another_process_checks_for_changes(tmp_path: Path, change: Change) -> None:
    file, session = made(tmp_path)
    session.close()

    with started(append_after_a_change, str(file), ()) as child:
        child.wait_for(1)
        change(file)
        theirs = everything_in(file.parent)
        (tmp_path / "go").touch()
        told = child.rest()

    assert told[:1] == ["ready"]
    assert told[1:] == ["refused", "closed"]
    assert everything_in(file.parent) == theirs
