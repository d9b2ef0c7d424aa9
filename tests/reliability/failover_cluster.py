"""Three database machines with automatic failover: PostgreSQL, Patroni and etcd, each in its own network namespace.

Patroni's shortest time until a primary that is gone is replaced is 20 seconds. All data is in a temporary folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psycopg

from sessiontree.store.postgres.driver import read_timeline
from tests.postgres import find_programs

NODES = (1, 2, 3)
NETWORK = "10.214.0"
TTL = 20
"""Seconds until a primary that is gone loses its role."""
LONG = 240.0

PATRONI = """
scope: talks
name: node{number}
restapi: {{listen: "{address}:8008", connect_address: "{address}:8008"}}
etcd3: {{host: "{address}:2379"}}
bootstrap:
  dcs:
    ttl: {ttl}
    loop_wait: 2
    retry_timeout: 3
    primary_start_timeout: 0
    synchronous_mode: true
    postgresql:
      use_pg_rewind: true
      parameters: {{max_connections: 100, shared_buffers: 32MB, wal_keep_size: 256MB, jit: "off"}}
  initdb: [{{encoding: UTF8}}, {{locale: C.UTF-8}}, data-checksums]
  pg_hba: ["local all all trust", "host all all {network}.0/24 trust", "host replication all {network}.0/24 trust"]
postgresql:
  listen: "{address}:5432"
  connect_address: "{address}:5432"
  data_dir: {folder}/data
  bin_dir: {programs}
  pgpass: {folder}/pgpass
  parameters: {{unix_socket_directories: "{folder}"}}
  remove_data_directory_on_rewind_failure: true
  remove_data_directory_on_diverged_timelines: true
  authentication:
    superuser: {{username: postgres}}
    replication: {{username: copier}}
    rewind: {{username: postgres}}
