"""Experiments: runs on separate branches, results that survive the process, and correct winners."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from typing import Any

import pytest

import sessiontree as st
from sessiontree.config import Prices
from sessiontree.core.entries import Custom
from sessiontree.core.messages import ToolCall
from sessiontree.errors import InvalidOperation, NotFound
from sessiontree.hooks.bus import Hooks
from sessiontree.model.base import ModelError, ModelInfo, Request
from sessiontree.model.scripted import Delay, ScriptedModel, ScriptedStop, ScriptedUsage, Thinking
from sessiontree.ops.merge import promote
from sessiontree.session import Session
from sessiontree.swarm.budget import Budget
from sessiontree.swarm.experiment.experiment import (
    Arm,
    Experiment,
    RunProgress,
    build_result_json,
    list_experiments,
)
from sessiontree.swarm.experiment.experiment import (
    experiment as run_experiment,
)
from sessiontree.swarm.experiment.scoring import Candidate, exact, judge_with, matches, score_with
from tests.agent.conftest import format_messages

ARMS = [Arm(name="short", prompt="In one word."), Arm(name="long", prompt="At length.")]


@pytest.fixture
def session() -> Session:
    session = st.memory()
    session.append(st.user("How much is 6 times 7?"))
    session.append(st.assistant("Shall I be brief?"))
    return session


@st.tool
def look() -> str:
    """Look."""
    return "seen"


@st.tool
def touch() -> str:
    """Touch."""
    return "felt"


def read_prompt(request: Request) -> str:
    return str(request.messages[-1]["content"])


def build_model(*, name: str = "scripted", **costs: float) -> ScriptedModel:
    """Return a model without an end. An answer costs the price of a word in its prompt, and slightly more each time."""
    number = itertools.count(1)

    def answer(request: Request) -> list[Any]:
        cost = next((cost for word, cost in costs.items() if word in read_prompt(request)), 0.01)
        return [
            "42" if "one" in read_prompt(request) else "It is 42.",
            ScriptedUsage({"input": 10, "cost": cost + next(number) / 1e6}),
        ]

    model = ScriptedModel([], info=ModelInfo(provider="scripted", model=name))
    model.add(*[answer] * 100)
    return model


async def test_each_run_has_its_own_branch_and_no_branch_moves(session: Session) -> None:
    leaf = session.head.leaf

    result = await run_experiment(session, "HEAD", ARMS, runs=2, model=build_model())

    assert [run.branch for run in result.runs] == ["ab-1/short-1", "ab-1/long-1", "ab-1/short-2", "ab-1/long-2"]
    assert format_messages(session.branch("ab-1/long-2"))[2:] == ["user: At length.", "assistant: It is 42."]
    assert (session.heads.current, session.head.leaf) == ("main", leaf)
    assert result.at == leaf
    assert not session.problems


async def test_a_clearly_cheaper_arm_wins(session: Session) -> None:
    result = await run_experiment(session, "HEAD", ARMS, runs=30, model=build_model(one=0.01, length=0.05))

    assert result.winner == "short"
    assert result.reason.startswith("lowest cost: $0.0")
    short, long = result.arms
    assert short.failed == 0
    cost = long.metrics["cost"]
    assert cost.low is not None
    assert cost.high is not None
    assert 0.04 < cost.low < 0.05 < cost.high < 0.06
    assert long.metrics["tokens"].mean == 10
    assert result.best == min((run for run in result.runs if run.arm == "short"), key=lambda run: run.cost).branch


async def test_arms_with_similar_costs_have_no_winner(session: Session) -> None:
    result = await run_experiment(session, "HEAD", ARMS, runs=5, model=build_model())

    assert result.winner is None
    assert (
        result.reason == "not enough data: short and long do not differ significantly by cost"
        or "long and short" in result.reason
    )
    assert result.best is None


async def test_one_run_of_each_is_not_enough(session: Session) -> None:
    result = await run_experiment(session, "HEAD", ARMS, runs=1, model=build_model(one=0.01, length=0.05))

    assert result.reason == "not enough data: short and long have fewer than two runs"


async def test_a_model_that_reports_no_cost_is_not_the_cheapest(session: Session) -> None:
    free = ScriptedModel(["42"] * 5)

    result = await run_experiment(
        session, "HEAD", [ARMS[0], Arm(name="free", prompt="Free.", model=free)], runs=5, model=build_model()
    )

    assert result.reason == "not enough data: runs of free have no recorded cost"


async def test_the_arms_take_turns_in_an_order_that_depends_on_the_seed(session: Session) -> None:
    def list_order(model: ScriptedModel) -> list[str]:
        return [read_prompt(request) for request in model.requests]

    models = [build_model() for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        await run_experiment(session, "HEAD", ARMS, runs=8, model=model, seed=seed, concurrency=1)

    first, again, other = map(list_order, models)
    assert all(set(first[at : at + 2]) == {"In one word.", "At length."} for at in range(0, 16, 2))
    assert first == again
    assert first != other


async def test_concurrent_runs_are_limited(session: Session) -> None:
    running = most = 0
    together = asyncio.Barrier(3)

    async def answer(request: Request) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        async with asyncio.timeout(60):
            await together.wait()  # three run at the same time
        running -= 1
        return "42"

    await run_experiment(session, "HEAD", ARMS, runs=3, model=ScriptedModel([answer] * 6), concurrency=3)

    assert most == 3


async def test_arms_may_be_models_that_answer_the_last_message(session: Session) -> None:
    question = session.append(st.user("Which?")).id
    arms = [Arm(name=name, model=build_model(name=name)) for name in ("small", "large")]

    result = await run_experiment(session, question, arms, runs=2, metric="time")

    assert [session.branch(run.branch).context().state.model for run in result.runs] == ["small", "large"] * 2


async def test_arms_may_differ_in_their_settings(session: Session) -> None:
    model = build_model()
    arms = [
        Arm(name="plain", prompt="Go.", system="Be plain."),
        Arm(name="deep", prompt="Go.", system="Be deep.", thinking="high"),
    ]

    await run_experiment(session, "HEAD", arms, runs=1, model=model)

    assert sorted((request.system, request.thinking) for request in model.requests) == [
        ("Be deep.", "high"),
        ("Be plain.", "off"),
    ]


async def test_models_are_found_by_name(session: Session) -> None:
    asked: list[str] = []

    def model_of(name: str) -> ScriptedModel:
        asked.append(name)
        return build_model(name=name)

    await run_experiment(
        session, "HEAD", [Arm(name=name, prompt="Go.", model=name) for name in "ab"], model_of=model_of
    )

    assert asked == ["a", "b"]


@pytest.mark.parametrize(
    ("arms", "options", "reason"),
    [
        ([], {}, "at least two arms"),
        (ARMS[:1], {}, "at least two arms"),
        ([ARMS[0], ARMS[0]], {}, "two arms have the same name"),
        ([*ARMS, Arm(name="quiet")], {}, "this place has no message to answer"),
        ([*ARMS, Arm(name="a~b", prompt="Go.")], {}, "name"),
        (ARMS, {"model": None}, "an arm has no model"),
        (ARMS, {"metric": "beauty"}, "unknown metric 'beauty'; metrics: cost, tokens, time, exact"),
        (ARMS, {"runs": 0}, "at least 1 run of each arm"),
        (ARMS, {"runs": 10**9}, "too many"),
        (ARMS, {"concurrency": 0}, "concurrency must be at least 1, not 0"),
        (ARMS, {"budget": Budget(cost=0)}, "a budget of 0 dollars is invalid"),
        (ARMS, {"budget": Budget(seconds=math.inf)}, "a budget of inf seconds is invalid"),
        (ARMS, {"name": "main"}, "branch 'main' already exists"),
    ],
)
async def test_an_invalid_experiment_is_refused_before_anything_is_written(
    session: Session, arms: list[Arm], options: dict[str, Any], reason: str
) -> None:
    before = len(session.tree)

    with pytest.raises(InvalidOperation, match=reason):
        await run_experiment(session, "HEAD", arms, **{"model": build_model(), "scorers": [exact("42")], **options})

    assert len(session.tree) == before


# Failures


async def test_a_run_that_fails_leaves_the_others_and_there_is_no_winner(session: Session) -> None:
    broken = ScriptedModel([ModelError("m", "auth", "no key"), *["42"] * 4])
    arms = [ARMS[0], Arm(name="shaky", prompt="Go.", model=broken)]

    result = await run_experiment(session, "HEAD", arms, runs=5, model=build_model(), metric="time")

    (failed,) = [run for run in result.runs if not run.ok]
    assert (failed.arm, failed.error) == ("shaky", "m: no key")
    assert [(arm.n, arm.failed) for arm in result.arms] == [(5, 0), (4, 1)]
    assert result.arms[1].failure_rate.mean == 0.2
    assert result.winner is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (["half of an ans", ScriptedStop("length")], "its answer was cut off"),
        ([Thinking("Hm.")], "it answered nothing"),
    ],
)
async def test_a_run_without_a_complete_answer_fails(session: Session, answer: list[Any], why: str) -> None:
    cheap = ScriptedModel([[*answer, ScriptedUsage({"input": 1, "cost": 1e-6})]] * 5)
    arms = [ARMS[0], Arm(name="cut", prompt="Go.", model=cheap)]

    result = await run_experiment(session, "HEAD", arms, runs=5, model=build_model())

    assert {run.error for run in result.runs if run.arm == "cut"} == {why}
    assert result.arms[1].failure_rate.mean == 1.0
    assert result.winner is None


async def test_failed_runs_are_repeated_on_request(session: Session) -> None:
    broken = ScriptedModel([ModelError("m", "auth", "no key"), *["42"] * 2])
    arms = [ARMS[0], Arm(name="shaky", prompt="Go.", model=broken)]
    first = await run_experiment(session, "HEAD", arms, runs=2, model=build_model())

    same = await Experiment.open(session, first.name, model=broken).run()
    again = await Experiment.open(session, first.name, model=broken, retry_failed=True).run()

    assert same == first
    assert all(run.ok for run in again.runs)
    assert again.arms[1].failed == 1
    (failed,) = [run for run in first.runs if not run.ok]
    assert f"{failed.branch}.2" in [run.branch for run in again.runs]
    assert session.branch(failed.branch).info.archived
    assert len(broken.requests) == 3


async def test_a_failed_run_is_a_wrong_answer_and_does_not_prevent_a_winner(session: Session) -> None:
    flaky = ScriptedModel([*["41"] * 3, ModelError("m", "rejected", "I cannot"), *["41"] * 20])
    arms = [ARMS[0], Arm(name="flaky", prompt="Go.", model=flaky)]

    result = await run_experiment(
        session, "HEAD", arms, runs=20, model=build_model(), scorers=[exact("42")], metric="exact", concurrency=1
    )

    assert result.winner == "short"
    share = result.arms[1].metrics["exact"]
    assert (share.mean, share.n) == (0.0, len(result.runs) // 2)


async def test_an_arm_that_fails_more_often_does_not_win_by_the_cost_of_the_rest(session: Session) -> None:
    passes = ["42", ScriptedUsage({"input": 1, "cost": 0.0001})]
    flaky = ScriptedModel([passes, ModelError("m", "rejected", "I cannot"), *[passes] * 40])
    arms = [ARMS[1], Arm(name="flaky", prompt="Go.", model=flaky)]
    options: dict[str, Any] = {"runs": 30, "model": build_model(), "concurrency": 1}

    result = await run_experiment(session, "HEAD", arms, **options)
    counted = await run_experiment(session, "HEAD", arms, **options, failed_score=0.05)

    assert result.winner is None
    assert "flaky has the best cost, but failed more often" in result.reason
    assert counted.winner == "flaky"


async def test_runs_stop_when_there_is_a_winner_and_can_be_added(session: Session) -> None:
    model = build_model(one=0.01, length=0.05)
    first = await run_experiment(session, "HEAD", ARMS, runs=8, model=model, concurrency=1)
    assert (first.winner, first.planned, len(first.runs)) == (None, 16, 16)

    opened = Experiment.open(session, first.name, model=model, concurrency=1)
    opened.add_runs(20)
    again = await opened.run()

    assert (again.winner, again.planned) == ("short", 56)
    assert 16 < len(again.runs) < 30
    assert again.trend is not None
    assert [point.pairs for point in again.trend.points][-1] == len(again.runs) // 2
    assert await Experiment.open(session, first.name, model=model).run() == again
    whole = await Experiment.open(session, first.name, model=model, stop_early=False).run()
    assert (whole.winner, len(whole.runs)) == ("short", 56)


async def test_a_fixed_design_has_no_winner_before_its_end_and_takes_no_more_runs(session: Session) -> None:
    model = build_model(one=0.01)
    seen: list[str | None] = []

    def watch(_: RunProgress) -> None:
        seen.append(Experiment.open(session, "ab-1", model=model).result().winner)

    result = await run_experiment(
        session,
        "HEAD",
        ARMS,
        runs=10,
        model=model,
        scorers=[exact("42")],
        metric="exact",
        design="fixed",
        watch=watch,
        concurrency=1,
    )

    assert (result.winner, result.reason) == ("short", "highest exact: 1 more than long")
    assert len(result.runs) == 20
    assert set(seen[:-1]) == {None}
    with pytest.raises(InvalidOperation, match="fixed number of runs"):
        Experiment.open(session, "ab-1", model=model).add_runs(5)


async def test_runs_start_from_branches_of_other_sessions(session: Session) -> None:
    other = st.memory()
    other.append(st.user("How much is 9 times 9?"))
    other.append(st.assistant("Shall I be brief?"))
    other.label("HEAD", "nine")
    fork = session.fork()
    fork.append(st.user("And with two decimals?"))
    before = len(other.tree.entries)

    result = await run_experiment(
        session, "HEAD", ARMS, places=[other.head, fork.head], runs=6, model=build_model(), stop_early=False
    )

    assert result.places == (session.head.leaf, other.head.leaf, fork.head.leaf)
    questions = {
        run.branch: next(entry.text for entry in session.branch(run.branch).path() if entry.type == "message")
        for run in result.runs
    }
    assert [questions[f"ab-1/short-{number}"] for number in (1, 2, 3)] == [
        "How much is 6 times 7?",
        "How much is 9 times 9?",
        "How much is 6 times 7?",
    ]
    copied = [entry.text for entry in session.branch("ab-1/place-3").path() if entry.type == "message"]
    assert copied == ["How much is 6 times 7?", "Shall I be brief?", "And with two decimals?"]
    assert sum(entry.text == "Shall I be brief?" for entry in session.tree.entries) == 2
    assert (session.head.name, len(other.tree.entries)) == ("main", before)
    assert not session.problems
    assert list_experiments(session) == [result]


async def test_an_empty_branch_of_another_session_is_refused(session: Session) -> None:
    before = len(session.tree.entries)
    with pytest.raises(InvalidOperation, match="no entries to start from"):
        await run_experiment(session, "HEAD", ARMS, places=[st.memory().head], model=build_model())
    silent = [Arm(name="a"), Arm(name="b", thinking="low")]
    asked, answered = st.memory(), st.memory()
    asked.append(st.user("Hello"))
    answered.append(st.assistant("Hello"))
    with pytest.raises(InvalidOperation, match="no message to answer"):
        await run_experiment(asked, "HEAD", silent, places=[answered.head], runs=2, model=build_model())
    assert len(session.tree.entries) == before


async def test_runs_start_from_several_places_in_turns(session: Session) -> None:
    second = session.append(st.user("And 7 times 8?")).id

    result = await run_experiment(session, "HEAD~1", ARMS, places=["HEAD"], runs=4, model=build_model())

    assert result.places == (result.at, second)
    starts = [second in [entry.id for entry in session.branch(run.branch).path()] for run in result.runs]
    assert starts == [False, False, True, True, False, False, True, True]
    with pytest.raises(InvalidOperation, match="one run of each arm for every place"):
        await run_experiment(session, "HEAD", ARMS, places=["HEAD~1"], runs=1, model=build_model())


async def test_an_experiment_that_repeats_an_earlier_one_says_so(session: Session) -> None:
    await run_experiment(session, "HEAD", ARMS, runs=2, model=build_model())

    again = await run_experiment(session, "HEAD", ARMS, runs=3, model=build_model())
    other = await run_experiment(session, "HEAD", ARMS, runs=2, model=build_model(), metric="tokens")

    assert (again.repeats, other.repeats) == (("ab-1",), ())


async def test_an_unexpected_exception_is_raised_after_runs_in_progress_finish(session: Session) -> None:
    def raise_fault(request: Request) -> str:
        raise ZeroDivisionError

    arms = [Arm(name="bad", prompt="Go.", model=ScriptedModel([raise_fault] * 9)), ARMS[0]]

    with pytest.raises(ZeroDivisionError):
        await run_experiment(
            session, "HEAD", arms, runs=3, model=ScriptedModel([[Delay(0.05), "42"]] * 9), concurrency=2
        )

    (found,) = list_experiments(session)
    assert [run.arm for run in found.runs] == ["short"]


# Resuming in another process


class Killed(BaseException):
    """Simulates the end of the process: nothing more is written."""


def reopen(session: Session) -> Session:
    session.close()
    return st.open(session.id)


@pytest.fixture
def file_session() -> Session:
    session = st.create("sums")
    session.append(st.user("How much is 6 times 7?"))
    return session


async def test_results_are_read_back_from_the_session_alone(file_session: Session) -> None:
    result = await run_experiment(
        file_session, "HEAD", ARMS, runs=3, scorers=[exact("42"), matches("42")], metric="exact", model=build_model()
    )

    with reopen(file_session) as again:
        assert list_experiments(again) == [result]
        assert not again.problems


async def test_a_killed_experiment_resumes_without_repeating_finished_runs(file_session: Session) -> None:
    model = build_model()
    made: list[RunProgress] = []

    def kill(step: RunProgress) -> None:
        made.append(step)
        if [step.state for step in made].count("done") == 3:
            raise Killed

    with pytest.raises(Killed):
        await run_experiment(file_session, "HEAD", ARMS, runs=3, model=model, watch=kill, concurrency=1)
    with reopen(file_session) as session:
        (found,) = list_experiments(session)
        assert (len(found.runs), found.winner) == (3, None)
        assert found.reason == "not enough data: 3 of 6 runs are done"

        result = await Experiment.open(session, found.id[:8], model=model).run()

    assert len(model.requests) == 6
    assert len(result.runs) == 6
    assert all(run in result.runs for run in found.runs)


@pytest.mark.parametrize("state", ["started", "scoring"])
async def test_a_killed_run_is_repeated_and_an_answered_run_is_only_scored(file_session: Session, state: str) -> None:
    model = build_model()

    def kill(step: RunProgress) -> None:
        if step.state == state:
            raise Killed

    with pytest.raises(Killed):
        await run_experiment(
            file_session, "HEAD", ARMS, runs=1, scorers=[exact("42")], model=model, watch=kill, concurrency=1
        )
    asked = len(model.requests)

    with reopen(file_session) as session:
        result = await Experiment.open(session, "ab-1", model=model).run()
        archived = [info.name for info in session.branches if info.archived]

    assert asked == (0 if state == "started" else 1)
    assert len(model.requests) == 2
    assert len(archived) == (1 if state == "started" else 0)
    assert [run.scores["exact"] for run in result.runs] == [1.0, 0.0]


async def test_a_resumed_experiment_uses_its_original_tools(session: Session) -> None:
    model = build_model()
    Experiment.create(session, "HEAD", ARMS, runs=1, model=model, tools=[look])
    Experiment.create(session, "HEAD", ARMS, runs=1, model=model)

    await Experiment.open(session, "ab-1", model=model, tools=[touch, look]).run()
    await Experiment.open(session, "ab-2", model=model, tools=[touch, look]).run()

    assert [[tool.name for tool in request.tools] for request in model.requests] == [["look"]] * 2 + [[]] * 2


async def test_a_resume_without_the_original_tools_is_refused(session: Session) -> None:
    Experiment.create(session, "HEAD", ARMS, runs=1, model=build_model(), tools=[look, touch])

    with pytest.raises(InvalidOperation, match="started with the tool look, which is not available here"):
        await Experiment.open(session, "ab-1", model=build_model(), tools=[touch]).run()


async def test_a_finished_experiment_opens_without_its_tools(session: Session) -> None:
    done = await run_experiment(session, "HEAD", ARMS, runs=1, model=build_model(), tools=[look])

    again = Experiment.open(session, "ab-1", model=build_model())

    assert again.result() == await again.run() == done


async def test_a_plan_without_tool_names_resumes_with_the_given_tools(session: Session) -> None:
    Experiment.create(session, "HEAD", ARMS, runs=1, model=build_model())
    (plan,) = (entry.body for entry in session.tree if entry.type == "custom")
    assert isinstance(plan, Custom)
    before = {name: value for name, value in plan.data.items() if name != "tools"}
    old = Custom(custom_type=plan.custom_type, data={**before, "experiment": "0" * 32, "name": "old"})
    session.create_branch("old", at="HEAD").append(old)
    model = build_model()

    await Experiment.open(session, "old", model=model, tools=[look]).run()

    assert [[tool.name for tool in request.tools] for request in model.requests] == [["look"]] * 2


async def test_changes_of_another_process_are_visible(file_session: Session) -> None:
    here = Experiment.create(file_session, "HEAD", ARMS, runs=1, model=build_model())
    with st.open(file_session.id) as beside:
        there = Experiment.open(beside, here.id, model=ScriptedModel())
        result = await here.run()

        assert await there.run() == result


async def test_one_process_at_a_time_runs_an_experiment(file_session: Session) -> None:
    async def answer(request: Request) -> str:
        with (
            st.open(file_session.id) as beside,
            pytest.raises(InvalidOperation, match="another process is running experiment"),
        ):
            await Experiment.open(beside, "ab-1", model=build_model()).run()
        return "42"

    result = await run_experiment(file_session, "HEAD", ARMS, runs=1, model=ScriptedModel([answer] * 2))

    assert all(run.ok for run in result.runs)


async def test_a_cancelled_experiment_aborts_its_runs_and_can_resume(session: Session) -> None:
    slow = ScriptedModel([["So", Delay(30)]] * 2)
    going = asyncio.create_task(run_experiment(session, "HEAD", ARMS, runs=1, model=slow))
    async with asyncio.timeout(60):
        while len(slow.requests) < 2:
            await asyncio.sleep(0.01)

    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(going, 20)
    result = await Experiment.open(session, "ab-1", model=build_model()).run()

    assert session.branch("ab-1/short-1").path()[-1].body.message["stopReason"] == "aborted"
    assert sorted(run.branch for run in result.runs) == ["ab-1/long-1.2", "ab-1/short-1.2"]


async def test_an_experiment_is_found_by_its_name_or_its_id(session: Session) -> None:
    first = await run_experiment(session, "HEAD", ARMS, runs=1, model=build_model())
    second = await run_experiment(session, "HEAD", ARMS, runs=1, model=build_model(), name="again")

    assert [found.name for found in list_experiments(session)] == ["ab-1", "again"]
    for id in (second.id, second.id[:8], "again"):
        assert Experiment.open(session, id, model=build_model()).id == second.id
    with pytest.raises(NotFound, match="experiments: ab-1, again"):
        Experiment.open(session, first.id[:3], model=build_model())


async def test_branches_that_were_renamed_are_followed(session: Session) -> None:
    model = build_model()
    made = Experiment.create(session, "HEAD", ARMS, runs=2, model=model, budget=Budget(tokens=10), concurrency=1)
    first = await made.run()
    session.rename_branch("ab-1", "tone")
    session.rename_branch(first.runs[0].branch, "kept")

    result = await Experiment.open(session, "tone", model=model).run()

    assert (result.name, result.id) == ("tone", first.id)
    assert "kept" in [run.branch for run in result.runs]
    assert sum(run.branch.startswith("tone/") for run in result.runs) == 3
    assert made.result() == result
    assert list_experiments(session) == [result]


async def test_an_experiment_can_be_renamed_while_it_runs(session: Session) -> None:
    def rename(step: RunProgress) -> None:
        if step.state == "scoring" and "ab-1" in session.heads.heads:
            session.rename_branch("ab-1", "tone")

    result = await run_experiment(session, "HEAD", ARMS, runs=2, model=build_model(), watch=rename, concurrency=1)

    assert (result.name, len(result.runs)) == ("tone", 4)


async def test_a_function_scorer_must_be_passed_again(session: Session) -> None:
    def length(candidate: Candidate) -> int:
        return len(candidate.text)

    await run_experiment(session, "HEAD", ARMS, runs=1, scorers=[score_with(length)], model=build_model())

    with pytest.raises(InvalidOperation, match="'length' is a Python function"):
        Experiment.open(session, "ab-1", model=build_model())
    assert Experiment.open(session, "ab-1", model=build_model(), scorers=[score_with(length)]).name == "ab-1"


@pytest.mark.parametrize(
    "data",
    [
        None,
        7,
        {"kind": "plan"},
        {"kind": "plan", "experiment": "x", "name": "x", "at": None, "arms": [], "runs": 10**18, "metric": "cost"},
        {"kind": "run", "made": {"experiment": "x"}},
        {"kind": "???"},
    ],
)
async def test_invalid_records_are_ignored(session: Session, data: Any) -> None:
    await run_experiment(session, "HEAD", ARMS, runs=1, model=build_model())
    session.append(Custom(custom_type="sessiontree.experiment", data=data))
    session.append(st.AgentAction(action="spawn", agent="x", data={"experiment": data}))

    assert [found.name for found in list_experiments(session)] == ["ab-1"]


async def test_extremely_large_values_are_ignored(session: Session) -> None:
    result = await run_experiment(session, "HEAD", ARMS, runs=2, model=build_model())
    record = next(entry for entry in session.branch("ab-1").path()[::-1] if entry.custom_type is not None)
    assert isinstance(record.body, Custom)
    data = {**record.body.data, "cost": 1e308}
    session.append(Custom(custom_type="sessiontree.experiment", data=data), branch="ab-1")

    (found,) = list_experiments(session)

    assert found.winner is None
    assert "have no recorded cost" in found.reason
    assert result.winner is None


# Scores


async def test_a_score_decides_if_it_is_the_metric(session: Session) -> None:
    result = await run_experiment(
        session,
        "HEAD",
        ARMS,
        runs=10,
        scorers=[exact("42"), matches("42")],
        metric="exact",
        model=build_model(),
        concurrency=1,
    )

    assert (result.winner, result.better) == ("short", "higher")
    assert result.reason.startswith("highest exact: 1 more than long (95% confidence interval: 0.04")
    share = result.arms[0].metrics["exact"]
    assert (share.n, share.mean, share.high) == (7, 1.0, 1.0)
    assert share.low == pytest.approx(0.5214, abs=1e-4)
    assert [arm.metrics["matches"].mean for arm in result.arms] == [1.0, 1.0]


async def test_the_cost_of_the_judge_is_counted_separately(session: Session) -> None:
    judge = ScriptedModel([["GRADE: 4", ScriptedUsage({"input": 100, "cost": 0.5})]] * 4)

    result = await run_experiment(
        session, "HEAD", ARMS, runs=2, scorers=[judge_with(judge)], metric="judge", model=build_model()
    )

    assert (result.judging_cost, result.judging_tokens) == (2.0, 400)
    assert max(run.cost for run in result.runs) < 0.1
    stats = st.compare(session, [run.branch for run in result.runs[:2]]).branches
    assert max(each.cost for each in stats) < 0.1
    assert sum(entry.type == "usage" for entry in session.tree) == 4
    assert all(run.scores == {"judge": 4.0} for run in result.runs)


async def test_the_judge_does_not_see_the_arm(session: Session) -> None:
    judge = ScriptedModel(["GRADE: 4"] * 4)

    await run_experiment(session, "HEAD", ARMS, runs=2, scorers=[judge_with(judge)], model=build_model())

    for request in judge.requests:
        assert len(request.messages) == 1
        told = request.system + read_prompt(request)
        assert not any(word in told for word in ("short", "long", "ab-1", "arm"))


async def test_a_run_without_a_score_means_no_winner_until_it_is_scored(session: Session) -> None:
    info = ModelInfo(provider="scripted", model="judge")
    judge = ScriptedModel([*["GRADE: 5"] * 9, "Hm.", "Hm.", "GRADE: 5"], info=info)
    seen: list[str] = []

    def length(candidate: Candidate) -> int:
        seen.append(candidate.text)
        return len(candidate.text)

    scorers = [judge_with(judge), score_with(length)]
    options = {"scorers": scorers, "model": build_model(), "concurrency": 1}
    first = await run_experiment(session, "HEAD", ARMS, runs=5, metric="judge", **options)
    again = await Experiment.open(session, "ab-1", **options).run()

    assert "have no value for judge" in first.reason
    assert next(run for run in first.runs if run.scores["judge"] is None).notes["judge"].endswith("requested format")
    assert again.reason in (
        "not enough data: short and long have the same judge",
        "not enough data: long and short have the same judge",
    )
    assert (len(judge.requests), len(seen)) == (12, 10)  # existing scores are kept
    assert {run.scores["length"] for run in again.runs} == {2.0, 9.0}
    assert again.judging_tokens > first.judging_tokens


# Budgets


async def test_an_experiment_stops_at_its_budget_and_resumes_with_a_larger_one(session: Session) -> None:
    model = build_model()

    first = await run_experiment(session, "HEAD", ARMS, runs=3, model=model, budget=Budget(tokens=35), concurrency=1)
    more = await Experiment.open(session, "ab-1", model=model, budget=Budget(tokens=50), concurrency=1).run()
    rest = await Experiment.open(session, "ab-1", model=model).run()

    assert len(first.runs) == 4
    assert first.reason == "not enough data: 4 of 6 runs are done: the budget is used up: 40 of 35 tokens"
    assert len(more.runs) == 5
    assert len(rest.runs) == len(model.requests) == 6


async def test_a_budget_is_exceeded_only_by_calls_in_progress(session: Session) -> None:
    number = itertools.count()

    def answer(request: Request) -> list[Any]:
        return [ToolCall(f"c{next(number)}", "look", {}), ScriptedUsage({"input": 10})]

    model = ScriptedModel([answer] * 100)

    result = await run_experiment(
        session, "HEAD", ARMS, runs=2, model=model, tools=[look], budget=Budget(tokens=60), concurrency=2
    )

    assert 6 <= len(model.requests) <= 7
    assert result.runs == ()
    assert "the budget is used up" in result.reason


async def test_a_judge_is_not_paid_beyond_the_budget(session: Session) -> None:
    model, judge = build_model(), ScriptedModel([["GRADE: 4", ScriptedUsage({"input": 100})]] * 2)
    scorers = [judge_with(judge)]

    first = await run_experiment(
        session, "HEAD", ARMS, runs=1, scorers=scorers, model=model, budget=Budget(tokens=10), concurrency=1
    )
    asked = len(judge.requests)
    again = await Experiment.open(session, "ab-1", scorers=scorers, model=model, budget=Budget(tokens=1000)).run()

    assert (first.runs, asked) == ((), 0)
    assert len(again.runs) == len(model.requests) == 2  # the first was only scored


def build_unpriced_model(usage: dict[str, Any], **info: Any) -> ScriptedModel:
    """Return a model that reports only this usage."""
    return ScriptedModel([["42", ScriptedUsage(usage)]] * 20, info=ModelInfo(provider="p", model="m", **info))


@pytest.mark.parametrize(
    ("budget", "usage", "why"),
    [
        (Budget(cost=1), {"input": 10}, "the cost limit cannot be enforced: the cost of p:m is unknown"),
        (Budget(tokens=9), {"cost": 1}, "the token limit cannot be enforced: p:m does not report its tokens"),
    ],
)
async def test_an_unenforceable_limit_stops_an_experiment_until_the_limit_is_removed(
    session: Session, budget: Budget, usage: dict[str, Any], why: str
) -> None:
    model = build_unpriced_model(usage)

    first = await run_experiment(session, "HEAD", ARMS, runs=2, model=model, budget=budget, concurrency=1)
    rest = await Experiment.open(session, "ab-1", model=model, budget=Budget(seconds=1000)).run()

    assert first.reason == f"not enough data: 1 of 4 runs are done: {why}"
    assert len(rest.runs) == len(model.requests) == 4


async def test_a_cost_limit_works_for_a_free_model(session: Session) -> None:
    free = build_unpriced_model({"input": 10}, prices=Prices())

    result = await run_experiment(session, "HEAD", ARMS, runs=2, model=free, budget=Budget(cost=0.01))

    assert len(result.runs) == 4


async def test_a_judge_with_unknown_cost_is_not_asked_again(session: Session) -> None:
    judge = ScriptedModel([["GRADE: 4", ScriptedUsage({"input": 10})]] * 9, info=ModelInfo(provider="p", model="judge"))

    result = await run_experiment(
        session,
        "HEAD",
        ARMS,
        runs=2,
        model=build_model(),
        scorers=[judge_with(judge)],
        budget=Budget(cost=1),
        concurrency=1,
    )

    assert result.reason.endswith("the cost limit cannot be enforced: the cost of p:judge is unknown")
    assert len(judge.requests) == 1


# Watching and promoting


async def test_watch_reports_the_start_and_end_of_every_run(session: Session) -> None:
    steps: list[RunProgress] = []

    await run_experiment(session, "HEAD", ARMS, runs=2, model=build_model(), watch=steps.append)

    assert sorted({step.branch for step in steps}) == ["ab-1/long-1", "ab-1/long-2", "ab-1/short-1", "ab-1/short-2"]
    for branch in {step.branch for step in steps}:
        assert [step.state for step in steps if step.branch == branch] == ["started", "scoring", "done"]
    assert steps[-1].done == steps[-1].planned == 4
    assert all((step.run is not None) == (step.state == "done") for step in steps)


async def test_handlers_get_the_branch_of_their_agent(session: Session) -> None:
    hooks, seen = Hooks(), set[str]()
    hooks.on("before_message", lambda event, context: seen.add(context.branch.name))

    await run_experiment(session, "HEAD", ARMS, runs=1, model=build_model(), hooks=hooks)

    assert seen == {"ab-1/short-1", "ab-1/long-1"}


async def test_the_best_run_can_be_promoted(session: Session) -> None:
    result = await run_experiment(session, "HEAD", ARMS, runs=30, model=build_model(one=0.01, length=0.05))
    assert result.best is not None

    await promote(session.branch(result.best), session.head, hooks=Hooks(), summary="The others cost more.")

    assert format_messages(session.head)[-1] == "assistant: 42"
    assert "The others cost more." in str(session.head.context().to_llm()[-1])
    assert all(session.branch(run.branch).info.archived for run in result.runs)


async def test_the_wire_form_has_everything(session: Session) -> None:
    result = await run_experiment(session, "HEAD", ARMS, runs=1, scorers=[exact("42")], model=build_model())

    wire = build_result_json(result)

    assert set(wire) >= {
        "id",
        "name",
        "sessionId",
        "at",
        "metric",
        "better",
        "planned",
        "arms",
        "runs",
        "winner",
        "best",
    }
    assert wire["judgingCost"] == 0
    assert set(wire["arms"][0]) == {
        "arm",
        "n",
        "failed",
        "failureRate",
        "failedCost",
        "failedTokens",
        "metrics",
    }
    assert set(wire["arms"][0]["metrics"]["exact"]) == {"n", "mean", "low", "high", "deviation"}


# False winners


@pytest.mark.parametrize("length", [0.01, 0.03])
async def test_with_noisy_costs_equal_arms_rarely_win_and_different_arms_do(length: float) -> None:
    chance = random.Random(7)
    named = 0
    for _ in range(12):
        session = st.memory()

        def answer(request: Request) -> list[Any]:
            cost = length if "length" in read_prompt(request) else 0.01
            return ["42", ScriptedUsage({"input": 1, "cost": chance.gauss(cost, 0.002)})]

        result = await run_experiment(session, "root", ARMS, runs=20, model=ScriptedModel([answer] * 40), concurrency=1)
        named += result.winner is not None

    assert named <= 2 if length == 0.01 else named >= 11  # one in twenty, plus the variation of so few trials
