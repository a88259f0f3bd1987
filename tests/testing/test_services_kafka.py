"""The private Apache Kafka is the real one, serves when it says so, and is gone afterwards."""

from __future__ import annotations

from streamhouse.testing.services import start_kafka
from streamhouse.testing.services.kafka import brokers_known_at
from streamhouse.testing.services.process import process_exists


def test_kafka_serves_its_own_tools_and_is_gone_afterwards() -> None:
    with start_kafka(quick=True, heap_mb=256) as kafka:
        assert brokers_known_at(kafka.port) == 1
        at = ("--bootstrap-server", kafka.bootstrap)
        created = kafka.jars.run_tool("kafka-topics", *at, "--create", "--topic", "kept", "--partitions", "3")
        assert (created.returncode, created.stdout) == (0, "Created topic kept.\n"), created.stderr
        assert kafka.jars.run_tool("kafka-topics", *at, "--list").stdout == "kept\n"
        pid = kafka.pid
    assert not process_exists(pid)
