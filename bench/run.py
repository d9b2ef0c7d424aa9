"""The benchmark: sessiontree compared with its peers and with the limits of the machine.

    make bench                   the whole corpus, about half an hour
    make bench ARGS=--quick      a smaller one, about three minutes

Every round takes all measurements in turn, each in a new process, so other load on the machine affects them equally.
A figure is the median of the rounds. A ratio is computed within each round, and reported as median, minimum and
maximum. See docs/speed.md.
"""

from __future__ import annotations

import argparse
import compileall
import datetime
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "peers")]

from fetch_pi import FetchError, NodeMissing, node, pi_home  # noqa: E402

from corpus import Corpus, prepare_corpus  # noqa: E402
from first_paint import NotPainted, bare_app, first_paint  # noqa: E402

Values = dict[str, float]
"""Measurements by name: seconds, MB or a ratio."""

EDGE = "────"
"""The edge of the editor: the app has painted itself."""

THIRD = 0.3
"""The share of the long session that is measured as one of medium length: 300,000 entries."""

ROUNDS = {"full": 5, "quick": 3, "tiny": 1}
TIMES = {"full": 5, "quick": 3, "tiny": 1}
"""How often a short command runs in a round."""
FILES = {"full": 10_000, "quick": 2_000, "tiny": 300}
"""The files of the folder whose snapshots are measured."""


class Row(NamedTuple):
    """One row of the table: `ours` against `peer`, and the goal for their ratio."""

    name: str
    work: str
    ours: str
    peer: str | None
    at_least: float
    aim: float
    more: bool = True
    """Whether the ratio is peer / ours, and more is better; otherwise ours / peer."""
    unit: str = "s"

    def rate(self, ratio: float) -> str:
        for word, goal in (("aim", self.aim), ("yes", self.at_least)):
            if (ratio >= goal) if self.more else (ratio <= goal):
                return word
        return "no"


ROWS = (
    Row("context", "context of the current leaf, {large}", "context", "pi context", 1000, 2000),
    Row("command", "the same as a command, against pi in process", "context command", "pi context", 100, 300),
    Row("command-wc", "the same as a command, against `wc -l`", "context command", "wc", 1, 1),
    Row("command-wc-third", "the same of {third}", "context command third", "wc third", 1, 2),
    Row("size", "context of {large} against {small}, equal tails", "context", "context small", 2, 1.2, more=False),
    Row("open", "open {middle}, the whole tree indexed", "open", "pi open", 8, 13),
    Row("memory", "memory added by that, at its peak", "open peak", None, 40, 18, more=False, unit="MB"),
    Row("append", "append without fsync, against `os.write`", "append", "raw write", 6, 3, more=False),
    Row("durable", "append durably by 64, against `os.write`", "append durable", "raw write 64", 6, 4, more=False),
    Row("list-cold", "list {sessions} sessions, cold", "list cold", "pi list", 4, 8),
    Row("list-warm", "list {sessions} sessions, warm", "list warm", "pi list", 150, 300),
    Row("fork", "fork a path of {middle}", "fork", "pi fork", 3, 5),
    Row("flat", "append at {large} against 1,000", "append far", "append near", 1.2, 1, more=False),
    Row("append-command", "`append` in {large} against 1,000", "append large", "append short", 1.5, 1.1, more=False),
    Row("label-command", "`label` likewise", "label large", "label short", 1.5, 1.1, more=False),
    Row("branches-command", "`branches` likewise", "branches large", "branches short", 2, 1.2, more=False),
    Row("navigate-command", "`navigate HEAD~1` likewise", "navigate large", "navigate short", 2, 1.2, more=False),
    Row("back-command", "`navigate HEAD@{{1}}` likewise", "back large", "back short", 2, 1.2, more=False),
    Row(
        "prompt",
        "first prompt of an agent, to its request, in {large} against {small}",
        "prompt large",
        "prompt small",
        1.5,
        1.2,
        more=False,
    ),
    Row("prompt-memory", "memory added by that, at its peak", "prompt peak", None, 40, 40, more=False, unit="MB"),
    Row("disk", "disk used against payload", "disk", None, 1.1, 1, more=False, unit="x"),
    Row(
        "agent",
        "a turn of an agent, synced, against its model and bare appends",
        "agent",
        "bare turn",
        1.5,
        1.1,
        more=False,
    ),
    Row(
        "swarm",
        "append by 16 agents on one session, synced, against a bare store",
        "swarm append",
        "store append",
        2,
        1.2,
        more=False,
    ),
    Row("events", "an event of a swarm, against `os.write`", "event", "raw event", 20, 10, more=False),
    Row("web", "a read over HTTP, against a bare FastAPI route as large", "web", "bare web", 4, 2, more=False),
    Row(
        "snapshot-none",
        "check of {files} files without a change, against git",
        "snapshot none",
        "git none",
        1.5,
        1,
        False,
    ),
    Row(
        "snapshot-one",
        "snapshot of {files} files, one changed, the same",
        "snapshot one",
        "git one",
        1.5,
        1,
        False,
    ),
    Row(
        "private-overlay",
        "private folder (overlay), against `git worktree add`",
        "private overlay",
        "work tree",
        5,
        10,
    ),
    Row("private-copy", "private folder as a copy, the same", "private checkout", "work tree", 1.2, 1, more=False),
    Row(
        "restore", "restore 100 files of {files}, against one file", "restore many", "restore one", 100, 20, more=False
    ),
    Row(
        "pg-append", "append to PostgreSQL, against psycopg alone", "pg append", "pg bare append", 1.5, 1.2, more=False
    ),
    Row(
        "pg-context",
        "context from PostgreSQL, {small}, against psycopg alone",
        "pg context",
        "pg bare context",
        1.5,
        1.2,
        more=False,
    ),
    Row("version", "`sessiontree --version` against `python -c pass`", "version", "python", 8, 8, more=False),
    Row("tree", "`sessiontree tree` of 30 entries against `python -c pass`", "tree", "python", 5, 4, more=False),
    Row(
        "tree-json",
        "`sessiontree tree --json` of {middle} against a stdlib parse of the lines",
        "tree json",
        "parse",
        1.5,
        0.7,
        more=False,
    ),
    Row("tree-memory", "memory of that command, at its peak", "tree peak", None, 400, 100, more=False, unit="MB"),
    Row(
        "tree-window",
        "1,000 rows around the leaf of {middle} against a layout of the whole tree",
        "tree window",
        "tree whole",
        0.3,
        0.1,
        more=False,
    ),
    Row("export", "`sessiontree export` of {small} as HTML, against `pi --export`", "export", "pi export", 1, 2),
    Row("paint", "the app, to its first paint, against a bare Textual app", "paint", "bare paint", 2, 1.5, more=False),
)

