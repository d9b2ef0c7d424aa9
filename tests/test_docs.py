"""Run every example of the documentation, and check that everything public is documented.

The blocks of a page run in order, in one empty folder with an empty home. A `python` block has an assertion, or is
followed by a `text` block with its output. A `console` block shows commands and their output. Each id in shown output
matches one id of the run. Times may differ, and `…` matches anything.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import sessiontree
from sessiontree import Session, errors
from sessiontree.cli.app import COMMAND_MODULES, app, run
from sessiontree.core.entries import Entry, Header, iter_entries
from sessiontree.format.codec import (
    HEAD_KEYS,
    WIRE,
    encode_body,
    find_unknown_fields,
    get_type,
    parse_body,
    write_entry,
)
from sessiontree.format.json_line import read_object, write_object
from sessiontree.format.session_reader import SessionReader

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md")])
HEADER = b'{"type":"session","version":3,"id":"s","timestamp":"2026-01-02T09:30:00.000Z","cwd":"/project"}'


class Block(NamedTuple):
    language: str
    text: str
    line: int
    heading: str
    follows: bool
    """Whether only blank lines separate this block from the one before."""


def read_blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    heading = ""
    fence: tuple[str, int] | None = None
    inside: list[str] = []
    follows = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            if fence is None:
                fence, inside = (line[3:].strip(), number), []
            else:
                found.append(Block(fence[0], "\n".join(inside), fence[1], heading, follows))
                fence, follows = None, True
        elif fence is not None:
            inside.append(line)
        elif line.strip():
            follows = False
            heading = line.lstrip("# ") if line.startswith("#") else heading
    assert fence is None, f"{page}: a block is not closed"
    return found


def split_sections(page: Path, level: str) -> dict[str, str]:
    """Return the text under each heading of a level, by heading."""
    parts = re.split(rf"^{level} (.+)$", page.read_text(), flags=re.MULTILINE)[1:]
    return {
        title: re.split(rf"^#{{1,{len(level)}}} ", text, maxsplit=1, flags=re.MULTILINE)[0]
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{16}\b|\b[0-9a-f]{8}\b"
TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{3}Z)?)?|\b1\d{12}\b|\b\d+\.\d+s\b"
FREE = re.compile(rf"({ID}|{TIME}|…)")


class Ids:
    """The id of the run that each shown id matches."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}

    def replace_ids(self, command: str) -> str:
        return re.sub(ID, lambda found: self._find_known(found[0]) or found[0], command)

    def _find_known(self, shown: str) -> str | None:
        if shown in self._real:
            return self._real[shown]
        longer = next((real for id, real in self._real.items() if id.startswith(shown)), None)
        return None if longer is None else longer[: len(shown)]

    def match(self, shown: str, real: str) -> bool:
        """Return whether `real` matches `shown`, and remember new ids."""
        groups: dict[str, str] = {}
        parts = [self._pattern(part, groups) for part in FREE.split(shown)]
        found = re.fullmatch("".join(parts), real, re.DOTALL)
        if found is None:
            return False
        for id, group in groups.items():
            alike = [known for known, real in self._real.items() if start_alike(real, found[group])]
            if not all(start_alike(known, id) for known in alike):
                return False
            self._real[id] = found[group]
        return True

    def _pattern(self, part: str, groups: dict[str, str]) -> str:
        if part == "…":
            return ".*?"
        if re.fullmatch(TIME, part):
            return r"\d+\.\d+s" if part.endswith("s") else re.sub(r"\d", r"\\d", part).replace(".", r"\.")
        if not re.fullmatch(ID, part):
            return re.escape(part)
        known = self._find_known(part)
        if known is not None:
            return re.escape(known)
        if part in groups:
            return f"(?P={groups[part]})"
        groups[part] = f"id{len(groups)}"
        start = next((real for id, real in self._real.items() if part.startswith(id)), "")
        return f"(?P<{groups[part]}>{start}{re.sub('[0-9a-f]', '[0-9a-f]', part[len(start) :])})"


def start_alike(first: str, second: str) -> bool:
    return first.startswith(second) or second.startswith(first)


def strip_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


class Command(NamedTuple):
    line: str
    shown: str


