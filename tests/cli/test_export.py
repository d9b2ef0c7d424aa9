"""The `export` command: formats, parts, targets and redaction."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import sessiontree as st
from sessiontree.export import FORMATS
from tests.cli.conftest import HOSTILE, Run
from tests.export.sessions import SECRET


@pytest.fixture
def talk(here: Path) -> Path:
    session = st.create(name="speed", file=here / "talk.jsonl")
    session.append(st.user(f"my key is {SECRET}"))
    session.append(st.assistant("A cache, or a dict?"))
    session.create_branch("cache")
    session.append(st.assistant("With a cache."))
    session.switch("main")
    session.close()
    return here / "talk.jsonl"


def test_a_page_is_written_and_its_name_is_printed(cli: Run, talk: Path, here: Path) -> None:
    output = cli("export", "talk.jsonl", "-o", "page.html")

    assert output.startswith("page.html")
    assert (here / "page.html").read_text().startswith("<!doctype html>")
    assert stat.S_IMODE((here / "page.html").stat().st_mode) == 0o600


def test_without_a_file_the_page_is_named_after_the_session(cli: Run, talk: Path, here: Path) -> None:
    output = cli("export", "talk.jsonl")

    assert (here / output.split()[0]).suffix == ".html"


@pytest.mark.parametrize(
    ("name", "begins"), [("x.md", "# speed"), ("x.txt", "speed\n==="), ("x.json", '{"session"'), ("x.jsonl", '{"type"')]
)
def test_the_format_follows_the_suffix(cli: Run, talk: Path, here: Path, name: str, begins: str) -> None:
    cli("export", "talk.jsonl", "-o", name)

    assert (here / name).read_text().startswith(begins)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_can_go_to_standard_output(cli: Run, talk: Path, form: str) -> None:
    assert "A cache, or a dict?" in cli("export", "talk.jsonl", "--format", form, "-o", "-")


def test_pairs_of_branches_are_written_by_the_rule_that_is_given(cli: Run, here: Path) -> None:
    session = st.create(file=here / "talk.jsonl")
    question = session.append(st.user("How?"))
    session.append(st.assistant("So."))
    session.label(session.create_branch("other", at=question).append(st.assistant("Or so.")), "good")
    session.close()

    written = cli("export", "talk.jsonl", "--format", "preference", "--prefer", "label:good", "-o", "-")

    assert json.loads(written)["chosen"] == [{"role": "assistant", "content": "Or so."}]


def test_jsonl_of_a_whole_session_is_the_file_byte_for_byte(cli: Run, talk: Path, here: Path) -> None:
    talk.write_bytes(talk.read_bytes() + b'nonsense\n{"torn')

    cli("export", "talk.jsonl", "-o", "copy.jsonl")

    assert (here / "copy.jsonl").read_bytes() == talk.read_bytes()


def test_an_existing_file_is_overwritten_only_with_force(cli: Run, fails: Run, talk: Path, here: Path) -> None:
    (here / "page.html").write_text("mine")

    assert "already exists" in fails("export", "talk.jsonl", "-o", "page.html")
    assert (here / "page.html").read_text() == "mine"
    cli("export", "talk.jsonl", "-o", "page.html", "--force")
    assert (here / "page.html").read_text() != "mine"
    assert not list(here.glob(".sessiontree-*"))


def test_only_regular_files_are_replaced_and_links_are_followed(cli: Run, fails: Run, talk: Path, here: Path) -> None:
    os.mkfifo(here / "pipe.html")
    (here / "page.html").write_text("mine")
    (here / "link.html").symlink_to("page.html")

    assert "is not a regular file" in fails("export", "talk.jsonl", "-o", "pipe.html", "--force")
    assert (here / "pipe.html").is_fifo()
    cli("export", "talk.jsonl", "-o", "link.html", "--force")
    assert (here / "link.html").is_symlink()
    assert (here / "page.html").read_text() != "mine"


@pytest.mark.parametrize("arguments", [["--format", "md"], ["--branch", "root"], ["--redact"], []])
def test_an_export_never_overwrites_its_session(fails: Run, talk: Path, here: Path, arguments: list[str]) -> None:
    before = talk.read_bytes()
    (here / "link.jsonl").symlink_to(talk)

    for name in ("talk.jsonl", str(talk), "link.jsonl"):
        assert f"{name} is the session file itself" in fails("export", "talk.jsonl", *arguments, "-o", name, "--force")

    assert talk.read_bytes() == before
    assert (here / "link.jsonl").is_symlink()


def test_an_unknown_suffix_needs_a_format(cli: Run, fails: Run, talk: Path, here: Path) -> None:
    message = fails("export", "talk.jsonl", "-o", "page.pdf", code=2)

    assert "'page.pdf': unknown suffix; use one of .html, " in message
    assert "--format" in message
    assert not (here / "page.pdf").exists()
    cli("export", "talk.jsonl", "-o", "page.pdf", "--format", "md")
    cli("export", "talk.jsonl", "-o", "page")
    assert (here / "page.pdf").read_text().startswith("# speed")
    assert (here / "page").read_text().startswith("<!doctype html>")


def test_a_missing_folder_is_reported_with_the_requested_name(fails: Run, talk: Path) -> None:
    assert "gone/page.html: No such file or directory" in fails("export", "talk.jsonl", "-o", "gone/page.html")


def test_an_exported_branch_or_subtree_opens_as_a_session(cli: Run, talk: Path) -> None:
    cli("export", "talk.jsonl", "--branch", "cache", "-o", "path.jsonl")
    cli("export", "talk.jsonl", "--subtree", "main", "-o", "below.jsonl")

    assert st.open("path.jsonl").context().messages == st.open(talk).context("cache").messages
    below = st.open("below.jsonl")
    assert [entry.id for entry in below.tree.roots()] == [st.open(talk).resolve_place("main")]
    below.append(st.user("it can be gone on with"))


def test_redaction_is_counted_on_standard_error(
    talk: Path, here: Path, capsys: pytest.CaptureFixture[str], cli: Run
) -> None:
    from sessiontree.cli.app import run

    assert run(["export", "talk.jsonl", "--redact", "--pattern", "dict", "-o", "-", "--format", "text"]) == 0

    captured = capsys.readouterr()
    assert SECRET not in captured.out
    assert "dict" not in captured.out
    assert "1 token" in captured.err
    assert "1 pattern 1" in captured.err


def test_a_redacted_session_cannot_be_continued(cli: Run, fails: Run, talk: Path) -> None:
    cli("export", "talk.jsonl", "--redact", "-o", "shared.jsonl")

    assert "redacted export" in fails("append", "shared.jsonl", "--role", "user", "more")
    assert "With a cache." in cli("tree", "shared.jsonl")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--pattern", "x"], "--pattern requires --redact"),
        (["--branch", "main", "--subtree", "main"], "are mutually exclusive"),
        (["--format", "pdf"], "pdf"),
        (["--prefer", "cost"], "--prefer requires --format preference"),
    ],
)
def test_wrong_usage_is_reported(fails: Run, talk: Path, arguments: list[str], sentence: str) -> None:
    assert sentence in fails("export", "talk.jsonl", *arguments, code=2)


def test_an_invalid_pattern_is_reported_on_one_line(fails: Run, talk: Path) -> None:
    assert "not a regular expression" in fails("export", "talk.jsonl", "--redact", "--pattern", "(")


@pytest.mark.parametrize("form", ["md", "text", "json"])
def test_text_from_a_file_cannot_control_a_terminal(cli: Run, here: Path, form: str) -> None:
    session = st.create(name="hostile", file=here / "hostile.jsonl")
    session.append(st.user(HOSTILE))
    session.close()

    made = cli("export", "hostile.jsonl", "--format", form, "-o", "-")

    assert not any(sign in made for sign in "\x1b\x07\x9b\u202e\x7f")


def test_a_session_is_not_changed_by_exporting_it(cli: Run, talk: Path) -> None:
    before = talk.read_bytes()

    for form in FORMATS:
        cli("export", "talk.jsonl", "--format", form, "-o", "-")

    assert talk.read_bytes() == before


def test_reading_commands_do_not_import_the_export() -> None:
    heavy = {"jinja2", "nh3", "pygments", "markdown_it"}
    code = "import sys, sessiontree.cli.export; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert "sessiontree.export" in loaded
    assert not heavy & set(loaded)
