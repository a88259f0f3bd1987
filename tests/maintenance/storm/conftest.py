"""A cluster for processes of their own: SQLite and a directory, or PostgreSQL and S3."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
for shared in (TESTS / "maintenance" / "compaction", TESTS / "log" / "leased"):  # stores with steps; a real leader
    if str(shared) not in sys.path:
        sys.path.append(str(shared))

from storm_place import S3Address, StormPlace  # noqa: E402

from streamhouse.testing.services import PostgresService, S3Service  # noqa: E402

TOLD: list[str] = []


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a measurement with the run's summary. Nothing is asserted about it."""
    return lambda line: TOLD.append(f"{request.node.name}: {line}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in TOLD:
        terminalreporter.write_line(line)


@pytest.fixture(params=["sqlite and a directory", "postgres and s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StormPlace]:
    if request.param == "sqlite and a directory":
        yield StormPlace(directory=tmp_path)
        return
    s3: S3Service = request.getfixturevalue("s3_service")
    postgres: PostgresService = request.getfixturevalue("postgres_service")
    dsn = postgres.create_database()
    yield StormPlace(
        directory=tmp_path,
        dsn=dsn,
        s3=S3Address(
            bucket=s3.create_bucket(),
            endpoint_url=s3.endpoint_url,
            region=s3.region,
            access_key=s3.access_key,
            secret_key=s3.secret_key,
        ),
    )
    postgres.drop_database(dsn)
