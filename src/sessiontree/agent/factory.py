"""Set up agents: load their options, create them, and run one on its own branch.

Front ends load the options of the user here. Fan-outs, experiments and swarms run agents with `open_branch_agent`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct, structs

from sessiontree.agent.agent import Agent
from sessiontree.agent.loop import Outcome
from sessiontree.agent.mcp_client.server_pool import McpPool
from sessiontree.agent.mcp_client.server_specs import list_configured_servers
from sessiontree.agent.permissions import Asker, Permissions
from sessiontree.agent.sandbox import Confinement
from sessiontree.agent.system_prompt import SystemPart
from sessiontree.agent.tool import Tool
from sessiontree.agent.tools import builtin_tools
from sessiontree.config import Config, PermissionMode
from sessiontree.core.entries import Body
from sessiontree.files.git_command import SnapshotError
from sessiontree.files.private_folder import create_branch_folder, find_private_folder, open_private_folder
from sessiontree.home import get_home, is_below
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Notice
from sessiontree.model.base import Model
from sessiontree.session.session import Branch

FolderChoice: TypeAlias = Literal["shared", "private"]


class AgentOptions(Struct, frozen=True, kw_only=True):
    """What an agent needs besides its branch, its model and its hooks."""

    tools: Sequence[Tool] = ()
    system: str | Sequence[SystemPart] | None = None
    """The system prompt; by default the one of the front end, or none."""
    settings: Config = Config()
    thinking: str | None = None
    """By default the thinking level of the branch."""
    cwd: str | None = None
    """The folder that tools work in; by default the folder of the hooks, or the current folder."""
    permissions: Permissions | None = None
    """Decide about tool calls; `None` allows all."""
    snapshots: bool = False
    """Whether the files are saved before and after every tool call that may change them."""
    mcp: McpPool | None = None
    """MCP servers whose tools the agent gets. The caller closes the pool."""
    folder: FolderChoice | None = None
    """Where the agents of fan-outs, experiments and swarms work: in the folder of all, or each in its own. By default
    each has its own if it may change files and snapshots are on."""


class BranchTask(Struct, frozen=True, kw_only=True):
    """The task of one agent on its own branch."""

    name: str | None = None
    """The name of the branch or of the agent; by default numbered."""
    prompt: str | None = None
    """`None` lets the model answer the last message of the branch."""
    model: str | Model | None = None
    """The model, or its name as `provider:model`; by default the model that all share."""


def load_agent_options(
    settings: Config,
    *,
    tools: Iterable[Tool] | None = None,
    mode: PermissionMode | None = None,
    allow: Iterable[str] = (),
    asker: Asker | None = None,
    cwd: str | None = None,
) -> AgentOptions:
    """Return options with the built-in tools, or `tools`, and with the user's permission rules. Raises `ConfigError`.

    `mode` and `allow` are added to the rules of the configuration. Without an `asker`, calls that need an answer are
    denied.
    """
    return AgentOptions(
        tools=builtin_tools() if tools is None else tuple(tools),
        settings=settings,
        cwd=cwd,
        permissions=Permissions.load_user(settings, get_home(), mode=mode, allow=allow, asker=asker),
        snapshots=settings.files.snapshots,
        mcp=McpPool(list_configured_servers(settings), settings, cwd),
    )


class AgentFolder(NamedTuple):
    """The folder that an agent works in, and the sandbox that limits it."""

    cwd: str | None
    confinement: Confinement | None


def open_agent_folder(branch: Branch, cwd: str | None, confinement: Confinement | None) -> AgentFolder:
    """Return where the agent of a branch works: in the private folder of the branch if it has one, else in `cwd`.

    Raises `SnapshotError` if the private folder cannot be used. The shared folder cannot replace it, because the
    user wants other files to be safe from this branch.
    """
    private = find_private_folder(branch.session.id, branch.name)
    if private is None:
        return AgentFolder(cwd, confinement)
    if confinement is not None:
        if confinement.user is not None:
            raise SnapshotError(f"the user {confinement.user}, who runs commands, cannot read the private folder")
        if confinement.is_limited and not is_below(os.path.realpath(private.source), confinement.folder):
            raise SnapshotError(f"the private folder of {branch.name!r} is a copy of another project")
        confinement = structs.replace(confinement, folder=os.path.realpath(private.path))
    return AgentFolder(open_private_folder(private), confinement)


def create_agent(branch: Branch, model: Model, hooks: Hooks, options: AgentOptions) -> Agent:
    """Create an agent. It works in the private folder of its branch, if the branch has one. Raises `SnapshotError`."""
    cwd, hooks.context.confinement = open_agent_folder(branch, options.cwd, hooks.context.confinement)
    return build_agent(branch, model, hooks, structs.replace(options, cwd=cwd))


def build_agent(branch: Branch, model: Model, hooks: Hooks, options: AgentOptions) -> Agent:
    """Create an agent that works in `options.cwd`, for callers that know the folder of the branch."""
    return Agent(
        branch,
        model,
        options.tools,
        hooks,
        system=options.system,
        settings=options.settings,
        thinking=options.thinking,
        cwd=options.cwd,
        permissions=options.permissions,
        snapshots=options.snapshots,
        tool_provider=options.mcp,
    )


def needs_private_folder(options: AgentOptions) -> bool:
    """Return whether an agent that runs at the same time as others gets a private folder."""
    if options.folder is not None:
        return options.folder == "private"
    if not (options.snapshots and options.settings.files.private_folders):
        return False
    may_write = options.permissions is None or options.permissions.may_allow_changes
    return may_write and any(tool.does != "reads" for tool in options.tools)


def _prepare_folder(branch: Branch, hooks: Hooks, options: AgentOptions) -> None:
    if not needs_private_folder(options) or find_private_folder(branch.session.id, branch.name) is not None:
        return
    confinement = hooks.context.confinement
    if confinement is not None and confinement.user is not None and options.folder is None:
        return  # that user cannot read the home folder, where private folders are
    try:
        create_branch_folder(branch, options.cwd or hooks.context.cwd or os.getcwd(), options.settings.files)
    except SnapshotError as error:
        if options.folder == "private":
            raise
        text = f"{branch.name} works in the shared folder, where agents may overwrite each other's files: {error}"
        hooks.notify_listeners(Notice(level="warning", text=text))


@asynccontextmanager
async def open_branch_agent(
    branch: Branch, model: Model, hooks: Hooks | None, options: AgentOptions
) -> AsyncGenerator[Agent]:
    """Create an agent with its own hooks, which call the handlers of `hooks`. Close it at the end."""
    shared = Hooks() if hooks is None else hooks
    own = shared.derive(replace(shared.context, session=branch.session, branch=branch, agent=None))
    await asyncio.to_thread(_prepare_folder, branch, own, options)
    agent = create_agent(branch, model, own, options)
    try:
        yield agent
    finally:
        await agent.close()


async def run_task(agent: Agent, prompt: str | None, *, extra_entries: Sequence[Body] = ()) -> Outcome:
    """Send a prompt, or let the model answer the last message if there is none. Return how the run ended."""
    if prompt is None:
        return await agent.continue_()
    return await agent.run(prompt, extra_entries=extra_entries)
