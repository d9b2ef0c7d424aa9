"""Invisible characters are shown as symbols: sanitize.js in the browser, and the whole page."""

from __future__ import annotations

import json
from typing import Any

from sessiontree.export.entry_view import make_visible
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.site import write_session_file

TIME = "2026-01-01T00:00:00.000Z"
TURN = "\u202e"
"""Makes the following text read from right to left."""

EVERY_CHARACTER = """async () => {
  const { makeVisible } = await import("/static/js/sanitize.js");
  const changed = {};
  for (let code = 0; code < 0x110000; code++) {
    if (code >= 0xd800 && code <= 0xdfff) continue;
    const words = `a${String.fromCodePoint(code)}b`;
    if (makeVisible(words) !== words) changed[code] = makeVisible(words);
  }
  return changed;
}"""

HIDDEN_TURNS = """() => {
  const read = ["title", "aria-label", "placeholder"];
  return [...document.querySelectorAll("head title, body, body *")].filter((element) =>
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.includes("\u202e")) ||
    read.some((name) => element.getAttribute(name)?.includes("\u202e"))
  ).map((element) => element.outerHTML);
}"""


def build_message(id: str, parent: str | None, said: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "message", "id": id, "parentId": parent, "timestamp": TIME, "message": said, **fields}


def write_session(name: str, *entries: dict[str, Any]) -> None:
    """Write a session with these entries to a file of that name."""
    header = {"type": "session", "version": 3, "id": name, "timestamp": TIME, "cwd": "/project"}
    write_session_file([json.dumps(line).encode() for line in (header, *entries)], name=name)


def test_the_same_characters_are_made_visible_as_in_an_exported_page(serve: Serve, visit: Visit) -> None:
    told = visit(serve()).evaluate(EVERY_CHARACTER)

    codes = (code for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF)
    expected = {str(code): shown for code in codes if (shown := make_visible(f"a{chr(code)}b")) != f"a{chr(code)}b"}
    assert told == expected


def test_text_of_a_session_cannot_reverse_the_page(serve: Serve, visit: Visit) -> None:
    branch = f"ma{TURN}in"
    call = {"type": "toolCall", "id": "c", "name": f"ba{TURN}sh", "arguments": {"command": f"rm {TURN} x"}}
    answer = [{"type": "text", "text": f"a {TURN}"}, {"type": "thinking", "thinking": f"th{TURN}ink"}, call]
    result = {"role": "toolResult", "toolCallId": "c", "content": [{"type": "text", "text": f"out{TURN}put"}]}
    label = {"type": "label", "targetId": "2", "label": f"la{TURN}bel"}
    named = {"type": "session_info", "name": f"na{TURN}me"}
    under_two = {"parentId": "2", "timestamp": TIME, "branch": branch}
    write_session(
        "turned",
        build_message("1", None, {"role": "user", "content": f"q {TURN}"}, branch=branch),
        build_message(
            "2", "1", {"role": "assistant", "content": answer, "model": f"m{TURN}", "provider": "p"}, branch=branch
        ),
        build_message("3", "2", result, branch=branch),
        {**label, "id": "4", **under_two},
        {**named, "id": "5", **under_two},
    )
    site = serve()
    page = visit(site)

    for route, there in (
        ("/", ".list li"),
        ("/s/turned/talk", ".path .entry.tool"),
        ("/s/turned/branches", ".branches .name"),
        ("/s/turned/compare", ".compare, .scroll"),
    ):
        page.goto(f"{site.url}/#{route}")
        page.wait_for_selector(there)
        assert page.evaluate(HIDDEN_TURNS) == [], route
        assert "⟨U+202E⟩" in page.locator("body").text_content(), route
    assert page.title() == "na⟨U+202E⟩me · sessiontree"
