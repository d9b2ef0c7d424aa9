"""Fan out: continue from one place in several ways at the same time, each on its own branch.

The current branch does not move. `ops.merge.promote` continues from one of the branches, with a summary of the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from sessiontree.agent.agent_input import describe_value, resolve_model
from sessiontree.agent.factory import AgentOptions, BranchTask, open_branch_agent, run_task
from sessiontree.agent.loop import Outcome
from sessiontree.config import Config
from sessiontree.core.context import build_shared_context
from sessiontree.core.place_names import check_branch_name, find_free_name
from sessiontree.errors import InvalidOperation, SessionTreeError
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import Event
from sessiontree.model.base import Model
from sessiontree.session import Branch, Place, Session

VariantListener: TypeAlias = Callable[[str, Event], None]
"""Called with every event and the name of its branch. It must not block."""


DEFAULT_OPTIONS = AgentOptions()


class Variant(BranchTask, frozen=True, kw_only=True):
    """One way to continue."""

    model: Model | str | None = None
    """The model or its name; by default the model that all variants share."""


class Attempt(Struct, frozen=True, kw_only=True):
    """The result of a variant."""

    branch: Branch
    outcome: Outcome


async def fan_out(
    session: Session,
    place: Place,
    variants: Iterable[Variant | str],
    *,
    model: Model | str | None = None,
    options: AgentOptions = DEFAULT_OPTIONS,
    hooks: Hooks | None = None,
    watch: VariantListener | None = None,
) -> list[Attempt]:
    """Run every variant on its own branch, at the same time, and return the results in order.

    A string is a prompt. If a variant fails, its outcome has the error, and the others continue. An unexpected
    exception becomes the cause of that error. Cancelling the call aborts all variants and waits until they have
    written their entries. Raises `InvalidOperation` and writes nothing if a variant cannot start.
    """
    tasks = _read_variants(variants)
    leaf = session.resolve_place(place)
    models = _pick_models(tasks, model, options.settings, Hooks() if hooks is None else hooks)
    names = _pick_branch_names(session, tasks)
    if any(task.prompt is None for task in tasks) and not build_shared_context(session.tree, leaf).awaits_answer:
        raise InvalidOperation("no message to answer at this place: give every variant a prompt")
    at = None if leaf is None else session.tree[leaf]
    branches = [session.create_branch(name, at=at, current=False) for name in names]

    if len(tasks) == 1 and options.folder is None:
        options = replace(options, folder="shared")  # a single agent: no other one changes files

    async def run_variant(task: Variant, branch: Branch, model: Model) -> Attempt:
        async with open_branch_agent(branch, model, hooks, options) as agent:
            if watch is not None:
                agent.hooks.listen(partial(watch, branch.name))
            try:
                outcome = await run_task(agent, task.prompt)
            except SessionTreeError as error:
                outcome = Outcome(error=error)
            except Exception as error:  # noqa: BLE001 - the results of the other variants must not be lost
                outcome = Outcome(error=_wrap_error(error))
        return Attempt(branch=branch, outcome=outcome)

    results = await asyncio.gather(*map(run_variant, tasks, branches, models), return_exceptions=True)
    for failed in results:
        if isinstance(failed, BaseException):
            raise failed
    return [result for result in results if isinstance(result, Attempt)]


def _wrap_error(error: Exception) -> SessionTreeError:
    """Return an unexpected exception as the error of an outcome."""
    fault = SessionTreeError(f"{type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def _read_variants(variants: Iterable[Variant | str]) -> list[Variant]:
    if isinstance(variants, str | Variant):
        raise InvalidOperation(f"variants is a list of prompts or st.Variant, not {describe_value(variants)}")
    tasks = [Variant(prompt=variant) if isinstance(variant, str) else variant for variant in variants]
    for task in tasks:
        if not isinstance(task, Variant):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise InvalidOperation(f"a variant is a prompt or an st.Variant, not {describe_value(task)}")
    if not tasks:
        raise InvalidOperation("no variants given")
    return tasks


def _pick_models(tasks: Sequence[Variant], default: Model | str | None, settings: Config, hooks: Hooks) -> list[Model]:
    chosen = [task.model or default for task in tasks]
    if None in chosen:
        raise InvalidOperation("a variant has no model, and no default model is set")
    return [resolve_model(model, settings, hooks) for model in chosen]


def _pick_branch_names(session: Session, tasks: Sequence[Variant]) -> list[str]:
    """Return a free branch name for each variant."""
    taken = set(session.heads.heads)
    names: list[str] = []
    for task in tasks:
        name = find_free_name("variant", taken) if task.name is None else task.name
        check_branch_name(name)
        if name in taken:
            raise InvalidOperation(f"branch {name!r} already exists")
        taken.add(name)
        names.append(name)
    return names
