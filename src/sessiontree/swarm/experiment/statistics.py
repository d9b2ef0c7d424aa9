"""Statistics: intervals for the metrics of an arm, and evidence that arms differ. No I/O.

Runs of two arms with the same number are a pair. The evidence that two arms differ is the capital of a gambler who
starts with 1 and bets on the differences of the pairs, one after the other, with a mixture of stakes. If the arms have
equal means, no bet is favourable: the capital ever reaches 20 in at most one experiment of twenty. So a result may be
looked at after every run, and runs may be added at any time. An interval has the values that the bets do not refute.

The bets need a limit for the differences. For yes and no it is known. For other metrics it is estimated from the pairs
before, with a margin that grows with their skew; `tests/swarm/test_statistics.py` simulates how well that holds.
"""

from __future__ import annotations

import math
import random
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct

Better: TypeAlias = Literal["lower", "higher"]
Design: TypeAlias = Literal["sequential", "fixed"]
"""Whether results hold at any time, or only when all planned runs are done."""

CONFIDENCE = 0.95
"""The confidence level of all intervals."""

MAX_VALUE = 1e100
"""Larger values are ignored, because the sum of their squares would overflow."""

STAKES = [math.cos((index + 0.5) / 20 * math.pi) for index in range(20)]
"""The shares of the capital that are bet; negative ones bet that the second arm is larger."""

MARGIN = 1.5
"""How much larger than all before it the next difference may be."""
MAX_SKEW = 10.0
MIN_SCALE = 0.1
"""The limit of the differences, as a share of the largest value, is at least this: equal values may vary later."""
MAX_BETS = 500
"""Longer experiments are bet on in blocks, to save time."""
BISECTIONS = 24
MAX_TREND_POINTS = 24


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


class TrendPoint(Struct, frozen=True, kw_only=True):
    """The difference between two arms after a number of pairs."""

    pairs: int
    difference: float
    low: float | None
    high: float | None


class DifferenceTrend(Struct, frozen=True, kw_only=True):
    """How the difference between the best arm and the second developed."""

    best: str
    second: str
    points: tuple[TrendPoint, ...]


Values: TypeAlias = Sequence[float | None]
"""The values of an arm by the number of the run, from 1; `None` without a value."""


def is_value(value: object) -> bool:
    """Whether a value is a number that can be used in calculations."""
    return isinstance(value, int | float) and not math.isnan(value) and abs(value) < MAX_VALUE


# Estimating


def estimate_mean(values: Sequence[float], *, floor: float = -math.inf, ceiling: float = math.inf) -> Estimate:
    """Estimate the mean. The interval stays within the possible values, from `floor` to `ceiling`."""
    n = len(values)
    if not n:
        return Estimate(n=0, mean=None, low=None, high=None, deviation=None)
    middle = _compute_mean(values)
    deviation = math.sqrt(_compute_variance(values)) if n > 1 else None
    bets = _Bets.build(values, [abs(value) for value in values])
    low, high = _find_interval(bets.compute_evidence, middle, bets.size, 1 - CONFIDENCE, floor, ceiling)
    return Estimate(n=n, mean=middle, low=low, high=high, deviation=deviation)


def estimate_proportion(values: Sequence[float]) -> Estimate:
    """Estimate the share of ones among values that are 0 or 1, by bets with a beta mixture of stakes."""
    n = len(values)
    if not n:
        return estimate_mean(values)
    yes, share = sum(values), _compute_mean(values)
    known = _compute_log_beta(yes + 0.5, n - yes + 0.5) - _compute_log_beta(0.5, 0.5)

    def compute_evidence(probability: float) -> float:
        if (yes and probability <= 0) or (n - yes and probability >= 1):
            return math.inf
        against = yes * math.log(probability) if yes else 0.0
        against += (n - yes) * math.log1p(-probability) if n - yes else 0.0
        return known - against

    low, high = _find_interval(compute_evidence, share, 1.0, 1 - CONFIDENCE, 0.0, 1.0)
    deviation = math.sqrt(_compute_variance(values)) if n > 1 else None
    return Estimate(n=n, mean=share, low=low, high=high, deviation=deviation)


# Comparing


def weigh_difference(a: Values, b: Values, *, proportions: bool = False) -> float:
    """Return the evidence that two arms differ: the logarithm of the capital of the bets on their pairs."""
    return _build_bets(_list_pairs(a, b), proportions=proportions).compute_evidence(0.0)


def estimate_difference(a: Values, b: Values, *, proportions: bool = False, level: float = CONFIDENCE) -> TrendPoint:
    """Estimate the mean of the first arm minus the mean of the second, over the runs that have a value in both."""
    pairs, middle = _list_pairs(a, b), _compute_difference(a, b)
    limit = 1.0 if proportions else math.inf
    bets = _build_bets(pairs, proportions=proportions)
    low, high = _find_interval(bets.compute_evidence, middle, bets.size, 1 - level, -limit, limit)
    return TrendPoint(pairs=len(pairs), difference=middle, low=low, high=high)


