"""Renders a session as Markdown, as plain text, and as one JSON object. Pure.

In Markdown and plain text, the active path comes first. Every other branch follows from where it diverges, so that each
entry occurs once. Bookkeeping entries (labels, names, head records, usage) appear in headings or are omitted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from sessiontree.branch_comparison import PathStats, compute_stats, stats_to_wire
from sessiontree.core.entries import Entry, EntryId, JsonObject
from sessiontree.core.entry_text import format_entry_row
from sessiontree.core.number_text import format_cost, format_tokens, pluralize
from sessiontree.core.outline import DEEP_NOTE, draw_rows, format_hidden, lay_out, run_steps, survey_tree
from sessiontree.core.place_names import shorten_id
from sessiontree.core.problems import encode_problem
from sessiontree.export.entry_view import EntryView, ViewPart, build_view, make_visible
from sessiontree.export.snapshot import Snapshot
from sessiontree.format.codec import PARENT
from sessiontree.format.json_line import NotJson, read_object


class PathSection(Struct, frozen=True, kw_only=True):
    """Consecutive entries under one heading."""

    title: str
    entries: list[Entry]


def split_into_sections(whole: Snapshot) -> Iterator[PathSection]:
    """Yield every shown entry once: the active path, then the other branches from where they diverge."""
    tree, names = whole.tree, whole.get_branch_names()
    path = whole.get_path()
    if path or not len(tree):
        yield PathSection(title=make_visible(whole.heads.current), entries=path)
    done = {entry.id for entry in path}
    chain: list[Entry] = []
    for entry, _ in tree.walk(whole.leaf):
        if entry.id in done or not _is_shown(entry):
            continue
        if chain and tree.skip_annotations(tree.parent(entry.id)) != chain[-1].id:
            yield _build_side_section(whole, chain, names)
            chain = []
        chain.append(entry)
    if chain:
        yield _build_side_section(whole, chain, names)


def _build_side_section(whole: Snapshot, chain: list[Entry], names: dict[EntryId, list[str]]) -> PathSection:
    named = ", ".join(name for entry in chain for name in names.get(entry.id, ()))
    parent = whole.tree.parent(chain[0].id)
    begins = "from the beginning" if parent is None else f"from {format_id(parent)}"
    return PathSection(title=make_visible(f"{named or 'unnamed branch'}, {begins}"), entries=chain)


def format_id(id: EntryId) -> str:
    """Return the short form of an entry id."""
    return make_visible(shorten_id(id))


def _is_shown(entry: Entry) -> bool:
    return not entry.is_annotation


def _list_facts(whole: Snapshot) -> list[str]:
    stats = compute_stats("", None, map(whole.tree.peek, whole.tree.iter_ids()))
    facts = [
        pluralize(len(whole.tree), "entry", "entries"),
        f"{len(whole.heads.heads)} branches" if len(whole.heads.heads) > 1 else "",
        format_tokens(stats.tokens) if stats.tokens else "",
        format_cost(stats.cost) if stats.cost else "",
        ", ".join(model for model in stats.models if model != "unknown/unknown"),
        f"from {whole.header.origin_name}" if whole.header.origin_name else "",
        f"{whole.header.timestamp[:16]} to {(stats.last_activity or whole.header.timestamp)[:16]}".replace("T", " "),
    ]
    return [make_visible(fact) for fact in facts if fact]


def _draw_tree(whole: Snapshot) -> Iterator[str]:
    """Draw the tree like the terminal does."""
    rows = run_steps(lay_out(run_steps(survey_tree(whole.tree, whole.leaf))))
    for row in draw_rows(rows, whole.heads):
        label = whole.tree.label(row.entry.id)
        hidden = format_hidden([make_visible(name) for name in row.branches_hidden], row.active_hidden)
        parts = [
            row.prefix,
            "• " if row.on_path else "",
            f"[{make_visible(label)}] " if label else "",
            make_visible(format_entry_row(row.entry, whole.calls)),
            *(f" ({make_visible(name)})" for name in row.branches),
            " ← active" if row.active else "",
            f" {hidden}" if hidden else "",
        ]
        yield "".join(parts)
    if rows.is_deep:
        yield DEEP_NOTE


def _has_branches(whole: Snapshot) -> bool:
    """Whether there is more than one section. Then the tree is drawn and sections have headings."""
    return len(list(islice(split_into_sections(whole), 2))) > 1


def _join_lines(lines: Iterable[str]) -> Iterator[str]:
    """Join lines to one text without trailing blank lines."""
    held = ""
    for line in lines:
        text = held + line
        stripped = text.rstrip("\n")
        held = f"{text[len(stripped) :]}\n"
        if stripped:
            yield stripped
    yield "\n"


# Markdown


def render_markdown(whole: Snapshot) -> Iterator[str]:
    """Render the session as Markdown."""
    return _join_lines(_write_markdown(whole))


def _write_markdown(whole: Snapshot) -> Iterator[str]:
    yield from (
        f"# {_escape(make_visible(whole.name or 'Unnamed session'))}",
        "",
        _escape(" · ".join(_list_facts(whole))),
        "",
    )
    several = _has_branches(whole)
    if several:
        ticks = "`" * max(3, 1 + max(map(_count_backticks, _draw_tree(whole)), default=0))
        yield f"{ticks}text"
        yield from _draw_tree(whole)
        yield from (ticks, "")
    for run in split_into_sections(whole):
        if several:
            yield from (f"## Branch {_escape(run.title)}", "")
        yield from _write_entries(whole, run.entries, _format_markdown_entry)


def _write_entries(
    whole: Snapshot, entries: Iterable[Entry], write: Callable[[EntryView, str, str | None], list[str]]
) -> Iterator[str]:
    for entry in filter(_is_shown, entries):
        label = whole.tree.label(entry.id)
        view = build_view(entry, whole.calls.get(entry.id))
        yield from write(view, format_id(entry.id), make_visible(label) if label else None)
        yield ""


def _format_markdown_entry(view: EntryView, id: str, label: str | None) -> list[str]:
    facts = " · ".join((*((f"[{label}]",) if label else ()), *view.facts, id))
    if view.kind in ("setting", "note") and not view.parts:
        return [f"*{_escape(view.title)}: {_escape(facts)}*"]
    return [f"### {_escape(view.title)}", "", f"*{_escape(facts)}*", *_write_parts(view.parts, _format_markdown_part)]


def _write_parts(parts: tuple[ViewPart, ...], write: Callable[[ViewPart], list[str]]) -> Iterator[str]:
    for part in parts:
        yield ""
        yield from write(part)


def _format_markdown_part(part: ViewPart) -> list[str]:
    match part.kind:
        case "prose":
            return [_demote_headings(part.text)]
        case "thinking":
            return ["\n".join(f"> {line}".rstrip() for line in part.text.split("\n"))]
        case "call":
            subject = f" {_format_inline_code(part.text)}" if part.text else ""
            return [f"**{_escape(part.name)}**{subject}", *_write_parts(part.inner, _format_markdown_part)]
        case "image":
            assert part.picture is not None
            return [f"*{_escape(part.picture.description)}*"]
        case "data":
            return [_fence(part.text, "json")]
        case "diff":
            return [_fence(part.text, "diff")]
        case _:
            return [_fence(part.text, part.language if part.language.isalnum() else "")]


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def _escape(text: str) -> str:
    """Return `text` on one line with Markdown characters escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _format_inline_code(text: str) -> str:
    ticks = "`" * (1 + _count_backticks(text))
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{blank}{text}{blank}{ticks}"


