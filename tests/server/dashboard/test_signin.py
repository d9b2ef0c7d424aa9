"""Signing in with a browser: a link works once, the cookie in all tabs and after a restart of the server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sessiontree as st
from sessiontree.model.scripted import ScriptedModel
from sessiontree.server.auth import SCOPES, TokenStore, add_seconds, get_time_now, issue_token
from sessiontree.server.request_checks import ServerLimits
from tests.server.dashboard.conftest import Serve
from tests.server.dashboard.site import DashboardSite, open_story, run_dashboard


def create_link(site: DashboardSite, *, seconds: float = 600) -> str:
    """Create the link that `sessiontree serve` and `sessiontree token link` print."""
    made = issue_token(SCOPES, kind="code", created=get_time_now(), expires=add_seconds(get_time_now(), seconds))
    TokenStore().add(made.token)
    return f"{site.url}/#code={made.secret}"


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        context.set_default_timeout(10_000)
        yield context


def test_a_link_signs_the_browser_in_for_all_its_tabs(serve: Serve, context: Any) -> None:
    open_story()
    site = serve()
    page = context.new_page()

    page.goto(create_link(site))
    page.wait_for_selector(".list li")
    other = context.new_page()
    other.goto(site.url)

    other.wait_for_selector(".list li")
    assert "code=" not in page.url
    page.reload()
    page.wait_for_selector(".list li")


def test_a_used_link_works_in_a_signed_in_browser_and_shows_help_elsewhere(
    serve: Serve, browser: Any, context: Any
) -> None:
    open_story()
    site = serve()
    link = create_link(site)
    for _ in range(2):
        page = context.new_page()
        page.goto(link)
        page.wait_for_selector(".list li")

    with browser.new_context() as elsewhere:
        page = elsewhere.new_page()
        page.goto(link)
        page.wait_for_selector(".gate .notice.wrong >> text=This link has expired or was already used")
        assert "sessiontree token link" in page.locator(".gate pre").text_content()
        page.goto(create_link(site))
        page.wait_for_selector(".list li")


def test_an_expired_link_shows_what_to_do(serve: Serve, context: Any) -> None:
    page = context.new_page()

    page.goto(create_link(serve(), seconds=-1))

    page.wait_for_selector(".gate .notice.wrong >> text=This link has expired or was already used")


def test_without_a_link_the_page_explains_how_to_get_one(serve: Serve, context: Any) -> None:
    page = context.new_page()

    page.goto(serve().url)

    page.wait_for_selector("text=This browser is not signed in.")
    assert page.locator(".notice.wrong").count() == 0


def test_a_browser_stays_signed_in_across_restarts(context: Any) -> None:
    session = open_story()
    page = context.new_page()
    with run_dashboard() as site:
        page.goto(create_link(site))
        page.goto(f"{site.url}/#/s/{session.id}/talk")
        page.wait_for_selector(".link.live")
    site.made = issue_token(SCOPES)  # as in a new process
    with run_dashboard(after=site):
        page.wait_for_selector(".link.live")
        page.reload()
        page.wait_for_selector(".path .entry")


def test_signing_out_shows_how_to_sign_in_again(serve: Serve, context: Any) -> None:
    open_story()
    site = serve()
    page = context.new_page()
    page.goto(create_link(site))

    page.get_by_role("button", name="Sign out").click()

    page.wait_for_selector("text=This browser is not signed in.")
    page.reload()
    page.wait_for_selector("text=This browser is not signed in.")


def test_a_remote_sign_out_is_shown(serve: Serve, context: Any) -> None:
    session = open_story()
    site = serve()
    page = context.new_page()
    page.goto(create_link(site))
    page.goto(f"{site.url}/#/s/{session.id}/talk")
    page.wait_for_selector(".link.live")

    (browser,) = [token for token in TokenStore().read_stored() if token.kind == "browser"]
    TokenStore().revoke(browser.id)
    session.append(st.user("more"))

    page.wait_for_selector(".gate .notice.wrong >> text=You have been signed out")


def test_a_prompt_that_cannot_be_sent_is_kept_with_the_reason(serve: Serve, context: Any) -> None:
    session = open_story()
    model = ScriptedModel(["An answer that costs money."])
    site = serve(model, limits=ServerLimits(token_streams=1))
    first, second = context.new_page(), context.new_page()
    first.goto(create_link(site))
    first.goto(f"{site.url}/#/s/{session.id}/talk")
    first.wait_for_selector(".link.live")

    second.goto(f"{site.url}/#/s/{session.id}/talk")
    second.wait_for_selector(".notice >> text=No live updates: event stream limit of 1 per token reached")
    composer = second.get_by_label("Prompt on dict")
    composer.fill("Do it.")
    composer.press("Enter")

    second.wait_for_selector(".composer .notice.wrong >> text=Not sent, because live updates are off")
    assert composer.input_value() == "Do it."
    assert not model.requests
    session.append(st.user("written elsewhere"), branch="dict")
    second.wait_for_selector(".path >> text=written elsewhere")  # by polling

    first.close()
    second.wait_for_selector(".link.live", timeout=60_000)  # the page retries after a pause
    second.wait_for_selector(".notice >> text=No live updates", state="detached")
    composer.press("Enter")
    second.wait_for_selector(".path >> text=An answer that costs money.")
