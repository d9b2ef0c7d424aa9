"""Statistics: intervals that match published tables, and winners only for significant differences."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from sessiontree.swarm.experiment.statistics import (
    choose_winner,
    compare_arms,
    compute_normal_quantile,
    compute_t_cdf,
    compute_t_quantile,
    estimate_mean,
    estimate_proportion,
    is_value,
)

TRIALS = 200


@pytest.mark.parametrize(
    ("freedom", "at_95", "at_99"),
    [(1, 12.706, 63.657), (2, 4.303, 9.925), (4, 2.776, 4.604), (9, 2.262, 3.250), (30, 2.042, 2.750)],
)
def test_students_quantiles_match_published_tables(freedom: int, at_95: float, at_99: float) -> None:
    assert compute_t_quantile(0.975, freedom) == pytest.approx(at_95, abs=5e-4)
    assert compute_t_quantile(0.995, freedom) == pytest.approx(at_99, abs=5e-4)


def test_many_degrees_of_freedom_converge_to_the_normal_distribution() -> None:
    assert compute_normal_quantile(0.975) == pytest.approx(1.959964, abs=1e-6)
    assert compute_t_quantile(0.975, 1e7) == pytest.approx(1.959964, abs=1e-5)


@pytest.mark.parametrize("x", [-8.0, -1.5, 0.0, 0.3, 2.0, 40.0])
def test_with_one_and_two_degrees_the_distribution_is_the_closed_form(x: float) -> None:
    assert compute_t_cdf(x, 1) == pytest.approx(0.5 + math.atan(x) / math.pi, abs=1e-12)
    assert compute_t_cdf(x, 2) == pytest.approx(0.5 + x / (2 * math.sqrt(2 + x * x)), abs=1e-12)


def test_a_mean_has_students_interval() -> None:
    found = estimate_mean([4.0, 5.0, 6.0, 7.0, 8.0])  # 6 ± 2.776 · 1.5811 / √5

    assert (found.n, found.mean) == (5, 6.0)
    assert found.deviation == pytest.approx(1.5811, abs=1e-4)
    assert (found.low, found.high) == pytest.approx((4.0368, 7.9632), abs=1e-4)


def test_too_few_values_have_no_interval() -> None:
    assert estimate_mean([]).mean is None
    one = estimate_mean([3.0])
    assert (one.n, one.mean, one.low, one.high, one.deviation) == (1, 3.0, None, None, None)


@pytest.mark.parametrize(
    ("ones", "of", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (5, 5, 0.5655, 1.0), (1, 1, 0.2065, 1)],
)
def test_a_proportion_has_wilsons_interval(ones: int, of: int, low: float, high: float) -> None:
    found = estimate_proportion([1.0] * ones + [0.0] * (of - ones))

    assert found.mean == ones / of
    assert (found.low == 0, found.high == 1) == (ones == 0, ones == of)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-4)


def test_means_that_vary_differently_are_compared_by_welchs_interval() -> None:
    # Worked by hand: variances 2.5 and 250, so an error of √(0.5 + 50) with 4.08 degrees of freedom.
    found = compare_arms([10.0, 11, 12, 13, 14], [30.0, 20, 40, 10, 50])

    error, quantile = math.sqrt(50.5), compute_t_quantile(0.975, 50.5**2 / (0.5**2 / 4 + 50**2 / 4))
    assert found.difference == -18
    assert (found.low, found.high) == pytest.approx((-18 - quantile * error, -18 + quantile * error))
    assert found.p_value == pytest.approx(0.0635, abs=5e-4)


def test_proportions_are_compared_by_counting_arrangements() -> None:
    tea = compare_arms([1.0, 1, 1, 0], [0.0, 0, 0, 1], proportions=True)  # Fisher's cups of tea
    clear = compare_arms([1.0] * 5, [0.0] * 5, proportions=True)

    assert tea.p_value == pytest.approx(34 / 70)
    assert clear.p_value == pytest.approx(2 / 252)


def test_fractional_grades_are_counted_like_whole_ones() -> None:
    a, b = [6, 4, 2, 6], [2, 1, 2, 7]

    whole, parts = (compare_arms([grade * step for grade in a], [grade * step for grade in b]) for step in (1, 0.05))

    assert parts.p_value == pytest.approx(whole.p_value)


@pytest.mark.parametrize(
    ("arms", "reason"),
    [
        ({"a": [1.0, 2.0]}, "there is only one arm"),
        ({"a": [1.0], "b": [9.0, 9.1]}, "a has fewer than two runs"),
        ({"a": [], "b": [9.0]}, "a and b have fewer than two runs"),
        ({"a": [3.0, 3.0], "b": [3.0, 3.0]}, "a and b have the same cost"),
        ({"a": [1.0, 5.0, 3.0], "b": [2.0, 6.0, 4.0]}, "a and b do not differ significantly by cost"),
        (
            {"a": [1.0, 1.1, 0.9], "b": [1.0, 1.2, 0.9], "c": [50.0, 51, 52]},
            "a and b do not differ significantly by cost",
        ),
        ({"a": [1.0] * 3, "b": [9.0] * 3}, "a and b do not differ significantly by cost"),
    ],
)
def test_without_enough_data_no_arm_wins(arms: dict[str, list[float]], reason: str) -> None:
    found = choose_winner(arms, "cost", "lower")

    assert found.winner is None
    assert found.reason == f"not enough data: {reason}"


def test_a_winner_is_reported_with_the_difference_to_the_second() -> None:
    arms = {"slow": [30.0, 31, 29, 30], "fast": [10.0, 11, 9, 10], "middle": [20.0, 21, 19, 20]}

    found = choose_winner(arms, "time", "lower")

    assert found.winner == "fast"
    assert found.reason.startswith("lowest time: 10 less than middle (95% confidence interval: ")
    assert choose_winner(arms, "quality", "higher").winner == "slow"


def test_more_arms_require_stronger_evidence_per_pair() -> None:
    arms = {"a": [1.0, 2, 3, 4, 5], "b": [3.6, 4.6, 5.6, 6.6, 7.6]}  # 3 of 100 random differences are as large

    assert choose_winner(arms, "cost", "lower").winner == "a"
    assert choose_winner({**arms, "c": [90.0, 91, 92, 93, 94]}, "cost", "lower").winner is None


def test_constant_values_decide_once_there_are_enough() -> None:
    assert choose_winner({"a": [1.0] * 4, "b": [2.0] * 4}, "tokens", "lower").winner == "a"


def compute_winner_rate(
    seed: int, arms: int, runs: int, draw: Callable[[random.Random, int], float], **options: bool
) -> float:
    """Return the share of trials with a winner."""
    chance = random.Random(seed)
    found = 0
    for _ in range(TRIALS):
        values = {f"arm {arm}": [draw(chance, arm) for _ in range(runs)] for arm in range(arms)}
        found += choose_winner(values, "x", "lower", **options).winner is not None
    return found / TRIALS


EQUAL: dict[str, Callable[[random.Random, int], float]] = {
    "normal": lambda chance, _: chance.gauss(10, 2),
    "skewed like costs": lambda chance, _: chance.lognormvariate(0, 1),
    "grades": lambda chance, _: float(chance.choice((3, 4, 4, 5))),
    "two grades": lambda chance, _: float(chance.choice((4, 5))),
}


@pytest.mark.parametrize(("arms", "runs"), [(2, 2), (2, 3), (2, 6), (4, 5)])
@pytest.mark.parametrize("kind", EQUAL)
def test_equal_arms_have_a_winner_in_one_trial_of_twenty_at_most(kind: str, arms: int, runs: int) -> None:
    slack = 2 * math.sqrt(0.05 * 0.95 / TRIALS)  # the variation of the simulation

    assert compute_winner_rate(1, arms, runs, EQUAL[kind]) <= 0.05 + slack


@pytest.mark.parametrize(("arms", "runs"), [(2, 2), (2, 5), (2, 12), (4, 6)])
def test_equal_proportions_have_a_winner_in_one_trial_of_twenty_at_most(arms: int, runs: int) -> None:
    assert compute_winner_rate(2, arms, runs, lambda chance, _: float(chance.random() < 0.5), proportions=True) <= 0.05


@pytest.mark.parametrize("runs", [4, 8, 12])
def test_equal_arms_of_two_grades_differ_by_chance_in_one_case_of_twenty_at_most(runs: int) -> None:
    """Computed over all outcomes, not sampled. Welch's interval alone would give 7.7 % for eight runs."""

    def build_grades(good: int) -> list[float]:
        return [5.0] * good + [4.0] * (runs - good)

    cases = [(a, b) for a in range(runs + 1) for b in range(runs + 1)]
    named = [(a, b) for a, b in cases if compare_arms(build_grades(a), build_grades(b)).p_value <= 0.05]

    assert named
    assert sum(math.comb(runs, a) * math.comb(runs, b) for a, b in named) / 4**runs <= 0.05


