"""Hypothesis without a deadline: how long an example takes says something about the machine, not about the code."""

from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.load_profile("steady")
