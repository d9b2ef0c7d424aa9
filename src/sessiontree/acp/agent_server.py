"""The agent of the protocol: answers the requests of an editor and keeps its open sessions.

Requests are checked with the models of the SDK. Failures become errors of the protocol with one clear sentence.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, TypeAlias

from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import AGENT_METHODS, PROTOCOL_VERSION
from acp.schema import (
    AuthenticateRequest,
    CancelNotification,
    ClientCapabilities,
    CloseSessionRequest,
    DeleteSessionRequest,
    ForkSessionRequest,
    HttpMcpServer,
    InitializeRequest,
    ListSessionsRequest,
    LoadSessionRequest,
    McpServerStdio,
    NewSessionRequest,
    PromptRequest,
    ResumeSessionRequest,
    SetSessionConfigOptionBooleanRequest,
    SetSessionConfigOptionSelectRequest,
    SetSessionModeRequest,
    SseMcpServer,
)
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from sessiontree import config
from sessiontree._version import __version__
from sessiontree.acp.draft_transport import DraftTransport
from sessiontree.acp.editor_client import EditorClient, McpServerRequest, build_mcp_capabilities
from sessiontree.acp.editor_session import EditorOptions, EditorSession
from sessiontree.acp.prompt_content import ContentBlock
from sessiontree.acp.stdio_transport import StdioTransport, claim_stdio
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import is_list, is_object
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound, SessionTreeError
from sessiontree.library import catalog
from sessiontree.model.providers import PROVIDERS
from sessiontree.model.selection import NoModel, find_model
from sessiontree.ops.fork import fork_session
from sessiontree.session import Session

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32600, -32601, -32602, -32603
AUTH_REQUIRED, RESOURCE_NOT_FOUND = -32000, -32002
KEY_METHOD = "api-key"
"""The id of the only way to authenticate."""
PAGE_SIZE = 100
"""Sessions in one page of the list."""
ANSWER_SECONDS = 60.0
"""How long requests may take to end after the editor has closed its output."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler: TypeAlias = "Callable[[AgentServer, Any], Awaitable[JsonObject | None]]"

_log = logging.getLogger(__name__)


async def serve_stdio(options: EditorOptions) -> None:
    """Serve the editor on standard input and output until it closes them, or a signal arrives."""
    stdio = StdioTransport(*claim_stdio())
    transport = DraftTransport(stdio) if options.offers_v2 else stdio
    server = AgentServer(options)
    connection = Connection(server.handle, transport, listening=False)
    server.connect(connection)
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, transport.stop)
    try:
        await connection.main_loop()
    finally:
        await server.close()
        await connection.close()


