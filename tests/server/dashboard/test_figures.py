"""Numbers as the dashboard tells them: figures.js, in the browser itself."""

from __future__ import annotations

from tests.server.dashboard.conftest import Serve, Visit

MONEY = """async (costs) => {
  const { money } = await import("/static/js/figures.js");
  return costs.map(money);
}"""


def test_every_cost_is_told_none_is_unknown_and_one_below_zero_has_its_sign(serve: Serve, visit: Visit) -> None:
    costs = [0, 12.345, 0.05, 0.0123, 0.0000123, 0.00000045, -0.05]

    told = visit(serve()).evaluate(MONEY, costs)

    assert told == ["–", "$12.35", "$0.05", "$0.0123", "$0.0000123", "$0.00000045", "-$0.05"]


TAKEN = """async (tokens) => {
  const { taken } = await import("/static/js/figures.js");
  return tokens.map(taken);
}"""


def test_tokens_that_nobody_has_counted_are_unknown(serve: Serve, visit: Visit) -> None:
    assert visit(serve()).evaluate(TAKEN, [0, 950, 12_300]) == ["–", "950", "12k"]
