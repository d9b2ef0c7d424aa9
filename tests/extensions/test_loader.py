"""Finding, loading, failing and reloading extensions."""

from __future__ import annotations

import asyncio
import importlib.util
import py_compile
import sys
from pathlib import Path

import pytest

from sessiontree.errors import NotFound
from sessiontree.hooks.events import SessionShutdown, SessionStart
from tests.extensions.conftest import Load, write
from tests.slash_commands.conftest import run

HELLO = """
def setup(api):
    @api.register_command("hello")
    def hello(args, ctx):
        "Greet."
        return f"Say hello to {args}"
"""


async def test_files_and_folders_in_the_home_are_extensions(load: Load, user: Path) -> None:
    write(user / "extensions" / "hello.py", HELLO)
    write(user / "extensions" / "large" / "__init__.py", "from .inside import WORD\ndef setup(api): api.word = WORD\n")
    write(user / "extensions" / "large" / "inside.py", "WORD = 'yes'\n")
    write(user / "extensions" / "_helper.py", "raise AssertionError\n")
    write(user / "extensions" / "notes.txt", "no Python")

    loaded = await load()

    assert loaded.names == ["hello", "large"]
    assert not loaded.notices
    assert loaded.extensions.loaded[1].api.word == "yes"


async def test_an_export_accepts_a_file_name(load: Load, tmp_path: Path) -> None:
    file = write(tmp_path / "hello.py", HELLO)

    loaded = await load("Hello, Ada.", files=(file,))
    done = await loaded.controller.submit("/hello Ada")

    assert done.outcome is not None
    assert done.outcome.text == "Hello, Ada."
    assert loaded.controller.model.requests[0].messages[0]["content"] == "Say hello to Ada"
    with pytest.raises(NotFound, match=r"extension '.*none\.py' not found"):
        await load(files=(tmp_path / "none.py",))


async def test_an_installed_package_has_extensions_as_entry_points(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "site" / "greeting.py", HELLO)
    info = tmp_path / "site" / "greeting-1.0.dist-info"
    write(info / "METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    write(info / "entry_points.txt", "[sessiontree.extensions]\nmodule = greeting\nfunction = greeting:setup\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    loaded = await load()

    assert "module" in loaded.names
    assert any("function is not loaded" in notice and "/hello already" in notice for notice in loaded.notices)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def setup(api):\n    api.on('turn_end', print)\n    1 / 0\n", "ZeroDivisionError"),
        ("def setup(api) nonsense\n", "SyntaxError"),
        ("import sys\nsys.exit(1)\n", "SystemExit"),
        ("x = 1\n", "no function `setup`"),
        ("async def setup(api):\n    api.on('nonsense', print)\n", "event 'nonsense' not found"),
    ],
)
async def test_a_failing_extension_is_reported_and_the_others_load(
    load: Load, user: Path, text: str, reason: str
) -> None:
    write(user / "extensions" / "bad.py", text)
    write(user / "extensions" / "hello.py", HELLO)
    before = set(sys.modules)

    loaded = await load("Fine.")

    assert loaded.names == ["hello"]
    (notice,) = loaded.notices
    assert "extension bad" in notice
    assert reason in notice
    assert not [name for name in set(sys.modules) - before if "bad" in name]
    done = await loaded.controller.submit("go on")
    assert done.outcome is not None
    assert done.outcome.ok


async def test_handlers_of_an_extension_carry_its_name(load: Load, user: Path) -> None:
    write(user / "extensions" / "fragile.py", "def setup(api):\n    api.on('agent_start', lambda event, ctx: 1 / 0)\n")

    loaded = await load("Fine.")
    await loaded.controller.submit("go on")

    assert loaded.notices == ["fragile failed with ZeroDivisionError: division by zero (at run_start)"]


async def test_only_one_extension_of_a_name_is_loaded(load: Load, user: Path, tmp_path: Path) -> None:
    write(user / "extensions" / "hello.py", HELLO)
    other = write(tmp_path / "hello.py", HELLO)

    loaded = await load(files=(other,))

    assert loaded.names == ["hello"]
    assert any("has the same name" in notice for notice in loaded.notices)