BESIDE: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        "context of {small}",
        "s",
        {"sessiontree": "context small", "pi": "pi context small", "pp-coding-agent": "pp context small"},
    ),
    (
        "memory added by opening {middle}, at its peak",
        "MB",
        {"sessiontree": "open peak", "pi": "pi open peak"},
    ),
    (
        "append a message, not synced",
        "s",
        {
            "sessiontree": "append",
            "sessiontree by 64": "append grouped",
            "its store alone": "store write",
            "pi": "pi append",
            "pp-coding-agent": "pp append",
            "the least that makes an entry": "raw entry",
            "`os.write` with lock and checks": "raw safe write",
            "`os.write`": "raw write",
        },
    ),
    (
        "append a message, synced",
        "s",
        {
            "sessiontree": "append synced",
            "sessiontree by 64": "append durable",
            "its store alone, by 64": "store write 64",
            "`os.write`, `fdatasync` by 64": "raw synced 64",
            "openai-agents": "openai append",
            "langgraph (first 200)": "langgraph append",
        },
    ),
    (
        "disk used against payload",
        "x",
        {
            "sessiontree": "disk",
            "pi": "pi disk",
            "pp-coding-agent": "pp disk",
            "openai-agents": "openai disk",
            "langgraph (first 200)": "langgraph disk",
        },
    ),
    (
        "fork, opening included",
        "s",
        {"sessiontree": "fork with open", "pi": "pi fork with open"},
    ),
)
"""The same work in peers, without a goal: work, unit, and the measurement of each."""


class Skip(Exception):
    """A measurement is not possible here; the message gives the reason."""


