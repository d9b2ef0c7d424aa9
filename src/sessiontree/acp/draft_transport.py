"""Version 2 of the protocol, which is a draft, as messages of version 1.

The agent speaks version 1. If a client starts with version 2, this transport translates every message in both
directions; otherwise it passes them on. Only `sessiontree acp --v2` uses it.
"""

from __future__ import annotations

from difflib import unified_diff
from typing import Any, NamedTuple
from uuid import uuid4

from sessiontree.acp.stdio_transport import StdioTransport
from sessiontree.core.entries import JsonObject
from sessiontree.core.messages import is_list, is_object

VERSION = 2
PROMPT_STARTED = "_prompt_started"
"""The update that says that a prompt was valid, and its messages follow. It is not sent to the client."""
PLAN = "steps"
"""The id of the plan. The agent has one in a session."""
METHODS = {"auth/login": "authenticate"}
REMOVED_METHODS = frozenset({"authenticate", "logout", "session/load", "session/set_mode"})
CANCELLED, METHOD_NOT_FOUND = -32800, -32601


class _DraftPrompt(NamedTuple):
    """A prompt that has no result yet."""

    request: Any
    """The id of the request."""
    content: Any
    is_started: bool


class DraftTransport:
    """Sends and receives messages of version 1, for a client of version 1 or 2."""

    def __init__(self, transport: StdioTransport) -> None:
        self._transport = transport
        self._is_draft = False
        self._methods: dict[Any, tuple[str, str]] = {}
        """Method and session of the requests of the client, by id."""
        self._questions: dict[Any, str] = {}
        """The sessions of the permission questions to the client, by the id of the request."""
        self._prompts: dict[str, _DraftPrompt] = {}
        """The running prompts, by session."""
        self._closed: dict[str, JsonObject] = {}
        """Answers to `session/close` that wait until the prompt of their session has ended."""

    def stop(self) -> None:
        self._transport.stop()

    async def close(self) -> None:
        await self._transport.close()

    # From the client

    async def receive(self) -> dict[str, Any] | None:
        while (message := await self._transport.receive()) is not None:
            if message.get("method") == "initialize":
                self._is_draft = _asks_for_draft(message.get("params"))
            if not self._is_draft:
                return message
            answers: list[JsonObject] = []
            translated = self._read_message(message, answers)
            if answers:
                await self._transport.send_all(answers)
            if translated is not None:
                return translated
        return None

    def _read_message(self, message: JsonObject, answers: list[JsonObject]) -> JsonObject | None:
        """Return a message as version 1, or `None` if it was answered here."""
        method, id = message.get("method"), message.get("id")
        if not isinstance(method, str):
            return self._read_answer(message, answers)
        if method in REMOVED_METHODS:
            if id is not None:
                error = {"code": METHOD_NOT_FOUND, "message": f"method {method} not found"}
                answers.append({"jsonrpc": "2.0", "id": id, "error": error})
            return None
        if method == "auth/logout":  # offered only if there are no keys
            answers.append({"jsonrpc": "2.0", "id": id, "result": {}})
            return None
        given = message.get("params")
        params = given if is_object(given) else {}
        if id is not None:
            session = str(params.get("sessionId"))
            self._methods[id] = method, session
            if method == "session/prompt" and session not in self._prompts:
                self._prompts[session] = _DraftPrompt(id, params.get("prompt"), False)
        return {**message, **_read_request(method, params)}

    def _read_answer(self, message: JsonObject, answers: list[JsonObject]) -> JsonObject:
        """Return the answer to a permission question."""
        session = self._questions.pop(message.get("id"), None)
        if session in self._prompts and session not in self._questions.values():
            answers.append(_build_update(session, _build_state("running")))
        result = message.get("result")
        outcome = result.get("outcome") if is_object(result) else None
        if "result" in message and not (is_object(outcome) and outcome.get("outcome") == "selected"):
            return {**message, "result": {"outcome": {"outcome": "cancelled"}}}
        return message

    # To the client

    async def send(self, message: dict[str, Any]) -> None:
        if self._is_draft:
            written = self._write_message(message)
        else:
            written = [] if _is_prompt_start(message.get("params")) else [message]
        if written:
            await self._transport.send_all(written)

    def _write_message(self, message: JsonObject) -> list[JsonObject]:
        """Return a message of version 1 as messages of version 2."""
        method, params = message.get("method"), message.get("params")
        if method == "session/update" and is_object(params):
            return self._write_update(params["sessionId"], params["update"])
        if method == "session/request_permission" and is_object(params):
            session = params["sessionId"]
            self._questions[message["id"]] = session
            waiting = _build_update(session, _build_state("requires_action"))
            return [waiting, {**message, "params": _write_question(params)}]
        if method is not None:
            return [message]
        asked, session = self._methods.pop(message.get("id"), ("", ""))
        prompt = self._prompts.get(session)
        if asked == "session/prompt" and prompt is not None and prompt.request == message["id"]:
            return self._end_prompt(session, prompt, message)
        if "result" not in message:
            return [message]
        result = _write_result(asked, message["result"])
        answer = {**message, "result": result}
        if asked == "session/resume":
            state = "idle" if prompt is None else "running"
            return [_build_update(session, _build_state(state)), answer]
        if asked == "session/close" and prompt is not None:
            self._closed[session] = answer
            return []
        return [answer]

    def _write_update(self, session: str, update: JsonObject) -> list[JsonObject]:
        prompt = self._prompts.get(session)
        if update["sessionUpdate"] == PROMPT_STARTED:
            if prompt is None:
                return []
            self._prompts[session] = prompt._replace(is_started=True)
            id = uuid4().hex
            return [
                _build_update(session, _build_state("running")),
                _build_update(
                    session, {"sessionUpdate": "user_message", "messageId": id, "content": prompt.content}
                ),
                {"jsonrpc": "2.0", "id": prompt.request, "result": {"messageId": id}},
            ]  # fmt: skip
        translated = convert_update(update)
        return [] if translated is None else [_build_update(session, translated)]

    def _end_prompt(self, session: str, prompt: _DraftPrompt, message: JsonObject) -> list[JsonObject]:
        """Return the result of a prompt: a new state of the session, or an error if the prompt never started."""
        del self._prompts[session]
        closed = [self._closed.pop(session)] if session in self._closed else []
        error = message.get("error")
        if prompt.is_started:
            reason = {"stopReason": "error", "error": error} if error else message["result"]
            return [_build_update(session, _build_state("idle", reason)), *closed]
        error = error or {"code": CANCELLED, "message": "the prompt was cancelled before it started"}
        return [{"jsonrpc": "2.0", "id": prompt.request, "error": error}, *closed]


