"""Every file and folder is private to its user, whatever the umask, at every moment."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reliability.harness import ROOT


def list_created_paths(umask: int, folder: Path, *plants: str) -> list[list[str | int]]:
    """Return every path created while a session is used, with its initial and its final mode."""
    command = [sys.executable, "-m", "tests.reliability.modes", oct(umask), str(folder), *plants]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(made: list[list[str | int]], folder: Path) -> None:
    names = {os.path.basename(str(path)) for path, _ in made}
    kinds = {name.removeprefix("s.jsonl").partition("-")[0] for name in names if name.startswith("s.jsonl")}
    assert {"", ".lock", ".new", ".tmp", ".bak", ".torn"} <= kinds, f"the session's life was too short: {kinds}"
    for path, mode in made:
        assert isinstance(mode, int)
        assert mode & 0o077 == 0, f"{path} is made {mode:o}"
    for path in folder.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} is {mode:o}"


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077, 0o177, 0o277])
def test_no_other_user_can_read_or_write_any_file(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir(mode=0o700)

    check(list_created_paths(umask, folder), folder)


def test_the_harness_notices_a_file_that_others_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir(mode=0o700)
    made = list_created_paths(0o000, folder, "wide_modes")

    with pytest.raises(AssertionError, match="is made"):
        check(made, folder)
