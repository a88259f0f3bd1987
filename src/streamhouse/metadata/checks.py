"""Checks of the arguments of every call, the same for each backend. Pure.

PostgreSQL is asked only after them. SQLite runs some of them inside the step, before its first statement.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from streamhouse.core import limits
from streamhouse.core.errors import CompactionConflict, InvalidPartitions, InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey, check_topic_name
from streamhouse.metadata.contract import (
    NO_PRODUCER,
    AgentInfo,
    BatchRun,
    Compaction,
    Durability,
    EntryKind,
    Intent,
    LeaderlessSlice,
    LeasedSlice,
    LeaseKey,
    NewTopic,
    ObjectRef,
    OffsetCommit,
    SlotFence,
    slot_of,
)

_INT64_MAX = 2**63 - 1


def check_text(
    text: str,
    what: str,
    *,
    most: int = limits.MAX_NAME_BYTES,
    may_be_empty: bool = False,
    may_hold_nul: bool = False,
) -> None:
    """PostgreSQL stores no NUL and no lone surrogate, so no backend takes them: all must behave alike.

    ``may_hold_nul``: the backends encode it.
    """
    if not text and not may_be_empty:
        raise InvalidRequest(f"{what} is empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} is not valid Unicode text: {text[:64]!r}") from error
    if "\0" in text and not may_hold_nul:
        raise InvalidRequest(f"{what} holds a NUL character: {text[:64]!r}")
    _at_most(size, most, f"bytes of {what}")


def check_ttl(ttl_ms: int, what: str) -> None:
    """Check the TTL of pins, claims, flush requests and transfers; leases have ``check_lease_keys``."""
    if not 1 <= ttl_ms <= limits.MAX_TTL_MS:
        raise InvalidRequest(f"{what} for {ttl_ms} ms; 1 to {limits.MAX_TTL_MS} are possible")


def check_duration(duration_ms: int, what: str) -> None:
    """Check an age, idle time or grace period: any number that is subtracted from the clock."""
    if not 0 <= duration_ms <= _INT64_MAX:
        raise InvalidRequest(f"{what} of {duration_ms} ms")


def check_sweep_limit(limit: int) -> None:
    """Check the ``limit`` of a call that deletes rows, or lists rows to delete."""
    if limit < 1:
        raise InvalidRequest(f"a limit of {limit}; 1 is the least")
    _at_most(limit, limits.MAX_ROWS_PER_SWEEP, "rows in one call")


def check_keys(keys: Sequence[LeaseKey] | Sequence[PartitionKey] | Sequence[str] | Sequence[UUID], what: str) -> None:
    _at_most(len(keys), limits.MAX_KEYS_PER_CALL, f"{what} in one call")


def check_stamps(stamps: Mapping[str, int]) -> None:
    """``stamps``: the creation stamp of each object, by key."""
    _at_most(len(stamps), limits.MAX_KEYS_PER_CALL, "objects in one call")
    for key, created_ms in stamps.items():
        if not 0 <= created_ms <= _INT64_MAX:
            raise InvalidRequest(f"object {key[:64]!r} with the creation stamp {created_ms}")


def check_producer_id_count(count: int) -> None:
    if count < 1:
        raise InvalidRequest(f"a block of {count} producer ids")
    _at_most(count, limits.MAX_PRODUCER_ID_BLOCK, "producer ids in one block")


def check_binding(durability: Durability, wal_id: UUID | None) -> None:
    if (durability is Durability.WAL) != (wal_id is not None):
        raise InvalidRequest(f"durability {durability} with {'a' if wal_id else 'no'} WAL id")


def check_agent(info: AgentInfo) -> None:
    check_agent_id(info.agent_id)
    _at_most(len(info.listeners), limits.MAX_LISTENERS_PER_AGENT, "listeners of an agent")
    for name, address in info.listeners.items():
        check_text(name, "a listener's name")
        check_text(address, f"the address of listener {name[:64]!r}")
    check_text(info.availability_zone, "an availability zone")
    check_text(info.agent_group, "an agent group")
    try:
        document = json.dumps(dict(info.metadata), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the metadata of agent {info.agent_id} is not JSON: {error}") from error
    if any("\0" in text for pair in info.metadata.items() for text in pair if isinstance(text, str)):
        raise InvalidRequest(f"the metadata of agent {info.agent_id} holds a NUL character")
    check_text(document, "an agent's metadata", most=limits.MAX_JSON_METADATA_BYTES)


def check_agent_id(agent_id: str) -> None:
    check_text(agent_id, "an agent id", most=limits.MAX_AGENT_ID_BYTES)


def check_new_topic(new: NewTopic) -> None:
    check_topic_name(new.name)
    check_partition_count(new.partition_count)
    check_configs(new.configs)


def check_configs(configs: Mapping[str, str]) -> None:
    for name, value in configs.items():
        check_text(name, "a topic config's name")
        check_text(value, f"topic config {name}", most=limits.MAX_JSON_METADATA_BYTES, may_be_empty=True)


def check_partition_count(count: int) -> None:
    if not 1 <= count <= limits.MAX_PARTITIONS_PER_TOPIC:
        raise InvalidPartitions(f"{count} partitions asked for; 1 to {limits.MAX_PARTITIONS_PER_TOPIC} are possible")


def check_object(ref: ObjectRef) -> None:
    check_text(ref.key, "an object key", most=limits.MAX_OBJECT_KEY_BYTES)
    if ref.size_bytes < 0 or ref.created_at_ms < 0:
        raise InvalidRequest(f"object {ref.key} of {ref.size_bytes} bytes, made at {ref.created_at_ms}")


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
    check_text(piece.encoding, f"the encoding of {where}")
    for batch in piece.batches:
        _check_batch(batch, where)
    if isinstance(piece, LeaderlessSlice):
        listed = sum(batch.byte_length for batch in piece.batches)
        if listed != piece.byte_length:
            raise InvalidRequest(f"{where} is {piece.byte_length} bytes long, but its batches add up to {listed}")
        return
    check_object(piece.object)
    if piece.base_offset < 0 or piece.epoch < 1 or piece.end_offset >= _INT64_MAX:
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
    check_text(group_id, "a group id", most=limits.MAX_GROUP_ID_BYTES, may_be_empty=True)
    _at_most(len(payload), limits.MAX_GROUP_STATE_BYTES, "bytes of a group's state")
    _at_most(len(offsets), limits.MAX_KEYS_PER_CALL, "offsets in one commit")
    _once([commit.key for commit in offsets], "an offset commit")
    for commit in offsets:
        # Negative ones too: Kafka keeps them, and clients commit -1 to start over as auto.offset.reset says.
        if not -(2**63) <= commit.offset <= _INT64_MAX:
            raise InvalidRequest(f"offset {commit.offset} committed for {commit.key}; an offset has 64 bits")
        check_text(
            commit.metadata,
            "offset metadata",
            most=limits.MAX_OFFSET_METADATA_BYTES,
            may_be_empty=True,
            may_hold_nul=True,
        )


def check_group_counts(group_id: str, *, generation: int, member_count: int) -> None:
    if generation < 0 or member_count < 0:
        raise InvalidRequest(f"group {group_id[:64]!r} at generation {generation} with {member_count} members")


def check_fence(group_id: str, fence: SlotFence) -> None:
    """A fence that is not the group's own slot would let a coordinator write that cannot be fenced off (R1)."""
    if fence.slot != slot_of(group_id):
        raise InvalidRequest(f"group {group_id[:64]!r} lives in {slot_of(group_id)}, not in {fence.slot}")
    if fence.epoch < 1:
        raise InvalidRequest(f"epoch {fence.epoch} of {fence.slot}; the first leadership has epoch 1")


