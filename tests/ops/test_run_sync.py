"""Running an asynchronous operation from a script."""

from __future__ import annotations

import pytest

import sessiontree as st


def test_an_error_of_the_operation_is_the_only_one_in_the_traceback() -> None:
    with st.memory() as session, pytest.raises(st.NotFound) as caught:
        st.run_sync(session.head.merge("missing", "text"))

    assert caught.value.__context__ is None


async def test_in_a_running_event_loop_the_error_names_await() -> None:
    with st.memory() as session, pytest.raises(st.InvalidOperation, match="write `await"):
        st.run_sync(session.head.navigate("root"))
