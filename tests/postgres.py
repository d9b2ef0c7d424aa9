"""A PostgreSQL server for tests: Debian's, on loopback, with a temporary data directory.

If it is missing, it is installed with apt. `initdb` does not run as root, so root runs it as the user `postgres`.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from glob import glob
from pathlib import Path

import pytest

SETTINGS = (
    "listen_addresses=127.0.0.1", "max_connections=100", "shared_buffers=32MB",
    "autovacuum=off", "logging_collector=off", "log_min_messages=fatal", "restart_after_crash=on", "jit=off",
)  # fmt: skip


def find_programs() -> str:
    """Return the folder with `initdb` and `postgres`. Install them if they are missing; without apt, skip the test."""
    found = _search_programs()
    if found is None and shutil.which("apt-get") is not None:
        subprocess.run(
            ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", "postgresql"],
            capture_output=True,
            timeout=300,
        )
        found = _search_programs()
    if found is None:
        if os.environ.get("CI") or shutil.which("apt-get") is not None:
            pytest.fail("PostgreSQL is missing and apt could not install it; run `apt-get install postgresql`")
        pytest.skip("PostgreSQL is missing, and apt as well")
    return found


def _search_programs() -> str | None:
    folders = sorted(glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(Path(path).parts[-2]))
    on_path = shutil.which("initdb")
    folders = ([os.path.dirname(os.path.realpath(on_path))] if on_path else []) + folders
    return next((folder for folder in reversed(folders) if os.path.exists(f"{folder}/postgres")), None)


class Server:
    """A server with its own data directory."""

    def __init__(self, *, fsync: bool = False, primary: Server | None = None) -> None:
        """Start a new server, or a standby of another one, which follows it and only reads."""
        self._bin = find_programs()
        self._settings = (*SETTINGS, *(() if fsync else ("fsync=off", "full_page_writes=off")))
        self.folder = tempfile.mkdtemp(prefix="sessiontree-pg-")
        self._as: list[str] = []
        if os.geteuid() == 0:
            self._as = ["runuser", "-u", "postgres", "--"]
            shutil.chown(self.folder, "postgres")
        self.data = f"{self.folder}/data"
        creation = ["initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        if primary is not None:
            creation = ["pg_basebackup", "-d", primary.url("postgres"), "-R", "-X", "stream", "-c", "fast"]
        subprocess.run(
            [*self._as, f"{self._bin}/{creation[0]}", "-D", self.data, *creation[1:], "--no-sync"],
            check=True, capture_output=True, cwd="/",
        )  # fmt: skip
        self.port = find_free_port()
        self._number = 0
        self._emptied: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        options = [part for setting in self._settings for part in ("-c", setting)]
        with open(f"{self.folder}/log", "ab") as log:
            self._process = subprocess.Popen(
                [*self._as, f"{self._bin}/postgres", "-D", self.data, "-p", str(self.port), "-k", self.folder,
                 *options],
                stdout=log, stderr=log, cwd="/",
            )  # fmt: skip
        self.wait_until_ready()

    def wait_until_ready(self, seconds: float = 60) -> None:
        import psycopg

        deadline = time.monotonic() + seconds
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, Path(f"{self.folder}/log").read_text()[-2000:]
                time.sleep(0.02)

    @property
    def postmaster(self) -> int:
        """The process id of the server itself."""
        return int(Path(f"{self.data}/postmaster.pid").read_text().splitlines()[0])

    def kill(self) -> None:
        """Kill the postmaster and its children, as in a crash of the machine."""
        postmaster = self.postmaster
        children = _list_children(postmaster)
        os.kill(postmaster, signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(30)
        for child in children:
            while os.path.exists(f"/proc/{child}") and _read_state(child) != "Z":
                time.sleep(0.005)
        with suppress(FileNotFoundError):
            os.unlink(f"{self.data}/postmaster.pid")

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(self.postmaster, signal.SIGQUIT)
            self._process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def program(self, name: str, *arguments: str, input: str | None = None) -> str:
        """Return the output of one of PostgreSQL's programs."""
        command = [f"{self._bin}/{name}", *arguments]
        return subprocess.run(command, input=input, capture_output=True, text=True, check=True, timeout=120).stdout

    def url(self, database: str, *, user: str = "postgres", password: str = "", port: int | None = None) -> str:
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@127.0.0.1:{port or self.port}/{database}"

    def follow(self, primary: Server) -> None:
        """Wait until this standby has applied everything that its primary has committed."""
        import psycopg

        with psycopg.connect(primary.url("postgres"), autocommit=True) as connection:
            row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        deadline = time.monotonic() + 60
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            while connection.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", row).fetchone() != (True,):
                assert time.monotonic() < deadline, "the standby does not follow"
                time.sleep(0.02)

    def get_empty_database(self) -> str:
        """Empty a database with all tables, the same one each time, and return its address."""
        import psycopg

        from sessiontree.library.postgres_repository import PostgresRepository
        from sessiontree.store.postgres.address import parse_address

        if self._emptied is None:
            self._emptied = self.new_database()
            PostgresRepository(parse_address(self._emptied)).list_stored()
        with psycopg.connect(self._emptied, autocommit=True) as connection:
            tables = ("session", "entry", "shared", "torn", "fence")
            connection.execute(f"TRUNCATE {', '.join(f'sessiontree.{table}' for table in tables)}".encode())
        return self._emptied

    def new_database(self, *, owner: str = "postgres") -> str:
        """Create an empty database and return its address."""
        import psycopg

        self._number += 1
        name = f"t{self._number}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} OWNER {owner}".encode())
        return self.url(name, user=owner)


