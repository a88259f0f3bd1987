"""One pass of each machine of maintenance over the whole log: compaction, retention, vacuum."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from storm_place import MINUTE_MS, Stores

from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.vacuum import deletion, vacuum
from streamhouse.maintenance.vacuum.options import VacuumOptions
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.metadata.rows import compactions

AT_ONCE: Final = CompactionRules(
    target_object_bytes=1 << 20, max_object_bytes=2 << 20, large_entry_bytes=1 << 20, min_entries=2, max_age_ms=0
)
"""Whatever can be compacted is worth it."""
VACUUM: Final = VacuumOptions(writer_grace_ms=30 * MINUTE_MS, reader_grace_ms=5 * MINUTE_MS, purge_rows=3, pause_ms=0)
"""The shortest graces that are allowed."""


async def compaction_machine(stores: Stores, owner: str) -> None:
    """Of all but the topic whose entries are due: in one large entry with others, they would not be."""
    topics = [topic for topic in await stores.metadata.list_topics() if topic.name != "trimmed"]
    keys = [key for topic in topics for key in topic.partition_keys()]
    result = await eager_compactor(stores, owner).compact_once(keys)
    assert not result.failures, result.failures


async def retention_machine(stores: Stores, owner: str) -> None:
    summary = await Retention(metadata=stores.metadata).run()
    assert not summary.failed, summary.failures


async def vacuum_machine(stores: Stores, owner: str) -> None:
    summary = await Vacuum(metadata=stores.metadata, objects=stores.objects, options=VACUUM).run()
    assert not summary.failed, summary


Machine = Callable[[Stores, str], Awaitable[None]]
MACHINES: Final[dict[str, Machine]] = {
    "compaction": compaction_machine,
    "retention": retention_machine,
    "vacuum": vacuum_machine,
}


def eager_compactor(stores: Stores, owner: str) -> Compactor:
    return Compactor(
        metadata=stores.metadata,
        store=stores.objects,
        offload=InlineOffload(),
        clock=stores.clock,
        randomness=SeededRandomness(hash_of(owner)),
        owner=owner,
        options=CompactorOptions(rules=AT_ONCE),
    )


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode(), "big")


def work_in_small_steps() -> None:
    """Pages and chunks of a few rows, so that a small log takes every loop of the machines several times."""
    for module, name, rows in (
        (compactions, "DROP_CHUNK_ENTRIES", 2),
        (vacuum, "OBJECTS_PER_PAGE", 4),
        (vacuum, "RECORDS_PER_BATCH", 3),
        (deletion, "KEYS_PER_REQUEST", 2),
    ):
        assert hasattr(module, name)
        setattr(module, name, rows)
