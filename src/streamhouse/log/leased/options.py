"""The options and the counters of a leased log."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.limits import MAX_BATCH_BYTES, RESUBMIT_MAX_AGE_MS
from streamhouse.log.leased.plan import FlushRules
from streamhouse.metadata.contract import Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedOptions:
    durability: Durability
    rules: FlushRules
    max_buffer_bytes: int
    max_flushes_in_flight: int = 4
    max_chunk_bytes: int = MAX_BATCH_BYTES
    """The most bytes one flush takes of one partition."""
    resubmit_max_age_ms: int = RESUBMIT_MAX_AGE_MS
    """R4: the age up to which an acknowledged acks=1 record is written again after another agent has led."""
    resubmit_pressed_age_ms: int = 30_000
    """The same while writes are refused for want of room: such a record keeps every later file of the WAL."""
    resume_after_ms: int = 30_000
    """How old a leadership must be before a producer that may be forgotten goes on with any sequence (R21): as long as
    clients wait for an answer of the former leader. Not used where the WAL is the durability: there is no other
    leader."""
    producer_expiration_ms: int | None = None
    """Windows of producers that have been idle for longer are not loaded. None: all are loaded."""


@dataclass(slots=True, kw_only=True)
class LeasedStats:
    appended_batches: int = 0
    appended_bytes: int = 0
    appended_records: int = 0
    committed_batches: int = 0
    replayed_batches: int = 0
    resubmitted_batches: int = 0
    dropped_batches: int = 0
    given_up_batches: int = 0
    """Acknowledged acks=1 batches that could have been resubmitted, dropped because new writes had no room."""
    refused_commits: int = 0
    stranded_batches: int = 0
    """R23: batches in the WAL that did not continue the log, because the metadata store had lost commits."""
