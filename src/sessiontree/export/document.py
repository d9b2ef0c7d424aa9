"""The document: a session as one JSON object, for programs that would rather not replay lines. Pure."""

from __future__ import annotations

import json
from typing import Any

from sessiontree.comparison import PathStats, stats_to_wire
from sessiontree.core.problems import problem_to_wire
from sessiontree.export.snapshot import Snapshot
from sessiontree.format.codec import PARENT, NotJson, read_object


def document(whole: Snapshot) -> str:
    """Header, name, branches with their figures, labels, entries in file order, and what is wrong with them."""
    tree, heads = whole.tree, whole.heads
    stats = PathStats(tree)
    entries: list[Any] = []
    for entry in tree:
        try:
            entries.append({**read_object(entry.raw), PARENT: tree.parent(entry.id)})
        except NotJson:  # it begins like an entry, and is told among the problems
            continue
    wire = {
        "session": read_object(whole.header_line),
        "name": whole.name,
        "branch": heads.current,
        "leaf": whole.leaf,
        "branches": [
            {
                **stats_to_wire(stats.of(name, head)),
                "current": name == heads.current,
                "archived": name in heads.archived,
            }
            for name, head in heads.heads.items()
        ],
        "labels": tree.labels,
        "entries": entries,
        "problems": [problem_to_wire(problem) for problem in whole.problems],
    }
    return json.dumps(wire, separators=(",", ":")) + "\n"
