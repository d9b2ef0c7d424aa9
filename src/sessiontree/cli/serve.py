"""The commands of the server: serving sessions over HTTP with the page, and the tokens that let others in."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

import click

from sessiontree.cli.app import app, json_option
from sessiontree.cli.output import dim, echo, echo_json, safe, table
from sessiontree.commands.text import local_time
from sessiontree.core.times import iso
from sessiontree.errors import InvalidOperation
from sessiontree.home import home
from sessiontree.store.files import make_private_directory, write_private

if TYPE_CHECKING:
    from sessiontree.web.listening import Server
    from sessiontree.web.tokens import Scope

PORT = 7373


@app.command(
    epilog="\b\nExamples:\n  sessiontree serve\n  sessiontree serve --port 8080 --allow-run --open\n"
    "  sessiontree serve --host 0.0.0.0 --allow-remote --name tower.local"
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--allow-remote", is_flag=True, help="Listen where other machines can reach it.")
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="A further name that it goes by, perhaps with a port; may be given again.",
)
@click.option(
    "--project",
    "projects",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="Agents of sessions in this folder work there, as in the current one; may be given again.",
)
@click.option("--allow-run", is_flag=True, help="Let requests run agents, which use tools and spend money.")
@click.option("--open", "open_", is_flag=True, help="Open the page in a browser.")
def serve(
    host: str,
    port: int,
    allow_remote: bool,
    names: tuple[str, ...],
    projects: tuple[str, ...],
    allow_run: bool,
    open_: bool,
) -> None:
    """Serve sessions over HTTP, with a page to look at them.

    A token is made at the start and is part of the link that is printed; nobody is answered without one. Ctrl-C ends
    the server, and what runs in it.
    """
    try:
        from sessiontree.web.app import create_app
        from sessiontree.web.listening import Server, bound
    except ModuleNotFoundError as error:
        raise InvalidOperation("serving needs the extra: pip install 'sessiontree[web]'") from error
    from sessiontree.web.guard import Limits, check_host, check_name, hosts_of
    from sessiontree.web.tokens import SCOPES, Tokens, make, token_file

    check_host(host, allow_remote=allow_remote)
    for name in names:
        check_name(name)
    listening = bound(host, port)
    port = listening.getsockname()[1]
    own = make(SCOPES, created=iso(time.time_ns() // 1_000_000))
    tokens = Tokens([own.token])
    tokens.kept()  # a file that does not tell is said now, not at the first request
    hosts = hosts_of(host, port, [*names, *([socket.gethostname()] if allow_remote else [])])
    limits = Limits()
    link = f"http://{_shown(host)}:{port}/#token={own.secret}"
    file = token_file(port)
    page = f"{file}.html"

    def ready() -> None:
        echo("serving at", link)
        echo(dim(f"agents run: {'yes' if allow_run else 'no (--allow-run lets them)'}; Ctrl-C ends it"))
        sys.stdout.flush()
        if open_:
            # By way of a file: what a browser is started with, others on this machine can see.
            write_private(page, f'<meta http-equiv="refresh" content="0; url={link}">\n'.encode())
            click.launch(page)

    make_private_directory(home())
    write_private(file, own.secret.encode() + b"\n")
    try:
        made = create_app(hosts=hosts, tokens=tokens, limits=limits, allow_run=allow_run, projects=projects)
        server = Server(made, limits, ready)
        with contextlib.suppress(KeyboardInterrupt), _ended_by_signals(server):
            server.run(sockets=[listening])
    finally:
        listening.close()
        for path in (file, page):
            with contextlib.suppress(OSError):
                os.unlink(path)
    echo("stopped")


@contextlib.contextmanager
def _ended_by_signals(server: Server) -> Generator[None]:
    """Have the server end cleanly at a signal. It does so itself at SIGTERM, but gives that again when it has ended."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def hung_up(*_: object) -> None:
        server.handle_exit(signal.SIGTERM, None)

    wanted = {signal.SIGTERM: stop, signal.SIGHUP: hung_up}
    ignored = [number for number in wanted if signal.getsignal(number) is signal.SIG_IGN]  # as `nohup` has it
    before = {number: signal.signal(number, handler) for number, handler in wanted.items() if number not in ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _shown(host: str) -> str:
    """The host as it stands in an address that can be opened here."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


@app.group(
    epilog="\b\nExamples:\n  sessiontree token create --scope read --project .\n  sessiontree token ls\n"
    "  sessiontree token revoke 1f2e3d4c"
)
def token() -> None:
    """Make, list and revoke tokens for the server."""


@token.command(epilog="\b\nExample:\n  sessiontree token create --scope read --scope write --project ~/project")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice(["read", "write", "run"]),
    help="What it may do; read by default.",
)
@click.option(
    "--project",
    "projects",
    multiple=True,
    type=click.Path(file_okay=False),
    help="Only sessions of this folder; may be given again.",
)
@json_option
def create(scopes: tuple[Scope, ...], projects: tuple[str, ...], as_json: bool) -> None:
    """Make a token that lasts until it is revoked. It is shown once."""
    from sessiontree.web.tokens import Tokens, make

    made = make(scopes or ("read",), projects or None, created=iso(time.time_ns() // 1_000_000))
    Tokens().add(made.token)
    if as_json:
        echo_json(
            {"id": made.token.id, "token": made.secret, "scopes": made.token.scopes, "projects": made.token.projects}
        )
    else:
        of = () if made.token.projects is None else map(safe, made.token.projects)
        echo(made.secret, dim(", ".join((made.token.id, *made.token.scopes, *of))))


@token.command(epilog="\b\nExample:\n  sessiontree token ls --json")
@json_option
def ls(as_json: bool) -> None:
    """List the tokens that last, without what is secret of them."""
    from sessiontree.web.tokens import Tokens

    kept = Tokens().kept()
    if as_json:
        for one in kept:
            echo_json({"id": one.id, "scopes": one.scopes, "projects": one.projects, "created": one.created})
        return
    rows = [["token", "made", "scopes", "projects"]]
    for one in kept:
        projects = "all" if one.projects is None else ", ".join(one.projects)
        rows.append([safe(one.id), safe(local_time(one.created)), ", ".join(one.scopes), safe(projects)])
    if kept:
        table(rows)
    else:
        echo(dim("no tokens"))


@token.command(epilog="\b\nExample:\n  sessiontree token revoke 1f2e3d4c")
@click.argument("id", metavar="TOKEN")
@json_option
def revoke(id: str, as_json: bool) -> None:
    """Revoke a token by its short name: a server that runs refuses it from now on."""
    from sessiontree.web.tokens import Tokens

    gone = Tokens().revoke(id)
    if as_json:
        echo_json({"revoked": gone.id})
    else:
        echo("revoked", safe(gone.id))
