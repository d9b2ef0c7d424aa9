"""Permission rules of a project: they need trust and can only restrict."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiontree.agent.permission_rules import parse_rule
from sessiontree.agent.permissions import Permissions
from tests.extensions.conftest import Load, write
from tests.slash_commands.conftest import ScriptedUser

RULES = 'mode = "ask"\nallow = ["bash"]\ndeny = ["read:secret/**"]\n'


@pytest.fixture
def rules(project: Path) -> Path:
    return write(project / ".sessiontree" / "permissions.toml", RULES)


async def test_rules_of_a_project_apply_only_if_it_is_trusted(load: Load, rules: Path) -> None:
    permissions = Permissions("allow-all")
    loaded = await load(permissions=permissions)
    assert permissions.effective_mode == "allow-all"
    assert permissions.rules.deny == ()
    assert any("you have not trusted it" in text for text in loaded.notices)

    person = ScriptedUser("yes")
    loaded = await load(ui=person, permissions=permissions)
    assert "permissions.toml" in str(person.questions)
    assert permissions.effective_mode == "ask"
    assert permissions.rules.deny == (parse_rule("read:secret/**"),)


async def test_allow_rules_of_a_project_are_ignored_with_a_warning(load: Load, rules: Path) -> None:
    permissions = Permissions()
    loaded = await load(ui=ScriptedUser("yes"), permissions=permissions)

    assert permissions.rules.allow == ()
    assert any("a project can only restrict" in text for text in loaded.notices)


async def test_a_project_cannot_make_the_mode_more_lenient(load: Load, rules: Path) -> None:
    rules.write_text('mode = "allow-all"\n')
    permissions = Permissions("read-only")

    await load(ui=ScriptedUser("yes"), permissions=permissions)

    assert permissions.effective_mode == "read-only"


async def test_invalid_project_rules_make_agents_read_only(load: Load, rules: Path) -> None:
    rules.write_text("deny = 1\n")
    permissions = Permissions("allow-all")

    loaded = await load(ui=ScriptedUser("yes"), permissions=permissions)

    assert permissions.effective_mode == "read-only"
    assert any("agents are read-only here" in text for text in loaded.notices)


async def test_project_rules_are_read_again_on_reload(load: Load, rules: Path) -> None:
    permissions = Permissions("allow-all")
    loaded = await load(ui=ScriptedUser("yes", "yes"), permissions=permissions)

    rules.write_text('mode = "allow-edits"\n')
    await loaded.extensions.reload()

    assert permissions.effective_mode == "allow-edits"
    assert permissions.rules.deny == ()
