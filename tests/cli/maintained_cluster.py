"""A cluster with records of a real agent, for passes of maintenance: what it holds, and time that passes in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from streamhouse import StreamHouse
from streamhouse.broker.caller import Caller
from streamhouse.broker.fetch import Diverging, PlainWanted, Refused
from streamhouse.core.settings import Settings, load_settings
from streamhouse.metadata.contract import ScanRange
from streamhouse.objectstore.keys import SharedBlobKey, StagingKey
from streamhouse.testing.services import PostgresService, S3Service
from streamhouse.wire.batch import iter_batches
from streamhouse.wire.records import Record

HOUR_MS = 3_600_000
OLD_MS = 1_700_000_000_000
"""The time of old records, and of garbage: long ago by any clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    chosen: dict[str, str]
    """Settings, as keywords of ``StreamHouse.open``."""
    pass_time: Callable[[int], None]
    """Let this many milliseconds pass in the metadata store, while no process has it open."""

    @property
    def flags(self) -> list[str]:
        return [part for name, value in self.chosen.items() for part in (f"--{name.replace('_', '-')}", value)]

    @property
    def settings(self) -> Settings:
        return load_settings(flags={_KEYS[name]: value for name, value in self.chosen.items()}).settings

    def open(self, **more: Any) -> Any:
        """The platform, whose agent does no maintenance by itself."""
        return StreamHouse.open(**self.chosen, maintenance_enabled=False, **more)

    async def fill(
        self, name: str = "orders", *, flushes: int = 6, partitions: int = 1, at_ms: int | None = None, **configs: str
    ) -> None:
        """Create a topic and write it in several flushes, so that each makes an entry in each partition."""
        async with self.open() as sh:
            topic_configs = {key.replace("_", "."): value for key, value in configs.items()}
            await sh.create_topic(name, partitions, configs=topic_configs)
            for number in range(flushes):
                for partition in range(partitions):
                    time_ms = sh.clock.wall_ms() if at_ms is None else at_ms
                    records = [
                        Record(key=b"%d" % each, value=b"%d" % number, timestamp_ms=time_ms) for each in range(3)
                    ]
                    await sh.produce_batch(name, partition, records)
                await sh.flush()

    async def read(self, name: str = "orders", partition: int = 0) -> bytes:
        """The batches that a consumer of a freshly started agent gets, from the log start on."""
        async with self.open() as sh:
            return await read_batches(sh, name, partition)

    async def objects(self) -> set[str]:
        """The keys of everything that holds records or is left of an upload."""
        async with self.open(embedded_agent=False) as sh:
            return {info.key async for info in sh.stores.objects.list() if "/" in info.key and not _is_mark(info.key)}

    async def referenced(self, name: str = "orders") -> list[str]:
        """The objects that the entries of a topic name, in their order."""
        async with self.open(embedded_agent=False) as sh:
            topic = await sh.topic(name)
            ranges = [ScanRange(key=key, from_offset=0) for key in topic.partition_keys()]
            pages = await sh.stores.metadata.scan_entries(ranges, limit=1_000)
            return [entry.object_key for page in pages for entry in page.entries]

    async def put_garbage(self) -> set[str]:
        """An upload that was never committed; it is old by its key."""
        key = str(SharedBlobKey(created_ms=OLD_MS, object_id=UUID(int=1)))
        async with self.open(embedded_agent=False) as sh:
            await sh.stores.objects.put(key, b"nobody refers to this")
        return {key}

    async def put_fresh_upload(self) -> set[str]:
        """An upload that a writer may still commit."""
        async with self.open(embedded_agent=False) as sh:
            now_ms = await sh.stores.metadata.now_ms()
            keys = {
                str(SharedBlobKey(created_ms=now_ms, object_id=UUID(int=2))),
                str(StagingKey(created_ms=now_ms, object_id=UUID(int=3))),
            }
            for key in keys:
                await sh.stores.objects.put(key, b"still to come")
        return keys


def local_cluster(data_dir: Path) -> Cluster:
    """On SQLite and a directory, as `streamhouse dev` makes it."""
    file = data_dir / "metadata.db"

    def pass_time(ms: int) -> None:
        with closing(sqlite3.connect(file)) as database, database:
            database.execute("UPDATE store_info SET clock_ms = clock_ms + ?", [ms])

    return Cluster(chosen={"data_dir": str(data_dir)}, pass_time=pass_time)


def remote_cluster(data_dir: Path, postgres: PostgresService, s3: S3Service) -> Cluster:
    """On PostgreSQL and S3."""
    dsn = postgres.create_database()

    def pass_time(ms: int) -> None:
        postgres.psql(f"UPDATE store_clock SET now_ms = sh_now_ms() + {ms}, clock_ms = sh_clock_ms()", dsn=dsn)

    chosen = {
        "data_dir": str(data_dir),
        "metadata_url": dsn,
        "store_url": f"s3://{s3.create_bucket()}/prefix",
        "store_endpoint_url": s3.endpoint_url,
        "store_access_key_id": s3.access_key,
        "store_secret_access_key": s3.secret_key,
        "store_region": s3.region,
        "profile": "fast",
    }
    return Cluster(chosen=chosen, pass_time=pass_time)


async def read_batches(sh: StreamHouse, name: str, partition: int = 0) -> bytes:
    """The batches of a partition from its log start on, byte for byte as a Kafka client gets them."""
    offset, end = await sh.list_offset(name, partition, at=-2), await sh.list_offset(name, partition)
    found: list[bytes] = []
    while offset < end:
        (answer,) = await sh.broker.fetch.run(
            [(name, PlainWanted(partition, offset, 1_000_000))],
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1_000_000,
            caller=Caller(protocol="python", client_id="test"),
            leader_only=False,
        )
        assert not isinstance(answer, Refused | Diverging)
        found += [bytes(batches) for batches in answer.batches]
        for batches in answer.batches:
            for _, header in iter_batches(batches, check_crc=True):
                offset = header.next_offset
    return b"".join(found)


def _is_mark(key: str) -> bool:
    return key.startswith("metadata-progress/")


_KEYS = {
    "data_dir": "data_dir",
    "metadata_url": "metadata.url",
    "store_url": "store.url",
    "store_endpoint_url": "store.endpoint_url",
    "store_access_key_id": "store.access_key_id",
    "store_secret_access_key": "store.secret_access_key",
    "store_region": "store.region",
    "profile": "profile",
}
