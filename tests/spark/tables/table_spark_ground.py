"""A topic of a running StreamHouse and a table of it, for tests under a real Spark."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from uuid import UUID

from pyspark.sql import SparkSession
from table_ground import query_table

from streamhouse.metadata.contract import WantedState
from streamhouse.spark.definitions.catalog import Stored
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.tables.spec import (
    PartitionBy,
    StorageSpec,
    StoredTable,
    TableFormat,
    TableSpec,
    ValueFormat,
    ValueSpec,
)
from streamhouse.spark.tables.start import checkpoint_of, start_table
from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.wire.records import Header, Record

BASE_MS = 1_700_006_400_000
JSON = ValueSpec(format=ValueFormat.JSON)


class SparkGround:
    """A topic ``orders`` of two partitions, and a table of it."""

    def __init__(self, spark: SparkSession, running: RunningStreamHouse, directory: Path) -> None:
        self.spark = spark
        self.running = running
        self.directory = directory
        self.place = Place(
            address_options={"dataDir": str(running.api.settings.data_dir)}, checkpoints=str(directory / "checkpoints")
        )
        for name, partitions in (("orders", 2), ("dead", 1)):
            topic = running.run(running.api.create_topic(name, partitions))
            assert running.run(running.api.agent.wait_leading(topic.partition_keys(), timeout_s=30))
        self.sent: dict[int, list[bytes]] = {0: [], 1: []}

    def produce(self, partition: int, *values: bytes | None, headers: tuple[Header, ...] = ()) -> None:
        at = len(self.sent[partition])
        records = [
            Record(key=b"k%d" % (at + n), value=value, timestamp_ms=BASE_MS + (at + n) * 60_000, headers=headers)
            for n, value in enumerate(values)
        ]
        self.running.run(self.running.api.produce_batch("orders", partition, records))
        self.sent[partition] += [value or b"" for value in values]

    def produce_json(self, partition: int, count: int) -> None:
        at = len(self.sent[partition])
        rows = [{"id": at + n, "price": (at + n) / 4, "name": f"näme-{at + n}"} for n in range(count)]
        self.produce(partition, *(json.dumps(row).encode() for row in rows))

    def table(
        self, kind: TableFormat, *, values: ValueSpec = JSON, dead: str = "dead", generation: int = 1
    ) -> StoredTable:
        storage = StorageSpec(format=kind, location=str(self.directory / f"table-{kind}"), partition_by=PartitionBy.DAY)
        spec = TableSpec(name=f"t-{kind}", topic="orders", storage=storage, values=values, dead_letters=dead)
        return Stored(
            spec=spec, generation=generation, definition_id=UUID(int=3), version=1, wanted=WantedState.RUNNING
        )

    def fill(self, stored: StoredTable) -> None:
        """Run the query to the topic's end."""
        attempt = start_table(self.spark, stored, self.place, once=True)
        try:
            attempt.query.awaitTermination(120)
            assert not attempt.is_active
        except Exception as error:
            raise attempt.target.failure.error or error from error
        finally:
            attempt.stop()

    def forget_last_commit(self, stored: StoredTable) -> None:
        """Make it look as if the driver had been killed between the table's commit and Spark's own."""
        commits = Path(checkpoint_of(self.place.checkpoints, stored)) / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)

    def query(self, stored: StoredTable, sql: str) -> list[tuple[object, ...]]:
        return list(query_table(sql, stored.spec.storage, self.place.address))

    def check_equal(self, stored: StoredTable) -> None:
        """Count and checksum, of the table by DuckDB and of what was sent."""
        found = self.query(stored, "SELECT _partition, _offset, _key, id, price, name FROM rows ORDER BY 1, 2")
        expected = [
            (partition, offset, b"k%d" % offset, *(json.loads(value)[name] for name in ("id", "price", "name")))
            for partition, values in sorted(self.sent.items())
            for offset, value in enumerate(values)
        ]
        assert len(found) == len(expected)
        assert zlib.crc32(repr(found).encode()) == zlib.crc32(repr(expected).encode())

    def check_replay(self, stored: StoredTable) -> None:
        """The table equals its topic when filled first, and when its driver, killed after the commit, goes on."""
        self.produce_json(0, 2_000)
        self.produce_json(1, 50)
        self.fill(stored)
        self.check_equal(stored)
        self.forget_last_commit(stored)
        self.produce_json(1, 300)
        self.fill(stored)
        self.check_equal(stored)

    def dead_letters(self) -> list[Record]:
        return list(self.running.run(self.running.api.read("dead", 0, 0)))
