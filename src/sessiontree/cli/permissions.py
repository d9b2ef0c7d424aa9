"""Permissions on the command line: the options that choose them, and what is told of calls that were denied."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import F
from sessiontree.cli.output import escape_line, warn
from sessiontree.config import CHOICES

if TYPE_CHECKING:
    from sessiontree.agent.permissions import Permissions
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
    """What the user's rules and these options allow, where nobody can be asked. Raises `ConfigError`."""
    from sessiontree.agent.permissions import Permissions, find_invalid_rules
    from sessiontree.home import get_home

    for wrong in find_invalid_rules(allow):
        raise click.UsageError(f"--allow takes TOOL or TOOL:PATTERN, not {wrong!r}")
    if mode == "read-only" and allow:
        raise click.UsageError("--allow does nothing with --permission-mode read-only: give one of them")
    return Permissions.load_user(settings, get_home(), mode=mode, allow=allow)


def print_denials(permissions: Permissions) -> None:
    """Name what was denied, each call once, and how to allow it."""
    for title, (reason, rule) in {denial.title: (denial.reason, denial.rule) for denial in permissions.denials}.items():
        warn(f"denied {escape_line(title)}: {escape_line(reason)}")
        if rule is not None and len(rule) <= MAX_SUGGESTED_RULE and rule.isprintable():
            click.echo(f"  to allow it: --allow {shlex.quote(rule)}", err=True)
