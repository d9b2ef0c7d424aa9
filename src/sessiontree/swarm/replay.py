"""Replay: computes the state of a session's swarms from their entries.

The same code tracks a running swarm and reads one whose process has died, so the two always agree. This module writes
nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

from msgspec import Struct, field

from sessiontree.agent.tool_execution import get_denied_title
from sessiontree.core.entries import (
    AgentAction,
    Body,
    Chain,
    Custom,
    Entry,
    EntryId,
    JsonObject,
    Message,
    iter_entries,
)
from sessiontree.core.heads import read_rename
from sessiontree.core.messages import (
    describe_shortcoming,
    extract_text,
    get_model,
    get_role,
    is_failed_turn,
    list_usages,
    sum_usage,
)
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.core.tree import Tree
from sessiontree.session import Session
from sessiontree.swarm.budget import Budget, BudgetKind, BudgetLevel, Spending
from sessiontree.swarm.records import (
    END_STATES,
    MAX_DENIED,
    SWARM_RECORD_TYPE,
    AgentInfo,
    AgentState,
    AnySwarmAction,
    AnySwarmRecord,
    BeginAction,
    BudgetLevelRecord,
    CancelAction,
    CancelledRecord,
    CompleteAction,
    CompletedRecord,
    CreatedRecord,
    DestroyedRecord,
    ExpectedAgentsRecord,
    FailAction,
    FailedRecord,
    ForkAction,
    JoinAction,
    PausedRecord,
    ResumedRecord,
    ScaledRecord,
    SpawnAction,
    SplitAction,
    StartedRecord,
    SwarmState,
    SwarmStatus,
    SwitchedBranchRecord,
    UnreportedUsageRecord,
    read_action,
    read_record,
)

CALL_SECONDS = 120
"""An agent that wrote nothing for this long is not expected to spend anything soon."""


class Stopwatch(Struct):
    """Running time in milliseconds, measured with the timestamps of entries."""

    elapsed: int = 0
    started_at: int | None = None

    def start(self, now: int) -> None:
        if self.started_at is None:
            self.started_at = now

    def stop(self, now: int) -> None:
        if self.started_at is not None:
            self.elapsed += max(0, now - self.started_at)
            self.started_at = None

    def get_seconds(self, now: int) -> float:
        return (self.elapsed + (0 if self.started_at is None else max(0, now - self.started_at))) / 1000


class TrackedAgent(Struct):
    """The state of an agent."""

    id: str
    spawn: SpawnAction
    branch: str
    end_state: AgentState | None = None
    end_entry: EntryId | None = None
    """The entry that records the end."""
    started: bool = False
    """Whether the agent received its prompt."""
    start_number: int = 0
    """How many agents of the swarm had started when this one did, with itself."""
    turns: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    """Failures since the model's last answer."""
    retry_delay: float | None = None
    """Seconds to wait before the next retry."""
    error: str | None = None
    denied: tuple[str, ...] = ()
    """Tool calls that permissions denied."""
    cost: float = 0.0
    tokens: float = 0
    answer: Entry | None = None
    """The entry of the model's last complete message."""
    parts: tuple[str, ...] = ()
    """The parts of its split task, until their results are merged."""
    joined_parts: int = 0
    """How many parts have been merged."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    last_time: int = 0
    """Time of the agent's last entry, in milliseconds."""

    def compute_spending(self, now: int | None) -> Spending:
        return Spending(self.cost, self.tokens, self.stopwatch.get_seconds(self.last_time if now is None else now))

    @property
    def text(self) -> str:
        return extract_text(self.answer_message.get("content"))

    @property
    def model(self) -> str | None:
        """The model of the last answer."""
        model = get_model(self.answer_message)
        return None if model is None else ":".join(model)

    @property
    def answer_message(self) -> JsonObject:
        """The message of the last answer; empty if there is none yet."""
        body = None if self.answer is None else self.answer.body
        return body.message if isinstance(body, Message) else {}


