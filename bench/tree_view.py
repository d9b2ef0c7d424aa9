"""How fast the tree view answers on a large session, against an empty `ScrollView` under the same keys.

    python bench/tree_view.py SESSION.jsonl

A key's time is what the process computes from pressing it until the screen is painted, as Textual's pilot presses; the
pilot's own waiting is left out, and so is animation. Shown is the median. The time until the rows of the tree, a filter
or a search are there is told by the clock, and what was computed in it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from textual.app import App, ComposeResult
from textual.geometry import Size
from textual.pilot import Pilot
from textual.scroll_view import ScrollView

import sessiontree as st
from sessiontree.config import Config
from sessiontree.tui.screens.tree_screen import TreeApp, TreeScreen

SIZE = (160, 48)
TIMES = 30
KEYS = ("up", "down", "pageup", "pagedown", "home", "end")
MORE = ("alt+up", "alt+down", "ctrl+left", "ctrl+right")


class Empty(App[None]):
    """A scroll view over nothing, with as many lines."""

    def compose(self) -> ComposeResult:
        view = ScrollView()
        view.virtual_size = Size(SIZE[0], 100_000)
        yield view


async def measure(action: Callable[[], Awaitable[object]]) -> str:
    start, computing = time.perf_counter(), time.process_time()
    await action()
    took, computed = time.perf_counter() - start, time.process_time() - computing
    return f"{took * 1000:6.0f}, computing {computed * 1000:.0f},"


async def measure_layout(action: Callable[[], Awaitable[object]]) -> float:
    start = time.process_time()
    await action()
    return (time.process_time() - start) * 1000


async def measure_key(pilot: Pilot[object], keys: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, list[float]] = {key: [] for key in keys}
    for _ in range(TIMES):
        for key in keys:
            found[key].append(await measure_layout(lambda key=key: pilot.press(key)))
    return {key: statistics.median(times) for key, times in found.items()}


async def measure_arrange(screen: TreeScreen) -> None:
    while screen.view.outline is None or screen.view.progress is not None:
        await asyncio.sleep(0.001)


async def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("session")
    session = st.open(arguments.parse_args().session)
    empty = Empty()
    empty.animation_level = "none"
    async with empty.run_test(size=SIZE) as pilot:
        bare = await measure_key(pilot, KEYS)
    print(f"{len(session.tree):,} entries, {SIZE[0]}x{SIZE[1]}, median of {TIMES}, in ms")
    app = TreeApp(session, Config())
    app.animation_level = "none"
    async with app.run_test(size=SIZE) as pilot:
        screen = app.screen_stack[1]
        assert isinstance(screen, TreeScreen)
        print(f"after {await measure(lambda: measure_arrange(screen))} the rows are there")
        await pilot.press("tab", "tab")  # without the pane
        ours = await measure_key(pilot, (*KEYS, *MORE))
        for key, took in ours.items():
            beside = f"{bare[key]:6.2f}  {took / bare[key]:.2f}x" if key in bare else ""
            print(f"{key:12} {took:6.2f} {beside}")
        for key in ("ctrl+o", "ctrl+u", "ctrl+a", "c", "a", "c", "h", "e"):

            async def measure_answer(key: str = key) -> None:
                await pilot.press(key)
                await measure_arrange(screen)

            print(f"{key:12} {await measure(measure_answer)} until {len(screen.view.outline or ()):,} rows are there")


if __name__ == "__main__":
    asyncio.run(main())
