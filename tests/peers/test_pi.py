"""Sessions travel both ways between sessiontree and the real pi 1.5.0.

Run by `make test-peers`. `tests.conformance.agreement` defines what the two must agree on.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import sessiontree as st
from tests.conformance.agreement import compare_contexts, compare_forks, find_differences
from tests.peers.fetch_pi import NodeMissing, node, pi_home
from tests.peers.pi import Description, Pi, ref
from tests.peers.writers import OurWriter, PiWriter, Speaker

pytestmark = pytest.mark.peers

SCRATCH = Path(__file__).parents[2] / ".peers"
VERSION_1 = Path(__file__).parents[1] / "conformance" / "data" / "pi-v1" / "large-session.jsonl"


@pytest.fixture(scope="module")
def pi() -> Iterator[Pi]:
    try:
        home, exe = pi_home(SCRATCH), node()
    except NodeMissing as reason:
        pytest.skip(str(reason))
    with Pi(home, exe) as running:
        yield running


def write_our_file(folder: Path, random: Random, steps: int) -> Path:
    """Write a session with our library, and close it."""
    name = random.choice((None, "a name"))
    with st.create(name, cwd=folder, file=folder / "ours.jsonl") as session:
        OurWriter(session, random).work(steps)
    return folder / "ours.jsonl"


def write_pi_file(pi: Pi, folder: Path, random: Random, steps: int) -> Path:
    """Write a session with pi, which writes no file before the first message."""
    writer = PiWriter(random)
    if random.random() < 0.5:  # as pi's client starts
        writer.model()
        writer.level()
    writer.append("appendMessage", {"role": "user", "content": "hello", "timestamp": 1})
    writer.work(steps)
    made = pi.create(folder / "of pi", str(folder), writer.ops)
    assert made["written"]
    return Path(made["file"])


def describe_with_pi(pi: Pi, file: Path, leaves: list[str | None] | None = None) -> Description:
    """Return pi's description of a copy of `file`, with the context at every entry unless `leaves` are given."""
    copy = file.with_name("seen by pi.jsonl")
    shutil.copyfile(file, copy)
    return pi.describe(copy, list_places(file) if leaves is None else leaves)


def list_places(file: Path) -> list[str | None]:
    return [None, *(json.loads(line)["id"] for line in file.read_bytes().splitlines()[1:])]


def find_disagreements(pi: Pi, file: Path, leaves: list[str | None] | None = None) -> list[str]:
    """Compare us with pi on a file, both read as a whole and read from its end for the current context."""
    seen = describe_with_pi(pi, file, leaves)
    [current] = [context for context in seen["contexts"] if context["leaf"] == seen["leafId"]]
    return [*find_differences(st.open(file), seen), *compare_contexts(st.open(file).context(), current)]


def parse_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().split(b"\n") if line]


@pytest.mark.parametrize("seed", range(30))
def test_pi_opens_our_files_at_the_same_place_with_the_same_context(pi: Pi, tmp_path: Path, seed: int) -> None:
    random = Random(f"ours {seed}")
    file = write_our_file(tmp_path, random, steps=random.choice((1, 5, 20, 60)))

    assert find_disagreements(pi, file) == []


def test_pi_lands_at_our_place_in_a_session_long_enough_for_periodic_head_records(pi: Pi, tmp_path: Path) -> None:
    file = write_our_file(tmp_path, Random("long"), steps=400)
    session = st.open(file)
    records = [entry for entry in session.tree if entry.is_head_record]
    periodic = [entry for entry in records if isinstance(entry.body, st.Custom) and "from" not in entry.body.data]
    assert len(session.tree) > 512
    assert periodic

    *places, last = list_places(file)
    assert find_disagreements(pi, file, [*Random("places").sample(places, 40), last]) == []


@pytest.mark.parametrize("seed", range(40))
def test_we_open_files_of_pi_at_the_same_place_with_the_same_context(pi: Pi, tmp_path: Path, seed: int) -> None:
    random = Random(f"pi {seed}")
    file = write_pi_file(pi, tmp_path, random, steps=random.choice((1, 5, 20, 60, 120)))

    assert find_disagreements(pi, file) == []


