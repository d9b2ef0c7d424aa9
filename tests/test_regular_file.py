"""Reading files of unknown type: only regular files are read, and nothing blocks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sessiontree.regular_file import read_regular_file


def test_a_file_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")

    assert read_regular_file(str(tmp_path / "link")) == b"abc"


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")

    assert read_regular_file(str(tmp_path / "file"), 3) == b"abc"
    with pytest.raises(OSError, match="larger than 0 MiB"):
        read_regular_file(str(tmp_path / "file"), 2)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "a\0b"])
def test_devices_and_invalid_paths_are_refused(path: str) -> None:
    with pytest.raises(OSError, match=r"not a regular file|null"):
        read_regular_file(path)


def test_a_socket_and_a_folder_are_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="No such device"):
            read_regular_file(str(tmp_path / "socket"))
    with pytest.raises(IsADirectoryError):
        read_regular_file(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("config.toml", "from sessiontree import config; config.load_config()", True),
        ("tokens.json", "from sessiontree.server.auth import TokenStore; TokenStore().read_stored()", True),
        (
            "trust.json",
            "from sessiontree.extensions.project_trust import TrustStore; TrustStore({home!r})._read()",
            True,
        ),
        (
            "swarm.toml",
            "from sessiontree.cli.swarm_run import load_swarm_file; load_swarm_file({home!r} + '/swarm.toml')",
            True,
        ),
        (
            "it.py",
            "from sessiontree.extensions.loader import ExtensionModule as M; M('it', {home!r} + '/it.py').load()",
            True,
        ),
        ("history.jsonl", "from sessiontree.tui.services.input import History; assert History().items == []", False),
        (
            "AGENTS.md",
            "from sessiontree.agent.system_prompt import read_instructions; assert read_instructions('/') == []",
            False,
        ),
    ],
)
def test_a_fifo_instead_of_one_of_our_files_does_not_block(name: str, code: str, told: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)

    done = subprocess.run(
        [sys.executable, "-c", code.format(home=str(tmp_path))],
        env={**os.environ, "SESSIONTREE_HOME": str(tmp_path)},
        capture_output=True,
        timeout=60,
    )

    assert (b"not a regular file" in done.stderr) is told
    assert bool(done.returncode) is told
