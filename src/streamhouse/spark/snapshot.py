"""What the driver finds out before it plans: topics, where their logs begin and end, offsets for times, entries.

Asks the metadata only, and for a time the object that holds it. An offset that was asked for and is gone is data loss:
refused, or passed over with a warning, as the option says (``DataLoss``).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from streamhouse.core.errors import DataLost, InvalidSetting, PartitionNotFound, TopicNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import MAX_PLANNED_ENTRIES
from streamhouse.core.suggest import did_you_mean
from streamhouse.metadata.contract import MetadataStore, PartitionState, ScanRange, Topic
from streamhouse.spark.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from streamhouse.spark.options import Edge, Position, ReadOptions, TopicSelection
from streamhouse.spark.plan import ReadRange, check_covered, coarse

LOG: Final = logging.getLogger("streamhouse.spark")

_PAGE_ENTRIES: Final = 1_000
_RANGES_PER_SCAN: Final = 100
_KEYS_PER_CALL: Final = 5_000
_TIMES_AT_ONCE: Final = 8
_MAX_TOLD: Final = 1_000

TimeLookup = Callable[[PartitionKey, int], Awaitable[int | None]]
"""The offset of the first record at or after a time; None when there is none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnds:
    """One partition at the time of the snapshot."""

    key: PartitionKey
    start: int
    end: int
    """The next offset of the log: the first that has no record yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    topic_ids: Mapping[str, TopicId]
    logs: Mapping[TopicPartition, LogEnds]

    def ends(self) -> dict[TopicPartition, int]:
        return {each: log.end for each, log in self.logs.items()}


class DataLoss:
    """What to do about requested records that no longer exist."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails
        self._told: set[str] = set()

    def report(self, what: str) -> None:
        """Raises DataLost, or warns. Warns once about each loss, because a stream meets it again at every trigger."""
        if self._fails:
            raise DataLost(f"data may have been lost: {what}")
        if what not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(what)
            LOG.warning("data may have been lost, reading on (failOnDataLoss is false): %s", what)


async def take_snapshot(metadata: MetadataStore, options: ReadOptions, *, must_exist: bool) -> Snapshot:
    """Raises TopicNotFound and PartitionNotFound if ``must_exist``; else what is missing is left out."""
    wanted = await _wanted(metadata, options.subscription, must_exist=must_exist)
    keys = {PartitionKey(topic.topic_id, each.partition): each for each, topic in wanted.items()}
    states: list[PartitionState] = []
    listed = list(keys)
    for at in range(0, len(listed), _KEYS_PER_CALL):
        states += await metadata.get_partitions(listed[at : at + _KEYS_PER_CALL])
    logs = {
        keys[state.key]: LogEnds(
            key=state.key,
            start=state.log_start_offset,
            end=state.last_stable_offset if options.read_committed else state.high_watermark,
        )
        for state in states
    }
    return Snapshot(
        topic_ids={topic.name: topic.topic_id for topic in wanted.values()},
        logs={each: logs[each] for each in sorted(logs)},
    )


async def named_topic(metadata: MetadataStore, name: str) -> Topic:
    """Raises TopicNotFound, with a similar name as a hint."""
    try:
        return await metadata.get_topic(name)
    except TopicNotFound as error:
        known = [topic.name for topic in await metadata.list_topics()]
        listed = f"the topics are {', '.join(known[:10])}" if known else "there are none yet"
        raise TopicNotFound(f"there is no topic {name!r}", hint=did_you_mean(name, known, otherwise=listed)) from error


async def resolve_starting(
    snapshot: Snapshot, options: ReadOptions, lookup: TimeLookup, loss: DataLoss
) -> dict[TopicPartition, int]:
    """The first offset to read of each partition."""
    position = options.starting
    found = await _resolve(snapshot, position, lookup)
    for each, offset in found.items():
        log = snapshot.logs[each]
        if offset is None:
            if not options.latest_if_no_time_matches:
                asked_ms = position.timestamp_ms if position.by_partition is None else position.by_partition[each]
                raise InvalidSetting(
                    f"option {position.option}: {each} has no record at or after {asked_ms}",
                    hint="set startingOffsetsByTimestampStrategy to latest to begin at its end then",
                )
            found[each] = log.end
        elif offset > log.end:
            loss.report(f"{each} ends at offset {log.end}, {position.option} asks for {offset}")
            found[each] = log.end
        elif offset < log.start:
            loss.report(f"{each} starts at offset {log.start} now, {position.option} asks for {offset}")
            found[each] = log.start
    return {each: offset for each, offset in found.items() if offset is not None}


async def resolve_ending(
    snapshot: Snapshot, options: ReadOptions, lookup: TimeLookup, loss: DataLoss
) -> dict[TopicPartition, int]:
    """The first offset not to read of each partition."""
    position = options.ending
    ending: dict[TopicPartition, int] = {}
    for each, offset in (await _resolve(snapshot, position, lookup)).items():
        log = snapshot.logs[each]
        if offset is not None and offset > log.end:
            loss.report(f"{each} ends at offset {log.end}, {position.option} asks for {offset}")
        ending[each] = log.end if offset is None else min(offset, log.end)
    return ending


async def scan_ranges(
    metadata: MetadataStore, ranges: Sequence[ReadRange], *, max_entries: int = MAX_PLANNED_ENTRIES
) -> list[ReadRange]:
    """The same ranges with their entries, merged ones if there are too many. Offsets below the log start have none."""
    found: list[ReadRange] = []
    wanted = [each for each in ranges if each.to_offset > each.from_offset]
    named = 0
    for at in range(0, len(wanted), _RANGES_PER_SCAN):
        part = await _scan(metadata, wanted[at : at + _RANGES_PER_SCAN], max_entries=max_entries)
        named += sum(len(each.entries) for each in part)
        found += part
        if named > max_entries:
            found = [coarse(each) for each in found]
            named = sum(len(each.entries) for each in found)
    return found


