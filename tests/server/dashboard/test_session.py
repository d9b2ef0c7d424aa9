"""A session in the dashboard: tree, conversation, actions and live updates."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.core.messages import build_bash_execution, build_image_block
from sessiontree.model.base import ModelError
from sessiontree.model.scripted import Delay, ScriptedModel, Thinking
from tests.export.sessions import SECRET, make_long_session, make_picture
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.held_requests import DelayedResponse, HeldRequests
from tests.server.dashboard.site import (
    DashboardSite,
    SingleModel,
    build_branching_lines,
    open_story,
    run_dashboard,
    write_session_file,
)
from tests.shapes import build_lines

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
ROW, MARGIN = 30, 28
"""Sizes of the drawing at full scale."""


def open_session(visit: Visit, site: DashboardSite, id: str, view: str = "talk", **options: Any) -> Any:
    page = visit(site, f"/s/{id}/{view}", **options)
    page.wait_for_selector(".link.live")
    page.wait_for_selector("main[aria-busy=false]")
    page.wait_for_function("() => document.querySelector('.graph canvas, .branches, .scroll')")
    return page


def read_path(page: Any) -> str:
    return page.locator(".path").text_content()


def wait_for_text(page: Any, words: str, where: str = ".path") -> None:
    page.wait_for_function(
        "([where, words]) => document.querySelector(where)?.textContent.includes(words)", arg=[where, words]
    )


def wait_for_drawn(page: Any, count: int) -> None:
    """Wait until this number of entries is drawn."""
    page.wait_for_function(f"() => document.querySelector('#graph').dataset.drawn === '{count}'")


def count_drawn(page: Any) -> int:
    """Return how many entries the last frame drew."""
    page.wait_for_function("() => Number(document.querySelector('#graph').dataset.drawn) > 0")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return int(page.locator("#graph").get_attribute("data-drawn"))


def scroll(page: Any, to: str, words: str, *, there: bool = True) -> None:
    """Scroll to an end of the window repeatedly until the text appears or disappears."""
    page.wait_for_function(
        """([top, words, there]) => {
          const window = document.querySelector(".window");
          window.scrollTop = top ? 0 : window.scrollHeight;
          return document.querySelector(".path").textContent.includes(words) === there;
        }""",
        arg=[to == "top", words, there],
    )


def choose_leaf(page: Any) -> None:
    """Select the leaf in the tree, starting from the entry above it."""
    page.locator("#graph").focus()
    page.keyboard.press("ArrowUp")
    page.get_by_label("Prompt from here").wait_for()
    page.keyboard.press("ArrowDown")
    page.get_by_label("Prompt on").wait_for()


# Reading


def test_a_message_too_long_for_markup_is_shown_as_plain_text(serve: Serve, visit: Visit) -> None:
    with st.create("long") as session:
        session.head.append(st.user("First words\n" + "and more words " * 8000 + "last words"))
    page = open_session(visit, serve(), session.id)

    wait_for_text(page, "last words")

    assert page.locator(".path .entry.user pre").inner_text().startswith("First words\nand more")


def test_the_list_links_to_a_session_and_search_finds_messages(serve: Serve, visit: Visit) -> None:
    open_story()
    write_session_file(make_long_session(4), name="long", cwd="/p")
    site = serve()
    page = visit(site)
    page.wait_for_selector(".list li")
    assert page.locator(".list li").count() == 2

    page.keyboard.press("/")
    page.keyboard.type("quadratic")
    page.wait_for_selector(".hits li")
    assert "It was **quadratic**." in page.locator(".hits .snippet").first.text_content()
    page.locator(".hits a").first.click()

    wait_for_text(page, "It was quadratic.")
    assert page.locator(".entry.chosen h2").text_content() == "Compaction"


def test_a_search_lists_unreadable_sessions(serve: Serve, visit: Visit) -> None:
    file = open_story().file
    assert file is not None
    file.with_name("broken.jsonl").write_text("no session\n")
    page = visit(serve())
    page.wait_for_selector(".list li")

    page.get_by_role("searchbox").fill("quadratic")

    page.wait_for_selector(".notice >> text=1 session could not be read.")
    page.get_by_role("searchbox").fill("")
    page.wait_for_selector(".notice", state="detached")


def test_an_invalid_search_shows_an_error(serve: Serve, visit: Visit) -> None:
    open_story()
    page = visit(serve())
    page.wait_for_selector(".list li")

    page.get_by_role("searchbox").fill("since:yesterday")

    page.wait_for_selector(".notice.wrong >> text=invalid since")
    assert page.get_by_text("No matches").count() == 0
    page.get_by_role("searchbox").fill("quadratic")
    page.wait_for_selector(".hits li")
    assert page.locator(".notice.wrong").count() == 0


def test_a_session_opens_at_its_leaf_next_to_its_tree(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id)

    wait_for_text(page, "25 ms instead of 40 s.")
    wait_for_drawn(page, 17)
    assert page.locator(".head h1").text_content() == "Make the report fast"
    assert "$0.09" in page.locator(".head .facts").text_content()
    assert page.get_by_label("Shown branch").input_value() == "dict"
    assert page.evaluate("(w => w.scrollHeight - w.scrollTop - w.clientHeight)(document.querySelector('.window'))") < 2


def test_selecting_an_entry_shows_its_path_and_escape_returns(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id)
    wait_for_text(page, "25 ms instead")

    page.locator("#graph").click(position={"x": MARGIN + 20, "y": MARGIN + ROW})
    page.wait_for_function("() => !document.querySelector('.path').textContent.includes('25 ms')")
    assert "I will read it first." in read_path(page)
    page.get_by_label("Prompt from here (moves dict)").wait_for()
    page.keyboard.press("Escape")
    wait_for_text(page, "25 ms instead")


def test_a_session_at_the_root_opens_at_the_root_of_its_tree(serve: Serve, visit: Visit) -> None:
    with st.create("wide", cwd="/project") as session:
        root = session.append(st.user("It begins here."))
        for number in range(8):
            session.create_branch(f"way-{number}", at=root, current=False).append(st.assistant("And goes on."))
        session.navigate_sync("root")
    page = open_session(visit, serve(), session.id)
    page.wait_for_function("() => document.querySelector('#graph').dataset.drawn > 4")

    page.locator("#graph").click(position={"x": MARGIN, "y": MARGIN})

    wait_for_text(page, "It begins here.")


def test_the_tree_works_with_the_keyboard(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id)
    wait_for_text(page, "25 ms instead")

    page.keyboard.press("t")
    page.keyboard.press("Home")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "End"):
        page.keyboard.press(key)
    wait_for_text(page, "A second run takes 40 ms.")
    assert page.locator(".graph .unseen").text_content() == (
        "assistant: A second run takes 40 ms.; depth 7; branch cache; end of the branch"
    )
    page.keyboard.press("ArrowUp")
    page.locator(".graph .unseen", has_text=re.compile("; depth 6; branch cache$")).wait_for(state="attached")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.className === 'window'")
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.tagName") == "ARTICLE"


def test_viewing_another_branch_does_not_move_the_session(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id)

    page.get_by_label("Shown branch").select_option("cache")

    wait_for_text(page, "A second run takes 40 ms.")
    assert page.get_by_role("button", name="Switch to cache").is_visible()
    session.refresh()
    assert session.heads.current == "dict"


def test_a_long_path_is_loaded_while_scrolling_and_never_as_a_whole(serve: Serve, visit: Visit) -> None:
    write_session_file(make_long_session(1000), name="long")
    site = serve()
    page = open_session(visit, site, "long")
    wait_for_text(page, "number 999")

    assert page.locator(".entry").count() <= 120
    page.wait_for_function(
        """() => {
          document.querySelector(".window").scrollTop = 0;
          return !document.querySelector(".path").textContent.includes("number 999 ");
        }"""
    )
    assert page.locator(".entry").count() <= 300


def test_the_tree_of_a_very_long_session_is_loaded_in_windows(serve: Serve, visit: Visit) -> None:
    write_session_file(make_long_session(10_001), name="long")
    site = serve()
    page = visit(site, "/s/long/talk")
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.reload()
    wait_for_text(page, "number 10000")
    wait_for_text(page, " of 10,0", ".tree .fact")
    page.get_by_role("button", name="Earlier rows").click()
    page.get_by_role("button", name="Later rows").wait_for()

    asked = [url for url in requests if "/tree?" in url]
    assert len(asked) >= 2
    assert all("around=" in url and "cursor=" not in url for url in asked)


def test_a_very_long_session_is_shown_before_its_problems_are_known(serve: Serve, visit: Visit) -> None:
    lines = make_long_session(5_000)
    write_session_file([*lines[:10], b"{broken", *lines[10:]], name="long")
    page = visit(serve())
    held = HeldRequests(page, re.compile(r"/api/sessions/long$"))
    page.evaluate("location.hash = '#/s/long/talk'")
    wait_for_text(page, "number 4999")
    wait_for_text(page, "5,00", ".head .facts")
    held.wait()
    assert page.get_by_text("problem").count() == 0

    held.release()
    page.get_by_text("problem").first.wait_for()


def test_the_newest_entries_of_a_long_conversation_can_be_reached(serve: Serve, visit: Visit) -> None:
    session = st.open(write_session_file(build_branching_lines(500, every=1000, id="long"), name="long"))
    page = open_session(visit, serve(), "long")
    wait_for_text(page, "number 499 ")

    session.append(st.user("written at the end"))
    wait_for_text(page, "written at the end")
    scroll(page, "top", "written at the end", there=False)
    scroll(page, "bottom", "written at the end")
    scroll(page, "top", "number 490 ", there=False)
    session.append(st.user("written out of sight"))
    scroll(page, "bottom", "written out of sight")

    numbers = page.locator(".path .entry").evaluate_all(
        "all => all.map((entry) => Number(/number (\\d+)/.exec(entry.textContent)?.[1])).filter(Number.isInteger)"
    )
    assert numbers == list(range(numbers[0], 500))


def test_a_late_page_leaves_no_gap_in_the_conversation(serve: Serve, visit: Visit) -> None:
    write_session_file(build_branching_lines(500, every=1000, id="long"), name="long")
    page = open_session(visit, serve(), "long")
    wait_for_text(page, "number 499 ")
    scroll(page, "top", "number 400 ")
    held = DelayedResponse(page, re.compile(r"/path\?.*cursor=(?!end)"))
    held.wait("document.querySelector('.window').scrollTop = 0")

    choose_leaf(page)
    page.wait_for_function("() => !document.querySelector('.path').textContent.includes('number 400 ')")
    held.release()

    numbers = page.locator(".path .entry").evaluate_all(
        "all => all.map((entry) => Number(/number (\\d+)/.exec(entry.textContent)?.[1])).filter(Number.isInteger)"
    )
    assert numbers == list(range(numbers[0], 500))


def test_the_scroll_position_stays_while_an_agent_runs(serve: Serve, visit: Visit) -> None:
    session = st.open(write_session_file(build_branching_lines(80, every=1000, id="read"), name="read"))
    page = open_session(visit, serve(), "read")
    wait_for_text(page, "number 79 ")
    page.locator(".window").evaluate("window => { window.scrollTop = window.scrollHeight / 2; }")
    page.wait_for_timeout(100)
    before = page.locator(".window").evaluate("window => window.scrollTop")

    session.append(st.user("Read it."))
    session.append(st.assistant([{"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "x"}}]))
    wait_for_text(page, "Read it.")
    page.wait_for_selector(".call")
    session.append(st.tool_result("c1", "read", "what was read"))
    wait_for_text(page, "what was read")

    assert page.locator(".window").evaluate("window => window.scrollTop") == before


def test_a_scroll_reported_after_the_conversation_was_removed_does_no_harm(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = visit(site, f"/s/{session.id}/talk")
    page.locator(".path .entry").first.wait_for()
    conversation = page.query_selector(".window")

    page.goto(f"{site.url}/#/swarms")
    page.locator(".window").wait_for(state="detached")
    conversation.evaluate("(removed) => removed.dispatchEvent(new Event('scroll'))")

    page.goto(f"{site.url}/#/s/{session.id}/talk")
    page.locator(".path .entry").first.wait_for()  # `visit` fails the test if the page raised an error


def test_a_view_at_the_end_stays_at_the_end_when_much_text_arrives(serve: Serve, visit: Visit) -> None:
    lines = build_branching_lines(480, every=1000, id="read")
    file = write_session_file(lines[:81], name="read")
    page = open_session(visit, serve(), "read")
    wait_for_text(page, "number 79 ")

    with file.open("ab") as end:
        end.write(b"".join(line + b"\n" for line in lines[81:]))

    wait_for_text(page, "number 479 ")
    st.open(file).append(st.user("and one more"))
    wait_for_text(page, "and one more")
    assert page.locator(".entry").count() <= 300
    assert page.evaluate("(w => w.scrollHeight - w.scrollTop - w.clientHeight)(document.querySelector('.window'))") < 2


# Actions


def test_the_composer_stays_when_the_selected_head_advances(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(), session.id)
    wait_for_text(page, "25 ms instead")
    choose_leaf(page)

    page.get_by_label("Prompt on dict").click()
    page.keyboard.type("please look ")
    session.append(st.user("said by another"))
    wait_for_text(page, "said by another")
    page.keyboard.type("uns")

    assert page.get_by_label("Prompt on dict").input_value() == "please look uns"


def test_selecting_the_head_of_another_branch_shows_that_branch(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(), session.id)
    wait_for_text(page, "25 ms instead")
    page.keyboard.press("t")
    page.keyboard.press("Home")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "End"):
        page.keyboard.press(key)
    page.get_by_label("Prompt on cache").wait_for()

    session.branch("cache").append(st.assistant("On disk it is slower."))
    wait_for_text(page, "On disk it is slower.")
    page.keyboard.press("ArrowUp")

    page.wait_for_selector(".graph .unseen >> text=A second run takes 40 ms.")
    page.get_by_label("Prompt from here (moves dict)").wait_for()


def test_a_held_key_acts_once(serve: Serve, visit: Visit) -> None:
    session = open_story()
    for _ in range(3):
        session.navigate_sync("HEAD~1")
    page = open_session(visit, serve(), session.id)
    page.locator(".window").focus()
    asked: list[str] = []
    page.on("request", lambda request: request.method == "POST" and asked.append(request.post_data))

    for _ in range(5):
        page.keyboard.down("u")
    page.keyboard.up("u")

    page.wait_for_selector(".toast.on >> text=Undid the move of dict")
    assert len([body for body in asked if '"preview":true' not in body]) == 1


def test_text_typed_while_a_message_is_sent_is_kept(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(allow_run=False), session.id)
    held = DelayedResponse(page, "**/entries")
    field = page.get_by_label("Add a message to dict")
    field.fill("first")
    page.keyboard.press("Enter")
    held.wait()
    field.press_sequentially(" and second")
    held.release()

    page.wait_for_function("() => document.querySelector('.composer textarea').value === 'and second'")
    session.refresh()
    assert list(session.read_lines())[-1].count(b'"first"') == 1


def test_a_saved_message_is_not_restored_as_a_draft_when_loading_fails(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(allow_run=False), session.id)
    page.route("**/branches?*", lambda route: route.abort())
    page.get_by_label("Add a message to dict").fill("only once")
    page.keyboard.press("Enter")

    page.wait_for_selector(".workspace > .notice.wrong")
    page.wait_for_function("() => document.querySelector('.composer textarea').value === ''")
    assert page.locator(".composer .notice").count() == 0


def test_a_draft_is_kept_when_another_page_is_shown(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id)
    page.get_by_label("Prompt on dict").fill("a long prompt")
    page.locator(".window").focus()

    page.keyboard.press("c")
    page.wait_for_selector(".compare")
    page.keyboard.press("Escape")
    assert page.get_by_label("Prompt on dict").input_value() == "a long prompt"
    page.locator(".window").focus()
    page.keyboard.press("s")
    page.locator(".list a").first.click()

    page.wait_for_selector(".composer textarea")
    assert page.get_by_label("Prompt on dict").input_value() == "a long prompt"


def test_a_draft_for_another_branch_shows_a_warning_before_it_is_sent(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(allow_run=False), session.id)
    page.get_by_label("Add a message to dict").fill("for dict")
    session.switch("cache")
    field = page.get_by_label("Add a message to cache")
    field.wait_for()

    field.press("Enter")
    page.wait_for_selector(".composer .notice >> text=You wrote this on dict. Send again to send it to cache")
    assert "for dict" not in read_path(page)
    field.press("Enter")

    wait_for_text(page, "for dict")


def test_the_warning_disappears_when_the_original_branch_is_shown_again(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(allow_run=False), session.id)
    shown = page.get_by_label("Shown branch")
    warned = ".composer .notice >> text=You wrote this on dict. Send again to send it to cache"
    page.get_by_label("Add a message to dict").fill("for dict")
    for _ in range(2):
        shown.select_option("cache")
        page.get_by_label("Add a message to cache").press("Enter")
        page.wait_for_selector(warned)
        shown.select_option("dict")
        page.get_by_label("Add a message to dict").wait_for()
        page.wait_for_selector(".composer .notice", state="detached")

    page.get_by_label("Add a message to dict").press("Enter")

    wait_for_text(page, "for dict")


def test_a_draft_is_sent_to_its_branch_after_a_rename(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(allow_run=False), session.id)
    page.get_by_label("Add a message to dict").fill("for the same branch")
    session.rename_branch("dict", "table")

    page.get_by_label("Add a message to table").press("Enter")

    wait_for_text(page, "for the same branch")


@pytest.mark.parametrize("away", ["c", "cache"])
def test_a_message_that_was_not_sent_is_reported_on_other_pages(serve: Serve, visit: Visit, away: str) -> None:
    session = open_story()
    page = open_session(visit, serve(allow_run=False), session.id)
    held = HeldRequests(page, "**/entries")
    page.get_by_label("Add a message to dict").fill("never heard")
    page.keyboard.press("Enter")
    held.wait()
    if away == "c":
        page.locator(".window").focus()
        page.keyboard.press("c")
        page.wait_for_selector(".compare")
    else:
        page.get_by_label("Shown branch").select_option(away)
        page.get_by_label(f"Add a message to {away}").wait_for()

    held.lose()

    page.wait_for_selector(".toast.on.wrong >> text=Not sent to dict: cannot reach the server")
    assert page.locator(".composer .notice").count() == 0


def test_the_view_stays_when_a_move_is_refused(serve: Serve, visit: Visit) -> None:
    with st.create("fresh") as session:
        session.append(st.user("Begin."))
        session.create_branch("try", current=False).append(st.assistant("Tried."))
    page = open_session(visit, serve(), session.id)
    page.get_by_label("Shown branch").select_option("try")
    wait_for_text(page, "Tried.")

    page.locator(".window").focus()
    page.keyboard.press("u")

    page.wait_for_selector(".toast.wrong")
    assert page.get_by_label("Shown branch").input_value() == "try"
    assert "Tried." in read_path(page)


def test_a_late_response_to_a_move_does_not_change_the_view(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(), session.id)
    wait_for_text(page, "25 ms instead")
    session.navigate_sync("HEAD~1")
    page.wait_for_function("() => !document.querySelector('.path').textContent.includes('25 ms')")
    held = DelayedResponse(page, "**/undo")
    page.locator(".window").focus()
    page.keyboard.press("u")
    held.wait()
    page.get_by_label("Shown branch").select_option("cache")
    wait_for_text(page, "A second run takes 40 ms.")

    held.release()
    page.wait_for_selector(".toast.on >> text=Undid the move of")

    assert page.get_by_label("Shown branch").input_value() == "cache"
    assert "A second run takes 40 ms." in read_path(page)


def test_a_sent_message_is_shown_even_after_scrolling_far_up(serve: Serve, visit: Visit) -> None:
    write_session_file(build_branching_lines(500, every=1000, id="long"), name="long")
    page = open_session(visit, serve(allow_run=False), "long")
    wait_for_text(page, "number 499 ")
    scroll(page, "top", "number 490 ", there=False)

    page.get_by_label("Add a message to main").fill("written far up")
    page.keyboard.press("Enter")

    wait_for_text(page, "written far up")
    page.wait_for_function(
        "() => (w => w.scrollHeight - w.scrollTop - w.clientHeight)(document.querySelector('.window')) < 2"
    )


def test_the_shown_branch_is_followed_when_it_is_renamed(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(), session.id)
    page.get_by_label("Shown branch").select_option("cache")
    page.get_by_label("Prompt on cache").wait_for()

    session.rename_branch("cache", "memory")

    page.get_by_label("Prompt on memory").wait_for()
    wait_for_text(page, "A second run takes 40 ms.")


def test_keys_create_branches_set_labels_navigate_and_undo(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id)
    wait_for_text(page, "25 ms instead")

    page.keyboard.press("l")
    page.get_by_role("textbox", name="Label").fill("done")
    page.keyboard.press("Enter")
    page.wait_for_selector(".path .chip.label >> text=done")
    page.wait_for_selector("dialog", state="detached")

    page.keyboard.press("b")
    page.get_by_label("Name").fill("another")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.where select').value === 'another'")
    page.wait_for_selector("dialog", state="detached")

    page.keyboard.press("t")
    page.keyboard.press("Home")
    page.wait_for_function("() => !document.querySelector('.path').textContent.includes('25 ms')")
    page.keyboard.press("g")
    page.get_by_role("button", name="Go", exact=True).click()
    page.wait_for_function("() => document.querySelector('.composer textarea')?.value.startsWith('The report takes')")
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.wait_for_selector(".toast.on >> text=Undid the move of")
    session.refresh()
    assert session.tree.label(session.resolve_place("dict")) == "done"
    assert session.heads.current == "another"
    assert session.heads.leaf == session.resolve_place("another")


def test_clicks_merge_and_fork(serve: Serve, visit: Visit) -> None:
    session = open_story()
    session.branch("cache").append(st.assistant("On disk it is slower."))
    site = serve()
    page = open_session(visit, site, session.id)

    page.get_by_role("button", name="Merge").click()
    page.locator("dialog select").select_option("cache")
    page.locator("dialog textarea").fill("A **cache** was slower.")
    page.locator("dialog").get_by_role("button", name="Merge").click()
    wait_for_text(page, "A cache was slower.")
    assert page.locator(".entry", has_text="A cache was slower.").locator("h2").text_content() == "Merge"

    page.locator(".entry", has_text="Write the note.").hover()
    page.locator(".entry", has_text="Write the note.").get_by_role("button", name="More actions").click()
    page.locator(".entry", has_text="Write the note.").get_by_role("button", name="Fork").click()
    page.get_by_label("Name of the new session").fill("copy")
    page.locator("dialog").get_by_role("button", name="Fork").click()
    page.wait_for_selector(".head h1 >> text=copy")
    wait_for_text(page, "Write the note.")
    assert "25 ms" not in read_path(page)


def test_images_in_a_conversation_are_shown_if_they_are_images(serve: Serve, visit: Visit) -> None:
    session = open_story()
    shown, broken = (
        build_image_block(base64.b64decode(make_picture()), "image/png"),
        build_image_block(b"<svg onload=alert(1)>", "image/png"),
    )
    session.append(st.user([{"type": "text", "text": "See here."}, shown, broken]))
    session.append(st.tool_result("c9", "look", [shown]))

    page = open_session(visit, serve(), session.id)

    wait_for_text(page, "See here.")
    asked = page.locator(".entry", has_text="See here.")
    asked.get_by_text("[image cannot be shown]").wait_for()
    page.wait_for_function(
        "() => [...document.querySelectorAll('.pictures img')].map((i) => i.naturalWidth).join() === '24,24,24'"
    )
    assert asked.get_by_alt_text("Image 1 of 2").count() == 1
    assert page.locator(".entry.tool").last.locator("h2").text_content() == "Result of look"


def test_failed_tools_and_commands_are_marked(serve: Serve, visit: Visit) -> None:
    with st.create("tools", cwd="/project") as session:
        session.append(st.tool_result("c1", "read", "there is no such file", error=True))
        session.append(st.tool_result("c2", "read", "all of it"))
        session.append(build_bash_execution("false", "it is false", exit_code=1))
        session.append(build_bash_execution("true", "it is true", exit_code=0))

    page = open_session(visit, serve(), session.id)

    wait_for_text(page, "it is true")
    assert page.locator(".entry.failed .block.error").all_text_contents() == [
        "there is no such file",
        "$ false\nit is false",
    ]


def test_a_refused_action_shows_one_line(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id)

    page.keyboard.press("b")
    page.get_by_label("Name").fill("cache")
    page.keyboard.press("Enter")

    page.wait_for_selector("dialog .notice.wrong")
    assert "cache" in page.locator("dialog .notice.wrong").text_content()


def test_without_the_write_scope_the_page_is_read_only(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve(scopes=("read",))
    page = open_session(visit, site, session.id)
    wait_for_text(page, "25 ms instead")

    assert page.locator(".composer").count() == 0
    assert page.get_by_role("button", name="New branch").count() == 0
    assert page.get_by_role("button", name="Undo").count() == 0
    for key in "bflmu":
        page.keyboard.press(key)
    assert page.locator("dialog, .toast.on").count() == 0


def test_a_session_can_be_downloaded_with_secrets_redacted(serve: Serve, visit: Visit) -> None:
    session = open_story()
    session.append(st.user(f"my key is {SECRET}"))
    page = open_session(visit, serve(), session.id)

    page.get_by_role("button", name="Export").click()
    page.get_by_label("Format").select_option("md")
    page.get_by_label("Redact secrets").check()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()

    assert download.value.suggested_filename == "Make the report fast.md"
    text = Path(download.value.path()).read_text()
    assert "The report takes **40 seconds**." in text
    assert SECRET not in text
    report = page.get_by_role("dialog", name="Exported with secrets redacted")
    assert "1 × " in report.get_by_role("listitem").first.text_content()
    report.get_by_role("button", name="Close").click()
    page.wait_for_selector("dialog", state="detached")
    assert page.evaluate("document.activeElement.textContent") == "Export"


def test_the_export_dialog_shows_progress(serve: Serve, visit: Visit) -> None:
    lines = build_lines("comb", 3_000)
    page = open_session(visit, serve(), st.open(write_session_file([*lines, b"no JSON"], name="shape")).id)
    page.get_by_role("button", name="Export").click()
    page.get_by_label("Redact secrets").check()
    page.evaluate(
        """() => {
          window.seen = new Set();
          const look = () => window.seen.add(document.querySelector("dialog [role=status]")?.textContent ?? "");
          new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
        }"""
    )
    with page.expect_download(timeout=120_000):
        page.get_by_role("button", name="Download").click()

    seen = [words for words in page.evaluate("[...window.seen]") if words]
    forms = (
        r"Waiting for other exports…",
        r"Reading…|Reading: [\d,]+ lines",
        r"Redacting: [\d,]+ of 6,002 lines",
        r"Writing: \d+\.\d MB",
    )
    order = [next(index for index, form in enumerate(forms) if re.fullmatch(form, words)) for words in seen]
    assert order == sorted(order)
    assert 2 in order


def test_branches_are_shown_side_by_side_with_charts(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id, "compare?branch=dict&branch=cache")

    page.wait_for_selector(".column .entry")
    result = st.compare(session, ["dict", "cache"])
    charts = page.locator(".chart svg").evaluate_all("all => all.map((svg) => svg.getAttribute('aria-label'))")
    assert [chart.split(":")[0] for chart in charts] == ["Cost", "Tokens", "Time"]
    for stats in result.branches:
        assert f"{stats.name} {stats.tokens:,.0f}" in charts[1]
    assert f"{result.winner} has the lowest cost" in " ".join(page.locator(".verdict").text_content().split())
    columns = page.locator(".column").all_text_contents()
    assert "Take the dict." in columns[0]
    assert "Try the cache." in columns[1]
    assert not any("Where does the time go?" in column for column in columns)


def test_a_metric_that_was_not_recorded_is_unknown_and_cannot_win(serve: Serve, visit: Visit) -> None:
    session = open_story()
    session.create_branch("silent", at="two ways").append(st.user("Only asked."))
    page = open_session(visit, serve(), session.id, "compare?branch=dict&branch=silent")

    page.wait_for_selector(".column .entry")
    charts = page.locator(".chart svg").evaluate_all("all => all.map((svg) => svg.getAttribute('aria-label'))")
    assert charts[0].endswith("silent –")
    assert charts[1].endswith("silent –")
    for chart in page.locator(".chart").all()[:2]:
        assert chart.locator(".best").count() == 0
        assert chart.locator(".bar").count() == 1


# Live updates


APPEND = """
import sys
import sessiontree as st
with st.open(sys.argv[1]) as session:
    session.append(st.assistant("Written by **another** process."))