def check_compaction(compaction: Compaction) -> None:
    sources, target = compaction.sources, compaction.target
    if not sources:
        raise InvalidRequest(f"the compaction of {compaction.key} names no entries")
    _at_most(len(sources), limits.MAX_KEYS_PER_CALL, "entries in one compaction")
    check_object(compaction.object)
    if target.object_key != compaction.object.key:
        raise InvalidRequest(f"the compaction of {compaction.key} writes {compaction.object.key}, not its target's key")
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
    _check_target(compaction)


def _check_target(compaction: Compaction) -> None:
    """Check every field that a backend stores unchanged and that a reader then trusts (R18)."""
    target, ref = compaction.target, compaction.object
    where = f"the target of {compaction.key}'s compaction"
    if target.kind is not EntryKind.COMPACTED:
        raise InvalidRequest(f"{where} is of kind {target.kind}, not {EntryKind.COMPACTED}")
    offsets = target.end_offset - target.base_offset + 1
    if not 0 <= target.record_count <= offsets:
        raise InvalidRequest(f"{where} has {target.record_count} records in {offsets} offsets")
    if target.byte_offset < 0 or target.byte_length < 1 or target.byte_offset + target.byte_length > ref.size_bytes:
        raise InvalidRequest(
            f"{where} has byte range {target.byte_offset}+{target.byte_length} of {ref.size_bytes} bytes in {ref.key}"
        )
    check_text(target.encoding, f"the encoding of {where}")
    if not 0 <= target.epoch <= _INT64_MAX:
        raise InvalidRequest(f"{where} has epoch {target.epoch}")
    oldest, newest = target.min_timestamp_ms, target.max_timestamp_ms
    storable = all(-(2**63) <= stamp_ms <= _INT64_MAX for stamp_ms in (oldest, newest))
    # An emptied range has no times of its own, so nothing is asked of their order.
    ordered = oldest <= newest or target.record_count == 0
    if not (storable and ordered and 0 <= target.created_at_ms <= _INT64_MAX):
        raise InvalidRequest(f"{where} has records of {oldest} to {newest} ms and was made at {target.created_at_ms}")


