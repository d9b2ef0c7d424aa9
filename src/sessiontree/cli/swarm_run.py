"""Run a swarm from a file and show it: swarm files, start-up, progress, status tables and event lines.

A swarm file describes a swarm in TOML; an invalid one raises `ConfigError`. `SwarmSetup` runs it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from msgspec import Struct

from sessiontree.cli.agent_setup import AgentSetup, print_denials, select_tools
from sessiontree.cli.app import MODEL_FAILED, format_id, run_async, warn_set_aside
from sessiontree.cli.output import (
    ProgressTable,
    bold,
    dim,
    echo,
    echo_json,
    escape_line,
    escape_lines,
    print_table,
    warn,
)
from sessiontree.cli.swarm_worker import DurableOptions
from sessiontree.config import ConfigError, ThinkingLevel, convert_setting, parse_toml
from sessiontree.core.number_text import format_dollars, pluralize
from sessiontree.errors import InvalidOperation, StoreError
from sessiontree.regular_file import read_regular_file

if TYPE_CHECKING:
    from sessiontree.config import PermissionMode
    from sessiontree.core.entries import JsonObject
    from sessiontree.extensions.project_trust import ExtensionFiles
    from sessiontree.model.base import Model
    from sessiontree.session import Branch, Session
    from sessiontree.slash_commands.controller import SessionController
    from sessiontree.swarm.budget import Budget
    from sessiontree.swarm.durable.executor import DurableExecutor
    from sessiontree.swarm.events import BaseSwarmEvent
    from sessiontree.swarm.records import AgentSpec, CreatedRecord, SwarmStatus
    from sessiontree.swarm.swarm import Swarm

MAX_TASK_CHARS = 1000
MAX_TASK_LINES = 10
"""Longest task that is shown in full; `--json` prints all of it."""

ORPHANED = "orphaned"
"""State of an unfinished swarm that no process is running."""

POLL_SECONDS = 0.1
"""Seconds between two checks for new events."""

PROGRESS_EVENTS = ("agent_start", "agent_complete", "agent_fail", "budget", "swarm", "error")
"""Event types that are reported while waiting; the others are too frequent."""


# Swarm files


class BudgetTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cost: float | None = None
    tokens: int | None = None
    seconds: float | None = None

    @property
    def budget(self) -> Budget:
        from sessiontree.swarm.budget import Budget

        return Budget(cost=self.cost, tokens=self.tokens, seconds=self.seconds)


class AgentTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `[[agent]]` table."""

    name: str | None = None
    task: str | None = None
    model: str | None = None
    budget: BudgetTable | None = None

    @property
    def spec(self) -> AgentSpec:
        from sessiontree.swarm.records import AgentSpec

        budget = None if self.budget is None else self.budget.budget
        return AgentSpec(name=self.name, task=self.task, model=self.model, budget=budget)


class SwarmFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    task: str
    strategy: str = "parallel"
    agents: int | None = None
    """Number of agents, without `[[agent]]` tables."""
    agent: list[AgentTable] = []
    max_agents: int | None = None
    parts: list[str] | None = None
    """Inputs of the mappers, for `map-reduce`."""
    model: str | None = None
    thinking: ThinkingLevel | None = None
    system: str | None = None
    tools: list[str] | None = None
    """Names of built-in tools. Default: all."""
    extensions: list[str] = []
    """Paths relative to the folder of the swarm file."""
    budget: BudgetTable = BudgetTable()
    agent_budget: BudgetTable = BudgetTable()
    session: str | None = None
    """Session to run in. Default: a new one."""
    at: str = "HEAD"
    retries: int = 3
    branching: bool = True
    events: bool = True

    @property
    def team(self) -> int | list[AgentSpec]:
        """The number of agents, or a description of each."""
        return [table.spec for table in self.agent] or (2 if self.agents is None else self.agents)


def load_swarm_file(path: str) -> SwarmFile:
    """Read a swarm file. Raises `ConfigError`."""
    try:
        raw = read_regular_file(path)
    except OSError as error:
        raise ConfigError(path, None, f"cannot be read: {error.strerror or error}") from error
    found: SwarmFile = convert_setting(path, SwarmFile, parse_toml(path, raw))
    if found.agents is not None and found.agent:
        raise ConfigError(path, "agents", "use a number of agents or [[agent]] tables, not both")
    folder = os.path.dirname(os.path.abspath(path))
    paths = [os.path.join(folder, os.path.expanduser(extension)) for extension in found.extensions]
    return msgspec.structs.replace(found, extensions=paths)


