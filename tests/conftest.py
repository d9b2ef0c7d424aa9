"""Fixtures and settings for all tests."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.postgres import Server

os.environ["TZ"] = "UTC"
time.tzset()
if threading.current_thread() is threading.main_thread():
    # A run in the background or under nohup ignores signals, and so would the commands that it starts.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
settings.register_profile("default", deadline=None, max_examples=60, print_blob=True)
settings.register_profile("torture", deadline=None, max_examples=3000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give every test its own empty home."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SESSIONTREE_HOME", str(home / ".sessiontree"))
    for name in ("NO_COLOR", "SESSIONTREE_STORE", "PI_CODING_AGENT_DIR", "PI_CODING_AGENT_SESSION_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield home
    _unmount_private_folders(home)


def _unmount_private_folders(home: Path) -> None:
    """Unmount the overlays that a test left, so that its folder can be removed."""
    for marker in (home / ".sessiontree" / "folders").glob("*/private.json"):
        for folder in (marker.parent / "files").iterdir():
            if folder.is_mount():
                subprocess.run(["umount", "--lazy", str(folder)], check=False)


LONGEST = 300
"""Seconds that a test may take, except in torture runs."""
LONGEST_WITH_PEERS = 1200
"""The same for a test that runs several real programs, one after the other."""


@pytest.fixture(autouse=True)
def fail_if_hanging(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that hangs, and let the others run."""
    longest = LONGEST_WITH_PEERS if request.node.get_closest_marker("peers") else LONGEST

    def raise_timeout(*_: object) -> None:
        raise TimeoutError(f"{request.node.nodeid} did not end within {longest} s")

    if os.environ.get("SESSIONTREE_TORTURE"):
        yield
        return
    before = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(longest)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server, shared by the tests of this process."""
    from tests.postgres import Server

    running = Server()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def shared_database(server: Server) -> str:
    """The address of a database for tests that create sessions and do not list them."""
    return server.new_database()


@pytest.fixture
def database(server: Server) -> str:
    """The address of a database that has no sessions."""
    return server.get_empty_database()
