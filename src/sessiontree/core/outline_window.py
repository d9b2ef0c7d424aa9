"""Outline window: the shape of the entries around a place, for trees that take long to survey as a whole.

`core.outline.lay_out` builds rows from it as from a whole shape. An entry whose parent is before the window is a root
of the shape.
"""

from __future__ import annotations

from itertools import chain

from sessiontree.core.entries import EntryId, read_raws
from sessiontree.core.outline import TreeShape
from sessiontree.core.tree import SpanWalk, Tree
from sessiontree.core.tree_rows import decode_message, find_place, get_kind, iter_spans


def survey_window(tree: Tree, leaf: EntryId | None, around: EntryId | None, entries: int) -> TreeShape:
    """Survey about `entries` entries in drawing order, half of them before `around`. Only these are decoded."""
    place = find_place(tree, leaf, around)
    first = max(0, place - entries // 2)
    spans = list(iter_spans(tree, leaf, first, first + entries))
    found = list(chain.from_iterable(span.iter_entries() for span in spans))
    walk = SpanWalk(tree, leaf)
    shape = TreeShape(tree, None)
    shape.ids = [entry.id for entry in found]
    shape.positions = {id: position for position, id in enumerate(shape.ids)}
    for id in shape.ids:
        parent = tree.parent(id)
        shape.parent_positions.append(-1 if parent is None else shape.positions.get(parent, -1))
        if walk.is_on_path(tree.get_index(id)):
            shape.path.add(id)
    shape.leaf = leaf if leaf in shape.positions else None
    shape.kinds = bytearray(len(found))
    order = sorted(range(len(found)), key=[entry.line for entry in found].__getitem__)
    for position, raw in zip(order, read_raws(map(found.__getitem__, order)), strict=True):
        entry = found[position]
        shape.kinds[position] = get_kind(entry, decode_message(entry, raw)[1])
    return shape
