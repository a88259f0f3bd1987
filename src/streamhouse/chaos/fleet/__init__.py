"""The fleet under test and what is done to it.

proxy.py      a TCP proxy that cuts, refuses or holds connections
agents.py     one agent process
disk.py       a small disk of an agent's own, which can be filled
clocks.py     an agent's own wall clock, which can be set
fleet.py      PostgreSQL, S3 and the agents; or a fleet that runs already
plan.py       which fault comes next: seeded, without IO
nemesis.py    carries the plan out and keeps the floor on availability
"""
