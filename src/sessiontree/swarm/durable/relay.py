"""The relay: tells the events of agents on other machines, from what they have written into the session.

A worker that shares the home with the process of the swarm writes events where they are read. Of others, what is
written is told here, a second or so later: whole messages instead of words.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from sessiontree.core.entries import AgentAction, Entry, JsonObject, Message, entries_of
from sessiontree.core.messages import role, spent, string, text, tool_calls
from sessiontree.session import Session
from sessiontree.swarm.account import AgentAccount
from sessiontree.swarm.events import (
    AgentComplete,
    AgentFail,
    AgentStart,
    ErrorEvent,
    Event,
    EventLog,
    TextDelta,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
    spool_path,
)
from sessiontree.swarm.executor import Work
from sessiontree.swarm.facts import Complete, Fail, read_deed
from sessiontree.swarm.record import Record
from sessiontree.swarm.worker import SHOWN


class Relay:
    """Follows one agent."""

    def __init__(self, session: Session, work: Work) -> None:
        self._work = work
        self._session = session
        self._record = Record(session, work.swarm)
        self._log = EventLog(spool_path(work.swarm))
        self._read = len(session.tree.items)
        self._turns = self._agent.turns
        self._begun = self._agent.begun

    @property
    def _agent(self) -> AgentAccount:
        return self._record.account.agents[self._work.agent]

    def look(self, *, tell: bool) -> None:
        """Tell of what the session has taken in since, or pass over it. Raises `StoreError`."""
        items = self._session.tree.items[self._read :]
        self._read += len(items)
        told, branch = tell and self._record.account.created.streaming, self._agent.branch
        for entry in entries_of(items):
            if entry.branch == branch:
                for event in self._events(entry):
                    if told:
                        self._log.append(replace(event, swarm=self._work.swarm, agent=self._work.agent, branch=branch))

    def _events(self, entry: Entry) -> Iterator[Event]:
        body = entry.body
        if isinstance(body, Message):
            if not self._begun:
                self._begun = True
                spawn = self._agent.spawn
                yield AgentStart(task=spawn.task, role=spawn.role, model=self._work.model)
            if role(body.message) == "assistant":
                yield from self._turn(entry, body.message)
            elif role(body.message) == "toolResult":
                message, words = body.message, text(body.message.get("content"))[:SHOWN]
                call, tool = string(message.get("toolCallId")) or "", string(message.get("toolName")) or ""
                yield ToolCallEnd(call=call, tool=tool, ok=message.get("isError") is not True, text=words)
        elif isinstance(body, AgentAction):
            yield from self._deed(body)

    def _turn(self, entry: Entry, message: JsonObject) -> Iterator[Event]:
        self._turns += 1
        sums = spent(message.get("usage"))
        yield TurnStart(number=self._turns)
        if words := text(message.get("content")):
            yield TextDelta(delta=words)
        for call in tool_calls(message):
            yield ToolCallStart(call=call.id, tool=call.name, arguments=call.arguments)
        cost, tokens = (0.0, 0) if sums is None else (sums.cost, sums.tokens)
        yield TurnEnd(number=self._turns, entry=entry.id, cost=cost, tokens=tokens)

    def _deed(self, body: AgentAction) -> Iterator[Event]:
        match read_deed(body):
            case Complete():
                cost, tokens, seconds = self._agent.spending(None)
                yield AgentComplete(text=self._agent.text, cost=cost, tokens=tokens, seconds=seconds)
            case Fail(error=error, attempt=attempt, retry=None):
                yield AgentFail(error=error, attempts=attempt)
            case Fail(error=error):
                yield ErrorEvent(message=error)
            case _:
                pass

    def close(self) -> None:
        self._log.close()
