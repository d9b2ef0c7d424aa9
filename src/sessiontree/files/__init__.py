"""Files follow the conversation: snapshots of a folder, restoring them, and their history. Drives the `git` command."""
