"""Hostile sessions, foreign pages and wrong tokens cannot harm the dashboard."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sessiontree.library import catalog
from tests.export.hostile import make_hostile_lines
from tests.export.payloads import PAYLOADS
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.held_requests import HeldRequests
from tests.server.dashboard.site import DashboardSite, open_story, write_session_file

CONTRAST = (Path(__file__).parents[2] / "export" / "contrast.js").read_text().replace("#main *, #sidebar *", "#app *")


# Hostile sessions

EVERY_ENTRY = """async () => {
  const { html, render } = await import("/static/js/html.js");
  const { Entry } = await import("/static/js/conversation.js");
  let count = 0;
  for (let cursor = ""; cursor !== null; ) {
    const words = new URLSearchParams({ html: 1, limit: 500, ...(cursor ? { cursor } : {}) });
    const page = await (await fetch(`/api/sessions/hostile/path?${words}`)).json();
    const holder = document.createElement("div");
    document.getElementById("app").append(holder);
    render(html`${page.entries.map((entry) => html`<${Entry} entry=${entry} />`)}`, holder);
    count += holder.querySelectorAll("article").length;
    await new Promise(requestAnimationFrame);
    holder.remove();
    cursor = page.next;
  }
  return count;
}"""
"""Shows all entries of the path like the conversation does, page by page."""


def test_a_hostile_session_runs_no_code_and_makes_no_requests(serve: Serve, visit: Visit) -> None:
    """Payloads in every field of every entry: in the list, the tree, the conversation, comparison and search."""
    write_session_file(make_hostile_lines(PAYLOADS[::3]), name="hostile")
    site = serve()
    signs: list[str] = []
    page = visit(site, signs=signs)

    page.wait_for_selector(".list li")
    page.locator("#search").fill("owned")
    page.wait_for_selector(".hits li")
    page.goto(f"{site.url}/#/s/hostile/talk")
    page.wait_for_selector(".path .entry")
    assert page.evaluate(EVERY_ENTRY) > 2000
    page.evaluate("document.querySelectorAll('details').forEach((element) => (element.open = true))")
    for view in ("branches", "compare?branch=aside&branch=main"):
        page.goto(f"{site.url}/#/s/hostile/{view}")
        page.wait_for_selector(".branches .name, .column .entry")

    assert page.evaluate("window.owned") is None
    assert [sign for sign in signs if "owned" in sign or "127.0.0.1:9/" in sign or sign.startswith("a ")] == []
    assert not any(sign.startswith("http") for sign in signs)
    assert (
        page.locator("#app script, #app iframe, #app object, #app form[action], #app [onload], #app [onerror]").count()
        == 0
    )


@pytest.mark.parametrize("name", ["__proto__", "constructor", "toString", "valueOf", "hasOwnProperty"])
def test_types_and_roles_are_only_used_as_names(serve: Serve, visit: Visit, name: str) -> None:
    """Even if the name is a property of every JavaScript object."""
    head = {"timestamp": "2026-01-01T00:00:00.000Z"}
    lines = [
        {"type": "session", "version": 3, "id": "named", "cwd": "/project", **head},
        {"type": "message", "id": "1", "parentId": None, "message": {"role": "user", "content": "First."}, **head},
        {"type": name, "id": "2", "parentId": "1", **head},
        {"type": "message", "id": "3", "parentId": "2", "message": {"role": name, "content": "Third."}, **head},
    ]
    write_session_file([json.dumps(line).encode() for line in lines], name="named")
    page = visit(serve(), "/s/named/talk")

    page.wait_for_selector("#e-3")

    assert page.locator(".path article").count() == 3
    assert "First." in page.locator("#e-1").text_content()
    assert page.locator("#e-3 h2").text_content() == name


# Tokens


def test_the_token_leaves_the_address_and_scripts_cannot_read_the_cookie(serve: Serve, visit: Visit) -> None:
    site = serve()
    page = visit(site)

    assert site.secret not in page.url
    assert page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})") == "{}"
    assert page.evaluate("document.cookie") == ""
    (cookie,) = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (f"sessiontree-{site.port}", True, "Strict")
    assert cookie["value"] != site.secret


def test_the_page_asks_again_after_a_wrong_token(serve: Serve, browser: Any) -> None:
    open_story()
    site = serve()
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{site.url}/#token=wrong")

    page.wait_for_selector("text=Unknown, expired or revoked token.")
    page.get_by_label("Token").fill(site.secret)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector(".list li")
    context.close()


@pytest.fixture
def gate(serve: Serve, browser: Any) -> Iterator[tuple[Any, Callable[[str], None], DashboardSite]]:
    """A page without a token, a function that enters a token, and the server."""
    open_story()
    site = serve()
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(site.url)
        page.get_by_text("Sign in with a token").click()

        def give(token: str) -> None:
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Sign in").click()

        yield page, give, site


def test_a_token_entered_while_the_server_is_down_shows_an_error(
    gate: tuple[Any, Callable[[str], None], DashboardSite],
) -> None:
    page, give, site = gate
    held = HeldRequests(page, "**/sign-in", most=1)
    give(site.secret)
    held.wait()

    held.lose()

    page.wait_for_selector(".gate .notice.wrong >> text=Cannot reach the server")
    give("wrong")
    page.wait_for_selector(".gate .notice.wrong >> text=Unknown, expired or revoked token")
    give(site.secret)
    page.wait_for_selector(".list li")
    assert page.locator(".notice.wrong").count() == 0


@pytest.mark.parametrize("right_one_last", [True, False])
def test_only_the_last_token_counts(
    gate: tuple[Any, Callable[[str], None], DashboardSite], right_one_last: bool
) -> None:
    page, give, site = gate
    tokens = ["wrong", site.secret]
    there = [".gate .notice.wrong", ".list li"]
    held = HeldRequests(page, "**/sign-in", most=1)
    give(tokens[not right_one_last])
    held.wait()
    give(tokens[right_one_last])
    page.wait_for_selector(there[right_one_last])

    with page.expect_response("**/sign-in"):
        held.release()
    page.wait_for_timeout(100)

    assert page.locator(there[right_one_last]).count() == 1
    assert page.locator(there[not right_one_last]).count() == 0


# Foreign pages


class Stranger(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>stranger</title>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    """The address of a page on another origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


