"""The metrics of a real agent: all that are declared have a source, and they count what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from streamhouse import StreamHouse
from streamhouse.app import metrics as sources
from streamhouse.app.compactor_metrics import COMPACTOR_METRICS
from streamhouse.cli.commands.status import _FIGURES
from streamhouse.core.errors import InvalidTimestamp
from streamhouse.core.metrics import METRICS, MetricKind

PORT: dict[str, Any] = {"kafka_enabled": True, "kafka_listen": "127.0.0.1:0"}
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


class Page:
    """What a scrape shows."""

    def __init__(self, sh: StreamHouse) -> None:
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.names: set[str] = set()
        for family in text_string_to_metric_families(sh.observed.metrics.text().decode()):
            self.names.add(f"{family.name}_total" if family.type == "counter" else family.name)
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"{key} comes twice"
                self.samples[key] = sample.value

    def get(self, name: str, **labels: str) -> float:
        return self.samples[f"streamhouse_{name}", frozenset(labels.items())]


async def test_an_agent_counts_what_happened_and_every_declared_metric_has_a_source(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), **PORT) as sh:
        await sh.create_topic("t", 1, configs={"message.timestamp.after.max.ms": "1000"})
        with pytest.raises(InvalidTimestamp):
            await sh.produce("t", b"v", timestamp_ms=sh.clock.wall_ms() + 10**9)
        async with AIOKafkaProducer(bootstrap_servers=sh.kafka_addresses[0], acks="all") as producer:
            for number in range(10):
                await producer.send_and_wait("t", b"%d" % number, partition=0)
        async with AIOKafkaConsumer(
            bootstrap_servers=sh.kafka_addresses[0], group_id="g", enable_auto_commit=False
        ) as consumer:
            place = TopicPartition("t", 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            for _ in range(10):
                await consumer.getone()
            await consumer.commit({place: 4})
        await sh.flush()
        page = Page(sh)

        assert page.get("produced_records_total") == 10
        assert page.get("produce_seconds_count", acks="all") == 11
        assert page.get("refused_batches_total", reason="InvalidTimestamp") == 1
        assert page.get("fetched_records_total") >= 10
        assert page.get("committed_batches_total") == page.get("produced_batches_total") > 0
        assert page.get("flush_seconds_count") >= 1
        assert page.get("commit_seconds_count") >= 1
        assert page.get("wal_syncs_total") >= 1
        assert page.get("object_store_request_seconds_count", operation="put") >= 1
        assert page.get("metadata_call_seconds_count", call="commit_leased") >= 1
        assert page.get("leases", kind="partition") == 1
        assert page.get("kafka_requests_total") > 10
        assert page.get("partition_end_offset", topic="t", partition="0") == 10
        assert page.get("group_committed_offset", group="g", topic="t", partition="0") == 4
        assert page.get("group_lag_records", group="g", topic="t", partition="0") == 6
        assert page.get("ready") == 1

        # Everything that is declared is served, and nothing else but what every Prometheus client has.
        missing = {name for name in METRICS if name not in page.names}
        assert missing <= {"streamhouse_kafka_closed_connections_total"}, "declared, and no source gives it"
        assert {name for name in page.names if not name.startswith("process_")} <= METRICS.keys()


async def test_partitions_above_the_limit_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_METRIC_SERIES", 2)
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        await sh.create_topic("t", 5)
        page = Page(sh)
        assert len([name for name, _ in page.samples if name == "streamhouse_partition_end_offset"]) == 2
        assert page.get("metrics_left_out_series") == 3


async def test_a_process_without_an_agent_has_the_metrics_of_its_broker_and_its_stores(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), embedded_agent=False, **PORT) as sh:
        page = Page(sh)
        assert page.get("kafka_connections") == 0
        assert page.get("metadata_call_seconds_count", call="list_topics") >= 1
        assert "streamhouse_leases" not in page.names


def test_every_metric_is_documented_with_its_help() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name, metric in METRICS.items():
        assert f"| `{name}` | {metric.kind.value} | {metric.unit} |" in text
        assert metric.help in text


def test_the_figures_of_the_status_command_are_declared() -> None:
    declared = METRICS | {metric.name: metric for metric in COMPACTOR_METRICS}
    for name in _FIGURES:
        assert declared[name].kind is not MetricKind.HISTOGRAM
