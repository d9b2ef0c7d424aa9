"""Recorded files of the real pi: the library and the commands read them as pi did.

`data/pi-1.5.0/N.jsonl` was written by pi 1.5.0, and `N.expected.json` is its description of the file;
`data/pi-v1` has a session of its version 1.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.cli.app import run
from tests.conformance.agreement import compare_forks, compare_sent_messages, find_differences

DATA = Path(__file__).parent / "data"
FILES = sorted((DATA / "pi-1.5.0").glob("*.jsonl"))
VERSION_1 = DATA / "pi-v1" / "large-session.jsonl"
ANNOTATIONS = {"label", "session_info", "usage"}

Json = dict[str, Any]
Command = Callable[..., list[Json]]

each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def parse_lines(file: Path) -> list[Json]:
    return [json.loads(line) for line in file.read_bytes().split(b"\n") if line]


def read_recording(file: Path) -> Json:
    return json.loads(file.with_suffix(".expected.json").read_bytes())


def name_place(id: str | None) -> str:
    """Return a place as an argument of a command."""
    return "root" if id is None else id


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command with --json and return the objects that it prints."""

    def run_it(*arguments: str | Path) -> list[Json]:
        code = run([*map(str, arguments), "--json"])
        printed = capsys.readouterr()
        assert (code, printed.err) == (0, "")
        return [json.loads(line) for line in printed.out.rstrip("\n").split("\n")]

    return run_it


def flatten_tree(nodes: list[Json], first: set[str] | None = None) -> list[Json]:
    """Return the nodes of a recorded tree, depth first; nodes in `first` come before their siblings."""
    found: list[Json] = []
    waiting: list[tuple[Json, int, str | None]] = [(node, 0, None) for node in nodes]
    waiting.sort(key=lambda item: item[0]["id"] not in (first or ()))
    waiting.reverse()
    while waiting:
        node, depth, parent = waiting.pop()
        found.append({"id": node["id"], "parent": parent, "depth": depth, "label": node.get("label")})
        below = sorted(node["children"], key=lambda child: child["id"] not in (first or ()))
        waiting.extend((child, depth + 1, node["id"]) for child in reversed(below))
    return found


def describe_recording(file: Path) -> Json:
    """Return the recording in the form of pi's descriptions."""
    expected, (header, *lines) = read_recording(file), parse_lines(file)
    label_times = {line["targetId"]: line["timestamp"] for line in lines if line["type"] == "label"}
    return {
        "header": header,
        "entryCount": expected["entryCount"],
        "leafId": expected["leafOnReload"],
        "branch": expected["branch"],
        "labels": expected["labels"],
        "name": expected["name"],
        "contexts": expected["contexts"],
        "tree": [
            {**row, "labelTimestamp": label_times[row["id"]] if row["label"] else None}
            for row in flatten_tree(expected["tree"])
        ],
    }


@each_file
def test_a_recorded_file_opens_with_pis_leaf_path_tree_labels_name_and_contexts(file: Path) -> None:
    assert find_differences(st.open(file), describe_recording(file)) == []


@each_file
def test_the_current_context_can_be_read_from_the_end_of_the_file(file: Path) -> None:
    session = st.open(file)

    assert st.open(file).context() == st.build_context(session.tree, session.heads.leaf)


