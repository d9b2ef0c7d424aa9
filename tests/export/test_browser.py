"""The exported page in a real browser, on a desktop and on a phone."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

import sessiontree as st
from sessiontree.core.context import build_context
from sessiontree.core.entry_text import format_entry_row
from sessiontree.core.outline import FILTERS, build_outline
from sessiontree.export import export
from sessiontree.export.entry_view import make_visible
from sessiontree.export.html_page import render_html
from sessiontree.export.snapshot import Snapshot, read_snapshot
from tests.export.conftest import Open
from tests.export.sessions import make_long_session, make_story
from tests.strategies import sessions

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@cache
def render_story() -> bytes:
    return export(make_story().read_lines()).content


def list_titles(visited: Any) -> list[str]:
    """Return the titles of the shown entries."""
    return visited.locator("#path article h3").all_text_contents()


def list_rows(visited: Any) -> list[str]:
    return visited.locator(".row").all_inner_texts()


def find_row(visited: Any, words: str) -> Any:
    return visited.locator(".row", has_text=words).first


def test_the_page_opens_with_the_active_path_and_its_leaf(visit: Open) -> None:
    visited = visit(render_story())

    assert list_titles(visited)[:3] == ["Model", "Thinking level", "User"]
    assert list_titles(visited)[-1] == "Assistant"
    assert visited.title() == "Make the report fast"
    assert "← active" in find_row(visited, "25 ms instead").inner_text()
    assert visited.locator("#reset").is_hidden()


def test_a_path_of_one_entry_uses_the_singular(visit: Open) -> None:
    session = st.memory()
    session.append(st.user("alone"))
    visited = visit(export(session.read_lines()).content)

    assert visited.locator("#where").text_content() == "main · 1 entry"


def test_selecting_an_entry_shows_its_path_and_escape_returns(visit: Open) -> None:
    visited = visit(render_story())

    find_row(visited, "A second run").click()
    assert "A second run takes 40 ms." in visited.locator("#path").text_content()
    assert "Take the dict." not in visited.locator("#path").text_content()
    visited.keyboard.press("Escape")
    assert "Take the dict." in visited.locator("#path").text_content()

    find_row(visited, "Try the cache").click()
    assert "A second run" not in visited.locator("#path").text_content()
    visited.get_by_role("button", name="Reset view").click()
    assert "25 ms instead" in visited.locator("#path").text_content()


@pytest.mark.parametrize("filter", FILTERS)
def test_the_tree_is_drawn_as_in_the_terminal(visit: Open, filter: str) -> None:
    session = make_story()
    visited = visit(render_story())

    visited.select_option("#filter", label=filter)

    assert read_drawn_rows(visited) == draw_rows(read_snapshot(session.read_lines()), filter)


def read_drawn_rows(visited: Any) -> list[tuple[str, str, list[str]]]:
    """Return the rows of the page: connectors, text, and branch names in any order."""
    script = """[...document.querySelectorAll('.row')].map((row) => [
      (row.querySelector('.depth')?.textContent ?? '') + row.querySelector('.rail').textContent,
      row.querySelector('.words').textContent, [...row.querySelectorAll('.branch')].map((name) => name.textContent)])"""
    return [(prefix, words, sorted(branches)) for prefix, words, branches in visited.evaluate(script)]


def draw_rows(whole: Snapshot, filter: str) -> list[tuple[str, str, list[str]]]:
    """Return the same rows as the terminal shows them."""
    return [
        (row.prefix, make_visible(format_entry_row(row.entry, whole.calls)), sorted(map(make_visible, row.branches)))
        for row in build_outline(whole.tree, whole.leaf, filter, whole.heads)
    ]


def test_any_session_is_drawn_and_sent_by_the_page_as_by_the_library(visit: Open) -> None:
    """The script draws the rows of `outline`, and its model's view has the entries of `Context.build_request`."""
    visited = visit(render_story())
    checked = 0

    @settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
    @given(sessions())
    def check(data: bytes) -> None:
        nonlocal checked
        whole = read_snapshot(data.split(b"\n")[:-1])
        visited.set_content("".join(render_html(whole)), wait_until="commit")
        visited.wait_for_selector("html[data-ready]", state="attached")
        for number, filter in enumerate(FILTERS):
            visited.evaluate(f"document.getElementById('filter').value = '{number}'")
            visited.dispatch_event("#filter", "change")
            assert read_drawn_rows(visited) == draw_rows(whole, filter)
        visited.keyboard.press("m")
        assert visited.evaluate("[...document.querySelectorAll('#path article')].map(a => a.id)") == list_sent_entries(
            whole
        )
        visited.keyboard.press("Escape")
        checked += 1

    check()
    assert checked > 10


