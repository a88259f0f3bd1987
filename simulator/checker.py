"""Compares a history with what is left: was anything lost, doubled, moved, reordered, or written by a stale leader?

Shares no code with the engine. It checks these rules:

* A write acknowledged with acks=all, by an idempotent producer, or at all where the WAL is the durability, stays at
  the acknowledged offset. Such writes are in real-time order: what began after another had been acknowledged
  lies behind it.
* A write acknowledged with acks=1 elsewhere is provisional: when another agent has led since, it may come back at
  another offset, once, when its agent leads again (R4). It is excused only if that agent's disk was lost. On a
  compacted topic it may not come back.
* A batch is in the log at most once for each time it was sent; an idempotent producer's at most once, and in order.
* Every record was written to this partition of this topic (R19).
* Offsets are dense, entries do not overlap, epochs never go back along the log, and no entry of an epoch lies at or
  beyond the offset where the next one began (R1).
* What was read once can be read again.
* No agent takes a write after another has begun to lead (R20).
* What maintenance takes away it may take away (checker_removals.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from simulator.anomalies import Kind, SimAnomaly
from simulator.checker_removals import judge_removals, thinned_by
from simulator.history import (
    ACKS_ALL,
    Key,
    Led,
    Leftovers,
    LoggedRecord,
    RawEntry,
    RawPartition,
    SimHistory,
    Write,
)
from simulator.rawbytes import RawBatch, Unreadable, batches_in, batches_in_segment

STORE_CLOCK_GRACE_MS = 10_000
"""How long after the metadata's clock jumped a local deadline may be wrong: longer than any simulated lease."""


def check(history: SimHistory, left: Leftovers) -> list[SimAnomaly]:
    """Every anomaly found; empty is a pass."""
    found = [SimAnomaly(kind=Kind.PROBLEM, key=None, detail=problem) for problem in history.problems]
    by_key: defaultdict[Key, list[Write]] = defaultdict(list)
    for write in history.writes:
        by_key[write.key].append(write)
    starts: defaultdict[Key, list[Led]] = defaultdict(list)
    for led in history.led:
        starts[led.key].append(led)
    for key, begun in starts.items():
        found += _epochs_go_back(key, begun)
    for key, partition in left.partitions.items():
        judge = _Judge(key, history, by_key[key], starts[key], found)
        judge.read_log(partition, left.objects)
        judge.judge_log()
        judge.judge_writes()
        judge.judge_reads()
    found += _reads_differ(history)
    found += judge_removals(history, left)
    found += _stale_commits(history)
    found += _stale_leaders(history)
    return found


def logged_records(partition: RawPartition, objects: Mapping[str, bytes]) -> tuple[dict[int, LoggedRecord], list[str]]:
    """What a reader would find, as far as it can be read, and what is wrong with the entries that cannot be read."""
    records: dict[int, LoggedRecord] = {}
    unreadable: list[str] = []
    for entry in partition.entries:
        try:
            for base_offset, batch in _placed(entry, objects):
                epoch = batch.leader_epoch if entry.encoding == "strm-v1" else entry.epoch
                for record in batch.records:
                    records[base_offset + record.delta] = LoggedRecord(
                        value=record.value,
                        key=record.key,
                        is_tombstone=record.is_tombstone,
                        time_ms=record.time_ms,
                        epoch=epoch,
                        producer=batch.producer,
                        crc=batch.crc,
                    )
        except KeyError:
            unreadable.append(f"{entry.object_key} is missing")
        except Unreadable as error:
            unreadable.append(f"{entry.object_key}: {error}")
    return records, unreadable


def records_in(partition: RawPartition, objects: Mapping[str, bytes]) -> dict[int, str]:
    """The values of what a reader would find, as far as it can be read."""
    return {offset: record.value for offset, record in logged_records(partition, objects)[0].items()}


