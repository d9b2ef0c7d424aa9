"""The `sessiontree` command group, error handling, and options that commands share.

`COMMAND_GROUPS` maps each command to its module. A command opens a session, calls the library and prints the result.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from importlib import import_module
from types import FrameType
from typing import Any, TypeVar

import click

from sessiontree._version import __version__
from sessiontree.cli.output import escape_line, warn
from sessiontree.core.place_names import shorten_id
from sessiontree.errors import LockTimeout, SessionTreeError
from sessiontree.library import catalog
from sessiontree.library.session_files import parse_session_id
from sessiontree.session import Session
from sessiontree.store import lock

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SHELL_SAFE = r"[\w@][\w.,:@%+/-]*"
"""Matches words that need no quoting in a shell."""

FAILED, WRONG_USAGE, MODEL_FAILED, STOPPED = 1, 2, 3, 130
"""Exit codes."""

EPILOG = """\
\b
Short forms:
  sessiontree            open the app in a new session, on a terminal
  sessiontree -c         open the app in the most recent session of this folder
  sessiontree -r         choose the session to open
  sessiontree -p "TEXT"  prompt once and print the answer; add -c to continue

SESSION is a path, an id, the start or end of an id, a name, or @ for the most recent session here.
PLACE is HEAD, root, HEAD@{n}, a branch, a label, or the first 8 or more characters of an entry id.
Append ~n for the n-th ancestor.

\b
Examples:
  sessiontree -p "What is in this folder?"
  sessiontree new --name auth
  sessiontree append @ --role user "How do I optimise this?"
  sessiontree tree @
"""


class LazyGroup(click.Group):
    """A group that imports the module of a command when it is first used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMAND_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMAND_MODULES:
            import_module(f"sessiontree.cli.{COMMAND_MODULES[cmd_name]}")
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _expand_short_forms(args))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMAND_MODULES))
        for heading, names in COMMAND_GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(
                    [(name.ljust(width), command.get_short_help_str(200)) for name, command in commands if command]
                )


COMMAND_GROUPS = {
    "Ask a model": {
        "chat": "chat",
        "prompt": "chat",
        "acp": "acp",
        "fan-out": "fan_out",
        "ab": "experiment",
        "swarm": "swarm",
    },
    "Create and edit": dict.fromkeys(("new", "append", "label", "rename"), "edit"),
    "Branches": {
        "branch": "edit",
        "branches": "inspect",
        "switch": "edit",
        "navigate": "branch_ops",
        "undo": "edit",
    },
    "Inspect": {
        "tree": "tree",
        **dict.fromkeys(("log", "show", "context", "compare", "diff"), "inspect"),
        "doctor": "doctor",
    },
    "List and search": dict.fromkeys(("ls", "search"), "sessions"),
    "Archive and delete": dict.fromkeys(("archive", "delete"), "sessions"),
    "Project files": dict.fromkeys(("files", "blame", "why"), "file_commands"),
    "Session files": {
        "fork": "edit",
        "migrate": "edit",
        "export": "export",
        "copy": "export",
        "verify": "export",
        "continue": "interop",
        "import": "interop",
    },
    "Summarize and combine": dict.fromkeys(
        ("pop", "merge", "cherry-pick", "rebase", "compact", "uncompact", "promote"), "branch_ops"
    ),
    "Other": {
        "models": "getting_started",
        "worker": "swarm_worker",
        "serve": "serve",
        "token": "serve",
        "mcp": "mcp",
        "demo": "getting_started",
        "completion": "app",
    },
}
"""Commands by help group, each with its module."""
COMMAND_MODULES = {name: module for group in COMMAND_GROUPS.values() for name, module in group.items()}


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="sessiontree", message="%(prog)s %(version)s")
@click.option(
    "--color/--no-color", default=None, help="Use colors. Default: only on a terminal, never if NO_COLOR is set."
)
@click.pass_context
def app(ctx: click.Context, color: bool | None) -> None:
    """Store conversations of LLM agents as trees: branch, go back, compare, and lose nothing."""
    ctx.color = False if color is None and os.environ.get("NO_COLOR") else color
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code. Print errors as one line, never as a traceback."""
    _replace_closed_streams()
    lock.report = warn
    lock.resume_waiting()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    try:
        code = app.main(arguments, prog_name="sessiontree", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        if isinstance(error, click.UsageError):
            path = error.ctx.command_path if error.ctx is not None else "sessiontree"
            message = " ".join(error.format_message().split())  # click lists choices on separate lines
            return fail(f"{message.rstrip('.')} (see `{path} --help`)", WRONG_USAGE)
        return fail(error.format_message())
    except SessionTreeError as error:
        if isinstance(error, LockTimeout) and lock.has_stopped_waiting():
            return fail(f"aborted: {error}", STOPPED)
        return fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        return fail("stopped", STOPPED)
    except BrokenPipeError:
        _discard_output()
        return FAILED
    except OSError as error:
        where = error.filename
        if where is None and _is_output_error(error):
            where = "standard output"
            _discard_output()
        return fail(f"{where}: {error.strerror or error}" if where else f"{error.strerror or error}")
    except Exception as error:
        if os.environ.get("SESSIONTREE_DEBUG"):
            raise
        return fail(f"internal error, {type(error).__name__}: {error} (set SESSIONTREE_DEBUG=1 for a traceback)")


def _expand_short_forms(arguments: list[str]) -> list[str]:
    """Insert the command of a short form.

    `-p` means `prompt`. Other options, and no arguments on a terminal, mean `chat`.
    """
    first = next((word for word in arguments if word not in ("--color", "--no-color")), "")
    at = arguments.index(first) if first else len(arguments)
    if first.startswith(("-", "@")) and "-p" in arguments:
        rest = arguments[at:]
        rest.remove("-p")
        return [*arguments[:at], "prompt", *rest]
    option = first.startswith("-") and first not in ("-h", "--help", "--version")
    if option or (not arguments and is_terminal()):
        return [*arguments[:at], "chat", *arguments[at:]]
    return arguments


def _replace_closed_streams() -> None:
    """Open the null device for closed output streams. Otherwise the next open file would get their descriptor."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open until the process ends


