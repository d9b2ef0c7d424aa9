"""axe-core finds nothing serious on any page, in any dialog, in both themes, on a desktop and on a phone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.messages import ToolCall
from sessiontree.model.scripted import ScriptedModel
from tests.peers.axe_package import fetch_axe
from tests.peers.fetch_pi import FetchError, NodeMissing
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.site import open_story

SCRATCH = Path(__file__).parents[3] / ".peers"
READY = {"tree": "#graph", "branches": ".branches li", "compare": ".column .entry", "ab": "form.ab"}
"""What each view has when it is loaded."""
SIZES = {"desktop": (1280, 800), "tablet": (820, 1180), "phone": (390, 844)}
RUN = "axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations)"


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return fetch_axe(SCRATCH)
    except (NodeMissing, FetchError) as reason:
        lacking = pytest.fail if os.environ.get("CI") else pytest.skip
        lacking(str(reason))


def list_violations(page: Any, axe: str) -> list[str]:
    """Return what axe finds on a page: serious and critical violations."""
    page.wait_for_timeout(300)  # transitions of colours change the contrast
    page.evaluate(axe)
    return [
        f"{found['id']}: {node['target']} {node['failureSummary']}"
        for found in page.evaluate(RUN)
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_no_page_has_a_serious_violation(serve: Serve, visit: Visit, axe: str, size: str, theme: str) -> None:
    session = open_story()
    session.create_branch("crew/one", at="main", current=False)
    session.create_branch("crew/two", at="main", current=False)
    width, height = SIZES[size]
    screen = {"viewport": {"width": width, "height": height}, "has_touch": size != "desktop", "color_scheme": theme}
    site = serve()
    page = visit(site, f"/s/{session.id}/talk", **screen)
    page.locator(".path .entry").first.wait_for()
    found = {"session": list_violations(page, axe)}
    for view in ("tree", "branches", "compare", "ab"):
        page.goto(f"{site.url}/#/s/{session.id}/{view}")
        page.locator(READY[view]).first.wait_for()
        found[view] = list_violations(page, axe)
    for view in ("", "swarms", "overview"):
        page.goto(f"{site.url}/#/{view}")
        page.locator("h1").first.wait_for(state="attached")
        found[view] = list_violations(page, axe)
    assert {view: violations for view, violations in found.items() if violations} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_dialog_has_a_serious_violation(serve: Serve, visit: Visit, axe: str, theme: str) -> None:
    session = open_story()
    session.append(st.user("Last."))
    page = visit(serve(), f"/s/{session.id}/talk", color_scheme=theme)
    page.locator(".path .entry").first.wait_for()
    found: dict[str, list[str]] = {}
    for name in ("Share", "Export", "Rename", "Merge", "New branch", "Keyboard shortcuts", "Model's view"):
        page.get_by_role("button", name=name, exact=True).first.click()
        page.locator("dialog[open]").wait_for()
        found[name] = list_violations(page, axe)
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")
    page.get_by_role("button", name="Search", exact=True).last.click()
    page.keyboard.type("cache")
    page.locator(".matches li").first.wait_for()
    found["search"] = list_violations(page, axe)
    page.locator(".entry").last.hover()
    page.locator(".entry").last.get_by_role("button", name="More actions").click()
    found["menu"] = list_violations(page, axe)
    assert {name: violations for name, violations in found.items() if violations} == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_question_about_a_tool_call_has_no_serious_violation(
    serve: Serve, visit: Visit, axe: str, theme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with st.create("tidy", cwd=tmp_path) as session:
        session.append(st.user("Hello."))
    site = serve(ScriptedModel([[ToolCall("c1", "bash", {"command": "touch made"})], "Done."]))
    page = visit(site, f"/s/{session.id}/talk", color_scheme=theme)
    page.locator(".composer textarea").fill("go")
    page.keyboard.press("Enter")
    page.locator(".permission button:not([disabled])").first.wait_for()

    assert list_violations(page, axe) == []
    page.get_by_role("button", name="Deny", exact=True).click()
    page.locator(".permission").wait_for(state="detached")
