"""An editor for tests: the client of the protocol's SDK, connected over pipes, and a check of every message."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema_rs
from acp.connection import Connection, StreamDirection, StreamEvent

import acp
from acp import schema
from sessiontree.acp.agent_server import AgentServer
from sessiontree.acp.draft_transport import DraftTransport
from sessiontree.acp.editor_session import EditorOptions
from sessiontree.acp.stdio_transport import StdioTransport
from sessiontree.cli.acp import acp as command
from sessiontree.core.entries import JsonObject

COMMAND = [sys.executable, "-c", "from sessiontree.cli import main; main()", "acp"]
SECONDS = 60
"""Longer means that something hangs, even on a busy machine."""

RESPONSES: dict[str, type[schema.BaseModel]] = {
    "initialize": schema.InitializeResponse,
    "authenticate": schema.AuthenticateResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/fork": schema.ForkSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/close": schema.CloseSessionResponse,
    "session/delete": schema.DeleteSessionResponse,
    "session/prompt": schema.PromptResponse,
    "session/set_mode": schema.SetSessionModeResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
}
REQUESTS: dict[str, type[schema.BaseModel]] = {
    "session/update": schema.SessionNotification,
    "session/request_permission": schema.RequestPermissionRequest,
    "fs/read_text_file": schema.ReadTextFileRequest,
    "fs/write_text_file": schema.WriteTextFileRequest,
    "terminal/create": schema.CreateTerminalRequest,
    "terminal/output": schema.TerminalOutputRequest,
    "terminal/release": schema.ReleaseTerminalRequest,
    "terminal/wait_for_exit": schema.WaitForTerminalExitRequest,
    "terminal/kill": schema.KillTerminalRequest,
}
_validators: dict[type[schema.BaseModel], Any] = {}


def validate_with_models(model: type[schema.BaseModel], value: Any) -> None:
    """Check a value against the JSON schema of a model. The models themselves forgive many mistakes."""
    if model not in _validators:
        _validators[model] = jsonschema_rs.validator_for(model.model_json_schema(by_alias=True))
    _validators[model].validate(value)


class Editor:
    """Records what the agent sends, and answers its requests."""

    def __init__(self) -> None:
        self.connection: acp.ClientSideConnection
        self.process: asyncio.subprocess.Process
        self.messages: list[tuple[str, Any, Any]] = []
        """Every message of the agent: `request` and its method, or `response` and the id, and the content."""
        self.updates: list[tuple[str, JsonObject]] = []
        """The session and the update, in wire form."""
        self.permissions: list[JsonObject] = []
        self.choose: str | Callable[[JsonObject], Awaitable[str | None]] = "once"
        """The option that the user selects; a function returns `None` for a cancelled question."""
        self.buffers: dict[str, str] = {}
        """Unsaved files."""
        self.written: dict[str, str] = {}
        self.terminals: dict[str, asyncio.subprocess.Process] = {}
        self.released: list[str] = []
        self._sent: dict[Any, str] = {}
        self._changed = asyncio.Event()

    async def initialize(self, *, fs: bool, terminal: bool) -> None:
        files = schema.FileSystemCapabilities(read_text_file=fs, write_text_file=fs)
        capabilities = schema.ClientCapabilities(fs=files, terminal=terminal)
        asking = self.connection.initialize(protocol_version=1, client_capabilities=capabilities)
        await asyncio.wait_for(asking, SECONDS)

    def check_messages(self) -> None:
        """Check every message of the agent against the models of the SDK."""
        for kind, method, value in self.read_messages():
            validate_with_models((REQUESTS if kind == "request" else RESPONSES)[method], value)

    def read_messages(self) -> list[tuple[str, str, Any]]:
        """Return every message of the agent: `request` or `response`, the method, and the content.

        Call it at the end: the SDK may report a response before the request that it answers.
        """
        return [(kind, name if kind == "request" else self._sent[name], value) for kind, name, value in self.messages]

    # What tests ask

    def read(self, kind: str, session: str | None = None) -> list[JsonObject]:
        """Return the updates of a kind."""
        return [update for id, update in self.updates if update["sessionUpdate"] == kind and session in (None, id)]

    def read_text(self, kind: str = "agent_message_chunk") -> str:
        """Return the text of all chunks of a kind."""
        return "".join(update["content"].get("text", "<image>") for update in self.read(kind))

    def read_calls(self) -> list[JsonObject]:
        """Return the tool calls as the updates leave them."""
        calls: dict[str, JsonObject] = {}
        for _, update in self.updates:
            if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
                assert (update["toolCallId"] in calls) == (update["sessionUpdate"] == "tool_call_update")
                calls.setdefault(update["toolCallId"], {}).update(update)
        return list(calls.values())

    def clear(self) -> None:
        self.updates.clear()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def request(self, method: str, params: Any) -> Any:
        """Send a request in wire form."""
        return await asyncio.wait_for(self.connection._conn.send_request(method, params), SECONDS)

    async def open(self, cwd: Path, **options: Any) -> str:
        """Start a new session and return its id."""
        return (await self.connection.new_session(cwd=str(cwd), mcp_servers=[], **options)).session_id

    async def prompt(self, session: str, *content: str | Any) -> str:
        """Send a prompt and return the stop reason."""
        blocks = [acp.text_block(item) if isinstance(item, str) else item for item in content]
        answer = await asyncio.wait_for(self.connection.prompt(session_id=session, prompt=blocks), SECONDS)
        return answer.stop_reason

    # The client

    def observe(self, event: StreamEvent) -> None:
        message = event.message
        if event.direction == StreamDirection.OUTGOING:
            if "method" in message and "id" in message:
                self._sent[message["id"]] = message["method"]
            return
        assert message["jsonrpc"] == "2.0"
        if "method" in message:
            self.messages.append(("request", message["method"], message["params"]))
            if message["method"] == "session/update":
                self.updates.append((message["params"]["sessionId"], message["params"]["update"]))
        elif "result" in message:
            self.messages.append(("response", message["id"], message["result"]))
        self._changed.set()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        """Recorded by the observer."""

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> schema.RequestPermissionResponse:
        question = next(
            params for _, method, params in reversed(self.messages) if method == "session/request_permission"
        )
        self.permissions.append(question)
        self._changed.set()
        chosen = self.choose if isinstance(self.choose, str) else await self.choose(question)
        if chosen is None:
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=chosen))

    async def read_text_file(self, session_id: str, path: str, **_: Any) -> schema.ReadTextFileResponse:
        text = self.buffers.get(path)
        if text is None:
            try:
                text = Path(path).read_text()
            except OSError:
                raise acp.RequestError.resource_not_found(path) from None
        return schema.ReadTextFileResponse(content=text)

    async def write_text_file(self, session_id: str, path: str, content: str, **_: Any) -> None:
        self.written[path] = self.buffers[path] = content
        Path(path).write_text(content)

    async def create_terminal(
        self, session_id: str, command: str, args: Any = None, env: Any = None, cwd: Any = None, **_: Any
    ) -> schema.CreateTerminalResponse:
        id = f"terminal-{len(self.terminals) + 1}"
        variables = {variable.name: variable.value for variable in env or ()}
        self.terminals[id] = await asyncio.create_subprocess_exec(
            command,
            *(args or ()),
            cwd=cwd,
            env={**os.environ, **variables},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._changed.set()
        return schema.CreateTerminalResponse(terminal_id=id)

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str, **_: Any
    ) -> schema.WaitForTerminalExitResponse:
        code = await self.terminals[terminal_id].wait()
        return schema.WaitForTerminalExitResponse(exit_code=code if code >= 0 else None)

    async def terminal_output(self, session_id: str, terminal_id: str, **_: Any) -> schema.TerminalOutputResponse:
        stream = self.terminals[terminal_id].stdout
        assert stream is not None
        return schema.TerminalOutputResponse(output=(await stream.read()).decode(), truncated=False)

    async def kill_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.terminals[terminal_id].kill()

    async def release_terminal(self, session_id: str, terminal_id: str, **_: Any) -> None:
        self.released.append(terminal_id)

    def on_connect(self, conn: Any) -> None:
        """Called by the SDK."""


class ClientTransport(StdioTransport):
    """The transport of a client, which tells when the agent has closed its output."""

    def __init__(self, reader: int, writer: int) -> None:
        super().__init__(reader, writer)
        self.ended = asyncio.Event()

    async def receive(self) -> dict[str, Any] | None:
        message = await super().receive()
        if message is None:
            self.ended.set()
        return message


@asynccontextmanager
async def run_agent(options: EditorOptions) -> AsyncGenerator[ClientTransport]:
    """Run the agent in this process, and return the transport of its client. Pipes connect both.

    The client has to receive until the agent ends.
    """
    (agent_reads, client_writes), (client_reads, agent_writes) = os.pipe(), os.pipe()
    stdio = StdioTransport(agent_reads, agent_writes)
    server = AgentServer(options)
    agent = Connection(server.handle, DraftTransport(stdio) if options.offers_v2 else stdio, listening=False)
    server.connect(agent)
    running = asyncio.create_task(agent.main_loop())
    client = ClientTransport(client_reads, client_writes)
    try:
        yield client
    finally:
        async with asyncio.timeout(SECONDS):
            os.close(client_writes)  # the agent ends with its input
            await running
            await server.close()
            await agent.close()
            os.close(agent_writes)
            await client.ended.wait()  # nobody reads from the pipes now
        for end in (agent_reads, client_reads):
            os.close(end)


@asynccontextmanager
async def start_editor(
    *arguments: str, cwd: Path, fs: bool = False, terminal: bool = False, initialize: bool = True
) -> AsyncGenerator[Editor]:
    """Start the agent in this process with an editor. At the end, every message of the agent is checked."""
    editor = Editor()
    options = EditorOptions(**command.make_context("acp", list(arguments)).params)
    with contextlib.chdir(cwd):
        async with run_agent(options) as transport:
            editor.connection = acp.connect_to_agent(
                editor,  # type: ignore[arg-type]
                transport,
                use_unstable_protocol=True,
                observers=[editor.observe],
            )
            if initialize:
                await editor.initialize(fs=fs, terminal=terminal)
            yield editor
        await editor.connection.close()
    editor.check_messages()


@asynccontextmanager
async def spawn_editor(
    *arguments: str, cwd: Path, fs: bool = False, terminal: bool = False, initialize: bool = True
) -> AsyncGenerator[Editor]:
    """Start the agent in a process of its own, which takes seconds, and do the same."""
    editor = Editor()
    async with acp.spawn_agent_process(
        lambda _: editor,  # type: ignore[arg-type]
        *COMMAND,
        *arguments,
        env=dict(os.environ),
        cwd=cwd,
        transport_kwargs={"limit": 1 << 30, "shutdown_timeout": 30.0},
        use_unstable_protocol=True,
        observers=[editor.observe],
    ) as (editor.connection, editor.process):
        if initialize:
            await editor.initialize(fs=fs, terminal=terminal)
        yield editor
    editor.check_messages()
