"""A full disk, or a file size limit: a typed error, nothing half written, and recovery when there is space."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.harness import run_child


def can_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False)
    return tried.returncode == 0


mount = pytest.mark.skipif(not can_mount(), reason="only root can mount a small disk, and not everywhere")
prlimit = pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed: files have no limit")

SMALL_DISK = ["unshare", "-m"]
LIMIT = ["prlimit", "--fsize=40000:80000"]


def run_until_full(scenario: str, folder: Path, before: list[str], *plants: str) -> dict[str, Any]:
    done = run_child(scenario, str(folder), *plants, before=before)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(told: dict[str, Any], reason: str) -> None:
    assert told["untyped"] == []
    assert len(told["errors"]) == 9
    assert all(reason in error for error in told["errors"])
    assert told["ends"] == ["\n"] * 9, "a partial line is left"
    assert told["lines"].pop() == ""
    entries = [json.loads(line) for line in told["lines"][1:]]
    said = [[entry["id"], entry["message"]["content"]] for entry in entries]
    assert said == told["acks"], "the entries in the file are not the acknowledged ones"
    assert told["memory_after"] == len(told["acks"]) - 1, "memory is ahead of the disk"


@mount
def test_a_full_disk_refuses_writes_until_there_is_space(tmp_path: Path) -> None:
    check(run_until_full("small-disk", tmp_path, SMALL_DISK), "No space left on device")


@prlimit
def test_a_file_size_limit_refuses_writes_until_it_is_raised(tmp_path: Path) -> None:
    check(run_until_full("limit", tmp_path, LIMIT), "File too large")


@mount
@pytest.mark.parametrize("plant", ["no_roll_back", "raw_errors"])
def test_the_full_disk_harness_finds_a_planted_fault(tmp_path: Path, plant: str) -> None:
    told = run_until_full("small-disk", tmp_path, SMALL_DISK, plant)

    with pytest.raises(AssertionError):
        check(told, "No space left on device")


@prlimit
@pytest.mark.parametrize("plant", ["no_roll_back", "raw_errors"])
def test_the_size_limit_harness_finds_a_planted_fault(tmp_path: Path, plant: str) -> None:
    told = run_until_full("limit", tmp_path, LIMIT, plant)

    with pytest.raises(AssertionError):
        check(told, "File too large")
