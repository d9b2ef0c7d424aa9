import json
import sys
from pathlib import Path
from typing import Any

from sessiontree.agent.mcp_client.server_pool import McpPool
from sessiontree.hooks.ui_protocol import NoUi
from tests.agent.mcp_client.servers import OLD_SCRIPT, build_server

from .conftest import Load


class Person(NoUi):
    has_person = True

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def confirm(self, title: str, text: str = "", *args: Any, **options: Any) -> bool:
        self.asked.append(f"{title}\n{text}")
        return self.answer


def write_servers(project: Path, name: str = "old") -> None:
    servers = {name: {"command": sys.executable, "args": [OLD_SCRIPT]}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))


async def test_servers_of_a_project_are_used_only_after_the_user_trusts_them(load: Load, project: Path) -> None:
    write_servers(project)
    pool, person = McpPool(), Person(True)

    alone = await load(mcp=McpPool())
    refused = await load(mcp=McpPool(), ui=Person(False))
    trusted = await load(mcp=pool, ui=person)

    assert alone.notices[0].startswith(f"MCP servers in {project} are not loaded: you have not trusted it")
    assert not alone.controller.options.mcp.servers
    assert not refused.controller.options.mcp.servers
    assert [server.name for server in pool.servers] == ["old"]
    assert "start its MCP servers?" in person.asked[0]
    assert OLD_SCRIPT in person.asked[0]
    again = await load(mcp=McpPool())
    assert [server.name for server in again.controller.options.mcp.servers] == ["old"]
    (project / ".mcp.json").write_text((project / ".mcp.json").read_text().replace("old", "new"))
    assert not (await load(mcp=McpPool())).controller.options.mcp.servers
    trusted.extensions.unload()
    assert not pool.servers


async def test_a_server_that_cannot_be_used_is_reported_and_the_others_work(load: Load, project: Path) -> None:
    servers = {"old": {"command": "old"}, "events": {"type": "sse", "url": "https://example.com/sse"}}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

    loaded = await load(mcp=McpPool(), ui=Person(True))

    assert [server.name for server in loaded.controller.options.mcp.servers] == ["old"]
    assert any("mcpServers.events.type: 'sse' is not supported" in notice for notice in loaded.notices)


async def test_the_question_of_trust_shows_variables_headers_and_the_folder(load: Load, project: Path) -> None:
    servers = {
        "local": {"command": "node", "env": {"NODE_OPTIONS": "--require ./x.js"}, "cwd": "hidden folder"},
        "web": {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"}},
    }
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    person = Person(False)

    await load(mcp=McpPool(), ui=person)

    assert (
        "  local: node; in the folder 'hidden folder'; environment 'NODE_OPTIONS=--require ./x.js'" in person.asked[0]
    )
    assert "  web: https://example.com/mcp; headers 'Authorization=Bearer ${GITHUB_TOKEN}'" in person.asked[0]


async def test_the_slash_command_shows_servers_and_sends_prompts(load: Load, project: Path) -> None:
    write_servers(project, "example")
    loaded = await load("Reviewed.", mcp=McpPool([build_server()]), ui=Person(True))

    status = await loaded.controller.submit("/mcp")
    prompted = await loaded.controller.submit("/mcp prompt example review language=Rust")
    restarted = await loaded.controller.submit("/mcp restart example")
    await loaded.controller.close()

    assert "tool mcp__example__echo  Return the text." in status.text
    assert "prompt review language=…" in status.text
    assert prompted.outcome is not None
    assert prompted.outcome.text == "Reviewed."
    assert restarted.text == "example starts again with the next request"
    assert (
        any("another MCP server is named 'example'" in notice for notice in loaded.notices) or loaded.events is not None
    )
    assert loaded.controller.options.mcp is not None
    assert await loaded.controller.options.mcp.list_tools() == []
