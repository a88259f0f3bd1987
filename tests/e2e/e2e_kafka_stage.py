"""The installed `streamhouse` with its Kafka port, librdkafka's clients around it, and what is known about both.

``KafkaStage`` adds to a ``Stage``: commands on ports of their own, clients, groups that are watched in the store, and
how long each act of a story was felt.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka.admin import AdminClient, NewTopic
from e2e_fleet import Stage, as_environment
from e2e_kafka_clients import Event, KafkaClient, KafkaLedger, KafkaMember, KafkaProducer, end_offsets, read_back
from e2e_processes import STREAMHOUSE, Process, eventually

from streamhouse.core.errors import GroupNotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import slot_of
from streamhouse.testing.services.ports import free_ports

T = TypeVar("T")
C = TypeVar("C", bound=KafkaClient)
TOPIC: Final = "orders"


class KafkaProcess(Process):
    """`streamhouse agent` or `dev`, always on the same port."""

    def __init__(self, name: str, command: str, settings: dict[str, str], *, directory: Path) -> None:
        (self.port,) = free_ports(1)
        self.address = f"127.0.0.1:{self.port}"
        environment = as_environment(
            {"agent.id": name, "data_dir": str(directory / name), **settings, "kafka.listen": self.address}
        )
        super().__init__(
            name,
            [str(STREAMHOUSE), command],
            environment=environment,
            log_path=directory / f"{name}.log",
            working_dir=directory / name,
        )

    async def ready(self) -> None:
        def is_ready() -> bool:
            assert self.alive(), f"{self.name} ended while it started"
            return "\nready; " in self.output()

        await eventually(f"{self.name} is ready", is_ready)


class KafkaStage:
    """Around a stage that is entered already."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.ledger = KafkaLedger()
        self.clients: list[KafkaClient] = []
        self.groups: list[str] = []
        self.acts: list[str] = []
        self._act_began_s = 0.0
        stage.push_async_callback(self._end)

    # Processes.

    def command(self, name: str, command: str, **settings: str) -> KafkaProcess:
        chosen = {key.replace("__", "."): value for key, value in settings.items()}
        process = KafkaProcess(name, command, {**self.stage.settings, **chosen}, directory=self.stage.directory)
        self.stage.processes.append(process)
        return process

    @property
    def bootstrap(self) -> str:
        return ",".join(p.address for p in self.stage.processes if isinstance(p, KafkaProcess))

    def address(self, name: str) -> str:
        """The address of the process with that name."""
        return next(p.address for p in self.stage.processes if isinstance(p, KafkaProcess) and p.name == name)

    # Topics and leaders.

    async def create_topic(self, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        (future,) = admin.create_topics([NewTopic(TOPIC, partitions)]).values()
        await in_thread(lambda: future.result(60))
        topic = await self.stage.stores.metadata.get_topic(TOPIC)
        self.stage.keys = [PartitionKey(topic.topic_id, number) for number in range(partitions)]

    @property
    def partitions(self) -> int:
        return len(self.stage.keys)

    async def spread(self) -> Counter[str]:
        return Counter((await self.stage.leaders()).values())

    async def led_by(self, *names: str) -> None:
        """Wait until the store says that these agents, and no others, lead all partitions."""

        async def led() -> bool:
            leaders = await self.stage.leaders()
            return len(leaders) == self.partitions and set(leaders.values()) <= set(names)

        await eventually(f"every partition is led by {', '.join(names)}", led)

    async def coordinator(self, group: str) -> str:
        (lease,) = await self.stage.stores.metadata.list_leases(keys=[slot_of(group)])
        return lease.agent_id

    # Clients.

    def producer(self, name: str, **config: Any) -> KafkaProducer:
        return self._add(KafkaProducer(name, self.bootstrap, TOPIC, self.partitions, self.ledger, **config))

    def group(self, name: str, members: int, **config: Any) -> None:
        """Start a group; from now on it is watched in the store, too."""
        self.groups.append(name)
        for number in range(members):
            self._add(KafkaMember(f"{name}-{number}", name, self.bootstrap, TOPIC, self.ledger, **config))
        watch = asyncio.create_task(self._watch(name))

        async def end_watch() -> None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

        self.stage.push_async_callback(end_watch)

    def _add(self, client: C) -> C:
        self.clients.append(client)
        client.start()
        return client

    async def _watch(self, group: str) -> None:
        """Generations and offsets of a group never go back, and what a member was told is committed is."""
        metadata = self.stage.stores.metadata
        generation, offsets = -1, dict.fromkeys(self.stage.keys, 0)
        while True:
            told = {event.partition: event.offset for event in list(self.ledger.commits) if event.who == group}
            with suppress(GroupNotFound):
                now = (await metadata.get_group(group)).generation
                if now < generation:
                    self.ledger.contradictions.append(f"{group}: generation {now} after {generation}")
                generation = now
            committed = await metadata.fetch_offsets(group)
            for key, before in offsets.items():
                found = committed[key].offset if key in committed else 0
                if found < max(before, told.get(key.partition, 0)):
                    self.ledger.contradictions.append(
                        f"{group}: {key.partition} is committed at {found} after {before}; told {told}"
                    )
                offsets[key] = found
            await asyncio.sleep(0.05)

    # Progress.

    async def progress(self, count: int = 5) -> None:
        """Returns once every producer and every group has done so much more on every partition, and committed."""
        producers = [client.name for client in self.clients if isinstance(client, KafkaProducer)]
        since_s = time.monotonic()
        await self._since(since_s, self.ledger.acks, producers, count, "acknowledgements")
        await self._since(since_s, self.ledger.reads, self.groups, count, "reads")
        await self._since(since_s, self.ledger.commits, self.groups, 1, "commits")

    async def _since(self, since_s: float, events: list[Event], who: Sequence[str], count: int, what: str) -> None:
        def enough() -> bool:
            found = Counter((event.who, event.partition) for event in list(events) if event.at_s >= since_s)
            return all(found[name, partition] >= count for name in who for partition in range(self.partitions))

        await eventually(f"{count} {what} on each partition by each of {', '.join(who)}", enough, every_s=0.1)

    def act_begins(self) -> None:
        self._act_began_s = time.monotonic()

    async def act_ends(self, name: str) -> None:
        """End the act after every client has gone on."""
        await self.progress()
        gaps = [
            max(self.ledger.longest_gaps_s(events, since_s=self._act_began_s).values(), default=0.0)
            for events in (self.ledger.acks, self.ledger.reads)
        ]
        self.acts.append(f"{name} {gaps[0]:.1f} s/{gaps[1]:.1f} s")
        self.act_begins()

    # The end.

    async def finish_producers(self) -> None:
        await self._join([client for client in self.clients if isinstance(client, KafkaProducer)])

    async def finish_groups(self) -> None:
        """End the groups after they have read and committed everything."""
        ends = await in_thread(lambda: end_offsets(self.bootstrap, TOPIC, self.partitions))

        def all_read() -> bool:
            committed = {(event.who, event.partition): event.offset for event in list(self.ledger.commits)}
            return all(committed[group, partition] >= end for group in self.groups for partition, end in ends.items())

        await eventually("every group has committed the end of every partition", all_read)
        await self._join(self.clients)

    async def _join(self, clients: Sequence[KafkaClient]) -> None:
        for client in clients:
            client.tell_to_end()
        for client in clients:
            await in_thread(client.join)

    async def _end(self) -> None:
        for client in self.clients:
            client.tell_to_end()

    async def read_back(self) -> dict[int, list[str]]:
        """Read all records through the port."""
        return await in_thread(lambda: read_back(self.bootstrap, TOPIC, self.partitions))

    async def logs(self) -> dict[int, list[str]]:
        """Past the engine."""
        return {key.partition: list(log.values) for key, log in (await self.stage.logs()).items()}


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
