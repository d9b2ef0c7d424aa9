"""The CLI that the Claude Agent SDK brings, with its sessions in our store."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
import pytest

import sessiontree as st
from sessiontree.adapters.claude import TreeSessionStore
from tests.peers.loopback_model import COMMAND_SECONDS, PORT
from tests.test_docs import DOCS, read_blocks

pytestmark = pytest.mark.peers
HERE = Path(__file__).parent


def run_beside_model(tmp_path: Path, argv: list[str]) -> dict[str, Any]:
    """Run a command in a network namespace with a model on the loopback interface. Returns what it said and asked."""
    project, log = tmp_path / "project", tmp_path / "log.json"
    project.mkdir()
    env = {
        "HOME": str(tmp_path / "user"),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(HERE.parents[1]),
        "SESSIONTREE_HOME": os.environ["SESSIONTREE_HOME"],
        "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{PORT}",
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    (tmp_path / "commands.json").write_text(json.dumps([{"argv": argv, "cwd": str(project), "env": env}]))
    namespace = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    server = [sys.executable, str(HERE / "loopback_model.py"), str(log), str(tmp_path / "commands.json")]
    subprocess.run([*namespace, *server], check=True, timeout=2 * COMMAND_SECONDS)
    [result] = json.loads(log.read_text())
    return result


def test_the_ten_lines_of_the_page_run(tmp_path: Path) -> None:
    blocks = read_blocks(DOCS / "adapters" / "claude-agent-sdk.md")
    code = next(block.text for block in blocks if block.language == "py")

    result = run_beside_model(tmp_path, [sys.executable, "-c", code])

    [found] = st.sessions(all=True)
    with st.open(found.file) as session:
        path = [(entry.role, entry.text) for entry in session.head.path() if entry.role in ("user", "assistant")]
    assert path[0] == ("user", "Fix the test")
    assert path[-1][0] == "assistant"
    assert f"{found.name} {path[-1][1]}" in result["said"]


async def test_the_real_cli_writes_to_the_store_and_resumes_from_it(tmp_path: Path) -> None:
    project, sessions = tmp_path / "project", tmp_path / "sessions"
    result = run_beside_model(tmp_path, [sys.executable, str(HERE / "claude_turns.py"), str(sessions), "2"])

    said = result["said"][result["said"].index("{") :]
    turns = json.JSONDecoder().raw_decode(said)[0]
    assert turns["errors"] == []
    [file] = sessions.glob("*.jsonl")
    session = st.open(file)
    assert session.name == turns["session"]
    assert session.problems == []
    questions = [entry.text for entry in session.head.path() if entry.role == "user"]
    assert questions == ["question 0", "question 1"]
    store = TreeSessionStore(sessions)
    key: sdk.SessionKey = {"project_key": sdk.project_key_for_directory(str(project)), "session_id": turns["session"]}
    assert await store.load(key)
    resumed = [one["body"] for one in result["requests"] if "/messages" in one["path"] and one["body"].get("tools")]
    assert "question 0" in json.dumps(resumed[-1]["messages"])
