"""Conversations of LLM agents as trees, in files or a database.

    import sessiontree as st

    session = st.create(name="auth")
    session.head.append(st.user("How do I optimise this?"))

See `docs/` for guides and reference. `_MODULES` lists the public names; `__init__.pyi` has their types.
"""

from __future__ import annotations

from typing import Any

from sessiontree._version import __version__

_MODULES = {
    "sessiontree.agent.agent": ("Agent",),
    "sessiontree.agent.fan_out": ("Variant",),
    "sessiontree.agent.loop": (
        "Outcome",
        "RunStopped",
    ),
    "sessiontree.agent.permissions": (
        "PermissionAnswer",
        "PermissionQuestion",
        "Permissions",
    ),
    "sessiontree.agent.structured_output": ("InvalidOutput",),
    "sessiontree.agent.system_prompt": ("build_coding_prompt",),
    "sessiontree.agent.tool": (
        "Tool",
        "ToolContext",
        "ToolError",
        "ToolOutput",
        "tool",
    ),
    "sessiontree.agent.tools": ("builtin_tools",),
    "sessiontree.branch_comparison": (
        "BranchStats",
        "Comparison",
        "Diff",
        "Difference",
        "METRICS",
    ),
    "sessiontree.config": ("Config",),
    "sessiontree.convert.anthropic_messages": ("from_anthropic",),
    "sessiontree.convert.gemini": ("from_gemini",),
    "sessiontree.convert.openai_chat": ("from_openai",),
    "sessiontree.convert.openai_responses": ("from_openai_responses",),
    "sessiontree.convert.pydantic_ai": ("from_pydantic_ai",),
    "sessiontree.core.context": (
        "Context",
        "ExplainedEntry",
        "Explanation",
        "State",
        "build_context",
        "explain",
    ),
    "sessiontree.core.conversion_result": (
        "ConvertedBodies",
        "ConvertedMessages",
        "Omission",
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
    "sessiontree.core.message_views": (
        "AssistantMessage",
        "Block",
        "Image",
        "MessageView",
        "OtherBlock",
        "OtherMessage",
        "SystemMessage",
        "Text",
        "Thinking",
        "TokenUsage",
        "ToolCall",
        "ToolResult",
        "UserMessage",
    ),
    "sessiontree.core.messages": (
        "assistant",
        "system",
        "tool_call",
        "tool_result",
        "user",
    ),
    "sessiontree.core.operation_plans": ("NavigatePlan",),
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
    "sessiontree.export.redact": ("Redactor",),
    "sessiontree.format.line_repair": ("Repair",),
    "sessiontree.hooks": ("events",),
    "sessiontree.hooks.bus": ("Hooks",),
    "sessiontree.library.catalog": (
        "create",
        "memory",
        "open",
        "recent",
        "search",
        "sessions",
    ),
    "sessiontree.library.index.session_search": ("Hit",),
    "sessiontree.library.index.session_summary": ("SessionSummary",),
    "sessiontree.library.repair": (
        "RepairReport",
        "repair",
    ),
    "sessiontree.model.base": (
        "ModelError",
        "Request",
    ),
    "sessiontree.model.scripted": (
        "ScriptedModel",
        "ScriptedUsage",
    ),
    "sessiontree.model.selection": (
        "NoModel",
        "find_model",
    ),
    "sessiontree.ops.branch_functions": (
        "compact",
        "merge",
        "navigate",
    ),
    "sessiontree.ops.run_sync": ("run_sync",),
    "sessiontree.session": (
        "Branch",
        "BranchInfo",
        "Item",
        "Place",
        "Session",
        "compare",
        "diff",
    ),
    "sessiontree.session.async_session": ("AsyncSession",),
    "sessiontree.swarm.budget": ("Budget",),
    "sessiontree.swarm.experiment.experiment": (
        "Arm",
        "experiment",
    ),
    "sessiontree.swarm.records": ("AgentSpec",),
    "sessiontree.swarm.swarm": ("Swarm",),
}
"""The public names by the module that defines them. A name is imported on first use, which keeps start-up fast."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

# `open` is public as `st.open`; a star import must not replace the built-in.
__all__ = [*sorted({*_MODULE_OF} - {"open"}), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