def parse_commands(block: Block) -> list[Command]:
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)$", block.text, flags=re.MULTILINE)
    assert not parts[0].strip(), f"line {block.line}: a console block must start with a command"
    return [
        Command(line.replace("\\\n", ""), strip_lines(shown.strip("\n")))
        for line, shown in zip(parts[1::2], parts[2::2], strict=True)
    ]


def run_line(line: str) -> str:
    """Run a command. Return its output, its errors and, if the line ends with `echo $?`, its exit code."""
    said, pipe, rest = line.partition(" | ")
    words = shlex.split(rest if pipe else said, comments=True)
    asks = words[-2:] == ["echo", "$?"]
    words = [word.removesuffix(";") for word in words[:-2]] if asks else words
    assert words[0] == "sessiontree", f"cannot run {line!r}"
    out, err = io.StringIO(), io.StringIO()
    stdin = sys.stdin
    try:
        if pipe:
            echo, *spoken = shlex.split(said)
            assert echo == "echo", f"cannot run {line!r}"
            sys.stdin = io.StringIO(" ".join(spoken) + "\n")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(words[1:])
    finally:
        sys.stdin = stdin
    return strip_lines(out.getvalue() + err.getvalue() + (f"{code}\n" if asks else ""))


def run_examples(page: Path, check: Callable[[Block, str, str, Ids], None]) -> None:
    """Run every example of a page. `check` gets the shown and the real output."""
    ids = Ids()
    names: dict[str, Any] = {"__name__": "__page__"}
    found = read_blocks(page)
    for block, after in zip(found, [*found[1:], None], strict=False):
        if block.language == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block.text, f"{page.name}:{block.line}", "exec"), names)
            if after is not None and after.language == "text" and after.follows:
                check(after, strip_lines(after.text), strip_lines(out.getvalue()), ids)
            else:
                assert "assert" in block.text, f"{page.name}:{block.line} has neither an assertion nor a shown result"
        elif block.language == "console":
            for command in parse_commands(block):
                check(block, command.shown, run_line(ids.replace_ids(command.line)), ids)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_example_does_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("NO_COLOR", "1")
    if page.name == "postgres.md":
        monkeypatch.setenv("SESSIONTREE_STORE", request.getfixturevalue("database"))

    def check(block: Block, shown: str, real: str, ids: Ids) -> None:
        assert ids.match(shown, real), f"{page.name}:{block.line} shows\n{shown}\nbut the output is\n{real}"

    run_examples(page, check)


def test_a_shown_id_matches_one_real_id() -> None:
    ids = Ids()

    assert ids.match("0123456789abcdef under 11111111", "aaaaaaaaaaaaaaaa under bbbbbbbb")
    assert ids.match("01234567 made 2026-01-01 10:00, … took 1.5s", "aaaaaaaa made 2031-12-31 23:59, it took 0.0s")
    assert not ids.match("01234567", "cccccccc")
    assert not ids.match("22222222", "aaaaaaaa"), "two shown ids of one real id"
    assert ids.replace_ids("show @ 01234567 11111111") == "show @ aaaaaaaa bbbbbbbb"


def test_shown_output_is_compared_exactly() -> None:
    assert not Ids().match("two words", "two  words")
    assert not Ids().match("a.b", "axb")


# The format


def format_examples() -> Iterator[tuple[Block, list[bytes]]]:
    for block in read_blocks(DOCS / "format.md"):
        if block.language in ("json", "jsonl"):
            yield block, [line.encode() for line in block.text.splitlines()]


def read_lines(lines: list[bytes]) -> tuple[SessionReader, list[Entry]]:
    """Read the example as a file. Lines without a header get one."""
    starts = read_object(lines[0])["type"] in ("session", "title")
    reader = SessionReader("example")
    entries = reader.feed(b"".join(line + b"\n" for line in (lines if starts else [HEADER, *lines])))
    return reader, list(iter_entries(entries))


def list_type_sections() -> dict[str, str]:
    return {
        name: text
        for title, text in split_sections(DOCS / "format.md", "###").items()
        for name in re.findall(r"`([a-z_]+)`", title)
    }


