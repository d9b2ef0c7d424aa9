"""The page: a session as one HTML file that needs nothing else and can do nothing but show it. Pure.

The active path is in the page as it is read; all other entries are data until somebody looks at them. What the script
is given is worked out here: it draws and filters, and decides nothing about what an entry shows. Its rules for the
drawing of the tree and for what a model sees are those of `core.outline` and `core.context`, and tests compare them.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.comparison import stats_of, usages
from sessiontree.core.context import EDITABLE
from sessiontree.core.entries import Compaction, ContextEdit, CustomMessage, Entry, EntryId, JsonObject, Message
from sessiontree.core.fulltext import speaker
from sessiontree.core.messages import (
    answered_call,
    for_model,
    role,
    spent,
    stopped_abnormally,
    text_blocks,
    tool_calls,
)
from sessiontree.core.outline import FILTERS, finish, lay_out, row_text, survey
from sessiontree.core.times import milliseconds
from sessiontree.export.about import about_of
from sessiontree.export.snapshot import Snapshot
from sessiontree.export.template import asset, embedded, render_article, render_page
from sessiontree.export.view import View, message_view, view_of, visible

CHUNK = 40
"""Entries that are drawn together."""
AT_ONCE = CHUNK
"""Entries of the active path that are elements from the start."""


class Shown(Struct, frozen=True, kw_only=True):
    """An entry as the template puts it in the page."""

    number: int
    view: View
    time: str
    label: str | None
    branches: list[str]


def page(whole: Snapshot) -> str:
    """The page of a session."""
    drawn = _Drawn(whole)
    script, style = asset("page.js"), asset("page.css")
    on_path = {entry.id for entry in whole.path() if not entry.is_annotation}
    shown = [drawn.article(number) for number, entry in enumerate(drawn.entries) if entry.id in on_path]
    return render_page(
        policy=_policy(script, style),
        script=script,
        style=style,
        data=embedded(drawn.data(on_path)),
        about=about_of(whole),
        chunks=[_chunk(shown[start : start + CHUNK], start) for start in range(0, len(shown), CHUNK)],
        filters=FILTERS,
    )


class Chunk(Struct, frozen=True):
    """Entries of the active path, one after another."""

    html: str
    later: bool
    """Where there is a script, it is text that the script takes up; where there is none, it is read as it stands."""


def _chunk(articles: list[str], start: int) -> Chunk:
    html = articles[0][:0].join(articles)
    # As text it would end at the first thing that looks like its end; what we write never does, but who knows.
    return Chunk(html, start >= AT_ONCE and "</noscript" not in html.lower())


def _policy(script: str, style: str) -> str:
    """Nothing is fetched and nothing runs but this script."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


