"""Swarms from the shell: running one from a file, looking at those there are, and telling them what to do.

What is told goes into the session, where the process that works on the swarm notices it: any process can tell it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sessiontree.cli.agent_setup import RunningController, StderrUi, cwd_option, extension_option
from sessiontree.cli.app import (
    MODEL_FAILED,
    F,
    app,
    filter_completions,
    json_option,
    open_session,
    run_async,
    warn_set_aside,
)
from sessiontree.cli.budget import budget_options, budget_override_options, build_budget, override_budget
from sessiontree.cli.live import ProgressTable
from sessiontree.cli.output import bold, dim, echo, echo_json, escape_line, print_table, warn
from sessiontree.cli.permissions import load_options, permission_options, print_denials
from sessiontree.cli.swarm_output import (
    build_status_rows,
    format_event,
    format_resume_command,
    format_usage,
    get_display_state,
    print_status,
    status_to_wire,
)
from sessiontree.cli.swarm_worker import database_option
from sessiontree.commands.formatting import format_local_time
from sessiontree.core.places import ID_PREFIX_LENGTH
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.library import catalog

if TYPE_CHECKING:
    from sessiontree.cli.swarm_file import SwarmFile
    from sessiontree.commands.controller import SessionController
    from sessiontree.config import PermissionMode
    from sessiontree.extensions.source_files import ExtensionFiles
    from sessiontree.model.base import Model
    from sessiontree.session import Branch, Session
    from sessiontree.swarm.durable.executor import DurableExecutor
    from sessiontree.swarm.events import BaseSwarmEvent
    from sessiontree.swarm.records import CreatedRecord
    from sessiontree.swarm.status import SwarmStatus
    from sessiontree.swarm.swarm import Swarm

POLL_SECONDS = 0.1
"""Seconds between two looks for events."""

PROGRESS_EVENTS = ("agent_start", "agent_complete", "agent_fail", "budget", "swarm", "error")
"""Events that are told while one waits; the others are many."""


# Finding them


def _find_sessions(session: str | None, *, everywhere: bool = False) -> Iterator[Session]:
    """Sessions that have swarms, the newest first."""
    if session is not None:
        yield open_session(session, read_only=True)
        return
    from sessiontree.server.session_locator import SessionScanner
    from sessiontree.swarm.records import SWARM_RECORD_TYPE

    mentions = SessionScanner(SWARM_RECORD_TYPE)
    for summary in catalog.sessions(all=everywhere):
        if not summary.is_damaged and mentions.may_contain(summary.file):
            yield open_session(summary.file, read_only=True)  # copies have one id


def _load_swarms(session: Session) -> list[SwarmStatus]:
    from sessiontree.swarm.journal import list_swarms

    return list_swarms(session)


def _locate_swarm(name: str, session: str | None) -> tuple[str, str]:
    """The session and the id of the swarm that has this name or id, or whose id begins so."""
    for found in _find_sessions(session):
        statuses = _load_swarms(found)
        exact = [status.id for status in statuses if name in (status.id, status.branch)]
        ids = exact or [
            status.id for status in statuses if len(name) >= ID_PREFIX_LENGTH and status.id.startswith(name)
        ]
        if len(ids) > 1:
            raise Ambiguous("swarm", name, ids)
        if ids:
            return session or found.location, ids[0]
    where = "in that session" if session is not None else "in the sessions of this folder"
    raise NotFound("swarm", name, f"none of that name {where}; `sessiontree swarm ls --all` lists all")


def _complete_swarm(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        names = [status.branch for found in _find_sessions(ctx.params.get("session")) for status in _load_swarms(found)]
    except (SessionTreeError, OSError):
        return []
    return filter_completions(names, incomplete)


# The group, and what its commands share


@app.group(
    epilog="\b\nExamples:\n  sessiontree swarm run review.toml\n  sessiontree swarm ls\n"
    "  sessiontree swarm events review --follow\n  sessiontree swarm stop review"
)
def swarm() -> None:
    """Several agents at work on one task, each on a branch of one session."""


def swarm_argument(function: F) -> F:
    return click.argument("name", metavar="SWARM", shell_complete=_complete_swarm)(function)


def swarm_session_option(function: F) -> F:
    help = "The session it is in; by default the newest of this folder that has one of that name."
    return click.option("--session", metavar="SESSION", help=help)(function)


def durable_options(function: F) -> F:
    for option in (
        database_option,
        click.option("--concurrency", type=click.IntRange(1), help="With --durable: how many agents at a time."),
        click.option("--durable", is_flag=True, help="Have `sessiontree worker` processes carry it out."),
    ):
        function = option(function)
    return function


# Working


@swarm.command(
    epilog="\b\nExamples:\n  sessiontree swarm run review.toml\n"
    "  sessiontree swarm run review.toml --session @ --at HEAD~1 --max-cost 0.50"
)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--session", metavar="SESSION", help="The session to work in; that of the file, or a new one.")
@click.option("--at", metavar="PLACE", help="Where agents begin; the place in the file, or HEAD.")
@click.option("--model", metavar="NAME", help="The model; that of the file, or the usual one.")
@budget_options
@durable_options
@cwd_option
@permission_options
@extension_option
@json_option
def run(
    file: str,
    session: str | None,
    at: str | None,
    model: str | None,
    max_cost: float | None,
    max_tokens: int | None,
    max_time: float | None,
    durable: bool,
    concurrency: int | None,
    database: str | None,
    cwd: str | None,
    permission_mode: PermissionMode | None,
    allow: tuple[str, ...],
    extensions: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run the swarm that a file describes, and print its result.

    Ctrl-C stops the agents; `resume` goes on. Exit codes: 0, 1 for an error, 3 when it has not come to its end or an
    agent failed, 130 when stopped.
    """
    from sessiontree.cli.swarm_file import load_swarm_file
    from sessiontree.swarm.swarm import Swarm

    said = load_swarm_file(file)
    durably = _DurableOptions.from_options(durable, concurrency, database)
    outfit = _SwarmSetup(said, extensions, durably, cwd, file, permission_mode, allow)
    own, where = said.budget, session or said.session
    before = None if where is None else open_session(where)
    usual: Model | str | None = model or said.model
    if not durable:  # workers have models of their own
        usual = outfit.resolve_model(usual, None if before is None else before.head)
        for agent in said.agent:
            if agent.model is not None:
                outfit.resolve_model(agent.model)

    def build_swarm(target: Session, **given: Any) -> Swarm:
        return Swarm(
            target,
            said.name,
            said.task,
            agents=said.team,
            max_agents=said.max_agents,
            strategy=said.strategy,
            parts=said.parts,
            model=usual,
            budget=build_budget(max_cost or own.cost, max_tokens or own.tokens, max_time or own.seconds),
            agent_budget=build_budget(said.agent_budget.cost, said.agent_budget.tokens, said.agent_budget.seconds),
            at=at or said.at,
            retries=said.retries,
            enable_branching=said.branching,
            enable_event_streaming=said.events,
            **given,
        )

    async def start(desk: SessionController) -> _StartedSwarm:
        given = outfit.build_swarm_options(desk)
        if durably is not None and said.tools is None:
            given["tools"] = None  # all that workers have
        swarm = build_swarm(desk.session, **given)
        await swarm.start()
        return _StartedSwarm(swarm)

    empty = catalog.memory()  # so that nothing is left of one that cannot begin
    build_swarm(empty)
    (before or empty).resolve_place(at or said.at)
    if durably is not None:
        durably.check()
    target = before or catalog.create(said.name, cwd=cwd or ".")
    try:
        with target:
            return outfit.run_to_end(target, start, said, as_json=as_json)
    except Exception:
        if before is None:
            _drop_if_unused(target)
        raise


