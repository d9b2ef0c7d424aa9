"""Edit, retry and versions on the page, with the mouse and the keyboard; search, the model's view, grouped branches."""

from __future__ import annotations

from typing import Any

import sessiontree as st
from sessiontree.model.scripted import Delay, ScriptedModel
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.site import open_story

ANSWERS = ["The **first** retry.", "The second retry.", "The third."]


def find_entry(page: Any, text: str) -> Any:
    return page.locator(".path .entry", has_text=text)


def open_story_page(serve: Serve, visit: Visit, *answers: Any, query: str = "", **options: Any) -> Any:
    session = open_story()
    page = visit(serve(ScriptedModel(list(answers))), f"/s/{session.id}/talk{query}", **options)
    page.locator(".path .entry").first.wait_for()
    return page


def test_a_retry_keeps_both_answers_and_the_arrows_switch_between_them(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit, *ANSWERS)
    old = find_entry(page, "25 ms instead of 40 s.")
    old.hover()
    old.get_by_role("button", name="Retry").click()

    new = find_entry(page, "The first retry.")
    new.get_by_text("2/2").wait_for()
    assert old.count() == 0
    new.get_by_role("button", name="Previous version").click()
    old.get_by_text("1/2").wait_for()
    assert new.count() == 0
    page.get_by_label("Prompt from here (moves dict)").wait_for()
    old.get_by_role("button", name="Next version").click()
    new.get_by_text("2/2").wait_for()
    page.get_by_label("Prompt on dict").wait_for()


def test_an_edit_sends_another_version_of_the_prompt_and_undo_names_it(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit, *ANSWERS)
    asked = find_entry(page, "Write the note.")
    asked.hover()
    asked.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit message").fill("Write a shorter note.")
    page.keyboard.press("Enter")

    find_entry(page, "Write a shorter note.").get_by_text("2/2").wait_for()
    find_entry(page, "The first retry.").wait_for()
    assert page.get_by_label("Edit message").count() == 0
    page.locator('button[title^="Undo the move of dict"]').click()
    find_entry(page, "25 ms instead of 40 s.").wait_for()


def test_versions_work_with_the_keyboard_alone(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit, *ANSWERS)
    page.keyboard.press("r")
    find_entry(page, "The first retry.").get_by_text("2/2").wait_for()
    page.keyboard.press("[")
    find_entry(page, "25 ms instead").get_by_text("1/2").wait_for()
    page.keyboard.press("]")
    find_entry(page, "The first retry.").get_by_text("2/2").wait_for()
    page.keyboard.press("e")
    page.get_by_label("Edit message").fill("Not sent.")
    page.keyboard.press("Escape")
    page.get_by_label("Edit message").wait_for(state="detached")
    assert find_entry(page, "Not sent.").count() == 0


def test_an_old_version_is_continued_where_it_is(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit, *ANSWERS)
    page.keyboard.press("r")
    find_entry(page, "The first retry.").get_by_text("2/2").wait_for()
    page.keyboard.press("[")
    page.get_by_label("Prompt from here (moves dict)").fill("Go on with this.")
    page.keyboard.press("Enter")

    find_entry(page, "The second retry.").wait_for()
    assert find_entry(page, "25 ms instead").count() == 1
    page.get_by_label("Prompt on dict").wait_for()


def test_a_leaf_without_a_branch_takes_part_in_a_comparison(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit, *ANSWERS)
    page.keyboard.press("r")
    find_entry(page, "The first retry.").get_by_text("2/2").wait_for()
    page.keyboard.press("c")
    page.get_by_text("1 leaf without a branch").click()
    page.get_by_role("checkbox", name="25 ms instead").check()

    page.locator(".column", has_text="25 ms instead of 40 s.").locator(".entry").first.wait_for()
    assert page.locator(".column > header h2", has_text="“25 ms instead").count() == 1


