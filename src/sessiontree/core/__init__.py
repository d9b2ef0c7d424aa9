"""The pure core: no files, clock, randomness or async code."""
