"""Experiments: run several arms many times and compare them."""
