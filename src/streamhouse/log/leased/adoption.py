"""Adoption: the leader gives offsets to batches that Spark's sink has uploaded, without copying a byte.

    verify      the bytes of the share exist, are whole, and are what the intent says; writes go on meanwhile
    flush       once, so that little is left to flush behind the barrier
    ┌ barrier   no batch gets an offset
    │ flush     everything with offsets is committed: the watermark is the end of the log
    │ adopt     at base = watermark, under the leader's epoch, sent until there is a verdict (R5)
    └           now the next offset is known, and appends go on from there

R13: offsets assigned before that commit would lie behind a gap if it were refused. So ``append`` raises a retriable
error meanwhile. It cannot queue the batch: ``append`` returns an offset, and the next offset is not known before the
verdict. The broker waits for the end of the barrier, in order and with a bound, as it does while a partition opens, so
clients notice nothing. The barrier lasts for one small flush and one call to the metadata store. If that flush takes
long, the barrier ends and the adoption is tried again later: writes must not wait for a store that is away. Once the
adoption is sent, the barrier stays until its outcome is known.

The next leader completes what was left: an adopted share answers as it did the first time, and a share is adopted in
one step. This module does not decide which shares there are, or when to look; maintenance/adoptions.py does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import (
    BackPressureRejected,
    CorruptBlob,
    CorruptData,
    MetadataError,
    NotFound,
    NotLeader,
    UnsupportedVersion,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MIB
from streamhouse.core.randomness import Randomness
from streamhouse.formats.shared_blob_v1 import check_slice
from streamhouse.log.leased.log import LeasedLog
from streamhouse.log.leased.partition import PartitionLog, Phase
from streamhouse.log.offload import InlineOffload, Offload
from streamhouse.log.reader.sharing import ByteGate
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    IntentKey,
    IntentSlice,
    MetadataStore,
    SliceOutcome,
    Verdict,
)
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.topic_requests import caused_by

_BARRIER_FLUSH_S: Final = 5.0
"""The longest time for which appends are refused because of a flush that does not end."""
_NOT_YET_TRIES: Final = 6
_BACKOFF: Final = Backoff(first_ms=100, longest_ms=2_000, least_share=0)
_VERIFY_BYTES: Final = 64 * MIB  # in memory at a time, for all partitions
_VERIFY_CALLS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The slices that one intent has for one partition, in the order in which they are adopted."""

    intent: IntentKey
    partition: int
    slices: tuple[IntentSlice, ...]

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.intent.topic_id, self.partition)

    def __str__(self) -> str:
        return f"batch {self.intent.batch_id} of query {self.intent.query_id}"


@dataclass(slots=True, kw_only=True)
class AdoptionStats:
    adopted_shares: int = 0
    adopted_records: int = 0
    refused_shares: int = 0