@pytest.mark.parametrize("seed", range(6))
def test_both_append_in_turns_and_agree_after_every_turn(pi: Pi, tmp_path: Path, seed: int) -> None:
    random = Random(f"turns {seed}")
    if random.random() < 0.5:
        file = write_our_file(tmp_path, random, steps=5)
    else:
        file = write_pi_file(pi, tmp_path, random, steps=5)
    watching = st.open(file)

    for turn in range(24):
        before = file.read_bytes()
        if turn % 2:
            with st.open(file) as session:
                OurWriter(session, random).work(random.randint(1, 6))
        else:
            pi.apply(file, PiWriter(random, st.open(file)).work(random.randint(1, 6)))
        after = file.read_bytes()

        assert after.startswith(before), "a line was changed"
        assert find_disagreements(pi, file) == []
        watching.refresh()
        assert get_state(watching) == get_state(st.open(file))


def get_state(session: st.Session) -> object:
    """Return the state that a refreshed session must share with one that was just opened."""
    return session.heads.heads, session.heads.current, session.heads.moves, session.read_lines(), session.name


@pytest.mark.parametrize("seed", range(4))
def test_both_agree_when_pi_appends_while_our_session_is_open(pi: Pi, tmp_path: Path, seed: int) -> None:
    random = Random(f"at once {seed}")
    file = write_our_file(tmp_path, random, steps=5)

    for _ in range(10):
        with st.open(file) as session:
            OurWriter(session, random).work(random.randint(1, 6))
            theirs = PiWriter(random, st.open(file))
            theirs.work(random.randint(0, 5))
            theirs.speak()
            pi.apply(file, theirs.ops)
            assert find_disagreements(pi, file) == []
        assert find_disagreements(pi, file) == []


def test_our_append_reads_what_pi_appended_or_reports_that_the_branch_moved(pi: Pi, tmp_path: Path) -> None:
    file = tmp_path / "shared.jsonl"
    with st.create(cwd=tmp_path, file=file) as session:
        main = session.head
        mine = main.append(st.user("mine"))
        agent = session.create_branch("agent", current=False)

        [on_agent] = pi.apply(file, [("appendModelChange", "openai", "model-b")])["ids"]
        elsewhere = main.append(st.user("elsewhere"))
        assert elsewhere.parent == mine.id
        assert agent.leaf == on_agent

        [on_main] = pi.apply(file, [("appendModelChange", "openai", "model-a")])["ids"]
        with pytest.raises(st.BranchMoved):
            main.append(st.user("not there any more"))
        assert main.append(st.user("now I know")).parent == on_main
    assert find_disagreements(pi, file) == []


# Forks


@pytest.mark.parametrize("seed", range(16))
def test_our_path_fork_of_a_pi_file_has_the_same_lines_as_in_pi(pi: Pi, tmp_path: Path, seed: int) -> None:
    random = Random(f"fork {seed}")
    file = write_pi_file(pi, tmp_path, random, steps=80)
    source = st.open(file)

    for number, entry in enumerate(random.sample(list(source.tree), 12)):
        copy = tmp_path / "forked by pi.jsonl"
        shutil.copyfile(file, copy)
        forked = source.fork(at=entry, file=tmp_path / f"fork {number}.jsonl")
        assert forked.file is not None
        assert compare_forks(parse_lines(forked.file), pi.fork(copy, entry.id)["lines"]) == []


@pytest.mark.parametrize("seed", range(8))
def test_pi_opens_our_path_fork_with_the_context_of_the_path_it_came_from(pi: Pi, tmp_path: Path, seed: int) -> None:
    random = Random(f"fork of both {seed}")
    file = write_our_file(tmp_path, random, steps=40)
    pi.apply(file, PiWriter(random, st.open(file)).work(20))
    source = st.open(file)

    for number, entry in enumerate(random.sample(list(source.tree), 8)):
        with source.fork(at=entry, file=tmp_path / f"fork {number}.jsonl") as forked:
            assert forked.file is not None
            seen = describe_with_pi(pi, forked.file)
            assert find_differences(forked, seen) == []
            [landed] = [context for context in seen["contexts"] if context["leaf"] == seen["leafId"]]
            assert compare_contexts(st.build_context(source.tree, entry.id), landed) == []
            live = source.tree.labels
            assert {id: live[id] for id in live if id in forked.tree} == seen["labels"]


