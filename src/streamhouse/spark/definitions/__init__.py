"""Definitions that a runner keeps running: what pipelines and tables share.

A user defines a pipeline or a table. The definition is a document in the metadata store, with a wanted state (running
or stopped) and the last report of a runner. A runner reads the definitions, claims those that are wanted, and keeps a
streaming query running for each. Exactly-once does not depend on any of this: each target decides batch by batch.

    catalog.py       the stored definitions of one kind
    service.py       what the commands call: create, list, start, stop, delete, run
    runner.py        claims definitions and gives each its next step; claims.py, supervised.py, reports.py
    application.py   the Spark application that a runner starts
    attempt.py       a started query, and its failure in one line
    checkpoints.py   where Spark's checkpoints are, what is in them, which are obsolete
    progress.py      which batch a target writes, skips or refuses
    targets.py       what a target must do, and how a batch reaches it

Only application.py and attempt.py's callers need pyspark, so that a listing works without Spark and Java.
"""
