from __future__ import annotations

from streamhouse.testing.services import PostgresService, S3Service


def test_a_test_gets_a_real_postgres(postgres_service: PostgresService, postgres_database: str) -> None:
    assert postgres_service.psql("SELECT 40 + 2", dsn=postgres_database, options=("-At",)) == "42\n"


def test_a_test_gets_a_real_s3_server(s3_service: S3Service, s3_bucket: str) -> None:
    assert s3_bucket.startswith("test-")
    assert s3_service.version
