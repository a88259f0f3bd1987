"""The same commits on S3, with Iceberg's catalog in PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from table_ground import FORMATS, TableGround, batch, rows

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import BatchRegressed
from streamhouse.objectstore.opening import StoreOptions
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.tables.columns import OWN_COLUMNS
from streamhouse.spark.tables.spec import PartitionBy, StorageSpec, TableFormat
from streamhouse.testing.services import S3Service


@pytest.mark.parametrize("kind", FORMATS)
def test_tables_on_s3_take_each_batch_once(
    s3_service: S3Service, postgres_database: str, tmp_path: Path, kind: TableFormat
) -> None:
    bucket = s3_service.create_bucket()
    address = StoreAddress(
        metadata_url=postgres_database,
        store_url=f"s3://{bucket}/objects",
        store=StoreOptions(
            endpoint_url=s3_service.endpoint_url,
            region=s3_service.region,
            access_key_id=s3_service.access_key,
            secret_access_key=s3_service.secret_key,
        ),
        request_timeout_ms=10_000,
        retry_deadline_ms=20_000,
    )
    storage = StorageSpec(format=kind, location=f"s3://{bucket}/lake/orders", partition_by=PartitionBy.DAY)
    ground = TableGround(directory=tmp_path, storage=storage, address=address)
    ground.store.create(OWN_COLUMNS)
    for number in range(3):
        begin, tag = number * 10, f"q1-{number:012d}"
        files = ground.files(rows(begin, begin + 10, n=pa.array(range(10))), tag=tag)
        assert ground.store.commit(batch(number, begin, begin + 10), files)
        assert not ground.store.commit(batch(number, begin, begin + 10), ground.files(rows(begin, begin + 10), tag=tag))
    with pytest.raises(BatchRegressed):
        ground.store.commit(batch(0, 0, 10), ground.files(rows(0, 10), tag="q1-000000000000"))
    assert ground.store.state().rows == 30
    done = ground.store.compact(small_bytes=1 << 20, target_bytes=1 << 24)
    assert (done.files_before, done.files_after) == (3, 1)
    assert ground.store.state().rows == 30
    assert ground.store.look().progress == batch(2, 20, 30).done
    assert ground.store.look().schema.field("n").type == pa.int64()
    failed = ground.files(rows(30, 40), tag="q1-000000000003", made_ms=1)
    later_ms = SystemClock().wall_ms() + 60_000  # the server's clock is its own
    done = ground.store.vacuum(before_ms=later_ms, dry_run=False)
    assert failed[0].path in {file.path for file in done.files}
    fresh = ground.files(rows(30, 31, n=pa.array([1])), tag="q1-000000000003", made_ms=later_ms)
    assert ground.store.commit(batch(3, 30, 31), fresh)
    assert ground.store.state().rows == 31
    ground.store.drop()
    assert not ground.store.exists()
    ground.store.create(OWN_COLUMNS)
