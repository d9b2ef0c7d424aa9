"""Install the wheel in dist/ into a fresh environment for each extra, and use what the extra adds.

`make check-wheel` builds the wheel and runs this. Arguments are the extras to check; without any, all of them. The
programs run in a temporary folder, so they cannot use the checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

USE_THE_LIBRARY = """
import subprocess, sys, sysconfig
from pathlib import Path
import sessiontree as st

assert "site-packages" in st.__file__, st.__file__
assert Path(st.__file__).with_name("py.typed").is_file()
with st.create(name="wheel", file="wheel.jsonl") as session:
    session.append(st.user("Hello wheel"))
command = str(Path(sysconfig.get_path("scripts")) / "sessiontree")

def run(*arguments):
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return done.stdout

assert "Hello wheel" in run("tree", "wheel.jsonl")
"""

RUN_AN_AGENT = """
result = st.Agent(session := st.open("wheel.jsonl"), st.ScriptedModel(["It works."])).run_sync("Does it work?")
assert result.text == "It works.", result
session.close()
try:
    st.find_model("openai:gpt-5.5")
except Exception as error:
    assert "OPENAI_API_KEY" in str(error), error
"""

START_THE_APP = """
import os, pty, select, signal, time
child, terminal = pty.fork()
if child == 0:
    terminal_size = {"TERM": "xterm-256color", "LINES": "24", "COLUMNS": "80"}
    os.execve(command, [command, "chat", "--session", "wheel.jsonl"], {**os.environ, **terminal_size})
seen, end = b"", time.monotonic() + 60
while b"Hello" not in seen and time.monotonic() < end:
    if select.select([terminal], [], [], 1)[0]:
        seen += os.read(terminal, 1 << 16)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
assert b"Hello" in seen, seen[-2000:]
"""

EXPORT_A_PAGE = """
run("export", "wheel.jsonl", "-o", "wheel.html")
assert "Hello wheel" in Path("wheel.html").read_text()
"""

ASK_THE_SERVER = """
import re, urllib.request
arguments = [command, "serve", "--port", "0"]
server = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
try:
    for line in server.stdout:
        if found := re.search(r"http://127[.]0[.]0[.]1:[0-9]+", line):
            assert urllib.request.urlopen(found[0] + "/livez", timeout=30).status == 200
            break
    else:
        raise AssertionError("the server printed no address")
finally:
    server.terminate()
    server.wait(30)
"""

RUN_A_SWARM = """
with st.open("wheel.jsonl") as session:
    swarm = st.Swarm(session, "readers", "Judge it.", agents=2, model=st.ScriptedModel(["Good."] * 2))
    st.run_sync(swarm.run())
    assert [reader.text for reader in swarm.status().agents] == ["Good.", "Good."]
"""

CALL_A_TOOL_OVER_MCP = """
import asyncio
from mcp import Client, StdioServerParameters, stdio_client

async def list_tools():
    server = StdioServerParameters(command=command, args=["mcp", "serve"], env=dict(__import__("os").environ))
    async with Client(stdio_client(server)) as client:
        return [tool.name for tool in (await client.list_tools()).tools]

assert "search_sessions" in asyncio.run(list_tools())
"""

REACH_FOR_A_DATABASE = """
try:
    st.open("postgresql://127.0.0.1:1/none#x")
except st.StoreError as error:
    assert "127.0.0.1" in str(error), error
else:
    raise AssertionError("a database that does not exist was opened")
