"""Heads: where every branch is, which one is current, and every move that was made.

The one place that says what a line means for the heads. The same code replays a file and
follows a live session, so the two cannot differ:

* A line with `branch` advances that branch to itself and makes it current, or the branch
  in `current`. An annotation advances nobody. A line whose branch is null moves nobody.
* A head record sets all heads.
* A line without the key was written by a peer, which has one leaf and started at the line
  before: it advances that line's branch and makes it current.

A *move* is a head record that says where it came `from`, a change of the current branch, or
an advance of the current branch that does not go on from its head. What else such a record
changes belongs to its move: branches that it moves or hides are put back with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import UNSET, Struct

from sessiontree.core.entries import (
    HEAD_RECORD,
    BranchPoint,
    Chain,
    Custom,
    Entry,
    EntryId,
    JsonObject,
    entries_of,
)
from sessiontree.core.messages import is_object
from sessiontree.core.tree import Tree

MAIN = "main"


class Move(Struct, frozen=True):
    """Where the current pointer was before it moved."""

    branch: str
    leaf: EntryId | None
    switched: bool
    """The current branch changed; otherwise its head moved."""
    others: tuple[tuple[str, EntryId | None], ...] = ()
    """Branches beside it that moved too, with where they were before."""
    hid: tuple[str, ...] = ()
    """Branches that were archived with it."""

    @property
    def moved(self) -> tuple[str, ...]:
        """The branches whose heads moved."""
        own = () if self.switched else (self.branch,)
        return (*own, *(name for name, _ in self.others))

    def renamed(self, old: str, new: str) -> Move:
        """The same move, of a session in which a branch is called otherwise now."""

        def called(name: str) -> str:
            return new if name == old else name

        return Move(
            called(self.branch),
            self.leaf,
            self.switched,
            tuple((called(name), leaf) for name, leaf in self.others),
            tuple(map(called, self.hid)),
        )


class Begun(Struct, frozen=True, kw_only=True):
    """How a branch began."""

    created: str = ""
    description: str | None = None


class Heads:
    def __init__(self) -> None:
        self.current = MAIN
        self.moves: list[Move] = []
        """Every move, oldest first: `HEAD@{1}` is the last one."""
        self.info: dict[str, Begun] = {}
        self.archived: set[str] = set()
        self.lines_since_record = 0
        self._heads: dict[str, EntryId | None] = {MAIN: None}
        self._undoable: list[Move] = []
        self._line_branch: str | None = MAIN

    @property
    def heads(self) -> dict[str, EntryId | None]:
        """Branch names with their heads, in the order the branches were made."""
        return self._heads

    @property
    def leaf(self) -> EntryId | None:
        """The head of the current branch."""
        return self._heads[self.current]

    @property
    def undoable(self) -> Move | None:
        """The move that an undo takes back."""
        return self._undoable[-1] if self._undoable else None

    def replay(self, items: Iterable[Entry | Chain], tree: Tree) -> None:
        """Take in lines that `tree` holds already."""
        sound = tree.is_sound
        for item in items:
            if isinstance(item, Chain):
                if not sound:
                    for entry in entries_of((item,)):
                        self.apply(entry, tree)
                elif self._goes_on(item):
                    self.lines_since_record += len(item.ids)
                    self._heads[self.current] = item.ids[-1]
                else:
                    self.apply(item.entry(0), tree)
                    self._go_on(item)
            elif sound and item.type == "message" and self._goes_on(item):
                self.lines_since_record += 1
                self._heads[self.current] = item.id
            else:
                self.apply(item, tree)

    def _goes_on(self, item: Entry | Chain) -> bool:
        """Whether messages do what nearly all do: the current branch goes on from its head."""
        branch = self.current
        return (
            item.parent == self._heads[branch]
            and branch == self._line_branch
            and (item.branch == branch or item.branch is UNSET)
            and item.current is None
        )

    def _go_on(self, chain: Chain) -> None:
        """Take in what follows the first of a chain: it moves whom that moved, further along."""
        self.lines_since_record += len(chain) - 1
        branch = self._line_branch if chain.branch is UNSET else chain.branch
        if branch is not None:
            self._heads[branch] = chain.ids[-1]

    def apply(self, entry: Entry, tree: Tree) -> None:
        """Take in one line. `tree` holds it already."""
        self.lines_since_record += 1
        if entry.is_head_record:
            self._record(entry)
        elif entry.branch is UNSET:
            self._peer_line(entry, tree)
        elif isinstance(entry.branch, str):
            if not entry.is_annotation:
                self._begin(entry, entry.branch)
                self._advance(entry.branch, entry, tree)
            self._line_branch = entry.branch
            current = entry.branch if entry.current is None else entry.current
            if current in self._heads:
                self._make_current(current)
        else:
            self._line_branch = None

    def _peer_line(self, entry: Entry, tree: Tree) -> None:
        branch = self._line_branch if self._line_branch in self._heads else self.current
        if entry.type == "branch_point" and isinstance(entry.body, BranchPoint):
            branch = entry.body.name
            self._begin(entry, branch)
        self._make_current(branch)
        if entry.is_annotation:
            self._jump(branch, tree.real(entry.id))
        else:
            self._advance(branch, entry, tree)
        self._line_branch = branch

    def _begin(self, entry: Entry, branch: str) -> None:
        if branch not in self._heads:
            self._heads[branch] = entry.parent
        if entry.type == "branch_point" and isinstance(entry.body, BranchPoint) and entry.body.name == branch:
            self._heads[branch] = entry.parent
            self.info[branch] = Begun(created=entry.timestamp, description=entry.body.description)

    def _advance(self, branch: str, entry: Entry, tree: Tree) -> None:
        head = self._heads[branch]
        if branch == self.current and not (entry.parent == head and tree.is_sound):
            above = entry.parent if tree.is_sound else tree.parent(entry.id)
            known = head if head in tree else None
            if tree.real(above) != tree.real(known):
                self._log(Move(branch, head, False))
        self._heads[branch] = entry.id

    def _jump(self, branch: str, leaf: EntryId | None) -> None:
        if leaf != self._heads[branch]:
            self._log(Move(branch, self._heads[branch], False))
            self._heads[branch] = leaf

    def _make_current(self, branch: str) -> None:
        if branch != self.current:
            self._log(Move(self.current, self.leaf, True))
            self.current = branch

    def _log(self, move: Move) -> None:
        self.moves.append(move)
        self._undoable.append(move)

    def _record(self, entry: Entry) -> None:
        data = entry.body.data if isinstance(entry.body, Custom) else None
        if not is_object(data):
            return
        was, heads_before, archived_before = Move(self.current, self.leaf, False), self._heads, self.archived
        self._rename(data.get("renamed"))
        heads: Any = data.get("heads")
        if is_object(heads) and heads:
            self._heads = {name: leaf if isinstance(leaf, str) else None for name, leaf in heads.items()}
        current = data.get("current")
        if isinstance(current, str) and current in self._heads:
            self.current = current
        elif self.current not in self._heads:
            self.current = next(iter(self._heads))
        archived: Any = data.get("archived")
        self.archived = {name for name in self._heads if name in archived} if isinstance(archived, list) else set()
        self._line_branch = self.current
        self.lines_since_record = 0
        if data.get("reset") is True:
            self.moves.clear()
            self._undoable.clear()
            self.info = {name: info for name, info in self.info.items() if name in self._heads}
        elif "from" in data:
            move = Move(
                was.branch,
                was.leaf,
                was.branch != self.current,
                others=tuple(
                    (name, leaf)
                    for name, leaf in heads_before.items()
                    if name != was.branch and name in self._heads and self._heads[name] != leaf
                ),
                hid=tuple(sorted(self.archived - archived_before)),
            )
            self.moves.append(move)
            if data.get("undo") is True:
                if self._undoable:
                    self._undoable.pop()
            else:
                self._undoable.append(move)

    def _rename(self, renamed: Any) -> None:
        if not (is_object(renamed) and isinstance(renamed.get("from"), str) and isinstance(renamed.get("to"), str)):
            return
        old, new = renamed["from"], renamed["to"]
        if old in self.info:
            self.info[new] = self.info.pop(old)
        for log in (self.moves, self._undoable):
            log[:] = [move.renamed(old, new) for move in log]

    def ends_here(self, tree: Tree) -> bool:
        """Whether the last line is at the current place, so that a peer which opens the file lands there."""
        last = tree.entries[-1] if tree.entries else None
        return last is None or (tree.real(last.id) == self.leaf and self._line_branch == self.current)

    # Head records to write

    def record(
        self,
        *,
        moved: bool = False,
        undo: bool = False,
        current: str | None = None,
        heads: dict[str, EntryId | None] | None = None,
        archived: Iterable[str] | None = None,
        renamed: tuple[str, str] | None = None,
    ) -> Custom:
        """A head record that says what is true now, but for the changes given."""
        data: JsonObject = {
            "current": self.current if current is None else current,
            "heads": self._heads if heads is None else heads,
        }
        archive = sorted(self.archived if archived is None else archived)
        if archive:
            data["archived"] = archive
        if renamed is not None:
            data["renamed"] = {"from": renamed[0], "to": renamed[1]}
        if moved or undo:
            data["from"] = {"branch": self.current, "leaf": self.leaf}
        if undo:
            data["undo"] = True
        return Custom(custom_type=HEAD_RECORD, data=data)
