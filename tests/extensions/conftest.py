"""Fixtures for tests of extensions: a project, a home folder, and a controller with loaded extensions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.extensions.loader import ExtensionLoader
from sessiontree.hooks.events import Notice
from sessiontree.slash_commands.controller import SessionController
from tests.slash_commands.conftest import ScriptedModels, make_scripted_model, record_events, take_agent_options

EXAMPLES = Path(__file__).parents[2] / "examples" / "extensions"

Load = Callable[..., Awaitable["LoadedProject"]]


class LoadedProject:
    """A controller with its extensions, and all events since they were loaded."""

    def __init__(self, controller: SessionController, extensions: ExtensionLoader) -> None:
        self.controller = controller
        self.extensions = extensions
        self.events = record_events(controller)

    @property
    def names(self) -> list[str]:
        return [extension.name for extension in self.extensions.loaded]

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def user(home: Path) -> Path:
    """The user's own folder of extensions and prompt files."""
    return home / ".sessiontree"


@pytest.fixture
def load(project: Path) -> Load:
    """Create a controller with scripted answers and load its extensions."""

    async def load_project(*answers: Any, files: tuple[str | Path, ...] = (), **options: Any) -> LoadedProject:
        options.setdefault("model", make_scripted_model("usual", *answers))
        options.setdefault("models", ScriptedModels())
        session = options.pop("session", None) or st.create(cwd=project)
        options.setdefault("cwd", session.cwd)
        options["system"] = "Be brief."
        controller = SessionController(session, options=take_agent_options(options), **options)
        made = LoadedProject(controller, ExtensionLoader(controller, [str(file) for file in files]))
        await made.extensions.load()
        return made

    return load_project


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path
