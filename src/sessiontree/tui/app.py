"""The terminal app: open a session, show the chat, and push other screens on top of it.

The chat appears before any I/O. The app opens the session, finds a model and loads extensions while the user types.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.screen import Screen

from sessiontree.config import Config, PermissionMode, load_config
from sessiontree.core.entries import EntryId
from sessiontree.core.place_names import find_free_name
from sessiontree.core.sanitize import escape_line, escape_lines
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError
from sessiontree.library import catalog
from sessiontree.library.other_processes import PresenceLock, read_change_mark
from sessiontree.session import Branch, Session
from sessiontree.slash_commands.registry import CommandOutcome
from sessiontree.store import lock
from sessiontree.tui.keys import Key, OrderedKeysApp, build_keymap, find_key_errors, list_keys
from sessiontree.tui.screens.chat_screen import ChatScreen
from sessiontree.tui.services.session_checks import find_problems
from sessiontree.tui.services.terminal import TerminalDriver, notify_desktop, set_terminal_title
from sessiontree.tui.theme import DARK, NOTIFICATION_CSS, THEMES, TranscriptStyles, get_styles, get_theme

if TYPE_CHECKING:
    from sessiontree.extensions.api import Shortcut
    from sessiontree.extensions.loader import ExtensionLoader
    from sessiontree.slash_commands.controller import SessionController
    from sessiontree.slash_commands.models import Models
    from sessiontree.tui.screens.compare_view import ComparisonSides
    from sessiontree.tui.screens.dialogs import AppUi
    from sessiontree.tui.widgets.transcript_blocks import EntryRenderer

QUIT_SIGNALS = (signal.SIGHUP, signal.SIGTERM)
"""Sent when the terminal closes or the system shuts down. The app quits as if the user had asked for it."""
LOCK_SECONDS = 2.0
"""Maximum time the UI thread waits for a lock."""
REFRESH_SECONDS = 1.0
"""Interval between checks for writes by other processes."""

HELP_COLUMN = 44
"""Column of the help text in the key list."""

FOLLOW, BRANCH, READ = (
    "Follow: share the branch and see its new entries",
    "Branch: continue on a new branch",
    "Read-only: view the session without writing",
)


class AppOptions(Struct, frozen=True, kw_only=True):
    """Options for starting the app."""

    session: Session | None
    """`None` shows the session picker."""
    cwd: str
    branch: str | None = None
    model: str | None = None
    extensions: tuple[str, ...] = ()
    permission_mode: PermissionMode | None = None
    allow: tuple[str, ...] = ()
    """Permission rules for this run only."""
    settings: Config = Config()
    light: bool = False
    fresh: bool = False
    """Whether the session was just created. A new session without messages is deleted on exit."""


class SessionApp(OrderedKeysApp[None]):
    CSS = NOTIFICATION_CSS
    ENABLE_COMMAND_PALETTE = False
    TITLE = "sessiontree"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+q", "leave", show=False, system=True)]

    def __init__(self, options: AppOptions, *, models: Models | None = None) -> None:
        super().__init__(driver_class=TerminalDriver, ansi_color="NO_COLOR" in os.environ)
        self.options = options
        self.chat = ChatScreen()
        self.controller: SessionController | None = None
        self.ready = asyncio.Event()
        """Set when the session is open."""
        self.model_found = asyncio.Event()
        """Set when the search for a model has finished, with or without a result."""
        self.ui: AppUi
        self._models = models
        self._extensions: ExtensionLoader | None = None
        self._presence: PresenceLock | None = None
        self._last_size: object = None
        """Size of the session when it was last checked."""
        self._is_following = False
        for theme in THEMES.values():
            self.register_theme(theme)
        self.theme = self._choose_theme()
        self.set_keymap(build_keymap(options.settings.keys))

    def _choose_theme(self) -> str:
        return "ansi-dark" if self.no_color else get_theme(self.options.light, self.options.settings.app.theme).name

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
        """Whether no other process had the session open when this one opened it."""
        return self._presence is None or self._presence.is_alone

    @property
    def transcript_styles(self) -> TranscriptStyles:
        return get_styles(self.theme)

    @property
    def renderers(self) -> dict[str, EntryRenderer]:
        return {} if self._extensions is None else self._extensions.ui_registry.renderers

    # Startup

    def on_mount(self) -> None:
        lock.report = self._report_wait
        lock.set_wait_limit(LOCK_SECONDS)
        with suppress(ValueError, RuntimeError):  # only the main thread can handle signals
            for number in QUIT_SIGNALS:
                asyncio.get_running_loop().add_signal_handler(number, self.request_quit)
        self.call_after_refresh(self._start_opening)

    def _report_wait(self, text: str) -> None:
        self.ui.notify(text, "warning")

    def _start_opening(self) -> None:
        self.run_worker(self._open_session(), group="open", exit_on_error=True)

    async def _open_session(self) -> None:
        from sessiontree.tui.screens.dialogs import AppUi

        self.ui = AppUi(self)
        for error in find_key_errors(self.options.settings.keys):
            self.ui.notify(error, "warning")
        requested, is_open = self.options.session, False
        while not is_open:
            session = await self._pick_first_session() if requested is None else requested
            if session is not None:
                self.chat.show_activity("opening")
                await asyncio.to_thread(_preload_modules)
                is_open = await self._attach_session(session)
                self.chat.show_activity("")
            if session is None or (requested is not None and not is_open):
                self.exit()
                return
        self.set_interval(REFRESH_SECONDS, self._refresh_session)
        await self._find_model()
        await self._load_extensions()

    async def _pick_first_session(self) -> Session | None:
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
        """Open the session in the app. Return `False` if the user cancels."""
        from sessiontree.agent.factory import load_agent_options
        from sessiontree.agent.tools import builtin_tools
        from sessiontree.agent.tools.todo_tool import todo
        from sessiontree.slash_commands.controller import SessionController
        from sessiontree.tui.app_commands import AppHost, build_app_commands

        await asyncio.to_thread(lambda: session.tree)
        branch = await self.enter_session(session, self.options.branch)
        if branch is None:
            session.close()
            return False
        options = load_agent_options(
            self.options.settings,
            tools=(*builtin_tools(), todo),
            mode=self.options.permission_mode,
            allow=self.options.allow,
            asker=self.ui.ask_permission,
            cwd=self.options.cwd,
        )
        self.controller = SessionController(
            branch.session,
            branch=branch,
            commands=build_app_commands(self),
            models=self._models,
            options=options,
            ui=self.ui,
            host=AppHost(self),
            fresh=self.options.fresh,
        )
        self.controller.no_model_message = "no model: choose one with /model, or connect one with /login"
        self.chat.attach(self.controller)
        await self.controller.start()
        self.ready.set()
        return True

    async def enter_session(self, session: Session, branch: str | None = None) -> Branch | None:
        """Lock the session as open and return the branch to use, or `None` if the user cancels.

        If another process has the session open, ask the user how to share it.
        """
        target = None
        requested = session.head if branch is None else session.branch(branch)
        previous = self._presence
        is_same = previous is not None and previous.belongs_to(session)
        if previous is not None and is_same:
            previous.release()  # our own lock must not count as another process
        presence = PresenceLock(session)
        try:
            target = await self._resolve_branch(requested, presence.is_alone)
        finally:
            if target is None and not is_same:
                presence.release()
            else:
                if previous is not None:
                    previous.release()
                self._presence = presence
        if target is not None:
            self._last_size = read_change_mark(target.session)
        return target

    def check_session(self, session: Session) -> None:
        self.run_worker(self._report_problems(session), group="problems", exclusive=True, exit_on_error=False)

    async def _report_problems(self, session: Session) -> None:
        """Show the first problem of the session. This reads the whole file, so it runs in the background."""
        problems = [] if session.file is None else await find_problems(str(session.file))
        if problems:
            more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
            self.chat.show_error(f"{problems[0]}{more}; run `sessiontree doctor` for details")

    async def _resolve_branch(self, branch: Branch, is_alone: bool) -> Branch | None:
        """Return the branch to use. If the session is shared, ask the user; `None` if they cancel."""
        session = branch.session
        chosen = FOLLOW
        if not is_alone:
            chosen = await self.ui.select("Another process has this session open", [FOLLOW, BRANCH, READ])
        if chosen is None:
            return None
        self._is_following = chosen == FOLLOW and not is_alone
        if chosen == BRANCH:
            name = find_free_name("parallel", session.heads.heads, 2)
            return session.create_branch(name, at=branch.name, current=False)
        return branch if chosen == FOLLOW else catalog.open(session.location, read_only=True).branch(branch.name)

    async def _find_model(self) -> None:
        """Find the model in a thread: the requested one, the session's last one, or the default."""
        from sessiontree.model.selection import NoModel
        from sessiontree.slash_commands.models import ConfiguredModels, choose_model

        controller, footer = self.controller, self.chat.footer
        assert controller is not None
        footer.model_note = "finding a model…"
        try:
            model, warning = await asyncio.to_thread(
                choose_model, controller.models, self.options.model, controller.branch.state
            )
            if warning is not None:
                self.ui.notify(warning, "warning")
            await controller.set_model(model)
            if not controller.session.tree.has_real_entries:
                controller.agent.thinking = self.options.settings.thinking
        except SessionTreeError as error:
            footer.model_note = "no model"
            if self.options.model is not None or not isinstance(error, NoModel) or error.name is not None:
                self.chat.show_error(error)
            elif isinstance(controller.models, ConfiguredModels):
                self._schedule_command("/login")
            else:
                self.chat.show_error(error)
        self.model_found.set()
        self.chat.update_footer()

    def reload_settings(self) -> None:
        """Load the configuration again after a change. Raises `ConfigError`."""
        settings = load_config()
        self.options = replace(self.options, settings=settings)
        self.set_keymap(build_keymap(settings.keys))
        self.theme = self._choose_theme()
        self.chat.apply_settings()
        if self.controller is not None:
            self.controller.apply_settings(settings)

    async def _load_extensions(self) -> None:
        from sessiontree.extensions.loader import ExtensionLoader

        controller = self.controller
        assert controller is not None
        try:
            self._extensions = ExtensionLoader(controller, self.options.extensions)
            self.chat.editor.is_extension_key = self._extensions.ui_registry.shortcuts.__contains__
            await self._extensions.load()
        except SessionTreeError as error:
            self.chat.show_error(error)
            return
        if self._extensions.ui_registry.renderers:
            self.chat.reload()
        self.run_worker(self._extensions.watch(), group="watch", exclusive=True, exit_on_error=False)

    # Other processes

    async def _refresh_session(self) -> None:
        """Load entries that other processes have written."""
        controller = self.controller
        if controller is None or controller.is_running:
            return
        # A database may be remote, so query it in a thread.
        session = controller.session
        size = await asyncio.to_thread(read_change_mark, session) if session.file is None else read_change_mark(session)
        if size == self._last_size:
            return
        self._last_size = size
        before = controller.branch.leaf
        try:
            entries = await asyncio.to_thread(controller.session.refresh)
        except (SessionTreeError, OSError) as error:
            self.chat.show_error(error)
            return
        if entries and not self._is_following:
            self._is_following = True
            self.ui.notify("Another process is writing to this session. New entries appear here.", "warning")
        if controller.branch.leaf != before:
            self.chat.reload()

    # Shutdown

    # The terminal

    def update_title(self) -> None:
        """Show the session, and whether something is running, in the title of the terminal."""
        if self.controller is not None:
            session = self.controller.session
            mark = "✻ " if self.chat.status_line.activity else ""
            set_terminal_title(self, f"{mark}{session.name or os.path.basename(self.controller.cwd)} · sessiontree")

    def alert(self, text: str) -> None:
        """Ring the bell and send a desktop notification, unless the user is looking at the terminal."""
        if self.options.settings.app.notify and not self.app_focus:
            notify_desktop(self, text)

    def request_quit(self) -> None:
        self.run_worker(self._quit(), group="leave", exclusive=True)

    def action_leave(self) -> None:
        self.request_quit()

    async def _quit(self) -> None:
        self.chat.save_draft()
        message = None
        if self.controller is not None:
            try:
                await self.controller.close()
            except SessionTreeError as error:  # an error must not prevent quitting
                message = Text(f"sessiontree: {escape_line(str(error))}")
            self._release_presence()
            if not await self.controller.drop_unused() and message is None and self.controller.session.tree.count:
                command = await asyncio.to_thread(find_resume_command, self.controller.session.location)
                message = Text(f"To continue this session: {escape_line(command)}")
        self.exit(message=message)

    def on_unmount(self) -> None:
        lock.report = lock.log_wait
        lock.set_wait_limit(None)
        for number in QUIT_SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
        self._release_presence()

    def _release_presence(self) -> None:
        if self._presence is not None:
            self._presence.release()

    # Commands and keys

    async def complete_command(self, line: str) -> str | None:
        from sessiontree.tui.app_commands import complete_command

        assert self.controller is not None
        return await complete_command(self.controller, line, self.choose_entry)

    def action_command(self, line: str) -> None:
        self._schedule_command(line)

    def action_tree(self) -> None:
        self._schedule_command("/tree")

    def action_sessions(self) -> None:
        self._schedule_command("/resume")

    def handle_double_escape(self) -> None:
        command = {"tree": "/tree", "fork": "/fork"}.get(self.options.settings.double_escape)
        if command is not None:
            self._schedule_command(command)

    def _schedule_command(self, line: str) -> None:
        running = self.controller is not None and self.controller.is_running
        if running or not any(worker.name == line for worker in self.workers):  # ignore a repeated key press
            self.run_worker(self._run_command(line), name=line, group="command", exit_on_error=False)

    async def _run_command(self, line: str) -> None:
        await self.ready.wait()
        if self.screen is not self.chat:  # another key has opened a screen
            return
        try:
            await self.chat.run_command(line)
        except SessionTreeError as error:
            self.chat.show_error(error)
        self.chat.update_footer()

    def on_key(self, event: Any) -> None:
        """Run a shortcut of an extension, in a worker, because it may wait for more keys."""
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
        """Let the user choose an entry in the tree, as an argument of a command."""
        from sessiontree.tui.screens.tree_screen import TreeScreen

        assert self.controller is not None
        controller = self.controller
        tree = TreeScreen(controller.session, summaries="none", branch=controller.branch.name, question=question)
        choice = await self.ui.ask(tree)
        return None if choice is None else choice.entry

    async def navigate_tree(self, at: EntryId | None = None) -> CommandOutcome:
        """Let the user choose an entry in the tree and navigate there.

        With `at`, the cursor starts at that entry. A running agent is aborted only after the choice.
        """
        from sessiontree.files.git_command import SnapshotError
        from sessiontree.slash_commands.navigation import ask_files_choice, format_files
        from sessiontree.tui.screens.tree_screen import TreeScreen

        controller = self.controller
        assert controller is not None
        summaries = "unasked" if self.options.settings.summary.skip_prompt else "ask"
        choice = await self.ui.ask(
            TreeScreen(
                controller.session,
                summaries=summaries,
                branch=controller.branch.name,
                at=at,
                ask_files=lambda entry: ask_files_choice(
                    controller, lambda: controller.plan_files(controller.session.tree[entry])
                ),
            )
        )
        if choice is None:
            return CommandOutcome()
        if controller.has_agent and controller.agent.running:
            controller.abort()
            await controller.agent.wait_until_idle()
        try:
            outcome = await controller.navigate(
                controller.session.tree[choice.entry],
                summarize=choice.summarize,
                custom_instructions=choice.instructions,
                summary=choice.summary,
                files=choice.files.files,
                take=choice.files.take,
            )
        except SnapshotError:
            raise  # its message describes the change
        except SessionTreeError as error:
            raise InvalidOperation(f"{error}; nothing changed") from error
        return CommandOutcome(text="Cancelled. Nothing changed." if outcome.aborted else format_files(outcome.files))

    async def pick_session(self) -> None:
        """Let the user pick another session and open it."""
        from sessiontree.tui.screens.session_picker import SessionsScreen

        controller = self.controller
        assert controller is not None
        own = controller.session
        file = await self.ui.ask(SessionsScreen(own.cwd or self.options.cwd, own=own))
        if file is not None and file != own.address:
            await controller.open_session(file)

    async def search(self, query: str) -> CommandOutcome:
        """Search all sessions, then show the selected entry in the tree of its session."""
        from sessiontree.tui.screens.search_screen import SearchScreen

        controller = self.controller
        assert controller is not None
        own = controller.session.address
        hit = await self.ui.ask(SearchScreen(controller.session.cwd or self.options.cwd, query, own=own))
        if hit is None or (hit.file != own and not await controller.open_session(hit.file)):
            return CommandOutcome()
        if hit.entry not in controller.session.tree:
            raise NotFound("entry", hit.entry)
        return await self.navigate_tree(hit.entry)

    def show_page(self, text: str | Text, title: str = "") -> None:
        from sessiontree.tui.screens.dialogs import PageDialog

        self.push_screen(PageDialog(title, escape_lines(text) if isinstance(text, str) else text))

    def show_comparison(self, sides: ComparisonSides) -> None:
        from sessiontree.tui.screens.compare_view import ComparisonScreen

        self.push_screen(ComparisonScreen(sides))

    def open_in_browser(self, path: str) -> None:
        """Open a file in the browser, if there is a graphical display."""
        if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
            self.open_url(Path(path).absolute().as_uri())

    def show_hotkeys(self) -> None:
        text = Text()
        areas = list_keys(build_keymap(self.options.settings.keys))
        if self._extensions is not None and self._extensions.ui_registry.shortcuts:
            keys = self._extensions.ui_registry.shortcuts.values()
            areas.append(("extensions", [Key(key.source, key.key, key.help) for key in keys]))
        room = max(20, self.size.width - HELP_COLUMN - 6)
        for area, keys in areas:
            text.append(f"{area}\n", "bold")
            for key in keys:
                text.append(f"  {escape_line(key.keys):<22} ", "bold")
                text.append(f"{escape_line(key.name):<18} ", "dim")
                text.append(f"\n{' ' * HELP_COLUMN}".join(wrap(escape_line(key.help), room) or [""]) + "\n")
        self.show_page(text, "Keys · change them under [keys] in config.toml")


def _preload_modules() -> None:
    """Import the modules of the controller. Called in a thread to keep the UI responsive."""
    for module in ("agent.tools", "slash_commands.info", "slash_commands.navigation", "slash_commands.sessions"):
        import_module(f"sessiontree.{module}")


def find_resume_command(location: str) -> str:
    """Return the command that opens a session again: `-c`, if it is the one that `-c` finds in this folder."""
    with suppress(SessionTreeError):
        if catalog.find(catalog.RECENT_ALIAS) == location:
            return "sessiontree -c"
    return f"sessiontree chat --session {shlex.quote(location)}"
