"""Measure the response time of the tree view on a large session, compared with an empty `ScrollView`.

    python bench/tree_view.py SESSION.jsonl

The time of a key is the median CPU time from the key press until the screen is painted, without animation and without
the waiting of Textual's pilot. The time until the rows of the tree, a filter or a search appear is given as wall-clock
time and as CPU time.
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
    """An empty scroll view with the same number of lines."""

    def compose(self) -> ComposeResult:
        view = ScrollView()
        view.virtual_size = Size(SIZE[0], 100_000)
        yield view


async def format_time(action: Callable[[], Awaitable[object]]) -> str:
    start, cpu_start = time.perf_counter(), time.process_time()
    await action()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return f"{seconds * 1000:6.0f} ms (CPU {cpu_seconds * 1000:.0f} ms)"


async def measure_cpu_ms(action: Callable[[], Awaitable[object]]) -> float:
    start = time.process_time()
    await action()
    return (time.process_time() - start) * 1000


async def measure_keys(pilot: Pilot[object], keys: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, list[float]] = {key: [] for key in keys}
    for _ in range(TIMES):
        for key in keys:
            found[key].append(await measure_cpu_ms(lambda key=key: pilot.press(key)))
    return {key: statistics.median(times) for key, times in found.items()}


async def wait_for_rows(screen: TreeScreen) -> None:
    while screen.view.outline is None or screen.view.progress is not None:
        await asyncio.sleep(0.001)


async def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("session")
    session = st.open(arguments.parse_args().session)
    empty = Empty()
    empty.animation_level = "none"
    async with empty.run_test(size=SIZE) as pilot:
        bare = await measure_keys(pilot, KEYS)
    print(f"{len(session.tree):,} entries, {SIZE[0]}x{SIZE[1]}, median of {TIMES}, in ms")
    app = TreeApp(session, Config())
    app.animation_level = "none"
    async with app.run_test(size=SIZE) as pilot:
        screen = app.screen_stack[1]
        assert isinstance(screen, TreeScreen)
        print(f"first rows after {await format_time(lambda: wait_for_rows(screen))}")
        await pilot.press("tab", "tab")  # hide the pane
        ours = await measure_keys(pilot, (*KEYS, *MORE))
        for key, took in ours.items():
            baseline = f"{bare[key]:6.2f}  {took / bare[key]:.2f}x" if key in bare else ""
            print(f"{key:12} {took:6.2f} {baseline}")
        for key in ("ctrl+o", "ctrl+u", "ctrl+a", "c", "a", "c", "h", "e"):

            async def press_and_wait(key: str = key) -> None:
                await pilot.press(key)
                await wait_for_rows(screen)

            print(f"{key:12} {await format_time(press_and_wait)} until {len(screen.view.outline or ()):,} rows appear")


if __name__ == "__main__":
    asyncio.run(main())
