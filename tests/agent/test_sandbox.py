"""Sandboxes: what commands and file tools of a confined agent can access.

The tests use bubblewrap if it is installed, and another user if they run as root.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.factory import AgentOptions, create_agent
from sessiontree.agent.sandbox import Confinement, SandboxUnavailable, confine, find_sandbox
from sessiontree.agent.tools import BUILTIN_TOOLS
from sessiontree.agent.tools.output_limits import write_full_output
from sessiontree.config import FileSettings
from sessiontree.core.messages import ToolCall, extract_text
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.private_folder import create_branch_folder, remove_private_folder
from sessiontree.hooks.bus import Hooks
from sessiontree.model.scripted import ScriptedModel

USER = "nobody"


def _find_kinds() -> list[str | None]:
    kinds: list[str | None] = []
    try:
        find_sandbox()
        kinds.append(None)
    except SandboxUnavailable:
        pass
    if os.geteuid() == 0 and any(user.pw_name == USER for user in pwd.getpwall()):
        kinds.append(USER)
    return kinds


KINDS = _find_kinds()
needs_a_sandbox = pytest.mark.skipif(not KINDS, reason="bubblewrap is not installed, and the tests do not run as root")
needs_bwrap = pytest.mark.skipif(
    None not in KINDS and not os.environ.get("CI"), reason="bubblewrap is not installed"
)  # in CI it fails


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users can enter, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(os.path.realpath(folder))


@pytest.fixture
def server(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a server with a secret in it."""
    home = shared / "home"
    home.mkdir(0o700)
    (home / "tokens.json").write_text("a secret")
    monkeypatch.setenv("SESSIONTREE_HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", "a secret key")
    return home


@pytest.fixture
def project(shared: Path) -> Path:
    folder = shared / "project"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture(params=KINDS, ids=lambda kind: kind or "bubblewrap")
def limited(server: Path, project: Path, request: pytest.FixtureRequest) -> Confinement:
    return confine(str(project), limited=True, user=request.param)


async def call_tool(confinement: Confinement, tool: str, **arguments: object) -> str:
    """Return the output of a tool call by a confined agent."""
    session = st.memory()
    hooks = Hooks()
    hooks.context.confinement = confinement
    model = ScriptedModel([ToolCall("c1", tool, arguments), "Done."])
    agent = Agent(session.head, model, [BUILTIN_TOOLS[tool]], hooks, cwd=confinement.folder)
    await agent.run("Go")
    (output,) = list_results(session).values()
    return output


def list_results(session: st.Session) -> dict[str, str]:
    """Return the outputs of tools by call id."""
    messages = [json.loads(entry.raw)["message"] for entry in session.tree if entry.type == "message"]
    return {
        message["toolCallId"]: extract_text(message["content"])
        for message in messages
        if message["role"] == "toolResult"
    }


@needs_a_sandbox
async def test_a_command_cannot_read_the_secrets_and_can_work_in_the_project(
    limited: Confinement, server: Path, project: Path
) -> None:
    output = await call_tool(limited, "bash", command=f"cat {server}/tokens.json; echo done > made; ls")

    assert "a secret" not in output
    assert "made" in output
    assert (project / "made").read_text() == "done\n"


@needs_a_sandbox
async def test_a_command_cannot_read_the_environment_of_the_server(limited: Confinement) -> None:
    output = await call_tool(
        limited, "bash", command=f"cat /proc/{os.getpid()}/environ /proc/*/environ | tr '\\0' '\\n'"
    )

    assert "a secret key" not in output


@needs_a_sandbox
@pytest.mark.parametrize("leave", ["exit 3", "sleep 100", "kill -9 $$"])
async def test_a_command_in_a_sandbox_ends_like_any_other(limited: Confinement, leave: str) -> None:
    output = await call_tool(limited, "bash", command=f"echo begun; {leave}", timeout=2)

    assert output.startswith("begun")
    assert ("exited with code" in output) is (leave != "sleep 100")


@needs_bwrap
async def test_a_command_of_a_limited_agent_cannot_write_outside_of_the_project(server: Path, project: Path) -> None:
    confinement = confine(str(project), limited=True)
    elsewhere = server.parent / "elsewhere"

    output = await call_tool(confinement, "bash", command=f"echo x > {elsewhere}; echo x > /etc/sessiontree; ls /run")

    assert not elsewhere.exists()
    assert "Read-only file system" in output


@needs_bwrap
async def test_an_agent_with_all_rights_cannot_read_secrets(server: Path, project: Path) -> None:
    confinement = confine(str(project), limited=False)
    elsewhere = server.parent / "elsewhere"

    output = await call_tool(confinement, "bash", command=f"cat {server}/tokens.json; echo x > {elsewhere}")

    assert "a secret" not in output
    assert elsewhere.read_text() == "x\n"
    assert "a secret" not in await call_tool(confinement, "read", path=str(server / "tokens.json"))
    assert await call_tool(confinement, "read", path=str(elsewhere)) == "x"


