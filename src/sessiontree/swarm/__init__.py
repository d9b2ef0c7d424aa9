"""Swarms: agents at work on branches of one tree, and experiments with them."""