"""

INITIALIZE_OVER_ACP = """
import json
parameters = {"protocolVersion": 1, "clientCapabilities": {}}
request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters}
agent = subprocess.Popen([command, "acp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
agent.stdin.write(json.dumps(request) + "\\n")
agent.stdin.flush()
answer = json.loads(agent.stdout.readline())
agent.stdin.close()
agent.wait(30)
assert answer["result"]["protocolVersion"] == 1, answer
"""

KEEP_PYDANTIC_AI = """
import asyncio
from pydantic_ai import Agent, Conversation
from pydantic_ai.models.test import TestModel
from sessiontree.adapters.pydantic_ai import TreeConversationStore

async def converse():
    store = TreeConversationStore("sessions")
    agent = Agent(TestModel(custom_output_text="Rain."))
    await store.save(await agent.run("Weather?", conversation=Conversation(conversation_id="trip")))
    return await store.load("trip")

assert asyncio.run(converse()) is not None
"""

KEEP_OPENAI_AGENTS = """
import asyncio
from sessiontree.adapters.openai_agents import TreeSession

async def converse():
    chat = TreeSession("chat", "sessions")
    await chat.add_items([{"role": "user", "content": "Weather?"}])
    items = await chat.get_items()
    chat.close()
    return items

assert asyncio.run(converse()) == [{"role": "user", "content": "Weather?"}]
"""

KEEP_CLAUDE = """
import asyncio
from claude_agent_sdk import project_key_for_directory
from sessiontree.adapters.claude import TreeSessionStore

async def converse():
    store = TreeSessionStore("sessions")
    key = {"project_key": project_key_for_directory(), "session_id": "4f0c6a1e-3b52-4c1b-9d9c-0d6a2f1c7e11"}
    await store.append(key, [{"type": "user", "uuid": "u1", "message": {"role": "user", "content": "Fix it"}}])
    return await store.load(key)

assert asyncio.run(converse())
"""

KEEP_LANGGRAPH = """
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from sessiontree.adapters.langgraph import TreeSaver

builder = StateGraph(MessagesState)
builder.add_node("model", lambda state: {"messages": [AIMessage("Yes.")]})
builder.add_edge(START, "model")
graph = builder.compile(checkpointer=TreeSaver("sessions"))
config = {"configurable": {"thread_id": "weather"}}
graph.invoke({"messages": [HumanMessage("Rain?")]}, config)
assert [message.text for message in graph.get_state(config).values["messages"]] == ["Rain?", "Yes."]
"""

LOAD_THE_LOCAL_ENGINE = """
import xllamacpp
assert xllamacpp.__name__ and "local" in run("models", "--all")
"""

USES = {
    "": "",
    "agent": RUN_AN_AGENT,
    "local": RUN_AN_AGENT + LOAD_THE_LOCAL_ENGINE,
    "tui": START_THE_APP,
    "export": EXPORT_A_PAGE,
    "swarm": RUN_A_SWARM,
    "web": EXPORT_A_PAGE + ASK_THE_SERVER,
    "mcp": CALL_A_TOOL_OVER_MCP,
    "postgres": REACH_FOR_A_DATABASE,
    "acp": INITIALIZE_OVER_ACP,
    "pydantic-ai": KEEP_PYDANTIC_AI,
    "openai-agents": KEEP_OPENAI_AGENTS,
    "claude-agent-sdk": KEEP_CLAUDE,
    "langgraph": KEEP_LANGGRAPH,
    "all": RUN_AN_AGENT
    + START_THE_APP
    + EXPORT_A_PAGE
    + ASK_THE_SERVER
    + RUN_A_SWARM
    + CALL_A_TOOL_OVER_MCP
    + REACH_FOR_A_DATABASE
    + INITIALIZE_OVER_ACP,
}
"""For each extra, a program that uses it. The empty name is the package without extras."""


def check_extra(wheel: Path, extra: str, folder: Path) -> str:
    """Install the wheel with an extra into a fresh environment, use it, and return what a failed program printed."""
    environment = folder / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    package = f"{wheel}[{extra}]" if extra else str(wheel)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
    work = folder / "work"
    work.mkdir()
    clean = {
        name: value for name, value in os.environ.items() if not name.endswith("_API_KEY") and name != "PYTHONPATH"
    }
    clean |= {"HOME": str(folder), "SESSIONTREE_HOME": str(folder / "home")}
    use = [python, "-P", "-c", USE_THE_LIBRARY + USES[extra]]
    for command, variables in ((install, dict(os.environ)), (use, clean)):
        done = subprocess.run(
            command, cwd=work, env=variables, capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            return done.stderr.strip() or done.stdout.strip()
    return ""


def main() -> int:
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if len(wheels) != 1:
        sys.exit(f"expected one wheel in dist/, found {len(wheels)}; run: make build")
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    if unchecked := declared.keys() - USES.keys():
        sys.exit(f"no check for these extras: {', '.join(sorted(unchecked))}")
    with zipfile.ZipFile(wheels[0]) as archive:
        strangers = [name for name in archive.namelist() if not name.startswith(("sessiontree/", "sessiontree-"))]
    if strangers:
        sys.exit(f"the wheel has files outside of the package: {', '.join(strangers)}")
    failed = 0
    for extra in sys.argv[1:] or USES:
        with tempfile.TemporaryDirectory(prefix="sessiontree-wheel-") as folder:
            problem = check_extra(wheels[0], extra, Path(folder))
        print(f"{extra or '(no extra)':18} {'failed' if problem else 'works'}", flush=True)
        if problem:
            failed += 1
            print(problem, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
