"""Agents and the stores they share: on PostgreSQL and S3 as a fleet, or one of them alone on a directory.

``Stage`` owns processes, clients and the test's own connections to the stores, and puts an end to all of them. Whatever
goes wrong inside of it is told with the ends of the agents' logs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from e2e_clients import Connection, Ledger, Unanswered, Unreachable, Write
from e2e_judge import StoredLog, read_logs
from e2e_processes import AGENT_PROGRAM, STREAMHOUSE, Process, eventually
from e2e_producers import Client, Producer, Watcher, produce_request
from e2e_traps import PUMP_VARIABLE

from streamhouse.app.stores import Stores, open_stores
from streamhouse.core.clock import SystemClock
from streamhouse.core.ids import PartitionKey, TopicId, parse_topic_id
from streamhouse.core.randomness import SystemRandomness
from streamhouse.core.settings import load_settings
from streamhouse.metadata.contract import Lease
from streamhouse.testing.services import S3Service
from streamhouse.testing.services.ports import free_ports

SEED: Final = int(os.environ.get("SEED") or int.from_bytes(os.urandom(4), "big"))
"""The seed of what stories choose at random; the variable SEED brings the same choices again, not the same instants."""

C = TypeVar("C", bound=Client)

SHORT_LEASES: Final[Mapping[str, str]] = {
    "lease.ttl": "2s",
    "lease.renew_interval": "500ms",
    "agent.heartbeat_interval": "500ms",
    "agent.liveness_timeout": "2s",
    "assigner.interval": "500ms",
}
"""The settings of short leases, as short as a busy machine bears: a death costs seconds."""
SMALL_FILES: Final[Mapping[str, str]] = {"wal.file_bytes": "1MiB", "segment.max_bytes": "64KiB"}
"""So that a few seconds of writing fill files, recycle them, and make segments of their own."""


class Agent(Process):
    """A process with a door (agent_program.py)."""

    def __init__(self, name: str, settings: Mapping[str, str], *, directory: Path) -> None:
        (self.port,) = free_ports(1)
        self.settings = {
            "data_dir": str(directory / name),
            "agent.id": name,
            "agent.address": f"127.0.0.1:{self.port}",
            **settings,
        }
        super().__init__(
            name,
            [sys.executable, str(AGENT_PROGRAM), str(self.port)],
            environment=as_environment(self.settings),
            log_path=directory / f"{name}-{self.port}.log",
            working_dir=directory / name,
        )

    async def up(self, *, slow_disk_ms: int = 0, compiled: bool = True) -> None:
        """Start it; returns when it can be asked."""
        self.start(**{} if compiled and not slow_disk_ms else {PUMP_VARIABLE: "thread"})
        await self.ready()
        if slow_disk_ms:
            await self.ask("slow_disk", ms=slow_disk_ms)

    async def ready(self) -> None:
        await eventually(f"{self.name} is ready", self._answers, every_s=0.03)

    async def _answers(self) -> bool:
        assert self.alive(), f"{self.name} ended while it started"
        try:
            await (await Connection.open(self.settings["agent.address"])).close()
        except Unreachable:
            return False
        return True

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        connection = await Connection.open(self.settings["agent.address"])
        try:
            return await connection.ask(op, **fields)
        finally:
            await connection.close()

    async def arm(self, point: str, *, count: int, signal_name: str) -> None:
        """Lay a trap (e2e_traps.py). It may go off before the answer is out."""
        with suppress(Unanswered):
            await self.ask("trap", timeout_s=1.0, point=point, count=count, signal=signal_name)

    async def leads(self) -> set[tuple[str, int]]:
        """(topic, partition) of everything that it serves at this moment, by its own account."""
        leases = (await self.ask("describe"))["leases"]
        return {(lease["topic"], lease["partition"]) for lease in leases if lease["stage"] == "serving"}

    async def leads_some(self) -> bool:
        return bool(await self.leads())


class Stage(AsyncExitStack):
    """Made by ``fleet_stage`` or ``single_stage``."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__()
        self.directory = directory
        self.settings = dict(settings)
        self.ledger = Ledger()
        self.processes: list[Process] = []
        self.stores: Stores
        """The test's own way to what the agents write."""
        self.keys: list[PartitionKey] = []

    async def __aenter__(self) -> Stage:
        await super().__aenter__()
        settings = load_settings(flags=self.settings, environ={}, working_dir=self.directory).settings
        self.stores = await self.enter_async_context(
            open_stores(settings, clock=SystemClock(), randomness=SystemRandomness())
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            for process in self.processes:
                error.add_note(process.log_tail())
        for process in self.processes:
            process.clean_up()
        return bool(await super().__aexit__(kind, error, trace))

    # Processes.

    def agent(self, name: str, **settings: str) -> Agent:
        """Not started yet. Settings' keywords are their keys with two underscores for the dot."""
        chosen = {key.replace("__", "."): value for key, value in settings.items()}
        agent = Agent(name, {**self.settings, **chosen}, directory=self.directory)
        self.processes.append(agent)
        return agent

    @property
    def agents(self) -> list[Agent]:
        return [process for process in self.processes if isinstance(process, Agent)]

    def command(self, name: str, *argv: str, environment: Mapping[str, str] | None = None) -> Process:
        """The installed `streamhouse` itself."""
        process = Process(
            name,
            [str(STREAMHOUSE), *argv],
            environment=environment or {},
            log_path=self.directory / f"{name}.log",
            working_dir=self.directory,
        )
        self.processes.append(process)
        return process

    # Topics and leaders.

    async def create_topics(self, agent: Agent, topics: Mapping[str, int]) -> list[PartitionKey]:
        for topic, partitions in topics.items():
            made = await agent.ask("create", topic=topic, partitions=partitions)
            topic_id: TopicId = parse_topic_id(made["topic_id"])
            self.keys.extend(PartitionKey(topic_id, number) for number in range(partitions))
        return self.keys

    async def leaders(self) -> dict[PartitionKey, str]:
        """Return the leaders by the metadata, from unexpired leases only."""
        return {key: lease.agent_id for key, lease in (await self.leases()).items() if not lease.expired}

    async def leases(self) -> dict[PartitionKey, Lease]:
        listed = await self.stores.metadata.list_leases(keys=self.keys)
        return {lease.key: lease for lease in listed if isinstance(lease.key, PartitionKey)}

    async def all_led_by(self, agents: Iterable[Agent]) -> None:
        """Returns once these agents, and no others, serve every partition, by their own account."""
        team = list(agents)

        async def served() -> bool:
            if not set((await self.leaders()).values()) <= {agent.name for agent in team}:
                return False
            led = [await agent.leads() for agent in team]
            return sum(map(len, led)) == len(self.keys) == len(set().union(*led))

        names = ", ".join(agent.name for agent in team)
        await eventually(f"every partition is led by {names}", served, every_s=0.1)

    async def lead_alone_one_after_the_other(
        self, agents: Sequence[Agent], *, before_stop: Callable[[Agent], Awaitable[None]] | None = None
    ) -> None:
        """So that each may bring back what R4 lets it; afterwards nothing acknowledged may be missing. All stop."""

        async def stop(some: Sequence[Agent]) -> None:
            for agent in some:
                if before_stop is not None:
                    await before_stop(agent)
            await stop_in_order(some)

        await stop(agents)
        for agent in agents:
            await agent.up()
            await self.all_led_by([agent])
            await stop([agent])

    # Clients.

    async def busy_clients(self) -> list[Client]:
        """Start on every partition an idempotent producer, plain ones with acks=all and acks=1, and a reader."""
        ids = iter(await self.stores.metadata.allocate_producer_ids(len(self.keys)))
        clients: list[Client] = []
        for key in self.keys:
            clients.append(self.producer("idempotent", key, acks=-1, producer_id=next(ids)))
            clients.append(self.producer("all", key, acks=-1))
            clients.append(self.producer("one", key, acks=1, padding_bytes=8192))
            clients.append(self.watcher(key))
        return clients

    def producer(self, name: str, key: PartitionKey, **options: Any) -> Producer:
        return self._add(
            Producer(
                f"{name}-{self.keys.index(key)}",
                key,
                metadata=self.stores.metadata,
                ledger=self.ledger,
                **options,
            )
        )

    def watcher(self, key: PartitionKey) -> Watcher:
        return self._add(Watcher(key, metadata=self.stores.metadata, ledger=self.ledger))

    def _add(self, client: C) -> C:
        self.push_async_callback(client.close)
        client.start()
        return client

    async def finish(self, clients: Iterable[Client]) -> None:
        for client in clients:
            await client.finish()

    async def write(self, agent: Agent, key: PartitionKey, *values: str, acks: int = -1) -> int:
        """One batch by hand, to this agent; the offset it was acknowledged at. Raises Refused."""
        write = Write(producer="by hand", key=key, values=values, acks=acks, sequence=None)
        return int((await agent.ask("produce", **produce_request(write)))["offset"])

    async def high_watermark(self, key: PartitionKey) -> int:
        (state,) = await self.stores.metadata.get_partitions([key])
        return state.high_watermark

    async def acknowledged_since(self, count: int, *, keys: Iterable[PartitionKey] | None = None) -> None:
        """Returns once every partition (or these) has ``count`` more acknowledged writes than now."""
        wanted = {key: self._acknowledged(key) + count for key in (self.keys if keys is None else keys)}
        await eventually(
            f"{count} more acknowledged writes on each partition",
            lambda: all(self._acknowledged(key) >= enough for key, enough in wanted.items()),
        )

    def _acknowledged(self, key: PartitionKey) -> int:
        return sum(write.key == key for write in self.ledger.acknowledged())

    async def logs(self) -> dict[PartitionKey, StoredLog]:
        return await read_logs(self.stores.metadata, self.stores.objects, self.keys)


def as_environment(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"STREAMHOUSE_{key.replace('.', '_').upper()}": value for key, value in settings.items()}


def fleet_stage(directory: Path, dsn: str, s3: S3Service, settings: Mapping[str, str]) -> Stage:
    return Stage(
        directory,
        {
            "metadata.url": dsn,
            "store.url": f"s3://{s3.create_bucket()}/fleet",
            "store.endpoint_url": s3.endpoint_url,
            "store.region": s3.region,
            "store.access_key_id": s3.access_key,
            "store.secret_access_key": s3.secret_key,
            **settings,
        },
    )


def single_stage(directory: Path, settings: Mapping[str, str] | None = None) -> Stage:
    """Metadata, objects and WAL in one directory, as `streamhouse dev` has them."""
    return Stage(directory, {"data_dir": str(directory / "node"), **(settings or {})})


async def stop_in_order(agents: Iterable[Agent]) -> None:
    for agent in agents:
        code = await agent.stopped_by(signal.SIGTERM)
        assert code == 0, f"{agent.name} ended with {code}"
