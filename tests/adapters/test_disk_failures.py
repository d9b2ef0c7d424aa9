"""Below every adapter: a disk that is full, and one that becomes read-only. Errors are clear, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.disk_failures import OPENERS, TEXTS
from tests.reliability.test_full_disks import mount

ROOT = Path(__file__).parents[2]


@mount
@pytest.mark.parametrize("adapter", OPENERS)
def test_a_write_that_fails_is_a_clear_error_and_the_next_one_works(adapter: str, tmp_path: Path) -> None:
    command = ["unshare", "-m", sys.executable, "-m", "tests.adapters.disk_failures", adapter, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr

    found = json.loads(done.stdout)

    full, read_only = found["errors"]
    assert "No space left on device" in full
    assert "Read-only file system" in read_only
    first, _, after_full, _, after_read_only = TEXTS
    assert found["while_read_only"] == [first, after_full]
    assert found["at_the_end"] == [[first, after_full, after_read_only]] * 2
