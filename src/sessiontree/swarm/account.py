"""Accounts: what a session tells of its swarms, replayed from its entries.

The same code follows a swarm that runs and reads one whose process has died, so the two cannot differ. Nothing is
written here, and nothing decided.
"""

from __future__ import annotations

import threading

from msgspec import Struct, field

from sessiontree.agent.calls import denied_call
from sessiontree.comparison import usages
from sessiontree.core.entries import (
    AgentAction,
    Body,
    Chain,
    Custom,
    Entry,
    EntryId,
    JsonObject,
    Message,
    entries_of,
)
from sessiontree.core.heads import renamed_by
from sessiontree.core.messages import model_of, role, shortcoming, spent, stopped_abnormally, text
from sessiontree.core.times import milliseconds
from sessiontree.session import Session
from sessiontree.swarm.budget import Budget, Kind, Level, Spending
from sessiontree.swarm.facts import (
    SWARM,
    AnyDeed,
    AnyFact,
    Begin,
    Cancel,
    Cancelled,
    Complete,
    Completed,
    Created,
    Destroyed,
    Expected,
    Fail,
    Failed,
    Fork,
    Join,
    Paused,
    Reached,
    Resumed,
    Scaled,
    Spawn,
    Split,
    Started,
    Switched,
    Untold,
    read_deed,
    read_fact,
)
from sessiontree.swarm.status import MOST_DENIED, OVER, AgentInfo, AgentState, SwarmState, SwarmStatus


class Stopwatch(Struct):
    """Time at work, in milliseconds, from what entries say of the time."""

    passed: int = 0
    since: int | None = None

    def start(self, now: int) -> None:
        if self.since is None:
            self.since = now

    def stop(self, now: int) -> None:
        if self.since is not None:
            self.passed += max(0, now - self.since)
            self.since = None

    def seconds(self, now: int) -> float:
        return (self.passed + (0 if self.since is None else max(0, now - self.since))) / 1000


