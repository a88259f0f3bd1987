"""R6: a sink's uploads stay young enough for their commit, however long the job runs beside a vacuum."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from sink_ground import options_of, values_of

from streamhouse.maintenance.upkeep.disk_space import DiskSpace
from streamhouse.metadata.contract import Pin
from streamhouse.spark import sink
from streamhouse.testing.plugin import RunningStreamHouse

SCHEMA = StructType([StructField("value", BinaryType())])


class Job:
    """One batch write, step by step, as Spark calls the sink."""

    def __init__(self, platform: RunningStreamHouse) -> None:
        self.platform = platform
        platform.run(platform.api.create_topic("out", 1))
        self.payload = sink.batch_payload({**options_of(platform.api), "topic": "out"}, SCHEMA, False)

    def write(self, *values: bytes) -> bytes:
        return sink.write(self.payload, iter([pa.record_batch({"value": pa.array(values, pa.binary())})]))

    def pins(self) -> list[Pin]:
        return self.platform.run(self.platform.api.stores.metadata.list_pins())

    def free_disk_space(self) -> None:
        """What raises the GC horizon as far as it may go."""
        stores = self.platform.api.stores
        space = DiskSpace(metadata=stores.metadata, objects=stores.objects, keep_bytes=0, oldest_stamp_ms=lambda: None)
        self.platform.run(space.free())


def test_r6_uploads_of_a_sink_can_be_committed_after_the_horizon_was_raised(streamhouse: RunningStreamHouse) -> None:
    job = Job(streamhouse)
    wrote = [job.write(b"first")]
    job.free_disk_space()
    wrote.append(job.write(b"second"))
    job.free_disk_space()
    assert [pin.owner for pin in job.pins()] == ["spark sink"]
    sink.commit(job.payload, wrote)
    assert streamhouse.run(values_of(streamhouse.api, "out")) == ["first", "second"]
    assert job.pins() == []


def test_r6_without_its_pin_the_same_job_fails_and_writes_nothing(streamhouse: RunningStreamHouse) -> None:
    job = Job(streamhouse)
    wrote = [job.write(b"first")]
    streamhouse.run(streamhouse.api.stores.metadata.release_pins([pin.pin_id for pin in job.pins()]))
    job.free_disk_space()
    with pytest.raises(Exception, match="horizon"):
        sink.commit(job.payload, wrote)
    assert streamhouse.run(values_of(streamhouse.api, "out")) == []


def test_a_job_that_is_aborted_leaves_no_pin(streamhouse: RunningStreamHouse) -> None:
    job = Job(streamhouse)
    job.write(b"first")
    sink.abort(job.payload)
    assert job.pins() == []


def test_a_micro_batch_without_rows_leaves_no_pin(streamhouse: RunningStreamHouse) -> None:
    job = Job(streamhouse)
    sink.commit_stream(job.payload, [], 7)
    assert job.pins() == []
    assert pickle.loads(job.payload).pin.ttl_ms >= 60_000
