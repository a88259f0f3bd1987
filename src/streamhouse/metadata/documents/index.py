"""Index entries: one document at the end offset of what it covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamhouse.metadata.contract import Entry, EntryKind
from streamhouse.metadata.documents.fields import INT64_MIN, Fields, dump, load
from streamhouse.metadata.documents.keys import parse_index_key

NO_TIMESTAMP: Final = -1
WHOLE_OBJECT: Final = 0
"""``byte_length`` of an entry whose document names no byte range, as the source's compacted entries do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """An entry with the largest timestamp up to and including it: time lookups search on that, which only grows."""

    entry: Entry
    running_max_timestamp_ms: int


def encode_index_entry(found: IndexEntry, where: str = "index entry") -> bytes:
    return dump(entry_document(found), where)


def parse_index_entry(key: str, raw: bytes) -> IndexEntry:
    fields = load(raw, key)
    found = parse_entry_fields(fields, end_offset=parse_index_key(key)[2])
    fields.finish()
    return found


def entry_document(found: IndexEntry, *, with_end: bool = False) -> dict[str, object]:
    entry = found.entry
    document: dict[str, object] = {"end_offset": entry.end_offset} if with_end else {}
    document |= {
        "type": entry.kind,
        "msg_count": entry.record_count,
        "data_key": entry.object_key,
        "encoding": entry.encoding,
        "created_at_ms": entry.created_at_ms,
        "base_offset": entry.base_offset,
    }
    if entry.byte_length != WHOLE_OBJECT:
        document |= {"byte_offset": entry.byte_offset, "byte_length": entry.byte_length}
    return document | further_fields(found)


def further_fields(found: IndexEntry) -> dict[str, object]:
    return {
        "min_timestamp_ms": found.entry.min_timestamp_ms,
        "max_timestamp_ms": found.entry.max_timestamp_ms,
        "running_max_timestamp_ms": found.running_max_timestamp_ms,
        "epoch": found.entry.epoch,
    }


def parse_entry_fields(
    fields: Fields, *, end_offset: int, names: tuple[str, str] = ("base_offset", "type")
) -> IndexEntry:
    base_name, kind_name = names
    record_count = fields.integer("msg_count")
    # The source document leaves the base to be counted back from the end; ours is explicit (R18).
    base_offset = fields.integer(base_name, default=end_offset - record_count + 1)
    if not 0 <= base_offset <= end_offset or record_count > end_offset - base_offset + 1:
        raise fields.wrong("msg_count", f"{record_count} does not fit offsets {base_offset} to {end_offset}")
    if fields.has("byte_offset") != fields.has("byte_length"):
        raise fields.wrong("byte_offset", "and byte_length go together")
    max_timestamp_ms = fields.integer("max_timestamp_ms", least=INT64_MIN, default=NO_TIMESTAMP)
    entry = Entry(
        base_offset=base_offset,
        end_offset=end_offset,
        kind=fields.choice(kind_name, EntryKind),
        object_key=fields.text("data_key"),
        byte_offset=fields.integer("byte_offset", default=0),
        byte_length=fields.integer("byte_length", default=WHOLE_OBJECT),
        record_count=record_count,
        encoding=fields.text("encoding"),
        min_timestamp_ms=fields.integer("min_timestamp_ms", least=INT64_MIN, default=NO_TIMESTAMP),
        max_timestamp_ms=max_timestamp_ms,
        epoch=fields.integer("epoch", default=0),
        created_at_ms=fields.integer("created_at_ms"),
    )
    running = fields.integer("running_max_timestamp_ms", least=INT64_MIN, default=max_timestamp_ms)
    if running < max_timestamp_ms:
        raise fields.wrong("running_max_timestamp_ms", f"is {running}, below the entry's own {max_timestamp_ms}")
    return IndexEntry(entry=entry, running_max_timestamp_ms=running)
