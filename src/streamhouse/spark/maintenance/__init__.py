"""Maintenance of the log on Spark: the passes of streamhouse.maintenance, with their heavy steps in Spark tasks.

    tasks.py            what runs in a task's Python worker: the stores, one piece of work, its answer
    jobs.py             what runs in the driver: sends one piece of work as one task, and waits for its answer
    compaction.py       a task compacts one item
    key_compaction.py   a task compacts the keys of one partition, or tasks share it
    key_shuffle.py      what those tasks do that share a partition
    key_pairs.py        what they send each other. Pure
    retention.py        a task moves the log start of one partition
    vacuum.py           a task deletes the garbage of one page of a listing
    verify.py           a task verifies one partition

The driver runs a pass as one process does: it reads entries, plans, claims, pins, raises the horizon. Each class here
is the pass of one process with one step replaced, the step that costs. The task does that step with the code that one
process uses. Work and answers are small pickles. Records go from the object store to the Python worker and back, and
never through Java. Of a partition that tasks share, hashes of keys and offsets go through a shuffle of Spark's.

A task may run twice, one after the other (Spark tries a failed task again) or at the same time (speculation, a worker
that is taken for dead). It needs no guard against that: every change is a conditional call of the metadata contract,
so one attempt wins, and the other is refused or finds its work done.
"""
