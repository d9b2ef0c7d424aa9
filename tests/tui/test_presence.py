"""Whether another app has a session open, which is told of a file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.session import Session
from sessiontree.tui.presence import Presence


@pytest.fixture
def session(tmp_path: Path) -> Session:
    session = st.create(file=tmp_path / "talk.jsonl")
    session.append(st.user("hello"))
    return session


def test_the_second_to_open_a_session_is_not_alone_until_the_first_has_left(session: Session) -> None:
    first = Presence(session)

    assert (first.alone, Presence(session).alone) == (True, False)
    first.leave()
    assert Presence(session).alone


def test_a_file_is_the_same_by_another_name(session: Session, tmp_path: Path) -> None:
    os.symlink(tmp_path / "talk.jsonl", tmp_path / "link.jsonl")
    mark = Presence(session)

    assert not Presence(st.open(tmp_path / "link.jsonl")).alone
    mark.leave()


def test_a_copy_of_a_file_is_another_session_though_it_has_the_same_id(session: Session, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "talk.jsonl", tmp_path / "copy.jsonl")
    copy, mark = st.open(tmp_path / "copy.jsonl"), Presence(session)

    assert copy.id == session.id
    assert Presence(copy).alone
    mark.leave()
