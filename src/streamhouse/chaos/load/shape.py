"""What a producer does in its short life, decided by a seeded generator and without IO.

Every life has a new producer id. It starts with a burst of several batches for each partition, so that five requests
are in flight before the first answer. Small and large records are mixed: the agents' write buffer is small, so during
an outage some batches are refused for want of room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from streamhouse.core.randomness import Randomness

T = TypeVar("T")

MAX_OUTSTANDING: Final = 600  # records of one producer that wait for an answer; above it, it waits too
MAX_OUTSTANDING_BYTES: Final = 3 * 1024 * 1024  # three times an agent's write buffer
LARGE_RECORD_BYTES: Final = 200_000
_SHORT_LIFE, _LONG_LIFE = (1, 3), (4, 25)  # bursts


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerKind:
    """A way to configure a producer."""

    name: str
    idempotent: bool
    acks: str
    in_flight: int


IDEMPOTENT: Final = ProducerKind(name="idempotent", idempotent=True, acks="all", in_flight=5)
PLAIN: Final = ProducerKind(name="plain", idempotent=False, acks="all", in_flight=1)
PLAIN_FIVE: Final = ProducerKind(name="plain-five", idempotent=False, acks="all", in_flight=5)
ACKS_ONE: Final = ProducerKind(name="acks-one", idempotent=False, acks="1", in_flight=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """A burst: ``count`` records for each of these partitions, and then a rest."""

    places: Sequence[tuple[str, int]]
    count: int
    padding_bytes: int

    @property
    def weight(self) -> float:
        """The cost, counted in small records: a large one costs as much as several."""
        return len(self.places) * self.count * (1 + self.padding_bytes / 8192)


def pick(randomness: Randomness, items: Sequence[T]) -> T:
    return items[min(int(randomness.uniform(0, len(items))), len(items) - 1)]


def some(randomness: Randomness, items: Sequence[T], low: int, high: int) -> list[T]:
    """Return between ``low`` and ``high`` of the items, in a random order."""
    left = list(items)
    count = min(len(left), whole(randomness, low, high))
    return [left.pop(min(int(randomness.uniform(0, len(left))), len(left) - 1)) for _ in range(count)]


def whole(randomness: Randomness, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, both included."""
    return min(high, int(randomness.uniform(low, high + 1)))


class Life:
    """One producer from its start to its end."""

    def __init__(self, randomness: Randomness, places: Sequence[tuple[str, int]]) -> None:
        self._randomness = randomness
        self._places = places
        bursts = _SHORT_LIFE if randomness.uniform(0, 1) < 0.5 else _LONG_LIFE
        self.bursts = whole(randomness, *bursts)
        self.batch_records = pick(randomness, (1, 5, 20))
        """A batch holds so many small records at most: a burst becomes several batches."""
        self.compression = pick(randomness, ("none", "none", "lz4", "zstd", "gzip", "snappy"))

    def burst(self, number: int) -> Burst:
        places = some(self._randomness, self._places, 1, 4)
        if self._randomness.uniform(0, 1) < 0.12:
            return Burst(
                places=places[:2],
                count=whole(self._randomness, 1, 3),
                padding_bytes=whole(self._randomness, LARGE_RECORD_BYTES // 4, LARGE_RECORD_BYTES),
            )
        count = self.batch_records * whole(self._randomness, 6, 8) if number == 0 else whole(self._randomness, 1, 12)
        return Burst(places=places, count=min(count, 60), padding_bytes=whole(self._randomness, 0, 400))
