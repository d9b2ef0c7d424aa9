"""Operations: navigate, compact, fork, merge, cherry-pick, rebase, promote, each with its hooks.

Each has one shape: a plan, the hooks are asked, the work is done, one batch is written, the hooks are told. The head
moves last.
"""