class _Judge:
    """One partition."""

    def __init__(
        self, key: Key, history: SimHistory, writes: list[Write], starts: list[Led], found: list[SimAnomaly]
    ) -> None:
        self._key = key
        self._history = history
        self._writes = writes
        self._starts = starts
        self._found = found
        self._thinned = thinned_by(history, key)
        self._log: dict[int, str] = {
            **history.trimmed.get(key, {}),
            **{offset: value for offset, (value, _) in self._thinned.items()},
        }
        self._places: defaultdict[str, list[int]] = defaultdict(list)

    def _report(self, kind: Kind, detail: str) -> None:
        self._found.append(SimAnomaly(kind=kind, key=self._key, detail=detail))

    # The log itself.

    def read_log(self, partition: RawPartition, objects: Mapping[str, bytes]) -> None:
        expected: int | None = None
        epoch = 0
        for entry in partition.entries:
            where = f"entry {entry.base_offset} to {entry.end_offset}"
            if expected is None:
                if entry.base_offset > partition.log_start:
                    self._report(Kind.NOT_DENSE, f"{where} is the first, the log starts at {partition.log_start}")
            elif entry.base_offset != expected:
                self._report(Kind.NOT_DENSE, f"{where} where {expected} must follow")
            if entry.epoch < epoch:
                self._report(Kind.STALE_EPOCH, f"{where} is of epoch {entry.epoch}, {epoch} wrote before it")
            self._belongs_to_its_epoch(entry, where)
            expected, epoch = entry.end_offset + 1, max(epoch, entry.epoch)
            self._read_entry(entry, objects, where)
        if partition.high_watermark != (partition.log_start if expected is None else expected):
            self._report(Kind.NOT_DENSE, f"the watermark is {partition.high_watermark}, the entries end at {expected}")
        for offset in sorted(self._log):
            self._places[self._log[offset]].append(offset)

    def _belongs_to_its_epoch(self, entry: RawEntry, where: str) -> None:
        later = [led for led in self._starts if led.epoch > entry.epoch and led.start_offset <= entry.base_offset]
        if later:
            self._report(
                Kind.STALE_EPOCH,
                f"{where} is of epoch {entry.epoch}, but epoch {later[0].epoch} began at {later[0].start_offset}",
            )

    def _read_entry(self, entry: RawEntry, objects: Mapping[str, bytes], where: str) -> None:
        if entry.object_key not in objects:
            self._report(Kind.MISSING_OBJECT, f"{where}: {entry.object_key}")
            return
        next_offset, count, found = entry.base_offset, 0, set()
        try:
            for base_offset, batch in _placed(entry, objects):
                self._check_place(entry, base_offset, next_offset, batch)
                for record in batch.records:
                    self._log[base_offset + record.delta] = record.value
                    found.add(base_offset + record.delta)
                    count += 1
                next_offset = base_offset + batch.last_delta + 1
        except Unreadable as error:
            self._report(Kind.BAD_OBJECT, f"{where}, {entry.object_key}: {error}")
            return
        if next_offset != entry.end_offset + 1 or count != entry.record_count:
            self._report(Kind.BAD_OBJECT, f"{where}: {count} records up to {next_offset} in {entry.object_key}")
            return
        holes = [
            offset
            for offset in range(entry.base_offset, entry.end_offset + 1)
            if offset not in found and offset not in self._thinned
        ]
        if holes:
            self._report(Kind.NOT_DENSE, f"{where}: offsets {holes} are empty, and no compaction has taken them")

    def _check_place(self, entry: RawEntry, base_offset: int, next_offset: int, batch: RawBatch) -> None:
        """Batches follow each other; only key compaction leaves offsets out. Each keeps its epoch when it is copied."""
        if entry.encoding != "strm-v1":
            return
        wrong_epoch = batch.leader_epoch > entry.epoch if entry.compacted else batch.leader_epoch != entry.epoch
        skips = base_offset < next_offset or (base_offset > next_offset and not entry.compacted)
        if wrong_epoch or skips:
            raise Unreadable(f"a batch of offset {base_offset}, epoch {batch.leader_epoch} at {next_offset}")
        later = [led for led in self._starts if led.epoch > batch.leader_epoch and led.start_offset <= base_offset]
        if later and entry.compacted:
            self._report(
                Kind.STALE_EPOCH,
                f"a batch at {base_offset} is of epoch {batch.leader_epoch}, but epoch {later[0].epoch} began at"
                f" {later[0].start_offset}",
            )

    def judge_log(self) -> None:
        """Only what was written here, as often as it was sent, whole."""
        known = {value: write for write in self._writes for value in write.values}
        for value, places in self._places.items():
            write = known.get(value)
            if write is None:
                self._report(Kind.PHANTOM, f"{value!r} at {places}: it was not written here")
                continue
            allowed = max(len(write.identities), 1) if write.idempotent else write.attempts
            if len(places) > allowed:
                self._report(Kind.DUPLICATED, f"{value!r} at {places}, sent {write.attempts} times by {_whose(write)}")
        for write in self._writes:
            for offset in self._places.get(write.values[0], ()):
                there = tuple(self._log.get(offset + i, "") for i in range(len(write.values)))
                if there != write.values:
                    self._report(Kind.TORN, f"{write.values} at {offset} reads {there}")

    # What producers were told.

    def judge_writes(self) -> None:
        for write in self._writes:
            if write.acked_ms is not None and write.acks != 0:
                self._judge_acknowledged(write)
        self._judge_real_time()
        self._judge_sequences()

    def _is_final(self, write: Write) -> bool:
        return write.acks == ACKS_ALL or write.idempotent or self._history.wal_is_durable

    def _judge_acknowledged(self, write: Write) -> None:
        offset = write.base_offset
        if offset is None:
            if not self._places.get(write.values[0]) and not self._was_undone(write):
                self._report(
                    Kind.LOST, f"{write.values[0]!r} of {_whose(write)}, said to be written, is not in the log"
                )
            return
        if self._log.get(offset) == write.values[0] or self._is_excused(write) or self._was_undone(write):
            return
        places = self._places.get(write.values[0], [])
        what = f"{write.values[0]!r} of {_whose(write)}, acknowledged at {offset}"
        if self._is_final(write) or not self._was_overtaken(write, offset):
            if places:
                self._report(Kind.WRONG_OFFSET, f"{what}, is at {places}; there is {self._log.get(offset)!r}")
            else:
                self._report(Kind.LOST, f"{what}; there is {self._log.get(offset)!r}")
        elif not self._history.overtaken_come_back:
            if write.attempts == 1 and places:
                self._report(Kind.REORDERED, f"{what}, came back at {places} behind what overtook it")
        elif (
            not places
            and self._history.every_agent_led_last
            and not self._came_back_and_was_undone(write)
            and not self._was_given_up(write, offset)
        ):
            self._report(Kind.LOST, f"{what} by {write.acked_by}, never came back")

    def _is_excused(self, write: Write) -> bool:
        """Its only copy was on a disk that is gone."""
        if self._is_final(write) and not self._history.wal_is_durable:
            return False
        return any(
            lost.agent == write.acked_by and lost.at_ms >= (write.taken_ms or 0) for lost in self._history.disks_lost
        )

    def _was_undone(self, write: Write) -> bool:
        """The metadata has lost its commit, after the agent had given it this offset."""
        known_ms = (write.acked_ms or 0) if write.taken_ms is None else write.taken_ms
        return any(
            write.base_offset is None or undone.commit.base_offset <= write.base_offset <= undone.commit.end_offset
            for undone in self._history.undone
            if undone.commit.key == self._key and known_ms <= undone.at_ms
        )

    def _came_back_and_was_undone(self, write: Write) -> bool:
        """It was written again at another offset, the commit was confirmed, and then the metadata lost that commit."""
        return any(
            write.values[0] in undone.values and undone.commit.epoch > (write.epoch or 0)
            for undone in self._history.undone
            if undone.commit.key == self._key
        )

    def _was_given_up(self, write: Write, offset: int) -> bool:
        """Whether the agent that acknowledged it gave it up; a later leadership may have taken it out of its WAL."""
        return any(
            each.base_offset <= offset <= each.end_offset and each.epoch >= (write.epoch or 0)
            for each in self._history.given_up
            if (each.agent, each.key) == (write.acked_by, self._key)
        )

    def _was_overtaken(self, write: Write, offset: int) -> bool:
        return any(
            led.epoch > (write.epoch or 0) and led.agent != write.acked_by and led.start_offset <= offset
            for led in self._starts
        )

    def _judge_real_time(self) -> None:
        acked = [
            (write.acked_ms, write.base_offset, write)
            for write in self._writes
            if write.acked_ms is not None
            and write.base_offset is not None
            and self._is_final(write)
            and write.acks
            and not self._was_undone(write)
        ]
        for acked_ms, offset, first in acked:
            for _, later_offset, second in acked:
                if acked_ms < second.invoked_ms and later_offset <= offset:
                    self._report(
                        Kind.REORDERED,
                        f"{second.values[0]!r} got offset {later_offset} after {first.values[0]!r} had got {offset}",
                    )

    def _judge_sequences(self) -> None:
        last: dict[str, tuple[int, str]] = {}
        in_order = sorted(
            (write for write in self._writes if write.sequence is not None),
            key=lambda write: (write.producer, write.sequence or 0),
        )
        for write in in_order:
            places = self._places.get(write.values[0])
            if not places:
                continue
            offset, value = last.get(write.producer, (-1, ""))
            if places[0] < offset:
                self._report(Kind.REORDERED, f"{write.values[0]!r} at {places[0]} comes before {value!r} at {offset}")
            last[write.producer] = (places[0], write.values[0])

    # What readers saw.

    def judge_reads(self) -> None:
        for read in self._history.reads:
            if read.key != self._key:
                continue
            for offset, value in read.records:
                if self._log.get(offset) != value and not _is_undone(self._history, read.key, offset, value):
                    self._report(
                        Kind.VANISHED,
                        f"{read.reader} saw {value!r} at {offset} at {read.at_ms:.0f} ms;"
                        f" there is {self._log.get(offset)!r}",
                    )
                    break