class _Drawn:
    """All entries in the order of the drawing, by number."""

    def __init__(self, whole: Snapshot) -> None:
        self.whole = whole
        self.entries = [entry for entry, _ in whole.tree.walk(whole.leaf)]
        self.numbers = {entry.id: number for number, entry in enumerate(self.entries)}
        self.names = whole.branch_names()
        self.views = [view_of(entry, whole.calls.get(entry.id)) for entry in self.entries]

    def article(self, number: int) -> str:
        return self._html(number, self.views[number])

    def _html(self, number: int, view: View) -> str:
        entry = self.entries[number]
        label = self.whole.tree.label(entry.id)
        shown = Shown(
            number=number,
            view=view,
            time=visible(entry.timestamp[:19].replace("T", " ")),
            label=visible(label) if label else None,
            branches=[visible(name) for name in self.names.get(entry.id, ())],
        )
        return render_article(shown)

    def _number(self, id: EntryId | None) -> int:
        return -1 if id is None else self.numbers.get(id, -1)

    def data(self, on_path: set[EntryId]) -> dict[str, Any]:
        """What the script is given: columns with a value for each entry, and sparse tables by number."""
        whole, tree = self.whole, self.whole.tree
        sums = [_spent(entry) for entry in self.entries]
        counts = [stats_of("", None, [entry]) for entry in self.entries]
        return {
            "id": [visible(entry.id) for entry in self.entries],
            "parent": [self._number(tree.parent(entry.id)) for entry in self.entries],
            "row": [visible(row_text(entry, whole.calls)) for entry in self.entries],
            "kind": [view.kind for view in self.views],
            "speaker": [visible(speaker(entry)).lower() for entry in self.entries],
            "filters": self._masks(),
            "tokens": [tokens for tokens, _ in sums],
            "cost": [cost for _, cost in sums],
            "counts": [[one.messages, one.tool_calls, one.errors] for one in counts],
            "time": [milliseconds(entry.timestamp) or 0 for entry in self.entries],
            "label": {self._number(id): visible(text) for id, text in tree.labels.items() if id in tree},
            "heads": {self._number(id): [visible(name) for name in names] for id, names in self.names.items()},
            "branches": [[visible(name), self._number(head)] for name, head in whole.heads.heads.items()],
            "leaf": self._number(whole.leaf),
            "html": {
                number: self.article(number) for number, entry in enumerate(self.entries) if entry.id not in on_path
            },
            "model": self._model(),
            "quiet": [number for number, entry in enumerate(self.entries) if entry.is_annotation],
            "chunk": CHUNK,
        }

    def _masks(self) -> list[int]:
        """For each entry the filters that show it, one bit each."""
        masks = [0] * len(self.entries)
        shape = finish(survey(self.whole.tree, self.whole.leaf))
        for bit, name in enumerate(FILTERS):
            rows = finish(lay_out(shape, name))
            for row in range(len(rows)):
                masks[self.numbers[rows.id(row)]] |= 1 << bit
        return masks

    def _model(self) -> dict[str, Any]:
        """What the projection of a path onto a model's context needs to know of its entries."""
        speaks: list[int] = []
        editable: list[int] = []
        system: list[int] = []
        failed: list[int] = []
        calls: dict[int, list[str]] = {}
        answers: dict[int, str] = {}
        anchors: dict[int, int] = {}
        resets: list[int] = []
        edits: dict[int, Any] = {}
        for number, entry in enumerate(self.entries):
            match entry.body:
                case Message(message):
                    if for_model(message) is not None:
                        speaks.append(number)
                    if role(message) in EDITABLE:
                        editable.append(number)
                    if role(message) == "system":
                        system.append(number)
                    if stopped_abnormally(message):
                        failed.append(number)
                    made = [call.id for call in tool_calls(message)]
                    if made:
                        calls[number] = made
                    answered = answered_call(message)
                    if answered is not None:
                        answers[number] = answered
                case CustomMessage():
                    speaks.append(number)
                    editable.append(number)
                case Compaction(first_kept=anchor):
                    speaks.append(number)
                    anchors[number] = self._number(anchor)
                case ContextEdit(target=target, replacement=replacement):
                    edits[number] = self._edit(target, replacement)
                case body:
                    if entry.type == "reset_boundary":
                        resets.append(number)
                    if entry.type == "branch_summary" and getattr(body, "summary", ""):
                        speaks.append(number)
        return {
            "speaks": speaks,
            "editable": editable,
            "system": system,
            "failed": failed,
            "calls": calls,
            "answers": answers,
            "anchors": anchors,
            "resets": resets,
            "edits": edits,
        }

    def _edit(self, target: EntryId, replacement: JsonObject | None) -> list[Any]:
        """The number of what is edited, how it reads then, and the calls that it still makes."""
        number = self._number(target)
        if replacement is None or number < 0:
            return [number, None, []]
        content = replacement.get("content")
        body = self.entries[number].body
        if isinstance(body, CustomMessage):
            return [number, self._html(number, _as_edited({"role": "custom", "content": content})), []]
        message = body.message if isinstance(body, Message) else {}
        if isinstance(content, str) and role(message) in ("assistant", "toolResult"):
            content = text_blocks(content)
        message = {**message, "content": content}
        return [number, self._html(number, _as_edited(message)), [call.id for call in tool_calls(message)]]


def _as_edited(message: JsonObject) -> View:
    view = message_view(message)
    return replace(view, facts=("as edited", *view.facts))


def _spent(entry: Entry) -> tuple[float, float]:
    sums = [sum_ for usage in usages(entry.body) if (sum_ := spent(usage)) is not None]
    return sum(one.tokens for one in sums), round(sum(one.cost for one in sums), 10)
