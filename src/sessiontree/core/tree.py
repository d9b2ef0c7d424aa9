"""The tree: an index of entries by id, parent and position.

It is pure, synchronous and never recurses. A `Tree` only grows. Any input gives a valid tree: if several entries share
an id, the last one counts; an entry whose parent is missing is a root; in a cycle, the member that comes first in the
file is a root. `core.problems` lists such faults. Heads and branches are in `core.heads`; what reaches a model is in
`core.context`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, pairwise, takewhile
from typing import Protocol, TypeAlias, overload

from msgspec import Struct

from sessiontree.core.entries import Chain, Entry, EntryId, Label, SessionInfo, read_raws
from sessiontree.core.timestamps import parse_timestamp
from sessiontree.errors import NotFound

NAME_WHITESPACE = (
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""The characters that peers strip from both ends of a name. `str.strip` also strips control characters."""


NON_ANNOTATION_TYPES = frozenset({"message", "model_change", "thinking_level_change", "compaction", "branch_summary"})
"""Types that are never annotations: nearly all lines."""


MAX_SORTED = 16
"""The order of at most this many siblings is cached."""


class EarlierEntries(Protocol):
    """The entries before a partial tree, which has only the end of a file."""

    def has_entry(self, id: EntryId) -> bool:
        """Return whether an entry is in the file before the entries of the tree. The tree may grow."""
        ...

    def load_to(self, id: EntryId | None) -> None:
        """Add earlier entries to the tree with `prepend`, at least from `id` on; all if it is `None` or not found."""
        ...

    def load_more(self) -> None:
        """Add some earlier entries to the tree with `prepend`."""
        ...


class Span(Struct, frozen=True, gc=False):
    """Consecutive entries of an item in a walk. Each is the only child of the one before."""

    item: Entry | Chain
    start: int
    stop: int
    depth: int
    """The depth of the first entry."""
    first: int
    """The index of the first entry in file order."""

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def ids(self) -> Sequence[EntryId]:
        return self.item.ids[self.start : self.stop] if isinstance(self.item, Chain) else (self.item.id,)

    @property
    def parent(self) -> EntryId | None:
        """The parent of the first entry as written."""
        return self.item.get_parent(self.start) if isinstance(self.item, Chain) else self.item.parent

    def cut(self, start: int, stop: int) -> Span:
        """Return a part of the span, given by two offsets in it."""
        at = self.start
        return Span(self.item, at + start, at + stop, self.depth + start, self.first + start)

    def split(self, size: int) -> Iterator[Span]:
        """Yield the span in parts of at most `size` entries."""
        for start in range(0, len(self), size):
            yield self.cut(start, min(start + size, len(self)))

    def iter_entries(self) -> Iterator[Entry]:
        """Yield the entries without caching them."""
        item = self.item
        return item.build_entries(self.start, self.stop) if isinstance(item, Chain) else iter((item,))


class ForkIndex(Struct, frozen=True):
    """Where items hang in a sound tree, sorted by parent. It takes 16 bytes for each item."""

    size: int
    """The number of entries when this was built."""
    parents: array[int]
    """The index of the parent of each item; `root` above roots."""
    firsts: array[int]
    """The index of the first entry of each item."""
    root: int
    """An index before that of all entries."""


