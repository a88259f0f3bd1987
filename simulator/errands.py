"""What operators and maintenance do while others write: recreate topics, trim logs, vacuum objects, ask for flushes."""

from __future__ import annotations

import asyncio
from typing import Final

from simulator.history import Key
from simulator.metadata import remote_metadata
from simulator.network import Weather
from simulator.scenario import PRODUCER_IDLE_MS, Errand
from simulator.world import World, key_of
from streamhouse.core.errors import StreamHouseError
from streamhouse.metadata.contract import MetadataStore, PartitionState
from streamhouse.objectstore.keys import parse

ORPHAN_AGE_MS: Final = 300
"""Objects younger than this are kept: less than a stalled writer may take, so that R6 is needed."""
_GRACE_MS: Final = 300
_FLUSH_TTL_MS: Final = 5000


class Errands:
    def __init__(self, world: World) -> None:
        self.world = world
        self.dice = world.dice.child("errands")
        self.lane = world.loop.lane("errands")
        self.raises_horizon = True
        self.keep_commits_ms = 2 * world.scenario.leased.resubmit_max_age_ms
        """R5, R6: longer than anything that may be committed again."""
        self.producer_idle_ms = PRODUCER_IDLE_MS
        self._metadata: MetadataStore = remote_metadata(
            world.metadata, world.loop, self.dice.child("link"), Weather(), name="maintenance"
        )

    async def run(self) -> None:
        if not self.world.scenario.errands:
            return
        while not self.world.over:
            await asyncio.sleep(self.dice.uniform(0.2, 1.5))
            errand = self.dice.pick(self.world.scenario.errands)
            self.world.note(f"errand: {errand}")
            try:
                await self._do(errand)
            except StreamHouseError as error:
                self.world.note(f"errand failed: {error}")

    async def _do(self, errand: Errand) -> None:
        match errand:
            case Errand.RECREATE_TOPIC:
                await self._recreate_topic()
            case Errand.TRIM:
                await self._trim()
            case Errand.VACUUM:
                await self.vacuum()
            case Errand.FLUSH:
                await self._flush()
            case Errand.EXPIRE_COMMITS:
                await self._metadata.expire_commits(keep_ms=self.keep_commits_ms, limit=1000)
            case Errand.EXPIRE_PRODUCERS:
                self.world.forgets_producers = True
                await self._metadata.expire_producers(idle_ms=self.producer_idle_ms, limit=1000)

    async def _recreate_topic(self) -> None:
        """Recreate a topic. Producers see one instant: they know the new id as soon as the old topic is gone."""
        name = self.dice.pick(sorted(self.world.topics))
        old = self.world.topics[name]
        await self.world.sqlite.delete_topic(old.topic_id)
        await self.world.create_topic(name, old.partition_count)

    async def _flush(self) -> None:
        """Ask for a flush as Spark does. Afterwards all that was acknowledged is in objects, unless leaders changed."""
        request_id, asked_ms, keys = self.dice.uuid(), self.world.now_ms(), self.world.keys()
        await self._metadata.request_flush(request_id, keys, ttl_ms=_FLUSH_TTL_MS)
        while self.world.now_ms() < asked_ms + _FLUSH_TTL_MS / 2:
            await asyncio.sleep(0.1)
            if not await self._metadata.pending_flush(request_id):
                states = await self._metadata.get_partitions(keys)
                self._check_flushed(asked_ms, {key_of(state.key): state for state in states})
                return

    def _check_flushed(self, asked_ms: float, states: dict[Key, PartitionState]) -> None:
        if self.world.lost_commits:
            return
        for write in self.world.history.writes:
            state = states.get(write.key)
            if state is None or write.acked_ms is None or write.base_offset is None or write.acked_ms >= asked_ms:
                continue
            still_leads = write.epoch == state.leader_epoch or self.world.history.wal_is_durable
            if still_leads and write.base_offset >= state.high_watermark:
                self.world.problem(
                    f"a flush asked for at {asked_ms:.0f} ms is done, but {write.values[0]!r}, acknowledged at"
                    f" {write.base_offset}, is beyond the watermark {state.high_watermark}"
                )
                return

    async def _trim(self) -> None:
        key = self.dice.pick(self.world.keys())
        (state,) = await self._metadata.get_partitions([key])
        offset = self.dice.between(0, state.high_watermark)
        self.world.remember_trimmed(key, offset)
        after = await self.world.sqlite.advance_log_start(key, offset)
        self.world.log_starts[key] = after.log_start_offset
        self.world.operator_was_here()

    async def vacuum(self) -> None:
        """R6, R7 and R24: list, raise the horizon, ask what nothing names, delete, forget."""
        store_ms = await self._metadata.now_ms()
        listed = [info.key async for info in self.world.objects.list()]
        stamps = {name: key.created_ms for name in listed if (key := parse(name)) is not None}
        if self.raises_horizon:
            await self._metadata.raise_gc_horizon(store_ms - ORPHAN_AGE_MS)
        orphans = await self._metadata.find_unreferenced(stamps)
        await self.world.objects.delete(sorted(orphans))
        gone = [each.key for each in await self._metadata.list_dereferenced(grace_ms=_GRACE_MS, limit=1000)]
        await self.world.objects.delete(gone)
        await self._metadata.forget_objects(gone)
        await self._metadata.purge_deleted_topics(limit=1000)
        self.world.note(f"vacuum: {len(orphans)} orphans, {len(gone)} dereferenced")
