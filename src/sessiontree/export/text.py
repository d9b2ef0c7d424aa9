"""Text: a session as Markdown, and as plain text. Pure.

The active path comes first, then every other branch from where it parts, so that each entry stands once. What only
keeps the books (labels, names, head records, usage) is told by the headings or left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from msgspec import Struct

from sessiontree.comparison import stats_of
from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.figures import pluralize, tell_tokens
from sessiontree.core.outline import DEEP, draw, finish, lay_out, row_text, survey, tell_hidden
from sessiontree.core.places import shortened
from sessiontree.export.snapshot import Snapshot
from sessiontree.export.view import Part, View, money, view_of, visible


class Run(Struct, frozen=True, kw_only=True):
    """Entries that follow one another."""

    title: str
    entries: list[Entry]


def runs(whole: Snapshot) -> Iterator[Run]:
    """Every entry that is told once: the active path, then the others from where they part."""
    tree, names = whole.tree, whole.branch_names()
    path = whole.path()
    if path or not len(tree):
        yield Run(title=visible(whole.heads.current), entries=path)
    done = {entry.id for entry in path}
    chain: list[Entry] = []
    for entry, _ in tree.walk(whole.leaf):
        if entry.id in done or not _told(entry):
            continue
        if chain and tree.real(tree.parent(entry.id)) != chain[-1].id:
            yield _side(whole, chain, names)
            chain = []
        chain.append(entry)
    if chain:
        yield _side(whole, chain, names)


def _side(whole: Snapshot, chain: list[Entry], names: dict[EntryId, list[str]]) -> Run:
    named = ", ".join(name for entry in chain for name in names.get(entry.id, ()))
    parent = whole.tree.parent(chain[0].id)
    begins = "from the beginning" if parent is None else f"from {short(parent)}"
    return Run(title=visible(f"{named or 'a branch without a name'}, {begins}"), entries=chain)


def short(id: EntryId) -> str:
    """An entry id as people are shown it."""
    return visible(shortened(id))


def _told(entry: Entry) -> bool:
    return not entry.is_annotation


def _facts(whole: Snapshot) -> list[str]:
    stats = stats_of("", None, map(whole.tree.peek, whole.tree.ids()))
    facts = [
        pluralize(len(whole.tree), "entry", "entries"),
        f"{len(whole.heads.heads)} branches" if len(whole.heads.heads) > 1 else "",
        tell_tokens(stats.tokens) if stats.tokens else "",
        money(stats.cost) if stats.cost else "",
        ", ".join(model for model in stats.models if model != "unknown/unknown"),
        f"{whole.header.timestamp[:16]} to {(stats.last_activity or whole.header.timestamp)[:16]}".replace("T", " "),
    ]
    return [visible(fact) for fact in facts if fact]


def _drawing(whole: Snapshot) -> Iterator[str]:
    """The tree as the terminal draws it."""
    rows = finish(lay_out(finish(survey(whole.tree, whole.leaf))))
    for row in draw(rows, whole.heads):
        label = whole.tree.label(row.entry.id)
        hidden = tell_hidden([visible(name) for name in row.branches_hidden], row.active_hidden)
        parts = [
            row.prefix,
            "• " if row.on_path else "",
            f"[{visible(label)}] " if label else "",
            visible(row_text(row.entry, whole.calls)),
            *(f" ({visible(name)})" for name in row.branches),
            " ← active" if row.active else "",
            f" {hidden}" if hidden else "",
        ]
        yield "".join(parts)
    if rows.is_deep:
        yield DEEP


def _has_branches(whole: Snapshot) -> bool:
    """Whether there is more than one run of entries, so that the tree is drawn and runs have headings."""
    return len(list(islice(runs(whole), 2))) > 1


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Lines as one text, blank ones at its end left out."""
    held = ""
    for line in lines:
        text = held + line
        said = text.rstrip("\n")
        held = f"{text[len(said) :]}\n"
        if said:
            yield said
    yield "\n"


# Markdown


def markdown(whole: Snapshot) -> Iterator[str]:
    """The session as Markdown."""
    return _joined(_markdown_lines(whole))


