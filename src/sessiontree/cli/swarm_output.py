"""How a swarm and its events are told: tables, lines and JSON. All of it is made safe here."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import format_id
from sessiontree.cli.output import bold, dim, echo, echo_json, escape_line, escape_lines, print_table
from sessiontree.core.number_text import format_dollars, pluralize

if TYPE_CHECKING:
    from sessiontree.core.entries import JsonObject
    from sessiontree.session import Session
    from sessiontree.swarm.events import BaseSwarmEvent
    from sessiontree.swarm.status import SwarmStatus

MAX_TASK_CHARS = 1000
MAX_TASK_LINES = 10
"""Characters and lines of a task that are told; `--json` has all of it."""

ORPHANED = "left"
"""The state of a swarm that is to run, and that no process works on."""


def format_event(event: BaseSwarmEvent) -> str:
    """An event in a line."""
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
            what = f"says {text}"
        case SwarmThinking(delta=text):
            what = f"thinks {text}"
        case SwarmToolCallStart(tool=tool, arguments=arguments):
            what = f"calls {tool} {arguments}"
        case SwarmToolCallEnd(tool=tool, ok=ok, text=text):
            what = f"{tool} {'gave' if ok else 'failed'}: {text}"
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
    """The command that goes on with a swarm; workers that have carried it out may still have agents under way."""
    return f"sessiontree swarm resume {shlex.quote(escape_line(name))}{' --durable' if durable else ''}"


def print_status(status: SwarmStatus, session: Session, *, as_json: bool, durable: bool = False) -> None:
    from sessiontree.swarm.budget import EXHAUSTED_TEXT, UNENFORCEABLE_TEXT, Budget

    if as_json:
        echo_json(status_to_wire(status))
        return
    made = f"{format_id(status.id)} in session {status.session_id}, {status.strategy}"
    state = get_display_state(status, session)
    echo(bold(escape_line(status.branch)), state, dim(escape_line(made)))
    echo(escape_lines(_shorten_task(status.task)))
    print_table(build_status_rows(status))
    if status.budget not in (None, Budget()):
        used = "-" if status.budget_used is None else f"{status.budget_used:.0%}"
        echo(dim(f"{used} of the budget is used"))
    for agent in status.agents:
        for title in agent.denied:
            echo(dim(f"{escape_line(agent.id)}: denied {escape_line(title)}"))
    if status.reason:
        echo(bold(f"{status.status}:"), escape_line(status.reason))
    if state in ("paused", ORPHANED):
        hints = {EXHAUSTED_TEXT: ", given a larger budget,", UNENFORCEABLE_TEXT: ", given 0 for that limit,"}
        given = next((hint for part, hint in hints.items() if part in (status.reason or "")), "")
        echo(dim(f"`{format_resume_command(status.branch, durable=durable)}`{given} goes on with it"))
    if status.result:
        click.echo(f"\n{escape_lines(status.result)}")


def _shorten_task(task: str) -> str:
    """As much of a task as one wants to see again."""
    lines = task.strip()[:MAX_TASK_CHARS].split("\n")[:MAX_TASK_LINES]
    begun = "\n".join(lines)
    return begun if begun == task.strip() else f"{begun} …"


def format_usage(tokens: float, cost: float) -> tuple[str, str]:
    """Tokens and cost as people read them. What no answer has told is unknown, not nothing."""
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


def status_to_wire(status: SwarmStatus) -> JsonObject:
    """All of it, by the names that JSON has."""
    import msgspec

    found: JsonObject = msgspec.to_builtins(status)
    return {re.sub(r"_(.)", lambda letter: letter[1].upper(), name): value for name, value in found.items()}