class Bench:
    def __init__(self, corpus: Corpus, scratch: Path, peers: bool, scale: str) -> None:
        self.corpus = corpus
        self.scale = scale
        self.times = TIMES[scale]
        self.scratch = str(scratch)
        self.skipped: dict[str, str] = {}
        """The reasons for missing peers, by name."""
        self.versions: dict[str, str] = {}
        self.command = shutil.which("sessiontree", path=str(Path(sys.executable).parent)) or "sessiontree"
        self.node = self.pi = ""
        self.python = str(HERE / ".venv-peers" / "bin" / "python")
        if not peers:
            self.skipped = dict.fromkeys(("pi", "pp", "openai", "langgraph"), "peers were left out")
            return
        try:
            self.node, self.pi = node(), str(pi_home(HERE.parent / ".peers"))
            self.versions["pi"] = json.loads(Path(self.pi, "package.json").read_text())["version"]
            self.versions["node"] = subprocess.check_output([self.node, "--version"], text=True).strip()
        except (NodeMissing, FetchError) as problem:
            self.skipped["pi"] = str(problem)
        for peer in ("pp", "openai", "langgraph"):
            try:
                self.versions[peer] = self.peer(peer, "version")["version"]
            except (Skip, OSError):
                self.skipped[peer] = f"{peer} is not installed in bench/.venv-peers"

    # Processes that measure

    def ours(self, task: str, **given: Any) -> Any:
        return run_measurement([sys.executable, str(HERE / "ours.py"), task, json.dumps(given)])

    def real_pi(self, task: str, **given: Any) -> Any:
        self.check("pi")
        environment = {"PI_CODING_AGENT_DIR": str(self.corpus.agent.resolve()), "PI_OFFLINE": "1"}
        command = [self.node, "--max-old-space-size=12000", str(HERE / "pi.mjs"), self.pi, task, json.dumps(given)]
        return run_measurement(command, environment)

    def peer(self, peer: str, task: str, **given: Any) -> Any:
        self.check(peer)
        return run_measurement([self.python, str(HERE / "peers.py"), peer, task, json.dumps(given)])

    def check(self, peer: str) -> None:
        if peer in self.skipped:
            raise Skip(self.skipped[peer])

    # Measurements. Each adds values to a round.

    def list_measurements(self, round: int) -> list[Callable[[], Values]]:
        """Return the measurements of a round. Long ones that take turns themselves run once, except in a full run."""
        once = [self.measure_snapshots, self.measure_postgres] if round == 0 or self.scale == "full" else []
        small, middle, large = (str(file) for file in (self.corpus.small, self.corpus.middle, self.corpus.large))
        return [
            lambda: self.measure_contexts(large, small),
            lambda: {"context command": time_command([self.command, "context", large, "--json"], 3)},
            lambda: {"pi context": self.real_pi("context", file=large)["seconds"]},
            lambda: {"context command": time_command([self.command, "context", large, "--json"], 3)},
            lambda: {"wc": time_command(["wc", "-l", large], 3)},
            lambda: self.measure_context_of_third(large),
            lambda: self.summarize_open("", [self.ours("open_tree", file=middle) for _ in range(3)]),
            lambda: self.summarize_open("pi ", [self.real_pi("open_tree", file=middle)]),
            lambda: self.measure_appends(small),
            lambda: self.measure_durable_appends(small),
            lambda: self.summarize_append("pi ", self.real_pi("append", file=small, count=2000, scratch=self.scratch)),
            lambda: self.summarize_append(
                "pp ", self.peer("pp", "append", file=small, count=2000, scratch=self.scratch)
            ),
            lambda: self.summarize_append(
                "openai ", self.peer("openai", "append", file=small, count=500, scratch=self.scratch)
            ),
            lambda: self.summarize_append(
                "langgraph ", self.peer("langgraph", "append", file=small, count=200, scratch=self.scratch)
            ),
            lambda: self.summarize_fork("", [self.ours("fork", file=middle, scratch=self.scratch) for _ in range(2)]),
            lambda: self.summarize_fork("pi ", [self.real_pi("fork", file=middle, scratch=self.scratch)]),
            self.measure_listing,
            lambda: {"pi list": self.real_pi("sessions")["seconds"]},
            lambda: self.measure_far_appends(large, small),
            lambda: self.measure_commands(large, small),
            lambda: self.measure_first_prompt(large, small),
            self.measure_agent,
            self.measure_swarms,
            self.measure_server,
            *once,
            self.measure_startup,
            lambda: self.measure_tree(middle),
            lambda: self.measure_export(small),
            self.measure_first_paint,
            lambda: {"pi context small": self.real_pi("context", file=small)["seconds"]},
            lambda: {"pp context small": self.peer("pp", "context", file=small)["seconds"]},
        ]

    def measure_contexts(self, large: str, small: str) -> Values:
        far: list[float] = []
        near: list[float] = []
        for _ in range(5):
            far.append(self.ours("context", file=large)["seconds"])
            near.append(self.ours("context", file=small)["seconds"])
        return {"context": statistics.median(far), "context small": statistics.median(near)}

    def measure_context_of_third(self, large: str) -> Values:
        """Print the context of a session that has only the last entries of a long one, and count its lines."""
        times: dict[str, list[float]] = {"context command third": [], "wc third": []}
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            third = os.path.join(folder, "third.jsonl")
            with open(large, "rb") as source, open(third, "wb") as target:
                target.write(source.readline())
                source.seek(round(os.path.getsize(large) * (1 - THIRD)))
                source.readline()
                shutil.copyfileobj(source, target, 1 << 20)
            for _ in range(self.times):
                times["context command third"].append(time_command([self.command, "context", third, "--json"]))
                times["wc third"].append(time_command(["wc", "-l", third]))
        return {name: statistics.median(seconds) for name, seconds in times.items()}

    def summarize_open(self, who: str, answers: Sequence[Any]) -> Values:
        return {f"{who}open": compute_median(answers, "seconds"), f"{who}open peak": compute_median(answers, "peak")}

    def measure_appends(self, source: str) -> Values:
        given = {"file": source, "count": 2000, "scratch": self.scratch}
        plain = self.ours("append", durability="none", group=1, **given)
        grouped = self.ours("append", durability="none", group=64, **given)
        synced = self.ours("append", durability="fsync", group=1, **{**given, "count": 500})
        return {
            "append": statistics.median(plain["ours"]),
            "append grouped": statistics.median(grouped["ours"]),
            "raw write": statistics.median(plain["raw"]),
            "store write": statistics.median(plain["store"]),
            "raw safe write": statistics.median(plain["safe"]),
            "raw entry": statistics.median(plain["flat"]),
            "append synced": statistics.median(synced["ours"]),
            "disk": plain["disk"],
        }

    def measure_durable_appends(self, source: str) -> Values:
        found = self.ours("append", file=source, count=2000, durability="fsync", group=64, scratch=self.scratch)
        return {
            "append durable": statistics.median(found["ours"]),
            "store write 64": statistics.median(found["store"]),
            "raw write 64": statistics.median(found["raw"]),
            "raw synced 64": statistics.median(found["synced"]),
        }

    def summarize_append(self, who: str, found: Any) -> Values:
        return {f"{who}append": found["seconds"], f"{who}disk": found["disk"]}

    def measure_far_appends(self, large: str, small: str) -> Values:
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            short = os.path.join(folder, "short.jsonl")
            with open(small, "rb") as source, open(short, "wb") as target:
                target.writelines(line for _, line in zip(range(1001), source, strict=False))
            found = self.ours("append_far", large=large, small=short, source=small)
        return {"append far": statistics.median(found["far"]), "append near": statistics.median(found["near"])}

    def measure_commands(self, large: str, small: str) -> Values:
        """Run commands in a long and in a short session, in turn. The first append adds a head record to each."""
        commands = {
            "append": ["--role", "user", "What is next?"],
            "label": ["HEAD", "here"],
            "branches": [],
            "navigate": ["HEAD~1"],
            "back": ["HEAD@{1}"],
        }
        times: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            short = os.path.join(folder, "short.jsonl")
            with open(small, "rb") as source, open(short, "wb") as target:
                target.writelines(line for _, line in zip(range(1001), source, strict=False))
            with restored(large):
                for file in (large, short):
                    time_command([self.command, "append", file, *commands["append"]])
                for _ in range(self.times):
                    for name, arguments in commands.items():
                        for file, which in ((large, "large"), (short, "short")):
                            command = "navigate" if name == "back" else name
                            seconds = time_command([self.command, command, file, *arguments])
                            times.setdefault(f"{name} {which}", []).append(seconds)
        return {name: statistics.median(seconds) for name, seconds in times.items()}

    def measure_first_prompt(self, large: str, small: str) -> Values:
        """Run the first prompt of an agent in a long and in a short session that end alike and have a head record."""
        found: dict[str, list[Any]] = {large: [], small: []}
        with restored(large), restored(small):
            for file in (large, small):
                time_command([self.command, "append", file, "--role", "user", "What is next?"])
            for _ in range(3):
                for file, answers in found.items():
                    answers.append(self.ours("first_prompt", file=file))
        return {
            "prompt large": compute_median(found[large], "seconds"),
            "prompt small": compute_median(found[small], "seconds"),
            "prompt peak": compute_median(found[large], "peak"),
        }

    def summarize_fork(self, who: str, answers: Sequence[Any]) -> Values:
        return {
            f"{who}fork": compute_median(answers, "seconds"),
            f"{who}fork with open": compute_median(answers, "with_open"),
        }

    def measure_listing(self) -> Values:
        found = self.ours("sessions", agent=str(self.corpus.agent), scratch=self.scratch)
        if "skipped" in found:
            raise Skip(found["skipped"])
        return {"list cold": found["cold"], "list warm": statistics.median(found["warm"])}

    def measure_agent(self) -> Values:
        found = self.ours("agent_turns", count=40, scratch=self.scratch)
        return {"agent": statistics.median(found["ours"]), "bare turn": statistics.median(found["bare"])}

    def measure_swarms(self) -> Values:
        def swarms(task: str, **given: Any) -> Any:
            given["scratch"] = self.scratch
            return run_measurement([sys.executable, str(HERE / "swarms.py"), task, json.dumps(given)])

        appends, events = swarms("appends", turns=10), swarms("events", count=5000)
        return {
            "swarm append": appends["ours"],
            "store append": appends["bare"],
            "event": statistics.median(events["ours"]),
            "raw event": statistics.median(events["bare"]),
        }

    def measure_server(self) -> Values:
        given = {"file": str(self.corpus.small), "count": 200, "scratch": self.scratch}
        found = run_measurement([sys.executable, str(HERE / "web.py"), json.dumps(given)])
        return {"web": found["ours"], "bare web": found["bare"]}

    def measure_snapshots(self) -> Values:
        given = {"files": FILES[self.scale], "scratch": os.path.abspath(self.scratch)}
        return run_measurement([sys.executable, str(HERE / "snapshots.py"), json.dumps(given)])

    def measure_postgres(self) -> Values:
        given = json.dumps({"file": str(self.corpus.small), "count": 320})
        return run_measurement([sys.executable, str(HERE / "postgres.py"), given])

    def measure_startup(self) -> Values:
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            short = os.path.join(folder, "short.jsonl")
            with open(self.corpus.small, "rb") as source, open(short, "wb") as target:
                target.writelines(line for _, line in zip(range(31), source, strict=False))
            times: dict[str, list[float]] = {"python": [], "version": [], "tree": []}
            for _ in range(5):  # these are short
                times["python"].append(time_command([sys.executable, "-c", "pass"]))
                times["version"].append(time_command([self.command, "--version"]))
                times["tree"].append(time_command([self.command, "tree", short]))
        return {name: statistics.median(seconds) for name, seconds in times.items()}

    def measure_tree(self, file: str) -> Values:
        """Print a whole tree as JSON, and parse the same file with the standard library."""
        parse = "import json, sys\nfor line in open(sys.argv[1], 'rb'): json.loads(line)"
        times: dict[str, list[float]] = {"tree json": [], "parse": [], "tree peak": []}
        for _ in range(2):
            seconds, peak = run_command([self.command, "tree", file, "--json"])
            times["tree json"].append(seconds)
            times["tree peak"].append(peak)
            times["parse"].append(time_command([sys.executable, "-c", parse, file]))
            window = self.ours("tree_window", file=file)
            times.setdefault("tree window", []).append(window["seconds"])
            times.setdefault("tree whole", []).append(window["whole"])
        return {name: statistics.median(several) for name, several in times.items()}

    def measure_export(self, file: str) -> Values:
        """Write a session as an HTML page, as whole commands."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            ours, theirs = os.path.join(folder, "ours.html"), os.path.join(folder, "pi.html")
            found = {"export": time_command([self.command, "export", file, "-o", ours])}
            if "pi" not in self.skipped:
                cli = os.path.join(self.pi, "dist", "bundle", "cli.js")
                found["pi export"] = time_command([self.node, cli, "--export", file, theirs])
        return found

    def measure_first_paint(self) -> Values:
        times: dict[str, list[float]] = {"paint": [], "bare paint": []}
        with tempfile.TemporaryDirectory(dir=self.scratch) as home:
            environment = {**os.environ, "SESSIONTREE_HOME": home}
            try:
                for _ in range(self.times):
                    times["bare paint"].append(first_paint(bare_app(), "painted", environment))
                    times["paint"].append(first_paint([self.command], EDGE, environment))
            except NotPainted as reason:
                raise Skip(str(reason)) from reason
        return {name: statistics.median(seconds) for name, seconds in times.items()}


def run_measurement(command: Sequence[str], environment: dict[str, str] | None = None) -> Any:
    """Run a measuring process and return its result."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise Skip(f"{Path(command[1]).name} {command[2]} failed: {said[-1] if said else done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def restored(file: str) -> Generator[None]:
    """Cut off the lines that the body appends to a session, and delete its lock."""
    size = os.path.getsize(file)
    try:
        yield
    finally:
        os.truncate(file, size)
        Path(f"{file}.lock").unlink(missing_ok=True)


def time_command(command: Sequence[str], times: int = 1) -> float:
    """Return the median seconds that a command takes."""
    seconds: list[float] = []
    for _ in range(times):
        start = perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        seconds.append(perf_counter() - start)
        if done.returncode != 0:
            raise Skip(f"{Path(command[0]).name} {command[1]} failed: {done.stderr.strip()}")
    return statistics.median(seconds)


def run_command(command: Sequence[str]) -> tuple[float, float]:
    """Return the seconds that a command takes, and its peak memory in MB."""
    start = perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Skip(f"{Path(command[0]).name} {command[1]} failed")
    return seconds, usage.ru_maxrss / 1024


def compute_median(answers: Sequence[Any], key: str) -> float:
    return statistics.median(result[key] for result in answers)


def run(bench: Bench, rounds: int, say: Callable[[str], None]) -> tuple[list[Values], list[str]]:
    """Return the values of each round, and the reasons for missing ones."""
    found: list[Values] = []
    reasons: dict[str, None] = {}
    took: Counter[str] = Counter()
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}")
        values: Values = {}
        seen: dict[str, list[float]] = {}
        list_measurements = bench.list_measurements(number)
        # Reversed in every other round, so no measurement always follows the same one.
        for measure in list_measurements if number % 2 == 0 else reversed(list_measurements):
            start = perf_counter()
            try:
                measured = measure()
            except Skip as reason:
                reasons[str(reason)] = None
                continue
            took[next(iter(measured))] += perf_counter() - start
            for name, value in measured.items():
                seen.setdefault(name, []).append(value)
        for name, several in seen.items():
            values[name] = statistics.median(several)
        found.append(values)
    slowest = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.most_common(5))
    say(f"{took.total():.0f} s in all; longest: {slowest}")
    return found, list(reasons)


