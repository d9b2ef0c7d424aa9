"""Orders: a piece of work as it is sent to workers, and what comes back. Values alone."""

from __future__ import annotations

from urllib.parse import quote

import msgspec
from msgspec import Struct

from sessiontree.swarm.executor import Work

WORKFLOW = "sessiontree.agent"
"""The name that work is sent under."""


class Order(Struct, frozen=True, kw_only=True):
    """Work, and where to do it."""

    work: Work
    where: str
    """The session's file or address, or its id where all have the same database."""
    tools: tuple[str, ...] | None = None
    """The only tools that the agent may use; by default all that the worker has."""
    system: str | None = None
    """Takes the place of the whole system prompt."""
    thinking: str | None = None


class Report(Struct, frozen=True, kw_only=True):
    """What came of an order, beside what stands in the session."""

    error: str | None = None
    """Why it could not be carried out at all."""


def beginning(work: Work) -> str:
    """What the ids of all orders for an agent begin with."""
    return f"{work.swarm}/{quote(work.agent, safe='')}/"


def encoded(value: Struct) -> str:
    return msgspec.json.encode(value).decode()


def order_of(text: str) -> Order:
    return msgspec.json.decode(text, type=Order)


def report_of(text: str) -> Report:
    return msgspec.json.decode(text, type=Report)
