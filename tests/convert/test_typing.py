"""Converted messages fit the types that the SDKs declare."""

import shutil
import subprocess
from pathlib import Path

CALLS = Path(__file__).with_name("typed_calls.py")


def test_results_can_be_passed_to_the_sdks_under_a_strict_type_checker() -> None:
    pyright = shutil.which("pyright", path=str(Path(__file__).parents[2] / ".venv/bin")) or shutil.which("pyright")
    assert pyright is not None

    result = subprocess.run([pyright, str(CALLS)], capture_output=True, text=True, cwd=CALLS.parents[2])

    assert result.returncode == 0, result.stdout
