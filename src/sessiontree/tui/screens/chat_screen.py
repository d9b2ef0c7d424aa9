"""The chat: the conversation, the editor below it, and what is told in between.

It shows what happens on a desk and hands over what is typed. Opening sessions, dialogs and the tree are the app's.
"""

from __future__ import annotations

import os
import threading
import time
from asyncio import AbstractEventLoop, Lock, get_running_loop, to_thread
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.timer import Timer

from sessiontree.commands.registry import is_prompt_line
from sessiontree.core.entries import Message
from sessiontree.core.number_text import pluralize
from sessiontree.core.sanitize import escape_line
from sessiontree.errors import ReadOnly, SessionTreeError
from sessiontree.hooks import events as told
from sessiontree.hooks.events import Event
from sessiontree.library.catalog import check_copyable
from sessiontree.tui.keys import format_hints
from sessiontree.tui.services.completion import Completer, find_mentions
from sessiontree.tui.services.drafts import DraftFile, EditorDraft, History, to_history_item
from sessiontree.tui.tally import UsageCounter
from sessiontree.tui.widgets.block_rendering import BlockRenderer
from sessiontree.tui.widgets.controls import SafeStatic
from sessiontree.tui.widgets.editor import CHAT_BINDINGS, CompletionPopup, Editor
from sessiontree.tui.widgets.footer import Footer, build_footer_state
from sessiontree.tui.widgets.permission_panel import PermissionPanel
from sessiontree.tui.widgets.transcript import Transcript
from sessiontree.tui.widgets.transcript_blocks import BlockBuilder, TranscriptBlock

if TYPE_CHECKING:
    from sessiontree.agent.agent import Agent
    from sessiontree.commands.controller import SessionController
    from sessiontree.core.entries import JsonObject
    from sessiontree.session import Session
    from sessiontree.tui.app import SessionApp

FRAME_SECONDS = 1 / 20
"""Seconds between two drawings of what comes."""
PAGE_ENTRIES = 60
"""How many entries are shown at first, and added when one goes up."""
DOUBLE_PRESS_SECONDS = 0.5
"""Seconds within which a key counts as pressed twice."""
DRAFT_SECONDS = 0.3
"""How long after the last key a draft is kept."""
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
MAX_OUTPUT_LINES = 40
"""Lines that a command may say in the conversation; more goes on a page of its own."""


