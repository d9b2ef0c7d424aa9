"""Conversations of LLM agents as trees, in files or a database.

    import sessiontree as st

    session = st.create(name="auth")
    session.head.append(st.user("How do I optimise this?"))

See `docs/` for guides and reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sessiontree._version import __version__

if TYPE_CHECKING:
    from sessiontree.agent.agent import Agent
    from sessiontree.agent.loop import Outcome
    from sessiontree.agent.permissions import PermissionAnswer, PermissionQuestion, Permissions
    from sessiontree.agent.tool import Tool, ToolContext, ToolError, ToolOutput, tool
    from sessiontree.agent.tools import builtin_tools
    from sessiontree.comparison import METRICS, BranchStats, Comparison, Diff, Difference
    from sessiontree.core.context import Context, ExplainedEntry, Explanation, State, build_context, explain
    from sessiontree.core.entries import (
        AgentAction,
        Body,
        BranchPoint,
        BranchSummary,
        Compaction,
        ContextEdit,
        Custom,
        CustomMessage,
        Entry,
        EntryId,
        Header,
        Label,
        Message,
        ModeChange,
        ModelChange,
        Opaque,
        Problem,
        ResetBoundary,
        RuleInjection,
        SessionInfo,
        ThinkingLevelChange,
        Usage,
    )
    from sessiontree.core.messages import assistant, tool_call, tool_result, user
    from sessiontree.core.plan import NavigatePlan
    from sessiontree.core.tree import Tree
    from sessiontree.errors import (
        Ambiguous,
        BranchMoved,
        Conflict,
        FormatError,
        InvalidOperation,
        LockTimeout,
        NotFound,
        OutcomeUnknown,
        ReadOnly,
        SessionTreeError,
        StoreError,
    )
    from sessiontree.format.line_repair import Repair
    from sessiontree.library.catalog import create, fork, memory, open, recent, search, sessions
    from sessiontree.library.index.session_search import Hit
    from sessiontree.library.index.session_summary import SessionSummary
    from sessiontree.library.repair import RepairReport, repair
    from sessiontree.session import Branch, BranchInfo, Place, Session, compare, diff
    from sessiontree.swarm.budget import Budget
    from sessiontree.swarm.swarm import Swarm

__all__ = [
    "METRICS",
    "Agent",
    "AgentAction",
    "Ambiguous",
    "Body",
    "Branch",
    "BranchInfo",
    "BranchMoved",
    "BranchPoint",
    "BranchStats",
    "BranchSummary",
    "Budget",
    "Compaction",
    "Comparison",
    "Conflict",
    "Context",
    "ContextEdit",
    "Custom",
    "CustomMessage",
    "Diff",
    "Difference",
    "Entry",
    "EntryId",
    "ExplainedEntry",
    "Explanation",
    "FormatError",
    "Header",
    "Hit",
    "InvalidOperation",
    "Label",
    "LockTimeout",
    "Message",
    "ModeChange",
    "ModelChange",
    "NavigatePlan",
    "NotFound",
    "Opaque",
    "Outcome",
    "OutcomeUnknown",
    "PermissionAnswer",
    "PermissionQuestion",
    "Permissions",
    "Place",
    "Problem",
    "ReadOnly",
    "Repair",
    "RepairReport",
    "ResetBoundary",
    "RuleInjection",
    "Session",
    "SessionInfo",
    "SessionSummary",
    "SessionTreeError",
    "State",
    "StoreError",
    "Swarm",
    "ThinkingLevelChange",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "Tree",
    "Usage",
    "__version__",
    "assistant",
    "build_context",
    "builtin_tools",
    "compare",
    "create",
    "diff",
    "explain",
    "fork",
    "memory",
    "open",
    "recent",
    "repair",
    "search",
    "sessions",
    "tool",
    "tool_call",
    "tool_result",
    "user",
]

_MODULES = {
    "sessiontree.agent.agent": ("Agent",),
    "sessiontree.agent.loop": ("Outcome",),
    "sessiontree.agent.permissions": ("PermissionAnswer", "PermissionQuestion", "Permissions"),
    "sessiontree.agent.tool": ("Tool", "ToolContext", "ToolError", "ToolOutput", "tool"),
    "sessiontree.agent.tools": ("builtin_tools",),
    "sessiontree.library.catalog": (
        "create",
        "fork",
        "memory",
        "open",
        "recent",
        "search",
        "sessions",
    ),
    "sessiontree.comparison": (
        "BranchStats",
        "Comparison",
        "Diff",
        "Difference",
        "METRICS",
    ),
    "sessiontree.core.context": (
        "Context",
        "ExplainedEntry",
        "Explanation",
        "State",
        "build_context",
        "explain",
    ),
    "sessiontree.core.entries": (
        "AgentAction",
        "Body",
        "BranchPoint",
        "BranchSummary",
        "Compaction",
        "ContextEdit",
        "Custom",
        "CustomMessage",
        "Entry",
        "EntryId",
        "Header",
        "Label",
        "Message",
        "ModeChange",
        "ModelChange",
        "Opaque",
        "Problem",
        "ResetBoundary",
        "RuleInjection",
        "SessionInfo",
        "ThinkingLevelChange",
        "Usage",
    ),
    "sessiontree.core.messages": (
        "assistant",
        "tool_call",
        "tool_result",
        "user",
    ),
    "sessiontree.core.plan": ("NavigatePlan",),
    "sessiontree.core.tree": ("Tree",),
    "sessiontree.errors": (
        "Ambiguous",
        "BranchMoved",
        "Conflict",
        "FormatError",
        "InvalidOperation",
        "LockTimeout",
        "NotFound",
        "OutcomeUnknown",
        "ReadOnly",
        "SessionTreeError",
        "StoreError",
    ),
    "sessiontree.format.line_repair": ("Repair",),
    "sessiontree.library.index.session_summary": ("SessionSummary",),
    "sessiontree.library.index.session_search": ("Hit",),
    "sessiontree.library.repair": ("RepairReport", "repair"),
    "sessiontree.session": (
        "Branch",
        "BranchInfo",
        "Place",
        "Session",
        "compare",
        "diff",
    ),
    "sessiontree.swarm.budget": ("Budget",),
    "sessiontree.swarm.swarm": ("Swarm",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, which keeps start-up fast."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
