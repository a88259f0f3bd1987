"""Two stories that several files tell from: a lease handed over, and a Spark query writing into a topic."""

from __future__ import annotations

import dataclasses
from uuid import UUID

from builders import TTL_MS, intent, intent_slice
from harness import Backend, LedPartition

from streamhouse.metadata.contract import (
    HeldLease,
    Holder,
    Intent,
    IntentKey,
    IntentVerdict,
    Lease,
    LeaseKey,
    SlotKey,
    Topic,
    Transfer,
    TransferState,
    Verdict,
)

TIMEOUT_MS = 10_000
LIVENESS_MS = 60_000


@dataclasses.dataclass(slots=True, kw_only=True)
class Handover:
    """A lease of ``sender`` on its way to ``target``, both registered."""

    backend: Backend
    key: LeaseKey
    epoch: int
    sender: Holder
    target: Holder
    transfer_id: UUID

    async def initiate(self, transfer_id: UUID | None = None) -> Transfer:
        return await self.backend.store.initiate_transfer(
            transfer_id or self.transfer_id,
            HeldLease(key=self.key, epoch=self.epoch),
            holder=self.sender,
            to_agent=self.target.agent_id,
            timeout_ms=TIMEOUT_MS,
        )

    async def accept(self) -> Transfer:
        return await self.backend.store.accept_transfer(self.transfer_id, target=self.target)

    async def complete(self, next_offset: int = 0, *, holder: Holder | None = None) -> Lease:
        return await self.backend.store.complete_transfer(
            self.transfer_id,
            holder=holder or self.sender,
            next_offset=next_offset,
            ttl_ms=TTL_MS,
            liveness_timeout_ms=LIVENESS_MS,
        )

    async def state(self) -> TransferState:
        (found,) = [
            one
            for one in await self.backend.store.list_transfers(open_only=False)
            if one.transfer_id == self.transfer_id
        ]
        return found.state


async def handover(backend: Backend, led: LedPartition | SlotKey | None = None) -> Handover:
    sender, target = backend.holder("sender"), backend.holder("target")
    await backend.register(sender)
    await backend.register(target)
    if isinstance(led, SlotKey):
        key: LeaseKey = led
        epoch = (await backend.lead(led, sender)).epoch
    else:
        one = led or await backend.led(holder=sender)
        key, epoch, sender = one.key, one.epoch, one.holder
    return Handover(backend=backend, key=key, epoch=epoch, sender=sender, target=target, transfer_id=backend.uuid())


@dataclasses.dataclass(slots=True, kw_only=True)
class Sink:
    """A query writing into a topic whose partitions ``epoch`` leads."""

    backend: Backend
    topic: Topic
    epoch: int = 1
    query_id: str = "query"

    def key(self, batch_id: int = 0) -> IntentKey:
        return IntentKey(query_id=self.query_id, topic_id=self.topic.topic_id, batch_id=batch_id)

    def manifest(self, batch_id: int = 0, *partitions: int, count: int = 2) -> Intent:
        """Fresh uploads for these partitions (0 and 1)."""
        slices = [intent_slice(one, self.backend.object(), count) for one in partitions or (0, 1)]
        return intent(self.key(batch_id), *slices)

    async def register(self, manifest: Intent) -> IntentVerdict:
        return (await self.backend.store.register_intent(manifest)).verdict

    async def adopt_all(self, batch_id: int = 0) -> None:
        """Every partition's leader adopts its share at its watermark."""
        found = await self.backend.store.get_intent(self.key(batch_id))
        assert found is not None
        for partition in sorted({piece.partition for piece in found.slices}):
            base = await self.backend.watermark(self.topic.partition_keys()[partition])
            outcome = await self.backend.store.adopt_intent(
                self.key(batch_id), partition, epoch=self.epoch, base_offset=base
            )
            assert outcome.verdict is Verdict.COMMITTED


async def sink(backend: Backend, name: str = "orders", partitions: int = 2) -> Sink:
    topic = await backend.topic(name, partitions=partitions)
    await backend.store.acquire_leases(backend.holder(), topic.partition_keys(), ttl_ms=TTL_MS)
    return Sink(backend=backend, topic=topic)
