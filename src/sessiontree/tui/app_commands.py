"""Commands that only the app has, and those of all front ends that it does in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sessiontree.commands.builtin import get_builtin_commands
from sessiontree.commands.controller import SessionController
from sessiontree.commands.info import compare_branches, diff_places
from sessiontree.commands.registry import Command, CommandOutcome, CommandRegistry
from sessiontree.commands.sessions import export_session, format_export

if TYPE_CHECKING:
    from sessiontree.tui.app import SessionApp


def build_app_commands(app: SessionApp) -> CommandRegistry:
    """The commands of all front ends, with the app's own."""

    shared = {command.name: command for command in get_builtin_commands()}
    go_by_name, resume_by_name = shared["tree"].run, shared["resume"].run

    async def tree(desk: SessionController, args: Sequence[str]) -> CommandOutcome:
        return await go_by_name(desk, args) or CommandOutcome() if args else await app.navigate_tree()

    async def hotkeys(desk: SessionController, args: Sequence[str]) -> CommandOutcome:
        app.show_hotkeys()
        return CommandOutcome()

    async def resume(desk: SessionController, args: Sequence[str]) -> CommandOutcome:
        if args:
            return await resume_by_name(desk, args) or CommandOutcome()
        await app.pick_session()
        return CommandOutcome()

    async def export(desk: SessionController, args: Sequence[str]) -> CommandOutcome:
        path, form = await export_session(desk, args[0] if args else None)
        if form == "html":
            app.open_in_browser(path)
        return format_export(path, form)

    async def diff(desk: SessionController, args: Sequence[str]) -> CommandOutcome:
        from sessiontree.tui.screens.compare_view import build_diff_sides

        app.show_comparison(await asyncio.to_thread(lambda: build_diff_sides(diff_places(desk, args), app.renderers)))
        return CommandOutcome()

    async def compare(desk: SessionController, args: Sequence[str]) -> CommandOutcome:
        from sessiontree.tui.screens.compare_view import build_comparison_sides

        tree = desk.session.tree
        app.show_comparison(
            await asyncio.to_thread(lambda: build_comparison_sides(tree, compare_branches(desk, args), app.renderers))
        )
        return CommandOutcome()

    async def search(desk: SessionController, args: Sequence[str]) -> CommandOutcome:
        return await app.search(args[0] if args else "")

    own = {"search": search, "tree": tree, "resume": resume, "export": export, "diff": diff, "compare": compare}
    commands = {name: replace(command, run=own.get(name, command.run)) for name, command in shared.items()}
    asked_there = tuple(replace(argument, required=False) for argument in shared["search"].arguments)
    commands["search"] = replace(commands["search"], arguments=asked_there)
    return CommandRegistry([*commands.values(), Command(name="hotkeys", help="List the keys", run=hotkeys)])
