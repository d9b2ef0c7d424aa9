"""Output and memory of `tree` grow linearly with the session, for every shape of tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.shapes import build_content

COUNT = 2_000
MEASURED = """
import atexit, re, sys
from sessiontree.cli import main

def print_peak():
    status = open("/proc/self/status").read()
    sys.stderr.write(re.search(r"VmHWM:\\s+(\\d+)", status)[1])

atexit.register(print_peak)
main()
"""
"""Runs the command and prints its peak memory in kilobytes. `wait4` would include the memory of this process."""
NOISE = 4_000
"""Kilobytes by which two identical runs may differ."""


class TreeCost(NamedTuple):
    printed: int
    held: int


def measure_cost(file: Path, *options: str) -> TreeCost:
    ran = subprocess.run([sys.executable, "-c", MEASURED, "tree", str(file), *options], capture_output=True, check=True)
    return TreeCost(len(ran.stdout), int(ran.stderr))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["drawing", "json"])
@pytest.mark.parametrize("shape", ["comb", "wide", "labels", "calls", "nested_branches"])
def test_memory_of_tree_grows_linearly(shape: str, options: tuple[str, ...], tmp_path: Path) -> None:
    for name, count in (("none", 0), ("small", COUNT), ("large", 2 * COUNT)):
        (tmp_path / f"{name}.jsonl").write_bytes(build_content(shape, count))

    none, small, large = (measure_cost(tmp_path / f"{name}.jsonl", *options) for name in ("none", "small", "large"))

    assert large.printed < 2.2 * small.printed
    assert large.held - none.held < 2.5 * (small.held - none.held) + NOISE
