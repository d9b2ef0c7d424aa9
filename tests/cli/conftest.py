"""Fixtures that run commands and return their output."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessiontree.cli.app import run

Run = Callable[..., str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], here: Path) -> Run:
    """Run a command that must succeed, and return its output."""

    def command(*arguments: str, code: int = 0) -> str:
        assert run(list(arguments)) == code
        return capsys.readouterr().out

    return command


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str], here: Path) -> Run:
    """Run a command that must fail, and return its error line."""

    def command(*arguments: str, code: int = 1) -> str:
        assert run(list(arguments)) == code
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "Traceback" not in captured.err
        if code == 1:
            assert captured.err.startswith("sessiontree: ")
            assert captured.err.count("\n") == 1
        return captured.err

    return command


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202edesrever\u2028\x7f\r\n\ud800"


def run_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from sessiontree.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)
