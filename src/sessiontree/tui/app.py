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
from sessiontree.core.places import find_free_name
from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError
from sessiontree.session import Branch, Session
from sessiontree.store import lock_wait
from sessiontree.tui.keys import Key, build_keymap, find_key_errors, list_keys
from sessiontree.tui.ordered import OrderedKeysApp
from sessiontree.tui.screens.chat_screen import ChatScreen
from sessiontree.tui.services.terminal import TerminalDriver
from sessiontree.tui.theme import DARK, LIGHT, NOTIFICATION_CSS, TranscriptStyles, get_styles, get_theme

if TYPE_CHECKING:
    from sessiontree.commands.controller import SessionController
    from sessiontree.commands.models import Models
    from sessiontree.commands.registry import CommandOutcome
    from sessiontree.extensions.api import Shortcut
    from sessiontree.extensions.loader import ExtensionLoader
    from sessiontree.tui.app_ui import AppUi
    from sessiontree.tui.screens.compare_view import ComparisonSides
    from sessiontree.tui.services.other_processes import PresenceLock
    from sessiontree.tui.widgets.transcript_blocks import EntryRenderer

QUIT_SIGNALS = (signal.SIGHUP, signal.SIGTERM)
"""What one gets when the terminal is closed or the system ends: the app is left as by its key."""
LOCK_SECONDS = 2.0
"""How long the thread that draws the screen waits for a lock."""
REFRESH_SECONDS = 1.0
"""How often is looked whether somebody else has written."""

HELP_COLUMN = 44
"""The column where the list of keys says what each does."""

FOLLOW, BRANCH, READ = (
    "Follow: see what it writes, and write in turn",
    "Branch: go on beside it, on a branch of your own",
    "Read only: look, and write nothing",
)


class AppOptions(Struct, frozen=True, kw_only=True):
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


