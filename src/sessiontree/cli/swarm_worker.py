"""The command of workers: a process that takes the work of durable swarms, on this machine or any other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from sessiontree.cli.agent_setup import RunningController, StderrUi, extension_option, project_option
from sessiontree.cli.app import STOPPED, app, json_option
from sessiontree.cli.output import dim, echo, echo_json, escape_line, print_table, warn
from sessiontree.cli.permissions import build_permissions, load_options, permission_options, print_denials
from sessiontree.errors import InvalidOperation

if TYPE_CHECKING:
    from sessiontree.agent.tool import Tool
    from sessiontree.config import PermissionMode
    from sessiontree.hooks.bus import Hooks
    from sessiontree.session import Session
    from sessiontree.swarm.durable.database import JobRequest
    from sessiontree.swarm.durable.worker import DurableWorker, WrapModel
    from sessiontree.swarm.swarm import Swarm

database_option = click.option(
    "--database",
    metavar="ADDRESS",
    help="Where work is kept: PostgreSQL, or a SQLite file; SESSIONTREE_STORE, or a file in the home by default.",
)


@app.command(
    epilog="\b\nExamples:\n  sessiontree worker\n  sessiontree worker --concurrency 8 --tools read,ls,grep\n"
    "  sessiontree worker --list"
)
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, help="How many agents at a time.")
@database_option
@click.option(
    "--lease",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="How long it may be out of reach before others take its work; 20 by default.",
)
@click.option("--tools", metavar="NAMES", help="Which built-in tools agents may use, with commas between.")
@click.option("--no-tools", is_flag=True, help="They may use none of them.")
@project_option
@permission_options
@extension_option
@click.option("--list", "listing", is_flag=True, help="Print which workers there are, and what they do.")
@json_option
def worker(
    concurrency: int,
    database: str | None,
    lease: float | None,
    tools: str | None,
    no_tools: bool,
    projects: tuple[str, ...],
    permission_mode: PermissionMode | None,
    allow: tuple[str, ...],
    extensions: tuple[str, ...],
    listing: bool,
    as_json: bool,
) -> int:
    """Take the work of swarms that run with --durable, until it is told to end.

    Models, tools, extensions and permissions are those of this machine. Ctrl-C lets the calls under way come to their
    end, and leaves the rest to other workers; a second one ends it at once. It ends with 75 when it was out of reach
    for so long that others have its work.
    """
    import asyncio

    try:
        from sessiontree.swarm.durable.roster import LEASE
        from sessiontree.swarm.durable.worker import DurableWorker
    except ModuleNotFoundError as error:
        raise InvalidOperation("workers need the extra: pip install 'sessiontree[swarm]'") from error
    if listing:
        return _list_workers(database, as_json=as_json)
    from sessiontree.cli.prompt import select_tools

    opener = _SwarmOpener(select_tools(tools, no_tools), extensions, projects, permission_mode, allow)
    asyncio.run(
        _run_until_signal(
            DurableWorker(
                opener.open_swarm,
                database=database,
                concurrency=concurrency,
                lease=LEASE if lease is None else lease,
                report=warn,
            )
        )
    )
    return 0


class _SwarmOpener:
    """Opens swarms with what this machine has."""

    def __init__(
        self,
        tools: tuple[Tool, ...],
        extensions: tuple[str, ...],
        projects: tuple[str, ...],
        mode: PermissionMode | None,
        allow: tuple[str, ...],
    ) -> None:
        from sessiontree import config

        self._settings = config.load()
        build_permissions(self._settings, mode, allow)  # what is wrong with them is said before work is taken
        self._mode: PermissionMode | None = mode
        self._allow = allow
        self._tools = tools
        self._extensions = extensions
        self._projects = projects

    @asynccontextmanager
    async def open_swarm(
        self, order: JobRequest, session: Session, hooks: Hooks, keep: WrapModel
    ) -> AsyncGenerator[Swarm]:
        from sessiontree.agent.sandbox import resolve_project_folder
        from sessiontree.commands.controller import SessionController
        from sessiontree.swarm.swarm import Swarm

        cwd = resolve_project_folder(session.cwd, self._projects)
        options = load_options(self._settings, self._mode, self._allow, tools=self._tools, cwd=cwd)
        desk = SessionController(
            session,
            options=options,
            hooks=hooks,
            ui=StderrUi(),
        )
        async with RunningController(desk, self._extensions):
            allowed = [tool for tool in desk.tools if order.tools is None or tool.name in order.tools]
            yield Swarm.open(
                session,
                order.work.swarm,
                model=keep(desk.models.find()) if order.work.model is None else None,
                model_of=lambda name: keep(desk.models.find(name)),
                tools=allowed,
                hooks=desk.hooks,
                settings=desk.settings,
                system=order.system,
                thinking=order.thinking,
                override_saved=True,
                permissions=options.permissions,
            )
        print_denials(options.permissions)


async def _run_until_signal(worker: DurableWorker) -> None:
    import asyncio
    import signal

    stop = asyncio.Event()

    def handle_signal() -> None:
        if stop.is_set():
            worker.abandon(STOPPED)
        stop.set()
        warn("no more work is taken, and the calls under way come to their end; once more ends them")

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, handle_signal)
    await worker.run(stop)


def _list_workers(database: str | None, *, as_json: bool) -> int:
    from sessiontree.swarm.durable.database import WorkDatabase
    from sessiontree.swarm.durable.roster import Roster

    where = WorkDatabase(database)
    where.migrate()
    roster = Roster(where)
    roster.create_table()
    there = roster.list_alive()
    roster.close()
    if as_json:
        for one in there:
            echo_json({"id": one.id, "host": one.host, "concurrency": one.concurrency, "work": one.work})
    elif there:
        rows = [["worker", "host", "at work"]]
        print_table(
            [
                *rows,
                *(
                    [escape_line(one.id), escape_line(one.host), f"{len(one.work)} of {one.concurrency}"]
                    for one in there
                ),
            ]
        )
    else:
        echo(dim("no workers"))
    return 0
