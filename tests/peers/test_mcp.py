"""Other agents reach sessions through `sessiontree mcp serve`: the MCP inspector, Claude Code and Codex, all real.

Run by `make test-peers`. The agents run in a network namespace, and the model on the loopback calls our tool.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from tests.peers.agents import Agents, fetch_agents
from tests.peers.fetch_pi import NPM_SECONDS, NodeMissing

pytestmark = pytest.mark.peers

SCRATCH = Path(__file__).parents[2] / ".peers"
INSPECTOR = "2.12.0"
SERVER = [sys.executable, "-m", "sessiontree", "mcp", "serve"]
PROMPT = "Please call tool search_sessions with query parser"
FOUND = "branch main, in context: The parser needs a cache"


@pytest.fixture(scope="module")
def inspector() -> Path:
    """The command of the inspector, fetched once."""
    lacking = pytest.fail if os.environ.get("CI") else pytest.skip
    npm = shutil.which("npm")
    if npm is None:
        lacking("The inspector cannot run: npm was not found.")
    final = SCRATCH / f"inspector-{INSPECTOR}"
    if not final.is_dir():
        SCRATCH.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=SCRATCH) as name:
            work = Path(name) / "all"
            work.mkdir()
            spec = f"@modelcontextprotocol/inspector@{INSPECTOR}"
            command = [str(npm), "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(work), spec]
            subprocess.run(command, check=True, capture_output=True, timeout=NPM_SECONDS)
            work.rename(final)
    return final / "node_modules/.bin/mcp-inspector"


@pytest.fixture(scope="module")
def programs() -> Path:
    lacking = pytest.fail if os.environ.get("CI") else pytest.skip
    if shutil.which("unshare") is None:
        lacking("The real programs run in a network namespace, and unshare was not found.")
    try:
        return fetch_agents(SCRATCH)
    except NodeMissing as reason:
        lacking(str(reason))


def write_session(project: Path) -> str:
    with st.create("past", cwd=project) as session:
        session.append(st.user("The parser needs a cache"))
        return session.id


def test_the_inspector_lists_calls_and_reads(
    inspector: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    id = write_session(tmp_path)
    home.mkdir(exist_ok=True)

    def inspect(*arguments: str, server: tuple[str, ...] = ()) -> Any:
        env = [word for name in ("HOME", "SESSIONTREE_HOME") for word in ("-e", f"{name}={os.environ[name]}")]
        done = subprocess.run(
            [str(inspector), "--cli", "--connect-timeout", "90000", *env, *arguments, "--", *SERVER, *server],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    listed = inspect("--method", "tools/list")
    writing = inspect("--method", "tools/list", server=("--allow-write",))
    found = inspect("--method", "tools/call", "--tool-name", "search_sessions", "--tool-arg", "query=parser")
    resources = inspect("--method", "resources/list")
    read = inspect("--method", "resources/read", "--uri", f"sessiontree://sessions/{id}")

    assert {"search_sessions", "read_path"} <= {tool["name"] for tool in listed["tools"]}
    assert {tool["name"] for tool in writing["tools"]} - {tool["name"] for tool in listed["tools"]} == {
        "label_entry",
        "fork_session",
        "append_note",
    }
    assert FOUND in found["content"][0]["text"]
    assert found["structuredContent"]["matches"][0]["session"] == id
    assert f"sessiontree://sessions/{id}" in {resource["uri"] for resource in resources["resources"]}
    assert "The parser needs a cache" in json.dumps(read)


def test_claude_code_and_codex_search_past_sessions(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = Agents(programs, tmp_path / "agents")
    env = {"HOME": str(agents.home), "SESSIONTREE_HOME": str(tmp_path / "own")}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    write_session(agents.project)
    server = {"command": SERVER[0], "args": SERVER[1:], "env": env}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"sessiontree": server}}))
    variables = ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
    with open(agents.home / ".codex/config.toml", "a") as file:
        file.write(f"[mcp_servers.sessiontree]\ncommand = {json.dumps(SERVER[0])}\nargs = {json.dumps(SERVER[1:])}\n")
        file.write(f"env = {{ {variables} }}\nrequired = true\nstartup_timeout_sec = 60\n")
    allowed = "mcp__sessiontree__search_sessions"

    results = agents.run_raw(
        [
            ["claude", "-p", PROMPT, "--mcp-config", str(config), "--allowedTools", allowed],
            ["codex", "exec", "--skip-git-repo-check", PROMPT],
        ]
    )

    seen = json.dumps(json.dumps("The parser needs a cache")).strip('"')  # both send the structured content, as text
    for result, mark in zip(results, ("tool_result", "function_call_output"), strict=True):
        bodies = [json.dumps(request["body"]) for request in result["requests"]]
        assert any(mark in body and "inContext" in body and seen in body for body in bodies), result["said"]
