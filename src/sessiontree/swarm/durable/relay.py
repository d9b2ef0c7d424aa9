"""The relay: tells the events of agents on other machines, from what they have written into the session.

A worker that shares the home with the process of the swarm writes events where they are read. Of others, what is
written is told here, a second or so later: whole messages instead of words.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from sessiontree.core.entries import AgentAction, Entry, JsonObject, Message, iter_entries
from sessiontree.core.messages import coerce_string, extract_text, get_role, get_tool_calls, sum_usage
from sessiontree.session import Session
from sessiontree.swarm.agent_runner import MAX_TOOL_TEXT
from sessiontree.swarm.events import (
    AgentComplete,
    AgentFail,
    AgentStart,
    BaseSwarmEvent,
    ErrorEvent,
    EventLog,
    SwarmTextDelta,
    SwarmToolCallEnd,
    SwarmToolCallStart,
    SwarmTurnEnd,
    SwarmTurnStart,
    build_spool_path,
)
from sessiontree.swarm.executor import SwarmJob
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.records import CompleteAction, FailAction, read_action
from sessiontree.swarm.replay import TrackedAgent


class EventRelay:
    """Follows one agent."""

    def __init__(self, session: Session, job: SwarmJob) -> None:
        self._job = job
        self._session = session
        self._journal = SwarmJournal(session, job.swarm)
        self._log = EventLog(build_spool_path(job.swarm))
        self._read_count = len(session.tree.items)
        self._turns = self._agent.turns
        self._started = self._agent.started

    @property
    def _agent(self) -> TrackedAgent:
        return self._journal.state.agents[self._job.agent]

    def relay_new(self, *, emit: bool) -> None:
        """Tell of what the session has taken in since, or pass over it. Raises `StoreError`."""
        items = self._session.tree.items[self._read_count :]
        self._read_count += len(items)
        told, branch = emit and self._journal.state.created.streaming, self._agent.branch
        for entry in iter_entries(items):
            if entry.branch == branch:
                for event in self._build_events(entry):
                    if told:
                        self._log.append(replace(event, swarm=self._job.swarm, agent=self._job.agent, branch=branch))

    def _build_events(self, entry: Entry) -> Iterator[BaseSwarmEvent]:
        body = entry.body
        if isinstance(body, Message):
            if not self._started:
                self._started = True
                spawn = self._agent.spawn
                yield AgentStart(task=spawn.task, role=spawn.role, model=self._job.model)
            if get_role(body.message) == "assistant":
                yield from self._build_turn_events(entry, body.message)
            elif get_role(body.message) == "toolResult":
                message, words = body.message, extract_text(body.message.get("content"))[:MAX_TOOL_TEXT]
                call, tool = (
                    coerce_string(message.get("toolCallId")) or "",
                    coerce_string(message.get("toolName")) or "",
                )
                yield SwarmToolCallEnd(call=call, tool=tool, ok=message.get("isError") is not True, text=words)
        elif isinstance(body, AgentAction):
            yield from self._build_action_events(body)

    def _build_turn_events(self, entry: Entry, message: JsonObject) -> Iterator[BaseSwarmEvent]:
        self._turns += 1
        sums = sum_usage(message.get("usage"))
        yield SwarmTurnStart(number=self._turns)
        if words := extract_text(message.get("content")):
            yield SwarmTextDelta(delta=words)
        for call in get_tool_calls(message):
            yield SwarmToolCallStart(call=call.id, tool=call.name, arguments=call.arguments)
        cost, tokens = (0.0, 0) if sums is None else (sums.cost, sums.tokens)
        yield SwarmTurnEnd(number=self._turns, entry=entry.id, cost=cost, tokens=tokens)

    def _build_action_events(self, body: AgentAction) -> Iterator[BaseSwarmEvent]:
        match read_action(body):
            case CompleteAction():
                cost, tokens, seconds = self._agent.compute_spending(None)
                yield AgentComplete(text=self._agent.text, cost=cost, tokens=tokens, seconds=seconds)
            case FailAction(error=error, attempt=attempt, retry=None):
                yield AgentFail(error=error, attempts=attempt)
            case FailAction(error=error):
                yield ErrorEvent(message=error)
            case _:
                pass

    def close(self) -> None:
        self._log.close()