def _count_backticks(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0) if "`" in text else 0


def _fence(text: str, language: str) -> str:
    ticks = "`" * max(3, 1 + _count_backticks(text))
    return f"{ticks}{language}\n{text}\n{ticks}"


def _demote_headings(text: str) -> str:
    """Demote the headings of a text below ours, and close open code fences."""
    fence = ""
    lines: list[str] = []
    for line in text.split("\n"):
        found = re.match(r" {0,3}(`{3,}|~{3,})", line)
        if found is not None and not fence:
            fence = found[1]
        elif found is not None and found[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        elif not fence and re.match(r" {0,3}#{1,6}(?:\s|$)", line):
            line = f"###{line.lstrip(' ')}" if line.lstrip(" ").startswith(("# ", "## ", "### ")) else line
        lines.append(line)
    return "\n".join([*lines, fence] if fence else lines)


# Plain text


def render_plain_text(whole: Snapshot) -> Iterator[str]:
    """Render the session as plain text."""
    return _join_lines(_write_plain_text(whole))


def _write_plain_text(whole: Snapshot) -> Iterator[str]:
    title = make_visible(whole.name or "Unnamed session")
    yield from (title, "=" * len(title), " · ".join(_list_facts(whole)), "")
    several = _has_branches(whole)
    if several:
        yield from _draw_tree(whole)
        yield ""
    for run in split_into_sections(whole):
        if several:
            heading = f"Branch {run.title}"
            yield from (heading, "-" * len(heading), "")
        yield from _write_entries(whole, run.entries, _format_plain_entry)


def _format_plain_entry(view: EntryView, id: str, label: str | None) -> list[str]:
    facts = ", ".join((*((f"[{label}]",) if label else ()), *view.facts, id))
    return [f"{view.title} ({facts})", *_write_plain_parts(view.parts)]


def _write_plain_parts(parts: tuple[ViewPart, ...]) -> Iterator[str]:
    for part in parts:
        text = part.picture.description if part.picture is not None else part.text
        lead = {"call": f"→ {part.name} ", "thinking": "(thinking) ", "error": "error: "}.get(part.kind, "")
        first, *others = f"{lead}{text}".rstrip().split("\n")
        yield from (f"  {line}".rstrip() for line in (first, *others))
        yield from (f"  {line}" if line else "" for line in _write_plain_parts(part.inner))


# JSON


def render_json(whole: Snapshot) -> Iterator[str]:
    """Render the session as JSON, for programs that do not want to replay lines.

    It has the header, the name, branches with statistics, labels, entries in file order, and problems.
    """
    tree, heads = whole.tree, whole.heads
    begin = {"session": read_object(whole.header_line), "name": whole.name, "branch": heads.current, "leaf": whole.leaf}
    yield _dump(begin)[:-1]
    yield ',"branches":['
    yield from _join_values(_build_branches(whole))
    yield f'],"labels":{_dump(tree.labels)},"entries":['
    yield from _join_values(_build_entries(whole))
    yield f'],"problems":{_dump([encode_problem(problem) for problem in whole.problems])}}}\n'


def _build_branches(whole: Snapshot) -> Iterator[JsonObject]:
    stats = PathStats(whole.tree)
    for name, head in whole.heads.heads.items():
        yield {
            **stats_to_wire(stats.compute(name, head)),
            "current": name == whole.heads.current,
            "archived": name in whole.heads.archived,
        }


def _build_entries(whole: Snapshot) -> Iterator[JsonObject]:
    for id in whole.tree.iter_ids():
        try:
            yield {**read_object(whole.tree.peek(id).raw), PARENT: whole.tree.parent(id)}
        except NotJson:  # a broken entry; it is listed among the problems
            continue


def _join_values(values: Iterable[JsonObject]) -> Iterator[str]:
    for index, value in enumerate(values):
        yield f",{_dump(value)}" if index else _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
