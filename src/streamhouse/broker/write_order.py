"""The order of one connection's writes, and what it remembers of refused batches (R21).

**What follows a refused batch is refused.** Clients send five batches of an idempotent producer at once. When the
first is refused with a retriable error, or loses its offsets because its leadership ends before the commit, the others
must not be taken before it has come again. The connection remembers which batch of which producer was refused and why,
and its followers get the same error, unless the log knows that all before them is written. All clients then send them
again in order. With the log's own answer, "out of order" (45), librdkafka would bump its epoch, or give up for good. So
45 is the answer only behind a batch with a fault of its own (too large, or damaged): few clients send that one again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from streamhouse.broker.cluster_view import TopicRef
from streamhouse.core.errors import CorruptBatch, StreamHouseError, as_result
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_REMEMBERED_REFUSALS
from streamhouse.metadata.dedup import SEQUENCE_MODULUS
from streamhouse.wire.batch import BatchHeader, read_header
from streamhouse.wire.buffers import BytesLike

REFUSAL_MEMORY_S: Final = 30.0
"""How long followers of a refused batch get its error. A client that has not sent it again by then does not want to."""

Place = PartitionKey | tuple[TopicRef, int]
"""Where a batch goes: a partition; or a topic's name or id as the client gave it, and the partition's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    producer_epoch: int
    base_sequence: int
    """What comes after it is refused."""
    last_sequence: int
    """The last batch that was refused; the memory ends when that one has been taken."""
    error: StreamHouseError
    """It has no traceback and is never raised again: that would keep requests in memory."""
    until_s: float
    """When it does not count any more, by the loop's clock."""


class WriteOrder:
    """The order of one connection's writes. A front end makes one for each connection."""

    __slots__ = ("__weakref__", "_refusals", "gate")

    def __init__(self) -> None:
        self.gate: asyncio.Task[None] | None = None
        """The last write that waits. It is done when the writes behind it may have their offsets."""
        self._refusals: dict[tuple[Place, int], _Refusal] = {}
        """The refusals, by partition and producer id."""

    @property
    def has_refusals(self) -> bool:
        return bool(self._refusals)

    def hold(self, gate: asyncio.Task[None]) -> None:
        self.gate = gate
        gate.add_done_callback(self._release)

    def _release(self, gate: asyncio.Task[None]) -> None:
        if self.gate is gate:
            self.gate = None

    def before(self, place: Place, records: BytesLike) -> StreamHouseError | None:
        """The error of an earlier batch of the same producer that was refused and has not come again."""
        header = _producer_of(records)
        refusal = None if header is None else self._before(place, header)
        return None if refusal is None else refusal.error

    def took(self, place: Place, records: BytesLike) -> None:
        """The batch has its offsets, or has come again: its producer goes on from here."""
        header = _producer_of(records)
        if header is None:
            return
        name = (place, header.producer_id)
        refusal = self._refusals.get(name)
        if refusal is None:
            return
        following = (header.base_sequence + header.record_count) % SEQUENCE_MODULUS
        left = (refusal.last_sequence - following) % SEQUENCE_MODULUS
        if refusal.producer_epoch == header.producer_epoch and left < SEQUENCE_MODULUS // 2:
            # Others behind it were refused too. What the client had sent behind those must not be told of a gap.
            self._refusals[name] = replace(refusal, base_sequence=_later(refusal.base_sequence, following))
        else:
            del self._refusals[name]

    def refused(self, place: Place, records: BytesLike, error: StreamHouseError) -> None:
        """Remember a refused batch. ``error``: what its followers get."""
        header = _producer_of(records)
        if header is not None:
            self._remember(place, header, error)

    def lost(self, place: Place, header: BatchHeader, error: StreamHouseError) -> None:
        """The batch had its offsets, and was refused later: its leadership ended before the commit."""
        if header.has_producer:
            self._remember(place, header, error)

    def _remember(self, place: Place, header: BatchHeader, error: StreamHouseError) -> None:
        name = (place, header.producer_id)
        if (earlier := self._before(place, header)) is not None:
            self._refusals[name] = replace(earlier, last_sequence=_later(earlier.last_sequence, header.base_sequence))
            return
        known, last = self._refusals.get(name), header.base_sequence
        if known is not None and known.producer_epoch == header.producer_epoch:
            last = _later(known.last_sequence, last)
        if known is None:
            self._make_room()
        self._refusals[name] = _Refusal(
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            last_sequence=last,
            error=as_result(error),
            until_s=_now_s() + REFUSAL_MEMORY_S,
        )

    def _make_room(self) -> None:
        now_s = _now_s()
        for name in [name for name, refusal in self._refusals.items() if refusal.until_s <= now_s]:
            del self._refusals[name]
        if len(self._refusals) >= MAX_REMEMBERED_REFUSALS:
            del self._refusals[next(iter(self._refusals))]

    def _before(self, place: Place, header: BatchHeader) -> _Refusal | None:
        """The refusal of an earlier batch of this producer epoch."""
        name = (place, header.producer_id)
        refusal = self._refusals.get(name)
        if refusal is None:
            return None
        if _now_s() >= refusal.until_s:
            del self._refusals[name]
            return None
        behind = (header.base_sequence - refusal.base_sequence) % SEQUENCE_MODULUS
        is_behind = 0 < behind < SEQUENCE_MODULUS // 2
        return refusal if is_behind and refusal.producer_epoch == header.producer_epoch else None


def _producer_of(records: BytesLike) -> BatchHeader | None:
    """The header of an idempotent producer's batch; None for anything else, right or wrong."""
    try:
        header = read_header(records)
    except CorruptBatch:
        return None
    return header if header.has_producer else None


def _later(one: int, other: int) -> int:
    """The later of two sequences of one producer, which are never half the sequence space apart."""
    return other if (other - one) % SEQUENCE_MODULUS < SEQUENCE_MODULUS // 2 else one


def _now_s() -> float:
    return asyncio.get_running_loop().time()