"""


def find_missing_requirement() -> str | None:
    """Return why the cluster cannot run here."""
    if os.geteuid() != 0:
        return "only root can create network namespaces"
    for program in ("ip", "etcd", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if importlib.util.find_spec("patroni") is None:
        return "patroni is not installed"
    try:
        _run_ip("netns", "add", "st-probe")
        _run_ip("netns", "delete", "st-probe")
    except subprocess.CalledProcessError:
        return "network namespaces cannot be created"
    return None


class Node:
    """A machine of the cluster."""

    def __init__(self, number: int, folder: str, bridge: str) -> None:
        self.name = f"node{number}"
        self.address = f"{NETWORK}.{number}"
        self._namespace = f"st-{os.getpid()}-{self.name}"
        self._link = f"st{os.getpid() % 1000000}h{number}"
        self._folder = f"{folder}/{self.name}"
        os.mkdir(self._folder)
        self.is_down = False
        """Whether it is killed, paused or cut off."""
        self._started: list[subprocess.Popen[bytes]] = []
        _run_ip("netns", "add", self._namespace)
        _run_ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        _run_ip("link", "set", self._link, "master", bridge, "up")
        for command in (f"address add {self.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _run_ip("-n", self._namespace, *command.split())
        names = {"number": number, "address": self.address, "folder": self._folder, "network": NETWORK, "ttl": TTL}
        Path(f"{self._folder}/patroni.yml").write_text(PATRONI.format(**names, programs=find_programs()))
        shutil.chown(self._folder, "postgres")

    def start(self) -> None:
        """Start etcd and Patroni, which starts PostgreSQL."""
        members = ",".join(f"node{number}=http://{NETWORK}.{number}:2380" for number in NODES)
        etcd = [
            "etcd", "--name", self.name, "--data-dir", f"{self._folder}/etcd",
            "--listen-client-urls", f"http://{self.address}:2379",
            "--advertise-client-urls", f"http://{self.address}:2379",
            "--listen-peer-urls", f"http://{self.address}:2380",
            "--initial-advertise-peer-urls", f"http://{self.address}:2380",
            "--initial-cluster", members, "--heartbeat-interval", "300", "--election-timeout", "3000",
        ]  # fmt: skip
        # The user may not be allowed to read the packages of this Python.
        become = "--reuid postgres --regid postgres --clear-groups --inh-caps +dac_read_search"
        patroni = [
            "setpriv", *become.split(), "--ambient-caps", "+dac_read_search",
            sys.executable, "-m", "patroni", f"{self._folder}/patroni.yml",
        ]  # fmt: skip
        for name, command in (("etcd", etcd), ("patroni", patroni)):
            with open(f"{self._folder}/{name}.log", "ab") as log:
                self._started.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", self._namespace, *command],
                        stdout=log,
                        stderr=log,
                        cwd="/",
                        env={**os.environ, "HOME": self._folder},
                    )
                )
        self.is_down = False

    def _list_processes(self) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", self._namespace], check=True, capture_output=True, text=True)
        return [int(line) for line in listed.stdout.split()]

    def _send(self, number: signal.Signals) -> None:
        for process in self._list_processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self) -> None:
        """Kill every process of the machine."""
        self.is_down = True
        while self._list_processes():
            self._send(signal.SIGKILL)
            for started in self._started:
                started.wait(30)
        self._started.clear()

    def kill_server(self) -> None:
        """Kill PostgreSQL alone."""
        for process in self._list_processes():
            with suppress(OSError):
                if os.readlink(f"/proc/{process}/exe").endswith("/postgres"):
                    os.kill(process, signal.SIGKILL)

    def pause(self) -> None:
        self.is_down = True
        self._send(signal.SIGSTOP)

    def disconnect(self) -> None:
        """Drop all traffic without closing connections."""
        self.is_down = True
        _run_ip("link", "set", self._link, "down")

    def heal(self) -> None:
        """Undo `kill`, `pause` or `disconnect`."""
        _run_ip("link", "set", self._link, "up")
        if self._started:
            self._send(signal.SIGCONT)
            self.is_down = False
        else:
            self.start()

    def remove(self) -> None:
        self._send(signal.SIGCONT)
        self.kill()
        _run_ip("link", "delete", self._link)
        _run_ip("netns", "delete", self._namespace)


class Cluster:
    """The machines, connected by a bridge. This process is on the bridge too."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="sessiontree-cluster-")
        os.chmod(self.folder, 0o755)
        self._bridge = f"st{os.getpid() % 1000000}b"
        _run_ip("link", "add", self._bridge, "type", "bridge")
        _run_ip("address", "add", f"{NETWORK}.254/24", "dev", self._bridge)
        _run_ip("link", "set", self._bridge, "up")
        self.nodes: list[Node] = []
        try:
            for number in NODES:
                self.nodes.append(Node(number, self.folder, self._bridge))
            for node in self.nodes:
                node.start()
        except BaseException:
            self.close()
            raise

    def build_address(self, database: str) -> str:
        """Return an address that finds the primary."""
        hosts = ",".join(f"{node.address}:5432" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write&connect_timeout=3"

    def get_roles(self) -> dict[str, str]:
        """Return the role of each healthy machine: `leader`, `sync_standby` or `replica`; nothing if they disagree."""
        views: list[dict[str, str]] = []
        for node in self.nodes:
            if not node.is_down:
                try:
                    with urlopen(f"http://{node.address}:8008/cluster", timeout=5) as response:
                        members: list[dict[str, Any]] = json.load(response)["members"]
                except OSError:
                    return {}
                views.append(
                    {
                        member["name"]: member["role"]
                        for member in members
                        if member["state"] in ("running", "streaming") and str(member.get("lag", 0)).isdigit()
                    }
                )
        return views[0] if all(view == views[0] for view in views) else {}

    def find_primary(self) -> Node:
        roles = self.get_roles()
        return next(node for node in self.nodes if roles.get(node.name) == "leader")

    def wait_until_whole(self) -> None:
        """Wait until all machines work, one as the primary and one as its synchronous standby."""
        wait_until(lambda: sorted(self.get_roles().values()) == ["leader", "replica", "sync_standby"])

    def find_timeline(self) -> int:
        """Return the timeline of the primary, which every new primary raises; 0 while there is none."""
        try:
            with psycopg.connect(self.build_address("postgres"), autocommit=True) as connection:
                return read_timeline(connection)
        except psycopg.Error:
            return 0

    def wait_for_new_primary(self, timeline: int) -> None:
        wait_until(lambda: self.find_timeline() > timeline)

    def close(self) -> None:
        for node in self.nodes:
            with suppress(OSError, subprocess.SubprocessError):
                node.remove()
        _run_ip("link", "delete", self._bridge)
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "the cluster did not get there in time"
        time.sleep(0.2)


def _run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
