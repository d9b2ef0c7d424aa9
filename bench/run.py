"""The benchmark: sessiontree compared with its peers and with the limits of the machine.

    make bench                   the whole corpus, about half an hour
    make bench ARGS=--quick      a smaller one, about three minutes
    bench/run.py --show FILE     the tables of a run again, from its JSON file

Every round takes all measurements in turn, each in a new process, so other load on the machine affects them equally.
A figure is the median of the rounds. A ratio is computed within each round, and reported as median, minimum and
maximum. A measurement that fails or takes too long is left out, with the reason, and the others go on. The file with
the results is written after every round. See docs/speed.md.
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
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "peers")]

from fetch_pi import FetchError, NodeMissing, node, pi_home  # noqa: E402

from corpus import Corpus, prepare_corpus  # noqa: E402
from first_paint import NotPainted, bare_app, first_paint  # noqa: E402
from tables import Values, build_peer_rows, build_rows, report  # noqa: E402

EDGE = "────"
"""The edge of the editor: the app has painted itself."""

THIRD = 0.3
"""The share of the long session that is measured as one of medium length: 300,000 entries."""

ROUNDS = {"full": 5, "quick": 3, "tiny": 1}
TIMES = {"full": 5, "quick": 3, "tiny": 1}
"""How often a short command runs in a round."""
TIMEOUT = 600
"""How long a measuring process may take, in seconds."""
FILES = {"full": 10_000, "quick": 2_000, "tiny": 300}
"""The files of the folder whose snapshots are measured."""


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
        except (NodeMissing, FetchError, OSError) as problem:
            self.skipped["pi"] = str(problem)
        for peer in ("pp", "openai", "langgraph"):
            try:
                self.versions[peer] = self.peer(peer, "version")["version"]
            except (Skip, OSError, subprocess.TimeoutExpired):
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
            lambda: self.measure_third(large),
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

    def measure_third(self, large: str) -> Values:
        """Measure commands on a session that has only the first entries of a long one."""
        context: list[float] = []
        count: list[float] = []
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            third = os.path.join(folder, "third.jsonl")
            with open(large, "rb") as source, open(third, "wb") as target:
                size = round(os.path.getsize(large) * THIRD)
                while source.tell() < size:
                    target.write(source.read(min(1 << 20, size - source.tell())))
                target.write(source.readline())
            for _ in range(self.times):
                context.append(time_command([self.command, "context", third, "--json"]))
                count.append(time_command(["wc", "-l", third]))
            values = {"context command third": statistics.median(context), "wc third": statistics.median(count)}
            return values | {f"{name} third": value for name, value in self.measure_json(third).items()}

    def measure_json(self, file: str) -> Values:
        """Print a whole tree as JSON, and parse the same file with the standard library."""
        parse = "import json, sys\nfor line in open(sys.argv[1], 'rb'): json.loads(line)"
        seconds, peak = run_command([self.command, "tree", file, "--json"])
        return {
            "tree json": seconds,
            "tree peak": peak,
            "parse": time_command([sys.executable, "-c", parse, file]),
        }

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
        """Print a whole tree as JSON, and lay out a window of it and the whole."""
        found: dict[str, list[float]] = {}
        for _ in range(2):
            window = self.ours("tree_window", file=file)
            layout = {"tree window": window["seconds"], "tree whole": window["whole"]}
            for name, value in (self.measure_json(file) | layout).items():
                found.setdefault(name, []).append(value)
        return {name: statistics.median(several) for name, several in found.items()}

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
    given = {"env": {**os.environ, **(environment or {})}, "timeout": TIMEOUT}
    done = subprocess.run(command, capture_output=True, text=True, **given)
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
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT)
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


def run(bench: Bench, rounds: int, say: Callable[[str], None], save: Callable[[list[Values], list[str]], None]) -> None:
    """Measure, and `save` the values of each round and the reasons for missing ones after every round."""
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
            except Exception as error:  # noqa: BLE001 - the other measurements must not be lost
                reasons[f"{type(error).__name__}: {error}"] = None
                say(f"a measurement failed: {type(error).__name__}: {error}")
                continue
            took[next(iter(measured))] += perf_counter() - start
            for name, value in measured.items():
                seen.setdefault(name, []).append(value)
        for name, several in seen.items():
            values[name] = statistics.median(several)
        found.append(values)
        save(found, list(reasons))
    slowest = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.most_common(5))
    say(f"{took.total():.0f} s in all; longest: {slowest}")


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
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the tables of a run from its JSON file")
    given = parser.parse_args(arguments)
    if given.show is not None:
        print(report(json.loads(given.show.read_text())))
        return 0

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
    names = name_files(corpus)
    result: dict[str, Any] = {}
    out.parent.mkdir(parents=True, exist_ok=True)

    def save(found: list[Values], skipped: list[str]) -> None:
        loads.append(os.getloadavg()[0])
        result.update(
            {
                "date": today,
                "scale": given.scale,
                "rounds": len(found),
                "machine": {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
                "load": [round(load, 1) for load in loads],
                "versions": bench.versions,
                "rows": build_rows(found, names),
                "beside": build_peer_rows(found, names),
                "skipped": skipped,
                "values": found,
            }
        )
        out.write_text(json.dumps(result, indent=1) + "\n")

    run(bench, given.rounds or ROUNDS[given.scale], say, save)
    print(report(result))
    say(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