def _asks_for_draft(params: object) -> bool:
    version = params.get("protocolVersion") if is_object(params) else None
    return isinstance(version, int) and version >= VERSION


def _is_prompt_start(params: object) -> bool:
    update = params.get("update") if is_object(params) else None
    return is_object(update) and update.get("sessionUpdate") == PROMPT_STARTED


def _build_update(session: str, update: JsonObject) -> JsonObject:
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}


def _build_state(state: str, reason: JsonObject | None = None) -> JsonObject:
    return {"sessionUpdate": "state_update", "state": state, **(reason or {})}


# Requests of the client


def _read_request(method: str, params: JsonObject) -> JsonObject:
    """Return the method and the parameters as version 1."""
    if method == "initialize":  # clients of version 2 have neither files nor terminals for agents
        params = {"protocolVersion": 1, "clientInfo": params.get("info")}
    servers = params.get("mcpServers")
    if is_list(servers):
        params = {**params, "mcpServers": [_read_server(server) for server in servers]}
    if method == "session/resume":
        start = params.get("replayFrom")
        if is_object(start) and start.get("type") == "start":
            method, params = "session/load", {"mcpServers": [], **params}
    elif method == "session/new":
        params = {"mcpServers": [], **params}
    return {"method": METHODS.get(method, method), "params": params}


