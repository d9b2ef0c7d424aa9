"""Fanning out from the shell: one place continued in several ways at once."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import click
import msgspec

from sessiontree.cli.agent_setup import RunningController, StderrUi, cwd_option, extension_option, print_notice
from sessiontree.cli.app import (
    MODEL_FAILED,
    app,
    format_id,
    json_option,
    open_session,
    place_option,
    run_async,
    session_argument,
    warn_set_aside,
)
from sessiontree.cli.output import bold, echo, echo_json, escape_line, escape_lines, warn
from sessiontree.cli.permissions import load_options, permission_options, print_denials

if TYPE_CHECKING:
    from sessiontree.agent.fan_out import Attempt, Variant
    from sessiontree.config import PermissionMode


@app.command(
    "fan-out",
    epilog='\b\nExamples:\n  sessiontree fan-out @ --prompt "Try a cache." --prompt "Try a table."\n'
    "  sessiontree fan-out @ --at HEAD~1 --model openai:gpt-5.5 --model anthropic:claude-sonnet-5",
)
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="The place to go on from.")
@click.option("--prompt", "prompts", metavar="TEXT", multiple=True, help="What is said there; may be given again.")
@click.option("--model", "models", metavar="NAME", multiple=True, help="A model that goes on; may be given again.")
@click.option("--name", "names", metavar="NAME", multiple=True, help="A name for each branch, in their order.")
@click.option(
    "--tools", metavar="NAMES", help="Which built-in tools they may use, with commas between; all by default."
)
@click.option("--no-tools", is_flag=True, help="They may use none of them.")
@cwd_option
@permission_options
@extension_option
@json_option
def fan_out(
    session: str,
    at: str,
    prompts: tuple[str, ...],
    models: tuple[str, ...],
    names: tuple[str, ...],
    tools: str | None,
    no_tools: bool,
    cwd: str | None,
    permission_mode: PermissionMode | None,
    allow: tuple[str, ...],
    extensions: tuple[str, ...],
    as_json: bool,
) -> int:
    """Go on from one place in several ways at once, each on a branch of its own.

    Every prompt goes to every model. Without a prompt, the models answer what is there. The current branch stays where
    it is; `promote` makes one of the others the way on.
    """

    from sessiontree import config
    from sessiontree.agent.fan_out import Variant
    from sessiontree.cli.prompt import select_model, select_tools
    from sessiontree.commands.controller import SessionController
    from sessiontree.hooks.bus import Hooks

    pairs = list(product(prompts or (None,), models or (None,)))
    if names and len(names) != len(pairs):
        raise click.UsageError(f"every way to go on takes one --name: {len(pairs)} in all, not {len(names)}")
    settings, hooks = config.load(), Hooks()
    options = load_options(settings, permission_mode, allow, tools=select_tools(tools, no_tools), cwd=cwd)
    with open_session(session) as changed:
        asked = {name: select_model(name, changed.head, settings, hooks) for _, name in pairs}
        desk = SessionController(
            changed,
            model=asked[pairs[0][1]],
            options=options,
            hooks=hooks,
            ui=StderrUi(),
        )
        variants = [
            Variant(prompt=prompt, model=asked[name], name=branch)
            for (prompt, name), branch in zip(pairs, names or [None] * len(pairs), strict=True)
        ]
        attempts = run_async(_run_variants(RunningController(desk, extensions), at, variants))
        warn_set_aside(changed)
        for attempt, variant in zip(attempts, variants, strict=True):
            _print_attempt(attempt, variant, as_json=as_json)
        print_denials(options.permissions)
    return 0 if all(attempt.outcome.ok for attempt in attempts) else MODEL_FAILED


async def _run_variants(working: RunningController, at: str, variants: list[Variant]) -> list[Attempt]:
    from sessiontree.agent.fan_out import fan_out as continue_in_each
    from sessiontree.hooks.events import Event, Notice

    def watch(branch: str, event: Event) -> None:
        if isinstance(event, Notice):
            warn(f"{branch}: {event.text}")

    working.controller.hooks.listen(print_notice)
    async with working as desk:
        return await continue_in_each(
            desk.session,
            at,
            variants,
            options=msgspec.structs.replace(desk.options, tools=desk.tools, cwd=desk.cwd),
            hooks=desk.hooks,
            watch=watch,
        )


def _print_attempt(attempt: Attempt, variant: Variant, *, as_json: bool) -> None:
    outcome, branch = attempt.outcome, attempt.branch
    model = None if variant.model is None else variant.model.info.name
    error = str(outcome.error) if outcome.error else "cancelled" if outcome.cancelled else None
    if as_json:
        wire = {"branch": branch.name, "head": branch.leaf, "prompt": variant.prompt, "model": model}
        echo_json({**wire, "text": outcome.text, "error": error})
        return
    echo(bold(escape_line(branch.name)), escape_line(f"{format_id(branch.leaf)}  {model}"))
    click.echo(escape_lines(outcome.text if error is None else f"failed: {error}"))
