"""Options and start-up that commands share when they run agents or extensions.

`AgentSetup` turns the options into settings, hooks, tools and permissions, and attaches them to a session.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from sessiontree.cli.app import F
from sessiontree.cli.output import escape_line, escape_lines, warn
from sessiontree.config import CHOICES
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.ui_protocol import Level, NoUi

if TYPE_CHECKING:
    from sessiontree.agent.factory import AgentOptions
    from sessiontree.agent.permissions import Permissions
    from sessiontree.agent.tool import Tool
    from sessiontree.config import Config, PermissionMode
    from sessiontree.extensions.project_trust import ExtensionFiles
    from sessiontree.hooks.bus import Hooks
    from sessiontree.hooks.events import Event
    from sessiontree.model.base import Model
    from sessiontree.session import Branch, Session
    from sessiontree.slash_commands.controller import SessionController
    from sessiontree.swarm.budget import Budget

extension_option = click.option(
    "-e",
    "--extension",
    "extensions",
    metavar="FILE",
    multiple=True,
    help="Load this extension too; repeatable.",
)

cwd_option = click.option(
    "--cwd",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False),
    help="Folder that tools work in. Default: the current folder, even if the session names another.",
)

project_option = click.option(
    "--project",
    "projects",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Project folder; agents of its sessions run there. Other agents run in the current folder. Repeatable.",
)

model_option = click.option(
    "--model", metavar="NAME", help="Model, as provider:model. Default: the session's model, else the default model."
)


class StderrUi(NoUi):
    """A user interface for commands: print notifications to standard error and answer no questions."""

    def notify(self, text: str, level: Level = "info") -> None:
        click.echo(escape_lines(text), err=True)


def print_notice(event: Event) -> None:
    """Print notices, retries and progress to standard error. Pass this to `Hooks.listen`."""
    from sessiontree.hooks.events import Notice, RetryScheduled, SnapshotProgress

    if isinstance(event, Notice):
        warn(event.text)
    elif isinstance(event, RetryScheduled):
        warn(f"{event.text} in {event.delay:.0f} s…")
    elif isinstance(event, SnapshotProgress) and sys.stderr.isatty():
        end = "\n" if event.done == event.total else ""
        click.echo(f"\r{event.text}{end}", nl=False, err=True)


class ExtensionSetup:
    """Settings, hooks and extensions of one command."""

    def __init__(
        self,
        extensions: Sequence[str] = (),
        *,
        settings: Config | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Load the settings unless they are given. Raises `ConfigError`."""
        from sessiontree import config
        from sessiontree.hooks.bus import Hooks

        self.settings = config.load_config() if settings is None else settings
        self.hooks = Hooks() if hooks is None else hooks
        self._extensions = extensions
        self.extension_files: ExtensionFiles | None = None
        """Content of the extensions that the user trusted, if they have to be exactly these."""
        self._unchecked_rules: list[str] = []
        """The rules of `--allow` until the tools are known."""

    def select_model(self, name: str | None, branch: Branch | None = None) -> Model:
        """Return the named model, else the one that the branch used, else the default. It retries transient errors."""
        from sessiontree.slash_commands.models import ConfiguredModels, choose_model

        model, warning = choose_model(
            ConfiguredModels(self.settings, self.hooks), name, None if branch is None else branch.state
        )
        if warning is not None:
            warn(warning)
        return model

    def attach(
        self, session: Session, *, branch: Branch | None = None, model: Model | None = None, thinking: str | None = None
    ) -> RunningController:
        """Create a controller for `session`. Raises `NotFound` if an extension does not exist."""
        from sessiontree.slash_commands.controller import SessionController

        options = msgspec.structs.replace(self._build_options(), thinking=thinking)
        controller = SessionController(
            session, branch=branch, model=model, options=options, hooks=self.hooks, ui=StderrUi()
        )
        return RunningController(controller, self._extensions, self.extension_files, self._unchecked_rules)

    def _build_options(self) -> AgentOptions:
        from sessiontree.agent.factory import AgentOptions

        return AgentOptions(settings=self.settings)


