"""Finds the newest record of each key among many tasks: which bytes go through a shuffle, and what follows. Pure.

    record  ──►  hash of its key, 16 bytes, and its offset, 8 bytes: a pair
    pairs   ──►  the bucket of their hash, where the highest offset of each hash is the record that stays
    offsets ──►  the item of their offset, which keeps the records at these offsets and no others

Keys and values stay where they are. All tasks hash under one secret, so that a key has one bucket, and no one can
construct keys that crowd a bucket.

**What is lost on the way must not look like a record that is superseded.** So everyone who sends pairs or offsets also
says, at the end, how many: to each bucket, and to each item. The number that came must be the same, and each offset
that came must be that of a record with a key (``KeptOffsets.check``). Otherwise the item fails, and nothing is dropped.
Pairs may come twice, for example because a range was read again: the highest offset stays the highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from streamhouse.core.errors import PassIncomplete
from streamhouse.maintenance.key_compaction.key_loops import loops
from streamhouse.wire.record_keys import RecordKeys

WINDOW_PAIRS: Final = 512 * 1024
"""Pairs that a task sorts at a time, to send one of each key: 12 MiB, and three times that while they are sorted."""
_BLOCK_OFFSETS: Final = 128 * 1024
_HASH_BYTES: Final = 16
_PAIR_BYTES: Final = 24

Numbers = np.ndarray[Any, np.dtype[Any]]
Message = tuple[int, int, int, bytes]
"""Kind, sender, count, bytes: plain values, which Spark unpickles before StreamHouse can be imported."""


class MessageKind:
    """A message's kind: plain numbers too."""

    BLOCK: Final = 0
    """Pairs, or offsets in their order; ``count`` of them."""
    END: Final = 1
    """The sender has sent ``count`` pairs or offsets to this receiver, and sends no more."""
    REPORT: Final = 2
    """A pickle for the driver, on its way with the pairs."""
    ERROR: Final = 3
    """The pickle of the error that the sender ended with."""


class KeyPairs:
    """The pairs of records, by bucket. ``put_all`` until it is full, then ``take``, and ``take`` at the end."""

    def __init__(self, *, secret: bytes, buckets: int, window_pairs: int = WINDOW_PAIRS) -> None:
        self.sent = [0] * buckets
        """How many pairs each bucket was sent."""
        self._secret = secret
        self._window_pairs = window_pairs
        self._hashes: list[Numbers] = []
        self._offsets: list[Numbers] = []
        self._count = 0

    @property
    def is_full(self) -> bool:
        return self._count >= self._window_pairs

    def put_all(self, records: RecordKeys) -> None:
        """Records without a key are passed over."""
        hashes = np.frombuffer(loops.hash_keys(self._secret, records.keys, records.bounds), np.uint64).reshape(-1, 2)
        has_key = np.frombuffer(records.without_key, np.uint8) == 0
        self._hashes.append(hashes[has_key])
        self._offsets.append(np.frombuffer(records.offsets, np.int64)[has_key])
        self._count += len(self._offsets[-1])

    def take(self, sender: int) -> Iterator[tuple[int, Message]]:
        """Pairs of bucket and block: of each key that was put since the last call, the newest."""
        if not self._count:
            return
        hashes, offsets = np.concatenate(self._hashes), np.concatenate(self._offsets)
        self._hashes, self._offsets, self._count = [], [], 0
        buckets = hashes[:, 1] % np.uint64(len(self.sent))
        order = np.lexsort((offsets, hashes[:, 0], hashes[:, 1], buckets))
        hashes, offsets, buckets = hashes[order], offsets[order], buckets[order]
        newest = np.ones(len(offsets), bool)
        newest[:-1] = (hashes[1:] != hashes[:-1]).any(axis=1)
        hashes, offsets, buckets = hashes[newest], offsets[newest], buckets[newest]
        bounds = np.searchsorted(buckets, np.arange(len(self.sent) + 1, dtype=np.uint64))
        for bucket, (begin, end) in enumerate(pairwise(bounds)):
            count = int(end - begin)
            if count:
                self.sent[bucket] += count
                yield (
                    bucket,
                    (MessageKind.BLOCK, sender, count, hashes[begin:end].tobytes() + offsets[begin:end].tobytes()),
                )


