"""The servers the fixtures give are real, private and keep what they promise."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import obstore
import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from streamhouse.core.errors import ServiceFailed
from streamhouse.testing.services import PostgresService, S3Service, start_postgres


def s3_store(service: S3Service, bucket: str) -> S3Store:
    return S3Store(
        bucket,
        endpoint=service.endpoint_url,
        access_key_id=service.access_key,
        secret_access_key=service.secret_key,
        region=service.region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


async def test_the_database_is_the_tests_own_and_speaks_the_version_it_names(
    postgres_service: PostgresService, postgres_database: str
) -> None:
    connection = await asyncpg.connect(postgres_database)
    try:
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
        assert (await connection.fetchval("SHOW server_version")).split()[0] == postgres_service.version
        assert await connection.fetchval("SHOW synchronous_commit") == "on"
    finally:
        await connection.close()


def test_a_database_copies_its_template(postgres_service: PostgresService) -> None:
    original = postgres_service.create_database()
    postgres_service.psql("CREATE TABLE t (n int); INSERT INTO t VALUES (7)", dsn=original)
    copy = postgres_service.create_database(template=original)
    assert postgres_service.psql("SELECT n FROM t", dsn=copy, options=("-At",)) == "7\n"
    assert copy != original
    postgres_service.drop_database(copy)
    with pytest.raises(ServiceFailed, match="does not exist"):
        postgres_service.psql("SELECT 1", dsn=copy)


def test_psql_is_the_real_one_and_stops_at_the_first_error(postgres_service: PostgresService, tmp_path: Path) -> None:
    script = tmp_path / "walk.sql"
    script.write_text("\\echo walking\nSELECT 'é' AS letter;\n")
    printed = postgres_service.psql(script)
    assert "walking" in printed
    assert "é" in printed
    with pytest.raises(ServiceFailed, match="division by zero"):
        postgres_service.psql("SELECT 1/0; SELECT 'never reached'")


def test_a_crash_keeps_what_was_committed_and_cuts_every_session() -> None:
    with start_postgres() as service:
        service.psql("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
        pid = service.process.pid
        service.restart()
        assert service.process.pid != pid
        assert service.psql("SELECT n FROM t", options=("-At",)) == "1\n"
        service.restart(crash=False)
        assert service.psql("SELECT n FROM t", options=("-At",)) == "1\n"


def test_durable_means_fsync(postgres_service: PostgresService) -> None:
    assert postgres_service.psql("SHOW fsync", options=("-At",)) == "off\n"
    with start_postgres(durable=True) as durable:
        assert durable.psql("SHOW fsync", options=("-At",)) == "on\n"
        assert durable.port != postgres_service.port


async def test_create_only_puts_are_enforced(s3_service: S3Service, s3_bucket: str) -> None:
    store = s3_store(s3_service, s3_bucket)
    await obstore.put_async(store, "key", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        await obstore.put_async(store, "key", b"second", mode="create")
    assert bytes(await (await obstore.get_async(store, "key")).bytes_async()) == b"first"


async def test_a_wrong_secret_is_turned_away(s3_service: S3Service, s3_bucket: str) -> None:
    store = S3Store(
        s3_bucket,
        endpoint=s3_service.endpoint_url,
        access_key_id=s3_service.access_key,
        secret_access_key="wrong",
        region=s3_service.region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    with pytest.raises(Exception, match=r"403|denied|SignatureDoesNotMatch"):
        await obstore.put_async(store, "key", b"x")


def test_buckets_are_fresh_and_many(s3_service: S3Service) -> None:
    names = {s3_service.create_bucket() for _ in range(20)}
    assert len(names) == 20