class AgentSetup(ExtensionSetup):
    """The same with the tools and permissions of agents."""

    def __init__(
        self,
        tools: tuple[Tool, ...],
        extensions: Sequence[str] = (),
        *,
        cwd: str | None = None,
        permission_mode: PermissionMode | None = None,
        allow: tuple[str, ...] = (),
        settings: Config | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Raises `ConfigError` and `UsageError` for settings and options that are invalid."""
        from sessiontree.agent.factory import load_agent_options

        super().__init__(extensions, settings=settings, hooks=hooks)
        _check_permission_options(permission_mode, allow)
        self._unchecked_rules = list(allow)
        self._options = load_agent_options(self.settings, tools=tools, mode=permission_mode, allow=allow, cwd=cwd)

    @property
    def permissions(self) -> Permissions | None:
        return self._options.permissions

    def _build_options(self) -> AgentOptions:
        return self._options


class RunningController:
    """Runs a controller with its extensions while the context is entered."""

    def __init__(
        self,
        controller: SessionController,
        files: Sequence[str],
        extension_files: ExtensionFiles | None = None,
        unchecked_rules: list[str] | None = None,
    ) -> None:
        """Raises `NotFound` if an extension does not exist. Entering raises `InvalidOperation` if one fails."""
        from sessiontree.extensions.loader import ExtensionLoader

        self.controller = controller
        self._unchecked_rules = [] if unchecked_rules is None else unchecked_rules
        self._extensions = ExtensionLoader(controller, files, content=extension_files)

    async def __aenter__(self) -> SessionController:
        await self._extensions.load()
        failed = self._extensions.failed_files
        if failed:
            # The failed extension may be the one that restricts the agent, so do not run without it.
            self._extensions.unload()
            raise InvalidOperation(f"{', '.join(failed)}: the extension failed to load; nothing was done")
        await self.controller.start()
        _warn_of_unknown_tools(self._unchecked_rules, self.controller.tools)
        self._unchecked_rules.clear()  # once is enough, also for several controllers
        return self.controller

    async def __aexit__(self, *_: Any) -> None:
        await self.controller.close()
        self._extensions.unload()


def select_tools(names: str | None, none: bool) -> tuple[Tool, ...]:
    """Return the built-in tools with these comma-separated names, or all of them."""
    from sessiontree.agent.tools import builtin_tools

    if names is not None and none:
        raise click.UsageError("--tools and --no-tools are mutually exclusive")
    if none:
        return ()
    return builtin_tools() if names is None else builtin_tools(*filter(None, map(str.strip, names.split(","))))


class AgentFlags(NamedTuple):
    """The values of the options that `agent_options` adds."""

    tools: str | None
    no_tools: bool
    cwd: str | None
    permission_mode: PermissionMode | None
    allow: tuple[str, ...]
    extensions: tuple[str, ...]

    def set_up(self) -> AgentSetup:
        """Raises `ConfigError` and `UsageError` for settings and options that are invalid."""
        return AgentSetup(
            select_tools(self.tools, self.no_tools),
            self.extensions,
            cwd=self.cwd,
            permission_mode=self.permission_mode,
            allow=self.allow,
        )


def agent_options(function: F) -> F:
    """Add the options of a command that runs agents. The command gets them as one argument, `agents`."""

    @wraps(function)
    def command(**options: Any) -> Any:
        flags = AgentFlags(*map(options.pop, AgentFlags._fields))
        return function(agents=flags, **options)

    return tool_options(cwd_option(permission_options(extension_option(command))))  # pyright: ignore[reportReturnType]


def tool_options(function: F) -> F:
    """Add `--tools` and `--no-tools`, as `tools` and `no_tools`. Pass them to `select_tools`."""
    none = click.option("--no-tools", is_flag=True, help="Give agents no built-in tools.")
    names = "Built-in tools that agents may use, comma-separated. Default: all."
    return click.option("--tools", metavar="NAMES", help=names)(none(function))


# Permissions

MAX_SUGGESTED_RULE = 500
"""Longest rule, in characters, that is suggested after a denied call."""


def permission_options(function: F) -> F:
    """Add `--permission-mode` and `--allow`, as `permission_mode` and `allow`."""
    allow = click.option(
        "--allow",
        metavar="TOOL[:PATTERN]",
        multiple=True,
        help="Tool that agents may use. With PATTERN, only for commands or paths that match it; repeatable.",
    )
    mode = click.option(
        "--permission-mode",
        type=click.Choice(CHOICES["mode"]),
        help="What agents may do if no rule matches. Default: read files; ask about other calls, or deny them.",
    )
    return mode(allow(function))


def build_permissions(settings: Config, mode: PermissionMode | None, allow: tuple[str, ...]) -> Permissions:
    """Combine the user's rules with the options, for a run that cannot ask. Raises `ConfigError`."""
    from sessiontree.agent.permissions import Permissions
    from sessiontree.home import get_home

    _check_permission_options(mode, allow)
    return Permissions.load_user(settings, get_home(), mode=mode, allow=allow)


def _check_permission_options(mode: PermissionMode | None, allow: tuple[str, ...]) -> None:
    from sessiontree.agent.permissions import find_invalid_rules

    for rule in find_invalid_rules(allow):
        raise click.UsageError(f"--allow: expected TOOL or TOOL:PATTERN, not {rule!r}")
    if mode == "read-only" and allow:
        raise click.UsageError("--allow and --permission-mode read-only are mutually exclusive")


def _warn_of_unknown_tools(allow: Iterable[str], tools: Iterable[Tool]) -> None:
    """Warn of rules for tools that do not exist. MCP servers start later, so their tools are not known yet."""
    from sessiontree.agent.permission_rules import ANY_ENDING, parse_rule

    known = [tool.name for tool in tools]
    for name in dict.fromkeys(parse_rule(text).tool for text in allow):
        if name not in known and not name.startswith("mcp__") and not name.endswith(ANY_ENDING):
            warn(f"--allow: no tool is called {name!r}; tools: {', '.join(known) or 'none'}")


def print_denials(permissions: Permissions | None) -> None:
    """Print each denied call once, with the option that would allow it."""
    denials = () if permissions is None else permissions.denials
    for title, (reason, rule) in {denial.title: (denial.reason, denial.rule) for denial in denials}.items():
        warn(f"denied {escape_line(title)}: {escape_line(reason)}")
        if rule is not None and len(rule) <= MAX_SUGGESTED_RULE and rule.isprintable():
            click.echo(f"  to allow it: --allow {shlex.quote(rule)}", err=True)


# Budgets

BUDGET_LIMITS = (
    ("cost", click.FloatRange, "DOLLARS", "Maximum cost"),
    ("tokens", click.IntRange, "COUNT", "Maximum number of tokens"),
    ("time", click.FloatRange, "SECONDS", "Maximum working time"),
)
NO_LIMIT_HINT = "; 0 for no limit"


def budget_options(function: F) -> F:
    """Add `--max-cost`, `--max-tokens` and `--max-time`."""
    return _add_limit_options(function, "--max-", "", min_open=True)


def budget_override_options(function: F) -> F:
    """Add the options that override a saved budget, for the swarm (`--max-…`) and each agent (`--max-agent-…`)."""
    return _add_limit_options(
        _add_limit_options(function, "--max-agent-", f" per agent{NO_LIMIT_HINT}"), "--max-", NO_LIMIT_HINT
    )


def _add_limit_options(function: F, prefix: str, suffix: str, *, min_open: bool = False) -> F:
    for name, kind, unit, description in reversed(BUDGET_LIMITS):
        limit = kind(min=0, min_open=min_open)
        function = click.option(f"{prefix}{name}", type=limit, metavar=unit, help=f"{description}{suffix}.")(function)
    return function


def build_budget(cost: float | None, tokens: int | None, seconds: float | None) -> Budget | None:
    """Return the budget that the options set, or `None` if none of them is given."""
    from sessiontree.swarm.budget import Budget

    return None if cost is tokens is seconds is None else Budget(cost=cost, tokens=tokens, seconds=seconds)


def override_budget(
    saved: Budget | None, cost: float | None, tokens: int | None, seconds: float | None
) -> Budget | None:
    """Return the saved budget with the limits that the options change, or `None` if none of them is given."""
    from sessiontree.swarm.budget import override_limits

    limits = {"cost": cost, "tokens": tokens, "seconds": seconds}
    return override_limits(saved, {kind: limit or None for kind, limit in limits.items() if limit is not None})
