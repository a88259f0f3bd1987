"""The maintenance of a whole cluster, or of chosen topics, in a process without an agent: `streamhouse compactor`.

    targets.py      the partitions to look after: what is known at the start, and what is discovered later. Pure
    candidates.py   the search for partitions that have something to compact, and how far compaction lags behind
    task_queue.py   which partition is next, and that no partition has two tasks at a time. Pure
    pool.py         a bounded number of tasks at a time; each compacts one partition
    rounds.py       passes on an interval, with pauses that grow after failures
    service.py      the parts together: discovery, search, pool, retention, vacuum; their start and their stop
    usage.py        what is stored, by the kind of object, from one listing
    counters.py     what a service has counted since its start

An agent looks after the partitions that it leads (upkeep/); this service leads nothing and needs no agent. The work
itself is that of compaction/, key_compaction/, retention/ and vacuum/. Several services, agents and commands may work
at the same time: claims share the work out, and no safety depends on a claim (S2.13).
"""

from streamhouse.maintenance.service.service import CompactionService, ServiceOptions

__all__ = ["CompactionService", "ServiceOptions"]
