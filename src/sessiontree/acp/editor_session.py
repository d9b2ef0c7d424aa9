"""A session that an editor has open: its controller, its turns, and the updates to the editor.

The session is an ordinary one. Other programs may write to it at the same time; their entries appear in the editor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias
from uuid import uuid4

from msgspec import Struct

from sessiontree.acp.draft_transport import PROMPT_STARTED
from sessiontree.acp.editor_client import EditorClient, EditorError, McpServerRequest, convert_server
from sessiontree.acp.editor_tools import route_tools
from sessiontree.acp.prompt_content import ContentBlock, PromptContent, attach, read_prompt
from sessiontree.acp.session_options import SessionOptions
from sessiontree.acp.session_updates import ConversationUpdates, UpdateStream, build_notice
from sessiontree.acp.tool_call_display import MAX_OUTPUT_CHARS, build_detail_content, describe_call, quote_output
from sessiontree.agent.factory import load_agent_options
from sessiontree.agent.loop import Outcome
from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion, Scope
from sessiontree.agent.tool import Tool
from sessiontree.agent.tools import builtin_tools
from sessiontree.agent.tools.todo_tool import todo
from sessiontree.config import Config, PermissionMode
from sessiontree.core.entries import EntryId
from sessiontree.core.messages import ToolCall
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.extensions.loader import ExtensionLoader
from sessiontree.hooks.events import Event
from sessiontree.hooks.ui_protocol import Level, NoUi
from sessiontree.library.other_processes import PresenceLock, is_session_open, read_change_mark
from sessiontree.model.selection import NoModel
from sessiontree.session import Branch, Session
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.host import HeadlessHost
from sessiontree.slash_commands.models import choose_model
from sessiontree.slash_commands.plan_mode import APPROVE, APPROVE_EDITS, KEEP, LEAVE
from sessiontree.slash_commands.registry import CommandRegistry, get_builtin_commands, parse_line

REFRESH_SECONDS = 1.0
"""Interval between checks for writes by other programs."""
EDITOR_COMMANDS = frozenset({"new", "resume", "fork", "branch", "clone", "copy", "quit"})
"""Commands that an editor has itself. They would leave the session that the editor shows."""
OPTION_NAMES: dict[Scope, tuple[str, str]] = {
    "once": ("allow_once", "Allow once"),
    "session": ("allow_always", "Allow {rule} in this session"),
    "always": ("allow_always", "Always allow {rule} in this folder"),
    "no": ("reject_once", "Reject"),
}
"""The kind and the label of each answer to a permission question."""
PLAN_ANSWERS = {
    APPROVE: "allow_once",
    APPROVE_EDITS: "allow_always",
    KEEP: "reject_once",
    LEAVE: "reject_always",
}
"""The kind of each answer to the question about a plan."""
PLAN_REVIEW = PromptContent(line="/plan", attachments="", images=[])

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "cancelled"]


class EditorOptions(Struct, frozen=True, kw_only=True):
    """Options for all sessions of an editor."""

    model: str | None = None
    permission_mode: PermissionMode | None = None
    allow: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    offers_v2: bool = False
    """Whether clients may use version 2 of the protocol, which is a draft."""


class EditorSession:
    """One open session."""

    def __init__(
        self, session: Session, editor: EditorClient, cwd: str, settings: Config, options: EditorOptions, *, fresh: bool
    ) -> None:
        self.session = session
        self._editor = editor
        self._stream = UpdateStream(editor.send_update)
        self._updates = ConversationUpdates(self._get_tools, lambda: self.controller.cwd)
        self._presence = PresenceLock(session)
        self._requested_model = options.model
        self._offers_v2 = options.offers_v2
        agent_options = load_agent_options(
            settings,
            tools=(*route_tools(builtin_tools(), editor, self._show_terminal), todo),
            mode=options.permission_mode,
            allow=options.allow,
            asker=self._ask_permission,
            cwd=cwd,
        )
        self._host = _EditorHost()
        self.controller = SessionController(
            session,
            commands=CommandRegistry(one for one in get_builtin_commands() if one.name not in EDITOR_COMMANDS),
            options=agent_options,
            ui=_EditorUi(self._stream),
            host=self._host,
            fresh=fresh,
        )
        self.controller.hooks.listen(self._show_event)
        self.controller.plan_mode.select_answer = self._select_plan_answer
        self._loader = ExtensionLoader(self.controller, options.extensions)
        self.options = SessionOptions(self.controller)
        self._is_busy = False
        self._is_cancelled = False
        self._plan_question: asyncio.Task[str | None] | None = None
        self._mark = read_change_mark(session)
        self._shown: EntryId | None = None
        """The last entry of the branch that the editor knows."""
        self._watching: asyncio.Task[None] | None = None

    # Opening and closing

    async def start(self, *, needs_model: bool) -> None:
        """Find the model and load extensions. Raises `NoModel` if a model is needed and there is none."""
        controller = self.controller
        try:
            await self._find_model()
        except NoModel as error:
            controller.no_model_message = str(error)
            if needs_model:
                raise
        await self._loader.load()
        if self._loader.failed_files:
            # The failed extension may be the one that restricts the agent, so do not run without it.
            raise InvalidOperation(f"{', '.join(self._loader.failed_files)}: the extension failed to load")
        await controller.start()
        await self.options.load_models()
        self._shown = controller.branch.leaf
        self._watching = asyncio.create_task(self._watch())

    def add_servers(self, servers: Sequence[McpServerRequest]) -> None:
        """Let the agent use MCP servers of the editor. One that cannot be used is reported."""
        pool = self.controller.options.mcp
        for server in servers:
            try:
                if pool is not None:
                    pool.add(convert_server(server))
            except InvalidOperation as error:
                text = f"Warning: the MCP server {escape_line(server.name)} of the editor is not used: {error}"
                self._stream.put([build_notice(text)])

    async def _find_model(self) -> None:
        """Find the requested model, the one of the session, or the default. Raises `NoModel`."""
        controller = self.controller
        model, warning = await asyncio.to_thread(
            choose_model, controller.models, self._requested_model, controller.branch.state
        )
        await controller.set_model(model)
        if warning is not None:
            self._stream.put([build_notice(f"Warning: {warning}")])
        if not controller.session.tree.has_real_entries:
            controller.agent.thinking = controller.settings.thinking

    async def close(self) -> None:
        """Abort everything, write the results, and close the session. An empty new session is deleted."""
        if self._watching is not None:
            self._watching.cancel()
        try:
            await self.controller.close()
        finally:
            self._loader.unload()
            await self._stream.close()
            self._presence.release()
            await self.controller.drop_unused()

    async def replay(self) -> None:
        """Send the conversation on the current branch to the editor."""
        self._stream.open()
        self._stream.put(self._updates.replay(self.controller.branch.path()))
        self._shown = self.controller.branch.leaf
        await self._stream.flush()

    def announce(self) -> None:
        """Send the commands and the title, after the answer to the request that opened the session."""
        self._stream.open()
        self._stream.put(self.options.list_changes())

    # Turns

    async def prompt(self, blocks: Sequence[ContentBlock]) -> StopReason:
        """Run a prompt or a slash command, and return why it stopped. Raises `SessionTreeError`."""
        if self._is_busy:
            raise InvalidOperation("a prompt is already running in this session; wait for its end, or cancel it")
        self._is_busy, self._is_cancelled = True, False
        try:
            content = read_prompt(blocks)
            await self._show_others()
            if self._offers_v2:
                self._stream.put([{"sessionUpdate": PROMPT_STARTED}])
            outcome = None if self._is_cancelled else await self._run(content)
            if self._has_plan(outcome):
                outcome = await self._run(PLAN_REVIEW) or outcome
            while not self._is_cancelled and (more := await self.controller.wait_for_triggered_run()) is not None:
                outcome = more
            return self._get_stop_reason(outcome)
        except InvalidOperation:
            if self._is_cancelled:  # a cancelled operation may end with an error
                return "cancelled"
            raise
        finally:
            self._is_busy = False
            self._shown, self._mark = self.controller.branch.leaf, read_change_mark(self.session)
            self._stream.put(self.options.list_changes())
            await self._stream.flush()

    def cancel(self) -> None:
        """Cancel the prompt that is running. Partial results are written."""
        if self._is_busy:
            self._is_cancelled = True
            self.controller.abort()
            if self._plan_question is not None:
                self._plan_question.cancel()

    async def _run(self, content: PromptContent) -> Outcome | None:
        if parse_line(content.line) is None:
            if not self.controller.has_agent:
                await self._find_model()
            return await self.controller.send_prompt(content.text, content.images)
        self._host.editor = ""
        try:
            done = await self.controller.commands.run(self.controller, content.line)
        except NoModel:
            raise
        except SessionTreeError as error:
            self._show_text(str(error))
            return None
        self._show_text(done.text)
        if self._host.editor:
            self._show_text(f"The message at this place:\n\n{self._host.editor}")
        if done.prompt is not None:
            return await self.controller.send_prompt(attach(done.prompt, content.attachments), content.images)
        return await self.controller.answer() if done.answer else None

    def _get_stop_reason(self, outcome: Outcome | None) -> StopReason:
        if self._is_cancelled or (outcome is not None and outcome.aborted):
            return "cancelled"
        if outcome is None:
            return "end_turn"
        if outcome.error is not None:
            raise outcome.error
        if outcome.cancelled:
            self._show_text(outcome.stop_text)
        return "max_tokens" if outcome.cut_off else "end_turn"

    # The editor

    def _get_tools(self) -> Mapping[str, Tool]:
        """Return the tools of the agent and of its MCP servers."""
        if self.controller.has_agent:
            return self.controller.agent.tools
        return {tool.name: tool for tool in self.controller.tools}

    def _show_event(self, event: Event) -> None:
        self._stream.put(list(self._updates.show_event(event)))

    def _show_text(self, text: str) -> None:
        """Show the output of a command. Tables and trees keep their form."""
        if text:
            self._stream.put([build_notice(quote_output(text) if "\n" in text else text)])

    def _show_terminal(self, call: ToolCall, terminal: str) -> None:
        content = [{"type": "terminal", "terminalId": terminal}]
        id = self._updates.get_call_id(call)
        self._stream.put([{"sessionUpdate": "tool_call_update", "toolCallId": id, "content": content}])

    async def _ask_permission(self, question: PermissionQuestion) -> PermissionAnswer | None:
        tool = self._get_tools().get(question.tool)
        detail = build_detail_content(question.detail)
        if detail is None:
            reason = f"the arguments are longer than the {MAX_OUTPUT_CHARS >> 10} KiB that the editor can show"
            return PermissionAnswer(scope="no", reason=reason)
        fields = describe_call(question.call, tool, self.controller.cwd, is_new=True)
        call = {
            "toolCallId": self._updates.get_call_id(question.call),
            "status": "pending",
            **fields,
            "content": [*fields.get("content", ()), *detail],
        }
        options = [
            {"optionId": scope, "kind": kind, "name": label.format(rule=question.rule)}
            for scope, (kind, label) in ((scope, OPTION_NAMES[scope]) for scope in question.scopes)
        ]
        await self._stream.flush()  # the editor must know the call
        try:
            chosen = await self._editor.ask_permission(call, options)
        except EditorError:
            return None
        scopes: dict[str, Scope] = {scope: scope for scope in question.scopes}
        scope = scopes.get(chosen or "")
        return None if scope is None else PermissionAnswer(scope=scope)

    # Plans

    def _has_plan(self, outcome: Outcome | None) -> bool:
        """Return whether an answer in plan mode is complete, so that the user can approve the plan."""
        is_complete = outcome is not None and outcome.ok and not self._is_cancelled
        return is_complete and self.controller.plan_mode.is_active

    async def _select_plan_answer(self, question: str, answers: Sequence[str]) -> str | None:
        """Ask about the plan like about a tool call that leaves plan mode: the protocol has no other questions."""
        call = {"toolCallId": uuid4().hex, "title": question, "kind": "switch_mode", "status": "pending"}
        options = [{"optionId": answer, "kind": PLAN_ANSWERS[answer], "name": answer} for answer in answers]
        self._stream.put([{"sessionUpdate": "tool_call", **call}])
        await self._stream.flush()
        self._plan_question = asyncio.create_task(self._editor.ask_permission(call, options))
        try:
            await asyncio.wait([self._plan_question])
            chosen = None if self._plan_question.cancelled() else self._plan_question.result()
        except EditorError:
            chosen = None
        finally:
            self._plan_question.cancel()
            self._plan_question = None
        answer = chosen if chosen in answers else None
        shown = {"type": "content", "content": {"type": "text", "text": answer or KEEP}}
        done = {"toolCallId": call["toolCallId"], "status": "completed", "content": [shown]}
        self._stream.put([{"sessionUpdate": "tool_call_update", **done}])
        return answer

    # Other programs

    async def _watch(self) -> None:
        """Show what other programs write, until the session closes."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            if not self._is_busy and not self.controller.is_running:
                with suppress(SessionTreeError, OSError):  # the next prompt reports it
                    await self._show_others()

    async def _show_others(self) -> None:
        """Read what other programs wrote, and send it to the editor. Raises `SessionTreeError`."""
        mark = await asyncio.to_thread(read_change_mark, self.session)
        if mark == self._mark:
            return
        self._mark = mark
        await asyncio.to_thread(self.session.refresh)
        branch = self.controller.branch
        if branch.leaf == self._shown:
            self._stream.put(self.options.list_changes())
            return
        path = branch.path()
        ids = [entry.id for entry in path]
        if self._shown is None or self._shown in ids:
            new = path if self._shown is None else path[ids.index(self._shown) + 1 :]
            self._stream.put(self._updates.replay(new))
        else:
            text = f"Another program moved branch {branch.name} to another place in the tree. The conversation there:"
            self._stream.put([build_notice(text), *self._updates.replay(path)])
        self._shown = branch.leaf
        self._stream.put(self.options.list_changes())


class _EditorUi(NoUi):
    """Shows notifications as messages. The protocol has no other questions than permissions."""

    def __init__(self, stream: UpdateStream) -> None:
        super().__init__()
        self._stream = stream

    def notify(self, text: str, level: Level = "info") -> None:
        self._stream.put([build_notice(text if level == "info" else f"{level.capitalize()}: {text}")])


class _EditorHost(HeadlessHost):
    """Keeps the controller in its session: the editor opens sessions itself."""

    async def choose_branch(self, session: Session) -> Branch | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None

    def is_open_elsewhere(self, place: str) -> bool:
        return is_session_open(place)
