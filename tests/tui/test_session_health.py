"""Background check of a session for problems, in a subprocess for large files."""

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
async def test_problems_are_found_in_a_thread_and_in_a_subprocess(
    damaged: str, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_scan, "SUBPROCESS_BYTES", large)

    assert await find_problems(damaged) == ["entry 'lost' names a parent 'nobody' that is not in the file"]


async def test_a_missing_session_has_no_problems(project: Path) -> None:
    assert await find_problems(str(project / "gone.jsonl")) == []


async def test_a_cancelled_check_ends_its_subprocess(damaged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_scan, "SUBPROCESS_BYTES", 0)
    looking = asyncio.create_task(find_problems(damaged))
    await asyncio.sleep(0)
    looking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await looking
