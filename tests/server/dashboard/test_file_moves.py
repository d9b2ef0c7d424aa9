"""The dialogs of moves show which files they can restore, and ask what to move."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.session import Session
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.site import DashboardSite


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    folder.mkdir()
    return folder


@pytest.fixture
def session(folder: Path) -> Session:
    """A session whose second turn changes two files and adds one."""
    commands = ["echo one > poem; echo keep > notes", "echo two > poem; echo two > notes; echo new > added"]
    answers: list[Any] = []
    for number, command in enumerate(commands):
        answers += [[st.ToolCall(f"c{number}", "bash", {"command": command})], f"Turn {number} is done."]
    session = st.create("files", cwd=str(folder))
    agent = st.Agent(session, st.ScriptedModel(answers), st.builtin_tools(), cwd=str(folder), snapshots=True)
    with ThreadPoolExecutor(1) as thread:  # the browser has an event loop in this one
        for prompt in ("first prompt", "second prompt"):
            thread.submit(agent.run_sync, prompt).result()
    return session


def ask_to_go(visit: Visit, site: DashboardSite, session: Session, text: str = "What should move?") -> Any:
    """Open the dialog on the second prompt and wait for a text in it."""
    prompt = next(entry.id for entry in session.tree if entry.text == "second prompt")
    page = visit(site, f"/s/{session.id}/talk?entry={prompt}")
    page.wait_for_selector(".link.live")
    page.wait_for_selector("main[aria-busy=false]")
    page.wait_for_selector(f"#e-{prompt}")
    page.keyboard.press("g")
    page.wait_for_selector(f"dialog >> text={text}")
    return page


def submit(page: Any, toast: str) -> None:
    page.locator("dialog button[type=submit]").click()
    page.wait_for_selector(f".toast.on >> text={toast}")


def choose(page: Any, choice: str) -> None:
    page.get_by_label("What should move?").select_option(label=choice)


def read_leaf(session: Session) -> str | None:
    session.refresh()
    return session.head.leaf


def test_the_dialog_lists_the_files_and_moves_the_conversation_by_default(
    serve: Serve, visit: Visit, session: Session, folder: Path
) -> None:
    leaf = session.head.leaf
    page = ask_to_go(visit, serve(), session)
    text = page.locator("dialog").inner_text()
    for line in ("2 files to change, 1 file to delete", "change poem", "delete added"):
        assert line in text

    submit(page, "Moved. Press u to undo.")

    assert read_leaf(session) != leaf
    assert (folder / "poem").read_text() == "two\n"


def test_conversation_and_files_restores_both(serve: Serve, visit: Visit, session: Session, folder: Path) -> None:
    leaf = session.head.leaf
    page = ask_to_go(visit, serve(), session)
    choose(page, "Conversation and files")

    submit(page, "2 files restored, 1 file deleted")

    assert read_leaf(session) != leaf
    assert (folder / "poem").read_text() == "one\n"
    assert not (folder / "added").exists()


def test_files_only_leaves_the_conversation(serve: Serve, visit: Visit, session: Session, folder: Path) -> None:
    leaf = session.head.leaf
    page = ask_to_go(visit, serve(), session)
    choose(page, "Files only")

    submit(page, "2 files restored, 1 file deleted")

    assert read_leaf(session) == leaf
    assert (folder / "poem").read_text() == "one\n"
    assert page.locator(".composer textarea").input_value() == ""


@pytest.mark.parametrize(("takes", "text"), [(False, "mine\n"), (True, "keep\n")])
def test_a_conflict_is_kept_unless_it_is_checked(
    serve: Serve, visit: Visit, session: Session, folder: Path, takes: bool, text: str
) -> None:
    (folder / "notes").write_text("mine\n")
    page = ask_to_go(visit, serve(), session)
    choose(page, "Conversation and files")
    if takes:
        page.get_by_label("Restore notes too (changed on disk since)").check()

    submit(page, "2 files restored" if takes else "1 conflict kept")

    assert (folder / "notes").read_text() == text


def test_the_diff_is_shown_on_request(serve: Serve, visit: Visit, session: Session, folder: Path) -> None:
    (folder / "notes").write_text("<b>mine</b>\n")
    page = ask_to_go(visit, serve(), session)

    page.locator("dialog details summary").click()
    page.wait_for_selector("dialog pre >> text=-<b>mine</b>")

    assert "+keep" in page.locator("dialog pre").inner_text()


def test_nothing_is_asked_if_no_file_would_change(serve: Serve, visit: Visit, session: Session, folder: Path) -> None:
    for name, text in (("poem", "one\n"), ("notes", "keep\n")):
        (folder / name).write_text(text)
    (folder / "added").unlink()
    page = ask_to_go(visit, serve(), session, text="Summarize the branch")
    page.wait_for_selector("dialog >> text=Checking files", state="detached")

    assert "What should move?" not in page.locator("dialog").inner_text()


def test_a_token_that_may_not_run_agents_moves_the_conversation(
    serve: Serve, visit: Visit, session: Session, folder: Path
) -> None:
    page = ask_to_go(visit, serve(scopes=("read", "write")), session, text="Summarize the branch")
    assert page.locator("dialog >> text=Checking files").count() == 0

    submit(page, "Moved. Press u to undo.")

    assert (folder / "poem").read_text() == "two\n"


def test_undo_offers_the_files_of_the_place_before(serve: Serve, visit: Visit, session: Session, folder: Path) -> None:
    leaf = session.head.leaf
    page = ask_to_go(visit, serve(), session)
    choose(page, "Conversation and files")
    submit(page, "2 files restored, 1 file deleted")

    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector("dialog >> text=What should move?")
    assert page.locator("dialog h2").inner_text() == "Undo the move of main"
    assert "1 file to add, 2 files to change" in page.locator("dialog").inner_text()
    choose(page, "Conversation and files")
    submit(page, "3 files restored")

    assert read_leaf(session) == leaf
    assert (folder / "poem").read_text() == "two\n"
    assert (folder / "added").exists()


def test_the_tree_shows_how_many_files_a_call_changed_also_live(
    serve: Serve, visit: Visit, session: Session, folder: Path
) -> None:
    page = visit(serve(), f"/s/{session.id}/talk")
    page.wait_for_selector(".link.live")
    answers: list[Any] = [[st.ToolCall("c9", "bash", {"command": "touch 1 2 3 4"})], "All done."]
    agent = st.Agent(session, st.ScriptedModel(answers), st.builtin_tools(), cwd=str(folder), snapshots=True)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(agent.run_sync, "third prompt").result()
    page.wait_for_selector(".entry >> text=All done.")

    page.keyboard.press("t")
    for key, text in (("ArrowUp", "changed 4 files"), ("ArrowUp", "third prompt")):
        page.keyboard.press(key)
        page.wait_for_selector(f".graph .unseen >> text={text}")
    for key, text in (("ArrowUp", "Turn 1 is done."), ("ArrowUp", "changed 3 files")):
        page.keyboard.press(key)
        page.wait_for_selector(f".graph .unseen >> text={text}")


def test_undo_offers_a_restore_of_files_alone(serve: Serve, visit: Visit, session: Session, folder: Path) -> None:
    leaf = session.head.leaf
    page = ask_to_go(visit, serve(), session)
    choose(page, "Files only")
    submit(page, "2 files restored, 1 file deleted")

    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector("dialog >> text=What should move?")
    options = page.get_by_label("What should move?").locator("option").all_inner_texts()
    choose(page, "Files only")
    submit(page, "3 files restored")

    assert options == ["Conversation", "Files only"]
    assert read_leaf(session) == leaf
    assert (folder / "poem").read_text() == "two\n"


def test_undo_asks_nothing_if_no_file_differs(serve: Serve, visit: Visit, session: Session, folder: Path) -> None:
    leaf = session.head.leaf
    page = ask_to_go(visit, serve(), session)
    submit(page, "Moved. Press u to undo.")

    page.get_by_role("button", name="Undo").click()
    page.wait_for_selector(".toast.on >> text=Undid")

    assert read_leaf(session) == leaf


def test_switching_offers_the_files_of_the_branch(serve: Serve, visit: Visit, session: Session, folder: Path) -> None:
    first = next(entry.id for entry in session.tree if entry.text == "Turn 0 is done.")
    session.create_branch("early", at=first, current=False)
    site = serve()
    page = visit(site, f"/s/{session.id}/branches")
    page.wait_for_selector(".link.live")
    page.get_by_role("button", name="Switch", exact=True).click()
    page.wait_for_selector("dialog >> text=Switch to early")
    choose(page, "Conversation and files")

    submit(page, "Switched to early 2 files restored, 1 file deleted")

    assert (folder / "poem").read_text() == "one\n"


def test_the_comparison_shows_the_files_side_by_side(serve: Serve, visit: Visit, session: Session) -> None:
    first = next(entry.id for entry in session.tree if entry.text == "Turn 0 is done.")
    session.create_branch("early", at=first, current=False)

    page = visit(serve(), f"/s/{session.id}/compare?branch=early&branch=main")
    page.get_by_text("3 files differ between early and main").click()

    table = page.get_by_role("region", name="Differences of poem")
    assert table.locator("td.removed").inner_text() == "one"
    assert table.locator("td.added").inner_text() == "two"
    assert "added +1 −0" in page.locator(".files-diff .counts").inner_text()
