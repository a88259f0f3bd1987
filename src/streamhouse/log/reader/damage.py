"""Objects of the log that are missing or damaged: how the log, the counters and the health show them.

A damaged range is *known* from the first read that found it until a check can read it again, or until it is no longer
part of the log (trimmed, compacted, topic deleted). Known ranges are checked every few seconds, and sooner when a read
has succeeded.

    log       an error when a range becomes known, again every five minutes while reads find it, a warning when it can
              be read again; with many ranges, a limited number of lines in ten seconds, and the number left out
    stats     damaged_ranges, damaged_reads
    health    the number of known ranges and the first of them

Repairs nothing. The reader decides what is damaged: it has looked the entry up again before (R7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from streamhouse.core.clock import Clock
from streamhouse.core.errors import DamagedObject, StreamHouseError
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_KNOWN_DAMAGE
from streamhouse.core.rate_limited_log import RateLimitedLog
from streamhouse.log.reader.objects import ObjectReader
from streamhouse.log.reader.options import ReaderStats
from streamhouse.metadata.contract import MetadataStore, ScanRange

Report = Callable[[str, Exception | None], None]
"""Called with (name of a part of the agent, error); None when that part works again."""

HEALTH: Final = "stored objects"
_REMIND_MS: Final = 5 * 60_000
_CHECK_EVERY_S: Final = 5.0
_LEAST_PAUSE_S: Final = 1.0
"""The shortest pause between two rounds of checks, however many reads succeed."""
_CHECKS_PER_ROUND: Final = 20

_log = logging.getLogger(__name__)


def unheard(where: str, error: Exception | None) -> None:
    """The report of a reader without an agent: it does nothing."""


class _Place(NamedTuple):
    key: PartitionKey
    object_key: str
    base_offset: int


class _Known:
    """One damaged range."""

    __slots__ = ("error", "reads", "since_ms", "told_ms")

    def __init__(self, error: DamagedObject, now_ms: int) -> None:
        self.error = error
        self.since_ms = now_ms
        self.told_ms = now_ms
        self.reads = 0
        """Reads that found it since the last log line."""


class Damages:
    """The damaged ranges that reads have found. It belongs to one event loop and must be closed."""

    def __init__(
        self, *, metadata: MetadataStore, objects: ObjectReader, clock: Clock, stats: ReaderStats, report: Report
    ) -> None:
        self._metadata = metadata
        self._objects = objects
        self._clock = clock
        self._stats = stats
        self._report = report
        self._known: dict[_Place, _Known] = {}
        """The one that was not checked for the longest time comes first."""
        self._by_object: dict[str, set[_Place]] = {}
        self._check_now = asyncio.Event()
        self._checker: asyncio.Task[None] | None = None
        self._lines = RateLimitedLog(_log, lambda: clock.boot_ms() / 1000)

    def __len__(self) -> int:
        return len(self._known)

    async def declare(self, key: PartitionKey, error: DamagedObject) -> DamagedObject:
        """A read found damage, and the metadata store still names the object. Returns the error with the topic's
        name."""
        place = _Place(key, error.object_key, error.base_offset)
        known = self._known.get(place)
        named = error.named(await self._name(key) if known is None else known.error.where)
        self._objects.confirm(named)
        self._stats.damaged_reads += 1
        known = self._known.get(place)
        if known is None:
            self._learn(place, named)
        else:
            self._met_again(known, named)
        return named

    def read_through(self, key: PartitionKey, object_key: str, offset: int) -> None:
        """A read succeeded in a range that may be known as damaged: check it soon. It may have come from memory."""
        for place in self._by_object.get(object_key, ()):
            if place.key == key and place.base_offset <= offset <= self._known[place].error.end_offset:
                self._check_now.set()

    async def close(self) -> None:
        if self._checker is not None:
            self._checker.cancel()
            await asyncio.gather(self._checker, return_exceptions=True)

    # What is told.

    def _learn(self, place: _Place, error: DamagedObject) -> None:
        if len(self._known) >= MAX_KNOWN_DAMAGE:
            self._drop(next(iter(self._known)))
        self._known[place] = _Known(error, self._clock.boot_ms())
        self._by_object.setdefault(place.object_key, set()).add(place)
        self._stats.damaged_ranges += 1
        self._lines.log(logging.ERROR, "records cannot be read: %s", error, extra=_details(error))
        self._tell_health()
        if self._checker is None:
            self._checker = asyncio.create_task(self._check_until_well(), name="reader-damage")

    def _met_again(self, known: _Known, error: DamagedObject) -> None:
        known.error = error
        known.reads += 1
        now_ms = self._clock.boot_ms()
        if now_ms - known.told_ms >= _REMIND_MS:
            text = "records still cannot be read (%d reads failed since the last line): %s"
            self._lines.log(logging.ERROR, text, known.reads, error, extra=_details(error))
            known.told_ms, known.reads = now_ms, 0

    def _drop(self, place: _Place) -> _Known:
        places = self._by_object[place.object_key]
        places.discard(place)
        if not places:
            del self._by_object[place.object_key]
        return self._known.pop(place)

    def _is_over(self, place: _Place, what: str) -> None:
        if place not in self._known:
            return  # too many others became known meanwhile
        known = self._drop(place)
        for_s = (self._clock.boot_ms() - known.since_ms) / 1000
        error = known.error
        self._lines.log(
            logging.WARNING,
            f"%s, offsets %d to %d: %s {what} after %.1f s",
            error.where,
            error.base_offset,
            error.end_offset,
            error.object_key,
            for_s,
            extra=_details(error),
        )
        self._tell_health()

    def _tell_health(self) -> None:
        if not self._known:
            self._report(HEALTH, None)
            return
        first = next(iter(self._known.values())).error
        more = len(self._known) - 1
        self._report(HEALTH, StreamHouseError(f"{first}; and {more} more damaged ranges" if more else str(first)))

    async def _name(self, key: PartitionKey) -> str:
        """The partition by topic name; by topic id if the name cannot be read."""
        try:
            topic = await self._metadata.get_topic_by_id(TopicId(key.topic_id))
        except StreamHouseError:
            return str(key)
        return f"{topic.name}/{key.partition}"

    # The checks that a damaged range can be read again.

    async def _check_until_well(self) -> None:
        try:
            while self._known:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_EVERY_S):
                        await self._check_now.wait()
                self._check_now.clear()
                for place in list(self._known)[:_CHECKS_PER_ROUND]:
                    await self._check(place)
                await asyncio.sleep(_LEAST_PAUSE_S)
        finally:
            self._checker = None

    async def _check(self, place: _Place) -> None:
        known = self._known.pop(place, None)
        if known is None:
            return
        self._known[place] = known  # last in line
        try:
            pages = await self._metadata.scan_entries(
                [ScanRange(key=place.key, from_offset=place.base_offset)], limit=1
            )
            page = pages[0] if pages else None
            entry = page.entries[0] if page is not None and page.entries else None
            start = 0 if page is None else page.partition.log_start_offset
            if entry is None or entry.object_key != place.object_key or start > known.error.end_offset:
                self._is_over(place, "is no longer part of the log,")
                return
            await self._objects.verify(place.key, entry, max(place.base_offset, start))
        except StreamHouseError:
            return  # still damaged, or a store is away; the next round will tell
        self._is_over(place, "can be read again")


def _details(error: DamagedObject) -> dict[str, object]:
    """The fields of a log line in JSON."""
    return {
        "partition": error.where,
        "object_key": error.object_key,
        "byte_offset": error.byte_offset,
        "byte_length": error.byte_length,
        "base_offset": error.base_offset,
        "end_offset": error.end_offset,
    }
