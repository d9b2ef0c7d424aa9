"""The commands `import` and `continue`, and reading commands on files of other programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import sessiontree as st
from tests.cli.conftest import Run
from tests.interop.conformance import FIXTURES

REWIND = FIXTURES / "claude/rewind/projects/-project/b042d675-5f26-46b9-9b13-3b6ab6e9748c.jsonl"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.mark.parametrize(
    "command", [("tree",), ("log",), ("branches",), ("context", "--llm", "--json"), ("doctor",), ("show", "HEAD")]
)
def test_every_reading_command_takes_a_file_of_another_program(command: tuple[str, ...], cli: Run) -> None:
    verb, *options = command
    if verb == "show":
        assert "second try" in cli("show", str(REWIND), *options)
    else:
        assert cli(verb, str(REWIND), *options)


def test_a_foreign_file_is_exported_as_a_page(cli: Run, here: Path) -> None:
    pytest.importorskip("jinja2")

    cli("export", str(REWIND), "-o", "page.html")

    assert b"Question two, first try" in (here / "page.html").read_bytes()


def test_appending_names_the_commands_to_use_instead(fails: Run) -> None:
    message = fails("append", str(REWIND), "--role", "user", "Hi")

    assert "sessiontree import" in message
    assert "sessiontree continue" in message


def test_a_program_is_imported_and_continued(cli: Run, home: Path) -> None:
    shutil.copytree(FIXTURES / "claude/rewind/projects", home / ".claude/projects")

    assert "imported" in cli("import", "claude")
    cli("append", REWIND.stem, "--role", "user", "Ours")
    written = json.loads(cli("continue", REWIND.stem, "--in", "claude", "--json"))

    assert st.open(written["file"]).tree[_get_leaf(written["file"])].text == "Ours"
    assert written["command"] == ["claude", "--resume", written["session"]]
    assert "codex resume" in cli("continue", REWIND.stem, "--at", "rewind-1", "--in", "codex")


def _get_leaf(file: str) -> str:
    leaf = st.open(file).heads.leaf
    assert leaf is not None
    return leaf


def test_only_the_sessions_of_this_folder_are_imported_on_request(cli: Run, fails: Run) -> None:
    assert "no sessions found" in fails("import", str(REWIND), "--here")
    assert cli("import", str(REWIND), "--json")


def test_a_redacted_export_leaves_the_original_out(cli: Run) -> None:
    cli("import", str(REWIND))

    exported = cli("export", REWIND.stem, "--format", "jsonl", "--redact", "-o", "-")

    assert '"type":"original"' not in exported
    assert '"type":"original"' in cli("export", REWIND.stem, "--format", "jsonl", "-o", "-")


def test_formats_of_programs_refuse_options_that_they_cannot_have(fails: Run) -> None:
    assert "--redact" in fails("export", str(REWIND), "--format", "claude", "--redact", code=2)


def test_a_program_that_is_not_installed_is_an_error_after_writing(
    here: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sessiontree.cli.app import run

    monkeypatch.setenv("PATH", str(home))

    assert run(["continue", str(REWIND), "--in", "claude", "--cwd", str(here), "--run"]) == 1
    captured = capsys.readouterr()
    assert "cannot start claude" in captured.err
    assert "wrote" in captured.out
