"""What can be set about reading, and what is counted."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.limits import MIB
from streamhouse.metadata.contract import Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    durability: Durability = Durability.OBJECT
    """With WAL, only the leader knows where a log ends: committed is not all that is visible."""
    block_cache_bytes: int = 256 * MIB
    index_cache_bytes: int = 8 * MIB
    """Footers and indexes of segments: about 400 bytes for each MB of log."""
    max_cached_entries: int = 10_000
    """About 700 bytes each, over all partitions."""
    max_known_partitions: int = 100_000
    """Whose watermark and log start are remembered; about 500 bytes each."""
    read_ahead_bytes: int = 8 * MIB
    """How far ahead of one sequential reader to fetch at most; 0 turns it off."""
    max_ahead_bytes: int = 64 * MIB
    """… and of all of them together."""
    max_download_bytes: int = 128 * MIB
    """Under way from the object store at a time, over all readers. A larger single range goes alone."""
    max_downloads: int = 32
    max_read_bytes: int = 8 * MIB
    """What one call returns at most, whatever it asks for; a first batch that is larger comes whole all the same."""
    recheck_interval_ms: int = 500
    """How long a long poll may miss a commit that nobody told us of (S2.18)."""
    state_max_age_ms: int = 5_000
    """How old a watermark and log start may be before a read has them read again, in the background."""


@dataclass(slots=True, kw_only=True)
class ReaderStats:
    reads: int = 0
    """Partitions asked for."""
    tail_bytes: int = 0
    """From the tail cache."""
    buffer_bytes: int = 0
    """From a leader's buffer, where the tail cache had evicted it."""
    object_bytes: int = 0
    """From blocks, cached or not."""
    block_hits: int = 0
    block_misses: int = 0
    downloads: int = 0
    downloaded_bytes: int = 0
    ahead_bytes: int = 0
    """Downloaded before anybody asked."""
    resolved_again: int = 0
    """Objects that were gone when read: their range was looked up anew (R7)."""
    corrupt_downloads: int = 0
    damaged_ranges: int = 0
    """Ranges of objects that were found to be missing or damaged. A range that was repaired counts again."""
    damaged_reads: int = 0
    """Reads that ended with an error because of such a range."""
    long_polls: int = 0
    entry_lookups: int = 0
    partition_lookups: int = 0
