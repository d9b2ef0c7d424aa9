"""The benchmark runs on a valid corpus. Its figures are not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import sessiontree as st

RUN = Path(__file__).parents[1] / "bench" / "run.py"


def test_the_benchmark_reports_every_row_and_does_not_change_its_corpus(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(RUN), "--tiny", "--no-peers", "--data", str(tmp_path / "data"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    result = json.loads(out.read_text())
    rows = {row["row"]: row for row in result["rows"]}
    assert list(rows) == [
        *("context", "command", "command-wc", "command-wc-third", "size", "open", "memory", "append", "durable"),
        *("list-cold", "list-warm", "fork", "flat"),
        *("append-command", "label-command", "branches-command", "navigate-command", "back-command"),
        *("prompt", "prompt-memory"),
        *("disk", "agent", "swarm", "events", "web"),
        *("snapshot-none", "snapshot-one", "snapshot-turn"),
        *("private-overlay", "private-reflink", "private-copy", "restore"),
        *("pg-append", "pg-context", "version", "tree"),
        *("tree-json", "tree-memory", "tree-json-third", "tree-memory-third", "tree-window", "export", "paint"),
    ]
    alone = {
        *(
            "command-wc",
            "command-wc-third",
            "size",
            "memory",
            "append",
            "durable",
            "flat",
            "disk",
            "agent",
            "pg-append",
            "pg-context",
        ),
        *("append-command", "label-command", "branches-command", "navigate-command", "back-command"),
        *("prompt", "prompt-memory"),
        *("swarm", "events", "web", "version", "tree", "tree-json", "tree-memory", "tree-window", "paint"),
        *("tree-json-third", "tree-memory-third"),
        *("snapshot-none", "snapshot-one", "snapshot-turn", "private-copy", "restore"),
    }
    reached = {name for name, row in rows.items() if row["reached"] is not None}
    assert reached - {"private-overlay", "private-reflink"} == alone  # needs root, and a file system that can
    assert "load" in done.stdout.splitlines()[0]
    again = subprocess.run([sys.executable, str(RUN), "--show", str(out)], capture_output=True, text=True, check=True)
    assert again.stdout == done.stdout
    assert [reason for reason in result["skipped"] if "failed" in reason] == []
    assert all(row["work"] in done.stdout for row in result["rows"])

    known = json.loads((tmp_path / "data/tiny/made.json").read_text())
    for name in ("large", "middle", "small"):
        file = tmp_path / f"data/tiny/{name}.jsonl"
        assert file.stat().st_size == known[name]
        assert [found for found in st.open(file, read_only=True).problems if found.severity == "fault"] == []
    assert not list((tmp_path / "data/scratch").iterdir())


def test_the_same_seed_makes_the_same_corpus(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        subprocess.run(
            [sys.executable, str(RUN.with_name("corpus.py")), str(tmp_path / folder), "--tiny"],
            check=True,
            capture_output=True,
        )
    made = [sorted(path for path in (tmp_path / folder).rglob("*.jsonl")) for folder in ("a", "b")]
    assert len(made[0]) == len(made[1]) == 15
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(*made, strict=True))