def _drop_if_unused(session: Session) -> None:
    """Remove a session that has nothing but its name."""
    from sessiontree.library import trash

    with suppress(SessionTreeError):  # why it could not begin is what matters
        trash.purge_unused(session, lambda tree: all(entry.type == "session_info" for entry in tree))


@swarm.command(
    epilog="\b\nExamples:\n  sessiontree swarm resume review\n"
    "  sessiontree swarm resume review --file review.toml --max-cost 2"
)
@swarm_argument
@swarm_session_option
@click.option(
    "--file",
    type=click.Path(dir_okay=False),
    help="A swarm file, for its extensions; its tools, system prompt and thinking take the place of those it had.",
)
@budget_override_options
@durable_options
@cwd_option
@permission_options
@extension_option
@json_option
def resume(
    name: str,
    session: str | None,
    file: str | None,
    max_cost: float | None,
    max_tokens: int | None,
    max_time: float | None,
    max_agent_cost: float | None,
    max_agent_tokens: int | None,
    max_agent_time: float | None,
    durable: bool,
    concurrency: int | None,
    database: str | None,
    cwd: str | None,
    permission_mode: PermissionMode | None,
    allow: tuple[str, ...],
    extensions: tuple[str, ...],
    as_json: bool,
) -> int:
    """Go on with a swarm that was paused or whose process ended. What is done is not repeated.

    A paused one that another process holds goes on there. Limits that are given take the place of those it had; the
    others stay.
    """
    from sessiontree.cli.swarm_file import load_swarm_file
    from sessiontree.swarm.durable import check_not_with_workers
    from sessiontree.swarm.replay import SwarmTracker
    from sessiontree.swarm.swarm import Swarm

    found, id = _locate_swarm(name, session)
    durably = _DurableOptions.from_options(durable, concurrency, database)
    said = None if file is None else load_swarm_file(file)
    outfit = _SwarmSetup(said, extensions, durably, cwd, file, permission_mode, allow)

    async def start(desk: SessionController) -> _StartedSwarm:
        again = Swarm.open(
            desk.session, id, **outfit.build_swarm_options(desk), override_saved=said is not None or durably is not None
        )
        told = again.events.last if again.is_streaming else 0
        if durably is None and not again.is_held:
            check_not_with_workers(id, name)
        status = again.status()
        budget = override_budget(status.budget, max_cost, max_tokens, max_time)
        agent_budget = override_budget(status.agent_budget, max_agent_cost, max_agent_tokens, max_agent_time)
        if status.status == "paused":
            await again.resume(budget=budget, agent_budget=agent_budget)
        elif budget is not None or agent_budget is not None:
            raise InvalidOperation(f"swarm {again.name} is {status.status}: a budget changes while it is paused")
        else:
            await again.start()
        return _StartedSwarm(again, told)

    if durably is not None:
        durably.check()
    with open_session(found) as target:
        before = SwarmTracker(target).read().swarms[id].created
        return outfit.run_to_end(target, start, said or before, as_json=as_json)


