"""Every Python example of the pages passes pyright and mypy, both strict, and needs no `cast` and no ignored error.

The blocks of a page are one module, as they are when they run. Each line has the number that it has in the page.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import PAGES, ROOT, read_blocks


def build_module(page: Path) -> str | None:
    """Return the examples of a page as one module; `None` if it has none. A notebook cell is an async function."""
    lines = [""] * len(page.read_text().splitlines())
    blocks = [block for block in read_blocks(page) if block.language in ("python", "ipython")]
    for block in blocks:
        is_cell = block.language == "ipython"
        if is_cell:
            lines[block.line - 1] = f"async def run_cell_{block.line}() -> None:"
        for number, line in enumerate(block.text.splitlines(), block.line):
            lines[number] = f"    {line}" if is_cell and line else line
    return "\n".join(lines).rstrip() + "\n" if blocks else None


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "pages"
    folder.mkdir()
    for page in PAGES:
        text = build_module(page)
        if text is not None:
            name = "_".join(page.relative_to(ROOT).with_suffix("").parts)
            (folder / f"{name.lower().replace('-', '_')}.py").write_text(text)
    return folder


def test_the_examples_pass_pyright_strict(modules: Path) -> None:
    config = {"include": ["pages"], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (modules.parent / "pyrightconfig.json").write_text(json.dumps(config))

    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run([*command, "-p", str(modules.parent)], capture_output=True, text=True, check=False)

    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(modules.iterdir()))
    problems = [
        f"{Path(problem['file']).name}:{problem['range']['start']['line'] + 1}: {problem['message']}"
        for problem in report["generalDiagnostics"]
    ]
    assert not problems, "\n".join(problems)


def test_the_examples_pass_mypy_strict(modules: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(modules.parent / "cache")]
    done = subprocess.run([*command, "."], cwd=modules, capture_output=True, text=True, check=False)

    assert (done.stderr, done.returncode) == ("", 0), done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_example_silences_a_type_checker(page: Path) -> None:
    found = re.search(r"\bcast\(|# type: ignore|# pyright:|# mypy:", build_module(page) or "")

    assert found is None, f"{page.relative_to(ROOT)} has {found and found[0]}"
