"""Drafts are saved per session, and adopted by new sessions."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.library import catalog
from sessiontree.library.other_processes import PresenceLock
from sessiontree.session import Session
from sessiontree.tui.services import input as input_module
from sessiontree.tui.services.input import DraftFile, EditorDraft


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_draft(session: Session, text: str, seconds: int = 0) -> DraftFile:
    drafts = DraftFile(session)
    drafts.write(EditorDraft(text=text))
    os.utime(drafts.path, (seconds, seconds))
    return drafts


def test_open_new_sessions_in_one_folder_have_separate_drafts(folder: Path) -> None:
    one, other = st.create(), st.create()
    marks = [PresenceLock(one), PresenceLock(other)]

    first = write_draft(one, "one")
    assert DraftFile(other).read().is_empty
    second = write_draft(other, "other")

    assert (first.read().text, second.read().text) == ("one", "other")
    one.append(st.user("one"))
    first.write(EditorDraft())
    assert (first.read().is_empty, second.read().text) == (True, "other")
    for mark in marks:
        mark.release()


def test_an_orphan_draft_is_adopted_once(folder: Path) -> None:
    left = st.create()
    mark = PresenceLock(left)
    write_draft(left, "begun")
    assert DraftFile(st.create()).read().is_empty
    mark.release()
    catalog.delete(left.location)

    taken = DraftFile(st.create())

    assert taken.read().text == "begun"
    assert taken.read().text == "begun"
    mark = PresenceLock(taken.session)
    assert DraftFile(st.create()).read().is_empty
    mark.release()


def test_the_newest_orphan_draft_is_adopted_first(folder: Path) -> None:
    for number in (2, 3, 1):
        write_draft(st.create(), f"draft {number}", number)

    sessions = [st.create() for _ in range(4)]
    marks = [PresenceLock(session) for session in sessions]

    assert [DraftFile(session).read().text for session in sessions] == ["draft 3", "draft 2", "draft 1", ""]
    for mark in marks:
        mark.release()


def test_drafts_of_other_folders_and_of_sessions_with_entries_are_not_adopted(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    elsewhere, held = st.create(cwd="elsewhere"), st.create()
    held.append(st.user("hello"))
    kept = [write_draft(elsewhere, "there"), write_draft(held, "more")]
    (Path(kept[0].path).parent / "noise.json").write_text("no draft")

    assert DraftFile(st.create()).read().is_empty
    assert [draft.read().text for draft in kept] == ["there", "more"]


def test_a_second_process_adopts_no_draft(folder: Path) -> None:
    write_draft(st.create(), "begun")

    assert DraftFile(st.create(), second=True).read().is_empty
    assert DraftFile(st.create()).read().text == "begun"


def test_drafts_that_cannot_be_saved_are_ignored(folder: Path, home: Path) -> None:
    (home / ".sessiontree").mkdir(parents=True, exist_ok=True)
    (home / ".sessiontree" / "drafts").write_text("in the way")
    drafts = DraftFile(st.create())

    drafts.write(EditorDraft(text="typed"))

    assert drafts.read().is_empty


def test_a_locked_drafts_folder_does_not_prevent_startup(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = st.create()
    drafts = write_draft(left, "begun")
    catalog.delete(left.location)
    monkeypatch.setattr(input_module, "LOCK_SECONDS", 0.0)
    fd = os.open(os.path.dirname(drafts.path), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)

    assert DraftFile(st.create()).read().is_empty
    os.close(fd)
    assert DraftFile(st.create()).read().text == "begun"
