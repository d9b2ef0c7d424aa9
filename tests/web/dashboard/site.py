"""What tests of the dashboard stand on: a server of its own, and sessions to look at."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sessiontree as st
from sessiontree import catalog
from sessiontree.model.base import Model
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session
from tests.export.sessions import story

if TYPE_CHECKING:
    from sessiontree.config import PermissionMode
    from sessiontree.web.guard import Limits
    from sessiontree.web.listening import Server
    from sessiontree.web.tokens import Made, Scope


class Scripts:
    """Models that answer from one script; the name chooses nothing."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def find(self, name: str | None = None) -> Model:
        return self._model

    def names(self) -> list[str]:
        return ["scripted:scripted"]


class Site:
    """A server on loopback, and a token of it."""

    def __init__(self, port: int, made: Made, server: Server) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.made = made
        self.secret = made.secret
        self._server = server

    @property
    def link(self) -> str:
        """What `sessiontree serve` prints."""
        return f"{self.url}/#token={self.secret}"

    def cut(self) -> None:
        """Break every connection there is, as a network does."""
        for connection in list(self._server.server_state.connections):
            connection.loop.call_soon_threadsafe(connection.transport.abort)  # pyright: ignore


@contextlib.contextmanager
def served(
    model: Model | None = None,
    *,
    scopes: Iterable[Scope] = ("read", "write", "run"),
    allow_run: bool = True,
    after: Site | None = None,
    limits: Limits | None = None,
    permission_mode: PermissionMode | None = None,
) -> Generator[Site]:
    """Serve the sessions of the home in a thread; `after` another that has ended, at its address with its token."""
    from sessiontree.web.app import create_app
    from sessiontree.web.guard import Limits, hosts_of
    from sessiontree.web.listening import Server, bound
    from sessiontree.web.tokens import Tokens, make

    listening = bound("127.0.0.1", 0 if after is None else after.port)
    port = listening.getsockname()[1]
    made = make(scopes) if after is None else after.made
    app = create_app(
        hosts=hosts_of("127.0.0.1", port),
        tokens=Tokens([made.token]),
        allow_run=allow_run,
        permission_mode=permission_mode,
        limits=limits,
        models=Scripts(ScriptedModel() if model is None else model),
    )
    ready = threading.Event()
    server = Server(app, limits or Limits(), ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        yield Site(port, made, server)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


def put(lines: Iterable[bytes], *, name: str = "made", cwd: str = "/project") -> Path:
    """Lay a session file into the home, as another program would."""
    folder = Path(catalog.sessions_dir()) / catalog.folder_of(cwd)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"2026-01-05T08-00-00-000Z_{name}.jsonl"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    return file


def a_story() -> Session:
    """The story that exports are tested with, in a file."""
    return st.open(put(story().lines(), name="01a1e124-ed0f-716a-8e85-0f0bb57fa47d"))


def branching(count: int, *, every: int = 10, id: str = "many") -> list[bytes]:
    """A long conversation of `count` entries, with a short branch at every tenth."""
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
