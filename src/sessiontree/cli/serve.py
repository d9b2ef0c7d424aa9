"""The `serve` and `token` commands: serve sessions over HTTP, and manage links and tokens."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import click

from sessiontree import config
from sessiontree.cli.agent_setup import build_permissions, permission_options, project_option
from sessiontree.cli.app import F, app, json_option
from sessiontree.cli.output import dim, echo, echo_json, escape_line, print_table
from sessiontree.config import PermissionMode
from sessiontree.core.entries import JsonObject
from sessiontree.errors import InvalidOperation
from sessiontree.home import get_home
from sessiontree.slash_commands.formatting import format_local_time
from sessiontree.store.file_operations import make_private_directory, write_private

if TYPE_CHECKING:
    from sessiontree.server.auth import Scope, Token
    from sessiontree.server.http_server import HttpServer

PORT = 7373
LINK_LIFETIME_SECONDS = 3600.0
"""How long the link that `serve` prints is valid, unless it is used."""


@app.command(
    epilog="\b\nExamples:\n  sessiontree serve\n  sessiontree serve --port 8080 --allow-run --open\n"
    "  sessiontree serve --host 0.0.0.0 --allow-remote --name tower.local"
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for a free port.",
)
@click.option("--allow-remote", is_flag=True, help="Allow an address that other machines can reach.")
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="Additional host name of the server, optionally with a port; repeatable.",
)
@project_option
@click.option("--allow-run", is_flag=True, help="Allow requests to run agents, which use tools and cost money.")
@permission_options
@click.option("--open", "open_", is_flag=True, help="Open the dashboard in a browser.")
def serve(
    host: str,
    port: int,
    allow_remote: bool,
    names: tuple[str, ...],
    projects: tuple[str, ...],
    allow_run: bool,
    permission_mode: PermissionMode | None,
    allow: tuple[str, ...],
    open_: bool,
) -> None:
    """Serve sessions over HTTP, with a dashboard.

    The printed link signs in one browser and works once; `sessiontree token link` prints another. Every request needs
    a signed-in browser or a token. Ctrl-C stops the server and its agents.
    """
    try:
        from sessiontree.server.app import create_app
        from sessiontree.server.http_server import HttpServer, bind_socket
    except ModuleNotFoundError as error:
        raise InvalidOperation("the server needs an extra: pip install 'sessiontree[web]'") from error
    from sessiontree.server.auth import SCOPES, TokenStore, announce_server, get_time_now, get_token_path, issue_token
    from sessiontree.server.request_checks import (
        ServerLimits,
        build_allowed_hosts,
        check_host_name,
        check_listen_host,
        is_loopback,
    )

    build_permissions(config.load_config(), permission_mode, allow)  # report invalid options before listening
    check_listen_host(host, allow_remote=allow_remote)
    for name in names:
        check_host_name(name)
    listening = bind_socket(host, port)
    port = listening.getsockname()[1]
    server_token = issue_token(SCOPES, created=get_time_now())
    tokens = TokenStore([server_token.token])
    tokens.read_stored()  # report an invalid token file now, not at the first request
    hosts = build_allowed_hosts(host, port, [*names, *([socket.gethostname()] if allow_remote else [])])
    limits = ServerLimits()
    address = _build_url(host, port, names)
    link = _make_link(address, SCOPES, None, LINK_LIFETIME_SECONDS)
    file = get_token_path(port)
    page = f"{file}.html"

    def announce() -> None:
        echo("serving at", link)
        echo(dim("the link signs in one browser and works once; `sessiontree token link` prints another"))
        if not is_loopback(host):
            echo(
                "warning: plain HTTP is not encrypted: others on the network can read everything, including the link. "
                f"Listen on 127.0.0.1 and use a tunnel (ssh -L {port}:127.0.0.1:{port} HOST), or use a TLS proxy and "
                "give its name with --name"
            )
        echo(
            dim(f"running agents: {'allowed' if allow_run else 'not allowed (use --allow-run)'}; press Ctrl+C to stop")
        )
        sys.stdout.flush()
        if open_:
            # Pass the link in a private file, because other users can see the arguments of the browser.
            write_private(page, f'<meta http-equiv="refresh" content="0; url={link}">\n'.encode())
            click.launch(page)

    make_private_directory(get_home())
    write_private(file, server_token.secret.encode() + b"\n")
    try:
        web_app = create_app(
            hosts=hosts,
            tokens=tokens,
            limits=limits,
            allow_run=allow_run,
            projects=projects,
            permission_mode=permission_mode,
            allow=allow,
        )
        server = HttpServer(web_app, limits, announce)
        with (
            contextlib.suppress(KeyboardInterrupt),
            announce_server(port, address),
            _handle_signals(server),
        ):
            server.run(sockets=[listening])
    finally:
        listening.close()
        for path in (file, page):
            with contextlib.suppress(OSError):
                os.unlink(path)
    echo("stopped")


@contextlib.contextmanager
def _handle_signals(server: HttpServer) -> Generator[None]:
    """Stop the server cleanly on SIGTERM and SIGHUP. The server raises SIGTERM again after it has stopped."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    def handle_hangup(*_: object) -> None:
        server.handle_exit(signal.SIGTERM, None)

    wanted = {signal.SIGTERM: stop, signal.SIGHUP: handle_hangup}
    ignored = [number for number in wanted if signal.getsignal(number) is signal.SIG_IGN]  # for example under `nohup`
    before = {number: signal.signal(number, handler) for number, handler in wanted.items() if number not in ignored}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _build_url(host: str, port: int, names: tuple[str, ...] = ()) -> str:
    """Return the URL of the dashboard, reachable from other machines if the server is."""
    if names:
        name, _, name_port = names[0].partition(":") if not names[0].startswith("[") else (names[0], "", "")
        scheme = "https" if name_port == "443" else "http"
        at = "" if name_port in ("80", "443") else f":{name_port or port}"
        return f"{scheme}://{name}{at}"
    if host in ("0.0.0.0", "::"):
        host = _find_own_address(socket.AF_INET if host == "0.0.0.0" else socket.AF_INET6) or socket.gethostname()
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{port}"