@pytest.mark.parametrize("seed", range(4))
def test_pi_opens_our_fork_of_a_whole_tree_as_it_opens_the_tree(pi: Pi, tmp_path: Path, seed: int) -> None:
    random = Random(f"whole {seed}")
    file = write_our_file(tmp_path, random, steps=50)
    fork = tmp_path / "whole.jsonl"
    st.open(file).fork(whole=True, file=fork).close()

    source, copy = describe_with_pi(pi, file), describe_with_pi(pi, fork)
    assert copy["header"]["parentSession"] == str(file)
    assert {**copy, "header": None} == {**source, "header": None}
    assert find_disagreements(pi, fork) == []


# Navigation


@pytest.mark.parametrize("by", ["us", "pi"])
def test_a_move_abandons_the_entries_that_pi_would_summarize(pi: Pi, tmp_path: Path, by: str) -> None:
    compared = 0
    for seed in range(6):
        random = Random(f"collect {seed}")
        folder = tmp_path / str(seed)
        folder.mkdir()
        file = write_our_file(folder, random, 60) if by == "us" else write_pi_file(pi, folder, random, 100)
        session = st.open(file)
        ids = [entry.id for entry in session.tree]
        pairs = [(random.choice([None, *ids]), random.choice(ids)) for _ in range(60)]
        for (start, target), collected in zip(pairs, pi.collect(file, pairs), strict=True):
            plan = session.plan_navigate(target, start=start)
            assert plan.common_ancestor == collected["commonAncestorId"]
            if any(session.tree[id].type == "compaction" for id in collected["ids"]):
                continue
            assert [entry.id for entry in plan.abandoned] == collected["ids"]
            compared += bool(collected["ids"])
    assert compared > 60


# Versions 1 and 2


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_our_migration_of_an_old_file_gives_the_same_contexts_as_in_pi(
    pi: Pi, tmp_path: Path, version: int, seed: int
) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    lines = make_old_lines(Random(f"old {version} {seed}"), version)
    ours.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    shutil.copyfile(ours, theirs)
    in_memory = st.open(ours)
    with st.open(ours) as session:
        assert session.migrate()
    pi.describe(theirs)  # pi migrates the file

    assert read_migrated_contexts(pi, ours, range(len(lines))) == read_migrated_contexts(pi, theirs, range(len(lines)))
    assert find_disagreements(pi, ours) == []
    assert find_differences(in_memory, describe_with_pi(pi, ours)) == []


def make_old_lines(random: Random, version: int) -> list[dict[str, Any]]:
    """Return a linear session of an old pi: version 1 has no ids, and both use another role for custom messages."""
    speaker = Speaker(random)
    lines: list[dict[str, Any]] = [
        {"type": "session", "id": "of old", "timestamp": "2025-11-20T00:00:00.000Z", "cwd": "/"}
    ]
    for number in range(1, 50):
        message = speaker.any_message()
        if message["role"] == "custom":
            message["role"] = "hookMessage"
        line: dict[str, Any] = {"type": "message", "message": message}
        if random.random() < 0.1:
            line = {"type": "compaction", "summary": speaker.words(), "tokensBefore": number}
            line["firstKeptEntryIndex"] = random.randrange(number)
        lines.append({**line, "timestamp": f"2025-11-20T00:00:{number:02}.000Z"})
    if version == 2:
        lines[0]["version"] = 2
        for number, line in enumerate(lines[1:], start=1):
            line.update(id=f"{number:08x}", parentId=f"{number - 1:08x}" if number > 1 else None)
            if "firstKeptEntryIndex" in line:
                line["firstKeptEntryId"] = f"{line.pop('firstKeptEntryIndex'):08x}"
    return lines