class Tree:
    """The entries of a session, or those at its end until a query needs earlier ones.

    A partial tree answers questions about paths as the whole tree does. If its own lines cannot show that, because
    they repeat an id or name a later parent, `needs_whole` is set and the owner must load the rest.
    """

    needs_whole = False
    """Whether a partial tree cannot answer without the entries before it."""

    def __init__(
        self, items: Iterable[Entry | Chain] = (), *, first: int = 0, earlier: EarlierEntries | None = None
    ) -> None:
        """Index entries. `first` is the index of the first one, and `earlier` has those before it."""
        self._earlier = earlier
        self._first = first
        self._items: list[Entry | Chain] = []
        self._starts: list[int] = []
        """The index of the first entry of each item."""
        self._table = self._items, self._starts
        """Both, as one value: another thread may be prepending."""
        self._count = first
        """The index after the last entry. An entry keeps its index when earlier ones are prepended."""
        self._built_entries: dict[int, Entry] = {}
        """Entries of chains that were accessed, by their index."""
        self._by_id: dict[EntryId, int] = {}
        """The index of the last entry with each id."""
        self._detached: dict[EntryId, None] = {}
        """Entries that name a parent but have none: orphans, and one member of each cycle."""
        self._missing_parents: set[EntryId | None] = set()
        """Ids of the parents that orphans name."""
        self._children: dict[EntryId | None, list[EntryId]] | None = None
        self._forks: ForkIndex | None = None
        self._sorted_siblings: dict[tuple[int, ...], tuple[int, ...]] = {}
        """The order of siblings by time, for walks that start again: it takes reading their lines."""
        self._real_ancestors: dict[EntryId, EntryId | None] = {}
        """The nearest entry above each annotation that is not an annotation, cached on access."""
        self._labels: dict[EntryId, Entry] = {}
        self._name: str | None = None
        self._must_resolve_parents = False
        self.is_sound = True
        """Whether every parent exists, is an earlier line, and no id occurs twice."""
        self.history_changes = 0
        """How often a new line changed the meaning of earlier ones, by a duplicate id or by an id that orphans name."""
        self._has_been_named = False
        self._annotations: set[EntryId] = set()
        self._annotation_count = 0
        self._last_annotation: EntryId | None = None
        self.extend(items)

    def add(self, entry: Entry) -> None:
        """Index one entry."""
        by_id, id, parent, at = self._by_id, entry.id, entry.parent, self._count
        if (parent not in by_id or parent == id) and parent is not None:
            self._note_missing_parent(parent, id)
        if by_id.setdefault(id, at) != at or id in self._missing_parents:
            self._mark_unsound()
            self.history_changes += 1
            by_id[id] = at
        if entry.type not in NON_ANNOTATION_TYPES and entry.is_annotation:
            self._annotations.add(id)
            self._annotation_count += 1
            self._last_annotation = id
            self._index_annotation(entry)
        self._items.append(entry)
        self._starts.append(at)
        if self._children is not None:
            self._children.setdefault(parent, []).append(id)
        self._count = at + 1

    def try_append_message(self, entry: Entry) -> bool:
        """Index a message whose parent is known. Return `False`, without a change, if `add` is needed."""
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
        """Index entries, in file order."""
        by_id, missing, children = self._by_id, self._missing_parents, self._children
        for item in items:
            if not isinstance(item, Chain):
                self.add(item)
                continue
            ids, parent, at = item.ids, item.parent, self._count
            known = len(by_id)
            if parent is not None and parent not in by_id:
                self._note_missing_parent(parent, ids[0])
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

    def prepend(self, items: Sequence[Entry | Chain], earlier: EarlierEntries | None) -> None:
        """Add the entries before a partial tree. `earlier` has the entries before these."""
        first = self._first - sum(len(item) if isinstance(item, Chain) else 1 for item in items)
        tree = Tree(items, first=first, earlier=earlier)
        tree.extend(self._items)
        tree._built_entries.update(self._built_entries)
        tree.history_changes += self.history_changes
        self.__dict__.update(tree.__dict__)

    @property
    def table(self) -> tuple[list[Entry | Chain], list[int]]:
        """The entries and chains in the tree, and the position of the first entry of each."""
        return self._table

    @property
    def is_partial(self) -> bool:
        """Whether entries before the first one are not loaded."""
        return self._earlier is not None

    def load(self) -> None:
        """Load all entries before a partial tree."""
        if self._earlier is not None:
            self._earlier.load_to(None)

    def load_more(self) -> None:
        """Load a block of the entries before a partial tree."""
        if self._earlier is not None:
            self._earlier.load_more()

    def has_loaded(self, id: EntryId) -> bool:
        """Return whether an entry is in the tree, without loading earlier ones."""
        return id in self._by_id

    @property
    def loaded_items(self) -> list[Entry | Chain]:
        """The entries and chains in the tree, without loading earlier ones."""
        return self._items

    @property
    def end(self) -> int:
        """The position after the last entry, for `get_entries_since`."""
        return self._count

    def get_entries_since(self, position: int) -> EntrySequence:
        """Return the entries from a position, an earlier `end`, to the current end."""
        return EntrySequence(self, position, self._count)

    @property
    def last_entry(self) -> Entry | None:
        """The last entry in file order."""
        return self.get_at_position(self._count - 1) if self._count > self._first else None

    @property
    def count(self) -> int:
        """The number of entries added, including entries shadowed by a later one with the same id."""
        self.load()
        return self._count - self._first

    @property
    def real_count(self) -> int:
        """The number of entries that are not annotations."""
        return self.count - self._annotation_count

    @property
    def has_real_entries(self) -> bool:
        """Whether any entry is not an annotation."""
        return self._count - self._first > self._annotation_count or (self._earlier is not None and self.real_count > 0)

    @property
    def last_annotation(self) -> EntryId | None:
        """The last annotation in file order."""
        if self._last_annotation is None:
            self.load()
        return self._last_annotation

    @property
    def has_been_named(self) -> bool:
        """Whether an entry ever set or cleared the name of the session."""
        if not self._has_been_named:
            self.load()
        return self._has_been_named

    @property
    def items(self) -> list[Entry | Chain]:
        """The entries and chains added, in file order."""
        self.load()
        return self._items

    @property
    def entries(self) -> EntrySequence:
        """Every entry added, in file order, including entries shadowed by a later one with the same id."""
        self.load()
        return EntrySequence(self, self._first, self._count)

    def get_entry_at(self, index: int) -> Entry:
        """Return the entry at `index` in file order."""
        self.load()
        return self.get_at_position(self._first + index)

    def get_at_position(self, index: int) -> Entry:
        """Return the entry at a position, counted as `end` is."""
        entry = self._built_entries.get(index)
        if entry is None:
            item, offset = self._find_item(index)
            if not isinstance(item, Chain):
                return item
            entry = self._built_entries[index] = item.build_entry(offset)
        return entry

    def get_entries_from(self, index: int) -> EntrySequence:
        """Return the entries from `index` to the current end."""
        self.load()
        return EntrySequence(self, self._first + index, self._count)

    def iter_entries(self, start: int, stop: int) -> Iterator[Entry]:
        """Yield the entries between two indices."""
        items, starts = self._table
        place = bisect_right(starts, start) - 1
        while start < stop:
            item, first = items[place], starts[place]
            if isinstance(item, Chain):
                end = min(first + len(item), stop)
                yield from self._iter_chain_entries(item, first, range(start, end))
                start = end
            else:
                yield item
                start += 1
            place += 1

    def _iter_chain_entries(self, chain: Chain, start: int, indices: Iterable[int]) -> Iterator[Entry]:
        """Yield entries of a chain whose first entry has the index `start`."""
        built = self._built_entries
        for index in indices:
            entry = built.get(index)
            if entry is None:
                entry = built[index] = chain.build_entry(index - start)
            yield entry

    def _find_item(self, index: int) -> tuple[Entry | Chain, int]:
        items, starts = self._table
        place = bisect_right(starts, index) - 1
        return items[place], index - starts[place]

    def _index_annotation(self, entry: Entry) -> None:
        if entry.type == "label" and isinstance(entry.body, Label):
            if entry.body.text:
                self._labels[entry.body.target] = entry
            else:
                self._labels.pop(entry.body.target, None)
        elif entry.type == "session_info" and isinstance(entry.body, SessionInfo):
            self._has_been_named = True
            self._name = (entry.body.name or "").strip(NAME_WHITESPACE) or None

    def _mark_unsound(self) -> None:
        if self._earlier is not None:
            self.needs_whole = True
        else:
            self.is_sound, self._must_resolve_parents = False, True

    def _note_missing_parent(self, parent: EntryId, id: EntryId) -> None:
        if self._earlier is not None and parent != id:
            self._missing_parents.add(parent)  # it is before these entries, unless it comes later
        else:
            self._mark_unsound()

    def _resolve_parents(self) -> None:
        """Find the entries that have no valid parent: orphans, and one member of each cycle."""
        parents = {
            id: parent for item in self._items for id, parent in _iter_item_links(item)
        }  # the last entry with an id counts
        detached: dict[EntryId, None] = {
            id: None for id, parent in parents.items() if parent is not None and (parent not in parents or parent == id)
        }
        missing = {parents[id] for id in detached}
        resolved: set[EntryId] = set(detached)
        for start in parents:
            walk: dict[EntryId, None] = {}
            id: EntryId | None = start
            while id is not None and id not in resolved and id not in walk:
                walk[id] = None
                id = parents[id]
            if id is not None and id in walk:
                trail = list(walk)
                cycle = trail[trail.index(id) :]
                detached[min(cycle, key=self._by_id.__getitem__)] = None
            resolved.update(walk)
        self._detached, self._missing_parents, self._children, self._real_ancestors = detached, missing, None, {}
        self.is_sound = not detached and len(self._by_id) == self._count - self._first
        self._must_resolve_parents = False  # last, so an interrupt before this line repeats the work

    def __repr__(self) -> str:
        return f"<Tree of {len(self)} {'entry' if len(self) == 1 else 'entries'}>"

    def __str__(self) -> str:
        """Draw the tree, as `sessiontree tree` does without a session's branches."""
        from sessiontree.core.outline import format_tree  # cycle: an outline is a drawing of a tree

        return format_tree(self)

    # Lookup

    def __len__(self) -> int:
        self.load()
        return len(self._by_id)

    def __contains__(self, id: object) -> bool:
        return id in self._by_id or (self._earlier is not None and isinstance(id, str) and self._earlier.has_entry(id))

    def __iter__(self) -> Iterator[Entry]:
        """The effective entries in file order, without shadowed ones."""
        if self.count == len(self._by_id):
            return iter(self.entries)
        return map(self.get_at_position, sorted(self._by_id.values()))

    def iter_ids(self) -> Iterable[EntryId]:
        """The ids of the effective entries, in file order."""
        if self.count == len(self._by_id):
            return self._by_id
        return sorted(self._by_id, key=self._by_id.__getitem__)

    def __getitem__(self, id: EntryId) -> Entry:
        return self.get_at_position(self.get_index(id))

    def peek(self, id: EntryId) -> Entry:
        """Return the entry `id` without caching it. Use this to visit each entry once."""
        return self._build_entry_at(self.get_index(id))

    def _build_entry_at(self, index: int) -> Entry:
        entry = self._built_entries.get(index)
        if entry is None:
            item, offset = self._find_item(index)
            entry = item.build_entry(offset) if isinstance(item, Chain) else item
        return entry

    def get_index(self, id: EntryId) -> int:
        """Return the position of the entry `id`, counted as `end` is. Raises `NotFound`."""
        index = self._by_id.get(id)
        if index is None and self._earlier is not None:
            self._earlier.load_to(id)
            index = self._by_id.get(id)
        if index is None:
            raise NotFound("entry", id)
        return index

    def is_before(self, id: EntryId | None, other: EntryId) -> bool:
        """Return whether `id` is an entry on an earlier line than `other`."""
        self.load()
        return id is not None and self._by_id.get(id, self._count) < self.get_index(other)

    def find_by_prefix(self, prefix: str) -> list[EntryId]:
        """Return the ids that start with `prefix`, in file order."""
        return [id for id in self.iter_ids() if id.startswith(prefix)]

    def label(self, id: EntryId) -> str | None:
        entry = self.get_label_entry(id)
        return entry.body.text if entry is not None and isinstance(entry.body, Label) else None

    @property
    def labels(self) -> dict[EntryId, str]:
        """Current labels by entry id, in the order the entries were first labeled."""
        self.load()
        return {target: text for target in self._labels if (text := self.label(target))}

    def get_label_entry(self, id: EntryId) -> Entry | None:
        """Return the entry that set the current label of `id`."""
        if id not in self._labels:
            self.load()
        return self._labels.get(id)

    @property
    def name(self) -> str | None:
        """The session's name: the last one set, in file order."""
        if not self._has_been_named:
            self.load()
        return self._name

    # Shape

    def parent(self, id: EntryId) -> EntryId | None:
        """Return the effective parent of `id`, or `None` for a root."""
        return self._find_parent(id, self._get_written_parent(id))

    def _find_parent(self, id: EntryId, written: EntryId | None) -> EntryId | None:
        """Return the effective parent of `id`, given the parent that its line names."""
        if self._earlier is not None and written is not None and written not in self._by_id:
            self._earlier.load_to(written)
        if self._must_resolve_parents:
            self._resolve_parents()
        return None if id in self._detached else written

    def _get_written_parent(self, id: EntryId) -> EntryId | None:
        item, offset = self._find_item(self.get_index(id))
        return item.get_parent(offset) if isinstance(item, Chain) else item.parent

    def children(self, id: EntryId | None) -> list[Entry]:
        """Return the entries directly below `id`, oldest first; below `None` are the roots."""
        return [self[child] for child in self.get_child_ids(id)]

    def get_child_ids(self, id: EntryId | None) -> list[EntryId]:
        self.load()
        if self._must_resolve_parents:
            self._resolve_parents()
        if self._children is None:
            children: dict[EntryId | None, list[EntryId]] = {}
            for child, parent in self._iter_links():
                children.setdefault(parent, []).append(child)
            self._children = children  # assigned when complete, so an interrupt repeats the work
        ids = self._children.get(id, [])
        if len(ids) < 2:
            return ids
        indices = self.sort_oldest_first([self._by_id[child] for child in ids])
        return [self._build_entry_at(index).id for index in indices]

    def _iter_links(self) -> Iterator[tuple[EntryId, EntryId | None]]:
        """Yield every effective entry with its effective parent, in file order."""
        if self.is_sound:
            for item in self._items:
                yield from _iter_item_links(item)
        else:
            for id in self.iter_ids():
                yield id, None if id in self._detached else self._get_written_parent(id)

    def sort_oldest_first(self, indices: list[int]) -> list[int]:
        """Sort indices of entries, given in file order, by time. The order of few entries is cached."""
        if len(indices) > MAX_SORTED:
            return self._sort_by_time(indices)
        key = tuple(indices)
        if key not in self._sorted_siblings:
            self._sorted_siblings[key] = tuple(self._sort_by_time(indices))
        return list(self._sorted_siblings[key])

    def _sort_by_time(self, indices: list[int]) -> list[int]:
        entries = [self._build_entry_at(index) for index in indices]
        ages = [
            parse_timestamp(entry.source.decode_timestamp(raw)) or 0
            for entry, raw in zip(entries, read_raws(entries), strict=True)
        ]
        if all(age <= later for age, later in pairwise(ages)):  # the common case
            return indices
        return [index for _, index in sorted(zip(ages, indices, strict=True))]

    def roots(self) -> list[Entry]:
        return self.children(None)

    def find_leaves(self, last: int | None = None) -> list[EntryId]:
        """Return the entries that no other continues, in file order. Annotations do not count.

        With `last`, these are the ones among the last entries that none of these continues, and no others are loaded.
        """
        if last is None or not self.has_more_than(last):
            self.load()
            last = self._count - self._first
        if self._must_resolve_parents:
            self._resolve_parents()
        start = self._count - last
        continued: set[EntryId | None] = set()
        ends: list[EntryId] = []
        for id, parent in self._iter_ends(start) if self.is_sound else self._iter_links():
            is_recent = self._by_id[id] >= start
            if is_recent and (id not in self._annotations or (not self.is_sound and self.skip_annotations(id) == id)):
                ends.append(id)
                if parent in self._by_id:  # others are before the entries that are wanted
                    continued.add(self.skip_annotations(parent))
        return [id for id in ends if id not in continued]

    def _iter_ends(self, start: int) -> Iterator[tuple[EntryId, EntryId | None]]:
        """Yield the last entry of each item from an index on, and the parent of its first entry.

        Within a chain, every entry but the last is continued by the next one.
        """
        first = max(0, bisect_right(self._starts, start) - 1)
        for item, at in zip(self._items[first:], self._starts[first:], strict=True):
            yield item.ids[-1] if isinstance(item, Chain) else item.id, item.parent if at >= start else None

    def has_more_than(self, count: int) -> bool:
        """Return whether there are more than `count` entries. Loads no more than it takes to know."""
        while self._earlier is not None and self._count - self._first <= count:
            self._earlier.load_more()
        return self._count - self._first > count

    def walk_up(self, id: EntryId | None) -> Iterator[Entry]:
        """Yield the entries from `id` up to its root."""
        while id is not None:
            index = self.get_index(id)
            item, offset = self._find_item(index)
            if isinstance(item, Chain) and self.is_sound:
                start = index - offset
                yield from self._iter_chain_entries(item, start, range(index, start - 1, -1))
                id = self._find_parent(item.ids[0], item.parent)
            else:
                entry = self.get_at_position(index) if isinstance(item, Chain) else item
                yield entry
                id = self._find_parent(id, entry.parent)

    def walk_up_ids(self, id: EntryId | None) -> Iterator[EntryId]:
        """Yield the ids from `id` up to its root, without building entries."""
        while id is not None:
            above = self.parent(id)
            yield id
            id = above

    def path(self, leaf: EntryId | None, *, after: EntryId | None = None) -> list[Entry]:
        """Return the entries from the root, or from below `after`, to `leaf`. The path to `None` is empty."""
        path = list(
            self.walk_up(leaf) if after is None else takewhile(lambda entry: entry.id != after, self.walk_up(leaf))
        )
        path.reverse()
        return path

    def measure_paths(self, ids: Iterable[EntryId]) -> dict[EntryId, int]:
        """Return the number of entries on the path to each of `ids`. Shared parts are walked once."""
        self.load()
        lengths: dict[EntryId, int] = {}
        for leaf in ids:
            walked: list[tuple[EntryId, int]] = []
            id: EntryId | None = leaf
            while id is not None and id not in lengths:
                item, offset = self._find_item(self.get_index(id))
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
        """Return `id`, or the nearest entry above it that is not an annotation. The result is cached."""
        if id not in self._annotations and id in self._by_id:  # the common case
            return id
        walked: list[EntryId] = []
        while id is not None:
            item, _ = self._find_item(self.get_index(id))
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
        """Return the deepest entry on the paths to all `ids`, or `None` if they have no common entry."""
        if None in ids:
            return None
        # All paths are walked up in step. The first entry that all of them reach is the deepest one.
        walks = [self.walk_up_ids(id) for id in ids]
        reached: dict[EntryId, int] = {}
        while walks:
            for walk in walks.copy():
                id = next(walk, None)
                if id is None:
                    walks.remove(walk)
                    continue
                reached[id] = reached.get(id, 0) + 1
                if reached[id] == len(ids):
                    return id
        return None

    def find_abandoned(self, old: EntryId | None, new: EntryId | None) -> list[Entry]:
        """Return the entries that leave the path, oldest first, when the leaf moves from `old` to `new`."""
        return self.path(old, after=self.find_common_ancestor(old, new))

    def walk(self, active: EntryId | None = None) -> Iterator[tuple[Entry, int]]:
        """Yield every entry with its depth, depth first. The path to `active` comes first, then the oldest child."""
        for id, depth in self.walk_ids(active):
            yield self[id], depth

    def walk_ids(self, active: EntryId | None = None) -> Iterator[tuple[EntryId, int]]:
        """Yield the ids and depths that `walk` gives, without building entries."""
        for span in self.walk_spans(active):
            yield from zip(span.ids, count(span.depth))

    def walk_spans(self, active: EntryId | None = None) -> Iterator[Span]:
        """Yield the entries that `walk` gives as runs, which is many times faster for long sessions."""
        walk = SpanWalk(self, active)
        waiting = array("q", reversed(walk.list_below(None)))
        depths = array("q", [0]) * len(waiting)
        while waiting:
            span = walk.get_span(waiting.pop(), depths.pop())
            yield span
            below = walk.list_below(span)
            waiting.extend(reversed(below))
            depths.extend([span.depth + len(span)] * len(below))

    def find_forks(self) -> ForkIndex | None:
        """Return where items hang; `None` if the tree is not sound."""
        self.load()
        if self._must_resolve_parents:
            self._resolve_parents()
        if not self.is_sound:
            return None
        if self._forks is None or self._forks.size != self._count:
            by_id, starts = self._by_id, self._starts
            root = self._first - 1  # positions are negative if earlier entries were prepended
            parents = [root if item.parent is None else by_id[item.parent] for item in self._items]
            order = sorted(range(len(parents)), key=parents.__getitem__)
            self._forks = ForkIndex(
                self._count,
                array("q", map(parents.__getitem__, order)),
                array("q", map(starts.__getitem__, order)),
                root,
            )
        return self._forks


