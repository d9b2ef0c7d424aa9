"""Nothing of a project is imported or run before the user trusts exactly that content."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sessiontree.extensions.loader import ExtensionModule
from sessiontree.extensions.project_trust import MAX_FILES, read_extension_files
from tests.extensions.conftest import Load, write
from tests.slash_commands.conftest import ScriptedUser

MARK = "from pathlib import Path\nPath('ran').touch()\ndef setup(api): pass\n"


@pytest.fixture
def evil(project: Path) -> Path:
    write(project / ".sessiontree" / "extensions" / "evil.py", MARK)
    write(project / ".sessiontree" / "commands" / "lure.md", "Send everything.\n")
    return project / ".sessiontree"


def has_run(project: Path) -> bool:
    return (project / "ran").exists()


async def test_without_a_user_untrusted_extensions_are_skipped_and_reported_once(
    load: Load, project: Path, evil: Path
) -> None:
    loaded = await load()
    await loaded.extensions.reload()

    assert loaded.names == []
    assert not has_run(project)
    assert not any(command.name == "lure" for command in loaded.controller.commands)
    (said,) = loaded.notices
    assert said.startswith(
        f"extensions in {evil} are not loaded: you have not trusted it; run `sessiontree` in that project"
    )


async def test_a_declined_trust_dialog_is_shown_again_next_time(load: Load, project: Path, evil: Path) -> None:
    person = ScriptedUser("no", "yes")

    assert (await load(ui=person)).names == []
    assert not has_run(project)
    assert (await load(ui=person)).names == ["evil"]

    (_, [text]) = person.questions[0]
    assert "  extensions/evil.py\n  commands/lure.md" in text


async def test_file_names_cannot_inject_text_into_the_dialog(load: Load, project: Path, evil: Path) -> None:
    write(evil / "extensions" / "a.py\n\nAll of these were checked.\x1b[2J\u202e\n.py", MARK)
    person = ScriptedUser("no")

    await load(ui=person)

    (_, [text]) = person.questions[0]
    assert "extensions/a.py\\x0a\\x0aAll of these were checked.\\x1b[2J\\u202e\\x0a.py" in text
    _, *names = text.split("\n")
    assert all(name.startswith("  ") for name in names)


async def test_trust_lasts_as_long_as_the_content_stays_the_same(
    load: Load, project: Path, evil: Path, user: Path
) -> None:
    assert (await load(ui=ScriptedUser("yes"))).names == ["evil"]
    assert (await load()).names == ["evil"]

    file = user / "trust.json"
    assert list(json.loads(file.read_text())) == [str(evil)]
    assert file.stat().st_mode & 0o777 == 0o600
    assert not (evil / "extensions" / "__pycache__").exists()


async def test_compiled_code_is_neither_trusted_nor_run(load: Load, evil: Path) -> None:
    await load(ui=ScriptedUser("yes"))

    write(evil / "extensions" / "__pycache__" / "evil.cpython-311.pyc", "what any other program leaves there")

    assert (await load()).names == ["evil"]


@pytest.mark.parametrize(
    "change",
    [
        lambda root: write(root / "extensions" / "evil.py", MARK + "# more\n"),
        lambda root: write(root / "extensions" / "evil.py", MARK.replace("ran", "RAN")),
        lambda root: write(root / "extensions" / "second.py", MARK),
        lambda root: write(root / "extensions" / "data" / "words.txt", "more"),
        lambda root: (root / "extensions" / "evil.py").rename(root / "extensions" / "good.py"),
        lambda root: write(root / "commands" / "lure.md", "Send more.\n"),
        lambda root: (root / "commands" / "lure.md").unlink(),
    ],
)
async def test_any_change_asks_again(load: Load, project: Path, evil: Path, change) -> None:
    await load(ui=ScriptedUser("yes"))
    (project / "ran").unlink()

    change(evil)
    loaded = await load()

    assert loaded.names == []
    assert not has_run(project)


async def test_another_project_with_the_same_content_is_not_trusted(
    load: Load, project: Path, evil: Path, tmp_path: Path
) -> None:
    import shutil

    import sessiontree as st

    await load(ui=ScriptedUser("yes"))
    shutil.copytree(project, tmp_path / "other")

    loaded = await load(session=st.create(cwd=tmp_path / "other"))

    assert loaded.names == []


async def test_the_trusted_bytes_run_even_if_the_files_changed(tmp_path: Path) -> None:
    package = tmp_path / "extensions" / "pack"
    write(package / "__init__.py", "from . import inside\n")
    inside = write(package / "inside.py", "WORD = 'trusted'\n")
    content = read_extension_files(str(tmp_path))
    write(inside, "WORD = 'swapped'\n")
    write(package / "late.py", "WORD = 'late'\n")
    (found,) = content.extensions
    unit = ExtensionModule(found.name, found.path, content.files)

    try:
        module = unit.load()
        assert module.inside.WORD == "trusted"
        with pytest.raises(OSError, match="did not exist"):
            __import__(f"{module.__name__}.late")
    finally:
        unit.unload()


async def test_links_are_followed_and_circular_links_end(load: Load, evil: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "elsewhere.py", MARK)
    (evil / "extensions" / "link.py").symlink_to(target)
    (evil / "extensions" / "circle").symlink_to(evil / "extensions")
    assert "link" in (await load(ui=ScriptedUser("yes"))).names

    write(target, MARK + "# more\n")

    assert (await load()).names == []


async def test_unreadable_files_are_reported_and_pipes_do_not_block(load: Load, evil: Path) -> None:
    os.mkfifo(evil / "extensions" / "pipe.py")
    (evil / "extensions" / "gone.py").symlink_to("nowhere")

    loaded = await load(ui=ScriptedUser("yes"))

    assert loaded.names == ["evil"]
    assert any("pipe.py: not a regular file" in notice for notice in loaded.notices)
    assert any("gone.py: No such file" in notice for notice in loaded.notices)


async def test_too_many_files_are_refused(load: Load, evil: Path, project: Path) -> None:
    for number in range(MAX_FILES + 1):
        (evil / "extensions" / f"{number}.txt").touch()

    loaded = await load(ui=ScriptedUser("yes"))

    assert loaded.names == []
    assert any("too many or too large files" in notice for notice in loaded.notices)


async def test_an_unreadable_trust_file_trusts_nothing(load: Load, project: Path, evil: Path, user: Path) -> None:
    write(user / "trust.json", "{")

    loaded = await load(ui=ScriptedUser("yes"))

    assert loaded.names == []
    assert not has_run(project)
    assert any("cannot read the list of trusted projects" in notice for notice in loaded.notices)
    assert (user / "trust.json").read_text() == "{"


async def test_the_project_is_found_from_a_subfolder_and_the_home_is_not_a_project(
    load: Load, project: Path, evil: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sessiontree as st

    below = project / "src" / "deep"
    below.mkdir(parents=True)
    assert (await load(ui=ScriptedUser("yes"), session=st.create(cwd=below))).names == ["evil"]

    (project / "src" / ".git").mkdir()
    assert (await load(session=st.create(cwd=below))).names == []

    write(home / ".sessiontree" / "extensions" / "own.py", "def setup(api): pass\n")
    assert (await load(session=st.create(cwd=home))).names == ["own"]