@dataclass(slots=True)
class Heard:
    """What came from all senders, besides the blocks."""

    reports: list[bytes] = field(default_factory=list)
    error: bytes | None = None
    _counts: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)

    def blocks(self, messages: Iterable[Message]) -> Iterator[tuple[int, bytes]]:
        """The blocks among the messages, with the numbers of their pairs or offsets."""
        for kind, sender, count, block in messages:
            if kind == MessageKind.BLOCK:
                self._counts[sender] = self._counts.get(sender, 0) + count
                yield count, block
            elif kind == MessageKind.END:
                self._ends[sender] = count
            elif kind == MessageKind.REPORT:
                self.reports.append(block)
            else:
                self.error = block

    def check(self, senders: int) -> None:
        """Raises PassIncomplete unless each of the senders came to its end, and all that it sent has come."""
        if self._ends.keys() != set(range(senders)) or any(
            self._counts.get(sender, 0) != count for sender, count in self._ends.items()
        ):
            raise PassIncomplete(
                f"the shuffle brought {sum(self._counts.values())} of {sum(self._ends.values())} pairs or offsets, of"
                f" {len(self._ends)} senders out of {senders}"
            )


def newest_offsets(blocks: Iterable[tuple[int, bytes]], max_keys: int) -> Numbers:
    """The highest offset of each hash in one bucket, sorted. Raises PassIncomplete if ``max_keys`` do not suffice."""
    slots = loops.KeySlots(max_keys, 0, 1)
    for count, block in blocks:
        view = memoryview(block)
        hashes_end = count * _HASH_BYTES
        if len(view) != count * _PAIR_BYTES:
            raise PassIncomplete(f"the shuffle brought {len(view)} bytes for {count} pairs")
        if not slots.put(view[:hashes_end], view[hashes_end:], bytes(count)):
            raise PassIncomplete(f"one bucket of the shuffle has more than {max_keys} keys")
    found = np.fromiter(slots.newest_offsets(), np.int64, count=len(slots))
    found.sort()
    return found


def offsets_by_item(offsets: Numbers, item_ends: Sequence[int], sender: int) -> Iterator[tuple[int, Message]]:
    """Pairs of item and block. ``item_ends``: the last offset of each item, in their order. Raises PassIncomplete."""
    bounds = [0, *np.searchsorted(offsets, np.array(item_ends, np.int64), side="right").tolist()]
    if bounds[-1] != len(offsets):
        raise PassIncomplete(f"the shuffle brought offset {offsets[-1]}, and the last item ends at {item_ends[-1]}")
    for item, (begin, end) in enumerate(pairwise(bounds)):
        for at in range(begin, end, _BLOCK_OFFSETS):
            block = offsets[at : min(at + _BLOCK_OFFSETS, end)]
            yield item, (MessageKind.BLOCK, sender, len(block), block.tobytes())
        yield item, (MessageKind.END, sender, end - begin, b"")


class KeptOffsets:
    """Says which records of an item are superseded: those at no offset that came. Eight bytes for each that stays."""

    def __init__(self, blocks: Iterable[tuple[int, bytes]]) -> None:
        self._kept = np.concatenate([np.empty(0, np.int64), *(np.frombuffer(block, np.int64) for _, block in blocks)])
        self._kept.sort()
        self._found = 0

    def read_again(self) -> KeptOffsets:
        """The same, for another reading of the item."""
        again = KeptOffsets(())
        again._kept = self._kept
        return again

    def superseded(self, records: RecordKeys) -> bytes:
        offsets = np.frombuffer(records.offsets, np.int64)
        places = np.searchsorted(self._kept, offsets)
        stays = np.zeros(len(offsets), bool)
        inside = places < len(self._kept)
        stays[inside] = self._kept[places[inside]] == offsets[inside]
        self._found += int(stays.sum())
        return np.logical_not(stays).tobytes()

    def check(self) -> None:
        """Raises PassIncomplete unless each offset was that of a record."""
        if self._found != len(self._kept):
            raise PassIncomplete(
                f"{self._found} records stay, and the shuffle brought the offsets of {len(self._kept)}"
            )
