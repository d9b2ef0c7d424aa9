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

from sessiontree import catalog
from sessiontree.cli.app import MODEL_FAILED, F, app, json_option, opened, run_async, tell_set_aside, typeable
from sessiontree.cli.budget import budget_of, budget_options, new_budget, new_budget_options
from sessiontree.cli.desk import PrintedUi, Working, cwd_option, extension_option
from sessiontree.cli.live import Progress
from sessiontree.cli.output import dim, echo, echo_json, safe, strong, table, warn
from sessiontree.cli.permissions import chosen_permissions, permission_options, tell_denials
from sessiontree.cli.swarm_view import event_line, resuming, rows_of, state_of, status_to_wire, tell_status, took
from sessiontree.cli.worker import database_option
from sessiontree.commands.text import local_time
from sessiontree.core.places import PREFIX
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound, SessionTreeError, StoreError

if TYPE_CHECKING:
    from sessiontree.cli.swarm_file import SwarmFile
    from sessiontree.commands.desk import Desk
    from sessiontree.config import PermissionMode
    from sessiontree.extensions.content import Content
    from sessiontree.model.base import Model
    from sessiontree.session import Branch, Session
    from sessiontree.swarm.durable.executor import DurableExecutor
    from sessiontree.swarm.events import Event
    from sessiontree.swarm.facts import Created
    from sessiontree.swarm.status import SwarmStatus
    from sessiontree.swarm.swarm import Swarm

POLL = 0.1
"""Seconds between two looks for events."""

TOLD = ("agent_start", "agent_complete", "agent_fail", "budget", "swarm", "error")
"""Events that are told while one waits; the others are many."""


# Finding them


def _sessions(session: str | None, *, everywhere: bool = False) -> Iterator[Session]:
    """Sessions that have swarms, the newest first."""
    if session is not None:
        yield opened(session, read_only=True)
        return
    from sessiontree.swarm.facts import SWARM
    from sessiontree.web.mentions import Mentions

    mentions = Mentions(SWARM)
    for summary in catalog.sessions(all=everywhere):
        if not summary.damaged and mentions.in_file(summary.file):
            yield opened(summary.file, read_only=True)  # copies have one id


def _swarms(session: Session) -> list[SwarmStatus]:
    from sessiontree.swarm.record import swarms_in

    return swarms_in(session)


def _located(name: str, session: str | None) -> tuple[str, str]:
    """The session and the id of the swarm that has this name or id, or whose id begins so."""
    for found in _sessions(session):
        statuses = _swarms(found)
        exact = [status.id for status in statuses if name in (status.id, status.branch)]
        ids = exact or [status.id for status in statuses if len(name) >= PREFIX and status.id.startswith(name)]
        if len(ids) > 1:
            raise Ambiguous("swarm", name, ids)
        if ids:
            return session or found.where, ids[0]
    where = "in that session" if session is not None else "in the sessions of this folder"
    raise NotFound("swarm", name, f"none of that name {where}; `sessiontree swarm ls --all` lists all")