STEAL = """async ([url, secret]) => {
  const attempt = async (work) => { try { return await work(); } catch { return null; } };
  const read = (path, options) => attempt(async () => (await fetch(url + path, options)).text());
  const bearer = { Authorization: `Bearer ${secret}` };
  const json = { "Content-Type": "application/json" };
  const said = [
    await read("/api/sessions"),
    await read("/api/sessions", { headers: bearer }),
    await read("/api/sessions", { credentials: "include" }),
    await read("/api/sessions", { method: "POST", headers: { ...bearer, ...json }, body: '{"name":"stolen"}' }),
    await read("/api/sessions", { method: "POST", mode: "no-cors", body: '{"name":"stolen"}' }),
    await read("/", {}),
    await attempt(async () => Object.keys(await import(`${url}/static/js/api.js`)).join()),
    await attempt(() => new Promise((done) => {
      const script = document.createElement("script");
      script.src = `${url}/static/js/keys.js`;
      script.onload = () => done("loaded");
      script.onerror = () => done(null);
      document.head.append(script);
    })),
    await attempt(() => new Promise((done) => {
      const frame = document.createElement("iframe");
      frame.src = `${url}/#token=${secret}`;
      frame.onload = () => { try { done(frame.contentDocument?.title ?? null); } catch { done(null); } };
      document.body.append(frame);
    })),
  ];
  return said.filter(Boolean);
}"""


def test_a_page_of_another_origin_is_refused_even_with_the_token(serve: Serve, browser: Any, stranger: str) -> None:
    open_story()
    site: DashboardSite = serve()
    context = browser.new_context()
    page = context.new_page()
    page.goto(stranger)

    assert page.evaluate(STEAL, [site.url, site.secret]) == []
    assert [frame.url for frame in page.frames if "token" in frame.url and frame.title() == "sessiontree"] == []
    assert [summary.name for summary in catalog.sessions(all=True)] == ["Make the report fast"]
    context.close()


def test_a_page_on_another_port_cannot_use_the_cookie(serve: Serve, browser: Any, stranger: str) -> None:
    open_story()
    site: DashboardSite = serve()
    context = browser.new_context()
    page = context.new_page()
    page.goto(site.link)
    page.wait_for_selector(".list li")

    page.goto(stranger)

    assert page.evaluate(STEAL, [site.url, "unknown"]) == []
    posted = """async (url) => {
      const plain = { headers: { "Content-Type": "text/plain" } };
      for (const way of [plain, { mode: "no-cors" }, { mode: "no-cors", ...plain }]) {
        const options = { method: "POST", credentials: "include", ...way };
        await fetch(`${url}/api/sessions`, { ...options, body: '{"name":"stolen"}' }).catch(() => null);
        await fetch(`${url}/sign-out`, { ...options, body: "{}" }).catch(() => null);
      }
    }"""
    page.evaluate(posted, site.url)
    assert [summary.name for summary in catalog.sessions(all=True)] == ["Make the report fast"]
    page.goto(site.url)
    page.wait_for_selector(".list li")
    context.close()


# Accessibility


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast_and_every_control_a_name(serve: Serve, visit: Visit, scheme: str) -> None:
    session = open_story()
    site = serve()
    page = visit(site, color_scheme=scheme)

    for route, there in (
        ("/", ".list li"),
        (f"/s/{session.id}/talk", ".path .entry"),
        (f"/s/{session.id}/branches", ".branches .name"),
        (f"/s/{session.id}/compare", ".column .entry"),
        (f"/s/{session.id}/ab", "form.ab"),
        ("/swarms", "form"),
    ):
        page.goto(f"{site.url}/#{route}")
        page.wait_for_selector(there)
        assert page.evaluate(CONTRAST) == [], route
        nameless = page.evaluate(
            "() => [...document.querySelectorAll('button, input, select, textarea, nav, section, canvas, [role=log]')]"
            ".filter((e) => !(e.getAttribute('aria-label') || e.closest('label') || e.textContent.trim()))"
            ".map((e) => e.outerHTML)"
        )
        assert nameless == [], route


def test_the_keys_are_listed_and_focus_is_visible(serve: Serve, visit: Visit) -> None:
    page = visit(serve())
    page.wait_for_selector("text=No sessions yet.")

    page.keyboard.press("?")
    assert "new branch from it" in page.locator("dialog").text_content()
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("w")
    page.wait_for_selector("h1 >> text=Swarms")
