"""The command `fan-out`, which continues one place in several ways, once each."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import click
import msgspec

from sessiontree.cli.agent_setup import AgentFlags, RunningController, agent_options, print_denials, print_notice
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

if TYPE_CHECKING:
    from sessiontree.agent.fan_out import Attempt, Variant


@app.command(
    "fan-out",
    epilog='\b\nExamples:\n  sessiontree fan-out @ --prompt "Try a cache." --prompt "Try a table."\n'
    "  sessiontree fan-out @ --at HEAD~1 --model openai:gpt-5.5 --model anthropic:claude-sonnet-5",
)
@session_argument
@place_option("--at", default="HEAD", show_default=True, help="Place to continue from.")
@click.option("--prompt", "prompts", metavar="TEXT", multiple=True, help="User message to send there; repeatable.")
@click.option("--model", "models", metavar="NAME", multiple=True, help="Model to continue with; repeatable.")
@click.option("--name", "names", metavar="NAME", multiple=True, help="Name of a branch; give one for each, in order.")
@agent_options
@json_option
def fan_out(
    session: str,
    at: str,
    prompts: tuple[str, ...],
    models: tuple[str, ...],
    names: tuple[str, ...],
    agents: AgentFlags,
    as_json: bool,
) -> int:
    """Continue one place in several ways at once, each on its own branch.

    Every prompt goes to every model. Without a prompt, the models answer the last message. The current branch does not
    move; use `promote` to continue from one of the others.
    """
    from sessiontree.agent.fan_out import Variant

    pairs = list(product(prompts or (None,), models or (None,)))
    if names and len(names) != len(pairs):
        raise click.UsageError(f"--name: expected {len(pairs)}, one for each branch, not {len(names)}")
    setup = agents.set_up()
    setup.hooks.listen(print_notice)
    with open_session(session) as opened:
        selected = {name: setup.select_model(name, opened.head) for _, name in pairs}
        variants = [
            Variant(prompt=prompt, model=selected[name], name=branch)
            for (prompt, name), branch in zip(pairs, names or [None] * len(pairs), strict=True)
        ]
        attempts = run_async(_run_variants(setup.attach(opened, model=selected[pairs[0][1]]), at, variants))
        warn_set_aside(opened)
        for attempt, variant in zip(attempts, variants, strict=True):
            _print_attempt(attempt, variant, as_json=as_json)
        print_denials(setup.permissions)
    return 0 if all(attempt.outcome.ok for attempt in attempts) else MODEL_FAILED


async def _run_variants(running: RunningController, at: str, variants: list[Variant]) -> list[Attempt]:
    from sessiontree.agent.fan_out import fan_out as run_fan_out
    from sessiontree.hooks.events import Event, Notice

    def watch(branch: str, event: Event) -> None:
        if isinstance(event, Notice):
            warn(f"{branch}: {event.text}")

    async with running as controller:
        return await run_fan_out(
            controller.session,
            at,
            variants,
            options=msgspec.structs.replace(controller.options, tools=controller.tools, cwd=controller.cwd),
            hooks=controller.hooks,
            watch=watch,
        )


def _print_attempt(attempt: Attempt, variant: Variant, *, as_json: bool) -> None:
    outcome, branch = attempt.outcome, attempt.branch
    model = variant.model if variant.model is None or isinstance(variant.model, str) else variant.model.info.name
    error = str(outcome.error) if outcome.error else "cancelled" if outcome.cancelled else None
    if as_json:
        wire = {"branch": branch.name, "head": branch.leaf, "prompt": variant.prompt, "model": model}
        echo_json({**wire, "text": outcome.text, "error": error})
        return
    echo(bold(escape_line(branch.name)), escape_line(f"{format_id(branch.leaf)}  {model}"))
    click.echo(escape_lines(outcome.text if error is None else f"failed: {error}"))
