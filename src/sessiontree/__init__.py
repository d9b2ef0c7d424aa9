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
    "sessiontree.agent.fan_out": (
        "Attempt",
        "Variant",
        "fan_out",
    ),
    "sessiontree.agent.loop": (
        "Outcome",
        "RunStopped",
    ),
    "sessiontree.agent.mcp_client.server_pool": ("McpPool",),
    "sessiontree.agent.mcp_client.server_specs": (
        "McpServer",
        "McpServerError",
    ),
    "sessiontree.agent.permissions": (
        "PermissionAnswer",
        "PermissionQuestion",
        "Permissions",
    ),
    "sessiontree.agent.run_writer": ("UnsavedMessages",),
    "sessiontree.agent.structured_output": ("InvalidOutput",),
    "sessiontree.agent.system_prompt": ("build_coding_prompt",),
    "sessiontree.agent.tool": (
        "Tool",
        "ToolContext",
        "ToolError",
        "ToolOutput",
        "tool",
    ),
    "sessiontree.agent.sandbox": ("clean_environment",),
    "sessiontree.agent.tools": ("builtin_tools",),
    "sessiontree.agent.tools.bash_tool": ("CommandError",),
    "sessiontree.agent.tracing": ("trace",),
    "sessiontree.branch_comparison": (
        "BranchStats",
        "Comparison",
        "Diff",
        "Difference",
        "METRICS",
    ),
    "sessiontree.config": (
        "CompactionSettings",
        "Config",
        "ConfigError",
        "McpServerSettings",
        "ModelServerSettings",
        "ModelSettings",
        "load_config",
    ),
    "sessiontree.convert.anthropic_messages": ("from_anthropic",),
    "sessiontree.convert.gemini": ("from_gemini",),
    "sessiontree.convert.openai_chat": ("from_openai",),
    "sessiontree.convert.openai_responses": ("from_openai_responses",),
    "sessiontree.convert.pydantic_ai": ("from_pydantic_ai",),
    "sessiontree.core.compaction": (
        "count_context_tokens",
        "split_window",
    ),
    "sessiontree.core.context": (
        "Context",
        "State",
        "build_context",
    ),
    "sessiontree.core.context_explanation": (
        "ExplainedEntry",
        "Explanation",
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
        "Original",
        "Problem",
        "ResetBoundary",
        "RuleInjection",
        "SessionInfo",
        "ThinkingLevelChange",
        "Usage",
    ),
    "sessiontree.core.entry_text": ("format_entry_row",),
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
    "sessiontree.core.summary_prompts": ("format_message",),
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
    "sessiontree.export": (
        "ExportResult",
        "stream_export",
    ),
    "sessiontree.export.redact": ("Redactor",),
    "sessiontree.extensions.api": ("ExtensionApi",),
    "sessiontree.extensions.loader": ("ExtensionLoader",),
    "sessiontree.extensions.project_trust": ("ExtensionError",),
    "sessiontree.format.line_repair": ("Repair",),
    "sessiontree.hooks": ("events",),
    "sessiontree.hooks.bus": (
        "HookContext",
        "Hooks",
    ),
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
        "Model",
        "ModelError",
        "ModelInfo",
        "Request",
        "TextDelta",
        "complete",
    ),
    "sessiontree.model.retry": (
        "RetryAttempt",
        "RetryingModel",
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
        "promote",
        "uncompact",
    ),
    "sessiontree.ops.compact": ("CompactOutcome",),
    "sessiontree.ops.fork": (
        "ForkOutcome",
        "fork_session",
    ),
    "sessiontree.ops.merge": (
        "CopyOutcome",
        "MergeOutcome",
    ),
    "sessiontree.ops.navigate": (
        "NavigateOutcome",
        "find_previous_prompt",
    ),
    "sessiontree.ops.run_sync": ("run_sync",),
    "sessiontree.ops.summarize": ("SummaryFailed",),
    "sessiontree.server.app": ("create_app",),
    "sessiontree.server.auth": (
        "SCOPES",
        "TokenStore",
        "issue_token",
    ),
    "sessiontree.server.http_server": (
        "HttpServer",
        "bind_socket",
    ),
    "sessiontree.server.request_checks": (
        "ServerLimits",
        "build_allowed_hosts",
    ),
    "sessiontree.session": (
        "Branch",
        "BranchInfo",
        "Item",
        "Place",
        "Session",
        "UnnamedLeaf",
        "compare",
        "diff",
    ),
    "sessiontree.session.async_session": ("AsyncSession",),
    "sessiontree.slash_commands.controller": ("SessionController",),
    "sessiontree.store.postgres.store": ("PostgresStore",),
    "sessiontree.swarm.budget": ("Budget",),
    "sessiontree.swarm.durable.database": ("JobRequest",),
    "sessiontree.swarm.durable.executor": ("DurableExecutor",),
    "sessiontree.swarm.durable.worker": (
        "DurableWorker",
        "WrapModel",
    ),
    "sessiontree.swarm.events": ("SwarmEvent",),
    "sessiontree.swarm.experiment.experiment": (
        "Arm",
        "Experiment",
        "experiment",
        "list_experiments",
    ),
    "sessiontree.swarm.experiment.scoring": (
        "Candidate",
        "exact",
        "judge_with",
        "matches",
        "score_with",
    ),
    "sessiontree.swarm.journal": ("list_swarms",),
    "sessiontree.swarm.records": ("AgentSpec",),
    "sessiontree.swarm.scheduler": (
        "Scheduler",
        "SwarmFailed",
    ),
    "sessiontree.swarm.swarm": ("Swarm",),
    "sessiontree.tui.screens.tree_screen": (
        "TreeChoice",
        "TreeScreen",
    ),
}
"""The public names by the module that defines them. A name is imported on first use, which keeps start-up fast."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

_EXTRAS = {
    "sessiontree.convert.pydantic_ai": "agent",
    "sessiontree.server.app": "web",
    "sessiontree.server.http_server": "web",
    "sessiontree.tui.screens.tree_screen": "tui",
}
"""The modules that can be imported only if an extra is installed."""

# A star import must not replace the built-in `open`, nor fail because an extra is missing.
_NOT_STARRED = {"open", *(name for name, module in _MODULE_OF.items() if module in _EXTRAS)}
__all__ = [*sorted({*_MODULE_OF} - _NOT_STARRED), "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(_MODULE_OF[name])
    except ImportError as error:
        extra = _EXTRAS.get(_MODULE_OF[name])
        if extra is None or (error.name or "").startswith(__name__):
            raise
        raise ImportError(f"{name} needs `pip install 'sessiontree[{extra}]'` ({error})", name=error.name) from error
    value = getattr(module, name, None) or import_module(f"{module.__name__}.{name}")  # `events` is a module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