class SwarmSetup:
    """The models, tools, extensions and prompts of a swarm. The values in a swarm file override saved ones."""

    def __init__(
        self,
        swarm_file: SwarmFile | None,
        extensions: tuple[str, ...],
        durable: DurableOptions | None,
        cwd: str | None,
        path: str | None,
        mode: PermissionMode | None,
        allow: tuple[str, ...],
    ) -> None:
        """Raises `NotFound` if a tool or an extension does not exist."""
        from sessiontree.extensions.project_trust import locate_extension

        if durable is not None and (mode is not None or allow):
            raise click.UsageError("with --durable, give permission options to `sessiontree worker` instead")
        tools = None if swarm_file is None else swarm_file.tools
        files = (*(() if swarm_file is None else swarm_file.extensions), *extensions)
        self._setup = AgentSetup(
            select_tools(None if tools is None else ",".join(tools) or None, tools == []),
            tuple(dict.fromkeys(locate_extension(file).path for file in files)),
            cwd=cwd,
            permission_mode=mode,
            allow=allow,
        )
        if swarm_file is not None and path is not None:
            self._setup.extension_files = _load_trusted_extensions(os.path.abspath(path), swarm_file, extensions)
        self._swarm_file = swarm_file
        self._durable = durable
        self._executor: DurableExecutor | None = None

    def resolve_model(self, name: str | None, branch: Branch | None = None) -> Model:
        return self._setup.select_model(name, branch)

    def build_swarm_options(self, controller: SessionController) -> dict[str, Any]:
        """Return keyword arguments for `Swarm`."""
        return {
            "model_of": self.resolve_model,
            "tools": controller.tools,
            "hooks": controller.hooks,
            "settings": controller.settings,
            "system": None if self._swarm_file is None else self._swarm_file.system,
            "thinking": None if self._swarm_file is None else self._swarm_file.thinking,
            "executor": self._executor,
            "permissions": self._setup.permissions,
        }

    def run_to_end(
        self,
        session: Session,
        start: Callable[[SessionController], Awaitable[StartedSwarm]],
        description: SwarmFile | CreatedRecord,
        *,
        as_json: bool,
    ) -> int:
        """Start a swarm, show its progress, print its status, and return the exit code.

        `description` has the tools and prompts for workers.
        """
        status = run_async(self._run(session, start, description, quiet=as_json))
        warn_set_aside(session)
        print_denials(self._setup.permissions)
        print_status(status, session, as_json=as_json, durable=self._durable is not None)
        failed = any(agent.status == "failed" for agent in status.agents)
        if status.status == "running":
            return 0  # another process runs it
        return MODEL_FAILED if failed or status.status != "completed" else 0

    async def _run(
        self,
        session: Session,
        start: Callable[[SessionController], Awaitable[StartedSwarm]],
        description: SwarmFile | CreatedRecord,
        *,
        quiet: bool,
    ) -> SwarmStatus:
        async with self._setup.attach(session) as controller:
            if self._durable is None:
                return await wait_with_progress(await start(controller), quiet=quiet, durable=False)
            self._executor = self._durable.create_executor(session, description)
            try:
                started = await start(controller)
                if started.swarm.is_running and not await self._executor.list_workers():
                    warn("no worker is running; start one with `sessiontree worker`")
                return await wait_with_progress(started, quiet=quiet, durable=True)
            finally:
                await self._executor.close()


def _load_trusted_extensions(path: str, swarm_file: SwarmFile, named: tuple[str, ...]) -> ExtensionFiles:
    """Return the extensions of a swarm file after the user trusted their content. Raises `InvalidOperation` otherwise.

    Extensions that are `named` on the command line or are in the home folder need no confirmation.
    """
    from sessiontree.extensions.project_trust import TrustStore, locate_extension, read_named_extensions
    from sessiontree.home import get_home

    home = os.path.join(os.path.realpath(get_home()), "")
    confirmed = {locate_extension(file).path for file in named}
    unconfirmed = [
        file
        for file in swarm_file.extensions
        if locate_extension(file).path not in confirmed and not os.path.realpath(file).startswith(home)
    ]
    content = read_named_extensions(path, unconfirmed)
    trust = TrustStore(get_home())
    if not unconfirmed or trust.is_trusted(content):
        return content
    names = "\n".join(f"  {escape_line(file)}" for file in content.files)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOperation(
            f"{escape_line(path)}: untrusted extensions; run it on a terminal to confirm them, or name them with -e"
        )
    click.echo(f"{escape_line(path)} has new or changed extensions:\n{names}", err=True)
    if not click.confirm("Trust this swarm file and run its extensions?", err=True):
        raise InvalidOperation("the extensions are not trusted; nothing was done")
    trust.add(content)
    return content


