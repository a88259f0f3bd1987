"""The role of a storm that is a whole agent: it leads, flushes, and does all upkeep of its partitions by itself.

It shares the cluster with the writers that lead by hand; their topics are of an agent group of their own. Settings let
upkeep run once in minutes and hours, and a life here has seconds: so upkeep's options are replaced.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any, Final

from storm_history import History
from storm_keyed import keyed_record
from storm_machines import VACUUM, hash_of, work_in_small_steps
from storm_maintainers import KEY_RULES
from storm_mutants import put_in
from storm_place import StormPlace
from storm_scene import AGENT_KEPT, AGENT_TRIMMED, COMPACTION, KEYED, Scene

from streamhouse.app import log_parts, stores
from streamhouse.app.platform import StreamHouse
from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.compaction.compactor import CompactorOptions
from streamhouse.maintenance.key_compaction.compactor import KeyCompactorOptions
from streamhouse.maintenance.upkeep import Upkeep, UpkeepOptions
from streamhouse.metadata.contract import Topic
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.objectstore.opening import open_store
from streamhouse.wire.records import Record

UPKEEP: Final = UpkeepOptions(
    retention_interval_ms=500,
    compaction_interval_ms=300,
    vacuum_interval_ms=1_000,
    compactor=CompactorOptions(rules=COMPACTION, max_parallel_items=1, claim_ttl_ms=1_000),
    key_compactor=KeyCompactorOptions(rules=KEY_RULES, claim_ttl_ms=1_000),
    vacuum=VACUUM,
)
_COUNT_S: Final = 0.3
_TIMEOUT_MS: Final = 10_000


async def run_agent(scene: Scene, life: int) -> None:
    """An agent of a fleet that writes to its own partitions, each write written down before and after its answer."""
    work_in_small_steps()
    put_in(log_parts, "upkeep_options", lambda settings: UPKEEP)
    put_in(stores, "open_store", _open_store)
    rng = random.Random(hash_of(f"{scene.seed} agent {life}"))
    history = scene.history(f"agent.{life}")
    async with StreamHouse.open(clock=scene.place.clock, **_settings(scene.place)) as sh:
        works = [_count_upkeep(scene, sh.agent.upkeep), _until_fatal(sh)]
        for name in (AGENT_KEPT, AGENT_TRIMMED, KEYED):
            topic = await sh.stores.metadata.get_topic(name)
            works += [_write(scene, sh, topic, key, history, rng) for key in topic.partition_keys()]
        ended, _ = await asyncio.wait(map(asyncio.ensure_future, works), return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # raises: none of them returns


def _settings(place: StormPlace) -> dict[str, Any]:
    """Data and metadata lie apart, so it is an agent of a fleet, on SQLite too. Its leases end whenever time is let
    pass, so it looks for them often."""
    chosen: dict[str, Any] = {
        "data_dir": str(place.directory / "agent"),
        "metadata_url": place.dsn or f"sqlite://{place.database}",
        "durability": "object",
        "kafka_enabled": False,
        "admin_enabled": False,
        "agent_id": "agent",
        "agent_heartbeat_interval": "300ms",
        "lease_renew_interval": "300ms",
        "assigner_interval": "300ms",
    }
    if place.s3 is None:
        return chosen | {"store_url": f"file://{place.directory / 'objects'}"}
    return chosen | {
        "store_url": f"s3://{place.s3.bucket}/storm",
        "store_endpoint_url": place.s3.endpoint_url,
        "store_region": place.s3.region,
        "store_access_key_id": place.s3.access_key,
        "store_secret_access_key": place.s3.secret_key,
    }


async def _open_store(url: str, **named: Any) -> ObjectStore:
    """Files have the machine's time. By the storm's, others' uploads would look like remains of dead processes."""
    return await open_store(url, **{**named, "clock": SystemClock()})


async def _until_fatal(sh: StreamHouse) -> None:
    raise await sh.wait_fatal()


async def _count_upkeep(scene: Scene, upkeep: Upkeep | None) -> None:
    assert upkeep is not None
    told: Counter[str] = Counter()
    while True:
        await asyncio.sleep(_COUNT_S)
        stats = upkeep.stats
        now = Counter(
            {
                "upkeep: retention passes": stats.retention_passes,
                "upkeep: entries trimmed": stats.retention_entries,
                "upkeep: compactions": upkeep.compactor.stats.runs,
                "upkeep: key compactions": upkeep.key_compactor.stats.partitions,
                "upkeep: vacuums": stats.vacuum_passes,
                "upkeep: objects deleted": stats.vacuum_objects,
                "upkeep: failed passes": stats.failed_passes,
            }
        )
        for what, count in (now - told).items():
            scene.did(what, count)
        told = now


async def _write(
    scene: Scene, sh: StreamHouse, topic: Topic, key: PartitionKey, history: History, rng: random.Random
) -> None:
    while True:
        values = history.send(rng.randint(1, 5))
        now_ms = sh.clock.wall_ms()
        records = [
            keyed_record(value, now_ms) if topic.name == KEYED else Record(value=value.encode(), timestamp_ms=now_ms)
            for value in values
        ]
        try:
            produced = await sh.produce_batch(topic.name, key.partition, records, timeout_ms=_TIMEOUT_MS)
        except StreamHouseError as error:  # its leases have ended, for time was let pass
            scene.did(f"the agent refused: {type(error).__name__}")
            await asyncio.sleep(0.1)
            continue
        history.acknowledged(key, produced.offset, values)
        scene.did("appends to the agent")
        await asyncio.sleep(rng.uniform(0, 0.2))
