"""A process that is suspended while it holds a lock: others report their wait, time out, and can be cancelled.

Other sessions are not blocked, and neither are listings, which work without the index.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.store import lock
from tests.model.fake_server import FakeServer
from tests.reliability.harness import suspend_lock_holder
from tests.server.conftest import ServerEnv, open_client

COMMAND = [sys.executable, "-c", "from sessiontree.cli import main; main()"]
SHORT = {"SESSIONTREE_LOCK_TIMEOUT": "2"}


def find_lock(session: st.Session) -> Path:
    return Path(f"{session.file}.lock")


def run(*arguments: str, seconds: float = 60, **env: str) -> tuple[subprocess.CompletedProcess[str], float]:
    begun = time.monotonic()
    done = subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return done, time.monotonic() - begun


@pytest.fixture
def session() -> st.Session:
    with st.create(name="stalled") as session:
        session.append(st.user("one"))
    return session


def test_an_append_times_out_and_names_the_process_that_holds_the_lock(
    session: st.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONTREE_LOCK_TIMEOUT", "1.5")
    reported: list[str] = []
    monkeypatch.setattr(lock, "report", reported.append)
    before = session.file.read_bytes()

    with st.open(session.file) as writer:
        with suspend_lock_holder(find_lock(session)) as pid, pytest.raises(st.LockTimeout) as raised:
            writer.append(st.user("two"))
        assert raised.value.pid == pid
        assert f"process {pid} (suspended)" in str(raised.value)
        assert raised.value.seconds >= 1.5
        assert len(reported) == 1
        assert f"process {pid}" in reported[0]
        assert session.file.read_bytes() == before
        writer.append(st.user("two"))  # it continues when the lock is free


def test_the_configuration_sets_the_lock_timeout(session: st.Session, home: Path) -> None:
    (home / ".sessiontree" / "config.toml").write_text("lock_timeout = 0.2\n")

    with suspend_lock_holder(find_lock(session)), pytest.raises(st.LockTimeout) as raised:
        st.open(session.file).append(st.user("two"))

    assert 0.2 <= raised.value.seconds < 30


@pytest.mark.parametrize("command", ["append", "delete"])
def test_a_command_reports_its_wait_and_times_out(session: st.Session, command: str) -> None:
    arguments = {
        "append": ["append", str(session.file), "--role", "user", "two"],
        "delete": ["delete", "stalled", "--yes"],
    }

    with suspend_lock_holder(find_lock(session)) as pid:
        done, seconds = run(*arguments[command], **SHORT)

    assert done.returncode == 1
    waits, gave_up = done.stderr.splitlines()
    assert "waiting for the lock" in waits
    assert f"process {pid} (suspended)" in waits
    assert "timed out after" in gave_up
    assert f"process {pid}" in gave_up
    assert session.file.exists()
    assert seconds >= 2


@pytest.mark.parametrize("arguments", [["ls"], ["log", "stalled"], ["append", "stalled", "--role", "user", "two"]])
def test_listing_and_opening_by_name_work_without_the_index(
    session: st.Session, home: Path, arguments: list[str]
) -> None:
    assert run("ls")[0].returncode == 0  # it exists

    with suspend_lock_holder(home / ".sessiontree" / "index.db.lock") as pid:
        done, _ = run(*arguments)

    assert done.returncode == 0, done.stderr
    assert f"process {pid}" in done.stderr
    if arguments == ["ls"]:
        assert "stalled" in done.stdout


def test_sessions_are_listed_while_a_missing_index_is_locked(session: st.Session, home: Path) -> None:
    for file in (home / ".sessiontree").glob("index.db*"):
        file.unlink()

    with suspend_lock_holder(home / ".sessiontree" / "index.db.lock"):
        assert [summary.name for summary in st.sessions(all=True)] == ["stalled"]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def start_waiting_command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command that waits for a lock and has reported its wait."""
    child = start(*arguments)
    try:
        assert child.stderr is not None
        assert "waiting for the lock" in child.stderr.readline()
        yield child
    finally:
        child.kill()
        child.communicate()


def test_ctrl_c_ends_a_command_that_waits(session: st.Session) -> None:
    arguments = "append", str(session.file), "--role", "user", "two"

    with suspend_lock_holder(find_lock(session)), start_waiting_command(*arguments) as child:
        child.send_signal(signal.SIGINT)
        assert child.wait(20) == 130