@pytest.mark.parametrize("example", list(format_examples()), ids=lambda example: f"line-{example[0].line}")
def test_every_example_of_the_format_is_read_without_a_fault(example: tuple[Block, list[bytes]]) -> None:
    block, lines = example

    reader, entries = read_lines(lines)

    assert not reader.problems, f"format.md:{block.line}"
    assert reader.header.id
    for entry in entries:
        body = entry.body
        wire = read_object(entry.raw)
        encoded = read_object(write_object(encode_body(body)))
        assert parse_body({"type": get_type(body), **encoded}) == body
        assert {**wire, **encoded} == {**encoded, **wire}, "a field is written differently from how it was read"


@pytest.mark.parametrize("type", WIRE)
def test_every_entry_type_has_a_section_with_all_its_fields_and_an_example(type: str) -> None:
    body_class, fields = WIRE[type]
    section = list_type_sections()[type]

    assert f"`{body_class.__name__}`" in section
    for field in fields.values():
        assert f"`{field.wire}`" in section, f"{type}: {field.wire} is not documented"
    examples = [lines for block, lines in format_examples() if f"`{type}`" in block.heading]
    assert examples
    for lines in examples:
        for entry in read_lines(lines)[1]:
            wire = read_object(entry.raw)
            assert isinstance(entry.body, body_class)
            again = write_entry(
                entry.body,
                id=entry.id,
                parent=entry.parent,
                timestamp=entry.timestamp,
                branch=wire.get("branch"),
                current=wire.get("current"),
                extra=find_unknown_fields(wire),
            )
            assert {key: value for key, value in read_object(again.raw).items() if key in wire} == wire


def test_the_format_page_documents_every_field_of_the_header() -> None:
    text = split_sections(DOCS / "format.md", "##")["The header"]
    reader, _ = read_lines(
        [line for block, lines in format_examples() if block.heading == "The header" for line in lines]
    )

    for name in ("version", "id", "timestamp", "cwd", "parentSession", "forkedFrom", "title"):
        assert f"`{name}`" in text
    assert all(getattr(reader.header, field) for field in Header.__struct_fields__)


@pytest.mark.parametrize("dialect", ["linear", "hooks", "uuid", "dash"])
def test_the_example_of_each_dialect_is_in_that_dialect(dialect: str) -> None:
    (lines,) = [lines for block, lines in format_examples() if f"`{dialect}`" in block.heading]

    reader, entries = read_lines(lines)

    assert reader.dialect == dialect
    assert reader.needs_rewrite
    assert len(entries) == len(lines) - 1
    migrated, again = read_lines(reader.read_all_lines())
    assert not migrated.needs_rewrite
    assert [(entry.id, entry.parent, entry.body) for entry in again] == [
        (entry.id, entry.parent, entry.body) for entry in entries
    ]


def test_the_keys_of_every_line_are_explained() -> None:
    text = split_sections(DOCS / "format.md", "##")["Every entry"]

    for key in HEAD_KEYS:
        assert f"`{key}`" in text


# Everything public is documented, and everything documented exists


def read_all_pages() -> str:
    return "\n".join(page.read_text() for page in PAGES)


PUBLIC_NAMES = sorted({*sessiontree.__all__, *sessiontree._NOT_STARRED})
NAMESPACES = {
    "sessiontree",
    "sessiontree.adapters.claude",
    "sessiontree.adapters.langgraph",
    "sessiontree.adapters.openai_agents",
    "sessiontree.adapters.pydantic_ai",
    "sessiontree.compat.dash",
    "sessiontree.compat.pi",
}
"""The modules that users import."""


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted((ROOT / "examples").rglob("*.py"))], ids=lambda page: str(page.relative_to(ROOT))
)
def test_no_page_imports_from_inside_the_library(page: Path) -> None:
    imported = re.findall(r"^ *(?:from|import) (sessiontree[\w.]*)", page.read_text(), re.MULTILINE)

    assert set(imported) <= NAMESPACES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_is_in_the_docs(name: str) -> None:
    assert re.search(rf"`[^`\n]*\b{re.escape(name)}\b[^`\n]*`", read_all_pages())


