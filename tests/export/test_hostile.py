"""No content of a session runs code or sends requests from the exported page."""

from __future__ import annotations

import json
import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest

from sessiontree.export.html_page import render_html
from sessiontree.export.snapshot import read_snapshot
from tests.export.conftest import Open
from tests.export.hostile import make_hostile_lines
from tests.export.payloads import ASK, PAYLOADS


class Scan(HTMLParser):
    """Collects the active content of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.acting: list[str] = []
        self.scripts = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in {"iframe", "object", "embed", "form", "base", "link", "svg", "math", "video", "audio"}:
            self.acting.append(f"<{tag}>")
        for name, value in attrs:
            address = (value or "").strip().lower()
            if name.startswith("on") or name in ("style", "srcdoc", "formaction", "action", "srcset"):
                self.acting.append(f"<{tag} {name}>")
            if name == "href" and not address.startswith(("http://", "https://", "mailto:", "#")):
                self.acting.append(f"<{tag} href={address[:40]}>")
            if name == "src" and not address.startswith("data:image/"):
                self.acting.append(f"<{tag} src={address[:40]}>")


def list_strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in inner for text in list_strings(item)]


@cache
def render_hostile_page(half: int) -> str:
    return "".join(render_html(read_snapshot(make_hostile_lines(PAYLOADS[half::2]))))


@pytest.mark.parametrize("half", [0, 1])
def test_no_element_attribute_or_address_in_the_page_or_its_data_is_active(half: int) -> None:
    html = render_hostile_page(half)
    found = Scan(html)

    assert found.acting == []
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert len(blocks) > 2
    assert found.scripts == len(blocks) + 1
    for data in blocks:
        assert "<" not in data
        for number, article in json.loads(data).get("html", {}).items():
            assert Scan(article).acting == [], number


def test_the_scan_finds_planted_active_content() -> None:
    assert Scan("<a href='javascript:x'>x</a><img src=http://x onerror=y><svg>").acting


def visit_everything(visited: Any) -> None:
    """Open every view that a reader can open."""
    visited.select_option("#filter", "4")
    visited.fill("#search", "owned")
    visited.wait_for_timeout(120)
    visited.fill("#search", "")
    visited.wait_for_timeout(120)
    for _ in range(3):
        visited.locator("#tree").press("End")
        visited.locator("#tree").press("Enter")
        visited.locator("#tree").press("Home")
        visited.locator("#tree").press("Enter")
    visited.keyboard.press("m")
    visited.keyboard.press("Escape")
    visited.click("#compare")
    visited.keyboard.press("t")
    visited.evaluate("dispatchEvent(new Event('beforeprint'))")
    visited.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    visited.keyboard.press("Escape")
    visited.evaluate("dispatchEvent(new Event('beforeprint'))")
    visited.wait_for_timeout(150)


def check(visit: Open, html: str, policy: bool) -> None:
    signs: list[str] = []
    without = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    assert without != html

    visited = visit(html if policy else without, signs=signs)
    visit_everything(visited)

    own = visited.url.split("#")[0]
    assert [sign for sign in signs if not sign.startswith((own, "data:image/"))] == []
    assert visited.evaluate("window.owned") is None
    assert visited.evaluate("frames.length") == 0


@pytest.mark.parametrize("policy", [True, False], ids=["with-policy", "without-policy"])
@pytest.mark.parametrize("half", [0, 1])
def test_no_payload_runs_or_sends_requests(visit: Open, half: int, policy: bool) -> None:
    check(visit, render_hostile_page(half), policy)


@pytest.mark.torture
@pytest.mark.parametrize("policy", [True, False], ids=["with-policy", "without-policy"])
@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_no_single_payload_runs_or_sends_requests(visit: Open, payload: str, policy: bool) -> None:
    check(visit, "".join(render_html(read_snapshot(make_hostile_lines([payload])))), policy)


def test_the_test_would_notice_a_page_that_does_not_escape(visit: Open) -> None:
    signs: list[str] = []

    visited = visit(f"<html data-ready><body>{PAYLOADS[2]}<img src={ASK}/x>", signs=signs)
    visited.wait_for_function("window.owned === 1")

    assert f"{ASK}/x" in signs
