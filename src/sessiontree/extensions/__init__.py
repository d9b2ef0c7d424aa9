"""Extensions: Python code of users and projects that handles events and adds commands, tools and shortcuts."""
