"""Prompting without a terminal: `sessiontree -p`. One prompt, one answer, as text or as events for programs."""

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
import msgspec

from sessiontree.cli.agent_setup import RunningController, StderrUi, cwd_option, extension_option, print_notice
from sessiontree.cli.app import (
    FAILED,
    MODEL_FAILED,
    STOPPED,
    app,
    branch_option,
    fail,
    open_session,
    run_async,
    session_option,
    warn_set_aside,
)
from sessiontree.cli.output import dim, echo_json, escape_line, escape_lines, warn
from sessiontree.cli.permissions import load_options, permission_options, print_denials
from sessiontree.config import CHOICES
from sessiontree.core.entries import Header, JsonObject
from sessiontree.core.number_text import pluralize
from sessiontree.errors import LockTimeout, SessionTreeError
from sessiontree.format.codec import read_object
from sessiontree.library import catalog
from sessiontree.session import Branch, Session

if TYPE_CHECKING:
    from sessiontree.agent.loop import Outcome
    from sessiontree.agent.tool import Tool
    from sessiontree.commands.controller import SessionController, SubmitResult
    from sessiontree.config import Config, PermissionMode
    from sessiontree.hooks.bus import Hooks
    from sessiontree.hooks.events import Event
    from sessiontree.model.base import Model

