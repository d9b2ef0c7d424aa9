"""The real pi SessionManager, driven through ``pi.mjs`` in one Node process.

    with Pi(home, node) as pi:  # both from fetch_pi: pi_home(scratch) and node()
        made = pi.create(folder, "/project", [("appendMessage", message), ("appendLabelChange", ref(0), "here")])
        seen = pi.describe(made["file"], leaves=[made["leafId"]])

pi may repair or migrate a file that it opens, so give it copies.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NotRequired, Self, TypeAlias, TypedDict

DRIVER = Path(__file__).with_name("pi.mjs")

Op: TypeAlias = Sequence[object]
"""The name of a SessionManager method, then its arguments."""

UNDEFINED: Mapping[str, object] = {"$undefined": True}
"""JavaScript's undefined inside the arguments of an operation."""


def ref(index: int) -> dict[str, object]:
    """Return a placeholder for the id made by operation ``index`` of the same request, inside later arguments."""
    return {"$ref": index}


class PiError(Exception):
    """pi refused a request, or its process ended."""


class PiTimeout(PiError):
    """pi did not answer in time. Its process was killed; the next call starts another."""


class TreeRow(TypedDict):
    """One node of getTree, depth first in pi's order."""

    id: str
    depth: int
    label: NotRequired[str]
    labelTimestamp: NotRequired[str]


class Context(TypedDict):
    """The context at one leaf; it has only ``leaf`` and ``error`` if pi failed on it."""

    leaf: str | None
    model: NotRequired[dict[str, Any] | None]
    thinkingLevel: NotRequired[Any]
    messages: NotRequired[list[dict[str, Any]]]
    llm: NotRequired[list[dict[str, Any]]]
    error: NotRequired[str]


class Description(TypedDict):
    header: dict[str, Any]
    entryCount: int
    leafId: str | None
    branch: list[str]
    tree: list[TreeRow]
    labels: dict[str, str]
    name: str | None
    contexts: list[Context]


class Applied(TypedDict):
    """The result of a list of operations."""

    ids: list[str | None]
    """Per operation: the new entry's id, the new file of createBranchedSession, else None."""
    errors: dict[str, str]
    """pi's errors of failed operations, by index."""
    leafId: str | None
    sessionId: str
    file: str
    written: bool
    """False while pi still holds the session in memory only."""


Collected = TypedDict(
    "Collected",
    {"from": str | None, "to": str, "commonAncestorId": str | None, "ids": list[str]},
)


class Forked(TypedDict):
    at: str
    written: bool
    leafId: str | None
    lines: list[dict[str, Any]]


class Pi:
    """One Node process with the real pi, started on entry and again after a timeout."""

    def __init__(self, home: Path, node: str, limit: float = 20) -> None:
        self.version = ""
        self._command = [node, "--max-old-space-size=1024", str(DRIVER), str(home)]
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(prefix="pi-", ignore_cleanup_errors=True)
        self._stderr = Path(self._folder.name, "stderr")

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def describe(self, file: str | Path, leaves: Sequence[str | None] = ()) -> Description:
        """Return pi's leaf, branch, tree, labels and name of a file, and the context at each of ``leaves``."""
        result: Description = self._ask("describe", file=str(file), leaves=list(leaves))
        return result

    def apply(self, file: str | Path, ops: Sequence[Op], *, check: bool = True) -> Applied:
        """Open a file and run operations on it; with ``check`` a failed one raises PiError."""
        return _raise_errors(self._ask("apply", file=str(file), ops=ops), ops, check)

    def create(
        self,
        folder: str | Path,
        cwd: str,
        ops: Sequence[Op] = (),
        *,
        check: bool = True,
        options: Mapping[str, str] | None = None,
    ) -> Applied:
        """Begin a session in ``folder`` and run operations on it; ``options`` are id and parentSession."""
        answer = self._ask("create", dir=str(folder), cwd=cwd, ops=ops, options=dict(options or {}))
        return _raise_errors(answer, ops, check)

    def collect(self, file: str | Path, pairs: Sequence[tuple[str | None, str]]) -> list[Collected]:
        """Return the entries that a move from one entry to another abandons, for each pair."""
        result: list[Collected] = self._ask("collect", file=str(file), pairs=pairs)
        return result

    def fork(self, file: str | Path, at: str) -> Forked:
        """Return the lines of a new session with only the path to ``at``; no file is kept."""
        result: Forked = self._ask("fork", file=str(file), at=at)
        return result

    def _ask(self, op: str, **fields: object) -> Any:
        process = self._process or self._start()
        request = json.dumps({"op": op, **fields}) + "\n"
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # the process has ended, which _answer reports
            process.stdin.write(request.encode())
            process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise PiError(answer["error"])
        return answer["ok"]

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PI_CODING_AGENT_DIR": self._folder.name,
            "PI_OFFLINE": "1",
        }
        with self._stderr.open("wb") as stderr:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
            )
        assert process.stdout is not None
        self._process = process
        self._answers = queue.Queue()
        threading.Thread(target=_pump, args=(process.stdout, self._answers), daemon=True).start()
        self.version = self._answer()["version"]
        return process

    def _answer(self) -> Any:
        try:
            line = self._answers.get(timeout=self._limit)
        except queue.Empty:
            self._stop()
            raise PiTimeout(f"pi did not answer within {self._limit:g} s") from None
        if not line:
            self._stop()
            said = self._stderr.read_text(errors="replace")[-2000:]
            raise PiError(f"the pi process ended: {said}")
        return json.loads(line)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # an unsent request
                process.stdin.close()


def _pump(stream: IO[bytes], answers: queue.Queue[bytes]) -> None:
    """Hand over each line, then an empty one for the end."""
    with stream:
        for line in stream:
            answers.put(line)
    answers.put(b"")


def _raise_errors(answer: Applied, ops: Sequence[Op], check: bool) -> Applied:
    if check and answer["errors"]:
        index, said = next(iter(answer["errors"].items()))
        raise PiError(f"operation {index} ({ops[int(index)][0]}): {said}")
    return answer
