"""Idempotent producers get the answers that docs/idempotence.md lists, on Apache Kafka and on StreamHouse (R9, R21)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from client_targets import streamhouse_alone
from idempotence_cases import CASES, Case
from idempotence_report import main as report
from idempotence_wire import RawProducer, answers

from streamhouse.testing.services import start_kafka

OURS = [case for case in CASES if case.runs_on_streamhouse]


@pytest.fixture(scope="module")
def on_kafka() -> Iterator[RawProducer]:
    properties = {"producer.id.expiration.check.interval.ms": "100"}
    with start_kafka(quick=True, heap_mb=256, properties=properties) as kafka:
        raw = RawProducer(kafka.port)
        yield raw
        raw.close()


@pytest.fixture(scope="module")
def on_streamhouse() -> Iterator[RawProducer]:
    with streamhouse_alone() as target:
        raw = RawProducer(int(target.bootstrap.rpartition(":")[2]))
        yield raw
        raw.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_apache_kafka_answers_as_the_table_says(on_kafka: RawProducer, case: Case) -> None:
    assert answers(on_kafka, case) == [batch.kafka for batch in case.batches()]


@pytest.mark.parametrize("case", OURS, ids=lambda case: case.name)
def test_r21_streamhouse_answers_as_the_table_says(on_streamhouse: RawProducer, case: Case) -> None:
    seen = answers(on_streamhouse, case)
    allowed = [(batch.streamhouse, batch.while_uncommitted) for batch in case.batches()]
    assert len(seen) == len(allowed)
    assert [(got, wanted) for got, wanted in zip(seen, allowed, strict=True) if got not in wanted] == []


def test_the_page_has_the_answers_of_the_table() -> None:
    assert report(["--check"]) == 0


def test_the_names_of_the_cases_differ() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