@needs_a_sandbox
async def test_file_tools_work_in_the_project(limited: Confinement, project: Path) -> None:
    assert "Created a.txt" in await call_tool(limited, "write", path="a.txt", content="one\n")
    assert "Edited" in await call_tool(limited, "edit", path="a.txt", old_text="one", new_text="two")
    assert await call_tool(limited, "read", path="a.txt") == "two"
    assert await call_tool(limited, "ls") == "a.txt"
    assert await call_tool(limited, "find", pattern="*.txt") == "a.txt"
    assert await call_tool(limited, "grep", pattern="tw.") == "a.txt:1: two"
    assert "not found" in await call_tool(limited, "read", path="b.txt")


@needs_a_sandbox
@pytest.mark.parametrize("way", ["absolute", "upwards", "link", "linked folder"])
async def test_file_tools_stay_in_the_project(limited: Confinement, server: Path, project: Path, way: str) -> None:
    (project / "link").symlink_to(server / "tokens.json")
    (project / "folder").symlink_to(server)
    path = {
        "absolute": str(server / "tokens.json"),
        "upwards": "../home/tokens.json",
        "link": "link",
        "linked folder": "folder/tokens.json",
    }[way]

    calls = {
        "read": {},
        "edit": {"old_text": "a secret", "new_text": "mine"},
        "write": {"content": "mine"},
        "grep": {"pattern": "secret"},
    }
    for tool, more in calls.items():
        output = await call_tool(limited, tool, path=path, **more)
        assert "a secret" not in output
        assert "is outside of" in output or "secrets of sessiontree" in output
    assert (server / "tokens.json").read_text() == "a secret"


@needs_a_sandbox
async def test_a_folder_replaced_by_a_link_after_the_check_gives_no_access(
    limited: Confinement, server: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "inner").mkdir()
    (project / "inner" / "tokens.json").write_text("harmless")

    def swapped(path: str, cwd: str, confinement: Confinement) -> None:
        check(path, cwd, confinement)
        shutil.rmtree(project / "inner")
        (project / "inner").symlink_to(server)

    from sessiontree.agent.tools import sandboxed_call

    check: Callable[[str, str, Confinement], None] = sandboxed_call._check_inside
    monkeypatch.setattr(sandboxed_call, "_check_inside", swapped)

    assert "a secret" not in await call_tool(limited, "read", path="inner/tokens.json")


@needs_a_sandbox
async def test_the_file_with_full_output_can_be_read(limited: Confinement) -> None:
    output = await call_tool(limited, "bash", command="seq 100000")

    path = output.rpartition(" in ")[2].split()[0].rstrip(".]")
    assert os.path.isfile(path)
    assert (await call_tool(limited, "read", path=path, limit=2)).startswith("1\n2")
    os.unlink(path)


@needs_bwrap
async def test_a_link_in_place_of_a_full_output_file_does_not_expose_secrets(server: Path, project: Path) -> None:
    confinement = confine(str(project), limited=False)
    (server / "sessions").mkdir()
    (server / "sessions" / "one.jsonl").write_text("a secret conversation")
    aside = write_full_output("long")
    assert aside is not None
    try:
        assert await call_tool(confinement, "read", path=aside) == "long"
        await call_tool(confinement, "bash", command=f"ln -sf {server}/sessions/one.jsonl {aside}")
        output = await call_tool(confinement, "read", path=aside)
    finally:
        os.unlink(aside)

    assert "a secret conversation" not in output


@needs_a_sandbox
async def test_a_limited_agent_writes_no_file_with_full_output(limited: Confinement) -> None:
    aside = write_full_output("long")
    assert aside is not None
    try:
        output = await call_tool(limited, "write", path=aside, content="changed")
        assert Path(aside).read_text() == "long"
    finally:
        os.unlink(aside)

    assert "tools are limited to the project" in output


def test_without_a_sandbox_the_error_has_the_reason(
    project: Path, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project))

    with pytest.raises(SandboxUnavailable, match="bubblewrap is not installed"):
        confine(str(project), limited=True)


def test_a_bubblewrap_that_does_not_work_is_not_used(
    project: Path, server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))

    with pytest.raises(SandboxUnavailable, match="bubblewrap does not work here: bwrap: No permissions"):
        confine(str(project), limited=True)