def list_sent_entries(whole: Snapshot) -> list[str]:
    """Return the entries of a request, once each, by their ids on the page."""
    numbers = {entry.id: number for number, (entry, _) in enumerate(whole.tree.walk(whole.leaf))}
    ids = dict.fromkeys(id for id, _ in build_context(whole.tree, whole.leaf).build_request())
    return [f"e{numbers[id]}" for id in ids]


def test_the_models_view_has_results_in_the_order_of_their_calls(visit: Open) -> None:
    session = st.memory()
    session.append(st.assistant([st.tool_call(id, "read", {"path": id}) for id in ("a", "b")]))
    session.append(st.tool_result("b", "read", "second"))
    session.append(st.tool_result("a", "read", "first"))

    visited = visit(export(session.read_lines()).content, fragment="#view=model")

    assert list_titles(visited) == ["Assistant", "read a", "read b"]


def test_an_empty_session_opens(visit: Open) -> None:
    visited = visit(export(st.memory().read_lines()).content)

    assert "No entries" in visited.locator("#path").text_content()
    visited.keyboard.press("m")
    visited.keyboard.press("Escape")


def test_unfolded_parts_stay_unfolded_on_other_paths(visit: Open) -> None:
    visited = visit(render_story())

    visited.keyboard.press("o")
    find_row(visited, "A second run").click()

    assert visited.locator("details.fold[open]").count() == 1


def test_the_models_view_starts_with_the_compaction_and_hides_unsent_entries(visit: Open) -> None:
    visited = visit(render_story())

    visited.get_by_role("button", name="Model’s view").click()

    assert list_titles(visited)[0] == "Compaction"
    assert "I will read it first." not in visited.locator("#path").text_content()
    assert "overloaded" not in visited.locator("#path").text_content()
    visited.keyboard.press("m")
    assert "I will read it first." in visited.locator("#path").text_content()


def test_search_covers_all_branches_and_folded_outputs(visit: Open) -> None:
    visited = visit(render_story())

    def search(words: str) -> list[str]:
        visited.fill("#search", words)
        visited.wait_for_timeout(150)
        return list_rows(visited)

    assert len(search("LINE 57")) == 1
    assert any("Try the cache" in text for text in search('"the cache"'))
    assert search("role:user decimal") == []
    assert all("user:" in text for text in search("role:user"))
    assert search("quadr*") != []
    assert search("uadratic*") == []
    assert "0 of" in visited.locator("#count").inner_text()
    visited.locator("#search").press("Escape")
    assert len(list_rows(visited)) > 10


def test_branches_fold_and_unfold(visit: Open) -> None:
    visited = visit(render_story())
    before = len(list_rows(visited))

    find_row(visited, "[branch cache").locator(".fold").click()
    assert len(list_rows(visited)) == before - 2
    assert find_row(visited, "[branch cache").get_attribute("aria-expanded") == "false"
    visited.get_by_role("button", name="Unfold all").click()
    assert len(list_rows(visited)) == before


def test_the_tree_works_with_the_keyboard(visit: Open) -> None:
    visited = visit(render_story())

    visited.keyboard.press("/")
    assert visited.evaluate("document.activeElement.id") == "search"
    visited.keyboard.type("cache")
    visited.wait_for_timeout(150)
    visited.keyboard.press("Enter")
    assert visited.evaluate("document.activeElement.id") == "tree"
    visited.keyboard.press("End")
    visited.keyboard.press("Enter")
    assert "A second run takes 40 ms." in visited.locator("#path").text_content()
    visited.keyboard.press("ArrowLeft")
    visited.keyboard.press("ArrowLeft")
    assert len(list_rows(visited)) < 6
    visited.keyboard.press("ArrowRight")
    visited.keyboard.press("Escape")
    assert "Take the dict." in visited.locator("#path").text_content()


def test_entries_are_stepped_through_with_j_and_k(visit: Open) -> None:
    visited = visit(render_story())

    for _ in range(3):
        visited.keyboard.press("j")
    visited.keyboard.press("k")

    assert visited.evaluate("document.activeElement.querySelector('h3').textContent") == "Thinking level"


def test_links_lead_to_a_leaf_and_to_an_entry(visit: Open) -> None:
    session = make_story()
    leaf, entry = session.resolve_place("cache"), session.resolve_place("two ways")

    visited = visit(render_story(), fragment=f"#leaf={leaf}&entry={entry}")

    assert "A second run takes 40 ms." in visited.locator("#path").text_content()
    assert "Two ways" in visited.locator("article.target").text_content()
    elsewhere = visit(render_story(), fragment=f"#entry={entry}")
    assert "25 ms instead" in elsewhere.locator("#path").text_content()
    assert "Two ways" in elsewhere.locator("article.target").text_content()


