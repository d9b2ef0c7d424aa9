"""The files in `examples/deploy`: commands in them exist, and systemd and YAML accept them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import psycopg
import pytest
import yaml

import sessiontree as st
from sessiontree.cli.app import app

FOLDER = Path(__file__).parents[1] / "examples" / "deploy"
UNITS = sorted(FOLDER.glob("*.service"))


def parse_command(line: str) -> None:
    """Fail if the options of a `sessiontree` command are wrong."""
    name, *arguments = shlex.split(line)
    command = app.get_command(click.Context(app), name)
    assert command is not None, name
    command.make_context(name, arguments)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_run_commands_that_exist(unit: Path, tmp_path: Path) -> None:
    (start,) = re.findall(r"^ExecStart=/opt/sessiontree/bin/sessiontree (.*)$", unit.read_text(), re.MULTILINE)
    parse_command(start)

    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/sessiontree/bin/sessiontree", "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
    )
    assert not [line for line in checked.stderr.splitlines() if unit.name in line], checked.stderr


def test_the_services_of_the_compose_file_run_commands_that_exist() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]

    assert set(services) == {"database", "server", "worker"}
    for name in ("server", "worker"):
        parse_command(services[name]["command"])
        assert services[name]["environment"]["SESSIONTREE_STORE"].startswith("postgresql://")


def test_the_image_has_every_extra() -> None:
    assert "'sessiontree[all]'" in (FOLDER / "Dockerfile").read_text()


def test_the_readme_of_the_folder_is_the_page_about_deployment() -> None:
    page = (FOLDER.parents[1] / "docs" / "deploy.md").read_text()

    assert [file.name for file in FOLDER.iterdir() if f"examples/deploy/{file.name}" not in page] == []


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_documented_retention_removes_only_old_sessions_and_keeps_copies(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SESSIONTREE_STORE", database)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name in ("old", "young"):
        with st.create(name) as session:
            session.append(st.user("Hello"))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE sessiontree.session SET modified = '2024-05-01' WHERE name = 'old'")
    found = re.search(r"```sh\n(db=.*?)```", (FOLDER.parents[1] / "docs" / "deploy.md").read_text(), re.DOTALL)
    assert found is not None
    script = found[1].replace("postgresql://db.example/talks", database).replace("/srv/old", str(tmp_path / "old"))

    subprocess.run(["bash", "-euc", script], check=True, capture_output=True, timeout=120)

    assert [summary.name for summary in st.sessions()] == ["young"]
    assert [summary.name for summary in st.sessions(dir=tmp_path / "old")] == ["old"]