@dataclass(slots=True, kw_only=True)
class Adoption:
    metadata: MetadataStore
    store: ObjectStore
    log: LeasedLog
    randomness: Randomness
    offload: Offload = field(default_factory=InlineOffload)
    stats: AdoptionStats = field(default_factory=AdoptionStats)
    _gate: ByteGate = field(default_factory=lambda: ByteGate(max_bytes=_VERIFY_BYTES, max_calls=_VERIFY_CALLS))

    async def verify(self, share: Share) -> None:
        """Check every byte. Raises CorruptData, UnsupportedVersion, ObjectNotFound, StoreError; do not adopt then."""
        for piece in share.slices:
            if piece.encoding != KAFKA_BATCHES:
                raise UnsupportedVersion(f"{share}: {piece.object.key} has the unknown encoding {piece.encoding!r}")
            async with self._gate.admit(piece.byte_length):
                try:
                    await self._verify(piece, share.key)
                except CorruptData:
                    await self._verify(piece, share.key)  # read it again: the download may have been damaged

    async def _verify(self, piece: IntentSlice, key: PartitionKey) -> None:
        with caused_by({key.topic_id: piece.byte_length}):
            data = await self.store.get_range(piece.object.key, piece.byte_offset, piece.byte_length)
        await self.offload.run(_check, data, piece)

    async def adopt(self, share: Share) -> None:
        """Commit a verified share at the end of its partition's log, unless it is in the log already.

        Raises NotLeader when the partition is not led here, or not any more. Raises BackPressureRejected when the flush
        before it did not end in time; nothing has changed then, and it may be tried again.
        """
        partition = self._open_partition(share.key)
        await self.log.flush([share.key])
        if partition.phase is not Phase.OPEN:
            raise partition.not_leader()
        with self.log.barrier(partition):
            await self._flush_in_time(partition, share)
            await self._adopt_at_watermark(partition, share)

    def _open_partition(self, key: PartitionKey) -> PartitionLog:
        partition = self.log.partition(key)
        if partition is None or partition.phase is not Phase.OPEN:
            raise NotLeader(str(key), current_leader=None)
        return partition

    async def _flush_in_time(self, partition: PartitionLog, share: Share) -> None:
        try:
            async with asyncio.timeout(_BARRIER_FLUSH_S):
                await self.log.flush([partition.key])
        except TimeoutError:
            waits_for = self.log.health.store_problem or self.log.health.metadata_problem or "a flush"
            raise BackPressureRejected(f"{partition}: {share} is not adopted yet; waiting for: {waits_for}") from None

    async def _adopt_at_watermark(self, partition: PartitionLog, share: Share) -> None:
        assert partition.next_offset == partition.high_watermark
        try:
            outcome = await self._verdict(partition, share)
            if outcome is None:
                return
        except BaseException:
            # Also when cancelled: its outcome is unknown, so no offset may be assigned here any more (R13).
            self.log.give_up(partition.key, f"the adoption of {share} was cut short")
            raise
        if partition.phase is Phase.DROPPED:
            raise partition.not_leader()
        if outcome.verdict is not Verdict.COMMITTED or outcome.leader_epoch != partition.epoch:
            self.stats.refused_shares += 1
            self.log.give_up(partition.key, f"the adoption of {share} was refused: {outcome.verdict.value}")
            raise partition.not_leader()
        self._note(partition, share, outcome)

    async def _verdict(self, partition: PartitionLog, share: Share) -> SliceOutcome | None:
        """Send the identical call until its outcome is known and it did not come too early. None: no such share."""
        tries = not_yet = unknown = 0
        while True:
            try:
                outcome = await self.metadata.adopt_intent(
                    share.intent, share.partition, epoch=partition.epoch, base_offset=partition.high_watermark
                )
            except NotFound:
                if unknown:
                    # A call without an answer may have completed the intent, and the next batch has replaced it since.
                    raise partition.not_leader() from None
                return None
            except MetadataError:
                unknown += 1
            else:
                not_yet += outcome.verdict is Verdict.NOT_YET
                if outcome.verdict is not Verdict.NOT_YET or not_yet > _NOT_YET_TRIES:
                    return outcome
            if partition.phase is Phase.DROPPED:
                raise partition.not_leader()
            tries += 1
            await asyncio.sleep(_BACKOFF.pause_s(tries, self.randomness))

    def _note(self, partition: PartitionLog, share: Share, outcome: SliceOutcome) -> None:
        """A repeat answers with its old place. If that is below the end of the log, an earlier leader has adopted
        it."""
        if outcome.end_offset < partition.next_offset:
            return
        if outcome.base_offset != partition.next_offset:
            reason = f"{share} stands at {outcome.base_offset}, not at {partition.next_offset}"
            self.log.give_up(partition.key, reason)
            raise partition.not_leader()
        partition.grew_outside(outcome.end_offset + 1)
        self.stats.adopted_shares += 1
        self.stats.adopted_records += outcome.end_offset + 1 - outcome.base_offset


def shares_of(intents: Sequence[tuple[IntentKey, Sequence[IntentSlice]]], partition: int) -> list[Share]:
    """The shares of one partition, in the order given, without intents that have no rows for it."""
    shares = []
    for intent, slices in intents:
        mine = tuple(piece for piece in slices if piece.partition == partition)
        if mine:
            shares.append(Share(intent=intent, partition=partition, slices=mine))
    return shares


def _check(data: memoryview, piece: IntentSlice) -> None:
    """Also checks that a sink wrote it: sequences of producers and control records are not handled here."""
    where = f"bytes {piece.byte_offset} to {piece.byte_offset + piece.byte_length} of {piece.object.key}"
    try:
        headers = check_slice(data, byte_length=piece.byte_length, record_count=piece.record_count)
    except CorruptData as error:
        raise CorruptBlob(f"{where}: {error.message}") from error
    for header in headers:
        if header.is_control or header.is_transactional or header.has_producer:
            raise CorruptBlob(f"{where}: a batch of a transaction or of an idempotent producer cannot be adopted")
