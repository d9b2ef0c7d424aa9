"""Fanning out: the same place continued in several ways at once, each on a branch of its own.

Nobody is moved: the current branch stays where it was. `ops.merge.promote` makes one of the branches the way on, with a
summary of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from msgspec import Struct

from sessiontree.agent.agent import Agent
from sessiontree.agent.loop import Outcome
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.system_prompt import SystemPart
from sessiontree.agent.tool import Tool
from sessiontree.config import Config
from sessiontree.core.context import build_shared_context
from sessiontree.core.places import check_branch_name, find_free_name
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Event
from sessiontree.model.base import Model
from sessiontree.session import Branch, Place, Session

VariantListener: TypeAlias = Callable[[str, Event], None]
"""Is shown every event, with the name of the branch that it is of. It must not wait."""


class Variant(Struct, frozen=True, kw_only=True):
    """One way to go on."""

    prompt: str | None = None
    """What is said; `None` has the model answer what is there."""
    model: Model | None = None
    """By default the one that all have."""
    name: str | None = None
    """Of its branch; by default numbered."""


class Attempt(Struct, frozen=True, kw_only=True):
    """What came of a variant."""

    branch: Branch
    outcome: Outcome


async def fan_out(
    session: Session,
    place: Place,
    variants: Iterable[Variant | str],
    *,
    model: Model | None = None,
    tools: Sequence[Tool] = (),
    hooks: Hooks | None = None,
    settings: Config | None = None,
    system: str | Sequence[SystemPart] | None = None,
    thinking: str | None = None,
    watch: VariantListener | None = None,
    permissions: Permissions | None = None,
) -> list[Attempt]:
    """Go on from a place in several ways at the same time, and return what came of each, in their order.

    A variant that is a text is a prompt. One that fails says so in its outcome and does not disturb the others; an
    error that is none of ours is the cause of the one there. Cancelling it aborts them all, and waits until that is
    written down. Raises `InvalidOperation`, with nothing written, where a variant could not begin.
    """
    ways = [Variant(prompt=variant) if isinstance(variant, str) else variant for variant in variants]
    leaf = session.resolve_place(place)
    models = _pick_models(ways, model)
    names = _pick_branch_names(session, ways)
    if any(way.prompt is None for way in ways) and not build_shared_context(session.tree, leaf).awaits_answer:
        raise InvalidOperation("there is nothing to answer at this place: give every variant a prompt")
    at = None if leaf is None else session.tree[leaf]
    branches = [session.create_branch(name, at=at, current=False) for name in names]

    async def run_variant(way: Variant, branch: Branch, model: Model) -> Attempt:
        shared = Hooks() if hooks is None else hooks
        own = shared.derive(replace(shared.context, session=session, branch=branch, agent=None))
        if watch is not None:
            own.listen(partial(watch, branch.name))
        agent = Agent(
            branch, model, tools, own, system=system, settings=settings, thinking=thinking, permissions=permissions
        )
        try:
            outcome = await (agent.continue_() if way.prompt is None else agent.prompt(way.prompt))
        except SessionTreeError as error:
            outcome = Outcome(error=error)
        except Exception as error:  # noqa: BLE001 - what came of the others must not be lost for it
            outcome = Outcome(error=_wrap_error(error))
        finally:
            agent.close()
        return Attempt(branch=branch, outcome=outcome)

    made = await asyncio.gather(*map(run_variant, ways, branches, models), return_exceptions=True)
    for failed in made:
        if isinstance(failed, BaseException):
            raise failed
    return [each for each in made if isinstance(each, Attempt)]


def _wrap_error(error: Exception) -> SessionTreeError:
    """What nobody foresaw, as the error of an outcome."""
    fault = SessionTreeError(f"{type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def _pick_models(ways: Sequence[Variant], usual: Model | None) -> list[Model]:
    if not ways:
        raise InvalidOperation("there is no variant to try")
    models = [way.model or usual for way in ways]
    found = [model for model in models if model is not None]
    if len(found) < len(models):
        raise InvalidOperation("a variant has no model, and there is none for all")
    return found


def _pick_branch_names(session: Session, ways: Sequence[Variant]) -> list[str]:
    """A name for each branch that no other has."""
    taken = set(session.heads.heads)
    names: list[str] = []
    for way in ways:
        name = find_free_name("variant", taken) if way.name is None else way.name
        check_branch_name(name)
        if name in taken:
            raise InvalidOperation(f"there is a branch {name!r} already")
        taken.add(name)
        names.append(name)
    return names
