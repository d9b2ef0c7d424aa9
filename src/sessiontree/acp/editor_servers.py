"""MCP servers that an editor passes, as servers of the agent."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TypeAlias

from acp.schema import AcpMcpServer, HttpMcpServer, McpServerStdio, SseMcpServer

from sessiontree.agent.mcp_client.server_specs import EDITOR_ORIGIN, McpServer
from sessiontree.config import McpServerSettings
from sessiontree.core.entries import JsonObject
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation

McpServerRequest: TypeAlias = HttpMcpServer | SseMcpServer | AcpMcpServer | McpServerStdio
MAX_NAME_LENGTH = 40
"""The maximum length of a server name, which is part of the names of its tools."""


def build_mcp_capabilities() -> JsonObject:
    """Return what kinds of servers an editor may pass, besides those on standard input and output."""
    return {"http": find_spec("mcp") is not None}


def convert_server(request: McpServerRequest) -> McpServer:
    """Return the server that an editor describes. Raises `InvalidOperation`."""
    name = re.sub(r"[^A-Za-z0-9_.-]+|[_.]{2,}", "-", request.name).lstrip("-_.")[:MAX_NAME_LENGTH].rstrip("-_.")
    if not name:
        raise InvalidOperation(f"{escape_line(request.name)!r} cannot be the name of an MCP server")
    match request:
        case McpServerStdio():
            settings = McpServerSettings(
                command=request.command,
                args=tuple(request.args),
                env={variable.name: variable.value for variable in request.env},
            )
        case HttpMcpServer() if re.match("https?://", request.url):
            settings = McpServerSettings(
                url=request.url, headers={header.name: header.value for header in request.headers}
            )
        case _:
            raise InvalidOperation("only servers on standard input and output and with streamable HTTP are supported")
    return McpServer(name=name, settings=settings, origin=EDITOR_ORIGIN, is_trusted=False)
