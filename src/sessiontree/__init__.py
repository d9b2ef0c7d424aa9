"""Conversations of LLM agents, kept as trees.

    import sessiontree as st

    session = st.create(name="auth")
    session.head.append(st.user("How do I optimise this?"))

See `docs/` for a page on each noun.
"""

from sessiontree._version import __version__
from sessiontree.catalog import create, fork, memory, open, recent
from sessiontree.compare import METRICS, BranchStats, Comparison, Diff, Difference
from sessiontree.core.context import Context, Explained, Explanation, State, build_context, explain
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
    NotFound,
    ReadOnly,
    SessionTreeError,
    StoreError,
)
from sessiontree.session import Branch, BranchInfo, Place, Session, compare, diff

__all__ = [
    "METRICS",
    "AgentAction",
    "Ambiguous",
    "Body",
    "Branch",
    "BranchInfo",
    "BranchMoved",
    "BranchPoint",
    "BranchStats",
    "BranchSummary",
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
    "Explained",
    "Explanation",
    "FormatError",
    "Header",
    "InvalidOperation",
    "Label",
    "Message",
    "ModeChange",
    "ModelChange",
    "NavigatePlan",
    "NotFound",
    "Opaque",
    "Place",
    "Problem",
    "ReadOnly",
    "ResetBoundary",
    "RuleInjection",
    "Session",
    "SessionInfo",
    "SessionTreeError",
    "State",
    "StoreError",
    "ThinkingLevelChange",
    "Tree",
    "Usage",
    "__version__",
    "assistant",
    "build_context",
    "compare",
    "create",
    "diff",
    "explain",
    "fork",
    "memory",
    "open",
    "recent",
    "tool_call",
    "tool_result",
    "user",
]
