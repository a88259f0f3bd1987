"""Upkeep: the maintenance that an agent runs by itself, for the partitions that it leads.

    upkeep.py      the loops: when retention, compaction and vacuum run
    schedule.py    when retention is due. Pure
    pace.py        compaction reads no faster than its rate, and pauses while writes wait for room
    brake.py       on a single node: when writes must wait for retention. Pure
    disk_space.py  on a single node: deletes dereferenced objects early, so that a size limit bounds the disk

A single node runs everything here alone. In a fleet each agent looks after the partitions it leads; vacuum looks at the
whole bucket, so one agent at a time runs it. Claims decide who; they save work and nothing depends on them.
"""

from streamhouse.maintenance.upkeep.upkeep import Upkeep, UpkeepOptions, UpkeepStats

__all__ = ["Upkeep", "UpkeepOptions", "UpkeepStats"]
