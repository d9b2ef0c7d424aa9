"""Commands that move sessions between files and databases: copy, verify."""

from __future__ import annotations

from collections.abc import Iterable

import click

from sessiontree.cli.app import app, fail, json_option
from sessiontree.cli.output import bold, colorize, create_progress, dim, echo, echo_json, escape_line
from sessiontree.library.transfer import Progress, TransferResult, encode_transfer_result
from sessiontree.library.transfer import copy as copy_sessions
from sessiontree.library.transfer import verify as verify_sessions

ENDPOINTS_HELP = "SRC and DST are a session, a folder of session files, or a database, postgresql://host/database."


@app.command(
    epilog=f"{ENDPOINTS_HELP}\n\n\b\nExamples:\n  sessiontree copy auth postgresql://db/talks\n"
    "  sessiontree copy ~/.sessiontree/sessions postgresql://db/talks\n"
    "  sessiontree copy postgresql://db/talks ./backup"
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@json_option
@click.pass_context
def copy(ctx: click.Context, source: str, target: str, as_json: bool) -> None:
    """Copy a session, or all of them, byte for byte. One that was stopped goes on where it ended."""
    bar = create_progress("copying")
    ctx.exit(_print_copies(copy_sessions(source, target, progress=bar), as_json, bar))


@app.command(
    epilog=f"{ENDPOINTS_HELP}\n\n\b\nExample:\n  sessiontree verify ~/.sessiontree/sessions postgresql://db/talks"
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@json_option
@click.pass_context
def verify(ctx: click.Context, source: str, target: str, as_json: bool) -> None:
    """Compare sessions with their copies, byte for byte. The exit code is 1 when any is not the same."""
    bar = create_progress("comparing")
    ctx.exit(_print_copies(verify_sessions(source, target, progress=bar), as_json, bar))


def _print_copies(copies: Iterable[TransferResult], as_json: bool, bar: Progress | None) -> int:
    bad = count = 0
    for copied in copies:
        if bar is not None:
            click.echo("\r\x1b[K", nl=False, err=True)  # how far it is stands where the line goes
        count += 1
        bad += not copied.is_ok
        if as_json:
            echo_json(encode_transfer_result(copied))
            continue
        state = copied.state if copied.is_ok else colorize(copied.state, "red")
        where = copied.target or copied.source or ""
        echo(bold(escape_line(copied.session)), state, escape_line(copied.reason or ""), dim(escape_line(where)))
    if not count:
        return fail("no sessions there")
    return 1 if bad else 0
