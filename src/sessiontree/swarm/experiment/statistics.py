"""Statistics: confidence intervals for the metrics of an arm, and tests that compare arms.

Means have Student's t interval, proportions have Wilson's interval. An arm wins only if its difference from every other
arm is significant: among equal arms, at most one experiment in twenty names a winner by mistake. No I/O.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

Better: TypeAlias = Literal["lower", "higher"]

CONFIDENCE = 0.95
"""The confidence level of all intervals."""

PRECISION = 1e-9
"""The precision of quantiles."""

MAX_DISTINCT_SHARE = 2 / 3
"""Up to this share of distinct values, a permutation test is used as well."""

MAX_EFFORT = 500_000
"""The most steps of a permutation test, which take some hundredths of a second."""

MAX_VALUE = 1e100
"""Larger values are ignored, because the sum of their squares would overflow."""


class Estimate(Struct, frozen=True, kw_only=True):
    """A mean or a proportion with its confidence interval."""

    n: int
    mean: float | None
    """`None` without values."""
    low: float | None
    """The lower bound; `None` with too few values."""
    high: float | None
    deviation: float | None
    """The standard deviation; `None` with fewer than two values."""


class ExperimentVerdict(NamedTuple):
    """The winning arm, if any, and the reason."""

    winner: str | None
    reason: str


def is_value(value: object) -> bool:
    """Whether a value is a number that can be used in calculations."""
    return isinstance(value, int | float) and not math.isnan(value) and abs(value) < MAX_VALUE


def estimate_mean(values: Sequence[float]) -> Estimate:
    """Estimate the mean with Student's t interval."""
    n = len(values)
    if not n:
        return Estimate(n=0, mean=None, low=None, high=None, deviation=None)
    middle = _compute_mean(values)
    if n < 2:
        return Estimate(n=n, mean=middle, low=None, high=None, deviation=None)
    deviation = math.sqrt(_compute_variance(values))
    half = compute_t_quantile((1 + CONFIDENCE) / 2, n - 1) * deviation / math.sqrt(n)
    return Estimate(n=n, mean=middle, low=middle - half, high=middle + half, deviation=deviation)


def estimate_proportion(values: Sequence[float]) -> Estimate:
    """Estimate the share of ones among values that are 0 or 1, with Wilson's interval."""
    n = len(values)
    if not n:
        return estimate_mean(values)
    share, z = _compute_mean(values), compute_normal_quantile((1 + CONFIDENCE) / 2)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    deviation = math.sqrt(_compute_variance(values)) if n > 1 else None
    low, high = (
        (0.0 if share == 0 else middle - half),
        (1.0 if share == 1 else middle + half),
    )  # exact, without rounding errors
    return Estimate(n=n, mean=share, low=low, high=high, deviation=deviation)


# Comparing


class ArmContrast(Struct, frozen=True, kw_only=True):
    """The difference between two arms: the mean of the first minus the mean of the second."""

    difference: float
    low: float | None
    """The lower bound of Welch's interval, if the values vary and are not proportions."""
    high: float | None
    p_value: float
    """The probability of a difference at least this large between equal arms."""


def compare_arms(
    a: Sequence[float], b: Sequence[float], *, proportions: bool = False, level: float = CONFIDENCE
) -> ArmContrast:
    """Compare two arms, each with at least two values.

    Means are compared by Welch's t-test, which allows unequal variances. With few distinct values, such as grades, it
    is too confident, so a permutation test is used as well. Proportions and values that do not vary are compared by
    the permutation test alone.
    """
    difference = _compute_mean(a) - _compute_mean(b)
    few = len({*a, *b}) <= MAX_DISTINCT_SHARE * (len(a) + len(b))
    permutation = _compute_permutation_p_value(tuple(a), tuple(b)) if few or proportions else None
    parts = [_compute_variance(values) / len(values) for values in (a, b)]
    if not sum(parts) or (proportions and permutation is not None):
        p_value = permutation if permutation is not None else float(not difference)
        return ArmContrast(difference=difference, low=None, high=None, p_value=p_value)
    error = math.sqrt(sum(parts))
    shares = [part / sum(parts) for part in parts]
    freedom = 1 / sum(share**2 / (len(values) - 1) for share, values in zip(shares, (a, b), strict=True))
    half = compute_t_quantile((1 + level) / 2, freedom) * error
    p_value = max(2 * (1 - compute_t_cdf(abs(difference) / error, freedom)), permutation or 0.0)
    return ArmContrast(difference=difference, low=difference - half, high=difference + half, p_value=p_value)


