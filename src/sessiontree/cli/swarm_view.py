"""How a swarm and its events are told: tables, lines and JSON. All of it is made safe here."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import short
from sessiontree.cli.output import dim, echo, echo_json, safe, safe_lines, strong, table
from sessiontree.core.figures import dollars, pluralize

if TYPE_CHECKING:
    from sessiontree.core.entries import JsonObject
    from sessiontree.session import Session
    from sessiontree.swarm.events import Event
    from sessiontree.swarm.status import SwarmStatus

MOST = 1000
LINES = 10
"""Characters and lines of a task that are told; `--json` has all of it."""

LEFT = "left"
"""The state of a swarm that is to run, and that no process works on."""


def event_line(event: Event) -> str:
    """An event in a line."""
    from sessiontree.swarm.events import (
        AgentComplete,
        AgentFail,
        AgentStart,
        BranchEvent,
        BudgetEvent,
        ErrorEvent,
        SwarmEvent,
        TextDelta,
        Thinking,
        ToolCallEnd,
        ToolCallStart,
        TurnEnd,
        TurnStart,
    )

    match event:
        case AgentStart(role=role, model=model):
            what = f"started as {role}{f', {model}' if model else ''}"
        case AgentComplete(tokens=tokens, cost=cost, seconds=seconds):
            used, paid = took(tokens, cost)
            what = f"completed, {used} tokens, {paid}, {seconds:.1f}s"
        case AgentFail(error=error, attempts=attempts):
            what = f"failed after {pluralize(attempts, 'attempt')}: {error}"
        case TurnStart(number=number):
            what = f"turn {number} started"
        case TurnEnd(number=number, tokens=tokens):
            what = f"turn {number} ended, {pluralize(tokens, 'token', shown=f'{tokens:,.0f}')}"
        case TextDelta(delta=text):
            what = f"says {text}"
        case Thinking(delta=text):
            what = f"thinks {text}"
        case ToolCallStart(tool=tool, arguments=arguments):
            what = f"calls {tool} {arguments}"
        case ToolCallEnd(tool=tool, ok=ok, text=text):
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
    return f"{event.seq} {safe(who)} {safe(what)}"


def resuming(name: str, *, durable: bool) -> str:
    """The command that goes on with a swarm; workers that have carried it out may still have agents under way."""
    return f"sessiontree swarm resume {shlex.quote(safe(name))}{' --durable' if durable else ''}"


def tell_status(status: SwarmStatus, session: Session, *, as_json: bool, durable: bool = False) -> None:
    from sessiontree.swarm.budget import UNKEPT, USED_UP, Budget

    if as_json:
        echo_json(status_to_wire(status))
        return
    made = f"{short(status.id)} in session {status.session_id}, {status.strategy}"
    state = state_of(status, session)
    echo(strong(safe(status.branch)), state, dim(safe(made)))
    echo(safe_lines(_beginning(status.task)))
    table(rows_of(status))
    if status.budget not in (None, Budget()):
        used = "-" if status.budget_used is None else f"{status.budget_used:.0%}"
        echo(dim(f"{used} of the budget is used"))
    for agent in status.agents:
        for title in agent.denied:
            echo(dim(f"{safe(agent.id)}: denied {safe(title)}"))
    if status.reason:
        echo(strong(f"{status.status}:"), safe(status.reason))
    if state in ("paused", LEFT):
        hints = {USED_UP: ", given a larger budget,", UNKEPT: ", given 0 for that limit,"}
        given = next((hint for part, hint in hints.items() if part in (status.reason or "")), "")
        echo(dim(f"`{resuming(status.branch, durable=durable)}`{given} goes on with it"))
    if status.result:
        click.echo(f"\n{safe_lines(status.result)}")


def _beginning(task: str) -> str:
    """As much of a task as one wants to see again."""
    lines = task.strip()[:MOST].split("\n")[:LINES]
    begun = "\n".join(lines)
    return begun if begun == task.strip() else f"{begun} …"


def took(tokens: float, cost: float) -> tuple[str, str]:
    """Tokens and cost as people read them. What no answer has told is unknown, not nothing."""
    return f"{tokens:,.0f}" if tokens else "-", dollars(cost) if cost else "-"


def rows_of(status: SwarmStatus) -> list[list[str]]:
    rows = [["agent", "state", "model", "tokens", "cost", "time", "last"]]
    for agent in status.agents:
        last = agent.error if agent.error is not None else agent.text or ""
        figures = [*took(agent.tokens, agent.cost), f"{agent.seconds:.1f}s"]
        first = next(iter(last.split("\n")), "")
        rows.append([safe(cell) for cell in (agent.id, agent.status, agent.model or "-", *figures, first[:60])])
    total = [*took(status.tokens, status.cost), f"{status.seconds:.1f}s"]
    return [*rows, ["all", f"{status.progress:.0%}", "", *total, ""]]


def state_of(status: SwarmStatus, session: Session) -> str:
    from sessiontree.swarm.hold import is_worked_on

    return LEFT if status.status == "running" and not is_worked_on(session, status.id) else status.status


def status_to_wire(status: SwarmStatus) -> JsonObject:
    """All of it, by the names that JSON has."""
    import msgspec

    found: JsonObject = msgspec.to_builtins(status)
    return {re.sub(r"_(.)", lambda letter: letter[1].upper(), name): value for name, value in found.items()}
