"""Dialogs of the dashboard: they act on the branch that they name, and do nothing after they are closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sessiontree as st
from sessiontree.session import Session
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.held_requests import HeldRequests
from tests.server.dashboard.site import DashboardSite, open_story


@pytest.fixture
def session() -> Session:
    """A session on `main`, with the branches `aside` and `beside` at its head."""
    session = st.create("dialogs", cwd="/project")
    for number in range(3):
        session.append(st.user(f"question {number}"))
        session.append(st.assistant(f"answer {number}"))
    for name in ("aside", "beside"):
        session.create_branch(name, current=False).append(st.assistant(f"words {name}"))
    return session


def open_session(visit: Visit, site: DashboardSite, id: str, view: str = "talk") -> Any:
    page = visit(site, f"/s/{id}/{view}")
    page.wait_for_selector(".link.live")
    page.wait_for_selector("main[aria-busy=false]")
    return page


def read_heads(session: Session) -> dict[str, str | None]:
    session.refresh()
    return {branch.name: branch.leaf for branch in session.branches}


def switch_branch(page: Any, session: Session, name: str) -> None:
    """Switch as another client, and wait until the page shows it."""
    session.refresh()
    session.switch(name)
    page.wait_for_selector(f".where option >> text={name} · current", state="attached")


def submit(page: Any) -> None:
    page.locator("dialog button[type=submit]").click()


def ask_to_go(page: Any) -> None:
    page.locator("#graph").focus()
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    page.keyboard.press("g")
    page.wait_for_selector("dialog >> text=Moves main to “")


def ask_to_merge(page: Any) -> None:
    page.keyboard.press("m")
    page.wait_for_selector("dialog >> text=Appends a summary of a branch to main.")
    page.locator("dialog select").select_option("aside")
    page.locator("dialog textarea").fill("What was tried aside.")


def ask_to_promote(page: Any) -> None:
    page.get_by_role("button", name="Branches").click()
    page.locator(".branches li", has_text="aside").get_by_role("button", name="Promote").click()
    page.wait_for_selector("dialog >> text=main continues from the end of aside.")
    page.locator("dialog textarea").fill("What the others did.")


@pytest.mark.parametrize(
    ("ask", "said"),
    [(ask_to_go, "Moved main"), (ask_to_merge, "Merged into main"), (ask_to_promote, "Promoted")],
)
def test_a_dialog_moves_the_branch_that_it_names(
    serve: Serve, visit: Visit, session: Session, ask: Callable[[Any], None], said: str
) -> None:
    """Even if another client switches to another branch while the dialog is open."""
    page = open_session(visit, serve(), session.id)
    ask(page)
    before = read_heads(session)
    switch_branch(page, session, "beside")

    submit(page)

    page.wait_for_selector(f".toast.on >> text={said}")
    after = read_heads(session)
    assert [name for name in before if before[name] != after[name]] == ["main"]


def test_a_late_response_of_a_closed_dialog_closes_no_other(serve: Serve, visit: Visit, session: Session) -> None:
    page = open_session(visit, serve(), session.id)
    held = HeldRequests(page, "**/merge")
    ask_to_merge(page)
    submit(page)
    held.wait()
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("b")
    page.locator("dialog input[name=name]").fill("a new ro")

    held.release()
    page.wait_for_selector(".toast.on >> text=Merged into main")
    page.keyboard.type("ute")

    assert page.locator("dialog input[name=name]").input_value() == "a new route"


def test_an_error_after_closing_a_dialog_is_shown(serve: Serve, visit: Visit, session: Session) -> None:
    page = open_session(visit, serve(), session.id)
    held = HeldRequests(page, "**/merge")
    ask_to_merge(page)
    submit(page)
    held.wait()
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")

    held.lose()

    page.wait_for_selector(".toast.on.wrong >> text=Merge: cannot reach the server")


def test_closing_the_dialog_prevents_opening_the_fork(serve: Serve, visit: Visit, session: Session) -> None:
    other, site = open_story(), serve()
    page = open_session(visit, site, session.id)
    held = HeldRequests(page, "**/fork")
    page.keyboard.press("f")
    submit(page)
    held.wait()
    page.keyboard.press("Escape")
    page.goto(f"{site.url}/#/s/{other.id}/talk")
    page.get_by_label("Prompt on dict").fill("Written in another session.")

    held.release()
    page.wait_for_selector(".toast.on >> text=Forked")

    assert other.id in page.url
    assert page.get_by_label("Prompt on dict").input_value() == "Written in another session."


def test_text_to_edit_does_not_replace_a_draft(serve: Serve, visit: Visit, session: Session) -> None:
    page = open_session(visit, serve(), session.id)
    page.get_by_label("Prompt on main").fill("Something else.")
    page.locator("#graph").focus()
    page.keyboard.press("ArrowUp")
    page.get_by_label("Prompt from here (moves main)").wait_for()
    page.keyboard.press("g")
    submit(page)
    page.wait_for_selector(".toast.on >> text=Moved. Press u to undo.")
    page.wait_for_selector("dialog", state="detached")

    assert page.get_by_label("Prompt on main").input_value() == "Something else."
    assert "question 2" not in page.locator(".path").text_content()


def test_closing_the_dialog_prevents_opening_the_new_session(serve: Serve, visit: Visit) -> None:
    page = visit(serve())
    page.wait_for_selector("text=No sessions yet.")
    held = HeldRequests(page, "**/api/sessions", most=1)
    page.get_by_role("button", name="New session").click()
    submit(page)
    held.wait()
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("w")
    page.wait_for_selector("h1 >> text=Swarms")

    with page.expect_response("**/api/sessions"):
        held.release()
    page.wait_for_timeout(100)

    assert page.url.endswith("#/swarms")


def test_a_label_is_saved_even_if_a_filter_hides_its_entry(serve: Serve, visit: Visit, session: Session) -> None:
    marked = session.branch("main").leaf
    assert marked is not None
    session.label(marked, "mark")
    page = open_session(visit, serve(), session.id, f"talk?entry={marked}")
    page.get_by_label("Tree filter").select_option("user-only")
    page.wait_for_selector(".tree .fact >> text=3")
    page.keyboard.press("l")

    assert page.get_by_role("textbox", name="Label").input_value() == "mark"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog", state="detached")

    session.refresh()
    assert session.tree.label(marked) == "mark"


def test_a_label_removed_by_another_client_disappears(serve: Serve, visit: Visit, session: Session) -> None:
    marked = session.branch("main").leaf
    assert marked is not None
    session.label(marked, "mark")
    page = open_session(visit, serve(), session.id, f"talk?entry={marked}")
    page.wait_for_selector(".path .chip.label >> text=mark")

    session.label(marked, None)

    page.wait_for_selector(".path .chip.label", state="detached")


def test_keys_are_ignored_while_the_session_loads(serve: Serve, visit: Visit, session: Session) -> None:
    site = serve()
    page = visit(site)
    page.wait_for_selector(".list li")
    held = HeldRequests(page, "**/branches?*")
    page.goto(f"{site.url}/#/s/{session.id}/talk")
    held.wait()

    for key in "bflmu":
        page.keyboard.press(key)
    assert page.locator("dialog, .toast.on").count() == 0
    held.release()

    page.wait_for_selector("main[aria-busy=false]")
    assert page.locator("dialog, .toast.on").count() == 0
    ask_to_merge(page)


def test_actions_are_available_before_the_whole_tree_is_loaded(serve: Serve, visit: Visit, session: Session) -> None:
    site = serve()
    page = visit(site)
    page.wait_for_selector(".list li")
    held = HeldRequests(page, "**/tree?**")
    page.goto(f"{site.url}/#/s/{session.id}/talk")
    held.wait()

    page.get_by_role("button", name="New branch").wait_for()
    page.wait_for_selector("main[aria-busy=true]")
    ask_to_merge(page)
    held.release()
