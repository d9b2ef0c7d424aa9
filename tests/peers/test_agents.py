"""Sessions travel between sessiontree and the real coding agents, which get what our context says.

Run by `make test-peers`. The programs run in a network namespace, so nothing leaves the machine.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.core.context import build_context
from sessiontree.library.foreign_continue import continue_session
from sessiontree.library.foreign_import import import_sessions
from tests.interop.conformance import FIXTURES, Plain, merge, simplify
from tests.peers.agents import Agents, build_prompt_command, fetch_agents
from tests.peers.fetch_pi import NodeMissing, node, pi_home

pytestmark = pytest.mark.peers

SCRATCH = Path(__file__).parents[2] / ".peers"
PROGRAMS = ("claude", "codex", "opencode", "gemini")
LACKING = pytest.fail if os.environ.get("CI") else pytest.skip
NOW = {"role": "user", "text": "and now?"}
PICTURE = {
    "type": "image",
    "mimeType": "image/png",
    "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
}


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of the real programs, fetched once. The time limit of a test does not include this."""
    if shutil.which("unshare") is None:
        LACKING("The real programs run in a network namespace, and unshare was not found.")
    try:
        return fetch_agents(SCRATCH)
    except NodeMissing as reason:
        LACKING(str(reason))


@pytest.fixture(scope="module")
def pi_command() -> list[str]:
    """The command that starts the real pi with the model on the loopback."""
    try:
        return [node(), str(pi_home(SCRATCH) / "dist/bundle/cli.js"), "--model", "loop/loop"]
    except NodeMissing as reason:
        LACKING(str(reason))


@pytest.fixture
def agents(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agents:
    running = Agents(programs, tmp_path)
    monkeypatch.chdir(tmp_path)  # exports for opencode go to the current folder
    monkeypatch.setenv("HOME", str(running.home))
    monkeypatch.setenv("SESSIONTREE_HOME", str(tmp_path / "own"))
    return running


def describe(session: st.Session) -> list[Plain]:
    return merge(simplify(build_context(session.tree, session.heads.leaf).to_llm()))


def reshape(program: str, messages: list[Plain]) -> list[Plain]:
    """Return messages as a program sends them; see the table of differences in docs/interop.md."""
    shaped: list[Plain] = []
    for message in messages:
        if program == "opencode" and message["role"] == "tool" and "images" in message:
            shaped.append({key: value for key, value in message.items() if key != "images"})
            shaped.append({"role": "user", "text": "Attached media from tool result:", "images": message["images"]})
        else:
            shaped.append(message)
    return shaped


def resume_all(agents: Agents, sessions: dict[str, st.Session]) -> dict[str, list[Plain]]:
    """Continue sessions in every program, and return what each of them sent."""
    cases = [(name, program) for name in sessions for program in PROGRAMS]
    written = [continue_session(sessions[name], program, cwd=str(agents.project)) for name, program in cases]
    commands: list[tuple[str, list[str]]] = []
    for (_, program), one in zip(cases, written, strict=True):
        commands += [(program, one.import_command)] if one.import_command else []
        commands.append((program, build_prompt_command(program, "and now?", one.id)))
    sent = agents.run(commands)
    return {f"{name} in {program}": found for (name, program), found in zip(cases, sent, strict=True)}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_recorded_session_branches_here_and_continues_in_each_program(program: str, agents: Agents) -> None:
    agents.run([(program, build_prompt_command(program, "Question"))])
    [result] = import_sessions(program)
    session = st.open(result.session)
    assert describe(session)[0] == {"role": "user", "text": "Question"}
    session.append(st.user("Question two, of ours"))
    session.append(st.assistant("Answer two, of ours", model="m", provider="p"))

    sent = resume_all(agents, {program: session})

    check_sent(sent, session)


def check_sent(sent: dict[str, list[Plain]], session: st.Session) -> None:
    """Check that each program sent the context of a session."""
    assert len(sent) == len(PROGRAMS)
    for name, found in sent.items():
        assert found == [*reshape(name.split()[-1], describe(session)), NOW], name


def test_our_own_session_continues_in_each_program(agents: Agents) -> None:
    session = st.memory(cwd=str(agents.project))
    session.append(st.user([{"type": "text", "text": "What is this?"}, PICTURE]))
    call = st.tool_call("call_1", "Bash", {"command": "ls"})
    other = st.tool_call("call_2", "Bash", {"command": "pwd"})
    session.append(st.assistant([{"type": "text", "text": "I look."}, call, other], model="m", provider="p"))
    session.append(st.tool_result("call_1", "Bash", "dot.png"))
    session.append(st.tool_result("call_2", "Bash", [{"type": "text", "text": "seen"}, PICTURE]))
    answer = session.append(st.assistant("A dot.", model="m", provider="p"))
    compacted = st.memory(cwd=str(agents.project))
    compacted.append(st.user("An old question"))
    answered = st.assistant("A kept answer", model="m", provider="p")
    kept = compacted.append(st.Message({**answered.message, "timestamp": 1700000000000}))  # before the summary
    compacted.append(st.Compaction(summary="They talked.", first_kept=kept.id))
    compacted.append(st.user("A new question"))
    compacted.append(st.assistant("A new answer", model="m", provider="p"))

    sent = resume_all(agents, {"ours": session, "compacted": compacted})

    assert answer.text == "A dot."
    for program in PROGRAMS:
        assert sent[f"ours in {program}"] == [*reshape(program, describe(session)), NOW]
        compacted_sent = sent[f"compacted in {program}"]
        if program == "opencode":  # it asks for the summary itself
            assert compacted_sent.pop(0)["text"] == "What did we do so far?"
        summary, *rest = compacted_sent
        assert "They talked." in summary["text"]
        assert rest == [*describe(compacted)[1:], NOW]


def test_sessions_of_every_program_continue_in_pi(agents: Agents, pi_command: list[str]) -> None:
    names = ("claude/tools", "claude/compact", "claude/image", "codex/revert", "codex/compact", "gemini/tools")
    sessions: dict[str, st.Session] = {}
    for name in names:
        results = list(import_sessions(str(FIXTURES / name)))
        sessions[name] = st.open(results[-1].session)
    files = [continue_session(session, "pi", cwd=str(agents.project)).file for session in sessions.values()]

    sent = agents.run([("pi", [*pi_command, "-p", "--session", file, "and now?"]) for file in files])

    for name, found in zip(names, sent, strict=True):
        assert drop_additions(found) == drop_additions([*describe(sessions[name]), NOW]), name


def drop_additions(messages: list[Plain]) -> list[Plain]:
    """Return messages without what pi adds: another sentence before a summary, a text for a result without one."""
    cleaned: list[Plain] = []
    for message in messages:
        text = message.get("text", "")
        if "<summary>" in text:
            cleaned.append({**message, "text": text.partition("<summary>")[2]})
        elif text == "(see attached image)":
            cleaned.append({key: value for key, value in message.items() if key != "text"})
        else:
            cleaned.append(message)
    return cleaned


@pytest.mark.parametrize(
    "name", ["claude/tools", "claude/rewind", "claude/abort", "codex/tools", "codex/revert", "codex/abort"]
)
def test_a_recorded_fixture_is_resumed_with_our_context(name: str, agents: Agents) -> None:
    results = list(import_sessions(str(FIXTURES / name)))
    session = st.open(results[-1].session)

    sent = resume_all(agents, {name: session})

    check_sent(sent, session)
