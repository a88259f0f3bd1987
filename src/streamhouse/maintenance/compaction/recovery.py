"""Finishes a compaction that was left pending, or clears it (S2.8, S2.9, S2.10).

A process may die between ``begin_compaction`` and ``apply_compaction``. The record that it leaves behind holds all that
is needed to go on, so any process does, and no compaction of the partition begins before.

    the state is past WRITING_COMPACTED_INDEX     apply: entries were replaced already, there is no way back
    the object is there and is the target's       apply
    the object is missing, or another             abort: the sources still stand, and another run replaces them later

A compaction that a living process is about to apply may be met here too. Both then send the same call, and the second
is told ALREADY.
"""

from __future__ import annotations

from enum import Enum, auto

from streamhouse.core.errors import CompactionConflict, CorruptData, ObjectNotFound, ReadPastEnd, UnsupportedVersion
from streamhouse.formats.segment_v1_reader import RangedReader
from streamhouse.maintenance.compaction.sources import check_footer
from streamhouse.metadata.contract import SEGMENT_V1, Compaction, CompactionState, MetadataStore
from streamhouse.objectstore.contract import ObjectStore


class RecoveryOutcome(Enum):
    APPLIED = auto()
    ABORTED = auto()
    SETTLED = auto()
    """Another process has finished or cleared it meanwhile, or its sources were gone, which clears it too."""


async def recover_compaction(compaction: Compaction, *, metadata: MetadataStore, store: ObjectStore) -> RecoveryOutcome:
    """Raises StoreError, MetadataError, and UnsupportedVersion for an object that only a newer build can judge."""
    key, compaction_id = compaction.key, compaction.compaction_id
    if not await _can_be_applied(compaction, store):
        aborted = await metadata.abort_compaction(key, compaction_id)
        return RecoveryOutcome.ABORTED if aborted else RecoveryOutcome.SETTLED
    try:
        await metadata.apply_compaction(key, compaction_id)
    except CompactionConflict:
        return RecoveryOutcome.SETTLED
    return RecoveryOutcome.APPLIED


async def _can_be_applied(compaction: Compaction, store: ObjectStore) -> bool:
    if compaction.state is not CompactionState.WRITING_COMPACTED_INDEX:
        return True
    target, ref = compaction.target, compaction.object
    if target.encoding != SEGMENT_V1:
        raise UnsupportedVersion(f"compaction {compaction.compaction_id}: its encoding {target.encoding!r} is unknown")
    try:
        if (await store.head(ref.key)).size_bytes != ref.size_bytes:
            return False
        reader = RangedReader(target.byte_length)
        while (need := reader.need()) is not None:
            reader.feed(await store.get_range(ref.key, target.byte_offset + need.offset, need.length))
        check_footer(reader.footer, compaction.key, target)
    except (ObjectNotFound, ReadPastEnd, CorruptData):
        return False
    return True
