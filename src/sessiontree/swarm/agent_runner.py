"""Jobs, executors, and `AgentRunner`, which runs the agents of a swarm in this process, each on its branch.

A run continues from whatever the branch contains: nothing yet, a turn that was interrupted by a pause or a crash, or a
final answer. An agent that is not admitted stops. Its progress is in the session, and the scheduler runs it again.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.agent.agent import Agent
from sessiontree.agent.factory import AgentOptions, open_branch_agent, run_task
from sessiontree.agent.loop import Outcome
from sessiontree.agent.run_writer import UnsavedMessages
from sessiontree.agent.tool import Tool, ToolError, tool
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
from sessiontree.hooks.events import Event as HookEvent
from sessiontree.hooks.events import TurnEnd as HookTurnEnd
from sessiontree.hooks.events import TurnStart as HookTurnStart
from sessiontree.model.base import Model, ModelError
from sessiontree.session import Branch
from sessiontree.swarm.budget import Spending
from sessiontree.swarm.budget_enforcement import AdmissionControl, BudgetedModel
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
from sessiontree.swarm.journal import SwarmJournal
from sessiontree.swarm.records import BeginAction, CompleteAction, FailAction, SplitAction, build_action_body

FIRST_DELAY = 2.0
"""Seconds before the first retry. Each further retry waits twice as long."""
MAX_DELAY = 60.0
MAX_RETRY_AFTER = 600.0
"""Seconds. If a provider asks for a longer wait, the agent fails instead."""
MAX_TOOL_TEXT = 500
"""Characters of a tool result that an event contains."""
MAX_AGENTS = 64
"""The most agents of a swarm whose agents split their tasks."""
SPLIT_TOOL_DESCRIPTION = """\
Delegate parts of your task to other agents, which run at the same time. Each agent sees only the text of its part, so \
include everything that it needs to know. You get their results and continue from there."""

Emit = Callable[[BaseSwarmEvent, str | None, str | None], None]
"""Called with an event, its agent and its branch."""


class SwarmJob(Struct, frozen=True, kw_only=True):
    """One run of an agent, until it completes, fails or has to wait. Another process may do it."""

    session: str
    """The session's id."""
    swarm: str
    agent: str
    prompt: str
    """The prompt, for an agent that has not started yet."""
    model: str | None = None
    may_split: bool = False
    """Whether the agent may delegate parts of its task to other agents."""


RunJob: TypeAlias = Callable[[SwarmJob], Awaitable[None]]


class Executor(Protocol):
    """Chooses where the jobs of a swarm's agents run. It returns no results: they are written to the session."""

    async def run(self, job: SwarmJob, run_locally: RunJob) -> None:
        """Run a job and return when it is over. Cancelling this coroutine cancels the job.

        `run_locally` runs the job in this process. To run it in another process, open the swarm there with
        `Swarm.open(session, job.swarm)` and call its `run_job`. A job may run twice: finished work is found in the
        session and not repeated.
        """
        ...

    def hand_over(self, swarm: str) -> None:
        """Another process runs this swarm now: do not cancel its jobs when they are cancelled here."""
        ...


class LocalExecutor:
    """Runs jobs in the event loop of this process."""

    async def run(self, job: SwarmJob, run_locally: RunJob) -> None:
        await run_locally(job)

    def hand_over(self, swarm: str) -> None:
        pass  # `AgentRunner.hand_over` stops the agents of this process


@dataclass(kw_only=True)
class AgentResources:
    """What agents run with. The session stores only the tool names, the system prompt and the thinking level."""

    find_model: Callable[[str | None], Model]
    hooks: Hooks
    options: AgentOptions

    @classmethod
    def create(
        cls,
        model: Model | str | None,
        model_of: Callable[[str], Model] | None,
        settings: Config | None,
        hooks: Hooks | None,
        options: AgentOptions,
    ) -> AgentResources:
        """Find models by name: `model` itself, through `model_of`, or a configured one.

        Without `settings`, the models of the user are used.
        """

        def find_model(name: str | None) -> Model:
            if model is not None and not isinstance(model, str) and name in (None, model.info.name):
                return model
            if name is not None and model_of is not None:
                return model_of(name)
            from sessiontree.model.selection import find_model

            return find_model(name or (model if isinstance(model, str) else None), settings)

        return cls(find_model=find_model, hooks=Hooks() if hooks is None else hooks, options=options)


