"""Islands: network namespaces, each with one link to this machine that can be cut. They require root."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from contextlib import suppress

CLONE_NEWNET = 0x40000000


def can_create_islands() -> bool:
    """Return whether namespaces can be created on this machine."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"st-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        _run_ip("netns", "delete", name)
    return made


def enter(name: str) -> None:
    """Move this thread, and threads that it starts, into the namespace."""
    with open(f"/run/netns/{name}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


class Island:
    """A namespace with a link through which some ports of this machine can be reached."""

    def __init__(self, number: int) -> None:
        self.name = f"st-{os.getpid()}-{number}"
        self._link = f"st{os.getpid() % 100000}n{number}"
        self.address = f"10.213.{number}.1"
        self._listening: list[socket.socket] = []
        _run_ip("netns", "add", self.name)
        _run_ip("link", "add", self._link, "type", "veth", "peer", "name", "away", "netns", self.name)
        _run_ip("address", "add", f"{self.address}/30", "dev", self._link)
        _run_ip("link", "set", self._link, "up")
        for command in (["address", "add", f"10.213.{number}.2/30", "dev", "away"], ["link", "set", "away", "up"]):
            _run_ip("-n", self.name, *command)
        _run_ip("-n", self.name, "link", "set", "lo", "up")

    def forward_port(self, port: int) -> None:
        """Forward a port of the link to the same port on loopback."""
        listening = socket.create_server((self.address, port))
        self._listening.append(listening)
        threading.Thread(target=self._accept, args=(listening, port), daemon=True).start()

    def _accept(self, listening: socket.socket, port: int) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                server = socket.create_connection(("127.0.0.1", port))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=_copy_bytes, args=(source, sink), daemon=True).start()

    def disconnect(self) -> None:
        """Drop all traffic without closing connections."""
        _run_ip("link", "set", self._link, "down")

    def reconnect(self) -> None:
        _run_ip("link", "set", self._link, "up")

    def close(self) -> None:
        for listening in self._listening:
            listening.close()
        _run_ip("link", "delete", self._link)
        _run_ip("netns", "delete", self.name)


def _copy_bytes(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
