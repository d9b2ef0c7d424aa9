"""Screenshots of every page in three sizes, dark and light, used in `docs/screens.md` and other pages.

Set `SESSIONTREE_PICTURES=1` to update them, and review the changes before you commit. Otherwise only their presence is
checked, because browsers on different machines draw differently.
"""

from __future__ import annotations

import os
import random
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.entries import BranchSummary
from sessiontree.core.messages import ToolCall
from sessiontree.model.base import Request
from sessiontree.model.scripted import Delay, Script, ScriptedModel, ScriptedUsage
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.site import DashboardSite, write_session_file

IMAGES = Path(__file__).parents[3] / "docs" / "images"
PAGE = IMAGES.parent / "screens.md"
SIZES = {1280: 800, 768: 1024, 390: 844}
TAKING = bool(os.environ.get("SESSIONTREE_PICTURES"))
NAMES = [
    "sessions", "session", "tree", "branches", "compare", "ab", "swarms", "swarm", "overview", "sign-in",
    "share", "permission", "search", "model-view", "shortcuts",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_screenshot_exists_in_its_sizes_and_is_used(name: str) -> None:
    text = PAGE.read_text()
    for width, height in SIZES.items():
        for theme in ("", "-dark"):
            file = f"page-{name}{theme}-{width}.webp"
            head = (IMAGES / file).read_bytes()[:30]

            assert head[12:16] == b"VP8X"
            assert [int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27)] == [width, height]
            assert f"(images/{file})" in text