class SessionApp(OrderedKeysApp[None]):
    CSS = NOTIFICATION_CSS
    ENABLE_COMMAND_PALETTE = False
    TITLE = "sessiontree"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "leave", show=False, system=True)]

    def __init__(self, start: AppOptions, *, models: Models | None = None) -> None:
        super().__init__(driver_class=TerminalDriver, ansi_color="NO_COLOR" in os.environ)
        self.options = start
        self.chat = ChatScreen()
        self.desk: SessionController | None = None
        self.ready = asyncio.Event()
        """Set when the session is there."""
        self.model_found = asyncio.Event()
        """Set when a model was found, or it is clear that there is none."""
        self.ui: AppUi
        self._models = models
        self._extensions: ExtensionLoader | None = None
        self._presence: PresenceLock | None = None
        self._last_size: object = None
        """Of the session's file, when it was last looked at."""
        self._is_following = False
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = "ansi-dark" if self.no_color else get_theme(start.light).name
        self.set_keymap(build_keymap(start.settings.keys))

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            self.chat.permission.note_key(event)
        await super().on_event(event)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"muted": "ansi_default" if self.no_color else DARK.variables["muted"]}

    def get_default_screen(self) -> Screen[Any]:
        return self.chat

    @property
    def is_alone(self) -> bool:
        """Whether no other process had the session open when this one came."""
        return self._presence is None or self._presence.is_alone

    @property
    def transcript_styles(self) -> TranscriptStyles:
        return get_styles(self.theme)

    @property
    def renderers(self) -> dict[str, EntryRenderer]:
        return {} if self._extensions is None else self._extensions.ui_registry.renderers

    # Beginning

    def on_mount(self) -> None:
        lock_wait.report = self._report_wait
        lock_wait.set_wait_limit(LOCK_SECONDS)
        with suppress(ValueError, RuntimeError):  # signals come to the main thread alone
            for number in QUIT_SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self.request_quit)
        self.call_after_refresh(self._start_opening)

    def _report_wait(self, text: str) -> None:
        self.ui.notify(text, "warning")

    def _start_opening(self) -> None:
        self.run_worker(self._open_session(), group="open", exit_on_error=True)

    async def _open_session(self) -> None:
        from sessiontree.tui.app_ui import AppUi

        self.ui = AppUi(self)
        for fault in find_key_errors(self.options.settings.keys):
            self.ui.notify(fault, "warning")
        given, here = self.options.session, False
        while not here:
            session = await self._pick_first_session() if given is None else given
            if session is not None:
                self.chat.show_activity("opening")
                await asyncio.to_thread(_preload_modules)
                here = await self._attach_session(session)
                self.chat.show_activity("")
            if session is None or (given is not None and not here):
                self.exit()
                return
        self.set_interval(REFRESH_SECONDS, self._refresh_session)
        await self._find_model()
        await self._load_extensions()

    async def _pick_first_session(self) -> Session | None:
        from sessiontree.library import catalog
        from sessiontree.tui.screens.session_picker import SessionsScreen

        while True:
            file = await self.ui.ask(SessionsScreen(self.options.cwd))
            if file is None:
                return None
            try:
                return catalog.open(file)
            except SessionTreeError as error:
                self.ui.notify(str(error), "error")

    async def _attach_session(self, session: Session) -> bool:
        """Begin in a session. Says whether one is in it now."""
        from sessiontree.agent.setup import load_agent_options
        from sessiontree.commands.controller import SessionController
        from sessiontree.tui.app_commands import build_app_commands
        from sessiontree.tui.app_ui import AppHost

        await asyncio.to_thread(lambda: session.tree)
        branch = await self.enter_session(session, self.options.branch)
        if branch is None:
            session.close()
            return False
        options = load_agent_options(
            self.options.settings,
            mode=self.options.permission_mode,
            allow=self.options.allow,
            asker=self.ui.ask_permission,
            cwd=self.options.cwd,
        )
        self.desk = SessionController(
            branch.session,
            branch=branch,
            commands=build_app_commands(self),
            models=self._models,
            options=options,
            ui=self.ui,
            host=AppHost(self),
            fresh=self.options.fresh,
        )
        self.chat.attach(self.desk)
        await self.desk.start()
        self.ready.set()
        return True

    async def enter_session(self, session: Session, branch: str | None = None) -> Branch | None:
        """Put this process's mark on a session, and say which branch of it to be on: one beside it, if another
        process has it open and that is wanted. `None` when one stays where one is."""
        from sessiontree.tui.services.other_processes import PresenceLock

        there = None
        here = session.head if branch is None else session.branch(branch)
        before = self._presence
        again = before is not None and before.belongs_to(session)
        if before is not None and again:
            before.release()  # it is no other process's
        presence = PresenceLock(session)
        try:
            there = await self._resolve_branch(here, presence.is_alone)
        finally:
            if there is None and not again:
                presence.release()
            else:
                if before is not None:
                    before.release()
                self._presence = presence
        if there is not None:
            self._last_size = _read_size(there.session)
        return there

    def check_session(self, session: Session) -> None:
        self.run_worker(self._report_problems(session), group="faults", exclusive=True, exit_on_error=False)

    async def _report_problems(self, session: Session) -> None:
        """Say what is wrong with a session. All of it is read for that, so it is not waited for."""
        from sessiontree.tui.faults import find_problems

        faults = [] if session.file is None else await find_problems(str(session.file))
        if faults:
            more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            self.chat.show_error(f"{faults[0]}{more}: `sessiontree doctor` tells all")

    async def _resolve_branch(self, branch: Branch, alone: bool) -> Branch | None:
        """Where to be, also where another process has the session open; `None` when that is not wanted then."""
        from sessiontree.library import catalog

        session = branch.session
        chosen = FOLLOW
        if not alone:
            chosen = await self.ui.select("Another process has this session open.", [FOLLOW, BRANCH, READ])
        if chosen is None:
            return None
        self._is_following = chosen == FOLLOW and not alone
        if chosen == BRANCH:
            name = find_free_name("beside", session.heads.heads, 2)
            return session.create_branch(name, at=branch.name, current=False)
        return branch if chosen == FOLLOW else catalog.open(session.location, read_only=True).branch(branch.name)

    async def _find_model(self) -> None:
        """Find the model in a thread: the one that was asked for, that the session had, or the usual one."""
        from sessiontree.commands.models import choose_model

        desk, footer = self.desk, self.chat.footer
        assert desk is not None
        footer.model_note = "finding a model …"
        try:
            model, warning = await asyncio.to_thread(choose_model, desk.models, self.options.model, desk.branch.state)
            if warning is not None:
                self.ui.notify(warning, "warning")
            await desk.set_model(model)
            if not desk.session.tree.real_count:
                desk.agent.thinking = self.options.settings.thinking
        except SessionTreeError as error:
            footer.model_note = "no model"
            self.chat.show_error(error)
        self.model_found.set()
        self.chat.update_footer()

    async def _load_extensions(self) -> None:
        from sessiontree.extensions.loader import ExtensionLoader

        desk = self.desk
        assert desk is not None
        try:
            self._extensions = ExtensionLoader(desk, self.options.extensions)
            self.chat.editor.is_extension_key = self._extensions.ui_registry.shortcuts.__contains__
            await self._extensions.load()
        except SessionTreeError as error:
            self.chat.show_error(error)
            return
        if self._extensions.ui_registry.renderers:
            self.chat.reload()
        self.run_worker(self._extensions.watch(), group="watch", exclusive=True, exit_on_error=False)

    # Others at the same session

    async def _refresh_session(self) -> None:
        """Take in what other processes have written to the session."""
        desk = self.desk
        if desk is None or desk.is_running:
            return
        # A file is looked at here, a database asked in a thread: it may be far away.
        session = desk.session
        size = await asyncio.to_thread(_read_size, session) if session.file is None else _read_size(session)
        if size == self._last_size:
            return
        self._last_size = size
        before = desk.branch.leaf
        try:
            entries = await asyncio.to_thread(desk.session.refresh)
        except (SessionTreeError, OSError) as error:
            self.chat.show_error(error)
            return
        if entries and not self._is_following:
            self._is_following = True
            self.ui.notify("another process writes to this session: what it writes is shown here", "warning")
        if desk.branch.leaf != before:
            self.chat.reload()

    # Ending

    def request_quit(self) -> None:
        self.run_worker(self._quit(), group="leave", exclusive=True)

    def action_leave(self) -> None:
        self.request_quit()

    async def _quit(self) -> None:
        self.chat.save_draft()
        message = None
        if self.desk is not None:
            try:
                await self.desk.close()
            except SessionTreeError as error:  # one can always leave
                message = Text(f"sessiontree: {escape_line(str(error))}")
            self._release_presence()
            await self.desk.drop_unused()
        self.exit(message=message)

    def on_unmount(self) -> None:
        lock_wait.report = lock_wait.log_wait
        lock_wait.set_wait_limit(None)
        for number in QUIT_SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._release_presence()

    def _release_presence(self) -> None:
        if self._presence is not None:
            self._presence.release()

    # What commands and keys ask for

    async def complete_command(self, line: str) -> str | None:
        from sessiontree.tui.asking import complete_command

        assert self.desk is not None
        return await complete_command(self.desk, line, self.choose_entry)

    def action_command(self, line: str) -> None:
        self._schedule_command(line)

    def action_tree(self) -> None:
        self._schedule_command("/tree")

    def action_sessions(self) -> None:
        self._schedule_command("/resume")

    def handle_double_escape(self) -> None:
        doing = {"tree": "/tree", "fork": "/fork"}.get(self.options.settings.double_escape)
        if doing is not None:
            self._schedule_command(doing)

    def _schedule_command(self, line: str) -> None:
        running = self.desk is not None and self.desk.is_running
        if running or not any(worker.name == line for worker in self.workers):  # pressed twice, a key asks once
            self.run_worker(self._run_command(line), name=line, group="command", exit_on_error=False)

    async def _run_command(self, line: str) -> None:
        await self.ready.wait()
        if self.screen is not self.chat:  # another key was quicker
            return
        try:
            await self.chat.run_command(line)
        except SessionTreeError as error:
            self.chat.show_error(error)
        self.chat.update_footer()

    def on_key(self, event: Any) -> None:
        """Keys of extensions. What they do is not waited for: it may ask the person, by keys again."""
        shortcuts = {} if self._extensions is None else self._extensions.ui_registry.shortcuts
        shortcut = shortcuts.get(event.key)
        if shortcut is not None:
            event.stop()
            event.prevent_default()
            self.run_worker(self._run_shortcut(shortcut), group="shortcut", exit_on_error=False)

    async def _run_shortcut(self, shortcut: Shortcut) -> None:
        self.chat.reset_error()
        try:
            await shortcut.run()
        except SessionTreeError as error:
            self.chat.show_error(error)

    async def choose_entry(self, question: str) -> EntryId | None:
        """Have an entry chosen in the tree, for a command that needs one."""
        from sessiontree.tui.screens.tree_screen import TreeScreen

        assert self.desk is not None
        desk = self.desk
        tree = TreeScreen(desk.session, summaries="none", branch=desk.branch.name, question=question)
        choice = await self.ui.ask(tree)
        return None if choice is None else choice.entry

    async def navigate_tree(self, at: EntryId | None = None) -> CommandOutcome:
        """Go to a place that is chosen in the tree, where the cursor is at first on `at`, with its details shown.

        What runs is given up only once it is chosen.
        """
        from sessiontree.commands.registry import CommandOutcome
        from sessiontree.tui.screens.tree_screen import TreeScreen

        desk = self.desk
        assert desk is not None
        summaries = "unasked" if self.options.settings.summary.skip_prompt else "ask"
        choice = await self.ui.ask(
            TreeScreen(desk.session, summaries=summaries, branch=desk.branch.name, at=at, pane=at is not None)
        )
        if choice is None:
            return CommandOutcome()
        if desk.has_agent and desk.agent.running:
            desk.abort()
            await desk.agent.wait_until_idle()
        try:
            outcome = await desk.navigate(
                desk.session.tree[choice.entry],
                summarize=choice.summarize,
                custom_instructions=choice.instructions,
                summary=choice.summary,
            )
        except SessionTreeError as error:
            raise InvalidOperation(f"{error}; nothing changed") from error
        return CommandOutcome(text="Cancelled. Nothing changed." if outcome.aborted else "")

    async def pick_session(self) -> None:
        """Go over to another session."""
        from sessiontree.tui.screens.session_picker import SessionsScreen

        desk = self.desk
        assert desk is not None
        own = desk.session
        file = await self.ui.ask(SessionsScreen(own.cwd or self.options.cwd, own=own))
        if file is not None and file != own.address:
            await desk.open_session(file)

    async def search(self, query: str) -> CommandOutcome:
        """Look through sessions, and show what is chosen in the tree of its session."""
        from sessiontree.commands.registry import CommandOutcome
        from sessiontree.tui.screens.search_screen import SearchScreen

        desk = self.desk
        assert desk is not None
        own = desk.session.address
        hit = await self.ui.ask(SearchScreen(desk.session.cwd or self.options.cwd, query, own=own))
        if hit is None or (hit.file != own and not await desk.open_session(hit.file)):
            return CommandOutcome()
        if hit.entry not in desk.session.tree:
            raise NotFound("entry", hit.entry)
        return await self.navigate_tree(hit.entry)

    def show_page(self, text: str | Text, title: str = "") -> None:
        from sessiontree.tui.screens.dialogs import PageDialog

        self.push_screen(PageDialog(title, escape_lines(text) if isinstance(text, str) else text))

    def show_comparison(self, sides: ComparisonSides) -> None:
        from sessiontree.tui.screens.compare_view import ComparisonScreen

        self.push_screen(ComparisonScreen(sides))

    def open_in_browser(self, path: str) -> None:
        """Show a file in the browser, where there is a screen to show it on."""
        if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            self.open_url(Path(path).absolute().as_uri())

    def show_hotkeys(self) -> None:
        shown = Text()
        said = build_keymap(self.options.settings.keys)
        areas = list_keys(said)
        if self._extensions is not None and self._extensions.ui_registry.shortcuts:
            keys = self._extensions.ui_registry.shortcuts.values()
            areas.append(("extensions", [Key(key.source, key.key, key.help) for key in keys]))
        room = max(20, self.size.width - HELP_COLUMN - 6)
        for area, keys in areas:
            shown.append(f"{area}\n", "bold")
            for key in keys:
                shown.append(f"  {escape_line(key.keys):<22} ", "bold")
                shown.append(f"{escape_line(key.name):<18} ", "dim")
                shown.append(f"\n{' ' * HELP_COLUMN}".join(wrap(escape_line(key.help), room) or [""]) + "\n")
        self.show_page(shown, "Keys; [keys] in the configuration binds them anew")


def _preload_modules() -> None:
    """Import what a desk needs, in a thread, so that keys are answered meanwhile."""
    for module in ("agent.tools", "commands.builtin", "commands.desk"):
        import_module(f"sessiontree.{module}")


def _read_size(session: Session) -> object:
    """How far the session goes: something else when others have written."""
    try:
        if session.file is None:
            return session.store.read_end().cursor.value
        status = os.stat(session.file)
        return status.st_size, status.st_mtime_ns  # what a writer takes back leaves the size as it is
    except (OSError, SessionTreeError):
        return None