class AgentServer:
    """Answers the requests of one editor."""

    def __init__(self, options: EditorOptions) -> None:
        self._options = options
        self._connection: Connection | None = None
        self._capabilities: ClientCapabilities | None = None
        self._sessions: dict[str, EditorSession] = {}
        self._opening = asyncio.Lock()
        """Held while a session is opened or closed, to open it only once."""
        self._unanswered = 0
        self._all_answered = asyncio.Event()
        self._all_answered.set()

    def connect(self, connection: Connection) -> None:
        self._connection = connection

    async def close(self) -> None:
        """Answer all requests, and close all sessions. Running prompts are aborted, and their results are written."""
        await asyncio.sleep(0)  # the last requests may not have started
        for opened in self._sessions.values():
            opened.cancel()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_answered.wait(), ANSWER_SECONDS)
        async with self._opening:
            for id in list(self._sessions):
                await self._close(id)

    async def _close(self, id: str) -> None:
        open_session = self._sessions.pop(id, None)
        if open_session is not None:
            try:
                await open_session.close()
            except SessionTreeError as error:
                _log.warning("session %s did not close cleanly: %s", id, error)

    async def handle(self, method: str, params: object, is_notification: bool) -> JsonObject | None:
        """Answer a message. Raises `RequestError`."""
        known = (NOTIFICATIONS if is_notification else REQUESTS).get(method)
        if known is None:
            if is_notification:  # notifications have no answer, and new ones may come with new versions
                return None
            raise RequestError(METHOD_NOT_FOUND, f"method {method} not found")
        model, handler = known
        self._unanswered += 1
        self._all_answered.clear()
        try:
            if self._capabilities is None and model is not InitializeRequest:
                raise RequestError(INVALID_REQUEST, "the first request must be initialize")
            return await handler(self, _parse(model, {} if params is None else params))
        except RequestError as error:
            if not is_notification:
                raise
            _log.warning("%s: %s", method, error)
        except SessionTreeError as error:
            if not is_notification:
                raise _convert_error(error) from error
            _log.warning("%s: %s", method, error)
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self._all_answered.set()
        return None

    # Starting

    async def initialize(self, request: InitializeRequest) -> JsonObject:
        self._capabilities = request.client_capabilities or ClientCapabilities()
        capabilities: JsonObject = {
            "loadSession": True,
            "mcpCapabilities": build_mcp_capabilities(),
            "promptCapabilities": {"image": True, "embeddedContext": True},
            "sessionCapabilities": {"list": {}, "delete": {}, "resume": {}, "close": {}, "fork": {}},
        }
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentCapabilities": capabilities,
            "agentInfo": {"name": "sessiontree", "title": "sessiontree", "version": __version__},
            "authMethods": [] if await asyncio.to_thread(_has_model, self._options.model) else [_build_auth_method()],
        }

    async def authenticate(self, request: AuthenticateRequest) -> JsonObject:
        if request.method_id != KEY_METHOD:
            raise RequestError(INVALID_PARAMS, f"no method {request.method_id!r} to authenticate; use {KEY_METHOD}")
        await asyncio.to_thread(find_model, self._options.model, config.load_config())
        return {}

    # Sessions

    async def new_session(self, request: NewSessionRequest) -> JsonObject:
        cwd = _check_folder(request.cwd)
        async with self._opening:
            session = await asyncio.to_thread(lambda: catalog.create_session(cwd=cwd))
            opened = await self._open(session, cwd, request.mcp_servers, fresh=True, needs_model=True)
        return {"sessionId": session.id, **self._announce(opened)}

    async def load_session(self, request: LoadSessionRequest) -> JsonObject:
        opened = await self._open_existing(request)
        await opened.replay()
        return self._announce(opened)

    async def resume_session(self, request: ResumeSessionRequest) -> JsonObject:
        return self._announce(await self._open_existing(request))

    async def fork_session(self, request: ForkSessionRequest) -> JsonObject:
        cwd = _check_folder(request.cwd)
        async with self._opening:
            known = self._sessions.get(request.session_id)
            if known is not None:
                outcome = await fork_session(
                    known.session, known.controller.qualify_place("HEAD"), hooks=known.controller.hooks
                )
            else:
                with await asyncio.to_thread(_find_session, request.session_id) as source:
                    outcome = await fork_session(source)
            if outcome.session is None:
                raise InvalidOperation("the fork was cancelled")
            opened = await self._open(outcome.session, cwd, request.mcp_servers, fresh=False, needs_model=False)
        return {"sessionId": outcome.session.id, **self._announce(opened)}

    async def list_sessions(self, request: ListSessionsRequest) -> JsonObject:
        cwd = None if request.cwd is None else _check_absolute(request.cwd)
        found = await asyncio.to_thread(lambda: catalog.sessions(cwd, all=cwd is None))
        listed = [summary for summary in found if os.path.isabs(summary.cwd)]
        start = 0
        if request.cursor is not None:
            ids = [summary.id for summary in listed]
            if request.cursor not in ids:
                raise RequestError(INVALID_PARAMS, "the list has changed; start again without a cursor")
            start = ids.index(request.cursor) + 1
        page = listed[start : start + PAGE_SIZE]
        sessions = [
            {
                "sessionId": summary.id,
                "cwd": summary.cwd,
                "updatedAt": summary.modified,
                **({"title": title} if (title := summary.name or summary.first_message) else {}),
            }
            for summary in page
        ]
        more = {"nextCursor": page[-1].id} if start + PAGE_SIZE < len(listed) else {}
        return {"sessions": sessions, **more}

    async def close_session(self, request: CloseSessionRequest) -> JsonObject:
        self._get_open(request.session_id).cancel()
        async with self._opening:
            await self._close(request.session_id)
        return {}

    async def delete_session(self, request: DeleteSessionRequest) -> JsonObject:
        async with self._opening:
            await self._close(request.session_id)
            location = await asyncio.to_thread(_locate_session, request.session_id, missing_ok=True)
            if location is not None:
                await asyncio.to_thread(catalog.delete, location)
        return {}

    async def _open_existing(self, request: LoadSessionRequest | ResumeSessionRequest) -> EditorSession:
        id, folder = request.session_id, _check_folder(request.cwd)
        async with self._opening:
            if id in self._sessions:
                return self._sessions[id]
            session = await asyncio.to_thread(_find_session, id)
            return await self._open(session, folder, request.mcp_servers, fresh=False, needs_model=False)

    async def _open(
        self, session: Session, cwd: str, servers: Sequence[McpServerRequest] | None, *, fresh: bool, needs_model: bool
    ) -> EditorSession:
        """Open a session for the editor. If that fails, the session is closed again."""
        assert self._connection is not None
        assert self._capabilities is not None
        editor = EditorClient(self._connection, self._capabilities, session.id)
        try:
            opened = EditorSession(session, editor, cwd, config.load_config(), self._options, fresh=fresh)
        except BaseException:
            session.close()
            raise
        try:
            opened.add_servers(servers or ())
            await opened.start(needs_model=needs_model)
        except BaseException:
            with suppress(SessionTreeError):
                await opened.close()
            raise
        self._sessions[session.id] = opened
        return opened

    def _announce(self, opened: EditorSession) -> JsonObject:
        """Return the state of a session. What the answer cannot contain follows after it."""
        state = opened.options.build_state()
        opened.announce()
        return state

    def _get_open(self, id: str) -> EditorSession:
        if id not in self._sessions:
            raise NotFound("open session", id, "load or resume it first")
        return self._sessions[id]

    # Turns

    async def prompt(self, request: PromptRequest) -> JsonObject:
        return {"stopReason": await self._get_open(request.session_id).prompt(request.prompt)}

    async def cancel(self, request: CancelNotification) -> None:
        self._get_open(request.session_id).cancel()

    async def set_mode(self, request: SetSessionModeRequest) -> JsonObject:
        opened = self._get_open(request.session_id)
        opened.options.set_mode(request.mode_id)
        opened.announce()
        return {}

    async def set_config_option(
        self, request: SetSessionConfigOptionBooleanRequest | SetSessionConfigOptionSelectRequest
    ) -> JsonObject:
        opened = self._get_open(request.session_id)
        await opened.options.set_option(request.config_id, request.value)
        opened.announce()
        return {"configOptions": opened.options.build_config()}


