"""What tests of agents share: a session in memory, an agent on it that answers from a script, and what was written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sessiontree as st
from sessiontree.agent.agent import Agent
from sessiontree.core.entries import Entry, Message
from sessiontree.core.messages import extract_text, get_role
from sessiontree.hooks.bus import Hooks
from sessiontree.hooks.events import EVENT_NAMES, Event
from sessiontree.model.scripted import ScriptedModel
from sessiontree.session import Branch, Session

MakeAgent = Callable[..., Agent]


@pytest.fixture
def session() -> Session:
    return st.memory()


@pytest.fixture
def agent(session: Session) -> MakeAgent:
    """An agent on the current branch, with these answers to come."""

    def make(*answers: Any, **options: Any) -> Agent:
        options.setdefault("system", "Be brief.")
        options.setdefault("branch", session.head)
        return Agent(options.pop("branch"), options.pop("model", None) or ScriptedModel(answers), **options)

    return make


def scripted(agent: Agent) -> ScriptedModel:
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


def said(branch: Branch) -> list[str]:
    """The messages on a branch's path, each as `role: text`."""
    return [f"{get_role(message)}: {extract_text(message.get('content'))}" for message in messages(branch.path())]


def messages(entries: list[Entry]) -> list[dict[str, Any]]:
    return [entry.body.message for entry in entries if isinstance(entry.body, Message)]


def last(branch: Branch) -> dict[str, Any]:
    return messages(branch.path())[-1]


def sent(agent: Agent, index: int = -1) -> list[str]:
    """What a request had in it, each message as `role: text`."""
    return [
        f"{get_role(message)}: {extract_text(message.get('content'))}"
        for message in scripted(agent).requests[index].messages
    ]


def recorded(hooks: Hooks) -> list[Event]:
    events: list[Event] = []
    hooks.listen(events.append)
    return events


def names(events: list[Event]) -> list[str]:
    """Names of events in their order, deltas left out."""
    return [name for event in events if (name := EVENT_NAMES[type(event)]) != "message_delta"]


def alive(mark: str) -> list[str]:
    """Processes, zombies aside, that have `mark` among their arguments."""
    found: list[str] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in command and int(pid) != os.getpid():
            found.append(command)
    return found
