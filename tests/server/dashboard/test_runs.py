"""A/B runs and swarms in the dashboard, from the form to the results, with a scripted model."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import sessiontree as st
from sessiontree.config import ThinkingLevel
from sessiontree.core.messages import ToolCall
from sessiontree.export.redact import Redactor
from sessiontree.model.base import ModelError, Request
from sessiontree.model.scripted import Delay, Script, ScriptedModel, ScriptedUsage
from sessiontree.swarm.experiment.experiment import Arm, Experiment
from sessiontree.swarm.lease import open_lease
from sessiontree.swarm.strategies import STRATEGIES
from sessiontree.swarm.swarm import Swarm
from tests.export.sessions import make_story
from tests.server.dashboard.conftest import Serve, Visit
from tests.server.dashboard.held_requests import HeldRequests
from tests.server.dashboard.site import open_story, write_session_file


def build_priced_answer(text: str, cost: float) -> list[Any]:
    return [text, ScriptedUsage({"input": 100, "output": 10, "cost": {"input": 0, "output": cost, "total": cost}})]


def answer_by_prompt(seed: int = 1) -> Script:
    """Return a model whose detailed answers cost more. No two costs are equal."""
    chance = random.Random(seed)

    def answer(request: Request) -> list[Any]:
        wordy = "detail" in str(request.messages[-1])
        cost = (0.03 if wordy else 0.01) * chance.uniform(0.9, 1.1)
        return build_priced_answer("It is slow because it is long." if wordy else "A list is slow.", cost)

    return answer


def start_swarm(page: Any, *, agents: int) -> None:
    """Start a swarm from the form."""
    page.get_by_label("Name").fill("review")
    page.get_by_role("textbox", name="Task").fill("Look at it.")
    page.get_by_label("Agents", exact=True).fill(str(agents))
    page.get_by_role("button", name="Start", exact=True).click()


def start_experiment(page: Any, runs: int, arms: dict[str, str], pattern: str | None = None) -> None:
    page.wait_for_selector("form.ab")
    for index, (name, prompt) in enumerate(arms.items()):
        if index > 1:
            page.get_by_role("button", name="Add arm").click()
        arm = page.locator(".arm").nth(index)
        arm.get_by_label("Name").fill(name)
        arm.get_by_label("Prompt", exact=True).fill(prompt)
    if pattern is not None:
        page.get_by_label("Add scorer").last.select_option("matches")
        page.get_by_label("The answer matches the pattern").fill(pattern)
    page.get_by_label("Runs per arm").fill(str(runs))
    page.get_by_role("button", name="Run", exact=True).click()


def test_the_forms_offer_all_strategies_and_all_levels_of_thinking(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve()
    options = "(select) => [...select.options].map((option) => option.value)"

    page = visit(site, "/swarms")
    assert page.get_by_label("Strategy").evaluate(options) == list(STRATEGIES)
    page.goto(f"{site.url}/#/s/{session.id}/ab")
    page.wait_for_selector("form.ab")
    assert page.locator("select[name='A.thinking']").evaluate(options) == ["", *get_args(ThinkingLevel)]


def test_an_experiment_runs_from_the_form_to_the_promoted_branch(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = visit(serve(ScriptedModel([answer_by_prompt()] * 80)), f"/s/{session.id}/ab")

    start_experiment(page, 40, {"short": "In one sentence?", "long": "In detail?"}, pattern="(?i)list")
    page.wait_for_selector(".verdict.won")

    assert "short is best." in " ".join(page.locator(".verdict").text_content().split())
    charts = page.locator(".chart svg").evaluate_all("all => all.map((svg) => svg.getAttribute('aria-label'))")
    assert [chart.split(":")[0] for chart in charts] == ["cost", "tokens", "time", "matches", "cost"]
    assert "95 % confidence interval" in charts[-1]
    assert page.locator(".chart").first.locator(".whisker").count() == 2
    page.locator(".result summary").click()
    done = page.locator(".result tbody tr").count()
    assert 14 <= done < 80  # it stopped when there was a winner

    page.get_by_role("button", name="Promote the best run of short").click()
    page.locator("dialog textarea").fill("Long answers cost three times as much.")
    page.locator("dialog").get_by_role("button", name="Promote").click()
    page.wait_for_function(
        "() => document.querySelector('.path')?.textContent.includes('Long answers cost three times as much.')"
    )
    assert "A list is slow." in page.locator(".path").text_content()
    session.refresh()
    assert session.heads.current == "dict"
    assert {branch.name for branch in session.branches if branch.archived}


def test_the_cost_of_a_run_is_unknown_if_no_entry_records_it(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = visit(serve(ScriptedModel(["Yes."] * 2)), f"/s/{session.id}/ab")

    start_experiment(page, 1, {"one": "Why?", "other": "Why so?"})

    page.wait_for_selector(".verdict")
    page.get_by_text("2 runs").click()
    assert [row.locator("td").nth(1).text_content() for row in page.locator(".result tbody tr").all()] == ["–", "–"]


def test_equal_arms_are_reported_as_not_enough_data(serve: Serve, visit: Visit) -> None:
    session = open_story()
    costs = {arm: iter((0.01, 0.02, 0.03)) for arm in ("Why so?", "Why?")}

    def answer(request: Request) -> list[Any]:
        said = str(request.messages[-1])
        return build_priced_answer("The same.", next(next(own for arm, own in costs.items() if arm in said)))

    page = visit(serve(ScriptedModel([answer] * 6)), f"/s/{session.id}/ab")

    start_experiment(page, 3, {"one": "Why?", "other": "Why so?"})

    page.wait_for_selector(".verdict.undecided")
    assert "Not enough data." in page.locator(".verdict").text_content()
    assert page.get_by_role("button", name="Promote the best run").count() == 0
    page.reload()
    page.wait_for_selector(".verdict.undecided")


def test_running_experiments_show_progress_and_can_be_stopped(serve: Serve, visit: Visit) -> None:
    session = open_story()
    answers: list[Script] = [build_priced_answer("Quick.", 0.01), *([["Slow ", Delay(60)]] * 9)]
    page = visit(serve(ScriptedModel(answers)), f"/s/{session.id}/ab")

    start_experiment(page, 2, {"one": "Why?", "other": "Why so?"})
    page.wait_for_function("() => document.querySelector('.progress b')?.textContent === '1 of 4 runs'")
    page.locator(".progress").get_by_role("button", name="Stop").click()

    page.wait_for_selector(".experiments > .notice.wrong")
    assert "stopped" in page.locator(".experiments > .notice.wrong").text_content()


def test_a_failed_request_for_runs_is_retried(serve: Serve, visit: Visit) -> None:
    session = open_story()
    page = visit(serve(ScriptedModel([build_priced_answer("Quick.", 0.01)] * 2)), f"/s/{session.id}/ab")
    held = HeldRequests(page, "**/api/experiments/*", most=1)
    start_experiment(page, 1, {"one": "Why?", "other": "Why so?"})
    held.wait()

    held.lose()

    page.wait_for_selector(".notice.wrong >> text=cannot reach the server")
    page.wait_for_selector(".verdict")
    assert page.locator(".notice.wrong").count() == 0


def record_experiment_requests(page: Any) -> list[str]:
    """Record the requests of a page for single experiments."""
    asked: list[str] = []

    def note(request: Any) -> None:
        if "/api/experiments/" in request.url:
            asked.append(request.url)

    page.on("request", note)
    return asked


def test_a_fork_shows_an_experiment_as_of_the_fork_and_does_not_poll(serve: Serve, visit: Visit) -> None:
    session, model = open_story(), ScriptedModel(["Yes."] * 2)
    arms = [Arm(name="one", prompt="Why?"), Arm(name="other", prompt="Why so?")]
    made = Experiment.create(session, "HEAD", arms, runs=1, model=model)
    forked = session.fork(whole=True)
    hold = open_lease(session, made.id)
    assert hold.acquire()
    site = serve()
    page = visit(site)
    page.clock.install()
    asked = record_experiment_requests(page)

    page.goto(f"{site.url}/#/s/{forked.id}/ab?experiment={made.id}")
    page.wait_for_selector(".verdict")
    page.clock.run_for(5000)

    page.wait_for_timeout(100)
    assert len(asked) == 1
    assert page.locator(".verdict").count() == 1
    assert page.locator(".progress").count() == 0
    hold.release()


def test_a_missing_experiment_is_requested_once(serve: Serve, visit: Visit) -> None:
    session, site = open_story(), serve()
    page = visit(site)
    page.clock.install()
    asked = record_experiment_requests(page)

    page.goto(f"{site.url}/#/s/{session.id}/ab?experiment=none")
    page.wait_for_selector(".experiments > .notice.wrong")
    page.clock.run_for(5000)

    page.wait_for_timeout(100)
    assert len(asked) == 1


def test_a_failed_request_for_a_swarm_is_retried(serve: Serve, visit: Visit) -> None:
    page = visit(serve(ScriptedModel([["Words that come ", Delay(60)]])), "/swarms")
    start_swarm(page, agents=1)
    page.wait_for_selector(".agent-text.live >> text=Words that come")
    held = HeldRequests(page, re.compile("/api/swarms/[^/]+$"), most=1)
    held.wait()

    held.lose()

    page.wait_for_selector(".notice.wrong >> text=cannot reach the server")
    page.wait_for_selector(".notice.wrong", state="detached")


def test_a_failed_swarm_action_is_reported(serve: Serve, visit: Visit) -> None:
    page = visit(serve(ScriptedModel([["Words that come ", Delay(60)]])), "/swarms")
    start_swarm(page, agents=1)
    held = HeldRequests(page, "**/pause")
    page.get_by_role("button", name="Pause").click()
    held.wait()

    held.lose()

    page.wait_for_selector(".toast.on.wrong >> text=cannot reach the server")


def test_a_swarm_is_started_watched_and_compared(serve: Serve, visit: Visit) -> None:
    st.create("empty", cwd="/project").close()
    page = visit(serve(ScriptedModel([build_priced_answer(f"Seen from side {n}.", 0.01) for n in range(3)])), "/swarms")

    page.wait_for_selector("text=No swarms yet.")
    page.get_by_label("Name").fill("review")
    page.get_by_role("textbox", name="Task").fill("Look at it from three sides.")
    page.get_by_label("Dollars", exact=True).fill("0.04")
    page.get_by_role("button", name="Start", exact=True).click()

    page.wait_for_selector(".head .chip.branch >> text=completed")
    page.wait_for_function("() => document.querySelectorAll('.events .agent_complete').length === 3")
    assert page.get_by_role("progressbar", name="Progress").get_attribute("aria-valuenow") == "100"
    assert page.get_by_role("progressbar", name="Budget used").get_attribute("aria-valuenow") == "75"
    assert page.locator(".meter.warning").count() == 1
    assert page.locator(".agents > li").count() == 3
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.querySelector('.scroll').scrollWidth <= innerWidth")
    page.get_by_role("link", name="Compare").click()
    page.wait_for_function("() => document.querySelectorAll('.column .entry').length > 3")
    assert "Seen from side 2." in " ".join(page.locator(".column").all_text_contents())


def test_a_partly_filled_form_stays_when_another_client_creates_a_swarm(serve: Serve, visit: Visit) -> None:
    page = visit(serve(), "/swarms")
    page.wait_for_selector("text=No swarms yet.")
    page.get_by_role("textbox", name="Task").fill("Look at ")
    make = """() => fetch("/api/swarms", {
      method: "POST",
      headers: {
        "Content-Type": "application/json",
      },
      body: JSON.stringify({ name: "other", task: "Wait.", agents: 1, start: false }),
    })"""

    page.evaluate(make)
    page.wait_for_selector(".list >> text=other")
    page.keyboard.type("swarms")

    assert page.get_by_role("textbox", name="Task").input_value() == "Look at swarms"


def test_a_failed_list_of_swarms_is_reported_until_it_loads(serve: Serve, visit: Visit) -> None:
    page = visit(serve())
    held = HeldRequests(page, "**/api/swarms?*", most=1)
    page.keyboard.press("w")
    held.wait()

    held.lose()

    page.wait_for_selector(".notice.wrong >> text=cannot reach the server")
    assert page.get_by_text("No swarms yet.").count() == 0
    page.wait_for_selector("text=No swarms yet.")
    assert page.locator(".notice.wrong").count() == 0


def test_a_running_swarm_can_be_watched_and_stopped(serve: Serve, visit: Visit) -> None:
    page = visit(serve(ScriptedModel([["Words that come ", Delay(60)]] * 4)), "/swarms")

    page.get_by_label("Name").fill("slow")
    page.get_by_role("textbox", name="Task").fill("Take your time.")
    page.get_by_label("Agents", exact=True).fill("2")
    page.get_by_role("button", name="Start", exact=True).click()

    page.wait_for_function("() => document.querySelectorAll('.agents .agent-text').length === 2")
    assert page.get_by_role("button", name="Steer").count() == 2
    page.get_by_role("button", name="Stop").click()
    page.wait_for_selector(".head .chip.wrong >> text=cancelled")
    page.get_by_role("link", name="Swarms").click()
    page.wait_for_selector(".list .chip >> text=cancelled")


def test_the_session_of_a_swarm_shows_when_no_agent_is_running(serve: Serve, visit: Visit) -> None:
    door = threading.Event()

    async def answer_when_open(request: Request) -> str:
        await asyncio.to_thread(door.wait, 30)
        return "Seen."

    page = visit(serve(ScriptedModel([answer_when_open] * 3)), "/swarms")
    start_swarm(page, agents=2)
    page.wait_for_function("() => document.querySelectorAll('.agents .chip.busy').length === 2")
    page.get_by_role("link", name="Session", exact=True).click()
    page.get_by_role("button", name="Branches").click()
    page.wait_for_function("() => document.querySelectorAll('.branches .chip.busy').length === 2")
    page.locator(".branches .group summary").click()
    page.locator(".branches button.name", has_text="worker-1").click()
    page.get_by_label("Message the running agent").fill("Look at the tests too.")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.composer textarea').value === ''")
    assert page.get_by_role("button", name="Stop").count() == 0
    assert page.get_by_role("link", name="Open swarm").get_attribute("href").startswith("#/swarms/")

    door.set()

    page.wait_for_function("() => document.querySelectorAll('.branches .chip.busy').length === 0")
    page.get_by_label("Prompt on review/worker-1").wait_for()
    page.wait_for_selector(".path >> text=Look at the tests too.")


def test_the_branch_of_a_paused_agent_is_read_only(serve: Serve, visit: Visit) -> None:
    page = visit(serve(ScriptedModel([["Words that come ", Delay(60)]])), "/swarms")
    start_swarm(page, agents=1)
    page.wait_for_selector(".agent-text.live >> text=Words that come")
    page.get_by_role("button", name="Pause").click()
    page.wait_for_selector(".head .chip.label >> text=paused")
    page.get_by_role("link", name="Session", exact=True).click()
    page.get_by_role("button", name="Branches").click()
    page.locator(".branches button.name", has_text="worker-1").click()

    page.wait_for_selector(".composer.disabled >> text=A swarm agent owns this branch")

    assert page.locator(".composer textarea").count() == 0
    assert page.locator(".composer.disabled a").get_attribute("href").startswith("#/swarms/")


def test_the_branch_of_a_run_is_read_only_until_it_finishes(serve: Serve, visit: Visit) -> None:
    door, called = threading.Event(), threading.Semaphore(0)

    async def answer_when_open(request: Request) -> str:
        called.release()
        await asyncio.to_thread(door.wait, 300)
        return "Seen."

    session = open_story()
    page = visit(serve(ScriptedModel([answer_when_open] * 2)), f"/s/{session.id}/ab")
    page.set_default_timeout(60_000)
    start_experiment(page, 1, {"one": "Why?", "other": "Why so?"})
    page.wait_for_selector("text=0 of 2 runs")
    while "ab-1/one-1" not in session.heads.heads:  # a run writes its branch before it calls the model
        assert called.acquire(timeout=60)
        session.refresh()
    page.goto(page.url.split("#")[0] + f"#/s/{session.id}/tree?branch=ab-1/one-1")
    page.wait_for_selector(".composer.disabled >> text=An experiment is running on this branch")
    assert page.locator(".composer textarea").count() == 0

    door.set()

    page.get_by_label("Prompt on ab-1/one-1").wait_for()


LINES = "\n".join(f"line {number}" for number in range(500))


def test_the_end_of_an_answer_is_visible_while_it_streams(serve: Serve, visit: Visit) -> None:
    page = visit(serve(ScriptedModel([[LINES, Delay(60)]])), "/swarms")
    start_swarm(page, agents=1)

    page.wait_for_selector(".agent-text.live >> text=line 499")

    below = "(box) => box.firstElementChild.getBoundingClientRect().bottom - box.getBoundingClientRect().bottom"
    assert page.locator(".agent-text.live").evaluate("(box) => box.scrollHeight > 2 * box.clientHeight")
    assert page.locator(".agent-text.live").evaluate(below) <= 1


def test_the_result_of_an_agent_is_shown_from_its_start(serve: Serve, visit: Visit) -> None:
    page = visit(serve(ScriptedModel([LINES])), "/swarms")
    start_swarm(page, agents=1)

    page.wait_for_selector(".head .chip.branch >> text=completed")

    told = page.locator(".agent-text").text_content()
    assert (told[:7], told[-1]) == ("line 0\n", "…")


def test_a_swarm_that_failed_shows_no_progress_and_its_session_opens_where_it_worked(
    serve: Serve, visit: Visit
) -> None:
    refused = ModelError("scripted:scripted", "auth", "no key")
    page = visit(serve(ScriptedModel([refused] * 2)), "/swarms")
    start_swarm(page, agents=2)

    page.wait_for_selector(".head .chip.wrong >> text=failed")
    assert page.get_by_role("progressbar", name="Progress").get_attribute("aria-valuenow") == "0"
    page.get_by_role("link", name="Session", exact=True).click()
    page.wait_for_selector(".path >> text=branch review")


def test_a_swarm_is_steered_scaled_paused_resumed_and_destroyed(serve: Serve, visit: Visit) -> None:
    door = threading.Event()

    async def answer_when_open(request: Request) -> str:
        await asyncio.to_thread(door.wait, 30)
        return "Seen."

    model = ScriptedModel([answer_when_open] * 10)
    page = visit(serve(model), "/swarms")
    start_swarm(page, agents=2)
    page.wait_for_function("() => document.querySelectorAll('.agents .chip.busy').length === 2")

    page.get_by_role("button", name="Steer").first.click()
    page.locator("dialog textarea").fill("Look at the tests too.")
    page.locator("dialog").get_by_role("button", name="Send").click()
    page.wait_for_selector("dialog", state="detached")
    page.get_by_role("button", name="Scale").click()
    page.locator("dialog input").fill("3")
    page.locator("dialog").get_by_role("button", name="Scale").click()
    page.wait_for_function("() => document.querySelectorAll('.agents .chip.busy').length === 3")
    page.get_by_role("button", name="Pause").click()
    page.wait_for_selector(".head .chip.label >> text=paused")
    door.set()
    page.get_by_role("button", name="Resume").click()
    page.wait_for_selector(".head .chip.branch >> text=completed")
    page.get_by_role("button", name="Destroy").click()
    page.locator("dialog").get_by_role("button", name="Destroy").click()
    page.wait_for_selector(".list .chip >> text=destroyed")

    told = ["Look at the tests too." in str(request.messages) for request in model.requests]
    assert (len(told), sum(told)) == (4, 1)


def test_an_exhausted_swarm_resumes_with_a_larger_budget(serve: Serve, visit: Visit) -> None:
    dear = [ToolCall("c1", "ls", {}), ScriptedUsage({"input": 100, "output": 10, "cost": 0.05})]
    page = visit(serve(ScriptedModel([dear, *[build_priced_answer("It is done.", 0.01)] * 2])), "/swarms")
    page.get_by_label("Dollars", exact=True).fill("0.04")
    page.get_by_label("Tokens per agent", exact=True).fill("9000")
    page.get_by_label("Strategy").select_option("pipeline")
    start_swarm(page, agents=2)
    page.wait_for_selector("text=the budget is used up")
    page.wait_for_selector(".head .chip.label >> text=paused")

    page.get_by_role("button", name="Scale").click()
    assert page.locator(".agents > li").count() == 1
    assert page.locator("dialog input").input_value() == "2"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Resume").click()
    assert page.locator("dialog").get_by_label("Dollars", exact=True).input_value() == "0.04"
    assert page.locator("dialog").get_by_label("Tokens per agent", exact=True).input_value() == "9000"
    page.locator("dialog").get_by_label("Dollars", exact=True).fill("1")
    page.locator("dialog").get_by_label("Tokens per agent", exact=True).fill("")
    page.locator("dialog").get_by_role("button", name="Resume").click()

    page.wait_for_selector(".head .chip.branch >> text=completed")
    assert page.get_by_role("progressbar", name="Budget used").get_attribute("aria-valuenow") == "7"


def test_an_interrupted_swarm_is_resumed_in_the_page(serve: Serve, visit: Visit) -> None:
    async def left() -> str:
        with st.create("empty", cwd="/project") as session:
            swarm = Swarm(session, "review", "Look at it.", agents=1, model=ScriptedModel([Delay(60)]))
            await swarm.start()
            await swarm.detach()
            return swarm.id

    with ThreadPoolExecutor(1) as other:
        id = other.submit(lambda: asyncio.run(left())).result()
    page = visit(serve(ScriptedModel(["Seen."])), "/swarms")
    page.locator(".list a", has_text="interrupted").click()
    page.wait_for_selector(".head .chip.label >> text=interrupted")
    assert id in page.url
    assert page.get_by_role("button", name="Pause").count() == 0

    page.get_by_role("button", name="Resume").click()

    page.wait_for_selector(".head .chip.branch >> text=completed")


def test_a_server_without_agents_shows_a_hint(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve(allow_run=False)

    page = visit(site, "/swarms")
    page.wait_for_selector("text=This server does not run agents")
    page.goto(f"{site.url}/#/s/{session.id}/ab")
    page.wait_for_selector("text=This server does not run agents")
    assert page.locator("form").count() == 0


def test_a_token_without_run_shows_a_hint(serve: Serve, visit: Visit) -> None:
    session = open_story()
    site = serve(scopes=("read", "write"))
    words = "text=This token cannot run agents; it needs the scope run."

    page = visit(site, "/swarms")
    page.wait_for_selector(words)
    page.goto(f"{site.url}/#/s/{session.id}/ab")
    page.wait_for_selector(words)
    page.goto(f"{site.url}/#/s/{session.id}/talk")
    page.wait_for_selector(f".composer >> {words}")


def test_a_read_only_session_explains_why_agents_cannot_run(serve: Serve, visit: Visit) -> None:
    write_session_file(Redactor().redact_lines(list(make_story().read_lines())), name="redacted")
    page = visit(serve())

    page.locator(".list a").click()
    page.wait_for_selector(".composer.disabled")
    why = page.locator(".composer.disabled").text_content()
    page.keyboard.press("x")

    page.wait_for_selector(f".experiments >> text={why}")
    assert page.get_by_text("This server does not run agents").count() == 0
