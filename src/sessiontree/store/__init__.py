"""Stores: reading and writing the lines of a session. `base` has the protocol, the other modules implement it."""
