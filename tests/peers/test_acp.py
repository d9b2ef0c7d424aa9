"""`sessiontree acp` beside the npm packages of the protocol: its JSON schemas, and a real headless client.

Run by `make test-peers`. The model is on the loopback interface.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

import acp
import sessiontree as st
from tests.acp.conftest import here as here
from tests.acp.conftest import server as server
from tests.acp.draft_client import start_draft_client
from tests.acp.editor import COMMAND, spawn_editor
from tests.model.fake_server import Answer, FakeServer, calls, fail, slow
from tests.peers.acp_packages import ProtocolSchema, fetch_packages
from tests.peers.fetch_pi import NodeMissing

pytestmark = pytest.mark.peers

SCRATCH = Path(__file__).parents[2] / ".peers"
SECONDS = 120
ATTEMPTS = 50
"""How often acpx may fail to start its helper process."""
DENIED = 5
"""The exit code of acpx after it denied all permission questions of a prompt."""
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def modules() -> Path:
    try:
        return fetch_packages(SCRATCH)
    except NodeMissing as reason:
        lacking = pytest.fail if os.environ.get("CI") else pytest.skip
        lacking(str(reason))


async def test_every_message_of_the_agent_matches_the_schema_of_the_npm_sdk(
    modules: Path, server: FakeServer, here: Path
) -> None:
    (here / "a.txt").write_text("content")
    server.add(
        Answer(text="Hello.", thinking="Let me see."),
        calls(
            ("c1", "read", {"path": "a.txt", "offset": 1}),
            ("c2", "edit", {"path": "a.txt", "old_text": "content", "new_text": "changed"}),
            ("c3", "write", {"path": "b.txt", "content": "new"}),
            ("c4", "bash", {"command": "ls"}),
            ("c5", "nothing", {"x": [1, None]}),
            ("c6", "todo", {"items": [{"text": "Look", "status": "done"}, {"text": "Write"}]}),
        ),
        "Done.",
        calls(("c1", "bash", {"command": "rm a.txt"})),
        "Refused.",
        slow(),
    )
    async with spawn_editor(cwd=here, fs=True, terminal=True) as editor:
        session = await editor.open(here)
        await editor.prompt(session, "Hello", acp.image_block(PNG, "image/png"))
        await editor.prompt(session, "Work")
        editor.choose = "no"
        await editor.prompt(session, "Remove")
        for line in ("/tree", "/name My work", "/permissions read-only", "/nothing"):
            await editor.prompt(session, line)
        asking = asyncio.create_task(editor.prompt(session, "Count"))
        await editor.wait_for(lambda: "word" in editor.read_text())
        await editor.connection.cancel(session_id=session)
        await asking
        await editor.connection.set_session_mode(session_id=session, mode_id="ask")
        await editor.connection.set_config_option(session_id=session, config_id="thinking", value="high")
        forked = (await editor.connection.fork_session(session_id=session, cwd=str(here))).session_id
        await editor.connection.close_session(session_id=session)
        await editor.connection.load_session(cwd=str(here), session_id=session, mcp_servers=[])
        await editor.connection.resume_session(cwd=str(here), session_id=forked)
        await editor.connection.list_sessions()
        await editor.connection.authenticate(method_id="api-key")
        await editor.request("session/delete", {"sessionId": forked})

    schema = ProtocolSchema(modules)
    for kind, method, value in editor.read_messages():
        schema.validate(kind, method, value)
    assert len({(kind, method) for kind, method, _ in editor.read_messages()}) >= 19
    with pytest.raises(jsonschema_rs.ValidationError):
        schema.validate("request", "session/update", {"sessionId": session, "update": {"sessionUpdate": "tool_call"}})


async def test_every_message_of_version_2_matches_its_draft_in_the_npm_sdk(
    modules: Path, server: FakeServer, here: Path
) -> None:
    (here / "a.txt").write_text("content")
    server.add(
        Answer(text="Hello.", thinking="Let me see."),
        calls(
            ("c1", "read", {"path": "a.txt", "offset": 1}),
            ("c2", "edit", {"path": "a.txt", "old_text": "content", "new_text": "changed"}),
            ("c3", "write", {"path": "b.txt", "content": "new"}),
            ("c4", "bash", {"command": "ls"}),
            ("c5", "todo", {"items": [{"text": "Look", "status": "done"}, {"text": "Write"}]}),
        ),
        "Done.",
        fail(400),
    )
    async with start_draft_client() as client:
        session = (await client.request("session/new", cwd=str(here)))["sessionId"]
        for text in ("Hello", "Work", "Fail", "/tree", "/name My work", "/permissions read-only"):
            await client.prompt(session, text)
        option = {"configId": "thinking", "type": "select", "value": "high"}
        await client.request("session/set_config_option", sessionId=session, **option)
        forked = (await client.request("session/fork", sessionId=session, cwd=str(here)))["sessionId"]
        await client.request("session/close", sessionId=session)
        start = {"type": "start"}
        await client.request("session/resume", sessionId=session, cwd=str(here), mcpServers=[], replayFrom=start)
        await client.request("session/list")
        await client.request("session/delete", sessionId=forked)
        await client.request("auth/login", methodId="api-key")
        await client.request("auth/logout")

    schema = ProtocolSchema(modules, version=2)
    for kind, method, value in client.messages:
        schema.validate(kind, method, value)
    kinds = {update["sessionUpdate"] for update in client.updates}
    assert {"state_update", "user_message", "tool_call_update", "plan_update", "config_option_update"} <= kinds
    known = schema.read_kinds_of_updates()
    assert kinds <= known, kinds - known


def test_the_client_of_the_npm_sdk_uses_version_2(modules: Path, server: FakeServer, here: Path) -> None:
    (here / "a.txt").write_text("content")
    server.add(calls(("c1", "edit", {"path": "a.txt", "old_text": "content", "new_text": "changed"})), "Done.")
    sdk = modules / "@agentclientprotocol/sdk/dist/v2/stable/acp.js"

    done = subprocess.run(
        ["node", Path(__file__).with_name("draft_client.mjs"), sdk, here, *COMMAND, "--v2"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["started"]["protocolVersion"] == 2
    texts = [update["content"]["text"] for update in said["seen"] if update["sessionUpdate"] == "agent_message_chunk"]
    assert "".join(texts) == "Done."
    assert said["accepted"]["messageId"] in {update.get("messageId") for update in said["seen"]}
    assert (here / "a.txt").read_text() == "changed"


def run_acpx(modules: Path, cwd: Path, *arguments: str, code: int = 0) -> list[Any]:
    """Run the headless client with our agent, and return its output as JSON."""
    command = [
        str(modules / ".bin/acpx"), "--agent", shlex.join(COMMAND), "--cwd", str(cwd),
        "--format", "json", "--ttl", "120", *arguments,
    ]  # fmt: skip
    left = ATTEMPTS
    while True:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS, check=False)
        left -= 1
        # It gives its own helper process six seconds to start. On a busy machine that is too little.
        if "Session queue owner failed to start" not in done.stdout or not left:
            break
    assert done.returncode == code, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_real_headless_client_creates_a_session_prompts_and_gets_tool_calls(
    modules: Path, server: FakeServer, here: Path
) -> None:
    (here / "a.txt").write_text("content of a")
    edit = {"path": "a.txt", "old_text": "content", "new_text": "text"}
    server.add(
        "Hello.",
        calls(("c1", "edit", edit), text="I edit."),
        "Edited.",
        calls(("c2", "bash", {"command": "ls"})),
        "No.",
    )

    run_acpx(modules, here, "sessions", "new")
    try:
        answers = [
            run_acpx(modules, here, "--approve-all", "prompt", "Hi"),
            run_acpx(modules, here, "--approve-all", "prompt", "Edit a.txt"),
            run_acpx(modules, here, "--deny-all", "prompt", "Run ls", code=DENIED),
        ]
        run_acpx(modules, here, "set-mode", "read-only")
    finally:
        run_acpx(modules, here, "sessions", "close")  # this ends the helper process

    chunks = [message["params"]["update"] for message in answers[0] if message.get("method") == "session/update"]
    texts = [chunk["content"]["text"] for chunk in chunks if chunk["sessionUpdate"] == "agent_message_chunk"]
    assert "".join(texts) == "Hello."
    assert (here / "a.txt").read_text() == "text of a"
    assert "a.txt" in json.dumps(answers[1])
    (summary,) = st.sessions(all=True)
    with st.open(summary.id) as session:
        texts = [entry.text for entry in session.head.path() if entry.role == "assistant"]
        results = [entry.text for entry in session.head.path() if entry.role == "toolResult"]
    assert (texts[0], texts[-1]) == ("Hello.", "No.")
    assert "denied by the user" in results[-1]
