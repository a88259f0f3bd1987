"""Topics as tables under a real Spark, read by a second engine. What takes long is in long/."""

from __future__ import annotations

import json
import shutil
from io import BytesIO
from pathlib import Path

import fastavro
import pytest
from pyspark.sql import SparkSession
from table_spark_ground import SparkGround

from streamhouse.core.errors import BatchRegressed
from streamhouse.spark.tables.spec import TableFormat, ValueFormat, ValueSpec
from streamhouse.testing.plugin import RunningStreamHouse
from streamhouse.wire.records import Header

OWN_NAME = b'{"id": 4, "tags": ["a", {"b": 1}], "name": "four", "_offset": 1}'
"""A value with a field that has the name of a column of ours."""


@pytest.fixture
def ground(spark: SparkSession, streamhouse: RunningStreamHouse, tmp_path: Path) -> SparkGround:
    return SparkGround(spark, streamhouse, tmp_path)


@pytest.mark.parametrize("kind", [TableFormat.ICEBERG, TableFormat.DELTA])
def test_a_table_equals_its_topic_after_a_replay(ground: SparkGround, kind: TableFormat) -> None:
    ground.check_replay(ground.table(kind))


def test_columns_come_with_the_fields_and_bad_records_go_to_the_dead_letters(ground: SparkGround) -> None:
    stored = ground.table(TableFormat.DELTA)
    ground.produce(0, b'{"id": 1}', b'{"id": "one"}', None)
    ground.produce(1, b"no json", b'{"id": 2, "name": "two"}', headers=(Header("h", b"x"),))
    ground.fill(stored)
    ground.produce(0, b'{"id": "three"}', OWN_NAME, b"[]")
    ground.produce(1, b'{"id": 5, "tags": ["a", {"b": 1}], "n": 1}', b'{"n": 1.5, "id": 9223372036854775808}')
    ground.fill(stored)
    rows = ground.query(stored, "SELECT _partition, _offset, id, name, tags FROM rows ORDER BY 1, 2")
    assert rows == [  # 1 and "one" came in one batch, and the wider type counts
        (0, 0, "1", None, None),
        (0, 1, "one", None, None),
        (0, 2, None, None, None),
        (0, 3, "three", None, None),
        (1, 1, "2", "two", None),
        (1, 2, "5", None, '["a",{"b":1}]'),
        (1, 3, "9223372036854775808", None, None),
    ]
    dead = ground.dead_letters()
    reasons = {
        ({h.key: h.value for h in letter.headers}["streamhouse.partition"], letter.value): letter for letter in dead
    }
    bad = reasons[(b"1", b"no json")]
    headers = {header.key: header.value for header in bad.headers}
    assert headers["h"] == b"x"
    assert headers["streamhouse.topic"] == b"orders"
    assert headers["streamhouse.offset"] == b"0"
    assert (headers["streamhouse.error"] or b"").startswith(b"not JSON")
    assert bad.key == b"k0"
    assert sorted(reasons) == [(b"0", b"[]"), (b"0", OWN_NAME), (b"1", b"no json")]
    assert len(dead) == 3
    ground.forget_last_commit(stored)
    ground.fill(stored)
    assert len(ground.dead_letters()) == len(dead)


def test_without_dead_letters_a_bad_record_stops_the_table(ground: SparkGround) -> None:
    stored = ground.table(TableFormat.DELTA, dead="", values=ValueSpec(format=ValueFormat.JSON, schema="id BIGINT"))
    ground.produce(1, b'{"id": 1}', b"no json")
    with pytest.raises(Exception, match="orders/1 at offset 1 cannot become a row: not JSON"):
        ground.fill(stored)


def test_avro_of_a_registry_s_clients(ground: SparkGround) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
    }
    values = ValueSpec(format=ValueFormat.AVRO, schema=json.dumps(schema), confluent=True)
    stored = ground.table(TableFormat.ICEBERG, values=values)
    written = []
    for row in ({"id": 1, "name": "one"}, {"id": 2, "name": None}):
        out = BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        written.append(b"\0\0\0\0\7" + out.getvalue())
    ground.produce(0, *written, written[0][:-1], b"x", written[0] + b"!")
    ground.fill(stored)
    assert ground.query(stored, "SELECT _offset, id, name FROM rows ORDER BY 1") == [(0, 1, "one"), (1, 2, None)]
    assert len(ground.dead_letters()) == 3


def test_a_restored_old_checkpoint_is_refused(ground: SparkGround) -> None:
    """Its next batch has the number of the table's last one, and other records."""
    stored = ground.table(TableFormat.DELTA)
    ground.produce_json(0, 10)
    ground.fill(stored)
    saved = ground.directory / "saved"
    shutil.copytree(ground.place.checkpoints, saved)
    ground.produce_json(0, 10)
    ground.fill(stored)
    shutil.rmtree(ground.place.checkpoints)
    shutil.copytree(saved, ground.place.checkpoints)
    ground.produce_json(0, 10)
    with pytest.raises(BatchRegressed, match="another batch of that number"):
        ground.fill(stored)
    shutil.rmtree(ground.place.checkpoints)
    ground.fill(stored)
    ground.check_equal(stored)


def test_a_reset_begins_anew(ground: SparkGround) -> None:
    stored = ground.table(TableFormat.DELTA)
    ground.produce_json(0, 10)
    ground.fill(stored)
    again = ground.table(TableFormat.DELTA, generation=2)
    ground.produce_json(0, 10)
    ground.fill(again)
    ground.check_equal(again)
