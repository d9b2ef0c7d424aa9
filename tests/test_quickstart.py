"""The programs of `docs/quickstart.md` are as short as promised and run as written, with one import."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import sessiontree as st
from tests.test_docs import DOCS, Block, read_blocks

BLOCKS = read_blocks(DOCS / "quickstart.md")


def find_block(heading: str, language: str = "python") -> Block:
    return next(block for block in BLOCKS if (block.heading, block.language) == (heading, language))


@pytest.mark.parametrize(
    ("heading", "lines"),
    [("An agent with a tool", 5), ("A branch, a comparison and a merge", 10), ("An A/B test", 12)],
)
def test_a_program_is_short_needs_one_import_and_runs_as_a_script(heading: str, lines: int, tmp_path: Path) -> None:
    block = find_block(heading)
    script = tmp_path / "script.py"
    script.write_text(block.text)

    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    shown = BLOCKS[BLOCKS.index(block) + 1].text
    assert done.stderr == ""
    assert done.stdout.startswith(shown.partition("…")[0].rstrip())
    assert len([line for line in block.text.splitlines() if line]) <= lines
    imports = [line for line in block.text.splitlines() if "import" in line]
    assert imports == ["import sessiontree as st"]


async def test_the_cell_runs_in_a_loop_that_is_running(capsys: pytest.CaptureFixture[str]) -> None:
    block = find_block("In a notebook and in a server", "ipython")
    code = compile(block.text, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    await eval(code, {"__name__": "__main__"})

    assert capsys.readouterr().out == "It is 5. Both answers say five.\n"


async def test_run_sync_in_a_running_loop_suggests_await() -> None:
    with pytest.raises(st.InvalidOperation, match=r"write `await …` instead of st\.run_sync"):
        st.run_sync(asyncio.sleep(0))


def test_run_sync_returns_the_result_and_raises_the_error() -> None:
    session = st.memory()
    session.append(st.user("Hello"))

    assert st.run_sync(session.head.navigate("root")).new_leaf is None
    with pytest.raises(st.NotFound):
        st.run_sync(session.head.navigate("nowhere"))
