"""Commands in terminals of an editor that fails, does not answer, or answers late; and what stays secret."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from acp.exceptions import RequestError
from acp.schema import ClientCapabilities, HttpMcpServer

from sessiontree.acp import editor_tools
from sessiontree.acp.editor_client import EditorClient, convert_server
from sessiontree.acp.editor_tools import route_tools
from sessiontree.agent.tool import ToolContext, ToolError, ToolOutput
from sessiontree.agent.tools import builtin_tools
from sessiontree.config import PROVIDER_KEY_VARIABLES
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.events import Signal

Answer = Callable[[], Awaitable[Any]]


class ScriptedConnection:
    """Answers each method with the result of a function, and records the methods and the last parameters."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.params: dict[str, Any] = {}
        self.released = asyncio.Event()

    async def send_request(self, method: str, params: Any) -> Any:
        name = method.removeprefix("terminal/")
        self.asked.append(name)
        self.params[name] = params
        if name == "release":
            self.released.set()
        defaults = {"create": {"terminalId": "t"}, "wait_for_exit": {"exitCode": 0}}
        output = {"output": "from the editor", "truncated": False}
        return await self.answers[name]() if name in self.answers else defaults.get(name, output)


async def refuse() -> Any:
    raise RequestError.internal_error()


async def disconnect() -> Any:
    raise ConnectionError


async def never() -> Any:
    await asyncio.Event().wait()


async def run_bash(connection: ScriptedConnection, folder: Path) -> ToolOutput | str:
    """Run a command that leaves a file if it runs without the editor."""
    editor = EditorClient(connection, ClientCapabilities(terminal=True), "s")  # type: ignore[arg-type]
    tools = {tool.name: tool for tool in route_tools(builtin_tools(), editor, lambda call, terminal: None)}
    arguments = {"command": "touch ran-locally"}
    return await tools["bash"].run(
        ToolContext(
            call=ToolCall("c1", "bash", arguments),
            arguments=tools["bash"].parse(arguments),
            cwd=str(folder),
            signal=Signal(),
        )
    )


async def test_only_a_command_that_the_editor_refused_to_start_runs_without_it(here: Path) -> None:
    for answers, reason in (
        ({"wait_for_exit": refuse}, "the command was started in the editor; its result is unknown"),
        ({"wait_for_exit": disconnect}, "the command was started in the editor; its result is unknown"),
        ({"create": disconnect}, "the editor may have started the command; its result is unknown"),
    ):
        connection = ScriptedConnection(**answers)
        with pytest.raises(ToolError, match=reason):
            await run_bash(connection, here)
        assert not (here / "ran-locally").exists()
        assert connection.released.is_set() == ("create" not in answers)

    await run_bash(ScriptedConnection(create=refuse), here)
    assert (here / "ran-locally").exists()


async def test_an_editor_that_does_not_answer_does_not_block_the_agent(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editor_tools, "ANSWER_SECONDS", 0.05)
    started = asyncio.Event()

    async def start_late() -> Any:
        await started.wait()
        return {"terminalId": "t"}

    output = await asyncio.wait_for(run_bash(ScriptedConnection(release=never), here), 30)
    assert "from the editor" in str(output)

    late = ScriptedConnection(create=start_late)
    with pytest.raises(ToolError, match="may have started the command"):
        await asyncio.wait_for(run_bash(late, here), 30)
    started.set()
    await asyncio.wait_for(late.released.wait(), 30)

    assert late.asked == ["create", "kill", "release"]
    assert not (here / "ran-locally").exists()


async def test_a_command_cancelled_while_the_editor_starts_it_is_ended(here: Path) -> None:
    asked, started = asyncio.Event(), asyncio.Event()

    async def start() -> Any:
        asked.set()
        await started.wait()
        return {"terminalId": "t"}

    connection = ScriptedConnection(create=start, kill=refuse)
    running = asyncio.create_task(run_bash(connection, here))
    await asked.wait()
    running.cancel()
    asyncio.get_running_loop().call_soon(started.set)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 30)

    assert connection.asked == ["create", "kill", "release"]
    assert connection.params["release"]["terminalId"] == "t"


async def test_terminals_do_not_get_secrets(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROVIDER_KEY_VARIABLES:
        monkeypatch.delenv(name, raising=False)  # the editor may have them
    secrets = {
        "DB_PASS": "x",
        "MYSQL_PWD": "x",
        "my_token": "x",
        "HTTPS_PROXY": "http://user:password@host:1",
        "CACHE": "redis://:password@host/0",
    }
    public = {"PWD": "/a", "OLDPWD": "/b", "HTTP_PROXY": "http://host:1", "PAGE": "https://host/@name"}
    for name, value in {**secrets, **public}.items():
        monkeypatch.setenv(name, value)
    connection = ScriptedConnection()

    await run_bash(connection, here)

    sent = {variable["name"]: variable["value"] for variable in connection.params["create"]["env"]}
    assert set(sent.values()) == {""}
    assert set(secrets) | PROVIDER_KEY_VARIABLES <= set(sent)
    assert not set(public) & set(sent)


def test_a_server_of_the_editor_is_not_trusted_with_the_keys_of_the_user() -> None:
    server = convert_server(HttpMcpServer(type="http", name="web", url="https://example.com/mcp", headers=[]))

    assert (server.origin, server.is_trusted) == ("editor", False)
