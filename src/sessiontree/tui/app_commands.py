"""Slash commands in the app: its host, its variants of shared commands, and prompts for missing arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sessiontree.agent.permission_rules import PERMISSION_MODES
from sessiontree.config import PermissionMode
from sessiontree.core.entries import EntryId
from sessiontree.core.entry_text import format_entry, format_entry_row
from sessiontree.core.number_text import pluralize
from sessiontree.errors import InvalidOperation
from sessiontree.files.restore_plan import RestorePlan
from sessiontree.library.other_processes import is_session_open
from sessiontree.model.providers import PROVIDERS
from sessiontree.session import Branch, Session
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.formatting import format_id, make_excerpt
from sessiontree.slash_commands.host import FilesAnswer
from sessiontree.slash_commands.info import compare_branches, diff_places
from sessiontree.slash_commands.models import ConfiguredModels
from sessiontree.slash_commands.registry import (
    Argument,
    Command,
    CommandOutcome,
    CommandRegistry,
    ParsedLine,
    WordReader,
    complete_branches,
    complete_places,
    complete_prompts,
    get_builtin_commands,
    parse_line,
    quote_word,
)
from sessiontree.slash_commands.sessions import export_session, format_export
from sessiontree.tui.services.model_setup import choose_model, connect_model, enter_key, log_out
from sessiontree.tui.services.settings_menu import open_settings
from sessiontree.tui.services.terminal import send_to_clipboard

if TYPE_CHECKING:
    from sessiontree.tui.app import SessionApp  # cycle: the app creates it, and it calls the app

ChooseEntry = Callable[[str], Awaitable[EntryId | None]]
"""Shows a question above the tree and returns the entry that the user chooses."""
MERGE_ENTRY = "Choose an entry in the tree…"
COMPARE_ALL = "All of them"
SHOW_RULES = "Show the rules that apply"
PERMISSION_MODE_HELP: dict[PermissionMode, str] = {
    "read-only": "refuse every edit and command",
    "ask": "ask before edits and commands",
    "allow-edits": "edit files in this folder, ask before commands",
    "allow-all": "allow everything",
}


async def complete_command(controller: SessionController, line: str, choose_entry: ChooseEntry) -> str | None:
    """Return the command line with missing arguments filled in by the user; `None` if they cancel."""
    parsed = parse_line(line)
    if parsed is None:
        return line
    command = controller.commands.find(parsed.name)
    if not parsed.text.strip():
        return await _prompt_for_arguments(controller, command, choose_entry)
    return await _prompt_for_required(controller, command, parsed, choose_entry)


async def _prompt_for_arguments(
    controller: SessionController, command: Command, choose_entry: ChooseEntry
) -> str | None:
    match command.name:
        case "fork" | "branch" if controller.settings.double_escape == "tree":
            return _format_command(command, await choose_entry("Fork from which entry?"))
        case "pop":
            return _format_command(
                command, await _choose_prompt(controller, "Go back to which message? A summary is added.")
            )
        case "branches":
            return await _choose_branch(controller)
        case "compare":
            return await _choose_branches_to_compare(controller)
        case "merge":
            return _format_command(command, await _choose_merge_source(controller, choose_entry))
        case _:
            return await _prompt_for_required(controller, command, ParsedLine(command.name, ""), choose_entry)


async def _prompt_for_required(
    controller: SessionController, command: Command, parsed: ParsedLine, choose_entry: ChooseEntry
) -> str | None:
    words = list(WordReader(parsed.text))
    missing = [argument for argument in command.arguments if argument.required][len(words) :]
    line = f"/{parsed.name} {parsed.text}".rstrip()
    for argument in missing:
        value = await _prompt_for_argument(controller, command, argument, choose_entry)
        if not value:
            return None
        line = f"{line} {value if argument.rest else quote_word(value)}"
    return line


async def _prompt_for_argument(
    controller: SessionController, command: Command, argument: Argument, choose_entry: ChooseEntry
) -> str | None:
    title = f"/{command.name} {argument.name}"
    if argument.complete is complete_places:
        return await choose_entry(title)
    if argument.complete is not None:
        choices = list(
            await asyncio.to_thread(lambda: list(argument.complete(controller, "")) if argument.complete else [])
        )
        others = [choice for choice in choices if choice != controller.branch.name]
        if others:
            return await controller.ui.select(title, others)
    return await controller.ui.input(title)


async def _choose_prompt(controller: SessionController, title: str) -> EntryId | None:
    tree = controller.session.tree
    shown = {f"{format_id(id)}  {make_excerpt(format_entry(tree[id]))}": id for id in complete_prompts(controller, "")}
    if not shown:
        return await controller.ui.input(title)
    chosen = await controller.ui.select(title, list(shown))
    return None if chosen is None else shown[chosen]


async def _choose_branch(controller: SessionController) -> str | None:
    """Let the user choose a branch and return the command that switches to it."""
    session = controller.session
    shown: dict[str, str] = {}
    infos = [info for info in session.branches if not info.archived]
    width = max(len(info.name) for info in infos)
    for info in infos:
        head = session.tree[info.leaf] if info.leaf is not None and info.leaf in session.tree else None
        last = "(empty)" if head is None else make_excerpt(format_entry_row(head), 60)
        mark = "●" if info.name == controller.branch.name else " "
        entries = pluralize(info.entry_count, "entry", "entries")
        shown[f"{mark} {info.name.ljust(width)}  {format_id(info.leaf)}  {entries:>13}  {last}"] = info.name
    chosen = await controller.ui.select("Switch to branch", list(shown))
    return None if chosen is None else f"/switch {quote_word(shown[chosen])}"


async def _choose_merge_source(controller: SessionController, choose_entry: ChooseEntry) -> str | None:
    """Let the user choose another branch, a leaf without one, or any entry of the tree."""
    session = controller.session
    shown = {name: name for name in complete_branches(controller, "") if name != controller.branch.name}
    shown |= _list_unnamed_leaves(session)
    if not shown:
        return await choose_entry("Merge which entry?")
    chosen = await controller.ui.select("Merge which branch?", [*shown, MERGE_ENTRY])
    if chosen is None:
        return None
    return await choose_entry("Merge which entry?") if chosen == MERGE_ENTRY else _shorten_place(session, shown[chosen])


async def _choose_branches_to_compare(controller: SessionController) -> str | None:
    """Return a command that compares this branch with another one, or with all. Ask only if there are several."""
    own = controller.branch.name
    places = {name: name for name in complete_branches(controller, "") if name != own}
    places |= _list_unnamed_leaves(controller.session)
    if not places:
        raise InvalidOperation("no other branch to compare with; create one with /branch-here")
    shown = list(places)
    options = [*shown, COMPARE_ALL] if len(shown) > 1 else []
    chosen = await controller.ui.select(f"Compare {own} with which branch?", options) if options else shown[0]
    if chosen is None:
        return None
    others = list(places.values()) if chosen == COMPARE_ALL else [places[chosen]]
    names = [own, *(_shorten_place(controller.session, place) for place in others)]
    return f"/compare {' '.join(map(quote_word, names))}"


def _shorten_place(session: Session, place: str) -> str:
    """Return a place as the results of a command name it: an entry by its short id, if no other entry has it."""
    short = format_id(place) if place in session.tree else place
    return short if short == place or len(session.tree.find_by_prefix(short)) == 1 else place


def _list_unnamed_leaves(session: Session) -> dict[str, str]:
    """Return the leaves without a branch by what the user sees: a free name in parentheses, and the last text."""
    return {
        f"({found.suggested_name})  {make_excerpt(format_entry_row(session.tree[found.leaf]), 60)}": found.leaf
        for found in session.unnamed_leaves
    }


def _format_command(command: Command, argument: str | None) -> str | None:
    return None if argument is None else f"/{command.name} {quote_word(argument)}"


class AppHost:
    """Gives commands access to the app."""

    def __init__(self, app: SessionApp) -> None:
        self._app = app

    async def choose_entry(self, controller: SessionController) -> EntryId | None:
        return await self._app.choose_entry("Choose an entry")

    async def choose_files(self, controller: SessionController, plan: RestorePlan) -> FilesAnswer | None:
        from sessiontree.tui.screens.files_dialog import FilesDialog

        return await self._app.ui.ask(FilesDialog(plan, lambda: controller.diff_files(plan)))

    async def choose_branch(self, session: Session) -> Branch | None:
        return await self._app.enter_session(session)

    def is_open_elsewhere(self, place: str) -> bool:
        return is_session_open(place)

    def refresh(self) -> None:
        self._app.chat.reload()

    def set_editor_text(self, text: str) -> None:
        self._app.chat.edit_message(text)

    def copy(self, text: str) -> str | None:
        return send_to_clipboard(self._app, text)

    def quit(self) -> None:
        self._app.request_quit()


def build_app_commands(app: SessionApp) -> CommandRegistry:
    """Return the shared commands, some replaced by variants of the app, and the app's own commands."""
    shared = {command.name: command for command in get_builtin_commands()}
    go_by_name, resume_by_name = shared["tree"].run, shared["resume"].run

    async def tree(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        return await go_by_name(controller, args) or CommandOutcome() if args else await app.navigate_tree()

    async def hotkeys(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        app.show_hotkeys()
        return CommandOutcome()

    async def resume(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        if args:
            return await resume_by_name(controller, args) or CommandOutcome()
        await app.pick_session()
        return CommandOutcome()

    async def export(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        path, form = await export_session(controller, args[0] if args else None)
        if form == "html":
            app.open_in_browser(path)
        return format_export(path, form)

    async def diff(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        from sessiontree.tui.screens.compare_view import add_files, build_diff_sides

        found = await asyncio.to_thread(diff_places, controller, args)
        sides = await asyncio.to_thread(build_diff_sides, found, app.renderers)
        app.show_comparison(await add_files(sides, found.stats, controller.compare_files))
        return CommandOutcome()

    async def compare(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        from sessiontree.tui.screens.compare_view import add_files, build_comparison_sides

        tree = controller.session.tree
        found = await asyncio.to_thread(compare_branches, controller, args)
        sides = await asyncio.to_thread(build_comparison_sides, tree, found, app.renderers)
        app.show_comparison(await add_files(sides, found.branches, controller.compare_files))
        return CommandOutcome()

    async def search(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        return await app.search(args[0] if args else "")

    set_model, set_permissions = shared["model"].run, shared["permissions"].run

    async def permissions(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        if args or controller.permissions is None:
            return await set_permissions(controller, args) or CommandOutcome()
        modes = {f"{mode:<12} {PERMISSION_MODE_HELP[mode]}": mode for mode in PERMISSION_MODES}
        current = next((row for row, mode in modes.items() if mode == controller.permissions.mode), None)
        chosen = await app.ui.select("Permission mode of this session", [*modes, SHOW_RULES], at=current)
        if chosen is None:
            return CommandOutcome()
        return await set_permissions(controller, [modes[chosen]] if chosen in modes else []) or CommandOutcome()

    async def model(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        if args or not isinstance(controller.models, ConfiguredModels):
            return await set_model(controller, args) or CommandOutcome()
        return await use(await choose_model(app))

    async def use(name: str | None) -> CommandOutcome:
        assert app.controller is not None
        return CommandOutcome() if name is None else await set_model(app.controller, [name]) or CommandOutcome()

    async def login(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        return await use(await (enter_key(app, args[0]) if args else connect_model(app)))

    async def logout(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        return CommandOutcome(text=await log_out(app, args[0] if args else None))

    async def settings(controller: SessionController, args: Sequence[str]) -> CommandOutcome:
        await open_settings(app)
        return CommandOutcome()

    provider = Argument(name="PROVIDER", complete=lambda controller, word: list(PROVIDERS))
    added = [
        Command(name="login", help="Enter an API key, or add a model server", arguments=(provider,), run=login),
        Command(name="logout", help="Remove a stored API key", arguments=(provider,), run=logout),
        Command(name="settings", help="Show and change the settings", run=settings),
        Command(name="hotkeys", help="List the key bindings", run=hotkeys),
    ]
    own = {
        "model": model,
        "permissions": permissions,
        "search": search,
        "tree": tree,
        "resume": resume,
        "export": export,
        "diff": diff,
        "compare": compare,
    }
    commands = {name: replace(command, run=own.get(name, command.run)) for name, command in shared.items()}
    optional = tuple(replace(argument, required=False) for argument in shared["search"].arguments)
    commands["search"] = replace(commands["search"], arguments=optional)
    return CommandRegistry([*commands.values(), *added])
