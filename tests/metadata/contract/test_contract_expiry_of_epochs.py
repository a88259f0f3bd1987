"""The sweep over the epoch histories: what goes, what stays, and that no answer changes by it (R3, R22)."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from uuid import UUID

import pytest
from builders import TTL_MS, batch, compaction_of
from harness import Backend, LedPartition

from streamhouse.broker.reads import _end_in
from streamhouse.core.errors import InvalidRequest, LimitExceeded
from streamhouse.core.ids import PartitionKey
from streamhouse.core.limits import MAX_ROWS_PER_SWEEP
from streamhouse.log.leased.recovery import foreign_start
from streamhouse.log.reader.reader import EndOffsets
from streamhouse.maintenance.verify.epochs import EpochLine
from streamhouse.metadata.contract import Durability, EpochStart, HistoryPlace, MetadataStore

KEEP_MS = 10 * TTL_MS
A, B, C = (UUID(int=number) for number in (0xA, 0xB, 0xC))


async def sweep(store: MetadataStore, *, keep_ms: int = KEEP_MS, limit: int = 1_000) -> list[int]:
    """One pass over all histories: how many rows each step has dropped."""
    deleted: list[int] = []
    after: HistoryPlace | None = None
    while True:
        found = await store.expire_epochs(keep_ms=keep_ms, limit=limit, after=after)
        deleted.append(found.deleted)
        after = found.after
        if after is None:
            return deleted


async def starts(backend: Backend, key: PartitionKey) -> list[tuple[int, int]]:
    return [(start.epoch, start.start_offset) for start in await backend.store.epoch_history(key)]


async def led_by(backend: Backend, key: PartitionKey, *turns: tuple[UUID, int]) -> LedPartition:
    """One leadership after the other: with this WAL, so many records written. Each lasts as long as a lease."""
    led = LedPartition(backend=backend, key=key, holder=backend.holder(), epoch=0)
    for wal_id, count in turns:
        led.holder = backend.holder(f"agent-{wal_id.int:x}", wal_id=wal_id)
        led.epoch = (await backend.lead(key, led.holder)).epoch
        for _ in range(count):
            await led.append(batch(1))
        await backend.advance(TTL_MS)
    return led


async def test_r22_leaderships_go_once_their_offsets_are_gone(backend: Backend) -> None:
    key = await backend.partition()
    await led_by(backend, key, (A, 10), (B, 10), (A, 10), (B, 10))
    await backend.advance(KEEP_MS)
    assert await sweep(backend.store) == [0], "the log still begins at offset 0"
    await backend.store.advance_log_start(key, 9)
    assert await sweep(backend.store) == [0], "epoch 1 covers offset 9"
    await backend.store.advance_log_start(key, 10)
    assert await sweep(backend.store) == [1]
    await backend.store.advance_log_start(key, 25)
    assert await sweep(backend.store) == [1]
    assert await starts(backend, key) == [(3, 20), (4, 30)]


async def test_r22_a_leadership_stays_for_a_time_after_its_end(backend: Backend) -> None:
    """Until its agent has looked at the frames that its WAL may still hold (R3, R4)."""
    key = await backend.partition()
    await led_by(backend, key, (A, 10))
    await backend.advance(100 * KEEP_MS)
    await led_by(backend, key, (B, 0))
    await backend.store.advance_log_start(key, 10)
    await backend.advance(KEEP_MS - TTL_MS)
    assert await sweep(backend.store) == [0], "epoch 1 began long ago, but it ended when epoch 2 began"
    await backend.advance(1)
    assert await sweep(backend.store) == [1]
    assert await starts(backend, key) == [(2, 10)]


async def test_r22_the_newest_leadership_stays_however_old(backend: Backend) -> None:
    """Without any row, frames of a living partition would be taken for those of a deleted topic."""
    key = await backend.partition()
    await led_by(backend, key, (A, 0), (B, 0), (A, 5))
    await backend.store.advance_log_start(key, 5)
    await backend.advance(1_000 * KEEP_MS)
    assert await sweep(backend.store) == [2]
    assert await sweep(backend.store) == [0]
    assert await starts(backend, key) == [(3, 0)]
    later = await led_by(backend, key, (B, 0))
    assert (later.epoch, await starts(backend, key)) == (4, [(3, 0), (4, 5)])


async def test_r22_an_entry_across_the_log_start_keeps_its_leaderships(backend: Backend) -> None:
    """A compaction has joined two leaderships. Batches below the log start carry the first epoch: verify looks."""
    key = await backend.partition()
    await led_by(backend, key, (A, 2), (B, 2), (A, 2), (B, 0))
    compaction = compaction_of(key, (await backend.entries(key))[:4], backend.object(), backend.ids)
    await backend.store.begin_compaction(compaction)
    await backend.store.apply_compaction(key, compaction.compaction_id)
    await backend.advance(KEEP_MS)
    for offset, gone in ((2, 0), (3, 0), (4, 2), (6, 1)):
        await backend.store.advance_log_start(key, offset)
        assert (offset, await sweep(backend.store)) == (offset, [gone])
    assert await starts(backend, key) == [(4, 6)]


async def test_r22_restarts_that_wrote_nothing_leave_one_row(backend: Backend) -> None:
    """A log that is kept for ever, and an agent that is restarted every day."""
    key = await backend.partition()
    await led_by(backend, key, (A, 5), *[(A, 0)] * 8, (A, 3), *[(A, 0)] * 8)
    await backend.advance(KEEP_MS)
    assert await sweep(backend.store) == [7 + 6]
    assert await starts(backend, key) == [(1, 0), (2, 5), (10, 5), (11, 8), (18, 8)]
    assert await sweep(backend.store) == [0]


async def test_r3_a_leadership_of_another_wal_stays_though_it_wrote_nothing(backend: Backend) -> None:
    """It alone says that what A's WAL held then was written again, or never: without it A would replay that."""
    key = await backend.partition()
    await led_by(backend, key, (A, 5), (B, 0), (A, 0), (C, 0), (C, 0), (A, 0), (A, 0))
    await backend.advance(KEEP_MS)
    await sweep(backend.store)
    history = await backend.store.epoch_history(key)
    assert [start.wal_id for start in history] == [A, B, A, C, A, A]
    assert foreign_start(1, wal_id=A, history=history) == 5
    assert foreign_start(3, wal_id=A, history=history) == 5


