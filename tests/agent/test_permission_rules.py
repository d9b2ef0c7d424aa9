import os
from pathlib import Path

import pytest

from sessiontree.agent.permission_rules import (
    PERMISSION_MODES,
    PermissionCall,
    PermissionRule,
    RuleSet,
    build_rule,
    decide,
    describe_call,
    escape_path,
    parse_rule,
    pick_strictest,
)
from sessiontree.agent.tool import Tool, ToolContext, tool
from sessiontree.agent.tools import BUILTIN_TOOLS
from sessiontree.agent.tools.output_limits import write_full_output
from sessiontree.config import PermissionSettings

NONE = RuleSet()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / "home"))
    (tmp_path / "project" / "src").mkdir(parents=True)
    return tmp_path / "project"


def build_rules(*, allow: str = "", ask: str = "", deny: str = "") -> RuleSet:
    lists = ((text,) if text else () for text in (allow, ask, deny))
    return RuleSet.from_settings(PermissionSettings(**dict(zip(("allow", "ask", "deny"), lists, strict=True))))


def describe(project: Path, name: str, **arguments: str) -> PermissionCall:
    return describe_call(BUILTIN_TOOLS[name], arguments, str(project))


@pytest.mark.parametrize(
    ("mode", "reads", "edits", "runs"),
    [
        ("read-only", "allow", "deny", "deny"),
        ("ask", "allow", "ask", "ask"),
        ("allow-edits", "allow", "allow", "ask"),
        ("allow-all", "allow", "allow", "allow"),
    ],
)
def test_the_mode_decides_if_no_rule_matches(project: Path, mode: str, reads: str, edits: str, runs: str) -> None:
    calls = [
        describe(project, "read", path="a.py"),
        describe(project, "write", path="a.py", content=""),
        describe(project, "bash", command="ls"),
    ]

    assert [decide(call, NONE, mode).decision for call in calls] == [reads, edits, runs]  # type: ignore[arg-type]


def test_every_built_in_tool_declares_its_effect_and_rule_parameters() -> None:
    facts = {name: (tool.does, tool.paths or tool.command) for name, tool in BUILTIN_TOOLS.items()}

    assert facts == {
        "read": ("reads", ("path",)),
        "write": ("edits", ("path",)),
        "edit": ("edits", ("path",)),
        "bash": ("runs", "command"),
        "grep": ("reads", ("path",)),
        "find": ("reads", ("path",)),
        "ls": ("reads", ("path",)),
    }


def test_a_tool_without_a_declared_effect_counts_as_running_commands() -> None:
    @tool
    def deploy(target: str) -> str:
        """Deploy."""
        return target

    assert deploy.does == "runs"
    assert decide(describe_call(deploy, {"target": "x"}, "."), NONE, "allow-edits").decision == "ask"


@pytest.mark.parametrize("mode", [mode for mode in PERMISSION_MODES if mode != "read-only"])
@pytest.mark.parametrize("path", ["/etc/passwd", "../other", "~/x", "src/../../other", "@../other", "link/passwd"])
@pytest.mark.parametrize("name", ["read", "write", "ls", "grep"])
def test_a_path_outside_the_folder_needs_permission_in_every_mode(
    project: Path, name: str, path: str, mode: str
) -> None:
    (project / "link").symlink_to("/etc")

    assert decide(describe(project, name, path=path), NONE, mode).decision == "ask"  # type: ignore[arg-type]
    assert decide(describe(project, name, path=path), build_rules(allow=name), mode).decision == "ask"  # type: ignore[arg-type]


def test_a_rule_with_an_outside_path_allows_it(project: Path, tmp_path: Path) -> None:
    call = describe(project, "read", path=str(tmp_path / "shared" / "a" / "b.txt"))

    assert decide(call, build_rules(allow=f"read:{tmp_path}/shared/**"), "ask").decision == "allow"
    assert decide(call, build_rules(allow=f"ls:{tmp_path}/shared/**"), "ask").decision == "ask"
    assert decide(call, build_rules(allow="read:**"), "ask").decision == "ask"


def test_a_link_to_a_file_in_the_folder_counts_as_inside(project: Path) -> None:
    (project / "link").symlink_to(project / "src")

    assert decide(describe(project, "write", path="link/a", content=""), NONE, "allow-edits").decision == "allow"


def test_files_of_sessiontree_count_as_outside_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / ".sessiontree"))
    path = str(tmp_path / ".sessiontree" / "permissions.toml")

    assert decide(describe(tmp_path, "write", path=path, content=""), NONE, "allow-all").decision == "ask"
    assert decide(describe(tmp_path, "read", path=path), NONE, "ask").decision == "ask"


@pytest.mark.parametrize("path", [".git/hooks/pre-commit", "sub/.git/config", ".sessiontree/extensions/x.py"])
def test_editing_files_that_run_later_needs_approval(project: Path, path: str) -> None:
    call = describe(project, "write", path=path, content="")
    for allowed in (NONE, build_rules(allow="write"), build_rules(allow="write:**"), build_rules(allow="*:*")):
        assert decide(call, allowed, "allow-edits").decision == "ask"
    rule = build_rule(call)
    assert rule is not None
    assert decide(call, NONE, "ask", [rule]).decision == "allow"
    assert decide(describe(project, "write", path="x/.git/y", content=""), NONE, "ask", [rule]).decision == "ask"


