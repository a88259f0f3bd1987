"""`streamhouse cost` on clusters whose contents the test made, against figures that the test adds up itself (S2.31)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streamhouse.cli.exit_codes import ExitCode
from streamhouse.metadata.contract import AgentInfo
from streamhouse.objectstore.objects import Operation
from streamhouse.objectstore.topic_requests import PARTS_PER_REQUEST
from streamhouse.testing.services import PostgresService, S3Service

if (here := str(Path(__file__).parent)) not in sys.path:
    sys.path.append(here)

from maintained_cluster import Cluster, local_cluster, remote_cluster

GIB = 1 << 30
PATIENT = ["--agent-liveness-timeout", "10m"]
"""No agent counts as dead because this machine is busy."""
USD_PER_GIB_MONTH = 0.023
"""S3 Standard in us-east-1, as the price list says it."""


@pytest.fixture(params=["sqlite and a directory", "postgresql and s3"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    if request.param == "sqlite and a directory":
        return local_cluster(tmp_path / "data")
    postgres: PostgresService = request.getfixturevalue("postgres_service")
    s3: S3Service = request.getfixturevalue("s3_service")
    return remote_cluster(tmp_path / "data", postgres, s3)


async def run(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a thread, so that agents of this process can answer."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STREAMHOUSE_", "AWS_"))}
    command = [sys.executable, "-m", "streamhouse", "cost", *arguments, *cluster.flags]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        env={**kept, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


async def document(cluster: Cluster, *arguments: str) -> dict[str, Any]:
    done = await run(cluster, *arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


async def sizes(cluster: Cluster) -> dict[str, int]:
    async with cluster.open(embedded_agent=False) as sh:
        return {info.key: info.size_bytes async for info in sh.stores.objects.list()}


async def test_s2_31_prefixes_and_topics_have_the_bytes_that_are_in_the_bucket(cluster: Cluster) -> None:
    await cluster.fill("orders", partitions=2)
    await cluster.fill("payments", flushes=3)
    (garbage,) = await cluster.put_garbage()
    stored = await sizes(cluster)
    total = sum(stored.values())

    found = await document(cluster, "--by", "prefix")
    listed = {row["prefix"]: (row["objects"], row["stored_bytes"]) for row in found["rows"]}
    for prefix in ("wal-shared/", "metadata-progress/"):
        inside = [size for key, size in stored.items() if key.startswith(prefix)]
        assert listed[prefix] == (len(inside), sum(inside))
    assert sum(row["stored_bytes"] for row in found["rows"]) == total
    summary = found["summary"]
    assert (summary["stored_objects"], summary["stored_bytes"]) == (len(stored), total)
    assert summary["storage_usd_per_month"] == pytest.approx(total / GIB * USD_PER_GIB_MONTH)
    assert summary["list_requests_of_this_command"] >= 1

    found = await document(cluster, "--by", "topic")
    rows = {row["topic"]: row for row in found["rows"]}
    assert {name: row["entries"] for name, row in rows.items()} == {"orders": 12, "payments": 3, "(no topic)": None}
    assert sum(row["stored_bytes"] for row in rows.values()) == total
    named = {name: set(await cluster.referenced(name)) for name in ("orders", "payments")}
    assert not named["orders"] & named["payments"], "they were not written at the same time"
    for name, keys in named.items():
        assert rows[name]["stored_bytes"] == sum(stored[key] for key in keys)
        assert 0 < rows[name]["log_bytes"] <= rows[name]["stored_bytes"]
    outside = stored.keys() - named["orders"] - named["payments"]
    assert garbage in outside
    assert rows["(no topic)"]["stored_bytes"] == sum(stored[key] for key in outside)
    assert {row["request_cost_usd"] for row in rows.values()} == {None}, "no process runs that could tell"


async def test_s2_31_processes_show_the_requests_that_their_meters_count(cluster: Cluster) -> None:
    await cluster.fill("orders")
    async with cluster.open(agent_id="a-1", admin_enabled=True, admin_listen="127.0.0.1:0") as sh:
        await sh.produce("orders", b"one more", partition=0)
        await sh.flush()
        before = sh.stores.meter.read()
        found = await document(cluster, "--by", "process", "--address", "127.0.0.1:1", *PATIENT)
        after = sh.stores.meter.read()
        await sh.stores.metadata.register_agent(
            AgentInfo(agent_id="a-2", incarnation=sh.randomness.uuid(), listeners={"kafka": "127.0.0.1:9092"})
        )
        silent = await document(cluster, "--by", "process", *PATIENT)
    rows = {row["process"]: row for row in found["rows"]}
    assert rows.keys() == {"a-1", "127.0.0.1:1"}
    for operation in Operation:
        shown = rows["a-1"]["requests"][operation]
        assert before.totals[operation].requests <= shown <= after.totals[operation].requests
    assert before.request_cost_usd <= rows["a-1"]["request_cost_usd"] <= after.request_cost_usd
    assert before.request_cost_usd > 0
    assert rows["a-1"]["request_cost_usd_per_month"] is None, "a minute says little of a month"
    assert rows["127.0.0.1:1"]["problem"] == "Connection refused"
    assert (found["summary"]["processes"], found["summary"]["unreachable_processes"]) == (1, 1)
    assert found["summary"]["request_cost_usd"] == rows["a-1"]["request_cost_usd"]
    assert any(note.startswith("127.0.0.1:1 is not in the sums") for note in found["notes"])
    problems = {row["process"]: row["problem"] for row in silent["rows"]}
    assert problems == {"a-1": None, "a-2": "it has registered no HTTP address that others reach"}


async def test_s2_31_topics_show_their_parts_of_the_requests_and_these_add_up(cluster: Cluster) -> None:
    async with cluster.open(agent_id="a-1", admin_enabled=True, admin_listen="127.0.0.1:0") as sh:
        for name, size_bytes in {"small": 10, "large": 5_000, "gone": 100}.items():
            await sh.create_topic(name, 1)
            await sh.produce(name, bytes(size_bytes), partition=0, acks=1)
        await sh.flush()
        await sh.delete_topic("gone")
        before = sh.stores.meter.topics.read()
        found = await document(cluster, "--by", "topic", *PATIENT)
        table = await run(cluster, "--by", "topic", *PATIENT)
        after = sh.stores.meter.topics.read()
    rows = {row["topic"]: row for row in found["rows"]}
    assert rows.keys() == {"small", "large", "gone", "(shared)", "(no topic)"}
    for name in ("small", "large", "gone", "(shared)"):
        for operation in Operation:
            parts = round(rows[name]["requests"][operation] * PARTS_PER_REQUEST)
            assert before[name].get(operation, 0) <= parts <= after[name].get(operation, 0)
    assert rows["large"]["writes"] > rows["small"]["writes"] > 0
    assert rows["(shared)"]["writes"] >= 1, "the cluster id"
    assert [rows[name]["stored_bytes"] for name in ("gone", "(shared)")] == [None, None]
    assert rows["(no topic)"]["requests"] is None
    counted = [row["requests"] for row in rows.values() if row["requests"] is not None]
    for operation in Operation:
        assert round(sum(each[operation] for each in counted) * PARTS_PER_REQUEST) % PARTS_PER_REQUEST == 0
    cost_usd = sum(row["request_cost_usd"] for row in rows.values() if row["requests"] is not None)
    assert cost_usd == pytest.approx(found["summary"]["request_cost_usd"])
    assert found["summary"]["processes"] == 1
    assert table.returncode == 0, table.stderr
    heading, *lines = table.stdout.splitlines()
    assert heading.lower().split()[-4:] == ["writes", "lists", "reads", "request_cost_usd"]
    assert next(line for line in lines if line.startswith("large ")).split()[-4].count(".") == 1


async def test_s2_31_a_compactor_is_asked_by_its_address(tmp_path: Path, compactor_page: str) -> None:
    cluster = local_cluster(tmp_path / "data")
    await cluster.fill("orders", flushes=1)
    found = await document(cluster, "--by", "process", "--address", compactor_page)
    (row,) = found["rows"]
    assert row["problem"] is None
    assert (row["requests"]["put"], row["up_s"]) == (7, 90)
    assert row["request_cost_usd"] == pytest.approx(7 * 0.005 / 1000)
    found = await document(cluster, "--by", "topic", "--address", compactor_page)
    requests = {row["topic"]: row["writes"] for row in found["rows"]}
    assert requests == {"orders": 2.5, "gone": 4.5, "(shared)": 0, "(no topic)": None}


@pytest.fixture
async def compactor_page() -> AsyncIterator[str]:
    """A server that answers at /costs as a compactor does."""
    page = {
        "up_s": 90.2,
        "requests": {"put": 7},
        "millionths_by_topic": {"(shared)": {}, "orders": {"put": 2_500_000}, "gone": {"put": 4_500_000}},
    }
    body = json.dumps(page).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /costs ")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    yield f"{host}:{port}"
    server.close()


async def test_s2_31_sums_alone_are_shown_without_by(tmp_path: Path) -> None:
    cluster = local_cluster(tmp_path / "data")
    await cluster.fill("orders", flushes=2)
    done = await run(cluster)
    assert done.returncode == 0
    shown = dict(line.split() for line in done.stdout.splitlines()[1:])
    assert shown["stored_objects"] == str(len(await sizes(cluster)))
    assert shown["processes"] == "0"
    assert shown["request_cost_usd"] == shown["request_cost_usd_per_month"] == "unknown"
    assert "what requests cost is unknown: no live agent is registered in sqlite://" in done.stderr
    assert "start an agent" in done.stderr
    assert "an estimate: list prices of S3 Standard in us-east-1" in done.stderr


@pytest.mark.parametrize("address", ["nowhere", ":80", "host:port", "host:0", "host:70000"])
async def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    cluster = local_cluster(tmp_path / "data")
    done = await run(cluster, "--address", address)
    assert done.returncode == 2
    assert "is no address to ask" in done.stderr
    assert not cluster.settings.data_dir.exists()


async def test_addresses_are_refused_where_no_process_is_asked(tmp_path: Path) -> None:
    done = await run(local_cluster(tmp_path / "data"), "--by", "prefix", "--address", "127.0.0.1:1")
    assert done.returncode == 2
    assert "--by prefix asks no process" in done.stderr


async def test_s2_31_requests_that_no_process_tells_are_unknown_and_not_free(tmp_path: Path) -> None:
    cluster = local_cluster(tmp_path / "data")
    await cluster.fill("orders", flushes=1)
    summary = (await document(cluster))["summary"]
    assert summary["stored_bytes"] > 0, "what is stored needs no process"
    assert (summary["request_cost_usd"], summary["request_cost_usd_per_month"]) == (None, None)
    done = await run(cluster, "--by", "process", "--address", "127.0.0.1:1", "--output", "json")
    assert done.returncode == ExitCode.UNAVAILABLE
    asked = json.loads(done.stdout)
    assert asked["summary"]["request_cost_usd"] is None
    assert "no process answered (asked: 127.0.0.1:1)" in done.stderr
    assert "--address HOST:PORT" in done.stderr
