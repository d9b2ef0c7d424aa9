"""Templates: the files that a page is made of, and how values get into them.

Everything is escaped but what `prose`, `code` and `diff` make of text, and what is ours: script, style, and data that
were made to stand in a script element.
"""

from __future__ import annotations

import json
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jinja2 import Environment

FOLDED_LINES, FOLDED_LENGTH = 24, 4_000
"""Outputs with more lines or characters are folded."""


@cache
def load_asset(name: str) -> str:
    """A file that is shipped beside this module."""
    data = pkgutil.get_data("sessiontree.export", name)
    assert data is not None
    return data.decode()


def render_page_template(**values: Any) -> Iterator[str]:
    """The page in pieces; what is iterated in it may be made meanwhile."""
    return _create_environment().get_template("page.html.jinja").generate(values)


@cache
def _load_article_macro() -> Any:
    return getattr(_create_environment().get_template("entry.html.jinja").module, "article")  # noqa: B009 - a macro


def render_article(entry: Any) -> str:
    """One entry; it counts as escaped when it is put into a page."""
    return _load_article_macro()(entry)


def embed_json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _create_environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    from sessiontree.export import safe_html

    environment = Environment(
        loader=FunctionLoader(load_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def mark_safe(make: Any) -> Any:
        def render(*values: Any) -> Markup:
            return Markup(make(*values))

        return render

    filters: dict[str, Any] = environment.filters
    filters.update(
        prose=mark_safe(safe_html.markdown_to_html),
        code=mark_safe(safe_html.highlight_code),
        diff=mark_safe(safe_html.highlight_diff),
        ours=Markup,
    )
    tests: dict[str, Any] = environment.tests
    tests["long"] = is_long
    return environment


def is_long(text: str) -> bool:
    """Whether an output is folded until somebody wants to see it."""
    return len(text) > FOLDED_LENGTH or text.count("\n") >= FOLDED_LINES
