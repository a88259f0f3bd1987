"""One file per command (or command group). Each has ``register(app)``, and main.py calls it.

A command's file may import only what is quick: `streamhouse --help` imports them all and must answer within 250 ms.
Whatever is heavy is imported inside the function that needs it.
"""
