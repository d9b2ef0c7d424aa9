"""How the dashboard formats numbers: format.js, in a browser."""

from __future__ import annotations

from tests.server.dashboard.conftest import Serve, Visit

MONEY = """async (costs) => {
  const { formatCost } = await import("/static/js/format.js");
  return costs.map(formatCost);
}"""


def test_costs_are_formatted_and_may_be_unknown_or_negative(serve: Serve, visit: Visit) -> None:
    costs = [0, 12.345, 0.05, 0.0123, 0.0000123, 0.00000045, -0.05]

    told = visit(serve()).evaluate(MONEY, costs)

    assert told == ["–", "$12.35", "$0.05", "$0.0123", "$0.0000123", "$0.00000045", "-$0.05"]


TAKEN = """async (tokens) => {
  const { formatTokens } = await import("/static/js/format.js");
  return tokens.map(formatTokens);
}"""


def test_missing_token_counts_are_unknown(serve: Serve, visit: Visit) -> None:
    assert visit(serve()).evaluate(TAKEN, [0, 950, 12_300]) == ["–", "950", "12k"]