@pytest.mark.parametrize("seed", range(6))
async def test_r3_no_answer_about_the_rest_changes(backend: Backend, seed: int) -> None:
    """Random leaderships and log starts: F, the ends of epochs and the epochs of offsets are as before the sweep."""
    dice = random.Random(seed)
    key = await backend.partition()
    turns = [(dice.choice((A, A, B, C)), dice.choice((0, 0, 1, 3))) for _ in range(25)]
    led = await led_by(backend, key, *turns)
    await backend.store.advance_log_start(key, dice.randrange(led.next_offset))
    before = await backend.store.epoch_history(key)
    await backend.advance(dice.choice((KEEP_MS - 10 * TTL_MS, KEEP_MS)))
    gone = sum(await sweep(backend.store, limit=dice.choice((1, 4, 100))))
    after = await backend.store.epoch_history(key)
    assert len(after) == len(before) - gone
    assert gone > 0
    assert after[-1] == before[-1]

    state = await backend.state(key)
    for start in after:
        for wal_id in (A, B, C):
            was = foreign_start(start.epoch, wal_id=wal_id, history=before)
            assert foreign_start(start.epoch, wal_id=wal_id, history=after) == was, (start, wal_id)
    for offset in range(state.log_start_offset, state.high_watermark):
        assert EpochLine(after).at(offset) == EpochLine(before).at(offset)
    ends = EndOffsets(
        log_start_offset=state.log_start_offset,
        high_watermark=state.high_watermark,
        last_stable_offset=state.last_stable_offset,
    )
    for epoch in range(1, after[-1].epoch):
        assert _answer(after, epoch, ends) == _answer(before, epoch, ends), epoch


def _answer(history: list[EpochStart], epoch: int, ends: EndOffsets) -> int:
    """The end of an earlier epoch, as OffsetForLeaderEpoch answers it (Reads.epoch_end)."""
    if epoch < history[0].epoch:
        return ends.log_start_offset
    return _end_in(history, epoch, ends, Durability.OBJECT).end_offset


async def test_r22_a_sweep_goes_in_steps_over_all_partitions(backend: Backend) -> None:
    topic = await backend.topic(partitions=3)
    other = await backend.partition("other")
    for key in (*topic.partition_keys(), other):
        await led_by(backend, key, (A, 0), (B, 0), (A, 0))
    await backend.advance(KEEP_MS)
    assert await sweep(backend.store, limit=5) == [4, 3, 1]
    assert [await starts(backend, key) for key in (*topic.partition_keys(), other)] == [[(3, 0)]] * 4
    assert await sweep(backend.store, limit=1) == [0] * 5
    assert await sweep(backend.store, limit=4) == [0, 0]


async def test_r22_sweeps_at_the_same_time_and_new_leaderships_are_harmless(backend: Backend) -> None:
    keys = (await backend.topic(partitions=4)).partition_keys()
    for key in keys:
        await led_by(backend, key, *[(A, 0)] * 5, (B, 1))
    await backend.advance(KEEP_MS)
    stores = [backend.store, await backend.open_another(), await backend.open_another()]
    holder = dataclasses.replace(backend.holder("agent-9"), wal_id=C)
    *gone, taken = await asyncio.gather(
        *(sweep(store, limit=3) for store in stores), stores[1].acquire_leases(holder, keys, ttl_ms=TTL_MS)
    )
    assert sum(map(sum, gone)) == 4 * 5
    assert [await starts(backend, key) for key in keys] == [[(6, 0), (7, 1)]] * 4
    assert [outcome.lease.epoch for outcome in taken if outcome.lease] == [7] * 4


async def test_r22_a_deleted_topic_s_place_is_still_a_place(backend: Backend) -> None:
    """The cursor may stand on a row that has gone meanwhile."""
    first, second = await backend.partition("first"), await backend.partition("second")
    for key in (first, second):
        await led_by(backend, key, (A, 0), (B, 0))
    await backend.advance(KEEP_MS)
    step = await backend.store.expire_epochs(keep_ms=KEEP_MS, limit=1)
    assert step.after is not None
    await backend.store.delete_topic(step.after.key.topic_id)
    rest = await backend.store.expire_epochs(keep_ms=KEEP_MS, limit=100, after=step.after)
    assert (step.deleted, rest.deleted, rest.after) == (1, 1, None)


async def test_r22_a_sweep_of_histories_has_bounds(backend: Backend) -> None:
    for limit in (0, -1):
        with pytest.raises(InvalidRequest):
            await backend.store.expire_epochs(keep_ms=1, limit=limit)
    with pytest.raises(LimitExceeded):
        await backend.store.expire_epochs(keep_ms=1, limit=MAX_ROWS_PER_SWEEP + 1)
    with pytest.raises(InvalidRequest):
        await backend.store.expire_epochs(keep_ms=-1, limit=1)
