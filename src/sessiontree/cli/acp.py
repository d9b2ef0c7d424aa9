"""The command that runs the agent inside an editor."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import click

from sessiontree.cli.agent_setup import build_permissions, extension_option, model_option, permission_options
from sessiontree.cli.app import app, run_async
from sessiontree.errors import InvalidOperation

if TYPE_CHECKING:
    from sessiontree.config import PermissionMode


@app.command(epilog="\b\nExample, in the settings of an editor:\n  sessiontree acp --model openai:gpt-5.5")
@permission_options
@extension_option
@model_option
@click.option(
    "--v2", "offers_v2", is_flag=True, help="Also offer version 2 of the protocol, a draft that may change any time."
)
def acp(
    permission_mode: PermissionMode | None,
    allow: tuple[str, ...],
    extensions: tuple[str, ...],
    model: str | None,
    *,
    offers_v2: bool,
) -> None:
    """Run the agent inside an editor that speaks the Agent Client Protocol.

    The editor starts this command and talks to it on standard input and output. Messages for people go to standard
    error.
    """
    try:
        from sessiontree.acp.agent_server import serve_stdio
        from sessiontree.acp.editor_session import EditorOptions
    except ModuleNotFoundError as error:
        raise InvalidOperation("this command needs an extra: pip install 'sessiontree[acp]'") from error
    from sessiontree import config

    build_permissions(config.load_config(), permission_mode, allow)  # report invalid options before the editor connects
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="sessiontree: %(message)s")
    options = EditorOptions(
        model=model, permission_mode=permission_mode, allow=allow, extensions=extensions, offers_v2=offers_v2
    )
    run_async(serve_stdio(options))