async def scan_pages(metadata: MetadataStore, range_: ReadRange) -> AsyncIterator[ReadRange]:
    """Scans a range of any length, a page of entries at a time."""
    at = range_.from_offset
    while at < range_.to_offset:
        wanted = ScanRange(key=range_.key, from_offset=at, to_offset=range_.to_offset)
        pages = await metadata.scan_entries([wanted], limit=_PAGE_ENTRIES)
        entries = pages[0].entries if pages else ()
        upto = min(entries[-1].end_offset + 1, range_.to_offset) if entries and pages[0].more else range_.to_offset
        part = replace(range_, from_offset=at, to_offset=upto, entries=tuple(entries), is_coarse=False)
        check_covered(part)
        yield part
        at = upto


async def _scan(metadata: MetadataStore, ranges: Sequence[ReadRange], *, max_entries: int) -> list[ReadRange]:
    found = {each.key: each for each in ranges}
    left = {each.key: (each.from_offset, each.to_offset) for each in ranges}
    named = 0
    while left:
        pages = await metadata.scan_entries(
            [ScanRange(key=key, from_offset=start, to_offset=end) for key, (start, end) in left.items()],
            limit=_PAGE_ENTRIES,
        )
        bounds, left = left, {}
        for page in pages:
            key = page.partition.key
            found[key] = replace(found[key], entries=(*found[key].entries, *page.entries))
            named += len(page.entries)
            if page.more and page.entries:
                left[key] = (page.entries[-1].end_offset + 1, bounds[key][1])
        if named > max_entries:
            found = {key: coarse(each) for key, each in found.items()}
            named = sum(len(each.entries) for each in found.values())
    return list(found.values())


async def _wanted(
    metadata: MetadataStore, subscription: TopicSelection, *, must_exist: bool
) -> dict[TopicPartition, Topic]:
    if subscription.pattern:
        matches = re.compile(subscription.pattern).fullmatch
        topics = [topic for topic in await metadata.list_topics() if matches(topic.name)]
        if must_exist and not topics:
            raise TopicNotFound(f"no topic's whole name matches {subscription.pattern!r}")
        return {each: topic for topic in topics for each in _partitions(topic)}
    names = subscription.topics or tuple(dict.fromkeys(each.topic for each in subscription.partitions))
    by_name = {topic.name: topic for topic in await _by_name(metadata, names, must_exist=must_exist)}
    if subscription.topics:
        return {each: topic for topic in by_name.values() for each in _partitions(topic)}
    wanted: dict[TopicPartition, Topic] = {}
    for each in subscription.partitions:
        named = by_name.get(each.topic)
        if named is not None and each.partition < named.partition_count:
            wanted[each] = named
        elif named is not None and must_exist:
            raise PartitionNotFound(
                f"{each.topic} has partitions 0 to {named.partition_count - 1}, not {each.partition}"
            )
    return wanted


async def _by_name(metadata: MetadataStore, names: Sequence[str], *, must_exist: bool) -> list[Topic]:
    found: list[Topic] = []
    for name in names:
        try:
            found.append(await (named_topic(metadata, name) if must_exist else metadata.get_topic(name)))
        except TopicNotFound:
            if must_exist:
                raise
    return found


def _partitions(topic: Topic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for number in range(topic.partition_count)]


async def _resolve(snapshot: Snapshot, position: Position, lookup: TimeLookup) -> dict[TopicPartition, int | None]:
    """Return the offset of each partition, or None where no record is that late."""
    logs = snapshot.logs
    match position.edge:
        case Edge.EARLIEST:
            return {each: log.start for each, log in logs.items()}
        case Edge.LATEST:
            return {each: log.end for each, log in logs.items()}
        case Edge.OFFSETS:
            said = _for_all(logs, position)
            special = {EARLIEST: "start", LATEST: "end"}
            return {
                each: getattr(log, special[said[each]]) if said[each] in special else said[each]
                for each, log in logs.items()
            }
    times = dict.fromkeys(logs, position.timestamp_ms) if position.edge is Edge.TIME else _for_all(logs, position)
    gate = asyncio.Semaphore(_TIMES_AT_ONCE)

    async def at_time(each: TopicPartition) -> int | None:
        async with gate:
            return await lookup(logs[each].key, times[each])

    offsets = await asyncio.gather(*(at_time(each) for each in logs))
    return dict(zip(logs, offsets, strict=True))


def _for_all(logs: Mapping[TopicPartition, LogEnds], position: Position) -> Offsets:
    """The given position of each partition. As in the Kafka source, all partitions must be named, and no others."""
    said = position.by_partition or {}
    missing, unknown = sorted(logs.keys() - said.keys()), sorted(said.keys() - logs.keys())
    if missing:
        hint = "say it for every partition" + ("; -2 is earliest, -1 latest" if position.edge is Edge.OFFSETS else "")
        raise InvalidSetting(f"option {position.option} says nothing of {missing[0]}", hint=hint)
    if unknown:
        hint = did_you_mean(unknown[0].topic, {each.topic for each in logs}, otherwise="name only what is read")
        raise InvalidSetting(f"option {position.option} speaks of {unknown[0]}, which is not read", hint=hint)
    return said
