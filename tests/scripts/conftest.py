"""The browser of the tests of exports."""

from tests.export.conftest import browser

__all__ = ["browser"]