"""


def test_entries_of_another_process_appear(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id)
    wait_for_text(page, "25 ms instead")
    before = count_drawn(page)

    subprocess.run([sys.executable, "-c", APPEND, str(session.file)], check=True, timeout=30)

    wait_for_text(page, "Written by another process.")
    assert page.locator(".path strong", has_text="another").count() == 1
    wait_for_drawn(page, before + 1)


def test_branches_that_another_process_changed_are_updated(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(), session.id, "branches")
    cache = page.locator(".branches li", has_text="cache")
    before = int(cache.locator(".fact").text_content().split()[0])
    assert page.locator(".branches .chip", has_text="archived").count() == 0

    session.branch("cache").append(st.user("And then?"))
    cache.locator(".fact", has_text=f"{before + 1} entries").wait_for()
    session.archive_branch("cache")

    cache.locator(".chip", has_text="archived").wait_for()
    cache.get_by_role("button", name="Restore").wait_for()


def test_an_answer_is_streamed_and_then_saved(serve: Serve, visit: Visit) -> None:
    session = open_story()
    model = ScriptedModel([[Thinking("hm"), "The first words, ", Delay(3), "and **the** last."]])
    site = serve(model)
    page = open_session(visit, site, session.id)
    page.get_by_label("Prompt on dict").fill("Tell me more.")
    page.keyboard.press("Enter")

    wait_for_text(page, "The first words,", ".streaming")
    assert "and the last" not in read_path(page)
    page.wait_for_selector(".path strong >> text=the")
    assert page.locator(".streaming").count() == 0
    assert page.locator(".path").text_content().count("The first words") == 1
    session.refresh()
    assert [entry.type for entry in list(session.tree.walk_up(session.heads.leaf))[:2]] == ["message", "message"]


def test_a_model_error_is_shown_once(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(ScriptedModel([ModelError("scripted:scripted", "auth", "no key")])), session.id)
    page.get_by_label("Prompt on dict").fill("Go on.")
    page.keyboard.press("Enter")

    page.wait_for_selector(".entry.failed >> text=no key")
    page.get_by_label("Prompt on dict").wait_for()
    page.wait_for_selector(".streaming", state="detached")
    assert read_path(page).count("no key") == 1


def test_a_running_agent_is_steered_and_stopped(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve(ScriptedModel([["Never ", Delay(60), "done."]]))
    page = open_session(visit, site, session.id)
    page.get_by_label("Prompt on dict").fill("Go on.")
    page.keyboard.press("Enter")
    wait_for_text(page, "Never", ".streaming")
    page.get_by_label("Message the running agent").fill("Hurry.")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.composer textarea').value === ''")
    wait_for_text(page, "Queued: Hurry.", ".streaming")

    page.get_by_label("Message the running agent").fill("Not sent yet.")
    page.get_by_role("button", name="Stop").click()

    page.wait_for_selector(".streaming", state="detached")
    assert page.get_by_role("button", name="Stop").count() == 0
    page.get_by_text("It is in the text field again.").wait_for()
    assert page.get_by_label("Prompt on dict").input_value() == "Hurry.\n\nNot sent yet."


def test_the_composer_names_the_model_of_the_shown_branch(serve: Serve, visit: Visit) -> None:
    session = open_story()
    start = session.append(st.user("Which?"), branch="main")
    session.create_branch("second", at=start, current=False)
    session.append(st.assistant("One.", provider="p", model="one"), branch="main")
    session.append(st.assistant("Two.", provider="p", model="two"), branch="second")
    page = visit(serve())
    models = {"models": [{"name": f"p:{name}", "ready": True} for name in ("one", "two")]}
    page.route("**/api/models", lambda route: route.fulfill(json=models))
    page.reload()
    for branch, model in (("main", "one"), ("second", "two"), ("main", "one")):
        page.goto(f"{page.url.split('#')[0]}#/s/{session.id}/talk?branch={branch}")
        page.get_by_placeholder(f"p:{model} (current)").wait_for()


def test_the_dialog_for_a_new_branch_names_the_chosen_entry_and_starts_there(serve: Serve, visit: Visit) -> None:
    session = open_story()
    chosen = session.append(st.user("Start here."))
    session.append(st.assistant("An answer."))
    page = open_session(visit, serve(), session.id)
    page.goto(f"{page.url.split('#')[0]}#/s/{session.id}/talk?entry={chosen.id}")
    page.locator(".entry.chosen", has_text="Start here.").wait_for()

    page.get_by_role("button", name="New branch").click()
    page.wait_for_selector("dialog >> text=Starts after “Start here.”.")
    page.locator("dialog input").first.fill("other")
    page.get_by_role("button", name="Create").click()

    page.wait_for_selector(".where option >> text=other · current", state="attached")
    session.refresh()
    assert session.branch("other").path()[-2].id == chosen.id


def test_after_a_server_restart_no_agent_is_shown_as_running(visit: Visit) -> None:
    session = open_story()
    with run_dashboard(ScriptedModel([["Never ", Delay(60), "done."]])) as first:
        page = open_session(visit, first, session.id)
        page.get_by_label("Prompt on dict").fill("Go on.")
        page.keyboard.press("Enter")
        wait_for_text(page, "Never", ".streaming")
    with run_dashboard(after=first):
        page.wait_for_selector(".link.live")

        page.get_by_label("Prompt on dict").wait_for()
        page.wait_for_selector(".streaming", state="detached")
        page.context.close()


def test_a_response_older_than_an_event_does_not_revert_the_view(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(), session.id)
    wait_for_text(page, "25 ms instead")
    held = DelayedResponse(page, "**/branches?*")
    session.append(st.user("first words"))
    wait_for_text(page, "first words")
    held.wait()
    session.append(st.user("later words"))
    wait_for_text(page, "later words")
    page.evaluate(
        """() => {
          window.lost = false;
          const look = () => { window.lost ||= !document.body.innerText.includes("later words"); };
          new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
        }"""
    )

    held.release()
    session.append(st.user("words at the end"))
    wait_for_text(page, "words at the end")

    assert page.evaluate("window.lost") is False


def test_a_broken_stream_resumes_after_the_last_event(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id)
    wait_for_text(page, "25 ms instead")
    before = count_drawn(page)

    site.drop_connections()
    page.wait_for_selector(".link.waiting")
    session.append(st.user("written while disconnected"))

    wait_for_text(page, "written while disconnected")
    wait_for_drawn(page, before + 1)


def test_a_rewritten_session_is_reloaded(serve: Serve, visit: Visit) -> None:
    write_session_file(make_long_session(6), name="long")
    page = open_session(visit, serve(), "long")
    wait_for_text(page, "number 5")

    write_session_file([line.replace(b"number", b"figure") for line in make_long_session(4)], name="long")

    wait_for_text(page, "figure 3")
    assert "number 5" not in read_path(page)
    wait_for_drawn(page, 4)


def test_the_view_stays_when_the_session_is_reloaded(serve: Serve, visit: Visit) -> None:
    with st.create("two ways") as session:
        session.append(st.user("Begin."))
        session.create_branch("try", current=False).append(st.assistant("Tried."))
        session.append(st.user("Go on."))
    page = open_session(visit, serve(), session.id)
    page.get_by_label("Shown branch").select_option("try")
    wait_for_text(page, "Tried.")

    lines = Path(session.file).read_bytes().splitlines(keepends=True)
    Path(session.file).write_bytes(b"".join(lines[:-1]).replace(b"Tried.", b"Tried anew."))

    wait_for_text(page, "Tried anew.")
    assert page.get_by_label("Shown branch").input_value() == "try"


def test_a_late_path_does_not_hide_newer_entries(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(), session.id)
    wait_for_text(page, "25 ms instead")
    before = count_drawn(page)
    page.locator("#graph").focus()
    page.keyboard.press("ArrowUp")
    page.wait_for_function("() => !document.querySelector('.path').textContent.includes('25 ms')")
    held = DelayedResponse(page, "**/path?**")
    page.keyboard.press("Escape")
    held.wait()

    session.append(st.user("the latest words"))
    wait_for_drawn(page, before + 1)
    page.wait_for_timeout(300)
    held.release()

    wait_for_text(page, "the latest words")


def test_entries_that_arrive_while_the_tree_loads_are_added_to_it(serve: Serve, visit: Visit) -> None:
    session = st.open(write_session_file(build_branching_lines(1500, every=1000, id="tree"), name="tree"))
    page = open_session(visit, serve(), "tree")
    count = page.locator(".tools .fact")
    count.get_by_text("1,500").wait_for()
    asked: list[str] = []
    page.on("request", lambda request: "/tree?" in request.url and asked.append(request.url))
    held = DelayedResponse(page, re.compile(r"/tree\?.*cursor="))

    page.get_by_label("Tree filter").select_option("no-tools")
    held.wait()
    session.append(st.user("written meanwhile"))
    wait_for_text(page, "written meanwhile")
    held.release()

    count.get_by_text("1,501").wait_for()
    page.wait_for_selector(".graph .unseen >> text=written meanwhile")
    assert len(asked) == 2


def test_the_tree_stays_complete_while_it_reloads(serve: Serve, visit: Visit) -> None:
    session = st.open(write_session_file(build_branching_lines(1500, every=1000, id="tree"), name="tree"))
    page = open_session(visit, serve(), "tree")
    page.locator(".tools .fact").get_by_text("1,500").wait_for()
    held = DelayedResponse(page, re.compile(r"/tree\?.*cursor="))

    session.label(session.heads.leaf, "here")
    held.wait()
    assert page.locator(".tools .fact").text_content() == "1,500"
    held.release()

    page.wait_for_selector(".path .chip.label >> text=here")


def test_entries_written_before_the_stream_opens_are_shown(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    page = visit(site)
    page.route("**/events", lambda route: route.abort())
    page.goto(f"{site.url}/#/s/{session.id}/talk")
    wait_for_text(page, "25 ms instead")
    before = count_drawn(page)

    session.append(st.user("said before anybody heard"))
    page.unroute("**/events")

    wait_for_text(page, "said before anybody heard")
    wait_for_drawn(page, before + 1)


SEEN = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_a_hidden_page_keeps_no_connection_and_misses_nothing(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = open_session(visit, serve(), session.id)
    wait_for_text(page, "25 ms instead")
    before = count_drawn(page)

    page.evaluate(SEEN, True)
    page.wait_for_selector(".link.waiting")
    session.append(st.user("written while hidden"))
    page.wait_for_timeout(1500)
    assert "written while hidden" not in read_path(page)
    page.evaluate(SEEN, False)

    wait_for_text(page, "written while hidden")
    wait_for_drawn(page, before + 1)


def test_a_page_that_was_left_keeps_no_connection_and_misses_nothing(serve: Serve, visit: Visit) -> None:
    """A browser keeps pages for "back" without timers; five of them would use all of its connections."""
    session = open_story()
    page = open_session(visit, serve(), session.id)
    wait_for_text(page, "25 ms instead")

    page.clock.install()  # no timer runs
    page.evaluate("window.dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
    page.wait_for_selector(".link.waiting")
    session.append(st.user("written while away"))
    page.evaluate("window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")

    wait_for_text(page, "written while away")


# Large sessions and small screens


def test_ten_thousand_entries_are_drawn_a_window_at_a_time(serve: Serve, visit: Visit) -> None:
    """Drawn entries are counted instead of measuring time: a frame draws only visible entries."""
    write_session_file(build_branching_lines(10_000, every=100), name="many")
    site = serve()
    page = open_session(visit, site, "many")
    page.wait_for_function("() => document.querySelector('.tools .fact').textContent === '10,000'")
    counts = [count_drawn(page)]
    page.keyboard.press("t")
    for keys in (["0"], ["Home"], ["+"] * 12, ["End"], ["-"] * 6):
        for key in keys:
            page.keyboard.press(key)
        counts.append(count_drawn(page))
    box = page.locator("#graph").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 300)
    page.mouse.wheel(0, -4000)
    counts.append(count_drawn(page))
    scale = float(page.locator("#graph").get_attribute("data-scale"))
    page.keyboard.down("Control")
    page.mouse.wheel(0, 300)
    page.keyboard.up("Control")
    counts.append(count_drawn(page))

    assert float(page.locator("#graph").get_attribute("data-scale")) < scale
    assert all(0 < count < 500 for count in counts), counts
    assert page.locator(".entry").count() <= 120


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_tabs_instead_of_panes(serve: Serve, visit: Visit, scheme: str) -> None:
    session = open_story()
    site = serve()
    page = open_session(visit, site, session.id, **PHONE, color_scheme=scheme)
    wait_for_text(page, "25 ms instead")

    assert page.locator("#graph").is_hidden()
    page.get_by_role("link", name="Tree", exact=True).tap()
    page.locator("#graph").tap(position={"x": MARGIN + 20, "y": MARGIN + ROW})
    page.get_by_role("link", name="Conversation").tap()
    page.wait_for_function("() => !document.querySelector('.path').textContent.includes('25 ms')")
    assert "I will read it first." in read_path(page)
    for name in ("Branches", "Compare", "A/B", "Tree"):
        page.get_by_role("link", name=name, exact=True).tap()
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name


# Unusual names, problems and positions


@pytest.mark.parametrize("name", ["constructor", "__proto__", "toString", "hasOwnProperty"])
def test_a_branch_may_have_the_name_of_an_object_property(serve: Serve, visit: Visit, name: str) -> None:
    session = open_story()
    session.create_branch(name, at="HEAD").append(st.user("On a branch with an odd name."))
    page = open_session(visit, serve(), session.id)

    page.get_by_label(f"Prompt on {name}").wait_for()
    wait_for_text(page, "On a branch with an odd name.")
    session.switch("main")
    page.get_by_label("Prompt on main").wait_for()
    page.get_by_label("Shown branch").select_option(name)
    page.get_by_label(f"Prompt on {name}").wait_for()

    session.rename_branch(name, "plain")
    page.get_by_label("Prompt on plain").wait_for()
    session.rename_branch("plain", name)
    page.get_by_label(f"Prompt on {name}").wait_for()
    page.get_by_role("link", name="Compare").click()
    page.wait_for_selector(f".column[aria-label='Branch {name}'] >> text=On a branch with an odd name.")


def test_a_tool_call_without_a_result_is_not_reported_as_damage(serve: Serve, visit: Visit) -> None:
    session = st.create("busy")
    session.head.extend([st.user("Look."), st.assistant([st.tool_call("c1", "bash", {"command": "ls"})])])
    assert [problem.severity for problem in session.problems] == ["note"]

    page = open_session(visit, serve(), session.id)

    assert page.get_by_text("This session is damaged").count() == 0
    assert page.get_by_text("1 note").count() == 1


def test_damage_and_notes_are_distinguished(serve: Serve, visit: Visit) -> None:
    session = st.create("busy")
    session.head.extend([st.user("Look."), st.assistant([st.tool_call("c1", "bash", {"command": "ls"})])])
    session.close()
    with open(session.file, "ab") as file:
        file.write(b'{"type":"message","id":"broken\n')

    page = open_session(visit, serve(), session.id)

    page.get_by_text("This session is damaged: 1 problem").wait_for()
    assert page.get_by_text("1 note").count() == 1


def read_current_entry(page: Any) -> str | None:
    """Return the entry that the tree marks as the current one."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.locator("#graph").get_attribute("data-here")


