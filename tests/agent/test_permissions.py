import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from sessiontree.agent.agent import Agent
from sessiontree.agent.permission_rules import RULES_FILE, RuleSet, read_user_rules
from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion, Permissions
from sessiontree.agent.tool import ToolOutput, tool
from sessiontree.agent.tools import builtin_tools
from sessiontree.config import Config, ConfigError, PermissionSettings
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Event, Notice, ToolDenied, ToolStart
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session

from .conftest import format_messages


def build_bash_call(name: str, arguments: dict[str, Any] | None = None, id: str = "c1") -> ToolCall:
    return ToolCall(id, name, arguments or {})


class Person:
    """An asker that returns scripted answers and records the questions."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[PermissionQuestion] = []

    async def __call__(self, question: PermissionQuestion) -> PermissionAnswer | None:
        self.asked.append(question)
        scope, _, reason = self.answers.pop(0).partition(" ")
        return None if scope == "nobody" else PermissionAnswer(scope=scope, reason=reason or None)  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


async def run(
    session: Session, project: Path, permissions: Permissions | None, *commands: Any, hooks: Hooks | None = None
) -> list[Event]:
    """Let a model call bash with each command, or make the given calls. Return the events."""
    calls = [[build_bash_call("bash", {"command": each})] if isinstance(each, str) else each for each in commands]
    agent = Agent(
        session.head,
        ScriptedModel([*calls, "Done."]),
        builtin_tools(),
        hooks,
        system="Be brief.",
        cwd=str(project),
        permissions=permissions,
    )
    events: list[Event] = []
    agent.hooks.listen(events.append)
    await agent.run("go")
    await agent.close()
    return events


def list_denied(events: list[Event]) -> list[str]:
    return [event.title for event in events if isinstance(event, ToolDenied)]


async def test_without_permissions_all_tools_are_allowed(session: Session, project: Path) -> None:
    assert list_denied(await run(session, project, None, "touch made")) == []
    assert (project / "made").exists()


async def test_without_an_asker_a_command_is_denied_and_the_model_sees_it(session: Session, project: Path) -> None:
    events = await run(session, project, Permissions(), "touch made")

    assert list_denied(events) == ["bash: touch made"]
    assert not (project / "made").exists()
    assert not [event for event in events if isinstance(event, ToolStart)]
    (reported,) = [text for text in format_messages(session.head) if text.startswith("toolResult")]
    assert reported == (
        "toolResult: Permission denied: bash: touch made was not run: "
        "it can change anything, and no user is present to approve it."
    )


async def test_the_answer_once_allows_one_call(session: Session, project: Path) -> None:
    person = Person("once", "no")

    events = await run(session, project, Permissions(asker=person), "touch a", "touch a")

    assert (project / "a").exists()
    assert list_denied(events) == ["bash: touch a"]


async def test_the_question_shows_a_replacement_as_a_diff(session: Session, project: Path) -> None:
    person = Person("no", "no")
    replaced = {"path": "a.py", "old_text": "one\ntwo", "new_text": "three"}
    written = {"path": "a.py", "content": "one\ntwo"}

    await run(
        session,
        project,
        Permissions(asker=person),
        build_bash_call("edit", replaced),
        build_bash_call("write", written, "c2"),
    )

    assert [question.detail for question in person.asked] == [
        "path: a.py\n- one\n- two\n+ three",
        "path: a.py\ncontent:\none\ntwo",
    ]


async def test_an_answer_for_the_session_covers_only_the_same_call(session: Session, project: Path) -> None:
    person = Person("session", "no")
    permissions = Permissions(asker=person)

    events = await run(session, project, permissions, "touch a", "touch a", "touch b")

    assert [question.title for question in person.asked] == ["bash: touch a", "bash: touch b"]
    assert list_denied(events) == ["bash: touch b"]
    permissions.forget_grants()
    assert permissions.granted == ()


async def test_a_denial_shows_the_reason_to_the_model(session: Session, project: Path) -> None:
    await run(session, project, Permissions(asker=Person("no use make instead.")), "npm test")

    assert any("denied by the user: use make instead." in text for text in format_messages(session.head))


async def test_no_answer_means_denied(session: Session, project: Path) -> None:
    events = await run(session, project, Permissions(asker=Person("nobody")), "touch a")

    assert list_denied(events) == ["bash: touch a"]
    assert any("the question was not answered" in text for text in format_messages(session.head))


async def test_always_adds_a_rule_for_the_folder_to_a_private_file(
    session: Session, project: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    odd = "echo \"a\tb\" '*' \x7f\n\\n"
    first = Permissions.load_user(Config(), str(home), asker=Person("always", "always"))
    await run(session, project, first, "touch a", odd)

    again = Permissions.load_user(Config(), str(home))
    assert list_denied(await run(session, project, again, "touch a", odd)) == []
    (tmp_path / "other").mkdir()
    assert list_denied(await run(session, tmp_path / "other", again, "touch a")) == ["bash: touch a"]
    assert stat.S_IMODE(os.stat(home / RULES_FILE).st_mode) == 0o600
    assert list(read_user_rules(str(home)).folders) == [str(project)]


async def test_always_that_cannot_be_written_applies_to_the_session_with_a_notice(
    session: Session, project: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    permissions = Permissions.load_user(Config(), str(home), asker=Person("always"))
    home.write_text("no folder")

    events = await run(session, project, permissions, "touch a")

    assert list_denied(events) == ["bash: touch a"]  # an unreadable rules file allows nothing
    home.unlink()
    home.mkdir()
    (home / f"{RULES_FILE}.lock").mkdir()
    events = await run(session, project, permissions, "touch a", "touch a")
    assert list_denied(events) == []
    assert any("applies to this session only" in event.text for event in events if isinstance(event, Notice))


async def test_two_concurrent_answers_are_both_saved(project: Path, tmp_path: Path) -> None:
    from sessiontree.agent.permission_rules import PermissionRule, add_allow_rule

    home = str(tmp_path / "home")
    rules = [PermissionRule("bash", f"echo {number}") for number in range(20)]
    await asyncio.gather(*(asyncio.to_thread(add_allow_rule, home, str(project), rule) for rule in rules))

    assert sorted(read_user_rules(home).folders[str(project)].allow) == sorted(map(str, rules))


def test_an_invalid_rules_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / RULES_FILE).write_text('allow = "bash"\n')

    with pytest.raises(ConfigError, match=r"permissions\.toml: allow"):
        Permissions.load_user(Config(), str(tmp_path))


def test_a_rules_file_that_is_not_a_regular_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / RULES_FILE)

    with pytest.raises(ConfigError, match="not a regular file"):
        Permissions.load_user(Config(), str(tmp_path))


async def test_rules_of_the_configuration_apply(session: Session, project: Path, tmp_path: Path) -> None:
    settings = Config(permissions=PermissionSettings(mode="allow-all", deny=("bash:rm *",), ask=("bash:git push *",)))
    permissions = Permissions.load_user(settings, str(tmp_path / "home"))

    assert list_denied(await run(session, project, permissions, "touch a", "rm a", "git push")) == [
        "bash: rm a",
        "bash: git push",
    ]


async def test_the_mode_of_a_run_overrides_the_configuration(session: Session, project: Path, tmp_path: Path) -> None:
    settings = Config(permissions=PermissionSettings(mode="allow-all"))
    permissions = Permissions.load_user(settings, str(tmp_path / "home"), mode="read-only")

    assert list_denied(await run(session, project, permissions, "touch a")) == ["bash: touch a"]


async def test_a_project_can_only_restrict(session: Session, project: Path) -> None:
    permissions = Permissions("allow-all")
    lenient = RuleSet.from_settings(PermissionSettings(allow=("bash",), deny=("bash:rm *",)))
    off = permissions.restrict("ask", lenient)

    assert permissions.effective_mode == "ask"
    assert list_denied(await run(session, project, permissions, "touch a")) == ["bash: touch a"]
    off()
    assert list_denied(await run(session, project, permissions, "touch a", "rm a")) == []
    off = permissions.restrict("allow-all", lenient)
    assert list_denied(await run(session, project, permissions, "rm b")) == ["bash: rm b"]


async def test_an_ask_rule_can_be_answered_for_the_session_but_not_for_always(
    session: Session, project: Path, tmp_path: Path
) -> None:
    person = Person("session")
    settings = Config(permissions=PermissionSettings(mode="allow-all", ask=("bash:touch *",)))
    permissions = Permissions.load_user(settings, str(tmp_path / "home"), asker=person)

    assert list_denied(await run(session, project, permissions, "touch a", "touch a")) == []
    assert [question.scopes for question in person.asked] == [("once", "session", "no")]


async def test_arguments_that_a_handler_changed_are_the_ones_that_are_checked(session: Session, project: Path) -> None:
    hooks = Hooks()
    hooks.on("tool_call", lambda event, context: {"arguments": {"command": "touch evil"}})

    events = await run(session, project, Permissions(allow=["bash:touch good"]), "touch good", hooks=hooks)

    assert list_denied(events) == ["bash: touch evil"]
    assert not (project / "evil").exists()


async def test_calls_that_run_together_are_asked_about_one_by_one(session: Session, project: Path) -> None:
    open_questions = most = 0

    async def person(question: PermissionQuestion) -> PermissionAnswer:
        nonlocal open_questions, most
        open_questions += 1
        most = max(most, open_questions)
        await asyncio.sleep(0)
        open_questions -= 1
        return PermissionAnswer(scope="session")

    both = [build_bash_call("read", {"path": "/etc/hosts"}, id=id) for id in ("1", "2")]
    events = await run(session, project, Permissions(asker=person), both)

    assert list_denied(events) == []
    assert most == 1


async def test_aborting_withdraws_the_question(session: Session, project: Path) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def person(question: PermissionQuestion) -> PermissionAnswer:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        raise AssertionError

    agent = Agent(
        session.head,
        ScriptedModel([[build_bash_call("bash", {"command": "touch a"})]]),
        builtin_tools(),
        cwd=str(project),
        permissions=Permissions(asker=person),
    )
    running = asyncio.create_task(agent.run("go"))
    await asked.wait()
    agent.abort()
    assert (await running).aborted
    assert gone.is_set()
    assert not (project / "a").exists()


async def test_a_failing_permission_check_denies_the_call(session: Session, project: Path) -> None:
    async def person(question: PermissionQuestion) -> PermissionAnswer:
        raise RuntimeError("broken")

    events = await run(session, project, Permissions(asker=person), "touch a")

    assert list_denied(events) == ["bash"]
    assert not (project / "a").exists()


async def test_a_tool_of_an_extension_needs_approval_unless_it_only_reads(session: Session) -> None:
    @tool
    def deploy() -> ToolOutput:
        """Deploy."""
        return ToolOutput(content="deployed")

    @tool(does="reads")
    def look() -> ToolOutput:
        """Look."""
        return ToolOutput(content="seen")

    agent = Agent(
        session.head,
        ScriptedModel([[build_bash_call("deploy")], [build_bash_call("look")], "ok"]),
        [deploy, look],
        permissions=Permissions(),
    )
    events: list[Event] = []
    agent.hooks.listen(events.append)
    await agent.run("go")

    assert list_denied(events) == ["deploy"]
    assert "toolResult: seen" in format_messages(session.head)
