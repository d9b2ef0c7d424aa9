"""The files dialog: moves in the tree offer to restore files, with a preview."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events

from sessiontree.config import Config, SummarySettings
from sessiontree.core.messages import ToolCall

from .conftest import Driver, Running

PLAIN = Config(summary=SummarySettings(skip_prompt=True))


def write(id: str, command: str) -> list[ToolCall]:
    return [ToolCall(id, "bash", {"command": command})]


ANSWERS = (
    write("c1", "echo one > poem; echo keep > notes"),
    "First done.",
    write("c2", "echo two > poem; echo two > notes; echo new > added"),
    "Second done.",
)


async def run_two_turns(app: Driver) -> None:
    await app.submit_and_wait("first prompt")
    await app.submit_and_wait("second prompt")
    await app.wait_for_text("Second done.")


async def open_dialog(app: Driver) -> str:
    """Choose the second prompt in the tree and return the screen with the dialog."""
    await app.submit("/tree")
    await app.wait_for_text("type to search")
    await app.press(*"second prompt")
    await app.wait_for_text("1/1")
    await app.press("enter")
    return await app.wait_for_text("What should move?")


def run_app(running: Running, **options: object):
    return running(*ANSWERS, settings=PLAIN, permission_mode="allow-all", size=(80, 24), **options)


async def test_the_tree_shows_the_files_and_enter_moves_the_conversation_alone(running: Running, project: Path) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        screen = await open_dialog(app)
        for text in ("Conversation and files", "Files only", "2 files to change, 1 file to delete", "change  poem"):
            assert text in screen
        assert "Esc to cancel" in screen.splitlines()[-1]

        await app.press("enter")
        await app.wait_until(lambda: app.editor.text == "second prompt")

    assert (project / "poem").read_text() == "two\n"


async def test_conversation_and_files_restores_both(running: Running, project: Path) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        await open_dialog(app)
        await app.press("down", "enter")
        await app.wait_for_text("Restored 2 files, deleted 1 file.")
        assert app.editor.text == "second prompt"

    assert (project / "poem").read_text() == "one\n"
    assert not (project / "added").exists()


async def test_keys_in_quick_succession_are_handled_in_order(running: Running, project: Path) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        await open_dialog(app)
        for key in ("down", "enter"):
            app.app.post_message(events.Key(key, None))
        await app.wait_for_text("Restored 2 files, deleted 1 file.")


async def test_files_only_leaves_the_conversation(running: Running, project: Path) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        leaf = app.app.controller.branch.leaf
        await open_dialog(app)
        await app.press("down", "down", "enter")
        await app.wait_for_text("Restored 2 files, deleted 1 file.")
        assert app.app.controller.branch.leaf == leaf

    assert (project / "poem").read_text() == "one\n"


async def test_escape_returns_to_the_tree_and_changes_nothing(running: Running, project: Path) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        leaf = app.app.controller.branch.leaf
        await open_dialog(app)
        await app.press("escape")
        await app.wait_for_text("search: second prompt")
        assert app.app.controller.branch.leaf == leaf

    assert (project / "poem").read_text() == "two\n"


@pytest.mark.parametrize(("keys", "text"), [((), "mine\n"), (("tab", "space"), "keep\n")])
async def test_a_conflict_is_kept_unless_it_is_marked(
    running: Running, project: Path, keys: tuple[str, ...], text: str
) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        (project / "notes").write_text("mine\n")
        screen = await open_dialog(app)
        assert "[ ] keep    notes (changed on disk since)" in screen
        await app.press("down", *keys)
        if keys:
            await app.wait_for_text("[x] restore notes", "2 files to change, 1 file to delete\n")
        await app.press("enter")
        await app.wait_for_text("Restored ")

    assert (project / "notes").read_text() == text
    assert (project / "poem").read_text() == "one\n"


async def test_d_shows_the_diff_of_the_files_on_disk(running: Running, project: Path) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        (project / "notes").write_text("mine\n")
        await open_dialog(app)
        await app.press("d")
        screen = await app.wait_for_text("diff --git a/added b/added", "deleted file mode")
        assert "-new" in screen
        await app.press("end")
        await app.wait_for_text("-mine", "+keep", "-two", "+one")
        await app.press("escape")
        await app.wait_for_text("Files only")


async def test_nothing_is_asked_if_no_file_would_change(running: Running, project: Path) -> None:
    async with running("Hello.", "Bye.", settings=PLAIN, permission_mode="allow-all") as app:
        await app.submit_and_wait("first prompt")
        await app.submit_and_wait("second prompt")
        await app.submit("/tree")
        await app.wait_for_text("type to search")
        await app.press(*"second prompt")
        await app.wait_for_text("1/1")
        await app.press("enter")
        await app.wait_until(lambda: app.editor.text == "second prompt")
        assert "What should move?" not in app.screen


async def test_undo_and_switch_offer_the_files_too(running: Running, project: Path) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        await open_dialog(app)
        await app.press("down", "enter")
        await app.wait_for_text("Restored 2 files")
        app.editor.text = ""

        await app.submit("/undo")
        await app.wait_for_text("What should move?", "1 file to add")
        await app.press("down", "enter")
        await app.wait_for_text("Undid ", "Restored 3 files.")
        assert (project / "poem").read_text() == "two\n"

        second = next(entry.id for entry in app.app.controller.session.tree if entry.text == "second prompt")
        await app.submit(f"/branch-here other {second}")
        await app.wait_until(lambda: app.app.controller.branch.name == "other")
        app.editor.text = ""
        await app.submit("/tree HEAD --files-only")
        await app.wait_for_text("Restored 2 files, deleted 1 file.")
        await app.submit("/switch main")
        await app.wait_for_text("What should move?", "1 file to add")
        await app.press("down", "enter")
        await app.wait_for_text("On branch main", "Restored 3 files.")

    assert (project / "poem").read_text() == "two\n"


async def test_pop_offers_the_files_too(running: Running, project: Path) -> None:
    async with running(*ANSWERS, "A summary.", settings=PLAIN, permission_mode="allow-all") as app:
        await run_two_turns(app)
        second = next(entry.id for entry in app.app.controller.session.tree if entry.text == "second prompt")
        await app.submit(f"/pop {second}")
        await app.wait_for_text("What should move?")
        await app.press("down", "enter")
        await app.wait_for_text("Restored 2 files, deleted 1 file.")

    assert (project / "poem").read_text() == "one\n"


async def test_a_long_list_of_paths_and_conflicts_fits_a_small_terminal(running: Running, project: Path) -> None:
    many = write("c1", "for i in $(seq 40); do echo $i > file$i; done")
    async with running(many, "Done.", settings=PLAIN, permission_mode="allow-all", size=(80, 24)) as app:
        await app.submit_and_wait("write many files")
        for number in range(1, 8):
            (project / f"file{number}").write_text("mine\n")
        await app.submit("/tree root")
        screen = await app.wait_for_text("33 files to delete, 7 conflicts to keep")
        assert "What should move?" in screen
        assert "Esc to cancel" in screen.splitlines()[-1]
        await app.press("tab", "end")
        await app.wait_for_text("delete  file40")


async def test_a_conflict_with_a_folder_in_the_way_cannot_be_marked(running: Running, project: Path) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        (project / "notes").unlink()
        (project / "notes").mkdir()
        (project / "notes" / "own").write_text("mine\n")
        await open_dialog(app)
        await app.press("tab", "space")
        screen = await app.wait_for_text("Move away what is there first")
        assert "keep    notes (a folder is in the way)" in screen
        await app.press("d")
        await app.wait_for_text("notes: too large to show, or not a file")


async def test_rows_of_the_tree_show_how_many_files_a_call_changed(running: Running, project: Path) -> None:
    async with run_app(running) as app:
        await run_two_turns(app)
        await app.submit("/tree")
        screen = await app.wait_for_text("type to search", "second prompt", "· 3 files")
        rows = [line for line in screen.splitlines() if "files" in line and "·" in line and "echo" in line]
        assert [row.split("· ")[-1].strip() for row in rows] == ["2 files", "3 files"]
        assert "files" not in next(line for line in screen.splitlines() if "Second done." in line)
