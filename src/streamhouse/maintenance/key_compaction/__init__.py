"""Key compaction: of each key, only the newest record stays (``cleanup.policy=compact``). This is Kafka's log cleaner.

    plan.py          what is clean, what is dirty, whether it is due, and which entries become one object. Pure
    key_map.py       the newest offset of each key, in memory of a fixed size. Pure
    key_loops.py     the loops over records: _key_loops.pyx, compiled, or its pure twin _key_loops_py.py
    thinning.py      takes superseded records and old tombstones out of one batch. Pure
    copying.py       fetched bytes in, bytes of a sparse segment out. Pure
    large_entry.py   what stays of an entry with more keys than the map holds. Pure
    mapping.py       fills the map from dirty entries
    looking.py       reads entries, finds the clean end, has them planned
    compactor.py     one pass over partitions: look, claim, recover, map, compact
    stats.py         counters

Reading, rewriting, committing, claims and recovery are those of the compaction of small objects (compaction/), which
leaves compacted topics alone: here the small entries of such a topic are merged too.

Every record that stays keeps its offset, key, value, headers and time (invariant 6), and every offset its meaning
(R18): a reader that asks for one that was emptied gets the next record after it.
"""
