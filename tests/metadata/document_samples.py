"""Sample documents of the leaderless log, fixed ones and Hypothesis strategies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st

from streamhouse.core.errors import CorruptDocument
from streamhouse.core.ids import AppendId, PartitionKey, TopicId
from streamhouse.metadata import documents
from streamhouse.metadata.contract import (
    BatchOutcome,
    BatchVerdict,
    Compaction,
    CompactionSource,
    CompactionState,
    Entry,
    EntryKind,
    EpochStart,
    LogState,
    ObjectRef,
    ProducerBatch,
    ProducerState,
    SliceOutcome,
    Verdict,
    WriteMode,
)
from streamhouse.metadata.documents import AdoptedShare, AppendRecord, Control, IndexEntry, PendingAppend

KEY = PartitionKey(TopicId(UUID(int=7)), 3)
INT64_MAX = 2**63 - 1

# No NUL and no lone surrogate: checks.check_text lets neither into a call.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
times = st.integers(0, INT64_MAX)
timestamps = st.integers(-(2**63), INT64_MAX)
epochs = st.integers(0, 2**31 - 1)


@st.composite
def entries(draw: st.DrawFn, *, base: int | None = None) -> IndexEntry:
    base_offset = draw(st.integers(0, 2**62)) if base is None else base
    span = draw(st.integers(1, 2**31))
    byte_length = draw(st.integers(0, 2**40))
    top = draw(timestamps)
    entry = Entry(
        base_offset=base_offset,
        end_offset=base_offset + span - 1,
        kind=draw(st.sampled_from(EntryKind)),
        object_key=draw(texts),
        byte_offset=draw(st.integers(0, 2**40)) if byte_length else 0,
        byte_length=byte_length,
        record_count=draw(st.integers(0, span)),
        encoding=draw(texts),
        min_timestamp_ms=draw(timestamps),
        max_timestamp_ms=top,
        epoch=draw(epochs),
        created_at_ms=draw(times),
    )
    return IndexEntry(entry=entry, running_max_timestamp_ms=draw(st.integers(top, INT64_MAX)))


@st.composite
def runs(draw: st.DrawFn) -> tuple[IndexEntry, ...]:
    found = [draw(entries())]
    for _ in range(draw(st.integers(0, 3))):
        found.append(draw(entries(base=found[-1].entry.end_offset + 1)))
    return tuple(found)


batch_outcomes = st.builds(BatchOutcome, verdict=st.sampled_from(BatchVerdict), base_offset=st.integers(-1, INT64_MAX))
producers = st.builds(
    ProducerState,
    producer_id=times,
    producer_epoch=st.integers(0, 2**15 - 1),
    batches=st.lists(
        st.builds(
            ProducerBatch,
            base_sequence=st.integers(0, 2**31 - 1),
            record_count=st.integers(1, 2**31 - 1),
            base_offset=times,
        ),
        max_size=5,
    ).map(tuple),
    updated_at_ms=times,
)
pendings = st.builds(
    PendingAppend,
    append_id=st.uuids(),
    entries=runs(),
    batches=st.lists(batch_outcomes, max_size=3).map(tuple),
    producers=st.lists(producers, max_size=3).map(tuple),
    adopts=st.none() | st.builds(AdoptedShare, query_id=texts, batch_id=times),
    object_created_at_ms=times,
)


@st.composite
def controls(draw: st.DrawFn) -> Control:
    pending = draw(st.none() | pendings)
    counter = pending.entries[-1].entry.end_offset + 1 if pending else draw(times)
    epoch = draw(epochs)
    leadership = st.builds(
        EpochStart,
        epoch=st.integers(1, max(1, epoch)),
        start_offset=times,
        agent_id=texts,
        wal_id=st.uuids(),
        started_at_ms=times,
    )
    return Control(
        log_state=draw(st.sampled_from(LogState)),
        sequence_counter=counter,
        pending=pending,
        write_mode=draw(st.sampled_from(WriteMode)),
        log_start_offset=draw(st.integers(0, counter)),
        first_unstable_offset=draw(st.none() | st.integers(0, counter)),
        leader_epoch=epoch,
        leadership=draw(st.none() | leadership) if epoch else None,
        gc_horizon_ms=draw(times),
        max_timestamp_ms=draw(timestamps),
        last_compaction_id=draw(st.none() | st.uuids()),
    )


@st.composite
def compactions(draw: st.DrawFn) -> Compaction:
    base = draw(st.integers(0, 2**62))
    sources: list[CompactionSource] = []
    for span in draw(st.lists(st.integers(1, 1000), min_size=1, max_size=4)):
        start = sources[-1].end_offset + 1 if sources else base
        sources.append(CompactionSource(base_offset=start, end_offset=start + span - 1, object_key=draw(texts)))
    covered = sources[-1].end_offset - base + 1
    shape = draw(entries(base=base)).entry
    oldest_ms, newest_ms = sorted((shape.min_timestamp_ms, shape.max_timestamp_ms))
    byte_length = draw(st.integers(1, 2**40))
    target = dataclasses.replace(
        shape,
        end_offset=sources[-1].end_offset,
        record_count=draw(st.integers(0, covered)),
        kind=EntryKind.COMPACTED,
        byte_offset=0,
        byte_length=byte_length,
        min_timestamp_ms=oldest_ms,
        max_timestamp_ms=newest_ms,
    )
    return Compaction(
        key=KEY,
        compaction_id=draw(st.uuids()),
        sources=tuple(sources),
        target=target,
        object=ObjectRef(key=target.object_key, size_bytes=byte_length, created_at_ms=draw(times)),
        state=draw(st.sampled_from(CompactionState)),
    )


ENTRY = IndexEntry(
    entry=Entry(
        base_offset=0,
        end_offset=4,
        kind=EntryKind.WAL,
        object_key="wal-shared/abc",
        byte_offset=100,
        byte_length=50,
        record_count=5,
        encoding="kafka-batch-v2",
        min_timestamp_ms=10,
        max_timestamp_ms=20,
        epoch=0,
        created_at_ms=1_700_000_000_000,
    ),
    running_max_timestamp_ms=30,
)
PENDING = PendingAppend(append_id=AppendId(UUID(int=1)), entries=(ENTRY,))
CONTROL = Control(log_state=LogState.OPEN, sequence_counter=5, pending=PENDING)
SOURCES = (
    CompactionSource(base_offset=0, end_offset=4, object_key="wal-shared/abc"),
    CompactionSource(base_offset=5, end_offset=9, object_key="wal-shared/def"),
)
COMPACTION = Compaction(
    key=KEY,
    compaction_id=UUID(int=9),
    sources=SOURCES,
    target=dataclasses.replace(ENTRY.entry, end_offset=9, record_count=10, kind=EntryKind.COMPACTED),
    object=ObjectRef(key="wal-shared/abc", size_bytes=512, created_at_ms=5),
)


DROP = object()
"""Stands in place of a value: the field is left out."""


PARSERS: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
    "control": (documents.encode_control(CONTROL), documents.parse_control),
    "index": (
        documents.encode_index_entry(ENTRY),
        lambda raw: documents.parse_index_entry(documents.index_key("orders", 0, 4), raw),
    ),
    "compaction": (documents.encode_compaction(COMPACTION), lambda raw: documents.parse_compaction(raw, KEY)),
    "cursor": (documents.encode_cursor(3), documents.parse_cursor),
    "claim": (b'{"compactor_id":"c-1","claimed_at_ms":5}', lambda raw: documents.parse_claim(raw, "x")),
    "producer": (
        documents.encode_producer(
            ProducerState(
                producer_id=1,
                producer_epoch=0,
                batches=(ProducerBatch(base_sequence=0, record_count=1, base_offset=0),),
                updated_at_ms=1,
            )
        ),
        documents.parse_producer,
    ),
    "append": (
        documents.encode_append_record(
            AppendRecord(
                append_id=AppendId(UUID(int=1)),
                outcome=SliceOutcome(
                    key=KEY, verdict=Verdict.COMMITTED, base_offset=0, end_offset=4, high_watermark=5, leader_epoch=0
                ),
                object_created_at_ms=1,
                committed_at_ms=2,
            )
        ),
        lambda raw: documents.parse_append_record(raw, KEY),
    ),
}


def altered(raw: bytes, path: str, value: object) -> bytes:
    """The document with one field replaced (or dropped); ``path`` is dotted, with list positions as numbers."""
    document: Any = json.loads(raw)
    *parents, last = path.split(".")
    place = document
    for name in parents:
        place = place[int(name)] if name.isdigit() else place[name]
    if value is DROP:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document).encode()


def check_refused(kind: str, path: str, value: object, complaint: str) -> None:
    """A good document of this kind is read; with one field changed it is refused, with what is wrong."""
    raw, parse = PARSERS[kind]
    parse(raw)
    with pytest.raises(CorruptDocument) as caught:
        parse(altered(raw, path, value))
    assert complaint in str(caught.value)
