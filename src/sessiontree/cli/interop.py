"""Commands that bring in sessions of other programs, and continue sessions in them: import, continue."""

from __future__ import annotations

import os
import shlex
import subprocess

import click

from sessiontree.cli.app import app, fail, json_option, open_session, place_option, session_argument
from sessiontree.cli.output import bold, colorize, create_progress, dim, echo, echo_json, escape_line, warn
from sessiontree.core.number_text import pluralize
from sessiontree.library.foreign_continue import continue_session, list_targets
from sessiontree.library.foreign_import import ImportResult, import_sessions


@app.command(
    "import",
    epilog="\b\nExamples:\n  sessiontree import claude\n  sessiontree import claude --here\n"
    "  sessiontree import ~/Downloads/conversations.json",
)
@click.argument("place", metavar="PATH|PROGRAM")
@click.option("--here", is_flag=True, help="Import only sessions of the current folder.")
@click.option("--join", is_flag=True, help="Make one session of a session and its forks.")
@click.option("--dir", "into", metavar="DIR", help="Import into this folder or database.")
@json_option
@click.pass_context
def import_command(ctx: click.Context, place: str, here: bool, join: bool, into: str | None, as_json: bool) -> None:
    """Import sessions of another program; later, only what is new. The originals are never changed.

    PROGRAM imports all its sessions on this machine.
    """
    bar = create_progress("importing")
    counts: dict[str, int] = {}
    cwd = os.path.abspath(os.curdir) if here else None
    for result in import_sessions(place, into=into, cwd=cwd, join=join, progress=bar):
        counts[result.state] = counts.get(result.state, 0) + 1
        _print_result(result, as_json)
    if not counts:
        ctx.exit(fail("no sessions found"))
    if not as_json:
        click.echo(", ".join(f"{count} {state}" for state, count in counts.items()), err=True)
    ctx.exit(1 if counts.get("failed") else 0)


def _print_result(result: ImportResult, as_json: bool) -> None:
    if as_json:
        echo_json(
            {
                "session": result.session,
                "source": result.source,
                "file": result.target,
                "state": result.state,
                "entries": result.entries,
                "problems": result.problems,
                "reason": result.reason,
            }
        )
    elif result.state != "same":
        state = result.state if result.is_ok else colorize(result.state, "red")
        entries = pluralize(result.entries, "entry", "entries") if result.is_ok else escape_line(result.reason or "")
        problems = pluralize(result.problems, "problem") if result.problems else ""
        echo(bold(escape_line(result.session)), state, entries, problems, dim(escape_line(result.source)))


@app.command(
    "continue",
    epilog="\b\nExamples:\n  sessiontree continue @ --in claude\n"
    "  sessiontree continue auth --at cache~2 --in codex --run",
)
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="Continue after this place.")
@click.option("--in", "program", required=True, type=click.Choice(list_targets()), help="The program to continue in.")
@click.option("--cwd", metavar="DIR", help="The project folder to continue in. Default: that of the session.")
@click.option("--run", is_flag=True, help="Start the program.")
@json_option
def continue_command(session: str, at: str, program: str, cwd: str | None, run: bool, as_json: bool) -> None:
    """Write a session for another program, which resumes it. Existing conversations are not changed."""
    with open_session(session, read_only=True) as source:
        written = continue_session(source, program, at=at, cwd=cwd)
    if as_json:
        echo_json(
            {
                "session": written.id,
                "file": written.file,
                "cwd": written.cwd,
                "importCommand": written.import_command,
                "command": written.command,
                "omitted": [str(omission) for omission in written.omitted],
            }
        )
    else:
        for omission in written.omitted:
            warn(f"not the same in {program}: {omission}")
        click.echo(f"wrote {escape_line(written.file)}")
        commands = [["cd", written.cwd], written.import_command, written.command]
        click.echo(" && ".join(shlex.join(command) for command in commands if command))
    if run:
        os.chdir(written.cwd)
        try:
            if written.import_command:
                subprocess.run(written.import_command, check=True)
            os.execvp(written.command[0], written.command)
        except subprocess.CalledProcessError as error:
            raise click.ClickException(f"{shlex.join(written.import_command)} failed") from error
        except OSError as error:
            raise click.ClickException(f"cannot start {written.command[0]}: {error.strerror}") from error
