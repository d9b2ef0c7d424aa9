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
from sessiontree.agent.system_prompt import SystemPart
from sessiontree.agent.tool import Tool, ToolError, tool
from sessiontree.agent.unsaved_messages import UnsavedMessages
from sessiontree.config import Config
from sessiontree.core.entries import BranchSummary, CustomMessage, Entry, Message, Usage
from sessiontree.core.messages import extract_text, get_role, get_tool_calls, is_failed_turn, sum_usage
from sessiontree.core.number_text import pluralize
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
from sessiontree.swarm.admission import AdmissionControl, BudgetedModel
from sessiontree.swarm.budget import Spending
from sessiontree.swarm.events import (
    AgentComplete,
    AgentFail,
    AgentStart,
    BaseSwarmEvent,
    DeltaBuffer,
    ErrorEvent,
    SwarmToolCallEnd,
    SwarmToolCallStart,
    SwarmTurnEnd,
    SwarmTurnStart,
)
from sessiontree.swarm.executor import SwarmJob
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.records import BeginAction, CompleteAction, FailAction, SplitAction, build_action_body

FIRST_DELAY = 2.0
"""Seconds before the first retry; each later one waits twice as long."""
MAX_DELAY = 60.0
MAX_RETRY_AFTER = 600.0
"""A provider that asks for a longer wait is not waited for."""
MAX_TOOL_TEXT = 500
"""How much of a tool's answer an event tells, in characters."""
MAX_AGENTS = 64
"""How many agents a swarm whose agents split their tasks may have."""
SPLIT_TOOL_DESCRIPTION = """\
Have parts of your task done by other agents, at the same time. Each gets the text of its part alone, so say there all \
that it needs to know. You get their results, and go on from there."""

Emit = Callable[[BaseSwarmEvent, str | None, str | None], None]
"""Takes an event, and the agent and the branch that it is of."""


@dataclass(kw_only=True)
class AgentResources:
    """What agents work with. It belongs to the program; the session has the names of the tools, and what is text."""

    find_model: Callable[[str | None], Model]
    tools: Sequence[Tool] = ()
    hooks: Hooks
    settings: Config | None = None
    system: str | Sequence[SystemPart] | None = None
    thinking: str | None = None
    permissions: Permissions | None = None


