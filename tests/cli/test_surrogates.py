"""Commands on sessions with lone surrogates, which JSON can contain and UTF-8 cannot encode."""

from __future__ import annotations

from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.cli.app import run
from tests.reliability.harness import times
from tests.surrogates import write_hostile_files

EVERY = times(6, torture=1)
"""Run every n-th command on each file; a long run uses all commands."""


def build_commands(file: str, out: Path) -> list[list[str]]:
    words = [[name, file] for name in ("tree", "log", "branches", "context", "doctor")]
    words += [["show", file, "HEAD"], ["compare", file, "main", "other"], ["diff", file, "main", "other"]]
    words += [[*command, "--json"] for command in words]
    for form in ("html", "md", "jsonl", "json", "text"):
        words.append(["export", file, "--format", form, "-o", str(out), "--force"])
        words.append(["export", file, "--format", form, "-o", str(out), "--force", "--redact"])
    words.append(["export", file, "--format", "jsonl", "--branch", "HEAD", "-o", str(out), "--force"])
    words.append(["export", file, "--format", "jsonl", "--subtree", "00000001", "-o", str(out), "--force"])
    words.append(["migrate", file])
    words.append(["fork", file])
    words.append(["fork", file, "--whole"])
    words.append(["append", file, "--role", "user", "more"])
    words.append(["label", file, "00000001", "first"])
    words.append(["navigate", file, "00000001"])
    words.append(["undo", file])
    words.append(["branch", file, "new"])
    words.append(["switch", file, "main"])
    words.append(["rename", file, "called"])
    words.append(["archive", file])
    words.append(["delete", file, "--yes"])
    return words


def test_no_command_fails_on_a_lone_surrogate(here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = st.create("good")
    good.append(st.user("hello"))
    assert good.file is not None
    files = write_hostile_files(Path(good.file).parent, here)
    assert len(files) > 100
    failed: list[str] = []

    def run_command(words: list[str]) -> str:
        code = run(words)
        printed = capsys.readouterr()
        (printed.out + printed.err).encode()
        if code not in (0, 1) or "internal error" in printed.out + printed.err:
            failed.append(f"{words}: {printed.err}")
        return printed.out

    for _ in range(2):  # without an index, and with one
        assert "good" in run_command(["ls"])
        assert good.id in run_command(["search", "hello", "--json", "--limit", "1000"])
        assert "hello" in run_command(["tree", "good"])
    for number, file in enumerate(files):
        for place, words in enumerate(build_commands(str(file), tmp_path / "out")):
            if place % EVERY == number % EVERY:
                run_command(words)
    assert not failed, "\n".join(failed)
