"""Random writers: one that uses our public API, one that makes operations for pi.

Both draw from a seeded `random.Random`, so a failing seed fails again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import sessiontree as st
from tests.peers.pi import UNDEFINED, Op, ref

Json = dict[str, Any]

WORDS = (
    "tree", "leaf", "branch", "café", "漢字", "🌳", 'quote"', "back\\slash", "tab\t", "line\nbreak", "cr\rhere",
    "\u2028", "\x00", "\x1f", "\x85", "\ufeff", "\xa0", "<b>tag</b>", "```", "</summary>", "\ud83d alone", "x" * 300,
)  # fmt: skip
LEVELS = ("off", "minimal", "low", "medium", "high", "xhigh", "max")
MODELS = (("anthropic", "model-a"), ("openai", "model-b"), ("google", "model/with:odd name"))
STOPS = ("stop", "length", "toolUse", "error", "aborted")
EDITABLE_ROLES = ("user", "assistant", "toolResult")


def is_editable(entry: st.Entry) -> bool:
    """Return whether pi allows a context edit of this entry."""
    body = entry.body
    if isinstance(body, st.Message):
        return body.message.get("role") in ("user", "assistant", "toolResult")
    return isinstance(body, st.CustomMessage)


class Speaker:
    """Makes random messages of all roles, in wire form."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.calls: list[tuple[str, str]] = []
        self.time = 1_764_547_200_000

    def words(self, most: int = 8) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, most)))

    def blocks(self) -> list[Json]:
        image = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
        made = [{"type": "text", "text": self.words()} for _ in range(self.random.randint(1, 3))]
        return [*made, image] if self.random.random() < 0.2 else made

    def content(self) -> str | list[Json]:
        return self.words() if self.random.random() < 0.5 else self.blocks()

    def usage(self) -> Json:
        tokens = {key: self.random.randrange(5000) for key in ("input", "output", "cacheRead", "cacheWrite")}
        return {**tokens, "cost": {"input": 0.25, "output": 0.5, "total": 0.75}}

    def any_message(self) -> Json:
        made = self.random.choices(
            (self.user, self.assistant, self.tool_result, self.bash, self.system, self.custom),
            weights=(6, 8, 5, 2, 1, 1),
        )[0]()
        self.time += 1000
        if made["role"] in (*EDITABLE_ROLES, "system") and self.random.random() < 0.03:
            made["content"] = None
        return {**made, "timestamp": self.time}

    def user(self) -> Json:
        return {"role": "user", "content": self.content()}

    def assistant(self) -> Json:
        provider, model = self.random.choice(MODELS)
        content = self.blocks()
        if self.random.random() < 0.3:
            content.insert(0, {"type": "thinking", "thinking": self.words(), "thinkingSignature": "c2ln"})
        for _ in range(self.random.choice((0, 0, 1, 2))):
            call, name = f"call_{self.random.getrandbits(40):x}", self.random.choice(("bash", "read", "edit"))
            self.calls.append((call, name))
            content.append({"type": "toolCall", "id": call, "name": name, "arguments": {"path": self.words(2)}})
        message = st.assistant(content, provider=provider, model=model, api="an-api", usage=self.usage()).message
        return {**message, "stopReason": self.random.choice(STOPS)}

    def tool_result(self) -> Json:
        known = self.calls and self.random.random() < 0.9
        call, name = self.random.choice(self.calls[-4:]) if known else ("call_of_nobody", "bash")
        result = st.tool_result(call, name, self.blocks(), error=self.random.random() < 0.2).message
        return {**result, "details": {"exit": 0}} if self.random.random() < 0.3 else result

    def bash(self) -> Json:
        flags = [self.random.random() < 0.3 for _ in range(3)]
        run: Json = {
            "role": "bashExecution",
            "command": self.words(3),
            "output": "" if self.random.random() < 0.2 else self.words(),
            "exitCode": self.random.choice((0, 1, 127)),
            "cancelled": flags[0],
            "truncated": flags[1],
        }
        if flags[0]:
            del run["exitCode"]
        if flags[1]:
            run["fullOutputPath"] = "/logs/run.txt"
        if flags[2]:
            run["excludeFromContext"] = True
        return run

    def system(self) -> Json:
        patch: Json = {"role": "system", "content": self.words()}
        if self.random.random() < 0.5:
            patch["sections"] = {self.random.choice("ab"): self.random.choice((self.words(), None))}
        if self.random.random() < 0.5:
            patch["toolsAdded"] = [{"name": self.random.choice("xy"), "description": self.words(2), "parameters": {}}]
            patch["toolsRemoved"] = [{"name": self.random.choice("xy")}]
        return patch

    def custom(self) -> Json:
        """Return a custom message as in a session migrated from version 2."""
        return {"role": "custom", "customType": "hook", "content": self.content(), "display": True}


