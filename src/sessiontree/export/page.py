"""The page: a session as one HTML file that needs nothing else and can do nothing but show it. Pure.

The active path is in the page as it is read; all other entries are data until somebody looks at them. What the script
is given is worked out here: it draws and filters, and decides nothing about what an entry shows. Its rules for the
drawing of the tree and for what a model sees are those of `core.outline` and `core.context`, and tests compare them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.comparison import count_of, usages
from sessiontree.core.context import EDITABLE
from sessiontree.core.entries import Compaction, ContextEdit, CustomMessage, Entry, EntryId, JsonObject, Message
from sessiontree.core.fulltext import speaker
from sessiontree.core.messages import (
    ToolCall,
    answered_call,
    for_model,
    role,
    spent,
    stopped_abnormally,
    text_blocks,
    tool_calls,
)
from sessiontree.core.outline import BOOKKEPT, FILTERS, finish, row_text, survey
from sessiontree.core.times import milliseconds
from sessiontree.export.about import about_of
from sessiontree.export.snapshot import Snapshot
from sessiontree.export.template import asset, embedded, render_article, render_page
from sessiontree.export.view import View, message_view, view_of, visible

CHUNK = 40
"""Entries that are drawn together."""
AT_ONCE = CHUNK
"""Entries of the active path that are elements from the start."""


BLOCK = 500
"""Entries whose data stand in one element."""


class Shown(Struct, frozen=True, kw_only=True):
    """An entry as the template puts it in the page."""

    number: int
    view: View
    time: str
    label: str | None
    branches: list[str]


def page(whole: Snapshot) -> Iterator[str]:
    """The page of a session, in pieces: entries are made as they are written, and none is kept."""
    drawn = _Drawn(whole)
    script, style = asset("page.js"), asset("page.css")
    return render_page(
        policy=_policy(script, style),
        script=script,
        style=style,
        about=about_of(whole),
        chunks=drawn.chunks(),
        blocks=drawn.blocks(),
        data=_Later(drawn.data),
        filters=FILTERS,
    )


class _Later:
    """A text that is made when it is written."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    def __str__(self) -> str:
        return self._make()


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
        self.shape = finish(survey(whole.tree, whole.leaf))
        self.names = whole.branch_names()
        self.model = _Model(self)

    def __len__(self) -> int:
        return len(self.shape)

    def entry(self, number: int) -> Entry:
        return self.whole.tree.peek(self.shape.ids[number])

    def number(self, id: EntryId | None) -> int:
        return -1 if id is None else self.shape.positions.get(id, -1)

    def is_on_path(self, entry: Entry) -> bool:
        """Whether an entry stands in the page from the start."""
        return entry.id in self.shape.path and not entry.is_annotation

    def _call(self, entry: Entry) -> ToolCall | None:
        """The call that an entry answers."""
        body = entry.kept
        is_result = isinstance(body, Message) and answered_call(body.message) is not None
        return self.whole.calls.get(entry.id) if is_result else None

    def html(self, number: int, entry: Entry, view: View) -> str:
        label = self.whole.tree.label(entry.id)
        shown = Shown(
            number=number,
            view=view,
            time=visible(entry.timestamp[:19].replace("T", " ")),
            label=visible(label) if label else None,
            branches=[visible(name) for name in self.names.get(entry.id, ())],
        )
        return render_article(shown)

    def chunks(self) -> Iterator[Chunk]:
        """The entries of the active path."""
        articles: list[str] = []
        done = 0
        for number, id in enumerate(self.shape.ids):
            if id in self.shape.path and self.is_on_path(entry := self.entry(number)):
                articles.append(self.html(number, entry, view_of(entry, self.whole.calls.get(id))))
                if len(articles) == CHUNK:
                    yield _chunk(articles, done)
                    done += CHUNK
                    articles = []
        if articles:
            yield _chunk(articles, done)

    def blocks(self) -> Iterator[str]:
        """What the script is given of entries: columns with a value for each, so many entries at a time."""
        masks = self._masks()
        for start in range(0, len(self), BLOCK):
            yield embedded(self._block(range(start, min(start + BLOCK, len(self))), masks))

    def _block(self, numbers: range, masks: bytearray) -> dict[str, Any]:
        whole = self.whole
        columns: dict[str, list[Any]] = {
            name: [] for name in ("id", "row", "kind", "speaker", "tokens", "cost", "counts", "time", "quiet")
        }
        html: dict[int, str] = {}
        for number in numbers:
            entry = self.entry(number)
            entry = replace(entry, kept=entry.decoded())  # many look at it, and nobody afterwards
            view = view_of(entry, self._call(entry))
            tokens, cost = _spent(entry)
            columns["id"].append(visible(entry.id))
            columns["row"].append(visible(row_text(entry, whole.calls)))
            columns["kind"].append(view.kind)
            columns["speaker"].append(visible(speaker(entry)).lower())
            columns["tokens"].append(tokens)
            columns["cost"].append(cost)
            columns["counts"].append(count_of(entry.decoded()))
            columns["time"].append(milliseconds(entry.timestamp) or 0)
            if entry.is_annotation:
                columns["quiet"].append(number)
            if not self.is_on_path(entry):
                html[number] = self.html(number, entry, view)
            self.model.take(number, entry)
        return {
            **columns,
            "parent": self.shape.above[numbers.start : numbers.stop].tolist(),
            "filters": list(masks[numbers.start : numbers.stop]),
            "html": html,
        }

    def data(self) -> str:
        """What the script is given of the session, when all entries were looked at."""
        tree = self.whole.tree
        return embedded(
            {
                "label": {self.number(id): visible(text) for id, text in tree.labels.items() if id in tree},
                "heads": {self.number(id): [visible(name) for name in names] for id, names in self.names.items()},
                "branches": [[visible(name), self.number(head)] for name, head in self.whole.heads.heads.items()],
                "leaf": self.number(self.whole.leaf),
                "model": self.model.wire(),
                "chunk": CHUNK,
            }
        )

    def _masks(self) -> bytearray:
        """For each entry the filters that show it, one bit each, and one more for bookkeeping."""
        masks = bytearray((kind == BOOKKEPT) << len(FILTERS) for kind in self.shape.kinds)
        for bit, name in enumerate(FILTERS):
            for number, shown in enumerate(self.shape.shown(name)):
                masks[number] |= shown << bit
        return masks


