"""Fixtures for tests of the app: run it with a scripted model, press keys and read the screen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from textual.pilot import Pilot

import sessiontree as st
from sessiontree.config import Config
from sessiontree.model.base import Model
from sessiontree.model.scripted import ScriptedModel
from sessiontree.model.selection import NoModel
from sessiontree.session import Session
from sessiontree.slash_commands.models import Models
from sessiontree.tui.app import AppOptions, SessionApp

T = TypeVar("T")

SECONDS = 10.0


class ScriptedModels:
    """Returns the same model for every name."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def find(self, name: str | None = None) -> Model:
        return self.model

    def list_names(self) -> list[str]:
        return [self.model.info.name, "scripted:other"]


class NoModels:
    """Finds no model."""

    def find(self, name: str | None = None) -> Model:
        raise NoModel(name, "there is no key")

    def list_names(self) -> list[str]:
        return []


class Driver:
    """Drives the app with keys and reads its screen."""

    def __init__(self, app: SessionApp, pilot: Pilot[None], model: ScriptedModel) -> None:
        self.app = app
        self.pilot = pilot
        self.model = model

    @property
    def chat(self) -> Any:
        return self.app.chat

    @property
    def editor(self) -> Any:
        return self.app.chat.editor

    @property
    def blocks(self) -> list[str]:
        """The blocks of the transcript as `kind: text`."""
        return [f"{block.kind}: {block.head or block.text}" for block in self.app.chat.transcript.blocks]

    @property
    def screen(self) -> str:
        """The screen as text."""
        strips = self.app.screen._compositor.render_strips(self.app.size)
        return "\n".join(strip.text.replace("\xa0", " ").rstrip() for strip in strips)

    async def wait_until(self, condition: Callable[[], T]) -> T:
        """Wait until `condition` returns a true value and return it. Fail with the screen after a timeout."""
        for _ in range(int(SECONDS / 0.01)):
            found = condition()
            if found:
                await self.pilot.pause()
                return found
            await asyncio.sleep(0.01)
        raise AssertionError(f"timeout; the screen is\n{self.screen}\n{self.blocks}")

    async def wait_for_text(self, *texts: str) -> str:
        """Wait until the screen contains all texts and return the screen."""

        def read_screen() -> str:
            screen = self.screen
            return screen if all(text in screen for text in texts) else ""

        return await self.wait_until(read_screen)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        self.editor.insert(text)
        await self.pilot.pause()

    async def submit(self, text: str) -> None:
        """Type a text and press enter."""
        await self.type(text)
        self.editor.close_popup()
        await self.press("enter")

    async def wait_until_idle(self) -> None:
        """Wait until nothing is running."""
        await self.wait_until(
            lambda: (
                self.app.controller is not None
                and not self.app.controller.is_running
                and not self.chat.status_line.activity
            )
        )

    async def submit_and_wait(self, text: str) -> None:
        """Submit a prompt and wait for the answer."""
        count = len(self.model.requests)
        await self.submit(text)
        await self.wait_until(lambda: len(self.model.requests) > count)
        await self.wait_until_idle()


Running = Callable[..., AbstractAsyncContextManager[Driver]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def running(project: Path) -> Running:
    """Return an async context manager that runs the app with scripted answers, or with the `configured` models."""

    @asynccontextmanager
    async def run(
        *answers: Any,
        session: Session | None = None,
        size: tuple[int, int] = (100, 30),
        settings: Config | None = None,
        models: Models | None = None,
        before: Callable[[SessionApp], Awaitable[None]] | None = None,
        ready: bool = True,
        **start: Any,
    ) -> AsyncGenerator[Driver]:
        model = ScriptedModel(answers)
        opened = None if start.pop("picks", False) else session or st.create()
        found = None if start.pop("configured", False) else models or ScriptedModels(model)
        first = AppOptions(session=opened, cwd=str(project), settings=settings or Config(), **start)
        app = SessionApp(first, models=found)
        async with app.run_test(size=size, notifications=True) as pilot:
            driver = Driver(app, pilot, model)
            if ready:
                await driver.wait_until(lambda: app.model_found.is_set() and app.ready.is_set())
            yield driver

    return run
