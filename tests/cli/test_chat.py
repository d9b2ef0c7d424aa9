"""`sessiontree` opens the app; `sessiontree -p`: requests, output and saved sessions, with a fake model server."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.tools.file_access import MAX_IMAGE_FILE_BYTES
from sessiontree.cli.app import _expand_short_forms, run
from sessiontree.core.messages import ToolCall
from sessiontree.hooks.events import EVENTS, BeforeToolCall, ToolStart, encode_event
from tests.cli.conftest import Run, run_process
from tests.model.fake_server import Answer, FakeServer, calls, cut, fail, slow

COMMAND = [sys.executable, "-c", "from sessiontree.cli import main; main()"]
LONG = 120
"""Seconds after which a process is stuck, even on a busy machine."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with FakeServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        config = Path(os.environ["SESSIONTREE_HOME"]) / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text('model = "openai:scripted"\nretry.base_delay = 0.01\n')
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        yield server


def read_asked(server: FakeServer, index: int = -1) -> list[str]:
    """Return the messages of a request as `role: text`, without the system prompt."""
    return [
        f"{message['role']}: {_join_text(message.get('content'))}"
        for message in server.requests[index]["messages"]
        if message["role"] != "system"
    ]


def _join_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", f"<{part['type']}>") for part in content)
    return content or ""


def test_the_answer_is_printed_and_the_conversation_is_saved(cli: Run, server: FakeServer) -> None:
    server.add("A folder.", "Yes.")

    assert cli("-p", "What is this?") == "A folder.\n"
    assert cli("-p", "-c", "Sure?") == "Yes.\n"

    assert read_asked(server) == ["user: What is this?", "assistant: A folder.", "user: Sure?"]
    (session,) = st.sessions()
    assert session.message_count == 4


def test_prompt_is_the_long_form_of_p(cli: Run, server: FakeServer) -> None:
    server.add("One.", "Two.")

    assert cli("prompt", "1") == "One.\n"
    assert cli("--no-color", "-c", "2", "-p") == "Two.\n"
    assert len(st.sessions()) == 1


def test_only_the_last_message_is_printed(cli: Run, server: FakeServer, here: Path) -> None:
    (here / "a.txt").write_text("content of a")
    server.add(calls(("c1", "read", {"path": "a.txt"}), text="Let me look."), "It says so.")

    assert cli("-p", "What does a.txt say?") == "It says so.\n"
    assert read_asked(server)[-1] == "tool: content of a"


def test_files_come_before_the_text_and_piped_input_after(
    cli: Run, server: FakeServer, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a.txt").write_text("content")
    (here / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(8))
    monkeypatch.setattr(sys, "stdin", io.StringIO("from the pipe\n"))
    server.add("Yes.")

    cli("-p", "Is", "this", "right?", "@a.txt", "@dot.png", "--no-session")

    (message,) = read_asked(server)
    assert message.startswith('user: <file path="a.txt">\ncontent\n</file>\n\nIs this right?\n\nfrom the pipe')
    assert st.sessions() == []


def test_an_attached_file_can_be_a_pipe(cli: Run, server: FakeServer, here: Path) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, b"content")
    os.close(theirs)
    server.add("Yes.")

    cli("-p", f"@/dev/fd/{ours}", "--no-session")

    os.close(ours)
    assert "content" in read_asked(server)[0]


def test_an_image_alone_is_a_prompt(cli: Run, server: FakeServer, here: Path) -> None:
    (here / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(8))
    server.add("A dot.")

    assert cli("-p", "@dot.png") == "A dot.\n"

    (session,) = st.sessions()
    (message,) = [entry.body.message for entry in st.open(session.id).head.path() if entry.type == "message"][:1]
    assert [block["type"] for block in message["content"]] == ["image"]


def test_an_empty_prompt_is_rejected(fails: Run, server: FakeServer, here: Path) -> None:
    (here / "binary").write_bytes(b"\0")

    assert "empty prompt" in fails("-p", code=2)
    assert "not a text or image file" in fails("-p", "x", "@binary", code=2)
    assert "gone" in fails("-p", "x", "@gone")
    (here / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(MAX_IMAGE_FILE_BYTES))
    assert "is too large" in fails("-p", "x", "@large.png")
    assert server.requests == []
    assert st.sessions() == []


