"""Starting the terminal app: `sessiontree` without a command, on a terminal."""

from __future__ import annotations

import os

import click

from sessiontree.cli.agent_setup import build_permissions, cwd_option, permission_options
from sessiontree.cli.app import app, branch_option, is_terminal, open_session, session_option
from sessiontree.config import PermissionMode
from sessiontree.errors import InvalidOperation
from sessiontree.library import catalog


@app.command(epilog="\b\nExamples:\n  sessiontree chat -c\n  sessiontree chat --session auth --branch cache")
@click.option("-c", "--continue", "recent", is_flag=True, help="Go on in the most recent session of this folder.")
@click.option("-r", "--resume", "pick", is_flag=True, help="Choose the session to go on in.")
@session_option("--session", help="Go on in this session.")
@branch_option("--branch", help="The branch to go on; the current one by default.")
@cwd_option
@permission_options
@click.option("-e", "--extension", "extensions", metavar="FILE", multiple=True, help="Load this extension too.")
@click.option(
    "--model", metavar="NAME", help="The model, as provider:model; the session's or the usual one by default."
)
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
    """Open the terminal app. `sessiontree` alone is short for it, on a terminal."""
    if sum(map(bool, (recent, pick, session))) > 1:
        raise click.UsageError("give one of --continue, --resume and --session")
    if not is_terminal():
        raise InvalidOperation("the app needs a terminal: `sessiontree -p` prompts without one")
    try:
        from sessiontree.tui.app import AppOptions, SessionApp
    except ModuleNotFoundError as error:
        raise InvalidOperation("the app is not installed: `pip install 'sessiontree[tui]'` gets it") from error
    from sessiontree import config
    from sessiontree.tui.theme import has_light_background

    settings = config.load()
    build_permissions(settings, permission_mode, allow)  # what is wrong with them is said before the app is there
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
