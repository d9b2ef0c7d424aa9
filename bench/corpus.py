"""The corpus: sessions like those of pi, generated from a seed, always with the same bytes.

A session consists of turns: the user asks, the assistant thinks, writes and calls tools, tools respond. Sizes are
heavy-tailed, mostly those of tool results. Between turns it branches off now and then, is compacted every 400 entries
of its path, labelled, named, and given other models and thinking levels. Keys stand in the order that pi 1.5.0 writes.

Every large session ends with the same 1,000 entries or so, so that what is read from the end of a file costs the same
in all of them: the last thinking level stands 700 entries before the leaf, the last compaction 200.

    python bench/corpus.py bench/data [--quick | --tiny]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

FORMAT = 2
"""Raised when the same seed makes other bytes than before."""

Json = dict[str, Any]
encode = msgspec.json.encode

MODELS = (("anthropic", "claude-sonnet-4-5"), ("openai", "gpt-5.2-codex"), ("google", "gemini-3-pro"))
TOOLS = ("read", "bash", "edit", "write", "grep")
LEVELS = ("off", "low", "medium", "high")
TAIL = 1000


class Scale(NamedTuple):
    """The number of entries of each session, and of sessions to list."""

    large: int
    middle: int
    small: int
    sessions: int


SCALES = {
    "full": Scale(1_000_000, 100_000, 10_000, 2000),
    "quick": Scale(100_000, 20_000, 10_000, 300),
    "tiny": Scale(2_500, 1_500, 1_200, 12),
}

VOCABULARY = (
    "the a value branch entry file test path error cache reader writer lock line index tree head session message call "
    "result tool token model context summary label parent child offset byte string list map key queue task worker "
    "returns reads writes keeps drops fails holds opens closes checks moves before after while until because however "
    "only never always once first last new old same other café naïve Größe 漢字 データ ошибка ✅"
)
WORDS = VOCABULARY.split()
CODE = (
    "def {a}_{b}(self, {c}: str) -> int:",
    '    """The {a} of a {b}, or `None`."""',
    "    if {a} is None or len({b}) < {n}:",
    '        raise ValueError(f"no {a} in {{{b}!r}}: {c}")',
    "    self._{a}[{b}] = {c}.strip().split(',')[{n}]",
    "    return sum({a}.{b} for {a} in {c} if {a}.{b} > {n})",
    "src/{a}/{b}.py:{n}: error: {c} is not a {a}  [{b}-{c}]",
    "\tPASSED tests/test_{a}.py::test_{b}_{c} ({n} ms)",
    "-rw-r--r-- 1 dev dev {n} Jan 12 09:30 {a}-{b}.{c}",
    '  "{a}": {{"{b}": {n}, "{c}": ["{a}", "{b}"]}},',
    "",
)


class Pool:
    """Text to take samples from: prose and code, generated from a seed."""

    def __init__(self, seed: int = 11) -> None:
        chance = random.Random(seed)
        word = WORDS.__getitem__
        pick = [chance.randrange(len(WORDS)) for _ in range(120_000)]
        sentences = (" ".join(map(word, pick[at : at + 3 + at % 11])) for at in range(0, 110_000, 7))
        self.prose = ". ".join(
            f"{sentence}\n\n- `{sentence[:9]}`" if len(sentence) > 70 else sentence for sentence in sentences
        )
        plain = [word for word in WORDS if word.isascii()]
        lines: list[str] = []
        for number in range(40_000):
            a, b, c = chance.choices(plain, k=3)
            lines.append(CODE[number * 7 % len(CODE)].format(a=a, b=b, c=c, n=chance.randrange(9000)))
        self.code = "\n".join(lines)


class Session:
    """One session, line by line."""

    def __init__(self, seed: int, pool: Pool, taken: set[str] | None = None) -> None:
        self.chance = random.Random(seed)
        self.pool = pool
        self.now = 1_760_000_000_000 + self.chance.randrange(10**9)
        self.id = str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
        self.taken = set() if taken is None else taken
        """Ids that are in use."""
        self.path: list[str] = []
        self.kinds: list[str] = []
        """What each entry of the path is: `u` for a user's message, `c` for a compaction."""
        self.model = MODELS[0]
        self.since_compaction = 0
        self.next_branch = 50
        self._second = -1
        self._stamp = ""

    def header(self, cwd: str) -> bytes:
        return encode({"type": "session", "version": 3, "id": self.id, "timestamp": self.time(), "cwd": cwd})

    def time(self) -> str:
        self.now += self.chance.randrange(200, 20_000)
        second, rest = divmod(self.now, 1000)
        if second != self._second:
            self._second = second
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._stamp}.{rest:03d}Z"

    def length(self, median: float, spread: float, most: int) -> int:
        return min(most, 1 + int(self.chance.lognormvariate(math.log(median), spread)))

    def cut(self, text: str, length: int) -> str:
        parts: list[str] = []
        while length > 0:
            start = int(self.chance.random() * len(text))
            parts.append(text[start : start + length])
            length -= len(parts[-1])
        return parts[0] if len(parts) == 1 else "".join(parts)

    def prose(self, median: float, spread: float = 0.9, most: int = 12_000) -> str:
        return self.cut(self.pool.prose, self.length(median, spread, most))

    def code(self, median: float, spread: float = 1.0, most: int = 9000) -> str:
        return self.cut(self.pool.code, self.length(median, spread, most))

    def entry(self, kind: str, type: str, body: Json, id: str | None = None) -> bytes:
        """Return a line below the leaf, which becomes the leaf."""
        while id is None or id in self.taken:
            id = f"{self.chance.getrandbits(32):08x}"
        self.taken.add(id)
        place = {"id": id, "parentId": self.path[-1] if self.path else None, "timestamp": self.time()}
        self.path.append(id)
        self.kinds.append(kind)
        self.since_compaction = 0 if kind == "c" else self.since_compaction + 1
        # pi writes what extensions say before the id.
        return encode({"type": type, **body, **place} if type == "custom" else {"type": type, **place, **body})

    def begin(self) -> Iterator[bytes]:
        yield self.model_change()
        yield self.thinking()

    def turns(self) -> Iterator[bytes]:
        """Lines without end; a change of the path's shape comes only between two turns."""
        while True:
            yield from self.between()
            yield from self.turn()

    def turn(self) -> Iterator[bytes]:
        chance = self.chance
        yield self.message("u", {"role": "user", "content": [text(self.prose(160, 1.1))]})
        for left in range(int(chance.expovariate(0.25)), -1, -1):
            content: list[Json] = []
            if chance.random() < 0.5:
                signature = f"{chance.getrandbits(256):064x}"
                content.append({"type": "thinking", "thinking": self.prose(450), "thinkingSignature": signature})
            if left == 0 or chance.random() < 0.5:
                content.append(text(self.prose(320, 1.0)))
            call = self.call() if left else None
            yield self.assistant(content if call is None else [*content, call], "toolUse" if left else "stop")
            if call is not None:
                yield self.result(call)

    def call(self) -> Json:
        chance = self.chance
        name = TOOLS[int(chance.random() * len(TOOLS))]
        arguments: Json = {"path": f"src/package/module_{chance.randrange(99)}.py"}
        if name in ("bash", "grep"):
            arguments = {"command": self.code(40, 0.3, 200)}
        elif name != "read":
            arguments |= {"oldText": self.code(250), "newText": self.code(300)}
        return {"type": "toolCall", "id": f"toolu_{chance.getrandbits(96):024x}", "name": name, "arguments": arguments}

    def assistant(self, content: list[Json], stop: str) -> bytes:
        fresh, output, cached = (int(self.chance.random() * most) + 3 for most in (4000, 2500, 150_000))
        costs = {"input": fresh * 3e-6, "output": output * 15e-6, "cacheRead": cached * 3e-7, "cacheWrite": 0}
        counts = {"input": fresh, "output": output, "cacheRead": cached, "cacheWrite": 0}
        usage = {**counts, "totalTokens": sum(counts.values()), "cost": {**costs, "total": sum(costs.values())}}
        provider, model = self.model
        message: Json = {"role": "assistant", "content": content, "api": "messages", "provider": provider}
        return self.message("a", {**message, "model": model, "usage": usage, "stopReason": stop})

    def result(self, call: Json) -> bytes:
        huge = self.chance.random() < 0.0012
        output = self.code(80_000, 0.2, 160_000) if huge else self.code(650, 1.45, 240_000)
        message = {"role": "toolResult", "toolCallId": call["id"], "toolName": call["name"], "content": [text(output)]}
        return self.message("t", {**message, "isError": self.chance.random() < 0.06})

    def message(self, kind: str, message: Json) -> bytes:
        message["timestamp"] = self.now
        return self.entry(kind, "message", {"message": message})

    def between(self) -> Iterator[bytes]:
        chance = self.chance
        if len(self.taken) >= self.next_branch and len(self.path) > 20:
            self.next_branch = len(self.taken) + chance.randrange(35, 66)
            yield from self.branch_off()
        elif self.since_compaction >= 400:
            yield self.compaction()
        draw = chance.random()
        if draw < 0.03:
            target = self.path[-chance.randrange(1, min(len(self.path), 40) + 1)]
            yield self.entry("-", "label", {"targetId": target, "label": f"checkpoint {len(self.taken)}"})
        elif draw < 0.045:
            self.model = MODELS[chance.randrange(len(MODELS))]
            yield self.model_change()
        elif draw < 0.055:
            yield self.thinking()
        elif draw < 0.065:
            items = [{"id": item, "done": item % 2 == 0} for item in range(4)]
            yield self.entry("-", "custom", {"customType": "todo", "data": {"items": items}})
        elif draw < 0.068:
            yield self.entry("-", "session_info", {"name": f"Step {len(self.taken)}"})

    def branch_off(self) -> Iterator[bytes]:
        """Go back, mostly a short way, and sometimes summarize the abandoned branch."""
        chance = self.chance
        far = chance.randrange(20, 300) if chance.random() < 0.03 else 1 + int(chance.expovariate(1 / 12))
        left = self.path[-1]
        keep = max(5, len(self.path) - far)
        del self.path[keep:], self.kinds[keep:]
        recent = self.kinds[:-401:-1]
        self.since_compaction = recent.index("c") if "c" in recent else len(recent)
        if chance.random() < 0.3:
            yield self.entry("s", "branch_summary", {"fromId": left, "summary": self.prose(900, 0.5, 4000)})

    def compaction(self) -> bytes:
        kept = max(0, len(self.path) - self.chance.randrange(15, 50))
        while kept > 0 and self.kinds[kept] != "u":
            kept -= 1
        body: Json = {"summary": self.prose(5000, 0.4, 14_000), "firstKeptEntryId": self.path[kept]}
        files = {"readFiles": ["src/a.py", "src/b.py"], "modifiedFiles": ["src/a.py"]}
        return self.entry("c", "compaction", {**body, "tokensBefore": 90_000 + self.now % 90_000, "details": files})

    def model_change(self) -> bytes:
        return self.entry("-", "model_change", {"provider": self.model[0], "modelId": self.model[1]})

    def thinking(self) -> bytes:
        return self.entry("-", "thinking_level_change", {"thinkingLevel": self.chance.choice(LEVELS)})