REQUESTS: dict[str, tuple[type[BaseModel], Handler]] = {
    AGENT_METHODS["initialize"]: (InitializeRequest, AgentServer.initialize),
    AGENT_METHODS["authenticate"]: (AuthenticateRequest, AgentServer.authenticate),
    AGENT_METHODS["session_new"]: (NewSessionRequest, AgentServer.new_session),
    AGENT_METHODS["session_load"]: (LoadSessionRequest, AgentServer.load_session),
    AGENT_METHODS["session_resume"]: (ResumeSessionRequest, AgentServer.resume_session),
    AGENT_METHODS["session_fork"]: (ForkSessionRequest, AgentServer.fork_session),
    AGENT_METHODS["session_list"]: (ListSessionsRequest, AgentServer.list_sessions),
    AGENT_METHODS["session_close"]: (CloseSessionRequest, AgentServer.close_session),
    AGENT_METHODS["session_delete"]: (DeleteSessionRequest, AgentServer.delete_session),
    AGENT_METHODS["session_prompt"]: (PromptRequest, AgentServer.prompt),
    AGENT_METHODS["session_set_mode"]: (SetSessionModeRequest, AgentServer.set_mode),
    AGENT_METHODS["session_set_config_option"]: (
        SetSessionConfigOptionSelectRequest,
        AgentServer.set_config_option,
    ),
}
NOTIFICATIONS: dict[str, tuple[type[BaseModel], Handler]] = {
    AGENT_METHODS["session_cancel"]: (CancelNotification, AgentServer.cancel),
}

