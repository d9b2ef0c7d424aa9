"""The tree: an index over entries, and every question one can ask of their shape.

Pure, synchronous, and without recursion. `Tree` only grows. Whatever the input, every
entry has one place and every walk ends: of entries with one id the last counts, an entry
whose parent is missing is a root, and so is the member of a cycle that stands first in
the file. What was wrong is listed by `core.problems`. Heads and branches are in
`core.heads`; what reaches a model is in `core.context`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sessiontree.core.entries import Entry, EntryId, Label, SessionInfo
from sessiontree.core.times import milliseconds
from sessiontree.errors import NotFound

BLANKS = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What peers take off both ends of a name. `str.strip` differs: it also takes control characters."""


QUIET = frozenset({"message", "model_change", "thinking_level_change", "compaction", "branch_summary"})
"""Types that are never annotations: nearly all lines."""


class Tree:
    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        """Every entry ever added, in file order, those shadowed by a later one with the same id included."""
        self._by_id: dict[EntryId, Entry] = {}
        self._cut: dict[EntryId, None] = {}
        """Entries that name a parent but hang from nothing: orphans, and one member of each cycle."""
        self._missing: set[EntryId | None] = set()
        """Parents that orphans name."""
        self._children: dict[EntryId | None, list[EntryId]] | None = None
        self._labels: dict[EntryId, Entry] = {}
        self._name: str | None = None
        self._relink = False
        self.named = False
        """Whether the session was ever given a name."""
        self.real_count = 0
        """How many entries are no annotations."""
        self.last_annotation: EntryId | None = None
        self.extend(entries)

    def add(self, entry: Entry) -> None:
        """Index `entry`, whatever it says."""
        self.extend((entry,))

    def extend(self, entries: Iterable[Entry]) -> None:
        """Index entries, in the order of the file."""
        by_id, children, missing = self._by_id, self._children, self._missing
        before, annotations = len(self.entries), 0
        for entry in entries:
            self.entries.append(entry)
            id, parent = entry.id, entry.parent
            if parent is not None:
                above = by_id.get(parent)
                if above is None or parent == id:
                    self._relink = True
                else:
                    entry.parent = above.id  # one string for both
            if by_id.setdefault(id, entry) is not entry or id in missing:
                self._relink = True
                by_id[id] = entry
            if children is not None:
                children.setdefault(parent, []).append(id)
            if entry.type not in QUIET and entry.is_annotation:
                annotations += 1
                self.last_annotation = id
                self._note(entry)
        self.real_count += len(self.entries) - before - annotations

    @property
    def is_sound(self) -> bool:
        """Whether every entry hangs where it says, and no id stands twice."""
        return not self._relink and not self._cut and len(self._by_id) == len(self.entries)

    def _note(self, entry: Entry) -> None:
        if entry.type == "label" and isinstance(entry.body, Label):
            if entry.body.text:
                self._labels[entry.body.target] = entry
            else:
                self._labels.pop(entry.body.target, None)
        elif entry.type == "session_info" and isinstance(entry.body, SessionInfo):
            self.named = True
            self._name = (entry.body.name or "").strip(BLANKS) or None

    def _link(self) -> None:
        """Settle where entries hang that named no earlier entry as their parent."""
        self._relink = False
        self._children = None
        by_id = self._by_id
        self._cut = {
            entry.id: None
            for entry in by_id.values()
            if entry.parent is not None and (entry.parent not in by_id or entry.parent == entry.id)
        }
        self._missing = {by_id[id].parent for id in self._cut}
        settled: set[EntryId] = set(self._cut)
        for start in by_id.values():
            walk: dict[EntryId, None] = {}
            id: EntryId | None = start.id
            while id is not None and id not in settled and id not in walk:
                walk[id] = None
                id = by_id[id].parent
            if id is not None and id in walk:
                trail = list(walk)
                cycle = trail[trail.index(id) :]
                self._cut[min(cycle, key=lambda member: by_id[member].line)] = None
            settled.update(walk)

    # Looking up

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def __iter__(self) -> Iterator[Entry]:
        """The entries that count, in file order."""
        if len(self._by_id) == len(self.entries):
            return iter(self.entries)
        return (entry for entry in self.entries if self._by_id[entry.id] is entry)

    def __getitem__(self, id: EntryId) -> Entry:
        try:
            return self._by_id[id]
        except KeyError:
            raise NotFound("entry", id) from None

    def starting_with(self, prefix: str) -> list[EntryId]:
        """Ids that start with `prefix`, in file order."""
        return [entry.id for entry in self if entry.id.startswith(prefix)]

    def label(self, id: EntryId) -> str | None:
        entry = self._labels.get(id)
        return entry.body.text if entry is not None and isinstance(entry.body, Label) else None

    @property
    def labels(self) -> dict[EntryId, str]:
        """Live labels by the entry they are on, in the order those were first labeled."""
        return {target: text for target in self._labels if (text := self.label(target))}

    def label_entry(self, id: EntryId) -> Entry | None:
        """The entry that set the live label of `id`."""
        return self._labels.get(id)

    @property
    def name(self) -> str | None:
        """The session's name: the last one that was set, in file order."""
        return self._name

    # Shape

    def parent(self, id: EntryId) -> EntryId | None:
        """Where `id` hangs: its parent, or `None` for a root."""
        if self._relink:
            self._link()
        return None if id in self._cut else self[id].parent

    def children(self, id: EntryId | None) -> list[Entry]:
        """Entries right below `id`, oldest first; below `None` are the roots."""
        return [self._by_id[child] for child in self.child_ids(id)]

    def child_ids(self, id: EntryId | None) -> list[EntryId]:
        if self._relink:
            self._link()
        if self._children is None:
            self._children = {}
            for entry in self:
                parent = None if entry.id in self._cut else entry.parent
                self._children.setdefault(parent, []).append(entry.id)
        ids = self._children.get(id, [])
        return sorted(ids, key=self._age) if len(ids) > 1 else ids

    def _age(self, id: EntryId) -> tuple[int, int]:
        entry = self._by_id[id]
        return milliseconds(entry.timestamp) or 0, entry.line

    def roots(self) -> list[Entry]:
        return self.children(None)

    def up(self, id: EntryId | None) -> Iterator[Entry]:
        """The entries from `id` to its root."""
        while id is not None:
            yield self[id]
            id = self.parent(id)

    def path(self, leaf: EntryId | None) -> list[Entry]:
        """Entries from the root to `leaf`; empty for `None`, the place before everything."""
        path = list(self.up(leaf))
        path.reverse()
        return path

    def real(self, id: EntryId | None) -> EntryId | None:
        """`id`, or the nearest entry above it that is no annotation."""
        return next((entry.id for entry in self.up(id) if not entry.is_annotation), None)

    def common_ancestor(self, *ids: EntryId | None) -> EntryId | None:
        """The deepest entry on the paths of all `ids`, or `None` if they share nothing."""
        first, *others = ids
        paths = [{entry.id for entry in self.up(other)} for other in others]
        return next((entry.id for entry in self.up(first) if all(entry.id in path for path in paths)), None)

    def abandoned(self, old: EntryId | None, new: EntryId | None) -> list[Entry]:
        """What leaves the path, oldest first, when the leaf moves from `old` to `new`."""
        keep = self.common_ancestor(old, new)
        left: list[Entry] = []
        for entry in self.up(old):
            if entry.id == keep:
                break
            left.append(entry)
        left.reverse()
        return left

    def walk(self, active: EntryId | None = None) -> Iterator[tuple[Entry, int]]:
        """Every entry with its depth, depth first, oldest child first but the way to `active` before all."""
        on_path = {entry.id for entry in self.up(active)}
        waiting = [(id, 0) for id in reversed(self._active_first(None, on_path))]
        while waiting:
            id, depth = waiting.pop()
            yield self._by_id[id], depth
            waiting.extend((child, depth + 1) for child in reversed(self._active_first(id, on_path)))

    def _active_first(self, id: EntryId | None, on_path: set[EntryId]) -> list[EntryId]:
        ids = self.child_ids(id)
        return ids if len(ids) < 2 else sorted(ids, key=lambda child: child not in on_path)
