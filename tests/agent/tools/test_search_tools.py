"""Finding files and lines, and skipped files."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sessiontree.agent.tool import ToolError
from sessiontree.agent.tools import file_access, find, grep, ls, search_tools
from sessiontree.agent.tools.file_access import compile_glob, parse_ignore_rule, walk_files
from sessiontree.agent.tools.output_limits import write_full_output
from tests.agent.tools.conftest import Call, create_caller, get_text

SKIPPED = "[Skipped: 1 binary file.]"


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
    assert get_text(await call(find, pattern="*.py")).split() == ["a.py", "binary.py", "src/build/in.py"]
    assert get_text(await call(find, pattern="src/**/*.py")) == "src/build/in.py"
    assert get_text(await call(find, pattern="*.py", path="src")) == "src/build/in.py"
    assert get_text(await call(find, pattern="*.rs")) == "No files match."


async def test_files_ignored_by_gitignore_are_not_found(call: Call) -> None:
    found = get_text(await call(find, pattern="**")).split()

    assert found == [
        ".gitignore",
        "a.py",
        "binary.py",
        "keep.log",
        "docs/x/final.md",
        "src/.gitignore",
        "src/build/in.py",
    ]


def test_rules_of_the_repository_apply_to_subfolders(folder: Path) -> None:
    (folder / "src/x.log").touch()

    assert list(walk_files(str(folder / "src"))) == [".gitignore", "build/in.py"]


def test_rules_apply_to_the_real_path_of_a_folder(folder: Path) -> None:
    (folder / "docs/link").symlink_to(folder / "src/build")
    (folder / "src/draft.md").touch()

    assert list(walk_files(str(folder / "docs/link/.."))) == [".gitignore", "draft.md", "build/in.py"]


async def test_lines_are_found_with_their_place(call: Call) -> None:
    assert get_text(await call(grep, pattern=r"\bone\b")).split("\n") == [
        "a.py:2: print('one')",
        "keep.log:1: one",
        "src/build/in.py:1: one",
        "",
        SKIPPED,
    ]
    assert get_text(await call(grep, pattern="ONE", ignore_case=True, glob="*.py", path="src")).split("\n") == [
        "src/build/in.py:1: one",
        "src/build/in.py:5: One",
    ]
    assert get_text(await call(grep, pattern="('one')", literal=True, path="a.py")) == "a.py:2: print('one')"
    assert get_text(await call(grep, pattern="three", path="docs/x/final.md")) == "docs/x/final.md:1: three"
    assert get_text(await call(grep, pattern="nowhere", path="src")) == "No lines match."


async def test_lines_are_shown_with_their_context(call: Call) -> None:
    assert get_text(await call(grep, pattern="t..ee|[oO]ne", path="src", context=1)).split("\n") == [
        "src/build/in.py:1: one",
        "src/build/in.py-2- two",
        "src/build/in.py:3: three",
        "src/build/in.py-4- four",
        "src/build/in.py:5: One",
    ]
    assert "--" in get_text(await call(grep, pattern="^one", context=1)).split("\n")


async def test_a_search_stops_at_its_limit_with_a_note(call: Call) -> None:
    assert (
        get_text(await call(find, pattern="*", limit=1))
        == ".gitignore\n\n[Only the first 1 files are shown; there are more.]"
    )
    said = get_text(await call(grep, pattern="one|two", path="src", limit=1))
    assert said == "src/build/in.py:1: one\n\n[Only the first 1 matching lines are shown; there are more.]"


async def test_files_skipped_before_the_limit_are_reported(call: Call) -> None:
    said = get_text(await call(grep, pattern="one", limit=1))

    assert said.endswith(f"[Only the first 1 matching lines are shown; there are more. {SKIPPED[1:]}")


async def test_links_out_of_the_folder_are_not_searched(call: Call, folder: Path) -> None:
    (folder.parent / "elsewhere.txt").write_text("needle outside\n")
    (folder / "link.txt").symlink_to(folder.parent / "elsewhere.txt")
    (folder / "src" / "inside.txt").symlink_to(folder / "there.txt")
    (folder / "there.txt").write_text("needle inside\n")

    said = get_text(await call(grep, pattern="needle"))
    assert "outside" not in said
    assert "src/inside.txt:1: needle inside" in said
    assert "1 link out of the folder" in said
    assert "src/inside.txt:1: needle inside" in get_text(await call(grep, pattern="needle", path="src"))


async def test_files_of_sessiontree_are_not_searched(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSIONTREE_HOME", str(folder / "own"))
    (folder / "own").mkdir()
    (folder / "own" / "token").write_text("needle\n")

    assert "token" not in get_text(await call(grep, pattern="needle"))


async def test_output_beyond_the_limit_goes_to_a_file(call: Call, folder: Path) -> None:
    (folder / "long.txt").write_text(("needle" + "." * 1000 + "\n") * 100)

    output = await call(grep, pattern="needle")

    assert get_text(output).count("needle") < 60
    path = output.details["fullOutputPath"]
    assert Path(path).read_text().count("needle") == 100
    os.unlink(path)


async def test_output_that_fits_is_shown_if_no_file_can_be_written(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "gone"))
    (folder / "long.txt").write_text(("needle" + "." * 1000 + "\n") * 100)

    output = await call(grep, pattern="needle")

    assert get_text(output).startswith("long.txt:1: needle")
    assert "of 100 lines are shown. The rest could not be saved." in get_text(output)
    assert output.details is None


def test_a_partially_written_file_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "scratch"))
    (folder / "scratch").mkdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handled = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        path = write_full_output("x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handled)

    assert path is None
    assert os.listdir(folder / "scratch") == []


async def test_a_failed_search_reports_its_exit_code(call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(folder)])

    with pytest.raises(ToolError, match=r"^the search ended with code 1: ModuleNotFoundError: No module named"):
        await call(grep, pattern="one")


async def test_wrong_patterns_and_places_are_clear_errors(call: Call) -> None:
    with pytest.raises(ToolError, match="not a valid regular expression"):
        await call(grep, pattern="(")
    with pytest.raises(ToolError, match="gone not found"):
        await call(grep, pattern="x", path="gone")
    with pytest.raises(ToolError, match="folder gone not found"):
        await call(find, pattern="x", path="gone")


async def test_a_pattern_that_takes_too_long_is_an_error(call: Call, folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(search_tools, "SEARCH_TIMEOUT", 1.0)
    (folder / "trap.txt").write_text("a" * 60 + "b\n")

    with pytest.raises(ToolError, match="longer than 1 seconds"):
        await call(grep, pattern="(a+)+$")


async def test_a_file_whose_name_is_not_utf_8_is_found(call: Call, folder: Path) -> None:
    odd = folder / "src" / os.fsdecode(b"caf\xe9.txt")
    odd.write_text("needle\n")

    assert get_text(await call(find, pattern="*.txt")) == "src/caf\ufffd.txt"
    assert get_text(await call(grep, pattern="needle")) == f"src/caf\ufffd.txt:1: needle\n\n{SKIPPED}"
    assert "caf\ufffd.txt" in get_text(await call(ls, path="src")).split("\n")


async def test_a_folder_whose_name_is_not_utf_8_is_searched(folder: Path) -> None:
    odd = folder / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    (odd / "a.txt").write_text("needle\n")

    assert get_text(await create_caller(odd)(find, pattern="*.txt")) == "a.txt"
    assert get_text(await create_caller(odd)(grep, pattern="needle")) == "a.txt:1: needle"


async def test_circular_links_are_skipped(call: Call, folder: Path) -> None:
    (folder / "circle.py").symlink_to("circle.py")
    (folder / "gone.py").symlink_to("nowhere")
    (folder / "link.py").symlink_to("a.py")

    assert get_text(await call(find, pattern="*.py")).split() == ["a.py", "binary.py", "link.py", "src/build/in.py"]


def test_very_deep_folders_are_walked(folder: Path) -> None:
    root = folder / "deep"
    inner = "/".join("d" * 1500)
    place = os.getcwd()
    os.makedirs(root)
    os.chdir(root)
    try:
        for _ in range(1500):  # step by step: the whole path may be too long
            os.mkdir("d")
            os.chdir("d")
        Path("low.txt").write_text("found")
        (root / "zeta").mkdir()
        (root / "zeta" / "high.txt").write_text("found")

        assert list(walk_files(str(root))) == [f"{inner}/low.txt", "zeta/high.txt"]
    finally:
        Path("low.txt").unlink()  # pytest cannot remove folders that are too deep
        for _ in range(1500):
            os.chdir("..")
            os.rmdir("d")
        os.chdir(place)


async def test_searching_an_unsearchable_file_by_name_is_an_error(call: Call, folder: Path) -> None:
    with open(folder / "large", "wb") as file:
        file.truncate(search_tools.MAX_GREP_BYTES + 1)
    (folder / "utf-16").write_bytes("needle".encode("utf-16"))
    os.mkfifo(folder / "pipe")

    for path, reason in {
        "large": "large is larger than 16 MiB, which is too large to search",
        "utf-16": "utf-16 is a binary file",
        "pipe": "pipe is not a regular file",
    }.items():
        with pytest.raises(ToolError, match=reason):
            await call(grep, pattern="needle", path=path)


async def test_skipped_files_are_counted(call: Call, folder: Path) -> None:
    with open(folder / "large.txt", "wb") as file:
        file.truncate(search_tools.MAX_GREP_BYTES + 1)
    (folder / "utf-16.txt").write_bytes("needle".encode("utf-16"))

    assert get_text(await call(grep, pattern="needle")) == (
        "No lines match.\n\n[Skipped: 2 binary files, 1 file larger than 16 MiB.]"
    )
    assert get_text(await call(grep, pattern="needle", glob="large.*")) == (
        "No lines match.\n\n[Skipped: 1 file larger than 16 MiB.]"
    )


def test_unreadable_files_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, *_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(search_tools, "open", refuse, raising=False)

    found = search_tools.grep_lines(str(folder), search_tools.GrepArguments(pattern="one", glob="*.py"))
    assert found.skipped == "3 unreadable files"
    named = search_tools.grep_lines(str(folder / "a.py"), search_tools.GrepArguments(pattern="one", path="a.py"))
    assert named.error == "a.py: Permission denied"


def test_unreadable_folders_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.scandir

    def refuse(path: str) -> Any:
        if path.rstrip("/").endswith(("src", "docs")):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(file_access.os, "scandir", refuse)

    found = search_tools.find_files(str(folder), search_tools.FindArguments(pattern="*.py"))
    assert (found.lines, found.skipped) == (["a.py", "binary.py"], "2 unreadable folders")
    lines = search_tools.grep_lines(str(folder), search_tools.GrepArguments(pattern="one", glob="*.py"))
    assert lines.skipped == "1 binary file, 2 unreadable folders"
    inside = search_tools.find_files(str(folder / "src"), search_tools.FindArguments(pattern="*"))
    assert inside.skipped == "1 unreadable folder"


async def test_a_search_does_not_import_python_files_of_the_project(
    call: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "msgspec.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))

    assert get_text(await call(grep, pattern="import", glob="a.py")) == "a.py:1: import os"
    assert get_text(await call(find, pattern="a.py")) == "a.py"
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
        ("{*.txt,*.md}", "x/a.md", True),
        ("{*.txt,*.md}", "x/a.py", False),
        ("x.{a,{b,[cd]}?}", "x.de", True),
        ("x.{a,{b,[cd]}?}", "x.d", False),
        ("src/{a,b/**}/*.py", "src/b/c/d/e.py", True),
        ("a,b}", "a,b}", True),
        ("{a,b", "{a,b", True),
        ("{{a}", "{{a}", True),
        ("{{name}}/*", "{{name}}/x", True),
        ("{,*.py", "{,a.py", True),
        ("{," * 9999 + "}" * 9999, "x", False),
        ("a?c", "a/c", False),
        ("a[", "a[", True),
    ],
)
def test_globs_match_as_in_gitignore(glob: str, path: str, matches: bool) -> None:
    assert (compile_glob(glob).fullmatch(path) is not None) == matches


def test_blank_lines_and_comments_are_not_rules() -> None:
    assert [parse_ignore_rule(line) for line in ("", "  ", "# x", "/", "!")] == [None] * 5
