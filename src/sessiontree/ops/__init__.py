"""Operations on branches: navigate, compact, fork, merge, cherry-pick, rebase and promote, each with its hooks.

Every operation has the same steps: make a plan, ask the hooks, do the work, write one batch, notify the hooks. The
branch head moves last.
"""
