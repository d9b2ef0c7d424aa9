"""Where sessions live: repositories, the index, the trash, transfer between them, and repair."""
