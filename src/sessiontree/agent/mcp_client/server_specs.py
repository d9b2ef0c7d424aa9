"""The MCP servers that an agent may use: from the configuration, from `.mcp.json`, or from an editor."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct, structs

from sessiontree.config import (
    Config,
    ConfigError,
    McpServerSettings,
    check_mcp_server,
    convert_setting,
)
from sessiontree.core.messages import is_object
from sessiontree.errors import SessionTreeError

PROJECT_FILE = ".mcp.json"
"""The file of a project that lists MCP servers. Other agents read the same file."""
EDITOR_ORIGIN = "editor"
"""The origin of servers that an editor passes. It has replaced the variables in their settings itself."""
MAX_PROJECT_FILE_BYTES = 1 << 20

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_PROJECT_FIELDS = ("command", "args", "env", "cwd", "url", "headers")
"""The fields of a `.mcp.json` that count. Only the user sets limits and trusts what a server says about its tools."""
_HTTP_TYPES = ("http", "streamable-http", "streamableHttp")


class McpServerError(SessionTreeError):
    """An MCP server could not be started, stopped, or answered with an error."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(f"MCP server {server!r}: {reason}")
        self.server = server
        self.reason = reason


class McpServer(Struct, frozen=True, kw_only=True):
    """A server that agents may use."""

    name: str
    settings: McpServerSettings
    origin: str = "config.toml"
    """Who named it: `config.toml`, the path of a `.mcp.json`, or `editor`."""
    is_trusted: bool = True
    """Whether it comes from the user. Others cannot read the API keys in the user's environment."""


def list_configured_servers(settings: Config) -> list[McpServer]:
    """Return the servers of the user's configuration."""
    return [McpServer(name=name, settings=server) for name, server in settings.mcp.servers.items()]


def describe_server(server: McpServer) -> str:
    """Return the command or the address of a server. Values of variables and headers are not shown."""
    settings = server.settings
    if settings.url is not None:
        return settings.url
    return shlex.join([settings.command or "", *settings.args])


def describe_all_settings(server: McpServer) -> str:
    """Return what decides what a server does, for the question whether to trust it. Variables are not replaced."""
    settings = server.settings
    parts = [describe_server(server)]
    if settings.cwd:
        parts.append(f"in the folder {shlex.quote(settings.cwd)}")
    for kind, values in (("environment", settings.env), ("headers", settings.headers)):
        if values:
            parts.append(f"{kind} {' '.join(shlex.quote(f'{name}={value}') for name, value in values.items())}")
    return "; ".join(parts)


def find_project_file(cwd: str) -> str | None:
    """Return the `.mcp.json` of the project that contains `cwd`; the search ends at the root of a git repository."""
    at = os.path.abspath(cwd)
    while True:
        path = os.path.join(at, PROJECT_FILE)
        if os.path.lexists(path):
            return path
        parent = os.path.dirname(at)
        if parent == at or os.path.lexists(os.path.join(at, ".git")):
            return None
        at = parent


class ProjectServers(Struct, frozen=True):
    """The servers of a `.mcp.json`, and why the others in it cannot be used."""

    servers: list[McpServer]
    problems: list[ConfigError]


def parse_project_file(path: str, raw: bytes) -> ProjectServers:
    """Return the servers of a `.mcp.json`. Fields of other programs are ignored.

    Raises `ConfigError` if the file as a whole is invalid.
    """
    try:
        data: Any = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(path, None, f"not valid JSON: {error}") from error
    listed: Any = data.get("mcpServers") if is_object(data) else None
    if not is_object(listed):
        raise ConfigError(path, None, "expected an object with `mcpServers`")
    found = ProjectServers([], [])
    for name, server in listed.items():
        try:
            found.servers.append(_build_server(path, name, server))
        except ConfigError as error:  # the file is written for several programs, and the other servers work
            found.problems.append(error)
    return found


def _build_server(path: str, name: str, server: Any) -> McpServer:
    key = f"mcpServers.{name}"
    if not is_object(server):
        raise ConfigError(path, key, "expected an object")
    kind = server.get("type")
    if kind not in (None, "stdio", *_HTTP_TYPES):
        raise ConfigError(path, f"{key}.type", f"{kind!r} is not supported; choose stdio or http")
    known = {field: server[field] for field in _PROJECT_FIELDS if field in server}
    settings = convert_setting(path, McpServerSettings, known, key)
    check_mcp_server(path, key, name, settings)
    return McpServer(name=name, settings=settings, origin=path, is_trusted=False)


def expand_server(server: McpServer, config: Config) -> McpServerSettings:
    """Return the settings with the environment variables in them replaced. Settings from an editor stay as they are.

    Raises `McpServerError` if one is not set, or if a server that the user did not name asks for an API key.
    """

    def expand(text: str) -> str:
        return _VARIABLE.sub(replace, text)

    def replace(found: re.Match[str]) -> str:
        name: str = found[1]
        default: str | None = found[2]
        reason = None if server.is_trusted else config.find_secret_reason(name)
        if reason is not None:
            raise McpServerError(
                server.name, f"{server.origin} uses {name}, which only config.toml may pass on: {reason}"
            )
        value: str | None = os.environ.get(name, default)
        if value is None:
            raise McpServerError(server.name, f"the environment variable {name} is not set")
        return value

    settings = server.settings
    if server.origin == EDITOR_ORIGIN:
        return settings
    return structs.replace(
        settings,
        command=None if settings.command is None else expand(settings.command),
        args=tuple(map(expand, settings.args)),
        env=_map_values(expand, settings.env),
        url=None if settings.url is None else expand(settings.url),
        headers=_map_values(expand, settings.headers),
    )


def _map_values(function: Callable[[str], str], values: dict[str, str]) -> dict[str, str]:
    return {name: function(value) for name, value in values.items()}
