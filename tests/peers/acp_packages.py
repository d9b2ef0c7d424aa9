"""The npm packages of the Agent Client Protocol: the SDK, for its JSON schemas, and a real headless client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import jsonschema_rs

from tests.peers.fetch_pi import NPM_SECONDS, FetchError, NodeMissing

PACKAGES = {"@agentclientprotocol/sdk": "2.4.0", "acpx": "0.1.15"}


def fetch_packages(scratch: Path) -> Path:
    """Return the folder `node_modules` with the packages, fetched on the first call.

    Raises `NodeMissing` or `FetchError`.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NodeMissing("The client of the Agent Client Protocol cannot run: Node and npm were not found.")
    final = scratch.resolve() / ("acp-" + "-".join(PACKAGES.values()))
    if not final.is_dir():
        scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=scratch) as name:
            work = Path(name) / "all"
            work.mkdir()
            specs = [f"{package}@{version}" for package, version in PACKAGES.items()]
            command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(work), *specs]
            env = {**os.environ, "HOME": os.environ.get("NPM_HOME", name)}
            done = subprocess.run(command, capture_output=True, timeout=NPM_SECONDS, check=False, env=env)
            if done.returncode != 0:
                raise FetchError(f"npm install of {', '.join(specs)} failed.")
            work.rename(final)
    return final / "node_modules"


class ProtocolSchema:
    """The JSON schema of a version of the protocol, with its unstable part."""

    def __init__(self, modules: Path, version: int = 1) -> None:
        folder = modules / f"@agentclientprotocol/sdk/schema/v{version}"
        stable, unstable = (json.loads((folder / name).read_text()) for name in ("schema.json", "schema.unstable.json"))
        self._definitions: dict[str, Any] = {**unstable["$defs"], **stable["$defs"]}
        self._validators: dict[str, Any] = {}

    def validate(self, kind: str, method: str, value: Any) -> None:
        """Check a message of the agent: a `request` or notification to the client, or a `response`."""
        side, ending = ("client", ("Request", "Notification")) if kind == "request" else ("agent", ("Response",))
        (name,) = [
            name
            for name, definition in self._definitions.items()
            if definition.get("x-method") == method and definition.get("x-side") == side and name.endswith(ending)
        ]
        if name not in self._validators:
            schema = {"$ref": f"#/$defs/{name}", "$defs": self._definitions}
            self._validators[name] = jsonschema_rs.validator_for(schema)
        self._validators[name].validate(value)

    def read_kinds_of_updates(self) -> set[str]:
        """Return the session updates that the version knows. Others are valid too, as extensions."""
        update = self._definitions["SessionUpdate"]
        kinds = [one["properties"]["sessionUpdate"] for one in update.get("anyOf") or update["oneOf"]]
        return {kind["const"] for kind in kinds if "const" in kind}
