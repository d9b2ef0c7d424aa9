"""The `sessiontree` command: its group, what commands share, and how errors are told.

Commands live in the modules that `MODULES` names; each opens a session, calls the library, and prints.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from importlib import import_module
from traceback import walk_tb
from types import FrameType
from typing import Any, TypeVar

import click

from sessiontree._version import __version__
from sessiontree.cli.output import escape_line, warn
from sessiontree.core.places import shorten_id
from sessiontree.errors import LockTimeout, SessionTreeError
from sessiontree.library import catalog
from sessiontree.session.session import Session
from sessiontree.store import lock_wait

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SHELL_SAFE = re.compile(r"[\w@][\w.,:@%+/-]*")
"""Words that no shell takes for anything else."""

FAILED, WRONG_USAGE, MODEL_FAILED, STOPPED = 1, 2, 3, 130
"""Exit codes."""

EPILOG = """\
\b
Short forms:
  sessiontree            open the app in a new session, on a terminal
  sessiontree -c         open it in the most recent session of this folder
  sessiontree -r         choose the session to open
  sessiontree -p "TEXT"  prompt once and print the answer; with -c, go on

SESSION is a path, an id, its beginning or end, a name, or @ for the most recent one here.
PLACE is HEAD, root, HEAD@{n}, a branch, a label, or an entry id or its first 8 characters;
each may be followed by ~n.

\b
Examples:
  sessiontree -p "What is in this folder?"
  sessiontree new --name auth
  sessiontree append @ --role user "How do I optimise this?"
  sessiontree tree @
"""


class LazyGroup(click.Group):
    """The commands, each imported when it is asked for."""

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
    "Asking a model": {
        "chat": "chat",
        "prompt": "prompt",
        "fan-out": "fan_out",
        "ab": "experiment",
        "swarm": "swarm",
    },
    "Making and writing": dict.fromkeys(("new", "append", "label", "rename"), "edit"),
    "Branches and moves": {
        "branch": "edit",
        "branches": "inspect",
        "switch": "edit",
        "navigate": "branch_ops",
        "undo": "edit",
    },
    "Looking": {
        **dict.fromkeys(("tree", "log", "show", "context", "compare", "diff"), "inspect"),
        "doctor": "doctor",
    },
    "Many sessions": dict.fromkeys(("ls", "search"), "sessions"),
    "Putting aside": dict.fromkeys(("archive", "delete"), "sessions"),
    "Files": {
        "fork": "edit",
        "migrate": "edit",
        "export": "transfer",
        "copy": "transfer",
        "verify": "transfer",
    },
    "Summaries and copies": dict.fromkeys(
        ("pop", "merge", "cherry-pick", "rebase", "compact", "uncompact", "promote"), "branch_ops"
    ),
    "Other": {
        "models": "models",
        "worker": "swarm_worker",
        "serve": "serve",
        "token": "serve",
        "demo": "demo",
        "completion": "app",
    },
}
"""The commands as help lists them, each with the module that it is in."""
COMMAND_MODULES = {name: module for group in COMMAND_GROUPS.values() for name, module in group.items()}


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="sessiontree", message="%(prog)s %(version)s")
@click.option(
    "--color/--no-color", default=None, help="Colours: by default only on a terminal, and never with NO_COLOR."
)
@click.pass_context
def app(ctx: click.Context, color: bool | None) -> None:
    """Conversations of LLM agents, kept as trees: branch, go back, compare, and lose nothing."""
    ctx.color = False if color is None and os.environ.get("NO_COLOR") else color
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code. Errors are one clear sentence, never a traceback."""
    _replace_closed_streams()
    lock_wait.report = warn
    lock_wait.resume_waiting()
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
            told = " ".join(error.format_message().split())  # click lists choices below one another
            return fail(f"{told.rstrip('.')} (see `{path} --help`)", WRONG_USAGE)
        return fail(error.format_message())
    except SessionTreeError as error:
        if isinstance(error, LockTimeout) and lock_wait.has_stopped_waiting():
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
        return fail(f"internal error, {type(error).__name__}: {error} (SESSIONTREE_DEBUG=1 shows where)")


