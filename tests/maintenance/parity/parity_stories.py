"""Stories: writes, configs and jumps of time, told once for every broker, and which records stay.

A batch is as large as a segment of the Apache Kafka under test, so it is alone in its segment there, as it is alone in
its entry on StreamHouse. The newest batch is then Kafka's active segment and our newest entry, which neither cleans.

``leaves`` names the offsets that stay. They are what Apache Kafka's rules say; both brokers must come to them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from parity_brokers import (
    BATCH_BYTES,
    CLEAN_LATER,
    CLEAN_NOW,
    HOUR_MS,
    ParityBroker,
    ParityKafka,
    ParityStreamHouse,
    wait_for,
)
from parity_client import Headers, LogSeen, Sent

MINUTE_MS: Final = 60_000
KeyValue = tuple[str | None, str | None]
_BATCH_OVERHEAD_BYTES: Final = 61 + 30  # its header, and what the fields of a record take beside their bytes


class StoryLog:
    """The log of one story on one broker, and what was seen of it."""

    def __init__(self, broker: ParityBroker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.seen: list[LogSeen] = []
        self.answers: list[object] = []
        """What the broker answered to calls that it may refuse."""
        self.times_found: list[dict[int, int]] = []
        """For each look: the offset that ListOffsets finds for each time that was written; -1 for none."""
        self.is_compacted = False
        self._base_ms = broker.clock.wall_ms()
        self._skipped_ms = 0
        self._times_ms: set[int] = set()
        self._random = random.Random(topic)

    def create(self, **configs: object) -> None:
        self.is_compacted = "compact" in str(configs.get("cleanup_policy"))
        self.broker.create(self.topic, _spelled(configs))

    def alter(self, **configs: object) -> None:
        self.broker.alter(self.topic, _spelled(configs))

    def write(
        self, *pairs: KeyValue, ago_ms: int = 0, codec: str = "none", idempotent: bool = False, headers: Headers = ()
    ) -> None:
        """One batch, dated ``ago_ms`` before now; a value of None is a tombstone."""
        at_ms = self._skipped_ms - ago_ms
        self.write_at(*((pair, at_ms) for pair in pairs), codec=codec, idempotent=idempotent, headers=headers)

    def write_at(
        self, *dated: tuple[KeyValue, int], codec: str = "none", idempotent: bool = False, headers: Headers = ()
    ) -> None:
        """One batch whose records have times of their own, counted from the beginning of the story."""
        filling = (sum(BATCH_BYTES) // 2 - _BATCH_OVERHEAD_BYTES) // len(dated)
        records = [
            Sent(
                key=_bytes(key),
                value=_bytes(value),
                at_ms=at_ms,
                headers=(*headers, ("filling", self._random.randbytes(max(filling - 20, 1)))),
            )
            for (key, value), at_ms in dated
        ]
        self._times_ms.update(record.at_ms for record in records)
        refused = self.broker.client.write(
            self.topic, records, base_ms=self._base_ms, codec=codec, idempotent=idempotent
        )
        self.answers.append(refused)

    def skip(self, ms: int) -> None:
        self.broker.skip(ms)
        self._skipped_ms += ms

    def delete_records(self, before: int) -> None:
        self.answers.append(self.broker.client.delete_records(self.topic, before))

    def clean(self) -> None:
        """Make the log due for compaction. It is cleaned once, whole, with all that was written before."""
        self.alter(**CLEAN_NOW)

    def clean_later(self) -> None:
        self.alter(**CLEAN_LATER)

    def leaves(self, *offsets: int) -> None:
        """Let the broker do what is due. Then exactly these records are there."""
        self.broker.settle()
        if isinstance(self.broker, ParityKafka):
            wait_for(lambda: self._look().offsets == list(offsets), lambda: self._unlike(offsets))
        elif isinstance(self.broker, ParityStreamHouse) and (early := self._look().offsets) != list(offsets):
            assert set(early) > set(offsets), self._unlike(offsets)
            self.broker.restart()
        seen = self._look()
        self.seen.append(seen)
        self.times_found.append(
            {at: self.broker.client.offset_for_time(self.topic, self._base_ms + at) for at in sorted(self._times_ms)}
        )
        assert seen.offsets == list(offsets), self._unlike(offsets)

    def _look(self) -> LogSeen:
        return self.broker.client.look(self.topic, base_ms=self._base_ms)

    def _unlike(self, offsets: tuple[int, ...]) -> str:
        return f"{self.broker.name}: {self.topic} has {self._look().offsets}, not {list(offsets)}"


Story = Callable[[StoryLog], None]


def retention_by_time(log: StoryLog) -> None:
    log.create(retention_ms=HOUR_MS)
    log.write(("a", "1"), ("b", "2"), (None, "3"), ago_ms=50 * MINUTE_MS)
    log.write(("a", "4"), ("b", None), ago_ms=40 * MINUTE_MS, codec="zstd", headers=(("h", None), ("i", b"")))
    log.write(("a", "6"), ago_ms=10 * MINUTE_MS)
    log.write(("a", "7"))
    log.leaves(0, 1, 2, 3, 4, 5, 6)
    log.skip(30 * MINUTE_MS)
    log.leaves(5, 6)
    log.alter(retention_ms=3 * HOUR_MS)
    log.skip(HOUR_MS)
    log.leaves(5, 6)
    log.alter(retention_ms=HOUR_MS)
    log.leaves()
    log.write(("a", "8"))
    log.alter(retention_ms=-1)
    log.skip(9 * HOUR_MS)
    log.leaves(7)


def retention_of_records_from_the_past_and_the_future(log: StoryLog) -> None:
    log.create(retention_ms=HOUR_MS)
    log.write(("a", "0"), ago_ms=3 * HOUR_MS)
    log.write_at((("a", "1"), -3 * HOUR_MS), (("a", "2"), 0))
    log.write(("a", "3"), ago_ms=-5 * HOUR_MS)
    log.write(("a", "4"), ago_ms=3 * HOUR_MS)
    log.write(("a", "5"), ago_ms=2 * HOUR_MS)
    log.leaves(1, 2, 3, 4, 5)
    log.skip(2 * HOUR_MS)
    log.leaves(3, 4, 5)
    log.skip(5 * HOUR_MS)
    log.leaves()


def retention_by_size(log: StoryLog) -> None:
    log.create(retention_ms=-1)
    for number in range(8):
        log.write((f"key-{number}", f"value {number}"))
    log.leaves(*range(8))
    average_bytes = sum(BATCH_BYTES) // 2
    log.alter(retention_bytes=average_bytes * 5 // 2)
    log.leaves(5, 6, 7)
    log.write(("key-8", "value 8"))
    log.write(("key-9", "value 9"))
    log.leaves(7, 8, 9)
    log.alter(retention_bytes=0)
    log.leaves()


def retention_by_size_and_time(log: StoryLog) -> None:
    """Size takes the oldest although a date in the future protects them from age; then age takes more."""
    log.create(retention_ms=HOUR_MS, retention_bytes=sum(BATCH_BYTES) // 2 * 7 // 2)
    log.write(("a", "0"), ago_ms=-9 * HOUR_MS)
    log.write(("a", "1"), ago_ms=2 * HOUR_MS)
    log.write(("a", "2"), ago_ms=2 * HOUR_MS)
    log.leaves(0, 1, 2)
    log.write(("a", "3"))
    log.write(("a", "4"))
    log.leaves(3, 4)


def compaction_with_tombstones(log: StoryLog) -> None:
    log.create(cleanup_policy="compact", delete_retention_ms=HOUR_MS, **CLEAN_LATER)
    log.write(("a", "0"), ("b", "1"), ("c", "2"), ("a", "3"), codec="lz4")
    log.write(("b", None), ("d", "5"), ("", "6"), codec="gzip", headers=(("h", None), ("h", b"again")))
    log.write(("a", "7"), ("c", None), ("e", ""), codec="snappy")
    log.write(("a", "10"), ("d", None))
    log.leaves(*range(12))
    log.clean()
    log.leaves(4, 5, 6, 7, 8, 9, 10, 11)
    log.clean_later()
    log.skip(2 * HOUR_MS)
    log.write(("f", "12"), codec="zstd")
    log.write(("g", "13"))
    log.leaves(4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
    log.clean()
    log.leaves(6, 9, 10, 11, 12, 13)
    log.clean_later()
    log.skip(2 * HOUR_MS)
    log.write(("f", None))
    log.write(("g", "15"))
    log.clean()
    log.leaves(6, 9, 10, 13, 14, 15)


def tombstones_of_an_idempotent_producer_without_delay(log: StoryLog) -> None:
    """The first cleaning keeps a tombstone, the second drops it. What the producer wrote last may become empty."""
    log.create(cleanup_policy="compact", delete_retention_ms=0, **CLEAN_LATER)
    log.write(("a", "0"), ("b", "1"), idempotent=True)
    log.write(("a", None), ("b", None), idempotent=True)
    log.write(("c", "4"))
    log.clean()
    log.leaves(2, 3, 4)
    log.clean_later()
    log.write(("c", "5"))
    log.write(("c", "6"))
    log.clean()
    log.leaves(5, 6)
    log.write(("a", "7"), ("b", "8"), idempotent=True)
    log.leaves(6, 7, 8)


def compaction_lag_holds_back(log: StoryLog) -> None:
    log.create(cleanup_policy="compact", min_compaction_lag_ms=HOUR_MS, **CLEAN_LATER)
    log.write(("a", "0"), ago_ms=3 * HOUR_MS)
    log.write(("a", "1"), ago_ms=3 * HOUR_MS)
    log.write(("a", "2"))
    log.write(("a", "3"), ("b", "4"), ago_ms=3 * HOUR_MS)
    log.write(("b", "5"), ago_ms=3 * HOUR_MS)
    log.clean()
    log.leaves(1, 2, 3, 4, 5)
    log.skip(2 * HOUR_MS)
    log.leaves(3, 4, 5)


def compaction_lag_forces(log: StoryLog) -> None:
    """The share of what is dirty is never enough; the age of the oldest dirty record is."""
    log.create(cleanup_policy="compact", max_compaction_lag_ms=HOUR_MS, **CLEAN_LATER)
    log.write(("a", "0"))
    log.write(("a", "1"), ("b", "2"))
    log.write(("b", "3"))
    log.leaves(0, 1, 2, 3)
    log.skip(2 * HOUR_MS)
    log.leaves(1, 2, 3)


def compaction_and_deletion(log: StoryLog) -> None:
    log.create(cleanup_policy="compact,delete", retention_ms=4 * HOUR_MS, delete_retention_ms=HOUR_MS, **CLEAN_LATER)
    log.write(("a", "0"), ("b", "1"))
    log.write(("a", "2"), ("c", "3"))
    log.write(("c", None))
    log.clean()
    log.leaves(1, 2, 3, 4)
    log.clean_later()
    log.skip(2 * HOUR_MS)
    log.write(("b", "5"))
    log.write(("d", "6"))
    log.clean()
    log.leaves(2, 4, 5, 6)
    log.clean_later()
    log.skip(3 * HOUR_MS)
    log.write(("a", "7"))
    log.skip(2 * HOUR_MS)
    log.leaves(7)
    log.write(("a", "8"))
    log.write(("e", "9"))
    log.clean()
    log.leaves(8, 9)
    log.skip(5 * HOUR_MS)
    log.leaves()


def records_deleted_by_request(log: StoryLog) -> None:
    log.create(retention_ms=-1)
    log.write(("a", "0"), ("b", "1"), ("c", "2"))
    log.write(("a", "3"), ("b", "4"), codec="lz4")
    log.delete_records(2)
    log.leaves(2, 3, 4)
    log.delete_records(1)
    log.leaves(2, 3, 4)
    log.delete_records(6)
    log.delete_records(-2)
    log.leaves(2, 3, 4)
    log.delete_records(3)
    log.leaves(3, 4)
    log.delete_records(-1)
    log.leaves()
    log.write(("a", "5"))
    log.leaves(5)
    log.alter(cleanup_policy="compact")
    log.delete_records(6)
    log.leaves(5)


def records_deleted_by_request_in_a_compacted_log(log: StoryLog) -> None:
    log.create(cleanup_policy="compact,delete", retention_ms=-1, **CLEAN_LATER)
    log.write(("a", "0"), ("b", "1"))
    log.write(("a", "2"), ("b", "3"), ("c", "4"))
    log.write(("c", "5"), ("d", "6"))
    log.write(("d", "7"))
    log.clean()
    log.leaves(2, 3, 5, 6, 7)
    log.delete_records(4)
    log.leaves(5, 6, 7)
    log.clean_later()
    log.write(("d", "8"))
    log.write(("b", "9"))
    log.clean()
    log.leaves(5, 8, 9)


def a_policy_that_changes(log: StoryLog) -> None:
    """Records without a key are no records of a compacted log: what has none goes when the policy becomes compact."""
    log.create(retention_ms=HOUR_MS, **CLEAN_LATER)
    log.write((None, "0"), ("a", "1"))
    log.write((None, "2"))
    log.write(("a", "3"), ("b", "4"))
    log.write((None, "5"), ("b", "6"))
    log.alter(cleanup_policy="compact", **CLEAN_NOW)
    log.leaves(3, 4, 5, 6)
    log.write((None, "refused"))
    log.skip(2 * HOUR_MS)
    log.leaves(3, 4, 5, 6)
    log.alter(cleanup_policy="delete")
    log.leaves()
    log.write((None, "7"))
    log.leaves(7)


def many_keys_at_random(log: StoryLog) -> None:
    """Three rounds of batches with any codec, each cleaned whole; tombstones stay for longer than the story."""
    log.create(cleanup_policy="compact", delete_retention_ms=99 * HOUR_MS, **CLEAN_LATER)
    rng = random.Random(14)
    keys: list[str] = []
    for _ in range(3):
        batch_start = 0
        for _ in range(6):
            batch_start = len(keys)
            batch = [f"key-{rng.randrange(12)}" for _ in range(rng.randrange(1, 6))]
            pairs = [(key, None if rng.random() < 0.2 else f"{len(keys) + at}") for at, key in enumerate(batch)]
            codec = rng.choice(("none", "gzip", "snappy", "lz4", "zstd"))
            log.write(*pairs, ago_ms=rng.randrange(HOUR_MS), codec=codec)
            keys += batch
        newest = {key: offset for offset, key in enumerate(keys[:batch_start])}
        log.clean()
        log.leaves(*sorted(newest.values()), *range(batch_start, len(keys)))
        log.clean_later()


STORIES: Final[tuple[Story, ...]] = (
    retention_by_time,
    retention_of_records_from_the_past_and_the_future,
    retention_by_size,
    retention_by_size_and_time,
    compaction_with_tombstones,
    tombstones_of_an_idempotent_producer_without_delay,
    compaction_lag_holds_back,
    compaction_lag_forces,
    compaction_and_deletion,
    records_deleted_by_request,
    records_deleted_by_request_in_a_compacted_log,
    a_policy_that_changes,
    many_keys_at_random,
)


def told(story: Story, broker: ParityBroker) -> StoryLog:
    log = StoryLog(broker, story.__name__.replace("_", "-"))
    story(log)
    return log


def _spelled(configs: dict[str, object]) -> dict[str, str]:
    return {name.replace("_", "."): str(value) for name, value in configs.items()}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
