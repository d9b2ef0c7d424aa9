"""Validation errors: the location and the reason."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from sessiontree.core.validation import describe_validation_error


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    count: int = 0


class Shape(Struct, forbid_unknown_fields=True):
    name: str
    inner: Inner = Inner()
    several: list[Inner] = []


@pytest.mark.parametrize(
    ("value", "where", "why"),
    [
        ({}, "name", "required, but missing"),
        ({"name": "x", "nmae": "y"}, "nmae", "unknown field"),
        ({"name": "x", "inner": {"amount": 1}}, "inner.amount", "unknown field"),
        ({"name": "x", "several": [{}, {"amount": 1}]}, "several[1].amount", "unknown field"),
        ({"name": 1}, "name", "expected str, got int"),
        ([], "", "expected object, got array"),
    ],
)
def test_a_validation_error_names_the_location_and_the_reason(value: Any, where: str, why: str) -> None:
    with pytest.raises(msgspec.ValidationError) as raised:
        msgspec.convert(value, Shape)

    assert describe_validation_error(raised.value, "field") == (where, why)