def lose_a_line(session: str) -> None:
    """Delete the last line of a session from the tables. The session is then unreadable."""
    import psycopg

    url, _, id = session.partition("#")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "DELETE FROM sessiontree.entry AS e USING sessiontree.session AS s WHERE s.id = %s AND e.session = s.key"
            " AND e.position = (SELECT max(position) FROM sessiontree.entry WHERE session = s.key)",
            (id,),
        )


class Proxy:
    """Passes bytes between clients and a server on loopback, and cuts connections on request.

    A request that contains `mark` is cut before it reaches the server, or after the server has responded but before the
    client gets the response. Or it is late: the client is cut, and the server gets the request after its response to
    the next one.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts: list[str] = []
        """`before`, `after` or `late` for each of the next requests that contain the mark."""
        self._late: list[tuple[socket.socket, bytes]] = []
        self.mark = b"cut me here"
        self.is_down = False
        """New connections are refused."""
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_down:
                client.close()
                continue
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        marks = (self.mark, self.mark.hex().encode())
        try:
            with client, socket.create_connection(("127.0.0.1", self._target)) as server:
                self._open += [client, server]
                while True:
                    ready, _, _ = select.select([client, server], [], [])
                    for side in ready:
                        data = side.recv(1 << 16)
                        if not data:
                            return
                        marked = side is client and any(mark in data for mark in marks)
                        cut = self.cuts.pop(0) if marked and self.cuts else None
                        if cut == "before":
                            return
                        if cut == "late":
                            self._late.append((server.dup(), data))
                            return
                        (server if side is client else client).sendall(data)
                        answer = server.recv(1 << 16) if marked else b""
                        if marked:
                            self._deliver()
                        if cut == "after":
                            return
                        client.sendall(answer)
        except OSError:
            return

    def _deliver(self) -> None:
        """Deliver the late requests and wait for their responses."""
        while self._late:
            server, data = self._late.pop(0)
            with server:
                server.sendall(data)
                server.recv(1 << 16)

    def cut_all(self) -> None:
        """Reset every open connection."""
        for side in self._open:
            with suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                side.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut_all()


def _list_children(process: int) -> list[int]:
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(child) for child in file.read().split()]


def _read_state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
