"""Compaction: the record of one under way, the cursor, and the claim that schedules it."""

from __future__ import annotations

from streamhouse.core.errors import InvalidRequest
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.checks import check_compaction
from streamhouse.metadata.contract import (
    NEVER_MS,
    Claim,
    Compaction,
    CompactionSource,
    CompactionState,
    Entry,
    EntryKind,
    ObjectRef,
)
from streamhouse.metadata.documents.fields import INT64_MIN, Fields, dump, load
from streamhouse.metadata.documents.index import NO_TIMESTAMP, WHOLE_OBJECT


def encode_compaction(compaction: Compaction, where: str = "compaction") -> bytes:
    """The record holds the target's whole entry, so that any process can write it."""
    target = compaction.target
    return dump(
        {
            "compaction_id": str(compaction.compaction_id),
            "state": compaction.state,
            "start_offset": target.base_offset,
            "end_offset": target.end_offset,
            "msg_count": target.record_count,
            "data_key": target.object_key,
            "encoding": target.encoding,
            "created_at_ms": target.created_at_ms,
            "tail_start_offset": compaction.sources[-1].base_offset,
            "sources": [
                {"start_offset": one.base_offset, "end_offset": one.end_offset, "data_key": one.object_key}
                for one in compaction.sources
            ],
            "entry_type": target.kind,
            "byte_offset": target.byte_offset,
            "byte_length": target.byte_length,
            "min_timestamp_ms": target.min_timestamp_ms,
            "max_timestamp_ms": target.max_timestamp_ms,
            "epoch": target.epoch,
            "object_size_bytes": compaction.object.size_bytes,
            "object_created_at_ms": compaction.object.created_at_ms,
        },
        where,
    )


def parse_compaction(raw: bytes, key: PartitionKey, where: str = "compaction") -> Compaction:
    fields = load(raw, where)
    tail_start_offset = fields.integer("tail_start_offset")
    target = _parse_target(fields)
    compaction = Compaction(
        key=key,
        compaction_id=fields.uuid("compaction_id"),
        sources=tuple(_parse_source(one) for one in fields.objects("sources")),
        target=target,
        object=ObjectRef(
            key=target.object_key,
            size_bytes=fields.integer("object_size_bytes"),
            created_at_ms=fields.integer("object_created_at_ms"),
        ),
        state=fields.choice("state", CompactionState),
    )
    fields.finish()
    try:
        check_compaction(compaction)
    except InvalidRequest as error:
        raise fields.wrong("sources", f"make no compaction: {error.message}") from error
    if tail_start_offset != compaction.sources[-1].base_offset:
        raise fields.wrong("tail_start_offset", f"is {tail_start_offset}, not where the last source begins")
    return compaction


def _parse_target(fields: Fields) -> Entry:
    entry = Entry(
        base_offset=fields.integer("start_offset"),
        end_offset=fields.integer("end_offset"),
        kind=fields.choice("entry_type", EntryKind, default=EntryKind.COMPACTED),
        object_key=fields.text("data_key"),
        byte_offset=fields.integer("byte_offset", default=0),
        byte_length=fields.integer("byte_length", default=WHOLE_OBJECT),
        record_count=fields.integer("msg_count"),
        encoding=fields.text("encoding"),
        min_timestamp_ms=fields.integer("min_timestamp_ms", least=INT64_MIN, default=NO_TIMESTAMP),
        max_timestamp_ms=fields.integer("max_timestamp_ms", least=INT64_MIN, default=NO_TIMESTAMP),
        epoch=fields.integer("epoch", default=0),
        created_at_ms=fields.integer("created_at_ms"),
    )
    if entry.record_count > entry.end_offset - entry.base_offset + 1:
        raise fields.wrong("msg_count", f"{entry.record_count} does not fit {entry.base_offset} to {entry.end_offset}")
    return entry


def _parse_source(fields: Fields) -> CompactionSource:
    source = CompactionSource(
        base_offset=fields.integer("start_offset"),
        end_offset=fields.integer("end_offset"),
        object_key=fields.text("data_key"),
    )
    fields.finish()
    return source


def encode_cursor(offset: int) -> bytes:
    return dump({"offset": offset}, "compaction cursor")


def parse_cursor(raw: bytes, where: str = "compaction cursor") -> int:
    fields = load(raw, where)
    offset = fields.integer("offset")
    fields.finish()
    return offset


def encode_claim(claim: Claim) -> bytes:
    return dump(
        {"compactor_id": claim.owner, "claimed_at_ms": claim.claimed_at_ms, "expires_at_ms": claim.expires_at_ms},
        "compactor claim",
    )


def parse_claim(raw: bytes, name: str) -> Claim:
    """``expires_at_ms`` is absent where the store's own session ends the claim: then it ends when its key goes."""
    fields = load(raw, f"claim {name}")
    claimed_at_ms = fields.integer("claimed_at_ms")
    claim = Claim(
        name=name,
        owner=fields.text("compactor_id"),
        claimed_at_ms=claimed_at_ms,
        expires_at_ms=fields.integer("expires_at_ms", default=NEVER_MS),
    )
    fields.finish()
    return claim
