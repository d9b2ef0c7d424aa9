"""`sessiontree mcp`: serve sessions to other agents, and manage the MCP servers that agents use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

from sessiontree.agent.mcp_client.server_specs import (
    MAX_PROJECT_FILE_BYTES,
    McpServer,
    describe_server,
    find_project_file,
    list_configured_servers,
    parse_project_file,
)
from sessiontree.cli.app import FAILED, app, json_option, run_async
from sessiontree.cli.output import bold, dim, echo, echo_json, escape_line, escape_lines, warn
from sessiontree.config import ConfigError, McpServerSettings, check_mcp_server, convert_setting, load_config
from sessiontree.config_editing import add_mcp_server, remove_mcp_server
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.home import CONFIG_NAME, get_home
from sessiontree.regular_file import read_regular_file

if TYPE_CHECKING:
    from sessiontree.agent.mcp_client.server_pool import McpServerStatus

MISSING = "this command needs an extra: pip install 'sessiontree[mcp]'"


@app.group(
    epilog="\b\nExamples:\n  sessiontree mcp serve\n  sessiontree mcp add docs -- npx -y docs-server\n"
    "  sessiontree mcp add tracker --url https://example.com/mcp\n  sessiontree mcp test docs"
)
def mcp() -> None:
    """Use MCP servers in agents, and serve sessions to other agents over MCP."""


@mcp.command(epilog="\b\nExample:\n  claude mcp add sessiontree -- sessiontree mcp serve")
@click.option("--all", "everywhere", is_flag=True, help="Include sessions of all folders.")
@click.option("--allow-write", is_flag=True, help="Also offer tools that label, fork and append notes.")
def serve(everywhere: bool, allow_write: bool) -> None:
    """Serve the sessions of this folder on standard input and output, without secrets, read-only."""
    try:
        from sessiontree.mcp_server import stdio_server
    except ModuleNotFoundError as error:
        raise InvalidOperation(MISSING) from error
    stdio_server.serve(os.getcwd(), everywhere=everywhere, allow_write=allow_write)


@mcp.command("list", epilog="\b\nExample:\n  sessiontree mcp list")
@json_option
def list_servers(as_json: bool) -> None:
    """List the configured MCP servers and those of this project, without starting them."""
    servers, project = _load_servers()
    is_project_trusted = _is_trusted(project)
    for server in servers:
        is_trusted = server.is_trusted or is_project_trusted
        if as_json:
            settings = msgspec.to_builtins(server.settings)
            shown = {key: value for key, value in settings.items() if key not in ("env", "headers")}
            echo_json({"name": server.name, "origin": server.origin, "trusted": is_trusted, **shown})
            continue
        state = dim("disabled") if not server.settings.enabled else "" if is_trusted else dim("not trusted")
        echo(
            bold(escape_line(server.name)), escape_line(describe_server(server)), dim(escape_line(server.origin)), state
        )
    if not servers and not as_json:
        echo(dim("no MCP servers"))


@mcp.command(
    epilog="\b\nExamples:\n  sessiontree mcp add docs -- npx -y docs-server\n"
    "  sessiontree mcp add tracker --url https://example.com/mcp --header 'Authorization=Bearer ${TRACKER_TOKEN}'"
)
@click.argument("name")
@click.argument("command", nargs=-1)
@click.option("--url", metavar="URL", help="Address of a server that speaks streamable HTTP.")
@click.option("--env", "variables", metavar="NAME=VALUE", multiple=True, help="Environment variable; repeatable.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="HTTP header; repeatable.")
def add(
    name: str, command: tuple[str, ...], url: str | None, variables: tuple[str, ...], headers: tuple[str, ...]
) -> None:
    """Add an MCP server to config.toml: a COMMAND after --, or a --url.

    ${NAME} in a value is replaced by an environment variable when the server starts.
    """
    values: dict[str, Any] = {}
    if command:
        values["command"] = command[0]
    if command[1:]:
        values["args"] = list(command[1:])
    for key, value in (("url", url), ("env", _parse_pairs(variables)), ("headers", _parse_pairs(headers))):
        if value:
            values[key] = value
    where = f"mcp.servers.{name}"
    try:
        check_mcp_server(CONFIG_NAME, where, name, convert_setting(CONFIG_NAME, McpServerSettings, values, where))
    except ConfigError as error:
        raise click.UsageError(f"{error.key}: {error.reason}") from error
    path = add_mcp_server(name, values)
    echo("added", bold(escape_line(name)), dim(f"to {escape_line(path)}"))


@mcp.command(epilog="\b\nExample:\n  sessiontree mcp remove docs")
@click.argument("name")
def remove(name: str) -> None:
    """Remove an MCP server from config.toml."""
    path = remove_mcp_server(name)
    echo("removed", bold(escape_line(name)), dim(f"from {escape_line(path)}"))


@mcp.command(epilog="\b\nExample:\n  sessiontree mcp test docs")
@click.argument("name", required=False)
def test(name: str | None) -> int:
    """Start the MCP servers, or one of them, and show their tools, resources and prompts.

    The servers of this project are started only if you trust them.
    """
    from sessiontree.agent.mcp_client.server_pool import McpPool
    from sessiontree.slash_commands.formatting import format_mcp_status

    found, project = _load_servers()
    servers = [server for server in found if name in (None, server.name)]
    if name is not None and not servers:
        raise NotFound("MCP server", name, "sessiontree mcp list shows all")
    allowed = [server for server in servers if server.is_trusted or _is_trusted(project)]
    for server in servers:
        if server not in allowed:
            warn(f"{server.name} is not started: you have not trusted {server.origin}; run `sessiontree` to review it")

    async def read_status() -> list[McpServerStatus]:
        async with McpPool(allowed, load_config(), os.getcwd()) as pool:
            return await pool.list_status()

    statuses = run_async(read_status())
    for status in statuses:
        click.echo(escape_lines(format_mcp_status(status)))
    failed = len(allowed) < len(servers) or any(status.error is not None for status in statuses)
    return FAILED if failed else 0


def _load_servers() -> tuple[list[McpServer], dict[str, bytes]]:
    """Return the servers of the configuration and of the project, and the project's file. The configuration wins."""
    servers = {server.name: server for server in list_configured_servers(load_config())}
    path = find_project_file(os.getcwd())
    files: dict[str, bytes] = {}
    if path is not None:
        try:
            files[path] = read_regular_file(path, MAX_PROJECT_FILE_BYTES)
            found = parse_project_file(path, files[path])
        except OSError as error:
            warn(f"{path}: {error.strerror or error}; its MCP servers are not used")
        except ConfigError as error:
            warn(f"{error}; its MCP servers are not used")
        else:
            for server in found.servers:
                servers.setdefault(server.name, server)
            for problem in found.problems:
                warn(f"{problem}; this MCP server is not used")
    return list(servers.values()), files


def _is_trusted(files: dict[str, bytes]) -> bool:
    """Return whether the user trusts the project's file with exactly the bytes that were parsed."""
    from sessiontree.extensions.project_trust import TrustStore, wrap_server_file

    return any(TrustStore(get_home()).is_trusted(wrap_server_file(path, raw)) for path, raw in files.items())


def _parse_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise click.UsageError(f"expected NAME=VALUE, not {pair!r}")
        values[key] = value
    return values
