"""Every system call fails once, or is the last one of its process.

A scenario of `child.py` runs under strace once to record the calls on its files. It then runs once for each call and
error with that call failing (`-e inject`), and once for each call with the process killed there. In every case all
errors are ours, the file is in its old or its new state, refused entries are absent, acknowledged entries are present
once, and appending works again; after a failed sync, once the session is reopened.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import sessiontree as st
from sessiontree.home import get_home
from sessiontree.library import catalog, trash
from tests.reliability.harness import TORTURE, find_accessible_paths, read_files, read_lines, run_child, torn_files

DATA = Path(__file__).parents[1] / "conformance" / "data"
TORN = b'{"type":"message","id":"torn'
SYNCS = ("fsync", "fdatasync")
CHANGING = (
    *("write", "pwrite64", "fsync", "fdatasync", "ftruncate", "flock", "openat", "link", "linkat"),
    *("rename", "unlink", "mkdir", "chmod", "fchmod"),
)

strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed: calls cannot be made to fail"
)


def list_errors(call: str) -> Sequence[str]:
    if call in ("write", "pwrite64", *SYNCS):
        return ("ENOSPC", "EIO", "EDQUOT", "EFBIG") if TORTURE else ("EIO",) if call in SYNCS else ("ENOSPC", "EFBIG")
    if TORTURE and call in CHANGING:
        return ("ENOSPC", "EIO", "EDQUOT", "EACCES", "EMFILE" if call == "openat" else "EROFS")
    return ("ENOSPC",) if call in ("openat", "link", "linkat", "mkdir") else ("EIO",)


class Fault(NamedTuple):
    call: str
    number: int
    how: str
    """`error=…` or `signal=KILL`."""

    def __str__(self) -> str:
        return f"{self.call} {self.number}: {self.how}"


class Outcome(NamedTuple):
    steps: list[tuple[str, str | None]]
    """The error of each step."""
    folder: Path
    before: dict[str, bytes]
    killed: bool


class Scenario:
    def __init__(self, name: str, folder: Path, plants: Sequence[str] = ()) -> None:
        self.name = name
        self.plants = ("pieces", *plants)
        self._root = folder

    def run(self, fault: Fault | None = None, *more: Fault) -> Outcome:
        folder = self._root / "run"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(get_home(), ignore_errors=True)
        folder.mkdir(mode=0o700)
        file = folder / "deep" / "s.jsonl" if self.name == "create" else folder / "s.jsonl"
        self._prepare(file)
        before = read_files(folder)
        injected = [f"--inject={one.call}:{one.how}:when={one.number}" for one in (fault, *more) if one is not None]
        calls = {one.call for one in (fault, *more) if one is not None} or {"all"}
        paths = [f"-P{path}" for path in self._paths(file)]
        command = [
            "strace",
            "-f",
            "-qq",
            "-o",
            str(self._root / "log"),
            f"--trace={','.join(calls)}",
            *injected,
            *paths,
        ]
        if fault is not None:
            command.insert(1, "--seccomp-bpf")
        done = run_child(self.name, str(file), *self.plants, before=command)
        steps = [json.loads(line) for line in done.stdout.splitlines()]
        untyped = [step["untyped"] for step in steps if "untyped" in step]
        assert not untyped, f"{fault}: not our error: {untyped}"
        killed = fault is not None and fault.how == "signal=KILL"
        assert killed or done.returncode == 0, f"{fault}: {done.stderr[-2000:]}"
        return Outcome([(step["step"], step.get("error")) for step in steps], folder, before, killed)

    def _prepare(self, file: Path) -> None:
        match self.name:
            case "create":
                return
            case "migrate":
                header, *lines = (DATA / "pi-v1" / "large-session.jsonl").read_bytes().split(b"\n")
                short = [line for line in lines if 100 < len(line) < 400][:4]
                file.write_bytes(b"\n".join([header, *short]) + b"\n")
            case _:
                with st.create(name="indexed", file=file, durability="none") as session:
                    session.append(st.user("old needle"))
                if self.name == "torn":
                    file.write_bytes(file.read_bytes() + TORN)
        file.chmod(0o600)

    def _paths(self, file: Path) -> Iterator[Path]:
        """Return every path that a scenario touches. strace counts only calls on these."""
        if self.name == "index":
            yield from (Path(f"{get_home()}/index.db{suffix}") for suffix in ("", "-wal", "-shm", "-journal", ".lock"))
            return
        size = file.stat().st_size if file.exists() else 0
        forked = file.parent / "deep" / "forked.jsonl"
        for path in (file, forked):
            yield from (path.parent, path)
            for suffix in (".lock", ".new", ".tmp", ".bak", f".torn-{size - len(TORN)}"):
                yield path.with_name(path.name + suffix)

    def faults(self) -> Iterator[Fault]:
        """Return a fault for each call of a run without faults, and each error."""
        for call, count in self._calls().items():
            every = 1 if TORTURE or (call in CHANGING and self.name != "index") else max(1, count // 5)
            for number in range(1, count + 1, every):
                for error in list_errors(call):
                    yield Fault(call, number, f"error={error}")

    def kills(self) -> Iterator[Fault]:
        for call, count in self._calls().items():
            if TORTURE or (call in CHANGING and call not in ("openat", "flock", "chmod", "fchmod")):
                yield from (Fault(call, number, "signal=KILL") for number in range(1, count + 1))

    def _calls(self) -> Counter[str]:
        outcome = self.run()
        assert not [error for _, error in outcome.steps if error], outcome.steps
        found = re.findall(r"^\d+ +(\w+)\(", (self._root / "log").read_text(), re.MULTILINE)
        assert "openat" in found, "strace saw nothing"
        return Counter(found)


def texts(file: Path) -> Counter[str]:
    """Return the first words of the messages in a file of whole lines."""
    messages = [json.loads(line).get("message") for line in read_lines(file) if line.strip() and line != TORN]
    return Counter(str(message["content"]).split(".")[0].split(" ")[0] for message in messages if message)


def check(scenario: Scenario, fault: Fault, *more: Fault) -> None:
    outcome = scenario.run(fault, *more)
    refused = [(step, error) for step, error in outcome.steps if error]
    label = f"{scenario.name}, {fault}: {outcome.steps}"
    assert find_accessible_paths(outcome.folder) == {}, label

    for name in outcome.before:
        if name.endswith(".jsonl") and scenario.name not in ("migrate", "aside"):
            now = (outcome.folder / name).read_bytes()
            assert now.startswith(outcome.before[name].removesuffix(TORN)), f"{label}: old lines changed"

    match scenario.name:
        case "fork":
            assert (outcome.folder / "s.jsonl").read_bytes() == outcome.before["s.jsonl"], (
                f"{label}: the source changed"
            )
            check_written(outcome.folder / "deep" / "forked.jsonl", outcome, fault, label)
        case "create":
            check_written(outcome.folder / "deep" / "s.jsonl", outcome, fault, label)
        case "index":
            assert not refused, label
            assert [summary.name for summary in catalog.sessions(dir=outcome.folder)] == ["indexed"], label
            assert len(catalog.search("old needle", dir=outcome.folder)) == 1, label
        case "migrate":
            check_migrated(outcome, label)
            check_written(outcome.folder / "s.jsonl", outcome, fault, label)
        case "aside":
            folders = (outcome.folder, trash.get_trash_folder())
            assert any(list(Path(folder).rglob("s.jsonl")) for folder in folders), label
            return
        case "torn":
            now = read_files(outcome.folder)
            kept = [data for name, data in now.items() if ".torn-" in name]
            assert TORN in kept or now["s.jsonl"].startswith(outcome.before["s.jsonl"]), f"{label}: the tail is gone"
            check_written(outcome.folder / "s.jsonl", outcome, fault, label)
        case _:
            check_written(outcome.folder / "s.jsonl", outcome, fault, label)

    if refused and not outcome.killed:
        check_later_steps(outcome, fault, label)


def run_sweep(scenario: Scenario, faults: Iterable[Fault]) -> None:
    for fault in faults:
        check(scenario, fault)


def check_migrated(outcome: Outcome, label: str) -> None:
    file = outcome.folder / "s.jsonl"
    if not file.read_bytes().startswith(outcome.before["s.jsonl"]):
        assert b'"version":3' in read_lines(file)[0], label
        backups = [path.read_bytes() for path in file.parent.glob("s.jsonl.bak*")]
        assert outcome.before["s.jsonl"] in backups, f"{label}: no backup"


def check_written(file: Path, outcome: Outcome, fault: Fault, label: str) -> None:
    """Check that refused entries are absent, acknowledged ones present once, and appending works again."""
    if not file.exists():
        assert outcome.killed or not [step for step, error in outcome.steps if step in ("one", "two") and not error], (
            label
        )
        return
    if outcome.killed or not file.read_bytes().endswith(b"\n"):
        with st.open(file) as session:
            session.append(st.user("mended"))
    said = texts(file)
    for step, error in outcome.steps:
        for text in step.split():
            if text in ("one", "two", "three", "four", "five", "six", "seven"):
                assert said[text] == (0 if error else 1), f"{label}: {text} occurs {said[text]} times"
    with st.open(file) as session:
        faults = [problem for problem in session.problems if problem.severity == "fault"]
        assert len(faults) == read_lines(file).count(TORN), label
        session.append(st.user("last"))
    assert texts(file)["last"] == 1, label


def check_later_steps(outcome: Outcome, fault: Fault, label: str) -> None:
    """Check that appends work again; after a failed sync, only once the session is reopened."""
    steps = [step for step, _ in outcome.steps]
    first = next(index for index, (_, error) in enumerate(outcome.steps) if error)
    poisoned = fault.call == "fdatasync" and steps[first] not in ("reopen", "close")
    for step, error in outcome.steps[first + 1 :]:
        if step in ("reopen", "close"):
            poisoned = False
        if poisoned:
            assert error is not None, f"{label}: {step!r} was acknowledged after a failed sync"
        else:
            assert error is None, f"{label}: {step!r} was refused although the fault was over"


@strace
@pytest.mark.parametrize("name", ["append", "torn", "flush", "create", "fork", "migrate", "index", "aside"])
def test_a_failing_system_call_loses_nothing(tmp_path: Path, name: str) -> None:
    scenario = Scenario(name, tmp_path)

    run_sweep(scenario, scenario.faults())


@strace
@pytest.mark.parametrize("name", ["append", "torn", "create", "fork", "migrate", "index"])
def test_a_kill_at_any_system_call_loses_nothing(tmp_path: Path, name: str) -> None:
    scenario = Scenario(name, tmp_path)

    run_sweep(scenario, scenario.kills())


@strace
def test_a_failed_write_that_cannot_be_rolled_back_stops_the_writer_until_it_is_reopened(tmp_path: Path) -> None:
    scenario = Scenario("append", tmp_path)

    outcome = scenario.run(Fault("write", 2, "error=ENOSPC"), Fault("ftruncate", 1, "error=EIO"))

    assert [step for step, error in outcome.steps if error] == ["one", "two three four", "five"]
    [torn] = torn_files(outcome.folder / "s.jsonl")
    assert torn.read_bytes().startswith(b'{"type":"message"')
    assert texts(outcome.folder / "s.jsonl") == {"old": 1, "six": 1, "seven": 1}


@strace
def test_a_file_system_without_hard_links_works(tmp_path: Path) -> None:
    for name, link in (("create", 1), ("migrate", 1)):
        scenario = Scenario(name, tmp_path)

        outcome = scenario.run(Fault("link", link, "error=EPERM"))

        assert not [error for _, error in outcome.steps if error], outcome.steps
        if name == "migrate":
            check_migrated(outcome, name)


@strace
@pytest.mark.parametrize(
    ("plant", "name", "call", "how"),
    [
        ("no_roll_back", "append", "fdatasync", "error=EIO"),
        ("no_poison", "append", "fdatasync", "error=EIO"),
        ("raw_errors", "append", "write", "error=ENOSPC"),
        ("drop_tail", "torn", "fdatasync", "signal=KILL"),
        ("no_mending", "torn", "write", "signal=KILL"),
        ("rewrite_in_place", "migrate", "write", "error=ENOSPC"),
        ("rewrite_in_place", "migrate", "write", "signal=KILL"),
        ("write_header_later", "create", "write", "signal=KILL"),
        ("wide_modes", "create", "link", "signal=KILL"),
    ],
)
def test_the_sweep_finds_a_planted_fault(tmp_path: Path, plant: str, name: str, call: str, how: str) -> None:
    scenario = Scenario(name, tmp_path, plants=[plant])
    faults = [Fault(call, number, how) for number in range(1, 8)]

    with pytest.raises((AssertionError, ValueError, st.FormatError)):
        run_sweep(scenario, faults)