def choose_winner(
    arms: Mapping[str, Sequence[float]],
    metric: str,
    better: Better,
    *,
    proportions: bool = False,
    format_value: Callable[[float], str] = "{:g}".format,
) -> ExperimentVerdict:
    """Return the arm that is significantly better than every other arm, or why there is none.

    All pairs are compared, so the significance level is divided by their number (Bonferroni).
    """
    incomplete = [name for name, values in arms.items() if len(values) < 2]
    if len(arms) < 2:
        return report_no_winner("there is only one arm")
    if incomplete:
        return report_no_winner(
            f"{_join_names(incomplete)} {'has' if len(incomplete) == 1 else 'have'} fewer than two runs"
        )
    sign = -1 if better == "lower" else 1
    best, *rest = sorted(arms, key=lambda name: -sign * _compute_mean(arms[name]))
    allowed = (1 - CONFIDENCE) / len(list(combinations(arms, 2)))
    contrasts = {
        name: compare_arms(arms[best], arms[name], proportions=proportions, level=1 - allowed) for name in rest
    }
    close = [name for name, found in contrasts.items() if found.p_value > allowed]
    if close:
        same = all(not contrasts[name].difference for name in close)
        finding = f"have the same {metric}" if same else f"do not differ significantly by {metric}"
        return report_no_winner(f"{_join_names([best, *close])} {finding}")
    second = contrasts[rest[0]]
    difference = f"{format_value(abs(second.difference))} {'less' if better == 'lower' else 'more'} than {rest[0]}"
    if second.low is not None and second.high is not None:
        low, high = sorted((sign * second.low, sign * second.high))
        difference += f" ({CONFIDENCE:.0%} confidence interval: {format_value(low)} to {format_value(high)})"
    return ExperimentVerdict(best, f"{'lowest' if better == 'lower' else 'highest'} {metric}: {difference}")


def report_no_winner(why: str) -> ExperimentVerdict:
    return ExperimentVerdict(None, f"not enough data: {why}")


def _join_names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _compute_mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _compute_variance(values: Sequence[float]) -> float:
    """Return the sample variance, and exactly 0 for equal values, without rounding errors."""
    if min(values) == max(values):
        return 0.0
    middle = _compute_mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


@lru_cache(maxsize=1000)
def _compute_permutation_p_value(a: tuple[float, ...], b: tuple[float, ...]) -> float | None:
    """Return the p-value of an exact permutation test of the difference of means.

    It counts all assignments of the values to the arms. For zeros and ones and arms of equal size, this is Fisher's
    exact test. Return `None` if it would take too long; with that many values, Welch's test is good enough.
    """
    fractions = [Fraction(f"{value:.12g}") for value in (*a, *b)]  # exact, so equal sums of decimals compare equal
    scale = math.lcm(*(value.denominator for value in fractions))
    whole = [int(value * scale) for value in fractions]
    ways = Counter({(0, 0): 1})  # assignments by the size and the sum of the first arm
    left, effort = len(whole), 0
    for value, count in Counter(whole).items():
        left -= count
        effort += len(ways) * (count if left else 1) * len(whole)
        if effort > MAX_EFFORT:
            return None
        previous, ways = ways, Counter[tuple[int, int]]()
        for (taken, total), known in previous.items():
            for more in range(max(0, len(a) - taken - left), min(count, len(a) - taken) + 1):
                ways[taken + more, total + more * value] += known * math.comb(count, more)
    usual = sum(whole) * len(a)  # the first arm's sum if the means were equal, times the number of values
    far = abs(sum(whole[: len(a)]) * len(whole) - usual)
    as_far = sum(known for (_, total), known in ways.items() if abs(total * len(whole) - usual) >= far)
    return as_far / math.comb(len(whole), len(a))


# Distributions


def compute_normal_quantile(share: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return _bisect(lambda x: math.erfc(-x / math.sqrt(2)) / 2, share)


def compute_t_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution."""
    return _bisect(lambda x: compute_t_cdf(x, freedom), share)


def compute_t_cdf(x: float, freedom: float) -> float:
    """Return the probability that a value of Student's t distribution is below `x`."""
    tail = _compute_beta(freedom / (freedom + x * x), freedom / 2, 0.5) / 2
    return 1 - tail if x > 0 else tail


def _bisect(cdf: Callable[[float], float], share: float) -> float:
    low, high = -1.0, 1.0
    while cdf(low) > share:
        low *= 2
    while cdf(high) < share:
        high *= 2
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle) < share else (low, middle)
    return (low + high) / 2


def _compute_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the mirrored fraction converges faster here
        return 1 - _compute_beta(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) / (a * _compute_beta_fraction(x, a, b))


def _compute_beta_fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d1/(1 + d2/(1 + …)), evaluated by Lentz's method."""
    tiny = 1e-300
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, 10_000):
        half = step // 2
        if step % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
