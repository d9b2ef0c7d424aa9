"""The store in PostgreSQL, for many machines.

address      which database, which session, and what may be shown of it; cheap to import
connection   the one door to psycopg: a pool, time limits, trying again
schema       tables and functions, and how they come to be
rows         what is written of a line beside its bytes
blocks       lines that were read, to be had again without asking
sql          the statements that the store sends
store        one session: the store protocol
fork         sessions that share lines with another
watch        waiting for what others write
hold         what one process at a time may do, on all machines together
"""