class _StartedSwarm(NamedTuple):
    """A swarm that was told to work."""

    swarm: Swarm
    last_event: int = 0
    """The number of its last event before that."""


class _DurableOptions(NamedTuple):
    """How workers carry a swarm out."""

    concurrency: int | None
    database: str | None

    @classmethod
    def from_options(cls, durable: bool, concurrency: int | None, database: str | None) -> _DurableOptions | None:
        """What the options say; `None` where agents work in this process."""
        if not durable and (concurrency is not None or database is not None):
            raise click.UsageError("--concurrency and --database are for workers: give --durable too")
        return cls(concurrency, database) if durable else None

    def check(self) -> None:
        """See that work can be sent. Raises `StoreError` where its database cannot be had."""
        try:
            from sessiontree.swarm.durable.database import WorkDatabase
        except ModuleNotFoundError as error:
            raise InvalidOperation("durable swarms need the extra: pip install 'sessiontree[swarm]'") from error
        WorkDatabase(self.database).migrate()

    def create_executor(self, session: Session, said: SwarmFile | CreatedRecord) -> DurableExecutor:
        from sessiontree.agent.system_prompt import join_parts
        from sessiontree.swarm.durable.executor import DurableExecutor

        return DurableExecutor(
            session,
            database=self.database,
            concurrency=self.concurrency,
            tools=said.tools,
            system=join_parts(said.system) if isinstance(said.system, tuple) else said.system,
            thinking=said.thinking,
        )


