"""What tests of pipelines stand on: orders in a topic, a PostgreSQL, and what must come out of them."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from pyspark.errors import StreamingQueryException

from streamhouse.metadata.contract import WantedState
from streamhouse.spark.definitions.attempt import Attempt
from streamhouse.spark.definitions.catalog import Stored
from streamhouse.spark.definitions.service import Place
from streamhouse.spark.pipelines.parsing import StoredPipeline, load_pipeline
from streamhouse.spark.pipelines.start import checkpoint_path, start
from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.wire.codecs import Codec
from streamhouse.wire.records import Record

SCHEMA = "id BIGINT, product STRING, amount DECIMAL(10,2), at TIMESTAMP"
PER_MINUTE = (
    "SELECT window.start AS minute, product, count(*) AS orders, sum(amount) AS total"
    " FROM orders GROUP BY window(at, '1 minute'), product"
)
BASE_MS = 1_704_067_200_000
PRODUCTS = ("pen", "book", "lamp")


ORDERS: dict[str, Any] = {
    "orders": {"schema": SCHEMA, "watermark": "at, 10 minutes", "options": {"maxOffsetsPerTrigger": 300}}
}


def order(number: int) -> Record:
    """Three a second, of three products in turn."""
    at_ms = BASE_MS + number * 333
    value = {
        "id": number,
        "product": PRODUCTS[number % 3],
        "amount": f"{number % 100}.{number % 10}0",
        "at": _iso(at_ms),
    }
    return Record(key=PRODUCTS[number % 3].encode(), value=json.dumps(value).encode(), timestamp_ms=at_ms, headers=())


def per_minute(numbers: Iterable[int]) -> list[tuple[int, str, int, int]]:
    """What PER_MINUTE makes of these orders: minute, product, orders, cents."""
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for number in numbers:
        value = json.loads(order(number).value or b"")
        minute = (BASE_MS + number * 333) // 60_000 * 60
        found[minute, value["product"]].append(round(float(value["amount"]) * 100))
    return sorted((*key, len(cents), sum(cents)) for key, cents in found.items())


def rows_per_minute(dsn: str) -> list[tuple[int, str, int, int]]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "SELECT extract(epoch FROM minute)::bigint, product, orders, (total * 100)::bigint FROM per_minute"
        ).fetchall()
    return sorted(rows)


def write_orders(running: RunningStreamHouse, first: int, last: int, *, topic: str = "orders") -> None:
    """Orders ``first`` to ``last - 1``, dealt out over the topic's partitions."""
    count = running.run(running.api.topic(topic)).partition_count
    for partition in range(count):
        records = [order(number) for number in range(first, last) if number % count == partition]
        if records:
            running.run(running.api.produce_batch(topic, partition, records, codec=Codec.LZ4))


def into_postgres(dsn: str, table: str = "per_minute", **more: Any) -> dict[str, Any]:
    return {"postgres": {"url": dsn, "table": table, **more}}


def make_topics(running: RunningStreamHouse, **partitions: int) -> None:
    for name, count in partitions.items():
        topic = running.run(running.api.create_topic(name, count))
        assert running.run(running.api.agent.wait_leading(topic.partition_keys(), timeout_s=30))


@dataclass(kw_only=True)
class Pipeline:
    """A pipeline that is run by hand, to the end of what there is, as often as one likes."""

    spark: Any
    place: Place
    stored: StoredPipeline

    def run(self) -> Attempt:
        """Raises what start() raises; a failure of the query is an AssertionError."""
        attempt = start(self.spark.newSession(), self.stored, self.place, run_id=uuid.uuid4().hex)
        with suppress(StreamingQueryException):  # told by failure(), in one line
            attempt.query.awaitTermination(120)
        assert attempt.failure() is None, attempt.failure()
        return attempt

    @property
    def checkpoint(self) -> Path:
        return Path(checkpoint_path(self.place.checkpoints, self.stored))

    def forget_last_commit(self) -> None:
        """Make it look as if the runner had been killed between the target's commit and Spark's own."""
        commits = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        last = max(commits, key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def defined(**document: Any) -> StoredPipeline:
    return Stored(
        spec=load_pipeline({"name": "p", "trigger": "available-now", **document}),
        generation=0,
        definition_id=uuid.uuid4(),
        version=1,
        wanted=WantedState.RUNNING,
    )


def _iso(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
