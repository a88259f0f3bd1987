"""Fixtures every test may ask for. The servers start when the first test needs them and never before.

A server that is missing or does not start fails the test that asked for it; nothing here ever skips.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from streamhouse.testing.services import PostgresService, S3Service, start_postgres, start_s3
from streamhouse.testing.services.ports import RANGE_VARIABLE, share_of_ports

# An example may take long on a busy machine; Hypothesis's default of 200 ms would fail it.
settings.register_profile("streamhouse", deadline=None)
settings.load_profile("streamhouse")

STARTED: list[str] = []
_ADMIN_LISTEN = "STREAMHOUSE_ADMIN_LISTEN"
_FOR_TESTS = frozenset({"STREAMHOUSE_OXIA", "STREAMHOUSE_PURE", RANGE_VARIABLE, _ADMIN_LISTEN})

os.environ[_ADMIN_LISTEN] = "127.0.0.1:0"  # processes that tests start: several at a time, so none has the usual port

if worker := os.environ.get("PYTEST_XDIST_WORKER", ""):
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ[RANGE_VARIABLE] = share_of_ports(int(worker.removeprefix("gw")) % workers, workers)


def announce(request: pytest.FixtureRequest, line: str) -> None:
    """Say at once, in the log of the run, which real server the tests use."""
    STARTED.append(line)
    capture = request.config.pluginmanager.getplugin("capturemanager")
    reporter = request.config.pluginmanager.getplugin("terminalreporter")
    if capture is not None and reporter is not None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"service: {line}")


BUSY = (
    "sim/test_sim_seeds.py",
    "spark/pipelines/test_pipeline_spark.py",
    "spark/test_spark_examples.py",
    "spark/test_source_spark.py",
    "spark/test_source_cluster.py",
    "spark/tables/test_table_spark.py",
    "spark/test_spark_docs.py",
    "spark/tables/test_table_commands.py",
    "spark/test_sink_spark.py",
    "spark/pipelines/test_pipeline_runner.py",
    "spark/test_spark_sessions.py",
    "spark/test_source_connect.py",
)
"""Files that take long and compute all the time, the longest first."""
WAITING = (
    "maintenance/parity/test_parity_with_kafka.py",
    "chaos/test_chaos_command.py",
    "e2e/test_e2e_kill.py",
    "app/test_damaged_objects.py",
    "clients/test_clients_lean.py",
    "e2e/test_e2e_kafka_fleet.py",
    "gateway/kafka/groups/test_kafka_group_moves.py",
    "e2e/test_e2e_kafka_kill.py",
    "app/test_demo.py",
    "e2e/test_e2e_kafka_group_kill.py",
    "e2e/test_e2e_pause.py",
    "app/test_health.py",
    "e2e/test_e2e_fleet.py",
)
"""Files that take long and often wait: for a lease to end, for a server to come back."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Parallel runs begin with long files, so that no process is left alone with one; busy and waiting ones alternate,
    so that the cores have work all the time."""
    tests = config.rootpath / "tests"
    turns = {tests / name: turn for names in (BUSY, WAITING) for turn, name in enumerate(names)}
    items.sort(key=lambda item: turns.get(item.path, len(BUSY) + len(WAITING)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A parallel worker tells the process that reports which servers it used."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["started"] = list(STARTED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    STARTED.extend(getattr(node, "workeroutput", {}).get("started", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in STARTED:
        terminalreporter.write_line(f"ran against {line}")


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person may have exported where their own stores are (make services-up says how); no test may write there."""
    for name in list(os.environ):
        if name.startswith(("STREAMHOUSE_", "AWS_")) and name not in _FOR_TESTS:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def postgres_service(request: pytest.FixtureRequest) -> Iterator[PostgresService]:
    """One private PostgreSQL for the run."""
    with start_postgres() as service:
        announce(request, f"PostgreSQL {service.version} on port {service.port}")
        yield service


@pytest.fixture
def postgres_database(postgres_service: PostgresService) -> Iterator[str]:
    """The DSN of an empty database of this test's own."""
    dsn = postgres_service.create_database()
    yield dsn
    postgres_service.drop_database(dsn)


@pytest.fixture(scope="session")
def s3_service(request: pytest.FixtureRequest) -> Iterator[S3Service]:
    """One private S3 server for the run: SeaweedFS, or MinIO with S3=minio in the environment."""
    with start_s3() as service:
        announce(request, f"{service.kind} {service.version} at {service.endpoint_url}")
        yield service


@pytest.fixture
def s3_bucket(s3_service: S3Service) -> str:
    """An empty bucket of this test's own."""
    return s3_service.create_bucket()
