"""Where sessiontree and pi must agree: each function returns sentences, one for every difference.

The results of pi come from the real program (`tests.peers`) or from recordings of it. Three differences
are intended and ignored: pi's leaf may be an annotation where our head is the entry above it;
we word summaries and shell runs differently; and we do not send a tool result whose call
is not in the context.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sessiontree import Context, Session, build_context

Json = dict[str, Any]
WORDED = {"compactionSummary": ("summary",), "branchSummary": ("summary",), "bashExecution": ("command", "output")}
"""The roles that each program words differently, with the fields that the text must contain."""


def find_differences(session: Session, pi: Mapping[str, Any]) -> list[str]:
    """Compare an open session with pi's description of the same file."""
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
        *_compare("session id", session.id, pi["header"]["id"]),
        *_compare("folder", session.cwd, pi["header"]["cwd"]),
        *_compare("number of entries", len(tree), pi["entryCount"]),
        *_compare("leaf", leaf, tree.skip_annotations(pi["leafId"])),
        *_compare(
            "path",
            drop_annotations(session, [entry.id for entry in tree.path(leaf)]),
            drop_annotations(session, pi["branch"]),
        ),
        *_compare("labels", tree.labels, pi["labels"]),
        *_compare("name", session.name, pi["name"]),
        *_compare_lists(
            "tree row",
            rows,
            [(row["id"], row["depth"], row.get("label"), row.get("labelTimestamp")) for row in pi["tree"]],
        ),
    ]
    if not found:  # otherwise every context would repeat it
        for context in pi["contexts"]:
            found += compare_contexts(build_context(tree, context["leaf"]), context)
    return found


def drop_annotations(session: Session, ids: Iterable[str]) -> list[str]:
    """Return `ids` without annotations."""
    return [id for id in ids if not session.tree[id].is_annotation]


def compare_contexts(ours: Context, pi: Mapping[str, Any]) -> list[str]:
    """Compare a context, and the messages sent from it, with pi's."""
    at = f"at {ours.leaf}: "
    return [
        at + difference
        for difference in (
            *_compare("error", None, pi.get("error")),
            *_compare("model", ours.model, pi.get("model")),
            *_compare("thinking level", ours.thinking_level, pi.get("thinkingLevel")),
            *_compare_lists("message", list(ours.messages), pi.get("messages", [])),
            *compare_sent_messages(pi.get("messages", []), ours.convert_messages(), pi.get("llm", [])),
        )
    ]


def compare_sent_messages(messages: Sequence[Json], ours: Sequence[Json], pi: Sequence[Json]) -> list[str]:
    """Compare what we send of a context's `messages` with what pi sends, ignoring the wording."""
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
            found += _compare(what + ", a result without its call", message, sent_by_pi)
            continue
        sent = next(our, None)
        if message["role"] in WORDED and sent is not None and sent_by_pi is not None:
            about = [message[key] for key in WORDED[message["role"]]]
            found += [f"{what}: {part!r} is missing in {sent!r}" for part in about if part not in _get_only_text(sent)]
            sent, sent_by_pi = _strip_wording(sent), _strip_wording(sent_by_pi)
        found += _compare(what, sent, sent_by_pi)
    found += [f"sent by us alone: {extra!r}" for extra in our]
    found += [f"sent by pi alone: {extra!r}" for extra in their]
    return found


def _get_only_text(message: Json) -> str:
    """Return the text of a message that consists of one text block."""
    [block] = message["content"]
    return block["text"]


def _strip_wording(message: Json) -> Json:
    return {**message, "content": [{**block, "text": "…"} for block in message["content"]]}


def compare_forks(ours: Sequence[Json], pi: Sequence[Json]) -> list[str]:
    """Compare the lines of our path fork with pi's, ignoring new ids and our head record."""
    found: list[str] = []
    for key in ("version", "cwd"):
        found += _compare(f"header's {key}", ours[0].get(key), pi[0].get(key))
    lines = list(ours[1:])
    if lines:
        record = lines.pop()
        if record.get("customType") != "sessiontree.head":
            found.append(f"the last line is not a head record: {record!r}")
    kept, labels = _split_labels(lines)
    pi_kept, pi_labels = _split_labels(pi[1:])
    found += _compare_lists("kept line", kept, pi_kept)
    found += _compare_lists("label", _label_values(labels), _label_values(pi_labels))
    if any(line["type"] == "label" for line in lines[: len(kept)]):
        found.append("a label is among the kept lines")
    above = kept[-1]["id"] if kept else None
    for label in labels:
        found += _compare(f"parent of label {label['label']!r}", label["parentId"], above)
        above = label["id"]
    return found


def _split_labels(lines: Sequence[Json]) -> tuple[list[Json], list[Json]]:
    return [line for line in lines if line["type"] != "label"], [line for line in lines if line["type"] == "label"]


def _label_values(labels: Sequence[Json]) -> list[tuple[str, str, str]]:
    return [(line["targetId"], line["label"], line["timestamp"]) for line in labels]


def _compare(what: str, ours: object, pi: object) -> list[str]:
    return [] if ours == pi else [f"{what}: {ours!r} here, {pi!r} in pi"]


def _compare_lists(what: str, ours: Sequence[object], pi: Sequence[object]) -> list[str]:
    """Return the first difference of two lists, which usually explains the others."""
    for index, (our, their) in enumerate(zip(ours, pi, strict=False)):
        if our != their:
            return _compare(f"{what} {index}", our, their)
    return _compare(f"number of {what}s", len(ours), len(pi))
