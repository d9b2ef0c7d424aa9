"""The app in real terminals: typing, crashes, restarts, external editors and hostile text."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest
from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread

import sessiontree as st
from sessiontree.core.entries import CustomMessage
from sessiontree.session import Session
from sessiontree.tui.app import AppOptions, SessionApp
from sessiontree.tui.services.terminal import TolerantFile

from .conftest import Running

ROOT = Path(__file__).parents[2]
SECONDS = 20.0
HOSTILE = (
    "\x1b]0;owned\x07 \x1b]52;c;b3duZWQ=\x07 \x1b[2J \x1bc \x9b2J \x9d0;owned\x9c \x1bPq\x1b\\ \u202eevil \r back\x08"
)


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    session = st.create("a talk")
    session.append(st.user("an earlier message"))
    session.close()
    return session


def build_command(session: Session) -> list[str]:
    return [sys.executable, "-m", "tests.tui.child", str(session.file)]


class Terminal:
    """The app in an emulated terminal."""

    def __init__(self, session: Session, **environment: str) -> None:
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._fd, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT), **environment}
        self.process = subprocess.Popen(
            build_command(session), stdin=other, stdout=other, stderr=other, env=env, start_new_session=True
        )
        os.close(other)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def wait_for_text(self, *words: str) -> str:
        """Wait until the screen contains all texts and return the screen."""
        until = time.monotonic() + SECONDS
        while not all(word in self.text for word in words):
            left = until - time.monotonic()
            assert left > 0, f"not shown: {words}; the screen is\n{self.text}"
            if select.select([self._fd], [], [], min(left, 0.2))[0]:
                self._read()
        return self.text

    def wait_until_gone(self, text: str) -> None:
        """Wait until the screen does not contain the text any more."""
        until = time.monotonic() + SECONDS
        while text in self.text:
            assert time.monotonic() < until, f"{text!r} is still shown; the screen is\n{self.text}"
            if select.select([self._fd], [], [], 0.2)[0]:
                self._read()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # the process has exited
            return
        self.raw += data
        self._stream.feed(data)

    def read_for(self, seconds: float) -> None:
        """Read output for some time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                self._read()

    def wait_for_exit(self) -> None:
        until = time.monotonic() + SECONDS
        while self.process.poll() is None and time.monotonic() < until:
            if select.select([self._fd], [], [], 0.1)[0]:
                self._read()
        assert self.process.poll() is not None

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.kill()
        os.close(self._fd)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_a_killed_app_restores_draft_and_position(session: Session, terminals: list[Terminal], home: Path) -> None:
    first = Terminal(session)
    terminals.append(first)
    first.wait_for_text("an earlier message", "on main", "scripted")
    first.type(b"Tell me\r")
    first.wait_for_text("The beginning of it.")
    first.type(b"wait, also\r")
    first.wait_for_text("wait, also", "Alt+Up")
    first.type(b"half a thou")
    first.wait_for_text("half a thou")
    until = time.monotonic() + SECONDS
    while not any("half a thou" in file.read_text() for file in (home / ".sessiontree" / "drafts").glob("*.json")):
        assert time.monotonic() < until, "the draft was not saved"
        time.sleep(0.02)
    first.kill()

    second = Terminal(session)
    terminals.append(second)
    second.wait_for_text("an earlier message", "Tell me", "wait, also", "half a thou")
    second.type(b"\x03\x04")
    second.wait_for_exit()
    assert second.process.returncode == 0
    assert "?1049l" in second.raw.decode("latin-1")


def test_the_title_names_the_session_alt_enter_waits_for_the_end_and_the_exit_says_how_to_continue(
    session: Session, terminals: list[Terminal]
) -> None:
    terminal = Terminal(session)
    terminals.append(terminal)
    terminal.wait_for_text("an earlier message", "scripted")
    assert terminal.screen.title == "a talk · sessiontree"
    terminal.type(b"Tell me\r")
    terminal.wait_for_text("The beginning of it.")
    assert terminal.screen.title == "✻ a talk · sessiontree"
    terminal.type(b"later\x1b\r")  # how terminals without the extended keyboard protocol send Alt+Enter
    terminal.wait_for_text("⋯ later · after the run")

    terminal.type(b"\x1b")
    terminal.wait_for_text("aborted")
    terminal.type(b"\x11")
    terminal.wait_for_exit()

    assert b"To continue this session: sessiontree -c" in terminal.raw
    assert b"\x1b[23;0t" in terminal.raw


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_closing_the_terminal_keeps_the_draft(
    session: Session, terminals: list[Terminal], number: signal.Signals
) -> None:
    first = Terminal(session)
    terminals.append(first)
    first.wait_for_text("an earlier message", "on main", "scripted")
    first.type(b"half a thou")
    first.wait_for_text("half a thou")
    first.process.send_signal(number)
    first.wait_for_exit()
    assert first.process.returncode == 0

    second = Terminal(session)
    terminals.append(second)
    second.wait_for_text("an earlier message", "half a thou")


