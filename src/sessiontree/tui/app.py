"""The app: opens a session on a desk, shows the chat, and puts screens over it for what commands and people ask.

The first picture comes before anything is read: the session is opened, extensions are loaded and a model is found
while one can already type.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.screen import Screen

from sessiontree.config import Config, PermissionMode
from sessiontree.core.entries import EntryId
from sessiontree.core.places import free_name
from sessiontree.core.safe import safe, safe_lines
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError
from sessiontree.session import Branch, Session
from sessiontree.store import waiting
from sessiontree.tui.chat import ChatScreen
from sessiontree.tui.keys import Key, faults, keymap, listed
from sessiontree.tui.ordered import OrderedApp
from sessiontree.tui.terminal import TerminalDriver
from sessiontree.tui.theme import DARK, LIGHT, NOTICES, Look, look_of, theme_for

if TYPE_CHECKING:
    from sessiontree.commands.command import Done
    from sessiontree.commands.desk import Desk
    from sessiontree.commands.models import Models
    from sessiontree.extensions.api import Shortcut
    from sessiontree.extensions.extensions import Extensions
    from sessiontree.tui.beside import Sides
    from sessiontree.tui.blocks import Renderer
    from sessiontree.tui.presence import Presence
    from sessiontree.tui.ui import AppUi

ENDING = (signal.SIGHUP, signal.SIGTERM)
"""What one gets when the terminal is closed or the system ends: the app is left as by its key."""
LOCK_SECONDS = 2.0
"""How long the thread that draws the screen waits for a lock."""
OTHERS_SECONDS = 1.0
"""How often is looked whether somebody else has written."""

HELP_AT = 44
"""The column where the list of keys says what each does."""

FOLLOW, BRANCH, READ = (
    "Follow: see what it writes, and write in turn",
    "Branch: go on beside it, on a branch of your own",
    "Read only: look, and write nothing",
)


class Start(Struct, frozen=True, kw_only=True):
    """How the app is to begin."""

    session: Session | None
    """`None` has one chosen."""
    cwd: str
    branch: str | None = None
    model: str | None = None
    extensions: tuple[str, ...] = ()
    permission_mode: PermissionMode | None = None
    allow: tuple[str, ...] = ()
    """Rules of permissions for this time."""
    settings: Config = Config()
    light: bool = False
    fresh: bool = False
    """Whether the session was made just now: one in which nothing was said is not kept."""


class SessionApp(OrderedApp[None]):
    CSS = NOTICES
    ENABLE_COMMAND_PALETTE = False
    TITLE = "sessiontree"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "leave", show=False, system=True)]

    def __init__(self, start: Start, *, models: Models | None = None) -> None:
        super().__init__(driver_class=TerminalDriver, ansi_color="NO_COLOR" in os.environ)
        self.start = start
        self.chat = ChatScreen()
        self.desk: Desk | None = None
        self.ready = asyncio.Event()
        """Set when the session is there."""
        self.model_found = asyncio.Event()
        """Set when a model was found, or it is clear that there is none."""
        self.ui: AppUi
        self._models = models
        self._extensions: Extensions | None = None
        self._presence: Presence | None = None
        self._file_size: object = None
        """Of the session's file, when it was last looked at."""
        self._followed = False
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = "ansi-dark" if self.no_color else theme_for(start.light).name
        self.set_keymap(keymap(start.settings.keys))

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            self.chat.permission.note_key(event)
        await super().on_event(event)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"muted": "ansi_default" if self.no_color else DARK.variables["muted"]}

    def get_default_screen(self) -> Screen[Any]:
        return self.chat

    @property
    def alone(self) -> bool:
        """Whether no other process had the session open when this one came."""
        return self._presence is None or self._presence.alone

    @property
    def look(self) -> Look:
        return look_of(self.theme)

    @property
    def renderers(self) -> dict[str, Renderer]:
        return {} if self._extensions is None else self._extensions.fittings.renderers

    # Beginning

    def on_mount(self) -> None:
        waiting.report = self._report_wait
        waiting.set_limit(LOCK_SECONDS)
        with suppress(ValueError, RuntimeError):  # signals come to the main thread alone
            for number in ENDING:
                asyncio.get_running_loop().add_signal_handler(number, self.leave)
        self.call_after_refresh(self._begin)

    def _report_wait(self, text: str) -> None:
        self.ui.notify(text, "warning")

    def _begin(self) -> None:
        self.run_worker(self._open(), group="open", exit_on_error=True)

    async def _open(self) -> None:
        from sessiontree.tui.ui import AppUi

        self.ui = AppUi(self)
        for fault in faults(self.start.settings.keys):
            self.ui.notify(fault, "warning")
        given, here = self.start.session, False
        while not here:
            session = await self._picked() if given is None else given
            if session is not None:
                self.chat.do("opening")
                await asyncio.to_thread(_prepare)
                here = await self._sit_down(session)
                self.chat.do("")
            if session is None or (given is not None and not here):
                self.exit()
                return
        self.set_interval(OTHERS_SECONDS, self._look_for_others)
        await self._find_model()
        await self._load_extensions()

    async def _picked(self) -> Session | None:
        from sessiontree import catalog
        from sessiontree.tui.sessions import SessionsScreen

        while True:
            file = await self.ui.ask(SessionsScreen(self.start.cwd))
            if file is None:
                return None
            try:
                return catalog.open(file)
            except SessionTreeError as error:
                self.ui.notify(str(error), "error")

    async def _sit_down(self, session: Session) -> bool:
        """Begin in a session. Says whether one is in it now."""
        from sessiontree.agent.permissions import Permissions
        from sessiontree.agent.tools import builtin_tools
        from sessiontree.commands.desk import Desk
        from sessiontree.home import home
        from sessiontree.tui.commands import app_commands
        from sessiontree.tui.ui import AppHost

        await asyncio.to_thread(lambda: session.tree)
        branch = await self.arrive(session, self.start.branch)
        if branch is None:
            session.close()
            return False
        permissions = Permissions.of_user(
            self.start.settings,
            home(),
            mode=self.start.permission_mode,
            allow=self.start.allow,
            asker=self.ui.ask_permission,
        )
        self.desk = Desk(
            branch.session,
            branch=branch,
            commands=app_commands(self),
            models=self._models,
            tools=builtin_tools(),
            ui=self.ui,
            host=AppHost(self),
            settings=self.start.settings,
            fresh=self.start.fresh,
            cwd=self.start.cwd,
            permissions=permissions,
        )
        self.chat.sit_down(self.desk)
        await self.desk.start()
        self.ready.set()
        return True

    async def arrive(self, session: Session, branch: str | None = None) -> Branch | None:
        """Put this process's mark on a session, and say which branch of it to be on: one beside it, if another
        process has it open and that is wanted. `None` when one stays where one is."""
        from sessiontree.tui.presence import Presence

        there = None
        here = session.head if branch is None else session.branch(branch)
        before = self._presence
        again = before is not None and before.is_of(session)
        if before is not None and again:
            before.leave()  # it is no other process's
        presence = Presence(session)
        try:
            there = await self._wanted(here, presence.alone)
        finally:
            if there is None and not again:
                presence.leave()
            else:
                if before is not None:
                    before.leave()
                self._presence = presence
        if there is not None:
            self._file_size = _size(there.session)
        return there

    def look_for_faults(self, session: Session) -> None:
        self.run_worker(self._tell_faults(session), group="faults", exclusive=True, exit_on_error=False)

    async def _tell_faults(self, session: Session) -> None:
        """Say what is wrong with a session. All of it is read for that, so it is not waited for."""
        from sessiontree.tui.faults import faults_of

        faults = [] if session.file is None else await faults_of(str(session.file))
        if faults:
            more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            self.chat.fail(f"{faults[0]}{more}: `sessiontree doctor` tells all")

    async def _wanted(self, branch: Branch, alone: bool) -> Branch | None:
        """Where to be, also where another process has the session open; `None` when that is not wanted then."""
        from sessiontree import catalog

        session = branch.session
        chosen = FOLLOW
        if not alone:
            chosen = await self.ui.select("Another process has this session open.", [FOLLOW, BRANCH, READ])
        if chosen is None:
            return None
        self._followed = chosen == FOLLOW and not alone
        if chosen == BRANCH:
            name = free_name("beside", session.heads.heads, 2)
            return session.create_branch(name, at=branch.name, current=False)
        return branch if chosen == FOLLOW else catalog.open(session.where, read_only=True).branch(branch.name)

    async def _find_model(self) -> None:
        """Find the model in a thread: the one that was asked for, that the session had, or the usual one."""
        from sessiontree.commands.models import choose

        desk, footer = self.desk, self.chat.footer
        assert desk is not None
        footer.model_note = "finding a model …"
        try:
            model, warning = await asyncio.to_thread(choose, desk.models, self.start.model, desk.branch.state)
            if warning is not None:
                self.ui.notify(warning, "warning")
            await desk.set_model(model)
            if not desk.session.tree.real_count:
                desk.agent.thinking = self.start.settings.thinking
        except SessionTreeError as error:
            footer.model_note = "no model"
            self.chat.fail(error)
        self.model_found.set()
        self.chat.update_footer()

    async def _load_extensions(self) -> None:
        from sessiontree.extensions.extensions import Extensions

        desk = self.desk
        assert desk is not None
        try:
            self._extensions = Extensions(desk, self.start.extensions)
            self.chat.editor.claimed = self._extensions.fittings.shortcuts.__contains__
            await self._extensions.load()
        except SessionTreeError as error:
            self.chat.fail(error)
            return
        if self._extensions.fittings.renderers:
            self.chat.reload()
        self.run_worker(self._extensions.watch(), group="watch", exclusive=True, exit_on_error=False)

    # Others at the same session

    async def _look_for_others(self) -> None:
        """Take in what other processes have written to the session."""
        desk = self.desk
        if desk is None or desk.running:
            return
        # A file is looked at here, a database asked in a thread: it may be far away.
        session = desk.session
        size = await asyncio.to_thread(_size, session) if session.file is None else _size(session)
        if size == self._file_size:
            return
        self._file_size = size
        before = desk.branch.leaf
        try:
            entries = await asyncio.to_thread(desk.session.refresh)
        except (SessionTreeError, OSError) as error:
            self.chat.fail(error)
            return
        if entries and not self._followed:
            self._followed = True
            self.ui.notify("another process writes to this session: what it writes is shown here", "warning")
        if desk.branch.leaf != before:
            self.chat.reload()

    # Ending

    def leave(self) -> None:
        self.run_worker(self._leave(), group="leave", exclusive=True)

    def action_leave(self) -> None:
        self.leave()

    async def _leave(self) -> None:
        self.chat.keep_draft()
        message = None
        if self.desk is not None:
            try:
                await self.desk.close()
            except SessionTreeError as error:  # one can always leave
                message = Text(f"sessiontree: {safe(str(error))}")
            self._take_mark_away()
            await self.desk.drop_unused()
        self.exit(message=message)

    def on_unmount(self) -> None:
        waiting.report = waiting.log_wait
        waiting.set_limit(None)
        for number in ENDING:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._take_mark_away()

    def _take_mark_away(self) -> None:
        if self._presence is not None:
            self._presence.leave()

    # What commands and keys ask for

    async def filled(self, line: str) -> str | None:
        from sessiontree.tui.asking import filled

        assert self.desk is not None
        return await filled(self.desk, line, self.choose_entry)

    def action_command(self, line: str) -> None:
        self._later(line)

    def action_tree(self) -> None:
        self._later("/tree")

    def action_sessions(self) -> None:
        self._later("/resume")

    def double_escape(self) -> None:
        doing = {"tree": "/tree", "fork": "/fork"}.get(self.start.settings.double_escape)
        if doing is not None:
            self._later(doing)

    def _later(self, line: str) -> None:
        running = self.desk is not None and self.desk.running
        if running or not any(worker.name == line for worker in self.workers):  # pressed twice, a key asks once
            self.run_worker(self._command(line), name=line, group="command", exit_on_error=False)

    async def _command(self, line: str) -> None:
        await self.ready.wait()
        if self.screen is not self.chat:  # another key was quicker
            return
        try:
            await self.chat.run_command(line)
        except SessionTreeError as error:
            self.chat.fail(error)
        self.chat.update_footer()

    def on_key(self, event: Any) -> None:
        """Keys of extensions. What they do is not waited for: it may ask the person, by keys again."""
        shortcuts = {} if self._extensions is None else self._extensions.fittings.shortcuts
        shortcut = shortcuts.get(event.key)
        if shortcut is not None:
            event.stop()
            event.prevent_default()
            self.run_worker(self._pressed(shortcut), group="shortcut", exit_on_error=False)

    async def _pressed(self, shortcut: Shortcut) -> None:
        self.chat.asked()
        try:
            await shortcut.run()
        except SessionTreeError as error:
            self.chat.fail(error)

    async def choose_entry(self, question: str) -> EntryId | None:
        """Have an entry chosen in the tree, for a command that needs one."""
        from sessiontree.tui.tree import TreeScreen

        assert self.desk is not None
        desk = self.desk
        tree = TreeScreen(desk.session, summaries="none", branch=desk.branch.name, question=question)
        choice = await self.ui.ask(tree)
        return None if choice is None else choice.entry

    async def travel(self, at: EntryId | None = None) -> Done:
        """Go to a place that is chosen in the tree, where the cursor is at first on `at`, with its details shown.

        What runs is given up only once it is chosen.
        """
        from sessiontree.commands.command import Done
        from sessiontree.tui.tree import TreeScreen

        desk = self.desk
        assert desk is not None
        summaries = "unasked" if self.start.settings.summary.skip_prompt else "ask"
        choice = await self.ui.ask(
            TreeScreen(desk.session, summaries=summaries, branch=desk.branch.name, at=at, pane=at is not None)
        )
        if choice is None:
            return Done()
        if desk.has_agent and desk.agent.running:
            desk.abort()
            await desk.agent.idle()
        try:
            outcome = await desk.navigate(
                desk.session.tree[choice.entry],
                summarize=choice.summarize,
                custom_instructions=choice.instructions,
                summary=choice.summary,
            )
        except SessionTreeError as error:
            raise InvalidOperation(f"{error}; nothing changed") from error
        return Done(text="Cancelled. Nothing changed." if outcome.aborted else "")

    async def pick_session(self) -> None:
        """Go over to another session."""
        from sessiontree.tui.sessions import SessionsScreen

        desk = self.desk
        assert desk is not None
        own = desk.session
        file = await self.ui.ask(SessionsScreen(own.cwd or self.start.cwd, own=own))
        if file is not None and file != own.kept_at:
            await desk.open(file)

    async def search(self, query: str) -> Done:
        """Look through sessions, and show what is chosen in the tree of its session."""
        from sessiontree.commands.command import Done
        from sessiontree.tui.search import SearchScreen

        desk = self.desk
        assert desk is not None
        own = desk.session.kept_at
        hit = await self.ui.ask(SearchScreen(desk.session.cwd or self.start.cwd, query, own=own))
        if hit is None or (hit.file != own and not await desk.open(hit.file)):
            return Done()
        if hit.entry not in desk.session.tree:
            raise NotFound("entry", hit.entry)
        return await self.travel(hit.entry)

    def show_page(self, text: str | Text, title: str = "") -> None:
        from sessiontree.tui.dialogs import Page

        self.push_screen(Page(title, safe_lines(text) if isinstance(text, str) else text))

    def show_beside(self, sides: Sides) -> None:
        from sessiontree.tui.beside import BesideScreen

        self.push_screen(BesideScreen(sides))

    def open_page(self, path: str) -> None:
        """Show a file in the browser, where there is a screen to show it on."""
        if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            self.open_url(Path(path).absolute().as_uri())

    def show_hotkeys(self) -> None:
        shown = Text()
        said = keymap(self.start.settings.keys)
        areas = listed(said)
        if self._extensions is not None and self._extensions.fittings.shortcuts:
            keys = self._extensions.fittings.shortcuts.values()
            areas.append(("extensions", [Key(key.source, key.key, key.help) for key in keys]))
        room = max(20, self.size.width - HELP_AT - 6)
        for area, keys in areas:
            shown.append(f"{area}\n", "bold")
            for key in keys:
                shown.append(f"  {safe(key.keys):<22} ", "bold")
                shown.append(f"{safe(key.name):<18} ", "dim")
                shown.append(f"\n{' ' * HELP_AT}".join(wrap(safe(key.help), room) or [""]) + "\n")
        self.show_page(shown, "Keys; [keys] in the configuration binds them anew")


def _prepare() -> None:
    """Import what a desk needs, in a thread, so that keys are answered meanwhile."""
    for module in ("agent.tools", "commands.builtin", "commands.desk"):
        import_module(f"sessiontree.{module}")


def _size(session: Session) -> object:
    """How far the session goes: something else when others have written."""
    try:
        if session.file is None:
            return session.store.end().cursor.value
        status = os.stat(session.file)
        return status.st_size, status.st_mtime_ns  # what a writer takes back leaves the size as it is
    except (OSError, SessionTreeError):
        return None
