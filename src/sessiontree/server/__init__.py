"""The web: sessions, runs and swarms over HTTP, with live events, and the page at `/`."""
