"""Commands that move, summarize and combine branches, with a fake model server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import sessiontree as st
from tests.cli.conftest import Run
from tests.model.fake_server import FakeServer, fail


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with FakeServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        config = Path(os.environ["SESSIONTREE_HOME"]) / "config.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text('model = "openai:scripted"\nretry.base_delay = 0.01\n')
        yield server


@pytest.fixture
def ids(here: Path) -> list[str]:
    """A session with a question on `main` and two answers on branches; `main` is current."""
    with st.create("speed") as session:
        found = [session.append(body).id for body in (st.user("How?"), st.assistant("Two ways."))]
        for name in ("cache", "dict"):
            branch = session.create_branch(name, at="main")
            found.append(branch.append(st.user(f"Try a {name}.")).id)
            found.append(branch.append(st.assistant(f"The {name} works.")).id)
        session.switch("main")
    return found


def read_last_prompt(server: FakeServer) -> str:
    return str(server.requests[-1]["messages"][-1]["content"])


def read_head(branch: str = "HEAD") -> st.Entry:
    with st.open("speed", read_only=True) as session:
        place = session.resolve_place(branch)
        assert place is not None
        return session.tree[place]


# Navigation


def test_navigating_with_a_summary_asks_the_model_and_writes_it_at_the_new_place(
    cli: Run, ids, server: FakeServer
) -> None:
    cli("switch", "speed", "cache")
    server.add("It needs memory.")

    shown = cli("navigate", "speed", ids[1], "--summarize", "--focus", "memory", "--label", "tried")

    summary = read_head()
    assert shown.splitlines()[0] == f"{summary.id} summary of the branch you left"
    assert shown.splitlines()[1].startswith(f"moved from {ids[3][:8]} to {summary.id[:8]},")
    assert summary.parent == ids[1]
    assert isinstance(summary.body, st.BranchSummary)
    assert "It needs memory." in summary.body.summary
    assert read_head("tried").id == summary.id
    assert "Try a cache." in read_last_prompt(server)
    assert "memory" in read_last_prompt(server).splitlines()[-1]


def test_instructions_replace_the_default_ones(cli: Run, ids, server: FakeServer) -> None:
    cli("switch", "speed", "cache")
    server.add("Memory.")

    cli("navigate", "speed", ids[1], "--summarize", "--instructions", "In one word.")

    assert read_last_prompt(server).endswith("</conversation>\n\nIn one word.")


def test_a_given_summary_needs_no_model(cli: Run, ids) -> None:
    cli("switch", "speed", "cache")

    shown = json.loads(cli("navigate", "speed", ids[1], "--summary", "Too much memory.", "--json"))

    assert (shown["oldLeaf"], shown["newLeaf"], shown["summaryEntry"]) == (ids[3], read_head().id, read_head().id)
    assert shown["cancelled"] is False
    assert read_head().body.summary == "Too much memory."


@pytest.mark.parametrize("summary", ["", " \n"])
@pytest.mark.parametrize(
    "command",
    [
        ["navigate", "speed", "main"],
        ["pop", "speed"],
        ["compact", "speed"],
        ["merge", "speed", "dict"],
        ["promote", "speed", "cache"],
    ],
    ids=lambda command: command[0],
)
def test_an_empty_summary_is_rejected(cli: Run, fails: Run, ids, command: list[str], summary: str) -> None:
    cli("switch", "speed", "cache")
    before = st.open("speed").read_lines()

    assert fails(*command, "--summary", summary) == "sessiontree: the summary is empty\n"
    assert st.open("speed").read_lines() == before


def test_a_label_without_a_summary_is_set_on_the_target(cli: Run, ids) -> None:
    shown = cli("navigate", "speed", ids[0], "--label", "start")

    assert shown == f"moved from {ids[1][:8]} to root, leaving 2 entries behind\nHow?\n"
    assert read_head("start").id == ids[0]


@pytest.mark.parametrize("command", [("navigate", "speed", "HEAD~1"), ("pop", "speed")])
def test_a_dry_run_says_what_would_move(cli: Run, ids, command: list[str]) -> None:
    shown = cli(*command, "--dry-run")

    assert shown == f"would move from {ids[1][:8]} to root, leaving 2 entries behind\nHow?\n"
    assert read_head().id == ids[1]


def test_navigating_to_a_user_message_abandons_it(cli: Run, ids) -> None:
    asked = json.loads(cli("append", "speed", "--role", "user", "And now?", "--json"))["id"]

    shown = cli("pop", "speed", "--no-summary")

    assert shown == f"moved from {asked[:8]} to {ids[1][:8]}, leaving 1 entry behind\nAnd now?\n"


def test_undoing_a_switch_prints_the_branch(cli: Run, ids) -> None:
    cli("switch", "speed", "cache")

    assert cli("undo", "speed").splitlines() == [
        "undid the switch from main to cache",
        f"moved from {ids[3][:8]} to {ids[1][:8]}, leaving 3 entries behind, on branch main",
    ]


def test_no_model_is_needed_if_nothing_is_abandoned(cli: Run, ids) -> None:
    shown = cli("navigate", "speed", ids[3], "--summarize")

    assert shown == f"moved from {ids[1][:8]} to {ids[3][:8]}, leaving 0 entries behind\n"


def test_a_failing_model_changes_nothing(cli: Run, fails: Run, ids, server: FakeServer) -> None:
    cli("switch", "speed", "cache")
    server.add(fail(401, "who are you?"))

    assert "openai:scripted" in fails("navigate", "speed", ids[1], "--summarize")

    assert read_head().id == ids[3]


def test_transient_failures_are_reported_and_retried(cli: Run, ids, server: FakeServer, capsys) -> None:
    cli("switch", "speed", "cache")
    server.add(fail(500, "busy"), "It needs memory.")

    cli("navigate", "speed", ids[1], "--summarize")

    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--focus", "x"], "--focus requires --summarize"),
        (["--instructions", "x"], "--instructions requires --summarize"),
        (["--model", "x:y"], "--model requires --summarize"),
        (["--summarize", "--focus", "x", "--summary", "y"], "--focus and --summary are mutually exclusive"),
        (["--from", "HEAD"], "--from requires --dry-run"),
    ],
)
def test_contradictory_options_are_rejected(fails: Run, ids, arguments, sentence) -> None:
    assert sentence in fails("navigate", "speed", ids[1], *arguments, code=2)


def test_pop_goes_before_the_last_user_message_with_a_summary(cli: Run, ids, server: FakeServer) -> None:
    cli("switch", "speed", "dict")
    server.add("By key.")

    shown = cli("pop", "speed")

    assert shown.splitlines()[-1] == "Try a dict."
    assert isinstance(read_head().body, st.BranchSummary)
    assert "[Assistant]: The dict works." in read_last_prompt(server)


def test_pop_accepts_a_place_and_no_summary(cli: Run, ids) -> None:
    cli("switch", "speed", "dict")

    shown = json.loads(cli("pop", "speed", ids[0], "--no-summary", "--json"))

    assert (shown["newLeaf"], shown["editorText"], shown["summaryEntry"]) == (None, "How?", None)


def test_pop_rejects_two_summaries_and_a_session_without_messages(fails: Run, cli: Run, ids) -> None:
    assert "--summary and --no-summary are mutually exclusive" in fails(
        "pop", "speed", "--summary", "x", "--no-summary", code=2
    )
    cli("switch", "speed", "root")
    assert "branch 'main' has no user message to go back to" in fails("pop", "speed")


def test_a_missing_model_is_the_only_error_reported(
    fails: Run, ids, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable)
    with st.open("speed") as session:
        session.append(st.user("And?"))
        session.append(st.assistant("So.", provider="vanished", model="x"))

    assert fails("pop", "speed") == (
        "sessiontree: openai:scripted is not available: OPENAI_API_KEY is not set; "
        "or write the summary yourself with --summary\n"
    )


# Compaction


def test_compact_asks_the_model_and_uncompact_reverts_it(cli: Run, ids, server: FakeServer) -> None:
    cli("switch", "speed", "dict")
    server.add("They spoke.", "They spoke on.")

    shown = cli("compact", "speed", "--focus", "speed")

    compaction = read_head()
    assert shown.startswith(f"{compaction.id} on dict, keeping entries from {ids[4][:8]}; ")
    assert compaction.body.summary == "They spoke."
    assert "speed" in read_last_prompt(server).splitlines()[-1]
    back = cli("uncompact", "speed")
    assert back == f"moved from {compaction.id[:8]} to {ids[5][:8]}, leaving 1 entry behind\n"
    assert json.loads(cli("undo", "speed", "--json"))["newLeaf"] == compaction.id


def test_compact_accepts_a_summary_for_any_branch(cli: Run, ids) -> None:
    shown = json.loads(cli("compact", "speed", "--branch", "cache", "--summary", "They spoke.", "--json"))

    assert shown["compaction"] == read_head("cache").id
    assert shown["firstKept"] == ids[2]
    assert shown["tokensBefore"] > 0
    again = json.loads(cli("compact", "speed", "--branch", "cache", "--summary", "again", "--json"))
    assert (again["compaction"], again["cancelled"]) == (None, False)
    assert cli("compact", "speed", "--branch", "cache", "--summary", "again") == "nothing to compact\n"
    back = json.loads(cli("uncompact", "speed", "--branch", "cache", "--json"))
    assert (back["newLeaf"], back["abandoned"]) == (ids[3], [shown["compaction"]])
    assert read_head().id == ids[1]


def test_uncompact_without_a_compaction_fails(fails: Run, ids) -> None:
    assert "branch 'main' has no compaction" in fails("uncompact", "speed")


# Merge


def test_merge_asks_the_model_for_a_summary_of_the_branch(cli: Run, ids, server: FakeServer) -> None:
    server.add("25 ms.")

    shown = cli("merge", "speed", "dict", "--focus", "time")

    assert shown == f"{read_head().id} on main, a summary of dict\n"
    assert read_head().body.details["sources"] == [ids[5]]
    assert "The dict works." in read_last_prompt(server)


def test_merge_reports_a_wrong_place_before_a_missing_model(fails, ids) -> None:
    assert "place 'nope' not found" in fails("merge", "speed", "nope")


def test_undo_reverts_a_merge_and_reports_it(cli: Run, ids) -> None:
    before = read_head("main").id
    cli("switch", "speed", "main")
    cli("merge", "speed", "dict", "--summary", "25 ms.")

    shown = cli("undo", "speed")

    assert shown.startswith("undid the merge of dict into main\n")
    assert read_head("main").id == before


def test_merge_accepts_a_summary_and_any_target(cli: Run, ids) -> None:
    shown = json.loads(cli("merge", "speed", "dict", "--into", "cache", "--summary", "25 ms.", "--json"))

    merged = read_head("cache").id
    assert shown == {"branch": "cache", "newLeaf": merged, "summaryEntry": merged, "cancelled": False}
    assert read_head("cache").parent == ids[3]


def test_a_leaf_without_a_branch_is_listed_compared_and_merged(cli: Run, ids) -> None:
    cli("switch", "speed", "cache")
    cli("navigate", "speed", ids[1])
    left = ids[3]

    listing = cli("branches", "speed").splitlines()
    assert listing[-1].split()[:3] == ["(branch-2)", left[:8], "6"]
    assert listing[-1].endswith("no branch")
    assert json.loads(cli("branches", "speed", "--json"))["unnamedLeaves"] == [
        {"leaf": left, "suggestedName": "branch-2", "entryCount": 6}
    ]
    assert [row.split()[0] for row in cli("compare", "speed", "dict", left).splitlines()[2:4]] == ["dict", left]

    cli("merge", "speed", left, "--into", "dict", "--summary", "It needs memory.")

    assert read_head("dict").text == "It needs memory."
    assert read_head("dict").parent == ids[5]


def test_promote_continues_from_the_winner_with_a_summary_of_the_others(cli: Run, ids, server: FakeServer) -> None:
    server.add("It needs memory.")

    shown = cli("promote", "speed", "dict")

    assert shown == f"{read_head().id} on main, a summary of cache\n"
    assert read_head().parent == ids[5]
    branches = json.loads(cli("branches", "speed", "--json"))["branches"]
    assert [branch["name"] for branch in branches if branch["archived"]] == ["cache", "dict"]


def test_promote_accepts_the_losing_branches(cli: Run, ids) -> None:
    cli("branch", "speed", "third", "--at", "main")
    cli("switch", "speed", "main")

    shown = json.loads(cli("promote", "speed", "dict", "--over", "cache", "--summary", "Too much memory.", "--json"))

    assert shown["summaryEntry"] == read_head().id
    branches = json.loads(cli("branches", "speed", "--json"))["branches"]
    assert [branch["name"] for branch in branches if branch["archived"]] == ["cache", "dict"]


def test_promote_without_other_branches_needs_no_model(cli: Run, ids) -> None:
    for name in ("cache", "dict"):
        cli("branch", "speed", name, "--archive")

    assert cli("promote", "speed", "dict") == f"{ids[5]} on main, nothing to summarize\n"


# Copies


def test_cherry_pick_copies_messages_from_other_branches(cli: Run, ids) -> None:
    shown = cli("cherry-pick", "speed", ids[5], "cache")

    assert shown == f"2 copies on main, head moved from {ids[1][:8]} to {read_head().id[:8]}\n"
    assert json.loads(read_head().raw)["copiedFrom"] == ids[5]


def test_cherry_pick_copies_to_any_branch(cli: Run, ids) -> None:
    shown = json.loads(cli("cherry-pick", "speed", "dict", "--onto", "cache", "--json"))

    assert (shown["branch"], shown["oldLeaf"], shown["newLeaf"]) == ("cache", ids[3], read_head("cache").id)
    assert shown["copies"] == [read_head("cache").id]


def test_a_branch_is_rebased_with_copies(cli: Run, ids) -> None:
    shown = cli("rebase", "speed", "dict", "--branch", "cache")

    assert shown == f"2 copies on cache, head moved from {ids[3][:8]} to {read_head('cache').id[:8]}\n"
    with st.open("speed", read_only=True) as session:
        roles = [message["role"] for message in session.branch("cache").context().messages]
    assert roles == ["user", "assistant"] * 3


def test_the_current_branch_is_rebased_by_default(cli: Run, ids) -> None:
    cli("switch", "speed", "cache")

    shown = json.loads(cli("rebase", "speed", "dict", "--json"))

    assert (shown["branch"], shown["newLeaf"]) == ("cache", read_head().id)
    assert len(shown["copies"]) == 2


# Extensions


@pytest.fixture
def cancels(here: Path) -> str:
    """An extension that cancels everything."""
    events = ("before_navigate", "before_compact", "before_merge", "before_copy")
    lines = [f'    api.on("{event}", lambda event, ctx: {{"cancel": True}})' for event in events]
    file = here / "cancels.py"
    file.write_text("\n".join(["def setup(api):", *lines, ""]))
    return str(file)


@pytest.mark.parametrize(
    "command",
    [
        ("navigate", "speed", "root"),
        ("pop", "speed", "--no-summary"),
        ("compact", "speed", "--summary", "S"),
        ("uncompact", "speed", "--branch", "short"),
        ("merge", "speed", "dict", "--summary", "S"),
        ("promote", "speed", "dict", "--summary", "S"),
        ("cherry-pick", "speed", "dict"),
        ("rebase", "speed", "dict", "--branch", "cache"),
    ],
    ids=lambda command: command[0],
)
def test_an_extension_can_cancel_every_operation(cli: Run, ids, cancels: str, command: tuple[str, ...]) -> None:
    with st.open("speed") as session:
        short = session.create_branch("short", at="main", current=False)
        short.extend([st.Compaction(summary="S"), st.user("on")])
    before = cli("tree", "speed", "--json")

    assert cli(*command, "-e", cancels) == "cancelled\n"
    assert json.loads(cli(*command, "-e", cancels, "--json"))["cancelled"] is True

    assert cli("tree", "speed", "--json") == before


def test_an_extension_can_write_the_summary(cli: Run, ids, server: FakeServer, here: Path) -> None:
    (here / "writes.py").write_text(
        "def setup(api):\n"
        '    api.on("session_before_tree", lambda event, ctx: {"summary": {"summary": "By an extension."}})\n'
    )
    cli("switch", "speed", "cache")

    cli("navigate", "speed", ids[1], "--summarize", "-e", "writes.py")

    assert read_head().body.summary == "By an extension."
    assert server.requests == []


def test_a_dry_run_does_not_import_asyncio(ids, here: Path) -> None:
    import subprocess
    import sys

    script = (
        "import sys\nfrom sessiontree.cli.app import run\n"
        f"assert run(['navigate', 'speed', '{ids[0]}', '--dry-run']) == 0\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert "asyncio" not in shown.splitlines()[-1].split()
