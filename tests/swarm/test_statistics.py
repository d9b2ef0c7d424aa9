"""Statistics: results that may be looked at after every run, and winners only for significant differences."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from sessiontree.swarm.experiment.statistics import (
    Design,
    choose_winner,
    compute_fisher_p_value,
    estimate_difference,
    estimate_mean,
    estimate_proportion,
    is_value,
    predict_pairs,
    trace_difference,
    weigh_difference,
)

Draw = Callable[[random.Random], float]
ENOUGH = math.log(20)
"""The evidence that equal arms reach in at most one experiment of twenty."""


def draw_skewed(spread: float) -> Draw:
    """Return a draw of values with a long tail and the mean 1."""
    return lambda chance: chance.lognormvariate(-spread * spread / 2, spread)


# Estimates


def test_too_few_values_have_no_interval() -> None:
    assert estimate_mean([]).mean is None
    one = estimate_mean([3.0])
    assert (one.n, one.mean, one.low, one.high, one.deviation) == (1, 3.0, None, None, None)


def test_values_that_never_vary_have_an_interval_that_shrinks_with_their_number() -> None:
    few, many = estimate_mean([42.0] * 10), estimate_mean([42.0] * 40)

    assert few.deviation == 0
    assert few.low is not None
    assert many.low is not None
    assert few.low < many.low < 42
    assert few.low == pytest.approx(39.2, abs=0.1)


def test_an_interval_stays_within_the_possible_values() -> None:
    found = estimate_mean([0.01, 5.0, 0.02, 0.03, 9.0, *[0.01, 3.0] * 10], floor=0.0)
    grades = estimate_mean([5.0, 4.0, 5.0, 5.0, 1.0] * 4, floor=1.0, ceiling=5.0)

    assert found.low is not None
    assert 0 <= found.low < 1
    assert grades.low is not None
    assert grades.high is not None
    assert 1 <= grades.low < grades.high <= 5


@pytest.mark.parametrize(
    ("ones", "of", "low", "high"),
    [(8, 10, 0.3425, 0.9906), (0, 10, 0.0, 0.3770), (5, 5, 0.4150, 1.0), (1, 1, 0.025, 1)],
)
def test_a_proportion_has_the_values_that_a_beta_mixture_does_not_refute(
    ones: int, of: int, low: float, high: float
) -> None:
    found = estimate_proportion([1.0] * ones + [0.0] * (of - ones))

    assert found.mean == ones / of
    assert (found.low == 0, found.high == 1) == (ones == 0, ones == of)
    assert (found.low, found.high) == pytest.approx((low, high), abs=2e-3)


def test_long_experiments_are_estimated_from_blocks() -> None:
    chance = random.Random(1)
    found = estimate_mean([chance.gauss(10, 2) for _ in range(20_000)])

    assert found.low is not None
    assert found.high is not None
    assert 9.8 < found.low < 10 < found.high < 10.2


@pytest.mark.parametrize("value", [None, "3", float("nan"), float("inf"), 1e200])
def test_what_is_no_number_or_too_large_is_no_value(value: object) -> None:
    assert not is_value(value)
    assert is_value(-3)


# Evidence


def test_seven_pairs_that_all_agree_are_enough() -> None:
    six, seven = (weigh_difference([1.0] * n, [0.0] * n, proportions=True) for n in (6, 7))

    assert six < ENOUGH <= seven
    assert math.exp(seven) == pytest.approx(26.8, abs=0.1)  # 2^7 · (2·7 choose 7) / 4^7


def test_pairs_without_a_value_of_both_arms_are_left_out() -> None:
    a, b = [1.0, None, 3.0, 4.0], [2.0, 5.0, None, 6.0]

    found = estimate_difference(a, b)

    assert (found.pairs, found.difference) == (2, -1.5)
    assert estimate_difference([None], [1.0]).pairs == 0
    assert weigh_difference([None], [1.0]) == 0


def test_the_exact_test_of_a_fixed_design_is_fishers() -> None:
    assert compute_fisher_p_value([1.0, 1, 1, 0], [0.0, 0, 0, 1]) == pytest.approx(0.4857, abs=1e-4)
    assert compute_fisher_p_value([1.0] * 5, [0.0] * 5) == pytest.approx(2 / 252)
    assert compute_fisher_p_value([1.0] * 20_000, [0.0] * 20_000) == 0
    assert compute_fisher_p_value([1.0, 0.0], [0.0, 1.0]) == pytest.approx(1)


def test_the_trend_ends_with_all_pairs_and_narrows() -> None:
    points = trace_difference([5.0, 5.1] * 40, [3.0, 3.1] * 40)

    assert points[-1].pairs == 80
    assert len(points) <= 24
    widths = [point.high - point.low for point in points if point.high is not None and point.low is not None]
    assert widths[-1] < widths[0] / 2
    assert trace_difference([], []) == ()


def test_the_number_of_pairs_that_a_difference_needs_is_predicted() -> None:
    assert predict_pairs(1.0, 0.4) == pytest.approx(14, abs=2)
    assert predict_pairs(0.9, 0.5) == pytest.approx(31, abs=4)
    assert predict_pairs(0.5, 0.5, limit=50) is None


# Winners


@pytest.mark.parametrize(
    ("arms", "reason"),
    [
        ({"a": [1.0, 2.0]}, "there is only one arm"),
        ({"a": [1.0], "b": [9.0, 9.1]}, "a has fewer than two runs"),
        ({"a": [], "b": [9.0]}, "a and b have fewer than two runs"),
        ({"a": [3.0, 3.0], "b": [3.0, 3.0]}, "a and b have the same cost"),
        ({"a": [1.0, 5.0, 3.0], "b": [2.0, 6.0, 4.0]}, "a and b do not differ significantly by cost"),
        ({"a": [1.0, None, 2.0], "b": [None, 6.0, 4.0]}, "a and b do not differ significantly by cost"),
        (
            {"a": [1.0, 1.1, 0.9] * 9, "b": [1.0, 1.2, 0.9] * 9, "c": [50.0, 51, 52] * 9},
            "a and b do not differ significantly by cost",
        ),
        ({"a": [1.0] * 3, "b": [9.0] * 3}, "a and b do not differ significantly by cost"),
    ],
)
def test_without_enough_data_no_arm_wins(arms: dict[str, list[float | None]], reason: str) -> None:
    found = choose_winner(arms, "cost", "lower")

    assert found.winner is None
    assert found.reason == f"not enough data: {reason}"


def test_a_winner_is_reported_with_the_difference_to_the_second() -> None:
    arms = {"slow": [30.0, 31, 29, 30] * 4, "fast": [10.0, 11, 9, 10] * 4, "middle": [20.0, 21, 19, 20] * 4}

    found = choose_winner(arms, "time", "lower")

    assert found.winner == "fast"
    assert found.reason.startswith("lowest time: 10 less than middle (95% confidence interval: ")
    assert choose_winner(arms, "quality", "higher").winner == "slow"


def test_more_arms_require_stronger_evidence_per_pair() -> None:
    arms = {"a": [1.0] * 7, "b": [0.0] * 7}

    assert choose_winner(arms, "right", "higher", proportions=True).winner == "a"
    assert choose_winner({**arms, "c": [0.0] * 7}, "right", "higher", proportions=True).winner is None


def test_values_that_never_vary_decide_once_there_are_enough() -> None:
    def choose(runs: int) -> str | None:
        return choose_winner({"a": [42.0] * runs, "b": [49.0] * runs}, "tokens", "lower").winner

    assert (choose(6), choose(12)) == (None, "a")


def test_a_fixed_design_finds_yes_or_no_differences_with_fewer_runs() -> None:
    arms = {"a": [1.0] * 5, "b": [0.0] * 5}

    found = choose_winner(arms, "right", "higher", proportions=True, design="fixed")

    assert found == ("a", "highest right: 1 more than b")
    assert choose_winner(arms, "right", "higher", proportions=True).winner is None


# Rates of errors, by simulation


def compute_peeking_rate(seed: int, a: Draw, b: Draw, *, trials: int, pairs: int, proportions: bool = False) -> float:
    """Return the share of experiments that have a winner at any of the looks after every pair."""
    chance, found = random.Random(seed), 0
    for _ in range(trials):
        first, second = [a(chance) for _ in range(pairs)], [b(chance) for _ in range(pairs)]
        found += any(
            weigh_difference(first[:count], second[:count], proportions=proportions) >= ENOUGH
            for count in range(2, pairs + 1)
        )
    return found / trials


def test_of_2000_experiments_with_equal_arms_one_in_twenty_has_a_winner_at_any_look() -> None:
    """Runs are added after every look, and one run in ten fails, which is a wrong answer."""

    def draw(chance: random.Random) -> float:
        return float(chance.random() < 0.6 and chance.random() > 0.1)

    assert compute_peeking_rate(1, draw, draw, trials=2000, pairs=30, proportions=True) <= 0.05


EQUAL: dict[str, tuple[Draw, Draw]] = {
    "two normal arms": (lambda chance: chance.gauss(10, 2),) * 2,
    "two skewed arms": (draw_skewed(1),) * 2,
    "grades": (lambda chance: float(chance.choice((3, 4, 4, 5))),) * 2,
    "a constant and a skewed arm": (lambda _: 1.0, draw_skewed(1)),
    "a constant and a very skewed arm": (lambda _: 1.0, draw_skewed(1.5)),
    "a hardly and a very skewed arm": (draw_skewed(0.3), draw_skewed(1)),
}


@pytest.mark.parametrize("kind", EQUAL)
def test_arms_with_equal_means_have_a_winner_at_any_look_in_one_experiment_of_twenty(kind: str) -> None:
    assert compute_peeking_rate(2, *EQUAL[kind], trials=2000, pairs=30) <= 0.05


@pytest.mark.parametrize("design", ["sequential", "fixed"])
def test_among_four_equal_arms_one_experiment_in_twenty_has_a_winner(design: Design) -> None:
    chance, found = random.Random(3), 0
    for _ in range(400):
        arms = {str(arm): [float(chance.random() < 0.5) for _ in range(20)] for arm in range(4)}
        found += choose_winner(arms, "x", "higher", proportions=True, design=design).winner is not None

    assert found <= 20


@pytest.mark.parametrize("spread", [0.5, 1, 1.5])
def test_the_interval_of_a_skewed_mean_has_the_true_mean_in_19_of_20_cases(spread: float) -> None:
    chance, draw, missed = random.Random(4), draw_skewed(spread), 0
    for _ in range(60):
        found = estimate_mean([draw(chance) for _ in range(40)], floor=0.0)
        missed += found.low is not None and found.high is not None and not found.low <= 1 <= found.high

    assert missed <= 5  # of 60, with the variation of so few


def test_clear_differences_are_found() -> None:
    def draw_share(share: float) -> Draw:
        return lambda chance: float(chance.random() < share)

    assert compute_peeking_rate(5, draw_share(1.0), draw_share(0.4), trials=100, pairs=20, proportions=True) >= 0.8
    assert compute_peeking_rate(6, draw_share(0.9), draw_share(0.5), trials=100, pairs=40, proportions=True) >= 0.8
    cheap = compute_peeking_rate(
        7, lambda chance: 0.6 * draw_skewed(0.3)(chance), draw_skewed(0.3), trials=50, pairs=50
    )
    assert cheap >= 0.8
