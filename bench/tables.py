"""The tables of the benchmark: its rows with their goals, and the report of a run in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

Values = dict[str, float]
"""Measurements by name: seconds, MB or a ratio."""


class Row(NamedTuple):
    """One row of the table: `ours` against `peer`, and the goal for their ratio."""

    name: str
    work: str
    ours: str
    peer: str | None
    at_least: float
    aim: float
    more: bool = True
    """Whether the ratio is peer / ours, and more is better; otherwise ours / peer."""
    unit: str = "s"

    def rate(self, ratio: float) -> str:
        for word, goal in (("aim", self.aim), ("yes", self.at_least)):
            if (ratio >= goal) if self.more else (ratio <= goal):
                return word
        return "no"


ROWS = (
    Row("context", "context of the current leaf, {large}", "context", "pi context", 1000, 2000),
    Row("command", "the same as a command, against pi in process", "context command", "pi context", 100, 300),
    Row("command-wc", "the same as a command, against `wc -l`", "context command", "wc", 1, 1),
    Row("command-wc-third", "the same of {third}", "context command third", "wc third", 1, 2),
    Row("size", "context of {large} against {small}, equal tails", "context", "context small", 2, 1.2, more=False),
    Row("open", "open {middle}, the whole tree indexed", "open", "pi open", 8, 13),
    Row("memory", "memory added by that, at its peak", "open peak", None, 40, 18, more=False, unit="MB"),
    Row("append", "append without fsync, against `os.write`", "append", "raw write", 6, 3, more=False),
    Row("durable", "append durably by 64, against `os.write`", "append durable", "raw write 64", 6, 4, more=False),
    Row("list-cold", "list {sessions} sessions, cold", "list cold", "pi list", 4, 8),
    Row("list-warm", "list {sessions} sessions, warm", "list warm", "pi list", 150, 300),
    Row("fork", "fork a path of {middle}", "fork", "pi fork", 3, 5),
    Row("flat", "append at {large} against 1,000", "append far", "append near", 1.2, 1, more=False),
    Row("append-command", "`append` in {large} against 1,000", "append large", "append short", 1.5, 1.1, more=False),
    Row("label-command", "`label` likewise", "label large", "label short", 1.5, 1.1, more=False),
    Row("branches-command", "`branches` likewise", "branches large", "branches short", 2, 1.2, more=False),
    Row("navigate-command", "`navigate HEAD~1` likewise", "navigate large", "navigate short", 2, 1.2, more=False),
    Row("back-command", "`navigate HEAD@{{1}}` likewise", "back large", "back short", 2, 1.2, more=False),
    Row(
        "prompt",
        "first prompt of an agent, to its request, in {large} against {small}",
        "prompt large",
        "prompt small",
        1.5,
        1.2,
        more=False,
    ),
    Row("prompt-memory", "memory added by that, at its peak", "prompt peak", None, 40, 40, more=False, unit="MB"),
    Row("disk", "disk used against payload", "disk", None, 1.1, 1, more=False, unit="x"),
    Row(
        "agent",
        "a turn of an agent, synced, against its model and bare appends",
        "agent",
        "bare turn",
        1.5,
        1.1,
        more=False,
    ),
    Row(
        "swarm",
        "append by 16 agents on one session, synced, against a bare store",
        "swarm append",
        "store append",
        2,
        1.2,
        more=False,
    ),
    Row("events", "an event of a swarm, against `os.write`", "event", "raw event", 20, 10, more=False),
    Row("web", "a read over HTTP, against a bare FastAPI route as large", "web", "bare web", 4, 2, more=False),
    Row(
        "snapshot-none",
        "check of {files} files without a change, against git",
        "snapshot none",
        "git none",
        1.5,
        1,
        False,
    ),
    Row(
        "snapshot-one",
        "snapshot of {files} files, one changed, the same",
        "snapshot one",
        "git one",
        1.5,
        1,
        False,
    ),
    Row(
        "snapshot-turn",
        "what snapshots add to a turn with one call that changes nothing, against one check",
        "turn checks",
        "snapshot none",
        1,
        1,
        False,
    ),
    Row(
        "private-overlay",
        "private folder (overlay), against `git worktree add`",
        "private overlay",
        "work tree",
        5,
        10,
    ),
    Row("private-reflink", "private folder with reflinks, the same", "private reflink", "work tree", 1, 2),
    Row("private-copy", "private folder as a copy, the same", "private checkout", "work tree", 1.2, 1, more=False),
    Row(
        "restore", "restore 100 files of {files}, against one file", "restore many", "restore one", 100, 20, more=False
    ),
    Row(
        "pg-append", "append to PostgreSQL, against psycopg alone", "pg append", "pg bare append", 1.5, 1.2, more=False
    ),
    Row(
        "pg-context",
        "context from PostgreSQL, {small}, against psycopg alone",
        "pg context",
        "pg bare context",
        1.5,
        1.2,
        more=False,
    ),
    Row("version", "`sessiontree --version` against `python -c pass`", "version", "python", 8, 8, more=False),
    Row("tree", "`sessiontree tree` of 30 entries against `python -c pass`", "tree", "python", 5, 4, more=False),
    Row(
        "tree-json",
        "`sessiontree tree --json` of {middle} against a stdlib parse of the lines",
        "tree json",
        "parse",
        1.5,
        0.7,
        more=False,
    ),
    Row("tree-memory", "memory of that command, at its peak", "tree peak", None, 400, 100, more=False, unit="MB"),
    Row("tree-json-third", "the same of {third}", "tree json third", "parse third", 1.5, 0.7, more=False),
    Row("tree-memory-third", "memory of that", "tree peak third", None, 400, 100, more=False, unit="MB"),
    Row(
        "tree-window",
        "1,000 rows around the leaf of {middle} against a layout of the whole tree",
        "tree window",
        "tree whole",
        0.3,
        0.1,
        more=False,
    ),
    Row("export", "`sessiontree export` of {small} as HTML, against `pi --export`", "export", "pi export", 1, 2),
    Row("paint", "the app, to its first paint, against a bare Textual app", "paint", "bare paint", 2, 1.5, more=False),
)

BESIDE: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "context of {small}",
        "s",
        {"sessiontree": "context small", "pi": "pi context small", "pp-coding-agent": "pp context small"},
    ),
    (
        "memory added by opening {middle}, at its peak",
        "MB",
        {"sessiontree": "open peak", "pi": "pi open peak"},
    ),
    (
        "append a message, not synced",
        "s",
        {
            "sessiontree": "append",
            "sessiontree by 64": "append grouped",
            "its store alone": "store write",
            "pi": "pi append",
            "pp-coding-agent": "pp append",
            "the least that makes an entry": "raw entry",
            "`os.write` with lock and checks": "raw safe write",
            "`os.write`": "raw write",
        },
    ),
    (
        "append a message, synced",
        "s",
        {
            "sessiontree": "append synced",
            "sessiontree by 64": "append durable",
            "its store alone, by 64": "store write 64",
            "`os.write`, `fdatasync` by 64": "raw synced 64",
            "openai-agents": "openai append",
            "langgraph (first 200)": "langgraph append",
        },
    ),
    (
        "disk used against payload",
        "x",
        {
            "sessiontree": "disk",
            "pi": "pi disk",
            "pp-coding-agent": "pp disk",
            "openai-agents": "openai disk",
            "langgraph (first 200)": "langgraph disk",
        },
    ),
    (
        "fork, opening included",
        "s",
        {"sessiontree": "fork with open", "pi": "pi fork with open"},
    ),
)
"""The same work in peers, without a goal: work, unit, and the measurement of each."""

PEER_NAMES = {"pp": "pp-coding-agent", "openai": "openai-agents", "langgraph": "langgraph-checkpoint-sqlite"}


class Spread(NamedTuple):
    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def build_rows(found: Sequence[Values], names: dict[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        told: dict[str, Any] = {
            "row": row.name,
            "work": row.work.format(**names),
            "at_least": row.at_least,
            "aim": row.aim,
            "ratio_of": "peer / ours" if row.more else "ours / peer" if row.peer else "ours",
            "unit": row.unit,
        }
        rows.append(told)
        both = [values for values in found if row.ours in values and (row.peer is None or row.peer in values)]
        if not both:
            told["reached"] = None
            continue
        ours = [values[row.ours] for values in both]
        told["ours"] = spread(ours)._asdict()
        ratios = ours
        if row.peer is not None:
            peer = [values[row.peer] for values in both]
            told["peer"] = spread(peer)._asdict()
            ratios = [b / a if row.more else a / b for a, b in zip(ours, peer, strict=True)]
        told["ratio"] = spread(ratios)._asdict()
        told["reached"] = row.rate(told["ratio"]["median"])
    return rows


def build_peer_rows(found: Sequence[Values], names: dict[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for work, unit, who in BESIDE:
        figures = {
            name: spread(values)._asdict()
            for name, key in who.items()
            if (values := [round[key] for round in found if key in round])
        }
        rows.append({"work": work.format(**names), "unit": unit, "figures": figures})
    return rows


def format_value(value: float, unit: str) -> str:
    if unit == "MB":
        return f"{value:.0f} MB"
    if unit == "x":
        return f"{value:.2f}x"
    factor, name = next(unit for unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if value * unit[0] >= 1 or unit[0] == 1e6)
    return f"{value * factor:.3g} {name}" if value * factor < 100 else f"{value * factor:,.0f} {name}"


def format_ratio(value: float) -> str:
    return f"{value:,.0f}x" if value >= 20 else f"{value:.3g}x"


def report(result: dict[str, Any]) -> str:
    """Return the result in Markdown: how it was measured, and two tables."""
    lines = [
        describe_run(result),
        "",
        "| work | ours | against | ratio (least to greatest) | at least | aim | reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        goal = [format_goal(row, row[name]) for name in ("at_least", "aim")]
        if row["reached"] is None:
            lines.append(f"| {row['work']} | - | - | not measured | {goal[0]} | {goal[1]} | - |")
            continue
        ratio = row["ratio"]
        least, usual, most = (
            format_ratio(ratio[key]) if row["unit"] == "s" else format_value(ratio[key], row["unit"])
            for key in ("least", "median", "most")
        )
        between = usual if least == most else f"{usual} ({least} to {most})"
        peer = format_value(row["peer"]["median"], "s") if "peer" in row else "-"
        ours = format_value(row["ours"]["median"], row["unit"])
        lines.append(f"| {row['work']} | {ours} | {peer} | {between} | {goal[0]} | {goal[1]} | {row['reached']} |")
    lines += ["", "| the same work elsewhere | |", "|---|---|"]
    for row in result["beside"]:
        figures = ", ".join(
            f"{who} {format_value(value['median'], row['unit'])}" for who, value in row["figures"].items()
        )
        lines.append(f"| {row['work']} | {figures or 'not measured'} |")
    if result["scale"] != "full":
        lines += ["", "The goals are for the full corpus; this was a smaller one."]
    lines += ["", *(f"Not measured: {reason.rstrip('.')}." for reason in result["skipped"])]
    return "\n".join(lines).rstrip()


def describe_run(result: dict[str, Any]) -> str:
    machine, versions = result["machine"], result["versions"]
    others = ", ".join(f"{PEER_NAMES.get(name, name)} {version}" for name, version in versions.items())
    low, high = min(result["load"]), max(result["load"])
    rounds = f"{result['rounds']} {'round' if result['rounds'] == 1 else 'rounds'}"
    return (
        f"Of {result['date']}, {rounds}, {result['scale']} corpus, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, {others or 'no peers'}, load {low:g} to {high:g}."
    )


def format_goal(row: dict[str, Any], goal: float) -> str:
    number = f"{goal:g} MB" if row["unit"] == "MB" else f"{goal:,g}x" if goal < 1000 else f"{goal:,.0f}x"
    return number if row["ratio_of"] == "peer / ours" else f"at most {number}"
