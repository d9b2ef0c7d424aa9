"""Calls to upper layers: by name, imported on first use."""

import pytest

from sessiontree.convert.openai_chat import to_openai
from sessiontree.core.late_imports import load


def test_a_function_is_loaded_by_its_name() -> None:
    assert load("to_openai") is to_openai


def test_a_name_that_the_table_does_not_list_is_an_error() -> None:
    with pytest.raises(KeyError):
        load("to_nowhere")