def _load_trusted_extensions(file: str, said: SwarmFile, named: tuple[str, ...]) -> ExtensionFiles:
    """The extensions of a swarm file, once somebody has trusted exactly these. Raises `InvalidOperation` otherwise.

    Those that the person `named` on the command line need no trust, nor do those in the home.
    """
    from sessiontree.extensions.source_files import locate_extension, read_named_extensions
    from sessiontree.extensions.trust import TrustStore
    from sessiontree.home import get_home

    own = os.path.join(os.path.realpath(get_home()), "")
    known = {locate_extension(path).path for path in named}
    asked = [path for path in said.extensions if locate_extension(path).path not in known]
    asked = [path for path in asked if not os.path.realpath(path).startswith(own)]
    content = read_named_extensions(file, asked)
    trust = TrustStore(get_home())
    if not asked or trust.is_trusted(content):
        return content
    names = "\n".join(f"  {escape_line(path)}" for path in content.files)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOperation(
            f"{escape_line(file)} has extensions that nobody has trusted: run it on a terminal, which asks, "
            "or name them with -e"
        )
    click.echo(f"{escape_line(file)} has extensions that you have not seen in this form:\n{names}", err=True)
    if not click.confirm("Trust this swarm file, and run its extensions?", err=True):
        raise InvalidOperation("nothing was done, since the extensions are not trusted")
    trust.add(content)
    return content


class _SwarmSetup:
    """What agents work with: models, tools, extensions and prompts. A file says it anew, whatever a swarm had."""

    def __init__(
        self,
        said: SwarmFile | None,
        extensions: tuple[str, ...],
        durable: _DurableOptions | None,
        cwd: str | None,
        file: str | None,
        mode: PermissionMode | None,
        allow: tuple[str, ...],
    ) -> None:
        """Raises `NotFound` for a tool or an extension that is not there."""
        from sessiontree import config
        from sessiontree.cli.prompt import select_tools
        from sessiontree.extensions.source_files import locate_extension
        from sessiontree.hooks.bus import Hooks

        named = None if said is None else said.tools
        self._swarm_file = said
        if durable is not None and (mode is not None or allow):
            raise click.UsageError("workers have permissions of their own: give these options to `sessiontree worker`")
        self._settings = config.load()
        self._hooks = Hooks()
        tools = select_tools(None if named is None else ",".join(named) or None, named == [])
        self._options = load_options(self._settings, mode, allow, tools=tools, cwd=cwd)
        named_twice = (*(() if said is None else said.extensions), *extensions)
        self._extensions = tuple(dict.fromkeys(locate_extension(path).path for path in named_twice))
        self._content = (
            None if said is None or file is None else _load_trusted_extensions(os.path.abspath(file), said, extensions)
        )
        self._durable = durable
        self._executor: DurableExecutor | None = None

    def resolve_model(self, name: str | None, branch: Branch | None = None) -> Model:
        from sessiontree.cli.prompt import select_model

        return select_model(name, branch, self._settings, self._hooks)

    def build_swarm_options(self, desk: SessionController) -> dict[str, Any]:
        """For a swarm at this desk."""
        return {
            "model_of": self.resolve_model,
            "tools": desk.tools,
            "hooks": desk.hooks,
            "settings": desk.settings,
            "system": None if self._swarm_file is None else self._swarm_file.system,
            "thinking": None if self._swarm_file is None else self._swarm_file.thinking,
            "executor": self._executor,
            "permissions": self._options.permissions,
        }

    def run_to_end(
        self,
        session: Session,
        start: Callable[[SessionController], Awaitable[_StartedSwarm]],
        said: SwarmFile | CreatedRecord,
        *,
        as_json: bool,
    ) -> int:
        """Begin, show how far it is until that is over, and tell what came of it. Workers are told what is `said`."""

        from sessiontree.commands.controller import SessionController

        async def run_swarm() -> SwarmStatus:
            async with RunningController(desk, self._extensions, self._content):
                if self._durable is None:
                    return await _wait_with_progress(await start(desk), quiet=as_json, durable=False)
                self._executor = self._durable.create_executor(session, said)
                try:
                    begun = await start(desk)
                    if begun.swarm.is_running and not await self._executor.list_workers():
                        warn("there is no worker yet: `sessiontree worker` starts one")
                    return await _wait_with_progress(begun, quiet=as_json, durable=True)
                finally:
                    await self._executor.close()

        desk = SessionController(
            session,
            options=self._options,
            hooks=self._hooks,
            ui=StderrUi(),
        )
        status = run_async(run_swarm())
        warn_set_aside(session)
        print_denials(self._options.permissions)
        print_status(status, session, as_json=as_json, durable=self._durable is not None)
        failed = any(agent.status == "failed" for agent in status.agents)
        if status.status == "running":
            return 0  # it goes on in the process that works on it
        return MODEL_FAILED if failed or status.status != "completed" else 0