PathMarks: TypeAlias = "array[int] | frozenset[int]"
"""A path: for each item of a sound tree the index of its last entry on the path, or `root`; otherwise all indices."""


class SpanWalk:
    """Finds the spans of a tree one at a time. The path to `active` comes first, then the oldest child."""

    def __init__(self, tree: Tree, active: EntryId | None) -> None:
        self._tree = tree
        self._forks = tree.find_forks()
        self._items, self._starts = tree.table
        self._path = self.mark_path(active)

    def mark_path(self, leaf: EntryId | None) -> PathMarks:
        """Return the path to `leaf` for `is_on_path`."""
        tree = self._tree
        if self._forks is None:
            return frozenset(map(tree.get_index, tree.walk_up_ids(leaf)))
        lasts, id = array("q", [self._forks.root]) * len(self._items), leaf
        while id is not None:
            index = tree.get_index(id)
            place = bisect_right(self._starts, index) - 1
            lasts[place], id = index, self._items[place].parent
        return lasts

    def is_on_path(self, index: int, path: PathMarks | None = None) -> bool:
        """Return whether an entry is on the path to the active entry, or on another path that was marked."""
        path = self._path if path is None else path
        if isinstance(path, frozenset):
            return index in path
        return path[bisect_right(self._starts, index) - 1] >= index

    def get_span(self, index: int, depth: int) -> Span:
        """Return the span that starts with the entry at `index`."""
        place = bisect_right(self._starts, index) - 1
        item, start = self._items[place], self._starts[place]
        if self._forks is None or not isinstance(item, Chain):
            return Span(item, index - start, index - start + 1, depth, index)
        parents = self._forks.parents
        hanging = bisect_left(parents, index)
        end = start + len(item)
        stop = min(parents[hanging] + 1, end) if hanging < len(parents) else end
        return Span(item, index - start, stop - start, depth, index)

    def list_below(self, span: Span | None) -> list[int]:
        """Return the indices where the spans below a span start, in order; below `None` are the roots."""
        if self._forks is None:
            ids = self._tree.get_child_ids(None if span is None else span.ids[-1])
            return self._put_active_first([self._tree.get_index(id) for id in ids])
        last = self._forks.root if span is None else span.first + len(span) - 1
        parents = self._forks.parents
        hanging = bisect_left(parents, last)
        children = list(self._forks.firsts[hanging : bisect_right(parents, last, hanging)])
        if span is not None and isinstance(span.item, Chain) and span.stop < len(span.item):
            children.insert(0, last + 1)  # the next entry of the chain; all others are behind it in the file
        return children if len(children) < 2 else self._put_active_first(self._tree.sort_oldest_first(children))

    def _put_active_first(self, children: list[int]) -> list[int]:
        for at, index in enumerate(children):
            if self.is_on_path(index):
                return [index, *children[:at], *children[at + 1 :]]
        return children


class EntrySequence(Sequence[Entry]):
    """Entries of a tree in file order, built on access."""

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
            self._tree.get_at_position(places)
            if isinstance(places, int)
            else list(map(self._tree.get_at_position, places))
        )

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"  # there can be millions


def _iter_item_links(item: Entry | Chain) -> Iterable[tuple[EntryId, EntryId | None]]:
    """Return every entry of an item with its parent as written."""
    if isinstance(item, Chain):
        return zip(item.ids, [item.parent, *item.ids[:-1]], strict=True)
    return ((item.id, item.parent),)
