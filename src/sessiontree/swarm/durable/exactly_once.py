"""A session in which nothing is written twice, though two processes may do the same piece of work.

The id of an entry follows from the work, the place where it goes and what it says. A worker that was taken for dead and
comes back finds what its successor has written of the same answer, and adds nothing. So does one that lost the
database's answer to a write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

import msgspec
from msgspec import UNSET, UnsetType

from sessiontree.core.entries import Body, Entry, EntryId, JsonObject
from sessiontree.errors import BranchMoved, InvalidOperation, OutcomeUnknown
from sessiontree.library import catalog
from sessiontree.session import NewEntry, Place, Session
from sessiontree.store.base import Store


class IdempotentSession(Session):
    def __init__(self, store: Store, work: str, check: Callable[[], object] = lambda: None) -> None:
        """For a piece of work, by its id. `check` is called before anything is written."""
        super().__init__(store)
        self._job_id = work
        self._before_write = check

    @classmethod
    def open_at(cls, where: str, work: str, check: Callable[[], object]) -> IdempotentSession:
        """The session at a path or an address."""
        return cls(catalog.get_store(catalog.find(where)), work, check)

    def append(
        self,
        body: Body,
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        extra: JsonObject | None = None,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Entry:
        return self.extend([NewEntry(body, extra)], parent=parent, branch=branch, expected=expected)[0]

    def extend(
        self,
        bodies: Iterable[Body | NewEntry],
        *,
        parent: Place | UnsetType = UNSET,
        branch: str | UnsetType | None = UNSET,
        expected: EntryId | UnsetType | None = UNSET,
    ) -> Sequence[Entry]:
        with self.hold_lock():
            items = self._assign_ids(bodies, self._resolve_parent(parent, branch, expected))
            there = self._find_written_items(items)
            if there is not None:
                return there
            self._before_write()
            try:
                return super().extend(items, parent=parent, branch=branch, expected=expected)
            except (BranchMoved, InvalidOperation, OutcomeUnknown):
                self.refresh()
                there = self._find_written_items(items)
                if there is None:
                    raise
                return there

    def _resolve_parent(
        self, parent: Place | UnsetType, branch: str | UnsetType | None, expected: EntryId | UnsetType | None
    ) -> EntryId | None:
        """Where the first entry goes, as far as the writer knows."""
        if not isinstance(parent, UnsetType):
            return self.resolve_place(parent)
        if not isinstance(expected, UnsetType):
            return expected
        return self.heads.heads.get(branch) if isinstance(branch, str) else self.heads.leaf

    def _assign_ids(self, bodies: Iterable[Body | NewEntry], place: EntryId | None) -> list[NewEntry]:
        items = [body if isinstance(body, NewEntry) else NewEntry(body) for body in bodies]
        named: list[NewEntry] = []
        for item in items:
            said = msgspec.json.encode([item.body, item.extra], order="deterministic", enc_hook=str)
            place = item.id or sha256(f"{self._job_id}\0{place}\0".encode() + said).hexdigest()[:16]
            named.append(item._replace(id=place))
        return named

    def _find_written_items(self, items: Sequence[NewEntry]) -> list[Entry] | None:
        """These entries, where they have been written before: all were, or none."""
        found = [self.tree[item.id] for item in items if item.id is not None and item.id in self.tree]
        return found if items and len(found) == len(items) else None