class ChatScreen(Screen[None]):
    DEFAULT_CSS = """
    ChatScreen { background: $background; layers: base; }
    #work, #queue { height: auto; padding: 0 1; display: none; }
    #work.-shown, #queue.-shown { display: block; }
    #work { color: $accent; }
    #queue { color: $muted; }
    """
    AUTO_FOCUS = "Editor"
    BINDINGS: ClassVar[list[BindingType]] = CHAT_BINDINGS

    if TYPE_CHECKING:

        @property
        def app(self) -> SessionApp: ...

    def __init__(self) -> None:
        super().__init__()
        self.desk: SessionController | None = None
        self.block_builder = BlockBuilder()
        self._popup = CompletionPopup()
        self.editor = Editor(self._popup, id="editor")
        self.transcript = Transcript(id="transcript")
        self.permission = PermissionPanel()
        self.footer = Footer()
        self.history = History()
        self._draft_file: DraftFile | None = None
        """Of the session that is shown."""
        self._status_line = SafeStatic(id="work")
        self._queue_line = SafeStatic(id="queue")
        self._usage = UsageCounter(self, self.update_footer)
        self._earlier_ids: list[str] = []
        """Ids of the path that is shown, those before the first one shown."""
        self._streaming: list[TranscriptBlock] = []
        """What has come of the answer that comes."""
        self._shell_blocks: list[TranscriptBlock] = []
        """Commands of the shell, until what they printed is written."""
        self._changed_blocks: set[TranscriptBlock] = set()
        self._frame_timer: Timer | None = None
        self._draft_timer: Timer | None = None
        self._activity = ""
        """What is under way, in a word or two."""
        self._prompt_lock = Lock()
        """Of what is said, so that it arrives in that order, also where images are read first."""
        self._abort_hint = self._edit_queue_hint = ""
        """What these keys do, as they are bound."""
        self._last_error = ""
        """What went wrong last with what was asked for."""
        self._activity_start = 0.0
        self._countdown_end: float | None = None
        """When what is waited for is over."""
        self._last_escape = 0.0
        self._last_quit_request = 0.0
        self._unwritten_prompt = ""
        """What was said last, until it is written."""
        self._queued_prompts: tuple[str, ...] = ()
        self._ui_thread = 0
        self._event_loop: AbstractEventLoop | None = None

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield self._status_line
        yield self._queue_line
        yield self.permission
        yield self._popup
        yield self.editor
        yield self.footer

    def on_mount(self) -> None:
        self._ui_thread, self._event_loop = threading.get_ident(), get_running_loop()
        self.transcript.set_renderer(
            BlockRenderer(self.app.transcript_styles, unfolds=format_hints(self, ("unfold", "unfolds")))
        )
        self._abort_hint, self._edit_queue_hint = (
            format_hints(self, ("abort", "aborts")),
            format_hints(self, ("take_back", "takes back")),
        )
        self.set_interval(0.12, self._update_spinner)

    # The desk

    def attach(self, desk: SessionController) -> None:
        """Show what is on a desk from now on."""
        self.desk = desk
        desk.hooks.listen(self.handle_event)
        self.editor.completer = Completer(desk)
        self.reload()

    def reload(self) -> None:
        """Show the conversation as it is now, at the place where it is; of another session, with its draft."""
        desk = self.desk
        if desk is None:
            return
        other = self._draft_file is None or self._draft_file.session is not desk.session
        if self._draft_file is not None and other:
            self.save_draft()
            self.editor.clear_text()
        if other or not desk.is_running:
            self._streaming = []
        if other:
            self._shell_blocks = []
        path = desk.branch.path()
        shown = path[-PAGE_ENTRIES:]
        self._earlier_ids = [entry.id for entry in path[:-PAGE_ENTRIES]]
        self.block_builder = BlockBuilder(self.app.renderers)
        unwritten = [*self._streaming, *self._shell_blocks]
        self.transcript.show_blocks([*self.block_builder.build_all(shown), *unwritten], earlier=len(path) - len(shown))
        if not shown and not unwritten:
            self.transcript.append(TranscriptBlock("note", text=self._format_welcome()))
        own = [to_history_item(block.text) for block in self.transcript.blocks if block.kind == "user"]
        self.editor.set_history([*self.history.items, *own])
        if other:
            # Where another process has the session open, what is typed here is kept beside its draft.
            self._draft_file = DraftFile(desk.session, second=not self.app.is_alone)
            if not self.editor.text and not (draft := self._draft_file.read()).is_empty:
                self.editor.restore_draft(draft)
            if self._queued_prompts:  # in the session before, whose draft has it
                self._show_queue(())
            self.app.check_session(desk.session)
        self.update_footer()

    def _format_welcome(self) -> str:
        if self.desk is not None and self.desk.session.tree.real_count:
            return "this is the start of the session: your next message begins a new path, /undo goes back"
        said = ["a new session: say something", "/help lists the commands", format_hints(self, ("hotkeys", "the keys"))]
        return ", ".join(filter(None, said))

    def update_footer(self) -> None:
        if self.desk is not None:
            self._usage.update(self.desk.branch)
            self.footer.show_state(build_footer_state(self.desk, self._usage.count))

    def on_transcript_earlier_requested(self) -> None:
        if self.desk is None or not self._earlier_ids:
            return
        tree = self.desk.session.tree
        more = [tree[id] for id in self._earlier_ids[-PAGE_ENTRIES:]]
        self._earlier_ids = self._earlier_ids[: -len(more)]
        self.transcript.prepend(BlockBuilder(self.app.renderers).build_all(more), earlier=len(self._earlier_ids))

    def on_transcript_browsing_ended(self) -> None:
        self.editor.focus()

    # What is typed

    def on_editor_submitted(self, event: Editor.Submitted) -> None:
        said = event.text
        self.reset_error()
        self.history.add(to_history_item(said) if event.is_prompt else said)
        self.editor.set_history([*self.history.items])
        self.transcript.scroll_to_end()
        if event.is_prompt:
            self._unwritten_prompt = said
        self.save_draft()
        self.run_worker(
            self._submit(said, words=event.is_prompt, later=event.is_follow_up), group="say", exit_on_error=False
        )

    async def _submit(self, said: str, *, words: bool, later: bool) -> None:
        await self.app.ready.wait()
        try:
            if words:
                await self._send_prompt(said, later=later)
            elif said.startswith("!"):
                await self._run_shell(said)
            else:
                await self.run_command(said)
        except (SessionTreeError, OSError) as error:
            self.show_error(error)
            self._restore_input(said, words=words)
        except Exception as error:  # noqa: BLE001 - whatever fails, the app goes on and nothing typed is lost
            self.show_error(f"internal error, {type(error).__name__}: {error}")
            self._restore_input(said, words=words)
        finally:
            if self._unwritten_prompt == said:
                self._unwritten_prompt = ""
            self.save_draft()
            self.update_footer()

    async def _send_prompt(self, said: str, *, later: bool) -> None:
        desk = self.desk
        assert desk is not None
        async with self._prompt_lock:
            await self.app.model_found.wait()
            named = find_mentions(said)
            images = await to_thread(_read_images, named, desk.cwd) if named else []
        if desk.is_running:
            agent, self._unwritten_prompt = desk.agent, ""
            await (agent.follow_up(said, images) if later else agent.steer(said, images))
            await self._send_queued(agent)
            return
        outcome = await desk.send_prompt(said, images)
        if outcome.cancelled:
            if not outcome.aborted:
                self.show_output("a handler did not let it happen")
            self._restore_input(said, words=True)

    async def run_command(self, line: str) -> None:
        """Do what a command says, after asking for what it still needs."""
        desk = self.desk
        assert desk is not None
        self.reset_error()
        self.permission.note_command()
        filled = await self.app.complete_command(line)
        if filled is None:
            return
        try:
            submitted = await desk.submit(filled)
        except Exception:
            if not desk.is_running:  # one stays here, and what waited was for elsewhere
                self.action_take_back()
            raise
        finally:
            self._show_idle_activity()
        if submitted.text:
            self.show_output(submitted.text)

    async def _run_shell(self, line: str) -> None:
        desk = self.desk
        assert desk is not None
        block = TranscriptBlock("tool", head=f"! {line.lstrip('!').strip()}", state="live", shows_tail=True)
        self._shell_blocks.append(block)
        self.transcript.append(block)
        await self.app.model_found.wait()
        self._show_idle_activity()
        try:
            submitted = await desk.submit(line)
        except Exception:
            self._finish_shell_block(block, [])
            raise
        else:
            if block in self._shell_blocks:  # it is written down when the turn ends
                block.text, block.state = submitted.text, "done"
                self.transcript.update_block(block)
        finally:
            self._show_idle_activity()

    def _show_idle_activity(self) -> None:
        """Say what goes on without the agent; what it does, or whatever else is under way, is said already."""
        if self.desk is not None and not self.desk.is_running:
            self.show_activity(self._shell_activity)

    def _find_shell_block(self, command: object) -> TranscriptBlock | None:
        return next((block for block in self._shell_blocks if block.head == f"! {command}"), None)

    def _finish_shell_block(self, command: TranscriptBlock, made: list[TranscriptBlock]) -> None:
        """Show what was written of a command in its place."""
        self._shell_blocks = [block for block in self._shell_blocks if block is not command]
        self.transcript.replace_blocks([command], made)

    @property
    def _shell_activity(self) -> str:
        """What goes on without the agent, in a word."""
        return "running" if any(block.state == "live" for block in self._shell_blocks) else ""

    def _restore_input(self, said: str, *, words: bool) -> None:
        """Put what failed in the editor again. A command is selected: who types it again does not append to it."""
        if not self.editor.text:
            self.editor.set_prompts([said]) if words else self.editor.set_selected_text(said)

    def put_in_editor(self, text: str) -> None:
        """Put a message in the editor, to be said anew. A draft that was there goes to the history."""
        editor = self.editor
        draft = editor.full_text.strip("\n")
        if draft.strip() and draft != text:
            self.history.add(to_history_item(draft) if is_prompt_line(editor.text.strip("\n")) else draft)
            editor.set_history([*self.history.items])
            kept = "Your draft is in the history"
            self.notify(
                ": ".join(filter(None, [kept, format_hints(self, ("previous", "from the first line brings it back"))])),
                timeout=8,
            )
        editor.set_prompts([text])
        editor.focus()

    # What is told

    def show_output(self, text: str) -> None:
        if text.count("\n") >= MAX_OUTPUT_LINES:
            self.app.show_page(text)
        else:
            self.transcript.append(TranscriptBlock("told", text=text))

    def reset_error(self) -> None:
        """Something is asked for: what goes wrong with it is told, though it was told before."""
        self._last_error = ""

    def show_error(self, error: Exception | str) -> None:
        """Say what went wrong, unless that was said already, by itself or together with what it went wrong in."""
        text = str(error)
        if self.desk is not None:
            session = self.desk.session
            text = _format_read_only(error, session) if isinstance(error, ReadOnly) else _add_advice(text, session)
        if not f": {self._last_error}".endswith(f": {text}"):
            self.transcript.append(TranscriptBlock("error", text=text))
            self._last_error = text

    def show_activity(self, what: str, *, left: float | None = None) -> None:
        """Say what is under way; nothing, when nothing is. What waits for a while counts down the seconds `left`."""
        if what and not self._activity:
            self._activity_start = time.monotonic()
        self._activity = what
        self._countdown_end = None if left is None else time.monotonic() + left
        self._status_line.set_class(bool(what), "-shown")
        self._update_spinner()

    def _update_spinner(self) -> None:
        if self._activity:
            seconds = time.monotonic() - self._activity_start
            sign = SPINNER[int(seconds * 8) % len(SPINNER)]
            shown = (
                f"{seconds:.0f} s"
                if self._countdown_end is None
                else f"in {max(0.0, self._countdown_end - time.monotonic()):.0f} s"
            )
            said = filter(None, [f"{sign} {escape_line(self._activity)}", shown, self._abort_hint])
            self._status_line.set_text(" · ".join(said))

    def set_status(self, key: str, text: str | None) -> None:
        self.footer.statuses.pop(key, None)
        if text:
            self.footer.statuses[key] = text
        self.footer.refresh()

    def handle_event(self, event: Event) -> None:
        """Show an event. It may come from any thread."""
        if threading.get_ident() == self._ui_thread:
            self._show_event(event)
        elif self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._show_event, event)

    def _show_event(self, event: Event) -> None:
        match event:
            case told.MessageDelta():
                self._append_delta(event)
            case told.MessageStart(role="assistant"):
                self._streaming = []
                self.show_activity("working")
            case told.MessageEnd(entry=entry):
                self._show_entry(entry)
            case told.ToolDenied():
                self.show_activity("working")
            case told.ToolStart(call=call):
                self.show_activity(f"running {call.name}")
            case told.ToolUpdate(call=call, text=text):
                block = (
                    self.block_builder.find_call(call.id)
                    if call.id
                    else self._find_shell_block(call.arguments.get("command"))
                )
                if block is not None:
                    block.text = (block.text + text)[-100_000:]
                    self._schedule_redraw(block)
            case told.ToolEnd(call=call):
                block = self.block_builder.find_call(call.id)
                if block is not None:
                    self.transcript.update_block(block)
                self.show_activity("working")
            case told.RunStart():
                self.show_activity("working")
            case told.RunEnd(aborted=aborted, error=error):
                self._finish_run(aborted, error)
            case told.QueueChanged(steering=steering, follow_up=follow_up):
                self._show_queue((*steering, *follow_up))
            case told.RetryScheduled(delay=delay):
                self.show_activity(event.text, left=delay)
            case told.BeforeCompact():
                self.show_activity("compacting")
            case told.Compacted(compaction_entry=entry):
                self.transcript.append(*self.block_builder.build_entry(entry))
                self.show_activity(
                    "working" if self.desk is not None and self.desk.is_running else self._shell_activity
                )
            case told.CompactFailed(error=error, aborted=aborted, reason=reason):
                self.show_error("the compaction was aborted" if aborted else f"the compaction failed: {error}")
                if reason == "manual":
                    self.action_take_back()
            case told.BeforeNavigate(preparation=preparation) if preparation.user_wants_summary:
                self.show_activity("summarizing")
            case told.BeforeMerge(user_wants_summary=True):
                self.show_activity("summarizing")
            case told.ModelChanged(model=model):
                self.transcript.append(TranscriptBlock("note", text=f"model: {model}"))
                self.update_footer()
            case told.ThinkingChanged(level=level):
                self.transcript.append(TranscriptBlock("note", text=f"thinking: {level}"))
                self.update_footer()
            case told.Notice(level=level, text=text):
                self.show_error(text) if level == "error" else self.app.ui.notify(text, level)
            case _:
                pass

    def _append_delta(self, delta: told.MessageDelta) -> None:
        """More of the answer that comes."""
        kind = {"text": "answer", "thinking": "thought", "tool_call": "tool"}[delta.kind]
        last = self._streaming[-1] if self._streaming else None
        if last is None or last.kind != kind or delta.name is not None:
            head = f"{delta.name} …" if kind == "tool" else ""
            last = TranscriptBlock(kind, head=head, state="live")  # pyright: ignore[reportArgumentType]
            self._streaming.append(last)
            self.transcript.append(last)
        if kind == "tool":
            last.render_cache["length"] = last.render_cache.get("length", 0) + len(delta.text)
            name = last.head.partition(" …")[0]
            last.head = f"{name} … {pluralize(last.render_cache['length'], 'character')}"
        else:
            last.text += delta.text
        self._schedule_redraw(last)

    def _schedule_redraw(self, block: TranscriptBlock) -> None:
        self._changed_blocks.add(block)
        if self._frame_timer is None:
            self._frame_timer = self.set_timer(FRAME_SECONDS, self._redraw_changed)

    def _redraw_changed(self) -> None:
        self._frame_timer = None
        dirty, self._changed_blocks = self._changed_blocks, set()
        for block in dirty:
            self.transcript.update_block(block)

    def _show_entry(self, entry: told.Entry) -> None:
        made = self.block_builder.build_entry(entry)
        first = made[0] if made else None
        if first is not None and first.kind == "user":
            self._unwritten_prompt = ""
            self.save_draft()
        command = self._find_shell_block(entry.body.message.get("command")) if isinstance(entry.body, Message) else None
        if command is None:
            self.transcript.replace_blocks(self._streaming, made)
            self._streaming = []
        elif self._is_on_path(entry):
            self._finish_shell_block(command, made)
        else:
            self._finish_shell_block(command, [])
            where = f"on branch {entry.branch!r}" if entry.branch else "in the tree, where it was begun"
            self.show_output(f"{command.head} is over: what it printed is {where}")
        self.update_footer()

    def _is_on_path(self, entry: told.Entry) -> bool:
        assert self.desk is not None
        return entry.id in self.desk.session.tree.walk_up_ids(self.desk.branch.leaf)

    def _finish_run(self, aborted: bool, error: str | None) -> None:
        if self._streaming:
            # It was never written, so it stands only here: what it says stays to be read and copied.
            shown = [block for block in self._streaming if block.text]
            self.transcript.replace_blocks(self._streaming, shown)
            self._streaming = []
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

    # What waits

    def _show_queue(self, waiting: tuple[str, ...]) -> None:
        self._queued_prompts = waiting
        self._queue_line.set_class(bool(waiting), "-shown")
        lines = [
            Text(f"⋯ {escape_line(' '.join(text.split()))}", no_wrap=True, overflow="ellipsis") for text in waiting[:5]
        ]
        hint = " · ".join(filter(None, [f"{len(waiting)} to be said", self._edit_queue_hint])) if waiting else ""
        self._queue_line.set_text(Text("\n").join([*lines, Text(hint, "dim")]))
        self.save_draft()

    async def _send_queued(self, agent: Agent) -> None:
        """Have what waits said when nothing runs any more: it came as a run ended, or while a summary was made."""
        desk = self.desk
        assert desk is not None
        while agent.queues.has_due:
            await desk.wait_until_idle()
            if not desk.has_agent or desk.agent is not agent:
                return
            if agent.queues.has_due:
                await agent.send_queued()

    def action_take_back(self) -> None:
        """Put what waits in the editor, before what is being typed. At once, so that nobody says it meanwhile."""
        if self.desk is None or not self.desk.has_agent:
            return
        queues = self.desk.agent.queues
        listed = queues.build_snapshot()
        waiting = [*listed.steering, *listed.follow_up]
        if waiting:
            queues.pop_all("steering")
            queues.pop_all("follow_up")
            self.editor.set_prompts(waiting, self.editor.text)
            self.run_worker(self.desk.hooks.emit(queues.build_changed_event()), group="queue", exit_on_error=False)

    # The draft

    def on_text_area_changed(self) -> None:
        if self._draft_timer is None:
            self._draft_timer = self.set_timer(DRAFT_SECONDS, self.save_draft)

    def save_draft(self) -> None:
        """Keep what is typed, what was said but is not written yet, and what waits."""
        if self._draft_timer is not None:
            self._draft_timer.stop()
            self._draft_timer = None
        if self._draft_file is not None and self._draft_file.session.address is not None:
            draft = self.editor.draft
            queued = (*filter(None, [self._unwritten_prompt]), *self._queued_prompts)
            self._draft_file.write(EditorDraft(text=draft.text, pastes=draft.pastes, queued=queued))

    # Keys

    def action_abort(self) -> None:
        desk = self.desk
        if self.editor.close_popup():
            return
        if self.transcript.has_focus:
            self.transcript.action_end()
            return
        if desk is not None and (desk.is_running or self._activity):
            desk.abort()
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
        if event.is_confirmed or now - self._last_quit_request < 2 * DOUBLE_PRESS_SECONDS:
            self.app.request_quit()
        else:
            self._last_quit_request = now
            self.notify("Press Ctrl+C again to quit", timeout=2)

    def action_external_editor(self) -> None:
        from sessiontree.tui.services.external_editor import edit_externally

        before = self.editor.full_text

        def replace_text(text: str) -> None:
            come = self.editor.full_text.removesuffix(before).strip("\n")  # such as what waited for a run that failed
            if text != before:
                self.editor.set_text("\n\n".join(filter(None, [come, text])))

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
        from sessiontree.commands.arguments import LEVELS

        if self.desk is None:
            return
        self.reset_error()
        try:
            agent = self.desk.agent
            at = LEVELS.index(agent.thinking) if agent.thinking in LEVELS else -1
            await agent.set_thinking(LEVELS[(at + 1) % len(LEVELS)])
        except SessionTreeError as error:
            self.show_error(error)

    def on_paste(self, event: events.Paste) -> None:
        """What is pasted while something else has the keyboard goes to the editor."""
        self.editor.focus()
        self.editor.post_message(events.Paste(event.text))


def _read_images(paths: list[str], cwd: str) -> list[JsonObject]:
    """The images among files that a text names. Other files are for the model to read."""
    from sessiontree.agent.tools.file_access import read_image

    found: list[JsonObject] = []
    for path in paths:
        full = os.path.join(cwd, os.path.expanduser(path))
        if os.path.isfile(full) and full.lower().endswith((".png", ".jpg", ".jpeg", ".gif", ".webp")):
            with open(full, "rb") as file:
                image = read_image(file, path)
            if image is not None:
                found.append(image)
    return found


def _format_read_only(error: ReadOnly, session: Session) -> str:
    """Why a session cannot be written to, and what to do where a fork can."""
    text = f"read-only, {error.reason}"
    try:
        check_copyable(session, "a fork")
    except ReadOnly:
        return text
    return f"{text}: /fork goes on in a new session"


def _add_advice(text: str, session: Session) -> str:
    """What went wrong with a session's file, and what to do where nothing can be written to it."""
    file = session.file
    if file is None or str(file) not in text:
        return text
    if not file.exists():
        return "the file of this session was deleted by another program: /fork goes on in a new one, with all of it"
    writable = os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    return text if writable else f"{text}: /fork goes on in a new session"