def test_the_current_position_stays_marked_when_the_filter_hides_it(serve: Serve, visit: Visit) -> None:
    write_session_file(build_branching_lines(60, every=1000, id="long"), name="long")
    session = st.open("long")
    asked = session.head.append(st.user("Look.")).id
    session.head.append(st.assistant("I looked."))
    page = open_session(visit, serve(), "long", "tree")
    count_drawn(page)

    page.get_by_label("Tree filter").select_option("user-only")
    page.wait_for_function("() => document.querySelector('.graph .hint')")

    assert read_current_entry(page) == asked
    assert "filter hides the current entry" in page.locator(".graph .hint").text_content()
    page.get_by_role("button", name="Go to the current entry").click()
    assert read_current_entry(page) == asked
    x, y = map(float, page.locator("#graph").get_attribute("data-here-at").split())
    box = page.locator("#graph").bounding_box()
    assert 0 < x < box["width"]
    assert 0 < y < box["height"]

    page.get_by_label("Tree filter").select_option("default")
    page.wait_for_function("() => !document.querySelector('.graph .hint')")
    assert read_current_entry(page) == session.head.leaf


def test_the_shown_path_stays_highlighted_when_the_filter_hides_its_end(serve: Serve, visit: Visit) -> None:
    session = open_story()
    session.switch("main")
    asked = session.create_branch("side", at="HEAD").append(st.user("Beside it.")).id
    session.append(st.assistant("Beside."))
    session.switch("dict")
    page = open_session(visit, serve(), session.id)
    page.get_by_label("Shown branch").select_option("side")
    wait_for_text(page, "Beside.")

    page.get_by_label("Tree filter").select_option("user-only")

    page.wait_for_selector(f"#graph[data-path-end='{asked}']")


