"""Permissions on the command line: the options that choose them, and what is told of calls that were denied."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import F
from sessiontree.cli.output import escape_line, warn
from sessiontree.config import CHOICES

if TYPE_CHECKING:
    from sessiontree.agent.permissions import Permissions
    from sessiontree.agent.setup import AgentOptions
    from sessiontree.agent.tool import Tool
    from sessiontree.config import Config, PermissionMode

MAX_SUGGESTED_RULE = 500
"""A rule that is longer is not suggested."""


def permission_options(function: F) -> F:
    """`--permission-mode` and `--allow`, as `permission_mode` and `allow`."""
    allow = click.option(
        "--allow",
        metavar="TOOL[:PATTERN]",
        multiple=True,
        help="Let agents use this tool, for commands or paths like the pattern; may be given again.",
    )
    mode = click.option(
        "--permission-mode",
        type=click.Choice(CHOICES["mode"]),
        help="What agents may do where no rule decides; by default they read, and the rest is asked or denied.",
    )
    return mode(allow(function))


def build_permissions(settings: Config, mode: PermissionMode | None, allow: tuple[str, ...]) -> Permissions:
    """Return the permissions of the user with these options. Raises `ConfigError`."""
    from sessiontree.agent.permissions import Permissions
    from sessiontree.home import get_home

    _check_options(mode, allow)
    return Permissions.load_user(settings, get_home(), mode=mode, allow=allow)


def load_options(
    settings: Config,
    mode: PermissionMode | None,
    allow: tuple[str, ...],
    *,
    tools: Sequence[Tool] | None = None,
    cwd: str | None = None,
) -> AgentOptions:
    """Return the options of an agent that cannot ask questions. Raises `ConfigError`."""
    from sessiontree.agent.setup import load_agent_options

    _check_options(mode, allow)
    return load_agent_options(settings, tools=tools, mode=mode, allow=allow, cwd=cwd)


def _check_options(mode: PermissionMode | None, allow: tuple[str, ...]) -> None:
    from sessiontree.agent.permissions import find_invalid_rules

    for wrong in find_invalid_rules(allow):
        raise click.UsageError(f"--allow takes TOOL or TOOL:PATTERN, not {wrong!r}")
    if mode == "read-only" and allow:
        raise click.UsageError("--allow does nothing with --permission-mode read-only: give one of them")


def print_denials(permissions: Permissions | None) -> None:
    """Name what was denied, each call once, and how to allow it."""
    found = () if permissions is None else permissions.denials
    denials = {denial.title: (denial.reason, denial.rule) for denial in found}
    for title, (reason, rule) in denials.items():
        warn(f"denied {escape_line(title)}: {escape_line(reason)}")
        if rule is not None and len(rule) <= MAX_SUGGESTED_RULE and rule.isprintable():
            click.echo(f"  to allow it: --allow {shlex.quote(rule)}", err=True)
