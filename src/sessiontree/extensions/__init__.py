"""Extensions: Python of users and projects that watches and changes what happens."""