def test_full_output_of_a_tool_may_be_read(project: Path) -> None:
    path = write_full_output("long")
    assert path is not None
    try:
        assert decide(describe(project, "read", path=path), NONE, "ask").decision == "allow"
        assert decide(describe(project, "write", path=path, content=""), NONE, "ask").decision == "ask"
    finally:
        os.unlink(path)


def test_deny_rules_precede_ask_rules_and_ask_rules_precede_allow_rules(project: Path) -> None:
    call = describe(project, "bash", command="git push origin")
    allow, ask, deny = (
        build_rules(allow="bash:git *"),
        build_rules(ask="bash:git push *"),
        build_rules(deny="*:git push *"),
    )

    assert decide(call, allow, "ask").decision == "allow"
    assert decide(call, allow + ask, "allow-all").decision == "ask"
    assert decide(call, allow + ask + deny, "allow-all").decision == "deny"
    assert "git push" in decide(call, deny, "allow-all").reason


def test_an_allow_rule_does_not_change_anything_in_read_only_mode(project: Path) -> None:
    assert decide(describe(project, "bash", command="ls"), build_rules(allow="bash"), "read-only").decision == "deny"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/deep/a.py", True),
        ("src/**", "src/a/b.py", True),
        ("src/**", "other/a.py", False),
        ("./a.py", "a.py", True),
        ("./a.py", "src/a.py", False),
        ("**", "x/y/z", True),
    ],
)
def test_patterns_of_paths_are_relative_to_the_folder(project: Path, pattern: str, path: str, matches: bool) -> None:
    decision = decide(describe(project, "edit", path=path), build_rules(allow=f"edit:{pattern}"), "ask").decision

    assert decision == ("allow" if matches else "ask")


def test_a_deny_rule_for_a_file_matches_links_and_other_spellings(project: Path) -> None:
    (project / "innocent.txt").symlink_to(project / ".env")
    (project / "src" / ".env").symlink_to(project / "innocent.py")
    deny = build_rules(deny="read:.env")

    for path in (".env", "innocent.txt", "src/../.env", str(project / ".env"), "src/.env", "/elsewhere/.env"):
        assert decide(describe(project, "read", path=path), deny, "allow-all").decision == "deny", path


def test_a_restricting_rule_checks_all_arguments_of_an_undeclared_tool() -> None:
    async def run(context: ToolContext) -> str:
        return ""

    other = Tool(name="shell", description="", run=run)
    call = describe_call(other, {"argv": ["ls", {"x": "rm -rf y"}]}, ".")

    assert decide(call, build_rules(deny="shell:rm *"), "allow-all").decision == "deny"
    assert decide(call, build_rules(allow="shell:ls"), "ask").decision == "ask"


def test_the_rule_from_an_answer_covers_only_the_call(project: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a [b]{c,d}*?.txt"
    odd.touch()
    for call in (
        describe(project, "bash", command="ls *; echo \\* $(x)"),
        describe(project, "read", path=str(odd)),
        describe(project, "ls", path=str(tmp_path)),
        describe(project, "edit", path="src/a.py"),
    ):
        rule = build_rule(call)
        assert rule is not None
        assert decide(call, NONE, "ask", [parse_rule(str(rule))]).decision == "allow", rule

    granted = [PermissionRule("read", escape_path(str(odd)))]
    assert decide(describe(project, "read", path=str(tmp_path / "a b.txt")), NONE, "ask", granted).decision == "ask"


def test_the_strictest_of_several_modes_applies() -> None:
    assert pick_strictest("allow-all", None, "ask") == "ask"
    assert pick_strictest(None) == "ask"
    assert pick_strictest("allow-edits", "read-only") == "read-only"


def test_whitespace_after_the_colon_of_a_rule_is_ignored(project: Path) -> None:
    assert (
        decide(describe(project, "bash", command="sudo x"), build_rules(deny="bash: sudo *"), "allow-all").decision
        == "deny"
    )
    assert (
        decide(describe(project, "read", path="src/.env"), build_rules(deny="read: .env"), "allow-all").decision
        == "deny"
    )


def test_an_answer_covers_a_command_that_begins_with_a_blank(project: Path) -> None:
    call = describe(project, "bash", command="  make > log")
    rule = build_rule(call)
    assert rule is not None
    assert decide(call, NONE, "ask", [parse_rule(str(rule))]).decision == "allow"


@pytest.mark.parametrize("path", [".GIT/hooks/pre-commit", "sub/.Git/config", ".SessionTree/permissions.toml"])
def test_guarded_folders_are_recognized_in_any_case(project: Path, path: str) -> None:
    assert decide(describe(project, "write", path=path, content=""), NONE, "allow-edits").decision == "ask"


def test_a_tool_with_a_command_and_an_outside_path_needs_approval(project: Path, tmp_path: Path) -> None:
    @tool(command="command", paths=("at",))
    def run_at(command: str, at: str) -> None:
        """Run a command somewhere."""

    def call(at: str) -> PermissionCall:
        return describe_call(run_at, {"command": "make", "at": at}, str(project))

    outside, inside = call(str(tmp_path)), call("src")
    assert decide(inside, build_rules(allow="run_at:make"), "ask").decision == "allow"
    assert decide(outside, build_rules(allow="run_at:make"), "ask").decision == "ask"
    assert decide(outside, build_rules(allow="run_at"), "allow-all", [parse_rule("run_at:make")]).decision == "ask"
    assert build_rule(outside) is None
    assert decide(inside, build_rules(deny="run_at:src/**"), "allow-all").decision == "deny"
