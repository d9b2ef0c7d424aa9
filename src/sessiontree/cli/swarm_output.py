"""Output about swarms: status tables, event lines, progress and JSON. All text is escaped here."""

from __future__ import annotations

import re
import shlex
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

import click

from sessiontree.cli.app import format_id
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
from sessiontree.core.number_text import format_dollars, pluralize
from sessiontree.errors import InvalidOperation, StoreError

if TYPE_CHECKING:
    from sessiontree.core.entries import JsonObject
    from sessiontree.session import Session
    from sessiontree.swarm.events import BaseSwarmEvent
    from sessiontree.swarm.status import SwarmStatus
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


def format_event(event: BaseSwarmEvent) -> str:
    """Return one line about an event."""
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
            used, paid = format_usage(tokens, cost)
            what = f"completed, {used} tokens, {paid}, {seconds:.1f}s"
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
            what = f"budget of {scope} {level}: {kind} {used:g} of {limit:g}"
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
        used = "-" if status.budget_used is None else f"{status.budget_used:.0%}"
        echo(dim(f"{used} of the budget used"))
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
        from sessiontree.swarm.status import END_STATES

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
