"""The `chat` command: open the terminal app. `sessiontree` without a command runs it."""

from __future__ import annotations

import os

import click

from sessiontree.cli.agent_setup import (
    build_permissions,
    cwd_option,
    extension_option,
    model_option,
    permission_options,
)
from sessiontree.cli.app import app, branch_option, is_terminal, open_session, session_option
from sessiontree.config import PermissionMode
from sessiontree.errors import InvalidOperation
from sessiontree.library import catalog


@app.command(epilog="\b\nExamples:\n  sessiontree chat -c\n  sessiontree chat --session auth --branch cache")
@click.option("-c", "--continue", "recent", is_flag=True, help="Continue the most recent session of this folder.")
@click.option("-r", "--resume", "pick", is_flag=True, help="Choose a session to continue.")
@session_option("--session", help="Continue this session.")
@branch_option("--branch", help="Branch to continue. Default: the current branch.")
@cwd_option
@permission_options
@extension_option
@model_option
def chat(
    recent: bool,
    pick: bool,
    session: str | None,
    branch: str | None,
    cwd: str | None,
    permission_mode: PermissionMode | None,
    allow: tuple[str, ...],
    extensions: tuple[str, ...],
    model: str | None,
) -> None:
    """Open the terminal app. Short form: `sessiontree`, on a terminal."""
    if sum(map(bool, (recent, pick, session))) > 1:
        raise click.UsageError("--continue, --resume and --session are mutually exclusive")
    if not is_terminal():
        raise InvalidOperation("the app needs a terminal; use `sessiontree -p` without one")
    try:
        from sessiontree.tui.app import AppOptions, SessionApp
    except ModuleNotFoundError as error:
        raise InvalidOperation("the app needs an extra: pip install 'sessiontree[tui]'") from error
    from sessiontree import config
    from sessiontree.tui.theme import has_light_background

    settings = config.load()
    build_permissions(settings, permission_mode, allow)  # report invalid options before the app starts
    fresh = not (recent or pick or session or branch)
    if pick:
        chosen = None
    else:
        chosen = catalog.create(cwd=cwd or ".") if fresh else open_session(session or catalog.RECENT_ALIAS)
    if chosen is not None and branch is not None:
        chosen.branch(branch)
    light = "NO_COLOR" not in os.environ and has_light_background()
    SessionApp(
        AppOptions(
            session=chosen,
            cwd=os.path.abspath(cwd or "."),
            branch=branch,
            model=model,
            extensions=extensions,
            permission_mode=permission_mode,
            allow=allow,
            settings=settings,
            light=light,
            fresh=fresh,
        )
    ).run()
