"""Helpers of the index tests: write session files, list them and search them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sessiontree as st
from tests.builders import build_file

TIME = "2026-01-01T00:00:00.000Z"


def say(id: str, parent: str | None, text: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": text}
    return {"type": "message", "id": id, "parentId": parent, "timestamp": TIME, "message": message, **fields}


def write_session(folder: Path, name: str, *lines: Any) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_bytes(build_file(*lines))
    return path


def read_only_summary(folder: Path) -> st.SessionSummary:
    (summary,) = st.sessions(dir=folder)
    return summary


def search_ids(query: str, folder: Path) -> list[str]:
    return [hit.entry for hit in st.search(query, dir=folder)]


def compute_expected_facts(path: Path) -> tuple[Any, ...]:
    """Return the facts that a summary must have, read by opening the session."""
    try:
        session = st.open(path, read_only=True)
        faults = [problem for problem in session.problems if problem.severity == "fault"]
    except st.FormatError:
        return (True,)
    tree = session.tree
    return (
        bool(faults),
        session.id,
        session.name,
        len(tree),
        sum(isinstance(entry.body, st.Message) for entry in tree),
        sum(not info.archived for info in session.branches),
        session.heads.current,
    )


def extract_facts(summary: st.SessionSummary) -> tuple[Any, ...]:
    if summary.branch is None:
        return (summary.is_damaged,)
    return (
        summary.is_damaged,
        summary.id,
        summary.name,
        summary.entry_count,
        summary.message_count,
        summary.branch_count,
        summary.branch,
    )