def _placed(entry: RawEntry, objects: Mapping[str, bytes]) -> Iterator[tuple[int, RawBatch]]:
    """The batches of an entry, each with the offset where it begins."""
    next_offset = entry.base_offset
    for batch in _batches_of(entry, objects):
        if entry.encoding == "strm-v1":
            next_offset = batch.base_offset
        yield next_offset, batch
        next_offset += batch.last_delta + 1


def _batches_of(entry: RawEntry, objects: Mapping[str, bytes]) -> Iterator[RawBatch]:
    data = objects[entry.object_key][entry.byte_offset : entry.byte_offset + entry.byte_length]
    if len(data) != entry.byte_length:
        raise Unreadable(f"{len(data)} of {entry.byte_length} bytes")
    return batches_in_segment(data) if entry.encoding == "strm-v1" else batches_in(data)


def _whose(write: Write) -> str:
    kind = "idempotent " if write.idempotent else ""
    return f"{kind}{write.producer} with acks={write.acks}"


def _epochs_go_back(key: Key, begun: list[Led]) -> Iterator[SimAnomaly]:
    epoch = 0
    for led in begun:
        if led.epoch <= epoch:
            detail = f"{led.agent} began to lead at epoch {led.epoch} after epoch {epoch}"
            yield SimAnomaly(kind=Kind.STALE_EPOCH, key=key, detail=detail)
        epoch = max(epoch, led.epoch)


