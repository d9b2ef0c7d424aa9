"""Swarms: several agents that work on branches of one session. `experiment` compares arms, `durable` runs workers."""
