"""Commands: output, time limits, ending all processes, and the environment."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.sandbox import clean_environment
from sessiontree.agent.tools import bash
from sessiontree.agent.tools import output_limits as limits
from sessiontree.agent.tools.bash_tool import CommandError, run_command
from sessiontree.agent.tools.output_limits import MAX_BYTES, MAX_LINES, OutputTail, strip_controls
from sessiontree.config import Config, ModelSettings, ToolSettings
from sessiontree.core.messages import ToolCall
from sessiontree.model.providers import PROVIDERS
from sessiontree.model.scripted import ScriptedModel
from tests.agent.conftest import find_processes
from tests.agent.tools.conftest import Call, get_text


class BackgroundProcess:
    """A background process that prints more than a pipe can hold when it is triggered."""

    command = "(read go <go; echo log; head -c 1000000 /dev/zero; seq 3 && echo alive >over) & echo started"

    def __init__(self, folder: Path) -> None:
        self._ends: list[int] = []
        for name in ("go", "over"):
            os.mkfifo(folder / name)
            self._ends.append(os.open(folder / name, os.O_RDWR))

    def survives_printing(self) -> bool:
        """Trigger the output, and return whether the process survives."""
        go, over = self._ends
        os.write(go, b"\n")
        ready, _, _ = select.select([over], [], [], 10)
        return bool(ready)

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


async def test_a_command_runs_in_the_folder_and_both_its_outputs_are_shown(call: Call, folder: Path) -> None:
    output = await call(bash, command="pwd; echo oops >&2")

    assert get_text(output) == f"{folder}\noops"
    assert output.details == {"exitCode": 0}
    assert not output.is_error


async def test_a_failed_command_reports_its_exit_code(call: Call) -> None:
    output = await call(bash, command="echo no; exit 3")

    assert get_text(output) == "no\n\nThe command exited with code 3."
    assert output.is_error
    assert get_text(await call(bash, command="kill -9 $$")) == "The command exited with code 137."
    assert get_text(await call(bash, command="true")) == "(no output)"


async def test_a_command_reads_nothing_from_the_terminal(call: Call) -> None:
    assert get_text(await call(bash, command="cat; echo done")) == "done"


async def test_long_output_shows_its_end_and_goes_to_a_private_file(call: Call) -> None:
    output = await call(bash, command=f"seq 1 {MAX_LINES * 2}")

    lines = get_text(output).split("\n")
    assert lines[MAX_LINES - 1] == str(MAX_LINES * 2)
    path = output.details["fullOutputPath"]
    assert f"The full output is in {path}" in lines[-1]
    assert Path(path).read_text().split() == [str(number) for number in range(1, MAX_LINES * 2 + 1)]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    os.unlink(path)


async def test_output_is_shown_while_the_command_runs(call: Call, folder: Path) -> None:
    updates: list[str] = []

    def update(text: str) -> None:
        updates.append(text)
        (folder / "seen").touch()

    command = "echo first; until [ -e seen ]; do sleep 0.05; done; printf '\\033[31mred\\033[0m\\n'"
    await asyncio.wait_for(call(bash, command=command, update=update), 30)

    assert updates == ["first\n", "red\n"]


async def test_a_command_that_takes_too_long_is_ended_with_all_its_children(call: Call) -> None:
    mark = "61.1234"

    output = await call(bash, command=f"echo begun; sleep {mark} & sleep {mark}", timeout=0.3)

    assert get_text(output) == "begun\n\nThe command was stopped after 0.3 seconds."
    assert output.is_error
    assert not find_processes(mark)


async def test_aborting_ends_the_whole_process_group(call: Call) -> None:
    mark = "61.2345"
    command = f"trap '' TERM; echo begun; (trap '' TERM; while true; do sleep {mark}; done) & wait; sleep {mark}"
    begun = asyncio.Event()
    task = asyncio.create_task(call(bash, command=command, update=lambda said: begun.set()))
    await asyncio.wait_for(begun.wait(), 20)

    task.cancel()
    output = await asyncio.wait_for(task, 20)

    assert get_text(output) == "begun\n\nThe command was aborted."
    assert not find_processes(mark)


async def test_a_second_abort_kills_a_command_at_once_and_keeps_its_output(call: Call) -> None:
    mark = "61.3456"
    command = f"trap 'while :; do echo asked; sleep 0.05; done' TERM; echo begun; while :; do sleep {mark}; done"
    begun, asked = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(
        call(bash, command=command, update=lambda said: (asked if "asked" in said else begun).set())
    )
    await asyncio.wait_for(begun.wait(), 20)

    task.cancel()
    await asyncio.wait_for(asked.wait(), 20)
    task.cancel()
    output = await asyncio.wait_for(task, 20)

    assert get_text(output).startswith("begun\n")
    assert get_text(output).endswith("The command was aborted.")
    assert not find_processes(mark)


async def test_a_command_does_not_wait_for_its_background_processes(call: Call) -> None:
    mark = "61.4321"

    output = await call(bash, command=f"sleep {mark} & echo $!")

    assert find_processes(mark)
    os.kill(int(get_text(output)), signal.SIGKILL)


@pytest.fixture
def background(folder: Path) -> Iterator[BackgroundProcess]:
    made = BackgroundProcess(folder)
    yield made
    made.close()


async def test_background_processes_may_print_any_amount(call: Call, background: BackgroundProcess) -> None:
    assert get_text(await call(bash, command=background.command)) == "started"

    assert await asyncio.to_thread(background.survives_printing)


def test_background_processes_outlive_the_program(folder: Path, background: BackgroundProcess) -> None:
    program = f"""