def test_an_invalid_link_shows_the_active_path(visit: Open) -> None:
    assert "25 ms instead" in visit(render_story(), fragment="#leaf=gone&entry=<x>").locator("#path").text_content()


def test_browser_back_restores_the_previous_view(visit: Open) -> None:
    visited = visit(render_story())

    find_row(visited, "A second run").click()
    visited.go_back()

    visited.wait_for_function("document.querySelector('#path').textContent.includes('Take the dict.')")


def test_the_copied_text_is_the_shown_text(visit: Open) -> None:
    visited = visit(render_story(), permissions=["clipboard-read", "clipboard-write"])

    code = visited.locator(".prose pre").first
    code.hover()
    code.locator(".copy").click()
    assert visited.evaluate("navigator.clipboard.readText()") == "first = {}  # a dict\n"
    article = visited.locator("article", has_text="Where does the time go?").first
    article.hover()
    article.locator(".copy-entry").click()
    assert "40 seconds" in visited.evaluate("navigator.clipboard.readText()")
    article.locator(".link").click()
    assert "#entry=" in visited.evaluate("navigator.clipboard.readText()")
    assert visited.locator("#toast").inner_text() == "Link copied"


def test_two_branches_are_shown_side_by_side_with_their_metrics(visit: Open) -> None:
    visited = visit(render_story())

    visited.get_by_role("button", name="Compare").click()

    sides = visited.locator("#versus .side").all_text_contents()
    assert "Take the dict." in sides[0]
    assert "Try the cache." in sides[1]
    assert not any("Where does the time go?" in side for side in sides)
    figures = visited.locator("#versus table").inner_text()
    result = st.diff(make_story(), "dict", "cache")
    for stats in result.stats:
        assert f"${stats.cost:.4f}" in figures
        assert f"{stats.tokens:,.0f}" in figures
    visited.get_by_label("Second branch").select_option("main")
    assert "No entries." in visited.locator("#versus").text_content()
    visited.keyboard.press("Escape")
    assert visited.locator("#path").is_visible()


def test_thinking_and_outputs_unfold_together(visit: Open) -> None:
    visited = visit(render_story())

    assert not visited.get_by_text("Measure before guessing.").is_visible()
    visited.keyboard.press("t")
    assert visited.get_by_text("Measure before guessing.").is_visible()
    visited.keyboard.press("o")
    assert visited.get_by_text("line 57").is_visible()


def test_the_tree_can_be_resized_and_hidden(visit: Open) -> None:
    visited = visit(render_story())
    width = visited.locator("#sidebar").bounding_box()["width"]

    grip = visited.locator("#grip").bounding_box()
    visited.mouse.move(grip["x"] + 3, 300)
    visited.mouse.down()
    visited.mouse.move(grip["x"] + 123, 300)
    visited.mouse.up()
    assert visited.locator("#sidebar").bounding_box()["width"] > width + 100
    visited.locator("#grip").press("ArrowLeft")
    assert visited.locator("#grip").get_attribute("aria-valuenow") == str(
        round(visited.locator("#sidebar").bounding_box()["width"])
    )
    visited.keyboard.press("b")
    assert visited.locator("#sidebar").is_hidden()
    visited.get_by_role("button", name="Show the tree").click()
    assert visited.locator("#sidebar").is_visible()


def test_on_a_phone_the_tree_is_hidden_before_the_script_runs(visit: Open) -> None:
    visited = visit(render_story(), **PHONE)
    visited.get_by_role("button", name="Show the tree").tap()
    assert visited.locator("#sidebar").is_visible()

    visited.evaluate("() => document.documentElement.removeAttribute('data-ready')")

    assert not visited.locator("#sidebar").is_visible()


def test_on_a_phone_the_tree_is_hidden_at_first(visit: Open) -> None:
    visited = visit(render_story(), **PHONE)

    assert visited.locator("#sidebar").is_hidden()
    visited.get_by_role("button", name="Show the tree").tap()
    find_row(visited, "Try the cache").tap()
    assert visited.locator("#sidebar").is_hidden()
    assert "Try the cache." in visited.locator("#path").text_content()


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desk", "phone"])
def test_no_element_is_wider_than_the_window(visit: Open, options: dict[str, Any]) -> None:
    visited = visit(render_story(), **options)

    assert visited.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert visited.evaluate("reading.scrollWidth <= reading.clientWidth")


