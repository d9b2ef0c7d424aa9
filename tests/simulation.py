"""Random histories of a session, and an independent model of the expected state.

The model never reads a line: it gets the actions of each actor, and derives every head from the rules of
`docs/branch.md`. Actors are several writers with a session object each, late
results, and a peer without branches, which starts at the last line and appends.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import sessiontree as st
from sessiontree.core.tree import Tree
from sessiontree.errors import BranchMoved, Conflict, InvalidOperation
from sessiontree.session import Session
from sessiontree.store.base import Store
from sessiontree.store.memory import MemoryStore


class Model:
    """Where every branch is, which is current, and which moves can be undone."""

    def __init__(self) -> None:
        self.heads: dict[str, str | None] = {"main": None}
        self.current = "main"
        self.archived: set[str] = set()
        self.undoable: list[tuple[str, str | None, bool]] = []
        self.line_branch: str | None = "main"

    def state(self) -> tuple[dict[str, str | None], str, set[str]]:
        return dict(self.heads), self.current, set(self.archived)

    def make_current(self, branch: str) -> None:
        if branch != self.current:
            self.undoable.append((self.current, self.heads[self.current], True))
            self.current = branch

    def put(self, branch: str, id: str | None, *, from_head: bool) -> None:
        if branch == self.current and not from_head:
            self.undoable.append((branch, self.heads[branch], False))
        self.heads[branch] = id


class Simulation:
    def __init__(self, *, writers: int = 1, peers: bool = False, store: Callable[[], Store] | None = None) -> None:
        shared = MemoryStore()
        self.open_store = store or (lambda: shared)
        self._ids = (f"{number:016x}" for number in itertools.count(1))
        self._clock = itertools.count(1_700_000_000_000)
        clock: dict[str, Callable[[], int]] = {"now": lambda: next(self._clock)}
        first = Session.create(self.open_store(), id="s", new_id=lambda: next(self._ids), **clock)
        others = [self.reopen() for _ in range(writers - 1)]
        self.writers = [first, *others]
        self.model = Model()
        self.known = [self.model.state() for _ in self.writers]
        """The heads that each writer last saw."""
        self.peers = peers
        self.names = (f"b{number}" for number in itertools.count(1))

    def reopen(self) -> Session:
        return Session(self.open_store(), new_id=lambda: next(self._ids), now=lambda: next(self._clock))

    # Actions. Each takes two random numbers.

    def step(self, action: int, a: int, b: int) -> None:
        actions = [
            self.append, self.append, self.append, self.append_elsewhere, self.late_result, self.annotate,
            self.make_branch, self.switch, self.navigate, self.undo, self.rename, self.archive,
        ]  # fmt: skip
        if self.peers:
            actions += [self.peer, self.peer]
        actions[action % len(actions)](a, b)

    def _writer(self, a: int) -> tuple[int, Session]:
        index = a % len(self.writers)
        return index, self.writers[index]

    def _update_known(self, index: int) -> None:
        self.known[index] = self.model.state()

    def _is_stale(self, index: int, *branches: str) -> bool:
        """Return whether another writer moved one of `branches`."""
        heads = self.known[index][0]
        return any(heads.get(name, "?") != self.model.heads.get(name, "?") for name in branches)

    def _entries(self, index: int) -> list[str]:
        return [entry.id for entry in self.writers[index].tree]

    def _branch(self, index: int, b: int) -> str:
        names = list(self.known[index][0])
        return names[b % len(names)]

    def append(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        branch = self._branch(index, b)
        refused = self._is_stale(index, branch)
        try:
            entry = writer.append(st.user(f"{a} {b}"), branch=branch)
        except (BranchMoved, st.NotFound):
            assert refused
            self._update_known(index)
            return
        assert not refused
        self.model.put(branch, entry.id, from_head=True)
        self.model.line_branch = branch
        self._update_known(index)

    def append_elsewhere(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        places = self._entries(index)
        branch = self._branch(index, a // 7)
        if not places:
            return
        place = places[b % len(places)]
        refused = self._is_stale(index, branch)
        try:
            entry = writer.append(st.user("elsewhere"), parent=place, branch=branch)
        except (BranchMoved, st.NotFound):
            assert refused
            self._update_known(index)
            return
        assert not refused
        continues = writer.tree.skip_annotations(place) == self.model.heads[branch]
        self.model.put(branch, entry.id, from_head=continues)
        self.model.line_branch = branch
        self._update_known(index)

    def late_result(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        places = self._entries(index)
        if places:
            writer.append(st.tool_result("c", "bash", "late"), parent=places[b % len(places)], branch=None)
            self.model.line_branch = None
            self._update_known(index)

    def annotate(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        places = self._entries(index)
        branch = self.known[index][1]
        gone = branch not in self.model.heads
        try:
            if places:
                writer.label(places[b % len(places)], f"label {a}")
            else:
                writer.rename(f"name {a}")
        except st.NotFound:
            assert gone
        else:
            assert not gone
            self.model.line_branch = branch
        self._update_known(index)

    def make_branch(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        places = [None, *self._entries(index)]
        name, current = next(self.names), b % 3 > 0
        writer.refresh()
        branch = writer.create_branch(name, at=places[b % len(places)], current=current)
        self.model.heads[name] = branch.leaf
        if current:
            self.model.make_current(name)
        self.model.line_branch = name
        self._update_known(index)

    def switch(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        writer.refresh()
        self._update_known(index)
        branch = self._branch(index, b)
        writer.switch(branch)
        if branch != self.model.current:
            self.model.make_current(branch)
            self.model.archived.discard(branch)
            self.model.line_branch = branch
        self._update_known(index)

    def navigate(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        places = [None, *self._entries(index)]
        place = places[b % len(places)]
        refused = self._is_stale(index, self.known[index][1]) or self.known[index][1] != self.model.current
        try:
            plan = writer.navigate_sync(place)
        except (BranchMoved, Conflict, st.NotFound):
            assert refused
            self._update_known(index)
            return
        if not plan.is_move:
            return
        assert not refused
        self.model.put(self.model.current, plan.new_leaf, from_head=False)
        self.model.archived.discard(self.model.current)  # a move restores an archived branch
        self.model.line_branch = self.model.current
        self._update_known(index)

    def undo(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        writer.refresh()
        self._update_known(index)
        if not self.model.undoable:
            try:
                writer.undo()
            except InvalidOperation:
                return
            raise AssertionError("there was nothing to undo")
        writer.undo()
        branch, leaf, switched = self.model.undoable.pop()
        self.model.current = branch
        self.model.archived.discard(branch)
        if not switched:
            self.model.heads[branch] = leaf
        self.model.line_branch = branch
        self._update_known(index)

    def rename(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        model, (known, _, _) = self.model, self.known[index]
        old, new = self._branch(index, b), next(self.names)
        if b % 5 == 0:  # a name that is or was in use
            new = sorted({*known, *model.heads})[a % len({*known, *model.heads})]
        refused = new in known or new in model.heads
        gone = old not in model.heads
        if self._is_refused(index, lambda: writer.rename_branch(old, new)):
            assert refused or gone
            return
        assert not refused
        assert not gone
        model.heads = {new if name == old else name: head for name, head in model.heads.items()}
        model.archived = {new if name == old else name for name in model.archived}
        model.undoable = [(new if name == old else name, leaf, switched) for name, leaf, switched in model.undoable]
        model.current = new if model.current == old else model.current
        model.line_branch = model.current
        self._update_known(index)

    def archive(self, a: int, b: int) -> None:
        index, writer = self._writer(a)
        branch, (_, current, hidden) = self._branch(index, b), self.known[index]
        archived = branch not in hidden
        refused = archived and branch in (current, self.model.current)
        gone = branch not in self.model.heads
        if self._is_refused(index, lambda: writer.archive_branch(branch, archived=archived)):
            assert refused or gone
            return
        assert not refused
        assert not gone
        self.model.archived = self.model.archived | {branch} if archived else self.model.archived - {branch}
        self.model.line_branch = self.model.current
        self._update_known(index)

    def _is_refused(self, index: int, act: Callable[[], object]) -> bool:
        """Return whether `act` is refused. The writer then refreshes."""
        try:
            act()
        except (InvalidOperation, st.NotFound):
            self.writers[index].refresh()
            self._update_known(index)
            return True
        return False

    def peer(self, a: int, b: int) -> None:
        """Act as a program without branches: open the file, perhaps move, and append one or more lines."""
        tree = self.reopen().tree
        leaf = tree.entries[-1].id if tree.entries else None
        branch = self.model.current if self.model.line_branch is None else self.model.line_branch
        places = [entry.id for entry in tree]
        if b % 3 == 0 and places:
            leaf = places[b % len(places)]
        for number in range(1 + a % 3):
            labels = (a + number) % 4 == 0 and leaf is not None
            leaf = self._peer_line(tree, leaf, branch, label=labels)

    def _peer_line(self, tree: Tree, leaf: str | None, branch: str, *, label: bool) -> str:
        id = next(self._ids)
        line = {"type": "message", "id": id, "parentId": leaf, "timestamp": "2026-01-01T00:00:00.000Z"}
        line |= {"type": "label", "targetId": leaf, "label": "theirs"} if label else {"message": {"role": "user"}}
        store = self.open_store()
        store.append([json.dumps(line).encode()], after=store.read().cursor)
        store.close()
        session = self.reopen()
        above = session.tree.skip_annotations(leaf)
        self.model.make_current(branch)
        if label:
            if above != self.model.heads[branch]:
                self.model.put(branch, above, from_head=False)
        else:
            self.model.put(branch, id, from_head=above == self.model.heads[branch])
        self.model.line_branch = branch
        tree.add(session.tree[id])
        return id

    # Checks

    def check(self) -> None:
        expected = self.model.state()
        self._compare(self.reopen(), expected)
        for writer in self.writers:
            writer.refresh()
            self._compare(writer, expected)
        self.known = [expected for _ in self.writers]

    @staticmethod
    def _compare(session: Session, expected: tuple[dict[str, str | None], str, set[str]]) -> None:
        assert (dict(session.heads.heads), session.heads.current, session.heads.archived) == expected
        records = [number for number, entry in enumerate(session.tree.entries, 1) if entry.is_head_record]
        written_by_us = [entry for entry in session.tree.entries if isinstance(entry.branch, str | None)]
        if len(written_by_us) == len(session.tree.entries):
            gaps = [b - a for a, b in itertools.pairwise([0, *records, len(session.tree.entries)])]
            assert max(gaps) <= 256