async def _wait_with_progress(begun: _StartedSwarm, *, quiet: bool, durable: bool) -> SwarmStatus:
    """Wait for a swarm, and show how far it is. Where another process works on it, there is nothing to wait for."""
    import asyncio

    swarm = begun.swarm
    if not swarm.is_running:
        return swarm.status()
    if not quiet:
        told = f"swarm {swarm.name} {swarm.id} in session {swarm.session.id}"
        click.echo(dim(escape_line(told)), err=True)
    progress = ProgressTable(lambda: build_status_rows(swarm.status()), quiet=quiet)
    telling = asyncio.create_task(_report_events(begun, progress))
    try:
        async with progress:
            await swarm.wait()
    except (asyncio.CancelledError, StoreError):
        warn(f"`{format_resume_command(swarm.name, durable=durable)}` goes on with it")
        raise
    finally:
        await swarm.detach()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    return swarm.status()


async def _report_events(begun: _StartedSwarm, progress: ProgressTable) -> None:
    """Print a line of what happens, as it happens, and at the end what is left of it."""
    import asyncio

    swarm, seen = begun

    def report_new_events() -> None:
        nonlocal seen
        for event in swarm.events.read(after=seen, types=PROGRESS_EVENTS):
            seen = event.seq
            progress.print_line(format_event(event))

    try:
        while True:
            report_new_events()
            await asyncio.sleep(POLL_SECONDS)
    except InvalidOperation:
        return  # it has no events
    except asyncio.CancelledError:
        report_new_events()
        raise


# Telling it what to do


@swarm.command(epilog='\b\nExample:\n  sessiontree swarm stop review --reason "The first answer is good enough."')
@swarm_argument
@swarm_session_option
@click.option("--reason", metavar="TEXT", help="Why.")
@json_option
def stop(name: str, session: str | None, reason: str | None, as_json: bool) -> None:
    """Give a swarm up: its agents are aborted, wherever they work. What they have done stays."""
    _control_swarm(name, session, lambda swarm: swarm.cancel(reason), as_json=as_json)


@swarm.command(epilog="\b\nExample:\n  sessiontree swarm pause review")
@swarm_argument
@swarm_session_option
@click.option("--reason", metavar="TEXT", help="Why.")
@json_option
def pause(name: str, session: str | None, reason: str | None, as_json: bool) -> None:
    """Have a swarm ask its models nothing more. The calls under way come to their end; `resume` goes on."""
    _control_swarm(name, session, lambda swarm: swarm.pause(reason), as_json=as_json)


def _control_swarm(
    name: str, session: str | None, command: Callable[[Swarm], Coroutine[Any, Any, None]], *, as_json: bool
) -> None:

    from sessiontree.swarm.swarm import Swarm

    found, id = _locate_swarm(name, session)
    with open_session(found) as target:
        swarm = Swarm.open(target, id)
        run_async(command(swarm))
        status = swarm.status()
        warn_set_aside(target)
    if as_json:
        echo_json(status_to_wire(status))
    else:
        echo(bold(escape_line(status.branch)), status.status, dim(escape_line(status.reason or "")))


# Looking