def build_answer(text: str, tokens: int, cost: float, *calls: dict[str, Any]) -> Any:
    blocks = [{"type": "text", "text": text}, *calls]
    usage = {"input": tokens, "output": tokens // 12, "cost": cost}
    return st.assistant(blocks, usage=usage, provider="anthropic", model="claude-sonnet-4-5")


WAYS = """Almost all of it in `total`: a list is searched for every row.

1. a **dict** by key
2. a **cache** on disk
3. **SQL** instead of Python
"""
ONE_EDIT = """One edit is enough:

```python
found = {row.key: row for row in rows}
```

A month takes **25 ms** now.
"""
TRIED = {
    "cache": ("Try the cache.", "With the cache a second run takes 40 ms, the first still 40 s.", 4200, 0.0312),
    "sql": ("What would SQL give?", "One query, 60 ms, and the report needs a database then.", 6100, 0.0455),
    "dict": ("Take the dict.", ONE_EDIT, 2400, 0.0136),
}


def create_shop_session() -> str:
    """Create a conversation with three branches from one entry."""
    numbers, ticks = iter(range(1, 1000)), iter(range(1_767_600_000_000, 1_767_900_000_000, 21_000))
    session = Session.create(
        MemoryStore(),
        id="01a1e1da-e0a3-70d5-ba2d-200985dcf207",
        cwd="/home/ada/report",
        name="Make the report fast",
        now=lambda: next(ticks),
        new_id=lambda: f"{next(numbers):04x}" * 4,
    )
    session.append(st.user("The monthly report takes **40 seconds**. Where does the time go?"))
    session.append(
        build_answer("I will read the code first.", 1900, 0.0081, st.tool_call("c1", "read", {"path": "report.py"}))
    )
    session.append(
        st.tool_result(
            "c1", "read", "def total(rows):\n    found = []\n    for row in rows:\n        if row not in found:"
        )
    )
    two = session.append(build_answer(WAYS, 3100, 0.0157))
    session.label(two, "three ways")
    for name, (ask, answer, tokens, cost) in TRIED.items():
        session.create_branch(name, at="three ways")
        session.append(st.user(ask))
        session.append(build_answer(answer, tokens, cost))
    session.append(st.user("Do the cents still add up?"))
    session.append(build_answer("They do: `Decimal` throughout, and the test for January passes.", 2600, 0.0144))
    session.append(
        BranchSummary(
            summary="The **cache** only helps the second run; **SQL** costs a database.",
            abandoned_leaf=session.resolve_place("sql"),
            details={"kind": "merge", "sources": [session.resolve_place("cache"), session.resolve_place("sql")]},
        )
    )
    session.append(st.user("Then write the release note, one line."))
    session.append(build_answer("The monthly report takes 25 ms instead of 40 s.", 2100, 0.007))
    write_session_file(session.read_lines(), name=session.id, cwd="/home/ada/report")
    return session.id


def build_script(seed: int = 5) -> Script:
    chance = random.Random(seed)

    def answer(request: Request) -> list[Any]:
        if "Tidy up" in str(request.messages[-1]):
            return [ToolCall("c1", "bash", {"command": "rm -rf build"}), ScriptedUsage({"input": 900, "output": 40})]
        wordy = "detail" in str(request.messages[-1])
        cost = (0.021 if wordy else 0.008) * chance.uniform(0.8, 1.2)
        text = "A list is searched for every row, so time grows with the square of the rows."
        return [
            text,
            Delay(0.01 + chance.random() / 20),
            ScriptedUsage({"input": 900, "output": 90 if wordy else 30, "cost": cost}),
        ]

    return answer


def take(page: Any, name: str) -> None:
    """Take a picture of a page in all sizes, dark and light."""
    browser = page.context.new_cdp_session(page)
    for width, height in SIZES.items():
        page.set_viewport_size({"width": width, "height": height})
        for suffix, scheme in (("-dark", "dark"), ("", "light")):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(600)
            taken = browser.send("Page.captureScreenshot", {"format": "webp", "quality": 85})
            (IMAGES / f"page-{name}{suffix}-{width}.webp").write_bytes(b64decode(taken["data"]))
    browser.detach()
    page.set_viewport_size({"width": 1280, "height": 800})


@pytest.mark.skipif(not TAKING, reason="pictures are taken with SESSIONTREE_PICTURES=1")
def test_screenshots_are_written_on_request(serve: Serve, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path("/tmp/report")  # it is in the pictures
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    id = create_shop_session()
    site: DashboardSite = serve(ScriptedModel([build_script()] * 60))

    page = visit(site, f"/s/{id}/talk")
    page.wait_for_selector(".path .entry")
    take(page, "session")
    page.goto(f"{site.url}/#/s/{id}/tree")
    page.wait_for_selector("#graph")
    take(page, "tree")
    page.goto(f"{site.url}/#/s/{id}/branches")
    page.wait_for_selector(".branches li")
    take(page, "branches")
    page.goto(f"{site.url}/#/s/{id}/talk")
    for name, button in (("share", "Share"), ("model-view", "Model's view"), ("shortcuts", "Keyboard shortcuts")):
        page.get_by_role("button", name=button, exact=True).first.click()
        page.locator("dialog[open]").wait_for()
        take(page, name)
        page.keyboard.press("Escape")
        page.locator("dialog").wait_for(state="detached")
    page.get_by_role("button", name="Search", exact=True).last.click()
    page.keyboard.type("cache")
    page.locator(".matches li").first.wait_for()
    take(page, "search")
    page.goto(f"{site.url}/#/s/{id}/compare?branch=dict&branch=cache&branch=sql")
    page.wait_for_selector(".column .entry")
    take(page, "compare")
    page.goto(f"{site.url}/#/s/{id}/ab")
    page.wait_for_selector("form.ab")
    prompts = {"short": "Why is it slow, in a line?", "detailed": "Why, in detail?"}
    for arm, (name, prompt) in zip("AB", prompts.items(), strict=True):
        page.locator(f"[name='{arm}.name']").fill(name)
        page.locator(f"[name='{arm}.prompt']").fill(prompt)
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector(".verdict.won")
    take(page, "ab")
    page.goto(f"{site.url}/#/swarms")
    page.locator("[name=name]").fill("review")
    page.locator("[name=task]").fill("Read report.py and say what could go wrong with the dict.")
    page.locator("[name='budget.cost']").fill("0.04")
    take(page, "swarms")
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_selector(".chip.branch >> text=completed")
    take(page, "swarm")
    with st.create("tidy up", cwd=folder) as other:
        other.append(st.user("Which files are left from the build?"))
    page.goto(f"{site.url}/#/s/{other.id}/talk")
    page.locator(".composer textarea").fill("Tidy up, please.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".permission button:not([disabled])")
    take(page, "permission")
    page.get_by_role("button", name="Deny", exact=True).click()
    page.goto(f"{site.url}/#/")
    page.get_by_text("Make the report fast").first.wait_for()
    take(page, "sessions")
    page.goto(f"{site.url}/#/overview")
    page.wait_for_selector(".columns-over-time")
    take(page, "overview")
    page.context.clear_cookies()
    page.goto(site.url)
    page.reload()
    page.get_by_text("This browser is not signed in").wait_for()
    take(page, "sign-in")
