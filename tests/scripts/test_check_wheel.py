"""The check of the wheel has a program for each extra. `make check-wheel` runs them."""

import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_extra_of_the_package_has_a_program_that_uses_it() -> None:
    uses = runpy.run_path(str(ROOT / "scripts" / "check_wheel.py"))["USES"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert uses.keys() == {"", *project["optional-dependencies"]}
    for extra, program in uses.items():
        compile(program, extra, "exec")
        assert program or not extra