class TrackedSwarm(Struct):
    """The state of a swarm."""

    created: CreatedRecord
    created_at: str
    start_entry: EntryId
    """The entry that records the creation. Agents start there."""
    own_branch: str
    """The swarm's own branch."""
    status: SwarmState = "created"
    reason: str | None = None
    result: str | None = None
    agents: dict[str, TrackedAgent] = field(default_factory=dict[str, TrackedAgent])
    wanted: int = 0
    """The requested number of agents."""
    expected: int = 0
    branch: str = ""
    """The branch where new agents start."""
    branches: list[str] = field(default_factory=list[str])
    """Branches from `Swarm.create_branch`, in order."""
    budget: Budget | None = None
    agent_budget: Budget | None = None
    overrides_agent_budgets: bool = False
    """Whether `agent_budget` replaces the budgets of individual agents."""
    reached_levels: set[tuple[str, str, BudgetLevel]] = field(default_factory=set[tuple[str, str, BudgetLevel]])
    unreported: dict[str, dict[BudgetKind, str]] = field(default_factory=dict[str, dict[BudgetKind, str]])
    """Models that did not report usage since the last resume, by agent and kind of usage."""
    largest_call: Spending | None = None
    """The most that one model call used; `None` before the first answer."""
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    last_time: int = 0

    @property
    def is_over(self) -> bool:
        return self.status in END_STATES

    def get_agent_budget(self, agent: TrackedAgent) -> Budget | None:
        return self.agent_budget if self.overrides_agent_budgets else agent.spawn.budget or self.agent_budget

    def compute_spending(self, now: int | None) -> Spending:
        """Return the spending of all agents at a time; `None` means the time of the last entry."""
        agents = self.agents.values()
        return Spending(
            round(sum(agent.cost for agent in agents), 10),
            sum(agent.tokens for agent in agents),
            self.stopwatch.get_seconds(self.last_time if now is None else now),
        )

    def is_exhausted(self, agent: TrackedAgent) -> bool:
        """Whether the agent waits because its own budget is used up."""
        return any(scope == agent.id and level == "exhausted" for scope, _, level in self.reached_levels)

    def has_budget_for_call(self, agent: TrackedAgent, now: int) -> bool:
        """Whether the swarm's budget lets an agent call its model while other agents do.

        A call is expected to use as much as the largest one so far. Agents that started earlier come first: this agent
        may call if their calls leave something. Before the first answer, one agent calls. Every process comes to the
        same answer from the session, so they share one budget. An agent that wrote nothing for `CALL_SECONDS` does not
        count: its process may have crashed, or its strategy may run it later.
        """
        if self.budget is None or (self.budget.cost is None and self.budget.tokens is None):
            return True
        ahead = sum(
            other.started
            and other.end_state is None
            and not other.parts
            and (not agent.started or other.start_number < agent.start_number)
            and not self.is_exhausted(other)
            and now - other.last_time < CALL_SECONDS * 1000
            for other in self.agents.values()
        )
        if not ahead or self.largest_call is None:
            return not ahead
        expected = Spending(ahead * self.largest_call.cost, ahead * self.largest_call.tokens)
        return self.budget.find_exhausted(self.compute_spending(now).add(expected)) is None

    def get_agent_state(self, agent: TrackedAgent) -> AgentState:
        if agent.end_state is not None:
            return agent.end_state
        if self.is_over:
            return "cancelled"
        if not agent.started:
            return "pending"
        return "paused" if self.status == "paused" or self.is_exhausted(agent) else "running"

    @property
    def unread_agents(self) -> list[TrackedAgent]:
        """Completed agents whose results no other agent reads. They are merged into the swarm's branch."""
        read = {id for agent in self.agents.values() for id in agent.spawn.reads}
        return [
            agent
            for agent in self.agents.values()
            if agent.end_state == "completed" and agent.spawn.joins and agent.id not in read
        ]

    # Applying entries

    def apply_record(self, record: AnySwarmRecord, now: int) -> None:
        if self.is_over and not isinstance(record, DestroyedRecord | SwitchedBranchRecord):
            return  # the first end counts, even if two processes ended the swarm at the same time
        match record:
            case CreatedRecord():
                pass  # the first record with this id counts
            case StartedRecord():
                self._stop_clocks(None)  # a crashed process did no work since its last entry
                self.status, self.reason = "running", None
                self._start_clocks(now)
            case PausedRecord(reason=reason):
                self._stop_clocks(now)
                self.status, self.reason = "paused", reason
            case ResumedRecord():
                self.status, self.reason, self.unreported = "running", None, {}
                self.budget = record.budget or self.budget
                if record.agent_budget is not None:
                    self.agent_budget, self.overrides_agent_budgets = record.agent_budget, True
                self.reached_levels = {
                    (scope, kind, level)
                    for scope, kind, level in self.reached_levels
                    if level != "exhausted" and (record.budget if scope == "swarm" else record.agent_budget) is None
                }
                self._start_clocks(now)
            case ScaledRecord(agents=wanted):
                self.wanted = wanted
            case ExpectedAgentsRecord(agents=expected):
                self.expected = expected
            case BudgetLevelRecord(scope=scope, kind=kind, level=level):
                self.reached_levels.add((scope, kind, level))
                if level == "exhausted" and scope in self.agents:
                    self.agents[scope].stopwatch.stop(now)
            case UnreportedUsageRecord(agent=agent, kind=kind, model=model):
                self.unreported.setdefault(agent, {})[kind] = model
            case SwitchedBranchRecord(branch=branch):
                self.branch = branch
            case CompletedRecord(result=result, reason=reason):
                self._end_swarm("completed", reason, now)
                self.result = result
            case FailedRecord(reason=reason):
                self._end_swarm("failed", reason, now)
            case CancelledRecord(reason=reason):
                self._end_swarm("cancelled", reason, now)
            case DestroyedRecord():
                self._end_swarm("destroyed", self.reason, now)
        self.last_time = max(self.last_time, now)

    def _start_clocks(self, now: int) -> None:
        self.stopwatch.start(now)
        for agent in self.agents.values():
            if agent.started and agent.end_state is None and not self.is_exhausted(agent):
                agent.stopwatch.stop(agent.last_time)
                agent.stopwatch.start(now)

    def _stop_clocks(self, now: int | None) -> None:
        """Stop all clocks at a time; `None` means the time of each last entry."""
        self.stopwatch.stop(self.last_time if now is None else now)
        for agent in self.agents.values():
            agent.stopwatch.stop(agent.last_time if now is None else now)

    def _end_swarm(self, status: SwarmState, reason: str | None, now: int) -> None:
        self._stop_clocks(now)
        self.status, self.reason = status, reason

    def apply_action(self, agent_id: str, action: AnySwarmAction, entry: EntryId, now: int) -> None:
        self.last_time = max(self.last_time, now)
        if isinstance(action, SpawnAction):
            known = self.agents.get(agent_id)
            if known is None:
                self.agents[agent_id] = TrackedAgent(id=agent_id, spawn=action, branch=action.branch, last_time=now)
            else:
                known.end_state, known.spawn, known.branch = None, action, action.branch
            return
        agent = self.agents.get(agent_id)
        if agent is None:
            if isinstance(action, SplitAction) and action.name is not None:
                self.branches.append(action.name)
            return
        agent.last_time = now
        match action:
            case BeginAction():
                self._begin_agent(agent, now)
            case CompleteAction():
                self._end_agent(agent, "completed", entry, now)
                agent.error = describe_shortcoming(agent.answer_message)
            case FailAction(error=error, retry=retry):
                agent.failures += 1
                agent.consecutive_failures += 1
                agent.error, agent.retry_delay = error, retry
                if retry is None:
                    self._end_agent(agent, "failed", entry, now)
            case CancelAction():
                self._end_agent(agent, "cancelled", entry, now)
            case SplitAction(parts=parts):
                agent.parts = parts
            case JoinAction():
                agent.joined_parts += len(agent.parts)
                agent.parts = ()
            case ForkAction():
                pass

    def _begin_agent(self, agent: TrackedAgent, now: int) -> None:
        if not agent.started:
            agent.started = True
            agent.start_number = sum(other.started for other in self.agents.values())
            agent.stopwatch.start(now)

    def _end_agent(self, agent: TrackedAgent, state: AgentState, entry: EntryId, now: int) -> None:
        agent.end_state, agent.end_entry = state, entry
        agent.stopwatch.stop(now)

    def apply_entry(self, agent: TrackedAgent, entry: Entry, body: Body, now: int) -> None:
        """Apply an entry on the agent's branch."""
        self.last_time = agent.last_time = max(now, self.last_time)
        for usage in list_usages(body):
            sums = sum_usage(usage)
            if sums is not None:
                agent.cost = round(agent.cost + sums.cost, 10)
                agent.tokens += sums.tokens
                known = self.largest_call or Spending()
                self.largest_call = Spending(max(known.cost, sums.cost), max(known.tokens, sums.tokens))
        if isinstance(body, Message):
            if not agent.spawn.begins:
                self._begin_agent(agent, now)
            refused = get_denied_title(body.message)
            if refused is not None and refused not in agent.denied and len(agent.denied) < MAX_DENIED:
                agent.denied = (*agent.denied, refused)
            if agent.started and get_role(body.message) == "assistant":
                agent.turns += 1
                if not is_failed_turn(body.message):
                    agent.answer, agent.consecutive_failures = entry, 0

    def rename_branch(self, old: str, new: str) -> None:
        """Apply the new name of a branch."""
        self.own_branch = new if self.own_branch == old else self.own_branch
        self.branch = new if self.branch == old else self.branch
        self.branches = [new if name == old else name for name in self.branches]
        for agent in self.agents.values():
            agent.branch = new if agent.branch == old else agent.branch

    # Status

    @property
    def progress(self) -> float:
        """The share of work that is completed, from 0 to 1. Failed, cancelled and pending work is not."""
        if self.status == "completed":
            return 1.0
        ends = [agent.end_state for agent in self.agents.values()]
        known = max(
            len(ends) - ends.count("cancelled"), self.expected
        )  # the swarm does not need cancelled agents any more
        return round(ends.count("completed") / known, 6) if known else 0.0

    def build_status(self, now: int | None, session_id: str) -> SwarmStatus:
        """Return the status at a time; `None` means the time of the last entry."""
        spending, created = self.compute_spending(now), self.created
        agents = tuple(self._build_agent_info(agent, now) for agent in self.agents.values())
        unreported = set[BudgetKind]().union(*self.unreported.values())
        return SwarmStatus(
            id=created.swarm,
            name=created.name,
            task=created.task,
            strategy=created.strategy,
            status=self.status,
            agents=agents,
            wanted=self.wanted,
            progress=self.progress,
            branch=self.own_branch,
            current_branch=self.branch,
            branch_count=1 + len({agent.branch for agent in agents} | set(self.branches)),
            cost=spending.cost,
            tokens=spending.tokens,
            seconds=spending.seconds,
            budget=self.budget,
            agent_budget=self.agent_budget,
            budget_used=None if self.budget is None else self.budget.compute_fraction_used(spending, unreported),
            reason=self.reason,
            created_at=self.created_at,
            session_id=session_id,
            result=self.result,
        )

    def _build_agent_info(self, agent: TrackedAgent, now: int | None) -> AgentInfo:
        spending = agent.compute_spending(now)
        return AgentInfo(
            id=agent.id,
            branch=agent.branch,
            role=agent.spawn.role,
            task=agent.spawn.task,
            status=self.get_agent_state(agent),
            model=agent.spawn.model or self.created.model or agent.model,
            attempts=agent.failures + (agent.started and agent.end_state != "failed"),
            cost=spending.cost,
            tokens=spending.tokens,
            seconds=spending.seconds,
            text=agent.text if agent.end_state == "completed" else None,
            error=agent.error,
            denied=agent.denied,
        )


