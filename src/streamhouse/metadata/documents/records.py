"""Appends and producers: what a repeat is answered from (R5, R9)."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.core.limits import PRODUCER_WINDOW
from streamhouse.metadata.contract import (
    BatchOutcome,
    BatchVerdict,
    ProducerBatch,
    ProducerState,
    SliceOutcome,
    Verdict,
)
from streamhouse.metadata.dedup import SEQUENCE_MODULUS
from streamhouse.metadata.documents.fields import Fields, dump, load


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecord:
    """The result of one append on one partition; a repeat is answered from it."""

    append_id: AppendId
    outcome: SliceOutcome
    object_created_at_ms: int
    committed_at_ms: int


def encode_append_record(record: AppendRecord, where: str = "append record") -> bytes:
    outcome = record.outcome
    return dump(
        {
            "append_id": str(record.append_id),
            "start_offset": outcome.base_offset,
            "end_offset": outcome.end_offset,
            "high_watermark": outcome.high_watermark,
            "leader_epoch": outcome.leader_epoch,
            "batches": [batch_document(batch) for batch in outcome.batches],
            "object_created_at_ms": record.object_created_at_ms,
            "committed_at_ms": record.committed_at_ms,
        },
        where,
    )


def parse_append_record(raw: bytes, key: PartitionKey, where: str = "append record") -> AppendRecord:
    """Only what was committed has a record. Its reader repeats an append, and the outcome says so."""
    fields = load(raw, where)
    outcome = SliceOutcome(
        key=key,
        verdict=Verdict.COMMITTED,
        base_offset=fields.integer("start_offset", least=-1),
        end_offset=fields.integer("end_offset", least=-1),
        high_watermark=fields.integer("high_watermark"),
        leader_epoch=fields.integer("leader_epoch"),
        batches=tuple(parse_batch_fields(one) for one in fields.objects("batches")),
        repeated=True,
    )
    record = AppendRecord(
        append_id=AppendId(fields.uuid("append_id")),
        outcome=outcome,
        object_created_at_ms=fields.integer("object_created_at_ms"),
        committed_at_ms=fields.integer("committed_at_ms"),
    )
    fields.finish()
    if (outcome.base_offset < 0) != (outcome.end_offset < 0) or outcome.base_offset > outcome.end_offset:
        raise fields.wrong("start_offset", f"{outcome.base_offset} does not go with end {outcome.end_offset}")
    return record


def encode_producer(producer: ProducerState, where: str = "producer") -> bytes:
    return dump(producer_document(producer), where)


def parse_producer(raw: bytes, where: str = "producer") -> ProducerState:
    return parse_producer_fields(load(raw, where))


def producer_document(producer: ProducerState) -> dict[str, object]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "batches": [
            {"base_sequence": one.base_sequence, "msg_count": one.record_count, "base_offset": one.base_offset}
            for one in producer.batches
        ],
        "updated_at_ms": producer.updated_at_ms,
    }


def parse_producer_fields(fields: Fields) -> ProducerState:
    producer = ProducerState(
        producer_id=fields.integer("producer_id"),
        producer_epoch=fields.integer("producer_epoch"),
        batches=tuple(_parse_window(one) for one in fields.objects("batches")),
        updated_at_ms=fields.integer("updated_at_ms"),
    )
    fields.finish()
    if len(producer.batches) > PRODUCER_WINDOW:
        raise fields.wrong("batches", f"are {len(producer.batches)}; a window holds {PRODUCER_WINDOW}")
    return producer


def _parse_window(fields: Fields) -> ProducerBatch:
    batch = ProducerBatch(
        base_sequence=fields.integer("base_sequence"),
        record_count=fields.integer("msg_count", least=1),
        base_offset=fields.integer("base_offset"),
    )
    fields.finish()
    if batch.base_sequence >= SEQUENCE_MODULUS:
        raise fields.wrong("base_sequence", f"is {batch.base_sequence}; sequences wrap before {SEQUENCE_MODULUS}")
    return batch


def batch_document(batch: BatchOutcome) -> dict[str, object]:
    return {"verdict": batch.verdict, "base_offset": batch.base_offset}


def parse_batch_fields(fields: Fields) -> BatchOutcome:
    batch = BatchOutcome(
        verdict=fields.choice("verdict", BatchVerdict), base_offset=fields.integer("base_offset", least=-1)
    )
    fields.finish()
    return batch
