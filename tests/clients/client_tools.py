"""Kafka's own command-line tools, as people and scripts run them.

Each feature is one tool, run a few times in an order that makes sense. What they print is compared as it is, except for
ids, addresses, times and speeds.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from client_features import FAILED, OK, Cell
from client_targets import Target

from streamhouse.testing.services import KafkaJars, find_kafka

TOOLS_NAME: Final = "Kafka's tools"
TOPIC: Final = "tools"
GROUP: Final = "tools-group"
_TIMEOUT_S = 90


class ToolFailed(Exception):
    """A tool did not do what it was asked for."""


class Bench:
    """Runs the tools against one target and notes what they printed."""

    def __init__(self, jars: KafkaJars, bootstrap: str) -> None:
        self._jars = jars
        self._bootstrap = bootstrap
        self.seen: list[str] = []

    def run(self, tool: str, *arguments: str, stdin: str | None = None, note: bool = True, fails: bool = False) -> str:
        where = ("--bootstrap-server", self._bootstrap)
        ran = self._jars.run_tool(tool, *where, *arguments, stdin=stdin, timeout_s=_TIMEOUT_S)
        if (ran.returncode != 0) != fails:
            said = f"{ran.stdout.strip()[-300:]} {ran.stderr.strip()[-500:]}"
            raise ToolFailed(f"{tool} {' '.join(arguments)}: exit code {ran.returncode}: {said}")
        if note:
            self.seen += normal(ran.stdout)
        return ran.stdout

    def has(self, output: str, *patterns: str) -> None:
        for pattern in patterns:
            if not re.search(pattern, output, re.MULTILINE):
                raise ToolFailed(f"{pattern!r} is not in: {output.strip()[-600:]}")


def normal(output: str) -> list[str]:
    """Lines with whatever differs from run to run taken out; columns become single spaces."""
    text = re.sub(r"(TopicId: )\S+", r"\1…", output)
    text = re.sub(r"((?:Leader|Replicas|Isr|Elr|LastKnownElr|brokers|broker|node)\W+)\d+", r"\1…", text)
    text = re.sub(r"127\.0\.0\.1:\d+(?: \(\d+\))?|/127\.0\.0\.1", "…", text)
    text = re.sub(r"console-consumer-[\w-]+|consumer-[\w-]+-\d+-[\w-]{36}", "…", text)
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return sorted(line for line in lines if line)


def topics(bench: Bench) -> None:
    bench.run("kafka-topics", "--create", "--topic", TOPIC, "--partitions", "3", "--config", "max.message.bytes=900000")
    bench.run("kafka-topics", "--create", "--topic", TOPIC, "--if-not-exists")
    bench.run("kafka-topics", "--create", "--topic", TOPIC, note=False, fails=True)
    bench.has(bench.run("kafka-topics", "--list", note=False), f"^{TOPIC}$")
    told = bench.run("kafka-topics", "--describe", "--topic", TOPIC, note=False)
    bench.has(told, "PartitionCount: 3", "max.message.bytes=900000", r"Partition: 2\s+Leader: \d+")
    bench.run("kafka-topics", "--alter", "--topic", TOPIC, "--partitions", "4")
    bench.has(bench.run("kafka-topics", "--describe", "--topic", TOPIC, note=False), "PartitionCount: 4")
    bench.has(bench.run("kafka-topics", "--describe", "--unavailable-partitions"), "^$|^\\s*$")
    bench.run("kafka-topics", "--create", "--topic", "tools-doomed")
    bench.run("kafka-topics", "--delete", "--topic", "tools-doomed")
    bench.run("kafka-topics", "--delete", "--topic", "tools-doomed", note=False, fails=True)


def console(bench: Bench) -> None:
    lines = "h:1,i:2\tkey-1\tvalue 1\nNULL\tkey-2\tNULL\nh:x\tkey-3\tзначение\n"
    properties = ("parse.headers=true", "parse.key=true", "null.marker=NULL")
    settings = [word for each in properties for word in ("--reader-property", each)]
    into = ("--topic", TOPIC, "--compression-codec", "zstd")
    bench.run("kafka-console-producer", *into, *settings, stdin=lines, note=False)
    shown = ("print.headers=true", "print.key=true", "null.literal=NULL")
    settings = [word for each in shown for word in ("--formatter-property", each)]
    source = ("--topic", TOPIC, "--group", GROUP, "--from-beginning", "--max-messages", "3")
    told = bench.run("kafka-console-consumer", *source, *settings)
    bench.has(told, "h:1,i:2\tkey-1\tvalue 1", "NO_HEADERS\tkey-2\tNULL", "h:x\tkey-3\tзначение")


def consumer_groups(bench: Bench) -> None:
    bench.has(bench.run("kafka-consumer-groups", "--list", note=False), f"^{GROUP}$")
    bench.has(bench.run("kafka-consumer-groups", "--list", "--state", note=False), rf"{GROUP}\s+Empty")
    bench.has(bench.run("kafka-consumer-groups", "--list", "--type", note=False), rf"{GROUP}\s+Classic")
    told = bench.run("kafka-consumer-groups", "--describe", "--group", GROUP, note=False)
    bench.has(told, rf"{GROUP}\s+{TOPIC}\s+\d+\s+\d+\s+\d+\s+0\s")
    bench.run("kafka-consumer-groups", "--describe", "--group", GROUP, "--members")
    bench.has(bench.run("kafka-consumer-groups", "--describe", "--group", GROUP, "--state", note=False), r"Empty\s+0")
    target = ("--group", GROUP, "--topic", TOPIC)
    bench.run("kafka-consumer-groups", *target, "--reset-offsets", "--to-earliest", "--execute")
    told = bench.run("kafka-consumer-groups", "--describe", "--group", GROUP, note=False)
    bench.has(told, rf"{GROUP}\s+{TOPIC}\s+\d+\s+0\s+\d+\s+\d+")
    bench.run("kafka-consumer-groups", *target, "--delete-offsets", note=False)
    bench.run("kafka-consumer-groups", "--delete", "--group", GROUP)
    told = bench.run("kafka-consumer-groups", "--describe", "--group", "no-such-group", note=False)
    bench.has(told, "GroupIdNotFoundException")


def configs(bench: Bench) -> None:
    topic = ("--entity-type", "topics", "--entity-name", TOPIC)
    bench.has(bench.run("kafka-configs", *topic, "--describe", note=False), "max.message.bytes=900000 ")
    bench.run("kafka-configs", *topic, "--alter", "--add-config", "cleanup.policy=compact,min.compaction.lag.ms=5000")
    told = bench.run("kafka-configs", *topic, "--describe", note=False)
    bench.has(told, "cleanup.policy=compact ", "min.compaction.lag.ms=5000 ", "DYNAMIC_TOPIC_CONFIG")
    bench.run("kafka-configs", *topic, "--alter", "--delete-config", "cleanup.policy,min.compaction.lag.ms")
    bench.run("kafka-configs", *topic, "--alter", "--add-config", "no.such=1", note=False, fails=True)
    told = bench.run("kafka-configs", *topic, "--describe", "--all", note=False)
    bench.has(told, "retention.ms=", "cleanup.policy=delete")
    bench.run("kafka-configs", "--entity-type", "brokers", "--describe", note=False)
    bench.run("kafka-configs", "--entity-type", "groups", "--describe", note=False)


def producer_perf(bench: Bench) -> None:
    load = ("--topic", TOPIC, "--num-records", "5000", "--record-size", "200", "--throughput", "-1")
    for extra in ("acks=all", "acks=1"):
        told = bench.run("kafka-producer-perf-test", *load, "--command-property", extra, note=False)
        bench.has(told, "5000 records sent")


def consumer_perf(bench: Bench) -> None:
    told = bench.run("kafka-consumer-perf-test", "--topic", TOPIC, "--num-records", "5000", note=False)
    bench.has(told, r", (?:[5-9]|\d{2})\d{3}, ")


def reassign_partitions(bench: Bench) -> None:
    bench.run("kafka-reassign-partitions", "--list")


def verifiable(bench: Bench) -> None:
    sent = bench.run("kafka-verifiable-producer", "--topic", "tools-verified", "--max-messages", "200", note=False)
    events = [json.loads(line) for line in sent.splitlines() if line.startswith("{")]
    acked = sum(event["name"] == "producer_send_success" for event in events)
    if acked != 200 or events[-1].get("acked") != 200:
        raise ToolFailed(f"{acked} of 200 acknowledged, {events[-1]}")
    for protocol in ("classic", "consumer"):
        read = bench.run(
            "kafka-verifiable-consumer", "--topic", "tools-verified", "--group-id", f"verified-{protocol}",
            "--max-messages", "200", "--group-protocol", protocol, note=False,
        )  # fmt: skip
        told = [json.loads(line) for line in read.splitlines() if line.startswith("{")]
        count = sum(event.get("count", 0) for event in told if event["name"] == "records_consumed")
        if count < 200 or not any(event["name"] == "offsets_committed" and event["success"] for event in told):
            raise ToolFailed(f"{protocol}: read {count} of 200: {[event['name'] for event in told]}")


def get_offsets(bench: Bench) -> None:
    bench.run("kafka-get-offsets", "--topic", "tools-verified")
    bench.run("kafka-get-offsets", "--topic", "tools-verified", "--time", "earliest")
    bench.run("kafka-get-offsets", "--topic", "tools-verified", "--time", "max-timestamp", note=False)


def delete_records(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as directory:
        plan = Path(directory) / "plan.json"
        wanted = {"topic": "tools-verified", "partition": 0, "offset": 50}
        plan.write_text(json.dumps({"partitions": [wanted], "version": 1}))
        told = bench.run("kafka-delete-records", "--offset-json-file", str(plan))
    bench.has(told, "low_watermark: 50")


def log_dirs(bench: Bench) -> None:
    told = bench.run("kafka-log-dirs", "--describe", "--topic-list", TOPIC, note=False)
    bench.has(told, rf'"partition":"{TOPIC}-0"')


def api_versions(bench: Bench) -> None:
    bench.has(bench.run("kafka-broker-api-versions", note=False), r"Produce\(0\): 0 to 13", r"Fetch\(1\): 4 to 18")


def transactions(bench: Bench) -> None:
    bench.run("kafka-transactions", "list", note=False)


TOOLS: Final[dict[str, Callable[[Bench], None]]] = {
    "kafka-topics": topics,
    "kafka-console-producer, -consumer": console,
    "kafka-consumer-groups": consumer_groups,
    "kafka-configs": configs,
    "kafka-producer-perf-test": producer_perf,
    "kafka-consumer-perf-test": consumer_perf,
    "kafka-reassign-partitions --list": reassign_partitions,
    "kafka-verifiable-producer, -consumer": verifiable,
    "kafka-get-offsets": get_offsets,
    "kafka-delete-records": delete_records,
    "kafka-log-dirs": log_dirs,
    "kafka-broker-api-versions": api_versions,
    "kafka-transactions list": transactions,
}


def tools(target: Target, wanted: tuple[str, ...] = tuple(TOOLS)) -> Iterator[Cell]:
    jars = find_kafka()
    for feature in wanted:
        bench = Bench(jars, target.bootstrap)
        try:
            TOOLS[feature](bench)
        except Exception as error:
            yield Cell(feature=feature, outcome=FAILED, detail=f"{type(error).__name__}: {error}")
        else:
            yield Cell(feature=feature, outcome=OK, seen=bench.seen)
