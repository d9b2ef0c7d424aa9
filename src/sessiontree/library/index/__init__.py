"""The index: one SQLite file that makes listing and searching many sessions fast.

It is a cache. Everything that it does not know, or knows from an older state of a file, is read from the session files.
Deleting it loses nothing but time. `index_database` opens the index, `session_summary` reads one file, `listing` reads
many and keeps their summaries, `word_index` excludes what cannot match a query, and `session_search` finds entries.
"""