def _find_own_address(family: socket.AddressFamily) -> str | None:
    """Return the address at which other machines reach this one. Sends no packet."""
    outside = "192.0.2.1" if family == socket.AF_INET else "2001:db8::1"  # reserved for documentation
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((outside, 9))
        return asking.getsockname()[0]
    return None


def _make_link(
    address: str, scopes: tuple[Scope, ...], projects: tuple[str, ...] | None, seconds: float, name: str = ""
) -> str:
    """Create a link that signs in one browser, once."""
    from sessiontree.server.auth import TokenStore, add_seconds, get_time_now, issue_token

    now = get_time_now()
    issued = issue_token(scopes, projects, created=now, expires=add_seconds(now, seconds), kind="code", name=name)
    TokenStore().add(issued.token)
    return f"{address}/#code={issued.secret}"


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Lifetime(click.ParamType[float]):
    """A duration such as `90m`, `12h` or `7d`, in seconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"([1-9][0-9]{0,4})([smhdw])", str(value))
        if found is None:
            self.fail(f"{value!r} is not a duration; use a number and s, m, h, d or w, as in 7d", param, ctx)
        return float(found[1]) * UNITS[found[2]]


LIFETIME = Lifetime()


def rights_options(scope_help: str) -> Callable[[F], F]:
    """Add `--scope` and `--project`, as `scopes` and `projects`, which restrict a token."""
    scope = click.option(
        "--scope", "scopes", multiple=True, type=click.Choice(["read", "write", "run"]), help=scope_help
    )
    project = click.option(
        "--project",
        "projects",
        multiple=True,
        type=click.Path(file_okay=False),
        help="Restrict to sessions of this folder; repeatable.",
    )
    return lambda function: scope(project(function))


@app.group(
    epilog="\b\nExamples:\n  sessiontree token link\n  sessiontree token create --scope read --project . --expires 7d\n"
    "  sessiontree token ls\n  sessiontree token revoke 1f2e3d4c"
)
def token() -> None:
    """Create, list and revoke links and tokens for the server."""


@token.command(epilog="\b\nExamples:\n  sessiontree token link\n  sessiontree token link --scope read --expires 15m")
@rights_options("What the browser may do; repeatable. Default: everything.")
@click.option(
    "--expires", type=LIFETIME, default="1h", show_default=True, help="How long the link is valid if not used."
)
@click.option("--url", help="Address of the server. Default: the running server on this machine.")
@click.option("--name", default="", help="Who uses the browser. Messages and the audit log have the name.")
@json_option
def link(
    scopes: tuple[Scope, ...], projects: tuple[str, ...], expires: float, url: str | None, name: str, as_json: bool
) -> None:
    """Print a link that signs in one browser. It works once."""
    from sessiontree.server.auth import SCOPES, list_server_addresses

    found = [url.rstrip("/")] if url is not None else list_server_addresses()
    if len(found) != 1:
        state = f"{len(found)} servers are running: {', '.join(found)}" if found else "no server is running"
        raise InvalidOperation(f"{state}; choose one with --url, such as --url http://127.0.0.1:{PORT}")
    printed = _make_link(found[0], scopes or SCOPES, projects or None, expires, name)
    if as_json:
        echo_json({"link": printed})
    else:
        echo(printed)


@token.command(epilog="\b\nExample:\n  sessiontree token create --scope read --scope write --project ~/project")
@rights_options("What the program may do; repeatable. Default: read.")
@click.option(
    "--expires", type=LIFETIME, help="How long the token is valid, such as 12h or 7d. Default: until it is revoked."
)
@click.option("--name", default="", help="Who uses the token. Messages and the audit log have the name.")
@json_option
def create(
    scopes: tuple[Scope, ...], projects: tuple[str, ...], expires: float | None, name: str, as_json: bool
) -> None:
    """Create a token for a program. It is shown only once."""
    from sessiontree.server.auth import TokenStore, add_seconds, get_time_now, issue_token

    now = get_time_now()
    until = None if expires is None else add_seconds(now, expires)
    issued = issue_token(scopes or ("read",), projects or None, created=now, expires=until, name=name)
    TokenStore().add(issued.token)
    if as_json:
        echo_json({"id": issued.token.id, "token": issued.secret, **_encode_token(issued.token)})
    else:
        of = () if issued.token.projects is None else map(escape_line, issued.token.projects)
        ends = () if until is None else (f"until {format_local_time(until)}",)
        echo(issued.secret, dim(", ".join((issued.token.id, *issued.token.scopes, *of, *ends))))


def _encode_token(one: Token) -> JsonObject:
    return {"scopes": one.scopes, "projects": one.projects, "expires": one.expires}


@token.command(epilog="\b\nExample:\n  sessiontree token ls --json")
@json_option
def ls(as_json: bool) -> None:
    """List tokens, signed-in browsers and unused links. Secrets are not shown."""
    from sessiontree.server.auth import TokenStore

    tokens = TokenStore()
    valid = [one for one in tokens.read_stored() if tokens.is_valid(one)]
    if as_json:
        for one in valid:
            echo_json({"id": one.id, "kind": one.kind, **_encode_token(one), "created": one.created})
        return
    rows = [["token", "kind", "created", "expires", "scopes", "projects"]]
    for one in valid:
        projects = "all" if one.projects is None else ", ".join(one.projects)
        kind = "link" if one.kind == "code" else one.kind
        ends = "never" if one.expires is None else format_local_time(one.expires)
        times = escape_line(format_local_time(one.created)), escape_line(ends)
        rows.append([escape_line(one.id), kind, *times, ", ".join(one.scopes), escape_line(projects)])
    if valid:
        print_table(rows)
    else:
        echo(dim("no tokens"))


@token.command(epilog="\b\nExample:\n  sessiontree token revoke 1f2e3d4c")
@click.argument("id", metavar="TOKEN")
@json_option
def revoke(id: str, as_json: bool) -> None:
    """Revoke a token by its id. A running server rejects it at once and signs out its browsers."""
    from sessiontree.server.auth import TokenStore

    revoked = TokenStore().revoke(id)
    if as_json:
        echo_json({"revoked": revoked.id})
    else:
        echo("revoked", escape_line(revoked.id))
