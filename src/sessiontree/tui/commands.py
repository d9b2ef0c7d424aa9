"""Commands that only the app has, and those of all front ends that it does in its own way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from sessiontree.commands.builtin import builtin_commands
from sessiontree.commands.command import Command, Done, Registry
from sessiontree.commands.desk import Desk
from sessiontree.commands.seeing import compared, two_places
from sessiontree.commands.sessions import export_session, tell_exported

if TYPE_CHECKING:
    from sessiontree.tui.app import SessionApp


def app_commands(app: SessionApp) -> Registry:
    """The commands of all front ends, with the app's own."""

    shared = {command.name: command for command in builtin_commands()}
    go_by_name, resume_by_name = shared["tree"].run, shared["resume"].run

    async def tree(desk: Desk, args: Sequence[str]) -> Done:
        return await go_by_name(desk, args) or Done() if args else await app.travel()

    async def hotkeys(desk: Desk, args: Sequence[str]) -> Done:
        app.show_hotkeys()
        return Done()

    async def resume(desk: Desk, args: Sequence[str]) -> Done:
        if args:
            return await resume_by_name(desk, args) or Done()
        await app.pick_session()
        return Done()

    async def export(desk: Desk, args: Sequence[str]) -> Done:
        path, form = await export_session(desk, args[0] if args else None)
        if form == "html":
            app.open_page(path)
        return tell_exported(path, form)

    async def diff(desk: Desk, args: Sequence[str]) -> Done:
        from sessiontree.tui.beside import of_diff

        app.show_beside(await asyncio.to_thread(lambda: of_diff(two_places(desk, args), app.renderers)))
        return Done()

    async def compare(desk: Desk, args: Sequence[str]) -> Done:
        from sessiontree.tui.beside import of_comparison

        tree = desk.session.tree
        app.show_beside(await asyncio.to_thread(lambda: of_comparison(tree, compared(desk, args), app.renderers)))
        return Done()

    async def search(desk: Desk, args: Sequence[str]) -> Done:
        return await app.search(args[0] if args else "")

    own = {"search": search, "tree": tree, "resume": resume, "export": export, "diff": diff, "compare": compare}
    commands = {name: replace(command, run=own.get(name, command.run)) for name, command in shared.items()}
    asked_there = tuple(replace(argument, required=False) for argument in shared["search"].arguments)
    commands["search"] = replace(commands["search"], arguments=asked_there)
    return Registry([*commands.values(), Command(name="hotkeys", help="List the keys", run=hotkeys)])
