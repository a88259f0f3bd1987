"""A take-over of partitions with many producers: while their pages are loaded, leases are renewed (R22)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fleet import Fleet, Ledger, fleet_story

from streamhouse.core.ids import AppendId, PartitionKey
from streamhouse.core.limits import MAX_PRODUCERS_PER_LOAD
from streamhouse.log.leased.idempotence import Idempotence
from streamhouse.log.leased.producers import ProducerLoader
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    BatchRun,
    EntryKind,
    Holder,
    Lease,
    LeasedSlice,
    ObjectRef,
    ProducerPage,
    Topic,
)
from streamhouse.metadata.sqlite.store import SqliteMetadata

PARTITIONS, PRODUCERS = 4, MAX_PRODUCERS_PER_LOAD
TIMES = {"min_timestamp_ms": 0, "max_timestamp_ms": 0}


class HeldPages:
    """The store, whose pages of producers come one by one, when the test lets them."""

    def __init__(self, store: SqliteMetadata) -> None:
        self._store = store
        self.pages = 0
        self.may_answer = asyncio.Semaphore(0)

    async def load_producers(self, keys: Sequence[PartitionKey], **how: Any) -> dict[PartitionKey, ProducerPage]:
        await self.may_answer.acquire()
        self.pages += 1
        return await self._store.load_producers(keys, **how)


class LoadingOwner(Ledger):
    """An owner that opens a partition as the log does: with its producers."""

    def __init__(self, loader: ProducerLoader) -> None:
        super().__init__()
        self._loader = loader
        self.known: dict[PartitionKey, Idempotence] = {}

    async def gained(self, lease: Lease) -> None:
        if isinstance(lease.key, PartitionKey):
            self.opening.add(lease.key)
            known = Idempotence()
            await self._loader.load(lease.key, known)
            self.known[lease.key] = known
            self.opening.discard(lease.key)
        await super().gained(lease)


async def write_windows(fleet: Fleet, topic: Topic) -> None:
    """Write as a former leader, whose lease is over at once."""
    holder = Holder(agent_id="former", incarnation=fleet.ids.uuid(), wal_id=fleet.ids.uuid())
    run = [
        BatchRun(producer_id=producer, producer_epoch=0, base_sequence=0, record_count=1, byte_length=10, **TIMES)
        for producer in range(PRODUCERS)
    ]
    for key in topic.partition_keys():
        lease = await fleet.store.acquire_partition_lease(key, holder, ttl_ms=1)
        ref = ObjectRef(key=f"objects/{key.partition}", size_bytes=10 * PRODUCERS, created_at_ms=fleet.clock.wall_ms())
        piece = LeasedSlice(
            key=key,
            epoch=lease.epoch,
            base_offset=0,
            object=ref,
            byte_offset=0,
            byte_length=10 * PRODUCERS,
            kind=EntryKind.WAL,
            encoding=KAFKA_BATCHES,
            batches=tuple(run),
        )
        await fleet.store.commit_leased(AppendId(fleet.ids.uuid()), [piece])


def test_r22_leases_are_renewed_while_pages_of_producers_are_held_back() -> None:
    async def story(fleet: Fleet) -> None:
        topic = await fleet.topic(partitions=PARTITIONS)
        await write_windows(fleet, topic)
        held = HeldPages(fleet.store)
        (agent,) = fleet.make("a")
        owner = LoadingOwner(ProducerLoader(held))  # type: ignore[arg-type]
        agent.owner = agent.member._holdings._owner = owner
        await agent.member.start()
        for page in range(PARTITIONS):
            await asyncio.sleep(60)  # ten times as long as a lease lasts
            assert agent.partitions == set()
            assert all(agent.valid(key) for key in topic.partition_keys())
            assert held.pages == page
            held.may_answer.release()
        await fleet.until(lambda: len(agent.partitions) == PARTITIONS)
        assert owner.losses == []
        assert set(agent.owner.open.values()) <= {1, 2}
        assert all(len(known.windows) == PRODUCERS for known in owner.known.values())

    fleet_story(story)