class AgentRunner:
    """Runs agents of one swarm."""

    def __init__(
        self, journal: SwarmJournal, admission: AdmissionControl, resources: AgentResources, emit: Emit
    ) -> None:
        self._journal = journal
        self._admission = admission
        self._resources = resources
        self._emit = emit
        self._running_agents: dict[str, Agent] = {}
        self._models: dict[str, BudgetedModel] = {}
        """The models of running agents."""
        self._waiting_agents: set[str] = set()
        """Agents that stopped because they were not admitted."""
        self._pending_steering: dict[str, tuple[str, ...]] = {}
        """Messages for agents that stopped before they received them."""

    def register_handlers(self) -> Callable[[], None]:
        """Check admission before every model call. Return a function that removes the handlers."""
        hooks = self._resources.hooks
        removers = [
            hooks.on(kind, self._check_admission, source="the swarm's admission control", copies=False)
            for kind in (BeforeRequest, BeforeCompact)
        ]

        def unregister() -> None:
            for remove in removers:
                remove()

        return unregister

    async def _check_admission(self, event: HookEvent, context: Any) -> dict[str, bool] | None:
        agent = next((id for id, agent in self._running_agents.items() if agent is context.agent), None)
        if agent is None:
            return None
        await self._write_unrecorded_usage(agent)
        if await self._admission.admit(agent) and agent in self._models:  # it may have been stopped in the meantime
            self._models[agent].is_admitted = True
            return None
        self._waiting_agents.add(agent)
        return {"cancel": True}

    async def _write_unrecorded_usage(self, agent: str) -> None:
        """Write the usage of calls whose answers are not in the session."""
        model = self._models[agent]
        if model.unrecorded == Spending():
            return
        info, spending = model.info, model.unrecorded
        model.unrecorded = Spending()
        usage = {"totalTokens": spending.tokens, "cost": round(spending.cost, 10)}
        body = Usage(kind="compaction", provider=info.provider, model=info.model, usage=usage)
        await self._journal.append_to_agent(agent, body)

    def hand_over(self) -> None:
        """Stop agents from writing to their branches, because another process runs them now."""
        for agent in self._running_agents.values():
            agent.hand_over()

    async def steer(self, agent: str, text: str) -> None:
        """Send a message to an agent, now or when it runs again in this process."""
        running = self._running_agents.get(agent)
        if running is not None:
            await running.steer(text)
        else:
            self._pending_steering[agent] = (*self._pending_steering.get(agent, ()), text)

    async def run_job(self, job: SwarmJob) -> None:
        """Run the agent until it completes, fails or has to wait. The outcome is written to the session."""
        agents = (await self._journal.refresh()).agents
        if job.agent not in agents:
            raise NotFound("agent", job.agent)
        tracked = agents[job.agent]
        if tracked.end_state is not None:
            return
        branch = self._journal.session.branch(tracked.branch)
        if tracked.started and has_final_answer(branch):
            await self._complete(job.agent, branch.name)
            return
        if not tracked.started:
            start = AgentStart(task=tracked.spawn.task, role=tracked.spawn.role, model=job.model)
            self._emit(start, job.agent, branch.name)
        self._waiting_agents.discard(job.agent)
        failure: Exception | None = None
        try:
            outcome = await self._run_agent(job, branch, started=tracked.started)
            failure = outcome.error
        except Exception as error:  # noqa: BLE001 - a model or a handler may raise anything; only this agent fails
            outcome, failure = Outcome(), error
        if failure is not None:
            await self._fail(job.agent, branch.name, failure)
        elif outcome.ok:
            await self._complete(job.agent, branch.name)
        elif outcome.aborted or job.agent not in self._waiting_agents:
            reason = "the agent was aborted" if outcome.aborted else "a handler cancelled the agent's request"
            await self._fail(job.agent, branch.name, InvalidOperation(reason))

    async def _run_agent(self, job: SwarmJob, branch: Branch, *, started: bool) -> Outcome:
        resources, options = self._resources, self._resources.options
        find_exhausted = partial(self._admission.find_exhausted_limit, job.agent)
        unreported = self._admission.unreported[job.agent]
        model = BudgetedModel(resources.find_model(job.model), find_exhausted, unreported)
        if job.may_split:
            options = replace(options, tools=[*options.tools, self._build_split_tool(job.agent)])
        async with open_branch_agent(branch, model, resources.hooks, options) as agent:
            agent.hooks.listen(self._build_listener(job.agent, branch.name, model))
            self._running_agents[job.agent], self._models[job.agent] = agent, model
            try:
                for text in self._pending_steering.pop(job.agent, ()):
                    await agent.steer(text)
                begin = build_action_body(job.agent, BeginAction(swarm=job.swarm))
                outcome = await run_task(agent, None if started else job.prompt, extra_entries=[begin])
                try:
                    await self._write_unrecorded_usage(job.agent)
                except StoreError:
                    # UnsavedMessages reports the same failure, and where the answer was saved.
                    if not isinstance(outcome.error, UnsavedMessages):
                        raise
                return outcome
            finally:
                del self._running_agents[job.agent], self._models[job.agent]
                if left := agent.queued.steering:
                    self._pending_steering[job.agent] = left

    async def _complete(self, agent: str, branch: str) -> None:
        await self._journal.append_action(agent, CompleteAction(swarm=self._journal.id))
        completed = self._journal.state.agents[agent]
        cost, tokens, seconds = completed.compute_spending(None)
        self._emit(AgentComplete(text=completed.text, cost=cost, tokens=tokens, seconds=seconds), agent, branch)
        await self._admission.record_levels(agent)

    async def _fail(self, agent: str, branch: str, error: Exception) -> None:
        unsaved = isinstance(error, UnsavedMessages)
        if isinstance(error, UnsavedMessages):
            error = error.build_exit_error("the log of the swarm's events")
        state = self._journal.state
        failed = state.agents[agent]
        attempt = failed.consecutive_failures + 1
        retry = (
            compute_retry_delay(agent, attempt, error)
            if attempt <= state.created.retries and is_retryable(error)
            else None
        )
        sentence = str(error) if isinstance(error, SessionTreeError) else f"{type(error).__name__}: {error}"
        action = FailAction(swarm=self._journal.id, error=sentence, attempt=failed.failures + 1, retry=retry)
        try:
            await self._journal.append_action(agent, action)
        except StoreError:
            if not unsaved:
                raise
            self._emit(ErrorEvent(message=sentence), agent, branch)
            raise error from None
        if retry is None:
            self._emit(AgentFail(error=sentence, attempts=action.attempt), agent, branch)
        else:
            message = f"{sentence}; retrying in {retry:.1f} s"
            self._emit(ErrorEvent(message=message), agent, branch)
        await self._admission.record_levels(agent)

    def _build_split_tool(self, agent: str) -> Tool:
        journal = self._journal

        async def split_task(parts: list[str]) -> str:
            agents = journal.state.agents
            wanted = [part for part in map(str.strip, parts) if part]
            available = max(0, MAX_AGENTS - len(agents))
            if len(wanted) < 2:
                raise ToolError("a task needs at least two parts to be split; otherwise do it yourself")
            if len(wanted) > available:
                limit = pluralize(available, "more agent")
                raise ToolError(f"the swarm can have {limit}; use fewer parts, or do the task yourself")
            if agents[agent].parts:
                raise ToolError("the task is already split")
            await journal.append_action(agent, SplitAction(swarm=journal.id, parts=tuple(wanted)))
            return f"The task is split into {len(wanted)} parts. Their results follow."

        return tool(split_task, description=SPLIT_TOOL_DESCRIPTION, does="reads")

    # Events

    def _build_listener(self, agent: str, branch: str, model: BudgetedModel) -> Callable[[HookEvent], None]:
        turns = self._journal.state.agents[agent].turns

        def emit(event: BaseSwarmEvent) -> None:
            self._emit(event, agent, branch)

        deltas = DeltaBuffer(emit)

        def handle_event(event: HookEvent) -> None:
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
                    self._admission.changes.notify()
                case Compacted():
                    model.unrecorded = Spending()
                case HookTurnStart():
                    emit(SwarmTurnStart(number=turns + 1))
                case HookTurnEnd(message=entry):
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
    """Whether the last message on a branch is a complete answer of the model without tool calls."""
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
    """Whether a retry may help. It does not if the model refuses, the key is wrong, or the branch was moved."""
    if isinstance(error, ModelError):
        return error.is_retryable and (error.retry_after or 0) <= MAX_RETRY_AFTER
    return not isinstance(error, SessionTreeError)


def compute_retry_delay(agent: str, attempt: int, error: Exception) -> float:
    """Return the seconds before a retry: they double with each attempt, minus up to a quarter of jitter."""
    requested = error.retry_after or 0.0 if isinstance(error, ModelError) else 0.0
    jitter = 1 - zlib.crc32(f"{agent} {attempt}".encode()) % 256 / 1024
    return max(requested, min(FIRST_DELAY * 2.0 ** (attempt - 1), MAX_DELAY) * jitter)


def select_original_tools(work: str, names: Sequence[str] | None, tools: Sequence[Tool]) -> Sequence[Tool]:
    """Return the tools with these names, or all if `names` is `None`. Raises `InvalidOperation` if one is missing."""
    if names is None:
        return tools
    available = {tool.name: tool for tool in tools}
    missing = [name for name in names if name not in available]
    if missing:
        label, verb = ("tool", "is") if len(missing) == 1 else ("tools", "are")
        raise InvalidOperation(
            f"{work} was started with the {label} {', '.join(missing)}, which {verb} not available here"
        )
    return [available[name] for name in names]
