"""Permission questions on the page: they take no keys from the user who types, and are answered with buttons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.messages import ToolCall
from sessiontree.model.scripted import ScriptedModel
from tests.server.dashboard.conftest import Serve, Visit

TOUCH = [ToolCall("c1", "bash", {"command": "touch made"})]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)  # the agents of the server work here
    return folder


@pytest.fixture
def session(project: Path) -> str:
    with st.create("tidy", cwd=project) as made:
        made.append(st.user("Hello."))
        return made.id


def prompt(page: Any, text: str) -> Any:
    """Send a prompt and return the text field."""
    field = page.locator(".composer textarea")
    field.click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    return field


def answer(page: Any, label: str) -> None:
    page.get_by_role("button", name=label, exact=True).click()
    page.wait_for_selector(".permission", state="detached")


def test_typing_continues_when_a_question_appears_and_does_not_answer_it(
    serve: Serve, visit: Visit, session: str, project: Path
) -> None:
    site = serve(ScriptedModel([TOUCH, "Done."]))
    page = visit(site, f"/s/{session}/talk")
    field = prompt(page, "go")
    page.wait_for_selector(".permission button:not([disabled])")

    page.keyboard.type("y yes 1 ")
    assert field.input_value() == "y yes 1 "
    assert field.evaluate("(field) => field === document.activeElement")
    assert page.locator(".permission").is_visible()
    assert not (project / "made").exists()

    answer(page, "Allow once")
    page.locator(".path").get_by_text("Done.", exact=True).first.wait_for()
    assert (project / "made").exists()
    assert field.input_value() == "y yes 1 "


def test_a_question_shows_the_call_and_a_refusal_gives_the_model_the_reason(
    serve: Serve, visit: Visit, session: str, project: Path
) -> None:
    model = ScriptedModel([TOUCH, "I see."])
    page = visit(serve(model), f"/s/{session}/talk")
    prompt(page, "go")
    page.wait_for_selector(".permission button:not([disabled])")
    shown = page.locator(".permission").inner_text()
    assert "Allow bash?" in shown
    assert "touch made" in shown
    page.get_by_label("Reason for the model").fill("not now")
    answer(page, "Deny")
    page.locator(".path").get_by_text("I see.", exact=True).first.wait_for()

    assert not (project / "made").exists()
    assert "denied by the user: not now" in str(model.requests[-1].messages[-1])


def test_a_question_is_shown_again_after_a_reload(serve: Serve, visit: Visit, session: str, project: Path) -> None:
    site = serve(ScriptedModel([TOUCH, TOUCH, "Done."]))
    page = visit(site, f"/s/{session}/talk")
    prompt(page, "go")
    page.wait_for_selector(".permission")
    again = visit(site, f"/s/{session}/talk")
    again.wait_for_selector(".permission button:not([disabled])")
    answer(again, "Allow for this session")
    page.wait_for_selector(".permission", state="detached")
    page.locator(".path").get_by_text("Done.", exact=True).first.wait_for()

    assert (project / "made").exists()


def test_the_mode_can_be_selected_before_the_prompt(serve: Serve, visit: Visit, session: str, project: Path) -> None:
    page = visit(serve(ScriptedModel([TOUCH, "Done."]), permission_mode="allow-all"), f"/s/{session}/talk")
    mode = page.get_by_label("Permission mode")
    assert mode.input_value() == "allow-all"
    mode.select_option("read-only")
    prompt(page, "go")
    page.locator(".path").get_by_text("Done.", exact=True).first.wait_for()

    assert not (project / "made").exists()


def test_only_modes_that_the_server_allows_are_offered(serve: Serve, visit: Visit, session: str) -> None:
    page = visit(serve(ScriptedModel([])), f"/s/{session}/talk")
    choice = page.get_by_label("Permission mode")
    choice.wait_for()

    assert choice.locator("option").all_inner_texts() == ["Read only", "Ask first"]


def test_on_a_phone_the_question_is_as_wide_as_the_composer_and_has_room_for_a_reason(
    serve: Serve, visit: Visit, session: str
) -> None:
    site = serve(ScriptedModel([TOUCH, "I see."]))
    page = visit(site, f"/s/{session}/talk", viewport={"width": 390, "height": 844}, has_touch=True)
    prompt(page, "go")
    page.wait_for_selector(".permission button:not([disabled])")

    card, writing = page.locator(".permission").bounding_box(), page.locator(".composer .write").bounding_box()
    assert (card["x"], card["width"]) == (writing["x"], writing["width"])
    assert page.get_by_label("Reason for the model").bounding_box()["width"] > 170
    answer(page, "Deny")
    page.locator(".path").get_by_text("I see.", exact=True).first.wait_for()


def test_denied_calls_are_listed_above_the_composer(serve: Serve, visit: Visit, session: str) -> None:
    site = serve(ScriptedModel([TOUCH, "I see."]))
    page = visit(site, f"/s/{session}/talk")
    prompt(page, "go")
    page.wait_for_selector(".permission button:not([disabled])")
    answer(page, "Deny")

    told = page.wait_for_selector(".toast.on >> text=Denied: bash").bounding_box()
    writing = page.locator(".composer .write").bounding_box()
    assert told["y"] + told["height"] <= writing["y"]