@each_file
def test_the_only_faults_in_a_recorded_file_are_compactions_with_a_missing_anchor(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = parse_lines(file)
    there = {line["id"] for line in lines}
    astray = [line["id"] for line in lines if line.get("firstKeptEntryId", lines[0]["id"]) not in there]

    code = run(["doctor", str(file), "--json"])

    problems = json.loads(capsys.readouterr().out)["problems"]
    faults = [(problem["kind"], problem["entry"]) for problem in problems if problem["severity"] == "fault"]
    assert faults == [("missing_anchor", id) for id in astray]
    assert code == (1 if astray else 0)


@each_file
def test_the_context_command_prints_pis_contexts(file: Path, command: Command) -> None:
    contexts = read_recording(file)["contexts"]
    at = [argument for context in contexts for argument in ("--at", name_place(context["leaf"]))]

    printed = command("context", file, *at)

    assert len(contexts) > 10
    assert printed == [
        {key: context[key] for key in ("leaf", "model", "thinkingLevel", "messages")} for context in contexts
    ]


@each_file
def test_the_context_command_prints_what_pi_sends_to_a_model(file: Path, command: Command) -> None:
    contexts = read_recording(file)["contexts"]
    at = [argument for context in contexts for argument in ("--at", name_place(context["leaf"]))]

    for context, printed in zip(contexts, command("context", file, "--llm", *at), strict=True):
        assert compare_sent_messages(context["messages"], printed["messages"], context["llm"]) == []


@each_file
def test_the_tree_command_prints_pis_tree_with_the_active_path_first(file: Path, command: Command) -> None:
    expected, lines = read_recording(file), {line["id"]: line for line in parse_lines(file)}
    active = list(expected["branch"])
    while lines[active[-1]]["type"] in ANNOTATIONS:
        active.pop()

    [tree] = command("tree", file)

    keys = ("id", "parent", "depth", "label")
    assert [{key: row[key] for key in keys} for row in tree["entries"]] == flatten_tree(
        expected["tree"], first=set(active)
    )
    assert (tree["name"], tree["branch"], tree["leaf"]) == (expected["name"], "main", active[-1])
    assert all(
        (row["type"], row["timestamp"]) == (lines[row["id"]]["type"], lines[row["id"]]["timestamp"])
        for row in tree["entries"]
    )


@each_file
def test_a_move_has_the_same_common_ancestor_and_abandoned_entries_as_in_pi(file: Path, command: Command) -> None:
    session, compared = st.open(file), 0
    for collected in read_recording(file)["collect"]:
        start, target = collected["from"], collected["to"]
        plan = session.plan_navigate(target, start=start)
        [printed] = command("navigate", file, target, "--dry-run", "--from", name_place(start))

        assert plan.common_ancestor == printed["commonAncestor"] == collected["commonAncestorId"]
        if all(session.tree[id].type != "compaction" for id in collected["ids"]):
            assert [entry.id for entry in plan.abandoned] == printed["abandoned"] == collected["ids"]
            compared += 1
    assert compared > 0


@each_file
def test_a_path_fork_has_the_same_lines_as_in_pi(file: Path, command: Command, tmp_path: Path) -> None:
    fork, source = read_recording(file)["fork"], st.open(file)
    by_library = source.fork(at=fork["at"], file=tmp_path / "library.jsonl")
    [printed] = command("fork", file, "--at", fork["at"], "-o", tmp_path / "command.jsonl")

    for name in ("library.jsonl", "command.jsonl"):
        assert compare_forks(parse_lines(tmp_path / name), fork["lines"]) == []
    assert printed["forkedFrom"] == by_library.forked_from == fork["at"]
    assert parse_lines(tmp_path / "command.jsonl")[0]["id"] == printed["session"]
    of_path, of_fork = st.build_context(source.tree, fork["at"]), by_library.head.context()
    assert (of_fork.messages, of_fork.state) == (of_path.messages, of_path.state)


@pytest.mark.parametrize("file", [*FILES, VERSION_1], ids=lambda file: file.stem)
def test_reading_changes_nothing(file: Path, command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    copy = folder / "copy.jsonl"
    shutil.copy2(file, copy)
    before = copy.read_bytes(), copy.stat().st_mtime_ns

    with st.open(copy) as session:
        leaf = name_place(session.heads.leaf)
        assert session.head.context().messages
        assert session.head.explain().entries
    for arguments in (
        ("tree", copy),
        ("log", copy),
        ("show", copy, leaf),
        ("context", copy, "--explain"),
        ("branches", copy),
        ("diff", copy, leaf, "root"),
        ("navigate", copy, leaf, "--dry-run"),
        ("fork", copy, "-o", tmp_path / "fork.jsonl"),
        ("fork", copy, "--whole", "-o", tmp_path / "whole.jsonl"),
    ):
        assert command(*arguments)

    assert (copy.read_bytes(), copy.stat().st_mtime_ns) == before
    assert [path.name for path in folder.iterdir()] == ["copy.jsonl"]


def test_the_installed_command_prints_the_context_of_the_library() -> None:
    file = FILES[0]
    installed = Path(sys.executable).with_name("sessiontree")

    done = subprocess.run([installed, "context", file, "--json"], capture_output=True, timeout=60, check=True)

    context = st.open(file).head.context()
    assert done.stderr == b""
    assert json.loads(done.stdout) == {
        "leaf": context.leaf,
        "model": context.model,
        "thinkingLevel": context.thinking_level,
        "messages": list(context.messages),
    }


# Version 1


def test_a_version_1_file_loads_as_one_chain_in_the_order_of_its_lines() -> None:
    session, lines = st.open(VERSION_1), parse_lines(VERSION_1)

    path = session.head.path()
    assert [json.loads(entry.raw).get("message") for entry in path] == [line.get("message") for line in lines[1:]]
    assert (session.header.version, session.needs_migration) == (1, True)
    assert [problem for problem in session.problems if problem.severity == "fault"] == []


@pytest.mark.parametrize("by", ["library", "command", "first append"])
def test_a_version_1_file_is_migrated_with_a_backup_and_the_same_contexts(
    by: str, command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "old.jsonl"
    shutil.copyfile(VERSION_1, file)
    old = st.open(file)
    places = [entry.id for entry in old.head.path()][::50]

    match by:
        case "library":
            with st.open(file) as session:
                assert session.migrate()
                assert not session.migrate()
        case "command":
            assert command("migrate", file) == [{"migrated": True, "from": 1, "file": str(file), "problems": []}]
        case _:
            with st.open(file) as session:
                session.append(st.user("next"))

    assert (tmp_path / "old.jsonl.bak").read_bytes() == VERSION_1.read_bytes()
    new = st.open(file)
    assert (new.header.version, new.needs_migration) == (3, False)
    for at in places:
        assert st.build_context(new.tree, at) == st.build_context(old.tree, at)


@pytest.mark.parametrize("whole", [False, True], ids=["path", "whole"])
def test_a_fork_of_a_version_1_file_has_the_current_version(whole: bool, command: Command, tmp_path: Path) -> None:
    source = st.open(VERSION_1)
    at = source.head.path()[500].id
    file = tmp_path / "fork.jsonl"

    command("fork", VERSION_1, "-o", file, *(["--whole"] if whole else ["--at", at]))

    forked = st.open(file)
    assert (forked.header.version, forked.needs_migration) == (3, False)
    assert forked.header.parent_session == str(VERSION_1)
    expected = source.head.context() if whole else st.build_context(source.tree, at)
    assert forked.head.context() == expected
    assert len(forked.head.path()) == (1018 if whole else 501)
