"""A server for dashboard tests, and sessions to open in it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sessiontree as st
from sessiontree.library.folder_repository import encode_folder_name
from sessiontree.library.session_files import get_sessions_folder
from sessiontree.model.base import Model
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session
from tests.export.sessions import make_story

if TYPE_CHECKING:
    from sessiontree.config import PermissionMode
    from sessiontree.server.auth import IssuedToken, Scope
    from sessiontree.server.http_server import HttpServer
    from sessiontree.server.request_checks import ServerLimits


class SingleModel:
    """Returns one model for every name."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def find(self, name: str | None = None) -> Model:
        return self._model

    def list_names(self) -> list[str]:
        return ["scripted:scripted"]


class DashboardSite:
    """A server on loopback, and a token of it."""

    def __init__(self, port: int, made: IssuedToken, server: HttpServer) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.made = made
        self.secret = made.secret
        self._server = server

    @property
    def link(self) -> str:
        """The link that `sessiontree serve` prints."""
        return f"{self.url}/#token={self.secret}"

    def drop_connections(self) -> None:
        """Abort all connections, as a network failure does."""
        for connection in list(self._server.server_state.connections):
            connection.loop.call_soon_threadsafe(connection.transport.abort)  # pyright: ignore


@contextlib.contextmanager
def run_dashboard(
    model: Model | None = None,
    *,
    scopes: Iterable[Scope] = ("read", "write", "run"),
    allow_run: bool = True,
    after: DashboardSite | None = None,
    limits: ServerLimits | None = None,
    permission_mode: PermissionMode | None = None,
) -> Generator[DashboardSite]:
    """Serve the sessions of the home folder in a thread. `after` restarts a stopped site at the same address."""
    from sessiontree.server.app import create_app
    from sessiontree.server.auth import TokenStore, issue_token
    from sessiontree.server.http_server import HttpServer, bind_socket
    from sessiontree.server.request_checks import ServerLimits, build_allowed_hosts

    listening = bind_socket("127.0.0.1", 0 if after is None else after.port)
    port = listening.getsockname()[1]
    made = issue_token(scopes) if after is None else after.made
    app = create_app(
        hosts=build_allowed_hosts("127.0.0.1", port),
        tokens=TokenStore([made.token]),
        allow_run=allow_run,
        permission_mode=permission_mode,
        limits=limits,
        models=SingleModel(ScriptedModel() if model is None else model),
    )
    ready = threading.Event()
    server = HttpServer(app, limits or ServerLimits(), ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        yield DashboardSite(port, made, server)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


def write_session_file(lines: Iterable[bytes], *, name: str = "made", cwd: str = "/project") -> Path:
    """Write a session file into the home folder, as another program would."""
    folder = Path(get_sessions_folder()) / encode_folder_name(cwd)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"2026-01-05T08-00-00-000Z_{name}.jsonl"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    return file


def open_story() -> Session:
    """Open the story of the export tests from a file."""
    return st.open(write_session_file(make_story().read_lines(), name="01a1e124-ed0f-716a-8e85-0f0bb57fa47d"))


def build_branching_lines(count: int, *, every: int = 10, id: str = "many") -> list[bytes]:
    """Build a conversation of `count` entries with a short branch at every tenth entry."""
    lines: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": id, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/project"}
    ]
    trunk: str | None = None
    for number in range(count):
        side = number % every == every - 1
        role = "assistant" if number % 2 else "user"
        lines.append(
            {
                "type": "message",
                "id": f"{number:016x}",
                "parentId": trunk,
                "timestamp": "2026-01-01T00:00:00.000Z",
                "branch": f"try {number}" if side else "main",
                "current": "main",
                "message": {
                    "role": role,
                    "content": [{"type": "text", "text": f"entry number {number} says something"}],
                },
            }
        )
        if not side:
            trunk = f"{number:016x}"
    return [json.dumps(line, separators=(",", ":")).encode() for line in lines]
