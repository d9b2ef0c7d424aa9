"""The names of Dash for this library, in snake_case: `SessionTree` and `SwarmOrchestrator`.

from sessiontree.compat.dash import SessionTree

tree = SessionTree.create("/project/path", "./sessions", "my-session")
tree.append_message("user", "Hello")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from sessiontree.agent.tool import Tool
from sessiontree.branch_comparison import Comparison
from sessiontree.compat.session_entry import (
    TOOL_MESSAGE,
    SessionEntry,
    SessionTreeNode,
    build_nodes,
    find_entry,
    list_children,
    list_path,
    use_short_ids,
)
from sessiontree.compat.session_manager import get_location
from sessiontree.core.entries import AgentAction, CustomMessage, Entry, EntryId, JsonObject, Message
from sessiontree.core.messages import assistant, get_answered_call, get_tool_calls, system, tool_result, user
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.hooks.bus import Hooks
from sessiontree.library import catalog
from sessiontree.model.base import Model
from sessiontree.session import BranchInfo, Session, compare
from sessiontree.swarm.budget import Budget
from sessiontree.swarm.strategies import Strategy
from sessiontree.swarm.swarm import Swarm

__all__ = [
    "BranchComparison",
    "BranchMetrics",
    "ForkResult",
    "MetricDifference",
    "SessionEntry",
    "SessionTree",
    "SessionTreeNode",
    "SwarmOrchestrator",
]

Role = Literal["user", "assistant", "system", "tool"]


class ForkResult(Struct, frozen=True, kw_only=True):
    new_session_id: str
    new_session_file: str | None
    """`None` if the session is in memory."""
    forked_from_entry_id: EntryId | None


class BranchMetrics(Struct, frozen=True, kw_only=True):
    """What a branch did since it split from the others."""

    branch_id: str
    name: str
    entry_count: int
    message_count: int
    total_cost: float
    total_tokens: float
    duration_ms: int
    last_activity: str | None


class MetricDifference(Struct, frozen=True, kw_only=True):
    metric: str
    branch_a: str
    branch_b: str
    diff: float
    percent_diff: float | None
    """`None` if the value of `branch_a` is 0."""


class BranchComparison(Struct, frozen=True, kw_only=True):
    branches: tuple[BranchMetrics, ...]
    winner: str | None
    """The branch with the lowest cost; `None` if the numbers do not decide it."""
    differences: tuple[MetricDifference, ...]
    reason: str
    """Why the winner won, or why there is none."""


class SessionTree:
    """A session with a current branch, over `Session`."""

    def __init__(self, session: Session | None = None) -> None:
        """Use `session`; by default a new one in memory."""
        self.session = use_short_ids(catalog.memory() if session is None else session)

    @classmethod
    def create(
        cls,
        cwd: str | os.PathLike[str] = ".",
        session_dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> SessionTree:
        """Create a session for the folder `cwd`, in the default place or in the folder `session_dir`."""
        return cls(catalog.create(name, cwd=cwd, dir=session_dir))

    @classmethod
    def open(cls, session: str | os.PathLike[str]) -> SessionTree:
        """Open a session by its file, id or name."""
        return cls(catalog.open(session))

    def __repr__(self) -> str:
        return f"SessionTree({self.session!r})"

    def get_session_id(self) -> str:
        return self.session.id

    # Appending

    def append_message(self, role: Role, content: str, metadata: Mapping[str, Any] | None = None) -> EntryId:
        """Append a message to the current branch, and return its id.

        Of `metadata`, the `model`, `provider`, `cost` and `tokens` of an assistant message count in comparisons.
        All of it is kept in `entry.extra`.
        """
        given = dict(metadata or {})
        body = self._build_result(content, given) if role == "tool" else _build_message(role, content, given)
        return self.session.append(body, extra={"metadata": given} if given else None).id

    def _build_result(self, content: str, metadata: JsonObject) -> Message | CustomMessage:
        """Return a result of a tool. Dash's has no call: it answers the named one, or the last one without a result.

        Without such a call, it is a custom message, which the model sees as a user message.
        """
        messages = [entry.body.message for entry in self.session.head.path() if isinstance(entry.body, Message)]
        answered = {get_answered_call(message) for message in messages}
        calls = {call.id: call.name for message in messages for call in get_tool_calls(message)}
        named = metadata.get("tool_call_id", metadata.get("toolCallId"))
        waiting = [id for id in calls if id not in answered and (named is None or id == named)]
        if waiting:
            return tool_result(waiting[-1], calls[waiting[-1]], content)
        return CustomMessage(custom_type=TOOL_MESSAGE, content=content)

    def append_agent_action(self, action: str, agent_id: str, data: Any = None) -> EntryId:
        """Append what an agent did: `spawn`, `complete`, `fork` or `branch`."""
        return self.session.append(AgentAction(action=action, agent=agent_id, data=data)).id

    def append_label(self, entry_id: EntryId, label: str | None) -> EntryId:
        """Set the label of an entry; `None` removes it."""
        return self.session.label(self.session.tree[entry_id], label).id

    # Branches

    def create_branch(self, name: str, description: str | None = None) -> EntryId:
        """Create a branch here and switch to it. Return the id of its branch point."""
        return self._create_branch(name, description, "HEAD")

    def create_branch_at(self, entry_id: EntryId, name: str, description: str | None = None) -> EntryId:
        """Create a branch at an entry and switch to it. Return the id of its branch point."""
        return self._create_branch(name, description, self.session.tree[entry_id])

    def _create_branch(self, name: str, description: str | None, at: Entry | Literal["HEAD"]) -> EntryId:
        leaf = self.session.create_branch(name, at=at, description=description).leaf
        assert leaf is not None
        return leaf

    def switch_branch(self, name: str) -> None:
        self.session.switch(self.session.branch(name))

    def list_branches(self) -> list[BranchInfo]:
        return self.session.branches

    def compare_branches(self, names: Sequence[str]) -> BranchComparison:
        """Compare what branches cost and did since they split. The one with the lowest cost wins."""
        return _translate_comparison(compare(self.session, [self.session.branch(name) for name in names]))

    def fork_session(self, entry_id: EntryId, name: str | None = None) -> ForkResult:
        """Create a session with the path to an entry. This one stays as it is."""
        with self.session.fork(self.session.tree[entry_id], name=name) as forked:
            return ForkResult(
                new_session_id=forked.id,
                new_session_file=get_location(forked),
                forked_from_entry_id=forked.forked_from,
            )

    # Reading

    def get_branch(self) -> list[SessionEntry]:
        """Return the path from the root to the leaf of the current branch."""
        return list_path(self.session.tree, self.session.head.leaf)

    def get_entry(self, id: EntryId) -> SessionEntry | None:
        return find_entry(self.session.tree, id)

    def get_children(self, parent_id: EntryId | None) -> list[SessionEntry]:
        """Return the entries directly below an entry, oldest first; below `None` are the roots."""
        return list_children(self.session.tree, parent_id)

    def get_tree(self) -> list[SessionTreeNode]:
        """Return the roots of the tree, each with its nested children, labels and depths."""
        return build_nodes(self.session.tree)

    def get_label(self, id: EntryId) -> str | None:
        return self.session.tree.label(id)


class SwarmOrchestrator:
    """Swarms by their ids. Each swarm is a `Swarm`, which has further operations."""

    def __init__(
        self,
        session: Session | SessionTree | None = None,
        *,
        model: Model | str | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        hooks: Hooks | None = None,
    ) -> None:
        """Create swarms in `session`; by default each in a new session. All agents have the model, tools and hooks."""
        self._session = session.session if isinstance(session, SessionTree) else session
        self._options: dict[str, Any] = {"model": model, "tools": tools, "hooks": hooks}
        self._swarms: dict[str, Swarm] = {}

    async def create(
        self,
        *,
        name: str,
        task: str,
        initial_agents: int = 2,
        max_agents: int | None = None,
        strategy: str | Strategy = "parallel",
        enable_branching: bool = True,
        enable_event_streaming: bool = True,
        budget: Budget | None = None,
    ) -> Swarm:
        """Create a swarm. `await swarm.run()` runs its agents."""
        session = catalog.create(name) if self._session is None else self._session
        swarm = await Swarm.create(
            session,
            name,
            task,
            agents=initial_agents,
            max_agents=max_agents,
            strategy=strategy,
            enable_branching=enable_branching,
            enable_event_streaming=enable_event_streaming,
            budget=budget,
            **self._options,
        )
        self._swarms[swarm.id] = swarm
        return swarm

    def get_swarm(self, swarm_id: str) -> Swarm:
        """Return a swarm that this orchestrator created. Raises `NotFound`."""
        if swarm_id not in self._swarms:
            raise NotFound("swarm", swarm_id, f"swarms: {', '.join(self._swarms) or 'none'}")
        return self._swarms[swarm_id]

    async def create_branch(self, swarm_id: str, name: str, description: str | None = None) -> EntryId:
        """Create a branch for an agent, and return the id of its branch point."""
        return await self.get_swarm(swarm_id).create_branch(name, description)

    async def switch_branch(self, swarm_id: str, name: str) -> None:
        """Make new agents start on another branch."""
        await self.get_swarm(swarm_id).switch_branch(name)

    def list_branches(self, swarm_id: str) -> list[BranchInfo]:
        return self.get_swarm(swarm_id).session.branches

    def get_tree(self, swarm_id: str) -> list[SessionTreeNode]:
        return build_nodes(self.get_swarm(swarm_id).session.tree)

    def compare_branches(self, swarm_id: str, names: Sequence[str]) -> BranchComparison:
        """Compare what branches cost and did since they split. The one with the lowest cost wins."""
        return _translate_comparison(self.get_swarm(swarm_id).compare_branches(names))


def _build_message(role: Literal["user", "assistant", "system"], content: str, metadata: JsonObject) -> Message:
    match role:
        case "user":
            return user(content)
        case "system":
            return system(content)
        case "assistant":
            usage = {"totalTokens": metadata.get("tokens", 0), "cost": metadata.get("cost", 0)}
            return assistant(
                content,
                model=metadata.get("model"),
                provider=metadata.get("provider"),
                usage=usage if metadata else None,
            )
        case _:  # pyright: ignore[reportUnnecessaryComparison] - callers may not check types
            raise InvalidOperation(f"a role is user, assistant, system or tool, not {role!r}")


def _translate_comparison(comparison: Comparison) -> BranchComparison:
    return BranchComparison(
        branches=tuple(
            BranchMetrics(
                branch_id=stats.name,
                name=stats.name,
                entry_count=stats.entries,
                message_count=stats.messages,
                total_cost=stats.cost,
                total_tokens=stats.tokens,
                duration_ms=round(stats.seconds * 1000),
                last_activity=stats.last_activity,
            )
            for stats in comparison.branches
        ),
        winner=comparison.winner,
        differences=tuple(
            MetricDifference(
                metric=found.metric, branch_a=found.a, branch_b=found.b, diff=found.diff, percent_diff=found.percent
            )
            for found in comparison.differences
        ),
        reason=comparison.reason,
    )
