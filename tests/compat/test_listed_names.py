"""Every name that the page of names lists is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sessiontree.compat import dash, pi

PAGE = (Path(__file__).parents[2] / "docs" / "names.md").read_text()
TABLES = PAGE.split("## `SessionManager` of pi")[0].split("| there | in `sessiontree.compat.")[1:]


@pytest.mark.parametrize("table", TABLES, ids=["pi", "dash"])
def test_every_listed_name_exists_in_the_facade(table: str) -> None:
    module = pi if table.startswith("pi") else dash
    owners = [getattr(module, name) for name in module.__all__]
    rows = re.findall(r"^\| `.*\| (`[^|]+) \| (yes|no) \|$", table, re.MULTILINE)

    assert len(rows) > 4
    for names, _ in rows:
        for name in re.findall(r"`(?:entry\.)?(\w+)`", names):
            if name in ("from_id", "target_id", "first_kept_entry_id", "args", "session", "ui"):
                continue  # fields of a line, and attributes that the constructor sets
            assert any(hasattr(owner, name) for owner in owners) or hasattr(module, name), name