def test_grades_are_compared_by_a_permutation_test_as_well() -> None:
    found = compare_arms([5.0, 5, 5, 4], [3.0, 3, 3, 4])  # 4 of the 70 permutations differ that much

    assert found.low is not None
    assert found.p_value == pytest.approx(4 / 70)


def test_too_many_values_for_a_permutation_test_use_welchs_test() -> None:
    many = [float(value % 1000) for value in range(3000)]

    assert compare_arms(many, [value + 500 for value in many]).p_value < 1e-6
    assert compare_arms([1.0] * 20_000, [0.0] * 20_000).p_value == 0
    assert compare_arms([0.0, 1.0] * 10_000, [0.0] * 20_000, proportions=True).p_value < 1e-6


def test_arms_that_clearly_differ_have_a_winner() -> None:
    assert compute_winner_rate(3, 2, 5, lambda chance, arm: chance.gauss(10 + 10 * arm, 2)) > 0.95
    assert compute_winner_rate(4, 3, 5, lambda chance, arm: chance.gauss(10 + 12 * arm, 2)) > 0.95
    assert (
        compute_winner_rate(5, 2, 20, lambda chance, arm: float(chance.random() < (0.1, 0.9)[arm]), proportions=True)
        > 0.95
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e200, "5", None])
def test_invalid_numbers_are_not_values(value: object) -> None:
    assert not is_value(value)
