"""The simulator: the real log, WAL, reader and membership in virtual time, with everything that can go wrong (issue 4).

loop.py       virtual time, one lane for each process        dice.py        chance, from one seed
disk.py       a machine's disk and its crashes                clock.py       its clocks
network.py    calls and their effects, coming apart           metadata.py, store.py   the stores behind it
agent.py      a machine with an agent process on it           ledger.py      what its WAL was given
world.py      everything shared, and what is written down     scenario.py    what a seed stands for
clients.py    whom a client knows; connections.py its way    producers.py, readers.py, sinks.py, errands.py
sending.py    what producer clients share                     java.py, librdkafka.py, plain.py   their behaviour
nemesis.py    what goes wrong                                 run.py         one seed from beginning to verdict
history.py    what happened; plain data                       evidence.py    what is left; plain data
checker.py    the judge, with eyes of its own (rawbytes.py)
mutants.py    broken variants that must be found (mutant.py, mutants_*.py, replacing.py)

``python -m simulator`` runs seeds and replays one. docs/simulation.md tells how it works.
"""
