"""Record the moving pictures of the README from the real app: ask, go back, try another way, compare.

Run it after the app has changed: `.venv/bin/python scripts/record_picture.py`. It writes `docs/images/tour-dark.svg`
and `tour-light.svg`: one frame per step, shown in turn by CSS, without scripts or external fonts.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

import sessiontree as st
from sessiontree.config import Config
from sessiontree.tui.app import AppOptions, SessionApp

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SIZE = (88, 22)
SECONDS = 3.2
"""How long each frame is shown."""
CAPTION_HEIGHT = 44
STYLE = """
.frame {{ visibility: hidden; animation: show {total}s step-end infinite; }}
@keyframes show {{ 0% {{ visibility: visible; }} {share}% {{ visibility: hidden; }} }}
.caption {{ font: 600 22px system-ui, sans-serif; fill: {color}; }}
@media (prefers-reduced-motion) {{ .frame {{ animation: none; }} .frame:last-of-type {{ visibility: visible; }} }}
"""


class OneModel:
    """Answers to every name with one scripted model."""

    def __init__(self, model: st.ScriptedModel) -> None:
        self.model = model

    def find(self, name: str | None = None) -> st.Model:
        return self.model

    def list_names(self) -> list[str]:
        return [self.model.info.name]


class Recorder:
    def __init__(self, app: SessionApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot
        self.frames: list[tuple[str, str]] = []

    async def take(self, caption: str) -> None:
        for widget in self.app.screen.query("TextArea, Input"):
            widget.cursor_blink = False  # pyright: ignore[reportAttributeAccessIssue]
        await self.pilot.pause(0.2)
        self.frames.append((caption, self.app.export_screenshot(title="sessiontree")))

    async def wait_until(self, condition: Callable[[], object]) -> None:
        for _ in range(3000):
            if condition():
                return
            await self.pilot.pause(0.01)
        raise TimeoutError(f"the app did not get there; its screen is\n{self.read_screen()}")

    def read_screen(self) -> str:
        strips = self.app.screen._compositor.render_strips(self.app.size)  # pyright: ignore[reportPrivateUsage]
        return "\n".join(strip.text for strip in strips)

    async def wait_for_text(self, text: str) -> None:
        await self.wait_until(lambda: text in self.read_screen().replace("\xa0", " "))

    async def submit(self, text: str, answer: str) -> None:
        self.app.chat.editor.insert(text)
        await self.pilot.pause()
        self.app.chat.editor.close_popup()
        await self.pilot.press("enter")
        await self.wait_for_text(answer)


async def play(recorder: Recorder) -> None:
    press = recorder.pilot.press
    await recorder.submit("How do I make `price` faster?", "A cache, or a dict?")
    await recorder.take("1. Ask")
    await recorder.submit("Try a cache", "40 ms")
    await recorder.take("2. Try one way")
    await press("ctrl+t")
    await recorder.wait_for_text("← active")
    await press("up", "up")
    await recorder.take("3. Open the tree, and go back to the question")
    await press("escape")
    await recorder.submit("/branch-here dict HEAD~2", "on dict")
    await recorder.submit("Try a dict", "25 ms")
    await recorder.take("4. Try another way, on a branch")
    await press("ctrl+t")
    await recorder.wait_for_text("← active")
    await recorder.take("5. The tree keeps both")
    await press("escape")
    await recorder.submit("/compare main dict", "winner")
    await recorder.take("6. Compare them")


async def record(light: bool, folder: Path) -> str:
    usage = st.ScriptedUsage({"input": 2100, "output": 160, "cost": 0.0087})
    cheap = st.ScriptedUsage({"input": 1900, "output": 90, "cost": 0.0041})
    model = st.ScriptedModel([
        ["`price` reads every row for each name. A cache, or a dict?", usage],
        ["With a cache: **40 ms**, and it grows with every name.", usage],
        ["With a dict: **25 ms**, whatever the number of names.", cheap],
    ])  # fmt: skip
    session = st.create("faster lookups", cwd=str(folder))
    options = AppOptions(session=session, cwd=str(folder), settings=Config(), light=light)
    app = SessionApp(options, models=OneModel(model))
    async with app.run_test(size=SIZE) as pilot:
        recorder = Recorder(app, pilot)
        await recorder.wait_until(lambda: app.model_found.is_set() and app.ready.is_set())
        await play(recorder)
    return join_frames(recorder.frames, "#1f2937" if light else "#e5e7eb")


def join_frames(frames: list[tuple[str, str]], color: str) -> str:
    """Return one SVG that shows the frames in turn."""
    boxes = [re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg) for _, svg in frames]
    width, height = max((float(box[1]), float(box[2])) for box in boxes if box)
    style = STYLE.format(total=SECONDS * len(frames), share=100 / len(frames), color=color)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + CAPTION_HEIGHT}" role="img" '
        f'aria-label="The app: ask, go back, try another way, compare">',
        f"<style>{style}</style>",
    ]
    for number, (caption, svg) in enumerate(frames):
        parts.append(f'<g class="frame" style="animation-delay: {number * SECONDS}s">')
        parts.append(f'<text class="caption" x="14" y="28">{caption}</text>')
        parts.append(f'<g transform="translate(0 {CAPTION_HEIGHT})">{trim(svg, f"f{number}")}</g></g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def trim(svg: str, prefix: str) -> str:
    """Return the content of a frame, without external fonts, with names of its own."""
    body = re.sub(r"^.*?<svg[^>]*>|</svg>\s*$", "", svg, flags=re.DOTALL)
    body = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"terminal-\d+", "terminal", body).replace("terminal-", f"{prefix}-")
    return "\n".join(line.strip() for line in body.splitlines() if line.strip())


def main() -> None:
    for name, light in (("dark", False), ("light", True)):
        with tempfile.TemporaryDirectory() as home:
            folder = Path(home) / "shop"
            folder.mkdir()
            os.environ.update(HOME=home, SESSIONTREE_HOME=str(Path(home) / ".sessiontree"))
            os.chdir(folder)
            (IMAGES / f"tour-{name}.svg").write_text(asyncio.run(record(light, folder)))
            os.chdir("/")


if __name__ == "__main__":
    main()
