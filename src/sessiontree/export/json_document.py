"""Renders a session as one JSON object, for programs that do not want to replay lines. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sessiontree.comparison import PathStats, stats_to_wire
from sessiontree.core.entries import JsonObject
from sessiontree.core.problems import encode_problem
from sessiontree.export.snapshot import Snapshot
from sessiontree.format.codec import PARENT, NotJson, read_object


def render_json(whole: Snapshot) -> Iterator[str]:
    """Yield the header, the name, branches with statistics, labels, entries in file order, and problems."""
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
