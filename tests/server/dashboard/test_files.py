"""The files of the dashboard: vendored files are unchanged, and no file contains an external address."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

import sessiontree.server
from sessiontree.core.entry_text import CALL_SUBJECTS

STATIC = Path(sessiontree.server.__file__).parent / "static"
VENDOR = STATIC / "vendor"
NAMESPACES = ("http://www.w3.org/",)
"""Namespace names, not addresses: nothing is fetched from them."""


def list_files(*endings: str) -> list[Path]:
    return sorted(path for path in STATIC.rglob("*") if path.suffix in endings)


def read_checksums() -> dict[str, str]:
    lines = (VENDOR / "SHA256SUMS").read_text().splitlines()
    return {name: sum for sum, name in (line.split(maxsplit=1) for line in lines)}


def test_vendored_files_are_unchanged() -> None:
    kept = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS", "README.md"}

    assert kept == set(read_checksums())
    for name, sum in read_checksums().items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == sum, name


def test_vendored_files_have_a_version_and_a_licence() -> None:
    readme = (VENDOR / "README.md").read_text()

    for path in VENDOR.glob("*.mjs"):
        assert f"| `{path.name}` |" in readme
        assert (VENDOR / f"{path.stem}.LICENSE").is_file()


@pytest.mark.parametrize("path", list_files(".js", ".mjs", ".css", ".html"), ids=lambda path: path.name)
def test_no_file_of_the_page_contains_a_foreign_address(path: Path) -> None:
    found = re.findall(
        r"(?:https?:|wss?:)?//[\w.-]+\.\w+[^\s\"'`)]*", re.sub(r"^//# .*$", "", path.read_text(), flags=re.M)
    )

    assert [address for address in found if not address.startswith(NAMESPACES)] == []


@pytest.mark.parametrize("path", list_files(".js"), ids=lambda path: path.name)
def test_every_module_has_a_comment_and_imports_only_local_files(path: Path) -> None:
    text = path.read_text()

    assert text.startswith("// ")
    for target in re.findall(r'(?:from|import) "([^"]+)"', text):
        assert target.startswith(("./", "../vendor/")), target
        assert (path.parent / target).is_file(), target


def test_markup_is_parsed_in_one_place_only() -> None:
    makers = [
        path.name
        for path in list_files(".js")
        if re.search(r"innerHTML|insertAdjacent|\bwrite\(|__html", path.read_text())
    ]

    assert makers == ["html.js"]


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (STATIC / "index.html").read_text()

    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []
    assert "<style" not in page
    assert re.findall(r"\s(?:style|on\w+)=", page) == []


def test_the_page_identifies_tool_calls_by_the_same_arguments_as_the_library() -> None:
    script = (STATIC / "js" / "conversation.js").read_text()
    found = re.search(r"const CALL_SUBJECTS = (\[.*?\]);", script)

    assert found
    assert tuple(json.loads(found[1])) == CALL_SUBJECTS