async def test_reload_removes_old_registrations_and_loads_new_ones(load: Load, user: Path) -> None:
    file = write(
        user / "extensions" / "count.py",
        "def setup(api):\n    api.on('run_start', lambda event, ctx: api.append_entry('count', 1))\n"
        "    api.register_command('old', lambda args, ctx: None)\n",
    )
    loaded = await load("One.", "Two.")
    await loaded.controller.submit("one")
    old = loaded.extensions.loaded[0].api

    write(file, file.read_text().replace("'count', 1", "'count', 2").replace("'old'", "'fresh'"))
    loaded.events.clear()
    assert await run(loaded.controller, "/reload") == "Loaded: count"
    await loaded.controller.submit("two")

    kept = [entry.body.data for entry in loaded.extensions.loaded[0].api.entries("count")]
    assert kept == [1, 2]
    assert [event for event in loaded.events if isinstance(event, SessionShutdown | SessionStart)] == [
        SessionShutdown(reason="reload"),
        SessionStart(reason="reload"),
    ]
    assert await run(loaded.controller, "/fresh") == ""
    with pytest.raises(NotFound):
        await run(loaded.controller, "/old")
    with pytest.raises(Exception, match="extension count: the extension was unloaded"):
        old.append_entry("count", 3)


async def test_a_changed_file_is_reloaded(load: Load, user: Path) -> None:
    file = write(user / "extensions" / "hello.py", HELLO)
    loaded = await load()
    watching = asyncio.create_task(loaded.extensions.watch())
    try:
        async with asyncio.timeout(60):
            while not any(command.name == "goodbye" for command in loaded.controller.commands):
                write(file, HELLO.replace('"hello"', '"goodbye"'))
                await asyncio.sleep(0.5)
    finally:
        watching.cancel()

    assert loaded.names == ["hello"]


@pytest.mark.parametrize("where", ["found", "named"])
async def test_compiled_files_of_an_extension_are_never_run(load: Load, user: Path, tmp_path: Path, where: str) -> None:
    package = (user / "extensions" if where == "found" else tmp_path) / "pack"
    write(package / "__init__.py", "from . import inside\ndef setup(api): api.word = inside.WORD\n")
    inside = write(package / "inside.py", "WORD = 'evil'\n")
    # A cache file marked as unchecked: Python's own import would run it.
    py_compile.compile(str(inside), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    assert Path(importlib.util.cache_from_source(str(inside))).exists()
    write(inside, "WORD = 'good'\n")

    loaded = await load(files=(package,) if where == "named" else ())

    assert loaded.extensions.loaded[0].api.word == "good"


# Prompt files


async def test_prompt_files_are_commands_and_clashes_are_reported(load: Load, user: Path) -> None:
    write(user / "commands" / "review.md", "---\ndescription: Review a file\n---\nReview $1.\n")
    write(user / "commands" / "git" / "log.md", "Tell what is new.\n")
    write(user / "commands" / "tree.md", "Draw a tree.\n")
    write(user / "commands" / "empty.md", "---\ndescription: nothing\n---\n")

    loaded = await load("It is fine.")
    await loaded.controller.submit("/review app.py")

    assert loaded.controller.model.requests[0].messages[0]["content"] == "Review app.py."
    assert loaded.controller.commands.find("git:log").help == "Tell what is new."
    tree, empty = sorted(loaded.notices, reverse=True)
    assert tree.endswith("tree.md: the command /tree already exists, from sessiontree")
    assert empty.endswith("empty.md: the prompt is empty")


async def test_reload_reads_prompt_files_again(load: Load, user: Path) -> None:
    file = write(user / "commands" / "old.md", "Old.\n")
    loaded = await load()
    file.unlink()
    write(user / "commands" / "fresh.md", "New.\n")

    assert await run(loaded.controller, "/reload") == "Loaded: /fresh"

    with pytest.raises(NotFound):
        loaded.controller.commands.find("old")
