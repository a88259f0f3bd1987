"""What `streamhouse demo` shows, in one process: three agents in three zones; one dies, one leaves, nothing is lost.

Real agents on the configured metadata and object store, each with a WAL of its own; only the network between them and
their clients is missing, because they live in one process. Tells what happens step by step through ``tell``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from streamhouse.app.agent import Agent, AgentIdentity
from streamhouse.app.demo import DEMO_TOPICS, demo_records
from streamhouse.app.stores import Stores, open_stores
from streamhouse.broker.caller import Caller
from streamhouse.broker.fetch import PlainWanted
from streamhouse.broker.produce import WriteOrder
from streamhouse.broker.reads import ReadResult
from streamhouse.broker.topics import WantedTopic
from streamhouse.core.clock import Clock
from streamhouse.core.errors import CorruptData, NotLeader, TopicExists
from streamhouse.core.ids import PartitionKey
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import Settings
from streamhouse.metadata.contract import KAFKA_LISTENER, Lease, ScanRange, Topic
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record, build_batch, decode_records

ZONES: Final = ("us-east-1a", "us-east-1b", "us-east-1c")
_LONGEST_S: Final = 120.0
"""The longest anything here may take: a death is noticed after a liveness timeout, a minute by default."""
_LOOK_S: Final = 0.05
_WRITE_TIMEOUT_MS: Final = 30_000
_READ_BYTES: Final = 1 << 20
_CALLER: Final = Caller(protocol="python", client_id="story")

Cell = str | int
Tell = Callable[[str, Sequence[str], Sequence[Sequence[Cell]]], None]
"""A heading, columns, rows."""
Written = dict[PartitionKey, list[Record]]
"""What was acknowledged, in order, with the offset that each record got."""


@dataclass(slots=True, kw_only=True)
class Actor:
    agent: Agent
    agent_id: str


async def tell_story(settings: Settings, *, clock: Clock, randomness: Randomness, tell: Tell) -> None:
    """Raises CorruptData if what is read back in the end is not what was acknowledged."""
    async with _stage(settings, clock=clock, randomness=randomness) as (stores, actors):
        topics = [await _topic(actors[0], demo.name, demo.partition_count) for demo in DEMO_TOPICS]
        keys = [key for topic in topics for key in topic.partition_keys()]
        await _shared_out(actors)
        await _all_led(actors, keys)
        await _tell_agents(stores, tell)
        await _tell_leases(stores, tell, "Three agents share nine partitions")

        written: Written = {}
        await _write(actors, topics, written, clock)
        await _tell_watermarks(stores, topics, tell)

        dead = actors.pop(0)
        started_ms = clock.boot_ms()
        await dead.agent.stop(graceful=False)
        await _all_led(actors, keys)
        waited_s = (clock.boot_ms() - started_ms) / 1000
        await _tell_leases(stores, tell, f"{dead.agent_id} died; the others took over after {waited_s:.1f} s")
        await _write(actors, topics, written, clock)

        leaving = actors.pop(0)
        started_ms = clock.boot_ms()
        await leaving.agent.stop()
        await _all_led(actors, keys)
        waited_s = (clock.boot_ms() - started_ms) / 1000
        await _tell_leases(stores, tell, f"{leaving.agent_id} left in order; handed over within {waited_s:.1f} s")
        await _write(actors, topics, written, clock)

        await _check(actors, written)
        await _tell_segments(stores, topics, tell)


@asynccontextmanager
async def _stage(
    settings: Settings, *, clock: Clock, randomness: Randomness
) -> AsyncIterator[tuple[Stores, list[Actor]]]:
    def nothing_to_save(error: Exception) -> None:
        raise error

    async with AsyncExitStack() as stack:
        stores = await stack.enter_async_context(open_stores(settings, clock=clock, randomness=randomness))
        actors: list[Actor] = []
        for number, zone in enumerate(ZONES, start=1):
            agent_id = f"agent-{zone}"
            agent = await Agent.start(
                settings,
                stores,
                identity=AgentIdentity(agent_id=agent_id, address=f"10.0.{number}.5:9090", zone=zone),
                wal_dir=Path(settings.wal.dir) / agent_id,
                clock=clock,
                randomness=randomness,
                on_fatal=nothing_to_save,
            )
            stack.push_async_callback(agent.stop)
            actors.append(Actor(agent=agent, agent_id=agent_id))
        yield stores, actors


async def _topic(actor: Actor, name: str, partition_count: int) -> Topic:
    admin = actor.agent.broker.topics
    try:
        wanted = WantedTopic(name=name, partition_count=partition_count, configs={})
        return await admin.create(wanted, caller=_CALLER)
    except TopicExists:
        return await admin.fresh(name, caller=_CALLER)


async def _all_led(actors: Sequence[Actor], keys: Sequence[PartitionKey]) -> None:
    async with asyncio.timeout(_LONGEST_S):
        while not all(_leader(actors, key) for key in keys):  # noqa: ASYNC110 -- several logs, no event of all of them
            await asyncio.sleep(_LOOK_S)


async def _shared_out(actors: Sequence[Actor]) -> None:
    """Return when every agent sees all others, and holds what the ring gives to it."""
    async with asyncio.timeout(_LONGEST_S):
        while not all(_has_its_share(actor, len(actors)) for actor in actors):  # noqa: ASYNC110 -- as above
            await asyncio.sleep(_LOOK_S)


def _has_its_share(actor: Actor, agents: int) -> bool:
    view = actor.agent.member.describe()
    return len(view.live_agents) == agents and len(view.leases) == view.wanted and not view.handing_over


def _leader(actors: Sequence[Actor], key: PartitionKey) -> Actor | None:
    return next((actor for actor in actors if key in actor.agent.log.led_keys()), None)


async def _write(actors: Sequence[Actor], topics: Sequence[Topic], written: Written, clock: Clock) -> None:
    """A hundred records to every partition, acks=all: each is in an object and committed before this returns."""
    for topic, demo in zip(topics, DEMO_TOPICS, strict=True):
        for key in topic.partition_keys():
            records = demo_records(demo, key.partition, now_ms=clock.wall_ms())
            base = await _append(actors, key, build_batch(records, codec=Codec.LZ4))
            acknowledged = [replace(record, offset=base + number) for number, record in enumerate(records)]
            written.setdefault(key, []).extend(acknowledged)


async def _append(actors: Sequence[Actor], key: PartitionKey, batch: bytes) -> int:
    """Write as a client does: to the leader, and again if that has changed. Returns the first offset."""
    async with asyncio.timeout(_LONGEST_S):
        while True:
            actor = _leader(actors, key)
            if actor is not None:
                (outcome,) = await actor.agent.broker.produce.run(
                    [(key, batch)], acks=-1, timeout_ms=_WRITE_TIMEOUT_MS, order=WriteOrder(), caller=_CALLER
                )
                if outcome.error is None and outcome.append is not None:
                    return outcome.append.base_offset
                if outcome.error is not None and not isinstance(outcome.error, NotLeader):
                    raise outcome.error
            await asyncio.sleep(_LOOK_S)


async def _check(actors: Sequence[Actor], written: Written) -> None:
    """Compares every acknowledged record of this run with what is read back. Raises CorruptData."""
    for key, acknowledged in written.items():
        found = {record.offset: record for record in await _read_back(actors, key, acknowledged[0].offset)}
        for record in acknowledged:
            if found.get(record.offset) != record:
                raise CorruptData(
                    f"{key}: offset {record.offset} was acknowledged as {record}, and reads {found.get(record.offset)}"
                )


async def _read_back(actors: Sequence[Actor], key: PartitionKey, offset: int) -> list[Record]:
    actor = _leader(actors, key)
    assert actor is not None
    records: list[Record] = []
    while True:
        (found,) = await actor.agent.broker.fetch.run(
            [(key.topic_id, PlainWanted(key.partition, offset, _READ_BYTES))],
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_READ_BYTES,
            caller=_CALLER,
        )
        if not isinstance(found, ReadResult) or found.next_offset <= offset:
            return records
        for batch in found.batches:
            for position, _ in iter_batches(batch):
                records += decode_records(batch, position)
        offset = found.next_offset


async def _tell_agents(stores: Stores, tell: Tell) -> None:
    agents = await stores.metadata.list_agents()
    rows: list[list[Cell]] = [
        [agent.agent_id, agent.listeners.get(KAFKA_LISTENER, ""), agent.availability_zone, agent.last_heartbeat_ms]
        for agent in agents
    ]
    tell("The agents", ["agent_id", "address", "availability_zone", "last_heartbeat"], rows)


async def _tell_leases(stores: Stores, tell: Tell, heading: str) -> None:
    now_ms = await stores.metadata.now_ms()
    leases = [lease for lease in await stores.metadata.list_leases() if lease.topic is not None]
    rows: list[list[Cell]] = [
        [lease.topic or "", _partition(lease), lease.agent_id, lease.expires_at_ms - now_ms, lease.epoch]
        for lease in sorted(leases, key=lambda lease: (lease.topic or "", _partition(lease)))
    ]
    tell(heading, ["topic", "partition_id", "leader_agent_id", "ttl_ms", "epoch"], rows)


def _partition(lease: Lease) -> int:
    return lease.key.partition if isinstance(lease.key, PartitionKey) else -1


async def _tell_watermarks(stores: Stores, topics: Sequence[Topic], tell: Tell) -> None:
    names = {topic.topic_id: topic.name for topic in topics}
    states = await stores.metadata.get_partitions([key for topic in topics for key in topic.partition_keys()])
    rows: list[list[Cell]] = [
        [names[state.key.topic_id], state.key.partition, state.high_watermark] for state in states
    ]
    tell("Every partition was written to", ["topic", "partition_id", "high_watermark"], rows)


async def _tell_segments(stores: Stores, topics: Sequence[Topic], tell: Tell) -> None:
    rows: list[list[Cell]] = []
    for topic in topics:
        ranges = [ScanRange(key=key, from_offset=0) for key in topic.partition_keys()]
        for page in await stores.metadata.scan_entries(ranges, limit=100):
            rows.extend(
                [
                    topic.name,
                    page.partition.key.partition,
                    entry.base_offset,
                    entry.end_offset,
                    entry.kind.value,
                    entry.object_key,
                ]
                for entry in page.entries
            )
    columns = ["topic", "partition_id", "base_offset", "end_offset", "kind", "object"]
    tell("What landed where; all of it was read back", columns, rows)