@swarm.command(epilog="\b\nExamples:\n  sessiontree swarm ls\n  sessiontree swarm ls --session speed --json")
@click.option("--session", metavar="SESSION", help="The swarms of this session; by default those of this folder's.")
@click.option("--all", "everywhere", is_flag=True, help="Swarms of the sessions of all folders.")
@json_option
def ls(session: str | None, everywhere: bool, as_json: bool) -> None:
    """List swarms, those of the newest session first."""
    rows = [["swarm", "state", "strategy", "agents", "tokens", "cost", "made", "session"]]
    for found in _find_sessions(session, everywhere=everywhere):
        for status in _load_swarms(found):
            if as_json:
                echo_json(status_to_wire(status))
                continue
            done = sum(agent.status == "completed" for agent in status.agents)
            made = format_local_time(status.created_at)
            figures = [f"{done} of {len(status.agents)}", *format_usage(status.tokens, status.cost)]
            known = [
                status.branch,
                get_display_state(status, found),
                status.strategy,
                *figures,
                made,
                found.name or found.id,
            ]
            rows.append([escape_line(cell) for cell in known])
    if not as_json:
        print_table(rows) if len(rows) > 1 else echo(dim("no swarms"))


@swarm.command(epilog="\b\nExample:\n  sessiontree swarm show review")
@swarm_argument
@swarm_session_option
@json_option
def show(name: str, session: str | None, as_json: bool) -> None:
    """Show a swarm: its agents, what they have spent, and its result."""
    found, id = _locate_swarm(name, session)
    of = open_session(found, read_only=True)
    (status,) = [status for status in _load_swarms(of) if status.id == id]
    print_status(status, of, as_json=as_json)


@swarm.command(
    epilog="\b\nExamples:\n  sessiontree swarm events review --follow\n"
    "  sessiontree swarm events review --type agent_fail --type error --json"
)
@swarm_argument
@swarm_session_option
@click.option("--after", type=click.IntRange(0), default=0, metavar="NUMBER", help="Those behind this number.")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Those of a type; may be given again.")
@click.option("--agent", metavar="NAME", help="Those of an agent.")
@click.option("--follow", is_flag=True, help="Wait for those that come, until the swarm has come to its end.")
@json_option
def events(
    name: str,
    session: str | None,
    after: int,
    types: tuple[str, ...],
    agent: str | None,
    follow: bool,
    as_json: bool,
) -> None:
    """Print what has happened in a swarm, an event a line, oldest first."""

    from sessiontree.swarm.events import EVENT_TYPES
    from sessiontree.swarm.swarm import Swarm

    for kind in types:
        if kind not in EVENT_TYPES:
            raise click.UsageError(f"there is no event {kind!r}: choose among {', '.join(EVENT_TYPES)}")
    found, id = _locate_swarm(name, session)
    with open_session(found, read_only=True) as read:
        swarm = Swarm.open(read, id)
        known = [info.id for info in swarm.status().agents]
        if agent is not None and agent not in known and not follow:
            raise NotFound("agent", agent, f"there are {', '.join(known) or 'none'}")
        wanted = _EventPrinter(set(types) or None, agent, as_json=as_json)
        run_async(_print_events(swarm, after, wanted, follow=follow))


class _EventPrinter(NamedTuple):
    """Which events are printed, and how."""

    types: set[str] | None
    agent: str | None
    as_json: bool

    def print_event(self, event: BaseSwarmEvent) -> None:
        import msgspec

        if self.types is not None and event.type not in self.types:
            return
        if self.agent is not None and event.agent != self.agent:
            return
        if self.as_json:
            echo_json(msgspec.to_builtins(event))
        else:
            click.echo(format_event(event))


async def _print_events(swarm: Swarm, after: int, wanted: _EventPrinter, *, follow: bool) -> None:
    from sessiontree.swarm.status import END_STATES

    last = swarm.events.last
    if swarm.status().status in END_STATES or not follow:
        while after < last and (some := swarm.events.read(after=after)):
            for event in some:
                wanted.print_event(event)
            after = some[-1].seq
        return
    async with aclosing(swarm.events.follow(after=after)) as coming:
        async for event in coming:
            wanted.print_event(event)
            if event.type == "swarm" and getattr(event, "status", "") in END_STATES:
                return
