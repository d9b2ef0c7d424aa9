"""The results of `SessionAccess` as text that a model reads."""

from __future__ import annotations

from collections.abc import Iterable

from sessiontree.core.entries import JsonObject
from sessiontree.core.number_text import format_dollars, pluralize


def format_matches(page: JsonObject) -> str:
    lines: list[str] = []
    for item in page["matches"]:
        where = f"branch {item['branch']}" if item["branch"] else "no branch"
        seen = "in context" if item["inContext"] else "not in context"
        name = f" {item['name']!r}" if item["name"] else ""
        lines.append(f"session {item['session']}{name}, entry {item['entry']}, {item['role']}, {item['time']}")
        lines.append(f"  {where}, {seen}: {item['snippet']}")
    return _join(lines or ["no matches"], page)


def format_sessions(page: JsonObject) -> str:
    lines: list[str] = []
    for item in page["sessions"]:
        name = f" {item['name']!r}" if item["name"] else ""
        counts = f"{pluralize(item['messages'], 'message')}, {pluralize(item['branches'], 'branch', 'branches')}"
        program = f", from {item['program']}" if item["program"] else ""
        damage = f", damaged: {item['damage']}" if item["damage"] else ""
        lines.append(f"{item['session']}{name}, modified {item['modified']}, {counts}{program}{damage}")
        if item["firstMessage"]:
            lines.append(f"  {item['firstMessage']}")
    return _join(lines or ["no sessions"], page)


def format_branches(page: JsonObject) -> str:
    lines = [f"session {page['session']}"]
    for item in page["branches"]:
        marks = [word for word in ("current", "archived") if item[word]]
        facts = [*marks, f"head {item['head'] or 'root'}", pluralize(item["entries"], "entry", "entries")]
        lines.append(f"branch {item['name']}: {', '.join(facts)}")
    lines += [f"leaf without a branch: {item['leaf']}" for item in page["unnamedLeaves"]]
    lines += [f"label {item['label']}: entry {item['entry']}" for item in page["labels"]]
    return "\n".join(lines)


def format_path(page: JsonObject) -> str:
    lines = [f"session {page['session']}, path to {page['place']}"]
    if page["earlier"] is not None:
        count = pluralize(page["earlierEntries"], "earlier entry", "earlier entries")
        lines.append(f"[{count}: read_path with place={page['earlier']}]")
    for item in page["entries"]:
        marks = "" if item["inContext"] else ", not in context"
        label = f" [{item['label']}]" if "label" in item else ""
        lines.append(f"--- {item['role']} {item['entry']}{label} {item['time']}{marks}")
        lines.append(item["text"])
        if "cutOffAt" in item:
            lines.append(f"[cut off at {item['cutOffAt']} of {item['length']} characters: read_entry shows all]")
    return "\n".join(lines)


def format_entry_page(page: JsonObject) -> str:
    lines = [f"--- {page['role']} {page['entry']} {page['time']}, {page['length']} characters", page["text"]]
    if page["nextOffset"] is not None:
        lines.append(f"[more: offset={page['nextOffset']}]")
    return "\n".join(lines)


def format_comparison(page: JsonObject) -> str:
    lines = [f"since their common ancestor {page['commonAncestor'] or 'root'}"]
    for item in page["branches"]:
        facts = [
            pluralize(item["entryCount"], "entry", "entries"),
            pluralize(item["toolCalls"], "tool call"),
            pluralize(item["errors"], "error"),
            f"{item['totalTokens']} tokens",
            format_dollars(item["totalCost"]),
        ]
        lines.append(f"{item['name']}: {', '.join(facts)}")
    lines.append(f"winner: {page['winner']}" if page["winner"] else f"no winner: {page['reason']}")
    return "\n".join(lines)


def format_change(page: JsonObject) -> str:
    return ", ".join(f"{key} {value}" for key, value in page.items() if value is not None)


def _join(lines: Iterable[str], page: JsonObject) -> str:
    more = [] if page["nextOffset"] is None else [f"[more: offset={page['nextOffset']}]"]
    return "\n".join([*lines, *more])
