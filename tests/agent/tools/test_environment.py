"""The environment of commands: no API keys and no passwords, whatever the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.agent.tools.command_runner import run_command
from sessiontree.agent.tools.environment import clean_environment
from sessiontree.config import Config, ModelSettings, ToolSettings
from sessiontree.core.messages import ToolCall
from sessiontree.model.providers import PROVIDERS
from sessiontree.model.scripted import ScriptedModel

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


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"secret of {name}")
    monkeypatch.delenv("SESSIONTREE_STORE")
    monkeypatch.setenv("NODE_ENV", "test")
    monkeypatch.setenv("LC_TIME", "C")


async def test_the_bash_tool_does_not_leak_secrets_into_the_session(tmp_path: Path) -> None:
    session = st.memory(cwd=str(tmp_path))
    model = ScriptedModel([ToolCall("c1", "bash", {"command": "env"}), "Done."])
    agent = Agent(session.head, model, st.builtin_tools("bash"), settings=SETTINGS, cwd=str(tmp_path))

    await agent.prompt("Go")

    raw = b"".join(entry.raw for entry in session.tree)
    assert b"PATH=" in raw
    assert b"NODE_ENV=test" in raw
    assert b"secret of" not in raw


async def test_a_command_of_the_user_does_not_leak_secrets_into_the_session(tmp_path: Path) -> None:
    session = st.memory(cwd=str(tmp_path))
    agent = Agent(session.head, ScriptedModel([]), settings=SETTINGS, cwd=str(tmp_path))

    ran = await agent.run_bash("env")

    assert "PATH=" in ran.output
    assert "NODE_ENV=test" in ran.output
    assert "secret of" not in ran.output


async def test_commands_without_an_agent_get_a_clean_environment(tmp_path: Path) -> None:
    ran = await run_command("env", cwd=str(tmp_path))

    assert "secret of" not in ran.output
    assert "LC_TIME=C" in ran.output


def test_a_proxy_variable_is_passed_unless_it_contains_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://ada:lovelace@proxy.example:3128")

    given = clean_environment()

    assert given["https_proxy"] == "http://proxy.example:3128"
    assert "HTTP_PROXY" not in given


def test_no_configuration_can_pass_an_api_key_to_a_command() -> None:
    given = clean_environment(SETTINGS)

    assert given["NODE_ENV"] == "test"
    assert [name for name in SECRETS if name in given] == []