# Report


class Spread(NamedTuple):
    median: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def build_rows(found: Sequence[Values], names: dict[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        told: dict[str, Any] = {
            "row": row.name,
            "work": row.work.format(**names),
            "at_least": row.at_least,
            "aim": row.aim,
            "ratio_of": "peer / ours" if row.more else "ours / peer" if row.peer else "ours",
            "unit": row.unit,
        }
        rows.append(told)
        both = [values for values in found if row.ours in values and (row.peer is None or row.peer in values)]
        if not both:
            told["reached"] = None
            continue
        ours = [values[row.ours] for values in both]
        told["ours"] = spread(ours)._asdict()
        ratios = ours
        if row.peer is not None:
            peer = [values[row.peer] for values in both]
            told["peer"] = spread(peer)._asdict()
            ratios = [b / a if row.more else a / b for a, b in zip(ours, peer, strict=True)]
        told["ratio"] = spread(ratios)._asdict()
        told["reached"] = row.rate(told["ratio"]["median"])
    return rows


def build_peer_rows(found: Sequence[Values], names: dict[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for work, unit, who in BESIDE:
        figures = {
            name: spread(values)._asdict()
            for name, key in who.items()
            if (values := [round[key] for round in found if key in round])
        }
        rows.append({"work": work.format(**names), "unit": unit, "figures": figures})
    return rows


def format_value(value: float, unit: str) -> str:
    if unit == "MB":
        return f"{value:.0f} MB"
    if unit == "x":
        return f"{value:.2f}x"
    factor, name = next(unit for unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if value * unit[0] >= 1 or unit[0] == 1e6)
    return f"{value * factor:.3g} {name}" if value * factor < 100 else f"{value * factor:,.0f} {name}"


def format_ratio(value: float) -> str:
    return f"{value:,.0f}x" if value >= 20 else f"{value:.3g}x"


def report(result: dict[str, Any]) -> str:
    """Return the result as two tables in Markdown."""
    lines = [
        "| work | ours | against | ratio (least to greatest) | at least | aim | reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        goal = [format_goal(row, row[name]) for name in ("at_least", "aim")]
        if row["reached"] is None:
            lines.append(f"| {row['work']} | - | - | not measured | {goal[0]} | {goal[1]} | - |")
            continue
        ratio = row["ratio"]
        least, usual, most = (
            format_ratio(ratio[key]) if row["unit"] == "s" else format_value(ratio[key], row["unit"])
            for key in ("least", "median", "most")
        )
        between = f"{usual} ({least} to {most})"
        peer = format_value(row["peer"]["median"], "s") if "peer" in row else "-"
        ours = format_value(row["ours"]["median"], row["unit"])
        lines.append(f"| {row['work']} | {ours} | {peer} | {between} | {goal[0]} | {goal[1]} | {row['reached']} |")
    lines += ["", "| the same work elsewhere | |", "|---|---|"]
    for row in result["beside"]:
        figures = ", ".join(
            f"{who} {format_value(value['median'], row['unit'])}" for who, value in row["figures"].items()
        )
        lines.append(f"| {row['work']} | {figures or 'not measured'} |")
    if result["scale"] != "full":
        lines += ["", "The goals are for the full corpus; this was a smaller one."]
    lines += ["", *(f"Not measured: {reason.rstrip('.')}." for reason in result["skipped"])]
    return "\n".join(lines).rstrip()


def format_goal(row: dict[str, Any], goal: float) -> str:
    number = f"{goal:g} MB" if row["unit"] == "MB" else f"{goal:,g}x" if goal < 1000 else f"{goal:,.0f}x"
    return number if row["ratio_of"] == "peer / ours" else f"at most {number}"


def name_files(corpus: Corpus) -> dict[str, str]:
    def name(file: Path, count: int, share: float = 1) -> str:
        size = file.stat().st_size * share / 1e6
        return f"{count:,} entries ({size / 1000:.1f} GB)" if size >= 1000 else f"{count:,} entries ({size:,.0f} MB)"

    scale = corpus.scale
    sessions = {"large": corpus.large, "middle": corpus.middle, "small": corpus.small}
    named = {key: name(file, getattr(scale, key)) for key, file in sessions.items()}
    third = name(corpus.large, round(scale.large * THIRD), THIRD)
    files = f"{FILES[corpus.small.parent.name]:,}"
    return {**named, "third": third, "sessions": f"{scale.sessions:,}", "files": files}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Compare the speed of sessiontree and its peers.")
    parser.add_argument("--quick", dest="scale", action="store_const", const="quick", default="full")
    parser.add_argument("--tiny", dest="scale", action="store_const", const="tiny", help="a test that it runs")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--data", type=Path, default=HERE / "data", help="folder of the corpus")
    parser.add_argument("--out", type=Path, help="the JSON file to write; by default bench/results/<date>.json")
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        print(f"bench: {text}", file=sys.stderr, flush=True)

    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    suffix = "" if given.scale == "full" else f"-{given.scale}"
    out = given.out or HERE / "results" / f"{today}{suffix}.json"
    # As an installer does: otherwise each command compiles edited modules again.
    compileall.compile_dir(HERE.parent / "src", quiet=1)
    corpus = prepare_corpus(given.data, given.scale, say)
    scratch = given.data / "scratch"
    scratch.mkdir(exist_ok=True)
    bench = Bench(corpus, scratch, given.peers, given.scale)
    loads = [os.getloadavg()[0]]
    rounds = given.rounds or ROUNDS[given.scale]
    found, skipped = run(bench, rounds, say)
    loads.append(os.getloadavg()[0])
    names = name_files(corpus)
    result: dict[str, Any] = {
        "date": today,
        "scale": given.scale,
        "rounds": rounds,
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
        "load": [round(load, 1) for load in loads],
        "versions": bench.versions,
        "rows": build_rows(found, names),
        "beside": build_peer_rows(found, names),
        "skipped": skipped,
        "values": found,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(report(result))
    say(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
