"""A damaged session is repaired in a copy; the damaged file does not change."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.library import catalog
from sessiontree.library.repair import rescue
from sessiontree.library.transfer import copy
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.memory import MemoryStore


def build_memory_store(*lines: bytes) -> MemoryStore:
    store = MemoryStore()
    store.create(lines)
    return store


@pytest.mark.parametrize("fields", ['"version":9', '"version":3,"redacted":true'])
def test_a_repair_that_would_lose_information_of_the_header_is_refused(tmp_path: Path, fields: str) -> None:
    (tmp_path / "s.jsonl").write_text(f'{{"type":"session",{fields},"id":"s"}}\ngarbage\n')

    with pytest.raises(st.ReadOnly, match="a repaired copy would"):
        st.repair(st.open(tmp_path / "s.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["s.jsonl"]


def test_a_repaired_copy_and_its_source_are_both_found_by_their_ids() -> None:
    damaged = st.create(cwd="/p")
    assert damaged.file is not None
    with damaged.file.open("a") as file:
        file.write("garbage\n")

    report = st.repair(st.open(damaged.id))

    assert report.file is not None
    sound = st.open(report.file)
    assert catalog.find(damaged.id[:20]) == str(damaged.file)
    assert catalog.find(sound.id) == catalog.find(sound.id[-8:]) == report.file


def test_a_session_whose_file_was_removed_is_repaired_to_another_file(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/p"}\ngarbage\n')
    session = st.open(tmp_path / "s.jsonl")
    assert [problem.kind for problem in session.problems] == ["malformed_line"]
    (tmp_path / "s.jsonl").rename(tmp_path / "moved.jsonl")

    with pytest.raises(st.Conflict):
        st.repair(session)
    report = st.repair(session, file=tmp_path / "sound.jsonl")

    assert st.open(report.file).problems == []


def test_a_repaired_copy_of_a_session_in_memory_needs_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    damaged = st.Session(
        build_memory_store(b'{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/p"}', b"garbage")
    )

    with pytest.raises(st.InvalidOperation, match="a session in memory has no folder for a repaired copy"):
        st.repair(damaged)
    assert list(tmp_path.glob("*.jsonl")) == []
    assert st.repair(damaged, file="sound.jsonl").file == "sound.jsonl"
    assert not st.open("sound.jsonl").problems


def test_repairing_a_removed_file_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text('{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/p"}\ngarbage\n')
    damaged = st.open(file)
    assert damaged.problems
    file.unlink()

    with pytest.raises(st.StoreError, match="deleted the file"):
        st.repair(damaged)


def write_damaged_file(file: Path) -> Path:
    """Write a file with an invalid line and a head that points to a missing entry."""
    record = '{"current":"main","heads":{"main":"gone","side":"a"}}'
    file.write_text(
        '{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/p"}\n'
        '{"type":"message","id":"a","parentId":null,"timestamp":"","branch":"main","message":{"role":"user"}}\n'
        f'{{"type":"custom","id":"r","parentId":"a","customType":"sessiontree.head","data":{record}}}\ngarbage\n'
    )
    return file


def test_a_repaired_copy_is_complete_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(*_: object, **__: object) -> None:
        raise st.StoreError("the disk", "No space left on device")

    file = write_damaged_file(tmp_path / "s.jsonl")
    monkeypatch.setattr(JsonlStore, "append", raise_disk_full)

    report = st.repair(st.open(file, read_only=True))

    assert report.file is not None
    sound = st.open(report.file, read_only=True)
    assert (sound.problems, sound.heads.heads, sound.heads.moves) == ([], {"main": "a", "side": "a"}, [])


def test_a_missing_head_of_an_old_file_is_restored_in_a_copy(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(
        write_damaged_file(file).read_text().replace('"version":3', '"version":2').removesuffix("garbage\n")
    )
    before = file.read_bytes()

    with st.open(file) as damaged:
        report = st.repair(damaged)

    assert [repair.kind for repair in report.repairs] == ["missing_head"]
    assert report.file is not None
    assert file.read_bytes() == before
    sound = st.open(report.file)
    assert (sound.problems, sound.header.version) == ([], 3)
    assert sound.heads.heads == {"main": "a", "side": "a"}
    assert st.repair(st.open(file)) == report


def test_an_earlier_copy_is_used_again_while_it_is_complete(tmp_path: Path) -> None:
    file = write_damaged_file(tmp_path / "s.jsonl")
    first = st.repair(st.open(file))
    assert first.file is not None
    with st.open(first.file) as sound:
        sound.append(st.user("more"))
    assert st.repair(st.open(file)) == first
    whole = Path(first.file).read_bytes().split(b"\n")

    Path(first.file).write_bytes(b"\n".join([*whole[:3], b""]))  # the rest of the file is lost

    assert st.repair(st.open(file)).file not in (None, first.file)


def test_entries_of_other_writers_are_in_the_copy(tmp_path: Path) -> None:
    damaged = st.open(write_damaged_file(tmp_path / "s.jsonl"))
    assert damaged.problems
    with st.open(damaged.location) as other:
        late = other.branch("side").append(st.user("late"))

    report = st.repair(damaged)

    assert report.file is not None
    assert st.open(report.file).heads.heads["side"] == late.id


def test_a_session_in_a_database_is_repaired_once_until_it_changes(database: str, tmp_path: Path) -> None:
    line = '{"type":"message","id":"a","parentId":null,"timestamp":"","message":{"role":"user","content":"%s"}}\n'
    (tmp_path / "s.jsonl").write_text(
        '{"type":"session","version":3,"id":"s","timestamp":"","cwd":"/p"}\ngarbage\n' + line % "one" + line % "two"
    )
    assert all(copied.is_ok for copied in copy(str(tmp_path / "s.jsonl"), database))
    damaged = st.open(f"{database}#s")
    forks = [damaged.fork(), damaged.fork(whole=True)]

    report = st.repair(damaged)

    assert report.file is not None
    assert report.file not in [fork.location for fork in forks]
    assert st.repair(st.open(f"{database}#s")) == report
    with st.open(report.file) as sound:
        sound.append(st.user("three"))
    assert st.repair(st.open(f"{database}#s")) == report
    with damaged:
        damaged.append(st.user("four"))
    again = st.repair(st.open(f"{database}#s"))
    assert again.file not in (None, report.file)
    assert st.repair(st.open(f"{database}#s")) == again
    assert again.file is not None
    catalog.delete(again.file)
    assert st.repair(st.open(f"{database}#s")).file not in (None, report.file, again.file)


def test_ids_generated_by_a_repair_are_unique(tmp_path: Path) -> None:
    damaged = tmp_path / "s.jsonl"
    line = '{"type":"custom","id":"%s","parentId":null,"customType":"x"}\n'
    damaged.write_text('{"type":"session","version":3,"id":"s"}\n' + line % "a" * 2)
    first = st.repair(st.open(damaged), file=tmp_path / "first.jsonl")
    given = next(iter(st.open(tmp_path / "first.jsonl").tree)).id
    assert (first.repairs[0].entry, given != "a") == ("a", True)

    damaged.write_text(damaged.read_text() + line % given)
    st.repair(st.open(damaged), file=tmp_path / "second.jsonl")

    sound = st.open(tmp_path / "second.jsonl")
    assert sound.problems == []
    assert len(sound.tree) > len(st.open(damaged).tree)


# Files without a header


def build_headless_file(*texts: str, first: str = '{"type":"session","vers') -> str:
    lines = [
        f'{{"type":"message","id":"{text}","parentId":{parent},"timestamp":"2026-01-02T09:30:00.000Z",'
        f'"message":{{"role":"user","content":"{text}"}}}}'
        for text, parent in zip(texts, ["null", *(f'"{text}"' for text in texts)], strict=False)
    ]
    return "".join(f"{line}\n" for line in [*([first] if first else []), *lines])


@pytest.mark.parametrize("first", ["", "garbage", '\x00{"type":"session","version":3,"id":"s"}', "[1]", "{}"])
def test_a_session_is_rescued_from_a_file_whose_header_is_lost(tmp_path: Path, first: str) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(build_headless_file("one", "two", first=first))
    before = file.read_bytes()
    with pytest.raises(st.FormatError):
        st.open(file)

    report = rescue(str(file))

    assert report.file is not None
    assert [repair.kind for repair in report.repairs] == ["no_session"]
    sound = st.open(report.file)
    assert (sound.problems, sound.header.timestamp) == ([], "2026-01-02T09:30:00.000Z")
    assert [message["content"] for message in sound.context().messages] == ["one", "two"]
    assert file.read_bytes() == before
    assert rescue(str(file)) == report


def test_a_repair_reports_the_number_of_dropped_lines_if_there_are_many(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    session = st.create(file=file)
    session.append(st.user("one"))
    with file.open("a") as more:
        more.write("garbage\n" * 1002)

    report = st.repair(st.open(file))

    assert report.file is not None
    assert len(report.repairs) == 1001
    assert report.repairs[-1].message == (
        "2 more unreadable lines, the last of them line 1,004: left out of the copy; they stay in the damaged file"
    )
    assert st.open(report.file).problems == []


def test_other_faults_of_a_file_without_header_are_repaired_too(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sessiontree.library.index.session_summary.LINE_LIMIT", 200_000)
    file = tmp_path / "s.jsonl"
    file.write_text(build_headless_file("one", "two").replace('"parentId":null', '"parentId":"gone"') + "garbage\n")
    with file.open("a") as more:
        more.write("x" * 300_000 + '\n{"type":"message","id":"torn')

    report = rescue(str(file))

    assert report.file is not None
    assert [(repair.kind, repair.line) for repair in report.repairs] == [
        ("no_session", 1),
        ("malformed_line", 4),
        ("malformed_line", 5),
        ("malformed_line", 6),
        ("orphan", 2),
    ]
    sound = st.open(report.file)
    assert sound.problems == []
    assert [message["content"] for message in sound.context().messages] == ["one", "two"]


def test_a_rescued_session_is_listed_in_the_folder_of_its_file(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for cwd in (".", "/p"):
        session = st.create(cwd=cwd)
        st.create(cwd=cwd)
        session.append(st.user("one"))
        assert session.file is not None
        session.file.write_text(session.file.read_text().replace('{"type":"session"', '{"type":"sess'))

        report = rescue(str(session.file))

        assert report.file in [summary.file for summary in st.sessions(cwd)]


@pytest.mark.parametrize("text", ["", "nothing of ours\n", '{"type":"row","id":"1"}\n{"type":"row","id":"2"}\n'])
def test_a_file_without_messages_is_not_a_session_and_gets_no_copy(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.jsonl").write_text(text)

    with pytest.raises(st.FormatError, match="it contains no messages"):
        rescue(str(tmp_path / "s.jsonl"))
    assert len(list(tmp_path.iterdir())) == 1
