"""Requests are valid whatever the stored messages contain."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from sessiontree.convert.cleanup import CallIds, clean_id, clean_json, clean_name, clean_text

ANY_TEXT = st.text(alphabet=st.characters(codec=None, categories=None))  # lone surrogates too
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
)


@given(ANY_JSON)
def test_any_value_can_be_sent_after_cleanup(value: object) -> None:
    sent = json.dumps(clean_json(value), ensure_ascii=False, allow_nan=False).encode()

    assert b"\\u0000" not in sent


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_text_that_can_be_sent_does_not_change(text: str) -> None:
    assert clean_text(text) == text


@given(ANY_TEXT, ANY_TEXT)
def test_call_ids_are_valid_for_every_provider_and_unique(one: str, other: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", clean_id(one))
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", clean_name(one))
    assert (clean_id(one) == clean_id(other)) == (one == other)


@given(st.lists(st.lists(st.sampled_from(["call_0", "call_0_2", "", "?", "x" * 64, "x" * 63 + "y"]))))
def test_call_ids_of_a_request_are_unique_and_results_have_the_id_of_their_call(turns: list[list[str]]) -> None:
    ids = CallIds()
    given: list[str] = []
    for turn in turns:
        ids.start_turn()
        called = [ids.assign_id(id) for id in turn]
        given += called
        assert sorted(ids.match_result(id) for id in turn) == sorted(called)

    assert len(set(given)) == len(given)
    assert all(clean_id(id) == id for id in given)


def test_a_result_belongs_to_the_last_turn_that_made_such_a_call() -> None:
    ids = CallIds()
    for _ in range(2):
        ids.start_turn()
        called = ids.assign_id("call_0")

    assert ids.match_result("call_0") == called == "call_0_2"
    assert ids.match_result("never made") == clean_id("never made")
