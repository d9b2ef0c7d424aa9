"""The npm package axe-core, which checks pages for accessibility. It is fetched, not committed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.peers.fetch_pi import NPM_SECONDS, FetchError, NodeMissing

VERSION = "4.10.2"


def fetch_axe(scratch: Path) -> str:
    """Return the script of axe-core, fetched on the first call. Raises `NodeMissing` or `FetchError`."""
    final = scratch.resolve() / f"axe-core-{VERSION}"
    if not final.is_dir():
        npm = shutil.which("npm")
        if npm is None:
            raise NodeMissing("The accessibility of the page cannot be checked: npm was not found.")
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=scratch) as name:
            work = Path(name) / "all"
            work.mkdir()
            package = f"axe-core@{VERSION}"
            command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(work), package]
            env = {**os.environ, "HOME": os.environ.get("NPM_HOME", name)}
            done = subprocess.run(command, capture_output=True, timeout=NPM_SECONDS, check=False, env=env)
            if done.returncode != 0:
                raise FetchError(f"npm install of {package} failed.")
            work.rename(final)
    return (final / "node_modules" / "axe-core" / "axe.min.js").read_text()
