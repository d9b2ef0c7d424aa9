"""The types of the public names. `tests/test_public_api.py` holds this list equal to the one in `__init__.py`."""

from sessiontree._version import __version__ as __version__
from sessiontree.agent.agent import Agent as Agent
from sessiontree.agent.fan_out import Attempt as Attempt
from sessiontree.agent.fan_out import Variant as Variant
from sessiontree.agent.fan_out import fan_out as fan_out
from sessiontree.agent.loop import Outcome as Outcome
from sessiontree.agent.loop import RunStopped as RunStopped
from sessiontree.agent.mcp_client.server_pool import McpPool as McpPool
from sessiontree.agent.mcp_client.server_specs import McpServer as McpServer
from sessiontree.agent.mcp_client.server_specs import McpServerError as McpServerError
from sessiontree.agent.permissions import PermissionAnswer as PermissionAnswer
from sessiontree.agent.permissions import PermissionQuestion as PermissionQuestion
from sessiontree.agent.permissions import Permissions as Permissions
from sessiontree.agent.run_writer import UnsavedMessages as UnsavedMessages
from sessiontree.agent.sandbox import clean_environment as clean_environment
from sessiontree.agent.structured_output import InvalidOutput as InvalidOutput
from sessiontree.agent.system_prompt import build_coding_prompt as build_coding_prompt
from sessiontree.agent.tool import Tool as Tool
from sessiontree.agent.tool import ToolContext as ToolContext
from sessiontree.agent.tool import ToolError as ToolError
from sessiontree.agent.tool import ToolOutput as ToolOutput
from sessiontree.agent.tool import tool as tool
from sessiontree.agent.tools import builtin_tools as builtin_tools
from sessiontree.agent.tools.bash_tool import CommandError as CommandError
from sessiontree.agent.tracing import trace as trace
from sessiontree.branch_comparison import METRICS as METRICS
from sessiontree.branch_comparison import BranchStats as BranchStats
from sessiontree.branch_comparison import Comparison as Comparison
from sessiontree.branch_comparison import Diff as Diff
from sessiontree.branch_comparison import Difference as Difference
from sessiontree.config import CompactionSettings as CompactionSettings
from sessiontree.config import Config as Config
from sessiontree.config import ConfigError as ConfigError
from sessiontree.config import McpServerSettings as McpServerSettings
from sessiontree.config import ModelServerSettings as ModelServerSettings
from sessiontree.config import ModelSettings as ModelSettings
from sessiontree.config import load_config as load_config
from sessiontree.convert.anthropic_messages import from_anthropic as from_anthropic
from sessiontree.convert.gemini import from_gemini as from_gemini
from sessiontree.convert.openai_chat import from_openai as from_openai
from sessiontree.convert.openai_responses import from_openai_responses as from_openai_responses
from sessiontree.convert.pydantic_ai import from_pydantic_ai as from_pydantic_ai
from sessiontree.core.compaction import count_context_tokens as count_context_tokens
from sessiontree.core.compaction import split_window as split_window
from sessiontree.core.context import Context as Context
from sessiontree.core.context import State as State
from sessiontree.core.context import build_context as build_context
from sessiontree.core.context_explanation import ExplainedEntry as ExplainedEntry
from sessiontree.core.context_explanation import Explanation as Explanation
from sessiontree.core.context_explanation import explain as explain
from sessiontree.core.conversion_result import ConvertedBodies as ConvertedBodies
from sessiontree.core.conversion_result import ConvertedMessages as ConvertedMessages
from sessiontree.core.conversion_result import Omission as Omission
from sessiontree.core.entries import AgentAction as AgentAction
from sessiontree.core.entries import Body as Body
from sessiontree.core.entries import BranchPoint as BranchPoint
from sessiontree.core.entries import BranchSummary as BranchSummary
from sessiontree.core.entries import Compaction as Compaction
from sessiontree.core.entries import ContextEdit as ContextEdit
from sessiontree.core.entries import Custom as Custom
from sessiontree.core.entries import CustomMessage as CustomMessage
from sessiontree.core.entries import Entry as Entry
from sessiontree.core.entries import EntryId as EntryId
from sessiontree.core.entries import Header as Header
from sessiontree.core.entries import Label as Label
from sessiontree.core.entries import Message as Message
from sessiontree.core.entries import ModeChange as ModeChange
from sessiontree.core.entries import ModelChange as ModelChange
from sessiontree.core.entries import Opaque as Opaque
from sessiontree.core.entries import Original as Original
from sessiontree.core.entries import Problem as Problem
from sessiontree.core.entries import ResetBoundary as ResetBoundary
from sessiontree.core.entries import RuleInjection as RuleInjection
from sessiontree.core.entries import SessionInfo as SessionInfo
from sessiontree.core.entries import ThinkingLevelChange as ThinkingLevelChange
from sessiontree.core.entries import Usage as Usage
from sessiontree.core.entry_text import format_entry_row as format_entry_row
from sessiontree.core.message_views import AssistantMessage as AssistantMessage
from sessiontree.core.message_views import Block as Block
from sessiontree.core.message_views import Image as Image
from sessiontree.core.message_views import MessageView as MessageView
from sessiontree.core.message_views import OtherBlock as OtherBlock
from sessiontree.core.message_views import OtherMessage as OtherMessage
from sessiontree.core.message_views import SystemMessage as SystemMessage
from sessiontree.core.message_views import Text as Text
from sessiontree.core.message_views import Thinking as Thinking
from sessiontree.core.message_views import TokenUsage as TokenUsage
from sessiontree.core.message_views import ToolCall as ToolCall
from sessiontree.core.message_views import ToolResult as ToolResult
from sessiontree.core.message_views import UserMessage as UserMessage
from sessiontree.core.messages import assistant as assistant
from sessiontree.core.messages import system as system
from sessiontree.core.messages import tool_call as tool_call
from sessiontree.core.messages import tool_result as tool_result
from sessiontree.core.messages import user as user
from sessiontree.core.operation_plans import NavigatePlan as NavigatePlan
from sessiontree.core.summary_prompts import format_message as format_message
from sessiontree.core.tree import Tree as Tree
from sessiontree.errors import Ambiguous as Ambiguous
from sessiontree.errors import BranchMoved as BranchMoved
from sessiontree.errors import Conflict as Conflict
from sessiontree.errors import FormatError as FormatError
from sessiontree.errors import InvalidOperation as InvalidOperation
from sessiontree.errors import LockTimeout as LockTimeout
from sessiontree.errors import NotFound as NotFound
from sessiontree.errors import OutcomeUnknown as OutcomeUnknown
from sessiontree.errors import ReadOnly as ReadOnly
from sessiontree.errors import SessionTreeError as SessionTreeError
from sessiontree.errors import StoreError as StoreError
from sessiontree.export import ExportResult as ExportResult
from sessiontree.export import stream_export as stream_export
from sessiontree.export.redact import Redactor as Redactor
from sessiontree.extensions.api import ExtensionApi as ExtensionApi
from sessiontree.extensions.loader import ExtensionLoader as ExtensionLoader
from sessiontree.extensions.project_trust import ExtensionError as ExtensionError
from sessiontree.format.line_repair import Repair as Repair
from sessiontree.hooks import events as events
from sessiontree.hooks.bus import HookContext as HookContext
from sessiontree.hooks.bus import Hooks as Hooks
from sessiontree.library.catalog import create as create
from sessiontree.library.catalog import memory as memory
from sessiontree.library.catalog import open as open
from sessiontree.library.catalog import recent as recent
from sessiontree.library.catalog import search as search
from sessiontree.library.catalog import sessions as sessions
from sessiontree.library.index.session_search import Hit as Hit
from sessiontree.library.index.session_summary import SessionSummary as SessionSummary
from sessiontree.library.repair import RepairReport as RepairReport
from sessiontree.library.repair import repair as repair
from sessiontree.model.base import Model as Model
from sessiontree.model.base import ModelError as ModelError
from sessiontree.model.base import ModelInfo as ModelInfo
from sessiontree.model.base import Request as Request
from sessiontree.model.base import TextDelta as TextDelta
from sessiontree.model.base import complete as complete
from sessiontree.model.retry import RetryAttempt as RetryAttempt
from sessiontree.model.retry import RetryingModel as RetryingModel
from sessiontree.model.scripted import ScriptedModel as ScriptedModel
from sessiontree.model.scripted import ScriptedUsage as ScriptedUsage
from sessiontree.model.selection import NoModel as NoModel
from sessiontree.model.selection import find_model as find_model
from sessiontree.ops.branch_functions import compact as compact
from sessiontree.ops.branch_functions import merge as merge
from sessiontree.ops.branch_functions import navigate as navigate
from sessiontree.ops.branch_functions import promote as promote
from sessiontree.ops.branch_functions import uncompact as uncompact
from sessiontree.ops.compact import CompactOutcome as CompactOutcome
from sessiontree.ops.fork import ForkOutcome as ForkOutcome
from sessiontree.ops.fork import fork_session as fork_session
from sessiontree.ops.merge import CopyOutcome as CopyOutcome
from sessiontree.ops.merge import MergeOutcome as MergeOutcome
from sessiontree.ops.navigate import NavigateOutcome as NavigateOutcome
from sessiontree.ops.navigate import find_previous_prompt as find_previous_prompt
from sessiontree.ops.run_sync import run_sync as run_sync
from sessiontree.ops.summarize import SummaryFailed as SummaryFailed
from sessiontree.server.app import create_app as create_app
from sessiontree.server.auth import SCOPES as SCOPES
from sessiontree.server.auth import TokenStore as TokenStore
from sessiontree.server.auth import issue_token as issue_token
from sessiontree.server.http_server import HttpServer as HttpServer
from sessiontree.server.http_server import bind_socket as bind_socket
from sessiontree.server.request_checks import ServerLimits as ServerLimits
from sessiontree.server.request_checks import build_allowed_hosts as build_allowed_hosts
from sessiontree.session import Branch as Branch
from sessiontree.session import BranchInfo as BranchInfo
from sessiontree.session import Item as Item
from sessiontree.session import Place as Place
from sessiontree.session import Session as Session
from sessiontree.session import UnnamedLeaf as UnnamedLeaf
from sessiontree.session import compare as compare
from sessiontree.session import diff as diff
from sessiontree.session.async_session import AsyncSession as AsyncSession
from sessiontree.slash_commands.controller import SessionController as SessionController
from sessiontree.store.postgres.store import PostgresStore as PostgresStore
from sessiontree.swarm.budget import Budget as Budget
from sessiontree.swarm.durable.database import JobRequest as JobRequest
from sessiontree.swarm.durable.executor import DurableExecutor as DurableExecutor
from sessiontree.swarm.durable.worker import DurableWorker as DurableWorker
from sessiontree.swarm.durable.worker import WrapModel as WrapModel
from sessiontree.swarm.events import SwarmEvent as SwarmEvent
from sessiontree.swarm.experiment.experiment import Arm as Arm
from sessiontree.swarm.experiment.experiment import Experiment as Experiment
from sessiontree.swarm.experiment.experiment import experiment as experiment
from sessiontree.swarm.experiment.experiment import list_experiments as list_experiments
from sessiontree.swarm.experiment.scoring import Candidate as Candidate
from sessiontree.swarm.experiment.scoring import exact as exact
from sessiontree.swarm.experiment.scoring import judge_with as judge_with
from sessiontree.swarm.experiment.scoring import matches as matches
from sessiontree.swarm.experiment.scoring import score_with as score_with
from sessiontree.swarm.journal import list_swarms as list_swarms
from sessiontree.swarm.records import AgentSpec as AgentSpec
from sessiontree.swarm.scheduler import Scheduler as Scheduler
from sessiontree.swarm.scheduler import SwarmFailed as SwarmFailed
from sessiontree.swarm.swarm import Swarm as Swarm
from sessiontree.tui.screens.tree_screen import TreeChoice as TreeChoice
from sessiontree.tui.screens.tree_screen import TreeScreen as TreeScreen

