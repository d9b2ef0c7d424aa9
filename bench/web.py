"""One measurement of the server, in a separate process: `python web.py '{"file": ...}'`, with a count and a folder.

Read routes of the server, each asked over one connection that stays open, by turns with a bare FastAPI application
whose route answers a constant of the same size. Both run under the same uvicorn. The session is the first hundred
entries of the file.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from time import perf_counter
from typing import Any

import uvicorn
from fastapi import FastAPI, Response

import sessiontree as st

ENTRIES = 100
PATHS = ("", "/tree", "/path", "/branches", "/entries")


def reads(file: str, count: int, scratch: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        os.environ["SESSIONTREE_HOME"] = folder
        from sessiontree.server.app import create_app
        from sessiontree.server.auth import SCOPES, TokenStore, issue_token
        from sessiontree.server.http_server import HttpServer, bind_socket
        from sessiontree.server.request_checks import ServerLimits, build_allowed_hosts

        with open(file, "rb") as source, st.create(cwd=folder) as session:
            said = (message for line in source if (message := json.loads(line).get("message")) is not None)
            session.head.extend(map(st.Message, islice(said, ENTRIES)))
        listening, bare_listening = bind_socket("127.0.0.1", 0), bind_socket("127.0.0.1", 0)
        port, bare_port = listening.getsockname()[1], bare_listening.getsockname()[1]
        token, limits = issue_token(SCOPES), ServerLimits(rate=1e9, burst=1_000_000_000)
        app = create_app(hosts=build_allowed_hosts("127.0.0.1", port), tokens=TokenStore([token.token]), limits=limits)
        bare = FastAPI()
        bare_config = uvicorn.Config(bare, http="h11", ws="none", log_config=None, access_log=False)
        ours: list[float] = []
        others: list[float] = []
        with running(HttpServer(app, limits), listening), running(uvicorn.Server(bare_config), bare_listening):
            for path in PATHS:
                address = f"/api/sessions/{session.id}{path}"
                client = Client(port, address, token.secret)
                body = client.ask()
                bare.get(address)(constant(body))
                bare_client = Client(bare_port, address, token.secret)
                assert len(bare_client.ask()) == len(body)
                mine: list[float] = []
                theirs: list[float] = []
                for _ in range(count):
                    mine.append(client.time_requests())
                    theirs.append(bare_client.time_requests())
                ours.append(statistics.median(mine))
                others.append(statistics.median(theirs))
        return {
            "ours": statistics.mean(ours),
            "bare": statistics.mean(others),
            "ratios": {path: mine / theirs for path, mine, theirs in zip(PATHS, ours, others, strict=True)},
        }


def constant(body: bytes) -> Any:
    async def answer() -> Response:
        return Response(body, media_type="application/json")

    return answer


@contextmanager
def running(server: uvicorn.Server, listening: socket.socket) -> Iterator[None]:
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10)


class Client:
    """Asks for one address over one connection, with as little as it takes."""

    def __init__(self, port: int, address: str, token: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._request = (
            f"GET {address} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )

    def ask(self) -> bytes:
        self._socket.sendall(self._request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._socket.recv(1 << 20)
        head, _, body = data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), data
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        parts, size = [body], len(body)
        while size < length:
            parts.append(self._socket.recv(1 << 20))
            size += len(parts[-1])
        return b"".join(parts)

    def time_requests(self) -> float:
        start = perf_counter()
        self.ask()
        return perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(reads(**json.loads(sys.argv[1]))))