ABORT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""That abort the run."""


@app.command(
    epilog='\b\nExamples:\n  sessiontree -p "What is in this folder?"\n'
    '  git diff | sessiontree -p -c "Is this right?" @src/app.py\n'
    '  sessiontree -p --mode json --model openai:gpt-5.5 "List the tests"'
)
@click.argument("words", nargs=-1, metavar="[TEXT | @FILE]...")
@click.option("-c", "--continue", "recent", is_flag=True, help="Go on in the most recent session of this folder.")
@session_option("--session", help="Go on in this session.")
@session_option("--fork", help="Go on in a copy of this session's path.")
@click.option("--no-session", is_flag=True, help="Keep nothing.")
@branch_option("--branch", help="The branch to go on; the current one by default.")
@click.option(
    "--model", metavar="NAME", help="The model, as provider:model; the session's or the usual one by default."
)
@click.option("--thinking", type=click.Choice(CHOICES["thinking"]), help="How much the model thinks before it answers.")
@click.option("--tools", metavar="NAMES", help="Which built-in tools it may use, with commas between; all by default.")
@click.option("--no-tools", is_flag=True, help="It may use none of them.")
@cwd_option
@permission_options
@extension_option
@click.option(
    "--mode", type=click.Choice(["text", "json"]), default="text", help="Print the answer, or every event a line."
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
    tools: str | None,
    no_tools: bool,
    cwd: str | None,
    permission_mode: PermissionMode | None,
    allow: tuple[str, ...],
    extensions: tuple[str, ...],
    mode: str,
) -> int:
    """Prompt the model once and print its answer. `sessiontree -p` is short for it.

    A text that begins with a slash is a command: `/help` lists them. What is piped in follows the text.

    The model may read files of this folder. What else it may do, --allow and --permission-mode say, and the user's
    rules; what was denied is told at the end.

    Exit codes: 0, 1 for an error, 3 when the model failed, 130 when aborted.
    """
    if sum(map(bool, (recent, session, fork, no_session))) > 1:
        raise click.UsageError("give one of --continue, --session, --fork and --no-session")
    if branch is not None and no_session:
        raise click.UsageError("--branch needs a session")
    from sessiontree import config
    from sessiontree.commands.controller import SessionController
    from sessiontree.hooks.bus import Hooks
    from sessiontree.model.selection import NoModel

    text, images, is_command = _build_prompt(words)
    chosen = select_tools(tools, no_tools)
    settings, hooks = config.load(), Hooks()
    options = load_options(settings, permission_mode, allow, tools=chosen, cwd=cwd)
    source: Session | None = None
    if recent or session or fork or branch:
        source = open_session(fork or session or catalog.RECENT_ALIAS, read_only=fork is not None)
    before = None if source is None else source.head if branch is None else source.branch(branch)
    asked: Model | None = None
    no_model: str | None = None
    try:
        asked = select_model(model, before, settings, hooks)
    except NoModel as error:
        if not is_command:
            return fail(str(error), MODEL_FAILED)
        no_model = str(error)
    if source is not None and fork is not None:
        target = catalog.fork(source, at=branch or "HEAD")
    else:
        folder = os.path.abspath(cwd or ".")
        target = source or (catalog.memory(cwd=folder) if no_session else catalog.create(cwd=folder))
    level = thinking or (settings.thinking if before is None or before.leaf is None else None)
    if target.unreadable_lines:
        _warn_unread(target)
    if thinking not in (None, "off") and asked is not None and not asked.info.thinking:
        warn(f"{asked.info.name} does not think, so --thinking does nothing")
    try:
        with target:
            on = before if before is not None and target is source else target.head
            desk = SessionController(
                target,
                branch=on,
                model=asked,
                options=msgspec.structs.replace(options, thinking=level),
                hooks=hooks,
                ui=StderrUi(),
            )
            desk.no_model_message = no_model or desk.no_model_message
            code = _run_and_report(RunningController(desk, extensions), text, images, mode, is_command=is_command)
            warn_set_aside(target)
    finally:
        print_denials(options.permissions)
        if source is None and not no_session:
            _drop_if_unused(target)
    return code


def _drop_if_unused(session: Session) -> None:
    """Remove a new session in which nothing was said: it would be the most recent one."""
    from sessiontree.library import trash

    with suppress(SessionTreeError):  # what was asked for is done, or why it was not is what matters
        trash.purge_unused(session, lambda tree: not len(tree))


def _warn_unread(session: Session) -> None:
    lines, it = pluralize(session.unreadable_lines, "line"), "it" if session.unreadable_lines == 1 else "them"
    message = f"{lines} of this session cannot be read, so the model does not see {it}"
    warn(f"{message} (`sessiontree doctor {session.location}` tells more)")


def select_tools(names: str | None, none: bool) -> tuple[Tool, ...]:
    """The built-in tools of these names, or all."""
    from sessiontree.agent.tools import builtin_tools

    if names is not None and none:
        raise click.UsageError("give --tools or --no-tools")
    if none:
        return ()
    return builtin_tools() if names is None else builtin_tools(*filter(None, map(str.strip, names.split(","))))


# What is said


def _build_prompt(words: Sequence[str]) -> tuple[str, list[JsonObject], bool]:
    """The text and the images of the prompt: files first, then what was typed, then what was piped in.

    And whether it is a command, which only what was typed can be.
    """
    from sessiontree.commands.registry import parse_line as called

    files = [word[1:] for word in words if word.startswith("@")]
    typed = " ".join(word for word in words if not word.startswith("@"))
    included = [_read_attachment(path) for path in files]
    parts = [*(part for part in included if isinstance(part, str)), typed, _read_piped().rstrip("\n")]
    text = "\n\n".join(part for part in parts if part)
    images = [part for part in included if not isinstance(part, str)]
    if not text.strip() and not images:
        raise click.UsageError("there is nothing to say: give a TEXT, or pipe one in")
    return text, images, not included and called(typed) is not None


def _read_attachment(path: str) -> str | JsonObject:
    from sessiontree.agent.tools.file_access import is_binary, read_image

    with open(path, "rb") as file:
        image = read_image(file, path)
        if image is not None:
            return image
        data = file.read()
    if is_binary(data):
        raise click.UsageError(f"{path} is neither text nor an image")
    return f'<file path="{path}">\n{data.decode("utf-8", "replace")}\n</file>'


def _read_piped() -> str:
    """What is piped in, or comes from a file; nobody is waited for who might type."""
    stdin: Any = sys.stdin
    if stdin is None or stdin.isatty():
        return ""
    try:
        mode = os.fstat(stdin.fileno()).st_mode
    except OSError:  # it is no file, but was put in its place
        return stdin.read()
    return stdin.read() if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode) else ""


# The answer


def _run_and_report(
    working: RunningController, text: str, images: list[JsonObject], mode: str, *, is_command: bool
) -> int:
    from sessiontree.agent.unsaved_messages import UnsavedMessages
    from sessiontree.model.base import ModelError
    from sessiontree.store.lock_wait import has_stopped_waiting

    desk = working.controller
    printer = _JsonPrinter(desk.session.header) if mode == "json" else _TextPrinter()
    guard = _BrokenPipeGuard(desk, printer)
    desk.hooks.listen(guard.show)
    outcome = run_async(_run_until_signal(working, guard, text, images, is_command=is_command))
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
    return fail("a handler did not let it happen") if outcome.cancelled else 0


async def _run_until_signal(
    working: RunningController, guard: _BrokenPipeGuard, text: str, images: list[JsonObject], *, is_command: bool
) -> Outcome | None:
    """Run, and abort at the first signal; a second one ends the program."""
    import asyncio

    from sessiontree.commands.controller import SubmitResult
    from sessiontree.store.lock_wait import stop_waiting

    loop = asyncio.get_running_loop()
    signals = [
        number for number in ABORT_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
    ]  # as `nohup` has it

    def abort() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        stop_waiting()  # for a lock that another process keeps
        working.controller.abort()

    try:
        for number in signals:
            loop.add_signal_handler(number, abort)
    except (RuntimeError, ValueError):  # not in the main thread: somebody else's signals
        pass
    async with working as desk:
        await desk.wait_until_idle()  # an extension may have triggered a run when it was set up
        if is_command:
            submitted = await desk.submit(text)
        else:
            submitted = SubmitResult(outcome=await desk.agent.prompt(text, images))
        guard.end(submitted)
        outcome = submitted.outcome
        while (triggered := await desk.wait_for_triggered_run()) is not None:
            guard.end(SubmitResult(outcome=triggered))
            outcome = triggered
    return outcome


def select_model(name: str | None, branch: Branch | None, settings: Config, hooks: Hooks) -> Model:
    """The model that was named, or that the session had, or the usual one; it tries again what may pass."""
    from sessiontree.commands.models import ConfiguredModels, choose_model

    found, warning = choose_model(ConfiguredModels(settings, hooks), name, None if branch is None else branch.state)
    if warning is not None:
        warn(warning)
    return found


class _BrokenPipeGuard:
    """Shows events to a printer. When nobody takes what it prints any more, the run is given up."""

    def __init__(self, desk: SessionController, printer: _JsonPrinter | _TextPrinter) -> None:
        self._controller = desk
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
    """Every event a line, after the header of the session."""

    def __init__(self, header: Header) -> None:
        echo_json(read_object(header.raw))

    def show(self, event: Event) -> None:
        from sessiontree.hooks.event_json import encode_event

        wire = encode_event(event)
        if wire is not None:
            echo_json(wire)

    def end(self, submitted: SubmitResult) -> None:
        if submitted.text or submitted.editor_text:
            echo_json({"type": "command_end", "text": submitted.text, "editorText": submitted.editor_text})


class _TextPrinter:
    """The answer: on a terminal all that is said, as it comes; otherwise the last message, when it is whole."""

    def __init__(self) -> None:
        self._is_streaming = sys.stdout.isatty()
        self._is_line_open = False
        """Whether a line was begun."""

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
                warn(f"the conversation could not be compacted: {error}")
            case _:
                print_notice(event)

    def end(self, submitted: SubmitResult) -> None:
        for said in filter(None, (submitted.text, submitted.editor_text)):
            click.echo(escape_lines(said))
        if submitted.outcome is None:
            return
        if not self._is_streaming and submitted.outcome.text:
            click.echo(escape_lines(submitted.outcome.text))
        if submitted.outcome.cut_off:
            warn("the answer was cut off at the length that the model may write")
