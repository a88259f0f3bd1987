"""The settings of maintenance. Declared like those in declared.py, which has all sections."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.settings.schema import boolean, duration, size


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """What an agent does by itself to keep logs and the object store in order."""

    enabled: bool = boolean(
        True,
        doc="Run retention, compaction and vacuum in this agent, for the partitions that it leads. Turn it off where "
        "the commands `streamhouse retain`, `compact` and `vacuum` are run on a schedule instead.",
        why="a log that nobody looks after fills the store",
    )
    retention_interval_ms: int = duration(
        "5m",
        at_least="1s",
        at_most="24h",
        doc="How often records past `retention.ms` are deleted. A log with `retention.bytes` is also looked at "
        "whenever a thirty-second of that was written.",
        why="Kafka's default (log.retention.check.interval.ms)",
    )
    compaction_interval_ms: int = duration(
        "1m",
        at_least="1s",
        at_most="24h",
        doc="How often small objects are looked for that can become one large object.",
        why="at 20 small objects a second, a minute makes enough of them for one that is worth a request",
    )
    max_rate_bytes: int = size(
        "32MiB",
        at_least="64KiB",
        at_most="10GiB",
        doc="How many bytes compaction reads in a second at most, in one agent. It pauses while writes wait for room.",
        why="a few percent of one core, and of what an agent writes to S3 at most",
    )
    vacuum_interval_ms: int = duration(
        "1h",
        at_least="1m",
        at_most="7d",
        doc="How often the object store is searched for objects that nothing refers to. One agent of a fleet does it.",
        why="a listing costs a request for each 1,000 objects: 0.005 USD for a million",
    )
    writer_grace_ms: int = duration(
        "1h",
        at_least="30m",
        at_most="7d",
        doc="Objects younger than this are never deleted: a writer may have uploaded them and not committed yet. A "
        "commit of an older object is refused, and the writer uploads it again.",
        why="agents commit within seconds, and Spark's sinks hold a pin while they write",
    )
    reader_grace_ms: int = duration(
        "1h",
        at_least="5m",
        at_most="7d",
        doc="Objects that nothing refers to any more are kept for this long, for readers that have looked them up, and "
        "for a metadata backup of that age.",
        why="reads take seconds; the rest is time to notice a mistake",
    )
    garbage_max_bytes: int = size(
        "16MiB",
        at_least="1MiB",
        at_most="1TiB",
        doc="On a single node: when more than this of objects wait for `maintenance.reader_grace`, the oldest of them "
        "are deleted at once, as soon as a size limit has dropped records. Without effect elsewhere.",
        why="`retention.bytes` is to bound a disk, also under a writer that fills it within the grace",
    )
