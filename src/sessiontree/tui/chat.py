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

from sessiontree.catalog import check_copied
from sessiontree.commands.command import is_words
from sessiontree.core.entries import Message
from sessiontree.core.figures import pluralize
from sessiontree.core.safe import safe
from sessiontree.errors import ReadOnly, SessionTreeError
from sessiontree.hooks import events as told
from sessiontree.hooks.events import Event
from sessiontree.tui.blocks import Block, Blocks
from sessiontree.tui.completion import Completer, mentioned
from sessiontree.tui.drafts import Draft, Drafts, History, said_to_model
from sessiontree.tui.drawing import Pen
from sessiontree.tui.editor import CHAT_BINDINGS, Choices, Editor
from sessiontree.tui.footer import Footer, facts_of
from sessiontree.tui.keys import hints
from sessiontree.tui.line import Line
from sessiontree.tui.permission import PermissionPanel
from sessiontree.tui.tally import Tally
from sessiontree.tui.transcript import Transcript

if TYPE_CHECKING:
    from sessiontree.agent.agent import Agent
    from sessiontree.commands.desk import Desk
    from sessiontree.core.entries import JsonObject
    from sessiontree.session import Session
    from sessiontree.tui.app import SessionApp

FRAME = 1 / 20
"""Seconds between two drawings of what comes."""
AT_ONCE = 60
"""How many entries are shown at first, and added when one goes up."""
DOUBLE = 0.5
"""Seconds within which a key counts as pressed twice."""
DRAFT_SECONDS = 0.3
"""How long after the last key a draft is kept."""
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
LONGEST = 40
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
        self.desk: Desk | None = None
        self.blocks = Blocks()
        self._choices = Choices()
        self.editor = Editor(self._choices, id="editor")
        self.transcript = Transcript(id="transcript")
        self.permission = PermissionPanel()
        self.footer = Footer()
        self.history = History()
        self._drafts: Drafts | None = None
        """Of the session that is shown."""
        self._work = Line(id="work")
        self._queue = Line(id="queue")
        self._tally = Tally(self, self.update_footer)
        self._entries: list[str] = []
        """Ids of the path that is shown, those before the first one shown."""
        self._live: list[Block] = []
        """What has come of the answer that comes."""
        self._commands: list[Block] = []
        """Commands of the shell, until what they printed is written."""
        self._dirty: set[Block] = set()
        self._frame: Timer | None = None
        self._drafting: Timer | None = None
        self._doing = ""
        """What is under way, in a word or two."""
        self._one_by_one = Lock()
        """Of what is said, so that it arrives in that order, also where images are read first."""
        self._aborts = self._takes_back = ""
        """What these keys do, as they are bound."""
        self._failure = ""
        """What went wrong last with what was asked for."""
        self._since = 0.0
        self._until: float | None = None
        """When what is waited for is over."""
        self._escaped = 0.0
        self._left = 0.0
        self._unsaid = ""
        """What was said last, until it is written."""
        self._waiting: tuple[str, ...] = ()
        self._thread = 0
        self._loop: AbstractEventLoop | None = None

    def compose(self) -> ComposeResult:
        yield self.transcript
        yield self._work
        yield self._queue
        yield self.permission
        yield self._choices
        yield self.editor
        yield self.footer

    def on_mount(self) -> None:
        self._thread, self._loop = threading.get_ident(), get_running_loop()
        self.transcript.dress(Pen(self.app.look, unfolds=hints(self, ("unfold", "unfolds"))))
        self._aborts, self._takes_back = hints(self, ("abort", "aborts")), hints(self, ("take_back", "takes back"))
        self.set_interval(0.12, self._spin)

    # The desk

    def sit_down(self, desk: Desk) -> None:
        """Show what is on a desk from now on."""
        self.desk = desk
        desk.hooks.listen(self.hear)
        self.editor.completer = Completer(desk)
        self.reload()

    def reload(self) -> None:
        """Show the conversation as it is now, at the place where it is; of another session, with its draft."""
        desk = self.desk
        if desk is None:
            return
        other = self._drafts is None or self._drafts.session is not desk.session
        if self._drafts is not None and other:
            self.keep_draft()
            self.editor.clear_words()
        if other or not desk.running:
            self._live = []
        if other:
            self._commands = []
        path = desk.branch.path()
        shown = path[-AT_ONCE:]
        self._entries = [entry.id for entry in path[:-AT_ONCE]]
        self.blocks = Blocks(self.app.renderers)
        unwritten = [*self._live, *self._commands]
        self.transcript.show([*self.blocks.of(shown), *unwritten], earlier=len(path) - len(shown))
        if not shown and not unwritten:
            self.transcript.add(Block("note", text=self._welcome()))
        own = [said_to_model(block.text) for block in self.transcript.blocks if block.kind == "user"]
        self.editor.remember([*self.history.lines, *own])
        if other:
            # Where another process has the session open, what is typed here is kept beside its draft.
            self._drafts = Drafts(desk.session, beside=not self.app.alone)
            if not self.editor.text and not (draft := self._drafts.read()).empty:
                self.editor.put_draft(draft)
            if self._waiting:  # in the session before, whose draft has it
                self._queued(())
            self.app.look_for_faults(desk.session)
        self.update_footer()

    def _welcome(self) -> str:
        if self.desk is not None and self.desk.session.tree.real_count:
            return "this is the start of the session: your next message begins a new path, /undo goes back"
        said = ["a new session: say something", "/help lists the commands", hints(self, ("hotkeys", "the keys"))]
        return ", ".join(filter(None, said))

    def update_footer(self) -> None:
        if self.desk is not None:
            self._tally.look(self.desk.branch)
            self.footer.show(facts_of(self.desk, self._tally.count))

    def on_transcript_earlier_wanted(self) -> None:
        if self.desk is None or not self._entries:
            return
        tree = self.desk.session.tree
        more = [tree[id] for id in self._entries[-AT_ONCE:]]
        self._entries = self._entries[: -len(more)]
        self.transcript.put_before(Blocks(self.app.renderers).of(more), earlier=len(self._entries))

    def on_transcript_left(self) -> None:
        self.editor.focus()

    # What is typed

    def on_editor_said(self, event: Editor.Said) -> None:
        said = event.text
        self.asked()
        self.history.add(said_to_model(said) if event.words else said)
        self.editor.remember([*self.history.lines])
        self.transcript.follow()
        if event.words:
            self._unsaid = said
        self.keep_draft()
        self.run_worker(self._say(said, words=event.words, later=event.later), group="say", exit_on_error=False)

    async def _say(self, said: str, *, words: bool, later: bool) -> None:
        await self.app.ready.wait()
        try:
            if words:
                await self._prompt(said, later=later)
            elif said.startswith("!"):
                await self._run_shell(said)
            else:
                await self.run_command(said)
        except (SessionTreeError, OSError) as error:
            self.fail(error)
            self._give_back(said, words=words)
        except Exception as error:  # noqa: BLE001 - whatever fails, the app goes on and nothing typed is lost
            self.fail(f"internal error, {type(error).__name__}: {error}")
            self._give_back(said, words=words)
        finally:
            if self._unsaid == said:
                self._unsaid = ""
            self.keep_draft()
            self.update_footer()

    async def _prompt(self, said: str, *, later: bool) -> None:
        desk = self.desk
        assert desk is not None
        async with self._one_by_one:
            await self.app.model_found.wait()
            named = mentioned(said)
            images = await to_thread(_images, named, desk.cwd) if named else []
        if desk.running:
            agent, self._unsaid = desk.agent, ""
            await (agent.follow_up(said, images) if later else agent.steer(said, images))
            await self._see_to(agent)
            return
        outcome = await desk.say(said, images)
        if outcome.cancelled:
            if not outcome.aborted:
                self.tell("a handler did not let it happen")
            self._give_back(said, words=True)

    async def run_command(self, line: str) -> None:
        """Do what a command says, after asking for what it still needs."""
        desk = self.desk
        assert desk is not None
        self.asked()
        self.permission.note_command()
        filled = await self.app.filled(line)
        if filled is None:
            return
        try:
            submitted = await desk.submit(filled)
        except Exception:
            if not desk.running:  # one stays here, and what waited was for elsewhere
                self.action_take_back()
            raise
        finally:
            self._settle()
        if submitted.text:
            self.tell(submitted.text)

    async def _run_shell(self, line: str) -> None:
        desk = self.desk
        assert desk is not None
        block = Block("tool", head=f"! {line.lstrip('!').strip()}", state="live", tail=True)
        self._commands.append(block)
        self.transcript.add(block)
        await self.app.model_found.wait()
        self._settle()
        try:
            submitted = await desk.submit(line)
        except Exception:
            self._over(block, [])
            raise
        else:
            if block in self._commands:  # it is written down when the turn ends
                block.text, block.state = submitted.text, "done"
                self.transcript.changed(block)
        finally:
            self._settle()

    def _settle(self) -> None:
        """Say what goes on without the agent; what it does, or whatever else is under way, is said already."""
        if self.desk is not None and not self.desk.running:
            self.do(self._beside)

    def _command(self, command: object) -> Block | None:
        return next((block for block in self._commands if block.head == f"! {command}"), None)

    def _over(self, command: Block, made: list[Block]) -> None:
        """Show what was written of a command in its place."""
        self._commands = [block for block in self._commands if block is not command]
        self.transcript.replace([command], made)

    @property
    def _beside(self) -> str:
        """What goes on without the agent, in a word."""
        return "running" if any(block.state == "live" for block in self._commands) else ""

    def _give_back(self, said: str, *, words: bool) -> None:
        """Put what failed in the editor again. A command is selected: who types it again does not append to it."""
        if not self.editor.text:
            self.editor.put_words([said]) if words else self.editor.put_selected(said)

    def put_in_editor(self, text: str) -> None:
        """Put a message in the editor, to be said anew. A draft that was there goes to the history."""
        editor = self.editor
        draft = editor.words.strip("\n")
        if draft.strip() and draft != text:
            self.history.add(said_to_model(draft) if is_words(editor.text.strip("\n")) else draft)
            editor.remember([*self.history.lines])
            kept = "Your draft is in the history"
            self.notify(
                ": ".join(filter(None, [kept, hints(self, ("previous", "from the first line brings it back"))])),
                timeout=8,
            )
        editor.put_words([text])
        editor.focus()

    # What is told

    def tell(self, text: str) -> None:
        if text.count("\n") >= LONGEST:
            self.app.show_page(text)
        else:
            self.transcript.add(Block("told", text=text))

    def asked(self) -> None:
        """Something is asked for: what goes wrong with it is told, though it was told before."""
        self._failure = ""

    def fail(self, error: Exception | str) -> None:
        """Say what went wrong, unless that was said already, by itself or together with what it went wrong in."""
        text = str(error)
        if self.desk is not None:
            session = self.desk.session
            text = _read_only(error, session) if isinstance(error, ReadOnly) else _advised(text, session)
        if not f": {self._failure}".endswith(f": {text}"):
            self.transcript.add(Block("error", text=text))
            self._failure = text

    def do(self, what: str, *, left: float | None = None) -> None:
        """Say what is under way; nothing, when nothing is. What waits for a while counts down the seconds `left`."""
        if what and not self._doing:
            self._since = time.monotonic()
        self._doing = what
        self._until = None if left is None else time.monotonic() + left
        self._work.set_class(bool(what), "-shown")
        self._spin()

    def _spin(self) -> None:
        if self._doing:
            seconds = time.monotonic() - self._since
            sign = SPINNER[int(seconds * 8) % len(SPINNER)]
            shown = (
                f"{seconds:.0f} s" if self._until is None else f"in {max(0.0, self._until - time.monotonic()):.0f} s"
            )
            said = filter(None, [f"{sign} {safe(self._doing)}", shown, self._aborts])
            self._work.say(" · ".join(said))

    def set_status(self, key: str, text: str | None) -> None:
        self.footer.statuses.pop(key, None)
        if text:
            self.footer.statuses[key] = text
        self.footer.refresh()

    def hear(self, event: Event) -> None:
        """Show an event. It may come from any thread."""
        if threading.get_ident() == self._thread:
            self._show(event)
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._show, event)

    def _show(self, event: Event) -> None:
        match event:
            case told.MessageDelta():
                self._more(event)
            case told.MessageStart(role="assistant"):
                self._live = []
                self.do("working")
            case told.MessageEnd(entry=entry):
                self._written(entry)
            case told.ToolDenied():
                self.do("working")
            case told.ToolStart(call=call):
                self.do(f"running {call.name}")
            case told.ToolUpdate(call=call, text=text):
                block = self.blocks.of_call(call.id) if call.id else self._command(call.arguments.get("command"))
                if block is not None:
                    block.text = (block.text + text)[-100_000:]
                    self._soon(block)
            case told.ToolEnd(call=call):
                block = self.blocks.of_call(call.id)
                if block is not None:
                    self.transcript.changed(block)
                self.do("working")
            case told.RunStart():
                self.do("working")
            case told.RunEnd(aborted=aborted, error=error):
                self._ended(aborted, error)
            case told.QueueChanged(steering=steering, follow_up=follow_up):
                self._queued((*steering, *follow_up))
            case told.RetryScheduled(delay=delay):
                self.do(event.text, left=delay)
            case told.BeforeCompact():
                self.do("compacting")
            case told.Compacted(compaction_entry=entry):
                self.transcript.add(*self.blocks.of_entry(entry))
                self.do("working" if self.desk is not None and self.desk.running else self._beside)
            case told.CompactFailed(error=error, aborted=aborted, reason=reason):
                self.fail("the compaction was aborted" if aborted else f"the compaction failed: {error}")
                if reason == "manual":
                    self.action_take_back()
            case told.BeforeNavigate(preparation=preparation) if preparation.user_wants_summary:
                self.do("summarizing")
            case told.BeforeMerge(user_wants_summary=True):
                self.do("summarizing")
            case told.ModelChanged(model=model):
                self.transcript.add(Block("note", text=f"model: {model}"))
                self.update_footer()
            case told.ThinkingChanged(level=level):
                self.transcript.add(Block("note", text=f"thinking: {level}"))
                self.update_footer()
            case told.Notice(level=level, text=text):
                self.fail(text) if level == "error" else self.app.ui.notify(text, level)
            case _:
                pass

    def _more(self, delta: told.MessageDelta) -> None:
        """More of the answer that comes."""
        kind = {"text": "answer", "thinking": "thought", "tool_call": "tool"}[delta.kind]
        last = self._live[-1] if self._live else None
        if last is None or last.kind != kind or delta.name is not None:
            head = f"{delta.name} …" if kind == "tool" else ""
            last = Block(kind, head=head, state="live")  # pyright: ignore[reportArgumentType]
            self._live.append(last)
            self.transcript.add(last)
        if kind == "tool":
            last.drawn["length"] = last.drawn.get("length", 0) + len(delta.text)
            name = last.head.partition(" …")[0]
            last.head = f"{name} … {pluralize(last.drawn['length'], 'character')}"
        else:
            last.text += delta.text
        self._soon(last)

    def _soon(self, block: Block) -> None:
        self._dirty.add(block)
        if self._frame is None:
            self._frame = self.set_timer(FRAME, self._draw)

    def _draw(self) -> None:
        self._frame = None
        dirty, self._dirty = self._dirty, set()
        for block in dirty:
            self.transcript.changed(block)

    def _written(self, entry: told.Entry) -> None:
        made = self.blocks.of_entry(entry)
        first = made[0] if made else None
        if first is not None and first.kind == "user":
            self._unsaid = ""
            self.keep_draft()
        command = self._command(entry.body.message.get("command")) if isinstance(entry.body, Message) else None
        if command is None:
            self.transcript.replace(self._live, made)
            self._live = []
        elif self._on_path(entry):
            self._over(command, made)
        else:
            self._over(command, [])
            where = f"on branch {entry.branch!r}" if entry.branch else "in the tree, where it was begun"
            self.tell(f"{command.head} is over: what it printed is {where}")
        self.update_footer()

    def _on_path(self, entry: told.Entry) -> bool:
        assert self.desk is not None
        return entry.id in self.desk.session.tree.up_ids(self.desk.branch.leaf)

    def _ended(self, aborted: bool, error: str | None) -> None:
        if self._live:
            # It was never written, so it stands only here: what it says stays to be read and copied.
            shown = [block for block in self._live if block.text]
            self.transcript.replace(self._live, shown)
            self._live = []
        for block in self.transcript.blocks[-20:]:
            if block.state == "live" and block not in self._commands:
                block.state = "failed"
                self.transcript.changed(block)
        shown = self.transcript.blocks[-1].text if self.transcript.blocks else ""
        if error is not None and not (shown and error.endswith(shown)):
            self.fail(error)
        self.do(self._beside)
        if aborted or error is not None:
            self.action_take_back()

    # What waits

    def _queued(self, waiting: tuple[str, ...]) -> None:
        self._waiting = waiting
        self._queue.set_class(bool(waiting), "-shown")
        lines = [Text(f"⋯ {safe(' '.join(text.split()))}", no_wrap=True, overflow="ellipsis") for text in waiting[:5]]
        hint = " · ".join(filter(None, [f"{len(waiting)} to be said", self._takes_back])) if waiting else ""
        self._queue.say(Text("\n").join([*lines, Text(hint, "dim")]))
        self.keep_draft()

    async def _see_to(self, agent: Agent) -> None:
        """Have what waits said when nothing runs any more: it came as a run ended, or while a summary was made."""
        desk = self.desk
        assert desk is not None
        while agent.queues.has_due:
            await desk.idle()
            if not desk.has_agent or desk.agent is not agent:
                return
            if agent.queues.has_due:
                await agent.say_waiting()

    def action_take_back(self) -> None:
        """Put what waits in the editor, before what is being typed. At once, so that nobody says it meanwhile."""
        if self.desk is None or not self.desk.has_agent:
            return
        queues = self.desk.agent.queues
        listed = queues.listed()
        waiting = [*listed.steering, *listed.follow_up]
        if waiting:
            queues.take("steering")
            queues.take("follow_up")
            self.editor.put_words(waiting, self.editor.text)
            self.run_worker(self.desk.hooks.tell(queues.changed()), group="queue", exit_on_error=False)

    # The draft

    def on_text_area_changed(self) -> None:
        if self._drafting is None:
            self._drafting = self.set_timer(DRAFT_SECONDS, self.keep_draft)

    def keep_draft(self) -> None:
        """Keep what is typed, what was said but is not written yet, and what waits."""
        if self._drafting is not None:
            self._drafting.stop()
            self._drafting = None
        if self._drafts is not None and self._drafts.session.kept_at is not None:
            draft = self.editor.draft
            queued = (*filter(None, [self._unsaid]), *self._waiting)
            self._drafts.write(Draft(text=draft.text, pastes=draft.pastes, queued=queued))

    # Keys

    def action_abort(self) -> None:
        desk = self.desk
        if self.editor.close_choices():
            return
        if self.transcript.has_focus:
            self.transcript.action_end()
            return
        if desk is not None and (desk.running or self._doing):
            desk.abort()
            self.action_take_back()
            return
        now = time.monotonic()
        if self.editor.text:
            return
        if now - self._escaped < DOUBLE:
            self._escaped = 0.0
            self.app.double_escape()
        else:
            self._escaped = now

    def on_editor_leave(self, event: Editor.Leave) -> None:
        now = time.monotonic()
        if event.sure or now - self._left < 2 * DOUBLE:
            self.app.leave()
        else:
            self._left = now
            self.notify("Press Ctrl+C again to quit", timeout=2)

    def action_external_editor(self) -> None:
        from sessiontree.tui.outside import edit

        before = self.editor.words

        def put(text: str) -> None:
            come = self.editor.words.removesuffix(before).strip("\n")  # such as what waited for a run that failed
            if text != before:
                self.editor.put("\n\n".join(filter(None, [come, text])))

        edit(self.app, before, put)

    def action_permission(self) -> None:
        self.permission.take_keyboard()

    def action_unfold(self) -> None:
        self.transcript.unfold_all(not self.transcript.unfolded)

    def action_browse(self) -> None:
        if self.transcript.has_focus:
            self.transcript.action_step(-1)
        else:
            self.transcript.focus()

    def action_page(self, by: int) -> None:
        self.transcript.scroll_page_down(animate=False) if by > 0 else self.transcript.scroll_page_up(animate=False)

    def action_thinking(self) -> None:
        self.run_worker(self._next_level(), group="thinking", exclusive=True, exit_on_error=False)

    async def _next_level(self) -> None:
        from sessiontree.commands.arguments import LEVELS

        if self.desk is None:
            return
        self.asked()
        try:
            agent = self.desk.agent
            at = LEVELS.index(agent.thinking) if agent.thinking in LEVELS else -1
            await agent.set_thinking(LEVELS[(at + 1) % len(LEVELS)])
        except SessionTreeError as error:
            self.fail(error)

    def on_paste(self, event: events.Paste) -> None:
        """What is pasted while something else has the keyboard goes to the editor."""
        self.editor.focus()
        self.editor.post_message(events.Paste(event.text))


def _images(paths: list[str], cwd: str) -> list[JsonObject]:
    """The images among files that a text names. Other files are for the model to read."""
    from sessiontree.agent.tools.files import image_in

    found: list[JsonObject] = []
    for path in paths:
        full = os.path.join(cwd, os.path.expanduser(path))
        if os.path.isfile(full) and full.lower().endswith((".png", ".jpg", ".jpeg", ".gif", ".webp")):
            with open(full, "rb") as file:
                image = image_in(file, path)
            if image is not None:
                found.append(image)
    return found


def _read_only(error: ReadOnly, session: Session) -> str:
    """Why a session cannot be written to, and what to do where a fork can."""
    text = f"read-only, {error.reason}"
    try:
        check_copied(session, "a fork")
    except ReadOnly:
        return text
    return f"{text}: /fork goes on in a new session"


def _advised(text: str, session: Session) -> str:
    """What went wrong with a session's file, and what to do where nothing can be written to it."""
    file = session.file
    if file is None or str(file) not in text:
        return text
    if not file.exists():
        return "the file of this session was deleted by another program: /fork goes on in a new one, with all of it"
    writable = os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)
    return text if writable else f"{text}: /fork goes on in a new session"
