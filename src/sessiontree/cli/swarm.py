"""The `swarm` commands: run swarms from files, list and show them, and control running ones.

Commands such as `stop` write to the session; the process that runs the swarm reads them there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from sessiontree.cli.agent_setup import (
    budget_options,
    budget_override_options,
    build_budget,
    cwd_option,
    extension_option,
    override_budget,
    permission_options,
)
from sessiontree.cli.app import (
    F,
    app,
    filter_completions,
    json_option,
    open_session,
    run_async,
    warn_set_aside,
)
from sessiontree.cli.output import bold, dim, echo, echo_json, escape_line, print_table
from sessiontree.cli.swarm_run import (
    EventPrinter,
    StartedSwarm,
    SwarmSetup,
    encode_status,
    format_usage,
    get_display_state,
    load_swarm_file,
    print_status,
)
from sessiontree.cli.swarm_worker import DurableOptions, durable_options
from sessiontree.core.place_names import ID_PREFIX_LENGTH
from sessiontree.errors import Ambiguous, InvalidOperation, NotFound, SessionTreeError
from sessiontree.library import catalog
from sessiontree.slash_commands.formatting import format_local_time

if TYPE_CHECKING:
    from sessiontree.config import PermissionMode
    from sessiontree.model.base import Model
    from sessiontree.session import Session
    from sessiontree.slash_commands.controller import SessionController
    from sessiontree.swarm.records import SwarmStatus
    from sessiontree.swarm.swarm import Swarm


# Lookup


def _find_sessions(session: str | None, *, everywhere: bool = False) -> Iterator[Session]:
    """Yield the sessions that contain swarms, newest first."""
    if session is not None:
        yield open_session(session, read_only=True)
        return
    from sessiontree.swarm.records import SWARM_RECORD_TYPE

    word = f'"{SWARM_RECORD_TYPE}"'.encode()
    for summary in catalog.sessions(all=everywhere):
        if not summary.is_damaged and catalog.may_contain(summary.file, word):
            yield open_session(summary.file, read_only=True)  # not by id, which copies share


def _load_swarms(session: Session) -> list[SwarmStatus]:
    from sessiontree.swarm.journal import list_swarms

    return list_swarms(session)


def _locate_swarm(name: str, session: str | None, *, everywhere: bool = False) -> tuple[str, str]:
    """Return the session and the id of the swarm with this name, id or start of an id.

    With `everywhere`, a swarm that is not in this folder is searched for in all others, where only one may match.
    """
    found = dict[str, str]()
    for location, id in _match_swarms(name, session, _find_sessions(session)):
        return location, id
    if everywhere and session is None:
        for location, id in _match_swarms(name, None, _find_sessions(None, everywhere=True)):
            found.setdefault(id, location)  # a fork has the swarms of its source too
    if len(found) > 1:
        raise Ambiguous("swarm", name, list(found))
    for id, location in found.items():
        return location, id
    folders = "all sessions" if everywhere else "the sessions of this folder"
    searched = folders if session is None else "that session"
    raise NotFound("swarm", name, f"searched {searched}; `sessiontree swarm ls --all` lists all swarms")


def _match_swarms(name: str, session: str | None, sessions: Iterator[Session]) -> Iterator[tuple[str, str]]:
    """Yield the session and the id of each swarm with this name, id or start of an id."""
    for found in sessions:
        statuses = _load_swarms(found)
        exact = [status.id for status in statuses if name in (status.id, status.branch)]
        ids = exact or [
            status.id for status in statuses if len(name) >= ID_PREFIX_LENGTH and status.id.startswith(name)
        ]
        if len(ids) > 1:
            raise Ambiguous("swarm", name, ids)
        if ids:
            yield session or found.location, ids[0]


def _complete_swarm(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        names = [status.branch for found in _find_sessions(ctx.params.get("session")) for status in _load_swarms(found)]
    except (SessionTreeError, OSError):
        return []
    return filter_completions(names, incomplete)


# Shared options


@app.group(
    epilog="\b\nExamples:\n  sessiontree swarm run review.toml\n  sessiontree swarm ls\n"
    "  sessiontree swarm events review --follow\n  sessiontree swarm stop review"
)
def swarm() -> None:
    """Run several agents on one task, each on its own branch of one session."""


def swarm_argument(function: F) -> F:
    return click.argument("name", metavar="SWARM", shell_complete=_complete_swarm)(function)


def swarm_session_option(function: F) -> F:
    help = "Session of the swarm. Default: the newest session of this folder with a swarm of that name."
    return click.option("--session", metavar="SESSION", help=help)(function)


# Run and resume


@swarm.command(
    epilog="\b\nExamples:\n  sessiontree swarm run review.toml\n"
    "  sessiontree swarm run review.toml --session @ --at HEAD~1 --max-cost 0.50"
)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--session", metavar="SESSION", help="Session to run in. Default: the session in the file, else a new one."
)
@click.option("--at", metavar="PLACE", help="Place that agents start from. Default: the place in the file, else HEAD.")
@click.option("--model", metavar="NAME", help="Model. Default: the model in the file, else the default model.")
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
    """Run the swarm that a file describes and print its result.

    Ctrl-C stops the agents; `swarm resume` continues. Exit codes: 0 on success, 1 on an error, 3 if the swarm did not
    finish or an agent failed, 130 if interrupted.
    """
    from sessiontree.swarm.swarm import Swarm

    swarm_file = load_swarm_file(file)
    workers = DurableOptions.from_options(durable, concurrency, database)
    setup = SwarmSetup(swarm_file, extensions, workers, cwd, file, permission_mode, allow)
    limits, agent_limits = swarm_file.budget, swarm_file.agent_budget
    source = session or swarm_file.session
    existing = None if source is None else open_session(source)
    default: Model | str | None = model or swarm_file.model
    if not durable:  # workers select their own models
        default = setup.resolve_model(default, None if existing is None else existing.head)
        for agent in swarm_file.agent:
            if agent.model is not None:
                setup.resolve_model(agent.model)

    def build_swarm(target: Session, **options: Any) -> Swarm:
        return Swarm(
            target,
            swarm_file.name,
            swarm_file.task,
            agents=swarm_file.team,
            max_agents=swarm_file.max_agents,
            strategy=swarm_file.strategy,
            parts=swarm_file.parts,
            model=default,
            budget=build_budget(max_cost or limits.cost, max_tokens or limits.tokens, max_time or limits.seconds),
            agent_budget=build_budget(agent_limits.cost, agent_limits.tokens, agent_limits.seconds),
            at=at or swarm_file.at,
            retries=swarm_file.retries,
            enable_branching=swarm_file.branching,
            enable_event_streaming=swarm_file.events,
            **options,
        )

    async def start(controller: SessionController) -> StartedSwarm:
        options = setup.build_swarm_options(controller)
        if workers is not None and swarm_file.tools is None:
            options["tools"] = None  # all tools that the workers have
        swarm = build_swarm(controller.session, **options)
        await swarm.start()
        return StartedSwarm(swarm)

    scratch = catalog.memory()  # check everything before a session is created
    build_swarm(scratch)
    (existing or scratch).resolve_place(at or swarm_file.at)
    if workers is not None:
        workers.check()
    target = existing or catalog.create_session(swarm_file.name, cwd=cwd or ".")
    try:
        with target:
            return setup.run_to_end(target, start, swarm_file, as_json=as_json)
    except Exception:
        if existing is None:
            _drop_if_unused(target)
        raise


def _drop_if_unused(session: Session) -> None:
    """Delete a session that has nothing but a name."""

    with suppress(SessionTreeError):  # do not hide the error of the run
        catalog.purge_unused(session, lambda tree: all(entry.type == "session_info" for entry in tree))


@swarm.command(
    epilog="\b\nExamples:\n  sessiontree swarm resume review\n"
    "  sessiontree swarm resume review --file review.toml --max-cost 2"
)
@swarm_argument
@swarm_session_option
@click.option(
    "--file",
    type=click.Path(dir_okay=False),
    help="Swarm file to load extensions from. Its tools, system prompt and thinking level replace the saved ones.",
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
    """Resume a swarm that is paused or whose process ended. Finished work is not repeated.

    If another process holds a paused swarm, the swarm continues there. The limits that you give replace the saved
    ones; the others stay.
    """
    from sessiontree.swarm.durable import check_not_with_workers
    from sessiontree.swarm.replay import SwarmTracker
    from sessiontree.swarm.swarm import Swarm

    location, id = _locate_swarm(name, session, everywhere=durable)
    workers = DurableOptions.from_options(durable, concurrency, database)
    swarm_file = None if file is None else load_swarm_file(file)
    setup = SwarmSetup(swarm_file, extensions, workers, cwd, file, permission_mode, allow)

    async def start(controller: SessionController) -> StartedSwarm:
        swarm = Swarm.open(
            controller.session,
            id,
            **setup.build_swarm_options(controller),
            override_saved=swarm_file is not None or workers is not None,
        )
        last_event = swarm.events.last if swarm.is_streaming else 0
        if workers is None and not swarm.is_held:
            check_not_with_workers(id, name)
        status = swarm.status()
        budget = override_budget(status.budget, max_cost, max_tokens, max_time)
        agent_budget = override_budget(status.agent_budget, max_agent_cost, max_agent_tokens, max_agent_time)
        if status.status == "paused":
            await swarm.resume(budget=budget, agent_budget=agent_budget)
        elif budget is not None or agent_budget is not None:
            raise InvalidOperation(
                f"swarm {swarm.name} is {status.status}; its budget can change only while it is paused"
            )
        else:
            await swarm.start()
        return StartedSwarm(swarm, last_event)

    if workers is not None:
        workers.check()
    with open_session(location) as target:
        created = SwarmTracker(target).read().swarms[id].created
        return setup.run_to_end(target, start, swarm_file or created, as_json=as_json)


# Control


@swarm.command(epilog='\b\nExample:\n  sessiontree swarm stop review --reason "The first answer is good enough."')
@swarm_argument
@swarm_session_option
@click.option("--reason", metavar="TEXT", help="Reason to record.")
@json_option
def stop(name: str, session: str | None, reason: str | None, as_json: bool) -> None:
    """Cancel a swarm and abort its agents. Finished work stays.

    The agents may run in another process."""
    _control_swarm(name, session, lambda swarm: swarm.cancel(reason), as_json=as_json)


@swarm.command(epilog="\b\nExample:\n  sessiontree swarm pause review")
@swarm_argument
@swarm_session_option
@click.option("--reason", metavar="TEXT", help="Reason to record.")
@json_option
def pause(name: str, session: str | None, reason: str | None, as_json: bool) -> None:
    """Pause a swarm after the model calls in progress. `swarm resume` continues."""
    _control_swarm(name, session, lambda swarm: swarm.pause(reason), as_json=as_json)


def _control_swarm(
    name: str, session: str | None, command: Callable[[Swarm], Coroutine[Any, Any, None]], *, as_json: bool
) -> None:
    from sessiontree.swarm.swarm import Swarm

    location, id = _locate_swarm(name, session)
    with open_session(location) as target:
        swarm = Swarm.open(target, id)
        run_async(command(swarm))
        status = swarm.status()
        warn_set_aside(target)
    if as_json:
        echo_json(encode_status(status))
    else:
        echo(bold(escape_line(status.branch)), status.status, dim(escape_line(status.reason or "")))


# Listing


@swarm.command(epilog="\b\nExamples:\n  sessiontree swarm ls\n  sessiontree swarm ls --session speed --json")
@click.option("--session", metavar="SESSION", help="List swarms of this session. Default: all sessions of this folder.")
@click.option("--all", "everywhere", is_flag=True, help="List swarms of sessions of all folders.")
@json_option
def ls(session: str | None, everywhere: bool, as_json: bool) -> None:
    """List swarms, newest session first."""
    rows = [["swarm", "state", "strategy", "agents", "tokens", "cost", "created", "session"]]
    for found in _find_sessions(session, everywhere=everywhere):
        for status in _load_swarms(found):
            if as_json:
                echo_json(encode_status(status))
                continue
            done = sum(agent.status == "completed" for agent in status.agents)
            figures = [f"{done} of {len(status.agents)}", *format_usage(status.tokens, status.cost)]
            cells = [
                status.branch,
                get_display_state(status, found),
                status.strategy,
                *figures,
                format_local_time(status.created_at),
                found.name or found.id,
            ]
            rows.append([escape_line(cell) for cell in cells])
    if not as_json:
        print_table(rows) if len(rows) > 1 else echo(dim("no swarms"))


@swarm.command(epilog="\b\nExample:\n  sessiontree swarm show review")
@swarm_argument
@swarm_session_option
@json_option
def show(name: str, session: str | None, as_json: bool) -> None:
    """Show a swarm: its agents, their cost, and its result."""
    location, id = _locate_swarm(name, session)
    opened = open_session(location, read_only=True)
    (status,) = [status for status in _load_swarms(opened) if status.id == id]
    print_status(status, opened, as_json=as_json)


@swarm.command(
    epilog="\b\nExamples:\n  sessiontree swarm events review --follow\n"
    "  sessiontree swarm events review --type agent_fail --type error --json"
)
@swarm_argument
@swarm_session_option
@click.option("--after", type=click.IntRange(0), default=0, metavar="NUMBER", help="Only events after this number.")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only events of this type; repeatable.")
@click.option("--agent", metavar="NAME", help="Only events of this agent.")
@click.option("--follow", is_flag=True, help="Wait for new events until the swarm ends.")
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
    """Print the events of a swarm, one per line, oldest first."""
    from sessiontree.swarm.events import EVENT_TYPES
    from sessiontree.swarm.swarm import Swarm

    for kind in types:
        if kind not in EVENT_TYPES:
            raise click.UsageError(f"--type: unknown event {kind!r}; events: {', '.join(EVENT_TYPES)}")
    location, id = _locate_swarm(name, session)
    with open_session(location, read_only=True) as opened:
        swarm = Swarm.open(opened, id)
        agents = [info.id for info in swarm.status().agents]
        if agent is not None and agent not in agents and not follow:
            raise NotFound("agent", agent, f"agents: {', '.join(agents) or 'none'}")
        printer = EventPrinter(set(types) or None, agent, as_json=as_json)
        run_async(printer.print_events(swarm, after, follow=follow))
