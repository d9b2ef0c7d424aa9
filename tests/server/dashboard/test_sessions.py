"""The list of sessions in the dashboard with slow responses: the requested list is always shown."""

from __future__ import annotations

import re
from typing import Any

import sessiontree as st
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.held_requests import HeldRequests
from tests.server.dashboard.site import DashboardSite, open_story

LONGER = 6000
"""Milliseconds; longer than the polling interval of the list."""


def open_sessions_page(visit: Visit, site: DashboardSite) -> Any:
    """Open a page from which `s` opens the list, with a clock that the test advances."""
    page = visit(site, "/swarms")
    page.wait_for_selector("text=No swarms yet.")
    page.clock.install()
    return page


def test_a_list_that_loads_longer_than_the_polling_interval_is_shown(serve: Serve, visit: Visit) -> None:
    open_story()
    page = open_sessions_page(visit, serve())
    held = HeldRequests(page, re.compile(r"/api/sessions\?"))
    page.keyboard.press("s")
    held.wait()

    page.clock.run_for(LONGER)
    page.wait_for_timeout(100)
    assert len(held) == 1
    held.release()

    page.wait_for_selector(".list li")


def test_the_list_is_polled(serve: Serve, visit: Visit) -> None:
    page = open_sessions_page(visit, serve())
    page.keyboard.press("s")
    page.wait_for_selector("text=No sessions yet.")

    open_story()
    page.clock.run_for(LONGER)

    page.wait_for_selector(".list li")


def test_the_rest_of_a_slow_list_is_loaded(serve: Serve, visit: Visit) -> None:
    for number in range(51):
        with st.create(f"number {number}", cwd="/project") as session:
            session.append(st.user("Why?"))
    page = open_sessions_page(visit, serve())
    page.keyboard.press("s")
    page.wait_for_selector(".list li")
    held = HeldRequests(page, re.compile("cursor="))
    page.get_by_role("button", name="Load more").click()
    held.wait()

    page.clock.run_for(LONGER)
    page.wait_for_timeout(200)
    held.release()

    page.wait_for_function("() => document.querySelectorAll('.list li').length === 51")
