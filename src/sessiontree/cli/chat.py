"""Commands that talk to one agent: `chat` opens the terminal app, `prompt` sends one prompt and prints the answer.

`sessiontree` without a command runs `chat`, and `sessiontree -p` runs `prompt`.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sessiontree.cli.agent_setup import (
    AgentFlags,
    RunningController,
    agent_options,
    build_permissions,
    cwd_option,
    extension_option,
    model_option,
    permission_options,
    print_denials,
    print_notice,
)
from sessiontree.cli.app import (
    FAILED,
    MODEL_FAILED,
    STOPPED,
    app,
    branch_option,
    fail,
    is_terminal,
    open_session,
    run_async,
    session_option,
    warn_set_aside,
)
from sessiontree.cli.output import dim, echo_json, escape_line, escape_lines, warn
from sessiontree.config import CHOICES
from sessiontree.core.entries import Header, JsonObject
from sessiontree.core.number_text import pluralize
from sessiontree.errors import InvalidOperation, LockTimeout, SessionTreeError
from sessiontree.format.json_line import read_object
from sessiontree.library import catalog
from sessiontree.session import Session

if TYPE_CHECKING:
    from sessiontree.agent.loop import Outcome
    from sessiontree.config import PermissionMode
    from sessiontree.hooks.events import Event
    from sessiontree.model.base import Model
    from sessiontree.slash_commands.controller import SessionController, SubmitResult

ABORT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that abort the run."""


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

    settings = config.load_config()
    build_permissions(settings, permission_mode, allow)  # report invalid options before the app starts
    fresh = not (recent or pick or session or branch)
    if pick:
        chosen = None
    else:
        chosen = catalog.create_session(cwd=cwd or ".") if fresh else open_session(session or catalog.RECENT_ALIAS)
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


# One prompt


@app.command(
    epilog='\b\nExamples:\n  sessiontree -p "What is in this folder?"\n'
    '  git diff | sessiontree -p -c "Is this right?" @src/app.py\n'
    '  sessiontree -p --mode json --model openai:gpt-5.5 "List the tests"'
)
@click.argument("words", nargs=-1, metavar="[TEXT | @FILE]...")
@click.option("-c", "--continue", "recent", is_flag=True, help="Continue the most recent session of this folder.")
@session_option("--session", help="Continue this session.")
@session_option("--fork", help="Continue in a fork of this session.")
@click.option("--no-session", is_flag=True, help="Do not save the conversation.")
@branch_option("--branch", help="Branch to continue. Default: the current branch.")
@model_option
@click.option("--thinking", type=click.Choice(CHOICES["thinking"]), help="Thinking level of the model.")
@agent_options
@click.option(
    "--mode",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Print the answer as text, or one JSON event per line.",
)
def prompt(
    words: tuple[str, ...],
    recent: bool,
    session: str | None,
    fork: str | None,
    no_session: bool,
    branch: str | None,
    model: str | None,
    thinking: str | None,
    agents: AgentFlags,
    mode: str,
) -> int:
    """Prompt the model once and print its answer. Short form: `sessiontree -p`.

    Text that starts with a slash is a command; `/help` lists the commands. Piped input is appended to the text.

    The agent may read files in this folder. Your permission rules, --allow and --permission-mode decide what else it
    may do. Denied calls are listed at the end.

    Exit codes: 0 on success, 1 on an error, 3 if the model failed, 130 if aborted.
    """
    if sum(map(bool, (recent, session, fork, no_session))) > 1:
        raise click.UsageError("--continue, --session, --fork and --no-session are mutually exclusive")
    if branch is not None and no_session:
        raise click.UsageError("--branch and --no-session are mutually exclusive")
    from sessiontree.model.selection import NoModel

    text, images, is_command = _build_prompt(words)
    setup = agents.set_up()
    source: Session | None = None
    if recent or session or fork or branch:
        source = open_session(fork or session or catalog.RECENT_ALIAS, read_only=fork is not None)
    start = None if source is None else source.head if branch is None else source.branch(branch)
    selected: Model | None = None
    no_model: str | None = None
    try:
        selected = setup.select_model(model, start)
    except NoModel as error:
        if not is_command:
            return fail(str(error), MODEL_FAILED)
        no_model = str(error)
    if source is not None and fork is not None:
        target = catalog.fork(source, at=branch or "HEAD")
    else:
        folder = os.path.abspath(agents.cwd or ".")
        target = source or (catalog.memory(cwd=folder) if no_session else catalog.create_session(cwd=folder))
    level = thinking or (setup.settings.thinking if start is None or start.leaf is None else None)
    if target.unreadable_lines:
        _warn_unreadable(target)
    if thinking not in (None, "off") and selected is not None and not selected.info.thinking:
        warn(f"{selected.info.name} does not support thinking; --thinking is ignored")
    try:
        with target:
            on = start if start is not None and target is source else target.head
            running = setup.attach(target, branch=on, model=selected, thinking=level)
            running.controller.no_model_message = no_model or running.controller.no_model_message
            code = _run_and_report(running, text, images, mode, is_command=is_command)
            warn_set_aside(target)
    finally:
        print_denials(setup.permissions)
        if source is None and not no_session:
            _drop_if_unused(target)
    return code


