"""Frames that come back as new records after another agent has led (R4), many at a time.

    frames of partitions opened together ──► one blob ──► a commit for each frame, under the frame's own append id

The id is what keeps a frame from coming back twice, so each has a commit of its own; those of one partition follow each
other. Sent side by side they reach the metadata in any order and are told "not yet" more often than not: measured on
PostgreSQL, that is slower. Which frames come back is decided in recovery.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from streamhouse.core.errors import NotLeader
from streamhouse.core.limits import MIB
from streamhouse.formats.declared_times import declared_times_ms
from streamhouse.log.leased.commit import NOT_YET_TRIES, Committer
from streamhouse.log.leased.held import HeldFrames, in_parts
from streamhouse.log.leased.partition import Chunk, PartitionLog
from streamhouse.log.leased.pending import Pending
from streamhouse.log.leased.recovery import HeldFrame, resubmission_id
from streamhouse.log.leased.waiters import fail
from streamhouse.metadata.contract import BatchRun, LeasedSlice, SliceOutcome, Verdict

_BLOB_BYTES: Final = 32 * MIB  # of all partitions in one blob


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    frame: HeldFrame
    slice: LeasedSlice
    """Its place in the blob; the offset is given when it is sent."""


class Resubmission:
    def __init__(self, *, committer: Committer, held: HeldFrames, wal_id: UUID) -> None:
        self._committer = committer
        self._held = held
        self._wal_id = wal_id
        self._uploads = _SharedUploads(committer)

    async def close(self) -> None:
        await self._uploads.close()

    async def bring_back(self, partition: PartitionLog, frames: Sequence[HeldFrame]) -> int:
        """At the end of the log, in order. Returns how many came; an earlier leadership may have brought the others.

        Raises NotLeader when a commit is refused: what is not in the log by then stays held.
        """
        came = 0
        for part in in_parts(frames):
            for each in await self._upload(partition, await self._held.load(part)):
                outcome = await self._commit(partition, each)
                if outcome.verdict is Verdict.STALE_OBJECT:
                    await self._committer.learn_horizon([partition.key])  # so that the next opening gets through
                if outcome.verdict is not Verdict.COMMITTED:
                    hint = f"resubmitting was {outcome.verdict.value}"
                    raise NotLeader(str(partition), current_leader=None, hint=hint)
                # "Repeated" alone cannot tell an earlier leadership's sending from an earlier one of this very call.
                # The place can: what an earlier leadership brought in lies below where this one began.
                if outcome.base_offset == partition.next_offset:
                    partition.grew_outside(outcome.end_offset + 1)
                    came += 1
                self._held.settle(partition.key, [each.frame])
        return came

    async def _upload(self, partition: PartitionLog, frames: Sequence[HeldFrame]) -> list[_Placed]:
        chunk = Chunk(
            partition=partition,
            batches=[_unplaced(frame) for frame in frames],
            size_bytes=sum(frame.header.size for frame in frames),
        )
        whole = await self._uploads.upload(chunk)
        placed: list[_Placed] = []
        position = whole.byte_offset
        for frame in frames:
            size_bytes = frame.header.size
            piece = replace(whole, byte_offset=position, byte_length=size_bytes, batches=(_run(frame),))
            placed.append(_Placed(frame=frame, slice=piece))
            position += size_bytes
        return placed

    async def _commit(self, partition: PartitionLog, placed: _Placed) -> SliceOutcome:
        append_id = resubmission_id(self._wal_id, placed.frame.lsn)
        slices = [replace(placed.slice, base_offset=partition.next_offset)]
        for tries in range(1, NOT_YET_TRIES + 1):
            (outcome,) = await self._committer.commit_slices(append_id, slices)
            if outcome.verdict is not Verdict.NOT_YET:
                break
            await self._committer.back_off(tries)
        return outcome


class _SharedUploads:
    """Whatever has gathered while the last blob was under way goes into the next: an agent opens many at a time."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._waiting: list[tuple[Chunk, asyncio.Future[LeasedSlice]]] = []
        self._task: asyncio.Task[None] | None = None

    async def upload(self, chunk: Chunk) -> LeasedSlice:
        """Returns where it lies; the batches follow each other there without gaps."""
        future: asyncio.Future[LeasedSlice] = asyncio.get_running_loop().create_future()
        self._waiting.append((chunk, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="resubmission-uploads")
        return await future

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        await asyncio.sleep(0)  # for those that are opened in the same turn
        while taken := self._take():
            try:
                await self._upload(taken)
            except Exception as error:  # each opening has to decide for itself
                for _, future in taken:
                    fail(future, error)

    def _take(self) -> list[tuple[Chunk, asyncio.Future[LeasedSlice]]]:
        """Up to a blob's worth, at least one; not those whose opening was cut short."""
        waiting = [each for each in self._waiting if not each[1].done()]
        size = count = 0
        for chunk, _ in waiting:
            size += chunk.size_bytes
            if count and size > _BLOB_BYTES:
                break
            count += 1
        self._waiting = waiting[count:]
        return waiting[:count]

    async def _upload(self, taken: Sequence[tuple[Chunk, asyncio.Future[LeasedSlice]]]) -> None:
        futures = {id(chunk): future for chunk, future in taken}
        created_ms = await self._committer.stamps.now_ms()
        for packed in await self._committer.pack([], [chunk for chunk, _ in taken], created_ms=created_ms):
            await self._committer.put(packed)
            for placed in packed.placed:
                future = futures[id(placed.chunk)]
                if not future.done():
                    future.set_result(placed.slice)


def _unplaced(frame: HeldFrame) -> Pending:
    """For packing: a blob's batches have no offsets of their own, so nothing is copied or patched."""
    assert frame.batch is not None, "it was loaded"
    return Pending(
        base_offset=frame.base_offset,
        next_offset=frame.next_offset,
        data=memoryview(frame.batch),
        header=frame.header,
        lsn=frame.lsn,
        acks=frame.acks,
        appended_ms=0,
        timestamp_ms=frame.timestamp_ms,
        waits_for_commit=False,
        done=None,
    )


def _run(frame: HeldFrame) -> BatchRun:
    """Of a batch without producer id, as all are that come back."""
    smallest_ms, largest_ms = declared_times_ms(frame.header)
    return BatchRun(
        record_count=frame.header.record_count,
        byte_length=frame.header.size,
        min_timestamp_ms=smallest_ms,
        max_timestamp_ms=largest_ms,
    )
