"""Finding files and lines, and what is passed over."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sessiontree.agent.tool import ToolError
from sessiontree.agent.tools import find, grep, search
from sessiontree.agent.tools.walk import files_below, glob_pattern, parse_rule
from tests.agent.tools.conftest import Call, text


@pytest.fixture(autouse=True)
def project(folder: Path) -> None:
    for path, content in {
        ".gitignore": "*.log\n/build/\n!keep.log\n# a comment\ndocs/**/draft.md\n",
        "a.py": "import os\nprint('one')\n",
        "b.log": "one\n",
        "keep.log": "one\n",
        "build/out.py": "one\n",
        "src/build/in.py": "one\ntwo\nthree\nfour\nOne\n",
        "src/.gitignore": "secret*\n",
        "src/secret.py": "one\n",
        "docs/x/y/draft.md": "one\n",
        "docs/x/final.md": "three\n",
        ".git/config": "one\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    (folder / "binary.py").write_bytes(b"one\0\n")


async def test_files_are_found_by_name_at_any_depth_or_by_path(call: Call) -> None:
    assert text(await call(find, pattern="*.py")).split() == ["a.py", "binary.py", "src/build/in.py"]
    assert text(await call(find, pattern="src/**/*.py")) == "src/build/in.py"
    assert text(await call(find, pattern="*.py", path="src")) == "src/build/in.py"
    assert text(await call(find, pattern="*.rs")) == "No file has such a name."


async def test_what_gitignore_files_leave_out_is_not_found(call: Call) -> None:
    found = text(await call(find, pattern="**")).split()

    assert found == [
        ".gitignore",
        "a.py",
        "binary.py",
        "keep.log",
        "docs/x/final.md",
        "src/.gitignore",
        "src/build/in.py",
    ]


def test_rules_of_the_repository_hold_in_the_folders_below(folder: Path) -> None:
    (folder / "src/x.log").touch()

    assert list(files_below(str(folder / "src"))) == [".gitignore", "build/in.py"]


def test_rules_are_those_of_where_a_folder_really_is(folder: Path) -> None:
    (folder / "docs/link").symlink_to(folder / "src/build")
    (folder / "src/draft.md").touch()

    assert list(files_below(str(folder / "docs/link/.."))) == [".gitignore", "draft.md", "build/in.py"]


async def test_lines_are_found_with_their_place(call: Call) -> None:
    assert text(await call(grep, pattern=r"\bone\b")).split("\n") == [
        "a.py:2: print('one')",
        "keep.log:1: one",
        "src/build/in.py:1: one",
    ]
    assert text(await call(grep, pattern="ONE", ignore_case=True, glob="*.py", path="src")).split("\n") == [
        "src/build/in.py:1: one",
        "src/build/in.py:5: One",
    ]
    assert text(await call(grep, pattern="('one')", literal=True)) == "a.py:2: print('one')"
    assert text(await call(grep, pattern="three", path="docs/x/final.md")) == "docs/x/final.md:1: three"
    assert text(await call(grep, pattern="nowhere")) == "No line matches."


async def test_lines_are_shown_with_those_round_them(call: Call) -> None:
    assert text(await call(grep, pattern="t..ee|[oO]ne", path="src", context=1)).split("\n") == [
        "src/build/in.py:1: one",
        "src/build/in.py-2- two",
        "src/build/in.py:3: three",
        "src/build/in.py-4- four",
        "src/build/in.py:5: One",
    ]
    assert "--" in text(await call(grep, pattern="^one", context=1)).split("\n")


async def test_a_search_stops_at_its_limit_and_says_so(call: Call) -> None:
    assert (
        text(await call(find, pattern="*", limit=1)) == ".gitignore\n\n[These are the first 1 files: there are more.]"
    )
    said = text(await call(grep, pattern="one", limit=1))
    assert said == "a.py:2: print('one')\n\n[These are the first 1 matching lines: there are more.]"


async def test_more_than_fits_is_in_a_file(call: Call, folder: Path) -> None:
    (folder / "long.txt").write_text(("needle" + "." * 1000 + "\n") * 100)

    output = await call(grep, pattern="needle")

    assert text(output).count("needle") < 60
    path = output.details["fullOutputPath"]
    assert Path(path).read_text().count("needle") == 100
    os.unlink(path)


async def test_wrong_patterns_and_places_are_clear_errors(call: Call) -> None:
    with pytest.raises(ToolError, match="no regular expression"):
        await call(grep, pattern="(")
    with pytest.raises(ToolError, match="no file or folder gone"):
        await call(grep, pattern="x", path="gone")
    with pytest.raises(ToolError, match="no folder gone"):
        await call(find, pattern="x", path="gone")


async def test_a_pattern_that_never_ends_is_given_up(call: Call, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(search, "TIMEOUT", 1.0)
    (folder / "trap.txt").write_text("a" * 60 + "b\n")
    start = time.monotonic()

    with pytest.raises(ToolError, match="longer than 1 seconds"):
        await call(grep, pattern="(a+)+$")
    assert time.monotonic() - start < 5


async def test_a_search_runs_no_python_of_the_project(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "msgspec.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))

    assert text(await call(grep, pattern="import")) == "a.py:1: import os"
    assert text(await call(find, pattern="a.py")) == "a.py"
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.py", "x/a.py", True),
        ("*.py", "a.pyc", False),
        ("/a", "x/a", False),
        ("x/*", "x/a/b", False),
        ("x/**", "x/a/b", True),
        ("**/b", "b", True),
        ("[!a]b", "cb", True),
        ("[!a]b", "ab", False),
        ("*.{py,md}", "a.md", True),
        ("a?c", "a/c", False),
        ("a[", "a[", True),
    ],
)
def test_globs_match_as_in_gitignore(glob: str, path: str, matches: bool) -> None:
    assert (glob_pattern(glob).fullmatch(path) is not None) == matches


def test_lines_that_say_nothing_are_no_rules() -> None:
    assert [parse_rule(line) for line in ("", "  ", "# x", "/", "!")] == [None] * 5
