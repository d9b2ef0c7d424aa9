"""Heads: the head of every branch, the current branch, and the log of moves.

The same code replays a file and follows a live session, so the two cannot differ. `core.head_rules` has the rules for a
single line. A line that starts like an entry but is not valid JSON moves no head, because peers cannot read it.

A *move* is a head record with a `from`, a change of the current branch, a merge into any branch, or an advance of the
current branch to an entry that is not below its head. Everything else that a head record changes belongs to its move:
an undo restores the branches that it moved or archived, and the summary that a promotion writes after its record is not
a separate merge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import UNSET, Struct
from msgspec.structs import replace

from sessiontree.core.entries import (
    HEAD_RECORD,
    BranchPoint,
    Chain,
    Custom,
    Entry,
    EntryId,
    JsonObject,
    iter_entries,
)
from sessiontree.core.head_rules import BranchOrigin, HeadRecord, choose_peer_branch, get_effect, parse_head_record
from sessiontree.core.messages import is_object
from sessiontree.core.operation_plans import get_merge_sources, is_merge
from sessiontree.core.tree import Tree
from sessiontree.errors import format_names

MAIN = "main"

MAX_ORIGINS = 64
"""A head record has the origins of at most this many branches. It is written often."""

SKIP_LIMIT = 8
"""After this many unreadable heads, all lines are checked at once instead of one after another."""


class Move(Struct, frozen=True):
    """Where the current branch was before a move."""

    branch: str
    leaf: EntryId | None
    switched: bool
    """Whether the current branch changed. Otherwise a head moved."""
    other_heads: tuple[tuple[str, EntryId | None], ...] = ()
    """Other branches that moved, with their previous heads."""
    newly_archived: tuple[str, ...] = ()
    """Branches that were archived in the same step."""
    merge: EntryId | None = None
    """The summary entry that a merge wrote."""
    wrote_copies: bool = False
    """Whether the branch stayed where it was and copies of entries were written on it."""
    is_other_branch: bool = False
    """Whether the move was on a branch that is not current: the first of `other_heads`."""

    @property
    def moved_head(self) -> tuple[str, EntryId | None]:
        """The branch that moved, and its previous head."""
        return self.other_heads[0] if self.is_other_branch else (self.branch, self.leaf)

    @property
    def moved_branches(self) -> tuple[str, ...]:
        """The branches whose heads moved."""
        own = () if self.switched or self.is_other_branch else (self.branch,)
        return (*own, *(name for name, _ in self.other_heads))

    def rename_branches(self, called: dict[str, str]) -> Move:
        """Return the same move with the current names of renamed branches."""
        return Move(
            called.get(self.branch, self.branch),
            self.leaf,
            self.switched,
            tuple((called.get(name, name), leaf) for name, leaf in self.other_heads),
            tuple(called.get(name, name) for name in self.newly_archived),
            self.merge,
            self.wrote_copies,
            self.is_other_branch,
        )


class Heads:
    def __init__(self, load_log: Callable[[], None] | None = None) -> None:
        """With `load_log`, the lines to replay are only the end of a file: the moves and origins need the rest.

        It replays all lines and gives this object their state.
        """
        self._load_log = load_log
        self._knows_origins = load_log is None
        self.current = MAIN
        self._moves: list[Move] = []
        self._info: dict[str, BranchOrigin] = {}
        self.archived: set[str] = set()
        self.lines_since_record = 0
        self.heads: dict[str, EntryId | None] = {MAIN: None}
        """Branch names with their heads, in order of creation."""
        self._undoable: list[int] = []
        """The indices of the moves that were not undone."""
        self._renames: list[tuple[int, str, str]] = []
        """Renames not yet applied to the moves: the number of moves before each, the old and the new name."""
        self._line_branch: str | None = MAIN
        self._is_promotion = False
        """Whether the last head record moved a branch and archived others, so a summary directly after it belongs to
        it.
        """

    @property
    def leaf(self) -> EntryId | None:
        """The head of the current branch."""
        return self.heads[self.current]

    @property
    def moves(self) -> list[Move]:
        """Every move, oldest first: `HEAD@{1}` is the last one."""
        self._require_log()
        return self._moves

    def find_move(self, ago: int) -> Move | None:
        """Return the move that is as many moves ago, 1 for the last one; `None` if there were fewer."""
        if ago > len(self._moves):
            self._require_log()
        return self._moves[-ago] if ago <= len(self._moves) else None

    @property
    def info(self) -> dict[str, BranchOrigin]:
        """When and why branches were created."""
        if not self._knows_origins:
            self._require_log()
        return self._info

    def copy_origins(self, other: Heads) -> None:
        """Take over what `other` knows about when and why branches were created."""
        self._info, self._knows_origins = dict(other._info), other._knows_origins

    def _require_log(self) -> None:
        if self._load_log is not None:
            self._load_log()

    @property
    def undoable(self) -> Move | None:
        """The move that the next undo reverts."""
        if not self._undoable:
            self._require_log()
        return self._moves[self._undoable[-1]] if self._undoable else None

    def forget_moves(self) -> None:
        """Treat the moves so far as unknown, in the heads of the end of a file."""
        self._moves.clear()
        self._undoable.clear()
        self._renames.clear()

    def replay(self, items: Iterable[Entry | Chain], tree: Tree) -> None:
        """Apply lines that `tree` already holds."""
        sound = tree.is_sound
        for item in items:
            if isinstance(item, Chain):
                if not sound:
                    for entry in iter_entries((item,)):
                        self._apply_line(entry, tree)
                elif self._extends_current(item):
                    self.lines_since_record += len(item.ids)
                    self.heads[self.current] = item.ids[-1]
                else:
                    self._apply_line(item.build_entry(0), tree)
                    self._advance_chain(item)
            elif sound and item.type == "message" and self._extends_current(item):
                self.lines_since_record += 1
                self.heads[self.current] = item.id
            else:
                self._apply_line(item, tree)
        self._rename_moves()

    def _extends_current(self, item: Entry | Chain) -> bool:
        """Return whether messages continue the current branch from its head, as nearly all do."""
        branch = self.current
        return (
            item.parent == self.heads[branch]
            and branch == self._line_branch
            and (item.branch == branch or item.branch is UNSET)
            and item.current is None
        )

    def _advance_chain(self, chain: Chain) -> None:
        """Apply the rest of a chain after its first message. It advances the same branch."""
        self.lines_since_record += len(chain) - 1
        branch = self._line_branch if chain.branch is UNSET else chain.branch
        if branch is not None:
            self.heads[branch] = chain.ids[-1]

    def apply(self, entry: Entry, tree: Tree) -> None:
        """Apply one line, which `tree` already holds."""
        if entry.type == "message" and tree.is_sound and self._extends_current(entry):
            self.lines_since_record += 1
            self.heads[self.current] = entry.id
        else:
            self._apply_line(entry, tree)
            self._rename_moves()

    def try_advance(self, branch: str, id: EntryId) -> bool:
        """Advance a branch to a new message below its head. Return `False`, without a change, if `apply` is needed."""
        if branch != self.current or branch != self._line_branch:
            return False
        self.lines_since_record += 1
        self.heads[branch] = id
        return True

    def _apply_line(self, entry: Entry, tree: Tree) -> None:
        self.lines_since_record += 1
        if entry.is_head_record:
            self._apply_record(entry)
            return
        is_annotation = entry.is_annotation
        if entry.branch is UNSET:
            point = entry.body.name if entry.type == "branch_point" and isinstance(entry.body, BranchPoint) else None
            peer_branch = choose_peer_branch(self._line_branch, self.heads, self.current, point)
            effect = get_effect(UNSET, None, is_annotation, peer_branch)
        else:
            effect = get_effect(entry.branch, entry.current, is_annotation)
        if effect.branch is not None and effect.moves_head:
            self._start_branch(entry, effect.branch)
            if entry.branch is UNSET:  # a peer switches before it writes
                self._make_current(effect.branch)
            if is_annotation:
                self._move_head(effect.branch, tree.skip_annotations(entry.id))
            else:
                self._advance(effect.branch, entry, tree)
        self._line_branch = effect.branch
        if effect.current is not None and effect.current in self.heads:
            self._make_current(effect.current)

    def _start_branch(self, entry: Entry, branch: str) -> None:
        if branch not in self.heads:
            self.heads[branch] = entry.parent
        if entry.type == "branch_point" and isinstance(entry.body, BranchPoint) and entry.body.name == branch:
            self.heads[branch] = entry.parent
            self._info[branch] = BranchOrigin(created=entry.timestamp, description=entry.body.description)

    def _advance(self, branch: str, entry: Entry, tree: Tree) -> None:
        head = self.heads[branch]
        if self._is_merge_move(entry):
            is_current = branch == self.current
            others = () if is_current else ((branch, head),)
            self._log_move(Move(self.current, self.leaf, False, others, merge=entry.id, is_other_branch=not is_current))
        elif branch == self.current and not (entry.parent == head and tree.is_sound) and self._load_log is not None:
            self.forget_moves()  # earlier lines decide whether this is a move
        elif branch == self.current and not (entry.parent == head and tree.is_sound):
            above = entry.parent if tree.is_sound else tree.parent(entry.id)
            known = head if tree.is_before(head, entry.id) else None
            if tree.skip_annotations(above) != tree.skip_annotations(known):
                self._log_move(Move(branch, head, False))
        self.heads[branch] = entry.id

    def _is_merge_move(self, entry: Entry) -> bool:
        """Return whether a line is a merge, and not the summary that belongs to a promotion."""
        if entry.type != "branch_summary" or not is_merge(entry.body):
            return False
        return not (self._is_promotion and self.lines_since_record == 1)

    def _move_head(self, branch: str, leaf: EntryId | None) -> None:
        if leaf != self.heads[branch]:
            self._log_move(Move(branch, self.heads[branch], False))
            self.heads[branch] = leaf

    def _make_current(self, branch: str) -> None:
        if branch != self.current:
            self._log_move(Move(self.current, self.leaf, True))
            self.current = branch

    def _log_move(self, move: Move) -> None:
        self._undoable.append(len(self._moves))
        self._moves.append(move)

    def _apply_record(self, entry: Entry) -> None:
        # The cost is proportional to the size of the record, or of the record that it replaces.
        data = _read_record_data(entry)
        if data is None:
            return
        record = parse_head_record(data)
        before, heads_before, archived_before = Move(self.current, self.leaf, False), self.heads, self.archived
        self._rename_branch(record)
        if record.heads is not None:
            self.heads = record.heads
        sets_heads = self.heads is not heads_before
        if record.current is not None and record.current in self.heads:
            self.current = record.current
        elif self.current not in self.heads:
            self.current = next(iter(self.heads))
        self.archived = {name for name in record.archived if name in self.heads}
        if record.origins is not None:
            self._info, self._knows_origins = record.origins, True
        self._line_branch = self.current
        self.lines_since_record = 0
        self._is_promotion = False
        if data.get("reset") is True:
            self._moves.clear()
            self._undoable.clear()
            self._renames.clear()
            if sets_heads:
                self._info = {name: self._info[name] for name in self.heads if name in self._info}
        elif "from" in data:
            switched = before.branch != self.current
            other = None if switched or self.leaf != before.leaf else self._find_other_branch(data, heads_before)
            first = () if other is None else ((other, heads_before[other]),)
            moved = heads_before.items() if sets_heads else ()
            others = tuple(
                (name, leaf)
                for name, leaf in moved
                if name not in (before.branch, other) and name in self.heads and self.heads[name] != leaf
            )
            newly_archived = tuple(sorted(self.archived - archived_before))
            move = Move(
                before.branch,
                before.leaf,
                switched,
                (*first, *others),
                newly_archived,
                is_other_branch=other is not None,
            )
            mover, left = move.moved_head
            stays = not switched and not others and self.heads[mover] == left
            if stays and not newly_archived:
                move = replace(move, wrote_copies=True)
            if data.get("undo") is not True:
                self._log_move(move)
                self._is_promotion = bool(move.newly_archived) and not stays
            else:
                self._moves.append(move)
                if self._undoable:
                    self._undoable.pop()

    def _find_other_branch(self, data: JsonObject, before: dict[str, EntryId | None]) -> str | None:
        """Return the branch that a record moves if it is not the current one."""
        origin = data["from"]
        name = origin.get("branch") if is_object(origin) else None
        is_other = isinstance(name, str) and name != self.current and name in before and name in self.heads
        return name if is_other else None

    def _rename_branch(self, record: HeadRecord) -> None:
        if record.renamed is None:
            return
        old, new = record.renamed
        if old in self._info:
            self._info[new] = self._info.pop(old)
        self._renames.append((len(self._moves), old, new))

    def _rename_moves(self) -> None:
        """Replace old branch names in the moves. One pass from the last move applies all renames."""
        moves, renames = self._moves, self._renames
        if not renames:
            return
        called: dict[str, str] = {}
        for number in range(renames[-1][0] - 1, -1, -1):
            while renames and renames[-1][0] > number:
                _, old, new = renames.pop()
                called[old] = called.get(new, new)
            moves[number] = moves[number].rename_branches(called)
        renames.clear()

    def is_at_last_line(self, tree: Tree) -> bool:
        """Return whether a peer that opens the file would continue at the current head."""
        last = tree.last_entry
        return last is None or (tree.skip_annotations(last.id) == self.leaf and self._line_branch == self.current)

    # Head records to write

    def build_record(
        self,
        *,
        moved: bool = False,
        undo: bool = False,
        mover: str | None = None,
        current: str | None = None,
        heads: dict[str, EntryId | None] | None = None,
        archived: Iterable[str] | None = None,
        renamed: tuple[str, str] | None = None,
    ) -> Custom:
        """Return a head record of the current state with the given changes.

        `mover` is the branch that moves, by default the current one.
        """
        data: JsonObject = {
            "current": self.current if current is None else current,
            "heads": self.heads if heads is None else heads,
        }
        archive = sorted(self.archived if archived is None else archived)
        if archive:
            data["archived"] = archive
        if self._knows_origins and len(self._info) <= MAX_ORIGINS:
            data["origins"] = self._encode_origins(renamed)
        if renamed is not None:
            data["renamed"] = {"from": renamed[0], "to": renamed[1]}
        if moved or undo:
            branch = self.current if mover is None else mover
            data["from"] = {"branch": branch, "leaf": self.heads[branch]}
        if undo:
            data["undo"] = True
        return Custom(custom_type=HEAD_RECORD, data=data)

    def _encode_origins(self, renamed: tuple[str, str] | None) -> JsonObject:
        old, new = renamed or (None, None)
        return {
            new if new is not None and name == old else name: {"created": origin.created}
            | ({} if origin.description is None else {"description": origin.description})
            for name, origin in self._info.items()
        }


def describe_move(move: Move, heads: Heads, tree: Tree) -> str:
    """Return what an undo of `move` reverts, as the object of a sentence: `the merge of cache into main`."""
    mover, _ = move.moved_head
    if move.merge is not None:
        sources = _find_branch_names(get_merge_sources(tree[move.merge]), heads, tree)
        names = [name for name in sources if name != mover]  # a leaf that the branch left has no name
        return f"the merge of {' and '.join(names)} into {mover}" if names else f"the merge into {mover}"
    if move.wrote_copies:
        return f"the copies on {mover}"
    what = f"the switch from {move.branch} to {heads.current}" if move.switched else f"the move of {mover}"
    return f"{what}, which archived {format_names(move.newly_archived)}" if move.newly_archived else what


def _find_branch_names(leaves: Iterable[EntryId], heads: Heads, tree: Tree) -> list[str]:
    """Return the current names of the branches that entries were written on."""
    names: dict[str, None] = {}
    for leaf in leaves:
        name = tree[leaf].branch if leaf in tree else None
        if name not in heads.heads:
            name = next((one for one, head in heads.heads.items() if head == leaf), None)
        if isinstance(name, str):
            names[name] = None
    return list(names)


def build_first_record(current: str, heads: dict[str, EntryId | None], archived: Iterable[str] = ()) -> Custom:
    """Return the head record of a new file. Moves before it cannot be undone."""
    data: JsonObject = {"current": current, "heads": heads}
    if archive := sorted(archived):
        data["archived"] = archive
    return Custom(custom_type=HEAD_RECORD, data={**data, "reset": True})


class SkippedEntries:
    """Unreadable entries that moved no head."""

    def __init__(self) -> None:
        self.entries: set[EntryId] = set()
        self.branches: set[str] = set()
        """Branches that they would have moved."""

    def is_affected_by(self, items: Iterable[Entry | Chain], current: str) -> bool:
        """Return whether new lines make the skipped entries part of the history, which requires a full replay.

        `current` is the current branch when the lines were written. A line that names its branches matters only if one
        of them is affected. A peer's line depends on the lines before it, so it always matters.
        """
        return bool(self.entries) and any(
            entry.branch is UNSET
            or not self.branches.isdisjoint((current, entry.branch, entry.current))
            or entry.is_head_record
            or not entry.is_readable
            for entry in iter_entries(items)
        )


def skip_unreadable(heads: Heads, tree: Tree, passed: SkippedEntries) -> Heads:
    """Return the heads of `tree` as if unreadable lines were absent. `heads` are the heads that include them.

    Skipped entries are added to `passed`.
    """
    skipped = passed.entries
    while unreadable := find_unreadable(heads.heads.values(), tree) - skipped:
        passed.branches.update(name for name, head in heads.heads.items() if head in unreadable)
        skipped |= unreadable if len(skipped) < SKIP_LIMIT else {entry.id for entry in tree if not entry.is_readable}
        heads = Heads()
        heads.replay([entry for entry in tree.entries if entry.id not in skipped], tree)
    for name, head in heads.heads.items():
        if head in skipped:  # a head record points at it
            passed.branches.add(name)
            heads.heads[name] = next((id for id in tree.walk_up_ids(head) if tree[id].is_readable), None)
    return heads


def find_unreadable(ids: Iterable[EntryId | None], tree: Tree) -> set[EntryId]:
    """Return the entries among `ids` that are not valid JSON."""
    return {id for id in ids if id is not None and id in tree and not tree[id].is_readable}


def _read_record_data(entry: Entry) -> JsonObject | None:
    """Return the data of a head record, or `None` if it has none."""
    data = entry.body.data if isinstance(entry.body, Custom) else None
    return data if is_object(data) else None


def read_rename(entry: Entry) -> tuple[str, str] | None:
    """Return the old and the new name of the branch that a line renames."""
    data = _read_record_data(entry) if entry.is_head_record else None
    return None if data is None else parse_head_record(data).renamed


def is_activity(entry: Entry) -> bool:
    """Return whether a line continues the session: a message, a setting or a move. Names and labels do not."""
    if not entry.is_annotation:
        return True
    data = _read_record_data(entry) if entry.is_head_record else None
    return data is not None and "from" in data


def is_full_record(entry: Entry) -> bool:
    """Return whether a line is a head record that alone determines all heads and the current branch."""
    data = _read_record_data(entry) if entry.is_head_record else None
    return data is not None and parse_head_record(data).is_full
