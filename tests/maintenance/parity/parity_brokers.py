"""The two sides: an Apache Kafka and a StreamHouse whose clocks a story moves, and which do all that is due when told.

Kafka's log cleaner and its retention run by themselves, a few times a second. ``settle`` writes to two logs of its own
and waits until both have dealt with these: then they have looked at the story's log too. StreamHouse runs without
maintenance of its own, and ``settle`` runs the passes over all topics.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from parity_client import ParityClient, Sent
from parity_clock import MovedClock, ProgramClock

from streamhouse.app.maintenance_passes import MaintenancePasses
from streamhouse.core.randomness import SystemRandomness
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.policy import compacted_logs
from streamhouse.testing.plugin import running
from streamhouse.testing.services import PostgresService, S3Service, start_kafka
from streamhouse.testing.services.kafka import KafkaService
from streamhouse.testing.services.ports import LOOPBACK, free_ports
from streamhouse.testing.services.process import ServerCommand, ServerProcess, SupervisedProcess

HOUR_MS: Final = 3_600_000
SEGMENT_BYTES: Final = 1_000
BATCH_BYTES: Final = (SEGMENT_BYTES // 2, SEGMENT_BYTES)
"""A batch of such a size fills a segment: the next one begins another. So Kafka has one segment for each batch, where
StreamHouse has one entry for each."""
CLEAN_NOW: Final = {"min.cleanable.dirty.ratio": "0"}
CLEAN_LATER: Final = {"min.cleanable.dirty.ratio": "1"}
"""No share of a log is larger, so it is not cleaned while a story writes."""
CANARY: Final = "canary-configs"
_ANY_TIME: Final = {"message.timestamp.after.max.ms": "9223372036854775807"}
_KAFKA: Final = {
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "200",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),  # of 128 MiB, the default, a small heap has no room
    "log.segment.delete.delay.ms": "1000",
}
_ROUNDS: Final = 2
"""Kafka may have been in the middle of a pass when the story's last write came: the next one is whole."""
_MOVE_CLOCK: Final = """
CREATE OR REPLACE FUNCTION sh_clock_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint + {skipped_ms}
$$;
"""
_DEADLINE_S: Final = 60.0
_POLL_S: Final = 0.05


class ParityBroker(ABC):
    name: str
    clock: MovedClock
    client: ParityClient
    _refuses = False
    """Whether the canary's limit refuses what is written to it."""

    @abstractmethod
    def create(self, topic: str, configs: Mapping[str, str]) -> None: ...

    @abstractmethod
    def skip(self, ms: int) -> None:
        """Time passes."""

    @abstractmethod
    def settle(self) -> None:
        """Let maintenance do all that is due now."""

    def alter(self, topic: str, configs: Mapping[str, str]) -> None:
        """Returns when the configs are in force, which is later than the answer. They are taken in the order in which
        they were given, so a limit of another topic that is in force shows that these are."""
        self.client.alter(topic, configs)
        self._refuses = not self._refuses
        self.client.alter(CANARY, {"max.message.bytes": "1" if self._refuses else str(SEGMENT_BYTES)})
        wait_for(
            lambda: bool(self._write(CANARY, ago_ms=0)) == self._refuses,
            lambda: f"{self.name} has not taken a config",
        )

    def _write(self, topic: str, *, ago_ms: int) -> list[str]:
        """A batch of one record; its error if it is refused."""
        record = Sent(key=b"canary", value=bytes(BATCH_BYTES[0]), at_ms=-ago_ms)
        return self.client.write(topic, [record], base_ms=self.clock.wall_ms(), codec="none", idempotent=False)


