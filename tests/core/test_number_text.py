"""Counts and amounts of money for people to read."""

import pytest

from sessiontree.core.number_text import (
    format_count,
    format_dollars,
    format_metric,
    format_tokens,
    list_usage,
    pluralize,
)


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0"), (999, "999"), (1000, "1k"), (12_345, "12k"), (999_499, "999k"), (999_500, "1.0M"), ("odd", "0")],
)
def test_counts_are_short(count, words):
    assert format_count(count) == words


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (0, "$0.0000"),
        (0.05, "$0.0500"),
        (12.34567, "$12.3457"),
        (0.001, "$0.0010"),
        (0.00099, "$0.00099"),
        (0.00013, "$0.00013"),
        (0.00014, "$0.00014"),
        (0.0001, "$0.00010"),
        (0.00009949, "$0.000099"),
        (0.0000123, "$0.000012"),
        (0.00000045, "$0.00000045"),
        (-0.05, "-$0.0500"),
        (-0.0000123, "-$0.000012"),
        (1e-300, "$0.000000000000"),
    ],
)
def test_no_cost_is_shown_as_zero(cost, words):
    assert format_dollars(cost) == words


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((0, "message"), "0 messages"),
        ((1, "message"), "1 message"),
        ((2, "message"), "2 messages"),
        ((1, "entry", "entries"), "1 entry"),
        ((2, "entry", "entries"), "2 entries"),
    ],
)
def test_a_count_of_one_uses_the_singular(given, words):
    assert pluralize(*given) == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 tokens"), (1, "1 token"), (12_345, "12k tokens"), ("odd", "0 tokens")]
)
def test_token_counts_are_short(count, words):
    assert format_tokens(count) == words


@pytest.mark.parametrize(
    ("tokens", "cost", "words"),
    [
        (0, 0, []),
        (1500, 0.05, ["2k tokens", "$0.05"]),
        (0, 1.2345, ["$1.23"]),
        (1, 0.00013, ["1 token", "$0.00013"]),
    ],
)
def test_usage_in_a_sentence_has_no_zeros(tokens, cost, words):
    assert list_usage(tokens, cost) == words


@pytest.mark.parametrize(
    ("metric", "value", "words"),
    [
        ("cost", -0.0128, "-$0.0128"),
        ("tokens", 12_345.6, "12,346"),
        ("time", -0.04, "0.0s"),
        ("time", 61.25, "61.2s"),
        ("exact", 1.0, "1"),
        ("grade", 0.04661, "0.0466"),
        ("cost", None, "-"),
    ],
)
def test_values_of_a_metric_have_its_unit(metric, value, words):
    assert format_metric(metric, value) == words
