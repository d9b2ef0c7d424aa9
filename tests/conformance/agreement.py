"""Where sessiontree and pi must agree: each function returns sentences, one for every difference.

What pi says comes from the real one (`tests.peers`) or from recordings of it. Three differences
are meant and passed over: pi's leaf may be an annotation where our head is the entry above it;
the wording round summaries and shell runs is our own; and we do not send a tool result whose call
is not in the context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sessiontree import Context, Session, build_context

Json = dict[str, Any]
WORDED = {"compactionSummary": ("summary",), "branchSummary": ("summary",), "bashExecution": ("command", "output")}
"""The roles that are sent in words of the program, with what those words are about."""


def differences(session: Session, pi: Mapping[str, Any]) -> list[str]:
    """How an open session differs from pi's description of the same file."""
    tree, leaf = session.tree, session.heads.leaf
    rows = [
        (
            entry.id,
            depth,
            tree.label(entry.id),
            setter.timestamp if (setter := tree.get_label_entry(entry.id)) else None,
        )
        for entry, depth in tree.walk()
    ]
    found = [
        *_unequal("session id", session.id, pi["header"]["id"]),
        *_unequal("folder", session.cwd, pi["header"]["cwd"]),
        *_unequal("number of entries", len(tree), pi["entryCount"]),
        *_unequal("leaf", leaf, tree.skip_annotations(pi["leafId"])),
        *_unequal("path", real_ids(session, [entry.id for entry in tree.path(leaf)]), real_ids(session, pi["branch"])),
        *_unequal("labels", tree.labels, pi["labels"]),
        *_unequal("name", session.name, pi["name"]),
        *_unequal_lists(
            "tree row",
            rows,
            [(row["id"], row["depth"], row.get("label"), row.get("labelTimestamp")) for row in pi["tree"]],
        ),
    ]
    if not found:  # otherwise every context would repeat it
        for context in pi["contexts"]:
            found += context_differences(build_context(tree, context["leaf"]), context)
    return found


def real_ids(session: Session, ids: Iterable[str]) -> list[str]:
    """`ids` without those of annotations."""
    return [id for id in ids if not session.tree[id].is_annotation]


def context_differences(ours: Context, pi: Mapping[str, Any]) -> list[str]:
    """How a context differs from pi's, and so what is sent of it."""
    at = f"at {ours.leaf}: "
    return [
        at + difference
        for difference in (
            *_unequal("error", None, pi.get("error")),
            *_unequal("model", ours.model, pi.get("model")),
            *_unequal("thinking level", ours.thinking_level, pi.get("thinkingLevel")),
            *_unequal_lists("message", list(ours.messages), pi.get("messages", [])),
            *sent_differences(pi.get("messages", []), ours.convert_messages(), pi.get("llm", [])),
        )
    ]


def sent_differences(messages: Sequence[Json], ours: Sequence[Json], pi: Sequence[Json]) -> list[str]:
    """How what we send of a context's `messages` differs from what pi sends, wording aside."""
    found: list[str] = []
    calls = {
        block["id"]
        for message in messages
        if message["role"] == "assistant"
        for block in message["content"]
        if block["type"] == "toolCall"
    }
    our, their = iter(ours), iter(pi)
    for index, message in enumerate(messages):
        if message.get("excludeFromContext") is True:
            continue
        what, sent_by_pi = f"sent for message {index}", next(their, None)
        if message["role"] == "toolResult" and message["toolCallId"] not in calls:
            found += _unequal(what + ", a result without its call", message, sent_by_pi)
            continue
        sent = next(our, None)
        if message["role"] in WORDED and sent is not None and sent_by_pi is not None:
            about = [message[key] for key in WORDED[message["role"]]]
            found += [f"{what}: {part!r} is missing in {sent!r}" for part in about if part not in _only_text(sent)]
            sent, sent_by_pi = _unworded(sent), _unworded(sent_by_pi)
        found += _unequal(what, sent, sent_by_pi)
    found += [f"sent by us alone: {extra!r}" for extra in our]
    found += [f"sent by pi alone: {extra!r}" for extra in their]
    return found


def _only_text(message: Json) -> str:
    """The text of a message that consists of one text block."""
    [block] = message["content"]
    return block["text"]


def _unworded(message: Json) -> Json:
    return {**message, "content": [{**block, "text": "…"} for block in message["content"]]}


def fork_differences(ours: Sequence[Json], pi: Sequence[Json]) -> list[str]:
    """How the lines of our path fork differ from pi's, new ids and our head record aside."""
    found: list[str] = []
    for key in ("version", "cwd"):
        found += _unequal(f"header's {key}", ours[0].get(key), pi[0].get(key))
    lines = list(ours[1:])
    if lines:
        record = lines.pop()
        if record.get("customType") != "sessiontree.head":
            found.append(f"the last line is no head record: {record!r}")
    kept, labels = _parted(lines)
    pi_kept, pi_labels = _parted(pi[1:])
    found += _unequal_lists("kept line", kept, pi_kept)
    found += _unequal_lists("label", _label_values(labels), _label_values(pi_labels))
    if any(line["type"] == "label" for line in lines[: len(kept)]):
        found.append("a label stands among the kept lines")
    above = kept[-1]["id"] if kept else None
    for label in labels:
        found += _unequal(f"parent of label {label['label']!r}", label["parentId"], above)
        above = label["id"]
    return found


def _parted(lines: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    return [line for line in lines if line["type"] != "label"], [line for line in lines if line["type"] == "label"]


def _label_values(labels: Sequence[Json]) -> list[tuple[str, str, str]]:
    return [(line["targetId"], line["label"], line["timestamp"]) for line in labels]


def _unequal(what: str, ours: object, pi: object) -> list[str]:
    return [] if ours == pi else [f"{what}: {ours!r} here, {pi!r} in pi"]


def _unequal_lists(what: str, ours: Sequence[object], pi: Sequence[object]) -> list[str]:
    """The first difference of two lists, which is the one to look at."""
    for index, (our, their) in enumerate(zip(ours, pi, strict=False)):
        if our != their:
            return _unequal(f"{what} {index}", our, their)
    return _unequal(f"number of {what}s", len(ours), len(pi))
