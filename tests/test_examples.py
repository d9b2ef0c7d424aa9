"""Every script in `examples/` runs by itself and finds what it asserts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_every_example_runs_without_an_error(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )

    assert done.returncode == 0, done.stderr
    assert "assert" in script.read_text()
    assert done.stdout
    assert not [path for path in tmp_path.iterdir() if path.name != "home"], "an example left files behind"


def test_there_are_examples() -> None:
    assert {"branching", "ab", "explain"} <= {script.stem for script in EXAMPLES}
