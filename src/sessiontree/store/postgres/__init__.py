"""The store in PostgreSQL, shared by many machines.

address        which database and which session; safe to show, cheap to import
driver         opening connections and classifying errors; the only module that imports psycopg
connection     a pool of connections for each database, retries, and waiting for what other processes write
schema         tables, functions, migrations and SQL statements
rows           the columns stored with every line
block_cache    lines that were read before, in memory
store          one session: the store protocol
shared_lines   forks that share lines with their source
advisory_lock  locks across machines
"""
