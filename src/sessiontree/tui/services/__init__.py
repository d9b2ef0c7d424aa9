"""What the app needs besides widgets: files, processes and the terminal."""
