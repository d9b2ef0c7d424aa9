"""The tour: a real session made, branched, compared and forked before one's eyes."""

from __future__ import annotations

import os

import click

from sessiontree.cli.app import app
from sessiontree.cli.output import bold, dim, echo

TOUR = """\
# A session is a file. It exists from the first moment on.
new --name tour -o tour.jsonl
# Messages go to the head of the current branch.
append tour.jsonl --role user 'How do I make this faster?'
append tour.jsonl --role assistant 'A cache, or a dict?' --usage '{"input":900,"output":60,"cost":0.004}'
# A label is a bookmark.
label tour.jsonl HEAD two-ways
# Try one way on a branch of its own ...
branch tour.jsonl cache --description 'remember results'
append tour.jsonl --role assistant 'With a cache: 40 ms.' --usage '{"input":1500,"output":300,"cost":0.05}'
# ... and another way from the same place.
branch tour.jsonl dict --at two-ways --description 'look up by key'
append tour.jsonl --role assistant 'With a dict: 25 ms.' --usage '{"input":1200,"output":200,"cost":0.03}'
# The tree keeps both.
tree tour.jsonl
# What did each cost, from where they part?
compare tour.jsonl cache dict
# Going back is one command; so is changing one's mind.
navigate tour.jsonl two-ways
undo tour.jsonl
# What does the model see, and why?
context tour.jsonl --explain
# A fork is a session of its own.
fork tour.jsonl --at cache --name 'cache only' -o cache.jsonl
# Nothing is wrong with any of it.
doctor tour.jsonl
"""

MODEL_TOUR = """\
# A small model that runs here answers. Any other would: `sessiontree models` lists them.
prompt 'In one sentence: what is a cache?' --session tour.jsonl --model local --no-tools
# Leave that behind, with a summary that the model makes of it.
navigate tour.jsonl two-ways --summarize --model local
tree tour.jsonl
"""


@app.command(epilog="\b\nExample:\n  sessiontree demo --app")
@click.option("--app", "open_app", is_flag=True, help="Open the app on the tour's session, once it was played.")
@click.pass_context
def demo(ctx: click.Context, open_app: bool) -> None:
    """Play a short tour with a real session in a temporary place."""
    import shlex
    import tempfile

    from sessiontree.model import local_model

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
    echo(f"The files are in {directory}: look at them, they are plain JSON lines.")
    if open_app:
        run_line("chat --session tour.jsonl" + (" --model local" if has_model else ""))
