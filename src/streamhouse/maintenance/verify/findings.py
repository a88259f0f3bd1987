"""Findings: what a verification says is wrong, where it is, and what to do about it.

A finding names one place as exactly as it is known: a partition and offsets always, an object and its bytes when the
fault is in an object. It is data; nothing here decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import Entry


class FindingKind(StrEnum):
    # The index in the metadata store.
    MISSING_PARTITION = "missing-partition"
    """The topic counts the partition, and the store has no row of it."""
    LOG_START = "log-start"
    """The log start lies outside the log."""
    GAP = "gap"
    """No entry covers these offsets."""
    OVERLAP = "overlap"
    """Two entries cover the same offsets."""
    WATERMARK = "watermark"
    """The watermark is not the offset after the last entry."""
    ENTRY = "entry"
    """A field of an entry has a value that no writer gives it."""
    SLICE_OVERLAP = "slice-overlap"
    """Two entries name the same bytes of a shared blob."""

    # An entry and its object.
    MISSING_OBJECT = "missing-object"
    OBJECT_SIZE = "object-size"
    """The object is not as long as its entry says."""
    WRONG_OBJECT = "wrong-object"
    """The object belongs to another partition, or to other offsets."""
    BYTE_RANGE = "byte-range"
    """The entry's bytes reach past its object, or into those of another partition."""
    RECORD_COUNT = "record-count"
    OFFSETS = "offsets"
    """Batches, index or footer state other offsets than the entry."""
    EPOCH = "epoch"
    """A leader epoch that did not lead at these offsets, or that the object's name or batches contradict."""
    TIMESTAMPS = "timestamps"
    """A time that an entry or a segment states is not that of its batches: lookups by time may step over records."""

    # The bytes of an object.
    SEGMENT_HEAD = "segment-head"
    SEGMENT_FOOTER = "segment-footer"
    SEGMENT_INDEX = "segment-index"
    BLOCK = "block"
    """A segment's block does not have its CRC, or cannot be inflated."""
    BLOB_HEADER = "blob-header"
    """The header of a shared blob fails its checks, or its bodies do not fill the object. Told once for each blob."""
    BLOB_BODY = "blob-body"
    """Every batch is whole, and the body does not have the CRC in the blob's header: batches changed places."""
    BATCH = "batch"
    """A record batch is malformed, or does not have its CRC."""
    NEWER_FORMAT = "newer-format"
    """Under right CRCs an object says that a newer version has written it. Told once for each object."""
    RECORDS = "records"
    """A batch is whole, and its records cannot be decoded."""
    RECORD_TIMES = "record-times"
    """A batch is whole, and has a record that is newer than the largest time it states."""


_RESTORE: Final = (
    "restore the object from a copy or an older version of it; to go on without these records, set consumers to the"
    " offset after them, or delete the records up to there"
)
_METADATA: Final = (
    "stop writing to the partition (FENCED) and restore the metadata store from a backup that is not older than its"
    " objects, or correct the row by hand; do not run compaction or vacuum before that"
)
_COMPARE: Final = (
    "the metadata and the object contradict each other, or two parts of the object do: compare the entry's row with a"
    " backup of the metadata store, and the object with a copy of it, and restore the one that is wrong"
)
_REPAIR: Final = (
    "the records themselves may be whole: `streamhouse verify --repair` proves that and writes them anew; if it cannot,"
    " restore the object from a copy or an older version of it"
)
_PRODUCER: Final = (
    "the stored bytes are what a producer sent, under a correct CRC: find the client that makes such batches; copying"
    " the records to another topic writes them anew"
)
_ADVICE: Final[Mapping[FindingKind, str]] = {
    FindingKind.MISSING_PARTITION: _METADATA,
    FindingKind.LOG_START: _METADATA,
    FindingKind.GAP: _METADATA,
    FindingKind.OVERLAP: _METADATA,
    FindingKind.WATERMARK: _METADATA,
    FindingKind.ENTRY: _METADATA,
    FindingKind.SLICE_OVERLAP: _METADATA,
    FindingKind.MISSING_OBJECT: _RESTORE,
    FindingKind.OBJECT_SIZE: _COMPARE,
    FindingKind.WRONG_OBJECT: _COMPARE,
    FindingKind.BYTE_RANGE: _COMPARE,
    FindingKind.RECORD_COUNT: _COMPARE,
    FindingKind.OFFSETS: _COMPARE,
    FindingKind.EPOCH: _COMPARE,
    FindingKind.TIMESTAMPS: (
        "reads by offset are not affected; lookups by time may miss these records until they are written anew, which"
        " `streamhouse verify --repair` does"
    ),
    FindingKind.SEGMENT_HEAD: _REPAIR,
    FindingKind.SEGMENT_FOOTER: _REPAIR,
    FindingKind.SEGMENT_INDEX: _REPAIR,
    FindingKind.BLOCK: _RESTORE,
    FindingKind.BLOB_HEADER: (
        "reads do not need this header, so records can still be read unless other findings name their bytes;"
        " `streamhouse verify --repair` writes them anew into objects of their own"
    ),
    FindingKind.BLOB_BODY: _RESTORE,
    FindingKind.BATCH: _RESTORE,
    FindingKind.NEWER_FORMAT: "verify with the version of StreamHouse that has written it, or a newer one",
    FindingKind.RECORDS: _PRODUCER,
    FindingKind.RECORD_TIMES: _PRODUCER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: FindingKind
    key: PartitionKey
    base_offset: int
    end_offset: int
    """The last offset concerned, included. Below ``base_offset`` when no offset is: an empty range at that place."""
    problem: str
    """What is wrong, in words."""
    topic: str = ""
    """The topic's name. The checks do not know it; the verifier adds it."""
    object_key: str = ""
    """Empty when the fault is in the metadata store alone."""
    byte_offset: int = 0
    byte_length: int = 0

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _ADVICE[self.kind]

    def __str__(self) -> str:
        log = f"{self.topic}/{self.key.partition}" if self.topic else str(self.key)
        where = f"{log}, offsets {self.base_offset} to {self.end_offset}"
        if self.object_key:
            where += f", {self.object_key}"
        if self.byte_length:
            where += f" bytes {self.byte_offset} to {self.byte_offset + self.byte_length - 1}"
        return f"{self.kind}: {where}: {self.problem} ({self.advice})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedEntry:
    """An entry as it stood when it was judged, with all that is wrong with it and its object."""

    topic: str
    key: PartitionKey
    entry: Entry
    findings: tuple[Finding, ...]


def about(kind: FindingKind, key: PartitionKey, entry: Entry, problem: str) -> Finding:
    """A finding about the whole of an entry and its bytes."""
    return Finding(
        kind=kind,
        key=key,
        base_offset=entry.base_offset,
        end_offset=entry.end_offset,
        problem=problem,
        object_key=entry.object_key,
        byte_offset=entry.byte_offset,
        byte_length=entry.byte_length,
    )


def about_bytes(
    kind: FindingKind, key: PartitionKey, entry: Entry, problem: str, *, byte_offset: int, byte_length: int
) -> Finding:
    """A finding about some bytes of an entry's object that concern the whole entry, such as a footer."""
    return Finding(
        kind=kind,
        key=key,
        base_offset=entry.base_offset,
        end_offset=entry.end_offset,
        problem=problem,
        object_key=entry.object_key,
        byte_offset=byte_offset,
        byte_length=byte_length,
    )
