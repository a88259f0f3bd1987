"""The roles of a storm that look after the log: compactors, vacuum, retention, and verify beside them."""

from __future__ import annotations

import asyncio
from typing import Final

from storm_machines import VACUUM, work_in_small_steps
from storm_scene import COMPACTION, Scene

from streamhouse.core.errors import DamagedObject
from streamhouse.core.randomness import SystemRandomness
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.compactor import Compactor, CompactorOptions
from streamhouse.maintenance.compaction.policy import compacted_logs, small_object_logs
from streamhouse.maintenance.compaction.stats import PassResult
from streamhouse.maintenance.key_compaction.compactor import KeyCompactor, KeyCompactorOptions
from streamhouse.maintenance.key_compaction.key_map import BYTES_PER_KEY
from streamhouse.maintenance.key_compaction.plan import KeyRules
from streamhouse.maintenance.retention.passes import Retention
from streamhouse.maintenance.vacuum.vacuum import Vacuum
from streamhouse.maintenance.verify import Finding, Verifier

KEY_RULES: Final = KeyRules(map_bytes=64 * BYTES_PER_KEY, target_object_bytes=2 << 10)
"""A map of few keys, and small objects: a pass over a log of a storm has several rounds and several items."""


async def compact(scene: Scene, name: str, life: int) -> None:
    """In every other life under a name that all compactors share, so that no claim keeps them apart: safety must not
    depend on claims (S2.13)."""
    work_in_small_steps()
    async with scene.place.opened() as stores:
        compactor = Compactor(
            metadata=stores.metadata,
            store=stores.objects,
            offload=InlineOffload(),
            clock=stores.clock,
            randomness=SystemRandomness(),
            owner="every compactor" if life % 2 else f"{name}-{life}",
            options=CompactorOptions(rules=COMPACTION, claim_ttl_ms=1_000),
        )
        while True:
            result = await compactor.compact_once(small_object_logs(await stores.metadata.list_topics()))
            scene.did("compactions", result.stats.runs)
            _count(scene, name, result)
            await asyncio.sleep(0.05)


async def compact_keys(scene: Scene, life: int) -> None:
    """With little memory for keys, so that a pass takes several rounds; beside the upkeep of the agent."""
    work_in_small_steps()
    async with scene.place.opened() as stores:
        compactor = KeyCompactor(
            metadata=stores.metadata,
            store=stores.objects,
            offload=InlineOffload(),
            clock=stores.clock,
            randomness=SystemRandomness(),
            owner="every key compactor" if life % 2 else f"key-compactor-{life}",
            options=KeyCompactorOptions(rules=KEY_RULES, claim_ttl_ms=1_000),
        )
        while True:
            result = await compactor.compact_once(compacted_logs(await stores.metadata.list_topics()))
            scene.did("key compactions", result.stats.partitions)
            _count(scene, "key compactor", result)
            await asyncio.sleep(0.1)


def _count(scene: Scene, name: str, result: PassResult) -> None:
    scene.did("recovered compactions", result.stats.recovered)
    scene.did("compactions refused", result.stats.conflicts)
    for failure in result.failures:
        if isinstance(failure.error, DamagedObject):
            scene.problem(f"{name}: {failure.key}: {failure.error}")
        scene.did(f"compaction failed: {type(failure.error).__name__}")


async def clean(scene: Scene, life: int) -> None:
    work_in_small_steps()
    async with scene.place.opened() as stores:
        while True:
            summary = await Vacuum(metadata=stores.metadata, objects=stores.objects, options=VACUUM).run()
            scene.did("vacuums")
            scene.did("objects deleted", summary.total.objects)
            scene.did("entries purged", summary.entries_purged)
            scene.did("deletes failed", summary.failed)
            await asyncio.sleep(0.05)


async def retain(scene: Scene, life: int) -> None:
    work_in_small_steps()
    async with scene.place.opened() as stores:
        retention = Retention(metadata=stores.metadata)
        while True:
            summary = await retention.run()
            scene.did("log starts moved", summary.moved)
            for failure in summary.failures:
                scene.problem(f"retention: {failure}")
            await asyncio.sleep(0.1)


async def verify(scene: Scene, life: int) -> None:
    async with scene.place.opened() as stores:
        while True:
            verifier = Verifier(
                metadata=stores.metadata,
                store=stores.objects,
                randomness=SystemRandomness(),
                tell=lambda item: scene.problem(f"verify: {item}") if isinstance(item, Finding) else None,
            )
            await verifier.run()
            scene.did("verifications")
            await asyncio.sleep(0.1)
