"""The HTML of the exported page: its structure, its data, and its content without a script."""

from __future__ import annotations

import base64
import json
import re
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings

from sessiontree.export import export
from sessiontree.export.entry_view import MAX_PIXELS, read_picture
from sessiontree.export.html_page import CHUNK_SIZE, INITIAL_ENTRIES, embed_json, render_html
from sessiontree.export.safe_html import MAX_CODE_LENGTH, highlight_code, markdown_to_html
from sessiontree.export.snapshot import read_snapshot
from tests.export.sessions import make_long_session, make_picture, make_story
from tests.strategies import damaged_sessions


def render_story() -> str:
    return "".join(render_html(read_snapshot(make_story().read_lines())))


def test_the_policy_allows_only_our_script_and_style() -> None:
    text = render_story()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    allowed = policy[1].replace("&#39;", "'")

    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)

    assert script is not None
    assert style is not None
    for name, inside in (("script-src", script[1]), ("style-src", style[1])):
        digest = base64.b64encode(sha256(inside.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in allowed
    assert allowed.startswith("default-src 'none'")
    assert "unsafe" not in allowed
    assert text.index("Content-Security-Policy") < text.index("<style>") < text.index("<script")


def test_the_page_needs_no_other_file() -> None:
    assert not re.search(r"(?:src|href)=\"(?!data:image/|#|https://example\.org)", render_story())
    assert "@import" not in render_story()
    assert "url(" not in render_story()


class VisibleText(HTMLParser):
    """Collects what a reader sees without scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words = ""
        self._hidden = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        self.words += "" if self._hidden else data


def test_only_the_active_path_is_readable_without_a_script() -> None:
    words = VisibleText(render_story()).words

    for said in (
        "Take the dict.",
        "Where does the time go?",
        "25 ms instead of 40 s.",
        "It was quadratic.",
        "overloaded",
    ):
        assert said in words
    assert "A second run takes 40 ms." not in words
    assert "A second run takes 40 ms." in render_story()


def test_a_long_path_is_readable_without_a_script_and_is_text_for_the_script() -> None:
    text = "".join(render_html(read_snapshot(make_long_session(INITIAL_ENTRIES + 2 * CHUNK_SIZE))))

    assert text.count("<noscript>") == 2
    assert f"number {INITIAL_ENTRIES + 2 * CHUNK_SIZE - 1} " in VisibleText(text).words


def test_data_cannot_close_its_element() -> None:
    hostile = {"a": "</script><!--<script>\u2028"}

    assert "<" not in embed_json(hostile)
    assert json.loads(embed_json(hostile)) == hostile


def test_markdown_is_rendered_and_code_highlighted() -> None:
    made = markdown_to_html("**bold** `code`\n\n```python\ndef f(): pass\n```")

    assert "<strong>bold</strong>" in made
    assert '<span class="k">def</span>' in made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("<b>x</b>", "&lt;b&gt;x&lt;/b&gt;"),
        ("[x](javascript:y)", "[x](javascript:y)"),
        ("[x](../secret)", '<a target="_blank" rel="noopener noreferrer nofollow">x</a>'),
        (
            "![alt](http://x.example/y.png)",
            '<a href="http://x.example/y.png" target="_blank" rel="noopener noreferrer nofollow">image: alt</a>',
        ),
    ],
)
def test_active_content_becomes_text_or_a_plain_link(text: str, made: str) -> None:
    assert markdown_to_html(text) == f"<p>{made}</p>\n"


def test_code_without_a_known_language_or_too_long_is_shown_plain() -> None:
    assert highlight_code("<x>", "no-such-language") == "&lt;x&gt;"
    assert "<span" not in highlight_code("def f(): pass\n" * MAX_CODE_LENGTH, "python")


def test_the_type_of_an_image_comes_from_its_bytes() -> None:
    assert read_picture({"data": make_picture(), "mimeType": "text/html"}).kind == "image/png"
    for data in ("", "%%%", base64.b64encode(b"<svg onload=x>").decode(), base64.b64encode(b"GIF89a").decode()):
        assert read_picture({"data": data, "mimeType": "image/png"}).kind == ""


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"GIF89a\x03\x00\x02\x00", "image/gif"),
        (b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08\x00\x02\x00\x03" + b"\0" * 9, "image/jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8X" + b"\0" * 8 + b"\x02\0\0\x01\0\0", "image/webp"),
        (b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f\x02\x40\0\0", "image/webp"),
        (b"RIFF\0\0\0\0WEBPVP8 " + b"\0" * 10 + b"\x03\0\x02\0", "image/webp"),
    ],
)
def test_image_sizes_are_read_from_the_first_bytes(head: bytes, kind: str) -> None:
    found = read_picture({"source": {"data": base64.b64encode(head).decode()}})

    assert (found.kind, found.width, found.height) == (kind, 3, 2)


def test_an_image_that_is_huge_when_decoded_is_not_shown() -> None:
    bomb = base64.b64decode(make_picture())
    bomb = bomb[:16] + (MAX_PIXELS).to_bytes(4, "big") + (2).to_bytes(4, "big") + bomb[24:]

    found = read_picture({"data": base64.b64encode(bomb).decode()})

    assert found.kind == ""
    assert "large" in found.fault


@settings(max_examples=25)
@given(damaged_sessions())
def test_every_damaged_session_can_be_exported_in_every_format(data: bytes) -> None:
    lines = data.split(b"\n")[:-1]

    for form in ("html", "md", "text", "json"):
        assert export(lines, form).content
