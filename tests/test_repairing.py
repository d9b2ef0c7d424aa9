"""Damaged sessions are made sound beside the damaged file, which stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree import catalog
from sessiontree.repairing import rescue


@pytest.mark.parametrize("fields", ['"version":9', '"version":3,"redacted":true'])
def test_no_copy_is_made_that_would_say_less_than_its_header(tmp_path: Path, fields: str) -> None:
    (tmp_path / "s.jsonl").write_text(f'{{"type":"session",{fields},"id":"s"}}\ngarbage\n')

    with pytest.raises(st.ReadOnly, match="a repaired copy would not"):
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


# Files without a header


def headless(*said: str, first: str = '{"type":"session","vers') -> str:
    lines = [
        f'{{"type":"message","id":"{text}","parentId":{parent},"timestamp":"2026-01-02T09:30:00.000Z",'
        f'"message":{{"role":"user","content":"{text}"}}}}'
        for text, parent in zip(said, ["null", *(f'"{text}"' for text in said)], strict=False)
    ]
    return "".join(f"{line}\n" for line in [*([first] if first else []), *lines])


@pytest.mark.parametrize("first", ["", "garbage", '\ufeff{"type":"session","version":3,"id":"s"}', "[1]", "{}"])
def test_a_session_is_rescued_from_a_file_whose_header_is_lost(tmp_path: Path, first: str) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(headless("one", "two", first=first))
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


def test_what_else_is_wrong_with_a_file_without_header_is_repaired_too(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sessiontree.index.reading.LINE_LIMIT", 200_000)
    file = tmp_path / "s.jsonl"
    file.write_text(headless("one", "two").replace('"parentId":null', '"parentId":"gone"') + "garbage\n")
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


def test_a_rescued_session_is_listed_where_its_file_is(monkeypatch, tmp_path: Path) -> None:
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
def test_what_has_no_messages_is_no_session_and_nothing_is_made(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.jsonl").write_text(text)

    with pytest.raises(st.FormatError, match="nothing in it is a message"):
        rescue(str(tmp_path / "s.jsonl"))
    assert len(list(tmp_path.iterdir())) == 1
