"""One file per command (or command group). Each has ``register(app)``; main.py has the table of commands.

A command's file is imported when the command is called. It imports what it needs at its top, except optional extras.
"""
