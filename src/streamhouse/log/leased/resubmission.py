"""Writes held frames again as new records after another agent has led (R4), many at a time.

    frames of partitions opened together ──► one blob ──► a commit for each frame, under the frame's own append id

The id keeps a frame from being written twice, so each frame has a commit of its own. The commits of one partition are
sent one after the other. Sent at the same time, they reach the metadata store in any order and mostly get "not yet",
which is slower (measured on PostgreSQL). recovery.py decides which frames are written again.
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
from streamhouse.log.leased.commit import NOT_YET_TRIES, Committer
from streamhouse.log.leased.held import HeldFrames, in_parts
from streamhouse.log.leased.partition import Chunk, PartitionLog
from streamhouse.log.leased.pending import PendingBatch, fail, run_of
from streamhouse.log.leased.recovery import HeldFrame, resubmission_id
from streamhouse.metadata.contract import LeasedSlice, SliceOutcome, Verdict

_BLOB_BYTES: Final = 32 * MIB  # of all partitions in one blob


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    frame: HeldFrame
    slice: LeasedSlice
    """Its place in the blob. The commit sets its offset."""


class Resubmission:
    def __init__(self, *, committer: Committer, held: HeldFrames, wal_id: UUID) -> None:
        self._committer = committer
        self._held = held
        self._wal_id = wal_id
        self._uploads = _SharedUploads(committer)

    async def close(self) -> None:
        await self._uploads.close()

    async def run(self, partition: PartitionLog, frames: Sequence[HeldFrame]) -> int:
        """Append the frames, in order. Returns how many were new; an earlier leadership may have written the others.

        Raises NotLeader when a commit is refused: the frames that are not in the log then stay held.
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
                # A repeat was written by an earlier leadership or by an earlier try of this call. The offset tells:
                # what an earlier leadership wrote lies below the offset where this one began.
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
            piece = replace(whole, byte_offset=position, byte_length=size_bytes, batches=(run_of(frame.header),))
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
    """Chunks that arrive while one blob is uploaded share the next blob: an agent opens many partitions at a time."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._waiting: list[tuple[Chunk, asyncio.Future[LeasedSlice]]] = []
        self._task: asyncio.Task[None] | None = None

    async def upload(self, chunk: Chunk) -> LeasedSlice:
        """Returns the place of the chunk in the blob; its batches follow each other there without gaps."""
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
        await asyncio.sleep(0)  # so that partitions opened in the same turn of the loop share a blob
        while taken := self._take():
            try:
                await self._upload(taken)
            except Exception as error:  # each opening handles it
                for _, future in taken:
                    fail(future, error)

    def _take(self) -> list[tuple[Chunk, asyncio.Future[LeasedSlice]]]:
        """Up to a full blob, at least one chunk; without those whose opening was cancelled."""
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


def _unplaced(frame: HeldFrame) -> PendingBatch:
    """For packing. Batches in a blob have no offsets of their own, so nothing is copied or patched."""
    assert frame.batch is not None, "it was loaded"
    return PendingBatch(
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
