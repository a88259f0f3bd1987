"""Consumer groups: who reads what, and how far they are. Pure machines (classic.py, consumer.py) and one shell."""