__all__ = [
    "METRICS",
    "SCOPES",
    "Agent",
    "AgentAction",
    "AgentSpec",
    "Ambiguous",
    "Arm",
    "AssistantMessage",
    "AsyncSession",
    "Attempt",
    "Block",
    "Body",
    "Branch",
    "BranchInfo",
    "BranchMoved",
    "BranchPoint",
    "BranchStats",
    "BranchSummary",
    "Budget",
    "Candidate",
    "CommandError",
    "CompactOutcome",
    "Compaction",
    "CompactionSettings",
    "Comparison",
    "Config",
    "ConfigError",
    "Conflict",
    "Context",
    "ContextEdit",
    "ConvertedBodies",
    "ConvertedMessages",
    "CopyOutcome",
    "Custom",
    "CustomMessage",
    "Diff",
    "Difference",
    "DurableExecutor",
    "DurableWorker",
    "Entry",
    "EntryId",
    "Experiment",
    "ExplainedEntry",
    "Explanation",
    "ExportResult",
    "ExtensionApi",
    "ExtensionError",
    "ExtensionLoader",
    "ForkOutcome",
    "FormatError",
    "Header",
    "Hit",
    "HookContext",
    "Hooks",
    "Image",
    "InvalidOperation",
    "InvalidOutput",
    "Item",
    "JobRequest",
    "Label",
    "LockTimeout",
    "McpPool",
    "McpServer",
    "McpServerError",
    "McpServerSettings",
    "MergeOutcome",
    "Message",
    "MessageView",
    "ModeChange",
    "Model",
    "ModelChange",
    "ModelError",
    "ModelInfo",
    "ModelServerSettings",
    "ModelSettings",
    "NavigateOutcome",
    "NavigatePlan",
    "NoModel",
    "NotFound",
    "Omission",
    "Opaque",
    "Original",
    "OtherBlock",
    "OtherMessage",
    "Outcome",
    "OutcomeUnknown",
    "PermissionAnswer",
    "PermissionQuestion",
    "Permissions",
    "Place",
    "PostgresStore",
    "Problem",
    "ReadOnly",
    "Redactor",
    "Repair",
    "RepairReport",
    "Request",
    "ResetBoundary",
    "RetryAttempt",
    "RetryingModel",
    "RuleInjection",
    "RunStopped",
    "Scheduler",
    "ScriptedModel",
    "ScriptedUsage",
    "ServerLimits",
    "Session",
    "SessionController",
    "SessionInfo",
    "SessionSummary",
    "SessionTreeError",
    "State",
    "StoreError",
    "SummaryFailed",
    "Swarm",
    "SwarmEvent",
    "SwarmFailed",
    "SystemMessage",
    "Text",
    "TextDelta",
    "Thinking",
    "ThinkingLevelChange",
    "TokenStore",
    "TokenUsage",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolOutput",
    "ToolResult",
    "Tree",
    "UnnamedLeaf",
    "UnsavedMessages",
    "Usage",
    "UserMessage",
    "Variant",
    "WrapModel",
    "__version__",
    "assistant",
    "build_allowed_hosts",
    "build_coding_prompt",
    "build_context",
    "builtin_tools",
    "clean_environment",
    "compact",
    "compare",
    "complete",
    "count_context_tokens",
    "create",
    "diff",
    "events",
    "exact",
    "experiment",
    "explain",
    "fan_out",
    "find_model",
    "find_previous_prompt",
    "fork_session",
    "format_entry_row",
    "format_message",
    "from_anthropic",
    "from_gemini",
    "from_openai",
    "from_openai_responses",
    "issue_token",
    "judge_with",
    "list_experiments",
    "list_swarms",
    "load_config",
    "matches",
    "memory",
    "merge",
    "navigate",
    "promote",
    "recent",
    "repair",
    "run_sync",
    "score_with",
    "search",
    "sessions",
    "split_window",
    "stream_export",
    "system",
    "tool",
    "tool_call",
    "tool_result",
    "trace",
    "uncompact",
    "user",
]