class _Model:
    """What the projection of a path onto a model's context needs to know of its entries."""

    def __init__(self, drawn: _Drawn) -> None:
        self._drawn = drawn
        self._lists: dict[str, list[int]] = {name: [] for name in ("speaks", "editable", "system", "failed", "resets")}
        self._calls: dict[int, list[str]] = {}
        self._answers: dict[int, str] = {}
        self._anchors: dict[int, int] = {}
        self._edits: dict[int, Any] = {}

    def wire(self) -> dict[str, Any]:
        tables = {"calls": self._calls, "answers": self._answers, "anchors": self._anchors, "edits": self._edits}
        return {**self._lists, **tables}

    def take(self, number: int, entry: Entry) -> None:
        """Note what counts of one entry."""
        match entry.decoded():
            case Message(message):
                for name, holds in (
                    ("speaks", for_model(message) is not None),
                    ("editable", role(message) in EDITABLE),
                    ("system", role(message) == "system"),
                    ("failed", stopped_abnormally(message)),
                ):
                    if holds:
                        self._lists[name].append(number)
                made = [call.id for call in tool_calls(message)]
                if made:
                    self._calls[number] = made
                answered = answered_call(message)
                if answered is not None:
                    self._answers[number] = answered
            case CustomMessage():
                self._lists["speaks"].append(number)
                self._lists["editable"].append(number)
            case Compaction(first_kept=anchor):
                self._lists["speaks"].append(number)
                self._anchors[number] = self._drawn.number(anchor)
            case ContextEdit(target=target, replacement=replacement):
                self._edits[number] = self._edit(target, replacement)
            case body:
                if entry.type == "reset_boundary":
                    self._lists["resets"].append(number)
                if entry.type == "branch_summary" and getattr(body, "summary", ""):
                    self._lists["speaks"].append(number)

    def _edit(self, target: EntryId, replacement: JsonObject | None) -> list[Any]:
        """The number of what is edited, how it reads then, and the calls that it still makes."""
        number = self._drawn.number(target)
        if replacement is None or number < 0:
            return [number, None, []]
        content = replacement.get("content")
        entry = self._drawn.entry(number)
        body = entry.decoded()
        if isinstance(body, CustomMessage):
            return [number, self._drawn.html(number, entry, _as_edited({"role": "custom", "content": content})), []]
        message = body.message if isinstance(body, Message) else {}
        if isinstance(content, str) and role(message) in ("assistant", "toolResult"):
            content = text_blocks(content)
        message = {**message, "content": content}
        return [number, self._drawn.html(number, entry, _as_edited(message)), [call.id for call in tool_calls(message)]]


def _as_edited(message: JsonObject) -> View:
    view = message_view(message)
    return replace(view, facts=("as edited", *view.facts))


def _spent(entry: Entry) -> tuple[float, float]:
    sums = [sum_ for usage in usages(entry.decoded()) if (sum_ := spent(usage)) is not None]
    return sum(one.tokens for one in sums), round(sum(one.cost for one in sums), 10)
