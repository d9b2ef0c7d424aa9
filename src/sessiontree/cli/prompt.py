"""Prompting without a terminal: `sessiontree -p`. One prompt, one answer, as text or as events for programs."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from sessiontree import catalog
from sessiontree.cli.app import app, branch_option, opened, tell_set_aside
from sessiontree.cli.output import dim, echo_json, safe, safe_lines
from sessiontree.core.entries import Header, JsonObject
from sessiontree.core.messages import image
from sessiontree.errors import NotFound, SessionTreeError
from sessiontree.format.codec import read_object
from sessiontree.session import Branch, Session

if TYPE_CHECKING:
    from sessiontree.agent.agent import Agent
    from sessiontree.agent.loop import Outcome
    from sessiontree.agent.tool import Tool
    from sessiontree.config import Config
    from sessiontree.hooks.bus import Hooks
    from sessiontree.hooks.events import Event
    from sessiontree.model.base import Model

FAILED, MODEL_FAILED, ABORTED = 1, 3, 130
"""Exit codes."""

LEVELS = ("off", "minimal", "low", "medium", "high", "xhigh")


@app.command(
    epilog='\b\nExamples:\n  sessiontree -p "What is in this folder?"\n'
    '  git diff | sessiontree -p -c "Is this right?" @src/app.py\n'
    '  sessiontree -p --mode json --model openai:gpt-5.5 "List the tests"'
)
@click.argument("words", nargs=-1, metavar="[TEXT | @FILE]...")
@click.option("-c", "--continue", "recent", is_flag=True, help="Go on in the most recent session of this folder.")
@click.option("--session", metavar="SESSION", help="Go on in this session.")
@click.option("--fork", metavar="SESSION", help="Go on in a copy of this session's path.")
@click.option("--no-session", is_flag=True, help="Keep nothing.")
@branch_option("--branch", help="The branch to go on; the current one by default.")
@click.option(
    "--model", metavar="NAME", help="The model, as provider:model; the session's or the usual one by default."
)
@click.option("--thinking", type=click.Choice(LEVELS), help="How much the model thinks before it answers.")
@click.option("--tools", metavar="NAMES", help="Which built-in tools it may use, with commas between; all by default.")
@click.option("--no-tools", is_flag=True, help="It may use no tools.")
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
    mode: str,
) -> int:
    """Prompt the model once and print its answer. `sessiontree -p` is short for it.

    What is piped in follows the text. Exit codes: 0, 1 for an error, 3 when the model failed, 130 when aborted.
    """
    if sum(map(bool, (recent, session, fork, no_session))) > 1:
        raise click.UsageError("give one of --continue, --session, --fork and --no-session")
    if tools is not None and no_tools:
        raise click.UsageError("give --tools or --no-tools")
    if branch is not None and no_session:
        raise click.UsageError("--branch needs a session")
    from sessiontree import config
    from sessiontree.agent.agent import Agent
    from sessiontree.hooks.bus import Hooks
    from sessiontree.model.find import NoModel

    text, images = _prompt(words)
    chosen = () if no_tools else _tools(tools)
    settings, hooks = config.load(), Hooks()
    source: Session | None = None
    if recent or session or fork or branch:
        source = opened(fork or session or catalog.RECENT, read_only=fork is not None)
    before = None if source is None else source.head if branch is None else source.branch(branch)
    try:
        asked = chosen_model(model, before, settings, hooks)
    except NoModel as error:
        return _failed(error, MODEL_FAILED)
    if source is not None and fork is not None:
        target = catalog.fork(source, at=branch or "HEAD")
    else:
        target = source or (catalog.memory(cwd=os.getcwd()) if no_session else catalog.create())
    level = thinking or (None if source is not None else settings.thinking)
    with target:
        on = before if before is not None and target is source else target.head
        code = _answer(Agent(on, asked, chosen, hooks, settings=settings, thinking=level), text, images, mode)
        tell_set_aside(target)
    return code


def _tools(names: str | None) -> tuple[Tool, ...]:
    from sessiontree.agent.tools import builtin_tools

    return builtin_tools() if names is None else builtin_tools(*filter(None, map(str.strip, names.split(","))))


# What is said


def _prompt(words: Sequence[str]) -> tuple[str, list[JsonObject]]:
    """The text and the images of the prompt: files first, then what was typed, then what was piped in."""
    files = [word[1:] for word in words if word.startswith("@")]
    typed = " ".join(word for word in words if not word.startswith("@"))
    included = [_included(path) for path in files]
    parts = [*(part for part in included if isinstance(part, str)), typed, _piped().rstrip("\n")]
    text = "\n\n".join(part for part in parts if part)
    if not text.strip():
        raise click.UsageError("there is nothing to say: give a TEXT, or pipe one in")
    return text, [part for part in included if not isinstance(part, str)]


def _included(path: str) -> str | JsonObject:
    from sessiontree.agent.tools.files import image_type, is_binary

    with open(path, "rb") as file:
        data = file.read()
    media = image_type(data)
    if media is not None:
        return image(data, media)
    if is_binary(data):
        raise click.UsageError(f"{path} is neither text nor an image")
    return f'<file path="{path}">\n{data.decode("utf-8", "replace")}\n</file>'


def _piped() -> str:
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


def _answer(agent: Agent, text: str, images: list[JsonObject], mode: str) -> int:
    import asyncio

    from sessiontree.model.base import ModelError

    printer = _Events(agent.branch.session.header) if mode == "json" else _Text()
    guard = _Guard(agent, printer)
    agent.hooks.listen(guard.show)
    outcome = asyncio.run(_run(agent, text, images))
    if guard.broken:
        raise BrokenPipeError
    printer.end(outcome)
    if outcome.aborted:
        return _failed("aborted", ABORTED)
    if outcome.error is not None:
        return _failed(outcome.error, MODEL_FAILED if isinstance(outcome.error, ModelError) else FAILED)
    return _failed("a handler did not let it happen", FAILED) if outcome.cancelled else 0


async def _run(agent: Agent, text: str, images: list[JsonObject]) -> Outcome:
    """Run, and abort at the first signal; a second one ends the program."""
    import asyncio

    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def give_up() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        agent.abort()

    try:
        for number in signals:
            loop.add_signal_handler(number, give_up)
    except (RuntimeError, ValueError):  # not in the main thread: somebody else's signals
        pass
    return await agent.prompt(text, images)


def _failed(error: SessionTreeError | str, code: int) -> int:
    click.echo(f"sessiontree: {safe(str(error))}", err=True)
    return code


def chosen_model(name: str | None, branch: Branch | None, settings: Config, hooks: Hooks) -> Model:
    """The model that was named, or that the session had, or the usual one; it tries again what may pass."""
    from sessiontree.hooks.events import RetryScheduled
    from sessiontree.model.find import NoModel, find
    from sessiontree.model.retry import Retry, Retrying

    def told(retry: Retry) -> None:
        hooks.show(RetryScheduled(attempt=retry.attempt, delay=retry.delay, error=str(retry.error)))

    state = None if branch is None else branch.context().state
    known = state is not None and state.provider not in (None, "unknown") and state.model is not None
    before = f"{state.provider}:{state.model}" if state is not None and known else None
    try:
        found = find(name or before, settings)
    except (NoModel, NotFound) as error:
        if name is not None or before is None:
            raise
        click.echo(f"sessiontree: {safe(str(error))}; going on with the usual model", err=True)
        found = find(None, settings)
    return Retrying(found, attempts=settings.retry.attempts, base_delay=settings.retry.base_delay, on_retry=told)


class _Guard:
    """Shows events to a printer. When nobody takes what it prints any more, the run is given up."""

    def __init__(self, agent: Agent, printer: _Events | _Text) -> None:
        self._agent = agent
        self._printer = printer
        self.broken = False

    def show(self, event: Event) -> None:
        if self.broken:
            return
        try:
            self._printer.show(event)
        except BrokenPipeError:
            self.broken = True
            self._agent.abort()


class _Events:
    """Every event a line, after the header of the session."""

    def __init__(self, header: Header) -> None:
        echo_json(read_object(header.raw))

    def show(self, event: Event) -> None:
        from sessiontree.agent.wire import event_to_wire

        wire = event_to_wire(event)
        if wire is not None:
            echo_json(wire)

    def end(self, outcome: Outcome) -> None:
        pass


class _Text:
    """The answer: on a terminal all that is said, as it comes; otherwise the last message, when it is whole."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._open = False
        """Whether a line was begun."""

    def show(self, event: Event) -> None:
        from sessiontree.hooks.events import MessageDelta, MessageEnd, Notice, RetryScheduled, ToolStart

        match event:
            case MessageDelta(kind="text") if self._live:
                click.echo(safe_lines(event.text), nl=False)
                self._open = True
            case MessageEnd() if self._open:
                click.echo()
                self._open = False
            case ToolStart(call=call) if self._live:
                click.echo(dim(safe(f"{call.name} {call.arguments}")[:200]), err=True)
            case Notice(text=text):
                click.echo(f"sessiontree: {safe(text)}", err=True)
            case RetryScheduled(error=error, delay=delay):
                click.echo(f"sessiontree: {safe(error)}; trying again in {delay:.0f} s", err=True)
            case _:
                pass

    def end(self, outcome: Outcome) -> None:
        if not self._live and outcome.text:
            click.echo(safe_lines(outcome.text))
