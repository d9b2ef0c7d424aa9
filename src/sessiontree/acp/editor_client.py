"""The editor on the other side: what it can do, the MCP servers that it passes, and the requests to it."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias

from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import CLIENT_METHODS
from acp.schema import (
    AcpMcpServer,
    AllowedOutcome,
    ClientCapabilities,
    CreateTerminalResponse,
    HttpMcpServer,
    McpServerStdio,
    ReadTextFileResponse,
    RequestPermissionResponse,
    SseMcpServer,
    TerminalOutputResponse,
    WaitForTerminalExitResponse,
)
from pydantic import ValidationError

from sessiontree.agent.mcp_client.server_specs import EDITOR_ORIGIN, McpServer
from sessiontree.config import McpServerSettings
from sessiontree.core.entries import JsonObject
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation, SessionTreeError

_log = logging.getLogger(__name__)


class EditorError(SessionTreeError):
    """The editor refused a request, or is gone."""


class EditorRefusal(EditorError):
    """The editor refused a request, so the request had no effect."""


class EditorClient:
    """Requests of one session to the editor."""

    def __init__(self, connection: Connection, capabilities: ClientCapabilities, session: str) -> None:
        files = capabilities.fs
        self.can_read_files = bool(files and files.read_text_file)
        self.can_write_files = bool(files and files.write_text_file)
        self.has_terminals = bool(capabilities.terminal)
        self._connection = connection
        self._session = session

    async def send_update(self, update: JsonObject) -> None:
        """Send an update. Does nothing after the editor is gone."""
        params = {"sessionId": self._session, "update": update}
        try:
            await self._connection.send_notification(CLIENT_METHODS["session_update"], params)
        except ConnectionError:
            _log.debug("the editor is gone; an update was dropped")

    async def ask_permission(self, call: JsonObject, options: Sequence[JsonObject]) -> str | None:
        """Return the id of the option that the user selected; `None` if the question was cancelled."""
        params = {"toolCall": call, "options": list(options)}
        answer = await self._request("session_request_permission", params, RequestPermissionResponse)
        return answer.outcome.option_id if isinstance(answer.outcome, AllowedOutcome) else None

    # Files

    async def read_text_file(self, path: str) -> str:
        """Return the text of a file with the unsaved changes of the editor. Raises `EditorError`."""
        return (await self._request("fs_read_text_file", {"path": path}, ReadTextFileResponse)).content

    async def write_text_file(self, path: str, text: str) -> None:
        """Write a file, and update the editor if it has the file open. Raises `EditorError`."""
        await self._request("fs_write_text_file", {"path": path, "content": text})

    # Terminals

    async def create_terminal(
        self, command: Sequence[str], *, cwd: str, environment: dict[str, str], limit: int
    ) -> str:
        """Start a command, and return the id of its terminal.

        Raises `EditorRefusal` if the command was not started, and `EditorError` if that is unknown.
        """
        variables = [{"name": name, "value": value} for name, value in environment.items()]
        program, *arguments = command
        params = {"command": program, "args": arguments, "cwd": cwd, "env": variables, "outputByteLimit": limit}
        return (await self._request("terminal_create", params, CreateTerminalResponse)).terminal_id

    async def wait_for_exit(self, terminal: str) -> WaitForTerminalExitResponse:
        return await self._request("terminal_wait_for_exit", {"terminalId": terminal}, WaitForTerminalExitResponse)

    async def read_terminal(self, terminal: str) -> TerminalOutputResponse:
        return await self._request("terminal_output", {"terminalId": terminal}, TerminalOutputResponse)

    async def kill_terminal(self, terminal: str) -> None:
        await self._request("terminal_kill", {"terminalId": terminal})

    async def release_terminal(self, terminal: str) -> None:
        await self._request("terminal_release", {"terminalId": terminal})

    async def _request(self, name: str, params: JsonObject, answer: Any = None) -> Any:
        """Send a request and check the answer. Raises `EditorError`."""
        method = CLIENT_METHODS[name]
        try:
            result = await self._connection.send_request(method, {"sessionId": self._session, **params})
            return None if answer is None else answer.model_validate(result)
        except RequestError as error:
            raise EditorRefusal(f"the editor refused {method}: {error}") from error
        except ValidationError as error:
            raise EditorError(f"the answer of the editor to {method} is invalid") from error
        except ConnectionError as error:
            raise EditorError("the editor is gone") from error


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