import asyncio
from sessiontree.agent.tools.bash_tool import run_command
asyncio.run(run_command({background.command!r}, cwd={str(folder)!r}))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

    assert background.survives_printing()


async def test_a_command_cancelled_while_it_starts_leaks_no_descriptors(folder: Path) -> None:
    await run_command("true", cwd=str(folder))
    before = len(os.listdir("/proc/self/fd"))

    for turns in range(8):
        task = asyncio.create_task(run_command("sleep 61.4567", cwd=str(folder)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not find_processes("61.4567")


async def test_a_command_in_a_deleted_folder_is_a_clear_error(call: Call, folder: Path) -> None:
    folder.rmdir()
    with pytest.raises(CommandError, match="cannot start the command"):
        await call(bash, command="true")


def test_the_output_tail_uses_little_memory_for_any_amount_of_output(monkeypatch) -> None:
    monkeypatch.setattr(limits, "MAX_FILE_BYTES", 1 << 20)
    tail = OutputTail()
    for number in range(4000):
        tail.append(f"{number:0999}\n".encode())
    tail.close()

    assert sum(map(len, tail._chunks)) < 3 * MAX_BYTES
    assert tail.format_text().endswith("3999")
    assert len(tail.format_text()) <= MAX_BYTES
    assert tail.path is not None
    assert os.path.getsize(tail.path) == 1 << 20
    assert tail.format_note().endswith(f"(4000000 bytes). The first {1 << 20} bytes are in {tail.path}]")
    os.unlink(tail.path)


def test_a_carriage_return_ends_a_line() -> None:
    tail = OutputTail(lines=3)
    for piece in (b"1\r", b"\n2\r3", b"\r"):
        tail.append(piece)
    assert tail.format_text() == "1\n2\n3"
    assert not tail.truncated

    tail.append(b"4\r5")
    tail.close()

    assert tail.format_text() == "3\n4\n5"
    assert tail.format_note() == f"[Only the last 3 of 5 lines are shown (10 bytes). The full output is in {tail.path}]"
    assert tail.path is not None
    os.unlink(tail.path)


def test_output_that_cannot_be_saved_is_reported_and_does_not_block(monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    tail = OutputTail(lines=2)
    for number in range(4):
        tail.append(f"{number}\n".encode())
    tail.close()

    assert tail.format_text() == "2\n3"
    assert tail.format_note() == "[Only the last 2 of 4 lines are shown (8 bytes). The rest could not be saved]"


def test_a_file_of_full_output_has_no_gap_after_the_disk_was_full_for_a_while(monkeypatch) -> None:
    tail, write = OutputTail(lines=1), os.write
    tail.append(b"one\ntwo\n")
    assert tail.path is not None
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda *_: write(-1, b""))
        tail.append(b"three\n")
    tail.append(b"four\n")
    tail.close()

    assert tail.format_note().endswith(f"The first 8 bytes are in {tail.path}]")
    with open(tail.path) as file:
        assert file.read() == "one\ntwo\n"
    os.unlink(tail.path)


def test_a_character_split_across_two_reads_is_decoded() -> None:
    tail = OutputTail()

    assert tail.append("ü".encode()[:1]) + tail.append("ü".encode()[1:]) == "ü"
    assert tail.format_text() == "ü"


def test_escape_sequences_are_removed() -> None:
    assert strip_controls("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\r\ny\x00\tz") == "red x\ny\tz"


# The environment of commands: no API keys and no passwords, whatever the configuration

KEYS = sorted(name for provider in PROVIDERS.values() for name in provider.keys)
SECRETS = [
    *KEYS,
    "QWEN_KEY",
    "SESSIONTREE_STORE",
    "PGPASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "SSH_AUTH_SOCK",
]
SETTINGS = Config(
    tools=ToolSettings(environment=("NODE_ENV", "OPENAI_API_KEY", "QWEN_KEY", "SESSIONTREE_STORE")),
    models={"vllm:qwen": ModelSettings(key_variable="QWEN_KEY")},
)


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"secret of {name}")
    monkeypatch.delenv("SESSIONTREE_STORE")
    monkeypatch.setenv("NODE_ENV", "test")
    monkeypatch.setenv("LC_TIME", "C")


@pytest.mark.usefixtures("secrets")
async def test_the_bash_tool_does_not_leak_secrets_into_the_session(tmp_path: Path) -> None:
    session = st.memory(cwd=str(tmp_path))
    model = ScriptedModel([ToolCall("c1", "bash", {"command": "env"}), "Done."])
    agent = Agent(session.head, model, st.builtin_tools("bash"), settings=SETTINGS, cwd=str(tmp_path))

    await agent.run("Go")

    raw = b"".join(entry.raw for entry in session.tree)
    assert b"PATH=" in raw
    assert b"NODE_ENV=test" in raw
    assert b"secret of" not in raw


@pytest.mark.usefixtures("secrets")
async def test_a_command_of_the_user_does_not_leak_secrets_into_the_session(tmp_path: Path) -> None:
    session = st.memory(cwd=str(tmp_path))
    agent = Agent(session.head, ScriptedModel([]), settings=SETTINGS, cwd=str(tmp_path))

    ran = await agent.run_bash("env")

    assert "PATH=" in ran.output
    assert "NODE_ENV=test" in ran.output
    assert "secret of" not in ran.output


@pytest.mark.usefixtures("secrets")
async def test_commands_without_an_agent_get_a_clean_environment(tmp_path: Path) -> None:
    ran = await run_command("env", cwd=str(tmp_path))

    assert "secret of" not in ran.output
    assert "LC_TIME=C" in ran.output


@pytest.mark.usefixtures("secrets")
def test_a_proxy_variable_is_passed_unless_it_contains_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://ada:lovelace@proxy.example:3128")

    given = clean_environment()

    assert given["https_proxy"] == "http://proxy.example:3128"
    assert "HTTP_PROXY" not in given


@pytest.mark.usefixtures("secrets")
def test_no_configuration_can_pass_an_api_key_to_a_command() -> None:
    given = clean_environment(SETTINGS)

    assert given["NODE_ENV"] == "test"
    assert [name for name in SECRETS if name in given] == []
