"""The working folder of server agents, and the limits of tokens for one project."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import sessiontree as st
from sessiontree.agent.sandbox import SandboxUnavailable, find_sandbox
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation
from sessiontree.home import get_home
from sessiontree.server import auth
from sessiontree.server.auth import IssuedToken, Token, TokenStore, hash_secret
from tests.server.conftest import Gate, ServerEnv, build_auth_headers, open_client
from tests.server.test_runs import wait_until_idle

USER = "nobody"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that other users can enter, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(os.path.realpath(folder))


@pytest.fixture
def sandbox() -> None:
    """Bubblewrap if it is installed; another user if the tests run as root."""
    try:
        find_sandbox()
    except SandboxUnavailable:
        if os.geteuid() != 0:
            pytest.skip("bubblewrap is not installed, and the tests do not run as root")
        Path(get_home()).mkdir(0o700, parents=True, exist_ok=True)
        Path(get_home(), "config.toml").write_text(f'[tools]\nuser = "{USER}"\n')


@pytest.fixture
def no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def create_limited_token(project: Path, *scopes: Any) -> IssuedToken:
    """Create a token for one project without the check for a sandbox, like an older version."""
    secret = f"st_{'x' * 40}"
    token = Token(id="limited", hash=hash_secret(secret), scopes=scopes or auth.SCOPES, projects=(str(project),))
    TokenStore().add(token)
    return IssuedToken(secret=secret, token=token)


def read_tool_results(session: str) -> list[str]:
    with st.open(session, read_only=True) as opened:
        messages = [json.loads(entry.raw)["message"] for entry in opened.tree if entry.type == "message"]
    return [message["content"][0]["text"] for message in messages if message["role"] == "toolResult"]


async def send_prompt(client: httpx.AsyncClient, session: str) -> httpx.Response:
    answer = await client.post(f"/api/sessions/{session}/prompt", json={"text": "Go"})
    if answer.status_code == 202:
        await wait_until_idle(client, session)
    return answer


def test_without_a_sandbox_no_token_for_a_project_can_run_agents(no_sandbox: None, tmp_path: Path) -> None:
    with pytest.raises(InvalidOperation, match=r"cannot have the scope run here: .*bubblewrap is not installed"):
        auth.issue_token(["read", "run"], [str(tmp_path)])

    assert auth.issue_token(["read", "write"], [str(tmp_path)]).token.projects == (str(tmp_path),)
    assert auth.issue_token(["run"]).token.projects is None


async def test_without_a_sandbox_a_run_with_a_project_token_is_refused(no_sandbox: None, tmp_path: Path) -> None:
    env = ServerEnv(tmp_path, "No.")
    session = env.create_session()

    async with open_client(env.build_app(), create_limited_token(env.project)) as client:
        asked = [
            await send_prompt(client, session),
            await client.post("/api/swarms", json={"name": "crew", "task": "Go", "session": session}),
            await client.post(f"/api/sessions/{session}/steer", json={"text": "Go"}),
        ]
        reading = await client.get(f"/api/sessions/{session}")

    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in asked] == [(403, "no_sandbox")] * 3
    assert "Install bubblewrap" in asked[0].json()["error"]["message"]
    assert reading.status_code == 200


async def test_without_a_sandbox_a_token_for_everything_runs_agents(no_sandbox: None, tmp_path: Path) -> None:
    env = ServerEnv(tmp_path, "Yes.")

    async with open_client(env.build_app(), env.owner) as client:
        assert (await send_prompt(client, env.create_session())).status_code == 202


async def test_agents_of_a_project_token_cannot_read_secrets(sandbox: None, tmp_path: Path) -> None:
    secrets = os.path.join(get_home(), auth.TOKENS_FILE)
    calls = [
        ToolCall("c1", "bash", {"command": f"cat {secrets} {get_home()}/*; cat /proc/{os.getpid()}/environ; pwd"}),
        ToolCall("c2", "read", {"path": secrets}),
        ToolCall("c3", "bash", {"command": f"ln -s {get_home()} inner"}),
        ToolCall("c4", "read", {"path": f"inner/{auth.TOKENS_FILE}"}),
        ToolCall("c5", "grep", {"path": "inner", "pattern": "hash"}),
        ToolCall("c6", "write", {"path": "made.txt", "content": "x"}),
    ]
    env = ServerEnv(tmp_path, calls, "Done.")
    made, session = create_limited_token(env.project), env.create_session()
    env.project.chmod(0o777)
    os.environ["OPENAI_API_KEY"] = "a secret key"
    try:
        async with open_client(env.build_app(permission_mode="allow-all"), made) as client:
            assert (await send_prompt(client, session)).status_code == 202
    finally:
        del os.environ["OPENAI_API_KEY"]

    told = read_tool_results(session)
    assert len(told) == 6
    assert made.token.hash not in "".join(told)
    assert "a secret key" not in "".join(told)
    assert str(env.project) in told[0]
    assert (env.project / "made.txt").read_text() == "x"


async def test_agents_of_a_project_token_have_no_extension_tools(sandbox: None, tmp_path: Path) -> None:
    extensions = Path(get_home(), "extensions")
    extensions.mkdir(0o700, parents=True, exist_ok=True)
    (extensions / "peek.py").write_text(
        "import sessiontree as st\n\n\n"
        "def setup(api):\n"
        "    @st.tool\n"
        "    def peek(path: str) -> str:\n"
        '        """Read any file."""\n'
        "        return open(path).read()\n\n"
        "    api.register_tool(peek)\n"
    )
    calls = [ToolCall("c1", "peek", {"path": os.path.join(get_home(), auth.TOKENS_FILE)})]
    env = ServerEnv(tmp_path, calls, "Done.", calls, "Done.")
    made, session = create_limited_token(env.project), env.create_session()

    async with open_client(env.build_app(permission_mode="allow-all"), made) as client:
        assert (await send_prompt(client, session)).status_code == 202
        client.headers.update(build_auth_headers(env.owner))
        assert (await send_prompt(client, session)).status_code == 202

    for_project, for_everything = read_tool_results(session)
    assert "Tool 'peek' not found" in for_project
    assert made.token.hash in for_everything


async def test_a_session_folder_that_leads_out_of_the_projects_is_refused(sandbox: None, tmp_path: Path) -> None:
    env = ServerEnv(tmp_path, "No.")
    (env.project / "link").symlink_to(env.other)
    session = env.create_session(env.project / "link")

    async with open_client(env.build_app(), create_limited_token(env.project)) as client:
        answer = await send_prompt(client, session)

    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "outside")


async def test_a_limited_token_cannot_steer_an_unlimited_agent(sandbox: None, tmp_path: Path) -> None:
    gate = Gate()
    env = ServerEnv(tmp_path, gate.delay("Done."))
    made, session = create_limited_token(env.project), env.create_session()

    async with open_client(env.build_app(), env.owner) as client:
        await client.post(f"/api/sessions/{session}/prompt", json={"text": "Go"})
        steered = await client.post(
            f"/api/sessions/{session}/steer", json={"text": "Read the tokens"}, headers=build_auth_headers(made)
        )
        gate.open()
        await wait_until_idle(client, session)

    assert (steered.status_code, steered.json()["error"]["code"]) == (403, "more_rights")


@pytest.mark.parametrize("way", ["started there", "told of it", "named when made", "session file alone"])
async def test_agents_work_in_the_session_folder_only_if_it_was_allowed(tmp_path: Path, way: str) -> None:
    env = ServerEnv(tmp_path, ToolCall("c1", "bash", {"command": "pwd"}), "Done.")
    folder = env.project if way == "started there" else env.other
    app = env.build_app(permission_mode="allow-all", projects=[str(env.other)] if way == "told of it" else [])

    async with open_client(app, env.owner) as client:
        if way == "named when made":
            session = (await client.post("/api/sessions", json={"cwd": str(folder)})).json()["id"]
        else:
            session = env.create_session(folder)
        await send_prompt(client, session)

    assert read_tool_results(session) == [str(env.project if way == "session file alone" else folder)]
