"""What a process says of its requests by topic, against a workload whose requests are known (S2.31)."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from streamhouse import StreamHouse
from streamhouse.app.costs_page import costs_page, parse_costs_page
from streamhouse.app.maintenance_passes import MaintenancePasses
from streamhouse.core.ids import TopicId
from streamhouse.log.offload import InlineOffload
from streamhouse.maintenance.compaction.plan import CompactionRules
from streamhouse.maintenance.compaction.policy import small_object_logs
from streamhouse.metadata.contract import Entry, ScanRange
from streamhouse.objectstore.keys import SHARED_BLOB_PREFIX, topic_of
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.topic_requests import PARTS_PER_REQUEST, SHARED_NAME
from streamhouse.testing.services import PostgresService, S3Service

if (clusters := str(Path(__file__).parents[1] / "cli")) not in sys.path:
    sys.path.append(clusters)
if (proxies := str(Path(__file__).parents[1] / "objectstore")) not in sys.path:
    sys.path.append(proxies)

from maintained_cluster import Cluster, local_cluster, remote_cluster
from meddling_proxy import Meddling, meddling_proxy

TOPICS = {"small": 100, "middle": 900, "large": 5_000}
"""Names, and the bytes of a record."""
FLUSHES = 4


@dataclass(slots=True, kw_only=True)
class Watched:
    """A cluster, and what its S3 server was asked; None on a directory."""

    cluster: Cluster
    asked: list[tuple[str, str]] | None = None


@pytest.fixture(params=["sqlite and a directory", "postgresql and s3"])
async def watched(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Watched]:
    if request.param == "sqlite and a directory":
        yield Watched(cluster=local_cluster(tmp_path / "data"))
        return
    postgres: PostgresService = request.getfixturevalue("postgres_service")
    s3: S3Service = request.getfixturevalue("s3_service")
    cluster = remote_cluster(tmp_path / "data", postgres, s3)
    async with meddling_proxy(s3.endpoint_url, lambda _method, _target: Meddling.PASS) as proxy:
        yield Watched(
            cluster=replace(cluster, chosen={**cluster.chosen, "store_endpoint_url": proxy.url}), asked=proxy.seen
        )


@dataclass(slots=True)
class Page:
    """The page of a process."""

    sh: StreamHouse
    parts: Mapping[str, Mapping[Operation, int]] = field(init=False)

    def __post_init__(self) -> None:
        page = parse_costs_page(json.dumps(costs_page(self.sh.stores.meter, up_s=1.0)).encode())
        totals = self.sh.stores.meter.read().totals
        assert page.requests == {operation: each.requests for operation, each in totals.items()}
        for operation, each in totals.items():
            parts = sum(row.get(operation, 0) for row in page.parts_by_topic.values())
            assert parts == each.requests * PARTS_PER_REQUEST, operation
        self.parts = page.parts_by_topic

    def since(self, before: Page) -> dict[str, Counter[Operation]]:
        """What was counted after ``before``."""
        more = {name: Counter(row) - Counter(before.parts.get(name, {})) for name, row in self.parts.items()}
        return {name: row for name, row in more.items() if row}


async def fill(sh: StreamHouse) -> None:
    """Write each topic in each flush, so that all share its blob."""
    for name in TOPICS:
        await sh.create_topic(name, 2)
    for _ in range(FLUSHES):
        for name, size_bytes in TOPICS.items():
            for partition in range(2):
                await sh.produce(name, bytes(size_bytes), partition=partition, acks=1)
        await sh.flush()


async def entries(sh: StreamHouse) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for topic in await sh.topics():
        ranges = [ScanRange(key=key, from_offset=0) for key in topic.partition_keys()]
        pages = await sh.stores.metadata.scan_entries(ranges, limit=1_000)
        found[topic.name] = [entry for page in pages for entry in page.entries]
    return found


def expected_puts(written: Mapping[str, list[Entry]]) -> dict[str, float]:
    """Each blob's PUT by the bytes that the entries of each topic have in it."""
    blobs: dict[str, Counter[str]] = {}
    for name, its in written.items():
        for entry in its:
            blobs.setdefault(entry.object_key, Counter())[name] += entry.byte_length
    puts: Counter[str] = Counter()
    for shares in blobs.values():
        for name, size_bytes in shares.items():
            puts[name] += size_bytes / shares.total()  # type: ignore[assignment]  # parts of a request
    return dict(puts)


async def read_all(sh: StreamHouse) -> None:
    for name in TOPICS:
        for partition in range(2):
            offset = 0
            while records := await sh.read(name, partition, offset):
                offset = records[-1].offset + 1
            assert offset == FLUSHES