def test_hostile_text_does_not_control_the_terminal(session: Session, terminals: list[Terminal]) -> None:
    with st.open(str(session.file)) as opened:
        opened.rename(f"name {HOSTILE}")
        opened.append(st.user(f"user {HOSTILE}"))
        opened.append(
            st.assistant(f"# answer {HOSTILE}\n\n`{HOSTILE}`\n\n[a](http://x/{HOSTILE})\n\n[@click=app.quit]x[/]")
        )
        opened.append(CustomMessage(custom_type=f"kind {HOSTILE}", content=HOSTILE))
    terminal = Terminal(session)
    terminals.append(terminal)
    terminal.wait_for_text("x[/]", "scripted")
    terminal.type(b"\x14")
    terminal.wait_for_text("← active")
    terminal.type(b"\x1b")
    terminal.wait_until_gone("← active")
    terminal.type(b"\x12")
    terminal.wait_for_text("Sessions", "name")
    terminal.type(b"\x1b")
    terminal.wait_until_gone("Sessions")
    terminal.type(b"\x04")
    terminal.wait_for_exit()

    assert "owned" not in terminal.screen.title
    assert b"\x1b]0;owned" not in terminal.raw
    assert b"\x1b]52" not in terminal.raw
    assert b"\x1bc" not in terminal.raw
    assert b"\x1bP" not in terminal.raw.replace(b"\x1bP=", b"").replace(b"\x1bP>|", b"")
    assert "\u202e" not in terminal.raw.decode("utf-8", "replace")
    assert b"\xc2\x9b" not in terminal.raw
    assert b"\x1b]8;" not in terminal.raw


def test_no_color_disables_colors(session: Session, terminals: list[Terminal]) -> None:
    terminal = Terminal(session, NO_COLOR="1")
    terminals.append(terminal)
    terminal.wait_for_text("an earlier message", "scripted")
    terminal.type(b"/mod")
    terminal.wait_for_text("/model")
    terminal.type(b"\x03\x04")
    terminal.wait_for_exit()

    codes = {
        code
        for found in re.findall(rb"\x1b\[([\d;]*)m", terminal.raw)
        for code in re.sub(rb"(?:38|48);(?:2;\d+;\d+;\d+|5;\d+)", b"colour", found).split(b";")
    }
    assert b"colour" not in codes
    assert not any(
        (code.isdigit() and 30 <= int(code) <= 38) or (code.isdigit() and 40 <= int(code) <= 48) for code in codes
    )


def test_the_external_editor_returns_its_text(session: Session, terminals: list[Terminal], tmp_path: Path) -> None:
    terminal = Terminal(session, EDITOR=write_editor_script(tmp_path, "echo 'and more' >> \"$1\""), VISUAL="")
    terminals.append(terminal)
    terminal.wait_for_text("scripted")
    terminal.type(b"begun")
    terminal.wait_for_text("begun")
    terminal.type(b"\x07")
    assert terminal.wait_for_text("begun", "and more")


def test_the_app_keeps_working_without_drawing_while_the_external_editor_is_open(
    session: Session, terminals: list[Terminal], tmp_path: Path, home: Path
) -> None:
    os.mkfifo(tmp_path / "leave")
    prints = home / ".sessiontree" / "extensions" / "prints.py"
    prints.parent.mkdir(parents=True)
    prints.write_text(
        "import sys\nfrom pathlib import Path\n"
        "def setup(api):\n"
        "    api.on('message_end', lambda event, ctx: (\n"
        "        print('PRINTED', flush=True), print('PRINTED', file=sys.stderr), Path('printed').touch()))\n"
    )
    more = f"{MAX_QUEUED_WRITES} {MAX_QUEUED_WRITES * 3}"  # more than the queue of the writer thread holds
    terminal = Terminal(
        session, EDITOR=write_editor_script(tmp_path, f"echo EDITING; cat '{tmp_path}/leave' >> \"$1\""), VISUAL=""
    )
    terminals.append(terminal)
    terminal.wait_for_text("scripted")
    terminal.type(
        f"!until test -e begun; do sleep 0.1; done; for i in `seq {more}`; do echo $i; sleep 0.05; done\r".encode()
    )
    terminal.wait_for_text("running")
    terminal.type(b"begun \x07")
    terminal.wait_for_text("EDITING")
    drawn = len(terminal.raw)
    Path("begun").touch()

    until = time.monotonic() + SECONDS
    while b"bashExecution" not in Path(str(session.file)).read_bytes() or not Path("printed").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    terminal.read_for(0.2)
    assert len(terminal.raw) == drawn
    (tmp_path / "leave").write_text("and more")
    assert terminal.wait_for_text(f"{MAX_QUEUED_WRITES * 3}", "begun and more", "on main")
    terminal.type(b"\x03\x04")
    terminal.wait_for_exit()