class OurWriter:
    """Works on a session as a person and several agents would."""

    def __init__(self, session: st.Session, random: Random) -> None:
        self.session = session
        self.random = random
        self.speaker = Speaker(random)
        self.made = 0

    def work(self, steps: int) -> None:
        doings: dict[Callable[[], object], int] = {
            self.speak: 50,
            self.speak_as_agent: 8,
            self.late_result: 3,
            self.model: 3,
            self.level: 3,
            self.compact: 3,
            self.summarize: 3,
            self.custom_state: 2,
            self.custom_message: 4,
            self.edit_context: 4,
            self.label: 5,
            self.name: 2,
            self.usage: 2,
            self.agent_action: 2,
            self.unknown_entry: 1,
            self.create_branch: 4,
            self.switch: 4,
            self.navigate: 4,
            self.undo: 2,
            self.rename_branch: 1,
            self.archive_branch: 1,
        }
        for _ in range(steps):
            self.random.choices(list(doings), weights=list(doings.values()))[0]()

    def somewhere(self) -> st.Entry | None:
        entries = self.session.tree.entries
        return self.random.choice(entries) if entries else None

    def sometimes(self, value: Any, share: float = 0.4) -> Any:
        return value if self.random.random() < share else None

    def speak(self) -> None:
        self.session.extend(st.Message(self.speaker.any_message()) for _ in range(self.random.choice((1, 1, 1, 2, 5))))

    def speak_as_agent(self) -> None:
        """Append to any branch, which does not become current."""
        branch = self.random.choice(list(self.session.heads.heads))
        self.session.branch(branch).append(st.Message(self.speaker.any_message()))

    def late_result(self) -> None:
        self.session.append(st.Message(self.speaker.any_message()), parent=self.somewhere(), branch=None)

    def model(self) -> None:
        provider, model = self.random.choice(MODELS)
        self.session.append(st.ModelChange(provider=provider, model=model))

    def level(self) -> None:
        self.session.append(st.ThinkingLevelChange(self.random.choice(LEVELS)))

    def compact(self) -> None:
        path = self.session.head.path()
        keep = self.random.choice(path).id if path and self.random.random() < 0.8 else None
        self.session.append(
            st.Compaction(
                summary=self.speaker.words(),
                first_kept=keep,
                tokens_before=self.random.randrange(100_000),
                details=self.sometimes({"readFiles": ["a.py"], "modifiedFiles": []}),
                from_hook=self.sometimes(True),
                usage=self.sometimes(self.speaker.usage()),
            )
        )

    def summarize(self) -> None:
        left, place = self.session.heads.leaf, self.somewhere()
        self.session.append(
            st.BranchSummary(
                summary=self.random.choice((self.speaker.words(), self.speaker.words(), "")),
                abandoned_leaf=left,
                details=self.sometimes({"reason": "a dead end"}),
                from_hook=self.sometimes(True),
                usage=self.sometimes(self.speaker.usage()),
            ),
            parent=place,
        )

    def custom_state(self) -> None:
        self.session.append(st.Custom(custom_type="ext.state", data=self.sometimes({"n": [1, None, 0.5]})))

    def custom_message(self) -> None:
        self.session.append(
            st.CustomMessage(
                custom_type="ext.note",
                content=self.speaker.content(),
                display=self.random.random() < 0.5,
                details=self.sometimes({"k": 1}),
            )
        )

    def edit_context(self) -> None:
        path = [entry for entry in self.session.head.path()[-12:] if is_editable(entry)]
        if path:
            replacement = self.random.choice((None, {"content": self.speaker.content()}))
            self.session.append(st.ContextEdit(target=self.random.choice(path).id, replacement=replacement))

    def label(self) -> None:
        place = self.somewhere()
        if place is not None:
            cleared = self.random.random() < 0.3
            self.session.label(place, None if cleared else self.speaker.words(2))

    def name(self) -> None:
        self.session.rename(self.random.choice((self.speaker.words(3), self.speaker.words(3), None)))

    def usage(self) -> None:
        """Record usage at the head, or at another place without moving a branch."""
        provider, model = self.random.choice(MODELS)
        self.session.append(
            parent=self.random.choice((self.session.heads.leaf, self.somewhere())),
            body=st.Usage(
                kind="cache_warm",
                provider=provider,
                model=model,
                usage=self.speaker.usage(),
                note=self.sometimes("kept warm"),
            ),
        )

    def agent_action(self) -> None:
        action = self.random.choice(("spawn", "complete", "fork", "branch", "fail"))
        self.session.append(st.AgentAction(action=action, agent="agent-1", data=self.sometimes({"cost": 0.5})))

    def unknown_entry(self) -> None:
        self.session.append(st.Opaque(type="of_tomorrow", fields={"content": self.speaker.words()}))

    def create_branch(self) -> None:
        self.made += 1
        name = f"try {self.made} {self.random.getrandbits(20):x}"
        place = self.random.choice(("HEAD", self.somewhere()))
        self.session.create_branch(
            name, at=place, description=self.sometimes(self.speaker.words()), current=self.random.random() < 0.6
        )

    def switch(self) -> None:
        self.session.switch(self.random.choice(list(self.session.heads.heads)))

    def navigate(self) -> None:
        self.session.navigate_sync(None if self.random.random() < 0.05 else self.somewhere())

    def undo(self) -> None:
        if self.session.heads.undoable is not None:
            self.session.undo()

    def rename_branch(self) -> None:
        self.made += 1
        self.session.rename_branch(
            self.random.choice(list(self.session.heads.heads)), f"new {self.made} {self.random.getrandbits(20):x}"
        )

    def archive_branch(self) -> None:
        others = [name for name in self.session.heads.heads if name != self.session.heads.current]
        if others:
            self.session.archive_branch(self.random.choice(others), archived=self.random.random() < 0.7)


