"""The options and the counters of a reader."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.limits import MIB
from streamhouse.metadata.contract import Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    durability: Durability = Durability.OBJECT
    """With WAL, only the leader knows the end of a log: records are visible before they are committed."""
    block_cache_bytes: int = 256 * MIB
    index_cache_bytes: int = 8 * MIB
    """Footers and indexes of segments: about 400 bytes for each MB of log."""
    max_cached_entries: int = 10_000
    """The most entries over all partitions; each takes about 700 bytes."""
    max_known_partitions: int = 100_000
    """Partitions whose watermark and log start are kept in memory; about 500 bytes each."""
    read_ahead_bytes: int = 8 * MIB
    """The most bytes fetched ahead of one sequential reader; 0 turns it off."""
    max_ahead_bytes: int = 64 * MIB
    """The most bytes fetched ahead of all of them together."""
    max_download_bytes: int = 128 * MIB
    """The most bytes downloaded at a time, over all readers. A larger single range is downloaded alone."""
    max_downloads: int = 32
    max_read_bytes: int = 8 * MIB
    """The most bytes one call returns, whatever it asks for; a larger first batch is still returned whole."""
    recheck_interval_ms: int = 500
    """How long a long poll may miss a commit whose notification was lost."""
    state_max_age_ms: int = 5_000
    """The age of a watermark and log start from which a read has them read again, in the background."""


@dataclass(slots=True, kw_only=True)
class ReaderStats:
    reads: int = 0
    """Partitions that reads asked for."""
    records: int = 0
    """Records given out, counted by offsets: what key compaction removed counts too."""
    tail_bytes: int = 0
    """Bytes from the tail cache."""
    buffer_bytes: int = 0
    """Bytes from a leader's buffer that the tail cache had evicted."""
    object_bytes: int = 0
    """Bytes from blocks, cached or not."""
    block_hits: int = 0
    block_misses: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    ahead_bytes: int = 0
    """Bytes downloaded by read-ahead."""
    resolved_again: int = 0
    """Objects that were gone when they were read: their range was looked up again (R7)."""
    corrupt_downloads: int = 0
    damaged_ranges: int = 0
    """Ranges of objects that were found to be missing or damaged. A range that was repaired counts again."""
    damaged_reads: int = 0
    """Reads that ended with an error because of such a range."""
    long_polls: int = 0