def _drop_if_unused(session: Session) -> None:
    """Delete a new session without messages. Otherwise it would be the most recent one."""
    with suppress(SessionTreeError):  # do not hide the result or the error of the run
        catalog.purge_unused(session, lambda tree: not len(tree))


def _warn_unreadable(session: Session) -> None:
    lines = pluralize(session.unreadable_lines, "unreadable line")
    warn(f"{lines} in this session, hidden from the model (run `sessiontree doctor {session.location}` for details)")


# Text and images of the prompt


def _build_prompt(words: Sequence[str]) -> tuple[str, list[JsonObject], bool]:
    """Return the text and images of the prompt, and whether it is a command.

    The text consists of the files, the words and the piped input, in this order. Only words can be a command.
    """
    from sessiontree.slash_commands.registry import parse_line

    files = [word[1:] for word in words if word.startswith("@")]
    typed = " ".join(word for word in words if not word.startswith("@"))
    attachments = [_read_attachment(path) for path in files]
    parts = [*(part for part in attachments if isinstance(part, str)), typed, _read_piped().rstrip("\n")]
    text = "\n\n".join(part for part in parts if part)
    images = [part for part in attachments if not isinstance(part, str)]
    if not text.strip() and not images:
        raise click.UsageError("empty prompt: give TEXT or pipe it in")
    return text, images, not attachments and parse_line(typed) is not None


def _read_attachment(path: str) -> str | JsonObject:
    from sessiontree.agent.tools.file_access import is_binary, read_image

    with open(path, "rb") as file:
        image = read_image(file, path)
        if image is not None:
            return image
        data = file.read()
    if is_binary(data):
        raise click.UsageError(f"{path}: not a text or image file")
    return f'<file path="{path}">\n{data.decode("utf-8", "replace")}\n</file>'


def _read_piped() -> str:
    """Read standard input if it is a pipe, a file or a socket. Never wait for a terminal."""
    stdin: Any = sys.stdin
    if stdin is None or stdin.isatty():
        return ""
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except OSError:  # a replacement object without a file descriptor
        return stdin.read()
    return stdin.read() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode) else ""


# The answer


def _run_and_report(
    running: RunningController, text: str, images: list[JsonObject], mode: str, *, is_command: bool
) -> int:
    from sessiontree.agent.run_writer import UnsavedMessages
    from sessiontree.model.base import ModelError
    from sessiontree.store.lock import has_stopped_waiting

    controller = running.controller
    printer = _JsonPrinter(controller.session.header) if mode == "json" else _TextPrinter()
    guard = _BrokenPipeGuard(controller, printer)
    controller.hooks.listen(guard.show)
    outcome = run_async(_run_until_signal(running, guard, text, images, is_command=is_command))
    if guard.broken:
        raise BrokenPipeError
    if outcome is None:
        return 0
    if outcome.aborted:
        return fail("aborted", STOPPED)
    if isinstance(outcome.error, UnsavedMessages):
        interrupted = isinstance(outcome.error.cause, LockTimeout) and has_stopped_waiting()
        text = str(outcome.error.build_exit_error("this output"))
        return fail(f"aborted: {text}", STOPPED) if interrupted else fail(text)
    if outcome.error is not None:
        return fail(str(outcome.error), MODEL_FAILED if isinstance(outcome.error, ModelError) else FAILED)
    return fail(outcome.stop_text) if outcome.cancelled else 0


