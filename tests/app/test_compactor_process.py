"""`streamhouse compactor` as real processes: two at once, one killed, a new topic, its pages, and a stop in order."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamhouse.app.compactor_metrics import COMPACTOR_METRICS
from streamhouse.core.errors import NotLeader
from streamhouse.core.metrics import METRICS
from streamhouse.metadata.contract import Claim, MetadataStore
from streamhouse.testing.services import PostgresService, S3Service
from streamhouse.wire.records import Record

if (shared := str(Path(__file__).parents[1] / "cli")) not in sys.path:
    sys.path.append(shared)
if (processes := str(Path(__file__).parents[1] / "e2e")) not in sys.path:
    sys.path.append(processes)

from e2e_processes import STREAMHOUSE, Process, eventually
from maintained_cluster import OLD_MS, Cluster, local_cluster, remote_cluster

OFTEN = [
    *("--maintenance-compaction-interval", "1s", "--maintenance-retention-interval", "1s"),
    *("--discovery-interval", "1s", "--min-entries", "2"),
]
DOCS = Path(__file__).parents[2] / "docs" / "maintenance.md"
Start = Callable[..., "Compactor"]


class Compactor(Process):
    @property
    def address(self) -> str:
        found = re.search(r"^health {6}http://(\S+)/health$", self.output(), re.MULTILINE)
        assert found is not None
        return found[1]

    async def ready(self) -> None:
        def is_ready() -> bool:
            assert self.alive(), self.log_tail()
            return "\nready; " in self.output()

        await eventually(f"{self.name} is ready", is_ready)

    def get(self, path: str) -> tuple[int, str, str]:
        """Status, content type and body."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type") or "", answer.read().decode()
        finally:
            connection.close()

    def metric(self, name: str, **labels: str) -> float:
        """The value in JSON; 0 for one whose labels have none yet."""
        value = json.loads(self.get("/metrics")[2])["metrics"].get(f"streamhouse_{name}", 0)
        if isinstance(value, list):
            return sum(each["value"] for each in value if labels.items() <= each["labels"].items())
        return float(value)


@pytest.fixture
def remote(tmp_path: Path, postgres_service: PostgresService, s3_service: S3Service) -> Cluster:
    return remote_cluster(tmp_path / "data", postgres_service, s3_service)


