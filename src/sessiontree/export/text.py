"""Text: a session as Markdown, and as plain text. Pure.

The active path comes first, then every other branch from where it parts, so that each entry stands once. What only
keeps the books (labels, names, head records, usage) is told by the headings or left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from sessiontree.comparison import stats_of
from sessiontree.core.entries import Entry, EntryId
from sessiontree.core.figures import pluralize, tell_tokens
from sessiontree.core.outline import outline, row_text, tell_hidden
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
    stats = stats_of("", None, list(whole.tree))
    facts = [
        pluralize(len(whole.tree), "entry", "entries"),
        f"{len(whole.heads.heads)} branches" if len(whole.heads.heads) > 1 else "",
        tell_tokens(stats.tokens) if stats.tokens else "",
        money(stats.cost) if stats.cost else "",
        ", ".join(model for model in stats.models if model != "unknown/unknown"),
        f"{whole.header.timestamp[:16]} to {(stats.last_activity or whole.header.timestamp)[:16]}".replace("T", " "),
    ]
    return [visible(fact) for fact in facts if fact]


def _drawing(whole: Snapshot) -> list[str]:
    """The tree as the terminal draws it."""
    drawn: list[str] = []
    for row in outline(whole.tree, whole.leaf, heads=whole.heads):
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
        drawn.append("".join(parts))
    return drawn


# Markdown


def markdown(whole: Snapshot) -> str:
    """The session as Markdown."""
    lines = [f"# {_escaped(visible(whole.name or 'Unnamed session'))}", "", _escaped(" · ".join(_facts(whole))), ""]
    several = list(runs(whole))
    if len(several) > 1:
        lines += [_fenced("\n".join(_drawing(whole)), "text"), ""]
    for run in several:
        if len(several) > 1:
            lines += [f"## Branch {_escaped(run.title)}", ""]
        lines += _entries(whole, run.entries, _markdown_entry)
    return "\n".join(lines).rstrip("\n") + "\n"


def _entries(
    whole: Snapshot, entries: list[Entry], write: Callable[[View, str, str | None], list[str]]
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
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    blank = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{blank}{text}{blank}{ticks}"


def _fenced(text: str, language: str) -> str:
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
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


def plain(whole: Snapshot) -> str:
    """The session as plain text."""
    title = visible(whole.name or "Unnamed session")
    lines = [title, "=" * len(title), " · ".join(_facts(whole)), ""]
    several = list(runs(whole))
    if len(several) > 1:
        lines += [*_drawing(whole), ""]
    for run in several:
        if len(several) > 1:
            heading = f"Branch {run.title}"
            lines += [heading, "-" * len(heading), ""]
        lines += _entries(whole, run.entries, _plain_entry)
    return "\n".join(lines).rstrip("\n") + "\n"


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