def _is_output_error(error: OSError) -> bool:
    """Return whether printing raised the error. Errors of printing have no file name."""
    from traceback import walk_tb

    *_, (frame, _) = walk_tb(error.__traceback__)
    return frame.f_code in (click.echo.__code__, run.__code__)


def _discard_output() -> None:
    """Redirect standard output to the null device. Otherwise Python would flush it again at exit."""
    with contextlib.suppress(OSError, ValueError):  # standard output has no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Call `asyncio.run`. Ctrl-C also interrupts threads that wait for a lock."""
    import asyncio
    import signal

    async def run_interruptible() -> T:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            return await work

        def stop(number: int, frame: FrameType | None) -> None:
            lock.stop_waiting()
            before(number, frame)

        signal.signal(signal.SIGINT, stop)
        try:
            return await work
        finally:
            if signal.getsignal(signal.SIGINT) is stop:
                signal.signal(signal.SIGINT, before)

    return asyncio.run(run_interruptible())


def fail(message: str, code: int = FAILED) -> int:
    """Print an error and return the exit code."""
    warn(message)
    return code


# Shared by commands


def is_terminal() -> bool:
    """Return whether standard input and output are a terminal."""
    return sys.stdout.isatty() and can_answer()


def can_answer() -> bool:
    """Return whether standard input is a terminal. It is `None` if the shell closed it."""
    return sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def open_session(session: str, *, read_only: bool = False) -> Session:
    return catalog.open(session, read_only=read_only)


@contextlib.contextmanager
def edit_session(session: str, *, read_only: bool = False) -> Generator[Session]:
    """Open a session for writing and close it. Warn about torn lines that were moved, even after an error."""
    opened = open_session(session, read_only=read_only)
    try:
        with opened:
            yield opened
    finally:
        warn_set_aside(opened)


def format_id(id: str | None) -> str:
    """Return a short form of an entry id."""
    return "root" if id is None else escape_line(shorten_id(id))


def session_argument(function: F) -> F:
    return click.argument("session", metavar="SESSION", shell_complete=_complete_session)(function)


def session_option(*names: str, **options: Any) -> Callable[[F], F]:
    return click.option(*names, metavar="SESSION", shell_complete=_complete_session, **options)


def place_argument(name: str, **options: Any) -> Callable[[F], F]:
    return click.argument(name, shell_complete=_complete_place, **options)


def place_option(*names: str, **options: Any) -> Callable[[F], F]:
    return click.option(*names, metavar="PLACE", shell_complete=_complete_place, **options)


def branch_argument(name: str, **options: Any) -> Callable[[F], F]:
    return click.argument(name, shell_complete=_complete_branch, **options)


def branch_option(*names: str, **options: Any) -> Callable[[F], F]:
    return click.option(*names, metavar="NAME", shell_complete=_complete_branch, **options)


def warn_set_aside(session: Session) -> None:
    """Warn about incomplete last lines that were moved to another file."""
    for path in session.torn_files:
        warn(f"incomplete last line moved to {path}")


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print compact JSON.")(function)


def _complete_session(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    try:
        names = {summary.name for summary in catalog.sessions() if summary.name}
    except SessionTreeError:  # the current folder was deleted, or the database is unreachable
        names = set[str]()
    ids = [parse_session_id(location) for location in catalog.list_locations()]
    items = [
        CompletionItem(item) for item in filter_completions([catalog.RECENT_ALIAS, *sorted(names), *ids], incomplete)
    ]
    return items or [CompletionItem(incomplete, type="file")]


def _complete_place(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    session = _open_typed_session(ctx)
    if session is None:
        return []
    return filter_completions(["HEAD", "root", *session.heads.heads, *session.tree.labels.values()], incomplete)


def _complete_branch(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    session = _open_typed_session(ctx)
    return [] if session is None else filter_completions(session.heads.heads, incomplete)


def filter_completions(names: Iterable[str], prefix: str) -> list[str]:
    """Return the names with this prefix that are safe in a shell. Names in session files can contain anything."""
    return [name for name in names if name.startswith(prefix) and re.fullmatch(SHELL_SAFE, name)]


def _open_typed_session(ctx: click.Context) -> Session | None:
    # While an option value is completed, click has not assigned the arguments yet.
    name = ctx.params.get("session") or next(iter(ctx.args), None)
    try:
        return None if name is None else open_session(name, read_only=True)
    except (SessionTreeError, OSError):
        return None


@app.command(epilog='\b\nExample:\n  eval "$(sessiontree completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None
    for name in ("sessiontree", "stree"):
        click.echo(complete(app, {}, name, "_SESSIONTREE_COMPLETE").source())
