import copy
import importlib
import pickle
import pkgutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import msgspec
import pytest
from msgspec import Struct

import sessiontree as st
from sessiontree.acp.editor_client import EditorError, EditorRefusal
from sessiontree.agent.loop import RunStopped
from sessiontree.agent.mcp_client.server_specs import McpServerError
from sessiontree.agent.run_writer import UnsavedMessages
from sessiontree.agent.sandbox import SandboxUnavailable
from sessiontree.agent.structured_output import InvalidOutput
from sessiontree.agent.tool import ToolError
from sessiontree.agent.tools.bash_tool import CommandError
from sessiontree.config import ConfigError
from sessiontree.errors import (
    Ambiguous,
    BranchMoved,
    Conflict,
    FormatError,
    InvalidOperation,
    LockTimeout,
    NotFound,
    OutcomeUnknown,
    ReadOnly,
    SessionTreeError,
    StoreError,
    describe_validation_error,
)
from sessiontree.extensions.project_trust import ExtensionError
from sessiontree.files.git_command import SnapshotError, SnapshotsUnavailable
from sessiontree.files.restore import NothingRestored
from sessiontree.library.index.session_summary import OversizedLine
from sessiontree.model.base import ModelError
from sessiontree.model.selection import NoModel
from sessiontree.ops.summarize import SummaryFailed
from sessiontree.session.state import NeedsEarlierLines
from sessiontree.store.base import FenceRaised
from sessiontree.swarm.budget_enforcement import BudgetExhausted
from sessiontree.swarm.durable.database import TablesMissing
from sessiontree.swarm.scheduler import SwarmFailed

ONE_OF_EACH = [
    SessionTreeError("no"),
    NotFound("branch", "gone", "there is main"),
    Ambiguous("entry", "ab", ["abc", "abd"]),
    FormatError("a.jsonl:3", "no JSON"),
    InvalidOperation("that makes no sense"),
    ReadOnly("a.jsonl", "it is newer"),
    BranchMoved("main", None, "abc"),
    StoreError("a.jsonl", "no space"),
    Conflict("a.jsonl", "somebody wrote"),
    LockTimeout("a.jsonl.lock", 30.0, 4711, True),
    OutcomeUnknown("a.jsonl", "the line was lost"),
    FenceRaised("postgresql://host/db", "another worker writes for job 1 now"),
    TablesMissing("postgresql://host/db", "the job tables are missing, and this role may not create them"),
    UnsavedMessages(StoreError("a.jsonl", "no space"), [{"role": "assistant"}], "/tmp/unsaved.jsonl"),
    SandboxUnavailable("bubblewrap is not installed"),
    OversizedLine("a.jsonl", "too long"),
    ModelError("p:m", "rate", "slow down", status=429, retry_after=2.5),
    NoModel(None, "there is no key"),
    SummaryFailed("p:m", "it is empty"),
    ConfigError("config.toml", "compaction.enabled", "no number"),
    CommandError("ls", "no shell"),
    ToolError("there is no such file"),
    RunStopped("a handler cancelled the run"),
    InvalidOutput("Answer", "a field is missing"),
    ExtensionError("mine", "it failed"),
    SwarmFailed("nobody is left"),
    SnapshotError("git write-tree failed with code 128"),
    SnapshotsUnavailable("no snapshots of /"),
    NothingRestored("the disk is full"),
    McpServerError("docs", "it ended with code 1"),
    EditorError("the editor is gone"),
    EditorRefusal("the editor refused to write a.txt"),
    NeedsEarlierLines("cannot use a.jsonl from a signal handler during a write"),
    BudgetExhausted("p:m", "the budget is used up: 3 of 2 tokens"),
]


def list_classes(base: type[Exception] = SessionTreeError) -> Iterator[type[Exception]]:
    yield base
    for kind in base.__subclasses__():
        yield from list_classes(kind)


def test_every_error_class_has_an_example_above() -> None:
    for module in pkgutil.walk_packages(st.__path__, "sessiontree."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    public = {kind for kind in list_classes() if kind.__module__.startswith("sessiontree.") and kind.__name__[0] != "_"}

    assert public == {type(error) for error in ONE_OF_EACH}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_its_message_and_attributes(error: SessionTreeError, protocol: int) -> None:
    back = pickle.loads(pickle.dumps(error, protocol))

    assert collect_facts(back) == collect_facts(error)


def collect_facts(error: BaseException) -> tuple[object, ...]:
    """Return the message and attributes of an error. Errors do not compare equal, and one may contain another."""
    held = {
        name: collect_facts(value) if isinstance(value, BaseException) else value for name, value in vars(error).items()
    }
    return type(error), str(error), error.args, held


def test_an_error_can_be_copied_with_its_notes() -> None:
    error = NotFound("branch", "gone")
    error.add_note("while looking for it")

    for made in (copy.copy(error), copy.deepcopy(error)):
        assert (str(made), vars(made)) == ("branch 'gone' not found", vars(error))


def switch_to(branch: str) -> None:
    st.memory().switch(branch)


def test_an_error_in_a_worker_process_reaches_the_caller_and_keeps_the_pool_usable() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with pytest.raises(NotFound, match="place 'nowhere' not found") as caught:
            pool.submit(switch_to, "nowhere").result(timeout=60)

        assert caught.value.name == "nowhere"
        assert pool.submit(switch_to, "main").result(timeout=60) is None


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    count: int = 0


class Shape(Struct, forbid_unknown_fields=True):
    name: str
    inner: Inner = Inner()
    several: list[Inner] = []


@pytest.mark.parametrize(
    ("value", "where", "why"),
    [
        ({}, "name", "required, but missing"),
        ({"name": "x", "nmae": "y"}, "nmae", "unknown field"),
        ({"name": "x", "inner": {"amount": 1}}, "inner.amount", "unknown field"),
        ({"name": "x", "several": [{}, {"amount": 1}]}, "several[1].amount", "unknown field"),
        ({"name": 1}, "name", "expected str, got int"),
        ([], "", "expected object, got array"),
    ],
)
def test_a_validation_error_names_the_location_and_the_reason(value: Any, where: str, why: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(value, Shape)

    assert describe_validation_error(raised.value, "field") == (where, why)
