"""Compaction of small objects: many short entries of a partition become one COMPACTED segment (S2.8).

    policy.py      which topics are left to key compaction
    plan.py        which consecutive entries are worth one object, and how far the log needs no look any more. Pure
    sources.py     which byte ranges to fetch of these entries, in order; what is wrong with an entry. Pure
    copying.py     fetched bytes in, checked batches at their real offsets, bytes of a segment out. Pure
    rewrite.py     fetches ahead, copies, uploads: one item becomes one object
    recovery.py    finishes or clears what a process left pending
    commit.py      one item: rewrite, begin, apply; sends calls without an answer again (R5, R6)
    looking.py     reads entries and has them planned
    compactor.py   one pass over partitions: look, claim, recover, compact
    claims.py      who works on a partition at present (S2.13)
    memory.py      what a compactor remembers between passes
    stats.py       counters, and what a pass tells while it runs

Batches are copied byte for byte and never decoded, so a reader sees the same log before, during and after. Nothing is
deleted here: a replaced object loses this partition's references, and vacuum decides (R7, R24).
"""
