"""The chat screen: transcript, status line, question panel, editor and footer.

It shows the events of a controller and submits user input to it. The app opens sessions, dialogs and the tree.
"""

from __future__ import annotations

import os
import threading
import time
from asyncio import AbstractEventLoop, Lock, get_running_loop, to_thread
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.timer import Timer

from sessiontree.agent.tools.todo_tool import TodoItem, read_items, todo
from sessiontree.core.entries import Entry, Message
from sessiontree.errors import ReadOnly, SessionTreeError
from sessiontree.hooks import events as hook_events
from sessiontree.hooks.events import Event
from sessiontree.library.catalog import check_copyable
from sessiontree.slash_commands.registry import LEVELS, is_prompt_line
from sessiontree.tui.keys import format_hints
from sessiontree.tui.services.input import (
    Completer,
    DraftFile,
    EditorDraft,
    History,
    read_mentioned_images,
    to_history_item,
)
from sessiontree.tui.services.terminal import edit_externally
from sessiontree.tui.widgets.block_rendering import BlockRenderer
from sessiontree.tui.widgets.controls import QueueLines, StatusLine, TodoLines
from sessiontree.tui.widgets.editor import CHAT_BINDINGS, CompletionPopup, Editor
from sessiontree.tui.widgets.footer import Footer, UsageCounter, build_footer_state
from sessiontree.tui.widgets.permission_panel import PermissionPanel
from sessiontree.tui.widgets.transcript import Transcript
from sessiontree.tui.widgets.transcript_blocks import BlockBuilder, BlockKind, TranscriptBlock

if TYPE_CHECKING:
    from sessiontree.agent.agent import Agent
    from sessiontree.session import Session
    from sessiontree.slash_commands.controller import SessionController
    from sessiontree.tui.app import SessionApp  # cycle: the app creates it, and it calls the app

MAX_TODO_ENTRIES = 200
"""How many of the last entries are searched for the list of the agent."""
LONG_RUN_SECONDS = 10.0
"""A run of at least this length ends with a notification, if the terminal is not focused."""
PAGE_ENTRIES = 60
"""Number of entries shown at first, and loaded each time the user scrolls to the top."""
DOUBLE_PRESS_SECONDS = 0.5
"""Maximum time between two presses of a key that count as a double press."""
QUIT_SECONDS = 2.0
"""The same for the key that quits. The hint is shown as long."""
DRAFT_SECONDS = 0.3
"""Delay between a change in the editor and saving the draft."""
DELTA_BLOCKS: dict[str, BlockKind] = {"text": "answer", "thinking": "thought", "tool_call": "tool"}
"""The kind of block for each kind of streamed text."""
MAX_OUTPUT_LINES = 40
"""Longer output of a command opens in a dialog instead of the transcript."""