def text(content: str) -> Json:
    return {"type": "text", "text": content}


class Tail(NamedTuple):
    """The end of every large session: a separate path below a known entry."""

    under: str
    ids: frozenset[str]
    lines: list[bytes]


def tail(pool: Pool) -> Tail:
    session = Session(2, pool)
    under = "7ea1be9c"
    session.taken.add(under)
    session.path, session.kinds = [under], ["-"]
    lines: list[bytes] = []
    leveled = compacted = False
    while len(lines) < TAIL:
        if not leveled and len(lines) >= TAIL - 700:
            lines.append(session.thinking())
            leveled = True
        if not compacted and len(lines) >= TAIL - 200:
            lines.append(session.compaction())
            compacted = True
        lines.extend(session.turn())
    return Tail(under, frozenset(session.taken - {under}), lines)


def write_large(file: Path, count: int, seed: int, pool: Pool, end: Tail) -> None:
    """Write a session of `count` entries that ends with `end`."""
    session = Session(seed, pool, {*end.ids, end.under})
    room = count - len(end.lines) - 1
    with file.open("wb", buffering=1 << 20) as out:
        out.write(session.header("/home/dev/project") + b"\n")
        out.writelines(line + b"\n" for _, line in zip(range(room), iter_lines(session), strict=False))
        bridge = {"type": "session_info", "id": end.under, "parentId": session.path[-1]}
        out.write(encode({**bridge, "timestamp": session.time(), "name": "A long session"}) + b"\n")
        out.writelines(line + b"\n" for line in end.lines)


