"""The asynchronous methods of `Branch`: operations with forgiving arguments.

Hooks are optional, a model may be given by its name, and by default it is the one of the branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sessiontree.config import CompactionSettings
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.model.base import Model
from sessiontree.model.selection import find_model
from sessiontree.ops.compact import CompactOutcome, compact, uncompact
from sessiontree.ops.merge import (
    DEFAULT_REQUEST,
    CopyOutcome,
    MergeOutcome,
    cherry_pick,
    find_other_branches,
    merge,
    promote,
    rebase,
)
from sessiontree.ops.move_files import FilesChoice
from sessiontree.ops.navigate import NavigateOutcome, navigate
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Branch, Place


def resolve_model(branch: Branch, model: Model | str | None) -> Model:
    """Return a model given as itself or by its name; by default the model of the branch.

    Raises `InvalidOperation` if the branch has none, and what `find_model` raises.
    """
    if model is not None and not isinstance(model, str):
        return model
    name = branch.state.model_name if model is None else model
    if name is None:
        raise InvalidOperation('a summary needs a model; pass model="provider:model", or your own summary')
    return find_model(name)


def _build_request(
    branch: Branch, summary: str | None, instructions: str | None, model: Model | str | None
) -> SummaryRequest:
    if summary is not None:
        return SummaryRequest.from_value(summary)
    return SummaryRequest(model=resolve_model(branch, model), instructions=instructions)


async def navigate_branch(
    branch: Branch,
    place: Place,
    *,
    summarize: bool | str,
    instructions: str | None,
    model: Model | str | None,
    label: str | None,
    hooks: Hooks | None,
    files: FilesChoice,
) -> NavigateOutcome:
    own = summarize if isinstance(summarize, str) else None
    request = None if summarize is False else _build_request(branch, own, instructions, model)
    return await navigate(
        branch.session, place, hooks=hooks or Hooks(), summary=request, label=label, branch=branch, files=files
    )


async def compact_branch(
    branch: Branch,
    summary: str | None,
    *,
    instructions: str | None,
    model: Model | str | None,
    settings: CompactionSettings | None,
    hooks: Hooks | None,
) -> CompactOutcome:
    request = _build_request(branch, summary, instructions, model)
    return await compact(branch, hooks or Hooks(), summary=request, settings=settings or CompactionSettings())


async def merge_branch(
    into: Branch,
    source: Place,
    summary: str | None,
    *,
    instructions: str | None,
    model: Model | str | None,
    hooks: Hooks | None,
) -> MergeOutcome:
    into.session.resolve_place(source)  # a wrong place is reported before a missing model
    request = _build_request(into, summary, instructions, model)
    return await merge(source, into, hooks=hooks or Hooks(), summary=request)


async def promote_branch(
    into: Branch,
    winner: Branch | str,
    summary: str | None,
    *,
    over: Iterable[Branch | str] | None,
    instructions: str | None,
    model: Model | str | None,
    hooks: Hooks | None,
) -> MergeOutcome:
    def find(branch: Branch | str) -> Branch:
        return branch if isinstance(branch, Branch) else into.session.branch(branch)

    best = find(winner)
    if isinstance(over, str):
        raise InvalidOperation(f"over needs a list of branches, not {over!r}")
    rest = find_other_branches(into, best) if over is None else [find(branch) for branch in over]
    request = _build_request(into, summary, instructions, model) if rest or summary is not None else DEFAULT_REQUEST
    return await promote(best, into, rest, hooks=hooks or Hooks(), summary=request)


async def uncompact_branch(branch: Branch, *, hooks: Hooks | None) -> NavigateOutcome:
    return await uncompact(branch, hooks or Hooks())


async def rebase_branch(branch: Branch, onto: Place, *, hooks: Hooks | None) -> CopyOutcome:
    return await rebase(branch, onto, hooks=hooks or Hooks())


async def cherry_pick_branch(into: Branch, places: Sequence[Place], *, hooks: Hooks | None) -> CopyOutcome:
    return await cherry_pick(into, places, hooks=hooks or Hooks())
