"""The worker: carries out the work of one agent at a time on its branch, and writes down what came of it.

It goes on wherever the branch stands: at its beginning, in the middle after a pause or a death, or behind the last
answer. When an agent may not go on it just stops: what it has is in the session, and it is called again later.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sessiontree.agent.agent import Agent
from sessiontree.agent.loop import Outcome
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.rescue import Unsaved
from sessiontree.agent.system import SystemPart
from sessiontree.agent.tool import Tool, ToolError, tool
from sessiontree.config import Config
from sessiontree.core.entries import BranchSummary, CustomMessage, Entry, Message, Usage
from sessiontree.core.figures import pluralize
from sessiontree.core.messages import role, spent, stopped_abnormally, text, tool_calls
from sessiontree.errors import InvalidOperation, NotFound, SessionTreeError, StoreError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import (
    BeforeCompact,
    BeforeRequest,
    Compacted,
    MessageDelta,
    MessageEnd,
    Notice,
    ToolEnd,
    ToolStart,
    ToolUpdate,
)
from sessiontree.hooks.events import Event as Hooked
from sessiontree.hooks.events import TurnEnd as HookedTurnEnd
from sessiontree.hooks.events import TurnStart as HookedTurnStart
from sessiontree.model.base import Model, ModelError
from sessiontree.session import Branch
from sessiontree.swarm.budget import Spending
from sessiontree.swarm.events import (
    AgentComplete,
    AgentFail,
    AgentStart,
    Deltas,
    ErrorEvent,
    Event,
    ToolCallEnd,
    ToolCallStart,
    TurnEnd,
    TurnStart,
)
from sessiontree.swarm.executor import Work
from sessiontree.swarm.facts import Begin, Complete, Fail, Split, deed_body
from sessiontree.swarm.gate import CountedModel, Gate
from sessiontree.swarm.record import Record

FIRST_DELAY = 2.0
"""Seconds before the first retry; each later one waits twice as long."""
LONGEST_DELAY = 60.0
LONGEST_ASKED = 600.0
"""A provider that asks for a longer wait is not waited for."""
SHOWN = 500
"""How much of a tool's answer an event tells, in characters."""
MOST_AGENTS = 64
"""How many agents a swarm whose agents split their tasks may have."""
SPLIT = """\
Have parts of your task done by other agents, at the same time. Each gets the text of its part alone, so say there all \
that it needs to know. You get their results, and go on from there."""

Emit = Callable[[Event, str | None, str | None], None]
"""Takes an event, and the agent and the branch that it is of."""


@dataclass(kw_only=True)
class Outfit:
    """What agents work with. It belongs to the program; the session has the names of the tools, and what is text."""

    model_of: Callable[[str | None], Model]
    tools: Sequence[Tool] = ()
    hooks: Hooks
    settings: Config | None = None
    system: str | Sequence[SystemPart] | None = None
    thinking: str | None = None
    permissions: Permissions | None = None