class AgentAccount(Struct):
    """What is known of an agent."""

    id: str
    spawn: Spawn
    branch: str
    ended: AgentState | None = None
    end: EntryId | None = None
    """The entry that says so."""
    begun: bool = False
    """Something was said on its branch since it was there."""
    turns: int = 0
    failures: int = 0
    failed_in_row: int = 0
    """Since the model answered last."""
    retry: float | None = None
    """How long to wait before it is tried again."""
    error: str | None = None
    denied: tuple[str, ...] = ()
    """Calls that permissions did not allow."""
    cost: float = 0.0
    tokens: float = 0
    answer: Entry | None = None
    """The model's last whole message."""
    parts: tuple[str, ...] = ()
    """What it has split its task into, until the results are there."""
    joined: int = 0
    """How many parts have been joined."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    last: int = 0
    """When it last wrote."""

    def spending(self, now: int | None) -> Spending:
        return Spending(self.cost, self.tokens, self.watch.seconds(self.last if now is None else now))

    @property
    def text(self) -> str:
        return text(self.said.get("content"))

    @property
    def model(self) -> str | None:
        """The model that answered last."""
        model = model_of(self.said)
        return None if model is None else ":".join(model)

    @property
    def said(self) -> JsonObject:
        """That message."""
        body = None if self.answer is None else self.answer.body
        return body.message if isinstance(body, Message) else {}


class Account(Struct):
    """What is known of a swarm."""

    created: Created
    created_at: str
    start: EntryId
    """The entry that says it was created: agents begin there."""
    own: str
    """Its own branch."""
    status: SwarmState = "created"
    reason: str | None = None
    result: str | None = None
    agents: dict[str, AgentAccount] = field(default_factory=dict[str, AgentAccount])
    wanted: int = 0
    """How many agents are to work."""
    expected: int = 0
    branch: str = ""
    """Where further agents begin."""
    branches: list[str] = field(default_factory=list[str])
    """Those that were made by hand, in their order."""
    budget: Budget | None = None
    agent_budget: Budget | None = None
    same_for_all: bool = False
    """Whether agents with a budget of their own have been given the common one since."""
    reached: set[tuple[str, str, Level]] = field(default_factory=set[tuple[str, str, Level]])
    untold: dict[str, dict[Kind, str]] = field(default_factory=dict[str, dict[Kind, str]])
    """Models that did not tell what they took since it was resumed last, by agent and by what of it."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    last: int = 0

    @property
    def over(self) -> bool:
        return self.status in OVER

    def budget_of(self, agent: AgentAccount) -> Budget | None:
        return self.agent_budget if self.same_for_all else agent.spawn.budget or self.agent_budget

    def spending(self, now: int | None) -> Spending:
        """What all agents have spent, as of a time; by default the time of the last entry."""
        agents = self.agents.values()
        return Spending(
            round(sum(agent.cost for agent in agents), 10),
            sum(agent.tokens for agent in agents),
            self.watch.seconds(self.last if now is None else now),
        )

    def exhausted(self, agent: AgentAccount) -> bool:
        """Whether the agent waits, since its own budget is used up."""
        return any(scope == agent.id and level == "exhausted" for scope, _, level in self.reached)

    def state_of(self, agent: AgentAccount) -> AgentState:
        if agent.ended is not None:
            return agent.ended
        if self.over:
            return "cancelled"
        if not agent.begun:
            return "pending"
        return "paused" if self.status == "paused" or self.exhausted(agent) else "running"

    @property
    def unread(self) -> list[AgentAccount]:
        """Agents that have completed and whose result is for the swarm, since no other agent has read it."""
        read = {id for agent in self.agents.values() for id in agent.spawn.reads}
        return [
            agent
            for agent in self.agents.values()
            if agent.ended == "completed" and agent.spawn.joins and agent.id not in read
        ]

    # Taking in

    def fact(self, fact: AnyFact, now: int) -> None:
        if self.over and not isinstance(fact, Destroyed | Switched):
            return  # the end is the end, though two may have come to one at the same time
        match fact:
            case Created():
                pass  # of one id the first counts
            case Started():
                self._stop(None)  # nothing was done between the death of a process and this
                self.status, self.reason = "running", None
                self._go_on(now)
            case Paused(reason=reason):
                self._stop(now)
                self.status, self.reason = "paused", reason
            case Resumed():
                self.status, self.reason, self.untold = "running", None, {}
                self.budget = fact.budget or self.budget
                if fact.agent_budget is not None:
                    self.agent_budget, self.same_for_all = fact.agent_budget, True
                self.reached = {
                    (scope, kind, level)
                    for scope, kind, level in self.reached
                    if level != "exhausted" and (fact.budget if scope == "swarm" else fact.agent_budget) is None
                }
                self._go_on(now)
            case Scaled(agents=wanted):
                self.wanted = wanted
            case Expected(agents=expected):
                self.expected = expected
            case Reached(scope=scope, kind=kind, level=level):
                self.reached.add((scope, kind, level))
                if level == "exhausted" and scope in self.agents:
                    self.agents[scope].watch.stop(now)
            case Untold(agent=agent, kind=kind, model=model):
                self.untold.setdefault(agent, {})[kind] = model
            case Switched(branch=branch):
                self.branch = branch
            case Completed(result=result, reason=reason):
                self._end("completed", reason, now)
                self.result = result
            case Failed(reason=reason):
                self._end("failed", reason, now)
            case Cancelled(reason=reason):
                self._end("cancelled", reason, now)
            case Destroyed():
                self._end("destroyed", self.reason, now)
        self.last = max(self.last, now)

    def _go_on(self, now: int) -> None:
        self.watch.start(now)
        for agent in self.agents.values():
            if agent.begun and agent.ended is None and not self.exhausted(agent):
                agent.watch.stop(agent.last)
                agent.watch.start(now)

    def _stop(self, now: int | None) -> None:
        """Time stops, at a time or when each last wrote."""
        self.watch.stop(self.last if now is None else now)
        for agent in self.agents.values():
            agent.watch.stop(agent.last if now is None else now)

    def _end(self, status: SwarmState, reason: str | None, now: int) -> None:
        self._stop(now)
        self.status, self.reason = status, reason

    def deed(self, agent_id: str, deed: AnyDeed, entry: EntryId, now: int) -> None:
        self.last = max(self.last, now)
        if isinstance(deed, Spawn):
            known = self.agents.get(agent_id)
            if known is None:
                self.agents[agent_id] = AgentAccount(id=agent_id, spawn=deed, branch=deed.branch, last=now)
            else:
                known.ended, known.spawn, known.branch = None, deed, deed.branch
            return
        agent = self.agents.get(agent_id)
        if agent is None:
            if isinstance(deed, Split) and deed.name is not None:
                self.branches.append(deed.name)
            return
        agent.last = now
        match deed:
            case Begin():
                self._begin(agent, now)
            case Complete():
                self._ended(agent, "completed", entry, now)
                agent.error = shortcoming(agent.said)
            case Fail(error=error, retry=retry):
                agent.failures += 1
                agent.failed_in_row += 1
                agent.error, agent.retry = error, retry
                if retry is None:
                    self._ended(agent, "failed", entry, now)
            case Cancel():
                self._ended(agent, "cancelled", entry, now)
            case Split(parts=parts):
                agent.parts = parts
            case Join():
                agent.joined += len(agent.parts)
                agent.parts = ()
            case Fork():
                pass

    def _begin(self, agent: AgentAccount, now: int) -> None:
        if not agent.begun:
            agent.begun = True
            agent.watch.start(now)

    def _ended(self, agent: AgentAccount, state: AgentState, entry: EntryId, now: int) -> None:
        agent.ended, agent.end = state, entry
        agent.watch.stop(now)

    def said(self, agent: AgentAccount, entry: Entry, body: Body, now: int) -> None:
        """Something was written on the agent's branch."""
        self.last = agent.last = max(now, self.last)
        for usage in usages(body):
            sums = spent(usage)
            if sums is not None:
                agent.cost = round(agent.cost + sums.cost, 10)
                agent.tokens += sums.tokens
        if isinstance(body, Message):
            if not agent.spawn.begins:
                self._begin(agent, now)
            refused = denied_call(body.message)
            if refused is not None and refused not in agent.denied and len(agent.denied) < MOST_DENIED:
                agent.denied = (*agent.denied, refused)
            if agent.begun and role(body.message) == "assistant":
                agent.turns += 1
                if not stopped_abnormally(body.message):
                    agent.answer, agent.failed_in_row = entry, 0

    def rename(self, old: str, new: str) -> None:
        """A branch has another name."""
        self.own = new if self.own == old else self.own
        self.branch = new if self.branch == old else self.branch
        self.branches = [new if name == old else name for name in self.branches]
        for agent in self.agents.values():
            agent.branch = new if agent.branch == old else agent.branch

    # Telling

    @property
    def progress(self) -> float:
        """How much of the work is done, from 0 to 1. What failed, was given up or never begun is not."""
        if self.status == "completed":
            return 1.0
        ends = [agent.ended for agent in self.agents.values()]
        known = max(len(ends) - ends.count("cancelled"), self.expected)  # who was cancelled is not needed
        return round(ends.count("completed") / known, 6) if known else 0.0

    def status_at(self, now: int | None, session_id: str) -> SwarmStatus:
        """The swarm as of a time; by default the time of its last entry."""
        spending, created = self.spending(now), self.created
        agents = tuple(self._info(agent, now) for agent in self.agents.values())
        untold = set[Kind]().union(*self.untold.values())
        return SwarmStatus(
            id=created.swarm,
            name=created.name,
            task=created.task,
            strategy=created.strategy,
            status=self.status,
            agents=agents,
            wanted=self.wanted,
            progress=self.progress,
            branch=self.own,
            current_branch=self.branch,
            branch_count=1 + len({agent.branch for agent in agents} | set(self.branches)),
            cost=spending.cost,
            tokens=spending.tokens,
            seconds=spending.seconds,
            budget=self.budget,
            agent_budget=self.agent_budget,
            budget_used=None if self.budget is None else self.budget.fraction(spending, untold),
            reason=self.reason,
            created_at=self.created_at,
            session_id=session_id,
            result=self.result,
        )

    def _info(self, agent: AgentAccount, now: int | None) -> AgentInfo:
        spending = agent.spending(now)
        return AgentInfo(
            id=agent.id,
            branch=agent.branch,
            role=agent.spawn.role,
            task=agent.spawn.task,
            status=self.state_of(agent),
            model=agent.spawn.model or self.created.model or agent.model,
            attempts=agent.failures + (agent.begun and agent.ended != "failed"),
            cost=spending.cost,
            tokens=spending.tokens,
            seconds=spending.seconds,
            text=agent.text if agent.ended == "completed" else None,
            error=agent.error,
            denied=agent.denied,
        )