# Status


def format_event(event: BaseSwarmEvent) -> str:
    """Return one line about an event."""
    from sessiontree.swarm.budget import LimitUsage
    from sessiontree.swarm.events import (
        AgentComplete,
        AgentFail,
        AgentStart,
        BranchEvent,
        BudgetEvent,
        ErrorEvent,
        SwarmEvent,
        SwarmTextDelta,
        SwarmThinking,
        SwarmToolCallEnd,
        SwarmToolCallStart,
        SwarmTurnEnd,
        SwarmTurnStart,
    )

    match event:
        case AgentStart(role=role, model=model):
            what = f"started as {role}{f', {model}' if model else ''}"
        case AgentComplete(tokens=tokens, cost=cost, seconds=seconds):
            usage = [pluralize(tokens, "token", shown=f"{tokens:,.0f}")] if tokens else []
            usage += [format_dollars(cost)] if cost else []
            what = f"completed, {', '.join([*usage, f'{seconds:.1f}s'])}"
        case AgentFail(error=error, attempts=attempts):
            what = f"failed after {pluralize(attempts, 'attempt')}: {error}"
        case SwarmTurnStart(number=number):
            what = f"turn {number} started"
        case SwarmTurnEnd(number=number, tokens=tokens):
            what = f"turn {number} ended, {pluralize(tokens, 'token', shown=f'{tokens:,.0f}')}"
        case SwarmTextDelta(delta=text):
            what = f"text: {text}"
        case SwarmThinking(delta=text):
            what = f"thinking: {text}"
        case SwarmToolCallStart(tool=tool, arguments=arguments):
            what = f"calls {tool} {arguments}"
        case SwarmToolCallEnd(tool=tool, ok=ok, text=text):
            what = f"{tool} {'returned' if ok else 'failed'}: {text}"
        case BudgetEvent(level=level, used=used, limit=limit, kind=kind, scope=scope):
            what = f"budget of {'the swarm' if scope == 'swarm' else scope}: {level}, {LimitUsage(kind, used, limit)}"
        case BranchEvent(name=name):
            what = f"branch {name}"
        case SwarmEvent(status=status, reason=reason):
            what = f"{status}{f': {reason}' if reason else ''}"
        case ErrorEvent(message=message):
            what = f"error: {message}"
        case _:
            what = event.type
    who = "swarm" if event.agent is None else event.agent
    return f"{event.seq} {escape_line(who)} {escape_line(what)}"


def format_resume_command(name: str, *, durable: bool) -> str:
    """Return the command that resumes a swarm. A durable swarm stays with its workers."""
    return f"sessiontree swarm resume {shlex.quote(escape_line(name))}{' --durable' if durable else ''}"


def print_status(status: SwarmStatus, session: Session, *, as_json: bool, durable: bool = False) -> None:
    from sessiontree.swarm.budget import EXHAUSTED_TEXT, UNENFORCEABLE_TEXT, Budget

    if as_json:
        echo_json(encode_status(status))
        return
    details = f"{format_id(status.id)} in session {status.session_id}, {status.strategy}"
    state = get_display_state(status, session)
    echo(bold(escape_line(status.branch)), state, dim(escape_line(details)))
    echo(escape_lines(_shorten_task(status.task)))
    print_table(build_status_rows(status))
    if status.budget not in (None, Budget()):
        used = status.budget_used
        echo(dim("budget use unknown" if used is None else f"{used:.0%} of the budget used"))
    for agent in status.agents:
        for title in agent.denied:
            echo(dim(f"{escape_line(agent.id)}: denied {escape_line(title)}"))
    if status.reason:
        echo(bold(f"{status.status}:"), escape_line(status.reason))
    if state in ("paused", ORPHANED):
        zero = " with 0 for that limit"
        # Swarms that were paused by 0.1.0 say "cannot be kept".
        hints = {EXHAUSTED_TEXT: " with a larger budget", UNENFORCEABLE_TEXT: zero, "cannot be kept": zero}
        advice = next((hint for part, hint in hints.items() if part in (status.reason or "")), "")
        echo(dim(f"resume{advice}: `{format_resume_command(status.branch, durable=durable)}`"))
    if status.result:
        click.echo(f"\n{escape_lines(status.result)}")