def _is_undone(history: SimHistory, key: Key, offset: int, value: str) -> bool:
    """Whether the metadata has lost the commit of this record. A leader shows it until it hears of that."""
    lost_ms = [
        undone.at_ms
        for undone in history.undone
        if undone.commit.key == key and undone.commit.base_offset <= offset <= undone.commit.end_offset
    ]
    return bool(lost_ms) and any(
        write.key == key and value in write.values and write.invoked_ms <= max(lost_ms) for write in history.writes
    )


def _reads_differ(history: SimHistory) -> Iterator[SimAnomaly]:
    seen: dict[tuple[Key, int], tuple[str, str]] = {}
    thinned = {read.key: thinned_by(history, read.key) for read in history.reads}
    for read in history.reads:
        expected, gone = read.from_offset, thinned[read.key]
        for offset, value in read.records:
            if offset != expected and not all(
                at in gone and gone[at][1] <= read.at_ms for at in range(expected, offset)
            ):
                detail = f"{read.reader} got offset {offset} where {expected} must follow"
                yield SimAnomaly(kind=Kind.NOT_DENSE, key=read.key, detail=detail)
            expected = offset + 1
            if _is_undone(history, read.key, offset, value):
                continue
            before = seen.setdefault((read.key, offset), (value, read.reader))
            if before[0] != value:
                detail = f"offset {offset} is {before[0]!r} to {before[1]} and {value!r} to {read.reader}"
                yield SimAnomaly(kind=Kind.UNSTABLE_READ, key=read.key, detail=detail)


def _stale_commits(history: SimHistory) -> Iterator[SimAnomaly]:
    """Read the history in the order of events: what stands before a commit had happened before it."""
    for commit in history.committed:
        later = [led for led in history.led if led.key == commit.key and led.epoch > commit.epoch]
        if later and later[0].at_ms < commit.at_ms:
            yield SimAnomaly(
                kind=Kind.STALE_EPOCH,
                key=commit.key,
                detail=f"a commit of epoch {commit.epoch} at {commit.base_offset} was taken at {commit.at_ms:.0f} ms;"
                f" {later[0].agent} leads at epoch {later[0].epoch} since {later[0].at_ms:.0f} ms",
            )


def _stale_leaders(history: SimHistory) -> Iterator[SimAnomaly]:
    begun: defaultdict[Key, list[Led]] = defaultdict(list)
    for led in history.led:
        begun[led.key].append(led)
    for taken in history.taken:
        if any(at_ms <= taken.at_ms <= at_ms + STORE_CLOCK_GRACE_MS for at_ms in history.store_clock_set_ms):
            continue
        # A new run of the same agent takes over at once, without waiting for the old one's deadline: the WAL's lock has
        # made sure that the old one is dead. If it is not dead in the network yet, it is fenced.
        later = [
            led
            for led in begun[taken.key]
            if led.epoch > taken.epoch and led.at_ms < taken.at_ms and led.agent != taken.agent
        ]
        if later:
            yield SimAnomaly(
                kind=Kind.STALE_LEADER,
                key=taken.key,
                detail=f"{taken.agent} took a write under epoch {taken.epoch} at {taken.at_ms:.0f} ms;"
                f" {later[0].agent} leads at epoch {later[0].epoch} since {later[0].at_ms:.0f} ms",
            )
