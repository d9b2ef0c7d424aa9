"""Services of the terminal app: drafts, completion, background scans, processes and the terminal."""
