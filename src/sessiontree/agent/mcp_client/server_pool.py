"""The MCP servers of an agent, and their tools, resources and prompts.

Give a `McpPool` a list of servers, pass it to agents, and close it at the end:

    pool = McpPool([McpServer(name="docs", settings=McpServerSettings(command="docs-server"))], cwd=folder)
    options = AgentOptions(mcp=pool)
    ...
    await pool.close()

Nothing is imported or started before the first request. Before every request to the model, the agent asks for the
tools: servers may change them while they run.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from msgspec import Meta, Struct

from sessiontree.agent.mcp_client.server_specs import McpServer, McpServerError
from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput
from sessiontree.config import Config, find_mcp_name_problem, normalize_mcp_name
from sessiontree.core.messages import extract_text
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError

if TYPE_CHECKING:
    import mcp_types

    from sessiontree.agent.mcp_client.server_connection import McpConnection

PREFIX = "mcp"
MAX_NAME_LENGTH = 64
"""The longest name of a tool that all providers accept."""
MAX_DESCRIPTION_LENGTH = 10_000
MAX_TOOLS = 500
"""The maximum number of tools of one server."""
TOO_MANY_TOOLS = f"it has more than {MAX_TOOLS} tools; only the first {MAX_TOOLS} are used"
MAX_LISTED_RESOURCES = 200


class McpServerStatus(Struct, frozen=True, kw_only=True):
    """A server and what it offers, for users."""

    server: McpServer
    error: str | None = None
    """Why it cannot be used."""
    title: str | None = None
    """The name and version that the server gives itself."""
    protocol: str | None = None
    tools: tuple[tuple[str, str], ...] = ()
    """The names of its tools for the model, and their descriptions."""
    resources: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()


class McpPool:
    """MCP servers that agents share. They start when they are first needed."""

    def __init__(self, servers: Iterable[McpServer] = (), config: Config | None = None, cwd: str | None = None) -> None:
        """`config` decides which environment variables servers get; `cwd` is the folder that they run in.

        If two servers have the same name, the first one counts. Raises `InvalidOperation` as `add` does.
        """
        self._config = Config() if config is None else config
        self._cwd = cwd
        self._servers: dict[str, McpServer] = {}
        self._connections: dict[str, McpConnection] = {}
        self._reported: dict[str, str] = {}
        """The last warning about each server that a user has seen."""
        self._is_closed = False
        for server in servers:
            if server.name not in self._servers:
                self.add(server)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def servers(self) -> Sequence[McpServer]:
        return list(self._servers.values())

    def add(self, server: McpServer) -> Callable[[], None]:
        """Add a server and return a function that removes it.

        Raises `InvalidOperation` if the name is invalid, or if it is in use: two names whose tools have the same
        prefix count as one, because permissions are granted by prefix.
        """
        problem = find_mcp_name_problem(server.name)
        if problem is not None:
            raise InvalidOperation(f"{server.name!r} cannot name an MCP server: {problem}")
        for other in self._servers.values():
            if normalize_mcp_name(other.name) == normalize_mcp_name(server.name):
                raise InvalidOperation(f"another MCP server is named {other.name!r}, from {other.origin}")
        self._servers[server.name] = server

        def remove() -> None:
            if self._servers.get(server.name) is server:
                del self._servers[server.name]

        return remove

    async def close(self) -> None:
        """Stop all servers that this pool started. It starts none afterwards."""
        self._is_closed = True
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))

    async def list_tools(self, warn: Callable[[str], None] = lambda text: None) -> list[Tool]:
        """Return the tools of all servers, with names that do not clash. `warn` gets each failure once.

        A server that cannot be used has no tools; the others are not affected.
        """
        servers = self._list_enabled()
        if not servers:
            return []
        found = await asyncio.gather(*(self._list_server_tools(server, warn) for server in servers))
        tools: dict[str, Tool] = {}
        for server, listed in zip(servers, found, strict=True):
            for tool in listed[:MAX_TOOLS]:
                built = self._build_tool(server, tool, tools)
                tools[built.name] = built
        if any(self._has_resources(server) for server in servers):
            tools |= {tool.name: tool for tool in self._build_resource_tools()}
        return list(tools.values())

    async def list_status(self) -> list[McpServerStatus]:
        """Connect to all servers, and return what each offers or why it cannot be used."""
        return list(await asyncio.gather(*map(self._read_status, self.servers)))

    async def restart(self, name: str) -> None:
        """Stop a server; it starts again when it is needed, even if it failed often. Raises `NotFound`."""
        connection = await self._connect(self._find_server(name))
        connection.forget_failures()
        await connection.close()

    async def read_prompt(self, server: str, name: str, arguments: dict[str, str]) -> str:
        """Return the text of a prompt. Raises `NotFound` and `McpServerError`."""
        from sessiontree.agent.mcp_client.tool_results import convert_content

        connection = await self._connect(self._find_server(server))
        prompt = await connection.get_prompt(name, arguments)
        blocks = [block for message in prompt.messages for block in convert_content([message.content])]
        return "\n\n".join(filter(None, (extract_text([block]) for block in blocks)))

    # Servers

    def _list_enabled(self) -> list[McpServer]:
        return [] if self._is_closed else [server for server in self.servers if server.settings.enabled]

    def _find_server(self, name: str) -> McpServer:
        server = self._servers.get(name)
        if server is None:
            raise NotFound("MCP server", name, f"servers: {', '.join(self._servers) or 'none'}")
        if self._is_closed or not server.settings.enabled:
            raise McpServerError(name, "closed" if self._is_closed else "disabled in the configuration")
        return server

    async def _connect(self, server: McpServer) -> McpConnection:
        """Return the connection of a server. Nothing is started yet."""
        try:
            # The SDK takes a second to import, so a thread does it.
            from_sdk = await asyncio.to_thread(_import_connection)
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.partition(".")[0] not in ("mcp", "mcp_types", "httpx2", "anyio"):
                raise
            raise McpServerError(server.name, "MCP servers need an extra: pip install 'sessiontree[mcp]'") from error
        connection = self._connections.get(server.name)
        if connection is None or connection.server is not server:
            if self._is_closed:
                raise McpServerError(server.name, "closed")
            previous = connection
            connection = self._connections[server.name] = from_sdk(server, self._config, self._cwd)
            if previous is not None:
                await previous.close()
        return connection

    def _has_resources(self, server: McpServer) -> bool:
        connection = self._connections.get(server.name)
        client = None if connection is None else connection.client
        return client is not None and client.server_capabilities.resources is not None

    async def _read_status(self, server: McpServer) -> McpServerStatus:
        if not server.settings.enabled:
            return McpServerStatus(server=server, error="disabled in the configuration")
        try:
            connection = await self._connect(server)
            listed = await connection.list_tools()
            resources, prompts = await connection.list_resources(), await connection.list_prompts()
        except SessionTreeError as error:
            reason = error.reason if isinstance(error, McpServerError) else str(error)
            return McpServerStatus(server=server, error=reason)
        client = connection.client
        info = None if client is None else client.server_info
        names: dict[str, Tool] = {}
        for tool in listed[:MAX_TOOLS]:
            built = self._build_tool(server, tool, names)
            names[built.name] = built
        return McpServerStatus(
            server=server,
            title=None if info is None else f"{info.name} {info.version}".strip(),
            protocol=None if client is None else client.protocol_version,
            tools=tuple((tool.name, tool.description) for tool in names.values()),
            resources=tuple(str(getattr(item, "uri", None) or getattr(item, "uri_template", "")) for item in resources),
            prompts=tuple(_format_prompt(prompt) for prompt in prompts),
        )

    async def _list_server_tools(self, server: McpServer, warn: Callable[[str], None]) -> list[mcp_types.Tool]:
        try:
            found = await (await self._connect(server)).list_tools()
        except SessionTreeError as error:
            self._warn_once(server, str(error), warn)
            return []
        if len(found) > MAX_TOOLS:
            self._warn_once(server, str(McpServerError(server.name, TOO_MANY_TOOLS)), warn)
        else:
            self._reported.pop(server.name, None)
        return found

    def _warn_once(self, server: McpServer, text: str, warn: Callable[[str], None]) -> None:
        if self._reported.get(server.name) != text:
            self._reported[server.name] = text
            warn(text)

    # Tools

    def _build_tool(self, server: McpServer, listed: mcp_types.Tool, taken: dict[str, Tool]) -> Tool:
        settings, hints = server.settings, listed.annotations
        reads = settings.trust_read_only and hints is not None and bool(hints.read_only_hint)
        schema = listed.input_schema

        async def run(context: ToolContext) -> ToolOutput:
            from sessiontree.agent.mcp_client.tool_results import convert_result

            try:
                connection = await self._connect(self._find_server(server.name))
                result = await connection.call_tool(listed.name, dict(context.call.arguments), context.update)
            except SessionTreeError as error:
                raise ToolError(str(error)) from error
            # A result of many megabytes takes long to convert, and other agents must not wait.
            return await asyncio.to_thread(convert_result, result, server=server.name, tool=listed.name)

        return Tool(
            name=build_tool_name(server.name, listed.name, taken),
            description=(listed.description or listed.title or "")[:MAX_DESCRIPTION_LENGTH],
            run=run,
            parameters=schema if schema.get("type") == "object" else {"type": "object", "properties": {}},
            concurrent=reads,
            does="reads" if reads else "runs",
        )

    def _build_resource_tools(self) -> list[Tool]:
        async def list_resources(context: ToolContext) -> str:
            return await self._format_resources(context.arguments.server)

        async def read_resource(context: ToolContext) -> ToolOutput:
            from sessiontree.agent.mcp_client.tool_results import convert_resource, limit_blocks

            try:
                connection = await self._connect(self._find_server(context.arguments.server))
                found = await connection.read_resource(context.arguments.uri)
            except SessionTreeError as error:
                raise ToolError(str(error)) from error
            blocks = await asyncio.to_thread(lambda: limit_blocks(list(convert_resource(found.contents))))
            return ToolOutput(content=blocks or "(empty)", details={"mcpServer": context.arguments.server})

        return [
            Tool(
                name=f"{PREFIX}_list_resources",
                description="List the resources of MCP servers: data that they offer besides their tools.",
                run=list_resources,
                arguments=_ListResources,
                concurrent=True,
                does="reads",
            ),
            Tool(
                name=f"{PREFIX}_read_resource",
                description="Read a resource of an MCP server by its URI.",
                run=read_resource,
                arguments=_ReadResource,
            ),
        ]

    async def _format_resources(self, name: str | None) -> str:
        servers = self._list_enabled() if name is None else [self._find_server(name)]
        lines: list[str] = []
        for server in servers:
            try:
                resources = await (await self._connect(server)).list_resources()
            except SessionTreeError as error:
                lines.append(str(error))
                continue
            for item in resources[:MAX_LISTED_RESOURCES]:
                where = str(getattr(item, "uri", None) or getattr(item, "uri_template", ""))
                about = " - ".join(filter(None, (item.title or item.name, item.description)))
                lines.append(f"{server.name}: {where}  {about[:300]}")
            if len(resources) > MAX_LISTED_RESOURCES:
                lines.append(f"{server.name}: at least {len(resources) - MAX_LISTED_RESOURCES} more")
        return "\n".join(lines) or "no resources"


class _ListResources(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: Annotated[str | None, Meta(description="The name of one server; by default all.")] = None


class _ReadResource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: Annotated[str, Meta(description="The name of the server.")]
    uri: Annotated[str, Meta(description="The URI of the resource, as it is listed or built from a template.")]


def build_tool_name(server: str, tool: str, taken: Iterable[str] = ()) -> str:
    """Return the name of a server's tool for models: `mcp__SERVER__TOOL`, unique and short enough."""
    plain = normalize_mcp_name(f"{PREFIX}__{server}__{tool}")
    if len(plain) <= MAX_NAME_LENGTH and plain not in taken:
        return plain
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "replace")).hexdigest()[:8]
    return f"{plain[: MAX_NAME_LENGTH - 9]}_{digest}"


def _format_prompt(prompt: mcp_types.Prompt) -> str:
    arguments = [f"{item.name}=…" if item.required else f"[{item.name}=…]" for item in prompt.arguments or ()]
    return " ".join([prompt.name, *arguments])


def _import_connection() -> Any:
    from sessiontree.agent.mcp_client.server_connection import McpConnection

    return McpConnection
