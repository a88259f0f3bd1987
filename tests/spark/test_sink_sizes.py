"""What the sink makes of rows that no codec can make smaller: batches that the topic takes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from sink_ground import address_of

from streamhouse.core.errors import LimitExceeded
from streamhouse.spark.connection import Connection
from streamhouse.spark.sink_blobs import BlobSink, StampClock
from streamhouse.spark.sink_options import WriteOptions, parse_write_options
from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.wire.codecs import Codec


@pytest.fixture
def connection(streamhouse: RunningStreamHouse) -> Iterator[Connection]:
    made = Connection(address_of(streamhouse.api))
    yield made
    made.close()


def write(platform: RunningStreamHouse, connection: Connection, options: WriteOptions, rows: list[bytes]) -> int:
    """How many records are in objects then."""
    topic = platform.run(platform.api.topic("out"))
    stamps = StampClock(planned_ms=0, ahead_ms=0)
    sink = BlobSink(connection, options, {"value": 0}, topic=topic, stamps=stamps, turn=0)
    sink.add([pa.record_batch({"value": pa.array(rows, pa.binary())})])
    return sum(piece.record_count for share in sink.finish() for piece in share.slices)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(("size", "most"), [(100, 1_048_588), (1_000, 1_048_588), (37, 2_000)])
def test_rows_of_noise_are_taken_whatever_the_codec(
    streamhouse: RunningStreamHouse, connection: Connection, codec: Codec, size: int, most: int
) -> None:
    streamhouse.run(streamhouse.api.create_topic("out", 1, configs={"max.message.bytes": str(most)}))
    noise, count = random.Random(7), 2 * most // size
    options = replace(parse_write_options({"topic": "out"}, streaming=True), codec=codec)
    assert write(streamhouse, connection, options, [noise.randbytes(size) for _ in range(count)]) == count


def test_one_row_that_is_too_large_is_still_refused(streamhouse: RunningStreamHouse, connection: Connection) -> None:
    streamhouse.run(streamhouse.api.create_topic("out", 1, configs={"max.message.bytes": "2000"}))
    options = parse_write_options({"topic": "out", "compression": "none"}, streaming=True)
    assert write(streamhouse, connection, options, [b"x" * 1_900]) == 1
    with pytest.raises(LimitExceeded, match=r"max\.message\.bytes allows 2000"):
        write(streamhouse, connection, options, [b"x" * 2_000])
