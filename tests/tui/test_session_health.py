"""Faults of a session that is opened: they are found in the background, of a large one by another process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.tui.services import session_scan
from sessiontree.tui.services.session_scan import find_problems


@pytest.fixture
def damaged(project: Path) -> str:
    with st.create("damaged") as session:
        session.append(st.user("hello"))
        file = session.file
    assert file is not None
    file.write_bytes(
        file.read_bytes() + b'{"type":"message","id":"lost","parentId":"nobody","timestamp":"","message":{}}\n'
    )
    return str(file)


@pytest.mark.parametrize("large", [0, 1 << 30])
async def test_they_are_told_whoever_looks(damaged: str, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_scan, "SUBPROCESS_BYTES", large)

    assert await find_problems(damaged) == ["entry 'lost' names a parent 'nobody' that is not in the file"]


async def test_a_session_that_is_gone_has_none(project: Path) -> None:
    assert await find_problems(str(project / "gone.jsonl")) == []


async def test_a_look_that_nobody_waits_for_ends(damaged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_scan, "SUBPROCESS_BYTES", 0)
    looking = asyncio.create_task(find_problems(damaged))
    await asyncio.sleep(0)
    looking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await looking