def _read_server(server: object) -> object:
    """Return an MCP server with the fields that version 1 requires."""
    if not is_object(server):
        return server
    if server.get("type") == "stdio":
        return {"args": [], "env": [], **{key: value for key, value in server.items() if key != "type"}}
    return {"headers": [], **server}


# Results and updates of the agent


def _write_result(method: str, result: JsonObject) -> JsonObject:
    if method == "initialize":
        return _write_capabilities(result)
    written = {key: value for key, value in result.items() if key != "modes"}
    if "configOptions" in written:
        written["configOptions"] = [_write_option(option) for option in written["configOptions"]]
    return written


def _write_capabilities(result: JsonObject) -> JsonObject:
    offered = result["agentCapabilities"]
    session: JsonObject = {
        "prompt": {name: {} for name, is_offered in offered["promptCapabilities"].items() if is_offered},
        "mcp": {"stdio": {}, **({"http": {}} if offered["mcpCapabilities"]["http"] else {})},
        **{name: {} for name in offered["sessionCapabilities"] if name in ("delete", "fork")},
    }
    methods = [
        {"type": "agent", "methodId": method["id"], "name": method["name"], "description": method["description"]}
        for method in result["authMethods"]
    ]
    return {
        "protocolVersion": VERSION,
        "info": result["agentInfo"],
        "capabilities": {"session": session},
        **({"authMethods": methods} if methods else {}),
    }


def _write_option(option: JsonObject) -> JsonObject:
    return {"configId": option["id"], **{key: value for key, value in option.items() if key != "id"}}


def _write_question(params: JsonObject) -> JsonObject:
    call = _write_call(params["toolCall"])
    subject = {"type": "tool_call", "toolCall": call}
    return {
        **{key: value for key, value in params.items() if key != "toolCall"},
        "title": call["title"],
        "subject": subject,
    }


def convert_update(update: JsonObject) -> JsonObject | None:
    """Return an update as version 2, or `None` if that version has no such update."""
    match update["sessionUpdate"]:
        case "tool_call" | "tool_call_update":
            return {**_write_call(update), "sessionUpdate": "tool_call_update"}
        case "plan":
            plan = {"type": "items", "planId": PLAN, "entries": update["entries"]}
            return {"sessionUpdate": "plan_update", "plan": plan}
        case "current_mode_update":  # the mode is one of the options
            return None
        case "config_option_update":
            return {**update, "configOptions": [_write_option(option) for option in update["configOptions"]]}
        case "available_commands_update":
            return {**update, "availableCommands": [_write_command(each) for each in update["availableCommands"]]}
        case _:
            return update


def _write_command(command: JsonObject) -> JsonObject:
    taken = {"input": {"type": "text", **command["input"]}} if "input" in command else {}
    return {"type": "command", **command, **taken}


def _write_call(call: JsonObject) -> JsonObject:
    if "content" not in call:
        return call
    content = [_write_diff(item) if item["type"] == "diff" else item for item in call["content"]]
    return {**call, "content": content}


def _write_diff(diff: JsonObject) -> JsonObject:
    """Return a diff as a change with a patch. Its lines are counted from the start of the text that is replaced."""
    path, old = diff["path"], diff.get("oldText")
    before, after = _split_lines(old or ""), _split_lines(diff["newText"])
    lines = unified_diff(before, after, "/dev/null" if old is None else path, path)
    head = [f"diff --git {path} {path}\n", *(["new file mode 100644\n"] if old is None else [])]
    patch = {"format": "git_patch", "text": "".join([*head, *lines])}
    change = {"operation": "add" if old is None else "modify", "path": path, "fileType": "text"}
    return {"type": "diff", "changes": [change], "patch": patch}


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text. One without a newline at its end has the note of git."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n\\ No newline at end of file\n"
    return lines
