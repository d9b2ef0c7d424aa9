"""The version of sessiontree, defined only here."""

__version__ = "0.1.0"
