"""The control document and the pending append inside it: the record that decides for a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.metadata.contract import (
    BatchOutcome,
    Entry,
    EpochStart,
    LogState,
    PartitionState,
    ProducerState,
    WriteMode,
)
from streamhouse.metadata.documents.fields import INT64_MIN, Fields, dump, load
from streamhouse.metadata.documents.index import (
    NO_TIMESTAMP,
    IndexEntry,
    entry_document,
    further_fields,
    parse_entry_fields,
)
from streamhouse.metadata.documents.records import (
    batch_document,
    parse_batch_fields,
    parse_producer_fields,
    producer_document,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedShare:
    """An append of one partition's share of a sink intent names that intent (R13). Its topic is the partition's."""

    query_id: str
    batch_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAppend:
    """An append that has happened but is not yet spread over its keys. Readers count it as the tail."""

    append_id: AppendId
    entries: tuple[IndexEntry, ...]
    batches: tuple[BatchOutcome, ...] = ()
    producers: tuple[ProducerState, ...] = ()
    """The windows this append moved, as they stand after it."""
    adopts: AdoptedShare | None = None
    object_created_at_ms: int = 0
    """The newest of its objects' stamps: how long the append's record must be kept (R5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One partition's deciding record. ``sequence_counter`` already counts what is pending."""

    log_state: LogState
    sequence_counter: int
    pending: PendingAppend | None
    write_mode: WriteMode = WriteMode.LEADERLESS
    log_start_offset: int = 0
    first_unstable_offset: int | None = None
    leader_epoch: int = 0
    leadership: EpochStart | None = None
    """The newest leadership, until the next bump of the epoch has copied it to the history (R3)."""
    gc_horizon_ms: int = 0
    max_timestamp_ms: int = NO_TIMESTAMP
    last_compaction_id: UUID | None = None

    def state(self, key: PartitionKey, compaction_cursor: int) -> PartitionState:
        unstable = self.first_unstable_offset
        return PartitionState(
            key=key,
            log_state=self.log_state,
            high_watermark=self.sequence_counter,
            log_start_offset=self.log_start_offset,
            last_stable_offset=self.sequence_counter if unstable is None else unstable,
            leader_epoch=self.leader_epoch,
            write_mode=self.write_mode,
            gc_horizon_ms=self.gc_horizon_ms,
            compaction_cursor=compaction_cursor,
        )


def encode_control(control: Control, where: str = "control") -> bytes:
    leadership = control.leadership
    return dump(
        {
            "log_state": control.log_state,
            "sequence_counter": control.sequence_counter,
            "pending": None if control.pending is None else _pending_document(control.pending),
            "write_mode": control.write_mode,
            "log_start_offset": control.log_start_offset,
            "first_unstable_offset": control.first_unstable_offset,
            "leader_epoch": control.leader_epoch,
            "leadership": None if leadership is None else _leadership_document(leadership),
            "gc_horizon_ms": control.gc_horizon_ms,
            "max_timestamp_ms": control.max_timestamp_ms,
            "last_compaction_id": None if control.last_compaction_id is None else str(control.last_compaction_id),
        },
        where,
    )


def parse_control(raw: bytes, where: str = "control") -> Control:
    fields = load(raw, where)
    pending = fields.optional_object("pending")
    leadership = fields.optional_object("leadership")
    control = Control(
        log_state=fields.choice("log_state", LogState),
        sequence_counter=fields.integer("sequence_counter"),
        pending=None if pending is None else _parse_pending(pending),
        write_mode=fields.choice("write_mode", WriteMode, default=WriteMode.LEADERLESS),
        log_start_offset=fields.integer("log_start_offset", default=0),
        first_unstable_offset=fields.optional_integer("first_unstable_offset"),
        leader_epoch=fields.integer("leader_epoch", default=0),
        leadership=None if leadership is None else _parse_leadership(leadership),
        gc_horizon_ms=fields.integer("gc_horizon_ms", default=0),
        max_timestamp_ms=fields.integer("max_timestamp_ms", least=INT64_MIN, default=NO_TIMESTAMP),
        last_compaction_id=fields.optional_uuid("last_compaction_id"),
    )
    fields.finish()
    _check_control(control, fields)
    return control


def _check_control(control: Control, fields: Fields) -> None:
    counter = control.sequence_counter
    if control.log_start_offset > counter:
        raise fields.wrong("log_start_offset", f"is {control.log_start_offset}, past the watermark {counter}")
    if control.first_unstable_offset is not None and control.first_unstable_offset > counter:
        raise fields.wrong("first_unstable_offset", f"is {control.first_unstable_offset}, past the watermark {counter}")
    if control.pending is not None and control.pending.entries[-1].entry.end_offset + 1 != counter:
        end = control.pending.entries[-1].entry.end_offset
        raise fields.wrong("pending", f"ends at {end}, but the watermark is {counter}")
    if control.leadership is not None and control.leadership.epoch > control.leader_epoch:
        raise fields.wrong("leadership", f"has epoch {control.leadership.epoch} beyond {control.leader_epoch}")


def _pending_document(pending: PendingAppend) -> dict[str, object]:
    document = _pending_head(pending.append_id, pending.entries)
    if len(pending.entries) > 1:
        document["entries"] = [entry_document(one, with_end=True) for one in pending.entries]
    else:
        document |= further_fields(pending.entries[0])
    document["batches"] = [batch_document(batch) for batch in pending.batches]
    document["producers"] = [producer_document(producer) for producer in pending.producers]
    document["object_created_at_ms"] = pending.object_created_at_ms
    if pending.adopts is not None:
        document["intent"] = {"query_id": pending.adopts.query_id, "batch_id": pending.adopts.batch_id}
    return document


def _pending_head(append_id: AppendId, entries: Sequence[IndexEntry]) -> dict[str, object]:
    """The source's fields. With several entries they span them; ``data_key`` and the bytes are the first one's."""
    first, last = entries[0].entry, entries[-1].entry
    return {
        "append_id": str(append_id),
        "start_offset": first.base_offset,
        "end_offset": last.end_offset,
        "msg_count": sum(one.entry.record_count for one in entries),
        "entry_type": first.kind,
        "data_key": first.object_key,
        "encoding": first.encoding,
        "byte_offset": first.byte_offset,
        "byte_length": first.byte_length,
        "created_at_ms": first.created_at_ms,
    }


def _parse_pending(fields: Fields) -> PendingAppend:
    append_id = AppendId(fields.uuid("append_id"))
    if not fields.has("start_offset"):
        raise fields.wrong("start_offset", "is missing")
    listed = fields.objects("entries")
    head = parse_entry_fields(fields, end_offset=fields.integer("end_offset"), names=("start_offset", "entry_type"))
    entries: tuple[IndexEntry, ...] = (head,)
    if listed:
        entries = tuple(_parse_listed(one) for one in listed)
        _check_listed(head.entry, entries, fields)
    intent = fields.optional_object("intent")
    pending = PendingAppend(
        append_id=append_id,
        entries=entries,
        batches=tuple(parse_batch_fields(one) for one in fields.objects("batches")),
        producers=tuple(parse_producer_fields(one) for one in fields.objects("producers")),
        adopts=None if intent is None else _parse_share(intent),
        object_created_at_ms=fields.integer("object_created_at_ms", default=0),
    )
    fields.finish()
    return pending


def _check_listed(head: Entry, entries: Sequence[IndexEntry], fields: Fields) -> None:
    for before, after in pairwise(entries):
        if after.entry.base_offset != before.entry.end_offset + 1:
            raise fields.wrong("entries", f"are not consecutive after offset {before.entry.end_offset}")
    spanned = _pending_head(AppendId(UUID(int=0)), entries)
    if spanned != _pending_head(AppendId(UUID(int=0)), [IndexEntry(entry=head, running_max_timestamp_ms=0)]):
        raise fields.wrong("entries", "do not add up to the append they belong to")


def _parse_listed(fields: Fields) -> IndexEntry:
    found = parse_entry_fields(fields, end_offset=fields.integer("end_offset"))
    fields.finish()
    return found


def _parse_share(fields: Fields) -> AdoptedShare:
    share = AdoptedShare(query_id=fields.text("query_id"), batch_id=fields.integer("batch_id"))
    fields.finish()
    return share


def _leadership_document(leadership: EpochStart) -> dict[str, object]:
    return {
        "epoch": leadership.epoch,
        "start_offset": leadership.start_offset,
        "agent_id": leadership.agent_id,
        "wal_id": str(leadership.wal_id),
        "started_at_ms": leadership.started_at_ms,
    }


def _parse_leadership(fields: Fields) -> EpochStart:
    found = EpochStart(
        epoch=fields.integer("epoch", least=1),
        start_offset=fields.integer("start_offset"),
        agent_id=fields.text("agent_id"),
        wal_id=fields.uuid("wal_id"),
        started_at_ms=fields.integer("started_at_ms"),
    )
    fields.finish()
    return found
