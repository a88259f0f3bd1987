"""How a verification runs, and what it tells: depth, bounds, progress and the summary. Data only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from streamhouse.core.errors import InvalidRequest
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_SCAN_ENTRIES, MIB
from streamhouse.maintenance.verify.findings import FindingKind


class VerifyDepth(StrEnum):
    QUICK = "quick"
    """Metadata, and one HEAD for each object: nothing is missing, sizes and ranges fit."""
    BYTES = "bytes"
    """All bytes too: every CRC, and what headers, indexes and footers say. Records stay undecoded."""
    DEEP = "deep"
    """Decodes the records too. That costs ten times the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    depth: VerifyDepth = VerifyDepth.BYTES
    page_entries: int = 1_000
    """Entries read from the metadata store at a time, for each partition under way: some 400 KB."""
    partitions_at_a_time: int = 4
    entries_at_a_time: int = 8
    """Entries of one partition whose objects are read at a time."""
    reads_at_a_time: int = 16
    """Requests to the object store under way, of all partitions together."""
    read_bytes: int = 256 * MIB
    """Bytes of these requests in memory. One record batch that is larger is read alone."""
    run_bytes: int = 4 * MIB
    """Bytes that one GET asks for, unless one block or one batch is larger. A segment of up to this size is fetched
    whole, for its footer, and is held beside ``read_bytes`` until it is judged."""
    pin_ttl_ms: int = 600_000
    """A verification that dies keeps deleted objects for so long at most. It renews three times in that time."""
    owner: str = "verify"
    """The name on the pin."""

    def __post_init__(self) -> None:
        if not 2 <= self.page_entries <= MAX_SCAN_ENTRIES:
            # The first entry of a page is the last one of the page before it.
            raise InvalidRequest(f"a page of {self.page_entries} entries: it must have 2 to {MAX_SCAN_ENTRIES}")
        bounds = (self.partitions_at_a_time, self.entries_at_a_time, self.reads_at_a_time, self.read_bytes)
        if min(bounds) < 1 or self.run_bytes < 1024:
            raise InvalidRequest("a verification needs room for one partition, one entry, one read and 1 KiB at least")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """How far one partition is, after each page of its entries."""

    topic: str
    key: PartitionKey
    next_offset: int
    """Everything below has been verified."""
    high_watermark: int
    """As of the last page."""
    is_done: bool


@dataclass(slots=True, kw_only=True)
class VerifySummary:
    """Counters of a run. It is complete when the run has returned."""

    depth: VerifyDepth
    partitions: int = 0
    gone_partitions: int = 0
    """Deleted with their topic while the run went on."""
    entries: int = 0
    changed_entries: int = 0
    """Entries that retention or compaction replaced before their object could be read. Not findings; what replaced them
    was verified instead."""
    unsettled_entries: int = 0
    """Entries that changed again at each look, and were given up."""
    read_bytes: int = 0
    repeated_reads: int = 0
    """Entries whose bytes failed a check at first and passed it when they were read again."""
    pin_lapses: int = 0
    """How often the pin had expired before it was renewed."""
    findings: Counter[FindingKind] = field(default_factory=Counter)

    @property
    def is_healthy(self) -> bool:
        return not self.findings and not self.unsettled_entries
