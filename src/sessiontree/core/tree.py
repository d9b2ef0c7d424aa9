"""The tree: an index over entries, and every question one can ask of their shape.

Pure, synchronous, and without recursion. `Tree` only grows. Whatever the input, every
entry has one place and every walk ends: of entries with one id the last counts, an entry
whose parent is missing is a root, and so is the member of a cycle that stands first in
the file. What was wrong is listed by `core.problems`. Heads and branches are in
`core.heads`; what reaches a model is in `core.context`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import overload

from sessiontree.core.entries import Chain, Entry, EntryId, Label, SessionInfo, read_raws
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import NotFound

NAME_WHITESPACE = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What peers take off both ends of a name. `str.strip` differs: it also takes control characters."""


NON_ANNOTATION_TYPES = frozenset({"message", "model_change", "thinking_level_change", "compaction", "branch_summary"})
"""Types that are never annotations: nearly all lines."""


class Tree:
    def __init__(self, items: Iterable[Entry | Chain] = ()) -> None:
        self._items: list[Entry | Chain] = []
        self._starts: list[int] = []
        """How many entries stand before each item."""
        self._count = 0
        self._built_entries: dict[int, Entry] = {}
        """Entries of chains that somebody has looked at, by how many stand before them."""
        self._by_id: dict[EntryId, int] = {}
        """How many entries stand before the last one with that id."""
        self._detached: dict[EntryId, None] = {}
        """Entries that name a parent but hang from nothing: orphans, and one member of each cycle."""
        self._missing_parents: set[EntryId | None] = set()
        """Parents that orphans name."""
        self._children: dict[EntryId | None, list[EntryId]] | None = None
        self._real_ancestors: dict[EntryId, EntryId | None] = {}
        """The nearest real entries above annotations, as far as they were asked for."""
        self._labels: dict[EntryId, Entry] = {}
        self._name: str | None = None
        self._must_resolve_parents = False
        self.is_sound = True
        """Whether every entry hangs where it says, and no id stands twice."""
        self.history_changes = 0
        """How often a line changed what others before it mean: by an id that was there, or that they had missed."""
        self.has_been_named = False
        """Whether the session was ever given a name."""
        self._annotations: set[EntryId] = set()
        self._annotation_count = 0
        self.last_annotation: EntryId | None = None
        self.extend(items)

    def add(self, entry: Entry) -> None:
        """Index `entry`, whatever it says."""
        by_id, id, parent, at = self._by_id, entry.id, entry.parent, self._count
        if (parent not in by_id or parent == id) and parent is not None:
            self._mark_unsound()
        if by_id.setdefault(id, at) != at or id in self._missing_parents:
            self._mark_unsound()
            self.history_changes += 1
            by_id[id] = at
        if entry.type not in NON_ANNOTATION_TYPES and entry.is_annotation:
            self._annotations.add(id)
            self._annotation_count += 1
            self.last_annotation = id
            self._index_annotation(entry)
        self._items.append(entry)
        self._starts.append(at)
        if self._children is not None:
            self._children.setdefault(parent, []).append(id)
        self._count = at + 1

    def try_append_message(self, entry: Entry) -> bool:
        """`add` for a message below another entry; `False` if there is more to it: nothing is done then."""
        by_id, at = self._by_id, self._count
        if not self.is_sound or entry.parent not in by_id or by_id.setdefault(entry.id, at) != at:
            return False
        self._items.append(entry)
        self._starts.append(at)
        if self._children is not None:
            self._children.setdefault(entry.parent, []).append(entry.id)
        self._count = at + 1
        return True

    def extend(self, items: Iterable[Entry | Chain]) -> None:
        """Index entries, in the order of the file."""
        by_id, missing, children = self._by_id, self._missing_parents, self._children
        for item in items:
            if not isinstance(item, Chain):
                self.add(item)
                continue
            ids, parent, at = item.ids, item.parent, self._count
            known = len(by_id)
            if parent is not None and parent not in by_id:
                self._mark_unsound()
            by_id.update(zip(ids, range(at, at + len(ids)), strict=True))
            if len(by_id) - known < len(ids) or (missing and not missing.isdisjoint(ids)):
                self._mark_unsound()
                self.history_changes += 1
            self._items.append(item)
            self._starts.append(at)
            if children is not None:
                for entry_id, above in _iter_item_links(item):
                    children.setdefault(above, []).append(entry_id)
            self._count = at + len(ids)

    @property
    def count(self) -> int:
        """How many entries were added, those shadowed by a later one with the same id included."""
        return self._count

    @property
    def real_count(self) -> int:
        """How many entries are no annotations."""
        return self._count - self._annotation_count

    @property
    def items(self) -> list[Entry | Chain]:
        """What was added, in file order."""
        return self._items

    @property
    def entries(self) -> EntrySequence:
        """Every entry ever added, in file order, those shadowed by a later one with the same id included."""
        return EntrySequence(self, 0, self._count)

    def get_entry_at(self, index: int) -> Entry:
        """The entry that stands behind `index` others in the file."""
        made = self._built_entries.get(index)
        if made is None:
            item, offset = self._find_item(index)
            if not isinstance(item, Chain):
                return item
            made = self._built_entries[index] = item.build_entry(offset)
        return made

    def get_entries_from(self, index: int) -> EntrySequence:
        """The entries behind `index` others, as far as there are some now."""
        return EntrySequence(self, index, self._count)

    def iter_entries(self, start: int, stop: int) -> Iterator[Entry]:
        """What `entries` holds between two places, one after another."""
        place = bisect_right(self._starts, start) - 1
        while start < stop:
            item, first = self._items[place], self._starts[place]
            if isinstance(item, Chain):
                end = min(first + len(item), stop)
                yield from self._iter_chain_entries(item, first, range(start, end))
                start = end
            else:
                yield item
                start += 1
            place += 1

    def _iter_chain_entries(self, chain: Chain, start: int, indices: Iterable[int]) -> Iterator[Entry]:
        """Entries of a chain that stands behind `start` others."""
        made = self._built_entries
        for index in indices:
            entry = made.get(index)
            if entry is None:
                entry = made[index] = chain.build_entry(index - start)
            yield entry

    def _find_item(self, index: int) -> tuple[Entry | Chain, int]:
        place = bisect_right(self._starts, index) - 1
        return self._items[place], index - self._starts[place]

    def _index_annotation(self, entry: Entry) -> None:
        if entry.type == "label" and isinstance(entry.body, Label):
            if entry.body.text:
                self._labels[entry.body.target] = entry
            else:
                self._labels.pop(entry.body.target, None)
        elif entry.type == "session_info" and isinstance(entry.body, SessionInfo):
            self.has_been_named = True
            self._name = (entry.body.name or "").strip(NAME_WHITESPACE) or None

    def _mark_unsound(self) -> None:
        self.is_sound, self._must_resolve_parents = False, True

    def _resolve_parents(self) -> None:
        """Settle where entries hang that named no earlier entry as their parent."""
        parents = {
            id: parent for item in self._items for id, parent in _iter_item_links(item)
        }  # of one id the last counts
        cut: dict[EntryId, None] = {
            id: None for id, parent in parents.items() if parent is not None and (parent not in parents or parent == id)
        }
        missing = {parents[id] for id in cut}
        settled: set[EntryId] = set(cut)
        for start in parents:
            walk: dict[EntryId, None] = {}
            id: EntryId | None = start
            while id is not None and id not in settled and id not in walk:
                walk[id] = None
                id = parents[id]
            if id is not None and id in walk:
                trail = list(walk)
                cycle = trail[trail.index(id) :]
                cut[min(cycle, key=self._by_id.__getitem__)] = None
            settled.update(walk)
        self._detached, self._missing_parents, self._children, self._real_ancestors = cut, missing, None, {}
        self.is_sound = not cut and len(self._by_id) == self._count
        self._must_resolve_parents = False  # last: whoever is interrupted before does it all again

    # Looking up

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def __iter__(self) -> Iterator[Entry]:
        """The entries that count, in file order."""
        if len(self._by_id) == self._count:
            return iter(self.entries)
        return map(self.get_entry_at, sorted(self._by_id.values()))

    def iter_ids(self) -> Iterable[EntryId]:
        """The ids of the entries that count, in file order."""
        if len(self._by_id) == self._count:
            return self._by_id
        return sorted(self._by_id, key=self._by_id.__getitem__)

    def __getitem__(self, id: EntryId) -> Entry:
        return self.get_entry_at(self._get_index(id))

    def peek(self, id: EntryId) -> Entry:
        """The entry `id`, not kept where it has to be made: for those who look at every entry once."""
        index = self._get_index(id)
        made = self._built_entries.get(index)
        if made is None:
            item, offset = self._find_item(index)
            made = item.build_entry(offset) if isinstance(item, Chain) else item
        return made

    def _get_index(self, id: EntryId) -> int:
        try:
            return self._by_id[id]
        except KeyError:
            raise NotFound("entry", id) from None

    def is_before(self, id: EntryId | None, other: EntryId) -> bool:
        """Whether `id` is an entry whose line is before that of `other`."""
        return id is not None and self._by_id.get(id, self._count) < self._get_index(other)

    def find_by_prefix(self, prefix: str) -> list[EntryId]:
        """Ids that start with `prefix`, in file order."""
        return [id for id in self.iter_ids() if id.startswith(prefix)]

    def label(self, id: EntryId) -> str | None:
        entry = self._labels.get(id)
        return entry.body.text if entry is not None and isinstance(entry.body, Label) else None

    @property
    def labels(self) -> dict[EntryId, str]:
        """Live labels by the entry they are on, in the order those were first labeled."""
        return {target: text for target in self._labels if (text := self.label(target))}

    def get_label_entry(self, id: EntryId) -> Entry | None:
        """The entry that set the live label of `id`."""
        return self._labels.get(id)

    @property
    def name(self) -> str | None:
        """The session's name: the last one that was set, in file order."""
        return self._name

    # Shape

    def parent(self, id: EntryId) -> EntryId | None:
        """Where `id` hangs: its parent, or `None` for a root."""
        if self._must_resolve_parents:
            self._resolve_parents()
        return None if id in self._detached else self._get_written_parent(id)

    def _get_written_parent(self, id: EntryId) -> EntryId | None:
        item, offset = self._find_item(self._get_index(id))
        return item.get_parent(offset) if isinstance(item, Chain) else item.parent

    def children(self, id: EntryId | None) -> list[Entry]:
        """Entries right below `id`, oldest first; below `None` are the roots."""
        return [self[child] for child in self.get_child_ids(id)]

    def get_child_ids(self, id: EntryId | None) -> list[EntryId]:
        if self._must_resolve_parents:
            self._resolve_parents()
        if self._children is None:
            children: dict[EntryId | None, list[EntryId]] = {}
            for child, parent in self._iter_links():
                children.setdefault(parent, []).append(child)
            self._children = children  # when it is whole: whoever is interrupted before makes it again
        ids = self._children.get(id, [])
        return self._sort_oldest_first(ids) if len(ids) > 1 else ids

    def _iter_links(self) -> Iterator[tuple[EntryId, EntryId | None]]:
        """Every entry that counts with where it hangs, in file order."""
        if self.is_sound:
            for item in self._items:
                yield from _iter_item_links(item)
        else:
            for id in self.iter_ids():
                yield id, None if id in self._detached else self._get_written_parent(id)

    def _sort_oldest_first(self, ids: list[EntryId]) -> list[EntryId]:
        entries = [self.peek(id) for id in ids]
        ages = {
            entry.id: (parse_timestamp(entry.source.decode_timestamp(raw)) or 0, entry.line)
            for entry, raw in zip(entries, read_raws(entries), strict=True)
        }
        return sorted(ids, key=ages.__getitem__)

    def roots(self) -> list[Entry]:
        return self.children(None)

    def walk_up(self, id: EntryId | None) -> Iterator[Entry]:
        """The entries from `id` to its root."""
        while id is not None:
            index = self._get_index(id)
            item, offset = self._find_item(index)
            if isinstance(item, Chain) and self.is_sound:
                start = index - offset
                yield from self._iter_chain_entries(item, start, range(index, start - 1, -1))
                id = item.parent
            else:
                entry = self.get_entry_at(index) if isinstance(item, Chain) else item
                yield entry
                if self._must_resolve_parents:
                    self._resolve_parents()
                id = None if id in self._detached else entry.parent

    def walk_up_ids(self, id: EntryId | None) -> Iterator[EntryId]:
        """What `up` gives, without making an entry of any."""
        while id is not None:
            above = self.parent(id)
            yield id
            id = above

    def path(self, leaf: EntryId | None, *, after: EntryId | None = None) -> list[Entry]:
        """Entries from the root, or from behind `after`, to `leaf`; empty for `None`, the place before everything."""
        path = list(
            self.walk_up(leaf) if after is None else takewhile(lambda entry: entry.id != after, self.walk_up(leaf))
        )
        path.reverse()
        return path

    def measure_paths(self, ids: Iterable[EntryId]) -> dict[EntryId, int]:
        """How many entries are on the path to each of `ids`. What paths have in common is walked once."""
        lengths: dict[EntryId, int] = {}
        for leaf in ids:
            walked: list[tuple[EntryId, int]] = []
            id: EntryId | None = leaf
            while id is not None and id not in lengths:
                item, offset = self._find_item(self._get_index(id))
                if isinstance(item, Chain) and self.is_sound:
                    walked.append((id, offset + 1))
                    id = item.parent
                else:
                    walked.append((id, 1))
                    id = self.parent(id)
            length = 0 if id is None else lengths[id]
            for id, steps in reversed(walked):
                length += steps
                lengths[id] = length
        return lengths

    def skip_annotations(self, id: EntryId | None) -> EntryId | None:
        """`id`, or the nearest entry above it that is no annotation. What was walked once is not walked again."""
        if id not in self._annotations and id in self._by_id:  # nearly always
            return id
        walked: list[EntryId] = []
        while id is not None:
            item, _ = self._find_item(self._get_index(id))
            if isinstance(item, Chain) or not item.is_annotation:
                break
            above = self.parent(id)
            if id in self._real_ancestors:
                id = self._real_ancestors[id]
                break
            walked.append(id)
            id = above
        if walked:
            self._real_ancestors.update(dict.fromkeys(walked, id))
        return id

    def find_common_ancestor(self, *ids: EntryId | None) -> EntryId | None:
        """The deepest entry on the paths of all `ids`, or `None` if they share nothing."""
        first, *others = ids
        paths = [{entry.id for entry in self.walk_up(other)} for other in others]
        return next((entry.id for entry in self.walk_up(first) if all(entry.id in path for path in paths)), None)

    def find_abandoned(self, old: EntryId | None, new: EntryId | None) -> list[Entry]:
        """What leaves the path, oldest first, when the leaf moves from `old` to `new`."""
        return self.path(old, after=self.find_common_ancestor(old, new))

    def walk(self, active: EntryId | None = None) -> Iterator[tuple[Entry, int]]:
        """Every entry with its depth, depth first, oldest child first but the way to `active` before all."""
        for id, depth in self.walk_ids(active):
            yield self[id], depth

    def walk_ids(self, active: EntryId | None = None) -> Iterator[tuple[EntryId, int]]:
        """What `walk` gives, without making an entry of any."""
        on_path = set(self.walk_up_ids(active))
        waiting = [(id, 0) for id in reversed(self._sort_active_first(None, on_path))]
        while waiting:
            id, depth = waiting.pop()
            yield id, depth
            waiting.extend((child, depth + 1) for child in reversed(self._sort_active_first(id, on_path)))

    def _sort_active_first(self, id: EntryId | None, on_path: set[EntryId]) -> list[EntryId]:
        ids = self.get_child_ids(id)
        return ids if len(ids) < 2 else sorted(ids, key=lambda child: child not in on_path)


class EntrySequence(Sequence[Entry]):
    """Entries of a tree in file order, each made when it is looked at."""

    def __init__(self, tree: Tree, start: int, stop: int) -> None:
        self._tree = tree
        self._indices = range(start, stop)

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[Entry]:
        return self._tree.iter_entries(self._indices.start, self._indices.stop)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        places = self._indices[index]
        return (
            self._tree.get_entry_at(places) if isinstance(places, int) else list(map(self._tree.get_entry_at, places))
        )

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"  # they may be millions


def _iter_item_links(item: Entry | Chain) -> Iterable[tuple[EntryId, EntryId | None]]:
    """Every entry of an item with its parent as written."""
    if isinstance(item, Chain):
        return zip(item.ids, [item.parent, *item.ids[:-1]], strict=True)
    return ((item.id, item.parent),)
