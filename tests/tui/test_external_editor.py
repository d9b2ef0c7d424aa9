"""Which external editor is used, and errors if it cannot run."""

from __future__ import annotations

import pytest

from .conftest import Running


@pytest.mark.parametrize(
    ("visual", "editor", "said"),
    [
        ("vi '", "", "cannot parse $VISUAL: No closing quotation"),
        ("", "ed \\", "cannot parse $EDITOR: No escaped character"),
        (" ", "/nowhere/ed", "cannot run /nowhere/ed"),
    ],
)
async def test_an_editor_that_cannot_run_is_reported_and_the_text_is_kept(
    running: Running, monkeypatch: pytest.MonkeyPatch, visual: str, editor: str, said: str
) -> None:
    monkeypatch.setenv("VISUAL", visual)
    monkeypatch.setenv("EDITOR", editor)
    async with running() as app:
        await app.type("a text")
        await app.press("ctrl+g")
        await app.wait_for_text(said)

        assert app.editor.text == "a text"
