"""The operations of a session that create, move, rename and archive its branches, and undo moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import UNSET, UnsetType

from sessiontree.core.entries import Body, BranchPoint, Custom, Entry, EntryId
from sessiontree.core.heads import Heads, Move, describe_move
from sessiontree.core.operation_plans import NavigatePlan, plan_move, plan_navigate
from sessiontree.core.place_names import (
    BRANCH_PREFIX,
    check_branch_name,
    check_new_branch,
    find_branch,
    find_unnamed_leaves,
    is_label,
)
from sessiontree.errors import Conflict, InvalidOperation, NotFound
from sessiontree.session.branch import BranchInfo, UnnamedLeaf
from sessiontree.session.entry_builder import (
    Anchor,
    EntryBatch,
    Item,
    PlacedItem,
    check_bodies,
    check_new_id,
    find_write_parent,
    has_branch_move,
)
from sessiontree.session.session_base import BranchPosition, Place
from sessiontree.session.writer import SessionWriter


class BranchOperations(SessionWriter):
    """The operations of a session on its branches."""

    @property
    def branches(self) -> list[BranchInfo]:
        """All branches, in the order they were created."""
        heads = self.heads.heads
        lengths = self.tree.measure_paths(head for head in heads.values() if head is not None and head in self.tree)
        return [self._build_branch_info(name, lengths) for name in heads]

    @property
    def unnamed_leaves(self) -> list[UnnamedLeaf]:
        """The leaves without a branch, such as the leaf that a navigation left, oldest first."""
        unnamed = find_unnamed_leaves(self.tree, self.heads)
        lengths = self.tree.measure_paths(unnamed.values())
        return [
            UnnamedLeaf(leaf=leaf, suggested_name=name, entry_count=lengths[leaf]) for name, leaf in unnamed.items()
        ]

    def _build_branch_info(self, name: str, lengths: dict[EntryId, int]) -> BranchInfo:
        head = self.heads.heads[name]
        info = self.heads.info.get(name)
        return BranchInfo(
            name=name,
            leaf=head,
            entry_count=0 if head is None else lengths.get(head, 0),
            created_at=info.created if info else self.header.timestamp,
            description=info.description if info else None,
            archived=name in self.heads.archived,
            current=name == self.heads.current,
        )

    def _create_branch(
        self, name: str, at: Place, description: str | None, current: bool, bodies: Iterable[Body | Item]
    ) -> list[Entry]:
        check_branch_name(name)
        items = [body if isinstance(body, Item) else Item(body) for body in check_bodies(bodies)]
        _check_chain(item._replace(timestamp=None) for item in items)
        with self._mutex:
            state = self._prepare_write()
            start = self.resolve_place(at)
            self._check_entry_exists(start)

            def build() -> EntryBatch:
                check_new_branch(name, self.tree, self.heads)
                body = BranchPoint(name=name, description=description)
                new_current = name if current else self.heads.current
                point = self._builder.build_entry(body, find_write_parent(self.tree, start), name, new_current)
                if not items:
                    return EntryBatch.build_single(point)
                placed: list[PlacedItem] = []
                given: set[EntryId] = set()
                for item in items:
                    id = self.generate_id() if item.id is None else item.id
                    check_new_id(id, self.tree, given)
                    placed.append(PlacedItem(item, id, name, Anchor.PREVIOUS))
                return self._builder.build_placed(state, placed, point)

            return [entry for entry in self._commit(build) if not entry.is_head_record]

    def _switch(self, place: Place) -> None:
        if isinstance(place, BranchPosition):
            self.resolve_place(place)
            place = f"{BRANCH_PREFIX}{place.name}"
        name = find_branch(place, self.tree, self.heads) if isinstance(place, str) else None
        if name is None and isinstance(place, str) and is_label(place, self.tree):
            raise InvalidOperation(f"{place!r} is a label, not a branch; use navigate to go to a label")
        if name is None:
            target = self.tree.skip_annotations(self.resolve_place(place))
            at_target = [branch for branch, head in self.heads.heads.items() if head == target]
            if self.heads.current not in at_target and len(at_target) != 1:
                if at_target:
                    raise InvalidOperation(f"several branches are at this entry: {', '.join(at_target)}")
                self.move(self._get_entry(target))
                return
            name = self.heads.current if self.heads.current in at_target else at_target[0]
        if name != self.heads.current:
            previous = self.heads.current

            def build_record() -> Custom:
                self._get_head(name)
                self._check_current(previous)
                return self.heads.build_record(moved=True, current=name, archived=self.heads.archived - {name})

            self._write_heads(build_record)

    def plan_navigate(self, place: Place, *, start: Place = "HEAD") -> NavigatePlan:
        """Return what `navigate_sync` would do, from the current place or from `start`."""
        leaf = self._get_readable_leaf() if start == "HEAD" else self.resolve_place(start)
        return plan_navigate(self.tree, leaf, self.resolve_place(place))

    def navigate_sync(self, place: Place) -> NavigatePlan:
        """Move the head of the current branch to the place a user selected, and return the move.

        `Branch.navigate` also runs hooks and writes summaries.

        Selecting a user message or a custom message moves to its parent, and `editor_text` has its text.
        """
        with self._mutex:
            plan = plan_navigate(self.tree, self._get_readable_leaf(), self.resolve_place(place))
            if plan.is_move:
                self.move(self._get_entry(plan.new_leaf))
            return plan

    def move(
        self,
        place: Place,
        bodies: Iterable[Body | Item] = (),
        *,
        branch: str | None = None,
        expected: EntryId | UnsetType | None = UNSET,
        archive: Iterable[str] = (),
    ) -> list[Entry]:
        """Move a branch, by default the current one, to a place and write entries there, all or none.

        The branches in `archive` are archived in the same step. If the current branch is among them, the branch that
        moves becomes current. An archived branch that moves becomes visible again. Raises `BranchMoved` if the head is
        not the `expected` entry any more.
        """
        items = list(bodies)
        _check_chain(items)
        with self._mutex:
            state = self._prepare_write()
            previous = self.heads.current
            name = previous if branch is None else branch
            head = self._get_head(name) if isinstance(expected, UnsetType) else expected
            leaf = self.tree.skip_annotations(self.resolve_place(place))
            archived = set(archive)
            for other in archived:
                self._get_head(other)
            archived.discard(name)

            def build() -> EntryBatch:
                self._check_head(name, head)
                if branch is None:
                    self._check_current(previous)
                current = self.heads.current
                for other in archived:
                    self._get_head(other)
                # Real entries away from the head move the branch by themselves. Everything else needs a head record.
                is_plain = name == current and name not in self.heads.archived and not archived
                if has_branch_move(items) and leaf != head and is_plain:
                    return self._builder.build_chain(state, items, leaf, name)
                body = self.heads.build_record(
                    moved=True,
                    mover=current if current in archived else name,
                    current=name if current in archived else current,
                    heads={**self.heads.heads, name: leaf},
                    archived=(self.heads.archived | archived) - {name},
                )
                record, after = self._builder.build_head_record(state.tree, body), Heads()
                after.copy_origins(self.heads)
                after.apply(record, state.tree)
                chain = self._builder.build_chain(state, items, leaf, name, heads=after)
                return EntryBatch([record, *chain.items], [record.raw, *chain.lines])

            return [entry for entry in self._commit(build) if not entry.is_head_record]

    def plan_undo(self) -> NavigatePlan:
        """Return what `undo` would do. Its `undo_description` describes the move."""
        return self._plan_undo()[1]

    def _plan_undo(self) -> tuple[Move, NavigatePlan]:
        move = self.heads.undoable
        if move is None:
            raise InvalidOperation("nothing to undo")
        if move.branch not in self.heads.heads:
            raise NotFound("branch", move.branch)
        keeps_head = move.switched or move.is_other_branch
        leaf = self.heads.heads[move.branch] if keeps_head else move.leaf
        plan = plan_move(self.tree, self._get_readable_leaf(), leaf)
        return move, msgspec.structs.replace(plan, undo_description=describe_move(move, self.heads, self.tree))

    def undo(self, *, expected: NavigatePlan | None = None) -> NavigatePlan:
        """Undo the last move, switch, merge or promotion of any branch that was not undone yet.

        Branches that moved or were archived in the same step are restored too. The plan's `undo_description` describes
        the move. No entry is removed. Raises `Conflict` if another writer moved since `plan_undo` returned `expected`.
        """
        with self._mutex:
            move, plan = self._plan_undo()
            if expected is not None and _identify_undo(plan) != _identify_undo(expected):
                raise Conflict(self.location, "another writer moved the head; undo again")
            others = {name: leaf for name, leaf in move.other_heads if name in self.heads.heads}
            previous = self.heads.current

            def build_record() -> Custom:
                self._check_current(previous)
                heads = {**self.heads.heads, **others, move.branch: plan.new_leaf}
                archived = self.heads.archived - {move.branch, *move.newly_archived}
                return self.heads.build_record(undo=True, current=move.branch, heads=heads, archived=archived)

            self._write_heads(build_record, move.branch, *others)
            return plan

    def _rename_branch(self, name: str, new: str) -> None:
        check_branch_name(new)

        def rename(old: str) -> str:
            return new if old == name else old

        def build_record() -> Custom:
            self._get_head(name)
            check_new_branch(new, self.tree, self.heads)
            return self.heads.build_record(
                current=rename(self.heads.current),
                heads={rename(branch): head for branch, head in self.heads.heads.items()},
                archived={rename(branch) for branch in self.heads.archived},
                renamed=(name, new),
            )

        with self._mutex:
            self._write_heads(build_record)

    def archive_branch(self, name: str, *, archived: bool = True) -> None:
        """Hide a branch from listings, or show it again. Nothing is removed."""
        with self._mutex:
            self._get_head(name)

            def build_record() -> Custom:
                self._get_head(name)
                if archived and name == self.heads.current:
                    raise InvalidOperation(f"branch {name!r} is current; switch to another branch first")
                before = self.heads.archived
                return self.heads.build_record(archived=before | {name} if archived else before - {name})

            if archived != (name in self.heads.archived):
                self._write_heads(build_record)

    def restore_heads(self, heads: Mapping[str, EntryId | None]) -> None:
        """Set the heads of branches with a head record that is not a move: for heads that were lost by damage.

        Branches that already have these heads are not touched.
        """
        with self._mutex:
            for head in heads.values():
                if head is not None and head not in self.tree:
                    raise NotFound("entry", head)
            changed = {name: head for name, head in heads.items() if self._get_head(name) != head}
            if changed:
                self._write_heads(lambda: self.heads.build_record(heads={**self.heads.heads, **changed}), *changed)

    def _get_entry(self, id: EntryId | None) -> Entry | None:
        """Return an entry as a place. A bare id is not enough: branches and labels may look like ids."""
        return None if id is None else self.tree[id]

    def _get_readable_leaf(self) -> EntryId | None:
        """Return the current head, or `None` if its line is damaged, to allow navigating away."""
        leaf = self.heads.leaf
        return leaf if leaf in self.tree else None

    def _write_heads(self, build_record: Callable[[], Custom], *branches: str) -> None:
        """Write a head record, unless another writer has moved one of these branches since."""
        build_record()  # raises errors before an older file is rewritten
        self._prepare_write()
        expected = {branch: self.heads.heads[branch] for branch in branches}

        def build() -> EntryBatch:
            for branch, head in expected.items():
                self._check_head(branch, head)
            return self._build_heads_batch(build_record())

        self._commit(build)

    def _check_current(self, branch: str) -> None:
        if self.heads.current != branch:
            raise Conflict(self.location, f"another writer switched to branch {self.heads.current!r}")


def _check_chain(items: Iterable[Body | Item]) -> None:
    if any(isinstance(item, Item) and item.is_placed for item in items):
        raise InvalidOperation("items with their own parent or branch, and moves with times, need extend")


def _identify_undo(plan: NavigatePlan) -> tuple[EntryId | None, EntryId | None, str | None]:
    return plan.old_leaf, plan.new_leaf, plan.undo_description
