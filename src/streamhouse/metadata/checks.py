"""What a well-formed call looks like, checked once for every backend before anything is sent. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from streamhouse.core import limits
from streamhouse.core.errors import InvalidPartitions, InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey, check_topic_name
from streamhouse.metadata.contract import (
    NO_PRODUCER,
    BatchRun,
    Compaction,
    Intent,
    LeaderlessSlice,
    LeasedSlice,
    LeaseKey,
    NewTopic,
    OffsetCommit,
)


def check_new_topic(new: NewTopic) -> None:
    check_topic_name(new.name)
    check_partition_count(new.partition_count)


def check_partition_count(count: int) -> None:
    if not 1 <= count <= limits.MAX_PARTITIONS_PER_TOPIC:
        raise InvalidPartitions(f"{count} partitions asked for; 1 to {limits.MAX_PARTITIONS_PER_TOPIC} are possible")


def check_slices(slices: Sequence[LeasedSlice] | Sequence[LeaderlessSlice]) -> None:
    if not slices:
        raise InvalidRequest("a commit needs at least one partition")
    _at_most(len(slices), limits.MAX_COMMIT_PARTITIONS, "partitions in one commit")
    _at_most(sum(len(piece.batches) for piece in slices), limits.MAX_COMMIT_BATCHES, "batches in one commit")
    _once([piece.key for piece in slices], "a commit")
    for piece in slices:
        _check_slice(piece)


def _check_slice(piece: LeasedSlice | LeaderlessSlice) -> None:
    where = f"the slice of {piece.key}"
    if not piece.batches:
        raise InvalidRequest(f"{where} lists no batches")
    if piece.byte_offset < 0 or piece.byte_length <= 0:
        raise InvalidRequest(f"{where} has byte range {piece.byte_offset}+{piece.byte_length}")
    for batch in piece.batches:
        _check_batch(batch, where)
    if isinstance(piece, LeaderlessSlice):
        listed = sum(batch.byte_length for batch in piece.batches)
        if listed != piece.byte_length:
            raise InvalidRequest(f"{where} is {piece.byte_length} bytes long, but its batches add up to {listed}")
    elif piece.base_offset < 0 or piece.epoch < 1:
        raise InvalidRequest(f"{where} has base offset {piece.base_offset} and epoch {piece.epoch}")


def _check_batch(batch: BatchRun, where: str) -> None:
    if batch.record_count < 1 or batch.byte_length < 1:
        raise InvalidRequest(f"{where} lists a batch of {batch.record_count} records in {batch.byte_length} bytes")
    if batch.producer_id != NO_PRODUCER and (
        batch.producer_id < 0 or batch.producer_epoch < 0 or not 0 <= batch.base_sequence < 2**31
    ):
        raise InvalidRequest(
            f"{where} lists producer {batch.producer_id} with epoch {batch.producer_epoch}, "
            f"sequence {batch.base_sequence}"
        )


def check_lease_keys(keys: Sequence[LeaseKey], ttl_ms: int | None = None) -> None:
    _at_most(len(keys), limits.MAX_LEASES_PER_CALL, "leases in one call")
    _once(keys, "a call")
    if ttl_ms is not None and not 1 <= ttl_ms <= limits.MAX_LEASE_TTL_MS:
        raise InvalidRequest(f"a lease of {ttl_ms} ms; 1 to {limits.MAX_LEASE_TTL_MS} are possible")


def check_group(group_id: str, payload: bytes = b"", offsets: Sequence[OffsetCommit] = ()) -> None:
    _at_most(len(group_id.encode()), limits.MAX_GROUP_ID_BYTES, "bytes of a group id")
    _at_most(len(payload), limits.MAX_GROUP_STATE_BYTES, "bytes of a group's state")
    _once([commit.key for commit in offsets], "an offset commit")
    for commit in offsets:
        if commit.offset < 0:
            raise InvalidRequest(f"offset {commit.offset} committed for {commit.key}; offsets start at 0")
        _at_most(len(commit.metadata.encode()), limits.MAX_OFFSET_METADATA_BYTES, "bytes of offset metadata")


def check_compaction(compaction: Compaction) -> None:
    sources, target = compaction.sources, compaction.target
    if not sources:
        raise InvalidRequest(f"the compaction of {compaction.key} names no entries")
    expected = sources[0].base_offset
    for source in sources:
        if source.base_offset != expected or source.end_offset < source.base_offset:
            raise InvalidRequest(f"the sources of {compaction.key}'s compaction are not consecutive at {expected}")
        expected = source.end_offset + 1
    if (target.base_offset, target.end_offset) != (sources[0].base_offset, sources[-1].end_offset):
        raise InvalidRequest(
            f"the compaction of {compaction.key} turns offsets {sources[0].base_offset}-{sources[-1].end_offset} "
            f"into {target.base_offset}-{target.end_offset}"
        )


def check_intent(intent: Intent) -> None:
    _at_most(len(intent.slices), limits.MAX_INTENT_SLICES, "slices in one intent")
    if not intent.key.query_id or intent.key.batch_id < 0:
        raise InvalidRequest(f"an intent needs a query id and a batch id ≥ 0, not {intent.key}")
    for piece in intent.slices:
        if piece.record_count < 1 or piece.byte_length < 1 or piece.byte_offset < 0 or piece.partition < 0:
            raise InvalidRequest(f"partition {piece.partition} of intent {intent.key} has an impossible slice")


def check_scan_limit(limit: int) -> None:
    if limit < 1:
        raise InvalidRequest(f"a scan of {limit} entries")
    _at_most(limit, limits.MAX_SCAN_ENTRIES, "entries in one page")


def _at_most(count: int, most: int, what: str) -> None:
    if count > most:
        raise LimitExceeded(f"{count} {what}; {most} at most")


def _once(keys: Sequence[LeaseKey] | Sequence[PartitionKey], where: str) -> None:
    if len(set(keys)) != len(keys):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise InvalidRequest(f"{twice} stands twice in {where}")
