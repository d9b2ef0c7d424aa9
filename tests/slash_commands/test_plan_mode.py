"""Plan mode: the agent only reads until the user approves its plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiontree.agent.factory import load_agent_options
from sessiontree.config import Config
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.plan_mode import APPROVAL_PROMPT, APPROVE, APPROVE_EDITS, KEEP, LEAVE

from .conftest import ScriptedUser, run

WRITE = ToolCall("c1", "write", {"path": "a.txt", "content": "x"})


def create_planner(session: Session, folder: Path, *answers: str | None) -> tuple[SessionController, ScriptedModel]:
    model = ScriptedModel([[WRITE], "1. Write a.txt", [WRITE], "Done."])
    options = load_agent_options(Config(), mode="allow-all", cwd=str(folder))
    return SessionController(session, model=model, options=options, ui=ScriptedUser(*answers)), model


async def test_nothing_changes_until_the_plan_is_approved(session: Session, tmp_path: Path) -> None:
    at, model = create_planner(session, tmp_path, APPROVE)

    await run(at, "/plan Write a file")
    assert not (tmp_path / "a.txt").exists()
    assert "You are in plan mode" in str(model.requests[0].system)

    await run(at, "/plan")
    assert (tmp_path / "a.txt").read_text() == "x"
    assert "You are in plan mode" not in str(model.requests[2].system)
    assert APPROVAL_PROMPT in str(model.requests[2].messages[-1])


@pytest.mark.parametrize(("answer", "is_active"), [(KEEP, True), (None, True), (LEAVE, False)])
async def test_without_approval_nothing_is_sent(
    session: Session, tmp_path: Path, answer: str | None, is_active: bool
) -> None:
    at, model = create_planner(session, tmp_path, answer)
    await run(at, "/plan")

    await run(at, "/plan")

    assert at.plan_mode.is_active == is_active
    assert model.requests == []


async def test_approving_edits_changes_the_mode_but_never_loosens_a_project(session: Session, tmp_path: Path) -> None:
    at, _ = create_planner(session, tmp_path, APPROVE_EDITS)
    assert at.permissions is not None
    at.permissions.mode = "ask"
    await run(at, "/plan Write a file")

    await run(at, "/plan")

    assert at.permissions.effective_mode == "allow-edits"


async def test_plan_mode_needs_permissions(session: Session) -> None:
    at = SessionController(session, model=ScriptedModel([]))

    with pytest.raises(InvalidOperation, match="plan mode needs permissions"):
        await run(at, "/plan")
    assert not at.plan_mode.is_active
