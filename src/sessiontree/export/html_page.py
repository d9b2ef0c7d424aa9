"""Renders a session as one self-contained HTML file. Pure.

The entries of the active path are in the page as HTML. All other entries are embedded as data until the reader opens
them. The script only draws and filters. Its rules for the tree and for the model's view are those of `core.outline` and
`core.context`, and tests compare them.

Everything in the templates is escaped, except the output of `safe_html` and our own script, style and embedded data.
"""

from __future__ import annotations

import base64
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from sessiontree.branch_comparison import FactsById, PathStats, compute_stats
from sessiontree.core.context import EDITABLE
from sessiontree.core.entries import (
    Body,
    Compaction,
    ContextEdit,
    CustomMessage,
    Entry,
    EntryId,
    JsonObject,
    Message,
    shorten_to_line,
)
from sessiontree.core.entry_text import format_entry, format_entry_row, format_message_row, get_speaker
from sessiontree.core.messages import (
    build_text_blocks,
    convert_for_model,
    get_answered_call,
    get_role,
    get_tool_calls,
    is_failed_turn,
    preview_message,
)
from sessiontree.core.number_text import format_cost, format_count
from sessiontree.core.outline import FILTERS, KIND_BOOKKEEPING, run_steps, survey_tree
from sessiontree.export.article_html import render_article
from sessiontree.export.entry_view import EntryView, build_message_view, build_view, make_visible
from sessiontree.export.snapshot import Snapshot

if TYPE_CHECKING:
    from jinja2 import Environment

CHUNK_SIZE = 40
"""Entries that the page draws together."""
INITIAL_ENTRIES = CHUNK_SIZE
"""Entries of the active path that are HTML elements from the start."""
ENTRIES_PER_BLOCK = 500
"""Entries whose data is in one script element."""
MAX_BRANCHES = 1000
"""The maximum number of branches in the page. Browsers are slow with longer tables."""
MAX_MODELS = 20


def render_html(whole: Snapshot) -> Iterator[str]:
    """Render the page of a session in pieces. Entries are rendered when they are written, and none is kept in
    memory."""
    facts: FactsById = {}
    about, drawn = build_summary(whole, facts), _PageEntries(whole, facts)
    script, style = load_asset("page.js"), load_asset("page.css")
    return render_page_template(
        policy=_build_policy(script, style),
        script=script,
        style=style,
        about=about,
        chunks=drawn.build_chunks(),
        blocks=drawn.build_blocks(),
        data=_LazyText(drawn.build_data),
        filters=FILTERS,
    )