class ChatScreen(Screen[None]):
    DEFAULT_CSS = """
    ChatScreen { background: $background; layers: base; }
    ChatScreen.-asking TodoLines { display: none; }
    """
    AUTO_FOCUS = "Editor"
    BINDINGS: ClassVar[list[BindingType]] = CHAT_BINDINGS

    if TYPE_CHECKING:

        @property
        def app(self) -> SessionApp: ...

    def __init__(self) -> None:
        super().__init__()
        self.controller: SessionController | None = None
        self.block_builder = BlockBuilder()
        self._popup = CompletionPopup()
        self.editor = Editor(self._popup, id="editor")
        self.transcript = Transcript(id="transcript")
        self.permission = PermissionPanel()
        self.footer = Footer()
        self.history = History()
        self._draft_file: DraftFile | None = None
        """Draft of the current session."""
        self.status_line = StatusLine()
        self._queue_lines = QueueLines()
        self._todo_lines = TodoLines()
        self._usage = UsageCounter(self, self.update_footer)
        self._earlier_ids: list[str] = []
        """Ids of the entries on the path that are not loaded into the transcript yet."""
        self._shell_blocks: list[TranscriptBlock] = []
        """Blocks of shell commands whose output is not written to the session yet."""
        self._draft_timer: Timer | None = None
        self._prompt_lock = Lock()
        """Keeps prompts in order while the images of one are being read."""
        self._last_error = ""
        """The last error shown since the last user action."""
        self._last_escape = 0.0
        self._last_quit_request = 0.0
        self._run_started_at = 0.0
        self._unwritten_prompt = ""
        """The last prompt, until it is written to the session."""
        self._ui_thread = 0
        self._event_loop: AbstractEventLoop | None = None

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield self._todo_lines
        yield self.status_line
        yield self._queue_lines
        yield self.permission
        yield self._popup
        yield self.editor
        yield self.footer

    def on_mount(self) -> None:
        self._ui_thread, self._event_loop = threading.get_ident(), get_running_loop()
        self.apply_settings()
        self.status_line.hint = format_hints(self, ("abort", "to abort"))
        self._queue_lines.hint = format_hints(self, ("take_back", "to edit"))

    def apply_settings(self) -> None:
        self.editor.use_vi_keys(self.app.options.settings.app.vi_keys)
        self.transcript.set_renderer(
            BlockRenderer(self.app.transcript_styles, unfold_hint=format_hints(self, ("unfold", "to expand")))
        )

    # Session

    def attach(self, controller: SessionController) -> None:
        """Show the session of this controller and listen to its events."""
        self.controller = controller
        controller.hooks.listen(self.handle_event)
        self.editor.completer = Completer(controller)
        self.reload()

    def reload(self) -> None:
        """Rebuild the transcript from the current branch. If the session changed, load its draft too."""
        controller = self.controller
        if controller is None:
            return
        is_new_session = self._draft_file is None or self._draft_file.session is not controller.session
        if self._draft_file is not None and is_new_session:
            self.save_draft()
            self.editor.clear_text()
        if is_new_session or not controller.is_running:
            self.transcript.streaming = []
        if is_new_session:
            self._shell_blocks = []
        path = controller.branch.path()
        shown = path[-PAGE_ENTRIES:]
        self._earlier_ids = [entry.id for entry in path[:-PAGE_ENTRIES]]
        self.block_builder = BlockBuilder(self.app.renderers)
        unwritten = [*self.transcript.streaming, *self._shell_blocks]
        self._todo_lines.show_items(find_todo_items(reversed(path[-MAX_TODO_ENTRIES:])) or [])
        self.transcript.show_blocks([*self.block_builder.build_all(shown), *unwritten], earlier=len(path) - len(shown))
        if not shown and not unwritten:
            self.transcript.append(TranscriptBlock("note", text=self._format_welcome()))
        own = [to_history_item(block.text) for block in self.transcript.blocks if block.kind == "user"]
        self.editor.set_history([*self.history.items, *own])
        if is_new_session:
            # If another process has the session open, keep a separate draft.
            self._draft_file = DraftFile(controller.session, second=not self.app.is_alone)
            if not self.editor.text and not (draft := self._draft_file.read()).is_empty:
                self.editor.restore_draft(draft)
            if self._queue_lines.prompts:  # saved in the draft of the previous session
                self._show_queue(())
            self.app.check_session(controller.session)
        self.update_footer()

    def _format_welcome(self) -> str:
        if self.controller is not None and self.controller.session.tree.has_real_entries:
            return "Start of the session. Your next message starts a new path; /undo returns to the old one."
        hints = ["New session. Type a message", "/help for commands", format_hints(self, ("hotkeys", "for keys"))]
        return " · ".join(filter(None, hints))

    def update_footer(self) -> None:
        if self.controller is not None:
            self._usage.update(self.controller.branch)
            self.footer.show_state(build_footer_state(self.controller, self._usage.count))
            self.app.update_title()

    def on_transcript_earlier_requested(self) -> None:
        if self.controller is None or not self._earlier_ids:
            return
        tree = self.controller.session.tree
        more = [tree[id] for id in self._earlier_ids[-PAGE_ENTRIES:]]
        self._earlier_ids = self._earlier_ids[: -len(more)]
        self.transcript.prepend(BlockBuilder(self.app.renderers).build_all(more), earlier=len(self._earlier_ids))

    def on_transcript_browsing_ended(self) -> None:
        self.editor.focus()

    # Input

    def on_editor_submitted(self, event: Editor.Submitted) -> None:
        text = event.text
        self.reset_error()
        self.history.add(to_history_item(text) if event.is_prompt else text)
        self.editor.set_history([*self.history.items])
        self.transcript.scroll_to_end()
        if event.is_prompt:
            self._unwritten_prompt = text
        self.save_draft()
        self.run_worker(
            self._submit(text, is_prompt=event.is_prompt, is_follow_up=event.is_follow_up),
            group="submit",
            exit_on_error=False,
        )

    async def _submit(self, text: str, *, is_prompt: bool, is_follow_up: bool) -> None:
        await self.app.ready.wait()
        try:
            if is_prompt:
                await self._send_prompt(text, is_follow_up=is_follow_up)
            elif text.startswith("!"):
                await self._run_shell(text)
            else:
                await self.run_command(text)
        except (SessionTreeError, OSError) as error:
            self.show_error(error)
            self._restore_input(text, is_prompt=is_prompt)
        except Exception as error:  # noqa: BLE001 - a bug must not lose the input
            self.show_error(f"internal error: {type(error).__name__}: {error}")
            self._restore_input(text, is_prompt=is_prompt)
        finally:
            if self._unwritten_prompt == text:
                self._unwritten_prompt = ""
            self.save_draft()
            self.update_footer()

    async def _send_prompt(self, text: str, *, is_follow_up: bool) -> None:
        controller = self.controller
        assert controller is not None
        async with self._prompt_lock:
            await self.app.model_found.wait()
            images = await to_thread(read_mentioned_images, text, controller.cwd) if "@" in text else []
        if images and controller.model is not None and not controller.model.info.images:
            self.app.ui.notify(f"{controller.model.info.model} takes no images; it gets a note instead", "warning")
        if controller.is_running:
            agent, self._unwritten_prompt = controller.agent, ""
            await (agent.follow_up(text, images) if is_follow_up else agent.steer(text, images))
            await self._send_queued(agent)
            return
        outcome = await controller.send_prompt(text, images)
        if outcome.cancelled:
            if not outcome.aborted:
                self.show_output("A hook cancelled the message.")
            self._restore_input(text, is_prompt=True)

    async def run_command(self, line: str) -> None:
        """Run a command, after asking for missing arguments."""
        controller = self.controller
        assert controller is not None
        self.reset_error()
        self.permission.note_command()
        completed = await self.app.complete_command(line)
        if completed is None:
            return
        try:
            submitted = await controller.submit(completed)
        except Exception:
            if not controller.is_running:  # the queue was for the place that the command should have gone to
                self.action_take_back()
            raise
        finally:
            self._show_idle_activity()
        if submitted.text:
            self.show_output(submitted.text)

    async def _run_shell(self, line: str) -> None:
        controller = self.controller
        assert controller is not None
        block = TranscriptBlock("tool", head=f"! {line.lstrip('!').strip()}", state="live", shows_tail=True)
        self._shell_blocks.append(block)
        self.transcript.append(block)
        await self.app.model_found.wait()
        self._show_idle_activity()
        try:
            submitted = await controller.submit(line)
        except Exception:
            self._finish_shell_block(block, [])
            raise
        else:
            if block in self._shell_blocks:  # its output is written when the turn ends
                block.text, block.state = submitted.text, "done"
                self.transcript.update_block(block)
        finally:
            self._show_idle_activity()

    def _show_idle_activity(self) -> None:
        """Show running shell commands, unless an agent is running and shows its own activity."""
        if self.controller is not None and not self.controller.is_running:
            self.show_activity(self._shell_activity)

    def _find_shell_block(self, command: object) -> TranscriptBlock | None:
        return next((block for block in self._shell_blocks if block.head == f"! {command}"), None)

    def _finish_shell_block(self, command: TranscriptBlock, blocks: list[TranscriptBlock]) -> None:
        """Replace the block of a running command with the blocks of its written entry."""
        self._shell_blocks = [block for block in self._shell_blocks if block is not command]
        self.transcript.replace_blocks([command], blocks)

    @property
    def _shell_activity(self) -> str:
        """Activity label of running shell commands."""
        return "running" if any(block.state == "live" for block in self._shell_blocks) else ""

    def _restore_input(self, text: str, *, is_prompt: bool) -> None:
        """Put failed input back into the editor, selected, so that typing a command replaces it."""
        if self.editor.text:
            return
        if is_prompt:
            self.editor.set_prompts([text])
            self.editor.select_all()
        else:
            self.editor.set_selected_text(text)

    def edit_message(self, text: str) -> None:
        """Put a message into the editor. The previous draft is added to the history."""
        editor = self.editor
        draft = editor.full_text.strip("\n")
        if draft.strip() and draft != text:
            self.history.add(to_history_item(draft) if is_prompt_line(editor.text.strip("\n")) else draft)
            editor.set_history([*self.history.items])
            hint = format_hints(self, ("previous", "on the first line to restore it"))
            self.notify(" · ".join(filter(None, ["Draft saved to history", hint])), timeout=8)
        editor.set_prompts([text])
        editor.focus()

    # Output

    def show_output(self, text: str) -> None:
        if text.count("\n") >= MAX_OUTPUT_LINES:
            self.app.show_page(text)
        else:
            self.transcript.append(TranscriptBlock("output", text=text))

    def reset_error(self) -> None:
        """Forget the last error. Call this at every user action, so the same error is shown again."""
        self._last_error = ""

    def show_error(self, error: Exception | str) -> None:
        """Show an error, unless it repeats the last one or is its cause."""
        text = str(error)
        if self.controller is not None:
            session = self.controller.session
            text = _format_read_only(error, session) if isinstance(error, ReadOnly) else _add_advice(text, session)
        last = self.transcript.blocks[-1] if self.transcript.blocks else None
        is_same = last is not None and last.kind == "error" and last.text == self._last_error
        if isinstance(error, ReadOnly) and last is not None and is_same and last.text.endswith(error.reason):
            last.text = self._last_error = text  # the run reported it; this text adds what to do
            self.transcript.update_block(last)
        elif not f": {self._last_error}".endswith(f": {text}"):
            self.transcript.append(TranscriptBlock("error", text=text))
            self._last_error = text

    def show_activity(self, label: str, *, countdown: float | None = None) -> None:
        self.status_line.show_activity(label, countdown)
        self.app.update_title()

    def set_status(self, key: str, text: str | None) -> None:
        self.footer.statuses.pop(key, None)
        if text:
            self.footer.statuses[key] = text
        self.footer.refresh()

    def handle_event(self, event: Event) -> None:
        """Show an event. Thread-safe."""
        if threading.get_ident() == self._ui_thread:
            self._show_event(event)
        elif self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._show_event, event)

    def _show_event(self, event: Event) -> None:
        match event:
            case hook_events.MessageDelta(kind=kind, text=text, name=name):
                self.transcript.append_delta(DELTA_BLOCKS[kind], text, name)
            case hook_events.MessageStart(role="assistant"):
                self.transcript.streaming = []
                self.show_activity("working")
            case hook_events.MessageEnd(entry=entry):
                self._show_entry(entry)
            case hook_events.ToolDenied():
                self.show_activity("working")
            case hook_events.ToolStart(call=call):
                self.show_activity(f"running {call.name}")
            case hook_events.ToolUpdate(call=call, text=text):
                block = (
                    self.block_builder.find_call(call.id)
                    if call.id
                    else self._find_shell_block(call.arguments.get("command"))
                )
                if block is not None:
                    block.text = (block.text + text)[-100_000:]
                    self.transcript.schedule_update(block)
            case hook_events.ToolEnd(call=call):
                block = self.block_builder.find_call(call.id)
                if block is not None:
                    self.transcript.update_block(block)
                self.show_activity("working")
            case hook_events.RunStart():
                self._run_started_at = time.monotonic()
                self.show_activity("working")
            case hook_events.RunEnd(aborted=aborted, error=error):
                self._finish_run(aborted, error)
            case hook_events.QueueChanged(steering=steering, follow_up=follow_up):
                self._show_queue(steering, follow_up)
            case hook_events.RetryScheduled(delay=delay):
                self.show_activity(event.text, countdown=delay)
            case hook_events.SnapshotProgress(done=done, total=total):
                self.show_activity("working" if done == total else event.text)
            case hook_events.BeforeCompact():
                self.show_activity("compacting")
            case hook_events.Compacted(compaction_entry=entry):
                self.transcript.append(*self.block_builder.build_entry(entry))
                self.show_activity(
                    "working" if self.controller is not None and self.controller.is_running else self._shell_activity
                )
            case hook_events.CompactFailed(error=error, aborted=aborted, reason=reason):
                self.show_error("compaction aborted" if aborted else f"compaction failed: {error}")
                if reason == "manual":
                    self.action_take_back()
            case hook_events.BeforeNavigate(preparation=preparation) if preparation.user_wants_summary:
                self.show_activity("summarizing")
            case hook_events.BeforeMerge(user_wants_summary=True):
                self.show_activity("summarizing")
            case hook_events.ModelChanged(model=model):
                self.transcript.append(TranscriptBlock("note", text=f"model: {model}"))
                self.update_footer()
            case hook_events.ThinkingChanged(level=level):
                self.transcript.append(TranscriptBlock("note", text=f"thinking: {level}"))
                self.update_footer()
            case hook_events.Notice(level=level, text=text):
                self.show_error(text) if level == "error" else self.app.ui.notify(text, level)
            case _:
                pass

    def _show_entry(self, entry: hook_events.Entry) -> None:
        blocks = self.block_builder.build_entry(entry)
        if (items := find_todo_items([entry])) is not None:
            self._todo_lines.show_items(items)
        first = blocks[0] if blocks else None
        if first is not None and first.kind == "user":
            self._unwritten_prompt = ""
            self.save_draft()
        command = self._find_shell_block(entry.body.message.get("command")) if isinstance(entry.body, Message) else None
        if command is None:
            self.transcript.end_stream(blocks)
        elif self._is_on_path(entry):
            self._finish_shell_block(command, blocks)
        else:
            self._finish_shell_block(command, [])
            where = f"on branch {entry.branch!r}" if entry.branch else "in the tree, below the entry where it started"
            self.show_output(f"{command.head} finished; its output is {where}")
        self.update_footer()

    def _is_on_path(self, entry: hook_events.Entry) -> bool:
        assert self.controller is not None
        return entry.id in self.controller.session.tree.walk_up_ids(self.controller.branch.leaf)

    def _finish_run(self, aborted: bool, error: str | None) -> None:
        if self.transcript.streaming:
            # This text was never written. Keep it on the screen so the user can copy it.
            self.transcript.end_stream([block for block in self.transcript.streaming if block.text])
        for block in self.transcript.blocks[-20:]:
            if block.state == "live" and block not in self._shell_blocks:
                block.state = "failed"
                self.transcript.update_block(block)
        shown = self.transcript.blocks[-1].text if self.transcript.blocks else ""
        if error is not None and not (shown and error.endswith(shown)):
            self.show_error(error)
        self.show_activity(self._shell_activity)
        if aborted or error is not None:
            self.action_take_back()
        elif time.monotonic() - self._run_started_at > LONG_RUN_SECONDS:
            self.app.alert("The answer is ready")
        if not aborted and error is None and self.controller is not None and self.controller.plan_mode.is_active:
            self.app.action_command("/plan")

    # Queue

    def _show_queue(self, steering: tuple[str, ...], follow_up: tuple[str, ...] = ()) -> None:
        self._queue_lines.show_prompts(steering, follow_up)
        self.save_draft()

    async def _send_queued(self, agent: Agent) -> None:
        """Send prompts that were queued too late for a run, once the controller is idle."""
        controller = self.controller
        assert controller is not None
        while agent.queues.has_due:
            await controller.wait_until_idle()
            if not controller.has_agent or controller.agent is not agent:
                return
            if agent.queues.has_due:
                await agent.send_queued()

    def action_take_back(self) -> None:
        """Move queued prompts to the editor, before its text. Synchronous, so no run can send them first."""
        if self.controller is None or not self.controller.has_agent:
            return
        queues = self.controller.agent.queues
        snapshot = queues.build_snapshot()
        prompts = [*snapshot.steering, *snapshot.follow_up]
        if prompts:
            queues.pop_all("steering")
            queues.pop_all("follow_up")
            self.editor.set_prompts(prompts, self.editor.text)
            self.run_worker(
                self.controller.hooks.emit(queues.build_changed_event()), group="queue", exit_on_error=False
            )

    # Draft

    def on_text_area_changed(self) -> None:
        if self._draft_timer is None:
            self._draft_timer = self.set_timer(DRAFT_SECONDS, self.save_draft)

    def save_draft(self) -> None:
        """Save the text of the editor, the unwritten prompt and the queue."""
        if self._draft_timer is not None:
            self._draft_timer.stop()
            self._draft_timer = None
        if self._draft_file is not None and self._draft_file.session.address is not None:
            draft = self.editor.draft
            queued = (*filter(None, [self._unwritten_prompt]), *self._queue_lines.prompts)
            self._draft_file.write(EditorDraft(text=draft.text, pastes=draft.pastes, queued=queued))

    # Keys

    def action_abort(self) -> None:
        controller = self.controller
        if self.editor.close_popup():
            return
        if self.transcript.has_focus:
            self.transcript.action_end()
            return
        if controller is not None and (controller.is_running or self.status_line.activity):
            controller.abort()
            self.action_take_back()
            return
        now = time.monotonic()
        if self.editor.text:
            return
        if now - self._last_escape < DOUBLE_PRESS_SECONDS:
            self._last_escape = 0.0
            self.app.handle_double_escape()
        else:
            self._last_escape = now

    def on_editor_quit_requested(self, event: Editor.QuitRequested) -> None:
        now = time.monotonic()
        if event.is_confirmed or now - self._last_quit_request < QUIT_SECONDS:
            self.app.request_quit()
        else:
            self._last_quit_request = now
            self.notify(f"Press {format_hints(self, ('clear', 'again to quit'))}", timeout=QUIT_SECONDS)

    def action_external_editor(self) -> None:
        before = self.editor.full_text

        def replace_text(text: str) -> None:
            added = self.editor.full_text.removesuffix(before).strip("\n")  # such as the queue of a failed run
            if text != before:
                self.editor.set_text("\n\n".join(filter(None, [added, text])))

        edit_externally(self.app, before, replace_text)

    def action_permission(self) -> None:
        self.permission.focus_panel()

    def action_unfold(self) -> None:
        self.transcript.unfold_all(not self.transcript.is_unfolded)

    def action_browse(self) -> None:
        if self.transcript.has_focus:
            self.transcript.action_step(-1)
        else:
            self.transcript.focus()

    def action_page(self, by: int) -> None:
        self.transcript.scroll_page_down(animate=False) if by > 0 else self.transcript.scroll_page_up(animate=False)

    def action_thinking(self) -> None:
        self.run_worker(self._cycle_thinking(), group="thinking", exclusive=True, exit_on_error=False)

    async def _cycle_thinking(self) -> None:
        if self.controller is None:
            return
        self.reset_error()
        try:
            agent = self.controller.agent
            at = LEVELS.index(agent.thinking) if agent.thinking in LEVELS else -1
            await agent.set_thinking(LEVELS[(at + 1) % len(LEVELS)])
        except SessionTreeError as error:
            self.show_error(error)

    def on_paste(self, event: events.Paste) -> None:
        """Forward a paste to the editor if another widget has the focus."""
        self.editor.focus()
        self.editor.post_message(events.Paste(event.text))


def find_todo_items(entries: Iterable[Entry]) -> list[TodoItem] | None:
    """Return the list of the first entry that calls the todo tool; `None` if none does."""
    for entry in entries:
        for call in reversed(entry.tool_calls):
            if call.name == todo.name:
                return read_items(call.arguments)
    return None


def _format_read_only(error: ReadOnly, session: Session) -> str:
    """Say why the session is read-only, and suggest a fork if one can be written."""
    text = f"read-only: {error.reason}"
    try:
        check_copyable(session, "a fork")
    except ReadOnly:
        return text
    return f"{text}; use /fork to continue in a new session"


def _add_advice(text: str, session: Session) -> str:
    """Suggest a fork if the error is about a session file that cannot be written."""
    file = session.file
    if file is None or str(file) not in text:
        return text
    if not file.exists():
        return "another program deleted the session file; use /fork to save the conversation in a new session"
    writable = os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    return text if writable else f"{text}; use /fork to continue in a new session"
