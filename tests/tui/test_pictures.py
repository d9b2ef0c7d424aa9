"""Screenshots of the main views, used in `docs/app.md`.

Set `SESSIONTREE_PICTURES=1` to update them, and review the changes before you commit.
"""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.config import AppSettings, Config
from sessiontree.core.messages import ToolCall, tool_call
from sessiontree.model.scripted import ScriptedModel, ScriptedUsage, Thinking
from sessiontree.session import Session
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.memory import MemoryStore
from sessiontree.tui.screens.tree_screen import TreeApp

from .conftest import Driver, Running

PICTURES = Path(__file__).parents[2] / "docs" / "images"
SIZES = [(80, 24), (160, 48)]
ANSWER = """\
The lookup reads every row. A **dict** makes it one step:

```python
def price(prices: dict[str, int], name: str) -> int:
    return prices[name]  # one step in any case
```

- `price` takes 0.1 µs now, with 10,000 rows 41 µs before
- nothing else has changed
"""


MADE: dict[str, Any] = {
    "provider": "anthropic",
    "model": "claude-sonnet-4-5",
    "usage": {"input": 2100, "output": 160, "cost": 0.0087},
}


def render_picture(app: Driver) -> str:
    """Return the screen as a reproducible SVG without external resources."""
    svg = app.app.export_screenshot(title="sessiontree")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"terminal-\d+", "terminal", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


