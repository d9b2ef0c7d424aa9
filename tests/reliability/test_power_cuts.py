"""A power cut at any moment loses no acknowledged entry, and never leaves a hole.

Sessions are written to an ext4 on a disk that logs its blocks and flushes (`logged_disk`). Afterwards the disk is
restored as of random moments, with unflushed writes lost or kept at random, mounted and checked.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import sessiontree as st
from tests.reliability.harness import ROOT, run_child
from tests.reliability.logged_disk import Record, records

MIB = 1 << 20


def find_missing_requirement() -> str | None:
    if os.geteuid() != 0:
        return "only root can mount a disk"
    if not os.path.exists("/dev/fuse") or not os.path.exists("/dev/loop-control"):
        return "FUSE or loop devices are not available"
    for tool in ("mkfs.ext4", "mount", "fusermount3"):
        if shutil.which(tool) is None and not os.path.exists(f"/usr/sbin/{tool}"):
            return f"{tool} is not installed"
    try:
        found = importlib.util.find_spec("mfusepy") is not None and __import__("mfusepy")
    except OSError as error:
        return str(error)
    return None if found else "mfusepy is not installed"


pytestmark = [pytest.mark.torture]
if os.environ.get("SESSIONTREE_TORTURE"):
    pytestmark.append(
        pytest.mark.skipif(
            find_missing_requirement() is not None, reason=f"cannot simulate power cuts: {find_missing_requirement()}"
        )
    )


class WorkloadResult(NamedTuple):
    """The result of a workload: the disk before it, its log, and the acknowledged entries."""

    base: Path
    records: list[Record]
    acks: list[tuple[int, str, str]]
    """The length of the log, the operation, and the id or text that identifies it."""


@contextmanager
def mount(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def run_workload(folder: Path, workload: str, *plants: str) -> WorkloadResult:
    image, base, log, acks = (folder / name for name in ("image", "base", "log", "acks"))
    with image.open("wb") as file:
        file.truncate(24 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    shutil.copy(image, base)
    served = folder / "served"
    served.mkdir()
    disk = subprocess.Popen([sys.executable, "-m", "tests.reliability.logged_disk", image, served, log], cwd=ROOT)
    try:
        for _ in range(500):
            if (served / "disk").exists():
                break
            time.sleep(0.02)
        with mount(served / "disk", folder / "work") as work:
            env = {"POWER_LOG": str(log), "POWER_ACKS": str(acks)}
            done = run_child(f"power-{workload}", str(work), *plants, seconds=600, env=env)
            assert done.returncode == 0, done.stderr[-2000:]
    finally:
        subprocess.run(["fusermount3", "-u", str(served)], check=False)
        disk.wait(30)
    told = [line.split(" ", 2) for line in acks.read_text().splitlines()]
    return WorkloadResult(base, list(records(log.read_bytes())), [(int(size), kind, name) for size, kind, name in told])


def cut(result: WorkloadResult, place: int, choose: random.Random, image: Path) -> None:
    """Restore the disk as a power cut before record `place` may leave it."""
    shutil.copy(result.base, image)
    flushed = max((n for n in range(place) if result.records[n].is_flush), default=-1)
    with image.open("r+b", buffering=0) as disk:
        for number, record in enumerate(result.records[:place]):
            if not record.is_flush and (number < flushed or choose.random() < 0.5):
                disk.seek(record.offset)
                disk.write(record.data)


def iterate_cuts(result: WorkloadResult, folder: Path, count: int) -> Iterator[tuple[Path, list[tuple[str, str]]]]:
    """Yield the disk after each of `count` power cuts, with the entries acknowledged before it."""
    choose = random.Random(7)
    for number in range(count):
        place = choose.randrange(len(result.records))
        length = result.records[place - 1].end if place else 0
        # Another file each time: a loop device stays for a moment and shows the writes after the last cut.
        image = folder / f"cut-{number}"
        cut(result, place, choose, image)
        with mount(image, folder / "after") as after:
            yield after, [(kind, name) for size, kind, name in result.acks if size <= length]
        image.unlink()


def read_ids(file: Path) -> list[str]:
    with st.open(file, read_only=True) as session:
        faults = [problem for problem in session.problems if problem.severity == "fault"]
        assert not [fault for fault in faults if fault.kind != "torn_tail"], faults
        return [entry.id for entry in session.tree]


def check_synced(after: Path, acks: list[tuple[str, str]]) -> None:
    """Check acknowledged entries, that files are usable, and that migrated files are old, or new with a backup."""
    there: dict[str, list[str]] = {}
    for file in after.glob("**/*.jsonl"):
        there[file.name] = read_ids(file)
        assert len(set(there[file.name])) == len(there[file.name])
    for kind, name in acks:
        file, _, id = name.partition(":")
        assert file in there, f"{file} is gone, which was {kind}"
        if kind == "appended":
            assert id in there[file], f"an acknowledged entry of {file} is lost"
        if kind == "migrated":
            assert b'"version":3' in next(after.glob(f"**/{file}")).read_bytes().split(b"\n")[0]
            assert list(after.glob(f"**/{file}.bak*")), "the backup is missing"
    for file in after.glob("**/*.jsonl"):
        with st.open(file) as session:
            added = session.append(st.user("after the cut"))
        assert read_ids(file)[-1] == added.id


def check_prefix(after: Path, acks: list[tuple[str, str]], all_of_them: list[str]) -> None:
    """Check that the file is a prefix of what was written, without a hole."""
    for file in after.glob("**/*.jsonl"):
        if file.stat().st_size == 0:
            continue  # created, but nothing in it was synced
        there = [id for id in read_ids(file) if id in set(all_of_them)]
        assert there == all_of_them[: len(there)], "the file has a hole"


@pytest.mark.parametrize("workload", ["append", "rewrite"])
def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, workload: str) -> None:
    what = run_workload(tmp_path, workload)
    assert sum(record.is_flush for record in what.records) > 50

    for after, acks in iterate_cuts(what, tmp_path, 1000):
        check_synced(after, acks)


@pytest.mark.parametrize("workload", ["flush", "none"])
def test_without_syncing_the_end_may_be_lost_but_never_the_middle(tmp_path: Path, workload: str) -> None:
    what = run_workload(tmp_path, workload)
    everything = [name.partition(":")[2] for _, kind, name in what.acks if kind == "appended"]

    for after, acks in iterate_cuts(what, tmp_path, 300):
        check_prefix(after, acks, everything)


@pytest.mark.parametrize("workload", ["append", "rewrite"])
def test_the_harness_finds_entries_that_were_not_synced(tmp_path: Path, workload: str) -> None:
    what = run_workload(tmp_path, workload, "no_sync")
    lost = 0
    for after, acks in iterate_cuts(what, tmp_path, 100):
        try:
            check_synced(after, acks)
        except (AssertionError, st.SessionTreeError, OSError):
            lost += 1

    assert lost > 0, "no cut lost anything without syncing: the harness proves nothing"


def test_a_power_cut_at_the_end_keeps_everything(tmp_path: Path) -> None:
    """The disk can be rebuilt from its log."""
    what = run_workload(tmp_path, "append")
    cut(what, len(what.records), random.Random(1), tmp_path / "cut")

    with mount(tmp_path / "cut", tmp_path / "after") as after:
        check_synced(after, [(kind, name) for _, kind, name in what.acks])
    assert json.dumps([kind for _, kind, _ in what.acks]).count("appended") > 100
