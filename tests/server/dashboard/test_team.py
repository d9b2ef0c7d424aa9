"""What a team uses on the page: share links, names, the overview and the activity of tokens."""

from __future__ import annotations

import re
from typing import Any

import pytest

import sessiontree as st
from sessiontree.server.auth import TokenStore, issue_token
from tests.export.sessions import SECRET
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.site import open_story

HOSTILE = "<img src=x onerror=fetch('/api/me')><script>fetch('/api/me')</script>"


def create_link(page: Any, *, branch: str = "", redact: bool = True) -> str:
    """Create a share link in the dialog and return it."""
    page.get_by_role("button", name="Share").first.click()
    dialog = page.get_by_role("dialog", name="Share")
    dialog.get_by_label("What to share").select_option(branch)
    dialog.get_by_label("Redact secrets").set_checked(redact)
    dialog.get_by_role("button", name="Create link").click()
    return dialog.locator(".link-field").input_value()


def open_link(page: Any, link: str) -> Any:
    """Open a link in a browser that is not signed in."""
    context = page.context.browser.new_context()
    other = context.new_page()
    other.goto(link)
    return other


def test_a_branch_is_shared_with_people_who_are_not_signed_in_until_the_link_is_revoked(
    serve: Serve, visit: Visit
) -> None:
    session = open_story()
    session.branch("dict").append(st.user(f"The key is {SECRET}."))
    page = visit(serve(), f"/s/{session.id}/talk")
    link = create_link(page, branch="dict")

    other = open_link(page, link)
    other.get_by_text("25 ms instead of 40 s.").first.wait_for()
    content = other.content()
    assert SECRET not in content
    assert "A second run takes 40 ms." not in content
    page.get_by_role("dialog", name="Share").get_by_role("button", name="Revoke").click()
    page.locator("dialog .plainlist").wait_for(state="detached")
    assert other.goto(link).status == 404
    other.context.close()


def test_a_shared_page_runs_nothing_with_the_cookie_of_a_signed_in_browser(serve: Serve, visit: Visit) -> None:
    session = open_story()
    session.branch("dict").append(st.user(HOSTILE))
    page = visit(serve(), f"/s/{session.id}/talk")
    link = create_link(page, redact=False)

    asked: list[str] = []
    shared = page.context.new_page()
    shared.on("request", lambda request: asked.append(request.url))
    shared.goto(link)
    shared.get_by_text("25 ms instead of 40 s.").first.wait_for()
    assert asked == [link]
    assert shared.evaluate("location.origin === 'null' || self.origin === 'null'")
    told = shared.evaluate("fetch('/api/me', {credentials: 'include'}).then((a) => a.status, () => 'refused')")
    assert told == "refused"


def test_messages_show_who_wrote_them(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve(scopes=("read", "write", "run"))
    anna = issue_token(("read", "write", "run"), name="anna")
    TokenStore().add(anna.token)
    site.secret = anna.secret
    page = visit(site, f"/s/{session.id}/talk")
    page.get_by_label("Prompt on dict").fill("Who asks?")
    page.keyboard.press("Enter")

    page.locator(".entry.user", has_text="Who asks?").get_by_text("by anna").wait_for()


def test_the_overview_shows_models_and_sessions_and_filters_them(serve: Serve, visit: Visit) -> None:
    with st.create("fast", cwd="/project") as session:
        for model, cost in (("small", 0.25), ("large", 2.0)):
            usage = {"input": 100, "output": 10, "cost": cost}
            session.extend([st.user("How?"), st.assistant("So.", usage=usage, provider="test", model=model)])
    page = visit(serve(), "/overview")
    page.get_by_role("region", name="Models").get_by_text("test:large").wait_for()
    assert page.get_by_role("img", name=re.compile(r"^Cost: \d{4}-\d\d-\d\d \$2\.25$")).count() == 1
    page.get_by_role("combobox", name="Model").select_option("test:small")
    page.get_by_role("img", name=re.compile(r"^Cost: .* \$0\.25$")).wait_for()
    page.get_by_role("region", name="Sessions").get_by_role("link", name="fast").click()
    page.locator(".path .entry").first.wait_for()


def test_an_empty_overview_says_what_to_do(serve: Serve, visit: Visit) -> None:
    page = visit(serve(), "/overview")

    page.get_by_text("No answers of models in this period.").wait_for()


def test_activity_names_what_a_token_did(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = visit(serve(), f"/s/{session.id}/talk")
    create_link(page)
    page.get_by_role("dialog", name="Share").get_by_role("button", name="Close").click()
    page.get_by_role("link", name="Overview").click()
    activity = page.get_by_role("region", name="Activity")
    action = activity.get_by_text("Create share link")
    assert action.get_attribute("title") == f"POST /api/sessions/{session.id}/shares"
    activity.get_by_text("Sign in", exact=True).wait_for()


def test_activity_has_words_for_every_route_that_changes_something(serve: Serve, visit: Visit) -> None:
    site = serve()
    page = visit(site, "/overview")
    paths = page.request.get(f"{site.url}/api/openapi.json").json()["paths"]
    unrecorded = ("/markdown", "/compare", "/files-diff")
    actions = [
        f"{method.upper()} {re.sub('{.*?}', 'x1', path)}"
        for path, methods in paths.items()
        for method in methods
        if method != "get" and not path.endswith(unrecorded)
    ]
    described = page.evaluate(
        "actions => import('/static/js/activity.js').then(({describeAction}) => actions.map(describeAction))", actions
    )
    assert len(actions) > 20
    assert [action for action, text in zip(actions, described, strict=True) if action == text] == []


@pytest.mark.parametrize("size", [(390, 844), (360, 640)])
def test_a_phone_has_every_action(serve: Serve, visit: Visit, size: tuple[int, int]) -> None:
    session = open_story()
    width, height = size
    page = visit(serve(), f"/s/{session.id}/talk", viewport={"width": width, "height": height}, has_touch=True)
    page.locator(".path .entry").first.wait_for()
    page.get_by_role("button", name="Session actions").tap()
    actions = page.get_by_role("group", name="Session actions")
    for name in ("Undo", "Rename", "Share", "Export", "Archive"):
        assert actions.get_by_role("button", name=name).is_visible(), name
    page.keyboard.press("Escape")
    last = page.locator(".entry").last
    last.get_by_role("button", name="More actions").tap()
    for name in ("Copy", "Go here", "Branch", "Label", "Fork", "Copy link", "Model's view"):
        assert last.get_by_role("button", name=name, exact=True).last.is_visible(), name
    page.keyboard.press("Escape")
    page.get_by_role("button", name="More", exact=True).tap()
    for name in ("Search", "Switch theme", "Keyboard shortcuts", "Sign out"):
        box = page.get_by_role("group", name="More", exact=True).get_by_role("button", name=name).bounding_box()
        assert box is not None
        assert 0 <= box["x"] <= width - box["width"], name
    page.keyboard.press("Escape")
    for name in ("Tree", "Branches", "Compare", "A/B"):
        assert page.locator(".tabs").get_by_role("link", name=name).is_visible(), name
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