class Worker:
    def __init__(self, record: Record, gate: Gate, outfit: Outfit, emit: Emit) -> None:
        self._record = record
        self._gate = gate
        self._outfit = outfit
        self._emit = emit
        self._at_work: dict[str, Agent] = {}
        self._models: dict[str, CountedModel] = {}
        """The models of those at work."""
        self._held: set[str] = set()
        """Agents that were told to wait."""
        self._unsaid: dict[str, tuple[str, ...]] = {}
        """What was said to agents that had to wait before they heard it."""

    def watch(self) -> Callable[[], None]:
        """Stand at the gate: have handlers called before every call of a model. Returns what ends it."""
        hooks = self._outfit.hooks
        offs = [
            hooks.on(BeforeRequest, self._ask_gate, source="the swarm's gate"),
            hooks.on(BeforeCompact, self._ask_gate, source="the swarm's gate"),
        ]

        def off() -> None:
            for each in offs:
                each()

        return off

    async def _ask_gate(self, event: Hooked, context: Any) -> dict[str, bool] | None:
        agent = next((id for id, agent in self._at_work.items() if agent is context.agent), None)
        if agent is None:
            return None
        await self._write_loose(agent)
        if await self._gate.admits(agent):
            self._models[agent].admitted = True
            return None
        self._held.add(agent)
        return {"cancel": True}

    async def _write_loose(self, agent: str) -> None:
        """Write down what calls have cost whose answers came to nothing."""
        model = self._models[agent]
        if model.loose == Spending():
            return
        info, loose = model.info, model.loose
        model.loose = Spending()
        usage = {"totalTokens": loose.tokens, "cost": round(loose.cost, 10)}
        body = Usage(kind="compaction", provider=info.provider, model=info.model, usage=usage)
        await self._record.annotate(agent, body)

    def give_way(self) -> None:
        """Have agents write nothing on their branches any more: another process has them work there."""
        for agent in self._at_work.values():
            agent.give_way()

    async def steer(self, agent: str, words: str) -> None:
        """Say something to an agent, now or as soon as it is at work here again."""
        at_work = self._at_work.get(agent)
        if at_work is not None:
            await at_work.steer(words)
        else:
            self._unsaid[agent] = (*self._unsaid.get(agent, ()), words)

    async def carry_out(self, work: Work) -> None:
        """Have the agent work until it is done, fails or has to wait. Whatever happens is in the session."""
        agents = (await self._record.look()).agents
        if work.agent not in agents:
            raise NotFound("agent", work.agent)
        account = agents[work.agent]
        if account.ended is not None:
            return
        branch = self._record.session.branch(account.branch)
        if account.begun and answered(branch):
            await self._complete(work.agent, branch.name)
            return
        if not account.begun:
            start = AgentStart(task=account.spawn.task, role=account.spawn.role, model=work.model)
            self._emit(start, work.agent, branch.name)
        self._held.discard(work.agent)
        failure: Exception | None = None
        try:
            outcome = await self._run(work, branch, begun=account.begun)
            failure = outcome.error
        except Exception as error:  # noqa: BLE001 - a model or a handler may raise anything, and the rest goes on
            outcome, failure = Outcome(), error
        if failure is not None:
            await self._fail(work.agent, branch.name, failure)
        elif outcome.ok:
            await self._complete(work.agent, branch.name)
        elif outcome.aborted or work.agent not in self._held:
            why = "it was aborted" if outcome.aborted else "a handler did not let it go on"
            await self._fail(work.agent, branch.name, InvalidOperation(why))

    async def _run(self, work: Work, branch: Branch, *, begun: bool) -> Outcome:
        outfit = self._outfit
        hooks = outfit.hooks.beside(replace(outfit.hooks.context, session=branch.session, branch=branch, agent=None))
        used_up, untold = partial(self._gate.used_up, work.agent), self._gate.untold[work.agent]
        model = CountedModel(outfit.model_of(work.model), used_up, untold)
        off = hooks.listen(self._listener(work.agent, branch.name, model))
        tools = [*outfit.tools, self._split_tool(work.agent)] if work.may_split else outfit.tools
        agent = Agent(
            branch,
            model,
            tools,
            hooks,
            system=outfit.system,
            settings=outfit.settings,
            thinking=outfit.thinking,
            permissions=outfit.permissions,
        )
        self._at_work[work.agent], self._models[work.agent] = agent, model
        try:
            for words in self._unsaid.pop(work.agent, ()):
                await agent.steer(words)
            if begun:
                outcome = await agent.continue_()
            else:
                began = deed_body(work.agent, Begin(swarm=work.swarm))
                outcome = await agent.prompt(work.prompt, beside=[began])
            try:
                await self._write_loose(work.agent)
            except StoreError:
                if not isinstance(outcome.error, Unsaved):  # which is the same failure, and says where the answer is
                    raise
            return outcome
        finally:
            del self._at_work[work.agent], self._models[work.agent]
            if left := agent.queued.steering:
                self._unsaid[work.agent] = left
            agent.close()
            off()

    async def _complete(self, agent: str, branch: str) -> None:
        await self._record.did(agent, Complete(swarm=self._record.id))
        account = self._record.account.agents[agent]
        cost, tokens, seconds = account.spending(None)
        self._emit(AgentComplete(text=account.text, cost=cost, tokens=tokens, seconds=seconds), agent, branch)
        await self._gate.note(agent)

    async def _fail(self, agent: str, branch: str, error: Exception) -> None:
        unsaved = isinstance(error, Unsaved)
        if isinstance(error, Unsaved):
            error = error.without_memory("the log of the swarm's events")
        account = self._record.account
        failed = account.agents[agent]
        attempt = failed.failed_in_row + 1
        retry = delay(agent, attempt, error) if attempt <= account.created.retries and may_pass(error) else None
        sentence = str(error) if isinstance(error, SessionTreeError) else f"{type(error).__name__}: {error}"
        deed = Fail(swarm=self._record.id, error=sentence, attempt=failed.failures + 1, retry=retry)
        try:
            await self._record.did(agent, deed)
        except StoreError:
            if not unsaved:
                raise
            self._emit(ErrorEvent(message=sentence), agent, branch)
            raise error from None
        if retry is None:
            self._emit(AgentFail(error=sentence, attempts=deed.attempt), agent, branch)
        else:
            message = f"{sentence}; it is tried again in {retry:.1f} s"
            self._emit(ErrorEvent(message=message), agent, branch)
        await self._gate.note(agent)

    def _split_tool(self, agent: str) -> Tool:
        record = self._record

        async def split_task(parts: list[str]) -> str:
            account = record.account
            wanted = [part for part in map(str.strip, parts) if part]
            room = max(0, MOST_AGENTS - len(account.agents))
            if len(wanted) < 2:
                raise ToolError("a task is split into two parts or more: otherwise do it yourself")
            if len(wanted) > room:
                raise ToolError(f"there is room for {pluralize(room, 'more agent')}: do it in fewer parts, or yourself")
            if account.agents[agent].parts:
                raise ToolError("the task is split already")
            deed = Split(swarm=record.id, parts=tuple(wanted))
            await record.did(agent, deed)
            return f"The task is split into {len(wanted)} parts. Their results follow."

        return tool(split_task, description=SPLIT, does="reads")

    # What happens, as events

    def _listener(self, agent: str, branch: str, model: CountedModel) -> Callable[[Hooked], None]:
        turns = self._record.account.agents[agent].turns

        def emit(event: Event) -> None:
            self._emit(event, agent, branch)

        deltas = Deltas(emit)

        def heard(event: Hooked) -> None:
            nonlocal turns
            if isinstance(event, MessageDelta):
                if event.kind != "tool_call":
                    deltas.take(event.kind, event.text)
                return
            if isinstance(event, ToolUpdate):  # may come from another thread
                return
            deltas.flush()
            match event:
                case MessageEnd(entry=entry) if _is_answer(entry):
                    model.loose = Spending()
                case Compacted():
                    model.loose = Spending()
                case HookedTurnStart():
                    emit(TurnStart(number=turns + 1))
                case HookedTurnEnd(message=entry):
                    turns += 1
                    body = None if entry is None else entry.body
                    sums = spent(body.message.get("usage")) if isinstance(body, Message) else None
                    cost, tokens = (0.0, 0) if sums is None else (sums.cost, sums.tokens)
                    emit(TurnEnd(number=turns, entry=entry and entry.id, cost=cost, tokens=tokens))
                case ToolStart(call=call):
                    emit(ToolCallStart(call=call.id, tool=call.name, arguments=call.arguments))
                case ToolEnd(call=call, entry=entry):
                    message = entry.body.message if isinstance(entry.body, Message) else {}
                    words = text(message.get("content"))[:SHOWN]
                    emit(ToolCallEnd(call=call.id, tool=call.name, ok=message.get("isError") is not True, text=words))
                case Notice(level="error", text=words):
                    emit(ErrorEvent(message=words))
                case _:
                    pass

        return heard


