"""Offsets of a log, for every front end: its ends, the record at a time, and the end of an epoch (ListOffsets, R16).

A question is about one partition, and only its leader answers. It waits while the leadership changes (leading.py). The
answer comes from a fresh look at the log, never from memory that may be old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import TopicRef
from streamhouse.broker.leading import Leading
from streamhouse.broker.reads import ANY_EPOCH, NO_EPOCH, NO_OFFSET, EpochEnd, IsolationLevel, Reads
from streamhouse.core.errors import InvalidRequest, StreamHouseError
from streamhouse.core.ids import PartitionKey

__all__ = ["At", "IsolationLevel", "ListedOffset", "LogOffsets", "OffsetQuestion"]

_AT_A_TIME: Final = 50  # partitions looked up side by side: more would only queue at the metadata


class At(IntEnum):
    """What may be asked for instead of a time in milliseconds; the values are Kafka's."""

    LATEST = -1
    """The end of what may be read at the caller's isolation level."""
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    """The first record among those with the largest time."""
    EARLIEST_LOCAL = -4
    """The same as EARLIEST: there is one tier."""
    LATEST_TIERED = -5
    """No offset: there is one tier."""
    EARLIEST_PENDING_UPLOAD = -6
    """No offset, as above."""


_LOWEST: Final = min(At)


class OffsetQuestion(NamedTuple):
    topic: TopicRef
    partition: int
    at: int
    """One of ``At``, or a time in milliseconds: the first record, not batch, with that time or a later one."""
    claimed_epoch: int = ANY_EPOCH


class ListedOffset(NamedTuple):
    """-1 in each field where there is nothing to tell."""

    offset: int = NO_OFFSET
    timestamp_ms: int = -1
    epoch: int = NO_EPOCH
    """The leader epoch of the record at ``offset``; for LATEST, the current one."""


class LogOffsets:
    def __init__(self, reads: Reads, leading: Leading) -> None:
        self._reads = reads
        self._leading = leading

    async def list_offsets(
        self,
        questions: Sequence[OffsetQuestion],
        *,
        caller: Caller,
        isolation: int = IsolationLevel.READ_UNCOMMITTED,
        timeout_ms: int | None = None,
    ) -> list[ListedOffset | StreamHouseError]:
        """One answer for each question. ``timeout_ms`` bounds the wait for leaders of all of them."""
        gate = asyncio.Semaphore(_AT_A_TIME)
        wait = self._leading.begin(caller=caller, timeout_ms=timeout_ms)

        async def one(asked: OffsetQuestion) -> ListedOffset | StreamHouseError:
            async with gate:
                try:
                    if asked.at < _LOWEST:
                        raise InvalidRequest(f"{asked.at} is no time and no place in a log")
                    return await wait.ask(
                        asked.topic, asked.partition, lambda key: self._look_up(key, asked, isolation)
                    )
                except StreamHouseError as error:
                    return error

        return await asyncio.gather(*map(one, questions))

    async def epoch_ends(
        self, questions: Sequence[tuple[TopicRef, int, int, int]], *, caller: Caller
    ) -> list[EpochEnd | StreamHouseError]:
        """``questions``: topic, partition, the leader epoch that the caller knows, the epoch whose end it asks for."""
        wait = self._leading.begin(caller=caller)

        async def one(topic: TopicRef, partition: int, claimed: int, epoch: int) -> EpochEnd | StreamHouseError:
            async def end_of(key: PartitionKey) -> EpochEnd:
                self._reads.leader_epoch(key, claimed)
                return await self._reads.epoch_end(key, epoch)

            try:
                return await wait.ask(topic, partition, end_of)
            except StreamHouseError as error:
                return error

        return [await one(*question) for question in questions]

    async def _look_up(self, key: PartitionKey, asked: OffsetQuestion, isolation: int) -> ListedOffset:
        reads, at = self._reads, asked.at
        epoch = reads.leader_epoch(key, asked.claimed_epoch)
        if at == At.LATEST:
            ends = await reads.ends(key)
            committed = isolation == IsolationLevel.READ_COMMITTED
            return ListedOffset(ends.last_stable_offset if committed else ends.high_watermark, -1, epoch)
        if at in (At.EARLIEST, At.EARLIEST_LOCAL):
            start = (await reads.ends(key)).log_start_offset
            return ListedOffset(start, -1, await reads.epoch_of(key, start))
        if at in (At.LATEST_TIERED, At.EARLIEST_PENDING_UPLOAD):
            return ListedOffset()
        found = await (reads.newest(key) if at == At.MAX_TIMESTAMP else reads.first_at(key, at))
        if found is None:
            return ListedOffset()
        return ListedOffset(found.offset, found.timestamp_ms, await reads.epoch_of(key, found.offset))
