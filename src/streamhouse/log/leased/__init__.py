"""The leased way to write: one leader per partition assigns offsets, appends to its WAL, flushes and commits.

A take-over, in the order in which it reads (cluster/holdings.py calls the owner, the owner calls ``open_partition``):

    log.py          LeasedLog.open_partition: the whole sequence
    opening.py      1. what a new leader must know before it serves: producers (producers.py) and held frames
    held.py         2. the frames of this WAL that are not settled, by partition
    recovery.py     3. for each frame: committed, replay, resubmit, drop, or stranded (R3, R4, R23). Pure
    replay.py       4. puts frames back at the same offsets; resubmission.py writes others as new records
    lost_commits.py 5. only if the metadata store has lost commits

A write:

    writing.py      a batch gets its offsets, goes to the WAL and into the buffer
    idempotence.py  sequence checks of idempotent producers; windows.py keeps many of them in little memory
    partition.py    the state of one partition: offsets, buffer, producers; pending.py: its batches and their waiters
    budget.py       how much memory all of this may take
    plan.py         which partitions a flush takes, and when the next flush is due; flusher.py is its loop
    pack.py         the batches of a flush as objects: segments and one shared blob
    commit.py       upload, commit until there is a verdict, and what each verdict means

adoption.py commits what others have uploaded, behind a barrier (R13). closing.py says how long a stop waits for
flushes. protocols.py has what this package needs of the WAL and of leases.
"""