def test_the_page_names_the_undone_operation(serve: Serve, visit: Visit) -> None:
    session = open_story()
    session.switch("main")
    session.create_branch("try", at="HEAD").append(st.user("Try it."))
    session.switch("main")
    leaf = session.head.leaf
    page = open_session(visit, serve(), session.id)
    page.keyboard.press("m")
    page.get_by_role("dialog").get_by_role("combobox").select_option("try")
    page.get_by_role("dialog").get_by_role("textbox").fill("It works.")
    page.get_by_role("dialog").get_by_role("button", name="Merge").click()
    page.wait_for_selector("dialog", state="detached")
    wait_for_text(page, "It works.")

    page.keyboard.press("u")

    page.wait_for_selector(".toast.on >> text=Undid the merge of try into main")
    session.refresh()
    assert (session.head.name, session.head.leaf) == ("main", leaf)


def test_a_model_can_be_selected_by_typing_and_is_sent_with_the_prompt(
    serve: Serve, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SingleModel, "list_names", lambda self: ["scripted:scripted", "scripted:other"])
    wanted: list[str | None] = []
    find = SingleModel.find
    monkeypatch.setattr(SingleModel, "find", lambda self, name=None: (wanted.append(name), find(self, name))[1])
    session = open_story()
    page = visit(serve(ScriptedModel(["Yes."])), f"/s/{session.id}/talk")
    field = page.get_by_label("Model", exact=True)
    field.fill("scripted:other")
    assert "(current)" in field.get_attribute("placeholder")
    page.locator(".composer textarea").fill("Well?")
    page.get_by_role("button", name="Send").click()
    page.locator(".path").get_by_text("Yes.", exact=True).first.wait_for()

    assert "scripted:other" in wanted
