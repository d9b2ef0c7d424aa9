"""Start real MCP servers for the tests, and call their tools as an agent does."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sessiontree.agent.mcp_client.server_pool import McpPool
from sessiontree.agent.mcp_client.server_specs import McpServer
from sessiontree.agent.tool import ToolContext, ToolError, ToolOutput
from sessiontree.config import McpServerSettings
from sessiontree.core.messages import ToolCall, extract_text
from sessiontree.hooks.events import Signal

SCRIPT = str(Path(__file__).parent / "example_server.py")
HOSTILE_SCRIPT = str(Path(__file__).parent / "hostile_server.py")
OLD_SCRIPT = str(Path(__file__).parent / "old_server.py")


def build_server(name: str = "example", **settings: Any) -> McpServer:
    """Return the example server on standard input and output."""
    defaults = {"command": sys.executable, "args": (SCRIPT, "stdio"), "start_timeout": 60.0}
    return McpServer(name=name, settings=McpServerSettings(**{**defaults, **settings}))


async def call(pool: McpPool, name: str, **arguments: Any) -> ToolOutput:
    """Call a tool. A refusal is an output too, as the model sees it."""
    tools = {tool.name: tool for tool in await pool.list_tools()}
    context = ToolContext(
        call=ToolCall("1", name, arguments), arguments=tools[name].parse(arguments), cwd=".", signal=Signal()
    )
    try:
        output = await tools[name].run(context)
    except ToolError as error:
        return ToolOutput(content=str(error), is_error=True)
    assert isinstance(output, ToolOutput)
    return output


def get_text(output: ToolOutput) -> str:
    return extract_text(output.content)


@contextmanager
def run_http_server() -> Generator[str]:
    """Run the example server on a free port of the loopback interface, and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, SCRIPT, "http", str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()