def test_every_public_name_has_a_row_that_shows_whether_it_is_async() -> None:
    section = split_sections(DOCS / "names.md", "##")["Every public name"]
    rows = dict(re.findall(r"^\| `st\.(\w+)` \| [^|\n]*\w.* \| (\w*) ?\|$", section, re.M))

    assert sorted(rows) == PUBLIC_NAMES
    assert {name for name, marked in rows.items() if marked} == {
        name for name in rows if inspect.iscoroutinefunction(getattr(sessiontree, name))
    }


def test_the_table_of_coroutines_is_complete() -> None:
    section = split_sections(DOCS / "names.md", "##")["What is async"]
    rows = dict(re.findall(r"^\| `st(?:\.(\w+))?` \| (.+) \|$", section, re.MULTILINE))

    for name in ("", *sessiontree.__all__):
        owner = getattr(sessiontree, name) if name else sessiontree
        if name and not inspect.isclass(owner):
            continue
        found = [item for item in dir(owner) if item[0] != "_" and inspect.iscoroutinefunction(getattr(owner, item))]
        assert re.findall(r"`(\w+)`", rows.get(name, "")) == sorted(found), name or "st"


@pytest.mark.parametrize("name", COMMAND_MODULES)
def test_every_command_has_a_section_with_all_its_options_and_an_example(name: str) -> None:
    section = split_sections(DOCS / "cli.md", "###")[name]
    command = app.get_command(click.Context(app), name)

    assert command is not None
    assert f"$ sessiontree {name}" in section or name == "demo"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option not in ("--json", "--help"):
                    assert f"`{option}" in section, f"{name}: {option} is not documented"
    if any("--json" in parameter.opts for parameter in command.params):
        assert "--json" in section


def test_every_error_is_on_the_page_of_errors() -> None:
    text = (DOCS / "errors.md").read_text()

    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception):
            assert f"`{name}`" in text


def test_every_kind_of_problem_is_in_the_table_of_the_tree_page() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    kinds = set(re.findall(r'(?:_fault|_note|_report|_found)\(\s*"([a-z_]+)"|\bkind="([a-z_]+)",\s*severity', source))
    table = (DOCS / "tree.md").read_text()

    assert len(kinds) > 8
    for kind in {name for pair in kinds for name in pair if name}:
        assert f"| `{kind}` |" in table


def test_every_attribute_that_the_docs_name_exists() -> None:
    session = sessiontree.memory()
    branch = session.head
    known: dict[str, Any] = {
        "st": sessiontree,
        "session": session,
        "branch": branch,
        "tree": session.tree,
        "context": branch.context(),
    }

    for owner, attribute in re.findall(r"`(st|session|branch|tree|context)\.(?!py\b|md\b)(\w+)", read_all_pages()):
        assert hasattr(known[owner], attribute), f"{owner}.{attribute}"


def test_every_method_of_a_session_is_in_the_docs() -> None:
    text = read_all_pages()

    for name in vars(Session):
        if not name.startswith("_"):
            assert re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor and there.suffix == ".md":
            titles = re.findall(r"^#+ (.+)$", there.read_text(), flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in slugs, f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    names = re.findall(r"`((?:tests/)?[\w/]*test_\w+\.py)`", page.read_text())
    folders = [ROOT / "tests" / name for name in ("reliability", "server", "store", "session")]
    missing = [
        name
        for name in names
        if not (ROOT / name).exists() and not ("/" not in name and any((folder / name).exists() for folder in folders))
    ]
    assert missing == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_opens_with_one_sentence(page: Path) -> None:
    title, blank, sentence, after = page.read_text().split("\n", 3)

    assert title.startswith("# ")
    assert blank == ""
    assert sentence.endswith(".")
    assert after.startswith("\n")


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


@pytest.mark.parametrize("name", ["tour-dark.svg", "tour-light.svg"])
def test_the_moving_picture_is_small_and_loads_nothing(name: str) -> None:
    picture = DOCS / "images" / name
    text = picture.read_text()

    assert picture.stat().st_size < 1_000_000
    assert "@keyframes" in text
    assert re.findall(r"(?:url\(|href=)[\"']?(?!#)\S*|<script|<foreignObject", text) == []
    assert set(re.findall(r"https?://[^\s\"<]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_readme_documents_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = (ROOT / "README.md").read_text()

    assert [name for name in extras if f"`{name}`" not in text and f"sessiontree[{name}]" not in text] == []