class SwarmTracker:
    """Tracks the swarms of a session, by id, as entries are added."""

    def __init__(self, session: Session, swarm: str | None = None) -> None:
        """Track all swarms. With `swarm`, only this one is sure to be complete: earlier entries may stay unread."""
        self.session = session
        self.swarms: dict[str, TrackedSwarm] = {}
        self._only = swarm
        self._agents_by_branch: dict[str, tuple[TrackedSwarm, TrackedAgent]] = {}
        """The swarm and agent that use a branch."""
        self._tree: Tree | None = None
        """The tree whose entries were applied."""
        self._read_end = 0
        """The position after the last entry that was applied."""
        self._lock = threading.Lock()

    def read(self) -> SwarmTracker:
        """Apply entries that were added since the last call."""
        with self._lock:
            tree = self.session.tree
            if tree is not self._tree:  # the first call, or the session was loaded again
                self.swarms, self._agents_by_branch = {}, {}
                self._read_end = self._find_start(tree)
                self._tree = tree
            items, starts = tree.table
            count = len(starts)  # another thread may be adding items
            for item in items[bisect_left(starts, self._read_end, hi=count) : count]:
                self._read_end += len(item) if isinstance(item, Chain) else 1
                if isinstance(item, Chain) and item.branch not in self._agents_by_branch:
                    continue
                for entry in iter_entries((item,)):
                    self._apply_entry(entry)
        return self

    def _find_start(self, tree: Tree) -> int:
        """Return the position of the entry that created the only swarm, or that of the first entry of the session."""
        searched: int | None = None
        while self._only is not None:
            items, starts = tree.table
            for item, start in zip(items, [*starts], strict=False):
                if start == searched:
                    break
                if isinstance(item, Entry) and self._creates_swarm(item):
                    return start
            searched = starts[0] if starts else None
            if not tree.is_partial:
                break
            tree.load_more()
        tree.load()
        _, starts = tree.table
        return starts[0] if starts else 0

    def _creates_swarm(self, entry: Entry) -> bool:
        if entry.type != "custom" or entry.custom_type != SWARM_RECORD_TYPE:
            return False
        body = entry.decode()
        record = read_record(body) if isinstance(body, Custom) else None
        return isinstance(record, CreatedRecord) and record.swarm == self._only

    def _apply_entry(self, entry: Entry) -> None:
        if entry.is_head_record:
            renamed = read_rename(entry) if self.swarms else None
            if renamed is not None:
                self._rename_branch(*renamed)
        elif entry.type == "custom" and entry.custom_type == SWARM_RECORD_TYPE:
            body = entry.decode()
            record = read_record(body) if isinstance(body, Custom) else None
            if record is not None:
                self._apply_record(entry, record)
        elif entry.type == "agent_action":
            body = entry.decode()
            action = read_action(body) if isinstance(body, AgentAction) else None
            if isinstance(body, AgentAction) and action is not None and action.swarm in self.swarms:
                self._apply_action(entry, body.agent, action)
        elif isinstance(entry.branch, str) and entry.branch in self._agents_by_branch:
            swarm, agent = self._agents_by_branch[entry.branch]
            if agent.end_state is None and not swarm.is_over:
                swarm.apply_entry(agent, entry, entry.decode(), _get_time(entry))

    def _rename_branch(self, old: str, new: str) -> None:
        """Apply the new name of a branch."""
        for swarm in self.swarms.values():
            swarm.rename_branch(old, new)
        if old in self._agents_by_branch:
            self._agents_by_branch[new] = self._agents_by_branch.pop(old)

    def _apply_record(self, entry: Entry, record: AnySwarmRecord) -> None:
        if isinstance(record, CreatedRecord) and record.swarm not in self.swarms:
            if record.session not in (None, self.session.id):
                return  # a fork contains entries of swarms that belong to the original session
            self.swarms[record.swarm] = TrackedSwarm(
                created=record,
                created_at=entry.timestamp,
                start_entry=entry.id,
                wanted=record.agents,
                own_branch=record.name,
                branch=record.name,
                budget=record.budget,
                agent_budget=record.agent_budget,
                last_time=_get_time(entry),
            )
        elif record.swarm in self.swarms:
            self.swarms[record.swarm].apply_record(record, _get_time(entry))

    def _apply_action(self, entry: Entry, agent: str, action: AnySwarmAction) -> None:
        swarm = self.swarms[action.swarm]
        swarm.apply_action(agent, action, entry.id, _get_time(entry))
        if isinstance(action, SpawnAction):
            self._agents_by_branch[action.branch] = swarm, swarm.agents[agent]


def _get_time(entry: Entry) -> int:
    return parse_timestamp(entry.timestamp) or 0