def _shorten_task(task: str) -> str:
    """Return the start of a task."""
    lines = task.strip()[:MAX_TASK_CHARS].split("\n")[:MAX_TASK_LINES]
    start = "\n".join(lines)
    return start if start == task.strip() else f"{start} …"


def format_usage(tokens: float, cost: float) -> tuple[str, str]:
    """Return tokens and cost as text. A value that no response reported is unknown, not zero."""
    return f"{tokens:,.0f}" if tokens else "-", format_dollars(cost) if cost else "-"


def build_status_rows(status: SwarmStatus) -> list[list[str]]:
    rows = [["agent", "state", "model", "tokens", "cost", "time", "last"]]
    for agent in status.agents:
        last = agent.error if agent.error is not None else agent.text or ""
        figures = [*format_usage(agent.tokens, agent.cost), f"{agent.seconds:.1f}s"]
        first = next(iter(last.split("\n")), "")
        rows.append([escape_line(cell) for cell in (agent.id, agent.status, agent.model or "-", *figures, first[:60])])
    total = [*format_usage(status.tokens, status.cost), f"{status.seconds:.1f}s"]
    return [*rows, ["all", f"{status.progress:.0%}", "", *total, ""]]


def get_display_state(status: SwarmStatus, session: Session) -> str:
    from sessiontree.swarm.lease import is_leased

    return ORPHANED if status.status == "running" and not is_leased(session, status.id) else status.status


def encode_status(status: SwarmStatus) -> JsonObject:
    """Return all fields, with camelCase names."""
    import msgspec

    found: JsonObject = msgspec.to_builtins(status)
    return {re.sub(r"_(.)", lambda letter: letter[1].upper(), name): value for name, value in found.items()}


# Progress and events


class StartedSwarm(NamedTuple):
    """A swarm that was started or resumed."""

    swarm: Swarm
    last_event: int = 0
    """Number of its last event before it was started."""


async def wait_with_progress(started: StartedSwarm, *, quiet: bool, durable: bool) -> SwarmStatus:
    """Wait until a swarm ends and show its progress. Return at once if another process runs it."""
    import asyncio

    swarm = started.swarm
    if not swarm.is_running:
        return swarm.status()
    if not quiet:
        heading = f"swarm {swarm.name} {swarm.id} in session {swarm.session.id}"
        click.echo(dim(escape_line(heading)), err=True)
    progress = ProgressTable(lambda: build_status_rows(swarm.status()), quiet=quiet)
    reporting = asyncio.create_task(_report_events(started, progress))
    try:
        async with progress:
            await swarm.wait()
    except (asyncio.CancelledError, StoreError):
        warn(f"interrupted; resume with `{format_resume_command(swarm.name, durable=durable)}`")
        raise
    finally:
        await swarm.detach()
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
    return swarm.status()


async def _report_events(started: StartedSwarm, progress: ProgressTable) -> None:
    """Print one line per event until cancelled, then print the remaining events."""
    import asyncio

    swarm, last = started

    def report_new_events() -> None:
        nonlocal last
        for event in swarm.events.read(after=last, types=PROGRESS_EVENTS):
            last = event.seq
            progress.print_line(format_event(event))

    try:
        while True:
            report_new_events()
            await asyncio.sleep(POLL_SECONDS)
    except InvalidOperation:
        return  # the swarm records no events
    except asyncio.CancelledError:
        report_new_events()
        raise


class EventPrinter(NamedTuple):
    """Prints the events of a swarm that match a filter."""

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

    async def print_events(self, swarm: Swarm, after: int, *, follow: bool) -> None:
        """Print the events after a number. With `follow`, wait for more until the swarm has ended."""
        from sessiontree.swarm.records import END_STATES

        last = swarm.events.last
        if swarm.status().status in END_STATES or not follow:
            while after < last and (events := swarm.events.read(after=after)):
                for event in events:
                    self.print_event(event)
                after = events[-1].seq
            return
        async with aclosing(swarm.events.follow(after=after)) as stream:
            async for event in stream:
                self.print_event(event)
                if event.type == "swarm" and getattr(event, "status", "") in END_STATES:
                    return
