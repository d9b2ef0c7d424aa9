"""Workers: the `worker` command, which runs the agents of durable swarms, and the options of such swarms."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import click

from sessiontree.cli.agent_setup import (
    AgentSetup,
    extension_option,
    permission_options,
    print_denials,
    project_option,
    select_tools,
    tool_options,
)
from sessiontree.cli.app import STOPPED, F, app, json_option
from sessiontree.cli.output import dim, echo, echo_json, escape_line, print_table, warn

if TYPE_CHECKING:
    from sessiontree.agent.tool import Tool
    from sessiontree.cli.swarm_run import SwarmFile  # cycle: only for type checkers
    from sessiontree.config import PermissionMode
    from sessiontree.hooks.bus import Hooks
    from sessiontree.session import Session
    from sessiontree.swarm.durable.database import JobRequest
    from sessiontree.swarm.durable.executor import DurableExecutor
    from sessiontree.swarm.durable.worker import DurableWorker, WrapModel
    from sessiontree.swarm.records import CreatedRecord
    from sessiontree.swarm.swarm import Swarm

database_option = click.option(
    "--database",
    metavar="ADDRESS",
    help="Job queue: a PostgreSQL address or a SQLite file. Default: SESSIONTREE_STORE, "
    "else a file in sessiontree's home folder.",
)


def durable_options(function: F) -> F:
    for option in (
        database_option,
        click.option(
            "--concurrency", type=click.IntRange(1), help="With --durable: maximum number of agents at a time."
        ),
        click.option("--durable", is_flag=True, help="Run the agents in `sessiontree worker` processes."),
    ):
        function = option(function)
    return function


class DurableOptions(NamedTuple):
    """How workers run a swarm."""

    concurrency: int | None
    database: str | None

    @classmethod
    def from_options(cls, durable: bool, concurrency: int | None, database: str | None) -> DurableOptions | None:
        """Return the options, or `None` if the agents run in this process."""
        if not durable and (concurrency is not None or database is not None):
            raise click.UsageError("--concurrency and --database require --durable")
        return cls(concurrency, database) if durable else None

    def check(self) -> None:
        """Check that jobs can be queued. Raises `StoreError` if the database is not available."""
        from sessiontree.swarm.durable.database import WorkDatabase

        WorkDatabase(self.database).migrate()

    def create_executor(self, session: Session, description: SwarmFile | CreatedRecord) -> DurableExecutor:
        from sessiontree.agent.system_prompt import join_parts
        from sessiontree.swarm.durable.executor import DurableExecutor

        system = description.system
        return DurableExecutor(
            session,
            database=self.database,
            concurrency=self.concurrency,
            tools=description.tools,
            system=join_parts(system) if isinstance(system, tuple) else system,
            thinking=description.thinking,
        )


@app.command(
    epilog="\b\nExamples:\n  sessiontree worker\n  sessiontree worker --concurrency 8 --tools read,ls,grep\n"
    "  sessiontree worker --list"
)
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Maximum number of agents at a time."
)
@database_option
@click.option(
    "--lease",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="How long the worker may be unreachable before other workers take its jobs. Default: 60.",
)
@tool_options
@project_option
@permission_options
@extension_option
@click.option("--list", "listing", is_flag=True, help="List the running workers and exit.")
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
    """Run agents of swarms that were started with --durable, until interrupted.

    Agents use the models, tools, extensions and permissions of this machine. Ctrl-C finishes the calls in progress and
    leaves the rest to other workers; a second Ctrl-C stops at once. The exit code is 75 if the worker was unreachable
    for longer than its lease.
    """
    import asyncio

    from sessiontree.swarm.durable.job_queue import LEASE
    from sessiontree.swarm.durable.worker import DurableWorker

    if listing:
        return _list_workers(database, as_json=as_json)
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
    """Opens swarms with the models, tools and permissions of this machine."""

    def __init__(
        self,
        tools: tuple[Tool, ...],
        extensions: tuple[str, ...],
        projects: tuple[str, ...],
        mode: PermissionMode | None,
        allow: tuple[str, ...],
    ) -> None:
        # Report invalid settings and options before the worker takes a job.
        self._settings = AgentSetup(tools, permission_mode=mode, allow=allow).settings
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
        from sessiontree.swarm.swarm import Swarm

        setup = AgentSetup(
            self._tools,
            self._extensions,
            cwd=resolve_project_folder(session.cwd, self._projects),
            permission_mode=self._mode,
            allow=self._allow,
            settings=self._settings,
            hooks=hooks,
        )
        async with setup.attach(session) as controller:
            allowed = [tool for tool in controller.tools if order.tools is None or tool.name in order.tools]
            yield Swarm.open(
                session,
                order.work.swarm,
                model=keep(controller.models.find()) if order.work.model is None else None,
                model_of=lambda name: keep(controller.models.find(name)),
                tools=allowed,
                hooks=setup.hooks,
                settings=setup.settings,
                system=order.system,
                thinking=order.thinking,
                override_saved=True,
                permissions=setup.permissions,
            )
        print_denials(setup.permissions)


async def _run_until_signal(worker: DurableWorker) -> None:
    import asyncio
    import signal

    stop = asyncio.Event()

    def handle_signal() -> None:
        if stop.is_set():
            worker.abandon(STOPPED)
        stop.set()
        warn("finishing the calls in progress and taking no more jobs; press Ctrl+C again to stop at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, handle_signal)
    await worker.run(stop)


def _list_workers(database: str | None, *, as_json: bool) -> int:
    from sessiontree.swarm.durable.database import WorkDatabase
    from sessiontree.swarm.durable.job_queue import JobQueue

    jobs = WorkDatabase(database)
    jobs.migrate()
    workers = JobQueue(jobs).list_workers()
    jobs.close()
    if as_json:
        for worker in workers:
            echo_json({"id": worker.id, "host": worker.host, "concurrency": worker.concurrency, "work": worker.work})
    elif workers:
        rows = [["worker", "host", "agents"]]
        for worker in workers:
            busy = f"{len(worker.work)} of {worker.concurrency}"
            rows.append([escape_line(worker.id), escape_line(worker.host), busy])
        print_table(rows)
    else:
        echo(dim("no workers"))
    return 0
