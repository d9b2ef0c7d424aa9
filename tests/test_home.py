"""The command that starts this program again in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.home import build_self_command


def test_a_process_of_this_program_ignores_modules_of_the_current_folder_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sessiontree", "msgspec", "click"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')\n")
    (tmp_path / "sitecustomize.py").write_text("print('nor this one')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ".", *sys.path])

    command = build_self_command("sessiontree.cli", "--version")
    told = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)

    assert told.stdout == f"sessiontree {st.__version__}\n"