def test_sessions_branches_and_forks_can_be_continued(cli: Run, server: FakeServer) -> None:
    server.add("One.", "Two.", "Three.")
    session = st.create(name="work")
    session.append(st.user("Old question"))
    session.append(st.assistant("Old answer", provider="openai", model="scripted"))
    session.create_branch("idea")
    session.switch("main")
    session.append(st.user("only on main"))
    session.close()
    id = session.id

    cli("-p", "--session", id, "--branch", "idea", "1")
    assert read_asked(server) == ["user: Old question", "assistant: Old answer", "user: 1"]

    cli("-p", "--fork", id, "2")
    assert read_asked(server)[-2:] == ["user: only on main", "user: 2"]
    assert len(st.sessions()) == 2

    cli("-p", "--branch", "idea", "--session", id, "3")
    assert read_asked(server)[-3:] == ["user: 1", "assistant: One.", "user: 3"]
    again = st.open(id)
    assert again.head.name == "main"
    assert len(again.branch("idea").path()) > len(again.head.path())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["/help"], 0),
        (["/tree"], 0),
        (["/nope"], 1),
        (["/merge"], 1),
        (["-e", "nope.py", "hi"], 1),
        (["-e", "bad.py", "hi"], 1),
    ],
)
def test_a_new_session_without_messages_is_deleted(
    cli: Run, server: FakeServer, here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    (here / "bad.py").write_text("raise ValueError")
    server.add("One.")
    cli("-p", "1")
    (talk,) = st.sessions()
    before = sorted(Path(talk.file).parent.iterdir())

    cli("-p", *arguments, code=code)

    assert st.open("@").id == talk.id
    assert sorted(Path(talk.file).parent.iterdir()) == before


def test_an_existing_empty_session_is_kept(cli: Run, server: FakeServer) -> None:
    cli("new")

    cli("-p", "-c", "/help")

    assert len(st.sessions()) == 1


def test_mutually_exclusive_options_are_wrong_usage(fails: Run, server: FakeServer) -> None:
    assert "are mutually exclusive" in fails("-p", "-c", "--no-session", "x", code=2)
    assert "--tools and --no-tools are mutually exclusive" in fails("-p", "--tools", "read", "--no-tools", "x", code=2)
    assert "tool 'nonsense' not found" in fails("-p", "--tools", "nonsense", "x")
    assert "this folder has none" in fails("-p", "-c", "x")
    assert "--branch and --no-session are mutually exclusive" in fails(
        "-p", "--branch", "main", "--no-session", "x", code=2
    )
    assert "provider 'nowhere' not found" in fails("-p", "--model", "nowhere:x", "x")
    assert st.sessions() == []


def test_tools_can_be_selected_or_disabled(cli: Run, server: FakeServer) -> None:
    server.add("One.", "Two.", "Three.")

    cli("-p", "x")
    cli("-p", "x", "--tools", "read, ls")
    cli("-p", "x", "--no-tools")

    offered = [[tool["function"]["name"] for tool in request.get("tools", [])] for request in server.requests]
    assert offered == [["read", "write", "edit", "bash", "grep", "find", "ls"], ["read", "ls"], []]


def test_json_mode_prints_the_header_and_one_event_per_line(cli: Run, server: FakeServer) -> None:
    server.add(calls(("c1", "ls", {})), "Nothing.")

    lines = [json.loads(line) for line in cli("-p", "--mode", "json", "Look").splitlines()]

    assert lines[0]["type"] == "session"
    assert lines[0]["id"] == st.sessions()[0].id
    kinds = [line["type"] for line in lines[1:] if line["type"] != "message_delta"]
    assert kinds == [
        "session_start", "run_start", "message_start", "message_end",
        "turn_start", "message_start", "message_end", "tool_start", "message_start", "message_end", "tool_end",
        "turn_end", "turn_start", "message_start", "message_end", "turn_end", "run_end",
        "session_shutdown",
    ]  # fmt: skip
    assert "".join(line["text"] for line in lines if line["type"] == "message_delta" and line["kind"] == "text") == (
        "Nothing."
    )
    (start,) = [line for line in lines if line["type"] == "tool_start"]
    assert start["call"] == {"id": "c1", "name": "ls", "arguments": {}}
    ended = [line["entry"] for line in lines if line["type"] == "message_end"]
    assert [entry["message"]["role"] for entry in ended] == ["user", "assistant", "toolResult", "assistant"]
    assert lines[-2] == {"type": "run_end", "aborted": False, "error": None}


def test_json_mode_omits_questions_to_handlers() -> None:
    call = ToolCall("c", "read", {"path": "a"})

    assert encode_event(BeforeToolCall(call=call)) is None
    assert encode_event(ToolStart(call=call)) == {
        "type": "tool_start",
        "call": {"id": "c", "name": "read", "arguments": {"path": "a"}},
    }
    assert {name for name, kind in EVENTS.items() if kind.answer is None} >= {"run_start", "message_end", "tool_end"}


def test_a_failing_model_has_its_own_exit_code(
    server: FakeServer, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    from sessiontree.cli.app import run

    server.add(fail(401, "bad key"))

    assert run(["-p", "x"]) == 3

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("sessiontree: openai:scripted: ")
    (session,) = st.sessions()
    last = st.open(session.id).head.path()[-1].body.message
    assert last["stopReason"] == "error"


def test_unreadable_lines_are_reported(server: FakeServer, capsys: pytest.CaptureFixture[str], here: Path) -> None:
    from sessiontree.cli.app import run

    session = st.create(file=here / "s.jsonl")
    session.append(st.user("before"))
    session.close()
    with (here / "s.jsonl").open("ab") as file:
        file.write(b"no JSON\n")
    server.add("Yes.")

    assert run(["-p", "--session", "s.jsonl", "Is anything missing?"]) == 0

    captured = capsys.readouterr()
    assert captured.out == "Yes.\n"
    assert "1 unreadable line in this session" in captured.err
    assert "sessiontree doctor" in captured.err


def test_a_transient_failure_is_retried(cli: Run, server: FakeServer) -> None:
    server.add(fail(500), "There.")

    assert cli("-p", "x") == "There.\n"
    assert len(server.requests) == 2


def test_without_a_model_the_error_explains_how_to_get_one(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sessiontree.cli.app import run

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))

    assert run(["-p", "--model", "openai:gpt-5.5", "x"]) == 3
    assert "OPENAI_API_KEY is not set" in capsys.readouterr().err


def test_a_session_with_an_unavailable_model_continues_with_the_default(
    server: FakeServer, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    from sessiontree.cli.app import run

    server.add("Here.")
    with st.create(name="old") as session:
        session.append(st.user("Hi"))
        session.append(st.assistant("Ho", provider="vanished", model="x"))

    assert run(["-p", "--session", "old", "Still there?"]) == 0

    captured = capsys.readouterr()
    assert captured.out == "Here.\n"
    assert "using the default model" in captured.err


COUNT_WORDS = """
def setup(api):
    def count(event, ctx):
        with open({file!r}, "a") as file:
            file.write(event.text)
    api.on("message_delta", count)
"""
"""An extension that copies the text that has arrived to a file."""


def run_interrupted(
    server: FakeServer, here: Path, *arguments: str, number: int = signal.SIGINT
) -> subprocess.CompletedProcess[str]:
    """Run a prompt, and send a signal once two words of the answer have arrived."""
    arrived, extension = here / "arrived.txt", here / "count_words.py"
    arrived.touch()
    extension.write_text(COUNT_WORDS.format(file=str(arrived)))
    child = subprocess.Popen(
        [*COMMAND, "-p", *arguments, "-e", str(extension)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while arrived.read_text().count("word") < 2:
            assert child.poll() is None, child.communicate()
            time.sleep(0.02)
        child.send_signal(number)
        out, err = child.communicate(timeout=LONG)
    finally:
        child.kill()
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_aborts_and_the_partial_answer_is_saved(server: FakeServer, here: Path, number: int) -> None:
    server.add(slow("word " * 2000))

    done = run_interrupted(server, here, "Talk", number=number)

    assert done.returncode == 130
    assert done.stderr == "sessiontree: aborted\n"
    assert done.stdout.startswith("word word")
    (session,) = st.sessions()
    last = st.open(session.id).head.path()[-1].body.message
    assert last["stopReason"] == "aborted"
    assert last["content"][0]["text"].startswith("word word")


def test_an_ignored_signal_stays_ignored(server: FakeServer, here: Path) -> None:
    server.add(slow("word " * 20))

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the child inherits it, as with nohup
    try:
        done = run_interrupted(server, here, "Talk", number=signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert done.returncode == 0
    assert done.stdout == "word " * 20 + "\n"


def test_a_cut_off_answer_is_reported(server: FakeServer, capsys: pytest.CaptureFixture[str], here: Path) -> None:
    from sessiontree.cli.app import run

    server.add(Answer(text="This is only", finish="length"), "This is all.")

    assert run(["-p", "x"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "This is only\n"
    assert "cut off" in captured.err
    assert run(["-p", "x"]) == 0
    assert capsys.readouterr().err == ""


def test_a_failed_compaction_is_reported_and_the_run_continues(
    server: FakeServer, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    from sessiontree.cli.app import run

    config = Path(os.environ["SESSIONTREE_HOME"]) / "config.toml"
    config.write_text(f'{config.read_text()}[models."openai:scripted"]\ncontext_window = 4096\n')
    usage = {"prompt_tokens": 3500, "completion_tokens": 10}
    server.add(Answer(text="word " * 1000), Answer(text="Well.", usage=usage), fail(400, "no summaries here"))

    assert run(["-p", "x"]) == 0
    assert run(["-p", "-c", "y"]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("Well.\n")
    assert "compaction failed: openai:scripted: no summaries here" in captured.err


def test_the_configured_thinking_level_applies_to_new_sessions(cli: Run, server: FakeServer) -> None:
    config = Path(os.environ["SESSIONTREE_HOME"]) / "config.toml"
    config.write_text(f'thinking = "high"\n{config.read_text()}[models."openai:scripted"]\nthinking = true\n')
    server.add("One.", "Two.", "Three.")
    cli("new", "--name", "empty")

    cli("-p", "--session", "empty", "x")
    cli("-p", "--session", "empty", "--thinking", "low", "x")
    cli("-p", "--session", "empty", "x")

    assert [request["reasoning_effort"] for request in server.requests] == ["high", "low", "low"]


def test_a_model_without_thinking_is_reported(server: FakeServer, here: Path, capsys: Any) -> None:
    from sessiontree.cli.app import run

    server.add("One.", "Two.")

    assert run(["-p", "--thinking", "high", "x"]) == 0
    assert "openai:scripted does not support thinking; --thinking is ignored" in capsys.readouterr().err
    assert run(["-p", "--thinking", "off", "x"]) == 0
    assert "does not think" not in capsys.readouterr().err


def test_a_closed_pipe_aborts_the_run_and_saves_the_partial_answer(server: FakeServer, here: Path) -> None:
    server.add(slow("word " * 100, 0.02))

    pipe = subprocess.Popen(
        [*COMMAND, "-p", "--mode", "json", "Talk"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert pipe.stdout is not None
    while "message_delta" not in pipe.stdout.readline():
        pass
    pipe.stdout.close()

    assert pipe.wait(20) == 1
    (session,) = st.sessions()
    assert st.open(session.id).head.path()[-1].body.message["stopReason"] == "aborted"


def test_piped_input_is_read_but_other_input_is_not_waited_for(server: FakeServer, here: Path) -> None:
    server.add("Yes.", "No.")

    assert run_process("-p", "Well?", input="from the pipe").stdout == "Yes.\n"
    assert read_asked(server) == ["user: Well?\n\nfrom the pipe"]
    assert run_process("-p", "Well?", stdin=subprocess.DEVNULL).stdout == "No.\n"


def test_a_model_cannot_control_the_terminal(cli: Run, server: FakeServer) -> None:
    server.add("\x1b]0;owned\x07plain")

    assert cli("-p", "x") == "\\x1b]0;owned\\x07plain\n"


def test_an_interrupted_stream_is_retried_and_reported(
    cli: Run, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add(cut("This is not"), "This is whole.")

    assert run(["-p", "Go"]) == 0

    captured = capsys.readouterr()
    assert captured.out == "This is whole.\n"
    assert "the stream was cut off" in captured.err
    assert "Retrying (1 of 3) in 0 s…" in captured.err
    with st.recent() as session:
        assert [entry.type for entry in session.head.path()].count("message") == 3


def test_an_answer_that_cannot_be_saved_is_printed_with_an_error(
    server: FakeServer, here: Path, tmp_path: Path
) -> None:
    server.add("A" * 5000)
    limited = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))\nfrom sessiontree.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", limited, "-p", "Go"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "A" * 5000 + "\n"
    assert done.returncode == 1
    assert done.stderr.endswith("File too large; the answer could not be saved: it is only in this output\n")


# The app


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["-c"], ["chat", "-c"]),
        (["--session", "auth"], ["chat", "--session", "auth"]),
        (["--no-color", "-r"], ["--no-color", "chat", "-r"]),
        (["-p", "-c", "hi"], ["prompt", "-c", "hi"]),
        (["tree", "@"], ["tree", "@"]),
        (["--help"], ["--help"]),
        (["-h"], ["-h"]),
        (["--version"], ["--version"]),
        ([], []),
    ],
)
def test_options_without_a_command_open_the_app(typed: list[str], meant: list[str]) -> None:
    assert _expand_short_forms(typed) == meant


def test_without_a_terminal_the_app_suggests_an_alternative(fails) -> None:
    assert "sessiontree -p" in fails("-c")


def test_two_session_options_are_wrong_usage(fails) -> None:
    assert "are mutually exclusive" in fails("chat", "-c", "-r", code=2)
