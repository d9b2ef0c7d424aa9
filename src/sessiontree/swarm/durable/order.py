"""Orders: a piece of work as it is sent to workers, and what comes back. Values alone."""

from __future__ import annotations

from urllib.parse import quote

import msgspec
from msgspec import Struct

from sessiontree.swarm.executor import SwarmJob

WORKFLOW = "sessiontree.agent"
"""The name that work is sent under."""


class JobRequest(Struct, frozen=True, kw_only=True):
    """Work, and where to do it."""

    work: SwarmJob
    where: str
    """The session's file or address, or its id where all have the same database."""
    tools: tuple[str, ...] | None = None
    """The only tools that the agent may use; by default all that the worker has."""
    system: str | None = None
    """Takes the place of the whole system prompt."""
    thinking: str | None = None


class JobReport(Struct, frozen=True, kw_only=True):
    """What came of an order, beside what stands in the session."""

    error: str | None = None
    """Why it could not be carried out at all."""


def build_id_prefix(job: SwarmJob) -> str:
    """What the ids of all orders for an agent begin with."""
    return f"{job.swarm}/{quote(job.agent, safe='')}/"


def encode(value: Struct) -> str:
    return msgspec.json.encode(value).decode()


def decode_request(text: str) -> JobRequest:
    return msgspec.json.decode(text, type=JobRequest)


def decode_report(text: str) -> JobReport:
    return msgspec.json.decode(text, type=JobReport)
