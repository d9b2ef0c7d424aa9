"""`st.navigate`, `st.compact` and `st.merge` do the same as the methods of a branch."""

from __future__ import annotations

import inspect

import pytest

import sessiontree as st


@pytest.mark.parametrize("name", ["navigate", "compact", "merge"])
def test_a_function_has_the_parameters_of_its_method(name: str) -> None:
    function = list(inspect.signature(getattr(st, name)).parameters.values())[1:]
    method = list(inspect.signature(getattr(st.Branch, name)).parameters.values())[1:]

    assert [(one.name, one.kind, one.default) for one in function] == [
        (one.name, one.kind, one.default) for one in method
    ]


async def test_a_session_means_its_current_branch() -> None:
    session = st.memory()
    question = session.append(st.user("How?"))
    session.append(st.assistant("With a cache."))
    session.create_branch("other").append(st.assistant("With a dict."))
    session.switch("main")

    merged = await st.merge(session, "other", "A dict is better.")
    assert merged.new_leaf == session.branch("main").leaf
    assert session.head.path()[-1].text == "A dict is better."

    compacted = await st.compact(session, "It was about speed.")
    assert compacted.entry is not None
    assert compacted.entry.text == "It was about speed."

    moved = await st.navigate(session.branch("other"), question)
    assert moved.editor_text == "How?"
    assert session.branch("other").leaf is None
    assert session.branch("main").leaf == compacted.entry.id


async def test_a_wrong_type_is_refused_with_the_expected_one() -> None:
    with pytest.raises(st.InvalidOperation, match="expected a branch or a session, not str"):
        await st.compact("main", "Nothing.")  # type: ignore[arg-type]
