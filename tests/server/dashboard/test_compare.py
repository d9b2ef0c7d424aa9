"""Comparison in the dashboard with late or missing responses: the verdict always matches the shown branches."""

from __future__ import annotations

from typing import Any

import pytest

import sessiontree as st
from sessiontree.session import Session
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.held_requests import HeldRequests


@pytest.fixture
def session() -> Session:
    """`cheap` has the lowest cost, `terse` the lowest tokens, `dear` nothing."""
    session = st.create("compared", cwd="/project")
    session.append(st.user("Why?"))
    for name, tokens, cost in (("cheap", 9000, 0.01), ("terse", 10, 0.05), ("dear", 9500, 0.09)):
        usage = {"input": tokens, "output": 1, "cost": cost}
        session.create_branch(name, current=False).append(st.assistant(name, usage=usage))
    return session


def wait_for_verdict(page: Any, words: str) -> None:
    page.wait_for_function(
        "(words) => document.querySelector('.verdict')?.textContent.replace(/\\s+/g, ' ').includes(words)", arg=words
    )


def find_metric_select(page: Any) -> Any:
    return page.locator(".verdict select")


def list_columns(page: Any) -> list[str]:
    return page.locator(".column > header h2").all_text_contents()


def test_a_late_response_does_not_replace_a_newer_one(serve: Serve, visit: Visit, session: Session) -> None:
    page = visit(serve(), f"/s/{session.id}/compare?branch=cheap&branch=terse")
    wait_for_verdict(page, "cheap has the lowest cost.")
    held = HeldRequests(page, "**/compare", most=1)
    find_metric_select(page).select_option("tokens")
    wait_for_verdict(page, "Comparing…")
    held.wait()
    find_metric_select(page).select_option("cost")
    wait_for_verdict(page, "cheap has the lowest cost.")

    with page.expect_response("**/compare"):
        held.release()
    page.wait_for_timeout(100)

    wait_for_verdict(page, "cheap has the lowest cost.")
    assert find_metric_select(page).input_value() == "cost"


def test_a_failed_comparison_keeps_the_previous_one(serve: Serve, visit: Visit, session: Session) -> None:
    page = visit(serve(), f"/s/{session.id}/compare?branch=cheap&branch=terse")
    wait_for_verdict(page, "cheap has the lowest cost.")
    held = HeldRequests(page, "**/compare", most=1)
    find_metric_select(page).select_option("tokens")
    held.wait()

    held.lose()

    page.wait_for_selector(".compare .notice.wrong >> text=cannot reach the server")
    wait_for_verdict(page, "cheap has the lowest cost.")
    assert find_metric_select(page).input_value() == "cost"
    find_metric_select(page).select_option("tokens")
    wait_for_verdict(page, "terse has the lowest tokens.")
    assert page.locator(".compare .notice.wrong").count() == 0


def test_the_selected_branches_are_shown(serve: Serve, visit: Visit, session: Session) -> None:
    page = visit(serve(), f"/s/{session.id}/compare?branch=cheap&branch=dear")
    wait_for_verdict(page, "cheap has the lowest cost.")
    held = HeldRequests(page, "**/compare", most=1)
    page.get_by_label("terse", exact=True).check()
    held.wait()
    page.get_by_label("cheap", exact=True).uncheck()
    wait_for_verdict(page, "terse has the lowest cost.")

    with page.expect_response("**/compare"):
        held.release()
    page.wait_for_timeout(100)

    assert list_columns(page) == ["dear", "terse"]
    wait_for_verdict(page, "terse has the lowest cost.")


def test_a_failed_comparison_of_other_branches_shows_no_winner(serve: Serve, visit: Visit, session: Session) -> None:
    page = visit(serve(), f"/s/{session.id}/compare?branch=cheap&branch=terse")
    wait_for_verdict(page, "cheap has the lowest cost.")
    held = HeldRequests(page, "**/compare", most=1)
    page.get_by_label("dear", exact=True).check()
    held.wait()

    held.lose()

    page.wait_for_selector(".compare .notice.wrong")
    assert page.locator(".verdict, .column").count() == 0