async def _run_until_signal(
    running: RunningController, guard: _BrokenPipeGuard, text: str, images: list[JsonObject], *, is_command: bool
) -> Outcome | None:
    """Run the prompt. The first signal aborts the run, the second one ends the process."""
    import asyncio

    from sessiontree.slash_commands.controller import SubmitResult
    from sessiontree.store.lock import stop_waiting

    loop = asyncio.get_running_loop()
    signals = [
        number for number in ABORT_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
    ]  # for example under `nohup`

    def abort() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        stop_waiting()  # for a lock that another process holds
        running.controller.abort()

    try:
        for number in signals:
            loop.add_signal_handler(number, abort)
    except (RuntimeError, ValueError):  # not in the main thread, so signals are not ours to handle
        pass
    async with running as controller:
        await controller.wait_until_idle()  # an extension may have started a run during its setup
        if is_command:
            submitted = await controller.submit(text)
        else:
            submitted = SubmitResult(outcome=await controller.send_prompt(text, images))
        guard.end(submitted)
        outcome = submitted.outcome
        while (triggered := await controller.wait_for_triggered_run()) is not None:
            guard.end(SubmitResult(outcome=triggered))
            outcome = triggered
    return outcome


class _BrokenPipeGuard:
    """Passes events to a printer, and aborts the run if standard output is closed."""

    def __init__(self, controller: SessionController, printer: _JsonPrinter | _TextPrinter) -> None:
        self._controller = controller
        self._printer = printer
        self.broken = False

    def show(self, event: Event) -> None:
        self._print(partial(self._printer.show, event))

    def end(self, submitted: SubmitResult) -> None:
        self._print(partial(self._printer.end, submitted))

    def _print(self, write: Callable[[], None]) -> None:
        if self.broken:
            return
        try:
            write()
        except BrokenPipeError:
            self.broken = True
            self._controller.abort()


class _JsonPrinter:
    """Prints the session header and then one JSON event per line."""

    def __init__(self, header: Header) -> None:
        echo_json(read_object(header.raw))

    def show(self, event: Event) -> None:
        from sessiontree.hooks.events import encode_event

        wire = encode_event(event)
        if wire is not None:
            echo_json(wire)

    def end(self, submitted: SubmitResult) -> None:
        if submitted.text or submitted.editor_text:
            echo_json({"type": "command_end", "text": submitted.text, "editorText": submitted.editor_text})


class _TextPrinter:
    """Prints the answer: streamed on a terminal, otherwise the complete last message."""

    def __init__(self) -> None:
        self._is_streaming = sys.stdout.isatty()
        self._is_line_open = False
        """Whether the current line has no newline yet."""

    def show(self, event: Event) -> None:
        from sessiontree.hooks.events import CompactFailed, MessageDelta, MessageEnd, ToolStart

        match event:
            case MessageDelta(kind="text") if self._is_streaming:
                click.echo(escape_lines(event.text), nl=False)
                self._is_line_open = True
            case MessageEnd() if self._is_line_open:
                click.echo()
                self._is_line_open = False
            case ToolStart(call=call) if self._is_streaming:
                click.echo(dim(escape_line(f"{call.name} {call.arguments}")[:200]), err=True)
            case CompactFailed(error=error, aborted=False):
                warn(f"compaction failed: {error}")
            case _:
                print_notice(event)

    def end(self, submitted: SubmitResult) -> None:
        for text in filter(None, (submitted.text, submitted.editor_text)):
            click.echo(escape_lines(text))
        if submitted.outcome is None:
            return
        if not self._is_streaming and submitted.outcome.text:
            click.echo(escape_lines(submitted.outcome.text))
        if submitted.outcome.cut_off:
            warn("the answer was cut off at the output limit of the model")
