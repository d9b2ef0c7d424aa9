"""The host of a run: the part of the agent's interface that a run uses.

The model, the tools and the thinking level may change during a run, so the run reads them when it needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from sessiontree.agent.abort import AbortController
from sessiontree.agent.permissions import Permissions
from sessiontree.agent.queues import Queues
from sessiontree.agent.run_writer import RunWriter
from sessiontree.agent.tool import Tool
from sessiontree.config import Config
from sessiontree.core.entries import JsonObject
from sessiontree.hooks.bus import Hooks
from sessiontree.model.base import Model


class PendingWrite(NamedTuple):
    """A message that could not be written, and the writer that it belongs to."""

    writer: RunWriter
    message: JsonObject


class RunHost(Protocol):
    model: Model
    thinking: str
    cwd: str
    settings: Config
    hooks: Hooks
    queues: Queues
    abort_controller: AbortController
    pending_writes: list[PendingWrite]
    permissions: Permissions | None

    @property
    def tools(self) -> Mapping[str, Tool]: ...
