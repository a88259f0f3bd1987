"""Metadata stores that do as a test says, around a real one; and logs committed to a real one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from builders import batch
from harness import Backend, LedPartition

from streamhouse.core.errors import MetadataUnavailable
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.retention.passes import Retention, RetentionStep
from streamhouse.metadata.contract import Entry, EntryPage, MetadataStore, PartitionState, ScanRange

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Watched:
    """Passes every call on; counts calls and entries, and runs what a test wants before each move of a log start."""

    def __init__(self, inner: MetadataStore) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.entries_read = 0
        self.at_once = 0
        self.most_at_once = 0
        self.failing: set[PartitionKey] = set()
        self.before_move: Callable[[PartitionKey], Awaitable[None]] | None = None
        self.before_scan: Callable[[Sequence[ScanRange]], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        self.calls[name] += 1
        return getattr(self.inner, name)

    async def scan_entries(self, ranges: Sequence[ScanRange], *, limit: int) -> list[EntryPage]:
        if self.before_scan is not None:
            await self.before_scan(ranges)
        pages = await self.inner.scan_entries(ranges, limit=limit)
        self.entries_read += sum(len(page.entries) for page in pages)
        return pages

    async def advance_log_start(self, key: PartitionKey, offset: int) -> PartitionState:
        self.calls["advance_log_start"] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(0)
            if self.before_move is not None:
                await self.before_move(key)
            if key in self.failing:
                raise MetadataUnavailable(f"{key} cannot be reached")
            return await self.inner.advance_log_start(key, offset)
        finally:
            self.at_once -= 1


def watched(store: MetadataStore) -> Any:
    return Watched(store)


async def led(backend: Backend, name: str = "orders", **configs: str) -> LedPartition:
    """The only partition of a new topic, led by an agent."""
    topic = await backend.topic(name, configs={key.replace("_", "."): value for key, value in configs.items()})
    holder, key = backend.holder(), topic.partition_keys()[0]
    lease = await backend.lead(key, holder)
    return LedPartition(backend=backend, key=key, holder=holder, epoch=lease.epoch)


async def write(log: LedPartition, *sizes: int, age_ms: int = 0, records: int = 1) -> None:
    """Entries of these sizes, each with its own object; their records are this old."""
    for size in sizes:
        at_ms = log.backend.now_ms - age_ms
        await log.append(batch(records, at_ms=at_ms, size=size), ref=log.backend.object(size=size))


async def steps_of(retention: Retention, **options: Any) -> list[RetentionStep]:
    return [step async for step in retention.steps(**options)]


async def starts(backend: Backend, key: PartitionKey) -> tuple[int, int]:
    """(log start, watermark)"""
    state = await backend.state(key)
    return state.log_start_offset, state.high_watermark


def total(entries: Sequence[Entry]) -> int:
    return sum(entry.byte_length for entry in entries)
