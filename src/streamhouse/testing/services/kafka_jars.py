"""Where Apache Kafka's jars and the Java to run them are, and how one of Kafka's own command-line tools is run.

Finds, never installs: ``scripts/setup --services`` copies the jars of requirements/kafka.pom.xml into the cache.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamhouse.core.errors import ServiceMissing
from streamhouse.testing.services.binaries import cache_directory

TOOLS: Final[Mapping[str, str]] = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
"""Kafka's shell scripts are one class each; the scripts themselves are in no package registry."""

# The first-tier compiler alone halves the start of a program that lives for a second; a server is compiled fully.
SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaJars:
    java: Path
    directory: Path
    version: str

    @property
    def classpath(self) -> str:
        return f"{self.directory}/*"

    def java_argv(self, main_class: str, *arguments: str, options: Sequence[str] = SHORT_LIVED) -> list[str]:
        return [str(self.java), *options, "-cp", self.classpath, main_class, *arguments]

    def tool_argv(self, tool: str, *arguments: str, log_level: str = "warn") -> list[str]:
        """The command line of ``kafka-topics`` and its kin; their log goes to stderr."""
        options = (*SHORT_LIVED, f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}")
        return self.java_argv(TOOLS[tool], *arguments, options=options)

    def run_tool(
        self, tool: str, *arguments: str, stdin: str | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.tool_argv(tool, *arguments),
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )


def find_kafka() -> KafkaJars:
    java = shutil.which("java")
    if not java:
        raise ServiceMissing(
            "Apache Kafka needs Java, and there is none on PATH",
            hint="run scripts/setup --services, or install Debian's package 'openjdk-17-jre-headless'",
        )
    directory = cache_directory() / "kafka" / "jars"
    servers = sorted(directory.glob("kafka_2.13-*.jar"))
    if not servers:
        raise ServiceMissing(f"Apache Kafka's jars are not in {directory}", hint="run scripts/setup --services")
    version = servers[-1].stem.rpartition("-")[2]
    return KafkaJars(java=Path(java), directory=directory, version=version)
