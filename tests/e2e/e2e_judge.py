"""The log as it lies in the stores, read past the engine, and the verdict on what clients were told about it.

``read_log`` walks entries and objects by itself, with the simulator's own reading of the bytes; no reader, cache or
agent has a part in it. ``judge`` compares: it knows nothing but the log, the epochs and the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from e2e_clients import PADDING, Ledger, Write

from simulator.rawbytes import batches_in, batches_in_segment
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import SEGMENT_V1, Entry, EpochStart, MetadataStore, ScanRange
from streamhouse.objectstore.contract import ObjectStore

_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLog:
    """A partition: its records by offset, the epoch that committed each, and who led it."""

    values: tuple[str, ...]
    epochs: tuple[int, ...]
    history: tuple[EpochStart, ...]


async def read_logs(
    metadata: MetadataStore, store: ObjectStore, keys: Sequence[PartitionKey]
) -> dict[PartitionKey, StoredLog]:
    return {key: await read_log(metadata, store, key) for key in keys}


async def read_log(metadata: MetadataStore, store: ObjectStore, key: PartitionKey) -> StoredLog:
    """Raises AssertionError where entries do not cover the log from 0 to the watermark, or objects not the entries."""
    values: list[str] = []
    epochs: list[int] = []
    while True:
        (page,) = await metadata.scan_entries([ScanRange(key=key, from_offset=len(values))], limit=_PAGE)
        for entry in page.entries:
            assert entry.base_offset == len(values), f"{key}: an entry at {entry.base_offset}, not at {len(values)}"
            read = await _read_entry(store, entry)
            assert len(read) == entry.end_offset - entry.base_offset + 1 == entry.record_count, f"{key}: {entry}"
            values.extend(read)
            epochs.extend([entry.epoch] * len(read))
        if not page.more:
            break
    assert len(values) == page.partition.high_watermark, f"{key}: entries end at {len(values)}: {page.partition}"
    history = await metadata.epoch_history(key)
    return StoredLog(values=tuple(values), epochs=tuple(epochs), history=tuple(history))


async def _read_entry(store: ObjectStore, entry: Entry) -> list[str]:
    data = bytes(await store.get_range(entry.object_key, entry.byte_offset, entry.byte_length))
    is_segment = entry.encoding == SEGMENT_V1
    values: list[str] = []
    for batch in batches_in_segment(data) if is_segment else batches_in(data):
        if is_segment:
            assert batch.base_offset == entry.base_offset + len(values), f"{entry}: a batch at {batch.base_offset}"
        values.extend(value.rstrip(PADDING) for value in batch.values)
    return values


def judge(
    logs: Mapping[PartitionKey, StoredLog], ledger: Ledger, *, wal_is_durable: bool, every_agent_led_last: bool = False
) -> list[str]:
    """What is wrong, in words; nothing when all is well.

    ``wal_is_durable``: every acknowledgement is final. Otherwise an acks=1 record without producer id may have been
    overtaken by another agent's leadership; it must then have come back once its agent led again (R4), which
    ``every_agent_led_last`` promises for all of them.
    """
    problems = list(ledger.contradictions)
    by_key: defaultdict[PartitionKey, list[Write]] = defaultdict(list)
    for write in ledger.writes:
        by_key[write.key].append(write)
    for key, writes in by_key.items():
        trial = _Trial(logs[key], writes, wal_is_durable=wal_is_durable, every_agent_led_last=every_agent_led_last)
        problems.extend(f"{key.partition}: {problem}" for problem in trial.problems())
    for (key, offset), value in ledger.seen.items():
        there = logs[key].values[offset : offset + 1]
        if there != (value,):
            problems.append(f"{key.partition}: a reader saw {value!r} at {offset}; there is {there}")
    return problems


class _Trial:
    """One partition's."""

    def __init__(
        self, log: StoredLog, writes: Sequence[Write], *, wal_is_durable: bool, every_agent_led_last: bool
    ) -> None:
        self._log = log
        self._writes = writes
        self._wal_is_durable = wal_is_durable
        self._every_agent_led_last = every_agent_led_last
        self._places: defaultdict[str, list[int]] = defaultdict(list)
        for offset, value in enumerate(log.values):
            self._places[value].append(offset)

    def problems(self) -> Iterator[str]:
        yield from self._strangers()
        for write in self._writes:
            yield from self._torn(write)
            if write.offset is not None and write.acks != 0:
                yield from self._broken_promise(write, write.offset)
        yield from self._disorder()

    def _strangers(self) -> Iterator[str]:
        known = {value for write in self._writes for value in write.values}
        for value, places in self._places.items():
            if value not in known:
                yield f"{value!r} at {places}, and it was not written here"
            elif len(places) > 1:
                yield f"{value!r} is there {len(places)} times: {places}"

    def _torn(self, write: Write) -> Iterator[str]:
        for offset in self._places.get(write.values[0], []):
            there = self._log.values[offset : offset + len(write.values)]
            if there != write.values:
                yield f"the batch {write.values} at {offset} reads {there}"

    def _broken_promise(self, write: Write, offset: int) -> Iterator[str]:
        if self._log.values[offset : offset + 1] == write.values[:1]:
            return
        places = self._places.get(write.values[0], [])
        told = f"{write.values[0]!r} (acks={write.acks}), acknowledged at {offset} by {write.agent}"
        if self.is_final(write) or not self._overtaken(write, offset):
            there = self._log.values[offset : offset + 1]
            yield f"{told}: there is {there}; it is at {places}" if places else f"{told}: lost; there is {there}"
        elif not places and self._every_agent_led_last:
            yield f"{told}, overtaken by another leader: never came back"

    def is_final(self, write: Write) -> bool:
        return self._wal_is_durable or write.acks == -1 or write.idempotent

    def _overtaken(self, write: Write, offset: int) -> bool:
        return any(
            start.epoch > write.epoch and start.agent_id != write.agent and start.start_offset <= offset
            for start in self._log.history
        )

    def _disorder(self) -> Iterator[str]:
        last: dict[str, tuple[int, str]] = {}
        for write in self._writes:
            places = self._places.get(write.values[0], [])
            if not places or not self.is_final(write):
                continue
            before = last.get(write.producer, (-1, ""))
            if places[0] < before[0]:
                yield f"{write.values[0]!r} at {places[0]} stands before {before[1]!r} at {before[0]}"
            last[write.producer] = (places[0], write.values[0])