def _is_answer(entry: Entry) -> bool:
    return isinstance(entry.body, Message) and role(entry.body.message) == "assistant"


def answered(branch: Branch) -> bool:
    """Whether the last word on a branch is a whole answer of the model."""
    for entry in branch.session.tree.up(branch.leaf):
        match entry.body:
            case Message(message):
                return role(message) == "assistant" and not stopped_abnormally(message) and not any(tool_calls(message))
            case CustomMessage() | BranchSummary():
                return False
            case _:
                pass
    return False


def may_pass(error: Exception) -> bool:
    """Whether trying again may help: not where the model refuses, the key is wrong, or somebody took the branch."""
    if isinstance(error, ModelError):
        return error.passing and (error.retry_after or 0) <= LONGEST_ASKED
    return not isinstance(error, SessionTreeError)


def delay(agent: str, attempt: int, error: Exception) -> float:
    """Seconds to wait: twice as long each time, less up to a quarter, so that many do not come back together."""
    asked = error.retry_after or 0.0 if isinstance(error, ModelError) else 0.0
    spread = 1 - zlib.crc32(f"{agent} {attempt}".encode()) % 256 / 1024
    return max(asked, min(FIRST_DELAY * 2.0 ** (attempt - 1), LONGEST_DELAY) * spread)