def test_markdown_is_rendered_while_it_streams(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit, ["Some **bold** words, <b>raw</b> ", Delay(60), "end."])
    page.get_by_label("Prompt on dict").fill("Go on.")
    page.keyboard.press("Enter")

    page.locator(".streaming .prose strong", has_text="bold").wait_for()
    assert page.locator(".streaming b").count() == 0


def test_words_are_found_in_all_branches_and_highlighted(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit)
    page.get_by_role("button", name="Search", exact=True).last.click()
    page.keyboard.type("second run")
    page.locator(".matches li").first.wait_for()
    assert page.locator(".find [role=status]").text_content() == "1 match"
    page.locator(".matches button").first.click()

    find_entry(page, "A second run takes 40 ms.").wait_for()
    page.wait_for_function(
        """() => {
          const found = [...(CSS.highlights.get("found") ?? [])];
          const words = new Set(found.map((range) => range.toString().toLowerCase()));
          return words.size === 2 && words.has("second") && words.has("run");
        }"""
    )
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Close search").click()
    page.wait_for_function("() => !CSS.highlights.has('found')")


def test_a_link_to_an_entry_opens_its_path_and_marks_it(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit, permissions=["clipboard-read", "clipboard-write"])
    asked = find_entry(page, "Write the note.")
    asked.hover()
    asked.get_by_role("button", name="More actions").click()
    asked.get_by_role("button", name="Copy link").click()
    page.wait_for_selector(".toast.on >> text=Link copied")
    link = page.evaluate("navigator.clipboard.readText()")

    other = page.context.new_page()
    other.goto(link)
    other.locator(".entry.chosen", has_text="Write the note.").wait_for()
    assert find_entry(other, "25 ms instead of 40 s.").count() == 1
    asked.hover()
    asked.get_by_role("button", name="Copy", exact=True).first.click()
    page.wait_for_selector(".toast.on >> text=Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "Write the note."


def test_the_view_of_the_model_leaves_out_what_a_compaction_replaced(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit)
    page.keyboard.press("v")
    dialog = page.get_by_role("dialog", name="Model's view")
    dialog.get_by_text("It was **quadratic**.").wait_for()
    assert dialog.get_by_text("The report takes").count() == 0
    dialog.get_by_role("button", name="Close").click()
    dialog.wait_for(state="detached")


def test_branches_of_a_swarm_are_grouped_and_folded(serve: Serve, visit: Visit) -> None:
    session = open_story()
    for number in range(3):
        session.create_branch(f"crew/worker-{number}", at="main", current=False)
    page = visit(serve(), f"/s/{session.id}/branches")
    group = page.locator(".branches .group")
    group.get_by_text("crew · 3 branches").wait_for()
    assert not page.locator(".branches .name", has_text="crew/worker-1").is_visible()
    group.locator("summary").click()
    page.locator(".branches .name", has_text="crew/worker-1").wait_for()


def test_one_letter_shortcuts_can_be_turned_off(serve: Serve, visit: Visit) -> None:
    page = open_story_page(serve, visit)
    page.get_by_role("button", name="Keyboard shortcuts").click()
    page.get_by_label("Use one-letter shortcuts").uncheck()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("c")
    page.keyboard.press("s")
    assert page.url.endswith("/talk")
    page.get_by_role("button", name="Keyboard shortcuts").click()
    page.get_by_label("Use one-letter shortcuts").check()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("c")
    page.wait_for_url("**/compare")


def test_a_read_only_token_is_offered_no_edit_and_no_retry(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = visit(serve(scopes=("read",)), f"/s/{session.id}/talk")
    asked = find_entry(page, "Write the note.")
    asked.hover()
    assert asked.get_by_role("button", name="Copy", exact=True).count() >= 1
    assert page.get_by_role("button", name="Edit").count() + page.get_by_role("button", name="Retry").count() == 0
    assert st.open(session.id).heads.current == "dict"
