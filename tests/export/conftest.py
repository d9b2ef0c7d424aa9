"""Fixtures for tests of exports: a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, one for each module, because its event loop must not mix with those of other tests."""
    executable = os.environ.get("CHROMIUM") or shutil.which("chromium") or CHROMIUM
    if not os.path.exists(executable):
        lacking = pytest.fail if os.environ.get("CI") else pytest.skip
        lacking("Chromium is missing: `make setup` installs Debian's")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page in a fresh context. The test fails if the page raises an error.

    `signs` collects the requests, console messages, dialogs and windows of the page.
    """
    contexts: list[Any] = []
    errors: list[str] = []

    def visit(html: bytes | str, *, fragment: str = "", signs: list[str] | None = None, **options: Any) -> Any:
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_bytes(html if isinstance(html, bytes) else html.encode("utf-8", "replace"))
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        if signs is not None:
            page.on("request", lambda request: signs.append(request.url))
            page.on("console", lambda message: signs.append(message.text))
            page.on("dialog", lambda dialog: signs.append("a dialog"))
            page.on("popup", lambda popup: signs.append("a window"))
        page.goto(f"{file.as_uri()}{fragment}")
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not errors