def _expand_short_forms(arguments: list[str]) -> list[str]:
    """`-p` among options and files, before any command, means the command `prompt`; other options, the app.

    So does nothing at all, on a terminal.
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
    """What is for an output that is closed goes nowhere; and no file that is opened takes its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process runs


def _is_output_error(error: OSError) -> bool:
    """Whether it was raised where something is printed: that names no file, and neither do some others."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return frame.f_code in (click.echo.__code__, run.__code__)


def _discard_output() -> None:
    """Nobody takes what is left to print: Python shall not try again when it ends."""
    with contextlib.suppress(OSError, ValueError):  # where there is no real standard output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, where Ctrl-C also ends what waits for a lock in another thread."""
    import asyncio
    import signal

    async def run_interruptible() -> T:
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            return await work

        def stop(number: int, frame: FrameType | None) -> None:
            lock_wait.stop_waiting()
            before(number, frame)

        signal.signal(signal.SIGINT, stop)
        try:
            return await work
        finally:
            if signal.getsignal(signal.SIGINT) is stop:
                signal.signal(signal.SIGINT, before)

    return asyncio.run(run_interruptible())


def fail(message: str, code: int = FAILED) -> int:
    """Say what went wrong, and give the exit code that says so too."""
    warn(message)
    return code


# What commands share


def is_terminal() -> bool:
    """Whether somebody is there to read and to answer."""
    return sys.stdout.isatty() and can_answer()


def can_answer() -> bool:
    """Whether somebody is there to answer. There is no standard input where the shell closed it."""
    return sys.stdin is not None and sys.stdin.isatty()  # pyright: ignore[reportUnnecessaryComparison]


def open_session(session: str, *, read_only: bool = False) -> Session:
    return catalog.open(session, read_only=read_only)


@contextlib.contextmanager
def edit_session(session: str, *, read_only: bool = False) -> Generator[Session]:
    """A session to write to, closed in the end. What was in the way is told, also when something fails."""
    changed = open_session(session, read_only=read_only)
    try:
        with changed:
            yield changed
    finally:
        warn_set_aside(changed)


def format_id(id: str | None) -> str:
    """An entry id as people are shown it."""
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
    """Say where an unfinished last line went that was in the way."""
    for path in session.torn_files:
        warn(f"an unfinished last line was moved to {path}")


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print compact JSON, for programs.")(function)


def _complete_session(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from click.shell_completion import CompletionItem

    try:
        names = {summary.name for summary in catalog.sessions() if summary.name}
    except SessionTreeError:  # the current folder was deleted, or a database is not there
        names = set[str]()
    ids = [catalog.parse_session_id(file) for file in catalog.iter_session_paths()]
    known = [
        CompletionItem(item) for item in filter_completions([catalog.RECENT_ALIAS, *sorted(names), *ids], incomplete)
    ]
    return known or [CompletionItem(incomplete, type="file")]


def _complete_place(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    session = _open_typed_session(ctx)
    if session is None:
        return []
    return filter_completions(["HEAD", "root", *session.heads.heads, *session.tree.labels.values()], incomplete)


def _complete_branch(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    session = _open_typed_session(ctx)
    return [] if session is None else filter_completions(session.heads.heads, incomplete)


def filter_completions(names: Iterable[str], prefix: str) -> list[str]:
    """Those that begin so and mean themselves to a shell: names in session files may be anything."""
    return [name for name in names if name.startswith(prefix) and SHELL_SAFE.fullmatch(name)]


def _open_typed_session(ctx: click.Context) -> Session | None:
    # While the value of an option is typed, click has not told the arguments apart yet.
    given = ctx.params.get("session") or next(iter(ctx.args), None)
    try:
        return None if given is None else open_session(given, read_only=True)
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
