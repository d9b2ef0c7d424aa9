"""Swarm files and the start-up of swarms.

A swarm file describes a swarm in TOML; an invalid one raises `ConfigError`. `SwarmSetup` runs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
from msgspec import Struct

from sessiontree.cli.agent_setup import AgentSetup, print_denials, select_tools
from sessiontree.cli.app import MODEL_FAILED, run_async, warn_set_aside
from sessiontree.cli.output import escape_line, warn
from sessiontree.cli.swarm_output import StartedSwarm, print_status, wait_with_progress
from sessiontree.config import ConfigError, ThinkingLevel, convert_setting, parse_toml
from sessiontree.errors import InvalidOperation
from sessiontree.regular_file import read_regular_file
from sessiontree.swarm.budget import Budget
from sessiontree.swarm.status import AgentSpec

if TYPE_CHECKING:
    from sessiontree.commands.controller import SessionController
    from sessiontree.config import PermissionMode
    from sessiontree.extensions.source_files import ExtensionFiles
    from sessiontree.model.base import Model
    from sessiontree.session import Branch, Session
    from sessiontree.swarm.durable.executor import DurableExecutor
    from sessiontree.swarm.records import CreatedRecord
    from sessiontree.swarm.status import SwarmStatus


class BudgetTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cost: float | None = None
    tokens: int | None = None
    seconds: float | None = None

    @property
    def budget(self) -> Budget:
        return Budget(cost=self.cost, tokens=self.tokens, seconds=self.seconds)


class AgentTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `[[agent]]` table."""

    name: str | None = None
    task: str | None = None
    model: str | None = None
    budget: BudgetTable | None = None

    @property
    def spec(self) -> AgentSpec:
        budget = None if self.budget is None else self.budget.budget
        return AgentSpec(name=self.name, task=self.task, model=self.model, budget=budget)


class SwarmFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    task: str
    strategy: str = "parallel"
    agents: int | None = None
    """Number of agents, if there are no `[[agent]]` tables."""
    agent: list[AgentTable] = []
    max_agents: int | None = None
    parts: list[str] | None = None
    """Inputs of the mappers, for `map-reduce`."""
    model: str | None = None
    thinking: ThinkingLevel | None = None
    system: str | None = None
    tools: list[str] | None = None
    """Names of built-in tools. Default: all."""
    extensions: list[str] = []
    """Paths relative to the folder of the swarm file."""
    budget: BudgetTable = BudgetTable()
    agent_budget: BudgetTable = BudgetTable()
    session: str | None = None
    """Session to run in. Default: a new one."""
    at: str = "HEAD"
    retries: int = 3
    branching: bool = True
    events: bool = True

    @property
    def team(self) -> int | list[AgentSpec]:
        """The number of agents, or a description of each."""
        return [table.spec for table in self.agent] or (2 if self.agents is None else self.agents)


def load_swarm_file(path: str) -> SwarmFile:
    """Read a swarm file. Raises `ConfigError`."""
    try:
        raw = read_regular_file(path)
    except OSError as error:
        raise ConfigError(path, None, f"cannot be read: {error.strerror or error}") from error
    found: SwarmFile = convert_setting(path, SwarmFile, parse_toml(path, raw))
    if found.agents is not None and found.agent:
        raise ConfigError(path, "agents", "use a number of agents or [[agent]] tables, not both")
    folder = os.path.dirname(os.path.abspath(path))
    paths = [os.path.join(folder, os.path.expanduser(extension)) for extension in found.extensions]
    return msgspec.structs.replace(found, extensions=paths)


class DurableOptions(NamedTuple):
    """How workers run a swarm."""

    concurrency: int | None
    database: str | None

    @classmethod
    def from_options(cls, durable: bool, concurrency: int | None, database: str | None) -> DurableOptions | None:
        """Return the options, or `None` if the agents run in this process."""
        if not durable and (concurrency is not None or database is not None):
            raise click.UsageError("--concurrency and --database require --durable")
        return cls(concurrency, database) if durable else None

    def check(self) -> None:
        """Check that jobs can be queued. Raises `StoreError` if the database is not available."""
        try:
            from sessiontree.swarm.durable.database import WorkDatabase
        except ModuleNotFoundError as error:
            raise InvalidOperation("durable swarms need an extra: pip install 'sessiontree[swarm]'") from error
        WorkDatabase(self.database).migrate()

    def create_executor(self, session: Session, description: SwarmFile | CreatedRecord) -> DurableExecutor:
        from sessiontree.agent.system_prompt import join_parts
        from sessiontree.swarm.durable.executor import DurableExecutor

        system = description.system
        return DurableExecutor(
            session,
            database=self.database,
            concurrency=self.concurrency,
            tools=description.tools,
            system=join_parts(system) if isinstance(system, tuple) else system,
            thinking=description.thinking,
        )


