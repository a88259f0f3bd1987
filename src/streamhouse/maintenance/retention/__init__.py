"""Retention: deletes the oldest records of a partition by age and by size (S3.2).

    rule.py      when an entry is due: Kafka's rule, and the limit of a reader's hold
    holds.py     the slowest reader of each partition, where a topic waits for its readers
    sizes.py     how many bytes a log has, and where its size limit cuts it
    plan.py      walks over the entries of one partition; the result is a work item
    passes.py    reads configs and entries, plans, and moves log starts: the only module here that does IO

Retention moves the log start, and does nothing else. The metadata store then drops the entries below it and notes which
objects have lost their last reference. Vacuum deletes those objects.
"""