def test_ctrl_c_ends_a_prompt_that_waits(session: st.Session, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".sessiontree" / "config.toml").write_text('model = "openai:scripted"\n')
    with FakeServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        server.add("never kept")
        arguments = "-p", "--session", str(session.file), "Hi"
        with suspend_lock_holder(find_lock(session)) as holder, start_waiting_command(*arguments) as child:
            child.send_signal(signal.SIGINT)
            assert child.wait(20) == 130
            assert child.stderr is not None
            said = child.stderr.read().splitlines()

    assert len(said) == 1
    assert "aborted" in said[0]
    assert f"held by process {holder}" in said[0]


def test_ctrl_c_ends_a_prompt_whose_answer_is_not_written_yet_and_names_the_file_with_it(
    session: st.Session, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".sessiontree" / "config.toml").write_text('model = "openai:scripted"\n')
    with FakeServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        go_on = threading.Event()
        server.add(lambda body: "paid for" if go_on.wait(20) else "late")
        child = start("-p", "--session", str(session.file), "Hi")
        try:
            assert server.wait_for(lambda server: bool(server.requests), 20)
            with suspend_lock_holder(find_lock(session)):
                go_on.set()
                assert child.stderr is not None
                assert "waiting for the lock" in child.stderr.readline()
                child.send_signal(signal.SIGINT)
                assert child.wait(20) == 130
                said = child.stderr.read()
        finally:
            child.kill()
            child.communicate()

    found = re.search(r"it is saved in (\S+)", said)
    assert found, said
    assert "paid for" in Path(found[1]).read_text()
    Path(found[1]).unlink()


@pytest.mark.parametrize("by", ["lock file", "hard link"])
async def test_a_server_answers_while_requests_wait_for_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setenv("SESSIONTREE_LOCK_TIMEOUT", "120")
    house = ServerEnv(tmp_path)
    stalled, other = house.create_session(), house.create_session(house.other)
    body: dict[str, Any] = {"json": {"name": "renamed"}}
    with st.open(stalled) as session:
        # A writer that uses another hard link has another lock file, but locks the same session file.
        lock_path = find_lock(session) if by == "lock file" else session.file
    async with open_client(house.build_app(), house.owner) as client:
        assert (await client.get(f"/api/sessions/{stalled}")).status_code == 200
        with suspend_lock_holder(lock_path) as pid:
            waits = [asyncio.create_task(client.patch(f"/api/sessions/{stalled}", **body)) for _ in range(60)]
            done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            first = done.pop().result()
            assert first.status_code == 503
            assert first.json()["error"]["code"] == "locked"
            assert f"process {pid}" in first.json()["error"]["message"]
            # Requests for other sessions are served, and so are reads of this one.
            assert (await client.patch(f"/api/sessions/{other}", **body)).status_code == 200
            for part in ("", "/tree", "/context"):
                read = await asyncio.wait_for(client.get(f"/api/sessions/{stalled}{part}"), 20)
                assert read.status_code == 200
            assert pending, "no request waited for the lock"
        answers = [(await task).status_code for task in waits]
        assert set(answers) == {200, 503}
        assert (await client.patch(f"/api/sessions/{stalled}", **body)).status_code == 200


@pytest.mark.parametrize("by", ["lock file", "hard link"])
async def test_a_waiting_agent_does_not_block_readers_of_its_session(session: st.Session, by: str) -> None:
    from sessiontree.model.scripted import ScriptedModel

    with st.open(session.file) as opened:
        agent = st.Agent(opened.head, ScriptedModel(["Hello"]))
        with suspend_lock_holder(find_lock(session) if by == "lock file" else session.file):
            run = asyncio.create_task(agent.run("Hi"))
            await asyncio.sleep(0)
            for _ in range(20):
                assert await asyncio.wait_for(asyncio.to_thread(opened.refresh), 20) is not None
            assert not run.done()
        outcome = await run
        assert outcome.text == "Hello"


def test_a_waiting_thread_can_be_cancelled(session: st.Session) -> None:
    errors: list[BaseException] = []

    def write() -> None:
        try:
            st.open(session.file).append(st.user("two"))
        except st.LockTimeout as error:
            errors.append(error)

    with suspend_lock_holder(find_lock(session)):
        thread = threading.Thread(target=write)
        thread.start()
        try:
            lock.stop_waiting()
            thread.join(20)
        finally:
            lock.resume_waiting()
    assert len(errors) == 1