class AgentRunner:
    def __init__(
        self, journal: SwarmJournal, admission: AdmissionControl, resources: AgentResources, emit: Emit
    ) -> None:
        self._journal = journal
        self._admission = admission
        self._resources = resources
        self._emit = emit
        self._running_agents: dict[str, Agent] = {}
        self._models: dict[str, BudgetedModel] = {}
        """The models of those at work."""
        self._waiting_agents: set[str] = set()
        """Agents that were told to wait."""
        self._pending_steering: dict[str, tuple[str, ...]] = {}
        """What was said to agents that had to wait before they heard it."""

    def register_handlers(self) -> Callable[[], None]:
        """Stand at the gate: have handlers called before every call of a model. Returns what ends it."""
        hooks = self._resources.hooks
        offs = [
            hooks.on(BeforeRequest, self._check_admission, source="the swarm's gate"),
            hooks.on(BeforeCompact, self._check_admission, source="the swarm's gate"),
        ]

        def unregister() -> None:
            for each in offs:
                each()

        return unregister

    async def _check_admission(self, event: Hooked, context: Any) -> dict[str, bool] | None:
        agent = next((id for id, agent in self._running_agents.items() if agent is context.agent), None)
        if agent is None:
            return None
        await self._write_unrecorded_usage(agent)
        if await self._admission.admit(agent):
            self._models[agent].is_admitted = True
            return None
        self._waiting_agents.add(agent)
        return {"cancel": True}

    async def _write_unrecorded_usage(self, agent: str) -> None:
        """Write down what calls have cost whose answers came to nothing."""
        model = self._models[agent]
        if model.unrecorded == Spending():
            return
        info, loose = model.info, model.unrecorded
        model.unrecorded = Spending()
        usage = {"totalTokens": loose.tokens, "cost": round(loose.cost, 10)}
        body = Usage(kind="compaction", provider=info.provider, model=info.model, usage=usage)
        await self._journal.append_to_agent(agent, body)

    def hand_over(self) -> None:
        """Have agents write nothing on their branches any more: another process has them work there."""
        for agent in self._running_agents.values():
            agent.hand_over()

    async def steer(self, agent: str, text: str) -> None:
        """Say something to an agent, now or as soon as it is at work here again."""
        at_work = self._running_agents.get(agent)
        if at_work is not None:
            await at_work.steer(text)
        else:
            self._pending_steering[agent] = (*self._pending_steering.get(agent, ()), text)

    async def run_job(self, job: SwarmJob) -> None:
        """Have the agent work until it is done, fails or has to wait. Whatever happens is in the session."""
        agents = (await self._journal.refresh()).agents
        if job.agent not in agents:
            raise NotFound("agent", job.agent)
        account = agents[job.agent]
        if account.end_state is not None:
            return
        branch = self._journal.session.branch(account.branch)
        if account.started and has_final_answer(branch):
            await self._complete(job.agent, branch.name)
            return
        if not account.started:
            start = AgentStart(task=account.spawn.task, role=account.spawn.role, model=job.model)
            self._emit(start, job.agent, branch.name)
        self._waiting_agents.discard(job.agent)
        failure: Exception | None = None
        try:
            outcome = await self._run_agent(job, branch, started=account.started)
            failure = outcome.error
        except Exception as error:  # noqa: BLE001 - a model or a handler may raise anything, and the rest goes on
            outcome, failure = Outcome(), error
        if failure is not None:
            await self._fail(job.agent, branch.name, failure)
        elif outcome.ok:
            await self._complete(job.agent, branch.name)
        elif outcome.aborted or job.agent not in self._waiting_agents:
            why = "it was aborted" if outcome.aborted else "a handler did not let it go on"
            await self._fail(job.agent, branch.name, InvalidOperation(why))

    async def _run_agent(self, job: SwarmJob, branch: Branch, *, started: bool) -> Outcome:
        outfit = self._resources
        hooks = outfit.hooks.derive(replace(outfit.hooks.context, session=branch.session, branch=branch, agent=None))
        used_up, untold = (
            partial(self._admission.find_exhausted_limit, job.agent),
            self._admission.unreported[job.agent],
        )
        model = BudgetedModel(outfit.find_model(job.model), used_up, untold)
        off = hooks.listen(self._build_listener(job.agent, branch.name, model))
        tools = [*outfit.tools, self._build_split_tool(job.agent)] if job.may_split else outfit.tools
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
        self._running_agents[job.agent], self._models[job.agent] = agent, model
        try:
            for words in self._pending_steering.pop(job.agent, ()):
                await agent.steer(words)
            if started:
                outcome = await agent.continue_()
            else:
                began = build_action_body(job.agent, BeginAction(swarm=job.swarm))
                outcome = await agent.prompt(job.prompt, extra_entries=[began])
            try:
                await self._write_unrecorded_usage(job.agent)
            except StoreError:
                if not isinstance(
                    outcome.error, UnsavedMessages
                ):  # which is the same failure, and says where the answer is
                    raise
            return outcome
        finally:
            del self._running_agents[job.agent], self._models[job.agent]
            if left := agent.queued.steering:
                self._pending_steering[job.agent] = left
            agent.close()
            off()

    async def _complete(self, agent: str, branch: str) -> None:
        await self._journal.append_action(agent, CompleteAction(swarm=self._journal.id))
        account = self._journal.state.agents[agent]
        cost, tokens, seconds = account.compute_spending(None)
        self._emit(AgentComplete(text=account.text, cost=cost, tokens=tokens, seconds=seconds), agent, branch)
        await self._admission.record_levels(agent)

    async def _fail(self, agent: str, branch: str, error: Exception) -> None:
        unsaved = isinstance(error, UnsavedMessages)
        if isinstance(error, UnsavedMessages):
            error = error.build_exit_error("the log of the swarm's events")
        account = self._journal.state
        failed = account.agents[agent]
        attempt = failed.consecutive_failures + 1
        retry = (
            compute_retry_delay(agent, attempt, error)
            if attempt <= account.created.retries and is_retryable(error)
            else None
        )
        sentence = str(error) if isinstance(error, SessionTreeError) else f"{type(error).__name__}: {error}"
        deed = FailAction(swarm=self._journal.id, error=sentence, attempt=failed.failures + 1, retry=retry)
        try:
            await self._journal.append_action(agent, deed)
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
        await self._admission.record_levels(agent)

    def _build_split_tool(self, agent: str) -> Tool:
        record = self._journal

        async def split_task(parts: list[str]) -> str:
            account = record.state
            wanted = [part for part in map(str.strip, parts) if part]
            room = max(0, MAX_AGENTS - len(account.agents))
            if len(wanted) < 2:
                raise ToolError("a task is split into two parts or more: otherwise do it yourself")
            if len(wanted) > room:
                raise ToolError(f"there is room for {pluralize(room, 'more agent')}: do it in fewer parts, or yourself")
            if account.agents[agent].parts:
                raise ToolError("the task is split already")
            deed = SplitAction(swarm=record.id, parts=tuple(wanted))
            await record.append_action(agent, deed)
            return f"The task is split into {len(wanted)} parts. Their results follow."

        return tool(split_task, description=SPLIT_TOOL_DESCRIPTION, does="reads")

    # What happens, as events

    def _build_listener(self, agent: str, branch: str, model: BudgetedModel) -> Callable[[Hooked], None]:
        turns = self._journal.state.agents[agent].turns

        def emit(event: BaseSwarmEvent) -> None:
            self._emit(event, agent, branch)

        deltas = DeltaBuffer(emit)

        def handle_event(event: Hooked) -> None:
            nonlocal turns
            if isinstance(event, MessageDelta):
                if event.kind != "tool_call":
                    deltas.append(event.kind, event.text)
                return
            if isinstance(event, ToolUpdate):  # may come from another thread
                return
            deltas.flush()
            match event:
                case MessageEnd(entry=entry) if _is_answer(entry):
                    model.unrecorded = Spending()
                case Compacted():
                    model.unrecorded = Spending()
                case HookedTurnStart():
                    emit(SwarmTurnStart(number=turns + 1))
                case HookedTurnEnd(message=entry):
                    turns += 1
                    body = None if entry is None else entry.body
                    sums = sum_usage(body.message.get("usage")) if isinstance(body, Message) else None
                    cost, tokens = (0.0, 0) if sums is None else (sums.cost, sums.tokens)
                    emit(SwarmTurnEnd(number=turns, entry=entry and entry.id, cost=cost, tokens=tokens))
                case ToolStart(call=call):
                    emit(SwarmToolCallStart(call=call.id, tool=call.name, arguments=call.arguments))
                case ToolEnd(call=call, entry=entry):
                    message = entry.body.message if isinstance(entry.body, Message) else {}
                    words = extract_text(message.get("content"))[:MAX_TOOL_TEXT]
                    emit(
                        SwarmToolCallEnd(
                            call=call.id, tool=call.name, ok=message.get("isError") is not True, text=words
                        )
                    )
                case Notice(level="error", text=words):
                    emit(ErrorEvent(message=words))
                case _:
                    pass

        return handle_event