class _LazyText:
    """A text that is built when the template writes it."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    def __str__(self) -> str:
        return self._make()


class PageChunk(Struct, frozen=True):
    """Consecutive entries of the active path."""

    html: str
    deferred: bool
    """Whether the chunk is inside a `noscript` element. The script inserts it later. Without a script, the browser
    shows it."""


def _build_chunk(articles: list[str], start: int) -> PageChunk:
    from markupsafe import Markup

    html = "".join(articles)
    # A chunk that contains the end tag of `noscript` would end early. Our HTML never contains it, but check anyway.
    return PageChunk(Markup(html), start >= INITIAL_ENTRIES and "</n" not in html and "</N" not in html)


def _build_policy(script: str, style: str) -> str:
    """Return a policy that forbids all requests, and all scripts except ours."""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"


COLUMNS = ("id", "row", "kind", "speaker", "tokens", "cost", "counts", "time")
"""The columns in the data of the page."""


class _ReadEntry(NamedTuple):
    entry: Entry
    view: EntryView
    timestamp: str


class _PageEntries:
    """All entries in the order of the drawn tree, by number."""

    def __init__(self, whole: Snapshot, facts: FactsById) -> None:
        self.whole = whole
        self._facts = facts
        self.shape = run_steps(survey_tree(whole.tree, whole.leaf))
        self.names = whole.get_branch_names()
        self.projection = _ModelProjection(self)
        self._columns: dict[int, tuple[Any, ...]] = {}
        """The values of `COLUMNS` of entries that were read and not written yet."""

    def __len__(self) -> int:
        return len(self.shape)

    def get_entry(self, number: int) -> Entry:
        return self.whole.tree.peek(self.shape.ids[number])

    def get_number(self, id: EntryId | None) -> int:
        return -1 if id is None else self.shape.positions.get(id, -1)

    def is_on_path(self, entry: Entry) -> bool:
        """Whether an entry is in the page from the start."""
        return entry.id in self.shape.path and not entry.is_annotation

    def _read(self, number: int) -> _ReadEntry:
        """Decode an entry and keep its columns. Each body is decoded once."""
        entry = self.get_entry(number)
        raw = entry.raw
        body = entry.source.decode_body(raw) if entry.cached_body is None else entry.cached_body
        entry = replace(entry, cached_body=body)
        message = body.message if isinstance(body, Message) else None
        facts = self._facts.pop(entry.id)
        answered = None if message is None else get_answered_call(message)
        call = None if answered is None else self.whole.calls.find(entry.id, answered)
        if message is not None:
            self.whole.calls.add(entry.id, get_role(message), facts.calls)
        view = build_view(entry, call)
        row = format_entry_row(entry) if message is None else format_message_row(preview_message(message), call)
        self._columns[number] = (
            make_visible(entry.id),
            make_visible(row),
            view.kind,
            make_visible(get_speaker(entry)).lower(),
            facts.tokens,
            round(facts.cost, 10),
            (facts.messages, len(facts.calls), facts.errors),
            facts.time or 0,
        )
        self.projection.add(number, entry, body, [call.id for call in facts.calls])
        return _ReadEntry(entry, view, facts.timestamp)

    def render_entry(self, number: int, entry: Entry, view: EntryView, timestamp: str) -> str:
        label = self.whole.tree.label(entry.id)
        return render_article(
            number,
            view,
            time=make_visible(timestamp[:19].replace("T", " ")),
            label=make_visible(label) if label else None,
            branches=[make_visible(name) for name in self.names.get(entry.id, ())],
        )

    def build_chunks(self) -> Iterator[PageChunk]:
        """Yield the entries of the active path in chunks."""
        articles: list[str] = []
        done = 0
        for number, id in enumerate(self.shape.ids):
            if id in self.shape.path and self.is_on_path(self.get_entry(number)):
                articles.append(self.render_entry(number, *self._read(number)))
                if len(articles) == CHUNK_SIZE:
                    yield _build_chunk(articles, done)
                    done += CHUNK_SIZE
                    articles = []
        if articles:
            yield _build_chunk(articles, done)

    def build_blocks(self) -> Iterator[str]:
        """Yield the data of all entries as JSON, in blocks of columns. Call it after `build_chunks`."""
        masks = self._build_masks()
        for start in range(0, len(self), ENTRIES_PER_BLOCK):
            yield embed_json(self._build_block(range(start, min(start + ENTRIES_PER_BLOCK, len(self))), masks))

    def _build_block(self, numbers: range, masks: bytearray) -> dict[str, Any]:
        quiet: list[int] = []
        html: dict[int, str] = {}
        rows: list[tuple[Any, ...]] = []
        for number in numbers:
            if number not in self._columns:  # the entries of the active path were read before
                entry, view, timestamp = self._read(number)
                html[number] = self.render_entry(number, entry, view, timestamp)
                if entry.is_annotation:
                    quiet.append(number)
            rows.append(self._columns.pop(number))
        return {
            **dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)),
            "quiet": quiet,
            "parent": self.shape.parent_positions[numbers.start : numbers.stop].tolist(),
            "filters": list(masks[numbers.start : numbers.stop]),
            "html": html,
        }

    def build_data(self) -> str:
        """Return the data of the session as JSON. Call it after `build_blocks`."""
        tree = self.whole.tree
        return embed_json(
            {
                "label": {self.get_number(id): make_visible(text) for id, text in tree.labels.items() if id in tree},
                "heads": {
                    self.get_number(id): [make_visible(name) for name in names] for id, names in self.names.items()
                },
                "branches": [
                    [make_visible(name), self.get_number(head)] for name, head in self.whole.heads.heads.items()
                ],
                "leaf": self.get_number(self.whole.leaf),
                "model": self.projection.to_wire(),
                "chunk": CHUNK_SIZE,
            }
        )

    def _build_masks(self) -> bytearray:
        """Return for each entry a bit mask of the filters that show it, with one more bit for bookkeeping."""
        masks = bytearray((kind == KIND_BOOKKEEPING) << len(FILTERS) for kind in self.shape.kinds)
        for bit, name in enumerate(FILTERS):
            for number, shown in enumerate(self.shape.find_shown(name)):
                masks[number] |= shown << bit
        return masks


class _ModelProjection:
    """Collects what the page needs to compute the context that a model sees on a path."""

    def __init__(self, drawn: _PageEntries) -> None:
        self._entries = drawn
        self._lists: dict[str, list[int]] = {name: [] for name in ("speaks", "editable", "system", "failed", "resets")}
        self._calls: dict[int, list[str]] = {}
        self._answers: dict[int, str] = {}
        self._anchors: dict[int, int] = {}
        self._edits: dict[int, Any] = {}

    def to_wire(self) -> dict[str, Any]:
        tables = {"calls": self._calls, "answers": self._answers, "anchors": self._anchors, "edits": self._edits}
        lists = {name: sorted(numbers) for name, numbers in self._lists.items()}
        return {**lists, **{name: dict(sorted(table.items())) for name, table in tables.items()}}

    def add(self, number: int, entry: Entry, body: Body, calls: list[str]) -> None:
        """Add an entry with the ids of its tool calls, in any order."""
        match body:
            case Message(message):
                role = get_role(message)
                if convert_for_model(message) is not None:
                    self._lists["speaks"].append(number)
                if role in EDITABLE:
                    self._lists["editable"].append(number)
                if role == "system":
                    self._lists["system"].append(number)
                if is_failed_turn(message):
                    self._lists["failed"].append(number)
                if calls:
                    self._calls[number] = calls
                answered = get_answered_call(message)
                if answered is not None:
                    self._answers[number] = answered
            case CustomMessage():
                self._lists["speaks"].append(number)
                self._lists["editable"].append(number)
            case Compaction(first_kept=anchor):
                self._lists["speaks"].append(number)
                self._anchors[number] = self._entries.get_number(anchor)
            case ContextEdit(target=target, replacement=replacement):
                self._edits[number] = self._build_edit(target, replacement)
            case _:
                if entry.type == "reset_boundary":
                    self._lists["resets"].append(number)
                if entry.type == "branch_summary" and getattr(body, "summary", ""):
                    self._lists["speaks"].append(number)

    def _build_edit(self, target: EntryId, replacement: JsonObject | None) -> list[Any]:
        """Return the number of the edited entry, its HTML after the edit, and the ids of its remaining tool calls."""
        number = self._entries.get_number(target)
        if replacement is None or number < 0:
            return [number, None, []]
        content = replacement.get("content")
        entry = self._entries.get_entry(number)
        body = entry.decode()
        if isinstance(body, CustomMessage):
            return [
                number,
                self._entries.render_entry(
                    number, entry, _build_edited_view({"role": "custom", "content": content}), entry.timestamp
                ),
                [],
            ]
        message = body.message if isinstance(body, Message) else {}
        if isinstance(content, str) and get_role(message) in ("assistant", "toolResult"):
            content = build_text_blocks(content)
        message = {**message, "content": content}
        return [
            number,
            self._entries.render_entry(number, entry, _build_edited_view(message), entry.timestamp),
            [call.id for call in get_tool_calls(message)],
        ]


def _build_edited_view(message: JsonObject) -> EntryView:
    view = build_message_view(message)
    return replace(view, facts=("as edited", *view.facts))


# The summary at the top


class BranchFigures(Struct, frozen=True, kw_only=True):
    """Statistics of a branch as text."""

    name: str
    head: str
    current: bool
    archived: bool
    entries: int
    messages: int
    tool_calls: int
    errors: int
    tokens: str
    cost: str
    time: str
    models: str


class PageSummary(Struct, frozen=True, kw_only=True):
    """The summary of a session."""

    title: str
    id: str
    cwd: str
    started: str
    origin: str
    """The program that recorded the session, and its version; empty for our own."""
    ended: str
    models: list[str]
    tokens: str
    cost: str
    entries: int
    current: str
    branches: list[BranchFigures]
    """The first `MAX_BRANCHES` branches."""
    branch_count: int
    faults: list[str]
    redacted: bool


def build_summary(whole: Snapshot, facts: FactsById) -> PageSummary:
    """Build the summary of a session. The facts of each entry are added to `facts`."""
    tree = whole.tree
    paths = PathStats(tree, facts)
    all = compute_stats("", None, map(tree.peek, tree.iter_ids()), facts)
    faults = [problem.message for problem in whole.problems if problem.severity == "fault"]
    return PageSummary(
        title=make_visible(whole.name or _find_first_words(map(tree.peek, tree.iter_ids())) or "Unnamed session"),
        id=make_visible(whole.header.id),
        cwd=make_visible(whole.header.cwd),
        started=_format_time(whole.header.timestamp),
        origin=make_visible(whole.header.origin_name),
        ended=_format_time(all.last_activity or ""),
        models=_format_models(all.models),
        tokens=format_count(all.tokens) if all.tokens else "",
        cost=format_cost(all.cost) if all.cost else "",
        entries=len(tree),
        current=make_visible(whole.heads.current),
        branches=[
            _build_figures(whole, paths, name, head) for name, head in islice(whole.heads.heads.items(), MAX_BRANCHES)
        ],
        branch_count=len(whole.heads.heads),
        faults=[make_visible(fault) for fault in faults],
        redacted=whole.header.redacted,
    )


def _find_first_words(entries: Iterable[Entry]) -> str:
    return next((shorten_to_line(format_entry(entry))[:80] for entry in entries if get_speaker(entry) == "user"), "")


def _format_time(timestamp: str) -> str:
    return make_visible(timestamp[:16].replace("T", " ")) + (" UTC" if timestamp.endswith("Z") else "")


def _build_figures(whole: Snapshot, paths: PathStats, name: str, head: EntryId | None) -> BranchFigures:
    known = head if head in whole.tree else None
    stats = paths.compute(name, known)
    return BranchFigures(
        name=make_visible(name),
        head="" if known is None else make_visible(known),
        current=name == whole.heads.current,
        archived=name in whole.heads.archived,
        entries=stats.entries,
        messages=stats.messages,
        tool_calls=stats.tool_calls,
        errors=stats.errors,
        tokens=format_count(stats.tokens) if stats.tokens else "–",
        cost=format_cost(stats.cost) if stats.cost else "–",
        time=format_duration(round(stats.seconds * 1000)),
        models=", ".join(_format_models(stats.models)),
    )


def _format_models(names: Iterable[str]) -> list[str]:
    """Return the names of the models, shortened if there are many."""
    known = [make_visible(name) for name in names if name != "unknown/unknown"]
    return known if len(known) <= MAX_MODELS else [*known[:MAX_MODELS], f"and {len(known) - MAX_MODELS} more"]


def format_duration(milliseconds: int) -> str:
    """Format a duration: 90000 ms as `1 min 30 s`."""
    seconds = round(milliseconds / 1000)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86400} d {seconds % 86400 // 3600} h"


# Templates


@cache
def load_asset(name: str) -> str:
    """Read a file of this package."""
    data = pkgutil.get_data("sessiontree.export", name)
    assert data is not None
    return data.decode()


def render_page_template(**values: Any) -> Iterator[str]:
    """Render the page in pieces."""
    return _create_environment().get_template("page.html.jinja").generate(values)


def embed_json(value: Any) -> str:
    """Return JSON that cannot end a script element or start a comment in it."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a lone surrogate
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _create_environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FunctionLoader(load_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    filters: dict[str, Any] = environment.filters
    filters["ours"] = Markup
    return environment
