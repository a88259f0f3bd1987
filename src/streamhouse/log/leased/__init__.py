"""The leased way to write: one leader per partition assigns offsets, logs to its WAL, flushes and commits.

partition.py  one partition's state: offsets, buffer, producers, who waits for what (waiters.py)
opening.py    what a new leader must know before it serves
recovery.py   what to do with frames an earlier leadership left in the WAL (R3, R4); held.py keeps them
plan.py       which partitions a flush takes, and when the next one is due; flusher.py is its loop
pack.py       a flush's batches as objects: segments and one shared blob
commit.py     upload, commit until there is a verdict, and what each verdict means
comeback.py   acts on those frames: replays, and has resubmission.py write the others as new records
adoption.py   what others have uploaded gets its offsets, behind a barrier (R13)
closing.py    how long a stop waits for what is not in the log yet
budget.py     how much memory all of this may take
log.py        the whole: LeasedLog
seams.py      what it needs of the WAL and of leases
"""
