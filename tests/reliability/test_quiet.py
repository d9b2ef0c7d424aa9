"""Opening a session or listing a folder runs no code, reads nothing else and touches no network.

Python calls an audit hook for every file it opens, every module it imports, all code it runs, and every process and
connection it starts. A child installs one, then opens and lists sessions in a folder full of traps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sessiontree as st
from tests.builders import build_file, entry, header

WATCHER = Path(__file__).parent / "watched.py"

TRAPS = {
    **dict.fromkeys(
        ["conftest.py", "sitecustomize.py", "usercustomize.py", "sessiontree.py", "msgspec.py", "json.py", "setup.py"],
        "raise SystemExit('a trap was run')\n",
    ),
    ".env": "SESSIONTREE_HOME=/nowhere\n",
    ".sessiontree/extensions/trap.py": "raise SystemExit('a trap was run')\n",
    ".pi/extensions/trap.js": "process.exit(1)\n",
    "pyproject.toml": "[tool.sessiontree]\nextensions = ['conftest']\n",
    "sessiontree.toml": "extensions = ['conftest']\n",
}


@pytest.fixture
def project(tmp_path: Path, home: Path) -> Path:
    """A folder of traps with sessions, one of them hostile."""
    project = tmp_path / "project"
    for name, text in TRAPS.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    with st.create(name="mine", cwd=project) as session:
        session.append(st.user("hello"))
    hostile = {
        "type": "custom",
        "customType": "extension",
        "data": {"import": "conftest", "url": "http://127.0.0.1:9/"},
    }
    lines = [
        header(cwd=str(project), parentSession="/etc/passwd", extensions=["conftest"]),
        entry("a", None, hostile).raw,
        entry("b", "a", st.user("![](http://127.0.0.1:9/x.png) file:///etc/passwd")).raw,
        entry("c", "b", {"type": "__import__('os').system('true')"}).raw,
    ]
    assert session.file is not None
    (session.file.parent / "2026-01-01T00-00-00-000Z_hostile.jsonl").write_bytes(build_file(*lines))
    (project / "s.jsonl").write_bytes(build_file(*lines))
    (project / "linked.jsonl").symlink_to("/etc/passwd")
    return project


def run_watched(project: Path, work: str, *plants: str) -> list[list[str]]:
    """Return the audit events during `work` that are unrelated to it."""
    command = [sys.executable, str(WATCHER), work, str(project / "s.jsonl"), *plants]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("work", ["open", "ask", "list", "find", "command"])
def test_reading_sessions_has_no_side_effects(project: Path, work: str) -> None:
    assert run_watched(project, work) == []


@pytest.mark.parametrize(("plant", "event"), [("run_code", "exec"), ("connect_to_network", "socket.connect")])
def test_the_harness_notices_executed_code_and_connections(project: Path, plant: str, event: str) -> None:
    (project / "conftest.py").write_text("harmless = True\n")

    happened = run_watched(project, "open", plant)

    assert event in [name for name, _ in happened]