class ParityKafka(ParityBroker):
    name = "Apache Kafka"

    def __init__(self, service: KafkaService, clock: ProgramClock, home: Path) -> None:
        self.clock = clock
        self.client = ParityClient(service.bootstrap)
        self._program = clock
        self._home = home
        self.create(CANARY, {})
        self.create("canary-delete", {"retention.ms": str(HOUR_MS)})
        self.create("canary-compact", {"cleanup.policy": "compact", **CLEAN_NOW})

    def create(self, topic: str, configs: Mapping[str, str]) -> None:
        self.client.create(topic, {**configs, **_ANY_TIME, "internal.segment.bytes": str(SEGMENT_BYTES)})

    def skip(self, ms: int) -> None:
        self._program.skip(ms)
        # A record that has become too old by this very jump shows that the broker's clock has moved.
        self._wait_for_retention(ago_ms=HOUR_MS + ms // 2)

    def settle(self) -> None:
        for _ in range(_ROUNDS):
            self._wait_for_retention(ago_ms=2 * HOUR_MS)
            self._wait_for_the_cleaner()

    def _wait_for_retention(self, *, ago_ms: int) -> None:
        assert not self._write("canary-delete", ago_ms=ago_ms)
        wait_for(
            lambda: len(set(self.client.ends("canary-delete"))) == 1,
            lambda: "Apache Kafka has not deleted a record by its age",
        )

    def _wait_for_the_cleaner(self) -> None:
        for _ in range(2):
            assert not self._write("canary-compact", ago_ms=0)
        _, end = self.client.ends("canary-compact")
        wait_for(
            lambda: self._cleaned_up_to("canary-compact") == end - 1,
            lambda: "Apache Kafka has not cleaned a log",
        )

    def _cleaned_up_to(self, topic: str) -> int:
        """The first dirty offset, from the cleaner's own checkpoint; 0 before the first cleaning."""
        with suppress(OSError):
            for line in (self._home / "data" / "cleaner-offset-checkpoint").read_text().splitlines():
                if line.startswith(f"{topic} 0 "):
                    return int(line.rpartition(" ")[2])
        return 0


class ParityStreamHouse(ParityBroker):
    """A platform on an event loop of its own, with a Kafka port, and the passes on the same stores."""

    name = "StreamHouse"

    def __init__(self, options: Mapping[str, Any], clock: MovedClock, skip: Callable[[int], None]) -> None:
        (port,) = free_ports(1)
        self.clock = clock
        self.client = ParityClient(f"{LOOPBACK}:{port}")
        self._skip = skip
        self._options = {
            **options,
            "kafka_enabled": True,
            "kafka_listen": f"{LOOPBACK}:{port}",
            "maintenance_enabled": False,
        }
        self._started = ExitStack()
        self._start()
        self.create(CANARY, {})

    def close(self) -> None:
        self.client.close()
        self._started.close()

    def create(self, topic: str, configs: Mapping[str, str]) -> None:
        self.client.create(topic, {**configs, **_ANY_TIME})

    def skip(self, ms: int) -> None:
        """The platform is down meanwhile: its leases go by the clock that jumps. A platform that ran would lose them in
        the middle of a write, and the producer would rightly send the same records again."""
        self._started.close()
        self._skip(ms)
        self._start()
        self.client.begin_to_read_anew()

    def settle(self) -> None:
        self._platform.run(self._run_passes())

    def restart(self) -> None:
        """Nothing is read from memory after it."""
        self._started.close()
        self._start()
        self.client.begin_to_read_anew()

    def _start(self) -> None:
        self._platform = self._started.enter_context(running(self._options))
        self._passes = MaintenancePasses(
            stores=self._platform.api.stores,
            offload=InlineOffload(),
            clock=self.clock,
            randomness=SystemRandomness(),
        )
        self._retention, self._keys = self._passes.retention(), self._passes.key_compactor()

    async def _run_passes(self) -> None:
        """Retention, key compaction, and retention once more: Kafka's run side by side."""
        await self._retain()
        more = True
        while more:
            result = await self._keys.compact_once(compacted_logs(await self._passes.topics()))
            assert not result.failures, result.failures
            more = result.more
        await self._retain()

    async def _retain(self) -> None:
        async for step in self._retention.steps():
            assert step.error is None, step


@contextmanager
def apache_kafka(directory: Path) -> Iterator[ParityKafka]:
    clock = ProgramClock(directory / "kafka-clock")
    homes: list[Path] = []

    def launch(command: ServerCommand) -> ServerProcess:
        homes.append(command.directory)
        return SupervisedProcess(replace(command, environment={**command.environment, **clock.environment}))

    with start_kafka(quick=True, heap_mb=256, properties=_KAFKA, launch=launch) as service:
        broker = ParityKafka(service, clock, homes[-1])
        try:
            yield broker
        finally:
            broker.client.close()


@contextmanager
def streamhouse_on_sqlite(directory: Path) -> Iterator[ParityStreamHouse]:
    """The embedded default; all it does goes by the moved clock."""
    clock = MovedClock()
    options = {"data_dir": str(directory / "data"), "durability": "object", "clock": clock}
    yield from _closed_after(ParityStreamHouse(options, clock, clock.skip))


@contextmanager
def streamhouse_on_postgres(directory: Path, postgres: PostgresService, s3: S3Service) -> Iterator[ParityStreamHouse]:
    """On PostgreSQL and S3. PostgreSQL's clock judges all ages, so it is the one that moves. An S3 server would refuse
    requests from hours ahead."""
    clock = MovedClock()
    dsn = postgres.create_database()
    options = {
        "data_dir": str(directory / "data"),
        "profile": "fast",
        "metadata_url": dsn,
        "store_url": f"s3://{s3.create_bucket()}/parity",
        "store_endpoint_url": s3.endpoint_url,
        "store_region": s3.region,
        "store_access_key_id": s3.access_key,
        "store_secret_access_key": s3.secret_key,
    }

    def skip(ms: int) -> None:
        clock.skip(ms)
        postgres.psql(_MOVE_CLOCK.format(skipped_ms=clock.skipped_ms), dsn=dsn)

    try:
        yield from _closed_after(ParityStreamHouse(options, clock, skip))
    finally:
        postgres.drop_database(dsn)


def _closed_after(broker: ParityStreamHouse) -> Iterator[ParityStreamHouse]:
    try:
        yield broker
    finally:
        broker.close()


def wait_for(condition: Callable[[], bool], problem: Callable[[], str]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {_DEADLINE_S} s: {problem()}")
        time.sleep(_POLL_S)
