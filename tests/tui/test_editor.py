"""The editor: history, completion, long pastes, lines, and undo."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events
from textual._xterm_parser import XTermParser

import sessiontree as st
from sessiontree.model.scripted import Delay
from sessiontree.tui.services.input import DraftFile, EditorDraft, find_mentions, rank_paths
from sessiontree.tui.services.terminal import send_to_clipboard

from .conftest import Running


@pytest.mark.parametrize("keys", [("ctrl+j",), ("shift+enter",), ("\\", "enter")])
async def test_several_keys_insert_a_line_break(running: Running, keys: tuple[str, ...]) -> None:
    async with running() as app:
        await app.type("one")
        await app.press(*keys)
        await app.type("two")

        assert app.editor.text == "one\ntwo"


@pytest.mark.parametrize("text", ["👩\u200d👧", "می\u200cخواهم", "日本\u3000語", "10\u00a0km"])
async def test_joiners_and_special_blanks_can_be_typed(running: Running, text: str) -> None:
    async with running() as app:
        for event in XTermParser().feed(text):  # what a terminal sends; Pilot drops such characters by itself
            app.app.post_message(event)
        await app.wait_until(lambda: len(app.editor.text) == len(text))

        assert app.editor.text == text


async def test_up_and_down_browse_the_history(running: Running) -> None:
    async with running("a", "b") as app:
        await app.submit_and_wait("first")
        await app.submit_and_wait("second")
        await app.type("typed")

        await app.press("up")
        assert app.editor.text == "second"
        await app.press("up")
        assert app.editor.text == "first"
        await app.press("up")
        assert app.editor.text == "first"
        await app.press("down", "down")
        assert app.editor.text == "typed"


async def test_up_moves_within_a_multiline_text_first(running: Running) -> None:
    async with running("a") as app:
        await app.submit_and_wait("said")
        await app.type("one\ntwo")
        await app.press("up")
        assert app.editor.cursor_location[0] == 0
        assert app.editor.text == "one\ntwo"
        await app.press("up")
        assert app.editor.text == "said"


async def test_the_history_is_shared_between_sessions(running: Running, home: Path) -> None:
    async with running("a") as app:
        await app.submit_and_wait("remembered")
    async with running() as app:
        await app.press("up")
        assert app.editor.text == "remembered"
    assert (home / ".sessiontree" / "history.jsonl").stat().st_mode & 0o777 == 0o600


async def test_commands_are_suggested_with_their_help(running: Running) -> None:
    async with running() as app:
        await app.press("/", "t", "h")
        await app.wait_for_text("› /thinking", "change the thinking level")
        await app.press("tab")
        assert app.editor.text == "/thinking "
        await app.wait_for_text("  off", "  minimal")
        await app.press("down", "down")
        await app.wait_for_text("› minimal")
        await app.press("tab")
        assert app.editor.text == "/thinking minimal "


async def test_enter_runs_the_selected_command(running: Running) -> None:
    async with running() as app:
        await app.press("/", "s", "e", "s", "s")
        assert await app.wait_for_text("› /session")
        await app.press("enter")
        assert await app.wait_for_text("entries", "0 messages")


async def test_enter_runs_the_typed_command_not_a_longer_one(running: Running) -> None:
    async with running("One.") as app:
        await app.submit_and_wait("Question")
        session = app.app.controller.session
        await app.press(*"/branch")
        await app.wait_for_text("/branch-here")
        await app.press("enter")
        await app.wait_for_text("Fork from which entry?")

        assert list(session.heads.heads) == ["main"]


async def test_tab_keeps_a_fully_typed_command(running: Running) -> None:
    async with running() as app:
        await app.press(*"/branch")
        await app.wait_for_text("/branch-here", "/branches")
        await app.press("tab")
        assert app.editor.text == "/branch "


async def test_enter_runs_the_command_selected_with_arrow_keys(running: Running) -> None:
    async with running() as app:
        await app.press(*"/branch")
        await app.wait_for_text("  /branch-here", "  /branches")
        await app.press("up")
        await app.wait_for_text("› /branches")
        await app.press("enter")
        await app.wait_for_text("Switch to branch")


async def test_enter_uses_the_typed_branch_not_a_longer_one(running: Running) -> None:
    async with running("One.") as app:
        await app.submit_and_wait("Question")
        controller = app.app.controller
        for name in ("approach-2", "approach"):
            controller.session.create_branch(name, at=controller.session.tree[controller.branch.leaf], current=False)
        await app.press(*"/switch", "space", *"approach")
        await app.wait_for_text("  approach-2")
        await app.press("enter")
        await app.wait_until(lambda: controller.branch.name != "main")

        assert controller.branch.name == "approach"


async def test_enter_uses_an_argument_as_typed(running: Running) -> None:
    async with running("One.") as app:
        await app.submit_and_wait("Question")
        controller = app.app.controller
        controller.session.label(controller.session.tree[controller.branch.leaf], "working")
        await app.press(*"/label", "space", *"work")
        await app.wait_for_text("  working")
        await app.press("enter")
        await app.wait_for_text("Labeled")


async def test_enter_sends_a_fully_typed_file(running: Running, project: Path) -> None:
    for name in ("a.py", "A.py"):
        (project / name).write_text("")
    async with running("Read.") as app:
        await app.press(*"see", "space", *"@a.py")
        await app.wait_for_text("@A.py")
        await app.press("enter")
        await app.wait_until(lambda: app.model.requests)
        await app.wait_until_idle()

        assert app.model.requests[0].messages[-1]["content"] == "see @a.py"


async def test_enter_ignores_stale_suggestions(running: Running) -> None:
    async with running("One.") as app:
        await app.submit_and_wait("Question")
        await app.press(*"/branc")
        await app.wait_for_text("› /branch")
        app.editor.insert("hes")
        app.editor.action_submit()
        await app.wait_for_text("Switch to branch")


async def test_escape_closes_only_the_popup(running: Running) -> None:
    async with running() as app:
        await app.press("/", "t")
        await app.wait_for_text("› /")
        await app.press("escape")
        assert not app.editor.is_completing
        assert app.editor.text == "/t"


async def test_files_are_completed_after_an_at_sign(running: Running, project: Path) -> None:
    (project / "src").mkdir()
    for name in ("src/server.py", "src/main.py", "with blank.txt"):
        (project / name).write_text("")
    async with running() as app:
        await app.type("look at @serv")
        await app.wait_for_text("› @src/server.py")
        await app.press("enter")
        assert app.editor.text == "look at @src/server.py "
        await app.type("and @blank")
        await app.wait_for_text('› @"with blank.txt"')
        await app.press("tab")
        assert app.editor.text == 'look at @src/server.py and @"with blank.txt" '


async def test_a_long_paste_is_shown_as_a_placeholder_and_sent_in_full(running: Running) -> None:
    pasted = "\r\n".join(f"line {number}" for number in range(40))
    async with running("Long.") as app:
        await app.type("See: ")
        app.editor.post_message(events.Paste(pasted))
        await app.wait_for_text("[paste 1: 40 lines, 309 characters]")
        draft = DraftFile(app.app.controller.session)
        await app.wait_until(lambda: "line 39" in str(draft.read().pastes))
        await app.press("enter")
        await app.wait_until(lambda: app.model.requests)
        await app.wait_until_idle()

        assert app.model.requests[0].messages[-1]["content"] == f"See: {pasted}".replace("\r\n", "\n")


PASTED = "\n".join(f"line {number}" for number in range(40))
MARK = "[paste 1: 40 lines, 309 characters]"


@pytest.mark.parametrize(
    "keys", [("backspace",), ("ctrl+w",), ("left", "delete"), ("left", "alt+delete"), ("shift+left", "x", "backspace")]
)
async def test_a_placeholder_is_deleted_as_a_whole(running: Running, keys: tuple[str, ...]) -> None:
    async with running() as app:
        await app.type("See: ")
        app.editor.post_message(events.Paste(PASTED))
        await app.wait_until(lambda: app.editor.text == f"See: {MARK}")
        await app.press(*keys)

        assert app.editor.text == "See: "


async def test_the_cursor_is_never_inside_a_placeholder(running: Running) -> None:
    async with running() as app:
        await app.type("See ")
        app.editor.post_message(events.Paste(PASTED))
        await app.wait_until(lambda: MARK in app.editor.text)
        await app.type(" now")
        outside = {*range(5), *range(4 + len(MARK), len(app.editor.text) + 1)}
        for keys in (["home"], ["right"] * 7, ["ctrl+right"] * 3, ["ctrl+left"] * 3, ["end"], ["left"] * 7):
            for key in keys:
                await app.press(key)
                assert app.editor.cursor_location[1] in outside
        for x in range(len(app.editor.text)):
            region = app.editor.content_region
            await app.pilot.click(offset=(region.x + x, region.y))
            assert app.editor.cursor_location[1] in outside


async def test_a_selection_contains_whole_placeholders(running: Running) -> None:
    async with running() as app:
        app.editor.post_message(events.Paste(PASTED))
        await app.wait_until(lambda: app.editor.text == MARK)
        region = app.editor.content_region
        await app.pilot.mouse_down(offset=(region.x, region.y))
        await app.pilot.hover(offset=(region.x + 5, region.y))
        await app.pilot.mouse_up(offset=(region.x + 5, region.y))
        assert app.editor.selected_text == MARK
        await app.press("x")
        assert app.editor.text == "x"


async def test_pastes_of_the_same_size_have_different_placeholders(running: Running) -> None:
    other = PASTED.replace("line", "LINE")
    async with running() as app:
        app.editor.restore_draft(
            EditorDraft(text="[paste 2: 40 lines, 309 characters]", pastes={MARK.replace("1", "2", 1): PASTED})
        )
        await app.press("end")
        app.editor.post_message(events.Paste(other))
        await app.wait_until(lambda: app.editor.text.count("[paste") == 2)

        assert app.editor.full_text == PASTED + other


async def test_a_paste_containing_a_placeholder_is_sent_unchanged(running: Running) -> None:
    named = "[paste 2: 40 lines, 309 characters]\n" * 20
    async with running() as app:
        app.editor.post_message(events.Paste(named))
        app.editor.post_message(events.Paste(PASTED))
        await app.wait_until(lambda: app.editor.text.count("[paste") == 2)

        assert app.editor.full_text == named + PASTED


async def test_ctrl_c_copies_the_selection_and_then_clears_the_editor(running: Running) -> None:
    async with running() as app:
        await app.type("some words")
        await app.press("ctrl+shift+left", "ctrl+c")
        await app.wait_for_text("Sent 5 characters to the terminal's clipboard")
        assert app.app.clipboard == "words"
        await app.press("ctrl+c")
        assert app.editor.text == ""


@pytest.mark.parametrize("first", ["!touch ran", "/name pasted"])
async def test_a_long_paste_is_always_a_prompt(running: Running, project: Path, first: str) -> None:
    pasted = "\n".join([first, *(f"!touch ran{number}" for number in range(20))])
    async with running(["It", Delay(30)], "Seen.") as app:
        app.editor.post_message(events.Paste(pasted))
        await app.wait_for_text("[paste 1: 21 lines")
        await app.press("enter")
        await app.wait_for_text("It")
        app.editor.post_message(events.Paste(pasted))
        await app.wait_until(lambda: app.editor.text.startswith("[paste 2"))
        await app.press("enter")
        await app.wait_for_text("⋯ ")
        await app.press("escape")
        await app.wait_until(lambda: app.editor.text.startswith("[paste 3: 21 lines"))  # also after it is restored
        await app.press("enter")
        await app.wait_until(lambda: len(app.model.requests) == 2)
        await app.wait_until_idle()

        assert app.model.requests[1].messages[-1]["content"] == pasted
        assert app.app.controller.session.name is None
        assert not list(project.iterdir())


@pytest.mark.parametrize("first", ["!touch ran", "/name pasted"])
async def test_a_restored_paste_is_still_a_prompt(running: Running, project: Path, first: str) -> None:
    pasted = "\n".join([first, *(f"!touch ran{number}" for number in range(20))])
    async with running("Seen.", "Again.", "Anew.") as app:

        async def submit_again() -> None:
            asked = len(app.model.requests)
            await app.wait_until(lambda: app.editor.text.startswith("[paste"))
            await app.press("enter")
            await app.wait_until(lambda: len(app.model.requests) > asked)
            await app.wait_until_idle()
            assert app.model.requests[asked].messages[-1]["content"] == pasted

        app.editor.post_message(events.Paste(pasted))
        await submit_again()
        await app.press("up")
        await submit_again()
        controller = app.app.controller
        await controller.navigate(next(entry for entry in controller.branch.path() if entry.type == "message"))
        await submit_again()

        assert controller.session.name is None
        assert not list(project.iterdir())

    async with running() as app:
        await app.press("up")
        assert app.editor.text.startswith("[paste 1: 21 lines")
        assert app.editor.full_text == pasted
        await app.press("down")
        assert app.editor.text == ""


async def test_a_placeholder_in_a_shell_or_slash_command_is_expanded(running: Running) -> None:
    async with running() as app:
        await app.type("!cat <<'end' | wc -l\n")
        app.editor.post_message(events.Paste("line\n" * 40 + "end"))
        await app.wait_for_text("[paste 1")
        await app.press("enter")
        await app.wait_until(lambda: any(block.text == "40" for block in app.chat.transcript.blocks))


async def test_a_trailing_newline_of_a_paste_is_not_counted_as_a_line(running: Running) -> None:
    async with running() as app:
        app.editor.post_message(events.Paste("line\n" * 40))
        assert await app.wait_for_text("[paste 1: 40 lines, 200 characters]")


async def test_a_long_paste_of_one_line_is_described_in_singular(running: Running) -> None:
    async with running() as app:
        app.editor.post_message(events.Paste("x" * 2000))
        await app.wait_until(lambda: app.editor.text == "[paste 1: 1 line, 2000 characters]")


async def test_a_short_paste_is_text_without_control_characters(running: Running) -> None:
    async with running() as app:
        app.editor.post_message(events.Paste("a\x1b[31mb\nc"))
        assert await app.wait_until(lambda: app.editor.text == "a\\x1b[31mb\nc")


async def test_edits_can_be_undone_and_redone(running: Running) -> None:
    async with running() as app:
        await app.press(*"word")
        await app.press("ctrl+z")
        assert app.editor.text == ""
        await app.press("ctrl+y")
        assert app.editor.text == "word"


async def test_input_before_the_session_is_open_is_sent_later(running: Running) -> None:
    session = st.create()
    async with running("Early.", session=session, ready=False) as app:
        await app.submit("Quick")
        assert await app.wait_for_text("Early.")


def test_files_with_the_prefix_come_first() -> None:
    paths = ["a/deep/app.py", "app.py", "map/p.txt", "zapp.py"]

    assert rank_paths(paths, "app") == ["app.py", "a/deep/app.py", "zapp.py", "map/p.txt"]
    assert rank_paths(paths, "nothing") == []


def test_mentions_work_with_and_without_quotes() -> None:
    assert find_mentions('see @a.py, @"b c.png" and me@example.org @d') == ["a.py,", "b c.png", "d"]


async def test_a_dragged_image_becomes_a_mention_and_other_paths_stay_text(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, notes = tmp_path / "my picture.png", tmp_path / "notes.txt"
    image.write_bytes(b"\x89PNG")
    notes.write_text("x")
    async with running() as app:
        for pasted in (str(image).replace(" ", "\\ "), f"'{image}' ", f'"{image}"', f"{image}\n", image.as_uri()):
            app.editor.post_message(events.Paste(pasted))
            await app.wait_until(lambda: app.editor.text == f'@"{image}" ')
            app.editor.clear_text()
        for pasted in (str(notes), f"{image} {image}", "it's", "relative.png", str(tmp_path / "missing.png")):
            app.editor.post_message(events.Paste(pasted))
            await app.wait_until(lambda pasted=pasted: app.editor.text == pasted)
            app.editor.clear_text()


async def test_an_image_on_the_clipboard_of_the_desktop_is_attached(
    running: Running, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "wl-paste"
    command.write_text("#!/bin/sh\nprintf '\\211PNG rest'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    async with running() as app:
        await app.press("ctrl+v")
        await app.wait_until(lambda: app.editor.text.startswith("@"))

        path = Path(app.editor.text.strip().strip('@"'))
        assert path.parent == home / ".sessiontree" / "pastes"
        assert path.read_bytes() == b"\x89PNG rest"
        assert path.stat().st_mode & 0o777 == 0o600


async def test_without_an_image_ctrl_v_pastes_what_was_copied(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    async with running() as app:
        app.app.copy_to_clipboard("copied")
        await app.press("ctrl+v")
        await app.wait_until(lambda: app.editor.text == "copied")


@pytest.mark.parametrize(
    ("command", "connection", "reason"),
    [
        (None, None, "install wl-paste, xclip or pngpaste"),
        ("wl-paste", None, "No image on the clipboard"),
        ("wl-paste", "10.0.0.2 50000 10.0.0.1 22", "cannot be read over ssh"),
    ],
)
async def test_ctrl_v_says_why_there_is_nothing_to_paste(
    running: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str | None,
    connection: str | None,
    reason: str,
) -> None:
    for name in ("SSH_TTY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    if command:
        (tmp_path / command).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / command).chmod(0o755)
    if connection:
        monkeypatch.setenv("SSH_CONNECTION", connection)
    monkeypatch.setenv("PATH", str(tmp_path))
    async with running() as app:
        await app.press("ctrl+v")
        await app.wait_until(lambda: any(reason in shown.message for shown in app.app._notifications))
        assert app.editor.text == ""


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("TMUX", "; tmux passes it on with `set -g set-clipboard on`"),
        ("SSH_TTY", "; it must allow this over ssh"),
        ("LANG", ""),
    ],
)
async def test_copying_says_what_the_terminal_must_allow(
    running: Running, monkeypatch: pytest.MonkeyPatch, variable: str, hint: str
) -> None:
    for name in ("TMUX", "SSH_TTY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    async with running() as app:
        assert send_to_clipboard(app.app, "words") == f"Sent 5 characters to the terminal's clipboard{hint}"


async def test_folders_are_completed_too(running: Running, project: Path) -> None:
    (project / "source" / "deep").mkdir(parents=True)
    (project / "source" / "deep" / "a.py").write_text("x")
    async with running() as app:
        await app.press(*"@sour")
        await app.wait_for_text("@source/", "@source/deep/a.py")
        await app.press("tab")
        assert app.editor.text.startswith("@source/")
