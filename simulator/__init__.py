"""The simulator: runs the real log, WAL, reader and membership in virtual time, with every fault we know.

It is not part of the wheel. ``python -m simulator`` in the root of the repository runs seeds and replays one;
docs/simulation.md explains it.

run.py        one seed from start to verdict                 scenario.py    what a seed decides
world.py      what agents share, and the records of a run    nemesis.py     the faults
loop.py       virtual time: one lane for each process        dice.py        random numbers from one seed
agent.py      a machine with an agent process on it          disk.py        its disk and crashes
network.py    calls that fail, come late or come twice       ledger.py      what its WAL was given
metadata.py, store.py   the two stores behind the network
curators.py   processes that do only maintenance         hours.py       hours pass in an instant
pinned.py     readers that pin what they read            maintenance_plan.py   what a seed decides about all that
removals.py   records what maintenance takes away        tidying.py     the end: nothing due, nothing left over
clients.py    a client and what it knows; connections.py     errands.py     operators and maintenance
producers.py, readers.py, sinks.py   applications            sending.py     what producer clients share
java.py, librdkafka.py, plain.py     behaviour of clients
history.py    what happened (plain data)                     evidence.py    what is left (plain data)
checker.py    finds anomalies (anomalies.py); checker_removals.py those of maintenance; rawbytes.py reads bytes for it
mutants.py    broken variants that must be found (mutant.py, mutants_*.py)
"""