def check_thinning(compaction: Compaction, high_watermark: int) -> None:
    """R18: the newest entry is never key-compacted. A count does not say which records are missing, so none may be."""
    target = compaction.target
    thinned = target.record_count < target.end_offset - target.base_offset + 1
    if thinned and target.end_offset + 1 >= high_watermark:
        raise CompactionConflict(
            f"the compaction of {compaction.key} would drop records of the newest entry, which ends at "
            f"{target.end_offset}",
            hint="leave the newest entry out of the plan",
        )


def check_intent(intent: Intent) -> None:
    _at_most(len(intent.slices), limits.MAX_INTENT_SLICES, "slices in one intent")
    check_text(intent.key.query_id, "a query id")
    if not 0 <= intent.key.batch_id <= _INT64_MAX:
        raise InvalidRequest(f"an intent needs a batch id ≥ 0, not {intent.key}")
    for piece in intent.slices:
        if piece.record_count < 1 or piece.byte_length < 1 or piece.byte_offset < 0 or piece.partition < 0:
            raise InvalidRequest(f"partition {piece.partition} of intent {intent.key} has an impossible slice")
        check_object(piece.object)
        check_text(piece.encoding, f"the encoding of intent {intent.key}")


def check_definition(kind: str, name: str, *, document: str | None = None, status: str = "") -> None:
    check_text(kind, "a kind of definition")
    check_text(name, f"the name of a {kind[:64]}")
    if document is not None:
        check_text(document, f"the {kind[:64]} {name[:64]!r}", most=limits.MAX_DEFINITION_BYTES)
    check_text(status, f"the status of {name[:64]!r}", most=limits.MAX_JSON_METADATA_BYTES, may_be_empty=True)


def check_definition_count(count: int, kind: str) -> None:
    """Called before a definition is added. ``count``: how many there are."""
    _at_most(count + 1, limits.MAX_DEFINITIONS, f"definitions of kind {kind}")


def check_scan_limit(limit: int) -> None:
    if limit < 1:
        raise InvalidRequest(f"a scan of {limit} entries")
    _at_most(limit, limits.MAX_SCAN_ENTRIES, "entries in one page")


def check_producer_page(limit: int, idle_ms: int | None) -> None:
    if limit < 1:
        raise InvalidRequest(f"a page of {limit} producers; 1 is the least")
    _at_most(limit, limits.MAX_PRODUCERS_PER_PARTITION, "producers in one page")
    if idle_ms is not None:
        check_duration(idle_ms, "an idle time")


def _at_most(count: int, most: int, what: str) -> None:
    if count > most:
        raise LimitExceeded(f"{count} {what}; {most} at most")


def _once(keys: Sequence[LeaseKey] | Sequence[PartitionKey], where: str) -> None:
    if len(set(keys)) != len(keys):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise InvalidRequest(f"{twice} stands twice in {where}")
