"""Tests of the names of other programs."""