def choose_winner(
    arms: Mapping[str, Values],
    metric: str,
    better: Better,
    *,
    proportions: bool = False,
    design: Design = "sequential",
    format_value: Callable[[float], str] = "{:.4g}".format,
) -> ExperimentVerdict:
    """Return the arm that is better than every other arm beyond chance, or why there is none.

    All pairs of arms are compared, so the allowed rate of errors is divided by their number (Bonferroni). With a fixed
    design, proportions are compared by Fisher's exact test, which needs fewer runs.
    """
    known = {name: [value for value in values if value is not None] for name, values in arms.items()}
    incomplete = [name for name, values in known.items() if len(values) < 2]
    if len(arms) < 2:
        return report_no_winner("there is only one arm")
    if incomplete:
        return report_no_winner(
            f"{_join_names(incomplete)} {'has' if len(incomplete) == 1 else 'have'} fewer than two runs"
        )
    sign, is_exact = -1 if better == "lower" else 1, design == "fixed" and proportions
    best, *rest = rank_arms(known, better)
    allowed = (1 - CONFIDENCE) / len(list(combinations(arms, 2)))
    differences = {name: _compute_difference(arms[best], arms[name]) for name in rest}

    def is_close(name: str) -> bool:
        if sign * differences[name] <= 0:
            return True
        if is_exact:
            return compute_fisher_p_value(known[best], known[name]) > allowed
        return weigh_difference(arms[best], arms[name], proportions=proportions) < -math.log(allowed)

    close = [name for name in rest if is_close(name)]
    if close:
        same = all(not differences[name] for name in close)
        finding = f"have the same {metric}" if same else f"do not differ significantly by {metric}"
        return report_no_winner(f"{_join_names([best, *close])} {finding}")
    second = estimate_difference(arms[best], arms[rest[0]], proportions=proportions, level=1 - allowed)
    difference = f"{format_value(abs(second.difference))} {'less' if better == 'lower' else 'more'} than {rest[0]}"
    if second.low is not None and second.high is not None and not is_exact:
        low, high = sorted((sign * second.low, sign * second.high))
        difference += f" ({CONFIDENCE:.0%} confidence interval: {format_value(low)} to {format_value(high)})"
    return ExperimentVerdict(best, f"{'lowest' if better == 'lower' else 'highest'} {metric}: {difference}")


def report_no_winner(why: str) -> ExperimentVerdict:
    return ExperimentVerdict(None, f"not enough data: {why}")


def rank_arms(arms: Mapping[str, Sequence[float]], better: Better) -> list[str]:
    """Return the names of the arms that have values, the best mean first."""
    sign = -1 if better == "lower" else 1
    return sorted((name for name in arms if arms[name]), key=lambda name: -sign * _compute_mean(arms[name]))


def trace_difference(a: Values, b: Values, *, proportions: bool = False) -> tuple[TrendPoint, ...]:
    """Return how the difference between two arms developed, at up to `MAX_TREND_POINTS` moments."""
    pairs = _list_pairs(a, b)
    steps = range(1, min(len(pairs), MAX_TREND_POINTS) + 1)
    counts = sorted({math.ceil(len(pairs) * step / len(steps)) for step in steps})
    points: list[TrendPoint] = []
    for count in counts:
        first, second = zip(*pairs[:count], strict=True)
        points.append(estimate_difference(first, second, proportions=proportions))
    return tuple(points)