def _complete_swarm(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        names = [status.branch for found in _sessions(ctx.params.get("session")) for status in _swarms(found)]
    except (SessionTreeError, OSError):
        return []
    return typeable(names, incomplete)


# The group, and what its commands share


@app.group(
    epilog="\b\nExamples:\n  sessiontree swarm run review.toml\n  sessiontree swarm ls\n"
    "  sessiontree swarm events review --follow\n  sessiontree swarm stop review"
)
def swarm() -> None:
    """Several agents at work on one task, each on a branch of one session."""


def swarm_argument(function: F) -> F:
    return click.argument("name", metavar="SWARM", shell_complete=_complete_swarm)(function)


def session_option(function: F) -> F:
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
    from sessiontree.cli.swarm_file import load
    from sessiontree.swarm.swarm import Swarm

    said = load(file)
    durably = _Durable.of(durable, concurrency, database)
    outfit = _Outfit(said, extensions, durably, cwd, file, permission_mode, allow)
    own, where = said.budget, session or said.session
    before = None if where is None else opened(where)
    usual: Model | str | None = model or said.model
    if not durable:  # workers have models of their own
        usual = outfit.model_of(usual, None if before is None else before.head)
        for agent in said.agent:
            if agent.model is not None:
                outfit.model_of(agent.model)

    def made(target: Session, **given: Any) -> Swarm:
        return Swarm(
            target,
            said.name,
            said.task,
            agents=said.team,
            max_agents=said.max_agents,
            strategy=said.strategy,
            parts=said.parts,
            model=usual,
            budget=budget_of(max_cost or own.cost, max_tokens or own.tokens, max_time or own.seconds),
            agent_budget=budget_of(said.agent_budget.cost, said.agent_budget.tokens, said.agent_budget.seconds),
            at=at or said.at,
            retries=said.retries,
            enable_branching=said.branching,
            enable_event_streaming=said.events,
            **given,
        )

    async def begin(desk: Desk) -> _Begun:
        given = outfit.given(desk)
        if durably is not None and said.tools is None:
            given["tools"] = None  # all that workers have
        swarm = made(desk.session, **given)
        await swarm.start()
        return _Begun(swarm)

    empty = catalog.memory()  # so that nothing is left of one that cannot begin
    made(empty)
    (before or empty).place(at or said.at)
    if durably is not None:
        durably.check()
    target = before or catalog.create(said.name, cwd=cwd or ".")
    try:
        with target:
            return outfit.through(target, begin, said, as_json=as_json)
    except Exception:
        if before is None:
            _drop_if_unused(target)
        raise


def _drop_if_unused(session: Session) -> None:
    """Remove a session that has nothing but its name."""
    from sessiontree import shelf

    with suppress(SessionTreeError):  # why it could not begin is what matters
        shelf.purge_unused(session, lambda tree: all(entry.type == "session_info" for entry in tree))


@swarm.command(
    epilog="\b\nExamples:\n  sessiontree swarm resume review\n"
    "  sessiontree swarm resume review --file review.toml --max-cost 2"
)
@swarm_argument
@session_option
@click.option(
    "--file",
    type=click.Path(dir_okay=False),
    help="A swarm file, for its extensions; its tools, system prompt and thinking take the place of those it had.",
)
@new_budget_options
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
    from sessiontree.cli.swarm_file import load
    from sessiontree.swarm.account import Accounts
    from sessiontree.swarm.durable import check_no_worker_has
    from sessiontree.swarm.swarm import Swarm

    found, id = _located(name, session)
    durably = _Durable.of(durable, concurrency, database)
    said = None if file is None else load(file)
    outfit = _Outfit(said, extensions, durably, cwd, file, permission_mode, allow)

    async def begin(desk: Desk) -> _Begun:
        again = Swarm.open(desk.session, id, **outfit.given(desk), anew=said is not None or durably is not None)
        told = again.events.last if again.streams else 0
        if durably is None and not again.held:
            check_no_worker_has(id, name)
        status = again.status()
        budget = new_budget(status.budget, max_cost, max_tokens, max_time)
        agent_budget = new_budget(status.agent_budget, max_agent_cost, max_agent_tokens, max_agent_time)
        if status.status == "paused":
            await again.resume(budget=budget, agent_budget=agent_budget)
        elif budget is not None or agent_budget is not None:
            raise InvalidOperation(f"swarm {again.name} is {status.status}: a budget changes while it is paused")
        else:
            await again.start()
        return _Begun(again, told)

    if durably is not None:
        durably.check()
    with opened(found) as target:
        before = Accounts(target).read().swarms[id].created
        return outfit.through(target, begin, said or before, as_json=as_json)


class _Begun(NamedTuple):
    """A swarm that was told to work."""

    swarm: Swarm
    told: int = 0
    """The number of its last event before that."""


class _Durable(NamedTuple):
    """How workers carry a swarm out."""

    concurrency: int | None
    database: str | None

    @classmethod
    def of(cls, durable: bool, concurrency: int | None, database: str | None) -> _Durable | None:
        """What the options say; `None` where agents work in this process."""
        if not durable and (concurrency is not None or database is not None):
            raise click.UsageError("--concurrency and --database are for workers: give --durable too")
        return cls(concurrency, database) if durable else None

    def check(self) -> None:
        """See that work can be sent. Raises `StoreError` where its database cannot be had."""
        try:
            from sessiontree.swarm.durable.database import Database
        except ModuleNotFoundError as error:
            raise InvalidOperation("durable swarms need the extra: pip install 'sessiontree[swarm]'") from error
        Database(self.database).make()

    def executor(self, session: Session, said: SwarmFile | Created) -> DurableExecutor:
        from sessiontree.agent.system import joined
        from sessiontree.swarm.durable.executor import DurableExecutor

        return DurableExecutor(
            session,
            database=self.database,
            concurrency=self.concurrency,
            tools=said.tools,
            system=joined(said.system) if isinstance(said.system, tuple) else said.system,
            thinking=said.thinking,
        )


def _trusted(file: str, said: SwarmFile, named: tuple[str, ...]) -> Content:
    """The extensions of a swarm file, once somebody has trusted exactly these. Raises `InvalidOperation` otherwise.

    Those that the person `named` on the command line need no trust, nor do those in the home.
    """
    from sessiontree.extensions.content import given, read_given
    from sessiontree.extensions.trust import Trust
    from sessiontree.home import home

    own = os.path.join(os.path.realpath(home()), "")
    known = {given(path).path for path in named}
    asked = [path for path in said.extensions if given(path).path not in known]
    asked = [path for path in asked if not os.path.realpath(path).startswith(own)]
    content = read_given(file, asked)
    trust = Trust(home())
    if not asked or trust.has(content):
        return content
    names = "\n".join(f"  {safe(path)}" for path in content.files)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOperation(
            f"{safe(file)} has extensions that nobody has trusted: run it on a terminal, which asks, "
            "or name them with -e"
        )
    click.echo(f"{safe(file)} has extensions that you have not seen in this form:\n{names}", err=True)
    if not click.confirm("Trust this swarm file, and run its extensions?", err=True):
        raise InvalidOperation("nothing was done, since the extensions are not trusted")
    trust.add(content)
    return content


class _Outfit:
    """What agents work with: models, tools, extensions and prompts. A file says it anew, whatever a swarm had."""

    def __init__(
        self,
        said: SwarmFile | None,
        extensions: tuple[str, ...],
        durable: _Durable | None,
        cwd: str | None,
        file: str | None,
        mode: PermissionMode | None,
        allow: tuple[str, ...],
    ) -> None:
        """Raises `NotFound` for a tool or an extension that is not there."""
        from sessiontree import config
        from sessiontree.cli.prompt import chosen_tools
        from sessiontree.extensions.content import given
        from sessiontree.hooks.bus import Hooks

        named = None if said is None else said.tools
        self._said = said
        if durable is not None and (mode is not None or allow):
            raise click.UsageError("workers have permissions of their own: give these options to `sessiontree worker`")
        self._settings = config.load()
        self._permissions = chosen_permissions(self._settings, mode, allow)
        self._hooks = Hooks()
        self._tools = chosen_tools(None if named is None else ",".join(named) or None, named == [])
        named_twice = (*(() if said is None else said.extensions), *extensions)
        self._extensions = tuple(dict.fromkeys(given(path).path for path in named_twice))
        self._content = None if said is None or file is None else _trusted(os.path.abspath(file), said, extensions)
        self._durable = durable
        self._cwd = cwd
        self._executor: DurableExecutor | None = None

    def model_of(self, name: str | None, branch: Branch | None = None) -> Model:
        from sessiontree.cli.prompt import chosen_model

        return chosen_model(name, branch, self._settings, self._hooks)

    def given(self, desk: Desk) -> dict[str, Any]:
        """For a swarm at this desk."""
        return {
            "model_of": self.model_of,
            "tools": desk.tools,
            "hooks": desk.hooks,
            "settings": desk.settings,
            "system": None if self._said is None else self._said.system,
            "thinking": None if self._said is None else self._said.thinking,
            "executor": self._executor,
            "permissions": self._permissions,
        }

    def through(
        self,
        session: Session,
        begin: Callable[[Desk], Awaitable[_Begun]],
        said: SwarmFile | Created,
        *,
        as_json: bool,
    ) -> int:
        """Begin, show how far it is until that is over, and tell what came of it. Workers are told what is `said`."""

        from sessiontree.commands.desk import Desk

        async def carried_out() -> SwarmStatus:
            async with Working(desk, self._extensions, self._content):
                if self._durable is None:
                    return await _shown(await begin(desk), quiet=as_json, durable=False)
                self._executor = self._durable.executor(session, said)
                try:
                    begun = await begin(desk)
                    if begun.swarm.running and not await self._executor.workers():
                        warn("there is no worker yet: `sessiontree worker` starts one")
                    return await _shown(begun, quiet=as_json, durable=True)
                finally:
                    await self._executor.close()

        desk = Desk(
            session,
            tools=self._tools,
            hooks=self._hooks,
            settings=self._settings,
            ui=PrintedUi(),
            cwd=self._cwd,
            permissions=self._permissions,
        )
        status = run_async(carried_out())
        tell_set_aside(session)
        tell_denials(self._permissions)
        tell_status(status, session, as_json=as_json, durable=self._durable is not None)
        failed = any(agent.status == "failed" for agent in status.agents)
        if status.status == "running":
            return 0  # it goes on in the process that works on it
        return MODEL_FAILED if failed or status.status != "completed" else 0


async def _shown(begun: _Begun, *, quiet: bool, durable: bool) -> SwarmStatus:
    """Wait for a swarm, and show how far it is. Where another process works on it, there is nothing to wait for."""
    import asyncio

    swarm = begun.swarm
    if not swarm.running:
        return swarm.status()
    if not quiet:
        told = f"swarm {swarm.name} {swarm.id} in session {swarm.session.id}"
        click.echo(dim(safe(told)), err=True)
    progress = Progress(lambda: rows_of(swarm.status()), quiet=quiet)
    telling = asyncio.create_task(_tell_events(begun, progress))
    try:
        async with progress:
            await swarm.wait()
    except (asyncio.CancelledError, StoreError):
        warn(f"`{resuming(swarm.name, durable=durable)}` goes on with it")
        raise
    finally:
        await swarm.leave()
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    return swarm.status()


async def _tell_events(begun: _Begun, progress: Progress) -> None:
    """Print a line of what happens, as it happens, and at the end what is left of it."""
    import asyncio

    swarm, seen = begun

    def tell() -> None:
        nonlocal seen
        for event in swarm.events.read(after=seen, types=TOLD):
            seen = event.seq
            progress.tell(event_line(event))

    try:
        while True:
            tell()
            await asyncio.sleep(POLL)
    except InvalidOperation:
        return  # it has no events
    except asyncio.CancelledError:
        tell()
        raise


# Telling it what to do


@swarm.command(epilog='\b\nExample:\n  sessiontree swarm stop review --reason "The first answer is good enough."')
@swarm_argument
@session_option
@click.option("--reason", metavar="TEXT", help="Why.")
@json_option
def stop(name: str, session: str | None, reason: str | None, as_json: bool) -> None:
    """Give a swarm up: its agents are aborted, wherever they work. What they have done stays."""
    _told_to(name, session, lambda swarm: swarm.cancel(reason), as_json=as_json)


@swarm.command(epilog="\b\nExample:\n  sessiontree swarm pause review")
@swarm_argument
@session_option
@click.option("--reason", metavar="TEXT", help="Why.")
@json_option
def pause(name: str, session: str | None, reason: str | None, as_json: bool) -> None:
    """Have a swarm ask its models nothing more. The calls under way come to their end; `resume` goes on."""
    _told_to(name, session, lambda swarm: swarm.pause(reason), as_json=as_json)


def _told_to(
    name: str, session: str | None, say: Callable[[Swarm], Coroutine[Any, Any, None]], *, as_json: bool
) -> None:

    from sessiontree.swarm.swarm import Swarm

    found, id = _located(name, session)
    with opened(found) as target:
        swarm = Swarm.open(target, id)
        run_async(say(swarm))
        status = swarm.status()
        tell_set_aside(target)
    if as_json:
        echo_json(status_to_wire(status))
    else:
        echo(strong(safe(status.branch)), status.status, dim(safe(status.reason or "")))


# Looking


@swarm.command(epilog="\b\nExamples:\n  sessiontree swarm ls\n  sessiontree swarm ls --session speed --json")
@click.option("--session", metavar="SESSION", help="The swarms of this session; by default those of this folder's.")
@click.option("--all", "everywhere", is_flag=True, help="Swarms of the sessions of all folders.")
@json_option
def ls(session: str | None, everywhere: bool, as_json: bool) -> None:
    """List swarms, those of the newest session first."""
    rows = [["swarm", "state", "strategy", "agents", "tokens", "cost", "made", "session"]]
    for found in _sessions(session, everywhere=everywhere):
        for status in _swarms(found):
            if as_json:
                echo_json(status_to_wire(status))
                continue
            done = sum(agent.status == "completed" for agent in status.agents)
            made = local_time(status.created_at)
            figures = [f"{done} of {len(status.agents)}", *took(status.tokens, status.cost)]
            known = [status.branch, state_of(status, found), status.strategy, *figures, made, found.name or found.id]
            rows.append([safe(cell) for cell in known])
    if not as_json:
        table(rows) if len(rows) > 1 else echo(dim("no swarms"))


@swarm.command(epilog="\b\nExample:\n  sessiontree swarm show review")
@swarm_argument
@session_option
@json_option
def show(name: str, session: str | None, as_json: bool) -> None:
    """Show a swarm: its agents, what they have spent, and its result."""
    found, id = _located(name, session)
    of = opened(found, read_only=True)
    (status,) = [status for status in _swarms(of) if status.id == id]
    tell_status(status, of, as_json=as_json)


@swarm.command(
    epilog="\b\nExamples:\n  sessiontree swarm events review --follow\n"
    "  sessiontree swarm events review --type agent_fail --type error --json"
)
@swarm_argument
@session_option
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
    found, id = _located(name, session)
    with opened(found, read_only=True) as read:
        swarm = Swarm.open(read, id)
        known = [info.id for info in swarm.status().agents]
        if agent is not None and agent not in known and not follow:
            raise NotFound("agent", agent, f"there are {', '.join(known) or 'none'}")
        wanted = _Wanted(set(types) or None, agent, as_json=as_json)
        run_async(_printed(swarm, after, wanted, follow=follow))


class _Wanted(NamedTuple):
    """Which events are printed, and how."""

    types: set[str] | None
    agent: str | None
    as_json: bool

    def tell(self, event: Event) -> None:
        import msgspec

        if self.types is not None and event.type not in self.types:
            return
        if self.agent is not None and event.agent != self.agent:
            return
        if self.as_json:
            echo_json(msgspec.to_builtins(event))
        else:
            click.echo(event_line(event))


async def _printed(swarm: Swarm, after: int, wanted: _Wanted, *, follow: bool) -> None:
    from sessiontree.swarm.status import OVER

    last = swarm.events.last
    if swarm.status().status in OVER or not follow:
        while after < last and (some := swarm.events.read(after=after)):
            for event in some:
                wanted.tell(event)
            after = some[-1].seq
        return
    async with aclosing(swarm.events.follow(after=after)) as coming:
        async for event in coming:
            wanted.tell(event)
            if event.type == "swarm" and getattr(event, "status", "") in OVER:
                return