def test_a_bubblewrap_that_does_not_hide_files_is_not_used(
    project: Path, server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "bwrap"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nwhile [ "$1" != -- ]; do [ "$1" = --chdir ] && cd "$2"; shift; done\nshift\nexec "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    with pytest.raises(SandboxUnavailable, match="bubblewrap does not hide files here"):
        confine(str(project), limited=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run commands as another user")
def test_a_user_who_can_read_the_home_is_not_a_sandbox(project: Path, server: Path) -> None:
    server.chmod(0o755)

    with pytest.raises(SandboxUnavailable, match=f"the user {USER} can read"):
        confine(str(project), limited=True, user=USER)
    with pytest.raises(SandboxUnavailable, match="root and can read everything"):
        confine(str(project), limited=True, user="root")
    with pytest.raises(SandboxUnavailable, match="user nosuchuser not found"):
        confine(str(project), limited=True, user="nosuchuser")


def test_the_home_cannot_be_a_project(server: Path) -> None:
    (server / "sessions").mkdir()
    for folder in (server, server / "sessions"):
        with pytest.raises(SandboxUnavailable, match="belongs to sessiontree"):
            confine(str(folder), limited=True)


async def test_file_tools_cannot_access_secrets(server: Path, project: Path) -> None:
    (project / "link").symlink_to(server / "tokens.json")
    (server / "config.toml").write_text("# mine\n")
    session = st.memory()
    calls = [
        ToolCall("c1", "read", {"path": str(server / "tokens.json")}),
        ToolCall("c2", "read", {"path": "link"}),
        ToolCall("c3", "edit", {"path": "link", "old_text": "a secret", "new_text": "x"}),
        ToolCall("c4", "write", {"path": str(server / "trust.json"), "content": "{}"}),
        ToolCall("c5", "grep", {"path": str(server), "pattern": "secret"}),
        ToolCall("c6", "grep", {"path": ".", "pattern": "secret"}),
        ToolCall("c7", "read", {"path": str(server / "config.toml")}),
    ]
    agent = Agent(session.head, ScriptedModel([calls, "Done."]), [*BUILTIN_TOOLS.values()], cwd=str(project))

    await agent.run("Go")

    output = list_results(session)
    assert len(output) == 7
    assert "a secret" not in "".join(output.values())
    assert output["c7"] == "# mine"
    assert not (server / "trust.json").exists()
    assert (server / "tokens.json").read_text() == "a secret"


@needs_bwrap
@pytest.mark.parametrize("limited", [True, False], ids=["limited", "unlimited"])
async def test_a_confined_agent_works_in_its_private_folder_and_still_reads_no_secret(
    server: Path, project: Path, *, limited: bool
) -> None:
    session, other = st.memory(), Path(server, "other")
    (project / "poem").write_text("red\n")
    private = create_branch_folder(session.head, str(project), FileSettings())
    hooks = Hooks()
    hooks.context.confinement = confine(str(project), limited=limited)
    command = f"pwd; cat poem; echo blue > poem; cat {server}/tokens.json; echo x > {other}; echo x > {project}/poem"
    model = ScriptedModel([ToolCall("c1", "bash", {"command": command}), "Done."])
    options = AgentOptions(tools=[BUILTIN_TOOLS["bash"]], cwd=str(project), snapshots=True)

    try:
        agent = create_agent(session.head, model, hooks, options)
        await agent.run("Go")
        (output,) = list_results(session).values()

        assert output.startswith(f"{private.path}\nred\n")
        assert "a secret" not in output
        assert Path(private.path, "poem").read_text() == "blue\n"
        assert not other.exists()
        assert (project / "poem").read_text() == ("red\n" if limited else "x\n")
    finally:
        remove_private_folder(private, FileSettings())


@needs_bwrap
def test_a_limited_agent_cannot_use_a_private_copy_of_another_project(server: Path, project: Path) -> None:
    session, elsewhere, hooks = st.memory(), project.parent / "elsewhere", Hooks()
    elsewhere.mkdir()
    private = create_branch_folder(session.head, str(elsewhere), FileSettings())
    hooks.context.confinement = confine(str(project), limited=True)

    try:
        with pytest.raises(SnapshotError, match="is a copy of another project"):
            create_agent(session.head, ScriptedModel([]), hooks, AgentOptions(cwd=str(project)))
    finally:
        remove_private_folder(private, FileSettings())


@pytest.mark.skipif(USER not in KINDS, reason="the tests do not run as root")
def test_an_agent_whose_commands_run_as_another_user_cannot_use_a_private_folder(server: Path, project: Path) -> None:
    session, hooks = st.memory(), Hooks()
    private = create_branch_folder(session.head, str(project), FileSettings())
    hooks.context.confinement = confine(str(project), limited=False, user=USER)

    try:
        with pytest.raises(SnapshotError, match="cannot read the private folder"):
            create_agent(session.head, ScriptedModel([]), hooks, AgentOptions(cwd=str(project)))
    finally:
        remove_private_folder(private, FileSettings())
