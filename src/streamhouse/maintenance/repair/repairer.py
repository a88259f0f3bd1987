"""Repairs the damaged entries that a verification has found: each is compacted by itself into an object of its own.

    claim     another process compacts the partition: its entries are put off. This is scheduling only
    recover   finish or clear a compaction that was left pending, by a repair that was killed too (recovery.py)
    stands    the entry is the one that was judged; else what has replaced it is verified instead
    layout    a segment: what its ends still tell of where its batches are (layout.py)
    rewrite   read, prove every batch, upload (salvage.py); begin, apply (compaction/commit.py)
    verify    the new entry and its object, as every verification does

It replaces a single entry as compaction replaces many, so it is as safe beside writers, readers, compaction, retention
and vacuum, and a process may die after any step: nothing is changed before ``begin``, and whatever is pending after it
is finished by the next compaction or repair of any process. The damaged object stays until vacuum's grace is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from streamhouse.core.clock import Clock
from streamhouse.core.errors import (
    CompactionConflict,
    DamagedObject,
    InvalidRequest,
    LimitExceeded,
    PartitionNotFound,
    UnsupportedVersion,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.log.offload import Offload
from streamhouse.maintenance.compaction.claims import PartitionClaim
from streamhouse.maintenance.compaction.commit import ItemCompaction
from streamhouse.maintenance.compaction.plan import CompactionItem, Worth
from streamhouse.maintenance.compaction.recovery import recover_compaction
from streamhouse.maintenance.compaction.rewrite import fetched_reads
from streamhouse.maintenance.repair.damages import DamageList, JudgedEntry
from streamhouse.maintenance.repair.layout import SegmentLayout, read_layout
from streamhouse.maintenance.repair.outcomes import EntryRepair, RepairOutcome, RepairSummary, TellRepair
from streamhouse.maintenance.repair.salvage import SalvageCopy, salvage_reads
from streamhouse.maintenance.verify.entry_pages import can_be_read, check_entry, check_epochs
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.maintenance.verify.findings import Finding
from streamhouse.maintenance.verify.objects import EntryReader
from streamhouse.maintenance.verify.options import VerifyOptions, VerifySummary
from streamhouse.maintenance.verify.verifier import for_each, present_entry
from streamhouse.metadata.contract import KAFKA_BATCHES, Entry, MetadataStore
from streamhouse.objectstore.contract import ObjectStore

_PARTITIONS_AT_A_TIME: Final = 4
"""Entries of one partition are repaired one after the other: one compaction of it may be pending."""
_CLAIM_TTL_MS: Final = 60_000


class Repairer:
    """One run. ``owner`` names this process in claims. With ``plan_only`` it reads and proves, and changes nothing."""

    def __init__(
        self,
        *,
        metadata: MetadataStore,
        store: ObjectStore,
        offload: Offload,
        clock: Clock,
        randomness: Randomness,
        owner: str,
        tell: TellRepair,
        options: VerifyOptions,
        plan_only: bool = False,
    ) -> None:
        """``options`` are those of the verification: what was repaired is verified to the same depth."""
        self.summary = RepairSummary(plan_only=plan_only)
        self._metadata = metadata
        self._store = store
        self._offload = offload
        self._clock = clock
        self._owner = owner
        self._tell = tell
        self._item = ItemCompaction(metadata=metadata, store=store, offload=offload, randomness=randomness)
        self._objects = EntryReader(
            store=store, offload=offload, options=options, summary=VerifySummary(depth=options.depth)
        )

    async def run(self, damages: DamageList) -> RepairSummary:
        """Raises StoreError and MetadataError; what was repaired until then stays repaired."""
        by_partition: dict[PartitionKey, list[JudgedEntry]] = {}
        for judged in damages.judged():
            by_partition.setdefault(judged.key, []).append(judged)
            self.summary.entries += 1
        self.summary.left_out = damages.left_out
        self.summary.is_index_damaged = damages.is_index_damaged
        try:
            await for_each(by_partition.values(), self._repair_partition, at_a_time=_PARTITIONS_AT_A_TIME)
        finally:
            await self._objects.close()
        return self.summary

    async def _repair_partition(self, found: Sequence[JudgedEntry]) -> None:
        hopeful = [judged for judged in found if not judged.reason]
        for judged in found:
            if judged.reason:
                self._say(judged, RepairOutcome.NOT_REPAIRABLE, judged.reason)
        if self.summary.plan_only:
            for judged in hopeful:
                await self._decide(judged, None)
        elif hopeful:
            await self._repair_claimed(hopeful[0].key, hopeful)

    async def _repair_claimed(self, key: PartitionKey, hopeful: Sequence[JudgedEntry]) -> None:
        claim = PartitionClaim(key, metadata=self._metadata, clock=self._clock, owner=self._owner, ttl_ms=_CLAIM_TTL_MS)
        try:
            for judged in hopeful:
                if not await claim.hold():
                    self._say(judged, RepairOutcome.PUT_OFF, "another process compacts its partition: run it again")
                    continue
                await self._decide(judged, claim)
        finally:
            await claim.release()

    async def _recover(self, key: PartitionKey) -> None:
        pending = await self._metadata.get_compaction(key)
        if pending is not None:
            await recover_compaction(pending, metadata=self._metadata, store=self._store)

    # One entry.

    async def _decide(self, judged: JudgedEntry, claim: PartitionClaim | None) -> None:
        """``claim`` is None for a plan."""
        key, entry = judged.key, judged.entry
        try:
            if claim is not None:
                await self._recover(key)
            if await present_entry(self._metadata, key, entry) != entry:
                await self._look_again(judged)
                return
            layout = None
            if entry.encoding != KAFKA_BATCHES:
                layout = await read_layout(key, entry, self._store)
            epochs = EpochLine(await self._metadata.epoch_history(key))
            if claim is None:
                await self._prove(judged, SalvageCopy(key=key, entry=entry, layout=layout, epochs=epochs), layout)
                self._say(judged, RepairOutcome.REPAIRABLE)
                return
            await self._rewrite(judged, layout, epochs, claim)
        except DamagedObject as error:
            if await present_entry(self._metadata, key, entry) != entry:
                await self._look_again(judged)
                return
            self._say(judged, RepairOutcome.NOT_REPAIRABLE, error.problem)
        except (UnsupportedVersion, LimitExceeded, InvalidRequest) as error:
            self._say(judged, RepairOutcome.NOT_REPAIRABLE, error.message)
        except (CompactionConflict, PartitionNotFound):
            await self._look_again(judged)
        else:
            await self._verify_repaired(judged)

    async def _prove(self, judged: JudgedEntry, copy: SalvageCopy, layout: SegmentLayout | None) -> None:
        """Read all of the entry as a repair does, and throw the new segment away. Raises DamagedObject."""
        reads = fetched_reads(judged.key, [judged.entry], self._store, salvage_reads(layout))
        async with aclosing(reads) as fetched:
            async for read, buffers in fetched:
                await self._offload.run(copy.feed, read, buffers)
                self.summary.rewriting.bytes_in += read.size_bytes
        await self._offload.run(copy.finish)

    async def _rewrite(
        self, judged: JudgedEntry, layout: SegmentLayout | None, epochs: EpochLine, claim: PartitionClaim
    ) -> None:
        """Raises CompactionConflict when the entry has changed meanwhile, DamagedObject when a batch is not whole."""
        key, entry = judged.key, judged.entry

        async def copied(size_bytes: int) -> None:
            self.summary.rewriting.bytes_in += size_bytes
            if not await claim.hold():
                raise CompactionConflict(f"another process has claimed {key} meanwhile")

        await self._item.run(
            CompactionItem(key=key, sources=(entry,), worth=Worth.DAMAGED),
            stats=self.summary.rewriting,
            copied=copied,
            new_copy=lambda item: SalvageCopy(key=key, entry=entry, layout=layout, epochs=epochs),
            plan_reads=salvage_reads(layout),
        )

    # What stands there now.

    async def _verify_repaired(self, judged: JudgedEntry) -> None:
        present = await present_entry(self._metadata, judged.key, judged.entry)
        if present is None:
            self._say(judged, RepairOutcome.REPLACED)
            return
        findings = await self._findings(judged.key, present)
        if findings:
            problem = f"{findings[0].kind}: {findings[0].problem}"
            self._say(judged, RepairOutcome.STILL_DAMAGED, problem, new_object=present.object_key)
        else:
            self._say(judged, RepairOutcome.REPAIRED, new_object=present.object_key)

    async def _look_again(self, judged: JudgedEntry) -> None:
        """The entry is another one now, or its range is."""
        present = await present_entry(self._metadata, judged.key, judged.entry)
        if present is None or (present != judged.entry and not await self._findings(judged.key, present)):
            self._say(judged, RepairOutcome.REPLACED)
        else:
            reason = "its partition was changed meanwhile, and what stands there is damaged: run it again"
            self._say(judged, RepairOutcome.PUT_OFF, reason)

    async def _findings(self, key: PartitionKey, entry: Entry) -> list[Finding]:
        states = await self._metadata.get_partitions([key])
        epochs = EpochLine(await self._metadata.epoch_history(key))
        own = [finding for state in states for finding in check_epochs(state, [entry], epochs)]
        own += check_entry(key, entry)
        if not can_be_read(own) or not await self._objects.check(key, entry, epochs):
            return own
        return own + await self._objects.check(key, entry, epochs, again=True)

    def _say(self, judged: JudgedEntry, outcome: RepairOutcome, reason: str = "", *, new_object: str = "") -> None:
        self.summary.outcomes[outcome] += 1
        self._tell(EntryRepair(judged=judged, outcome=outcome, reason=reason, new_object=new_object))