def compute_fisher_p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Return how likely a difference between the shares of ones at least this large is if the arms are equal."""
    size, total, yes = len(a), len(a) + len(b), round(sum(a) + sum(b))
    usual = yes * len(a) / total
    far = abs(sum(a) - usual) - 1e-9
    ways = _compute_log_choose(total, size)
    return min(
        1.0,
        sum(
            math.exp(_compute_log_choose(yes, mine) + _compute_log_choose(total - yes, size - mine) - ways)
            for mine in range(max(0, size - (total - yes)), min(size, yes) + 1)
            if abs(mine - usual) >= far
        ),
    )


def predict_pairs(share: float, other: float, *, arms: int = 2, power: float = 0.8, limit: int = 1000) -> int | None:
    """Return how many pairs find a difference between two shares of yes with probability `power`.

    Returns `None` for more than `limit`. Simulates 200 sequential experiments with a fixed seed.
    """
    chance, needed = random.Random(0), list[float]()
    threshold = math.log(math.comb(arms, 2) / (1 - CONFIDENCE))
    for _ in range(200):
        wins = losses = 0
        for pair in range(1, limit + 1):
            mine, theirs = chance.random() < share, chance.random() < other
            wins, losses = wins + (mine and not theirs), losses + (theirs and not mine)
            if mine != theirs and _compute_win_evidence(wins, losses) >= threshold:
                needed.append(pair)
                break
        else:
            needed.append(math.inf)
    found = sorted(needed)[math.ceil(power * len(needed)) - 1]
    return None if math.isinf(found) else int(found)


# Bets


class _Bets(NamedTuple):
    """Values to bet on, and for each the limit that the values before it suggest, apart from their mean."""

    values: Sequence[float]
    extremes: Sequence[tuple[float, float]] | None
    """The smallest and the largest value before each value; `None` if the values are from -1 to 1."""
    tails: Sequence[float]
    """How much farther than the values before each value a long tail may reach."""
    floors: Sequence[float]

    @classmethod
    def build(cls, values: Sequence[float], sizes: Sequence[float] | None) -> _Bets:
        """Prepare bets on values whose mean may be 0. `sizes` are the sizes of the measurements behind them."""
        block = math.ceil(len(values) / MAX_BETS)
        values = _average_blocks(values, block)
        if sizes is None:
            return cls(values, None, (), ())
        sizes = _average_blocks(sizes, block)
        extremes: list[tuple[float, float]] = []
        tails: list[float] = []
        floors: list[float] = []
        seen: list[float] = []
        largest = 0.0
        for value, size in zip(values, sizes, strict=True):
            extremes.append((min(seen), max(seen)) if seen else (0.0, 0.0))
            tails.append(_estimate_tail(seen))
            floors.append(MIN_SCALE * largest)
            insort(seen, value)
            largest = max(largest, size)
        return cls(values, extremes, tails, floors)

    @property
    def size(self) -> float:
        """The largest distance between values, or from 0: a first guess for the width of an interval."""
        return max((0.0, *map(abs, self.values), *(abs(value - self.values[0]) for value in self.values))) or 1.0

    def compute_evidence(self, mean: float) -> float:
        """Return the logarithm of the capital of bets that the mean is not this one."""
        capital, offset = [1.0] * len(STAKES), 0.0
        for index, value in enumerate(self.values):
            if self.extremes is None:
                scale = 1 + abs(mean)
            else:
                low, high = self.extremes[index]
                seen = max(abs(low - mean), abs(high - mean))
                scale = max(MARGIN * (seen + self.tails[index]), self.floors[index])
                if not index or not scale:  # the first value only sets the scale
                    continue
            gain = min(max((value - mean) / scale, -1.0), 1.0)
            capital = [amount * (1 + stake * gain) for amount, stake in zip(capital, STAKES, strict=True)]
            if (largest := max(capital)) > 1e100:
                capital, offset = [amount / largest for amount in capital], offset + math.log(largest)
        return offset + math.log(sum(capital) / len(capital) or 5e-324)


def _find_interval(
    compute_evidence: Callable[[float], float], middle: float, size: float, error: float, floor: float, ceiling: float
) -> tuple[float | None, float | None]:
    """Return the range of means around `middle` that the evidence does not refute; `None` if it has no bounds yet."""
    threshold = -math.log(error)

    def find_bound(direction: int, limit: float) -> float | None:
        step = size
        while compute_evidence(_clamp(middle + direction * step, floor, ceiling)) < threshold:
            if abs(middle + direction * step) >= abs(limit) if math.isfinite(limit) else step > 1e6 * size:
                return float(limit) if math.isfinite(limit) else None
            step *= 2
        inside, outside = middle, _clamp(middle + direction * step, floor, ceiling)
        for _ in range(BISECTIONS):
            between = (inside + outside) / 2
            inside, outside = (between, outside) if compute_evidence(between) < threshold else (inside, between)
        return outside

    low, high = find_bound(-1, floor), find_bound(1, ceiling)
    return (low, high) if low is not None and high is not None else (None, None)


def _clamp(value: float, floor: float, ceiling: float) -> float:
    return min(max(value, floor), ceiling)


def _estimate_tail(ordered: Sequence[float]) -> float:
    """Return how far beyond sorted values the next one may be: the farther, the more skewed they are."""
    if len(ordered) < 2:
        return 0.0
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    short, long = sorted((middle - ordered[0], ordered[-1] - middle))
    skew = min(long / short, MAX_SKEW) if short else MAX_SKEW
    return (skew - 1) * long


def _average_blocks(values: Sequence[float], block: int) -> Sequence[float]:
    if block <= 1:
        return values
    return [_compute_mean(values[start : start + block]) for start in range(0, len(values) - block + 1, block)]


def _build_bets(pairs: Sequence[tuple[float, float]], *, proportions: bool) -> _Bets:
    differences = [first - second for first, second in pairs]
    return _Bets.build(differences, None if proportions else [max(map(abs, pair)) for pair in pairs])


def _compute_difference(a: Values, b: Values) -> float:
    pairs = _list_pairs(a, b)
    return _compute_mean([first - second for first, second in pairs]) if pairs else 0.0


def _list_pairs(a: Values, b: Values) -> list[tuple[float, float]]:
    return [(first, second) for first, second in zip(a, b, strict=False) if first is not None and second is not None]


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


def _compute_win_evidence(wins: int, losses: int) -> float:
    """Return the evidence of pairs of yes and no, of which `wins` and `losses` differ, in closed form."""
    return _compute_log_beta(wins + 0.5, losses + 0.5) - _compute_log_beta(0.5, 0.5) + (wins + losses) * math.log(2)


def _compute_log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _compute_log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
