"""Screenshots of the dashboard, used in `docs/dashboard.md`.

Set `SESSIONTREE_PICTURES=1` to update them, and review the changes before you commit. Otherwise only their presence is
checked, because browsers on different machines draw differently.
"""

from __future__ import annotations

import os
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.entries import BranchSummary
from sessiontree.model.base import Request
from sessiontree.model.scripted import Delay, Script, ScriptedModel, ScriptedUsage
from sessiontree.session import Session
from sessiontree.store.memory import MemoryStore
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.site import DashboardSite, write_session_file

IMAGES = Path(__file__).parents[3] / "docs" / "images"
PAGE = IMAGES.parent / "dashboard.md"
DESK, PHONE = (1280, 800), (390, 844)
TAKING = bool(os.environ.get("SESSIONTREE_PICTURES"))
NAMES = {
    "dashboard-session": DESK,
    "dashboard-dark": DESK,
    "dashboard-compare": DESK,
    "dashboard-ab": DESK,
    "dashboard-swarm": DESK,
    "dashboard-overview": DESK,
    "dashboard-tree-phone": PHONE,
    "dashboard-phone": PHONE,
}


@pytest.mark.parametrize("name", NAMES)
def test_every_screenshot_exists_in_its_size_and_is_used(name: str) -> None:
    head = (IMAGES / f"{name}.png").read_bytes()[:24]

    assert struct.unpack(">II", head[16:24]) == NAMES[name]
    assert re.search(rf"!\[[^\]]+\]\(images/{name}\.png\)", PAGE.read_text())


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
        wordy = "detail" in str(request.messages[-1])
        cost = (0.021 if wordy else 0.008) * chance.uniform(0.8, 1.2)
        text = "A list is searched for every row, so time grows with the square of the rows."
        return [
            text,
            Delay(0.01 + chance.random() / 20),
            ScriptedUsage({"input": 900, "output": 90 if wordy else 30, "cost": cost}),
        ]

    return answer


@pytest.mark.skipif(not TAKING, reason="pictures are taken with SESSIONTREE_PICTURES=1")
def test_screenshots_are_written_on_request(serve: Serve, visit: Visit) -> None:
    id = create_shop_session()
    site: DashboardSite = serve(ScriptedModel([build_script()] * 60))

    def opened(route: str, there: str, size: tuple[int, int] = DESK, **options: Any) -> Any:
        page = visit(site, route, viewport={"width": size[0], "height": size[1]}, **options)
        page.wait_for_selector(there)
        page.wait_for_load_state("networkidle") if "talk" not in route else page.wait_for_timeout(900)
        return page

    def take(page: Any, name: str) -> None:
        page.wait_for_timeout(500)
        page.screenshot(path=IMAGES / f"{name}.png")

    take(opened(f"/s/{id}/talk", ".path .entry"), "dashboard-session")
    dark = opened(f"/s/{id}/talk", ".path .entry", color_scheme="dark")
    dark.get_by_label("Shown branch").select_option("sql")
    take(dark, "dashboard-dark")
    take(opened(f"/s/{id}/talk", ".path .entry", PHONE, has_touch=True), "dashboard-phone")
    phone = opened(f"/s/{id}/talk", ".path .entry", PHONE, has_touch=True, color_scheme="dark")
    phone.get_by_role("link", name="Tree", exact=True).tap()
    take(phone, "dashboard-tree-phone")
    compare = visit(site, f"/s/{id}/compare?branch=dict&branch=cache&branch=sql")
    compare.wait_for_selector(".column .entry")
    take(compare, "dashboard-compare")
    trial = visit(site, f"/s/{id}/ab")
    trial.wait_for_selector("form.ab")
    for index, (name, prompt) in enumerate(
        {"short": "Why is it slow, in a line?", "detailed": "Why, in detail?"}.items()
    ):
        trial.locator(f"[name='{'AB'[index]}.name']").fill(name)
        trial.locator(f"[name='{'AB'[index]}.prompt']").fill(prompt)
    trial.get_by_role("button", name="Run", exact=True).click()
    trial.wait_for_selector(".verdict.won")
    take(trial, "dashboard-ab")
    swarm = visit(site, "/swarms")
    swarm.locator("[name=name]").fill("review")
    swarm.locator("[name=task]").fill("Read report.py and say what could go wrong with the dict.")
    swarm.locator("[name='budget.cost']").fill("0.04")
    swarm.get_by_role("button", name="Start", exact=True).click()
    swarm.wait_for_selector(".chip.branch >> text=completed")
    take(swarm, "dashboard-swarm")
    overview = visit(site, "/overview")
    overview.wait_for_selector(".columns-over-time")
    take(overview, "dashboard-overview")