def read_migrated_contexts(pi: Pi, file: Path, numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Return pi's contexts of a migrated file, without the ids, which are new."""
    places = list_places(file)
    return [
        {**context, "leaf": None} for context in pi.describe(file, [places[number] for number in numbers])["contexts"]
    ]


def test_our_migration_of_a_real_version_1_file_gives_the_same_contexts_as_in_pi(pi: Pi, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    shutil.copyfile(VERSION_1, ours)
    shutil.copyfile(VERSION_1, theirs)
    with st.open(ours) as session:
        assert session.migrate()
    pi.describe(theirs)  # pi migrates the file

    numbers = [0, 1, 2, *range(50, 1018, 97), 1016, 1017, 1018]
    own = read_migrated_contexts(pi, theirs, numbers)
    assert max(len(context["messages"]) for context in own) > 100
    assert read_migrated_contexts(pi, ours, numbers) == own
    assert find_disagreements(pi, ours, [list_places(ours)[number] for number in numbers]) == []


# Planted faults are found


def drop_last(line: Callable[[dict[str, Any]], bool]) -> Callable[[list[bytes]], list[bytes]]:
    """Return a fault that drops the last line of a kind."""

    def fault(lines: list[bytes]) -> list[bytes]:
        dropped = max(number for number, raw in enumerate(lines) if line(json.loads(raw)))
        return [raw for number, raw in enumerate(lines) if number != dropped]

    return fault


def replace_values(old: bytes, new: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Return a fault that changes a value."""

    def fault(lines: list[bytes]) -> list[bytes]:
        assert any(old in line for line in lines)
        return [line.replace(old, new) for line in lines]

    return fault


FAULTS = {
    "labels": drop_last(lambda line: line["type"] == "label"),
    "leaf": drop_last(lambda line: line.get("customType") == "sessiontree.head"),
    "name": replace_values(b'"name":"planted"', b'"name":"other"'),
    "message": replace_values(b"original words", b"changed words"),
    "thinking level": replace_values(b'"thinkingLevel":"high"', b'"thinkingLevel":"low"'),
    "model": replace_values(b'"modelId":"model-a"', b'"modelId":"model-b"'),
    "tree row": lambda lines: [*lines[:-1], re.sub(rb'"timestamp":"\d{4}', b'"timestamp":"1999', lines[-1])],
    "sent for message": replace_values(b'"command":"ls"', b'"excludeFromContext":true,"command":"ls"'),
}


@pytest.mark.parametrize("what", FAULTS)
def test_the_comparison_reports_a_planted_fault(pi: Pi, tmp_path: Path, what: str) -> None:
    file = tmp_path / "planted.jsonl"
    with st.create("planted", cwd=tmp_path, file=file) as session:
        first = session.append(st.user("original words"))
        session.append(st.ThinkingLevelChange("high"))
        session.append(st.ModelChange(provider="anthropic", model="model-a"))
        session.append(st.Message({"role": "bashExecution", "command": "ls", "output": "a.py", "exitCode": 0}))
        session.label(first, "here")
        session.append(st.assistant("abandoned"))
        session.switch(first)
    assert find_disagreements(pi, file) == []

    faulty = tmp_path / "faulty.jsonl"
    faulty.write_bytes(b"".join(line + b"\n" for line in FAULTS[what](file.read_bytes().splitlines())))
    places = [place for place in list_places(file) if place in list_places(faulty)]
    reported = find_differences(st.open(file), describe_with_pi(pi, faulty, places))
    assert any(what in difference for difference in reported), reported


def test_the_comparison_of_forks_reports_a_label_out_of_order(pi: Pi, tmp_path: Path) -> None:
    made = pi.create(
        tmp_path,
        "/project",
        [
            ("appendMessage", {"role": "user", "content": "hello", "timestamp": 1}),
            ("appendMessage", {"role": "user", "content": "again", "timestamp": 2}),
            ("appendLabelChange", ref(0), "one"),
            ("appendLabelChange", ref(1), "two"),
        ],
    )
    at = str(made["leafId"])
    forked = st.open(made["file"]).fork(at=at, file=tmp_path / "fork.jsonl")
    assert forked.file is not None
    lines, own = parse_lines(forked.file), pi.fork(made["file"], at)["lines"]
    assert compare_forks(lines, own) == []

    *kept, one, two, record = lines
    assert compare_forks([*kept, two, one, record], own)
    assert compare_forks([*kept, one, record], own)
    assert compare_forks([*kept[:-1], {**kept[-1], "parentId": None}, one, two, record], own)
    assert compare_forks([*kept, one, {**two, "parentId": None}, record], own)
    assert compare_forks([*kept, one, two], own)