async def check(app: Driver, name: str, size: tuple[int, int]) -> None:
    for widget in app.app.screen.query("TextArea, Input"):
        widget.cursor_blink = False  # pyright: ignore[reportAttributeAccessIssue]
    await app.pilot.pause()
    file = PICTURES / f"{name}-{size[0]}x{size[1]}.svg"
    now = render_picture(app)
    if os.environ.get("SESSIONTREE_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        file.write_text(now)
    kept = file.read_text()
    assert now == kept, f"{file.name} has changed; the screen is\n{app.screen}"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the same name in every picture: `~/shop`."""
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(folder)
    return folder


def create_shop(name: str = "faster lookups") -> Session:
    return st.create(name)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_chat_matches_its_picture(running: Running, project: Path, size: tuple[int, int]) -> None:
    (project / "shop.py").write_text("for row in rows:\n    if row.name == name:\n        return row.price\n")
    edit = {"path": "shop.py", "old_text": "for row in rows:", "new_text": "if name in prices:"}
    usage = ScriptedUsage({"input": 8200, "output": 410, "cost": 0.031})
    thought = Thinking("A loop over all rows for each name; a dict would do.")
    answers = [[thought, ToolCall("a", "edit", edit), usage], [ANSWER, usage]]
    async with running(*answers, session=create_shop(), size=size, permission_mode="allow-edits") as app:
        await app.submit_and_wait("Why is `price` slow, and can you make it fast?")
        await app.press("pageup" if size[1] < 30 else "end")
        await check(app, "chat", size)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_question_about_a_tool_call_matches_its_picture(running: Running, size: tuple[int, int]) -> None:
    call = ToolCall("a", "bash", {"command": "rm -rf build && make all"})
    usage = ScriptedUsage({"input": 820, "output": 41, "cost": 0.0031})
    async with running(["I build it anew.", call, usage], session=create_shop(), size=size) as app:
        panel = app.chat.permission
        panel.clock = lambda: 0.0
        await app.submit("Build it from scratch.")
        await app.wait_for_text("Allow bash?")
        app.chat.show_activity("")  # hide the elapsed seconds
        panel.focus_panel()
        await app.wait_until(lambda: panel.has_focus)
        await check(app, "permission", size)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_command_suggestions_match_their_picture(running: Running, size: tuple[int, int]) -> None:
    async with running(session=create_shop(), size=size) as app:
        await app.press("/", "c")
        await app.wait_for_text("› /c")
        await check(app, "commands", size)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_tree_over_the_chat_matches_its_picture(running: Running, size: tuple[int, int]) -> None:
    session = create_shop()
    session.append(st.user("How do I make this faster?"))
    session.append(st.assistant("A cache, or a dict?"))
    here = session.tree[session.heads.leaf or ""]
    session.append(st.user("Try a cache"))
    session.append(st.assistant("With a cache: 40 ms."))
    session.create_branch("dict", at=here)
    session.append(st.user("Try a dict"))
    session.append(st.assistant("With a dict: 25 ms."))
    session.label("HEAD", "best")
    async with running(session=session, size=size) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("← active")
        await check(app, "tree", size)


def create_two_branches(file: Path | None = None) -> Session:
    """Create a question with two answers, with fixed times and ids."""
    moments, numbers = count(1767258000000, 1500), count(1)
    session = Session.create(
        MemoryStore() if file is None else JsonlStore(str(file)),
        id="019b7a1e-0000-7000-8000-000000000000",
        cwd="/home/ann/shop",
        name="faster lookups",
        now=lambda: next(moments),
        new_id=lambda: f"{next(numbers) * 0x9E3779B97F4A7C15 % 2**64:016x}",
    )
    session.append(st.user("How do I make `price` faster?"))
    here = session.append(st.assistant("It reads every row for each name. A cache, or a dict?", **MADE))
    session.append(st.user("Try a cache"))
    session.append(st.assistant([tool_call("a", "edit", {"path": "shop.py"})], **MADE))
    session.append(st.tool_result("a", "edit", "edited", details={"diff": "@@ -1 +1 @@\n-for row in rows:\n+@cache"}))
    session.append(st.assistant("With a cache: **40 ms**, and it grows with every name.", **MADE))
    session.create_branch("dict", at=here)
    session.append(st.user("Try a dict"))
    session.append(st.assistant(ANSWER, **MADE))
    session.label("HEAD", "best")
    return session


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_separate_tree_app_matches_its_picture(size: tuple[int, int]) -> None:
    app: Any = TreeApp(create_two_branches(), Config())
    async with app.run_test(size=size) as pilot:
        driver = Driver(app, pilot, ScriptedModel([]))
        await driver.wait_for_text("← active")
        await driver.press("tab")
        await driver.wait_for_text(" · assistant · 2026-01-01 09:", " · [best]")
        await check(driver, "tree-alone", size)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_settings_match_their_picture(running: Running, size: tuple[int, int]) -> None:
    async with running(session=create_two_branches(), size=size) as app:
        await app.submit("/settings")
        await app.wait_for_text("Snapshots of files")
        await check(app, "settings", size)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_costs_match_their_picture(running: Running, size: tuple[int, int]) -> None:
    async with running(session=create_two_branches(), size=size) as app:
        await app.submit("/cost")
        await app.wait_for_text("Branches")
        await check(app, "cost", size)


@pytest.mark.parametrize("theme", ["light", "night", "paper", "dusk", "colorblind"])
async def test_the_chat_in_other_themes_matches_its_picture(running: Running, theme: Any) -> None:
    settings = Config(app=AppSettings(theme=theme))
    async with running(session=create_two_branches(), settings=settings, size=(80, 24)) as app:
        await app.wait_for_text("Try a dict")
        await check(app, f"theme-{theme}", (80, 24))


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_branches_side_by_side_match_their_picture(running: Running, size: tuple[int, int]) -> None:
    async with running(session=create_two_branches(), size=size) as app:
        await app.submit("/compare main dict")
        await app.wait_for_text("main, dict · winner", "40 ms")
        await check(app, "compare", size)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_two_marks_in_the_tree_match_their_picture(running: Running, size: tuple[int, int]) -> None:
    async with running(session=create_two_branches(), size=size) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("← active")
        await app.press("ctrl+k", "end", "ctrl+k")
        await app.wait_for_text("diverge at", "Try a")
        await check(app, "marks", size)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_search_matches_its_picture(running: Running, size: tuple[int, int]) -> None:
    with st.create(cwd="/home/ann/shop") as made:
        file = made.file
    assert file is not None
    file.unlink()
    async with running(session=create_two_branches(file), size=size) as app:
        await app.submit("/search cache")
        await app.wait_for_text("3 matches", "grows with every name")
        await check(app, "search", size)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_key_list_matches_its_picture(running: Running, size: tuple[int, int]) -> None:
    async with running(session=create_shop(), size=size) as app:
        await app.press("f1")
        await app.wait_for_text("Keys · change them under [keys]")
        await check(app, "keys", size)


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_session_picker_matches_its_picture(running: Running, project: Path, size: tuple[int, int]) -> None:
    with st.create("faster lookups", cwd="/home/ann/shop") as first:
        first.append(st.user("How do I make this faster?"))
        first.append(st.assistant("A cache, or a dict?"))
        with first.fork(name="with a dict") as second:
            second.append(st.user("Try a dict"))
            second.append(st.assistant("With a dict: 25 ms."))
    with st.create(cwd="/home/ann/shop") as third:
        third.append(st.user("Which tests cover the basket?"))
    for number, session in enumerate((first, second, third)):
        assert session.file is not None
        os.utime(session.file, (1767258000 + number * 3600,) * 2)
    async with running(session=st.open(str(first.file)), size=size) as app:
        assert first.file is not None
        os.utime(first.file, (1767258000,) * 2)
        await app.press("ctrl+r")
        await app.wait_for_text("with a dict", "Which tests", "A cache, or a dict?")
        await check(app, "sessions", size)


@pytest.mark.parametrize("size", SIZES)
async def test_the_files_dialog_matches_its_picture(running: Running, project: Path, size: tuple[int, int]) -> None:
    (project / "prices.py").write_text("PRICES = [...]\n")
    edit = "echo 'PRICES = {}' > prices.py; echo 'def price(): ...' > lookup.py; echo 'Use a dict.' > NOTES.md"
    answers = ([ToolCall("c1", "bash", {"command": edit})], "The lookup uses a dict now.")
    async with running(*answers, size=size, settings=Config(), permission_mode="allow-all") as app:
        await app.submit_and_wait("Use a dict")
        (project / "NOTES.md").write_text("My own notes.\n")
        await app.submit("/tree root")
        await app.wait_for_text("What should move?", "NOTES.md")
        await app.press("down", "tab")
        await check(app, "files", size)