class Accounts:
    """The accounts of all swarms in a session, by id, as far as its entries were read."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.swarms: dict[str, Account] = {}
        self._holders: dict[str, tuple[Account, AgentAccount]] = {}
        """Who works on a branch."""
        self._read = 0
        self._turn = threading.Lock()

    def read(self) -> Accounts:
        """Take in what was written since."""
        with self._turn:
            items = self.session.tree.items
            new = items[self._read :]
            self._read += len(new)
            for item in new:
                if isinstance(item, Chain) and item.branch not in self._holders:
                    continue
                for entry in entries_of((item,)):
                    self._take(entry)
        return self

    def _take(self, entry: Entry) -> None:
        if entry.is_head_record:
            renamed = renamed_by(entry) if self.swarms else None
            if renamed is not None:
                self._rename(*renamed)
        elif entry.type == "custom" and entry.custom_type == SWARM:
            body = entry.decoded()
            fact = read_fact(body) if isinstance(body, Custom) else None
            if fact is not None:
                self._take_fact(entry, fact)
        elif entry.type == "agent_action":
            body = entry.decoded()
            deed = read_deed(body) if isinstance(body, AgentAction) else None
            if isinstance(body, AgentAction) and deed is not None and deed.swarm in self.swarms:
                self._take_deed(entry, body.agent, deed)
        elif isinstance(entry.branch, str) and entry.branch in self._holders:
            account, agent = self._holders[entry.branch]
            if agent.ended is None and not account.over:
                account.said(agent, entry, entry.decoded(), _time(entry))

    def _rename(self, old: str, new: str) -> None:
        """Somebody has renamed a branch."""
        for account in self.swarms.values():
            account.rename(old, new)
        if old in self._holders:
            self._holders[new] = self._holders.pop(old)

    def _take_fact(self, entry: Entry, fact: AnyFact) -> None:
        if isinstance(fact, Created) and fact.swarm not in self.swarms:
            if fact.session not in (None, self.session.id):
                return  # a fork has the entries of what is not its own
            self.swarms[fact.swarm] = Account(
                created=fact,
                created_at=entry.timestamp,
                start=entry.id,
                wanted=fact.agents,
                own=fact.name,
                branch=fact.name,
                budget=fact.budget,
                agent_budget=fact.agent_budget,
                last=_time(entry),
            )
        elif fact.swarm in self.swarms:
            self.swarms[fact.swarm].fact(fact, _time(entry))

    def _take_deed(self, entry: Entry, agent: str, deed: AnyDeed) -> None:
        account = self.swarms[deed.swarm]
        account.deed(agent, deed, entry.id, _time(entry))
        if isinstance(deed, Spawn):
            self._holders[deed.branch] = account, account.agents[agent]


def _time(entry: Entry) -> int:
    return milliseconds(entry.timestamp) or 0