@pytest.fixture(params=["sqlite and a directory", "postgresql and s3"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    if request.param == "sqlite and a directory":
        return local_cluster(tmp_path / "data")
    made: Cluster = request.getfixturevalue("remote")
    return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Compactor] = []

    def begin(cluster: Cluster, name: str, *arguments: str) -> Compactor:
        argv = [str(STREAMHOUSE), "compactor", *arguments, "--id", name, *cluster.flags]
        process = Compactor(name, argv, environment={}, log_path=tmp_path / f"{name}.log", working_dir=tmp_path)
        made.append(process)
        process.start()
        return process

    yield begin
    for process in made:
        process.clean_up()


async def held(cluster: Cluster) -> tuple[list[Claim], int]:
    """The claims and how many pins there are."""
    async with cluster.open(embedded_agent=False) as sh:
        metadata: MetadataStore = sh.stores.metadata
        return await metadata.list_claims(), len(await metadata.list_pins())


async def claims_on_partitions(cluster: Cluster) -> list[Claim]:
    return [claim for claim in (await held(cluster))[0] if claim.name.startswith("compaction/")]


async def fill_large(cluster: Cluster, name: str, *, partitions: int) -> None:
    """Some hundred KB in each partition, so that a slow rate takes long."""
    async with cluster.open() as sh:
        await sh.create_topic(name, partitions)
        for _ in range(6):
            for partition in range(partitions):
                records = [Record(value=os.urandom(40_000), timestamp_ms=sh.clock.wall_ms()) for _ in range(3)]
                await sh.produce_batch(name, partition, records)
            await sh.flush()


async def read(cluster: Cluster, name: str, partition: int = 0) -> bytes:
    """As a consumer gets it. On a busy machine the agent that is asked may lose its leases: then another one is."""
    for _ in range(20):
        with suppress(NotLeader):
            return await cluster.read(name, partition)
    raise AssertionError(f"no agent has led {name}/{partition} for long enough")


async def compacted(cluster: Cluster, name: str, *, entries: int) -> None:
    async def is_compacted() -> bool:
        return len(await cluster.referenced(name)) == entries

    await eventually(f"{name} has {entries} entries", is_compacted, every_s=0.3)


async def test_s2_12_it_compacts_retains_discovers_shows_it_and_stops_in_order(cluster: Cluster, start: Start) -> None:
    await cluster.fill("orders", partitions=2)
    await cluster.fill("old", at_ms=OLD_MS)
    await cluster.fill("table", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    before = [await read(cluster, "orders", partition) for partition in range(2)]
    process = start(cluster, "c-1", *OFTEN)
    await process.ready()
    assert "looking after 4 partitions of 3 topics" in process.output()
    await compacted(cluster, "orders", entries=2)
    await compacted(cluster, "old", entries=0)
    await compacted(cluster, "table", entries=2)

    await cluster.fill("later")

    async def later_is_compacted() -> bool:
        return any("/compacted/" in key for key in await cluster.referenced("later"))

    await eventually("a topic that was created later is compacted", later_is_compacted, every_s=0.3)
    assert process.metric("compactor_discovered_total") == 1
    await eventually("its tasks are counted", lambda: process.metric("compactor_tasks_total", outcome="done") >= 4)
    assert process.metric("compactor_objects_total", kind="small_objects") >= 3
    assert process.metric("compactor_dropped_records_total", reason="superseded") > 0
    assert process.metric("retention_deleted_records_total") == 18

    assert await process.stopped_by(signal.SIGTERM) == 0
    assert process.output().splitlines()[-1] == "stopped: its claims and pins are given back"
    assert await held(cluster) == ([], 0)
    assert [await read(cluster, "orders", partition) for partition in range(2)] == before


async def test_s2_31_its_pages_say_who_it_is_what_it_did_and_what_that_costs(tmp_path: Path, start: Start) -> None:
    cluster = local_cluster(tmp_path / "data")
    await cluster.fill("orders")
    process = start(cluster, "c-1", *OFTEN, "--maintenance-vacuum-interval", "1m")
    await process.ready()
    status, kind, body = process.get("/health")
    health = json.loads(body)
    host, _, port = process.address.rpartition(":")
    assert (status, kind) == (200, "application/json")
    assert health == {
        "status": "ok",
        "id": "c-1",
        "host": host,
        "port": int(port),
        "started_at_ms": health["started_at_ms"],
    }
    assert process.get("/livez")[0] == 200
    assert json.loads(process.get("/readyz")[2])["process"] == "compactor c-1"
    assert process.get("/nothing")[0] == 404

    await eventually("it has vacuumed", lambda: process.metric("maintenance_passes_total", kind="vacuum") >= 1)
    document = json.loads(process.get("/metrics")[2])
    assert (document["id"], document["started_at_ms"]) == ("c-1", health["started_at_ms"])
    assert document["billing"]["request_cost_usd"] > 0
    stored = document["metrics"]["streamhouse_compactor_stored_bytes"]
    assert document["billing"]["stored"]["bytes"] == sum(each["value"] for each in stored) > 0

    await compacted(cluster, "orders", entries=1)
    costs = json.loads(process.get("/costs")[2])
    topics = costs["millionths_by_topic"]
    assert topics.keys() == {"(shared)", "orders"}
    assert topics["orders"]["multipart"] == costs["requests"]["multipart"] * 1_000_000 > 0
    assert topics["(shared)"]["list"] == costs["requests"]["list"] * 1_000_000 > 0

    status, kind, text = process.get("/metrics/prometheus")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    families = list(text_string_to_metric_families(text))
    names = {f"{each.name}_total" if each.type == "counter" else each.name for each in families}
    missing = {metric.name for metric in COMPACTOR_METRICS} - names
    assert missing <= {"streamhouse_compactor_tasks_total"}, "declared, and no source gives it"
    known = {metric.name for metric in COMPACTOR_METRICS} | METRICS.keys()
    assert {name for name in names if not name.startswith("process_")} <= known
    in_json = {each.removesuffix("_count").removesuffix("_sum") for each in document["metrics"]}
    assert names - {name for name in names if name.startswith("process_")} <= in_json


def test_s2_31_every_metric_of_the_compactor_is_in_the_docs() -> None:
    page = DOCS.read_text()
    assert [metric.name for metric in COMPACTOR_METRICS if f"`{metric.name}" not in page] == []
    assert not {metric.name for metric in COMPACTOR_METRICS} & METRICS.keys()


async def test_s2_13_two_at_once_share_the_work_and_one_goes_on_when_the_other_is_killed(
    remote: Cluster, start: Start
) -> None:
    await fill_large(remote, "orders", partitions=3)
    before = [await read(remote, "orders", partition) for partition in range(3)]
    slow = ["--parallel", "1", "--rate", "64KiB"]
    pair = [start(remote, name, *OFTEN, *slow) for name in ("c-1", "c-2")]
    for process in pair:
        await process.ready()
    killed, survivor = pair

    async def both_compact() -> bool:
        return {claim.owner[:3] for claim in await claims_on_partitions(remote)} == {"c-1", "c-2"}

    await eventually("both compact", both_compact, every_s=0.3)
    await killed.kill()
    (left,) = [claim for claim in await claims_on_partitions(remote) if claim.owner.startswith("c-1/")]
    remote.pass_time(left.expires_at_ms - left.claimed_at_ms + 1_000)
    await compacted(remote, "orders", entries=3)
    assert survivor.metric("compactor_objects_total", kind="small_objects") >= 2
    assert await survivor.stopped_by(signal.SIGTERM) == 0
    assert [await read(remote, "orders", partition) for partition in range(3)] == before
    assert [claim for claim in (await held(remote))[0] if claim.owner.startswith("c-2/")] == []


async def test_s2_9_sigterm_in_the_middle_of_a_task_gives_claims_and_pins_back(cluster: Cluster, start: Start) -> None:
    await fill_large(cluster, "orders", partitions=1)
    before = await read(cluster, "orders")
    process = start(cluster, "c-1", *OFTEN, "--rate", "64KiB")
    await process.ready()

    async def works() -> bool:
        return (await held(cluster))[1] == 1

    await eventually("it compacts", works, every_s=0.3)
    claims, pins = await held(cluster)
    assert ([claim.name.partition("/")[0] for claim in claims if claim.name != "vacuum"], pins) == (["compaction"], 1)
    assert await process.stopped_by(signal.SIGTERM) == 0
    assert await held(cluster) == ([], 0)
    assert len(await cluster.referenced("orders")) == 6, "nothing was half done"
    assert await read(cluster, "orders") == before


async def test_s2_12_chosen_topics_alone_are_looked_after(tmp_path: Path, start: Start) -> None:
    cluster = local_cluster(tmp_path / "data")
    await cluster.fill("orders")
    await cluster.fill("other")
    process = start(cluster, "c-1", "orders", *OFTEN)
    await process.ready()
    assert "looking after 1 partition of 1 topic\n" in process.output()
    assert "no vacuum, because topics were chosen" in process.output()
    await compacted(cluster, "orders", entries=1)
    assert len(await cluster.referenced("other")) == 6
    assert await process.stopped_by(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ordres"], 3, "there is no topic 'ordres'"),
        (["--parallel", "0"], 2, "--parallel"),
        (["--rate", "1B"], 2, "--rate"),
        (["--rate", "fast"], 2, "'fast' is not a size"),
        (["--discovery-interval", "1ms"], 2, "--discovery-interval"),
        (["--data-dir", "elsewhere"], 2, "there is no metadata in"),
    ],
    ids=lambda each: each[0] if isinstance(each, list) else "",
)
async def test_a_start_that_cannot_work_says_what_is_wrong(
    tmp_path: Path, start: Start, arguments: list[str], code: int, words: str
) -> None:
    cluster = local_cluster(tmp_path / "data")
    if "--data-dir" in arguments:
        cluster = Cluster(chosen={}, pass_time=cluster.pass_time)
    else:
        await cluster.fill("orders", flushes=1)
    process = start(cluster, "c-1", *arguments)
    assert await process.exited() == code
    assert words in process.output()
    assert "Traceback" not in process.output()


async def test_a_port_that_is_taken_is_named(tmp_path: Path, start: Start) -> None:
    cluster = local_cluster(tmp_path / "data")
    await cluster.fill("orders", flushes=1)
    first = start(cluster, "c-1")
    await first.ready()
    second = start(cluster, "c-2", "--admin-listen", first.address)
    assert await second.exited() == 2
    assert f"another process listens on {first.address}" in second.output()


async def test_a_name_of_nothing_but_spaces_is_refused(tmp_path: Path, start: Start) -> None:
    cluster: Any = local_cluster(tmp_path / "data")
    process = start(cluster, " ")
    assert await process.exited() == 2
    assert "--id ' ' is no name" in process.output()
