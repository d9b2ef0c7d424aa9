"""Screenshots of every screen in three sizes, dark and light, used in `docs/screens.md` and other pages.

Set `SESSIONTREE_PICTURES=1` to update them, and review the changes before you commit.
"""

from __future__ import annotations

import asyncio
import os
import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.config import AppSettings, Config, ModelServerSettings
from sessiontree.core.messages import ToolCall, tool_call
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import Delay, ScriptedModel, ScriptedUsage, Thinking
from sessiontree.session import Session
from sessiontree.store.jsonl import JsonlStore
from sessiontree.store.memory import MemoryStore
from sessiontree.tui.screens.tree_screen import TreeApp
from sessiontree.tui.theme import LIGHT
from tests.model.fake_server import FakeServer

from .conftest import Driver, NoModels, Running

PICTURES = Path(__file__).parents[2] / "docs" / "images"
SIZES = [(80, 24), (120, 40), (200, 50)]
TAKING = bool(os.environ.get("SESSIONTREE_PICTURES"))
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


@pytest.fixture(params=["dark", "light"])
def theme(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def shown(running: Running, theme: Any) -> Running:
    """Run the app in a theme. `check` changes its size."""
    settings = Config(app=AppSettings(theme=theme))
    return lambda *answers, **options: running(*answers, **{"settings": settings, "size": SIZES[0], **options})


async def check(app: Driver, name: str, sizes: list[tuple[int, int]] = SIZES) -> None:
    """Compare the screen with its pictures in all sizes, or write them."""
    for size in sizes:
        await app.pilot.resize_terminal(*size)
        suffix = "-light" if app.app.theme == LIGHT.name else ""
        await check_one(app, f"{name}{suffix}-{size[0]}x{size[1]}")


async def check_one(app: Driver, name: str) -> None:
    file = PICTURES / f"{name}.svg"
    stop_blinking(app)
    if TAKING:
        file.write_text(await render_when_still(app))
    kept, now = file.read_text(), ""
    for _ in range(300):
        await app.pilot.pause(0.02)
        now = render_picture(app)
        if now == kept:
            return
    raise AssertionError(f"{file.name} has changed; the screen is\n{app.screen}")


def stop_blinking(app: Driver) -> None:
    for widget in app.app.screen.query("TextArea, Input"):
        widget.cursor_blink = False  # pyright: ignore[reportAttributeAccessIssue]


async def render_when_still(app: Driver) -> str:
    """Return the picture when it has not changed for a while."""
    now, same = "", 0
    while same < 5:
        await asyncio.sleep(0.15)
        before, now = now, render_picture(app)
        same = same + 1 if now == before else 0
    return now


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the same name in every picture, `~/shop`, whose path has always the same length.

    The path is part of the system prompt, and so of the size of the context.
    """
    home = tmp_path / "x".ljust(200 - len(str(tmp_path)), "x")
    folder = home / "shop"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(folder)
    return folder


def create_shop(name: str = "faster lookups") -> Session:
    return st.create(name)


async def test_the_chat_matches_its_picture(shown: Running, project: Path) -> None:
    (project / "shop.py").write_text("for row in rows:\n    if row.name == name:\n        return row.price\n")
    edit = {"path": "shop.py", "old_text": "for row in rows:", "new_text": "if name in prices:"}
    usage = ScriptedUsage({"input": 8200, "output": 410, "cost": 0.031})
    thought = Thinking("A loop over all rows for each name; a dict would do.")
    answers = [[thought, ToolCall("a", "edit", edit), usage], [ANSWER, usage]]
    async with shown(*answers, session=create_shop(), permission_mode="allow-edits") as app:
        await app.submit_and_wait("Why is `price` slow, and can you make it fast?")
        await app.press("pageup")
        await check(app, "chat")


async def test_the_question_about_a_tool_call_matches_its_picture(shown: Running) -> None:
    call = ToolCall("a", "bash", {"command": "rm -rf build && make all"})
    usage = ScriptedUsage({"input": 820, "output": 41, "cost": 0.0031})
    async with shown(["I build it anew.", call, usage], session=create_shop()) as app:
        panel = app.chat.permission
        panel.clock = lambda: 0.0
        await app.submit("Build it from scratch.")
        await app.wait_for_text("Allow bash?")
        app.chat.show_activity("")  # hide the elapsed seconds
        panel.focus_panel()
        await app.wait_until(lambda: panel.has_focus)
        await check(app, "permission")


async def test_the_command_suggestions_match_their_picture(shown: Running) -> None:
    async with shown(session=create_shop()) as app:
        await app.press("/", "c")
        await app.wait_for_text("› /c")
        await check(app, "commands")


async def test_the_tree_over_the_chat_matches_its_picture(shown: Running) -> None:
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
    async with shown(session=session) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("← active")
        await check(app, "tree")


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


async def test_the_separate_tree_app_matches_its_picture(theme: Any) -> None:
    app: Any = TreeApp(create_two_branches(), Config(app=AppSettings(theme=theme)))
    async with app.run_test(size=SIZES[0]) as pilot:
        driver = Driver(app, pilot, ScriptedModel([]))
        await driver.wait_for_text("← active")
        await driver.press("tab")
        await driver.wait_for_text(" · assistant · 2026-01-01 09:", " · [best]")
        await check(driver, "tree-alone")


async def test_the_settings_match_their_picture(shown: Running) -> None:
    async with shown(session=create_two_branches()) as app:
        await app.submit("/settings")
        await app.wait_for_text("Snapshots of files")
        await check(app, "settings")


async def test_the_costs_match_their_picture(shown: Running) -> None:
    async with shown(session=create_two_branches()) as app:
        await app.submit("/cost")
        await app.wait_for_text("Branches")
        await check(app, "cost")


@pytest.mark.parametrize("name", ["night", "paper", "dusk", "colorblind"])
async def test_the_chat_in_other_themes_matches_its_picture(running: Running, name: Any) -> None:
    settings = Config(app=AppSettings(theme=name))
    async with running(session=create_two_branches(), settings=settings, size=(80, 24)) as app:
        await app.wait_for_text("Try a dict")
        await check_one(app, f"theme-{name}-80x24")


async def test_branches_side_by_side_match_their_picture(shown: Running) -> None:
    async with shown(session=create_two_branches()) as app:
        await app.submit("/compare main dict")
        await app.wait_for_text("main, dict · winner", "40 ms")
        await check(app, "compare")


async def test_two_marks_in_the_tree_match_their_picture(shown: Running) -> None:
    async with shown(session=create_two_branches()) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("← active")
        await app.press("ctrl+k", "end", "ctrl+k")
        await app.wait_for_text("diverge at", "Try a")
        await check(app, "marks")


async def test_the_search_matches_its_picture(shown: Running) -> None:
    with st.create(cwd="/home/ann/shop") as made:
        file = made.file
    assert file is not None
    file.unlink()
    async with shown(session=create_two_branches(file)) as app:
        await app.submit("/search cache")
        await app.wait_for_text("3 matches", "grows with every name")
        await check(app, "search")


async def test_the_key_list_matches_its_picture(shown: Running) -> None:
    async with shown(session=create_shop()) as app:
        for size in SIZES:
            await app.pilot.resize_terminal(*size)
            await app.press("f1")
            await app.wait_for_text("Keys · change them under [keys]")
            await check(app, "keys", [size])
            await app.press("escape")


async def test_the_session_picker_matches_its_picture(shown: Running, project: Path) -> None:
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
    async with shown(session=st.open(str(first.file))) as app:
        assert first.file is not None
        os.utime(first.file, (1767258000,) * 2)
        await app.press("ctrl+r")
        await app.wait_for_text("with a dict", "Which tests", "A cache, or a dict?")
        await check(app, "sessions")


async def test_the_files_dialog_matches_its_picture(shown: Running, project: Path) -> None:
    (project / "prices.py").write_text("PRICES = [...]\n")
    edit = "echo 'PRICES = {}' > prices.py; echo 'def price(): ...' > lookup.py; echo 'Use a dict.' > NOTES.md"
    answers = ([ToolCall("c1", "bash", {"command": edit})], "The lookup uses a dict now.")
    async with shown(*answers, permission_mode="allow-all") as app:
        await app.submit_and_wait("Use a dict")
        (project / "NOTES.md").write_text("My own notes.\n")
        await app.submit("/tree root")
        await app.wait_for_text("What should move?", "NOTES.md")
        await app.press("down", "tab")
        await check(app, "files")


async def test_the_first_start_matches_its_picture(shown: Running) -> None:
    async with shown(session=create_two_branches(), models=NoModels()) as app:
        await app.submit("/login")
        await app.wait_for_text("Connect a model", "Not now")
        await check(app, "setup")


async def test_the_models_match_their_picture(running: Running, theme: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith(("_API_KEY", "_BASE_URL"))]:
        monkeypatch.delenv(name)
    with FakeServer(models=["small", "large", "code"]) as server:
        servers = {"office": ModelServerSettings(base_url=server.url)}
        settings = Config(model="office:large", servers=servers, app=AppSettings(theme=theme))
        async with running(session=create_shop(), configured=True, settings=settings, size=SIZES[0]) as app:
            await app.submit("/model")
            await app.wait_for_text("office:large  (current)", "office:small")
            await app.press("ctrl+f")
            await app.wait_for_text("★ office:")
            await check(app, "models")


async def test_the_context_matches_its_picture(shown: Running) -> None:
    async with shown(session=create_two_branches()) as app:
        await app.submit("/context")
        await app.wait_for_text("/context full")
        await check(app, "context-use")


async def test_the_question_about_a_summary_matches_its_picture(shown: Running) -> None:
    async with shown(session=create_two_branches()) as app:
        await app.press("ctrl+t")
        await app.wait_for_text("← active")
        await app.press("home", "enter")
        await app.wait_for_text("Summarize the branch you're leaving?")
        await check(app, "summary")


async def test_a_plan_matches_its_picture(shown: Running) -> None:
    plan = "1. Read the prices into a **dict** in `shop.py`\n2. Use it in `price`\n3. Run the tests"
    async with shown([plan, ScriptedUsage(MADE["usage"])], session=create_shop()) as app:
        await app.submit("/plan Make `price` fast")
        await app.wait_for_text("Plan mode: what next?")
        await check(app, "plan")


async def test_a_list_of_steps_and_the_queue_match_their_picture(shown: Running, project: Path) -> None:
    items = [
        {"text": "Read the prices into a dict", "status": "done"},
        {"text": "Use it in price", "status": "in_progress"},
        {"text": "Run the tests", "status": "pending"},
    ]
    content = "def price(prices: dict[str, int], name: str) -> int:\n    return prices[name]\n"
    write, todo = (
        ToolCall("a", "write", {"path": "fast.py", "content": content}),
        ToolCall("b", "todo", {"items": items}),
    )
    answers = [[write, todo, ScriptedUsage(MADE["usage"])], [Delay(300), "Done."]]
    async with shown(*answers, session=create_shop(), permission_mode="allow-edits") as app:
        await app.submit("Make `price` fast")
        await app.wait_for_text("1 of 3 done", "return prices[name]")
        await app.wait_until(lambda: len(app.model.requests) == 2)
        await app.submit("Keep the old function too")
        await app.type("Then write a note for the changelog")
        await app.press("alt+enter")
        await app.wait_for_text("2 queued")
        app.chat.show_activity("")  # hide the elapsed seconds
        await check(app, "queue")


async def test_a_failure_matches_its_picture(shown: Running, project: Path) -> None:
    call = ToolCall("a", "bash", {"command": "ls missing; exit 3"})
    usage = ScriptedUsage(MADE["usage"])
    answers = [
        [call, usage],
        ["There is no such folder.", usage],
        ModelError("anthropic:claude-sonnet-4-5", "auth", "the key is not valid"),
    ]
    async with shown(*answers, session=create_shop(), permission_mode="allow-all") as app:
        await app.submit_and_wait("What is in missing?")
        await app.submit_and_wait("Look again")
        await app.wait_for_text("the key is not valid")
        await check(app, "failure")


def test_every_picture_is_on_a_page() -> None:
    pages = "".join(page.read_text() for page in PICTURES.parent.rglob("*.md"))
    assert [file.name for file in sorted(PICTURES.glob("*x*.svg")) if file.name not in pages] == []