def _is_answer(entry: Entry) -> bool:
    return isinstance(entry.body, Message) and get_role(entry.body.message) == "assistant"


def has_final_answer(branch: Branch) -> bool:
    """Whether the last word on a branch is a whole answer of the model."""
    for entry in branch.session.tree.walk_up(branch.leaf):
        match entry.body:
            case Message(message):
                return (
                    get_role(message) == "assistant"
                    and not is_failed_turn(message)
                    and not any(get_tool_calls(message))
                )
            case CustomMessage() | BranchSummary():
                return False
            case _:
                pass
    return False


def is_retryable(error: Exception) -> bool:
    """Whether trying again may help: not where the model refuses, the key is wrong, or somebody took the branch."""
    if isinstance(error, ModelError):
        return error.is_retryable and (error.retry_after or 0) <= MAX_RETRY_AFTER
    return not isinstance(error, SessionTreeError)


def compute_retry_delay(agent: str, attempt: int, error: Exception) -> float:
    """Seconds to wait: twice as long each time, less up to a quarter, so that many do not come back together."""
    asked = error.retry_after or 0.0 if isinstance(error, ModelError) else 0.0
    spread = 1 - zlib.crc32(f"{agent} {attempt}".encode()) % 256 / 1024
    return max(asked, min(FIRST_DELAY * 2.0 ** (attempt - 1), MAX_DELAY) * spread)


def select_original_tools(work: str, names: Sequence[str] | None, tools: Sequence[Tool]) -> Sequence[Tool]:
    """Those of `tools` that some work was begun with; all where it does not say. Raises `InvalidOperation`."""
    if names is None:
        return tools
    had = {tool.name: tool for tool in tools}
    lacking = [name for name in names if name not in had]
    if lacking:
        what = f"{'tool' if len(lacking) == 1 else 'tools'} {', '.join(lacking)}"
        raise InvalidOperation(f"{work} was begun with {what}, which cannot be had here")
    return [had[name] for name in names]