@pytest.mark.parametrize("options", [{}, PHONE], ids=["desk", "phone"])
def test_in_a_wide_tree_connectors_scroll_out_and_text_stays_visible(visit: Open, options: dict[str, Any]) -> None:
    session = st.memory()
    session.append(st.user("start"))
    for number in range(25):
        tried = session.tree[session.head.leaf or ""]
        session.append(st.assistant(f"first try {number}"), parent=tried, branch=None)
        session.append(st.assistant(f"second try {number}"), parent=tried)
    visited = visit(export(session.read_lines()).content, **options)
    if options:
        visited.get_by_role("button", name="Show the tree").tap()
    out_of_sight = """[...document.querySelectorAll('.row')].filter((row) => {
      const words = row.querySelector('.words').getBoundingClientRect(), side = tree.getBoundingClientRect();
      return words.left < side.left || words.right > side.right || words.width < 90; }).map((row) => row.textContent)"""

    assert "second try 24" in visited.locator(".row.cursor").inner_text()
    assert visited.evaluate(out_of_sight) == []

    visited.locator("#tree").press("Home")
    assert visited.evaluate(out_of_sight) == []
    assert visited.locator(".row.cursor .rail.cut").count() == 0


def test_light_and_dark_follow_the_system_and_can_be_changed(visit: Open) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    light, dark = visit(render_story()), visit(render_story(), color_scheme="dark")

    assert light.evaluate(paper) != dark.evaluate(paper)
    light.get_by_role("button", name="Switch theme").click()
    assert light.evaluate(paper) == dark.evaluate(paper)


CONTRAST = (Path(__file__).parent / "contrast.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(visit: Open, scheme: str) -> None:
    visited = visit(render_story(), color_scheme=scheme)
    visited.keyboard.press("t")

    assert visited.evaluate(CONTRAST) == []


def test_every_control_has_a_name_and_the_keyboard_reaches_them_in_reading_order(visit: Open) -> None:
    visited = visit(render_story())
    reached: list[str] = []

    for _ in range(14):
        visited.keyboard.press("Tab")
        reached.append(visited.evaluate("document.activeElement.id || document.activeElement.className"))

    expected = [
        "skip",
        "search",
        "hide",
        "filter",
        "fold",
        "tree",
        "grip",
        "model",
        "thinking",
        "outputs",
        "compare",
        "theme",
    ]
    assert [name for name in reached if name in expected] == expected
    named = visited.evaluate(
        "[...document.querySelectorAll('button, input, select, [role=tree], [role=separator], nav, aside, section')]"
        ".filter(e => !(e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML)"
    )
    assert named == []


def test_the_tree_announces_the_position_to_screen_readers(visit: Open) -> None:
    visited = visit(render_story())

    at = visited.locator("#tree").get_attribute("aria-activedescendant")
    assert "25 ms instead" in visited.locator(f"#{at}").inner_text()
    assert visited.locator(f"#{at}").get_attribute("aria-selected") == "true"
    assert visited.locator(f"#{at}").get_attribute("role") == "treeitem"


def test_printing_shows_the_complete_conversation_and_nothing_else(visit: Open) -> None:
    visited = visit(export(make_long_session(400)).content)

    visited.evaluate("dispatchEvent(new Event('beforeprint'))")
    visited.emulate_media(media="print")

    assert visited.locator("#sidebar").is_hidden()
    assert visited.locator("#bar").is_hidden()
    assert visited.locator("#path article").count() == 400


def test_without_a_script_the_active_path_is_read_and_no_dead_controls_are_shown(visit: Open) -> None:
    visited = visit(export(make_long_session(300)).content, java_script_enabled=False)

    assert visited.locator("#path article").count() == 300
    assert visited.locator("#sidebar").is_hidden()
    assert visited.locator("#bar").is_hidden()


def test_pages_of_recorded_sessions_open_without_an_error(visit: Open) -> None:
    from tests.conformance.test_recorded import DATA  # files written by the real pi

    for file in sorted(DATA.glob("**/*.jsonl")):
        visited = visit(export(file.read_bytes().split(b"\n")[:-1]).content)
        assert visited.locator("#path article").count() > 0
        visited.context.close()


def test_ten_thousand_entries_open_and_respond_within_two_seconds(visit: Open) -> None:
    """The page reports when it is ready. The goal is one second; a busy machine gets two."""
    made = export(make_long_session(10_000)).content

    visited = visit(made)
    ready = visited.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    begin = time.monotonic()
    visited.locator("#tree").press("Home")
    visited.locator("#tree").press("Enter")
    visited.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    answered = time.monotonic() - begin

    assert ready < 2000
    assert answered < 2
    assert visited.locator(".row").count() < 100
    assert visited.locator("#path article").count() == 1
