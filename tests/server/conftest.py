"""Fixtures of the server tests: an application with its tokens, and a real server on a free port."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import sessiontree as st
from sessiontree.model.base import Model, Request
from sessiontree.model.scripted import Script, ScriptedAnswer, ScriptedModel
from sessiontree.server.app import create_app
from sessiontree.server.auth import SCOPES, IssuedToken, Scope, TokenStore, issue_token
from sessiontree.server.http_server import HttpServer, bind_socket
from sessiontree.server.request_checks import ServerLimits, build_allowed_hosts
from sessiontree.swarm.experiment.experiment import Arm, Experiment
from sessiontree.swarm.swarm import Swarm

PORT = 7373
BASE = f"http://127.0.0.1:{PORT}"


class Gate:
    """Delays answers until it is opened, from any thread."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._reached = threading.Event()

    def open(self) -> None:
        self._opened.set()

    async def wait(self) -> None:
        """Wait until a model is asked, so its prompt is written."""
        await asyncio.to_thread(self._reached.wait, 60)

    def delay(self, answer: ScriptedAnswer) -> Script:
        async def wait_and_answer(request: Request) -> ScriptedAnswer:
            self._reached.set()
            while not self._opened.is_set():
                await asyncio.sleep(0.005)
            return answer

        return wait_and_answer


class ScriptedModels:
    """Returns one scripted model for every name."""

    def __init__(self, *answers: Script) -> None:
        self.model = ScriptedModel(answers)

    def find(self, name: str | None = None) -> Model:
        return self.model

    def list_names(self) -> list[str]:
        return ["scripted:scripted"]


class ServerEnv:
    """An application with an owner token, scripted models and two project folders."""

    def __init__(
        self, tmp_path: Path, *answers: Script, allow_run: bool = True, limits: ServerLimits | None = None
    ) -> None:
        self.project, self.other = tmp_path / "a", tmp_path / "b"
        self.project.mkdir(exist_ok=True)
        self.other.mkdir(exist_ok=True)
        self.owner = issue_token(SCOPES)
        self.models = ScriptedModels(*answers)
        self.limits = ServerLimits(rate=1e6, burst=1_000_000) if limits is None else limits
        self._allow_run = allow_run

    def build_app(self, port: int = PORT, host: str = "127.0.0.1", **options: Any) -> FastAPI:
        given: dict[str, Any] = {
            "hosts": build_allowed_hosts(host, port),
            "tokens": TokenStore([self.owner.token]),
            "limits": self.limits,
            "allow_run": self._allow_run,
            "models": self.models,
            "cwd": str(self.project),
        }
        return create_app(**{**given, **options})

    def create_token(self, *scopes: Scope, project: Path | None = None) -> IssuedToken:
        """Create and store a token."""
        made = issue_token(scopes, None if project is None else [str(project)])
        TokenStore().add(made.token)
        return made

    def create_session(self, project: Path | None = None) -> str:
        """Create a session with a question and an answer, and return its id."""
        with st.create("auth", cwd=project or self.project) as session:
            session.head.extend([st.user("How do I make this faster?"), st.assistant("With a **cache**.")])
            return session.id

    async def create_swarm(self, session: str, *, start: bool = False, **options: Any) -> str:
        """Create a swarm in a session, without a process that runs it unless `start` is set."""
        with st.open(session) as opened:
            swarm = await Swarm.create(opened, "crew", "Make it fast", model=self.models.model, **options)
            if start:
                await swarm.run()
            return swarm.id

    def create_experiment(self, session: str) -> str:
        """Create an experiment in a session without running it."""
        with st.open(session) as opened:
            arms = [Arm(name="a", prompt="one"), Arm(name="b", prompt="two")]
            return Experiment.create(opened, "HEAD", arms, runs=1, model=self.models.model).id


def build_auth_headers(made: IssuedToken | str) -> dict[str, str]:
    return {"authorization": f"Bearer {made if isinstance(made, str) else made.secret}"}


@contextlib.asynccontextmanager
async def open_client(app: FastAPI, made: IssuedToken, base: str = BASE) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an application in this process."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=base, headers=build_auth_headers(made), timeout=30) as client,
    ):
        yield client


@contextlib.contextmanager
def run_server(env: ServerEnv, **options: Any) -> Iterator[str]:
    """Run a real server in a thread and yield its address."""
    listening = bind_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    ready = threading.Event()
    server = HttpServer(env.build_app(port, **options), env.limits, ready.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        assert ready.wait(20)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
        assert not thread.is_alive(), "the server does not close"


@pytest.fixture
def env(tmp_path: Path) -> ServerEnv:
    return ServerEnv(tmp_path)


@pytest.fixture
async def client(env: ServerEnv) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(env.build_app(), env.owner) as client:
        yield client


Ask = Callable[..., httpx.Response]
