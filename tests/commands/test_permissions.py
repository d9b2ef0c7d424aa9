"""`/permissions`: showing the rules and changing the mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiontree.agent.permission_rules import RuleSet, parse_rule
from sessiontree.agent.permissions import Permissions
from sessiontree.errors import InvalidOperation
from tests.commands.conftest import MakeController


async def test_the_mode_and_all_rules_are_shown(make_controller: MakeController, tmp_path: Path) -> None:
    (tmp_path / "permissions.toml").write_text('deny = ["bash:sudo *"]\n')
    at = make_controller(permissions=Permissions(allow=["bash:git *"], ask=["edit"], home=str(tmp_path)))

    shown = (await at.submit("/permissions")).text.split("\n")

    assert [line.split() for line in shown] == [
        ["mode", "ask"],
        ["deny", "bash:sudo", "*"],
        ["ask", "edit"],
        ["allow", "bash:git", "*"],
    ]


async def test_the_mode_changes_and_a_project_limits_it(make_controller: MakeController) -> None:
    permissions = Permissions()
    at = make_controller(permissions=permissions)

    assert (await at.submit("/permissions allow-edits")).text == "Permission mode: allow-edits"
    assert permissions.mode == "allow-edits"
    permissions.restrict("ask", RuleSet(deny=(parse_rule("bash"),)))
    limited = (await at.submit("/permissions allow-all")).text
    assert limited == "Permission mode: ask (restricted by the project)"
    with pytest.raises(InvalidOperation, match="no permission mode 'all'"):
        await at.submit("/permissions all")


async def test_permissions_off_is_reported(make_controller: MakeController) -> None:
    with pytest.raises(InvalidOperation, match="may use all of its tools"):
        await make_controller().submit("/permissions")


async def test_grants_of_a_session_do_not_apply_to_the_next(make_controller: MakeController) -> None:
    permissions = Permissions()
    at = make_controller(permissions=permissions)
    permissions._shared.granted.append(parse_rule("bash"))

    await at.submit("/new")

    assert permissions.granted == ()