ITEMS: dict[str, TypeAdapter[Any]] = {
    "prompt": TypeAdapter(Annotated[ContentBlock, Field(discriminator="type")]),
    "mcpServers": TypeAdapter(HttpMcpServer | SseMcpServer | McpServerStdio),
}
"""The types of the items of lists in requests."""


def _parse(model: type[BaseModel], params: object) -> BaseModel:
    """Check the parameters of a request. Raises `RequestError`."""
    if model is SetSessionConfigOptionSelectRequest and is_object(params) and params.get("type") == "boolean":
        model = SetSessionConfigOptionBooleanRequest
    try:
        request = model.model_validate(params)
        for name, kind in ITEMS.items():  # the models drop items that are invalid
            given = params.get(name) if is_object(params) else None
            for item in given if is_list(given) else ():
                kind.validate_python(item)
        return request
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        reasons = [f"{'.'.join(map(str, item['loc'])) or 'params'}: {item['msg']}" for item in found[:5]]
        raise RequestError(INVALID_PARAMS, f"invalid parameters: {'; '.join(reasons)}") from None


def _convert_error(error: SessionTreeError) -> RequestError:
    """Return an error of the library as an error of the protocol."""
    match error:
        case NoModel():
            return RequestError(AUTH_REQUIRED, str(error), {"methodId": KEY_METHOD})
        case NotFound():
            return RequestError(RESOURCE_NOT_FOUND, str(error))
        case InvalidOperation():
            return RequestError(INVALID_PARAMS, str(error))
        case _:
            return RequestError(INTERNAL_ERROR, str(error))


def _has_model(name: str | None) -> bool:
    try:
        find_model(name, config.load_config())
    except SessionTreeError:
        return False
    return True


def _build_auth_method() -> JsonObject:
    keys = ", ".join(provider.keys[0] for provider in PROVIDERS.values())
    text = f"Set one of these environment variables for the agent in the settings of the editor, and restart it: {keys}"
    return {"id": KEY_METHOD, "name": "API key of a model provider", "description": text}


def _check_absolute(path: str) -> str:
    if not os.path.isabs(path) or "\0" in path:
        raise InvalidOperation(f"the folder {path!r} is not an absolute path")
    return path


def _check_folder(path: str) -> str:
    if not os.path.isdir(_check_absolute(path)):
        raise InvalidOperation(f"the folder {path!r} does not exist")
    return os.path.normpath(path)


def _locate_session(id: str, *, missing_ok: bool = False) -> str | None:
    """Return the location of a session by its id. Names, paths and parts of ids do not count. Raises `NotFound`."""
    error = NotFound("session", id)
    if id and not any(mark in id for mark in "/\\#\0"):
        try:
            location = catalog.find(id)
            with catalog.open(location, read_only=True) as session:
                if session.id == id:
                    return location
        except Ambiguous as ambiguous:
            raise ambiguous
        except NotFound as missing:
            error = missing
    if missing_ok:
        return None
    raise error


def _find_session(id: str) -> Session:
    location = _locate_session(id)
    assert location is not None
    return catalog.open(location)
