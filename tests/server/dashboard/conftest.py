"""Fixtures of the dashboard tests: a real browser and a real server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.export.conftest import browser as browser
from tests.server.dashboard.site import DashboardSite, run_dashboard

Serve = Callable[..., DashboardSite]
Visit = Callable[..., Any]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a dashboard server that stops at the end of the test."""
    with contextlib.ExitStack() as running:
        yield lambda *given, **options: running.enter_context(run_dashboard(*given, **options))


@pytest.fixture
def visit(browser: Any, serve: Serve) -> Iterator[Visit]:
    """Open the dashboard with the printed link in a fresh context, and go to `route`.

    The test fails if the page raises an error or violates its content security policy. `signs` collects requests to
    other servers, console messages, dialogs and windows.
    """
    contexts: list[Any] = []
    errors: list[str] = []

    def visit(site: DashboardSite, route: str = "", *, signs: list[str] | None = None, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: "Content Security Policy" in message.text and errors.append(message.text))
        if signs is not None:
            page.on("request", lambda request: request.url.startswith(site.url) or signs.append(request.url))
            page.on("console", lambda message: signs.append(message.text))
            page.on("dialog", lambda dialog: signs.append("a dialog"))
            page.on("popup", lambda popup: signs.append("a window"))
        page.goto(site.link)
        page.wait_for_selector(".topbar")
        if route:
            page.goto(f"{site.url}/#{route}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not errors
