"""The index: one SQLite file that makes listing and searching many sessions fast.

It is a cache. The session files are the truth: whatever the index does not know, or knows of
another state of a file, is read from the file; deleting it loses nothing but time. `folder`
finds the files, `reading` says what is in one, `helpers` read many at once, `database` holds the index
itself, `listing` what is listed of each session, `texts` which words are where, `sieve` and `search` find them.
"""