Key = str | int
"""An entry that is there already, by its id; or one to be made, by the number of its operation."""


class PiWriter:
    """Makes operations that pi's SessionManager accepts, by keeping track of where its leaf will be."""

    def __init__(self, random: Random, session: st.Session | None = None) -> None:
        self.random = random
        self.speaker = Speaker(random)
        self.ops: list[Op] = []
        self.parents: dict[Key, Key | None] = {}
        self.editable: set[Key] = set()
        self.leaf: Key | None = None
        for entry in session.tree if session is not None else ():
            self.parents[entry.id] = entry.parent
            match entry.body:
                case st.Message({"role": "user" | "assistant" | "toolResult"}) | st.CustomMessage():
                    self.editable.add(entry.id)
                case _:
                    pass
            self.leaf = entry.id

    def work(self, steps: int) -> Sequence[Op]:
        doings: dict[Callable[[], object], int] = {
            self.speak: 50,
            self.model: 3,
            self.level: 3,
            self.compact: 3,
            self.custom_state: 2,
            self.custom_message: 4,
            self.edit_context: 4,
            self.label: 5,
            self.name: 2,
            self.usage: 2,
            self.branch: 5,
            self.branch_with_summary: 3,
            self.reset: 1,
        }
        for _ in range(steps):
            self.random.choices(list(doings), weights=list(doings.values()))[0]()
        return self.ops

    def append(self, method: str, *arguments: object) -> int:
        self.ops.append((method, *arguments))
        key = len(self.ops) - 1
        self.parents[key], self.leaf = self.leaf, key
        return key

    def path(self) -> list[Key]:
        path: list[Key] = []
        at = self.leaf
        while at is not None:
            path.append(at)
            at = self.parents[at]
        return path[::-1]

    def somewhere(self) -> Key | None:
        return self.random.choice(list(self.parents)) if self.parents else None

    def sometimes(self, value: object) -> object:
        return value if self.random.random() < 0.4 else UNDEFINED

    def speak(self) -> None:
        message = self.speaker.any_message()
        key = self.append("appendMessage", message)
        if message["role"] in EDITABLE_ROLES:
            self.editable.add(key)

    def model(self) -> None:
        self.append("appendModelChange", *self.random.choice(MODELS))

    def level(self) -> None:
        self.append("appendThinkingLevelChange", self.random.choice(LEVELS))

    def compact(self) -> None:
        self.append(
            "appendCompaction",
            self.speaker.words(),
            self.anchor(),
            self.random.randrange(100_000),
            self.sometimes({"readFiles": [], "modifiedFiles": ["b.py"]}),
            self.sometimes(True),
            self.sometimes(self.speaker.usage()),
        )

    def anchor(self) -> object:
        """Return an entry on the path, none, or sometimes one elsewhere or a missing one, which pi accepts."""
        chance, path, elsewhere = self.random.random(), self.path(), self.somewhere()
        labels = [key for key in path if isinstance(key, int) and self.ops[key][0] == "appendLabelChange"]
        if chance < 0.05:
            return "feedbeef"
        if chance < 0.1 and elsewhere is not None:
            return name_entry(elsewhere)
        if chance < 0.3 and labels:
            return name_entry(labels[-1])
        return name_entry(self.random.choice(path)) if path and chance < 0.8 else None

    def custom_state(self) -> None:
        self.append("appendCustomEntry", "ext.state", self.sometimes({"n": [1, None, 0.5]}))

    def custom_message(self) -> None:
        display, details = self.random.random() < 0.5, self.sometimes({"k": 1})
        key = self.append("appendCustomMessageEntry", "ext.note", self.speaker.content(), display, details)
        self.editable.add(key)

    def edit_context(self) -> None:
        targets = [key for key in self.path()[-12:] if key in self.editable]
        if targets:
            replacement = self.random.choice((None, {"content": self.speaker.content()}))
            self.append("appendContextEdit", name_entry(self.random.choice(targets)), replacement)

    def label(self) -> None:
        target = self.somewhere()
        if target is not None:
            text = self.random.choice((self.speaker.words(2), self.speaker.words(2), UNDEFINED, ""))
            self.append("appendLabelChange", name_entry(target), text)

    def name(self) -> None:
        self.append("appendSessionInfo", self.random.choice((self.speaker.words(3), self.speaker.words(3), "")))

    def usage(self) -> None:
        provider, model = self.random.choice(MODELS)
        self.append("appendUsage", "cache_warm", provider, model, self.speaker.usage(), self.sometimes("kept warm"))

    def branch(self) -> None:
        target = self.somewhere()
        if target is not None:
            self.ops.append(("branch", name_entry(target)))
            self.leaf = target

    def branch_with_summary(self) -> None:
        self.leaf = None if self.random.random() < 0.1 else self.somewhere()
        summary = self.random.choice((self.speaker.words(), self.speaker.words(), ""))
        target = None if self.leaf is None else name_entry(self.leaf)
        self.append("branchWithSummary", target, summary, self.sometimes({"readFiles": []}), self.sometimes(True))

    def reset(self) -> None:
        self.ops.append(("resetLeaf",))
        self.leaf = None


def name_entry(key: Key) -> object:
    """Return an entry as an argument of an operation."""
    return ref(key) if isinstance(key, int) else key