async def test_s2_31_the_requests_of_a_workload_belong_to_the_topics_that_caused_them(watched: Watched) -> None:
    async with watched.cluster.open() as sh:
        start = Page(sh)
        await fill(sh)
        written, after_writes = await entries(sh), Page(sh)
        puts = {name: row[Operation.PUT] for name, row in after_writes.since(start).items() if name in TOPICS}
        expected = expected_puts(written)
        assert puts.keys() == expected.keys() == TOPICS.keys()
        for name, parts in puts.items():
            flushes = len({entry.object_key for entry in written[name]})
            assert abs(parts / PARTS_PER_REQUEST - expected[name]) <= 2 * flushes / PARTS_PER_REQUEST
        assert puts["small"] < puts["middle"] < puts["large"]
        keys = {entry.object_key for its in written.values() for entry in its}
        assert sum(puts.values()) == len(keys) * PARTS_PER_REQUEST

    async with watched.cluster.open() as sh:  # nothing is in its memory
        start = Page(sh)
        await read_all(sh)
        reads = Page(sh).since(start)
        # Each slice of a blob has one GET, of its topic; nothing else is read.
        assert {name: row for name, row in reads.items() if name != SHARED_NAME} == {
            name: {Operation.RANGE_GET: len(its) * PARTS_PER_REQUEST} for name, its in written.items()
        }
        assert Operation.RANGE_GET not in reads.get(SHARED_NAME, {})

        before = Page(sh)
        maintenance = MaintenancePasses(
            stores=sh.stores, offload=InlineOffload(), clock=sh.clock, randomness=sh.randomness
        )
        compactor = maintenance.compactor(CompactionRules(min_entries=2))
        done = await compactor.compact_once(small_object_logs(await sh.topics()))
        assert done.stats.runs == 2 * len(TOPICS)
        rewritten = Page(sh).since(before)
        assert rewritten.keys() <= {*TOPICS, SHARED_NAME}
        for name in TOPICS:
            assert rewritten[name][Operation.RANGE_GET] >= 2 * PARTS_PER_REQUEST
            assert rewritten[name][Operation.MULTIPART] >= 2 * PARTS_PER_REQUEST
            assert all(parts % PARTS_PER_REQUEST == 0 for parts in rewritten[name].values())
        assert not {Operation.RANGE_GET, Operation.MULTIPART} & rewritten.get(SHARED_NAME, Counter()).keys()

    if watched.asked is not None:
        async with watched.cluster.open() as sh:
            await compare_with_the_server(sh, watched.asked)


async def compare_with_the_server(sh: StreamHouse, asked: list[tuple[str, str]]) -> None:
    """What the S3 server was asked for objects in folders of topics is what their topics are said to have caused."""
    topics = {topic.topic_id: topic.name for topic in await sh.topics()}
    before, asked_before = Page(sh), len(asked)
    await read_all(sh)  # the compacted objects
    counted = Page(sh).since(before)
    seen: Counter[str] = Counter()
    for method, target in asked[asked_before:]:
        if method == "GET" and (topic_id := topic_in(target)) is not None:
            seen[topics[topic_id]] += 1
    assert seen.keys() == TOPICS.keys()
    assert {name: row[Operation.RANGE_GET] for name, row in counted.items() if name in TOPICS} == {
        name: number * PARTS_PER_REQUEST for name, number in seen.items()
    }


def topic_in(target: str) -> TopicId | None:
    """The topic whose folder a request names; the store's own prefix comes before the key."""
    return topic_of(unquote(urlsplit(target).path).partition("/prefix/")[2])


async def test_s2_31_the_s3_server_is_asked_as_often_as_the_topics_say(
    postgres_service: PostgresService, s3_service: S3Service, tmp_path: Path
) -> None:
    cluster = remote_cluster(tmp_path / "data", postgres_service, s3_service)
    async with meddling_proxy(s3_service.endpoint_url, lambda _method, _target: Meddling.PASS) as proxy:
        chosen = {**cluster.chosen, "store_endpoint_url": proxy.url}
        async with replace(cluster, chosen=chosen).open() as sh:
            start, asked_before = Page(sh), len(proxy.seen)
            await fill(sh)
            counted = Page(sh).since(start)
            blobs = [
                target
                for method, target in proxy.seen[asked_before:]
                if method == "PUT" and f"/prefix/{SHARED_BLOB_PREFIX}" in unquote(target)
            ]
            assert len(blobs) >= FLUSHES
            assert sum(counted[name][Operation.PUT] for name in TOPICS) == len(blobs) * PARTS_PER_REQUEST


async def test_s2_31_a_page_of_the_port_has_the_counts_and_each_topic_has_metrics_up_to_the_limit(
    tmp_path: Path,
) -> None:
    cluster = local_cluster(tmp_path / "data")
    async with cluster.open(admin_metric_topics=2) as sh:
        await fill(sh)
        lines = sh.observed.metrics.text().decode().splitlines()
        page = Page(sh)
    name = "streamhouse_topic_object_store_requests_total"
    puts = {
        line.split('topic="')[1].split('"')[0]: float(line.split()[-1])
        for line in lines
        if line.startswith(f'{name}{{operation="put"')
    }
    assert len(puts) == 4
    assert puts.keys() >= {SHARED_NAME, "(other)"}
    all_puts = sum(row.get(Operation.PUT, 0) for row in page.parts.values())
    assert round(sum(puts.values()) * PARTS_PER_REQUEST) == all_puts


GOOD: dict[str, Any] = {"up_s": 3, "requests": {"put": 2}, "millionths_by_topic": {"t": {"put": 2_000_000}}}


def test_a_page_of_a_newer_version_is_read_without_what_is_not_known() -> None:
    page = parse_costs_page(json.dumps({**GOOD, "more": 1, "requests": {"put": 2, "teleport": 5}}).encode())
    assert page.requests == {Operation.PUT: 2}
    assert page.parts_by_topic == {"t": {Operation.PUT: 2_000_000}}


@pytest.mark.parametrize(
    "body",
    [
        b"some_other_metric 1\n",
        b"[]",
        b"{}",
        b"\xff",
        json.dumps({**GOOD, "up_s": None}).encode(),
        json.dumps({**GOOD, "up_s": float("nan")}).encode(),
        json.dumps({**GOOD, "up_s": -1}).encode(),
        json.dumps({**GOOD, "requests": {"put": "2"}}).encode(),
        json.dumps({**GOOD, "requests": [2]}).encode(),
        json.dumps({**GOOD, "millionths_by_topic": {"t": 1}}).encode(),
        json.dumps({**GOOD, "millionths_by_topic": [1]}).encode(),
    ],
)
def test_what_is_no_page_of_ours_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_costs_page(body)
