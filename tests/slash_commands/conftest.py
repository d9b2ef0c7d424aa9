"""Fixtures for tests of commands: a controller with a session, scripted models, and a scripted user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.factory import AgentOptions
from sessiontree.errors import NotFound
from sessiontree.hooks.events import Event
from sessiontree.hooks.ui_protocol import NoUi
from sessiontree.model.base import Model, ModelInfo
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Session
from sessiontree.slash_commands.controller import SessionController
from sessiontree.slash_commands.host import HeadlessHost

MakeController = Callable[..., SessionController]


class ScriptedUser(NoUi):
    """A user with scripted answers. An answer selects the option that contains it."""

    has_person = True

    def __init__(self, *answers: str | None) -> None:
        super().__init__()
        self.answers = list(answers)
        self.questions: list[tuple[str, list[str]]] = []
        self.preselected: list[str | None] = []

    async def select(self, title: str, options: Sequence[str], *, at: str | None = None) -> str | None:
        self.questions.append((title, list(options)))
        self.preselected.append(at)
        wanted = self.answers.pop(0)
        return None if wanted is None else next(option for option in options if wanted in option)

    async def confirm(self, title: str, text: str = "", *, default: bool = False) -> bool:
        self.questions.append((title, [text]))
        return self.answers.pop(0) == "yes"

    async def editor(self, title: str, text: str = "") -> str | None:
        return self.answers.pop(0)


class ScriptedModels:
    """Scripted models by name."""

    def __init__(self, **models: ScriptedModel) -> None:
        self.models = {f"scripted:{name}": model for name, model in models.items()}

    def find(self, name: str | None = None) -> Model:
        if name not in self.models:
            raise NotFound("model", name or "")
        return self.models[name]

    def list_names(self) -> list[str]:
        return list(self.models)


class FakeHost(HeadlessHost):
    """A front end that records its calls."""

    def __init__(self, choice: str | None = None) -> None:
        super().__init__()
        self.choice = choice
        self.copied: list[str] = []
        self.refreshes = 0

    async def choose_entry(self, controller: SessionController) -> str | None:
        return self.choice

    def refresh(self) -> None:
        self.refreshes += 1

    def copy(self, text: str) -> str:
        self.copied.append(text)
        return "sent"


def make_scripted_model(name: str, *answers: Any) -> ScriptedModel:
    return ScriptedModel(answers, info=ModelInfo(provider="scripted", model=name, thinking=True))


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return st.create("auth", cwd=folder)


@pytest.fixture
def make_controller(session: Session) -> MakeController:
    """Create a controller whose model has scripted answers."""

    def make(*answers: Any, **options: Any) -> SessionController:
        options.setdefault("model", make_scripted_model("usual", *answers))
        options.setdefault("system", "Be brief.")
        options["options"] = take_agent_options(options)
        options.setdefault("models", ScriptedModels())
        return SessionController(options.pop("session", session), **options)

    return make


def take_agent_options(options: dict[str, Any]) -> AgentOptions:
    """Remove the options of agents from keyword arguments, and return them."""
    return AgentOptions(**{name: options.pop(name) for name in AgentOptions.__struct_fields__ if name in options})


def talk(session: Session, *texts: str) -> list[str]:
    """Append user and assistant messages in turns. Return their ids."""
    speakers = [st.user, st.assistant]
    return [session.append(speakers[turn % 2](text)).id for turn, text in enumerate(texts)]


async def run(controller: SessionController, line: str) -> str:
    """Run a command line and return its output."""
    return (await controller.submit(line)).text


def record_events(controller: SessionController) -> list[Event]:
    events: list[Event] = []
    controller.hooks.listen(events.append)
    return events