def iter_lines(session: Session) -> Iterator[bytes]:
    yield from session.begin()
    yield from session.turns()


def write_folder(folder: Path, count: int, pool: Pool) -> None:
    """Write many sessions of four projects, most of them short, in the folders of pi."""
    chance = random.Random(5)
    for number in range(count):
        cwd = f"/home/dev/project{number % 4}"
        place = folder / f"--{cwd[1:].replace('/', '-')}--"
        place.mkdir(parents=True, exist_ok=True)
        session = Session(1000 + number, pool)
        size = min(2500, max(4, int(chance.lognormvariate(math.log(60), 1.2))))
        lines = [session.header(cwd)]
        stamp = json.loads(lines[0])["timestamp"].replace(":", "-").replace(".", "-")
        lines.extend(line for _, line in zip(range(size), iter_lines(session), strict=False))
        (place / f"{stamp}_{session.id}.jsonl").write_bytes(b"\n".join([*lines, b""]))


class Corpus(NamedTuple):
    large: Path
    middle: Path
    small: Path
    agent: Path
    """The folder that has `sessions` below it."""
    scale: Scale


def prepare_corpus(data: Path, scale: str, say: Any = None) -> Corpus:
    """Return the corpus below `data`. Create missing files, and cut off appended lines."""
    sizes = SCALES[scale]
    folder = data / scale
    folder.mkdir(parents=True, exist_ok=True)
    corpus = Corpus(*(folder / f"{name}.jsonl" for name in ("large", "middle", "small")), folder / "agent", sizes)
    noted = folder / "made.json"
    known: Json = json.loads(noted.read_text()) if noted.exists() else {}
    if known.get("format") != FORMAT:
        known = {"format": FORMAT}
    pool: Pool | None = None
    for name, count, seed in (("small", sizes.small, 21), ("middle", sizes.middle, 22), ("large", sizes.large, 23)):
        file = folder / f"{name}.jsonl"
        if name in known and file.exists() and file.stat().st_size >= known[name]:
            os.truncate(file, known[name])
            continue
        if say is not None:
            say(f"making {file.name}: {count:,} entries")
        pool = pool or Pool()
        write_large(file, count, seed, pool, tail(pool))
        known[name] = file.stat().st_size
        noted.write_text(json.dumps(known))
    if known.get("sessions") != sizes.sessions or not corpus.agent.exists():
        if say is not None:
            say(f"making {sizes.sessions:,} sessions")
        shutil.rmtree(corpus.agent, ignore_errors=True)
        write_folder(corpus.agent / "sessions", sizes.sessions, pool or Pool())
        known["sessions"] = sizes.sessions
        noted.write_text(json.dumps(known))
    return corpus


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the corpus of the benchmark.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--quick", dest="scale", action="store_const", const="quick", default="full")
    parser.add_argument("--tiny", dest="scale", action="store_const", const="tiny")
    given = parser.parse_args()
    sys.stdout.write(f"{prepare_corpus(given.data, given.scale, print)}\n")
