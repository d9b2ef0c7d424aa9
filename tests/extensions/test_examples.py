"""Every extension in `examples/extensions/`, run with a real agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessiontree.core.entries import BranchSummary, Compaction
from sessiontree.core.messages import ToolCall
from sessiontree.model.base import ModelError
from tests.extensions.conftest import EXAMPLES, Load
from tests.slash_commands.conftest import ScriptedModels, ScriptedUser, make_scripted_model, run, talk


def test_every_example_has_a_test() -> None:
    source = Path(__file__).read_text()

    names = {path.name for path in EXAMPLES.glob("*.py")}
    assert len(names) >= 3
    assert all(f'"{name}"' in source for name in names)


async def test_the_custom_summarizer_writes_the_summary(load: Load) -> None:
    loaded = await load(files=(EXAMPLES / "custom_summarizer.py",))
    session = loaded.controller.session
    talk(session, "one", "1", "two", "2")

    await run(loaded.controller, "/pop")

    summary = session.head.path()[-1].body
    assert isinstance(summary, BranchSummary)
    assert summary.summary == "What was tried:\n- assistant: 2"
    assert summary.details == {"custom": True}
    assert summary.from_hook
    assert not loaded.controller.model.requests
    await run(loaded.controller, "/tree root")
    assert len(session.head.path()) == 0


async def test_the_custom_compaction_asks_another_model(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUMMARY_MODEL", "scripted:cheap")
    cheap = make_scripted_model("cheap", "Many words were said.")
    loaded = await load(
        files=(EXAMPLES / "custom_compaction.py",), models=ScriptedModels(cheap=cheap), ui=ScriptedUser()
    )
    talk(loaded.controller.session, *["word " * 400] * 12)

    await run(loaded.controller, "/compact count them")

    compaction = loaded.controller.session.head.path()[-1].body
    assert isinstance(compaction, Compaction)
    assert compaction.summary == "Many words were said."
    assert compaction.details == {"model": "scripted:cheap"}
    assert compaction.usage is not None
    assert "count them" in cheap.requests[0].messages[0]["content"]
    assert loaded.controller.ui.notices == [("info", "compacted by scripted:cheap")]


async def test_if_the_cheap_model_fails_the_default_compacts(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUMMARY_MODEL", "scripted:cheap")
    cheap = make_scripted_model("cheap", ModelError("scripted:cheap", "auth", "no key"))
    loaded = await load(
        "Words were said.",
        files=(EXAMPLES / "custom_compaction.py",),
        models=ScriptedModels(cheap=cheap),
        ui=ScriptedUser(),
    )
    talk(loaded.controller.session, *["word " * 400] * 12)

    await run(loaded.controller, "/compact")

    assert loaded.controller.session.head.path()[-1].body.summary.startswith("Words were said.")
    assert any("custom_compaction failed with ModelError" in notice for notice in loaded.notices)


async def test_the_todo_list_depends_on_the_branch(load: Load) -> None:
    loaded = await load(
        [ToolCall("1", "todo", {"action": "add", "text": "tests"})],
        "Noted.",
        [ToolCall("2", "todo", {"action": "done", "text": "tests"})],
        "Well done.",
        files=(EXAMPLES / "todo.py",),
        ui=ScriptedUser(),
    )
    controller = loaded.controller
    await controller.submit("write tests, later")
    noted = controller.session.head.leaf
    await controller.submit("they are written")
    told = controller.ui.notices

    await run(controller, "/todo")
    await run(controller, f"/switch {noted}")
    await run(controller, "/todo docs")
    await run(controller, "/reload")
    await run(controller, "/todo")

    assert [text for _, text in told] == ["[x] tests", "[ ] tests\n[ ] docs", "[ ] tests\n[ ] docs"]
    state = loaded.extensions.loaded[0].api.path("todo")[-1]
    assert loaded.extensions.ui_registry.renderers["todo"](state) == "to do: docs"
    assert "docs" not in str(controller.session.head.context().to_llm())