class SwarmSetup:
    """The models, tools, extensions and prompts of a swarm. The values in a swarm file override saved ones."""

    def __init__(
        self,
        swarm_file: SwarmFile | None,
        extensions: tuple[str, ...],
        durable: DurableOptions | None,
        cwd: str | None,
        path: str | None,
        mode: PermissionMode | None,
        allow: tuple[str, ...],
    ) -> None:
        """Raises `NotFound` if a tool or an extension does not exist."""
        from sessiontree.extensions.source_files import locate_extension

        if durable is not None and (mode is not None or allow):
            raise click.UsageError("with --durable, give permission options to `sessiontree worker` instead")
        tools = None if swarm_file is None else swarm_file.tools
        files = (*(() if swarm_file is None else swarm_file.extensions), *extensions)
        self._setup = AgentSetup(
            select_tools(None if tools is None else ",".join(tools) or None, tools == []),
            tuple(dict.fromkeys(locate_extension(file).path for file in files)),
            cwd=cwd,
            permission_mode=mode,
            allow=allow,
        )
        if swarm_file is not None and path is not None:
            self._setup.extension_files = _load_trusted_extensions(os.path.abspath(path), swarm_file, extensions)
        self._swarm_file = swarm_file
        self._durable = durable
        self._executor: DurableExecutor | None = None

    def resolve_model(self, name: str | None, branch: Branch | None = None) -> Model:
        return self._setup.select_model(name, branch)

    def build_swarm_options(self, controller: SessionController) -> dict[str, Any]:
        """Return keyword arguments for `Swarm`."""
        return {
            "model_of": self.resolve_model,
            "tools": controller.tools,
            "hooks": controller.hooks,
            "settings": controller.settings,
            "system": None if self._swarm_file is None else self._swarm_file.system,
            "thinking": None if self._swarm_file is None else self._swarm_file.thinking,
            "executor": self._executor,
            "permissions": self._setup.permissions,
        }

    def run_to_end(
        self,
        session: Session,
        start: Callable[[SessionController], Awaitable[StartedSwarm]],
        description: SwarmFile | CreatedRecord,
        *,
        as_json: bool,
    ) -> int:
        """Start a swarm, show its progress, print its status, and return the exit code.

        `description` has the tools and prompts for workers.
        """
        status = run_async(self._run(session, start, description, quiet=as_json))
        warn_set_aside(session)
        print_denials(self._setup.permissions)
        print_status(status, session, as_json=as_json, durable=self._durable is not None)
        failed = any(agent.status == "failed" for agent in status.agents)
        if status.status == "running":
            return 0  # another process runs it
        return MODEL_FAILED if failed or status.status != "completed" else 0

    async def _run(
        self,
        session: Session,
        start: Callable[[SessionController], Awaitable[StartedSwarm]],
        description: SwarmFile | CreatedRecord,
        *,
        quiet: bool,
    ) -> SwarmStatus:
        async with self._setup.attach(session) as controller:
            if self._durable is None:
                return await wait_with_progress(await start(controller), quiet=quiet, durable=False)
            self._executor = self._durable.create_executor(session, description)
            try:
                started = await start(controller)
                if started.swarm.is_running and not await self._executor.list_workers():
                    warn("no worker is running; start one with `sessiontree worker`")
                return await wait_with_progress(started, quiet=quiet, durable=True)
            finally:
                await self._executor.close()


def _load_trusted_extensions(path: str, swarm_file: SwarmFile, named: tuple[str, ...]) -> ExtensionFiles:
    """Return the extensions of a swarm file after the user trusted their content. Raises `InvalidOperation` otherwise.

    Extensions that are `named` on the command line or are in the home folder need no confirmation.
    """
    from sessiontree.extensions.source_files import locate_extension, read_named_extensions
    from sessiontree.extensions.trust import TrustStore
    from sessiontree.home import get_home

    home = os.path.join(os.path.realpath(get_home()), "")
    confirmed = {locate_extension(file).path for file in named}
    unconfirmed = [
        file
        for file in swarm_file.extensions
        if locate_extension(file).path not in confirmed and not os.path.realpath(file).startswith(home)
    ]
    content = read_named_extensions(path, unconfirmed)
    trust = TrustStore(get_home())
    if not unconfirmed or trust.is_trusted(content):
        return content
    names = "\n".join(f"  {escape_line(file)}" for file in content.files)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidOperation(
            f"{escape_line(path)}: untrusted extensions; run it on a terminal to confirm them, or name them with -e"
        )
    click.echo(f"{escape_line(path)} has new or changed extensions:\n{names}", err=True)
    if not click.confirm("Trust this swarm file and run its extensions?", err=True):
        raise InvalidOperation("the extensions are not trusted; nothing was done")
    trust.add(content)
    return content
