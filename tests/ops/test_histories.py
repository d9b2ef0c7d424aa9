"""Random sequences of operations: nothing is lost, the file equals the live session, every call has a result."""

import asyncio
import itertools
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as some

import sessiontree as st
from sessiontree.core.messages import ToolCall, get_answered_call, get_tool_calls
from sessiontree.errors import InvalidOperation
from sessiontree.hooks.bus import Hooks
from sessiontree.model.scripted import ScriptedModel
from sessiontree.ops.compact import compact, uncompact
from sessiontree.ops.merge import cherry_pick, merge, promote, rebase
from sessiontree.ops.navigate import navigate
from sessiontree.ops.summarize import SummaryRequest
from sessiontree.session import Branch, Session
from sessiontree.store.memory import MemoryStore


class History:
    """A session with operations that are chosen by two numbers each."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        ids, clock = itertools.count(1), itertools.count(1_700_000_000_000)
        self.session = Session.create(self.store, id="s", now=lambda: next(clock), new_id=lambda: f"{next(ids):016x}")
        self.calls = itertools.count()
        self.names = (f"b{number}" for number in itertools.count(1))
        self.hooks = Hooks()
        self.model = ScriptedModel([lambda request: "S"] * 1_000)

    def get_branch(self, number: int) -> Branch:
        names = list(self.session.heads.heads)
        return self.session.branch(names[number % len(names)])

    def get_place(self, number: int) -> st.Entry | None:
        entries = [None, *self.session.tree]
        return entries[number % len(entries)]

    async def step(self, action: int, a: int, b: int) -> None:
        actions = [self.talk, self.talk, self.call, self.call, self.late, self.begin, self.navigate, self.navigate]
        actions += [self.compact, self.compact, self.uncompact, self.merge, self.cherry_pick, self.rebase, self.promote]
        actions += [self.undo, self.edit]
        await actions[action % len(actions)](a, b)

    async def talk(self, a: int, b: int) -> None:
        self.get_branch(a).extend([st.user("question " * (b + 1)), st.assistant("answer " * (a + 1))])

    async def call(self, a: int, b: int) -> None:
        branch = self.get_branch(a)
        made = [st.tool_call(f"c{next(self.calls)}", "read", {"path": f"{b}.py"}) for _ in range(1 + b % 3)]
        stop = "aborted" if b % 7 == 0 else None
        branch.append(st.assistant(made, stop_reason=stop))
        branch.extend([st.tool_result(call["id"], "read", "text " * (a + 1)) for call in made[: 1 + a % 3]])

    async def late(self, a: int, b: int) -> None:
        self.session.append(st.tool_result(f"c{a}", "read", "late"), parent=self.get_place(b), branch=None)

    async def begin(self, a: int, b: int) -> None:
        self.session.create_branch(next(self.names), at=self.get_place(a), current=b % 2 == 0)

    async def navigate(self, a: int, b: int) -> None:
        summary = None if b % 2 else SummaryRequest(model=self.model)
        label = "x" if b % 3 == 0 and self.get_place(a) is not None else None
        await navigate(self.session, self.get_place(a), hooks=self.hooks, summary=summary, label=label)

    async def compact(self, a: int, b: int) -> None:
        await compact(
            self.get_branch(a),
            self.hooks,
            summary=SummaryRequest(model=self.model),
            reason="manual" if b % 2 else "threshold",
        )

    async def uncompact(self, a: int, b: int) -> None:
        await uncompact(self.get_branch(a), self.hooks)

    async def merge(self, a: int, b: int) -> None:
        await merge(self.get_branch(a), self.get_branch(b), hooks=self.hooks, summary=SummaryRequest(model=self.model))

    async def cherry_pick(self, a: int, b: int) -> None:
        await cherry_pick(self.get_branch(a), [self.get_place(b), self.get_place(a * 7 + b)], hooks=self.hooks)

    async def rebase(self, a: int, b: int) -> None:
        await rebase(self.get_branch(a), self.get_place(b), hooks=self.hooks)

    async def promote(self, a: int, b: int) -> None:
        await promote(
            self.get_branch(a), self.get_branch(b), hooks=self.hooks, summary=SummaryRequest(model=self.model)
        )

    async def undo(self, a: int, b: int) -> None:
        self.session.undo()

    async def edit(self, a: int, b: int) -> None:
        branch = self.get_branch(a)
        path = [entry for entry in branch.path() if entry.type == "message"]
        if path:
            replacement = {"content": "edited"} if b % 2 else None
            branch.append(st.ContextEdit(target=path[b % len(path)].id, replacement=replacement))


def dump_state(session: Session) -> Any:
    heads = session.heads
    return dict(heads.heads), heads.current, set(heads.archived), heads.undoable, dict(session.tree.labels)


def has_paired_calls(messages: list[dict[str, Any]]) -> bool:
    """Return whether every call has its result right after its turn, and every result its call."""
    waiting: list[str] = []
    for message in messages:
        call = get_answered_call(message)
        if call is None:
            if waiting:
                return False
            waiting = [made.id for made in get_tool_calls(message)]
        elif call in waiting:
            waiting.remove(call)
        else:
            return False
    return not waiting


steps = some.lists(some.tuples(*[some.integers(0, 99)] * 3), max_size=30)


@given(steps)
def test_any_sequence_of_operations_leaves_a_valid_session_that_reads_back_equal(history) -> None:
    async def play() -> None:
        played = History()
        session = played.session
        for step in history:
            before, lines = dump_state(session), session.read_lines()
            try:
                await played.step(*step)
            except InvalidOperation:
                assert (dump_state(session), session.read_lines()) == (before, lines)
            assert session.read_lines()[: len(lines)] == lines
            assert dump_state(Session(played.store)) == dump_state(session)
            assert not [problem for problem in session.problems if problem.severity == "fault"]
            for name in session.heads.heads:
                assert has_paired_calls(session.branch(name).context().to_llm())

    asyncio.run(play())


@given(steps, some.integers(0, 99), some.sampled_from(["into", "winner", "other"]))
def test_undoing_a_promotion_restores_every_branch(history, number, on) -> None:
    async def play() -> None:
        played = History()
        session = played.session
        for step in history:
            with suppress(InvalidOperation):
                await played.step(*step)
        into = played.get_branch(number)
        ways = {name: session.create_branch(name, at=into.name, current=False) for name in ("winner", "other")}
        for way in ways.values():
            way.append(st.user("on"))
        here = session.switch({"into": into, **ways}[on].name)
        heads, archived = dict(session.heads.heads), set(session.heads.archived)

        await promote(ways["winner"], into, hooks=played.hooks, summary=SummaryRequest(model=played.model))
        assert (session.head, ways["other"].name in session.heads.archived) == (into, True)
        session.undo()

        assert (session.heads.heads, session.head) == (heads, here)
        assert session.heads.archived == archived - {into.name}
        assert dump_state(Session(played.store)) == dump_state(session)

    asyncio.run(play())


def test_the_pair_check_detects_a_result_without_its_call() -> None:
    call = st.assistant([st.tool_call("c", "read", {})]).message

    assert has_paired_calls([call, st.tool_result("c", "read", "x").message])
    assert not has_paired_calls([call])
    assert not has_paired_calls([call, st.user("hi").message])
    assert not has_paired_calls([st.tool_result("c", "read", "x").message])
    assert list(get_tool_calls(call)) == [ToolCall("c", "read", {})]
