"""A simulated reader that pins: a Spark query that lists entries once and reads their objects for hours afterwards.

While its pin lives, every object that was referenced when it listed must be there, whatever maintenance does (R7).
"""

from __future__ import annotations

import asyncio
from typing import Final

from simulator.checker import logged_records
from simulator.history import RawEntry, RawPartition, Read
from simulator.metadata import remote_metadata
from simulator.network import Weather
from simulator.world import World, key_of
from streamhouse.core.errors import StreamHouseError
from streamhouse.metadata.contract import Entry, EntryKind, ScanRange

_PIN_TTL_MS: Final = 30 * 86_400_000
"""It lives however many hours pass."""
_MOST_ENTRIES: Final = 6


class PinnedReader:
    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.world = world
        self.lane = world.loop.lane(name)
        self._dice = world.dice.child(name)
        self._metadata = remote_metadata(
            world.metadata, world.loop, self._dice.child("metadata"), Weather(), name=f"{name} to metadata"
        )

    async def run(self) -> None:
        while not self.world.over:
            await asyncio.sleep(self._dice.uniform(0.1, 1.0))
            try:
                await self._read_once()
            except StreamHouseError as error:
                self.world.note(f"{self.name}: {error}")

    async def _read_once(self) -> None:
        pin_id = self._dice.uuid()
        await self._metadata.create_pin(pin_id, owner=self.name, ttl_ms=_PIN_TTL_MS)
        try:
            key = self._dice.pick(self.world.keys())
            pages = await self._metadata.scan_entries([ScanRange(key=key, from_offset=0)], limit=_MOST_ENTRIES)
            for entry in pages[0].entries if pages else ():
                if self.world.over:
                    return
                await asyncio.sleep(self._dice.uniform(0, 0.2))
                await self._read_entry(key_of(key), entry)
        finally:
            await self._metadata.release_pins([pin_id])

    async def _read_entry(self, key: tuple[str, int], entry: Entry) -> None:
        raw = RawEntry(
            base_offset=entry.base_offset,
            end_offset=entry.end_offset,
            object_key=entry.object_key,
            byte_offset=entry.byte_offset,
            byte_length=entry.byte_length,
            record_count=entry.record_count,
            encoding=entry.encoding,
            epoch=entry.epoch,
            compacted=entry.kind is EntryKind.COMPACTED,
        )
        stored = self.world.objects._objects.get(entry.object_key)
        if stored is None:
            self.world.problem(f"{self.name} has a pin, and {entry.object_key} is gone")
            return
        partition = RawPartition(high_watermark=entry.end_offset + 1, log_start=entry.base_offset, entries=(raw,))
        records, unreadable = logged_records(partition, {entry.object_key: stored.data})
        for problem in unreadable:
            self.world.problem(f"{self.name}: {problem}")
        if records:
            self.world.history.reads.append(
                Read(
                    reader=self.name,
                    key=key,
                    from_offset=entry.base_offset,
                    records=tuple((offset, record.value) for offset, record in sorted(records.items())),
                    at_ms=self.world.now_ms(),
                )
            )