def _markdown_lines(whole: Snapshot) -> Iterator[str]:
    yield from (f"# {_escaped(visible(whole.name or 'Unnamed session'))}", "", _escaped(" · ".join(_facts(whole))), "")
    several = _has_branches(whole)
    if several:
        ticks = "`" * max(3, 1 + max(map(_longest_ticks, _drawing(whole)), default=0))
        yield f"{ticks}text"
        yield from _drawing(whole)
        yield from (ticks, "")
    for run in runs(whole):
        if several:
            yield from (f"## Branch {_escaped(run.title)}", "")
        yield from _entries(whole, run.entries, _markdown_entry)


def _entries(
    whole: Snapshot, entries: Iterable[Entry], write: Callable[[View, str, str | None], list[str]]
) -> Iterator[str]:
    for entry in filter(_told, entries):
        label = whole.tree.label(entry.id)
        view = view_of(entry, whole.calls.get(entry.id))
        yield from write(view, short(entry.id), visible(label) if label else None)
        yield ""


def _markdown_entry(view: View, id: str, label: str | None) -> list[str]:
    facts = " · ".join((*((f"[{label}]",) if label else ()), *view.facts, id))
    if view.kind in ("setting", "note") and not view.parts:
        return [f"*{_escaped(view.title)}: {_escaped(facts)}*"]
    return [f"### {_escaped(view.title)}", "", f"*{_escaped(facts)}*", *_parts(view.parts, _markdown_part)]


def _parts(parts: tuple[Part, ...], write: Callable[[Part], list[str]]) -> Iterator[str]:
    for part in parts:
        yield ""
        yield from write(part)


def _markdown_part(part: Part) -> list[str]:
    match part.kind:
        case "prose":
            return [_demoted(part.text)]
        case "thinking":
            return ["\n".join(f"> {line}".rstrip() for line in part.text.split("\n"))]
        case "call":
            subject = f" {_code(part.text)}" if part.text else ""
            return [f"**{_escaped(part.name)}**{subject}", *_parts(part.inner, _markdown_part)]
        case "image":
            assert part.picture is not None
            return [f"*{_escaped(part.picture.says)}*"]
        case "data":
            return [_fenced(part.text, "json")]
        case "diff":
            return [_fenced(part.text, "diff")]
        case _:
            return [_fenced(part.text, part.language if part.language.isalnum() else "")]


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def _escaped(text: str) -> str:
    """`text` on one line, meaning nothing in Markdown."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    ticks = "`" * (1 + _longest_ticks(text))
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{blank}{text}{blank}{ticks}"


def _longest_ticks(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0) if "`" in text else 0


def _fenced(text: str, language: str) -> str:
    ticks = "`" * max(3, 1 + _longest_ticks(text))
    return f"{ticks}{language}\n{text}\n{ticks}"


def _demoted(text: str) -> str:
    """Prose whose headings stand below ours, and whose open fences are closed."""
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


def plain(whole: Snapshot) -> Iterator[str]:
    """The session as plain text."""
    return _joined(_plain_lines(whole))


def _plain_lines(whole: Snapshot) -> Iterator[str]:
    title = visible(whole.name or "Unnamed session")
    yield from (title, "=" * len(title), " · ".join(_facts(whole)), "")
    several = _has_branches(whole)
    if several:
        yield from _drawing(whole)
        yield ""
    for run in runs(whole):
        if several:
            heading = f"Branch {run.title}"
            yield from (heading, "-" * len(heading), "")
        yield from _entries(whole, run.entries, _plain_entry)


def _plain_entry(view: View, id: str, label: str | None) -> list[str]:
    facts = ", ".join((*((f"[{label}]",) if label else ()), *view.facts, id))
    return [f"{view.title} ({facts})", *_plain_parts(view.parts)]


def _plain_parts(parts: tuple[Part, ...]) -> Iterator[str]:
    for part in parts:
        text = part.picture.says if part.picture is not None else part.text
        lead = {"call": f"→ {part.name} ", "thinking": "(thinking) ", "error": "error: "}.get(part.kind, "")
        first, *others = f"{lead}{text}".rstrip().split("\n")
        yield from (f"  {line}".rstrip() for line in (first, *others))
        yield from (f"  {line}" if line else "" for line in _plain_parts(part.inner))
