"""Slash commands on a session in a database stay in the database."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from tests.slash_commands.conftest import MakeController, ScriptedUser, run, talk


async def test_new_fork_and_resume_stay_in_the_database(
    make_controller: MakeController, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONTREE_STORE", database)
    session = st.create("auth", cwd=tmp_path)
    talk(session, "one", "1", "two", "2")
    at = make_controller("An answer.", session=session, ui=ScriptedUser("two"), cwd=str(tmp_path))

    assert session.location in await run(at, "/session")
    await run(at, "/fork")
    forked = at.session
    await run(at, "/new other")
    other = at.session
    await at.submit("hello")
    await run(at, "/resume auth")

    assert forked.location.startswith(database)
    assert other.location.startswith(database)
    assert len({session.id, forked.id, other.id}) == 3
    assert at.session.id == session.id
    assert [message["role"] for message in st.open(other.location).context().messages] == ["user", "assistant"]
    monkeypatch.delenv("SESSIONTREE_STORE")
    await run(at, "/new third")
    assert at.session.location.startswith(database), "next to the previous session"
    monkeypatch.setenv("SESSIONTREE_STORE", database)
    assert (await run(at, "/search hello")).count("hello") >= 1