@pytest.mark.parametrize(
    ("script", "message"),
    [("kill -INT 0; sleep 0.2; exit 3", "exited with code 3"), (None, "cannot run /nowhere/ed")],
    ids=["it is interrupted", "it is not there"],
)
def test_the_app_continues_after_a_failed_external_editor(
    session: Session, terminals: list[Terminal], tmp_path: Path, script: str | None, message: str
) -> None:
    program = "/nowhere/ed" if script is None else write_editor_script(tmp_path, f"trap '' INT\n{script}")
    terminal = Terminal(session, EDITOR=program, VISUAL="")
    terminals.append(terminal)
    terminal.wait_for_text("scripted")
    terminal.type(b"begun\x07")
    terminal.wait_for_text(message, "begun", "on main")
    terminal.type(b" and typed on")
    terminal.wait_for_text("begun and typed on")
    terminal.type(b"\x03\x04")
    terminal.wait_for_exit()
    assert terminal.process.returncode == 0


def test_terminating_the_app_during_the_external_editor_keeps_the_draft(
    session: Session, terminals: list[Terminal], tmp_path: Path
) -> None:
    terminal = Terminal(session, EDITOR=write_editor_script(tmp_path, "echo EDITING; exec sleep 60"), VISUAL="")
    terminals.append(terminal)
    terminal.wait_for_text("scripted")
    terminal.type(b"begun\x07")
    terminal.wait_for_text("EDITING")
    terminal.process.send_signal(signal.SIGTERM)
    terminal.wait_for_exit()
    assert terminal.process.returncode == 0

    again = Terminal(session)
    terminals.append(again)
    again.wait_for_text("an earlier message", "begun")


def write_editor_script(folder: Path, script: str) -> str:
    """Create a program that edits a file with a shell script."""
    file = folder / "editor"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not here")
def test_typing_aborting_and_quitting_work_in_tmux(session: Session, tmp_path: Path) -> None:
    def run_tmux(*arguments: str) -> str:
        made = subprocess.run(
            ["tmux", "-S", str(tmp_path / "socket"), *arguments],
            capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        return made.stdout

    def wait_for_text(*words: str) -> None:
        until = time.monotonic() + SECONDS
        while not all(word in (text := run_tmux("capture-pane", "-p", "-t", "app")) for word in words):
            assert time.monotonic() < until, text
            time.sleep(0.05)

    run_tmux("new-session", "-d", "-s", "app", "-x", "80", "-y", "24", *build_command(session))
    try:
        wait_for_text("an earlier message", "scripted")
        run_tmux("send-keys", "-t", "app", "Hello", "Enter")
        wait_for_text("The beginning of it.", "working")
        run_tmux("send-keys", "-t", "app", "Escape")
        wait_for_text("aborted")
        run_tmux("send-keys", "-t", "app", "C-d")
        until = time.monotonic() + SECONDS
        while (
            subprocess.run(["tmux", "-S", str(tmp_path / "socket"), "has-session"], capture_output=True).returncode == 0
        ):
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        subprocess.run(["tmux", "-S", str(tmp_path / "socket"), "kill-server"], capture_output=True, check=False)
    assert [entry.type for entry in st.open(str(session.file)).head.path()][-2:] == ["message", "message"]


def test_writing_to_a_closed_terminal_does_not_block() -> None:
    ours, theirs = pty.openpty()
    os.close(ours)
    with contextlib.suppress(OSError), open(theirs, "w", buffering=1) as file:
        with pytest.raises(OSError):
            os.write(theirs, b"gone")
        writer = WriterThread(TolerantFile(file))  # pyright: ignore[reportArgumentType]
        writer.start()

        def write() -> None:
            for _ in range(2 * MAX_QUEUED_WRITES):
                writer.write("gone\n")
            writer.stop()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        thread.join(SECONDS)

        assert not thread.is_alive()


async def test_the_app_uses_the_tolerant_terminal_driver(session: Session) -> None:
    app = SessionApp(AppOptions(session=session, cwd="/"))

    assert isinstance(app.driver_class(app)._file, TolerantFile)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("visual", "editor", "said"),
    [
        ("vi '", "", "cannot parse $VISUAL: No closing quotation"),
        ("", "ed \\", "cannot parse $EDITOR: No escaped character"),
        (" ", "/nowhere/ed", "cannot run /nowhere/ed"),
    ],
)
async def test_an_editor_that_cannot_run_is_reported_and_the_text_is_kept(
    running: Running, monkeypatch: pytest.MonkeyPatch, visual: str, editor: str, said: str
) -> None:
    monkeypatch.setenv("VISUAL", visual)
    monkeypatch.setenv("EDITOR", editor)
    async with running() as app:
        await app.type("a text")
        await app.press("ctrl+g")
        await app.wait_for_text(said)

        assert app.editor.text == "a text"
